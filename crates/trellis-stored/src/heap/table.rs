//! Tables that grow while other threads read them.
//!
//! Promises: an entry stays at its address for the lifetime of the table; reading takes no lock and allocates nothing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The logarithm of the size of the first piece; each further piece is twice as large as the previous one.
const FIRST_SHIFT: u32 = 8;
const PIECES: usize = 24;

/// Entries with dense numbers.
pub(super) struct Dense<T> {
    pieces: [OnceLock<Box<[T]>>; PIECES],
}

impl<T: Default> Dense<T> {
    pub(super) fn new() -> Dense<T> {
        Dense { pieces: [const { OnceLock::new() }; PIECES] }
    }

    /// The entry with this number; `None` if no entry of its piece was created yet.
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let (piece, index) = place(number);
        self.pieces[piece].get()?.get(index)
    }

    /// The entry with this number, created if need be.
    pub(super) fn make(&self, number: u32) -> &T {
        let (piece, index) = place(number);
        &self.pieces[piece]
            .get_or_init(|| (0..1usize << (FIRST_SHIFT as usize + piece)).map(|_| T::default()).collect())[index]
    }
}

/// The piece of an entry, and its index in the piece.
fn place(number: u32) -> (usize, usize) {
    let above = (number >> FIRST_SHIFT) + 1;
    let piece = above.ilog2();
    let first = ((1u32 << piece) - 1) << FIRST_SHIFT;
    (piece as usize, (number - first) as usize)
}

const LEAF_SHIFT: u32 = 12;
const BRANCH_SHIFT: u32 = 9;
const BRANCHES: usize = 1 << (32 - LEAF_SHIFT - BRANCH_SHIFT);

type Leaf = Box<[AtomicU32]>;
type Branch = Box<[OnceLock<Leaf>]>;

/// A number for each page, initially 0. It is made for few groups of adjacent pages that have one, far from each other.
pub(super) struct PageMap {
    branches: Box<[OnceLock<Branch>]>,
}

impl PageMap {
    pub(super) fn new() -> PageMap {
        PageMap { branches: (0..BRANCHES).map(|_| OnceLock::new()).collect() }
    }

    pub(super) fn get(&self, page: u32) -> u32 {
        let branch = self.branches[(page >> (LEAF_SHIFT + BRANCH_SHIFT)) as usize].get();
        let leaf = branch.and_then(|branch| branch[branch_index(page)].get());
        leaf.map_or(0, |leaf| leaf[leaf_index(page)].load(Ordering::Acquire))
    }

    pub(super) fn set(&self, page: u32, number: u32) {
        let branch = self.branches[(page >> (LEAF_SHIFT + BRANCH_SHIFT)) as usize]
            .get_or_init(|| (0..1 << BRANCH_SHIFT).map(|_| OnceLock::new()).collect());
        let leaf = branch[branch_index(page)].get_or_init(|| (0..1 << LEAF_SHIFT).map(|_| AtomicU32::new(0)).collect());
        leaf[leaf_index(page)].store(number, Ordering::Release);
    }
}

fn branch_index(page: u32) -> usize {
    (page >> LEAF_SHIFT) as usize & ((1 << BRANCH_SHIFT) - 1)
}

fn leaf_index(page: u32) -> usize {
    page as usize & ((1 << LEAF_SHIFT) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for number in 0..100_000 {
            let at = place(number);
            assert!(at == next || at == (next.0 + 1, 0), "{number} is at {at:?}");
            next = (at.0, at.1 + 1);
        }
        let dense: Dense<AtomicU32> = Dense::new();
        assert!(dense.get(1000).is_none());
        dense.make(1000).store(7, Ordering::Relaxed);
        assert_eq!(dense.get(1000).map(|entry| entry.load(Ordering::Relaxed)), Some(7));
        assert!(dense.get(1 << 20).is_none());
    }

    #[test]
    fn pages_far_apart_have_numbers() {
        let map = PageMap::new();
        let pages = [0, 1, 4095, 4096, 1 << 21, (1 << 28) - 1, u32::MAX];
        pages.iter().enumerate().for_each(|(number, &page)| map.set(page, number as u32 + 1));
        pages.iter().enumerate().for_each(|(number, &page)| assert_eq!(map.get(page), number as u32 + 1));
        assert_eq!((map.get(2), map.get(1 << 25)), (0, 0));
    }
}
