//! Mutexes, spin locks and read-write locks.
//!
//! Promises: the object itself is read for its kind and its clock only, and never written. A mutex is not even read if
//! its kind does not matter.

use std::ffi::{c_int, c_void};

use libc::{clockid_t, timespec};

use crate::context::{is_of_program, own_slot};
use crate::runtime;
use crate::time::limited;

/// The offset at which glibc keeps the kind of a mutex on 64-bit processors.
const KIND_OFFSET: usize = 16;
/// The bits of it that say what happens if the thread already holds the mutex.
const KIND_MASK: c_int = 3;

/// Stands for a kind that was not read yet; also the answer of a function that needs the kind.
const UNKNOWN: c_int = -1;
const NEEDS_KIND: c_int = -1;

/// Calls a function with the kind of a mutex, which says how it treats a thread that already holds it. The mutex is
/// read only if the function needs the kind, because its page may be at another node.
///
/// # Safety
/// It is a mutex.
pub(crate) unsafe fn with_kind(mutex: *mut c_void, call: impl Fn(c_int) -> c_int) -> c_int {
    match call(UNKNOWN) {
        // SAFETY: the caller's promise.
        NEEDS_KIND => call(unsafe { mutex.byte_add(KIND_OFFSET).cast::<c_int>().read_volatile() & KIND_MASK }),
        answer => answer,
    }
}

/// Initialises a lock. The C library writes its kind into it.
pub(crate) fn init(lock: *mut c_void, real: impl FnOnce() -> c_int) -> c_int {
    let done = real();
    if done == 0 && is_of_program() {
        runtime::lock_init(lock as usize);
    }
    done
}

/// Locks a mutex.
///
/// # Safety
/// It is a mutex.
pub(crate) unsafe fn lock(mutex: *mut c_void, limit_ns: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_kind(mutex, |kind| runtime::mutex_lock(mutex as usize, kind, own_slot(), limit_ns)) }
}

/// Locks a mutex before a point in time of a clock has passed.
///
/// # Safety
/// It is a mutex, and the pointer to the time is valid.
pub(crate) unsafe fn lock_until(mutex: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { limited(clock, until, |limit| lock(mutex, limit)) }
}

/// Unlocks a mutex.
///
/// # Safety
/// It is a mutex.
pub(crate) unsafe fn unlock(mutex: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_kind(mutex, |kind| runtime::mutex_unlock(mutex as usize, kind, own_slot())) }
}

/// Locks a spin lock, as a mutex that checks nothing.
pub(crate) fn spin_lock(lock: *mut c_void, limit_ns: u64) -> c_int {
    runtime::mutex_lock(lock as usize, 0, own_slot(), limit_ns)
}

/// Unlocks a spin lock.
pub(crate) fn spin_unlock(lock: *mut c_void) -> c_int {
    runtime::mutex_unlock(lock as usize, 0, own_slot())
}

/// Takes a read-write lock, to read or to write.
pub(crate) fn rwlock(lock: *mut c_void, writes: bool, limit_ns: u64) -> c_int {
    runtime::rwlock_lock(lock as usize, writes, own_slot(), limit_ns)
}

/// Takes a read-write lock before a point in time of a clock has passed.
///
/// # Safety
/// The pointer to the time is valid.
pub(crate) unsafe fn rwlock_until(lock: *mut c_void, writes: bool, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { limited(clock, until, |limit| rwlock(lock, writes, limit)) }
}

/// Unlocks a read-write lock.
pub(crate) fn rwlock_unlock(lock: *mut c_void) -> c_int {
    runtime::rwlock_unlock(lock as usize, own_slot())
}
