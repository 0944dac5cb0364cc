//! Loops whose iterations wait for each other: `ordered` with a number (doacross loops), and memory that the threads of a
//! team share for one loop.
//!
//! Promises: a wait ends when the iteration that it names is done. If one thread does all inner iterations of an
//! iteration of the outermost loop, a later one of these also ends it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use super::team::{self, wait_until};
use super::{Place, this_thread};
use crate::{relaxed, runtime};

/// One of the loops: its first value, the distance between two, and the number of its iterations.
#[derive(Clone, Copy)]
pub(super) struct Dimension {
    pub(super) first: i64,
    pub(super) increment: i64,
    pub(super) count: u64,
}

/// How threads know which iterations are done.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Marks {
    /// For each iteration of the outermost loop, a word has the number of the inner iteration that was done last, plus
    /// one. One thread does them all in order.
    Last,
    /// Each iteration has a bit. Several threads may do inner iterations of one iteration of the outermost loop.
    Each,
}

/// The loops that a thread is in, the outermost first. It lies in the region, one for each thread.
pub(super) struct Doacross {
    dimensions: Vec<Dimension>,
    marks: Marks,
    words: *const AtomicU64,
}

/// Returns `bytes` bytes of zeros that the threads of the team share. All of them call this. The memory is given back
/// at their next call, or at the end of the region.
pub(super) fn shared_memory(bytes: usize) -> *mut c_void {
    let thread = this_thread();
    let before = thread.shared_memory.get();
    let memory = match thread.is_single() {
        true => {
            let memory = runtime::allocate(bytes.max(1), 64, true, false) as *mut c_void;
            team::set_copied(thread, memory);
            team::barrier();
            memory
        }
        false => {
            team::barrier();
            team::copied(thread)
        }
    };
    // All threads have left the previous loop. After this barrier, all have read where the memory of this loop is.
    team::barrier();
    if thread.number.get() == 0 {
        give_back(before);
    }
    thread.shared_memory.set(memory);
    memory
}

/// Begins such a loop for the calling thread. Also returns `bytes` bytes of zeros that the team shares.
pub(super) fn begin(dimensions: Vec<Dimension>, marks: Marks, bytes: usize) -> *mut c_void {
    let words = match marks {
        Marks::Last => dimensions.first().map_or(0, |dimension| dimension.count),
        Marks::Each => dimensions.iter().map(|dimension| dimension.count).product::<u64>().div_ceil(64),
    };
    let bytes_of_words = (words as usize * size_of::<AtomicU64>()).next_multiple_of(64);
    let memory = shared_memory(bytes_of_words + bytes);
    let now = Box::into_raw(Box::new(Doacross { dimensions, marks, words: memory.cast() }));
    let before = this_thread().doacross.replace(now);
    if !before.is_null() {
        // SAFETY: made here for the loop before, which this thread has left.
        drop(unsafe { Box::from_raw(before) });
    }
    memory.wrapping_byte_add(bytes_of_words)
}

/// Gives back the memory that a team shared, when its threads no longer use it.
pub(super) fn give_back(memory: *mut c_void) {
    if !memory.is_null() {
        runtime::free(memory as usize);
    }
}

/// Forgets the loops of the thread, which has left a region in which it was at `place`.
pub(super) fn end(place: Place) {
    if !place.doacross.is_null() {
        // SAFETY: made by `begin`, for this thread.
        drop(unsafe { Box::from_raw(place.doacross) });
    }
}

impl Doacross {
    /// The word for an iteration, and its value when the iteration is done: the number of inner iterations up to it, or
    /// a bit. `None` outside of the loops.
    fn place(&self, values: impl Iterator<Item = i64>) -> Option<(&AtomicU64, u64)> {
        let mut outermost = None;
        let mut inner = 0u64;
        for (dimension, value) in self.dimensions.iter().zip(values) {
            let distance = i128::from(value) - i128::from(dimension.first);
            let iteration = u64::try_from(distance / i128::from(dimension.increment)).ok()?;
            if iteration >= dimension.count || distance % i128::from(dimension.increment) != 0 {
                return None;
            }
            match (outermost, self.marks) {
                (None, Marks::Last) => outermost = Some(iteration),
                _ => inner = inner * dimension.count + iteration,
            }
        }
        let (word, mark) = match self.marks {
            Marks::Last => (outermost?, inner + 1),
            Marks::Each => (inner / 64, 1 << (inner % 64)),
        };
        // SAFETY: there is a word for each iteration of the outermost loop, or a bit for each iteration of all.
        Some((unsafe { &*self.words.add(word as usize) }, mark))
    }
}

/// The number of loops that the calling thread is in.
pub(super) fn depth() -> usize {
    // SAFETY: made by `begin`, for this thread.
    unsafe { this_thread().doacross.get().as_ref() }.map_or(0, |doacross| doacross.dimensions.len())
}

/// Marks an iteration of the calling thread as done, and wakes the threads that wait for it.
pub(super) fn post(values: impl Iterator<Item = i64>) {
    // SAFETY: made by `begin`, for this thread.
    let Some(doacross) = (unsafe { this_thread().doacross.get().as_ref() }) else { return };
    if let Some((word, mark)) = doacross.place(values) {
        relaxed::release();
        match doacross.marks {
            Marks::Last => word.store(mark, Ordering::Release),
            Marks::Each => _ = word.fetch_or(mark, Ordering::Release),
        }
    }
}

/// Waits for an iteration.
pub(super) fn wait(values: impl Iterator<Item = i64>) {
    // SAFETY: made by `begin`, for this thread.
    let Some(doacross) = (unsafe { this_thread().doacross.get().as_ref() }) else { return };
    if let Some((word, mark)) = doacross.place(values) {
        wait_until(|| match doacross.marks {
            Marks::Last => word.load(Ordering::Acquire) >= mark,
            Marks::Each => word.load(Ordering::Acquire) & mark != 0,
        });
        relaxed::acquire();
    }
}
