//! The types that every protocol shares: nodes, pages, page ranges, access rights and sets of nodes.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Index;

/// The number of pages in a chunk. A page range never crosses a multiple of it. Homes and locks are chosen per chunk, so a
/// range needs only one message, one manager and one lock.
pub const CHUNK_PAGES: u32 = 512;

/// A process of the cluster, by its index in the configured list of nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u16);

/// A page of the region. Pages are counted from the start of the region in units of its page size. The number after the
/// last page must fit, too: a region of 4 KiB pages has at most 16 TiB less one page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageIndex(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// What the application view of a page allows at a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Access {
    /// Every access faults.
    #[default]
    None,
    /// Loads succeed, stores fault.
    Read,
    /// Nothing faults.
    Write,
}

/// The access that the application views of many pages allow, at first none. The memory of pages that nobody uses stays
/// untouched: a region may have millions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Accesses(Vec<u8>);

impl Accesses {
    pub(crate) fn none(pages: usize) -> Accesses {
        // Bytes, because only numbers that are zero come from the allocator as they are.
        Accesses(vec![Access::None as u8; pages])
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn set(&mut self, page: usize, access: Access) {
        self.0[page] = access as u8;
    }
}

impl Index<usize> for Accesses {
    type Output = Access;

    fn index(&self, page: usize) -> &Access {
        match self.0[page] {
            0 => &Access::None,
            1 => &Access::Read,
            _ => &Access::Write,
        }
    }
}

/// A range of neighbouring pages inside one chunk; never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageRange {
    first: u32,
    count: u32,
}

impl PageRange {
    /// The range that consists of one page.
    pub fn one(page: PageIndex) -> PageRange {
        PageRange { first: page.0, count: 1 }
    }

    /// `count` pages from `first` on; `None` if the range would be empty or cross the end of a chunk.
    pub fn new(first: PageIndex, count: u32) -> Option<PageRange> {
        let last = first.0.checked_add(count.checked_sub(1)?)?;
        (first.0 / CHUNK_PAGES == last / CHUNK_PAGES).then_some(PageRange { first: first.0, count })
    }

    /// The part of `first..end` that lies in the chunk of `page`; always contains `page`.
    pub fn around(page: PageIndex, first: u32, end: u32) -> PageRange {
        let chunk = page.0 / CHUNK_PAGES * CHUNK_PAGES;
        let first = first.clamp(chunk, page.0);
        let end = end.min(chunk.saturating_add(CHUNK_PAGES)).max(page.0 + 1);
        PageRange { first, count: end - first }
    }

    /// The first page.
    pub fn first(self) -> PageIndex {
        PageIndex(self.first)
    }

    /// One past the last page, as a number.
    pub fn end(self) -> u32 {
        self.first + self.count
    }

    /// Number of pages, at least one.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether `page` is in the range.
    pub fn contains(self, page: PageIndex) -> bool {
        page.0 >= self.first && page.0 < self.end()
    }

    /// Whether every page of `other` is in this range.
    pub fn covers(self, other: PageRange) -> bool {
        other.first >= self.first && other.end() <= self.end()
    }

    /// Whether the two ranges share a page.
    pub fn overlaps(self, other: PageRange) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// The pages in ascending order.
    pub fn pages(self) -> impl Iterator<Item = PageIndex> {
        (self.first..self.end()).map(PageIndex)
    }

    /// The part of the range from page number `first` on; `None` at its end.
    pub fn from(self, first: u32) -> Option<PageRange> {
        debug_assert!(first >= self.first);
        (first < self.end()).then(|| PageRange { first, count: self.end() - first })
    }

    /// The longest range inside `self` that contains `page` and whose other pages all satisfy `fits`. `fits` is not called
    /// for `page` itself.
    pub fn grow(self, page: PageIndex, mut fits: impl FnMut(PageIndex) -> bool) -> PageRange {
        debug_assert!(self.contains(page));
        let (mut first, mut end) = (page.0, page.0 + 1);
        while end < self.end() && fits(PageIndex(end)) {
            end += 1;
        }
        while first > self.first && fits(PageIndex(first - 1)) {
            first -= 1;
        }
        PageRange { first, count: end - first }
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 1 {
            write!(f, "page {}", self.first)
        } else {
            write!(f, "pages {}-{}", self.first, self.end() - 1)
        }
    }
}

/// A set of pages in one *window*: 64 neighbouring pages that start at a multiple of 64. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageSet {
    window: u32,
    mask: u64,
}

impl PageSet {
    /// The number of pages in a window.
    pub const WINDOW_PAGES: u32 = 64;

