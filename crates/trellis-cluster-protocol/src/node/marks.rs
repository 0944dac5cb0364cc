//! The pages of one shard whose stores are noticed by marks of the kernel, and so must be examined before a publication.
//!
//! A node that publishes calls [`Marks::look_for_stores`] for each shard, has the kernel look at the pages of
//! [`Marks::chunks`], and passes what the kernel marked through [`Marks::marked`]. After that the protocol knows every
//! store that was made before the publication began.
//!
//! Promises: a chunk with a page that [`Coherence::is_watched`] is among those that the kernel looks at. A page that
//! stays open to stores is compared instead ([`OpenPages`]). It must never read memory: its callers compare and protect.

use super::open_pages::{Found, OpenPages};
use crate::coherence::{Coherence, Geometry};
use crate::page::{CHUNK_PAGES, PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Marks {
    open: OpenPages,
    /// One bit for each chunk of the shard: whether it may have watched pages; and the number of these bits.
    watched: Vec<u64>,
    watched_chunks: u32,
    /// A page was taken away, opened or stored to since the last publication began, so some chunk may have no watched page
    /// any more.
    is_doubtful: bool,
    /// The number of the next publication, modulo 256.
    publication: u8,
}

/// The protocol's knowledge of `page`.
fn found(protocol: &impl Coherence, page: PageIndex) -> Found {
    Found { is_watched: protocol.is_watched(page), has_twin: protocol.has_twin(page) }
}

impl Marks {
    /// No page is watched. For `stored_in_a_row` see [`super::STORED_IN_A_ROW`].
    pub(super) fn new(geometry: &Geometry, stored_in_a_row: u8) -> Marks {
        let chunks = geometry.slots().div_ceil(CHUNK_PAGES as usize);
        Marks {
            open: OpenPages::new(stored_in_a_row),
            watched: vec![0; chunks.div_ceil(64)],
            watched_chunks: 0,
            is_doubtful: false,
            publication: 0,
        }
    }

    /// The pages of `range` are installed.
    pub(super) fn installed(&mut self, geometry: &Geometry, protocol: &impl Coherence, range: PageRange) {
        match protocol.is_watched(range.first()) {
            true => self.watch(geometry, range),
            false => self.is_doubtful = true,
        }
    }

    /// The pages of `range` are taken away.
    pub(super) fn revoked(&mut self, geometry: &Geometry, range: PageRange) {
        self.open.forget(geometry, range);
        self.is_doubtful = true;
    }

    /// Stores to the pages of `range` must be noticed from now on. Calls `protect` with those that must be protected for
    /// that; the others stay open.
    pub(super) fn downgraded<E>(
        &mut self,
        geometry: &Geometry,
        protocol: &impl Coherence,
        range: PageRange,
        protect: impl FnMut(PageRange) -> Result<(), E>,
    ) -> Result<(), E> {
        if protocol.is_watched(range.first()) {
            self.watch(geometry, range);
        }
        self.open.published(geometry, range, self.publication, |page| found(protocol, page), protect)
    }

    /// Whether some page may be watched. If not, nothing has to be looked for.
    pub(super) fn is_watching(&self) -> bool {
        self.watched_chunks > 0
    }

    /// A publication begins: appends to `stored` the pages that stay open and were stored to. `differs` says whether a
    /// page differs from its twin now.
    pub(super) fn look_for_stores<E>(
        &mut self,
        geometry: &Geometry,
        protocol: &impl Coherence,
        differs: impl FnMut(PageIndex) -> bool,
        protect: impl FnMut(PageIndex) -> Result<(), E>,
        stored: &mut Vec<PageIndex>,
    ) -> Result<(), E> {
        self.publication = self.publication.wrapping_add(1);
        if core::mem::take(&mut self.is_doubtful) {
            self.forget_unwatched(geometry, protocol);
        }
        let examined = self.open.examine(geometry, |page| found(protocol, page), differs, protect, stored);
        self.is_doubtful |= !stored.is_empty();
        examined
    }

    /// The chunks at which the kernel must look, ascending.
    pub(super) fn chunks(&self, geometry: &Geometry) -> impl Iterator<Item = PageRange> {
        set_bits(&self.watched).map(|chunk| pages_of(geometry, chunk))
    }

    /// The kernel marked the pages of `range`: the first of them in a row about which the marks say something. Marks of
    /// pages that stay open say nothing.
    pub(super) fn marked(&mut self, geometry: &Geometry, range: PageRange) -> Option<PageRange> {
        let is_open = |page: u32| self.open.is_open(geometry, PageIndex(page));
        let first = range.pages().find(|page| !is_open(page.0))?;
        let end = (first.0..range.end()).find(|&page| is_open(page)).unwrap_or(range.end());
        self.is_doubtful = true;
        Some(PageRange::around(first, first.0, end))
    }

    fn watch(&mut self, geometry: &Geometry, range: PageRange) {
        let chunk = geometry.slot(range.first()) / CHUNK_PAGES as usize;
        let (word, bit) = (&mut self.watched[chunk / 64], 1 << (chunk % 64));
        self.watched_chunks += u32::from(*word & bit == 0);
        *word |= bit;
    }

    fn forget_unwatched(&mut self, geometry: &Geometry, protocol: &impl Coherence) {
        for place in 0..self.watched.len() {
            for chunk in set_bits(&[self.watched[place]]).map(|bit| place as u32 * 64 + bit) {
                if !pages_of(geometry, chunk).pages().any(|page| protocol.is_watched(page)) {
                    self.watched[place] &= !(1 << (chunk % 64));
                    self.watched_chunks -= 1;
                }
            }
        }
    }
}

/// The numbers of the bits that are set, ascending.
fn set_bits(words: &[u64]) -> impl Iterator<Item = u32> {
    words.iter().enumerate().flat_map(|(place, &word)| {
        let mut rest = word;
        core::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(place as u32 * 64 + bit)
        })
    })
}

