//! An object at a memory server, and which of its pages hold something.
//!
//! Promises: a page is said to hold something only after its bytes are there, and not after it was given up. Must never be
//! changed but by who holds what [`super::Pages`] says.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::Pointer;

/// A bit for each page.
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(pages: u64) -> Bits {
        Bits((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn has(&self, page: u64) -> bool {
        self.0[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    /// Whether it was not set.
    fn set(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        self.0[(page / 64) as usize].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Whether it was set.
    fn clear(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        self.0[(page / 64) as usize].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }
}

/// See the module.
pub(super) struct Object {
    pub(super) pointer: Pointer,
    /// Pages that hold something.
    stored: Bits,
    /// Pages that were written at any time: the others are zero.
    written: Bits,
    count: AtomicU64,
}

impl Object {
    pub(super) fn new(pointer: Pointer, pages: u64) -> Object {
        Object { pointer, stored: Bits::new(pages), written: Bits::new(pages), count: AtomicU64::new(0) }
    }

    pub(super) fn is_stored(&self, page: u64) -> bool {
        self.stored.has(page)
    }

    /// Whether a part of the page may be written, because the rest of it is what it should be.
    pub(super) fn takes_part(&self, page: u64) -> bool {
        self.stored.has(page) || !self.written.has(page)
    }

    /// Its bytes are on their way, or there.
    pub(super) fn begin(&self, page: u64) {
        self.written.set(page);
    }

    /// Its bytes are there.
    pub(super) fn keep(&self, page: u64) {
        if self.stored.set(page) {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// It holds nothing any more.
    pub(super) fn give_up(&self, page: u64) {
        if self.stored.clear(page) {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// How many pages hold something.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The pages that hold something, ascending.
    pub(super) fn stored(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.stored.0.len() as u64 * 64).filter(|&page| self.is_stored(page))
    }
}
