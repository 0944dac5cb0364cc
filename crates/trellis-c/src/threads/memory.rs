//! The heap of a program with threads, which is the shared heap.
//!
//! Promises: memory is aligned as was asked. Small blocks of different nodes lie on different pages, and so do the
//! first blocks of each size that a node allocates, because threads of other nodes may use them. A pointer that was
//! freed before, or never allocated, ends the run with a sentence, as the C library ends the process.

use std::alloc::Layout;
use std::ptr::NonNull;

use trellis::{Heap, HeapError, Home, Padding};

use super::{cluster, stop};

/// Memory for `malloc` and its family; 0 if there is none. With `zeroed`, all of it is zero. With `upper`, it
/// lies in the upper part of the heap, if there is room.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_allocate(bytes: usize, alignment: usize, zeroed: bool, upper: bool) -> usize {
    let Ok(layout) = Layout::from_size_align(bytes.max(1), alignment.max(16)) else { return 0 };
    let heap = cluster().heap();
    if upper && let Some(block) = allocate(heap.in_last_range(), layout, zeroed) {
        return block;
    }
    allocate(heap, layout, zeroed).unwrap_or(0)
}

fn allocate(heap: Heap<'_>, layout: Layout, zeroed: bool) -> Option<usize> {
    let block = match zeroed {
        true => heap.allocate_layout_zeroed(layout, Home::Unspecified, Padding::PerPageWhileFew),
        false => heap.allocate_layout(layout, Home::Unspecified, Padding::PerPageWhileFew),
    };
    match block {
        Ok(block) => Some(block.as_ptr() as usize),
        Err(HeapError::Wait(error)) => stop(error),
        Err(_) => None,
    }
}

/// Gives memory back.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_free(block: usize) {
    let Some(block) = NonNull::new(block as *mut u8) else { return };
    // SAFETY: by calling free(3) the program promises that nothing uses the memory any more.
    if let Err(error) = unsafe { cluster().heap().free(block) } {
        stop(format_args!("free: {error}"));
    }
}

/// How many bytes a block has.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_usable(block: usize) -> usize {
    let Some(block) = NonNull::new(block as *mut u8) else { return 0 };
    cluster().heap().usable_bytes(block).unwrap_or_else(|error| stop(format_args!("malloc_usable_size: {error}")))
}
