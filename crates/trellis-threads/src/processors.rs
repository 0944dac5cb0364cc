//! The processors and the process that a program sees: those of the whole cluster, as one process.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use crate::control::control;

/// The processors of all nodes together.
pub(crate) fn count() -> c_int {
    control().processors.load(Ordering::Relaxed).max(1) as c_int
}

/// Whether a name of sysconf(3) asks for their number.
pub(crate) fn is_count(name: c_int) -> bool {
    name == libc::_SC_NPROCESSORS_ONLN || name == libc::_SC_NPROCESSORS_CONF
}

/// Fills a set of processors with all of them, because a thread may run on any. A program cannot choose, because the
/// processors belong to several machines.
///
/// # Safety
/// The set has `bytes` bytes.
pub(crate) unsafe fn fill(bytes: usize, set: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let set = unsafe { std::slice::from_raw_parts_mut(set.cast::<u8>(), bytes) };
    set.fill(0);
    for processor in 0..(count() as usize).min(8 * bytes) {
        set[processor / 8] |= 1 << (processor % 8);
    }
    0
}

/// The process number of the program.
pub(crate) fn process() -> c_int {
    control().process.load(Ordering::Relaxed) as c_int
}
