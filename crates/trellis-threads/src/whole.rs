//! System calls with memory on which the kernel cannot wait.
//!
//! Where threads serve their own faults, a system call that meets a page which is not here answers EFAULT, or loses what it
//! moved. `libtrellis.so` has functions with the names of the C library's that give the kernel private memory instead
//! (`trellis-calls`). A call of the program, wherever it was made, is answered by the function that belongs to its number.
//!
//! Promises: a call without such memory goes to the kernel as it is. Nothing is lost or repeated. A call for which there is
//! no function, and whose memory the kernel could not use, ends the run with a sentence. Sets of signals never block those
//! of faults.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use trellis_interpose::{Real, errno, set_errno};

use crate::faults::{self, UNBLOCKED, may_fail};
use crate::memory::PAGE;
use crate::system_calls::{Arguments, call};
use crate::table::reals;

type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

/// How a function of the C library differs from its system call.
#[derive(Clone, Copy)]
enum Shape {
    /// Its arguments are the same, and it answers an `int`.
    Int,
    /// The same; it answers a number of bytes.
    Bytes,
    /// As `Int`, but its memory has addresses in it.
    IntOfLists,
    /// As `Bytes`, but its memory has addresses in it.
    BytesOfLists,
    /// It is called in another way.
    Other(unsafe fn(Function, Arguments) -> isize),
    /// The same, and the set of signals, which is at this place among its arguments, is looked at whatever its memory is.
    Masked(Mask, unsafe fn(Function, Arguments) -> isize),
}

/// Where a system call has its set of signals.
#[derive(Clone, Copy)]
enum Mask {
    At(usize),
    /// The last argument is a pair of an address and a size.
    Paired,
}

use Shape::{Bytes, BytesOfLists, Int, IntOfLists, Masked, Other};

