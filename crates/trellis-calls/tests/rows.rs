//! Every call on shared memory that is not here.

mod support;

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{PAGE, SIZES, Shared, done, good, pair_of, pipe_of, some, with_the_library};
use trellis_testing::Folder;

unsafe extern "C" {
    fn system(command: *const c_char) -> c_int;
}

#[test]
fn bytes_of_files_are_read_and_written_whole() {
    with_the_library("bytes_of_files_are_read_and_written_whole", |shared| {
        let folder = Folder::new();
        for bytes in SIZES {
            shared.again();
            let content = some(bytes);
            let path = CString::new(folder.file("file").to_str().unwrap()).unwrap();
            // SAFETY: calls of the C library with memory of the region.
            unsafe {
                let file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o600);
                done(file);
                let from = shared.bytes(&content);
                assert_eq!(good(libc::write(file, from, bytes)), bytes);
                assert_eq!(libc::lseek(file, 0, libc::SEEK_SET), 0);
                let to = shared.room(bytes);
                assert_eq!(good(libc::read(file, to, bytes)), bytes, "a read gives what is there");
                assert_eq!(shared.seen(to, bytes), content);
                assert_eq!(good(libc::read(file, to, bytes)), 0, "the end of the file");
                shared.take_away();
                assert_eq!(good(libc::pwrite(file, from, bytes, 5)), bytes);
                shared.take_away();
                assert_eq!(good(libc::pread(file, to, bytes, 5)), bytes);
                assert_eq!(shared.seen(to, bytes), content);
                // A file that ends earlier.
                shared.take_away();
                assert_eq!(good(libc::pread(file, to, bytes, 6)), bytes - 1);
                libc::close(file);
            }
        }
    });
}

#[test]
fn pieces_are_gathered_and_scattered() {
    with_the_library("pieces_are_gathered_and_scattered", |shared| {
        let content = some(3 * PAGE);
        let [from, to] = [shared.bytes(&content), shared.room(3 * PAGE)];
        let pieces = |at: *mut c_void| {
            let piece = |start: usize, bytes| libc::iovec { iov_base: at.wrapping_byte_add(start), iov_len: bytes };
            shared.of([piece(0, 100), piece(100, 0), piece(100, 2 * PAGE), piece(100 + 2 * PAGE, PAGE - 100)])
        };
        let (out, back) = (pieces(from).cast(), pieces(to).cast());
        let folder = Folder::new();
        let path = CString::new(folder.file("file").to_str().unwrap()).unwrap();
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            let file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
            assert_eq!(good(libc::writev(file, out, 4)), 3 * PAGE);
            libc::lseek(file, 0, libc::SEEK_SET);
            shared.take_away();
            assert_eq!(good(libc::readv(file, back, 4)), 3 * PAGE);
            assert_eq!(shared.seen(to, 3 * PAGE), content);
            shared.take_away();
            assert_eq!(good(libc::pwritev(file, out, 4, 1)), 3 * PAGE);
            shared.take_away();
            assert_eq!(good(libc::preadv(file, back, 4, 1)), 3 * PAGE);
            assert_eq!(shared.seen(to, 3 * PAGE), content);
            shared.take_away();
            assert_eq!(good(libc::pwritev2(file, out, 4, 2, 0)), 3 * PAGE);
            shared.take_away();
            assert_eq!(good(libc::preadv2(file, back, 4, 2, 0)), 3 * PAGE);
            assert_eq!(shared.seen(to, 3 * PAGE), content);
            libc::close(file);
        }
    });
}

#[test]
fn streams_lose_nothing_and_do_not_wait_for_more_than_is_there() {
    with_the_library("streams_lose_nothing_and_do_not_wait_for_more_than_is_there", |shared| {
        for ends in [pipe_of(), pair_of(libc::SOCK_STREAM)] {
            for bytes in SIZES {
                shared.again();
                let content = some(bytes);
                let [reader, writer] = ends;
                let from = shared.bytes(&content) as usize;
                let sender = std::thread::spawn(move || {
                    // SAFETY: the bytes that were made.
                    good(unsafe { libc::write(writer, from as *const c_void, bytes) })
                });
                let to = shared.room(bytes + 3 * PAGE);
                let mut got = 0;
                while got < bytes {
                    shared.take_away();
                    // SAFETY: room for more than comes: a stream gives what it has.
                    let more = unsafe { libc::read(reader, to.byte_add(got), bytes + 3 * PAGE - got) };
                    got += good(more);
                }
                assert_eq!((got, sender.join().unwrap()), (bytes, bytes));
                assert_eq!(shared.seen(to, bytes), content);
            }
        }
    });
}