/// The pages of one of the shard's chunks.
fn pages_of(geometry: &Geometry, chunk: u32) -> PageRange {
    let first = geometry.page_at((chunk * CHUNK_PAGES) as usize);
    PageRange::around(first, first.0, geometry.pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanoseconds;
    use crate::coherence::{Effect, Input};
    use crate::homes::{Home, Interleaved};
    use crate::node::STORED_IN_A_ROW;
    use crate::page::{Access, NodeId};

    /// A protocol that watches some pages, all with twins.
    struct Watches(Vec<u32>);

    impl Coherence for Watches {
        fn step(&mut self, _now: Nanoseconds, _input: Input, _effects: &mut Vec<Effect>) {}

        fn access(&self, _page: PageIndex) -> Access {
            Access::Write
        }

        fn is_pending(&self, _page: PageIndex) -> bool {
            false
        }

        fn owns(&self, _page: PageIndex) -> bool {
            false
        }

        fn leaves_behind(&self, _page: PageIndex) -> bool {
            false
        }

        fn is_untouched(&self, _page: PageIndex) -> bool {
            false
        }

        fn release(&mut self, _page: PageIndex) {}

        fn adopt(&mut self, _page: PageIndex) {}

        fn is_watched(&self, page: PageIndex) -> bool {
            self.0.contains(&page.0)
        }

        fn has_twin(&self, _page: PageIndex) -> bool {
            true
        }
    }

    const SHARDS: u32 = 2;

    /// The second of two shards of a region of 200 chunks and a part, so that the bits of its chunks need two words.
    fn geometry() -> Geometry {
        let (pages, home) = (200 * CHUNK_PAGES + 10, Home::Interleaved(Interleaved));
        Geometry { me: NodeId(0), nodes: 2, founders: 2, pages, shard: 1, shards: SHARDS, home, marks: true }
    }

    fn one(page: u32) -> PageRange {
        PageRange::one(PageIndex(page))
    }

    fn chunks(marks: &Marks) -> Vec<u32> {
        marks.chunks(&geometry()).map(|range| range.first().0 / CHUNK_PAGES).collect()
    }

    /// A publication in which no page differs from its twin.
    fn look(marks: &mut Marks, protocol: &Watches) {
        let mut stored = Vec::new();
        let looked = marks.look_for_stores(&geometry(), protocol, |_| false, |_| Ok::<(), ()>(()), &mut stored);
        assert_eq!((looked, stored), (Ok(()), vec![]));
    }

    #[test]
    fn the_kernel_looks_at_chunks_with_watched_pages_until_these_are_watched_no_longer() {
        let mut marks = Marks::new(&geometry(), STORED_IN_A_ROW);
        let (first, last) = (CHUNK_PAGES + 3, 197 * CHUNK_PAGES);
        let mut protocol = Watches(vec![first, last]);
        assert!(!marks.is_watching());
        for page in [last, first, 9 * CHUNK_PAGES] {
            marks.installed(&geometry(), &protocol, one(page));
        }
        assert!(marks.is_watching());
        assert_eq!(chunks(&marks), [1, 197], "a page that is not watched does not count");
        protocol.0 = vec![last];
        look(&mut marks, &protocol);
        assert_eq!(chunks(&marks), [197], "its home leaves the page open, or it was taken away");
        protocol.0.clear();
        marks.revoked(&geometry(), one(last));
        look(&mut marks, &protocol);
        assert!(!marks.is_watching());
    }

    #[test]
    fn the_last_chunk_ends_with_the_region() {
        let geometry = Geometry { shard: 0, ..geometry() };
        let mut marks = Marks::new(&geometry, STORED_IN_A_ROW);
        let page = 200 * CHUNK_PAGES + 9;
        marks.installed(&geometry, &Watches(vec![page]), one(page));
        let found: Vec<PageRange> = marks.chunks(&geometry).collect();
        assert_eq!(found, [PageRange::around(PageIndex(page), 0, page + 1)]);
    }

    #[test]
    fn marks_of_open_pages_are_passed_over() {
        let mut marks = Marks::new(&geometry(), 1);
        let open = CHUNK_PAGES + 5;
        let protocol = Watches((CHUNK_PAGES..2 * CHUNK_PAGES).collect());
        let protect = |range| panic!("{range} is protected");
        marks.downgraded(&geometry(), &protocol, one(open), protect).unwrap_or_else(|(): ()| unreachable!());
        let pages = |first, count| PageRange::new(PageIndex(first), count);
        let range = PageRange::new(PageIndex(open - 2), 4).unwrap();
        assert_eq!(marks.marked(&geometry(), range), pages(open - 2, 2));
        assert_eq!(marks.marked(&geometry(), range.from(open).unwrap()), pages(open + 1, 1));
        assert_eq!(marks.marked(&geometry(), one(open)), None);
    }
}
