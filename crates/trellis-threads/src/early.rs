//! Memory that libraries of the program allocate before the program begins, in their constructors. Every node runs these, and
//! the program goes on with what they made at node 0.
//!
//! The memory is at one address on every node. When the node joins, its pages become pages of the region, with the contents
//! of node 0. Promises: a block is never moved or used again. Nothing but the program uses it after the start.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::memory::ALIGNMENT;
use crate::table::reals;

/// The address of the memory, below that of regions, and its size.
pub(crate) const START: usize = 0x0ff0_0000_0000;
pub(crate) const BYTES: usize = 8 << 20;

/// Whether libraries are being initialised.
static IS_LOADING: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicUsize = AtomicUsize::new(START);

/// Libraries are about to be initialised. If the memory cannot be had, they allocate as usual.
pub(crate) fn begin() {
    type Map = unsafe extern "C" fn(*mut c_void, usize, i32, i32, i32, i64) -> *mut c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the C library's function, which has this type; the mapping replaces nothing.
    let got = unsafe {
        let map = std::mem::transmute::<*mut c_void, Map>(reals::mmap.address());
        map(START as *mut c_void, BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    IS_LOADING.store(got as usize == START, Ordering::Relaxed);
}

/// The program is about to begin. Whether its libraries may have allocated here.
pub(crate) fn end() -> bool {
    IS_LOADING.swap(false, Ordering::Relaxed)
}

/// Whether a library is allocating.
pub(crate) fn is_loading() -> bool {
    IS_LOADING.load(Ordering::Relaxed)
}

/// Whether a block is one of these.
pub(crate) fn has(block: usize) -> bool {
    block.wrapping_sub(START) < BYTES
}

/// A block, zero; null if there is no room. Its size is in the word before it.
pub(crate) fn allocate(bytes: usize, alignment: usize) -> *mut c_void {
    let alignment = alignment.max(ALIGNMENT);
    let Some(room) = bytes.checked_add(alignment + ALIGNMENT) else { return null_mut() };
    let at = NEXT.fetch_add(room.next_multiple_of(ALIGNMENT), Ordering::Relaxed);
    if at.checked_add(room).is_none_or(|end| end > START + BYTES) {
        return null_mut();
    }
    let block = (at + ALIGNMENT).next_multiple_of(alignment);
    // SAFETY: inside the memory, and nobody else's.
    unsafe { ((block - size_of::<usize>()) as *mut usize).write(bytes) };
    block as *mut c_void
}

/// The size of a block.
pub(crate) fn usable(block: usize) -> usize {
    // SAFETY: the word before a block of [`allocate`].
    unsafe { ((block - size_of::<usize>()) as *const usize).read() }
}
