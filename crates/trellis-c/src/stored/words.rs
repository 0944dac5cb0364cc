//! The functions that the compiler pass emits for words, atomics, bulk and lines: `trellis/compiled.h`.
//!
//! Promises: each function does what its name says, at any address and alignment, or ends the process with one
//! message and status 70. It must never panic into C: the bodies call functions that return errors.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{Ordering, fence};

use trellis::stored::StoredError;
use trellis::stored::end::end_process;
use trellis::stored::words::Update;

use super::process::{memory, words};

fn had<T>(answer: Result<T, StoredError>, what: &str, address: usize) -> T {
    answer.unwrap_or_else(|error| end_process(&format!("{what} at {address:#x} could not be done: {error}")))
}

/// The bytes of a program's temporary.
///
/// # Safety
///
/// `at` points to so many bytes that nothing else uses.
unsafe fn temporary<'a>(at: *mut c_void, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), bytes) }
}

macro_rules! word {
    ($load:ident, $store:ident, $number:ty) => {
        /// Loads a number.
        ///
        /// # Safety
        ///
        /// The program may load from the address.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $load(address: *const c_void) -> $number {
            let mut bytes = [0; std::mem::size_of::<$number>()];
            // SAFETY: the caller's promise.
            had(unsafe { words().load(address.expose_provenance(), &mut bytes) }, "a load", address.addr());
            <$number>::from_ne_bytes(bytes)
        }

        /// Stores a number.
        ///
        /// # Safety
        ///
        /// The program may store to the address.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $store(address: *mut c_void, value: $number) {
            // SAFETY: the caller's promise.
            let stored = unsafe { words().store(address.expose_provenance(), &value.to_ne_bytes()) };
            had(stored, "a store", address.addr());
        }
    };
}

word!(__trellis_load_1, __trellis_store_1, u8);
word!(__trellis_load_2, __trellis_store_2, u16);
word!(__trellis_load_4, __trellis_store_4, u32);
word!(__trellis_load_8, __trellis_store_8, u64);

/// Loads bytes into a temporary.
///
/// # Safety
///
/// The program may load the bytes, and `into` is its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_load(address: *const c_void, into: *mut c_void, bytes: usize) {
    // SAFETY: the caller's promise.
    had(unsafe { words().load(address.expose_provenance(), temporary(into, bytes)) }, "a load", address.addr());
}

/// Stores bytes from a temporary.
///
/// # Safety
///
/// The program may store to the address, and `from` is its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_store(address: *mut c_void, from: *const c_void, bytes: usize) {
    // SAFETY: the caller's promise; the bytes are only read.
    let stored = unsafe { words().store(address.expose_provenance(), temporary(from.cast_mut(), bytes)) };
    had(stored, "a store", address.addr());
}

/// A width that the pass may emit.
fn width(bytes: c_uint) -> usize {
    match bytes {
        1 | 2 | 4 | 8 => bytes as usize,
        _ => end_process(&format!("an atomic access of {bytes} bytes was compiled; only 1, 2, 4 and 8 can be")),
    }
}

/// Loads a number atomically.
///
/// # Safety
///
/// The program may load the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_atomic_load(address: *const c_void, bytes: c_uint) -> u64 {
    let mut number = [0; 8];
    let into = &mut number[..width(bytes)];
    // SAFETY: the caller's promise. All of it comes from one call, or, outside the store, from one instruction if it
    // is aligned.
    had(unsafe { words().load(address.expose_provenance(), into) }, "an atomic load", address.addr());
    fence(Ordering::SeqCst);
    u64::from_le_bytes(number)
}

/// Stores a number atomically.
///
/// # Safety
///
/// The program may store there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_atomic_store(address: *mut c_void, value: u64, bytes: c_uint) {
    fence(Ordering::SeqCst);
    let number = &value.to_le_bytes()[..width(bytes)];
    // SAFETY: the caller's promise.
    had(unsafe { words().store(address.expose_provenance(), number) }, "an atomic store", address.addr());
}

/// Changes a number atomically; returns the old value.
///
/// # Safety
///
/// The program may store there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_atomic_update(
    address: *mut c_void,
    operand: u64,
    bytes: c_uint,
    operation: c_uint,
) -> u64 {
    let Some(update) = Update::from_number(operation) else {
        end_process(&format!("an atomic update of kind {operation} was compiled, which this library does not know"));
    };
    // SAFETY: the caller's promise.
    let before = unsafe { words().update(address.expose_provenance(), operand, width(bytes), update) };
    had(before, "an atomic update", address.addr())
}

/// Sets a number to `desired` if it is `*expected`, atomically.
///
/// # Safety
///
/// The program may store to the address; `expected` is its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_atomic_compare_exchange(
    address: *mut c_void,
    expected: *mut u64,
    desired: u64,
    bytes: c_uint,
) -> bool {
    // SAFETY: the caller's promise.
    let expected = unsafe { &mut *expected };
    // SAFETY: the caller's promise.
    let done = unsafe { words().compare_exchange(address.expose_provenance(), *expected, desired, width(bytes)) };
    match had(done, "an atomic comparison", address.addr()) {
        Ok(()) => true,
        Err(found) => {
            *expected = found;
            false
        }
    }
}

/// A full fence. Calls of the store are complete when they return, so only plain accesses must be kept in order.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_fence() {
    fence(Ordering::SeqCst);
}

/// As `memcpy`.
///
/// # Safety
///
/// As `memcpy`, with addresses of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_copy(to: *mut c_void, from: *const c_void, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { __trellis_move(to, from, bytes) };
}

/// As `memmove`.
///
/// # Safety
///
/// As `memmove`, with addresses of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_move(to: *mut c_void, from: *const c_void, bytes: usize) {
    // SAFETY: the caller's promise.
    let copied = unsafe { words().copy(to.expose_provenance(), from.expose_provenance(), bytes) };
    had(copied, "a copy", to.addr());
}

/// As `memset`.
///
/// # Safety
///
/// As `memset`, with an address of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_set(to: *mut c_void, byte: c_int, bytes: usize) {
    // SAFETY: the caller's promise.
    had(unsafe { words().set(to.expose_provenance(), byte as u8, bytes) }, "a fill", to.addr());
}

/// Records that plain instructions have just written these bytes.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_import(address: *const c_void, bytes: usize) {
    words().import(address.addr(), bytes);
}

/// Makes these bytes available to plain instructions, which are about to read them.
///
/// # Safety
///
/// The program may store there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_export(address: *mut c_void, bytes: usize) {
    // SAFETY: the caller's promise.
    had(unsafe { words().export(address.expose_provenance(), bytes) }, "an export", address.addr());
}

/// Makes these bytes plain memory from now on.
///
/// # Safety
///
/// The program may store there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_keep_native(address: *const c_void, bytes: usize) {
    // SAFETY: the caller's promise.
    had(unsafe { words().keep_native(address.expose_provenance(), bytes) }, "an export", address.addr());
}

/// Makes the lines that hold these bytes readable.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_line_read(address: *const c_void, bytes: usize) {
    line(address.addr(), bytes, false);
}

/// Makes the lines that hold these bytes writable.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_line_write(address: *mut c_void, bytes: usize) {
    line(address.addr(), bytes, true);
}

fn line(address: usize, bytes: usize, write: bool) {
    if let Some(paging) = memory().and_then(|memory| memory.paging()) {
        had(paging.touch(address, bytes, write), "an access", address);
    }
}
