//! Waits for signals (sigwait(3)) in threads of other nodes than node 0.
//!
//! Signals for the process come to node 0, where the thread's deputy waits for them. Those for the thread come to the
//! thread, or to its deputy while that waits.
//!
//! Promises: a signal for which a thread waits ends the wait, whether it was sent to the process or to the thread, before
//! the wait or in it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::context::aside;
use crate::control::{SLOTS, control};
use crate::faults::UNBLOCKED;
use crate::kernel::{Arguments, call};
use crate::{cancellation, runtime, start, system_calls};

/// The signals for which the deputy of each thread of this node waits.
static AWAITED: [Mutex<u64>; SLOTS] = [const { Mutex::new(0) }; SLOTS];
/// The kernel's number of each deputy, at node 0; 0 if there is none.
static DEPUTIES: [AtomicI32; SLOTS] = [const { AtomicI32::new(0) }; SLOTS];

/// Calls `work` with the signals for which a thread's deputy waits, which stay the same meanwhile.
fn with_awaited<T>(slot: usize, work: impl FnOnce(&mut u64) -> T) -> T {
    work(&mut AWAITED[slot].lock().unwrap_or_else(PoisonError::into_inner))
}

/// rt_sigtimedwait(2) of a thread of this node, which is not node 0. It may be interrupted at a cancellation point.
///
/// # Safety
/// As the program makes it.
pub(crate) unsafe fn wait(slot: usize, arguments: Arguments, is_point: bool) -> isize {
    let [set, info, _, bytes, ..] = arguments;
    if set == 0 || bytes != size_of::<u64>() {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: the program's set, of 64 bits.
    let wanted = unsafe { (set as *const u64).read_unaligned() } & !UNBLOCKED;
    let (answer, found) = aside(|| with_awaited(slot, |awaited| poll(wanted, awaited)));
    if answer != -(libc::EAGAIN as isize) {
        if answer > 0 && info != 0 {
            // SAFETY: the program's place for the answer.
            unsafe { (info as *mut libc::siginfo_t).write_unaligned(found.assume_init()) };
        }
        return answer;
    }
    let answer = system_calls::at_first_node(slot, libc::SYS_rt_sigtimedwait, arguments, is_point);
    aside(|| with_awaited(slot, |awaited| *awaited = 0));
    answer
}

/// Takes a signal that was sent to the calling thread already. Without one, its deputy is to wait from now on.
fn poll(wanted: u64, awaited: &mut u64) -> (isize, MaybeUninit<libc::siginfo_t>) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let arguments = [(&raw const wanted) as usize, info.as_mut_ptr() as usize, (&raw const now) as usize, 8, 0, 0];
    // SAFETY: a set, room for the answer, and a time.
    let answer = unsafe { call(libc::SYS_rt_sigtimedwait, arguments) };
    if answer == -(libc::EAGAIN as isize) {
        *awaited = wanted;
    }
    (answer, info)
}

/// Sends a signal to another thread of this node, with this number, or to its deputy if that waits for the signal. Returns
/// the number of the error.
pub(crate) fn send_to(slot: usize, number: u32, signal: c_int) -> c_int {
    let bit = 1 << (signal - 1);
    let send = || system_calls::send_here(number, signal);
    match aside(|| with_awaited(slot, |awaited| (*awaited & bit == 0).then(send))) {
        Some(answer) => -answer as c_int,
        None => {
            send_to_deputy(slot, signal);
            0
        }
    }
}

/// Sends a signal to the deputy of a thread.
pub(crate) fn send_to_deputy(slot: usize, signal: c_int) {
    control().signals_of_deputies[slot].fetch_or(1 << (signal - 1), Ordering::AcqRel);
    if start::node() == 0 { pass_on_to_deputies() } else { runtime::order(0) }
}

/// Called by the deputy of a slot at its beginning.
pub(crate) fn begin_deputy(slot: usize) {
    // SAFETY: has no conditions.
    DEPUTIES[slot].store(unsafe { libc::gettid() }, Ordering::Release);
}

/// Sends the deputies what other nodes have for them, at node 0.
pub(crate) fn pass_on_to_deputies() {
    for (slot, signals) in control().signals_of_deputies.iter().enumerate() {
        if signals.load(Ordering::Acquire) == 0 {
            continue;
        }
        let signals = signals.swap(0, Ordering::AcqRel);
        for signal in (1..=64).filter(|signal| signals >> (signal - 1) & 1 != 0) {
            let deputy = DEPUTIES[slot].load(Ordering::Acquire) as u32;
            if signal != cancellation::SIGNAL || cancellation::interrupts_call(slot) {
                system_calls::send_here(deputy, signal);
            }
        }
    }
}

/// rt_sigpending(2) of a thread of this node, which is not node 0: what was sent to the thread, and to the process.
///
/// # Safety
/// As the program makes it.
pub(crate) unsafe fn pending(slot: usize, arguments: Arguments) -> isize {
    let mut own = 0u64;
    // SAFETY: room for the answer.
    unsafe { call(libc::SYS_rt_sigpending, [(&raw mut own) as usize, size_of::<u64>(), 0, 0, 0, 0]) };
    let answer = system_calls::at_first_node(slot, libc::SYS_rt_sigpending, arguments, false);
    if answer == 0 {
        let place = arguments[0] as *mut u64;
        // SAFETY: the program's place for the answer.
        unsafe { place.write_unaligned(place.read_unaligned() | own) };
    }
    answer
}
