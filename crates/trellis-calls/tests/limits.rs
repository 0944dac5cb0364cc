//! Calls must not write more than the kernel would, and must end as they would without Trellis; and the rare functions.

mod support;

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{PAGE, Shared, done, good, pair_of, pipe_of, some, with_the_library};
use trellis_memory::Access;
use trellis_testing::Folder;

/// Ends the other thread, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Another node takes pages all the time, as often as it can.
#[test]
fn calls_finish_while_pages_are_taken_away() {
    with_the_library("calls_finish_while_pages_are_taken_away", |shared| {
        let folder = Folder::new();
        let path = CString::new(folder.file("file").to_str().unwrap()).unwrap();
        let bytes = 100 * PAGE;
        let content = some(bytes);
        let is_over = AtomicBool::new(false);
        let (from, to) = (shared.bytes(&content) as usize, shared.room(bytes) as usize);
        std::thread::scope(|scope| {
            let world = &shared.world;
            let ends = Over(&is_over);
            scope.spawn(|| {
                let mut page = 0;
                while !is_over.load(Ordering::SeqCst) {
                    world.withdraw(page, 1, Access::None);
                    page = (page * 31 + 7) % world.region.pages();
                }
            });
            // SAFETY: calls of the C library with memory of the region.
            unsafe {
                let file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
                for _ in 0..50 {
                    assert_eq!(good(libc::pwrite(file, from as *const c_void, bytes, 0)), bytes);
                    assert_eq!(good(libc::pread(file, to as *mut c_void, bytes, 0)), bytes);
                }
                libc::close(file);
            }
            drop(ends);
        });
        assert_eq!(shared.seen(to as *const c_void, bytes), content);
        assert_eq!(std::fs::read(folder.file("file")).unwrap(), content);
    });
}

#[test]
fn what_a_call_did_not_write_stays() {
    with_the_library("what_a_call_did_not_write_stays", |shared| {
        let [reader, writer] = pipe_of();
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::pause();
            }
            let status = shared.of(0x1234 as c_int);
            assert_eq!(libc::waitpid(child, status, libc::WNOHANG), 0);
            shared.take_away();
            assert_eq!(*status, 0x1234, "the child has not ended");
            libc::kill(child, libc::SIGKILL);
            assert_eq!(libc::waitpid(child, status, 0), child);
            assert!(libc::WIFSIGNALED(*status));

            // A set of descriptors has as many words as the largest one needs, and what lies behind it is other data.
            let words = shared.of([1u64 << reader, 0x55, 0x66]);
            let limit = shared.of(libc::timeval { tv_sec: 0, tv_usec: 20_000 });
            assert_eq!(libc::select(reader + 1, words.cast(), null_mut(), null_mut(), limit), 0);
            shared.take_away();
            assert_eq!((*words, (*limit).tv_usec), ([0, 0x55, 0x66], 0));
            let sets = shared.room(8 * 64);
            let many = libc::fcntl(reader, libc::F_DUPFD, 2000);
            if many >= 2000 {
                assert_eq!(libc::write(writer, b"x".as_ptr().cast(), 1), 1);
                let word = sets.cast::<u8>().add(8 + many as usize / 64 * 8).cast::<u64>();
                word.write_unaligned(1 << (many % 64));
                shared.take_away();
                let set = sets.cast::<u8>().add(8).cast();
                assert_eq!(libc::select(many + 1, set, null_mut(), null_mut(), null_mut()), 1);
                assert_eq!(word.read_unaligned(), 1 << (many % 64));
            }

            // Programs give the most descriptors that there could be, with a set that is smaller.
            #[repr(C)]
            struct Neighbours {
                set: libc::fd_set,
                count: u64,
            }
            let both = shared.of(zeroed::<Neighbours>());
            libc::FD_SET(reader, &raw mut (*both).set);
            (*both).count = 5;
            let entry = both as usize;
            let changer = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                (*(entry as *mut Neighbours)).count = 777;
            });
            let limit = shared.of(libc::timeval { tv_sec: 0, tv_usec: 100_000 });
            libc::select(libc::getdtablesize(), &raw mut (*both).set, null_mut(), null_mut(), limit);
            changer.join().unwrap();
            assert_eq!((*both).count, 777);

            // A call with nothing to move is made, too.
            let [near, far] = pair_of(libc::SOCK_DGRAM);
            assert_eq!(libc::send(near, shared.room(8), 0, 0), 0);
            assert_eq!(libc::recv(far, shared.room(8), 8, libc::MSG_DONTWAIT), 0, "an empty datagram came");
            assert_eq!((libc::write(reader, shared.room(8), 0), *libc::__errno_location()), (-1, libc::EBADF));
            // What a stream is emptied of is not written anywhere.
            let [near, far] = pair_of_tcp();
            assert_eq!(libc::send(near, b"gone".as_ptr().cast(), 4, 0), 4);
            let kept = shared.bytes(b"kept");
            assert_eq!(libc::recv(far, kept, 4, libc::MSG_TRUNC | libc::MSG_WAITALL), 4);
            assert_eq!(shared.seen(kept, 4), b"kept");

            // Another thread may change an entry while poll waits.
            let list = shared.of([libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2]);
            let entry = list as usize;
            let changer = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                (*(entry as *mut [libc::pollfd; 2]))[1].events = 77;
            });
            assert_eq!(libc::poll(list.cast(), 2, 200), 0);
            changer.join().unwrap();
            assert_eq!((*list)[1].events, 77);
        }
    });
}