/// The numbers of system calls with memory, and the functions of the C library that do the same.
#[rustfmt::skip]
const ROWS: &[(i64, &CStr, Shape)] = &[
    (libc::SYS_read, c"read", Bytes), (libc::SYS_write, c"write", Bytes), (libc::SYS_pread64, c"pread", Bytes),
    (libc::SYS_pwrite64, c"pwrite", Bytes), (libc::SYS_readv, c"readv", BytesOfLists),
    (libc::SYS_writev, c"writev", BytesOfLists), (libc::SYS_preadv, c"preadv", BytesOfLists),
    (libc::SYS_pwritev, c"pwritev", BytesOfLists), (libc::SYS_preadv2, c"preadv2", Other(with_place)),
    (libc::SYS_pwritev2, c"pwritev2", Other(with_place)), (libc::SYS_sendfile, c"sendfile", Bytes),
    (libc::SYS_copy_file_range, c"copy_file_range", Bytes), (libc::SYS_splice, c"splice", Bytes),
    (libc::SYS_getrandom, c"getrandom", Bytes), (libc::SYS_getdents64, c"getdents64", Bytes),
    (libc::SYS_openat, c"openat", Int), (libc::SYS_faccessat, c"faccessat", Other(without_flags)),
    (libc::SYS_faccessat2, c"faccessat", Int), (libc::SYS_chdir, c"chdir", Int),
    (libc::SYS_fchmodat, c"fchmodat", Other(without_flags)), (libc::SYS_fchownat, c"fchownat", Int),
    (libc::SYS_linkat, c"linkat", Int), (libc::SYS_symlinkat, c"symlinkat", Int), (libc::SYS_unlinkat, c"unlinkat", Int),
    (libc::SYS_renameat2, c"renameat2", Int), (libc::SYS_mkdirat, c"mkdirat", Int),
    (libc::SYS_truncate, c"truncate", Int), (libc::SYS_readlinkat, c"readlinkat", Bytes),
    (libc::SYS_getcwd, c"getcwd", Other(text_of)), (libc::SYS_fstat, c"fstat", Int),
    (libc::SYS_newfstatat, c"fstatat", Int), (libc::SYS_statx, c"statx", Int), (libc::SYS_statfs, c"statfs", Int),
    (libc::SYS_fstatfs, c"fstatfs", Int), (libc::SYS_utimensat, c"utimensat", Other(times_of)),
    (libc::SYS_getxattr, c"getxattr", Bytes), (libc::SYS_lgetxattr, c"lgetxattr", Bytes),
    (libc::SYS_fgetxattr, c"fgetxattr", Bytes), (libc::SYS_listxattr, c"listxattr", Bytes),
    (libc::SYS_setxattr, c"setxattr", Int), (libc::SYS_lsetxattr, c"lsetxattr", Int),
    (libc::SYS_fsetxattr, c"fsetxattr", Int), (libc::SYS_removexattr, c"removexattr", Int),
    (libc::SYS_inotify_add_watch, c"inotify_add_watch", Int), (libc::SYS_memfd_create, c"memfd_create", Int),
    (libc::SYS_fcntl, c"fcntl", Int), (libc::SYS_ioctl, c"ioctl", Int),
    (libc::SYS_sendto, c"sendto", Bytes), (libc::SYS_recvfrom, c"recvfrom", Bytes),
    (libc::SYS_sendmsg, c"sendmsg", BytesOfLists), (libc::SYS_recvmsg, c"recvmsg", BytesOfLists),
    (libc::SYS_sendmmsg, c"sendmmsg", IntOfLists), (libc::SYS_recvmmsg, c"recvmmsg", IntOfLists),
    (libc::SYS_bind, c"bind", Int), (libc::SYS_connect, c"connect", Int), (libc::SYS_accept, c"accept", Int),
    (libc::SYS_accept4, c"accept4", Int), (libc::SYS_getsockname, c"getsockname", Int),
    (libc::SYS_getpeername, c"getpeername", Int), (libc::SYS_getsockopt, c"getsockopt", Int),
    (libc::SYS_setsockopt, c"setsockopt", Int), (libc::SYS_socketpair, c"socketpair", Int),
    (libc::SYS_pipe2, c"pipe2", Int), (libc::SYS_ppoll, c"ppoll", Masked(Mask::At(3), ppoll)),
    (libc::SYS_pselect6, c"pselect", Masked(Mask::Paired, pselect)), (libc::SYS_epoll_ctl, c"epoll_ctl", Int),
    (libc::SYS_epoll_pwait, c"epoll_pwait", Masked(Mask::At(4), epoll)), (libc::SYS_epoll_pwait2, c"epoll_pwait2", Masked(Mask::At(4), epoll)),
    (libc::SYS_clock_gettime, c"clock_gettime", Int), (libc::SYS_clock_getres, c"clock_getres", Int),
    (libc::SYS_gettimeofday, c"gettimeofday", Int), (libc::SYS_nanosleep, c"nanosleep", Int),
    (libc::SYS_clock_nanosleep, c"clock_nanosleep", Other(error_of)), (libc::SYS_getitimer, c"getitimer", Int),
    (libc::SYS_setitimer, c"setitimer", Int), (libc::SYS_timer_settime, c"timer_settime", Int),
    (libc::SYS_timer_gettime, c"timer_gettime", Int), (libc::SYS_timerfd_settime, c"timerfd_settime", Int),
    (libc::SYS_timerfd_gettime, c"timerfd_gettime", Int), (libc::SYS_wait4, c"wait4", Int),
    (libc::SYS_waitid, c"waitid", Int), (libc::SYS_execve, c"execve", IntOfLists),
    (libc::SYS_getrusage, c"getrusage", Int), (libc::SYS_prlimit64, c"prlimit64", Int), (libc::SYS_uname, c"uname", Int),
    (libc::SYS_sysinfo, c"sysinfo", Int), (libc::SYS_times, c"times", Bytes), (libc::SYS_getgroups, c"getgroups", Int),
    (libc::SYS_mq_timedsend, c"mq_timedsend", Int), (libc::SYS_mq_timedreceive, c"mq_timedreceive", Bytes),
    (libc::SYS_msgsnd, c"msgsnd", Int), (libc::SYS_msgrcv, c"msgrcv", Bytes), (libc::SYS_semop, c"semop", Int),
    (libc::SYS_rt_sigsuspend, c"sigsuspend", Masked(Mask::At(0), sigsuspend)),
    (libc::SYS_rt_sigtimedwait, c"sigtimedwait", Masked(Mask::At(0), sigtimedwait)),
    (libc::SYS_rt_sigpending, c"sigpending", Other(sigpending)), (libc::SYS_signalfd4, c"signalfd", Other(signalfd)),
];

