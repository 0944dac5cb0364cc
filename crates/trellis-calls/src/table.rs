//! The functions of the C library that this library answers, each once.
//!
//! A row with `= copied` says by the types of its arguments what the kernel does with them (arguments.rs); the others
//! name the function that answers. Behind it stands the number of the system call that does the same, with the same
//! arguments (system_calls.rs has all others). `docs/reference/calls.md` is the table for users.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{
    FILE, epoll_event, fd_set, iovec, itimerspec, itimerval, mmsghdr, mq_attr, msghdr, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, rlimit, rusage, sembuf, sighandler_t, siginfo_t, sigset_t, sockaddr,
    socklen_t, stat as Status, statfs as FileSystem, statvfs as FileSystemAbout, statx as ExtendedStatus,
    sysinfo as SystemInformation, timespec, timeval, utimbuf, utsname,
};

use crate::arguments::{Argument, In, InOut, Out, Text, given};
use crate::signals::{Action, Mask};
use crate::system_calls::{Function, Real, real};
use crate::{numbers, processes, signals, sockets, stdio, streams, waits};
use trellis_interpose::errno;
use trellis_interpose::{Answer, functions};

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $answer:tt $(:: $path:ident)* $(|$real:ident| $body:expr)? $(, $number:ident)?;)*) => {
        functions! {
            $(fn $name($($argument: $type),*) -> $result = $answer $(:: $path)* $(|$real| $body)?;)*
        }

        /// The functions that do the same as a system call.
        pub(crate) const OF_SYSTEM_CALLS: &[Function] = &[$($(
            Function {
                number: numbers::$number,
                answer_with: $name::answer_with as *const (),
                reals: [real::<{ numbers::$number }, false> as Real, real::<{ numbers::$number }, true>],
                answers_int: size_of::<$result>() == size_of::<c_int>(),
            },
        )?)*];
    };
}