/// Two connected sockets.
fn pair_of_tcp() -> [c_int; 2] {
    use std::os::fd::IntoRawFd;

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [near.into_raw_fd(), listener.accept().unwrap().0.into_raw_fd()]
}

/// Two threads write records to one file, with one position.
#[test]
fn records_are_not_torn() {
    with_the_library("records_are_not_torn", |shared| {
        const RECORD: usize = 2 * PAGE;
        let folder = Folder::new();
        let path = CString::new(folder.file("file").to_str().unwrap()).unwrap();
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600);
            let records = [shared.bytes(&[1; RECORD]) as usize, shared.bytes(&[2; RECORD]) as usize];
            std::thread::scope(|scope| {
                for record in records {
                    scope.spawn(move || {
                        for _ in 0..200 {
                            shared.take_away();
                            assert_eq!(libc::write(file, record as *const c_void, RECORD), RECORD as isize);
                        }
                    });
                }
            });
        }
        let content = std::fs::read(folder.file("file")).unwrap();
        assert!(content.chunks(RECORD).all(|record| record.iter().all(|byte| *byte == record[0])));
        assert_eq!(content.len(), 400 * RECORD);
    });
}

#[test]
fn what_a_signal_interrupts_ends_as_it_would() {
    with_the_library("what_a_signal_interrupts_ends_as_it_would", |shared| {
        extern "C" fn nothing(_: c_int) {}
        let [reader, writer] = pipe_of();
        // SAFETY: a handler that does nothing, and calls of the C library with memory of the region.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            done(libc::sigaction(libc::SIGUSR2, &raw const action, null_mut()));
            let content = some(50 * PAGE);
            let from = shared.bytes(&content);
            let is_over = std::sync::Arc::new(AtomicBool::new(false));
            let (stop, thread) = (std::sync::Arc::clone(&is_over), libc::pthread_self());
            // One signal, when the pipe is full and the call can only wait.
            let room = libc::fcntl(writer, libc::F_GETPIPE_SZ);
            let once = std::thread::spawn(move || {
                let mut filled: c_int = 0;
                while filled < room {
                    libc::ioctl(reader, libc::FIONREAD, &raw mut filled);
                    std::thread::yield_now();
                }
                libc::pthread_kill(thread, libc::SIGUSR2);
            });
            let put = libc::write(writer, from, 50 * PAGE);
            assert_eq!(put, room as isize, "nobody reads, and a signal ends the call");
            once.join().unwrap();
            let interrupts = std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    libc::pthread_kill(thread, libc::SIGUSR2);
                }
            });

            let limit = shared.of(libc::timeval { tv_sec: 600, tv_usec: 0 });
            assert_eq!(libc::select(0, null_mut(), null_mut(), null_mut(), limit), -1);
            shared.take_away();
            assert!((*limit).tv_sec < 600, "it says how much is left");
            is_over.store(true, Ordering::SeqCst);
            interrupts.join().unwrap();

            // A file may not become larger than the limit: the call that reaches it writes less.
            let folder = Folder::new();
            let path = CString::new(folder.file("file").to_str().unwrap()).unwrap();
            let file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
            let mut limit: libc::rlimit = zeroed();
            libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
            let low = libc::rlimit { rlim_cur: 5000, ..limit };
            done(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const low));
            for page in 0..8 {
                // Here but for the last pages, which the call does not reach.
                from.cast::<u8>().add(page * PAGE).read_volatile();
            }
            let put = libc::write(file, from, 40 * PAGE);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
            assert_eq!(put, 5000);
        }
    });
}

