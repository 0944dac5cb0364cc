//! Condition variables, and futexes that a program makes by hand.
//!
//! Promises: a wait ends by a notification, by its limit, or without a reason, as POSIX allows.

use std::ffi::{c_int, c_void};

use libc::{clockid_t, timespec};

use crate::cancellation;
use crate::context::own_slot;
use crate::mutexes::{locked, with_kind};
use crate::runtime;
use crate::time::{FOREVER, length, limited, until as until_time};

/// The offset at which glibc keeps the attributes of a condition variable on 64-bit processors, and the bit for the
/// monotonic clock in them.
const FLAGS_OFFSET: usize = 36;
const IS_MONOTONIC: u32 = 2;

/// Waits for a condition. It is a cancellation point.
///
/// # Safety
/// They are a condition and a mutex.
pub(crate) unsafe fn wait(condition: *mut c_void, mutex: *mut c_void, limit_ns: u64) -> c_int {
    let answer = cancellation::point(|interrupt| {
        let wait =
            |kind| runtime::condition_wait(condition as usize, mutex as usize, kind, own_slot(), limit_ns, interrupt);
        // SAFETY: the caller's promise.
        unsafe { with_kind(mutex, wait) }
    });
    // A wake-up without a reason, which POSIX allows: a notification may have come meanwhile.
    // SAFETY: the caller's promise.
    unsafe { locked(mutex, if answer == libc::EINTR { 0 } else { answer }) }
}

/// Waits for a condition until a point in time of the condition's own clock.
///
/// # Safety
/// The same, and the pointer to the time is valid.
pub(crate) unsafe fn wait_until(condition: *mut c_void, mutex: *mut c_void, until: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let flags = condition.byte_add(FLAGS_OFFSET).cast::<u32>().read_volatile();
        let clock = if flags & IS_MONOTONIC != 0 { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME };
        wait_until_of(condition, mutex, clock, until)
    }
}

/// Waits for a condition until a point in time of another clock.
///
/// # Safety
/// The same.
pub(crate) unsafe fn wait_until_of(
    condition: *mut c_void,
    mutex: *mut c_void,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { limited(clock, until, |limit| wait(condition, mutex, limit)) }
}

/// Wakes one thread that waits for a condition, or all.
pub(crate) fn notify(condition: *mut c_void, all: bool) -> c_int {
    runtime::condition_notify(condition as usize, all);
    0
}

/// The operations of futex(2) that a program makes by hand, without the bits that say which clock counts and that the
/// futex is private to the process.
const OPERATION_MASK: c_int = !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);

/// futex(2). It answers as the kernel does: an error is a negative number.
///
/// # Safety
/// The pointer to the time is valid, or null.
pub(crate) unsafe fn futex(word: usize, operation: c_int, value: u32, time: *const timespec, bits: u32) -> i64 {
    let clock = if operation & libc::FUTEX_CLOCK_REALTIME != 0 { libc::CLOCK_REALTIME } else { libc::CLOCK_MONOTONIC };
    let operation = operation & OPERATION_MASK;
    let has_bits = matches!(operation, libc::FUTEX_WAIT_BITSET | libc::FUTEX_WAKE_BITSET);
    if has_bits && bits != libc::FUTEX_BITSET_MATCH_ANY as u32 {
        runtime::unsupported("futex(2) with a set of bits", "waiting and waking without one are");
    }
    let limit_ns = match operation {
        _ if time.is_null() => Some(FOREVER),
        // SAFETY: the caller's promise.
        libc::FUTEX_WAIT => unsafe { length(time) },
        // SAFETY: the caller's promise.
        libc::FUTEX_WAIT_BITSET => unsafe { until_time(clock, time) },
        _ => Some(FOREVER),
    };
    match (operation, limit_ns) {
        (_, None) => -i64::from(libc::EINVAL),
        (libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET, Some(limit_ns)) => {
            -i64::from(runtime::futex_wait(word, value, limit_ns))
        }
        (libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET, _) => runtime::futex_wake(word, u64::from(value)) as i64,
        _ => runtime::unsupported(&format!("operation {operation} of futex(2)"), "waiting and waking are"),
    }
}
