//! One-time initialisation: `pthread_once`, `call_once`, and static variables of C++ that are initialised when a thread
//! first reaches them.
//!
//! The program's own word says whether it was done, because memory can be used again for another such word. Only the
//! lock is an object of the cluster. Promises: it is done once in the whole program, and every thread that returns sees
//! what it did. If the thread that does it ends in the middle of it, others wait for ever.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use trellis_interpose::Real;

use crate::context::is_of_program;
use crate::{relaxed, runtime};

/// The value of a `pthread_once_t` whose function was called, as in glibc.
const DONE: c_int = 2;

static PTHREAD_ONCE: Real = Real::new("pthread_once\0");
static CALL_ONCE: Real = Real::new("call_once\0");

type Function = Option<extern "C-unwind" fn()>;
type Once = unsafe extern "C-unwind" fn(*mut c_int, Function) -> c_int;

/// `pthread_once`. Exceptions of the function pass through it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_once(control: *mut c_int, function: Function) -> c_int {
    // SAFETY: as the program calls it; the C library's function has this type.
    unsafe {
        match is_of_program() {
            true => once(control, function),
            false => std::mem::transmute::<*mut c_void, Once>(PTHREAD_ONCE.address())(control, function),
        }
    }
}

/// `call_once` of C11, which has no answer.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn call_once(control: *mut c_int, function: Function) {
    // SAFETY: as the program calls it; of the C library's function, the answer counts for nothing.
    unsafe {
        match is_of_program() {
            true => once(control, function),
            false => std::mem::transmute::<*mut c_void, Once>(CALL_ONCE.address())(control, function),
        }
    };
}

/// # Safety
/// As pthread_once(3p).
unsafe fn once(control: *mut c_int, function: Option<extern "C-unwind" fn()>) -> c_int {
    // SAFETY: the caller's word.
    let word = unsafe { AtomicI32::from_ptr(control) };
    if word.load(Ordering::Acquire) == DONE {
        return 0;
    }
    runtime::once_lock(control as usize);
    if word.load(Ordering::Acquire) != DONE {
        if let Some(function) = function {
            // If it throws, another thread must be able to try.
            let unlocks = Unlocks(control as usize);
            function();
            std::mem::forget(unlocks);
        }
        relaxed::release_to_all();
        word.store(DONE, Ordering::Release);
    }
    runtime::once_unlock(control as usize);
    0
}

/// Unlocks if an exception passes through.
struct Unlocks(usize);

impl Drop for Unlocks {
    fn drop(&mut self) {
        runtime::once_unlock(self.0);
    }
}

/// The first byte of the guard of a static variable says whether it is initialised (Itanium C++ ABI, 3.3.3).
unsafe fn is_initialised<'a>(guard: *mut c_void) -> &'a AtomicU8 {
    // SAFETY: the caller's guard.
    unsafe { AtomicU8::from_ptr(guard.cast()) }
}

/// # Safety
/// As __cxa_guard_acquire of the C++ ABI.
pub(crate) unsafe fn guard_acquire(guard: *mut c_void) -> c_int {
    // SAFETY: the caller's guard.
    let done = unsafe { is_initialised(guard) };
    if done.load(Ordering::Acquire) != 0 {
        return 0;
    }
    runtime::once_lock(guard as usize);
    if done.load(Ordering::Acquire) != 0 {
        runtime::once_unlock(guard as usize);
        return 0;
    }
    1
}

/// # Safety
/// As __cxa_guard_release of the C++ ABI.
pub(crate) unsafe fn guard_release(guard: *mut c_void) {
    relaxed::release_to_all();
    // SAFETY: the caller's guard.
    unsafe { is_initialised(guard) }.store(1, Ordering::Release);
    runtime::once_unlock(guard as usize);
}

/// # Safety
/// As __cxa_guard_abort of the C++ ABI.
pub(crate) unsafe fn guard_abort(guard: *mut c_void) {
    runtime::once_unlock(guard as usize);
}