unsafe extern "C" {
    fn eventfd_read(file: c_int, to: *mut u64) -> c_int;
    fn puts(text: *const c_char) -> c_int;
    fn setbuffer(stream: *mut libc::FILE, buffer: *mut c_char, bytes: usize);
    fn wait3(status: *mut c_int, how: c_int, used: *mut libc::rusage) -> c_int;
    fn sigwait(set: *const libc::sigset_t, to: *mut c_int) -> c_int;
    fn __read_chk(file: c_int, to: *mut c_void, bytes: usize, room: usize) -> isize;
    fn __pread_chk(file: c_int, to: *mut c_void, bytes: usize, at: i64, room: usize) -> isize;
    fn __recv_chk(socket: c_int, to: *mut c_void, bytes: usize, room: usize, how: c_int) -> isize;
    fn __fread_chk(to: *mut c_void, room: usize, size: usize, count: usize, stream: *mut libc::FILE) -> usize;
    fn __poll_chk(list: *mut libc::pollfd, count: u64, limit_ms: c_int, room: usize) -> c_int;
    fn __getcwd_chk(to: *mut c_char, bytes: usize, room: usize) -> *mut c_char;
    fn __open_2(path: *const c_char, how: c_int) -> c_int;
}

#[test]
fn functions_of_checked_programs_and_rare_ones_work() {
    with_the_library("functions_of_checked_programs_and_rare_ones_work", |shared| {
        let folder = Folder::new();
        let content = some(3 * PAGE);
        folder.write("file", &content);
        let path = || shared.path(&folder.file("file"));
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            let file = __open_2(path(), libc::O_RDONLY);
            done(file);
            let to = shared.room(3 * PAGE);
            assert_eq!(good(__read_chk(file, to, 3 * PAGE, 3 * PAGE)), 3 * PAGE);
            assert_eq!(shared.seen(to, 3 * PAGE), content);
            shared.take_away();
            assert_eq!(good(__pread_chk(file, to, 2 * PAGE, 5, 3 * PAGE)), 2 * PAGE);
            assert_eq!(shared.seen(to, 2 * PAGE), content[5..5 + 2 * PAGE]);
            let stream = libc::fdopen(file, c"r".as_ptr());
            libc::rewind(stream);
            shared.take_away();
            assert_eq!(__fread_chk(to, 3 * PAGE, 1, 3 * PAGE, stream), 3 * PAGE);
            assert_eq!(shared.seen(to, 3 * PAGE), content);

            let [near, far] = pair_of(libc::SOCK_DGRAM);
            assert_eq!(libc::send(near, b"hello".as_ptr().cast(), 5, 0), 5);
            shared.take_away();
            assert_eq!(good(__recv_chk(far, to, PAGE, 3 * PAGE, 0)), 5);
            assert_eq!(shared.seen(to, 5), b"hello");
            let list = shared.of([libc::pollfd { fd: near, events: libc::POLLOUT, revents: 0 }]);
            assert_eq!(__poll_chk(list.cast(), 1, 0, 8), 1);
            let here = shared.room(1000);
            assert_eq!(__getcwd_chk(here.cast(), 1000, 1000), here.cast());

            let event = libc::eventfd(5, libc::EFD_NONBLOCK);
            let value = shared.of(0u64);
            assert_eq!(eventfd_read(event, value), 0);
            shared.take_away();
            assert_eq!(*value, 5);
            shared.again();
            let time = shared.of(zeroed::<libc::timespec>());
            done(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time));
            shared.take_away();
            assert!((*time).tv_nsec > 0);
            let about = shared.of(zeroed::<libc::statvfs>());
            done(libc::statvfs(path(), about));
            shared.take_away();
            assert!((*about).f_bsize > 0);
            let child = libc::fork();
            if child == 0 {
                libc::_exit(9);
            }
            let (status, used) = (shared.of(0 as c_int), shared.of(zeroed::<libc::rusage>()));
            assert_eq!(wait3(status, 0, used), child);
            shared.take_away();
            assert!(libc::WEXITSTATUS(*status) == 9 && (*used).ru_maxrss > 0);

            // SIGUSR1 for this thread only.
            let mut set: libc::sigset_t = zeroed();
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut());
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
            let got = shared.of(0 as c_int);
            assert_eq!(sigwait(shared.of(set), got), 0);
            shared.take_away();
            assert_eq!(*got, libc::SIGUSR1);
            let signals = libc::signalfd(-1, shared.of(set), 0);
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
            let information = shared.of(zeroed::<libc::signalfd_siginfo>());
            let bytes = size_of::<libc::signalfd_siginfo>();
            assert_eq!(good(libc::read(signals, information.cast(), bytes)), bytes);
            shared.take_away();
            assert_eq!((*information).ssi_signo, libc::SIGUSR1 as u32);

            shared.again();
            let out = libc::open(shared.path(&folder.file("copy")), libc::O_RDWR | libc::O_CREAT, 0o600);
            let at = shared.of(7i64);
            assert_eq!(good(libc::sendfile(out, libc::fileno(stream), at, 10)), 10);
            shared.take_away();
            assert_eq!(*at, 17);
            let (from, to) = (shared.of(1i64), shared.of(100i64));
            assert_eq!(good(libc::copy_file_range(libc::fileno(stream), from, out, to, 10, 0)), 10);
            shared.take_away();
            assert_eq!((*from, *to), (11, 110));
            let written = libc::fopen(shared.path(&folder.file("buffered")), c"w".as_ptr());
            setbuffer(written, shared.room(PAGE).cast(), PAGE);
            assert!(libc::fputs(shared.text("text"), written) >= 0);
            shared.take_away();
            assert_eq!(libc::fclose(written), 0);
            assert_eq!(std::fs::read(folder.file("buffered")).unwrap(), b"text");
            assert!(puts(shared.text("a line")) >= 0);
            let stream = libc::popen(shared.text("printf %s out"), shared.text("r"));
            let got = shared.room(10);
            assert_eq!(libc::fread(got, 1, 10, stream), 3);
            libc::pclose(stream);
            assert_eq!(shared.seen(got, 3), b"out");
            let groups = shared.room(4 * 100);
            let count = libc::getgroups(100, (groups as usize).next_multiple_of(4) as *mut u32);
            done(count);
            let name = shared.text("user.trellis");
            let value = shared.bytes(b"value");
            if libc::fsetxattr(out, name, value, 5, 0) == 0 {
                let to = shared.room(10);
                shared.take_away();
                assert_eq!(good(libc::fgetxattr(out, name, to, 10)), 5);
                assert_eq!(shared.seen(to, 5), b"value");
            }
            shared.again();
            queues(shared);
        }
    });
}

