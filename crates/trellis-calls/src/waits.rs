//! Calls that wait for descriptors, and others whose memory is a list.
//!
//! Promises: lists are read before the call and written after it, so that no report is lost.

use std::ffi::{c_int, c_void};

use libc::{epoll_event, fd_set, pollfd, timespec, timeval};

use crate::arguments::{Argument, In, InOut, Out, given};
use crate::buffer::{Buffer, Changeable};
use crate::signals::Mask;
use crate::streams::listed;
use crate::{refused, shared};
use trellis_interpose::{errno, set_errno};

/// `poll` and its like, which set one field of each entry.
pub(crate) fn polled(list: *mut pollfd, count: u64, call: impl FnOnce(*mut pollfd) -> c_int) -> c_int {
    if !shared::overlaps(list, (count as usize).saturating_mul(size_of::<pollfd>())) {
        return call(list);
    }
    polled_shared(list, count as usize, call)
}

#[cold]
#[inline(never)]
fn polled_shared(list: *mut pollfd, count: usize, call: impl FnOnce(*mut pollfd) -> c_int) -> c_int {
    // SAFETY: the kernel would read so many entries, and write to them.
    unsafe {
        let mut private = Buffer::copied(list.cast::<c_void>(), count * size_of::<pollfd>());
        let answer = call(private.at());
        if answer >= 0 {
            let before = errno();
            (0..count).for_each(|at| (*list.add(at)).revents = (*private.at::<pollfd>().add(at)).revents);
            set_errno(before);
        }
        answer
    }
}

pub(crate) fn poll(
    real: unsafe extern "C" fn(*mut pollfd, u64, c_int) -> c_int,
    list: *mut pollfd,
    count: u64,
    limit_ms: c_int,
) -> c_int {
    // SAFETY: the program's list or a private one.
    polled(list, count, |list| unsafe { real(list, count, limit_ms) })
}

pub(crate) fn poll_checked(
    real: unsafe extern "C" fn(*mut pollfd, u64, c_int, usize) -> c_int,
    list: *mut pollfd,
    count: u64,
    limit_ms: c_int,
    room: usize,
) -> c_int {
    // SAFETY: the program's list or a private one.
    polled(list, count, |list| unsafe { real(list, count, limit_ms, room) })
}

pub(crate) fn ppoll(
    real: unsafe extern "C" fn(*mut pollfd, u64, In<timespec>, Mask) -> c_int,
    list: *mut pollfd,
    count: u64,
    limit: In<timespec>,
    signals: Mask,
) -> c_int {
    given(limit, |limit| {
        // SAFETY: memory that is the program's or private.
        given(signals, |signals| polled(list, count, |list| unsafe { real(list, count, limit, signals) }))
    })
}

pub(crate) fn ppoll_checked(
    real: unsafe extern "C" fn(*mut pollfd, u64, In<timespec>, Mask, usize) -> c_int,
    list: *mut pollfd,
    count: u64,
    limit: In<timespec>,
    signals: Mask,
    room: usize,
) -> c_int {
    given(limit, |limit| {
        // SAFETY: memory that is the program's or private.
        given(signals, |signals| polled(list, count, |list| unsafe { real(list, count, limit, signals, room) }))
    })
}

/// Sets of descriptors. The kernel uses whole words, whatever the size of the type.
pub(crate) fn selected(count: c_int, sets: [*mut fd_set; 3], call: impl FnOnce([*mut fd_set; 3]) -> c_int) -> c_int {
    let bytes = (count.max(0) as usize).div_ceil(64) * 8;
    if !sets.iter().any(|set| shared::overlaps(*set, bytes)) {
        return call(sets);
    }
    selected_shared(sets, bytes, call)
}

#[cold]
#[inline(never)]
fn selected_shared(sets: [*mut fd_set; 3], bytes: usize, call: impl FnOnce([*mut fd_set; 3]) -> c_int) -> c_int {
    // The kernel looks at no more than this process could have open: a set may be smaller than the number says.
    let inside = |set: *mut fd_set| bytes.min(shared::rest(set));
    // SAFETY: the kernel would read the words of each set, and write to them.
    unsafe {
        let is_shared = |set: *mut fd_set| inside(set) > 0;
        let mut private = sets.map(|set| is_shared(set).then(|| Changeable::copied(set.cast(), inside(set), bytes)));
        let mut given = sets;
        for (given, private) in given.iter_mut().zip(&mut private) {
            if let Some(private) = private {
                *given = private.at();
            }
        }
        let answer = call(given);
        if answer >= 0 {
            private.iter_mut().flatten().for_each(|private| private.finish());
        }
        answer
    }
}

