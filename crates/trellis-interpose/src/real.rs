//! The functions that were replaced: those of the next library that has them.
//!
//! Promises: a function is looked up once. All are looked up when the library is loaded, because dlsym(3) must not be
//! called in a signal handler.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of the C library's function with a name.
pub struct Real {
    /// With a zero byte at its end.
    name: &'static str,
    found: AtomicPtr<c_void>,
}

impl Real {
    /// The function of a name, with a zero byte at its end.
    pub const fn new(name: &'static str) -> Real {
        Real { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if the C library has no such function.
    pub fn look_up(&self) -> *mut c_void {
        // SAFETY: a zero byte ends the name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// Its address; null if the C library has no such function. Programs ask for some that only newer ones have, and take
    /// an answer for its presence.
    pub fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }
}

/// This thread's `errno`.
pub fn errno() -> i32 {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's `errno`.
pub fn set_errno(number: i32) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = number }
}
