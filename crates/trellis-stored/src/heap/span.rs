//! One span: pages that are one large block, or are divided into small blocks of one size.
//!
//! A bit for each block says whether the program has it. A thread that frees a block clears its bit, which returns the
//! block to its span: nothing is queued. Only the holder of the pool's lock sets bits. Promises: no block is allocated
//! twice, and one of two frees of the same block is refused. It must never store bookkeeping in the pages themselves.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The maximum number of blocks of a span.
pub(super) const BLOCKS_MAX: u32 = 1024;
const WORDS: usize = BLOCKS_MAX as usize / 64;

/// The list of its pool in which a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Unused: its number waits for other pages.
    Idle = 0,
    /// Its pool may allocate blocks from it.
    Open = 1,
    /// Its pool found no free block in it. A thread that frees one there notifies the pool.
    Full = 2,
    /// One large block.
    Whole = 3,
}

/// A span, or room for one. Its fields change only while no block of it is allocated.
#[derive(Debug, Default)]
pub(super) struct Span {
    first_page: AtomicU32,
    pages: AtomicU32,
    /// The size of a block in bytes; 0 for a large block.
    block_bytes: AtomicU32,
    blocks: AtomicU32,
    class: AtomicU8,
    /// The part of the heap that allocates from it.
    home: AtomicU32,
    state: AtomicU8,
    /// Whether the blocks that the program has were described to others, or are being described, and have not changed
    /// since.
    is_described: AtomicBool,
    /// Its position among the open spans of its pool. It is used only with the pool's lock, like the next two fields.
    position: AtomicU32,
    /// Where the last free block was found.
    hint: AtomicU32,
    /// Blocks from here on were never allocated, and are zero.
    zero_from: AtomicU32,
    live: [AtomicU64; WORDS],
}

/// The parameters of a new span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) first_page: u32,
    pub(super) pages: u32,
    pub(super) class: u8,
    pub(super) block_bytes: u32,
    pub(super) blocks: u32,
    pub(super) home: u32,
    pub(super) is_zero: bool,
}

impl Span {
    /// Turns idle room into a span of small blocks.
    pub(super) fn begin(&self, plan: Plan) {
        debug_assert!(self.state() == State::Idle && plan.blocks > 0 && plan.blocks <= BLOCKS_MAX);
        self.first_page.store(plan.first_page, Ordering::Relaxed);
        self.pages.store(plan.pages, Ordering::Relaxed);
        self.block_bytes.store(plan.block_bytes, Ordering::Relaxed);
        self.blocks.store(plan.blocks, Ordering::Relaxed);
        self.class.store(plan.class, Ordering::Relaxed);
        self.home.store(plan.home, Ordering::Relaxed);
        self.hint.store(0, Ordering::Relaxed);
        self.zero_from.store(if plan.is_zero { 0 } else { plan.blocks }, Ordering::Relaxed);
        for word in 0..plan.blocks.div_ceil(64) {
            self.live[word as usize].store(self.beyond(word), Ordering::Relaxed);
        }
        self.is_described.store(false, Ordering::Relaxed);
        self.set_state(State::Open);
    }

    /// Sets which blocks of a new span the program has; all, if that is not known.
    pub(super) fn set_live(&self, live: &[u64]) {
        self.zero_from.store(self.blocks.load(Ordering::Relaxed), Ordering::Relaxed);
        for word in 0..self.words() {
            let bits = live.get(word as usize).copied().unwrap_or(if live.is_empty() { u64::MAX } else { 0 });
            self.live[word as usize].store(bits | self.beyond(word), Ordering::Relaxed);
        }
    }

    /// The bits of the blocks that the program has.
    pub(super) fn live(&self) -> Vec<u64> {
        let words = 0..self.words();
        words.map(|word| self.live[word as usize].load(Ordering::SeqCst) & !self.beyond(word)).collect()
    }

    /// Records that the blocks are being described to others, so that later changes are new; called before the bits are
    /// read.
    pub(super) fn note_description(&self) {
        self.is_described.store(true, Ordering::SeqCst);
    }

    /// Whether the block that was just taken or put is the first since the last description. It is `SeqCst`, like the
    /// bit and [`Span::note_description`]: either the describing thread sees the bit, or the changing thread sees that
    /// a description was made.
    pub(super) fn is_news(&self) -> bool {
        self.is_described.load(Ordering::SeqCst) && self.is_described.swap(false, Ordering::SeqCst)
    }

    /// Turns idle room into one large block.
    pub(super) fn begin_whole(&self, first_page: u32, pages: u32) {
        debug_assert_eq!(self.state(), State::Idle);
        self.first_page.store(first_page, Ordering::Relaxed);
        self.pages.store(pages, Ordering::Relaxed);
        self.block_bytes.store(0, Ordering::Relaxed);
        self.blocks.store(1, Ordering::Relaxed);
        self.live[0].store(self.beyond(0) | 1, Ordering::Relaxed);
        self.is_described.store(false, Ordering::Relaxed);
        self.set_state(State::Whole);
    }

    pub(super) fn first_page(&self) -> u32 {
        self.first_page.load(Ordering::Relaxed)
    }