#[test]
fn messages_keep_their_borders_addresses_and_descriptors() {
    with_the_library("messages_keep_their_borders_addresses_and_descriptors", |shared| {
        for kind in [libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            let [near, far] = pair_of(kind);
            for bytes in [1, 9, PAGE, 5 * PAGE] {
                shared.again();
                let content = some(bytes);
                let (from, to) = (shared.bytes(&content), shared.room(6 * PAGE));
                // SAFETY: calls of the C library with memory of the region.
                unsafe {
                    assert_eq!(good(libc::send(near, from, bytes, 0)), bytes);
                    assert_eq!(good(libc::send(near, from, 1, 0)), 1);
                    shared.take_away();
                    assert_eq!(good(libc::recv(far, to, 6 * PAGE, 0)), bytes);
                    assert_eq!(shared.seen(to, bytes), content);
                    shared.take_away();
                    assert_eq!(good(libc::read(far, to, 6 * PAGE)), 1, "the next message, and no more");
                }
            }
        }
        shared.again();
        passes_a_descriptor(shared);
        shared.again();
        has_an_address(shared);
        shared.again();
        many_at_once(shared);
    });
}

fn passes_a_descriptor(shared: &Shared) {
    let [near, far] = pair_of(libc::SOCK_STREAM);
    let [reader, writer] = pipe_of();
    // SAFETY: calls of the C library with memory of the region.
    unsafe {
        let room = libc::CMSG_SPACE(4) as usize;
        let control = shared.room(64 + 8).cast::<u8>().add(8);
        let piece = shared.of(libc::iovec { iov_base: shared.bytes(b"descriptor"), iov_len: 10 });
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_control = control.cast();
        header.msg_controllen = room;
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(first).cast::<c_int>().write_unaligned(reader);
        let header = shared.of(header);
        assert_eq!(good(libc::sendmsg(near, header, 0)), 10);

        let to = shared.room(20);
        let mut back: libc::msghdr = zeroed();
        back.msg_iov = shared.of(libc::iovec { iov_base: to, iov_len: 20 });
        back.msg_iovlen = 1;
        let control = shared.room(64 + 8).cast::<u8>().add(8);
        back.msg_control = control.cast();
        back.msg_controllen = room;
        let back = shared.of(back);
        assert_eq!(good(libc::recvmsg(far, back, 0)), 10);
        assert_eq!(shared.seen(to, 10), b"descriptor");
        let first = libc::CMSG_FIRSTHDR(back);
        assert!(!first.is_null(), "the control data came");
        let passed = libc::CMSG_DATA(first).cast::<c_int>().read_unaligned();
        assert!(passed > 0 && passed != reader);
        assert_eq!(libc::write(writer, b"x".as_ptr().cast(), 1), 1);
        let one = shared.room(1);
        assert_eq!(good(libc::read(passed, one, 1)), 1);
        assert_eq!(shared.seen(one, 1), b"x");
    }
}

