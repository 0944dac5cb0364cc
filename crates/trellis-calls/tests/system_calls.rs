//! System calls that a program makes itself, on shared memory that is not here.

mod support;

use std::ffi::{c_int, c_long, c_void};
use std::mem::{transmute, zeroed};

use support::{PAGE, Shared, pipe_of, some, with_the_library};
use trellis_testing::Folder;

type Arguments = [usize; 6];
type Call = unsafe extern "C" fn(i64, *const Arguments) -> isize;

/// The kernel, as the library calls it.
unsafe extern "C" fn kernel(number: i64, arguments: *const Arguments) -> isize {
    // SAFETY: the library's arguments.
    unsafe {
        let [a, b, c, d, e, f] = *arguments;
        match libc::syscall(number, a, b, c, d, e, f) {
            -1 => -(*libc::__errno_location() as isize),
            answer => answer as isize,
        }
    }
}

/// A system call of the program, whose pages are taken away before.
fn made<const N: usize>(shared: &Shared, number: c_long, some: [usize; N]) -> isize {
    let mut arguments = [0; 6];
    arguments[..N].copy_from_slice(&some);
    shared.take_away();
    // SAFETY: the library's function, which has this type; calls as the tests make them.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"__trellis_calls_made".as_ptr());
        assert!(!found.is_null());
        type Made = unsafe extern "C" fn(i64, *const Arguments, Call, bool) -> isize;
        transmute::<*mut c_void, Made>(found)(number, &raw const arguments, kernel, false)
    }
}

fn address<T: ?Sized>(of: *const T) -> usize {
    of.cast::<u8>() as usize
}

#[test]
fn memory_of_a_known_size_is_copied() {
    with_the_library("memory_of_a_known_size_is_copied", |shared| {
        // SAFETY: memory of the region, of which the test knows what is there.
        unsafe {
            let name = shared.text("somebody");
            let room = shared.bytes(&[7; 20]);
            assert_eq!(made(shared, libc::SYS_prctl, [libc::PR_SET_NAME as usize, address(name)]), 0);
            assert_eq!(made(shared, libc::SYS_prctl, [libc::PR_GET_NAME as usize, address(room)]), 0);
            assert_eq!(shared.seen(room, 20), [&b"somebody\0\0\0\0\0\0\0\0"[..], &[7; 4]].concat());
            let ids = [0; 3].map(|_| shared.of(9_u32));
            assert_eq!(made(shared, libc::SYS_getresuid, ids.map(|id| address(id))), 0);
            ids.iter().for_each(|id| assert_eq!(**id, libc::getuid()));
            // As many bytes as are answered.
            let set = shared.bytes(&[9; 200]);
            let bytes = made(shared, libc::SYS_sched_getaffinity, [0, 200, address(set)]);
            assert!(bytes > 0 && bytes < 200, "{bytes}");
            assert!(shared.seen(set, 200)[bytes as usize..].iter().all(|byte| *byte == 9));
            let folder = std::env::current_dir().unwrap();
            let text = shared.bytes(&[1; 4096]);
            let bytes = made(shared, libc::SYS_getcwd, [address(text), 4096]);
            assert_eq!(bytes as usize, folder.as_os_str().len() + 1);
            let seen = shared.seen(text, bytes as usize - 1);
            assert_eq!(String::from_utf8(seen).unwrap(), folder.to_str().unwrap());
            // Fields that the kernel does not set keep their values. No child has ended, so the kernel sets the numbers to zero.
            let about = shared.bytes(&[5; 160]);
            let answer =
                made(shared, libc::SYS_waitid, [libc::P_ALL as usize, 0, address(about), libc::WEXITED as usize]);
            assert_eq!(answer, -(libc::ECHILD as isize));
            assert_eq!(shared.seen(about, 160)[28..], [5; 132]);
            let times = shared.of([libc::timespec { tv_sec: 1000, tv_nsec: 0 }; 2]);
            let files = Folder::new();
            let path = files.file("file");
            std::fs::write(&path, "").unwrap();
            let path_there = shared.path(&path);
            let here = libc::AT_FDCWD as usize;
            assert_eq!(made(shared, libc::SYS_utimensat, [here, address(path_there), address(times)]), 0);
            let mut status: libc::stat = zeroed();
            let found = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            assert_eq!(libc::stat(found.as_ptr(), &raw mut status), 0);
            assert_eq!(status.st_mtime, 1000);
            assert_eq!(made(shared, libc::SYS_fchmodat, [here, address(path_there), 0o600]), 0);
            assert_eq!(made(shared, libc::SYS_faccessat, [here, address(path_there), libc::R_OK as usize]), 0);
        }
    });
}