/// Linux writes into `limit` how much time is left, also when a signal came.
pub(crate) fn select(
    real: unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, InOut<timeval>) -> c_int,
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    limit: InOut<timeval>,
) -> c_int {
    // SAFETY: memory that is the program's or private.
    unsafe {
        let mut private = limit.stand_in();
        let call =
            |[read, write, except]: [*mut fd_set; 3]| real(count, read, write, except, limit.given(&mut private));
        let answer = selected(count, [read, write, except], call);
        if answer >= 0 || errno() == libc::EINTR {
            limit.finish(&mut private);
        }
        answer
    }
}

pub(crate) fn pselect(
    real: unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, In<timespec>, Mask) -> c_int,
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    limit: In<timespec>,
    signals: Mask,
) -> c_int {
    given(limit, |limit| {
        given(signals, |signals| {
            // SAFETY: memory that is the program's or private.
            let call =
                |[read, write, except]: [*mut fd_set; 3]| unsafe { real(count, read, write, except, limit, signals) };
            selected(count, [read, write, except], call)
        })
    })
}

pub(crate) fn epoll_wait(
    real: unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int,
    epoll: c_int,
    list: *mut epoll_event,
    count: c_int,
    limit_ms: c_int,
) -> c_int {
    // SAFETY: the program's list or a private one.
    listed(list, count.max(0) as u32, |list| unsafe { real(epoll, list, count, limit_ms) })
}

pub(crate) fn epoll_pwait(
    real: unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, Mask) -> c_int,
    epoll: c_int,
    list: *mut epoll_event,
    count: c_int,
    limit_ms: c_int,
    signals: Mask,
) -> c_int {
    given(signals, |signals| {
        // SAFETY: memory that is the program's or private.
        listed(list, count.max(0) as u32, |list| unsafe { real(epoll, list, count, limit_ms, signals) })
    })
}

pub(crate) fn epoll_pwait2(
    real: unsafe extern "C" fn(c_int, *mut epoll_event, c_int, In<timespec>, Mask) -> c_int,
    epoll: c_int,
    list: *mut epoll_event,
    count: c_int,
    limit: In<timespec>,
    signals: Mask,
) -> c_int {
    given(limit, |limit| {
        given(signals, |signals| {
            // SAFETY: memory that is the program's or private.
            listed(list, count.max(0) as u32, |list| unsafe { real(epoll, list, count, limit, signals) })
        })
    })
}

/// Commands of fcntl(2) about who gets the signals of a descriptor.
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
/// Commands of fcntl(2) with a hint about the lifetime of data.
const F_GET_RW_HINT: c_int = 1035;
const F_SET_RW_HINT: c_int = 1036;
const F_GET_FILE_RW_HINT: c_int = 1037;
const F_SET_FILE_RW_HINT: c_int = 1038;

/// `fcntl`, whose third argument is an address for some commands.
pub(crate) fn fcntl(
    real: unsafe extern "C" fn(c_int, c_int, usize) -> c_int,
    file: c_int,
    command: c_int,
    argument: usize,
) -> c_int {
    match command {
        libc::F_GETLK | libc::F_OFD_GETLK => {
            with(InOut(argument as *mut libc::flock), |lock| {
                // SAFETY: memory that is the program's or private.
                unsafe { real(file, command, lock.0 as usize) }
            })
        }
        F_GET_RW_HINT | F_GET_FILE_RW_HINT | F_GETOWN_EX => {
            with(Out(argument as *mut u64), |to| {
                // SAFETY: as above.
                unsafe { real(file, command, to.0 as usize) }
            })
        }
        F_SET_RW_HINT | F_SET_FILE_RW_HINT | F_SETOWN_EX => {
            with(In(argument as *const u64), |from| {
                // SAFETY: as above.
                unsafe { real(file, command, from.0 as usize) }
            })
        }
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            with(In(argument as *const libc::flock), |lock| {
                // SAFETY: as above.
                unsafe { real(file, command, lock.0 as usize) }
            })
        }
        // SAFETY: as the program calls it.
        _ => unsafe { real(file, command, argument) },
    }
}

