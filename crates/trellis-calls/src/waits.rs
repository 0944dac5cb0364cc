//! Calls that wait for descriptors, and others whose memory is a list.
//!
//! Promises: lists are read before the call and written after it, so that nothing that was reported is lost.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use libc::{epoll_event, fd_set, pollfd, timespec, timeval};

use crate::arguments::{Argument, In, InOut, Out, given};
use crate::buffer::Buffer;
use crate::shared;
use crate::signals::Mask;
use crate::streams::listed;
use trellis_interpose::{errno, set_errno};

/// `poll` and its like, which set one field of each entry.
fn polled(list: *mut pollfd, count: u64, call: impl FnOnce(*mut pollfd) -> c_int) -> c_int {
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

/// Sets of so many descriptors: the kernel uses whole words, whatever the size of the type.
fn selected(count: c_int, sets: [*mut fd_set; 3], call: impl FnOnce([*mut fd_set; 3]) -> c_int) -> c_int {
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
        let mut private = sets.map(|set| {
            let is_shared = inside(set) > 0;
            is_shared.then(|| {
                let mut copy = Buffer::of(2 * bytes);
                copy.at::<u8>().write_bytes(0, 2 * bytes);
                // Once for the call, and once to know afterwards what it changed.
                for place in [0, bytes] {
                    copy.at::<u8>().add(place).copy_from_nonoverlapping(set.cast(), inside(set));
                }
                copy
            })
        });
        let mut given = sets;
        for (given, private) in given.iter_mut().zip(&mut private) {
            if let Some(private) = private {
                *given = private.at();
            }
        }
        let answer = call(given);
        if answer >= 0 {
            for (set, private) in sets.into_iter().zip(&mut private) {
                let Some(private) = private else { continue };
                let (now, before): (*const u64, *const u64) = (private.at(), private.at::<u8>().add(bytes).cast());
                for word in (0..inside(set) / 8).filter(|word| *now.add(*word) != *before.add(*word)) {
                    set.cast::<u64>().add(word).write_unaligned(*now.add(word));
                }
            }
        }
        answer
    }
}

/// Linux says in `limit` how much is left, also when a signal came.
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

/// The argument of TCGETS and its like. The `termios` of the C library is larger.
#[repr(C)]
struct KernelTerminal([u8; 36]);

/// The argument of requests about interfaces (`struct ifreq`, netdevice(7)).
#[repr(C)]
struct InterfaceRequest([u8; 40]);

/// `ioctl`: requests of terminals and interfaces work on private memory. The memory of others is touched before the call,
/// as far as their number tells their size (ioctl(2)); they may use more, so that a copy could be too small, and what they
/// did cannot be done again.
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
    // SAFETY: as the program calls it, on private memory or its own.
    let call = |argument: usize| unsafe { real(file, request, argument) };
    match request {
        libc::TCGETS => return with(Out(argument as *mut KernelTerminal), |to| call(to.0 as usize)),
        libc::TCSETS | libc::TCSETSW | libc::TCSETSF => {
            return with(In(argument as *const KernelTerminal), |from| call(from.0 as usize));
        }
        libc::TIOCGWINSZ => return with(Out(argument as *mut libc::winsize), |to| call(to.0 as usize)),
        libc::TIOCSWINSZ => return with(In(argument as *const libc::winsize), |from| call(from.0 as usize)),
        libc::FIONREAD | libc::TIOCGPGRP | libc::TIOCOUTQ | libc::TIOCMGET | libc::TIOCGSID => {
            return with(Out(argument as *mut c_int), |to| call(to.0 as usize));
        }
        libc::FIONBIO | libc::FIOASYNC | libc::TIOCSPGRP | libc::TIOCMSET => {
            return with(In(argument as *const c_int), |from| call(from.0 as usize));
        }
        // Those of sockets: owners, marks, and times of packets.
        0x8901..=0x8905 => return with(InOut(argument as *mut c_int), |both| call(both.0 as usize)),
        0x8906 | 0x8907 => return with(Out(argument as *mut timespec), |to| call(to.0 as usize)),
        // Those of interfaces, apart from lists.
        0x8900..=0x89ff if request != libc::SIOCGIFCONF => {
            return with(InOut(argument as *mut InterfaceRequest), |both| call(both.0 as usize));
        }
        _ => {}
    }
    let bytes = ((request >> 16 & 0x3fff) as usize).max(1);
    for at in [argument, argument + bytes - 1] {
        if shared::overlaps(at as *const c_void, 1) {
            // SAFETY: a byte of shared memory. An exchange with what is there changes nothing, and is a store for the catcher.
            unsafe {
                let byte = AtomicU8::from_ptr(at as *mut u8);
                let now = byte.load(Ordering::Relaxed);
                std::hint::black_box(byte.compare_exchange(now, now, Ordering::SeqCst, Ordering::SeqCst)).ok();
            }
        }
    }
    call(argument)
}
