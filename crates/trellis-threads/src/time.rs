//! Limits of waits: points in time of a clock, as pthreads has them, in nanoseconds from now.

use libc::{c_int, clockid_t, timespec};

/// There is no limit.
pub(crate) const FOREVER: u64 = u64::MAX;
/// The call only tries.
pub(crate) const NOW: u64 = 0;

/// The nanoseconds until a point in time; 1 if it has passed, because 0 only tries. `None` if it is not a valid time.
///
/// # Safety
/// The pointer is valid.
pub(crate) unsafe fn until(clock: clockid_t, time: *const timespec) -> Option<u64> {
    // SAFETY: the caller's promise.
    let timespec { tv_sec, tv_nsec } = unsafe { *time };
    if !(0..1_000_000_000).contains(&tv_nsec) {
        return None;
    }
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(clock, &mut now) };
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let left = nanoseconds(tv_sec, tv_nsec) - nanoseconds(now.tv_sec, now.tv_nsec);
    Some(left.clamp(1, i128::from(FOREVER - 1)) as u64)
}

/// The nanoseconds of a duration; `None` if it is none.
///
/// # Safety
/// The pointer is valid.
pub(crate) unsafe fn length(time: *const timespec) -> Option<u64> {
    // SAFETY: the caller's promise.
    let timespec { tv_sec, tv_nsec } = unsafe { *time };
    let is_valid = tv_sec >= 0 && (0..1_000_000_000).contains(&tv_nsec);
    is_valid.then(|| (tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(tv_nsec as u64).clamp(1, FOREVER - 1))
}

/// Calls with a point in time as the limit, or returns EINVAL.
///
/// # Safety
/// The pointer is valid.
pub(crate) unsafe fn limited(clock: clockid_t, time: *const timespec, call: impl FnOnce(u64) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { until(clock, time) }.map_or(libc::EINVAL, call)
}
