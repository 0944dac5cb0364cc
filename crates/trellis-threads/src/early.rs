//! What libraries of the program make before the program begins, in their constructors: memory, keys of thread-specific data,
//! semaphores. Every node runs these, and the program goes on with what they made at node 0.
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

/// The most keys and semaphores that libraries make.
const MADE_MAX: usize = 64;

/// Things that libraries have made: how many, and a number or two of each.
struct Made {
    count: AtomicUsize,
    things: [[AtomicUsize; 2]; MADE_MAX],
}

impl Made {
    const fn none() -> Made {
        Made { count: AtomicUsize::new(0), things: [const { [const { AtomicUsize::new(0) }; 2] }; MADE_MAX] }
    }

    /// The number of the new one; `None` if there are too many.
    fn add(&self, first: usize, second: usize) -> Option<usize> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let [a, b] = self.things.get(number)?;
        a.store(first, Ordering::Relaxed);
        b.store(second, Ordering::Relaxed);
        Some(number)
    }

    fn each(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        let made = self.things.iter().take(self.count.load(Ordering::Relaxed));
        made.map(|thing| [0, 1].map(|index: usize| thing[index].load(Ordering::Relaxed)))
    }
}

/// Destructors of keys, whose numbers are their places.
static KEYS: Made = Made::none();
/// Addresses and values of semaphores.
static SEMAPHORES: Made = Made::none();

/// A library makes a key; its number.
pub(crate) fn make_key(destructor: usize) -> Option<usize> {
    KEYS.add(destructor, 0)
}

/// A library makes a semaphore.
pub(crate) fn make_semaphore(address: usize, value: usize) {
    SEMAPHORES.add(address, value);
}

/// The destructors of the keys, in the order of their numbers.
pub(crate) fn keys() -> impl Iterator<Item = usize> {
    KEYS.each().map(|[destructor, _]| destructor)
}

/// The addresses and the values of the semaphores.
pub(crate) fn semaphores() -> impl Iterator<Item = [usize; 2]> {
    SEMAPHORES.each()
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
