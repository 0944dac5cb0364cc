//! OpenMP's functions for memory: all of it is memory of the program's heap.
//!
//! An allocator that the program makes may want blocks at multiples of a number, have a pool of limited size, and say what
//! happens when that is exhausted (OpenMP 5.2, section 6.2). A word in front of each block has its size.
//!
//! Promises: a block is at a multiple of the number that its allocator or its call wants. Allocators of a pool count what
//! all threads of all nodes have.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::this_thread;
use crate::runtime;

/// Numbers below this are the allocators that OpenMP defines.
const MADE_FROM: usize = 4096;
/// The default one of these.
pub(super) const DEFAULT: usize = 1;

/// Traits of allocators, and values of some (omp.h).
const ALIGNMENT: c_int = 2;
const POOL_SIZE: c_int = 4;
const FALLBACK: c_int = 5;
const FALLBACK_DATA: c_int = 6;
const NULL_FALLBACK: usize = 12;
const ABORT_FALLBACK: usize = 13;
const ALLOCATOR_FALLBACK: usize = 14;
const VALUE_DEFAULT: usize = usize::MAX;

/// A trait, as the program gives it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Trait {
    key: c_int,
    value: usize,
}

/// An allocator that the program made; in the region.
struct Allocator {
    alignment: usize,
    pool_bytes: usize,
    used_bytes: AtomicUsize,
    fallback: usize,
    other: usize,
}

/// What lies in front of a block.
#[repr(C)]
struct Header {
    bytes: usize,
    allocator: usize,
    whole: *mut c_void,
}

fn made<'a>(allocator: usize) -> Option<&'a Allocator> {
    // SAFETY: a handle of the program, which is the address of an allocator that it made.
    (allocator >= MADE_FROM).then(|| unsafe { &*(allocator as *const Allocator) })
}

/// Makes an allocator; 0 if its traits are impossible.
pub(super) fn make(traits: &[Trait]) -> usize {
    let mut new =
        Allocator { alignment: 1, pool_bytes: usize::MAX, used_bytes: AtomicUsize::new(0), fallback: 0, other: 0 };
    for Trait { key, value } in traits.iter().filter(|given| given.value != VALUE_DEFAULT) {
        match *key {
            ALIGNMENT if !value.is_power_of_two() => return 0,
            ALIGNMENT => new.alignment = *value,
            POOL_SIZE => new.pool_bytes = *value,
            FALLBACK => new.fallback = *value,
            FALLBACK_DATA => new.other = *value,
            _ => {}
        }
    }
    Box::into_raw(Box::new(new)) as usize
}

/// Ends an allocator that the program made.
pub(super) fn end(allocator: usize) {
    if allocator >= MADE_FROM {
        // SAFETY: made by `make`; the program does not use it any more.
        drop(unsafe { Box::from_raw(allocator as *mut Allocator) });
    }
}

/// Memory at a multiple of `alignment`; null if there is none, or for 0 bytes.
pub(super) fn allocate(alignment: usize, bytes: usize, allocator: usize) -> *mut c_void {
    let allocator = if allocator == 0 { this_thread().settings().allocator } else { allocator };
    let own = made(allocator);
    if let Some(own) = own {
        let used = own.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        if used.checked_add(bytes).is_none_or(|used| used > own.pool_bytes) {
            own.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return match own.fallback {
                NULL_FALLBACK => null_mut(),
                ABORT_FALLBACK => runtime::stop("the pool of an allocator of OpenMP is exhausted"),
                ALLOCATOR_FALLBACK => allocate(alignment, bytes, own.other),
                _ => allocate(alignment, bytes, DEFAULT),
            };
        }
    }
    let alignment = alignment.max(own.map_or(1, |own| own.alignment)).max(align_of::<Header>() * 2);
    let before = size_of::<Header>().next_multiple_of(alignment);
    if bytes == 0 {
        return null_mut();
    }
    let Some(whole_bytes) = bytes.checked_add(before) else { return null_mut() };
    // SAFETY: a size and an alignment; the header lies in the block.
    unsafe {
        let whole = libc::memalign(alignment, whole_bytes);
        if whole.is_null() {
            return null_mut();
        }
        let block = whole.byte_add(before);
        block.cast::<Header>().sub(1).write(Header { bytes, allocator, whole });
        block
    }
}

/// The same, with zeros, for `count` times as many bytes.
pub(super) fn zeroed(alignment: usize, count: usize, bytes: usize, allocator: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(bytes) else { return null_mut() };
    let block = allocate(alignment, bytes, allocator);
    if !block.is_null() {
        // SAFETY: a block of this size.
        unsafe { block.cast::<u8>().write_bytes(0, bytes) };
    }
    block
}

/// Gives a block back.
///
/// # Safety
/// It is one of `allocate`, or null.
pub(super) unsafe fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let Header { bytes, allocator, whole } = block.cast::<Header>().sub(1).read();
        if let Some(own) = made(allocator) {
            own.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        libc::free(whole);
    }
}

/// A block of another size with the same contents; null if there is none.
///
/// # Safety
/// As for [`free`].
pub(super) unsafe fn change(block: *mut c_void, bytes: usize, allocator: usize) -> *mut c_void {
    if block.is_null() {
        return allocate(1, bytes, allocator);
    }
    // SAFETY: the caller's promise, and a block of the new size.
    unsafe {
        let Header { bytes: before, allocator: of_block, .. } = block.cast::<Header>().sub(1).read();
        let new = match bytes {
            0 => null_mut(),
            _ => allocate(1, bytes, if allocator == 0 { of_block } else { allocator }),
        };
        if !new.is_null() {
            new.cast::<u8>().copy_from_nonoverlapping(block.cast::<u8>(), before.min(bytes));
        }
        if bytes == 0 || !new.is_null() {
            free(block);
        }
        new
    }
}