fn has_an_address(shared: &Shared) {
    // SAFETY: calls of the C library with memory of the region.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let other = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let length = size_of::<libc::sockaddr_in>() as u32;
        let mut address: libc::sockaddr_in = zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        for socket in [socket, other] {
            done(libc::bind(socket, shared.of(address).cast(), length));
        }
        let name = shared.of(zeroed::<libc::sockaddr_in>());
        let room = shared.of(length);
        done(libc::getsockname(socket, name.cast(), room));
        shared.take_away();
        assert!((*name).sin_port != 0 && *room == length);
        let text = shared.bytes(b"to you");
        assert_eq!(good(libc::sendto(other, text, 6, 0, name.cast(), length)), 6);
        let (to, from, room) = (shared.room(64), shared.of(zeroed::<libc::sockaddr_in>()), shared.of(length));
        assert_eq!(good(libc::recvfrom(socket, to, 64, 0, from.cast(), room)), 6);
        assert_eq!(shared.seen(to, 6), b"to you");
        let mut expected: libc::sockaddr_in = zeroed();
        let mut bytes = length;
        libc::getsockname(other, (&raw mut expected).cast(), &raw mut bytes);
        assert_eq!(((*from).sin_port, *room), (expected.sin_port, length));
        done(libc::connect(socket, shared.of(expected).cast(), length));
        let (peer, room) = (shared.of(zeroed::<libc::sockaddr_in>()), shared.of(length));
        done(libc::getpeername(socket, peer.cast(), room));
        shared.take_away();
        assert_eq!((*peer).sin_port, expected.sin_port);

        // accept(2), whose connection is lost if the address cannot be written.
        let listener = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut any = address;
        any.sin_port = 0;
        done(libc::bind(listener, (&raw const any).cast(), length));
        done(libc::listen(listener, 4));
        let mut there: libc::sockaddr_in = zeroed();
        libc::getsockname(listener, (&raw mut there).cast(), &raw mut bytes);
        for how in 0..2 {
            let client = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
            done(libc::connect(client, (&raw const there).cast(), length));
            let (from, room) = (shared.of(zeroed::<libc::sockaddr_in>()), shared.of(length));
            let accepted = match how {
                0 => libc::accept(listener, from.cast(), room),
                _ => libc::accept4(listener, from.cast(), room, libc::SOCK_CLOEXEC),
            };
            done(accepted);
            shared.take_away();
            let mut expected: libc::sockaddr_in = zeroed();
            libc::getsockname(client, (&raw mut expected).cast(), &raw mut bytes);
            assert_eq!((*from).sin_port, expected.sin_port);
            let one = shared.of(1 as c_int);
            done(libc::setsockopt(accepted, libc::IPPROTO_TCP, libc::TCP_NODELAY, one.cast(), 4));
            let (value, room) = (shared.of(0 as c_int), shared.of(4u32));
            done(libc::getsockopt(accepted, libc::IPPROTO_TCP, libc::TCP_NODELAY, value.cast(), room));
            shared.take_away();
            assert_eq!((*value, *room), (1, 4));
            libc::close(client);
            libc::close(accepted);
        }
    }
}

fn many_at_once(shared: &Shared) {
    let [near, far] = pair_of(libc::SOCK_DGRAM);
    // SAFETY: calls of the C library with memory of the region.
    unsafe {
        let message = |at: *mut c_void, bytes| {
            let mut message: libc::mmsghdr = zeroed();
            message.msg_hdr.msg_iov = shared.of(libc::iovec { iov_base: at, iov_len: bytes });
            message.msg_hdr.msg_iovlen = 1;
            message
        };
        let out = shared.of([message(shared.bytes(b"one"), 3), message(shared.bytes(b"three"), 5)]);
        assert_eq!(good(libc::sendmmsg(near, out.cast(), 2, 0) as isize), 2);
        shared.take_away();
        assert_eq!(((*out)[0].msg_len, (*out)[1].msg_len), (3, 5));
        let rooms = [shared.room(20), shared.room(20), shared.room(20)];
        let back = shared.of(rooms.map(|room| message(room, 20)));
        let got = libc::recvmmsg(far, back.cast(), 3, libc::MSG_WAITFORONE, null_mut());
        assert_eq!(good(got as isize), 2, "what was there, without waiting for a third");
        shared.take_away();
        assert_eq!(((*back)[0].msg_len, (*back)[1].msg_len), (3, 5));
        assert_eq!(shared.seen(rooms[0], 3), b"one");
        assert_eq!(shared.seen(rooms[1], 5), b"three");
    }
}