calls! {
    // Bytes of files, pipes and sockets.
    fn read(file: c_int, to: *mut c_void, bytes: usize) -> isize = streams::read, SYS_read;
    fn write(file: c_int, from: *const c_void, bytes: usize) -> isize = streams::write, SYS_write;
    fn pread(file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize = streams::pread, SYS_pread64;
    fn pread64(file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize = streams::pread;
    fn pwrite(file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize = streams::pwrite, SYS_pwrite64;
    fn pwrite64(file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize = streams::pwrite;
    fn readv(file: c_int, list: *const iovec, count: c_int) -> isize = streams::readv, SYS_readv;
    fn writev(file: c_int, list: *const iovec, count: c_int) -> isize = streams::writev, SYS_writev;
    fn preadv(file: c_int, list: *const iovec, count: c_int, at: i64) -> isize = streams::preadv, SYS_preadv;
    fn preadv64(file: c_int, list: *const iovec, count: c_int, at: i64) -> isize = streams::preadv;
    fn pwritev(file: c_int, list: *const iovec, count: c_int, at: i64) -> isize = streams::pwritev, SYS_pwritev;
    fn pwritev64(file: c_int, list: *const iovec, count: c_int, at: i64) -> isize = streams::pwritev;
    fn preadv2(file: c_int, list: *const iovec, count: c_int, at: i64, how: c_int) -> isize = streams::preadv2;
    fn preadv64v2(file: c_int, list: *const iovec, count: c_int, at: i64, how: c_int) -> isize = streams::preadv2;
    fn pwritev2(file: c_int, list: *const iovec, count: c_int, at: i64, how: c_int) -> isize = streams::pwritev2;
    fn pwritev64v2(file: c_int, list: *const iovec, count: c_int, at: i64, how: c_int) -> isize = streams::pwritev2;
    fn __read_chk(file: c_int, to: *mut c_void, bytes: usize, room: usize) -> isize = streams::read_checked;
    fn __pread_chk(file: c_int, to: *mut c_void, bytes: usize, at: i64, room: usize) -> isize = streams::pread_checked;
    fn __pread64_chk(file: c_int, to: *mut c_void, bytes: usize, at: i64, room: usize) -> isize = streams::pread_checked;
    fn sendfile(to: c_int, from: c_int, at: InOut<i64>, bytes: usize) -> isize = copied, SYS_sendfile;
    fn sendfile64(to: c_int, from: c_int, at: InOut<i64>, bytes: usize) -> isize = copied;
    fn copy_file_range(from: c_int, from_at: InOut<i64>, to: c_int, to_at: InOut<i64>, bytes: usize, how: c_uint) -> isize = copied, SYS_copy_file_range;
    fn splice(from: c_int, from_at: InOut<i64>, to: c_int, to_at: InOut<i64>, bytes: usize, how: c_uint) -> isize = copied, SYS_splice;
    fn eventfd_read(file: c_int, to: *mut u64) -> c_int = streams::event_read;
    fn getrandom(to: *mut c_void, bytes: usize, how: c_uint) -> isize = with |real| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(to, bytes, how) })
    }, SYS_getrandom;
    fn arc4random_buf(to: *mut c_void, bytes: usize) -> () = with |real| {
        streams::filled(to, bytes, |to| {
            // SAFETY: memory that is the program's or private.
            unsafe { real(to, bytes) };
            bytes as isize
        });
    };
    fn getentropy(to: *mut c_void, bytes: usize) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        streams::filled_if_zero(to, bytes, |to| unsafe { real(to, bytes) })
    };

    // Streams of the C library.
    fn fread(to: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize = stdio::fread;
    fn fread_unlocked(to: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize = stdio::fread;
    fn __fread_chk(to: *mut c_void, room: usize, size: usize, count: usize, stream: *mut FILE) -> usize = stdio::fread_checked;
    fn __fread_unlocked_chk(to: *mut c_void, room: usize, size: usize, count: usize, stream: *mut FILE) -> usize = stdio::fread_checked;
    fn fwrite(from: *const c_void, size: usize, count: usize, stream: *mut FILE) -> usize = stdio::fwrite;
    fn fwrite_unlocked(from: *const c_void, size: usize, count: usize, stream: *mut FILE) -> usize = stdio::fwrite;
    fn fputs(text: *const c_char, stream: *mut FILE) -> c_int = stdio::fputs;
    fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int = stdio::fputs;
    fn puts(text: *const c_char) -> c_int = stdio::puts;
    fn setvbuf(stream: *mut FILE, buffer: *mut c_char, mode: c_int, bytes: usize) -> c_int = stdio::setvbuf;
    fn setbuf(stream: *mut FILE, buffer: *mut c_char) -> () = with |real| {
        // SAFETY: as the program calls it.
        stdio::setbuffer(stream, buffer, libc::BUFSIZ as usize, |buffer| unsafe { real(stream, buffer) });
    };
    fn setbuffer(stream: *mut FILE, buffer: *mut c_char, bytes: usize) -> () = with |real| {
        // SAFETY: as the program calls it.
        stdio::setbuffer(stream, buffer, bytes, |buffer| unsafe { real(stream, buffer, bytes) });
    };
    fn fopen(path: Text, how: Text) -> *mut FILE = copied;
    fn fopen64(path: Text, how: Text) -> *mut FILE = copied;
    fn freopen(path: Text, how: Text, stream: *mut FILE) -> *mut FILE = copied;
    fn freopen64(path: Text, how: Text, stream: *mut FILE) -> *mut FILE = copied;

    // Files and folders by name.
    fn open(path: Text, how: c_int, mode: c_uint) -> c_int = copied, SYS_open;
    fn open64(path: Text, how: c_int, mode: c_uint) -> c_int = copied;
    fn openat(folder: c_int, path: Text, how: c_int, mode: c_uint) -> c_int = copied, SYS_openat;
    fn openat64(folder: c_int, path: Text, how: c_int, mode: c_uint) -> c_int = copied;
    fn __open_2(path: Text, how: c_int) -> c_int = copied;
    fn __open64_2(path: Text, how: c_int) -> c_int = copied;
    fn __openat_2(folder: c_int, path: Text, how: c_int) -> c_int = copied;
    fn __openat64_2(folder: c_int, path: Text, how: c_int) -> c_int = copied;
    fn creat(path: Text, mode: c_uint) -> c_int = copied, SYS_creat;
    fn creat64(path: Text, mode: c_uint) -> c_int = copied;
    fn access(path: Text, mode: c_int) -> c_int = copied, SYS_access;
    fn faccessat(folder: c_int, path: Text, mode: c_int, how: c_int) -> c_int = copied;
    fn chdir(path: Text) -> c_int = copied, SYS_chdir;
    fn chmod(path: Text, mode: c_uint) -> c_int = copied, SYS_chmod;
    fn fchmodat(folder: c_int, path: Text, mode: c_uint, how: c_int) -> c_int = copied;
    fn chown(path: Text, user: c_uint, group: c_uint) -> c_int = copied, SYS_chown;
    fn lchown(path: Text, user: c_uint, group: c_uint) -> c_int = copied, SYS_lchown;
    fn fchownat(folder: c_int, path: Text, user: c_uint, group: c_uint, how: c_int) -> c_int = copied, SYS_fchownat;
    fn link(from: Text, to: Text) -> c_int = copied, SYS_link;
    fn linkat(from_folder: c_int, from: Text, to_folder: c_int, to: Text, how: c_int) -> c_int = copied, SYS_linkat;
    fn symlink(target: Text, path: Text) -> c_int = copied, SYS_symlink;
    fn symlinkat(target: Text, folder: c_int, path: Text) -> c_int = copied, SYS_symlinkat;
    fn unlink(path: Text) -> c_int = copied, SYS_unlink;
    fn unlinkat(folder: c_int, path: Text, how: c_int) -> c_int = copied, SYS_unlinkat;
    fn remove(path: Text) -> c_int = copied;
    fn rename(from: Text, to: Text) -> c_int = copied, SYS_rename;
    fn renameat(from_folder: c_int, from: Text, to_folder: c_int, to: Text) -> c_int = copied, SYS_renameat;
    fn renameat2(from_folder: c_int, from: Text, to_folder: c_int, to: Text, how: c_uint) -> c_int = copied, SYS_renameat2;
    fn mkdir(path: Text, mode: c_uint) -> c_int = copied, SYS_mkdir;
    fn mkdirat(folder: c_int, path: Text, mode: c_uint) -> c_int = copied, SYS_mkdirat;
    fn rmdir(path: Text) -> c_int = copied, SYS_rmdir;
    fn mkfifo(path: Text, mode: c_uint) -> c_int = copied;
    fn truncate(path: Text, bytes: i64) -> c_int = copied, SYS_truncate;
    fn truncate64(path: Text, bytes: i64) -> c_int = copied;
    fn opendir(path: Text) -> *mut libc::DIR = copied;
    fn readlink(path: Text, to: *mut c_char, bytes: usize) -> isize = with |real| given(path, |path| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(path, to, bytes) })
    }), SYS_readlink;
    fn readlinkat(folder: c_int, path: Text, to: *mut c_char, bytes: usize) -> isize = with |real| given(path, |path| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(folder, path, to, bytes) })
    }), SYS_readlinkat;
    fn __readlinkat_chk(folder: c_int, path: Text, to: *mut c_char, bytes: usize, room: usize) -> isize = with |real| given(path, |path| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(folder, path, to, bytes, room) })
    });
    fn __readlink_chk(path: Text, to: *mut c_char, bytes: usize, room: usize) -> isize = with |real| given(path, |path| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(path, to, bytes, room) })
    });
    fn getdents64(folder: c_int, to: *mut c_void, bytes: usize) -> isize = with |real| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(folder, to, bytes) })
    }, SYS_getdents64;
    fn getcwd(to: *mut c_char, bytes: usize) -> *mut c_char = with |real| {
        // SAFETY: memory that is the program's or private.
        streams::text_filled(to, bytes, |to| unsafe { real(to, bytes) })
    };
    fn __getcwd_chk(to: *mut c_char, bytes: usize, room: usize) -> *mut c_char = with |real| {
        // SAFETY: memory that is the program's or private.
        streams::text_filled(to, bytes, |to| unsafe { real(to, bytes, room) })
    };
    fn stat(path: Text, to: Out<Status>) -> c_int = copied, SYS_stat;
    fn stat64(path: Text, to: Out<Status>) -> c_int = copied;
    fn lstat(path: Text, to: Out<Status>) -> c_int = copied, SYS_lstat;
    fn lstat64(path: Text, to: Out<Status>) -> c_int = copied;
    fn fstat(file: c_int, to: Out<Status>) -> c_int = copied, SYS_fstat;
    fn fstat64(file: c_int, to: Out<Status>) -> c_int = copied;
    fn fstatat(folder: c_int, path: Text, to: Out<Status>, how: c_int) -> c_int = copied, SYS_newfstatat;
    fn fstatat64(folder: c_int, path: Text, to: Out<Status>, how: c_int) -> c_int = copied;
    fn __xstat(version: c_int, path: Text, to: Out<Status>) -> c_int = copied;
    fn __xstat64(version: c_int, path: Text, to: Out<Status>) -> c_int = copied;
    fn __lxstat(version: c_int, path: Text, to: Out<Status>) -> c_int = copied;
    fn __lxstat64(version: c_int, path: Text, to: Out<Status>) -> c_int = copied;
    fn __fxstat(version: c_int, file: c_int, to: Out<Status>) -> c_int = copied;
    fn __fxstat64(version: c_int, file: c_int, to: Out<Status>) -> c_int = copied;
    fn __fxstatat(version: c_int, folder: c_int, path: Text, to: Out<Status>, how: c_int) -> c_int = copied;
    fn __fxstatat64(version: c_int, folder: c_int, path: Text, to: Out<Status>, how: c_int) -> c_int = copied;
    fn statx(folder: c_int, path: Text, how: c_int, what: c_uint, to: Out<ExtendedStatus>) -> c_int = copied, SYS_statx;
    fn statfs(path: Text, to: Out<FileSystem>) -> c_int = copied, SYS_statfs;
    fn statfs64(path: Text, to: Out<FileSystem>) -> c_int = copied;
    fn fstatfs(file: c_int, to: Out<FileSystem>) -> c_int = copied, SYS_fstatfs;
    fn fstatfs64(file: c_int, to: Out<FileSystem>) -> c_int = copied;
    fn statvfs(path: Text, to: Out<FileSystemAbout>) -> c_int = copied;
    fn statvfs64(path: Text, to: Out<FileSystemAbout>) -> c_int = copied;
    fn fstatvfs(file: c_int, to: Out<FileSystemAbout>) -> c_int = copied;
    fn fstatvfs64(file: c_int, to: Out<FileSystemAbout>) -> c_int = copied;
    fn mknod(path: Text, mode: c_uint, device: u64) -> c_int = copied;
    fn inotify_add_watch(file: c_int, path: Text, what: c_uint) -> c_int = copied, SYS_inotify_add_watch;
    fn utime(path: Text, times: In<utimbuf>) -> c_int = copied, SYS_utime;
    fn utimes(path: Text, times: In<[timeval; 2]>) -> c_int = copied, SYS_utimes;
    fn utimensat(folder: c_int, path: Text, times: In<[timespec; 2]>, how: c_int) -> c_int = copied;
    fn futimens(file: c_int, times: In<[timespec; 2]>) -> c_int = copied;
    fn getxattr(path: Text, name: Text, to: *mut c_void, bytes: usize) -> isize = with |real| given(path, |path| given(name, |name| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(path, name, to, bytes) })
    })), SYS_getxattr;
    fn lgetxattr(path: Text, name: Text, to: *mut c_void, bytes: usize) -> isize = with |real| given(path, |path| given(name, |name| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(path, name, to, bytes) })
    })), SYS_lgetxattr;
    fn listxattr(path: Text, to: *mut c_char, bytes: usize) -> isize = with |real| given(path, |path| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(path, to, bytes) })
    }), SYS_listxattr;
    fn lsetxattr(path: Text, name: Text, from: *const c_void, bytes: usize, how: c_int) -> c_int = with |real| given(path, |path| given(name, |name| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(from, bytes, |from| unsafe { real(path, name, from, bytes, how) })
    })), SYS_lsetxattr;
    fn mkfifoat(folder: c_int, path: Text, mode: c_uint) -> c_int = copied;
    fn lutimes(path: Text, times: In<[timeval; 2]>) -> c_int = copied;
    fn euidaccess(path: Text, mode: c_int) -> c_int = copied;
    fn memfd_create(name: Text, how: c_uint) -> c_int = copied, SYS_memfd_create;
    fn removexattr(path: Text, name: Text) -> c_int = copied, SYS_removexattr;
    fn fgetxattr(file: c_int, name: Text, to: *mut c_void, bytes: usize) -> isize = with |real| given(name, |name| {
        // SAFETY: memory that is the program's or private.
        streams::filled(to, bytes, |to| unsafe { real(file, name, to, bytes) })
    }), SYS_fgetxattr;
    fn setxattr(path: Text, name: Text, from: *const c_void, bytes: usize, how: c_int) -> c_int = with |real| given(path, |path| given(name, |name| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(from, bytes, |from| unsafe { real(path, name, from, bytes, how) })
    })), SYS_setxattr;
    fn fsetxattr(file: c_int, name: Text, from: *const c_void, bytes: usize, how: c_int) -> c_int = with |real| given(name, |name| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(from, bytes, |from| unsafe { real(file, name, from, bytes, how) })
    }), SYS_fsetxattr;

    // Sockets.
    fn send(socket: c_int, from: *const c_void, bytes: usize, how: c_int) -> isize = streams::send;
    fn sendto(socket: c_int, from: *const c_void, bytes: usize, how: c_int, to: *const sockaddr, length: socklen_t) -> isize = sockets::sendto, SYS_sendto;
    fn sendmsg(socket: c_int, from: *const msghdr, how: c_int) -> isize = sockets::sendmsg, SYS_sendmsg;
    fn sendmmsg(socket: c_int, list: *mut mmsghdr, count: c_uint, how: c_int) -> c_int = sockets::sendmmsg, SYS_sendmmsg;
    fn recv(socket: c_int, to: *mut c_void, bytes: usize, how: c_int) -> isize = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::received(to, bytes, how, |to| unsafe { real(socket, to, bytes, how) })
    };
    fn __recv_chk(socket: c_int, to: *mut c_void, bytes: usize, room: usize, how: c_int) -> isize = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::received(to, bytes, how, |to| unsafe { real(socket, to, bytes, room, how) })
    };
    fn recvfrom(socket: c_int, to: *mut c_void, bytes: usize, how: c_int, from: *mut sockaddr, length: InOut<socklen_t>) -> isize = with |real| {
        sockets::received_from(to, bytes, how, from, length, |to, from, length| {
            // SAFETY: memory that is the program's or private.
            unsafe { real(socket, to, bytes, how, from, length) }
        })
    }, SYS_recvfrom;
    fn __recvfrom_chk(socket: c_int, to: *mut c_void, bytes: usize, room: usize, how: c_int, from: *mut sockaddr, length: InOut<socklen_t>) -> isize = with |real| {
        sockets::received_from(to, bytes, how, from, length, |to, from, length| {
            // SAFETY: memory that is the program's or private.
            unsafe { real(socket, to, bytes, room, how, from, length) }
        })
    };
    fn recvmsg(socket: c_int, to: *mut msghdr, how: c_int) -> isize = sockets::recvmsg, SYS_recvmsg;
    fn recvmmsg(socket: c_int, list: *mut mmsghdr, count: c_uint, how: c_int, limit: *mut timespec) -> c_int = sockets::recvmmsg, SYS_recvmmsg;
    fn bind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(address, length as usize, |address| unsafe { real(socket, address, length) })
    }, SYS_bind;
    fn connect(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(address, length as usize, |address| unsafe { real(socket, address, length) })
    }, SYS_connect;
    fn accept(socket: c_int, to: *mut sockaddr, length: InOut<socklen_t>) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::address(to, length, |to, length| unsafe { real(socket, to, length) })
    }, SYS_accept;
    fn accept4(socket: c_int, to: *mut sockaddr, length: InOut<socklen_t>, how: c_int) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::address(to, length, |to, length| unsafe { real(socket, to, length, how) })
    }, SYS_accept4;
    fn getsockname(socket: c_int, to: *mut sockaddr, length: InOut<socklen_t>) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::address(to, length, |to, length| unsafe { real(socket, to, length) })
    }, SYS_getsockname;
    fn getpeername(socket: c_int, to: *mut sockaddr, length: InOut<socklen_t>) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::address(to, length, |to, length| unsafe { real(socket, to, length) })
    }, SYS_getpeername;
    fn getsockopt(socket: c_int, level: c_int, name: c_int, to: *mut c_void, length: InOut<socklen_t>) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::address(to.cast(), length, |to, length| unsafe { real(socket, level, name, to.cast(), length) })
    }, SYS_getsockopt;
    fn setsockopt(socket: c_int, level: c_int, name: c_int, from: *const c_void, length: socklen_t) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(from, length as usize, |from| unsafe { real(socket, level, name, from, length) })
    }, SYS_setsockopt;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, to: Out<[c_int; 2]>) -> c_int = copied, SYS_socketpair;
    fn pipe(to: Out<[c_int; 2]>) -> c_int = copied, SYS_pipe;
    fn pipe2(to: Out<[c_int; 2]>, how: c_int) -> c_int = copied, SYS_pipe2;

    // Waiting for descriptors.
    fn poll(list: *mut pollfd, count: u64, limit_ms: c_int) -> c_int = waits::poll, SYS_poll;
    fn __poll_chk(list: *mut pollfd, count: u64, limit_ms: c_int, room: usize) -> c_int = waits::poll_checked;
    fn ppoll(list: *mut pollfd, count: u64, limit: In<timespec>, signals: Mask) -> c_int = waits::ppoll;
    fn __ppoll_chk(list: *mut pollfd, count: u64, limit: In<timespec>, signals: Mask, room: usize) -> c_int = waits::ppoll_checked;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, limit: InOut<timeval>) -> c_int = waits::select, SYS_select;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, limit: In<timespec>, signals: Mask) -> c_int = waits::pselect;
    fn epoll_ctl(epoll: c_int, what: c_int, file: c_int, event: In<epoll_event>) -> c_int = copied, SYS_epoll_ctl;
    fn epoll_wait(epoll: c_int, list: *mut epoll_event, count: c_int, limit_ms: c_int) -> c_int = waits::epoll_wait, SYS_epoll_wait;
    fn epoll_pwait(epoll: c_int, list: *mut epoll_event, count: c_int, limit_ms: c_int, signals: Mask) -> c_int = waits::epoll_pwait;
    fn epoll_pwait2(epoll: c_int, list: *mut epoll_event, count: c_int, limit: In<timespec>, signals: Mask) -> c_int = waits::epoll_pwait2;
    fn fcntl(file: c_int, command: c_int, argument: usize) -> c_int = waits::fcntl, SYS_fcntl;
    fn fcntl64(file: c_int, command: c_int, argument: usize) -> c_int = waits::fcntl;
    fn ioctl(file: c_int, request: u64, argument: usize) -> c_int = waits::ioctl, SYS_ioctl;

    // Time.
    fn clock_gettime(clock: c_int, to: Out<timespec>) -> c_int = copied, SYS_clock_gettime;
    fn gettimeofday(to: Out<timeval>, zone: *mut c_void) -> c_int = copied;
    fn nanosleep(time: In<timespec>, left: Out<timespec>) -> c_int = with |real| slept(time, left, |time, left| {
        // SAFETY: memory that is the program's or private.
        unsafe { real(time, left) }
    }), SYS_nanosleep;
    fn clock_nanosleep(clock: c_int, how: c_int, time: In<timespec>, left: Out<timespec>) -> c_int = with |real| slept(time, left, |time, left| {
        // SAFETY: memory that is the program's or private.
        unsafe { real(clock, how, time, left) }
    });
    fn clock_getres(clock: c_int, to: Out<timespec>) -> c_int = copied, SYS_clock_getres;
    fn clock_settime(clock: c_int, to: In<timespec>) -> c_int = copied, SYS_clock_settime;
    fn getitimer(which: c_int, to: Out<itimerval>) -> c_int = copied, SYS_getitimer;
    fn setitimer(which: c_int, to: In<itimerval>, before: Out<itimerval>) -> c_int = copied, SYS_setitimer;
    fn timer_settime(timer: *mut c_void, how: c_int, to: In<itimerspec>, before: Out<itimerspec>) -> c_int = copied, SYS_timer_settime;
    fn timer_gettime(timer: *mut c_void, to: Out<itimerspec>) -> c_int = copied, SYS_timer_gettime;
    fn timerfd_settime(timer: c_int, how: c_int, to: In<itimerspec>, before: Out<itimerspec>) -> c_int = copied, SYS_timerfd_settime;
    fn timerfd_gettime(timer: c_int, to: Out<itimerspec>) -> c_int = copied, SYS_timerfd_gettime;

    // Processes.
    fn wait(status: Out<c_int>) -> c_int = copied;
    fn waitpid(process: c_int, status: Out<c_int>, how: c_int) -> c_int = copied;
    fn wait3(status: Out<c_int>, how: c_int, used: Out<rusage>) -> c_int = copied;
    fn wait4(process: c_int, status: Out<c_int>, how: c_int, used: Out<rusage>) -> c_int = copied, SYS_wait4;
    fn waitid(kind: c_uint, process: c_uint, to: Out<siginfo_t>, how: c_int) -> c_int = copied;
    fn posix_spawn(process: Out<c_int>, path: Text, actions: In<posix_spawn_file_actions_t>, attributes: In<posix_spawnattr_t>, arguments: *const *const c_char, environment: *const *const c_char) -> c_int = processes::spawn;
    fn posix_spawnp(process: Out<c_int>, path: Text, actions: In<posix_spawn_file_actions_t>, attributes: In<posix_spawnattr_t>, arguments: *const *const c_char, environment: *const *const c_char) -> c_int = processes::spawn;
    fn execve(path: Text, arguments: *const *const c_char, environment: *const *const c_char) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        processes::execute(path, arguments, environment, |path, arguments, environment| unsafe { real(path, arguments, environment) })
    }, SYS_execve;
    fn execv(path: Text, arguments: *const *const c_char) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        processes::execute(path, arguments, std::ptr::null(), |path, arguments, _| unsafe { real(path, arguments) })
    };
    fn execvp(path: Text, arguments: *const *const c_char) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        processes::execute(path, arguments, std::ptr::null(), |path, arguments, _| unsafe { real(path, arguments) })
    };
    fn system(command: Text) -> c_int = copied;
    fn popen(command: Text, how: Text) -> *mut FILE = copied;
    fn getrusage(who: c_int, to: Out<rusage>) -> c_int = copied, SYS_getrusage;
    fn getrlimit(which: c_uint, to: Out<rlimit>) -> c_int = copied, SYS_getrlimit;
    fn getrlimit64(which: c_uint, to: Out<rlimit>) -> c_int = copied;
    fn setrlimit(which: c_uint, to: In<rlimit>) -> c_int = copied, SYS_setrlimit;
    fn setrlimit64(which: c_uint, to: In<rlimit>) -> c_int = copied;
    fn prlimit(process: c_int, which: c_uint, to: In<rlimit>, before: Out<rlimit>) -> c_int = copied;
    fn prlimit64(process: c_int, which: c_uint, to: In<rlimit>, before: Out<rlimit>) -> c_int = copied, SYS_prlimit64;
    fn uname(to: Out<utsname>) -> c_int = copied, SYS_uname;
    fn sysinfo(to: Out<SystemInformation>) -> c_int = copied, SYS_sysinfo;
    fn times(to: Out<libc::tms>) -> i64 = copied, SYS_times;
    fn getgroups(count: c_int, to: *mut c_uint) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        streams::listed(to, count.max(0) as c_uint, |to| unsafe { real(count, to) })
    }, SYS_getgroups;
    fn sched_getaffinity(process: c_int, bytes: usize, to: *mut c_void) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        streams::filled_if_zero(to, bytes, |to| unsafe { real(process, bytes, to) })
    };
    fn sched_setaffinity(process: c_int, bytes: usize, from: *const c_void) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(from, bytes, |from| unsafe { real(process, bytes, from) })
    }, SYS_sched_setaffinity;

    // Messages and semaphores of System V and POSIX.
    fn mq_send(queue: c_int, from: *const c_void, bytes: usize, priority: c_uint) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        sockets::sent(from, bytes, |from| unsafe { real(queue, from, bytes, priority) })
    };
    fn mq_receive(queue: c_int, to: *mut c_char, bytes: usize, priority: Out<c_uint>) -> isize = with |real| {
        // SAFETY: memory that is the program's or private.
        filled_out(priority, |priority| sockets::received(to.cast(), bytes, 0, |to| unsafe { real(queue, to.cast(), bytes, priority) }))
    };
    fn mq_timedsend(queue: c_int, from: *const c_void, bytes: usize, priority: c_uint, limit: In<timespec>) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private.
        given(limit, |limit| sockets::sent(from, bytes, |from| unsafe { real(queue, from, bytes, priority, limit) }))
    }, SYS_mq_timedsend;
    fn mq_timedreceive(queue: c_int, to: *mut c_char, bytes: usize, priority: Out<c_uint>, limit: In<timespec>) -> isize = with |real| {
        let receive = |priority, limit| sockets::received(to.cast(), bytes, 0, |to| {
            // SAFETY: memory that is the program's or private.
            unsafe { real(queue, to.cast(), bytes, priority, limit) }
        });
        given(limit, |limit| filled_out(priority, |priority| receive(priority, limit)))
    }, SYS_mq_timedreceive;
    fn msgsnd(queue: c_int, from: *const c_void, bytes: usize, how: c_int) -> c_int = with |real| {
        // SAFETY: memory that is the program's or private. The type of the message, a word, comes before its bytes.
        sockets::sent(from, bytes.saturating_add(8), |from| unsafe { real(queue, from, bytes, how) })
    }, SYS_msgsnd;
    fn msgrcv(queue: c_int, to: *mut c_void, bytes: usize, kind: i64, how: c_int) -> isize = with |real| {
        let receive = |to| {
            // SAFETY: memory that is the program's or private. The type of the message, a word, comes before its bytes.
            let answer = unsafe { real(queue, to, bytes, kind, how) };
            if answer < 0 { answer } else { answer + 8 }
        };
        let answer = sockets::received(to, bytes.saturating_add(8), 0, receive);
        if answer < 0 { answer } else { answer - 8 }
    }, SYS_msgrcv;
    fn mq_getattr(queue: c_int, to: Out<mq_attr>) -> c_int = copied;
    fn semop(set: c_int, operations: *mut sembuf, count: usize) -> c_int = with |real| {
        let bytes = count.saturating_mul(size_of::<sembuf>());
        // SAFETY: memory that is the program's or private.
        sockets::sent(operations, bytes, |list| unsafe { real(set, list.cast_mut(), count) })
    }, SYS_semop;

    // Signals.
    fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int = signals::sigaction;
    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t = with |real| signals::signal(real, number, handler, libc::SA_RESTART);
    fn __sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int = signals::sigaction;
    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t = with |real| signals::signal(real, number, handler, libc::SA_RESTART);
    fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t = with |real| signals::signal(real, number, handler, libc::SA_RESTART);
    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t = with |real| signals::signal(real, number, handler, libc::SA_RESETHAND | libc::SA_NODEFER);
    fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t = with |real| signals::signal(real, number, handler, libc::SA_RESETHAND | libc::SA_NODEFER);
    fn sigprocmask(how: c_int, set: In<sigset_t>, before: Out<sigset_t>) -> c_int = signals::sigmask;
    fn pthread_sigmask(how: c_int, set: In<sigset_t>, before: Out<sigset_t>) -> c_int = signals::sigmask;
    fn sigblock(set: c_int) -> c_int = with |real| {
        // SAFETY: as the program calls it.
        unsafe { real(set & !signals::FAULTS) }
    };
    fn sigsetmask(set: c_int) -> c_int = with |real| {
        // SAFETY: as the program calls it.
        unsafe { real(set & !signals::FAULTS) }
    };
    fn sighold(number: c_int) -> c_int = with |real| {
        // SAFETY: as the program calls it.
        if signals::is_of_faults(number) { 0 } else { unsafe { real(number) } }
    };
    fn sigignore(number: c_int) -> c_int = with |real| {
        match signals::is_of_faults(number) {
            true => if libc::SIG_ERR == signals::set_handler(number, libc::SIG_IGN, 0) { -1 } else { 0 },
            // SAFETY: as the program calls it.
            false => unsafe { real(number) },
        }
    };
    fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t = with |real| {
        match signals::is_of_faults(number) && handler != signals::SIG_HOLD {
            true => signals::set_handler(number, handler, 0),
            // SAFETY: as the program calls it; a signal of faults is not held.
            false if signals::is_of_faults(number) => libc::SIG_DFL,
            // SAFETY: as the program calls it.
            false => unsafe { real(number, handler) },
        }
    };
    fn pthread_attr_setsigmask_np(attributes: *mut c_void, set: Mask) -> c_int = copied;
    fn sigwait(set: In<sigset_t>, to: Out<c_int>) -> c_int = copied;
    fn sigsuspend(set: Mask) -> c_int = copied;
    fn sigpending(set: Out<sigset_t>) -> c_int = copied;
    fn sigwaitinfo(set: In<sigset_t>, to: Out<siginfo_t>) -> c_int = copied;
    fn sigtimedwait(set: In<sigset_t>, to: Out<siginfo_t>, limit: In<timespec>) -> c_int = copied;
    fn signalfd(file: c_int, set: In<sigset_t>, how: c_int) -> c_int = copied;
}

/// A sleep that was interrupted says how much is left.
fn slept(time: In<timespec>, left: Out<timespec>, call: impl FnOnce(In<timespec>, Out<timespec>) -> c_int) -> c_int {
    given(time, |time| {
        // SAFETY: the kernel would write to it, when a signal came.
        unsafe {
            let mut private = left.stand_in();
            let answer = call(time, left.given(&mut private));
            if answer == libc::EINTR || (answer == -1 && errno() == libc::EINTR) {
                left.finish(&mut private);
            }
            answer
        }
    })
}

/// A call that sets a value beside its bytes.
fn filled_out<T>(to: Out<T>, call: impl FnOnce(Out<T>) -> isize) -> isize {
    // SAFETY: the kernel would write to it.
    unsafe {
        let mut private = to.stand_in();
        let answer = call(to.given(&mut private));
        if answer.is_good() {
            to.finish(&mut private);
        }
        answer
    }
}