/// # Safety
/// None: the memory is the region's.
unsafe fn queues(shared: &Shared) {
    // SAFETY: calls of the C library with memory of the region.
    unsafe {
        let set = libc::semget(libc::IPC_PRIVATE, 1, 0o600);
        done(set);
        let operation = shared.of([libc::sembuf { sem_num: 0, sem_op: 1, sem_flg: 0 }]);
        let answer = libc::semop(set, operation.cast(), 1);
        libc::semctl(set, 0, libc::IPC_RMID);
        done(answer);

        #[repr(C)]
        struct Typed {
            kind: i64,
            text: [u8; 5],
        }
        let queue = libc::msgget(libc::IPC_PRIVATE, 0o600);
        done(queue);
        let sent = libc::msgsnd(queue, shared.of(Typed { kind: 3, text: *b"typed" }).cast(), 5, 0);
        let back = shared.of(Typed { kind: 0, text: [0; 5] });
        let got = if sent == 0 { libc::msgrcv(queue, back.cast(), 5, 0, 0) } else { -1 };
        libc::msgctl(queue, libc::IPC_RMID, null_mut());
        assert_eq!((sent, got), (0, 5));
        shared.take_away();
        assert_eq!(((*back).kind, (*back).text), (3, *b"typed"));

        let name = CString::new(format!("/trellis-{}", std::process::id())).unwrap();
        let mut about: libc::mq_attr = zeroed();
        (about.mq_maxmsg, about.mq_msgsize) = (1, 64);
        let queue = libc::mq_open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600, &raw mut about);
        if queue >= 0 {
            libc::mq_unlink(name.as_ptr());
            assert_eq!(libc::mq_send(queue, shared.bytes(b"queued").cast(), 6, 4), 0);
            let (to, priority) = (shared.room(64), shared.of(0u32));
            assert_eq!(good(libc::mq_receive(queue, to.cast(), 64, priority)), 6);
            assert_eq!(shared.seen(to, 6), b"queued");
            assert_eq!(*priority, 4);
        }
    }
}