#[test]
fn what_a_descriptor_says_once_is_not_lost() {
    with_the_library("what_a_descriptor_says_once_is_not_lost", |shared| {
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            let event = libc::eventfd(7, 0);
            let value = shared.of(0u64);
            assert_eq!(good(libc::read(event, value.cast(), 8)), 8);
            shared.take_away();
            assert_eq!(*value, 7);
            let more = shared.of(9u64);
            assert_eq!(good(libc::write(event, more.cast(), 8)), 8);
            shared.take_away();
            assert_eq!(good(libc::read(event, value.cast(), 8)), 8);
            assert_eq!(*value, 9);

            let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, 0);
            let mut soon: libc::itimerspec = zeroed();
            soon.it_value.tv_nsec = 1;
            let (soon, before) = (shared.of(soon), shared.of(zeroed::<libc::itimerspec>()));
            done(libc::timerfd_settime(timer, 0, soon, before));
            let count = shared.of(0u64);
            assert_eq!(good(libc::read(timer, count.cast(), 8)), 8);
            shared.take_away();
            assert_eq!(*count, 1);

            let child = libc::fork();
            if child == 0 {
                libc::_exit(3);
            }
            let (status, used) = (shared.of(0 as c_int), shared.of(zeroed::<libc::rusage>()));
            assert_eq!(libc::wait4(child, status, 0, used), child);
            shared.take_away();
            assert_eq!(libc::WEXITSTATUS(*status), 3);
            let child = libc::fork();
            if child == 0 {
                libc::_exit(4);
            }
            let status = shared.of(0 as c_int);
            assert_eq!(libc::waitpid(child, status, 0), child);
            shared.take_away();
            assert_eq!(libc::WEXITSTATUS(*status), 4);

            let mut set: libc::sigset_t = zeroed();
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
            let set = shared.of(set);
            done(libc::pthread_sigmask(libc::SIG_BLOCK, set, null_mut()));
            libc::raise(libc::SIGUSR1);
            let (info, limit) = (shared.of(zeroed::<libc::siginfo_t>()), shared.of(zeroed::<libc::timespec>()));
            assert_eq!(libc::sigtimedwait(set, info, limit), libc::SIGUSR1);
            shared.take_away();
            assert_eq!((*info).si_signo, libc::SIGUSR1);

            // A terminal gives each line once.
            let terminal = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
            done(libc::grantpt(terminal));
            done(libc::unlockpt(terminal));
            let slave = libc::open(libc::ptsname(terminal), libc::O_RDWR | libc::O_NOCTTY);
            let size = shared.of(libc::winsize { ws_row: 12, ws_col: 34, ws_xpixel: 0, ws_ypixel: 0 });
            done(libc::ioctl(terminal, libc::TIOCSWINSZ, size));
            let back = shared.of(zeroed::<libc::winsize>());
            done(libc::ioctl(slave, libc::TIOCGWINSZ, back));
            shared.take_away();
            assert_eq!(((*back).ws_row, (*back).ws_col), (12, 34));
            assert_eq!(libc::write(terminal, b"a line\n".as_ptr().cast(), 7), 7);
            let line = shared.room(2 * PAGE);
            assert_eq!(good(libc::read(slave, line, 2 * PAGE)), 7);
            assert_eq!(shared.seen(line, 7), b"a line\n");
        }
    });
}

#[test]
fn waits_report_to_shared_memory() {
    with_the_library("waits_report_to_shared_memory", |shared| {
        let [reader, writer] = pipe_of();
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            assert_eq!(libc::write(writer, b"x".as_ptr().cast(), 1), 1);
            let list = shared.of([libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 }; 3]);
            assert_eq!(libc::poll(list.cast(), 3, 0), 3);
            shared.take_away();
            assert_eq!((*list).map(|entry| entry.revents), [libc::POLLIN; 3]);
            let limit = shared.of(zeroed::<libc::timespec>());
            let signals = shared.of(zeroed::<libc::sigset_t>());
            assert_eq!(libc::ppoll(list.cast(), 3, limit, signals), 3);

            let mut readable: libc::fd_set = zeroed();
            libc::FD_SET(reader, &raw mut readable);
            let (set, limit) = (shared.of(readable), shared.of(zeroed::<libc::timeval>()));
            assert_eq!(libc::select(reader + 1, set, null_mut(), null_mut(), limit), 1);
            shared.take_away();
            assert!(libc::FD_ISSET(reader, set));
            let limit = shared.of(zeroed::<libc::timespec>());
            assert_eq!(libc::pselect(reader + 1, set, null_mut(), null_mut(), limit, signals), 1);

            let epoll = libc::epoll_create1(0);
            let flags = (libc::EPOLLIN | libc::EPOLLET) as u32;
            let event = shared.of(libc::epoll_event { events: flags, u64: 42 });
            done(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, reader, event));
            let events = shared.of([libc::epoll_event { events: 0, u64: 0 }; 4]);
            assert_eq!(libc::epoll_wait(epoll, events.cast(), 4, 1000), 1);
            shared.take_away();
            assert_eq!({ (*events)[0].u64 }, 42);
            assert_eq!(libc::epoll_wait(epoll, events.cast(), 4, 0), 0, "an edge is reported once");

            let sleep = shared.of(libc::timespec { tv_sec: 0, tv_nsec: 1000 });
            done(libc::nanosleep(sleep, shared.of(zeroed::<libc::timespec>())));
            shared.take_away();
            assert_eq!(libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, sleep, null_mut()), 0);
            let lock: libc::flock = zeroed();
            let folder = Folder::new();
            let path = CString::new(folder.file("locked").to_str().unwrap()).unwrap();
            let file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
            let lock = shared.of(lock);
            done(libc::fcntl(file, libc::F_GETLK, lock));
            shared.take_away();
            assert_eq!((*lock).l_type, libc::F_UNLCK as i16);
            assert_eq!(libc::fcntl(file, libc::F_GETFD), 0);
        }
    });
}

