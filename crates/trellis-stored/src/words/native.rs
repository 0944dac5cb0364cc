//! This process's own memory, read and written at the program's addresses.
//!
//! Promises: every byte of the range is accessed once, as by memcpy(3). It must never be called for addresses of a
//! region.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Reads bytes.
///
/// # Safety
///
/// The bytes are readable.
pub(super) unsafe fn read(address: usize, into: &mut [u8]) {
    let from: *const u8 = std::ptr::with_exposed_provenance(address);
    // SAFETY: the caller's promise; `into` is memory of the runtime that the program does not know, or the program's
    // own temporary.
    unsafe { std::ptr::copy(from, into.as_mut_ptr(), into.len()) };
}

/// Writes bytes.
///
/// # Safety
///
/// The bytes are writable.
pub(super) unsafe fn write(address: usize, from: &[u8]) {
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
}

/// Changes a number in one step for all threads of this process; returns its previous value. `next` returns the new
/// value, or `None` to change nothing.
///
/// # Safety
///
/// The bytes are writable, and 1, 2, 4 or 8.
pub(super) unsafe fn update(address: usize, bytes: usize, next: &mut dyn FnMut(u64) -> Option<u64>) -> u64 {
    /// The lock for numbers that no single instruction can change. Their changes are atomic only among callers of this
    /// function.
    static UNALIGNED: Mutex<()> = Mutex::new(());
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    macro_rules! exchange {
        ($atomic:ty, $number:ty) => {{
            // SAFETY: aligned to its size, and writable by the caller's promise.
            let number = unsafe { <$atomic>::from_ptr(at.cast()) };
            let next = |now: $number| next(u64::from(now)).map(|next| next as $number);
            match number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
                Ok(before) | Err(before) => u64::from(before),
            }
        }};
    }
    if !address.is_multiple_of(bytes) {
        let _one = UNALIGNED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut number = [0; 8];
        // SAFETY: the caller's promise.
        unsafe { read(address, &mut number[..bytes]) };
        let before = u64::from_le_bytes(number);
        if let Some(after) = next(before) {
            // SAFETY: the same.
            unsafe { write(address, &after.to_le_bytes()[..bytes]) };
        }
        return before;
    }
    match bytes {
        1 => exchange!(AtomicU8, u8),
        2 => exchange!(AtomicU16, u16),
        4 => exchange!(AtomicU32, u32),
        _ => exchange!(AtomicU64, u64),
    }
}
