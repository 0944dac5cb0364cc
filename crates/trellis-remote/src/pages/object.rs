//! An object at a memory server, and which of its pages are non-empty.
//!
//! Promises: a page counts as non-empty only after its bytes are stored, and not after it was discarded. It must never
//! be changed except by the holder of the lock that [`super::Pages`] names.

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

    /// Sets the bit; returns whether it was not set.
    fn set(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        self.0[(page / 64) as usize].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Clears the bit; returns whether it was set.
    fn clear(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        self.0[(page / 64) as usize].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }
}

/// See the module.
pub(super) struct Object {
    pub(super) pointer: Pointer,
    /// Pages that are not empty.
    stored: Bits,
    /// Pages that were ever written; the others are zero at the server.
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

    /// Whether a part of the page may be written because the rest of it has the right content.
    pub(super) fn takes_part(&self, page: u64) -> bool {
        self.stored.has(page) || !self.written.has(page)
    }

    /// Records that bytes of the page are being written.
    pub(super) fn begin(&self, page: u64) {
        self.written.set(page);
    }

    /// Records that the page's bytes are stored.
    pub(super) fn keep(&self, page: u64) {
        if self.stored.set(page) {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Records that the page is empty.
    pub(super) fn give_up(&self, page: u64) {
        if self.stored.clear(page) {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The number of pages that are not empty.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The pages that are not empty, ascending.
    pub(super) fn stored(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.stored.0.len() as u64 * 64).filter(|&page| self.is_stored(page))
    }
}
