//! Semaphores without a name. (Those with a name belong to the machine.)
//!
//! Promises: errors are in `errno`, as for all functions of this family.

use std::ffi::{c_int, c_void};

use libc::{clockid_t, timespec};

use crate::runtime;
use crate::time::limited;

fn answer(error: c_int) -> c_int {
    if error == 0 {
        return 0;
    }
    trellis_interpose::set_errno(error);
    -1
}

/// Lowers a semaphore.
pub(crate) fn wait(semaphore: *mut c_void, limit_ns: u64) -> c_int {
    answer(runtime::semaphore_wait(semaphore as usize, limit_ns))
}

/// Lowers a semaphore before a point in time of a clock has passed.
///
/// # Safety
/// The pointer to the time is valid.
pub(crate) unsafe fn wait_until(semaphore: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { limited(clock, until, |limit| runtime::semaphore_wait(semaphore as usize, limit)) })
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