    /// The set of one page.
    pub fn one(page: PageIndex) -> PageSet {
        PageSet { window: page.0 / PageSet::WINDOW_PAGES, mask: 1 << (page.0 % PageSet::WINDOW_PAGES) }
    }

    /// The set in the window of `page` whose pages have these bits; `None` if no bit is set.
    pub fn new(page: PageIndex, mask: u64) -> Option<PageSet> {
        (mask != 0).then_some(PageSet { window: page.0 / PageSet::WINDOW_PAGES, mask })
    }

    /// The bits of the pages.
    pub fn mask(self) -> u64 {
        self.mask
    }

    /// The first page.
    pub fn first(self) -> PageIndex {
        PageIndex(self.window * PageSet::WINDOW_PAGES + self.mask.trailing_zeros())
    }

    /// The last page.
    pub fn last(self) -> PageIndex {
        PageIndex(self.window * PageSet::WINDOW_PAGES + 63 - self.mask.leading_zeros())
    }

    /// Number of pages, at least one.
    pub fn count(self) -> u32 {
        self.mask.count_ones()
    }

    /// Whether `page` is in the same window.
    pub fn window_holds(self, page: PageIndex) -> bool {
        page.0 / PageSet::WINDOW_PAGES == self.window
    }

    /// Whether `page` is in the set.
    pub fn contains(self, page: PageIndex) -> bool {
        self.window_holds(page) && self.mask & PageSet::one(page).mask != 0
    }

    /// Whether every page of `other` is in this set.
    pub fn covers(self, other: PageSet) -> bool {
        self.window == other.window && other.mask & !self.mask == 0
    }

    /// The bit of `page`, which must be in the window.
    pub fn bit(self, page: PageIndex) -> u64 {
        debug_assert!(self.window_holds(page));
        PageSet::one(page).mask
    }

    /// This set and `page`, which must be in the window.
    #[must_use]
    pub fn with(self, page: PageIndex) -> PageSet {
        PageSet { mask: self.mask | self.bit(page), ..self }
    }

    /// The pages of this set whose bits are in `mask`.
    pub fn masked(self, mask: u64) -> Option<PageSet> {
        (self.mask & mask != 0).then_some(PageSet { mask: self.mask & mask, ..self })
    }

    /// The pages of this set that are not in `other`, which must be of the same window.
    pub fn without(self, other: PageSet) -> Option<PageSet> {
        debug_assert_eq!(self.window, other.window);
        self.masked(!other.mask)
    }

    /// The pages that satisfy `is_one`.
    pub fn filter(self, is_one: impl Fn(PageIndex) -> bool) -> Option<PageSet> {
        let mask = self.pages().filter(|&page| is_one(page)).fold(0, |mask, page| mask | self.bit(page));
        self.masked(mask)
    }

    /// The pages in ascending order.
    pub fn pages(self) -> impl Iterator<Item = PageIndex> {
        let mut rest = self.mask;
        core::iter::from_fn(move || {
            let bit = rest.trailing_zeros();
            (rest != 0).then(|| {
                rest &= rest - 1;
                PageIndex(self.window * PageSet::WINDOW_PAGES + bit)
            })
        })
    }

    /// The maximal ranges of neighbouring pages, in ascending order.
    pub fn runs(self) -> impl Iterator<Item = PageRange> {
        let mut rest = self.mask;
        core::iter::from_fn(move || {
            let first = rest.trailing_zeros();
            (rest != 0).then(|| {
                let count = (!(rest >> first)).trailing_zeros();
                rest = if first + count == 64 { 0 } else { rest >> (first + count) << (first + count) };
                PageRange { first: self.window * PageSet::WINDOW_PAGES + first, count }
            })
        })
    }
}

impl fmt::Display for PageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.runs().enumerate() {
            write!(f, "{}{run}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// One set of nodes per page, for any number of nodes. A set takes `nodes / 64` words, rounded up. All words are zero at
/// the start, so the set of a page that is not shared costs address space but no memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSets {
    words: Vec<u64>,
    words_per_set: usize,
}

impl NodeSets {
    /// `sets` empty sets over `nodes` nodes.
    pub fn new(sets: usize, nodes: u16) -> NodeSets {
        let words_per_set = usize::from(nodes).div_ceil(64).max(1);
        NodeSets { words: vec![0; sets * words_per_set], words_per_set }
    }

    /// Whether `node` is in the set.
    pub fn contains(&self, set: usize, node: NodeId) -> bool {
        let (word, bit) = self.place(set, node);
        self.words[word] & bit != 0
    }