/// A thread with the smallest stack, as some libraries make them.
#[test]
fn calls_with_private_memory_need_little_stack() {
    with_the_library("calls_with_private_memory_need_little_stack", |_| {
        extern "C" fn calls(_: *mut c_void) -> *mut c_void {
            // SAFETY: calls of the C library with memory of this stack.
            unsafe {
                let mut ends = [0; 2];
                libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, ends.as_mut_ptr());
                let mut byte = 5u8;
                let mut piece = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
                let mut header: libc::msghdr = zeroed();
                header.msg_iov = &raw mut piece;
                header.msg_iovlen = 1;
                libc::sendmsg(ends[0], &raw const header, 0);
                libc::recvmsg(ends[1], &raw mut header, 0);
                libc::rename(c"/nonexistent/a".as_ptr(), c"/nonexistent/b".as_ptr());
                libc::open(c"/nonexistent/a".as_ptr(), libc::O_RDONLY);
                libc::poll(null_mut(), 0, 0);
                let mut limit = libc::timeval { tv_sec: 0, tv_usec: 0 };
                libc::select(0, null_mut(), null_mut(), null_mut(), &raw mut limit);
            }
            null_mut()
        }
        // SAFETY: a thread that is joined, with 16 KiB of stack (PTHREAD_STACK_MIN).
        unsafe {
            let mut attributes: libc::pthread_attr_t = zeroed();
            libc::pthread_attr_init(&raw mut attributes);
            assert_eq!(libc::pthread_attr_setstacksize(&raw mut attributes, 16 << 10), 0);
            let mut thread = 0;
            assert_eq!(libc::pthread_create(&raw mut thread, &raw const attributes, calls, null_mut()), 0);
            assert_eq!(libc::pthread_join(thread, null_mut()), 0);
        }
    });
}

/// The kernel may read such a page, and not write to it.
#[test]
fn pages_that_can_only_be_read_are_written_to() {
    with_the_library("pages_that_can_only_be_read_are_written_to", |shared| {
        let folder = Folder::new();
        let content = some(5 * PAGE);
        folder.write("file", &content);
        let path = CString::new(folder.file("file").to_str().unwrap()).unwrap();
        let to = shared.room(5 * PAGE);
        // SAFETY: memory of the region.
        unsafe {
            let file = libc::open(path.as_ptr(), libc::O_RDONLY);
            to.write_bytes(1, 5 * PAGE);
            shared.world.withdraw(0, shared.world.region.pages(), Access::Read);
            assert_eq!(good(libc::read(file, to, 5 * PAGE)), 5 * PAGE);
            assert_eq!(shared.seen(to, 5 * PAGE), content);
            let status = shared.of(zeroed::<libc::stat>());
            status.cast::<u8>().write(1);
            shared.world.withdraw(0, shared.world.region.pages(), Access::Read);
            done(libc::fstat(file, status));
            assert_eq!((*status).st_size, 5 * PAGE as i64);
        }
    });
}

#[test]
fn what_a_call_is_about_to_copy_is_announced_and_nothing_else() {
    with_the_library("what_a_call_is_about_to_copy_is_announced_and_nothing_else", |shared| {
        let content = some(8 * PAGE);
        let [reader, writer] = pair_of(libc::SOCK_SEQPACKET);
        let (from, to) = (shared.bytes(&content), shared.room(8 * PAGE));
        let pages = |at: *mut c_void, bytes: usize| {
            let page = |byte: usize| (at as usize + byte - shared.world.at(0) as usize) / PAGE;
            page(0)..page(bytes - 1) + 1
        };
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            shared.world.announced();
            assert_eq!(good(libc::write(writer, from, 3 * PAGE)), 3 * PAGE);
            assert_eq!(shared.world.announced(), [(pages(from, 3 * PAGE), false)]);
            assert_eq!(good(libc::read(reader, to, 8 * PAGE)), 3 * PAGE);
            assert_eq!(shared.world.announced(), [(pages(to, 3 * PAGE), true)], "only what was received");
            assert_eq!(shared.seen(to, 3 * PAGE), content[..3 * PAGE]);
            // A page, or less, costs no more without.
            assert_eq!(good(libc::write(writer, from, PAGE)), PAGE);
            assert_eq!(good(libc::read(reader, to, PAGE)), PAGE);
            assert_eq!(shared.world.announced(), []);
            for piece in [from, to] {
                let list = libc::iovec { iov_base: piece, iov_len: 2 * PAGE };
                let call = if piece == from {
                    libc::writev(writer, &raw const list, 1)
                } else {
                    libc::readv(reader, &raw const list, 1)
                };
                assert_eq!(good(call), 2 * PAGE);
                assert_eq!(shared.world.announced(), [(pages(piece, 2 * PAGE), piece == to)]);
            }
            libc::close(reader);
            libc::close(writer);
        }
    });
}
