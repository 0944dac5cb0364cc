//! The library's own memory comes from the C library, even if a program's `malloc` was replaced by one that serves
//! the heap from a region. Otherwise a call of the library could need a page in order to serve a page.
//!
//! Promises: the same as the C library. A large block is a mapping of its own, whose pages cost nothing until they are
//! touched: a table with an entry for each page of a region is mostly never touched, and the C library would clear all of
//! it. It must never be reached through names that a program can replace.

#![cfg(target_env = "gnu")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

// The names of glibc that programs do not replace; since 2.0.
unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// The alignment of `malloc` on 64-bit machines.
const ALIGN: usize = 16;
/// Blocks from this size on are mappings, which are aligned to pages.
const LARGE_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

struct CLibrary;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= PAGE_BYTES
}

/// Memory of zeros, or null.
fn map(bytes: usize) -> *mut u8 {
    // SAFETY: the kernel chooses an address where nothing is mapped.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(std::ptr::null_mut(), <*mut c_void>::cast)
}

// SAFETY: these functions fulfil the contract of an allocator, and none of them unwinds.
unsafe impl GlobalAlloc for CLibrary {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: plain calls; every block has at least the requested alignment.
        let block = unsafe {
            if layout.align() <= ALIGN {
                __libc_malloc(layout.size())
            } else {
                __libc_memalign(layout.align(), layout.size())
            }
        };
        block.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        if layout.align() <= ALIGN {
            // SAFETY: a plain call.
            return unsafe { __libc_calloc(1, layout.size()) }.cast();
        }
        // SAFETY: the caller's promise; the block has that size.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.align() <= ALIGN && layout.size().max(bytes) < LARGE_BYTES {
            // SAFETY: the caller's promise: the block is from this allocator.
            return unsafe { __libc_realloc(block.cast(), bytes) }.cast();
        }
        // SAFETY: the caller's promise; both blocks have the bytes that are copied, and the caller's size with this
        // alignment does not overflow.
        unsafe {
            let other = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
            if !other.is_null() {
                other.copy_from_nonoverlapping(block, bytes.min(layout.size()));
                self.dealloc(block, layout);
            }
            other
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise: the block is from this allocator, with this layout.
        unsafe {
            if is_large(layout) {
                // It fails only where the kernel allows no further mapping; the memory is not used again then.
                let _ = munmap(block.cast(), layout.size());
            } else {
                __libc_free(block.cast());
            }
        }
    }
}

#[global_allocator]
static ALLOCATOR: CLibrary = CLibrary;