#[test]
fn names_and_values_may_be_shared() {
    with_the_library("names_and_values_may_be_shared", |shared| {
        let folder = Folder::new();
        let inside = |name: &str| shared.path(&folder.file(name));
        // SAFETY: calls of the C library with memory of the region.
        unsafe {
            done(libc::mkdir(inside("d"), 0o700));
            let file = libc::open(inside("d/a"), libc::O_RDWR | libc::O_CREAT, 0o600);
            done(file);
            done(libc::ftruncate(file, 10));
            done(libc::rename(inside("d/a"), inside("d/b")));
            done(libc::link(inside("d/b"), inside("d/c")));
            done(libc::symlink(shared.text("target"), inside("d/s")));
            done(libc::access(inside("d/b"), libc::R_OK));
            done(libc::chmod(inside("d/b"), 0o640));
            done(libc::truncate(inside("d/b"), 11));
            let times = shared.of([libc::timespec { tv_sec: 5, tv_nsec: 0 }; 2]);
            done(libc::utimensat(libc::AT_FDCWD, inside("d/b"), times.cast(), 0));
            let status = shared.of(zeroed::<libc::stat>());
            done(libc::stat(inside("d/b"), status));
            shared.take_away();
            assert_eq!(((*status).st_size, (*status).st_mode & 0o777, (*status).st_mtime), (11, 0o640, 5));
            let status = shared.of(zeroed::<libc::stat>());
            done(libc::fstat(file, status));
            shared.take_away();
            assert_eq!((*status).st_nlink, 2);
            shared.again();
            let status = shared.of(zeroed::<libc::stat>());
            done(libc::lstat(inside("d/s"), status));
            shared.take_away();
            assert_eq!((*status).st_mode & libc::S_IFMT, libc::S_IFLNK);
            let status = shared.of(zeroed::<libc::statx>());
            done(libc::statx(libc::AT_FDCWD, inside("d/b"), 0, libc::STATX_SIZE, status));
            shared.take_away();
            assert_eq!((*status).stx_size, 11);
            let to = shared.room(100);
            assert_eq!(good(libc::readlink(inside("d/s"), to.cast(), 100)), 6);
            assert_eq!(shared.seen(to, 6), b"target");
            let here = shared.room(1000);
            assert_eq!(libc::getcwd(here.cast(), 1000), here.cast());
            let expected = std::env::current_dir().unwrap();
            assert_eq!(
                CString::from_vec_with_nul(shared.seen(here, expected.as_os_str().len() + 1)).unwrap().to_str(),
                Ok(expected.to_str().unwrap())
            );
            let opened = libc::opendir(inside("d"));
            assert!(!opened.is_null());
            libc::closedir(opened);
            let ends = shared.of([0 as c_int; 2]);
            done(libc::pipe2(ends.cast(), libc::O_CLOEXEC));
            shared.take_away();
            assert!((*ends)[0] > 0 && (*ends)[1] > 0);
            let stream = libc::fopen(inside("d/b"), shared.text("r"));
            assert!(!stream.is_null());
            libc::fclose(stream);
            shared.again();
            let name = shared.of(zeroed::<libc::utsname>());
            done(libc::uname(name));
            shared.take_away();
            assert_eq!((*name).sysname[0] as u8, b'L');
            let limit = shared.of(zeroed::<libc::rlimit>());
            done(libc::getrlimit(libc::RLIMIT_NOFILE, limit));
            shared.take_away();
            assert!((*limit).rlim_cur > 0);
            done(libc::setrlimit(libc::RLIMIT_NOFILE, limit));
            let used = shared.of(zeroed::<libc::rusage>());
            done(libc::getrusage(libc::RUSAGE_SELF, used));
            let chance = shared.room(2 * PAGE);
            assert_eq!(good(libc::getrandom(chance, 2 * PAGE, 0)), 2 * PAGE);
            assert!(shared.seen(chance, 2 * PAGE).iter().any(|byte| *byte != 0));
            let cores = shared.of(zeroed::<libc::cpu_set_t>());
            done(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), cores));
            shared.take_away();
            assert!(libc::CPU_COUNT(&*cores) > 0);
            assert_eq!(libc::WEXITSTATUS(system(shared.text("exit 5"))), 5);
            let arguments =
                shared.of([shared.text("sh").cast_const(), shared.text("-c"), shared.text("exit 6"), null()]);
            let mut process = 0;
            let environment = shared.of([shared.text("A=b").cast_const(), null()]);
            let path = shared.text("/bin/sh");
            assert_eq!(
                libc::posix_spawn(
                    &raw mut process,
                    path,
                    null(),
                    null(),
                    arguments.cast::<*mut c_char>(),
                    environment.cast::<*mut c_char>()
                ),
                0
            );
            let mut status = 0;
            assert_eq!(libc::waitpid(process, &raw mut status, 0), process);
            assert_eq!(libc::WEXITSTATUS(status), 6);
            done(libc::unlink(inside("d/b")));
        }
    });
}