/// Those that the kernel has on x86-64 only, beside newer ones.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_ROWS: &[(i64, &CStr, Shape)] = &[
    (libc::SYS_open, c"open", Int), (libc::SYS_creat, c"creat", Int), (libc::SYS_stat, c"stat", Int),
    (libc::SYS_lstat, c"lstat", Int), (libc::SYS_poll, c"poll", Int), (libc::SYS_select, c"select", Int),
    (libc::SYS_access, c"access", Int), (libc::SYS_pipe, c"pipe", Int), (libc::SYS_rename, c"rename", Int),
    (libc::SYS_renameat, c"renameat", Int), (libc::SYS_mkdir, c"mkdir", Int), (libc::SYS_rmdir, c"rmdir", Int),
    (libc::SYS_link, c"link", Int), (libc::SYS_unlink, c"unlink", Int), (libc::SYS_symlink, c"symlink", Int),
    (libc::SYS_readlink, c"readlink", Bytes), (libc::SYS_chmod, c"chmod", Int), (libc::SYS_chown, c"chown", Int),
    (libc::SYS_lchown, c"lchown", Int), (libc::SYS_utime, c"utime", Int), (libc::SYS_utimes, c"utimes", Int),
    (libc::SYS_epoll_wait, c"epoll_wait", Int), (libc::SYS_getrlimit, c"getrlimit", Int),
    (libc::SYS_setrlimit, c"setrlimit", Int),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_ROWS: &[(i64, &CStr, Shape)] = &[];

/// The system call that does the same as `select`, where the kernel has it.
#[cfg(target_arch = "x86_64")]
const SELECT: i64 = libc::SYS_select;
#[cfg(not(target_arch = "x86_64"))]
const SELECT: i64 = -1;

/// Numbers of system calls that may be in a row are below this.
const NUMBERS: usize = 512;

/// The functions, by the numbers of their system calls; null where there is none.
static FUNCTIONS: [AtomicPtr<c_void>; NUMBERS] = [const { AtomicPtr::new(null_mut()) }; NUMBERS];
/// Their rows.
static PLACES: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

const _: () = assert!(ROWS.len() + OLD_ROWS.len() <= u8::MAX as usize);

fn rows() -> impl Iterator<Item = &'static (i64, &'static CStr, Shape)> {
    ROWS.iter().chain(OLD_ROWS)
}

/// Functions of the C library that start other programs, whose kernel looks at the memory of their arguments.
const STARTERS: [(&CStr, &Real); 7] = [
    (c"execve", &reals::execve),
    (c"execv", &reals::execv),
    (c"execvp", &reals::execvp),
    (c"posix_spawn", &reals::posix_spawn),
    (c"posix_spawnp", &reals::posix_spawnp),
    (c"system", &reals::system),
    (c"popen", &reals::popen),
];
/// The functions that do the same with private memory.
static STARTERS_INSTEAD: [AtomicPtr<c_void>; STARTERS.len()] = [const { AtomicPtr::new(null_mut()) }; STARTERS.len()];

/// The function to call in the place of one of the C library.
pub(crate) fn instead_of(function: *mut c_void) -> *mut c_void {
    let place = STARTERS.iter().position(|(_, real)| real.address() == function);
    let instead = place.filter(|_| faults::are_served_in_thread()).map(|place| &STARTERS_INSTEAD[place]);
    instead.map_or(function, |instead| instead.load(Ordering::Acquire))
}

/// Finds the functions; the error names the first that is missing.
pub(crate) fn find_all(library: *mut c_void) -> Result<(), &'static str> {
    for ((name, _), place) in STARTERS.iter().zip(&STARTERS_INSTEAD) {
        place.store(found(library, name)?, Ordering::Release);
    }
    for (place, (number, name, _)) in rows().enumerate() {
        PLACES[*number as usize].store(place as u8, Ordering::Relaxed);
        FUNCTIONS[*number as usize].store(found(library, name)?, Ordering::Release);
    }
    Ok(())
}