    pub(super) fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Sets the length of a large block that was resized.
    pub(super) fn set_pages(&self, pages: u32) {
        self.pages.store(pages, Ordering::Relaxed);
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.block_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn class(&self) -> u8 {
        self.class.load(Ordering::Relaxed)
    }

    pub(super) fn home(&self) -> u32 {
        self.home.load(Ordering::Relaxed)
    }

    pub(super) fn position(&self) -> u32 {
        self.position.load(Ordering::Relaxed)
    }

    pub(super) fn set_position(&self, position: u32) {
        self.position.store(position, Ordering::Relaxed);
    }

    /// The span's state. The load is `SeqCst`, like that of the value with which it is compared: a pool that closes a
    /// span and a thread that frees a block in it must not miss each other.
    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::SeqCst) {
            1 => State::Open,
            2 => State::Full,
            3 => State::Whole,
            _ => State::Idle,
        }
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// Takes a free block. Returns its index and whether it is zero. The caller holds the pool's lock.
    pub(super) fn take(&self) -> Option<(u32, bool)> {
        let (words, hint) = (self.words(), self.hint.load(Ordering::Relaxed));
        for step in 0..words {
            let word = (hint + step) % words;
            let bits = self.live[word as usize].load(Ordering::Relaxed);
            if bits == u64::MAX {
                continue;
            }
            let bit = bits.trailing_ones();
            // The thread that freed the block no longer uses its bytes.
            self.live[word as usize].fetch_or(1 << bit, Ordering::SeqCst);
            self.hint.store(word, Ordering::Relaxed);
            let index = word * 64 + bit;
            let zero_from = self.zero_from.load(Ordering::Relaxed);
            self.zero_from.store(zero_from.max(index + 1), Ordering::Relaxed);
            return Some((index, index >= zero_from));
        }
        None
    }

    /// Whether [`Span::take`] would find a block.
    pub(super) fn has_room(&self) -> bool {
        self.live[..self.words() as usize].iter().any(|word| word.load(Ordering::SeqCst) != u64::MAX)
    }

    /// The index of the block at this offset in the span; `None` if none can begin there.
    pub(super) fn index_of(&self, bytes: u32) -> Option<u32> {
        let size = self.block_bytes();
        if size == 0 {
            return (bytes == 0).then_some(0);
        }
        let index = bytes / size;
        (index * size == bytes && index < self.blocks.load(Ordering::Relaxed)).then_some(index)
    }

    pub(super) fn is_live(&self, index: u32) -> bool {
        self.live[index as usize / 64].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }

    /// Frees a block. `None` if it was not allocated, otherwise whether its span may be empty now.
    pub(super) fn put(&self, index: u32) -> Option<bool> {
        let (word, bit) = (index / 64, 1u64 << (index % 64));
        let before = self.live[word as usize].fetch_and(!bit, Ordering::SeqCst);
        (before & bit != 0).then(|| before & !bit == self.beyond(word))
    }

    /// The number of blocks that the program has.
    pub(super) fn live_blocks(&self) -> u32 {
        (0..self.words())
            .map(|word| (self.live[word as usize].load(Ordering::SeqCst) & !self.beyond(word)).count_ones())
            .sum()
    }

    fn words(&self) -> u32 {
        self.blocks.load(Ordering::Relaxed).div_ceil(64)
    }

    /// The bits of a word that stand for no block; they are always set, so that none is taken for a free block.
    fn beyond(&self, word: u32) -> u64 {
        let blocks = self.blocks.load(Ordering::Relaxed) - word * 64;
        if blocks >= 64 { 0 } else { u64::MAX << blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(blocks: u32, is_zero: bool) -> Span {
        let span = Span::default();
        span.begin(Plan { first_page: 7, pages: 1, class: 2, block_bytes: 48, blocks, home: 0, is_zero });
        span
    }

    #[test]
    fn blocks_are_handed_out_once_and_come_back_once() {
        let span = span(85, true);
        let taken: Vec<_> = std::iter::from_fn(|| span.take()).collect();
        assert_eq!(taken, (0..85).map(|index| (index, true)).collect::<Vec<_>>());
        assert!(!span.has_room() && span.live_blocks() == 85);
        assert_eq!(span.index_of(48 * 70), Some(70));
        assert_eq!((span.index_of(48 * 70 + 16), span.index_of(48 * 85)), (None, None));
        assert_eq!((span.put(70), span.put(70), span.put(3)), (Some(false), None, Some(false)));
        assert_eq!((span.is_live(3), span.is_live(4)), (false, true));
        let again: Vec<_> = std::iter::from_fn(|| span.take()).collect();
        assert_eq!(again, [(70, false), (3, false)], "the search goes on where it was");
        let emptied: Vec<_> = (0..85).map(|index| span.put(index).unwrap()).collect();
        assert_eq!(emptied.iter().filter(|&&may_be_empty| may_be_empty).count(), 2, "once for each word");
        assert_eq!(span.live_blocks(), 0);
    }

    #[test]
    fn a_large_block_is_one() {
        let span = Span::default();
        span.begin_whole(9, 1000);
        assert_eq!((span.index_of(0), span.index_of(16), span.live_blocks()), (Some(0), None, 1));
        assert_eq!((span.put(0), span.put(0)), (Some(true), None));
    }
}