#[test]
fn lists_and_limits_are_copied() {
    with_the_library("lists_and_limits_are_copied", |shared| {
        let [reader, writer] = pipe_of();
        // SAFETY: memory of the region, of which the test knows what is there.
        unsafe {
            assert_eq!(libc::write(writer, c"x".as_ptr().cast(), 1), 1);
            let limit = shared.of(libc::timespec { tv_sec: 5, tv_nsec: 0 });
            let mask = shared.of(0_u64);
            let list = shared.of(libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 });
            let answer = made(shared, libc::SYS_ppoll, [address(list), 1, address(limit), address(mask), 8]);
            assert_eq!((answer, (*list).revents), (1, libc::POLLIN));
            assert!((*limit).tv_sec <= 5 && ((*limit).tv_sec, (*limit).tv_nsec) != (5, 0), "what is left");
            let mut set: libc::fd_set = zeroed();
            libc::FD_SET(reader, &raw mut set);
            let set = shared.of(set);
            let answer = made(shared, libc::SYS_pselect6, [reader as usize + 1, address(set), 0, 0, address(limit)]);
            assert!(answer == 1 && libc::FD_ISSET(reader, set));
            let epoll = libc::epoll_create1(0);
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 77 };
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, reader, &raw mut event), 0);
            let events = shared.of([libc::epoll_event { events: 0, u64: 0 }; 4]);
            let arguments = [epoll as usize, address(events), 4, address(limit), address(mask), 8];
            assert_eq!(made(shared, libc::SYS_epoll_pwait2, arguments), 1);
            assert_eq!({ (*events)[0].u64 }, 77);
            let arguments = [epoll as usize, address(events), 4, 1000, address(mask), 8];
            assert_eq!(made(shared, libc::SYS_epoll_pwait, arguments), 1);
            // Pieces, at a place.
            let files = Folder::new();
            let path = std::ffi::CString::new(files.file("file").to_str().unwrap()).unwrap();
            let file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
            let (from, to) = (shared.bytes(&some(3 * PAGE)), shared.room(3 * PAGE));
            for (number, at) in [(libc::SYS_pwritev2, from), (libc::SYS_preadv2, to)] {
                let pieces = shared.of([
                    libc::iovec { iov_base: at, iov_len: PAGE },
                    libc::iovec { iov_base: at.byte_add(PAGE), iov_len: 2 * PAGE },
                ]);
                assert_eq!(made(shared, number, [file as usize, address(pieces), 2, 7]), 3 * PAGE as isize);
            }
            assert_eq!(shared.seen(to, 3 * PAGE), some(3 * PAGE));
            for descriptor in [reader, writer, epoll, file] {
                libc::close(descriptor);
            }
        }
    });
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    with_the_library("what_is_not_known_is_refused_by_name", |shared| {
        let room = shared.bytes(&[3; 100]);
        let refused = -(libc::ENOSYS as isize);
        // Standard error of this process, for as long as the calls are made.
        let [reader, writer] = pipe_of();
        // SAFETY: descriptors of the test, and memory of the region.
        let said = unsafe {
            let before = libc::dup(2);
            libc::dup2(writer, 2);
            assert_eq!(made(shared, libc::SYS_mincore, [address(room) & !(PAGE - 1), PAGE, address(room)]), refused);
            assert_eq!(made(shared, libc::SYS_mincore, [address(room) & !(PAGE - 1), PAGE, address(room)]), refused);
            assert_eq!(made(shared, 511, [address(room)]), refused);
            assert_eq!(made(shared, libc::SYS_prctl, [libc::PR_SET_MM as usize, 1, address(room)]), refused);
            // A request whose number does not say how much memory it uses.
            assert_eq!(made(shared, libc::SYS_ioctl, [0, 0x4b72, address(room)]), refused);
            libc::dup2(before, 2);
            libc::close(writer);
            let mut said = [0_u8; 4096];
            let bytes = libc::read(reader, said.as_mut_ptr().cast(), said.len());
            [before, reader].into_iter().for_each(|descriptor| _ = libc::close(descriptor));
            String::from_utf8(said[..bytes as usize].to_vec()).unwrap()
        };
        assert_eq!(shared.seen(room, 100), [3; 100]);
        let names = ["mincore", "the system call 511", "prctl with this command", "ioctl with the request 0x4b72"];
        // The second catcher finds that all was said.
        assert!(
            said.is_empty() || said.lines().zip(names).filter(|(line, name)| line.contains(name)).count() == 4,
            "{said}"
        );
        // Without shared memory the kernel answers.
        let ours = [0_u8; 8];
        let parent: c_int = made(shared, libc::SYS_mincore, [0, 0, address(&raw const ours)]) as c_int;
        assert_eq!(parent, 0);
    });
}
