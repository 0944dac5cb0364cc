//! One span: a range of pages that is one large block, or is cut into small blocks of one size.
//!
//! Promises: no block is handed out twice. A block that is freed twice, or was never handed out, is refused and changes
//! nothing. What a span knows about its blocks is kept here, in private memory, and never in the pages.

use super::size_classes;
use alloc::vec;
use alloc::vec::Vec;

/// The history of a block that is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Past {
    /// It was never handed out before: it is zero.
    pub(super) is_fresh: bool,
    /// Another node had it last.
    pub(super) is_foreign: bool,
}

/// Small blocks of one class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blocks {
    pub(super) class: u8,
    /// The size of a page, if each block has pages of its own.
    page_bytes: Option<u32>,
    count: u32,
    live: u32,
    /// Blocks from here on were never handed out.
    touched: u32,
    /// No word of `used` before this one has a free bit.
    open: u32,
    used: Vec<u64>,
    /// Blocks that another node had last.
    foreign: Vec<u64>,
}

impl Blocks {
    /// As many blocks as fit into `bytes`, which are fresh or were handed out before. With a size of pages, each block
    /// has pages of its own.
    pub(super) fn new(class: u8, bytes: u64, page_bytes: Option<u32>, is_fresh: bool) -> Blocks {
        let count = (bytes / u64::from(distance(class, page_bytes))) as u32;
        let words = count.div_ceil(64) as usize;
        let mut used = vec![0; words];
        // What lies past the last block can never be handed out.
        if !count.is_multiple_of(64) {
            used[words - 1] = u64::MAX << (count % 64);
        }
        let (touched, foreign) = if is_fresh { (0, 0) } else { (count, u64::MAX) };
        Blocks { class, page_bytes, count, live: 0, touched, open: 0, used, foreign: vec![foreign; words] }
    }

    pub(super) fn size(&self) -> u32 {
        size_classes::size_of(self.class)
    }

    /// The number of blocks, handed out or not.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Where a block begins, in bytes from the start of the span. Blocks with pages of their own begin at different
    /// places of these: the caches of processors have little room for lines that begin at the same place of different
    /// pages.
    pub(super) fn place(&self, index: u32) -> u64 {
        let distance = distance(self.class, self.page_bytes);
        let place = index % (distance / self.size()) * self.size();
        u64::from(index) * u64::from(distance) + u64::from(place)
    }

    pub(super) fn live(&self) -> u32 {
        self.live
    }

    pub(super) fn is_full(&self) -> bool {
        self.live == self.count
    }

    /// The lowest free block, by its number.
    pub(super) fn take(&mut self) -> Option<(u32, Past)> {
        let from = self.open as usize;
        let word = from + self.used[from..].iter().position(|&word| word != u64::MAX)?;
        self.open = word as u32;
        let bit = self.used[word].trailing_ones();
        let index = word as u32 * 64 + bit;
        let past = Past { is_fresh: index >= self.touched, is_foreign: self.foreign[word] >> bit & 1 == 1 };
        self.used[word] |= 1 << bit;
        self.foreign[word] &= !(1 << bit);
        self.touched = self.touched.max(index + 1);
        self.live += 1;
        debug_assert!(self.live <= self.count);
        Some((index, past))
    }

    /// The number of the block that begins this many bytes into the span, if it is handed out.
    pub(super) fn find(&self, bytes: u64) -> Option<u32> {
        let distance = u64::from(distance(self.class, self.page_bytes));
        let index = u32::try_from(bytes / distance).ok().filter(|&index| index < self.count)?;
        let is_used = self.used[index as usize / 64] >> (index % 64) & 1 == 1;
        (bytes == self.place(index) && is_used).then_some(index)
    }

    /// Gives a block back that [`Blocks::find`] found.
    pub(super) fn give_back(&mut self, index: u32, by_other: bool) {
        let (word, bit) = (index as usize / 64, index % 64);
        debug_assert!(self.used[word] >> bit & 1 == 1 && self.live > 0);
        self.used[word] &= !(1 << bit);
        self.foreign[word] |= u64::from(by_other) << bit;
        self.open = self.open.min(word as u32);
        self.live -= 1;
    }
}

/// How far the rooms of two blocks are apart, in bytes.
fn distance(class: u8, page_bytes: Option<u32>) -> u32 {
    let size = size_classes::size_of(class);
    page_bytes.map_or(size, |page| size.next_multiple_of(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_handed_out_once_and_remember_who_had_them() {
        let class = size_classes::class_of(48, 16).unwrap();
        let mut blocks = Blocks::new(class, 4096, None, true);
        let taken: Vec<u32> = core::iter::from_fn(|| blocks.take())
            .map(|(index, past)| {
                assert_eq!(past, Past { is_fresh: true, is_foreign: false });
                index
            })
            .collect();
        assert_eq!(taken, (0..85).collect::<Vec<u32>>());
        assert!(blocks.is_full() && blocks.take().is_none());
        assert_eq!(blocks.find(48 * 70), Some(70));
        assert_eq!((blocks.find(48 * 70 + 16), blocks.find(48 * 85), blocks.find(1 << 40)), (None, None, None));
        blocks.give_back(70, true);
        blocks.give_back(3, false);
        assert_eq!((blocks.find(48 * 70), blocks.live()), (None, 83));
        assert_eq!(blocks.take(), Some((3, Past { is_fresh: false, is_foreign: false })));
        assert_eq!(blocks.take(), Some((70, Past { is_fresh: false, is_foreign: true })));
        blocks.give_back(70, false);
        assert_eq!(blocks.take(), Some((70, Past { is_fresh: false, is_foreign: false })));
    }

    #[test]
    fn blocks_of_a_span_that_somebody_had_are_neither_fresh_nor_ours() {
        let mut blocks = Blocks::new(0, 4096, None, false);
        assert_eq!(blocks.take(), Some((0, Past { is_fresh: false, is_foreign: true })));
        blocks.give_back(0, false);
        assert_eq!(blocks.take(), Some((0, Past { is_fresh: false, is_foreign: false })));
    }

    #[test]
    fn separate_blocks_have_pages_of_their_own_and_begin_at_different_places() {
        for (bytes, distance) in [(48, 4096), (4096, 4096), (5120, 8192)] {
            let class = size_classes::class_of(bytes, 16).unwrap();
            let mut blocks = Blocks::new(class, 16 * distance, Some(4096), true);
            let taken: Vec<u32> = core::iter::from_fn(|| blocks.take()).map(|(index, _)| index).collect();
            let places: Vec<u64> = taken.into_iter().map(|index| blocks.place(index)).collect();
            assert_eq!(places.len(), 16);
            for (index, &place) in places.iter().enumerate() {
                assert_eq!((place / distance, (place + bytes - 1) / distance), (index as u64, index as u64));
                assert_eq!(blocks.find(place), Some(index as u32));
                assert_eq!(blocks.find(place + 16), None);
            }
            let within: alloc::collections::BTreeSet<u64> = places.iter().map(|place| place % distance).collect();
            assert_eq!(within.len() as u64, (distance / bytes).min(16));
        }
    }
}