    /// Puts `node` into the set.
    pub fn insert(&mut self, set: usize, node: NodeId) {
        let (word, bit) = self.place(set, node);
        self.words[word] |= bit;
    }

    /// Takes `node` out of the set.
    pub fn remove(&mut self, set: usize, node: NodeId) {
        let (word, bit) = self.place(set, node);
        // The set of a page that is not shared has no memory yet. Reading it allocates none, writing it would.
        if self.words[word] & bit != 0 {
            self.words[word] &= !bit;
        }
    }

    /// Empties the set.
    pub fn clear(&mut self, set: usize) {
        self.words[set * self.words_per_set..][..self.words_per_set].fill(0);
    }

    /// Whether the set contains no nodes other than those in `except`.
    pub fn is_empty_but(&self, set: usize, except: &[NodeId]) -> bool {
        self.members(set).all(|node| except.contains(&node))
    }

    /// The members in ascending order.
    pub fn members(&self, set: usize) -> impl Iterator<Item = NodeId> + '_ {
        let words = &self.words[set * self.words_per_set..][..self.words_per_set];
        words.iter().enumerate().flat_map(|(index, &word)| {
            (0..64u16).filter(move |bit| word >> bit & 1 != 0).map(move |bit| NodeId(index as u16 * 64 + bit))
        })
    }

    fn place(&self, set: usize, node: NodeId) -> (usize, u64) {
        let word = usize::from(node.0) / 64;
        assert!(word < self.words_per_set, "{node} is not a member of this cluster");
        (set * self.words_per_set + word, 1 << (node.0 % 64))
    }
}

/// The runs, of one chunk each and in ascending order, that together are `pages`.
pub fn runs(pages: core::ops::Range<u32>) -> impl Iterator<Item = PageRange> {
    let mut next = pages.start;
    core::iter::from_fn(move || {
        let run = (next < pages.end).then(|| PageRange::around(PageIndex(next), next, pages.end))?;
        next = run.end();
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_stays_inside_its_chunk() {
        assert_eq!(PageRange::new(PageIndex(510), 2).map(PageRange::end), Some(512));
        assert_eq!(PageRange::new(PageIndex(511), 2), None);
        assert_eq!(PageRange::new(PageIndex(3), 0), None);
        assert_eq!(PageRange::new(PageIndex(u32::MAX), 2), None);
        let range = PageRange::around(PageIndex(513), 0, 9999);
        assert_eq!((range.first().0, range.end()), (512, 1024));
    }

    #[test]
    fn a_run_grows_both_ways_from_the_page_that_was_asked_for() {
        let range = PageRange::new(PageIndex(10), 10).unwrap();
        let grown = range.grow(PageIndex(14), |page| page.0 != 11 && page.0 < 18);
        assert_eq!((grown.first().0, grown.end()), (12, 18));
    }

    #[test]
    fn a_set_is_made_of_its_runs() {
        let bits = 0b1011_0001 | 1 << 62 | 1 << 63;
        let set = PageSet::new(PageIndex(70), bits).unwrap();
        let runs: Vec<(u32, u32)> = set.runs().map(|run| (run.first().0, run.count())).collect();
        assert_eq!(runs, [(64, 1), (68, 2), (71, 1), (126, 2)]);
        assert_eq!(set.pages().count() as u32, set.count());
        assert_eq!((set.first().0, set.last().0), (64, 127));
        assert_eq!(PageSet::new(PageIndex(0), u64::MAX).unwrap().runs().count(), 1);
        assert_eq!(set.without(set), None);
        assert_eq!(set.filter(|page| page.0 > 70).unwrap().count(), 3);
    }

    #[test]
    fn sets_hold_a_thousand_nodes() {
        let mut sets = NodeSets::new(3, 1024);
        for node in [0, 63, 64, 1023] {
            sets.insert(1, NodeId(node));
        }
        let members: Vec<u16> = sets.members(1).map(|node| node.0).collect();
        assert_eq!(members, [0, 63, 64, 1023]);
        assert!(sets.is_empty_but(0, &[]) && sets.is_empty_but(2, &[]));
        sets.clear(1);
        assert!(sets.is_empty_but(1, &[]));
    }

    #[test]
    fn runs_stay_inside_their_chunks_and_cover_everything() {
        let pieces = |pages| runs(pages).map(|run| (run.first().0, run.end())).collect::<alloc::vec::Vec<_>>();
        assert_eq!(pieces(500..1030), [(500, 512), (512, 1024), (1024, 1030)]);
        assert_eq!(pieces(3..4), [(3, 4)]);
        assert_eq!(pieces(7..7), []);
    }
}