fn found(library: *mut c_void, name: &'static CStr) -> Result<*mut c_void, &'static str> {
    // SAFETY: a library that is open, and a text.
    let function = unsafe { libc::dlsym(library, name.as_ptr()) };
    if function.is_null() { Err(name.to_str().unwrap_or_default()) } else { Ok(function) }
}

/// Makes a system call of the program, on the program's memory or private one.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn made(number: i64, arguments: Arguments) -> isize {
    /// No memory is below this address.
    const LOWEST: usize = 1 << 16;
    let row = row(number);
    let may_fail = arguments.iter().any(|argument| *argument >= LOWEST && may_fail(*argument));
    // SAFETY: the caller's promise; the functions do what the calls of their numbers do.
    unsafe {
        match row {
            Some((function, Masked(place, way))) => {
                let (mut set, mut pair) = ([0; 16], [0; 2]);
                let arguments = unblocked(place, arguments, &mut set, &mut pair);
                if may_fail { answer(|| way(function, arguments)) } else { call(number, arguments) }
            }
            Some((function, shape @ (IntOfLists | BytesOfLists))) => answer(|| direct(function, shape, arguments)),
            Some((function, Other(way))) if may_fail => answer(|| way(function, arguments)),
            Some((function, shape)) if may_fail => answer(|| direct(function, shape, arguments)),
            None if may_fail => touched(number, arguments),
            _ => call(number, arguments),
        }
    }
}

fn row(number: i64) -> Option<(Function, Shape)> {
    let place = usize::try_from(number).ok().filter(|number| *number < NUMBERS)?;
    let function = FUNCTIONS[place].load(Ordering::Acquire);
    if function.is_null() {
        return None;
    }
    let row = PLACES[place].load(Ordering::Relaxed) as usize;
    let shape = ROWS.get(row).unwrap_or_else(|| &OLD_ROWS[row - ROWS.len()]).2;
    // SAFETY: the function of the row, which takes no more arguments.
    Some((unsafe { transmute::<*mut c_void, Function>(function) }, shape))
}

/// The answer of the kernel, from that of the C library.
fn answer(call: impl FnOnce() -> isize) -> isize {
    let before = errno();
    let answer = call();
    let answer = if answer == -1 { -(errno() as isize) } else { answer };
    set_errno(before);
    answer
}

unsafe fn direct(function: Function, shape: Shape, [a, b, c, d, e, f]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    let answer = unsafe { function(a, b, c, d, e, f) };
    if matches!(shape, Int | IntOfLists) { answer as c_int as isize } else { answer }
}

/// A call without a function: its memory is brought here, as far as its size can be guessed, and it is made again if the
/// kernel did not find it. That another node takes a page each time is as good as impossible.
unsafe fn touched(number: i64, arguments: Arguments) -> isize {
    const TRIES_MAX: usize = 200;
    const PAGES_MAX: usize = 16;
    let mut answer = 0;
    for attempt in 0..TRIES_MAX {
        // SAFETY: the caller's promise.
        answer = unsafe { call(number, arguments) };
        if answer != -(libc::EFAULT as isize) {
            break;
        }
        // Most memory is in one page. The first page of each comes last: others could be taken while the next ones come.
        let pages = (1 + attempt / 8).min(PAGES_MAX);
        let places = |argument: usize| {
            (1..pages).rev().map(move |page| (argument & !(PAGE - 1)) + page * PAGE).chain([argument])
        };
        for address in arguments.into_iter().filter(|argument| may_fail(*argument)).flat_map(places) {
            if !may_fail(address) {
                continue;
            }
            // SAFETY: a byte of the region. An exchange with what is there changes nothing, and is a store for the catcher.
            unsafe {
                let byte = AtomicU8::from_ptr(address as *mut u8);
                let now = byte.load(Ordering::Relaxed);
                std::hint::black_box(byte.compare_exchange(now, now, Ordering::SeqCst, Ordering::SeqCst)).ok();
            }
        }
    }
    answer
}

/// The place in the file takes two arguments of the system call.
unsafe fn with_place(function: Function, [file, list, count, at, _, how]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    unsafe { function(file, list, count, at, how, 0) }
}

/// The function has an argument more.
unsafe fn without_flags(function: Function, [folder, path, mode, ..]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    unsafe { function(folder, path, mode, 0, 0, 0) as c_int as isize }
}

/// The function answers with the address of the text, and the system call with its size.
unsafe fn text_of(function: Function, [to, bytes, ..]: Arguments) -> isize {
    // SAFETY: the caller's promise; the text is there if there is an address.
    unsafe {
        match function(to, bytes, 0, 0, 0, 0) {
            0 => -1,
            text => libc::strlen(text as *const c_char) as isize + 1,
        }
    }
}

