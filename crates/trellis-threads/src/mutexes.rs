//! Mutexes, spin locks and read-write locks.
//!
//! Promises: the object itself is read for its kind and its clock only, and never written. A mutex is not even read if
//! its kind does not matter. Robust mutexes are the exception: they have in their own memory that an owner has died, and as
//! soon as the program has one, every mutex is read.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{clockid_t, timespec};

use crate::context::{is_of_program, own_slot};
use crate::control::control;
use crate::runtime;
use crate::time::limited;

/// The offset at which glibc keeps the kind of a mutex on 64-bit processors.
const KIND_OFFSET: usize = 16;
/// The bits of it that say what happens if the thread already holds the mutex.
const KIND_MASK: c_int = 3;

/// The bit for a robust mutex.
const ROBUST: c_int = 16;
/// The kind of a mutex that only its owner may unlock.
const ERROR_CHECKING: c_int = 2;

/// What the first word of a robust mutex says if its owner has died, and if another one has then unlocked it as it was.
const OWNER_DIED: u32 = 1 << 30;
const NOT_RECOVERABLE: u32 = OWNER_DIED - 1;

/// Stands for a kind that was not read yet; also the answer of a function that needs the kind.
const UNKNOWN: c_int = -1;
const NEEDS_KIND: c_int = -1;

/// The kind of a mutex.
///
/// # Safety
/// It is a mutex.
unsafe fn kind_of(mutex: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { mutex.byte_add(KIND_OFFSET).cast::<c_int>().read_volatile() }
}

/// Calls a function with the kind of a mutex, which says how it treats a thread that already holds it. The mutex is
/// read only if the function needs the kind, because its page may be at another node.
///
/// # Safety
/// It is a mutex.
pub(crate) unsafe fn with_kind(mutex: *mut c_void, call: impl Fn(c_int) -> c_int) -> c_int {
    match call(UNKNOWN) {
        // SAFETY: the caller's promise.
        NEEDS_KIND => call(unsafe { kind_of(mutex) } & KIND_MASK),
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

/// Initialises a mutex.
///
/// # Safety
/// It is a mutex when it is initialised.
pub(crate) unsafe fn init_mutex(mutex: *mut c_void, real: impl FnOnce() -> c_int) -> c_int {
    let done = init(mutex, real);
    // SAFETY: the C library has initialised it.
    if done == 0 && is_of_program() && unsafe { kind_of(mutex) } & ROBUST != 0 {
        control().rarely.has_robust.store(1, Ordering::SeqCst);
    }
    done
}

/// The first word of a mutex, if that is robust.
///
/// # Safety
/// It is a mutex.
unsafe fn robust_word(mutex: *mut c_void) -> Option<&'static AtomicU32> {
    let has_robust = control().rarely.has_robust.load(Ordering::Relaxed) != 0;
    // SAFETY: the caller's promise; nobody else uses the word.
    unsafe { (has_robust && kind_of(mutex) & ROBUST != 0).then(|| AtomicU32::from_ptr(mutex.cast())) }
}

/// The answer of a call that has locked a mutex, or has not.
///
/// # Safety
/// It is a mutex.
pub(crate) unsafe fn locked(mutex: *mut c_void, answer: c_int) -> c_int {
    let is_held = answer == 0 || answer == libc::ETIMEDOUT;
    // SAFETY: the caller's promise.
    match unsafe { robust_word(mutex) }.filter(|_| is_held).map(|word| word.load(Ordering::Relaxed)) {
        Some(OWNER_DIED) => libc::EOWNERDEAD,
        Some(NOT_RECOVERABLE) => {
            runtime::mutex_unlock(mutex as usize, ERROR_CHECKING, own_slot());
            libc::ENOTRECOVERABLE
        }
        _ => answer,
    }
}

/// Locks a mutex.
///
/// # Safety
/// It is a mutex.
pub(crate) unsafe fn lock(mutex: *mut c_void, limit_ns: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match with_kind(mutex, |kind| runtime::mutex_lock(mutex as usize, kind, own_slot(), limit_ns)) {
            0 => locked(mutex, 0),
            error => error,
        }
    }
}

/// The state that a robust mutex protects is right again. Its owner says so.
///
/// # Safety
/// It is a mutex.
pub(crate) unsafe fn make_consistent(mutex: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { robust_word(mutex) } {
        Some(word) if word.compare_exchange(OWNER_DIED, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() => 0,
        _ => libc::EINVAL,
    }
}

/// Gives back the robust mutexes of a thread of this node that has ended. Called by its companion.
pub(crate) fn end_thread(slot: usize) {
    if control().rarely.has_robust.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut mutex = runtime::next_held(slot, 0);
    while mutex != 0 {
        // SAFETY: a mutex that the thread has locked.
        if let Some(word) = unsafe { robust_word(mutex as *mut c_void) } {
            if word.load(Ordering::Relaxed) == 0 {
                word.store(OWNER_DIED, Ordering::Relaxed);
            }
            while runtime::next_held(slot, mutex - 1) == mutex {
                runtime::mutex_unlock(mutex, ERROR_CHECKING, slot);
            }
        }
        mutex = runtime::next_held(slot, mutex);
    }
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
    unsafe {
        if let Some(word) = robust_word(mutex) {
            if runtime::next_held(own_slot(), mutex as usize - 1) != mutex as usize {
                return libc::EPERM;
            }
            // Who has not made it consistent gives it up for all.
            let _ = word.compare_exchange(OWNER_DIED, NOT_RECOVERABLE, Ordering::Relaxed, Ordering::Relaxed);
        }
        with_kind(mutex, |kind| runtime::mutex_unlock(mutex as usize, kind, own_slot()))
    }
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
