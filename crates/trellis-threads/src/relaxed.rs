//! Relaxed memory: memory that the user says is free of data races, and that is under release consistency (`--races
//! none`).
//!
//! Large variables of the program and the blocks that it allocates are relaxed. Everything else is strict, which means
//! sequentially consistent: stacks, thread-local variables, small variables, and what Trellis and libraries of the
//! process keep in the heap, such as streams, whose locks are atomic instructions of the C library.
//!
//! Another thread is certain to see a store to relaxed memory only after a call that orders the two threads, such as
//! that of a lock, a condition or a barrier. Where this library itself orders threads by strict memory alone, they call
//! [`release`] and [`acquire`].
//!
//! Promises: without relaxed memory all this costs one load. It must never put a word into relaxed memory that threads
//! of several nodes change with atomic instructions.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::control::{self, control};
use crate::memory::{self, ALIGNMENT};
use crate::runtime::{self, Begin};
use crate::start;
use crate::table::reals;
use crate::time::FOREVER;

/// The zone in which a block lies.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Zone {
    /// In relaxed memory, if it is large enough.
    OfProgram,
    Strict,
}

/// The least size of a block of the program that lies in the upper part of the heap.
static UPPER_BYTES_MIN: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether some of the memory is relaxed: if so, the upper part of the heap is.
static IS_USED: AtomicBool = AtomicBool::new(false);

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;

/// The functions that libraries of the process get in the place of those that allocate for the program.
pub(crate) fn strict_functions() -> &'static [[usize; 2]] {
    let pairs = [
        [libc::malloc as Malloc as usize, malloc as Malloc as usize],
        [libc::calloc as Calloc as usize, calloc as Calloc as usize],
        [libc::realloc as Realloc as usize, realloc as Realloc as usize],
    ];
    Vec::from(pairs).leak()
}

pub(crate) fn begin(begin: &Begin) {
    UPPER_BYTES_MIN.store(begin.upper_bytes_min, Ordering::Relaxed);
    IS_USED.store(begin.is_relaxed != 0 && start::nodes() > 1, Ordering::Release);
}

fn is_used() -> bool {
    IS_USED.load(Ordering::Acquire)
}

/// Memory for a thread of the program; 0 if there is none.
pub(crate) fn allocate(zone: Zone, bytes: usize, alignment: usize, zeroed: bool) -> usize {
    let is_upper = zone == Zone::OfProgram && bytes >= UPPER_BYTES_MIN.load(Ordering::Relaxed);
    runtime::allocate(bytes, alignment, zeroed, is_upper)
}

/// Called before a thread tells others, in strict memory, that they may use what it has stored.
pub(crate) fn release() {
    if is_used() {
        runtime::release();
    }
}

/// Called after a thread has read this in strict memory.
pub(crate) fn acquire() {
    if is_used() {
        runtime::acquire();
    }
}

/// Called before threads of any node may use what this one has stored without a call of theirs, as they use a static
/// variable after one look at its guard. As long as no thread but the main one was made, the others will acquire when
/// they begin.
pub(crate) fn release_to_all() {
    let control = control();
    if !is_used() || control.made.load(Ordering::Acquire) == 1 {
        return;
    }
    runtime::release();
    let lock = (&raw const control.to_acquire) as usize;
    runtime::once_lock(lock);
    let others = (0..start::nodes()).filter(|node| *node != start::node());
    for node in others.clone() {
        control.to_acquire[node].store(1, Ordering::Release);
        runtime::order(node);
    }
    for _ in others {
        runtime::semaphore_wait((&raw const control.acquired) as usize, FOREVER);
    }
    runtime::once_unlock(lock);
}

/// Does so at this node, if a thread of another one waits for it.
pub(crate) fn acquire_for_others() {
    let control = control();
    if is_used() && control.to_acquire[start::node()].swap(0, Ordering::AcqRel) != 0 {
        runtime::acquire();
        runtime::semaphore_signal((&raw const control.acquired) as usize);
    }
}

/// Called before a thread begins whose slot was found without the lock under which it was taken.
pub(crate) fn acquire_from_maker() {
    if is_used() {
        control::alone(|_| ());
    }
}

/// Whether a buffer that the program gives to a stream must not be used: the lock of a stream orders strict memory only.
pub(crate) fn refuses_buffer(buffer: *mut c_char) -> bool {
    is_used() && !buffer.is_null() && memory::is_in_region(buffer as usize)
}

unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    memory::given(Zone::Strict, Some(bytes), ALIGNMENT, false).unwrap_or_else(|| {
        // SAFETY: the C library's function, which has this type.
        let real = unsafe { std::mem::transmute::<*mut c_void, Malloc>(reals::malloc.address()) };
        // SAFETY: as the library calls it.
        unsafe { real(bytes) }
    })
}

unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    memory::given(Zone::Strict, count.checked_mul(bytes), ALIGNMENT, true).unwrap_or_else(|| {
        // SAFETY: the C library's function, which has this type.
        let real = unsafe { std::mem::transmute::<*mut c_void, Calloc>(reals::calloc.address()) };
        // SAFETY: as the library calls it.
        unsafe { real(count, bytes) }
    })
}

unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the C library's function, which has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, Realloc>(reals::realloc.address()) };
    // SAFETY: as the library calls it.
    unsafe { memory::realloc_in(Zone::Strict, real, block, bytes) }
}