/// The function answers with the number of the error.
unsafe fn error_of(function: Function, [a, b, c, d, ..]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    let error = unsafe { function(a, b, c, d, 0, 0) } as c_int;
    if error == 0 {
        return 0;
    }
    set_errno(error);
    -1
}

/// A set of signals of the C library, which is larger than the kernel's.
type Set = [u64; 16];

/// The arguments with a set of signals in which those of faults are not blocked. `set` and `pair` have room for it.
///
/// # Safety
/// As the system call.
unsafe fn unblocked(mask: Mask, mut arguments: Arguments, set: &mut Set, pair: &mut [usize; 2]) -> Arguments {
    let place = match mask {
        Mask::At(place) => &mut arguments[place],
        Mask::Paired if arguments[5] == 0 => return arguments,
        Mask::Paired => {
            // SAFETY: the pair of the caller.
            *pair = unsafe { (arguments[5] as *const [usize; 2]).read() };
            arguments[5] = pair.as_ptr() as usize;
            &mut pair[0]
        }
    };
    if *place != 0 {
        // SAFETY: a set of the kernel's size.
        set[0] = unsafe { (*place as *const u64).read_unaligned() } & !UNBLOCKED;
        *place = set.as_ptr() as usize;
    }
    arguments
}

/// `futimens` has no path.
unsafe fn times_of(function: Function, [folder, path, times, how, ..]: Arguments) -> isize {
    if path != 0 {
        // SAFETY: the caller's promise.
        return unsafe { function(folder, path, times, how, 0, 0) as c_int as isize };
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { touched(libc::SYS_utimensat, [folder, 0, times, how, 0, 0]) };
    if answer < 0 {
        set_errno(-answer as c_int);
        return -1;
    }
    answer
}

unsafe fn ppoll(function: Function, [list, count, limit, mask, ..]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    unsafe { function(list, count, limit, mask, 0, 0) as c_int as isize }
}

/// The system call says in `limit` how much is left. `select` does, too, but has no set of signals.
unsafe fn pselect(function: Function, [count, read, write, except, limit, pair]: Arguments) -> isize {
    // SAFETY: the caller's promise; the last argument is a pair of an address and a size.
    unsafe {
        let mask = if pair == 0 { 0 } else { (pair as *const usize).read() };
        let select = row(SELECT).filter(|_| mask == 0 && limit != 0);
        let Some((select, _)) = select else {
            return function(count, read, write, except, limit, mask) as c_int as isize;
        };
        let limit = limit as *mut libc::timespec;
        let mut left =
            libc::timeval { tv_sec: (*limit).tv_sec, tv_usec: ((*limit).tv_nsec as u64).div_ceil(1000) as _ };
        let answer = select(count, read, write, except, (&raw mut left) as usize, 0) as c_int as isize;
        *limit = libc::timespec { tv_sec: left.tv_sec, tv_nsec: left.tv_usec * 1000 };
        answer
    }
}

unsafe fn epoll(function: Function, [epoll, list, count, limit, mask, _]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    unsafe { function(epoll, list, count, limit, mask, 0) as c_int as isize }
}

unsafe fn sigsuspend(function: Function, [mask, ..]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    unsafe { function(mask, 0, 0, 0, 0, 0) as c_int as isize }
}

unsafe fn sigtimedwait(function: Function, [mask, to, limit, ..]: Arguments) -> isize {
    // SAFETY: the caller's promise.
    unsafe { function(mask, to, limit, 0, 0, 0) as c_int as isize }
}

unsafe fn sigpending(function: Function, [to, ..]: Arguments) -> isize {
    let mut set: Set = [0; 16];
    // SAFETY: the caller's promise.
    unsafe {
        let done = function((&raw mut set) as usize, 0, 0, 0, 0, 0) as c_int;
        if done == 0 {
            (to as *mut u64).write_unaligned(set[0]);
        }
        done as isize
    }
}

unsafe fn signalfd(function: Function, arguments: Arguments) -> isize {
    let (mut set, mut pair) = ([0; 16], [0; 2]);
    // SAFETY: the caller's promise.
    unsafe {
        let [file, mask, _, how, ..] = unblocked(Mask::At(1), arguments, &mut set, &mut pair);
        function(file, mask, how, 0, 0, 0) as c_int as isize
    }
}