/// The call with private memory in place of one argument.
fn with<A: Argument>(argument: A, call: impl FnOnce(A) -> c_int) -> c_int {
    // SAFETY: the kernel would use the argument as its type says.
    unsafe {
        let mut private = argument.stand_in();
        let answer = call(argument.given(&mut private));
        if answer != -1 {
            argument.finish(&mut private);
        }
        answer
    }
}

/// The size in bytes of the argument of a request; `None` if it is not known. The number of a newer request contains it
/// (ioctl(2)).
fn bytes_of(request: u64) -> Option<usize> {
    /// The `struct termios` of the kernel, which is smaller than that of the C library.
    const TERMINAL: usize = 36;
    /// The argument of requests about interfaces (`struct ifreq`, netdevice(7)).
    const INTERFACE: usize = 40;
    let of_number = (request >> 16 & 0x3fff) as usize;
    Some(match request {
        libc::TCGETS | libc::TCSETS | libc::TCSETSW | libc::TCSETSF => TERMINAL,
        // Terminals of System V (`struct termio`), and lines (`struct serial_struct`).
        0x5405..=0x5408 => 18,
        0x541e | 0x541f => 72,
        libc::TIOCGWINSZ | libc::TIOCSWINSZ => size_of::<libc::winsize>(),
        libc::TIOCSTI => 1,
        libc::FIONREAD | libc::TIOCGPGRP | libc::TIOCSPGRP | libc::TIOCOUTQ | libc::TIOCGSID => size_of::<c_int>(),
        libc::TIOCMGET | libc::TIOCMSET | libc::TIOCMBIS | libc::TIOCMBIC => size_of::<c_int>(),
        libc::FIONBIO | libc::FIOASYNC | libc::TIOCGETD | libc::TIOCSETD | libc::TIOCPKT => size_of::<c_int>(),
        // FIBMAP, FIGETBSZ, FIOQSIZE, and the numbers and the shape of a disk.
        1 | 2 => size_of::<c_int>(),
        0x5460 | 0x1260 => size_of::<u64>(),
        0x1268 => size_of::<c_int>(),
        0x0301 => 16,
        // Requests of sockets: owners, marks, and times of packets.
        0x8901..=0x8905 => size_of::<c_int>(),
        0x8906 | 0x8907 => size_of::<timespec>(),
        // Requests of interfaces. The list has the address of other memory.
        libc::SIOCGIFCONF => size_of::<InterfaceList>(),
        0x8900..=0x89ff => INTERFACE,
        _ => return (of_number > 0).then_some(of_number),
    })
}

/// The argument of SIOCGIFCONF (`struct ifconf`).
#[repr(C)]
struct InterfaceList {
    bytes: c_int,
    list: *mut c_void,
}

/// `ioctl`, on private memory. A request is refused if the size of its memory is not known.
pub(crate) fn ioctl(
    real: unsafe extern "C" fn(c_int, u64, usize) -> c_int,
    file: c_int,
    request: u64,
    argument: usize,
) -> c_int {
    if !shared::overlaps(argument as *const c_void, 1) {
        // SAFETY: as the program calls it.
        return unsafe { real(file, request, argument) };
    }
    ioctl_shared(real, file, request, argument)
}

#[cold]
#[inline(never)]
fn ioctl_shared(
    real: unsafe extern "C" fn(c_int, u64, usize) -> c_int,
    file: c_int,
    request: u64,
    argument: usize,
) -> c_int {
    let Some(bytes) = bytes_of(request) else {
        refused::say(format_args!("ioctl with the request {request:#x}"));
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the kernel would use so many bytes there, and those of the list that is among them.
    unsafe {
        let mut private = Changeable::copied(argument as *mut c_void, bytes, bytes);
        let place = private.at::<c_void>();
        let answer = if request == libc::SIOCGIFCONF {
            let listed = &mut *place.cast::<InterfaceList>();
            let (list, bytes) = (listed.list, if listed.list.is_null() { 0 } else { listed.bytes.max(0) as usize });
            let mut interfaces = Changeable::copied(list, bytes, bytes);
            if bytes > 0 {
                listed.list = interfaces.at();
            }
            let answer = real(file, request, place as usize);
            interfaces.finish();
            listed.list = list;
            answer
        } else {
            real(file, request, place as usize)
        };
        let error = errno();
        private.finish();
        set_errno(error);
        answer
    }
}
