//! Semaphores without a name. (Those with a name belong to the machine.)
//!
//! Promises: errors are in `errno`, as for all functions of this family.

use std::ffi::{c_int, c_void};

use libc::{clockid_t, timespec};

use crate::time::{FOREVER, NOW, until as until_time};
use crate::{cancellation, runtime};

fn answer(error: c_int) -> c_int {
    if error == 0 {
        return 0;
    }
    trellis_interpose::set_errno(error);
    -1
}

/// Waits for a semaphore at a cancellation point; returns the number of the error. `limit` says how many nanoseconds are
/// left, or that its time is no valid one.
pub(crate) fn wait_at_point(semaphore: usize, heeds_signals: bool, limit: impl Fn() -> Option<u64>) -> c_int {
    cancellation::repeated_point(heeds_signals, |interrupt| match limit() {
        Some(limit) => runtime::semaphore_wait_or_interrupt(semaphore, limit, interrupt),
        None => libc::EINVAL,
    })
}

/// Lowers a semaphore.
pub(crate) fn wait(semaphore: *mut c_void) -> c_int {
    answer(wait_at_point(semaphore as usize, true, || Some(FOREVER)))
}

/// Lowers a semaphore if that is possible at once.
pub(crate) fn try_wait(semaphore: *mut c_void) -> c_int {
    answer(runtime::semaphore_wait(semaphore as usize, NOW))
}

/// Lowers a semaphore before a point in time of a clock has passed.
///
/// # Safety
/// The pointer to the time is valid.
pub(crate) unsafe fn wait_until(semaphore: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    answer(wait_at_point(semaphore as usize, true, || unsafe { until_time(clock, until) }))
}

/// Raises a semaphore.
pub(crate) fn post(semaphore: *mut c_void) -> c_int {
    runtime::semaphore_post(semaphore as usize);
    0
}

/// The value of a semaphore.
///
/// # Safety
/// The place for the answer is valid.
pub(crate) unsafe fn value(semaphore: *mut c_void, to: *mut c_int) -> c_int {
    let value = runtime::semaphore_value(semaphore as usize);
    // SAFETY: the caller's promise.
    unsafe { *to = c_int::try_from(value).unwrap_or(c_int::MAX) };
    0
}
