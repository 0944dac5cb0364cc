//! Barriers.

use std::ffi::{c_int, c_void};

use crate::runtime;

/// The offset at which glibc keeps the number of participants of a barrier.
const COUNT_OFFSET: usize = 8;

/// Waits at a barrier.
///
/// # Safety
/// It is a barrier.
pub(crate) unsafe fn wait(barrier: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let participants = unsafe { barrier.byte_add(COUNT_OFFSET).cast::<u32>().read_volatile() };
    if runtime::barrier_wait(barrier as usize, participants) { libc::PTHREAD_BARRIER_SERIAL_THREAD } else { 0 }
}