#[test]
fn streams_of_the_c_library_read_and_write_shared_memory() {
    with_the_library("streams_of_the_c_library_read_and_write_shared_memory", |shared| {
        let folder = Folder::new();
        let path = CString::new(folder.file("file").to_str().unwrap()).unwrap();
        for bytes in SIZES {
            shared.again();
            let content = some(bytes);
            // SAFETY: calls of the C library with memory of the region.
            unsafe {
                let stream = libc::fopen(path.as_ptr(), c"w+".as_ptr());
                let from = shared.bytes(&content);
                assert_eq!(libc::fwrite(from, 1, bytes, stream), bytes);
                shared.take_away();
                assert_eq!(libc::fputs(shared.text("tail"), stream), 1);
                libc::rewind(stream);
                let to = shared.room(bytes + 10);
                assert_eq!(libc::fread(to, 1, bytes, stream), bytes);
                assert_eq!(shared.seen(to, bytes), content);
                shared.take_away();
                assert_eq!(libc::fread(to, 3, 3, stream), 1, "whole items, and the end");
                assert!(libc::feof(stream) != 0 && libc::ferror(stream) == 0);
                libc::fclose(stream);
            }
        }
    });
}

#[test]
fn signals_of_faults_are_never_blocked() {
    with_the_library("signals_of_faults_are_never_blocked", |shared| {
        // SAFETY: this thread's mask, and memory of the region.
        unsafe {
            let mut all: libc::sigset_t = zeroed();
            libc::sigfillset(&raw mut all);
            done(libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, null_mut()));
            let at = shared.of(5u8);
            assert_eq!(at.read_volatile(), 5, "a thread that blocks everything touches a page");
            let mut now: libc::sigset_t = zeroed();
            done(libc::sigprocmask(libc::SIG_SETMASK, null(), &raw mut now));
            assert_eq!(
                (libc::sigismember(&raw const now, libc::SIGBUS), libc::sigismember(&raw const now, libc::SIGTERM)),
                (0, 1)
            );
            libc::sigemptyset(&raw mut all);
            done(libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, null_mut()));
        }
        a_handler_that_blocks_everything_may_touch(shared);
    });
}

static TOUCHED: AtomicUsize = AtomicUsize::new(0);
static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn touches(_: c_int) {
    let at = TOUCHED.load(Ordering::SeqCst) as *const u8;
    // SAFETY: a byte of the region.
    SEEN.store(unsafe { at.read_volatile() }.into(), Ordering::SeqCst);
}

fn a_handler_that_blocks_everything_may_touch(shared: &Shared) {
    TOUCHED.store(shared.of(77u8) as usize, Ordering::SeqCst);
    // SAFETY: a handler that reads a byte of the region.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = touches as *const () as usize;
        libc::sigfillset(&raw mut action.sa_mask);
        done(libc::sigaction(libc::SIGUSR2, &raw const action, null_mut()));
        libc::raise(libc::SIGUSR2);
        assert_eq!(SEEN.load(Ordering::SeqCst), 77);
        // A handler for SIGBUS leaves that of the regions in place.
        done(libc::sigaction(libc::SIGBUS, &raw const action, null_mut()));
        assert_eq!(shared.of(6u8).read_volatile(), 6);
        let mut now: libc::sigaction = zeroed();
        done(libc::sigaction(libc::SIGBUS, null(), &raw mut now));
        assert_eq!(now.sa_sigaction, action.sa_sigaction, "the program sees its own");
    }
}
