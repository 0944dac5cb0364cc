//! The memory that one node hands out: its spans, sorted into pools.
//!
//! A pool is given by a size class, a zone and the home of the pages. A span belongs to one pool of one node, so blocks of two
//! nodes never share a page. The first blocks of a pool may have pages of their own: a program that was not written for
//! several nodes allocates at one what it then uses at another, and what different nodes write must not share a page.
//! When there are more than [`SEPARATE_MAX`], the rest shares pages, because memory and messages would be wasted.
//! Threads that ask for spans at the same time may exceed that number.
//!
//! Promises: finding a block and giving it back takes logarithmic time and sends nothing. A pool must never keep more
//! than one empty span of its own accord.

use super::span::{Blocks, Past};
use super::{Block, Geometry, Request, Run, Separation, Statistics, Zone, size_classes};
use crate::page::NodeId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// A pool with several spans requests larger ones, up to this size, or up to the smallest span if that is larger.
const SPAN_BYTES_MAX: u32 = 256 << 10;
/// The factor, as a power of two, by which such a span may exceed the smallest.
const GROWTH_SHIFT_MAX: u32 = 4;
/// The number of blocks in a pool's first span.
const BLOCKS_MIN: u64 = 4;
/// The number of blocks of a size and home that have pages of their own where [`Separation::WhileFew`] says so.
const SEPARATE_MAX: u32 = 256;
/// One such block for this many pages of the heap, if those are fewer.
const PAGES_FOR_SEPARATE: u32 = 1024;
/// The number of such blocks in a pool's first span.
const SEPARATE_MIN: u32 = 16;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Arena {
    geometry: Geometry,
    /// By first page.
    spans: BTreeMap<u32, Span>,
    pools: BTreeMap<Key, Pool>,
    /// Empty spans that go back to the directory and must not be used any more.
    surplus: BTreeMap<u32, u32>,
    pub(super) statistics: Statistics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Span {
    pages: u32,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// One block.
    Whole,
    /// Blocks of one pool.
    Cut(Key, Blocks),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    home: NodeId,
    zone: Zone,
    class: u8,
    /// Its blocks have pages of their own.
    is_separate: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pool {
    /// First pages of spans with a free block.
    open: BTreeSet<u32>,
    spans: u32,
    /// The number of blocks of all spans.
    blocks: u32,
}

/// The result of freeing a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    /// It waits to be handed out again.
    Kept,
    /// Another node freed a block that was a whole span, which has to go back.
    Whole(Run),
    /// Its span, which begins at this page, is surplus.
    Emptied(u32),
}

impl Arena {
    pub(super) fn new(geometry: Geometry) -> Arena {
        Arena {
            geometry,
            spans: BTreeMap::new(),
            pools: BTreeMap::new(),
            surplus: BTreeMap::new(),
            statistics: Statistics::default(),
        }
    }

    /// The request with a decision: [`Separation::WhileFew`] remains where the block gets pages of its own.
    pub(super) fn settled(&self, request: Request) -> Request {
        let max = self.separate_max();
        let has_room =
            |key| self.pools.get(&key).map_or(max > 0, |pool: &Pool| !pool.open.is_empty() || pool.blocks < max);
        match request.separation {
            Separation::WhileFew if !self.key_of(&request).is_some_and(has_room) => {
                Request { separation: Separation::Never, ..request }
            }
            _ => request,
        }
    }

    /// Takes a block from the spans that are here; `None` if another span is needed.
    pub(super) fn take(&mut self, request: &Request) -> Option<Block> {
        let key = self.key_of(request)?;
        let first = *self.pools.get(&key)?.open.last()?;
        Some(self.take_from(first))
    }

    /// The number of pages that a span for this request needs at least, and the number that is wanted.
    pub(super) fn pages_for(&self, request: &Request) -> (u32, u32) {
        let page_bytes = u64::from(self.geometry.page_bytes);
        let Some(key) = self.key_of(request) else {
            let pages = request.bytes.div_ceil(page_bytes).clamp(1, u64::from(u32::MAX)) as u32;
            return (pages, pages);
        };
        let bytes = u64::from(size_classes::size_of(key.class));
        let (spans, blocks) = self.pools.get(&key).map_or((0, 0), |pool| (pool.spans, pool.blocks));
        if key.is_separate {
            let of_block = bytes.div_ceil(page_bytes) as u32;
            let wanted = SEPARATE_MIN << spans.min(GROWTH_SHIFT_MAX);
            return (of_block, of_block * wanted.min(self.separate_max().saturating_sub(blocks)).max(1));
        }
        let least = (BLOCKS_MIN * bytes).div_ceil(page_bytes) as u32;
        (least, (least << spans.min(GROWTH_SHIFT_MAX)).min(SPAN_BYTES_MAX / self.geometry.page_bytes).max(least))
    }

    /// Adds a span that was requested for `request`, and hands out its first block.
    pub(super) fn adopt(&mut self, run: Run, is_fresh: bool, request: &Request) -> Block {
        self.statistics.spans += 1;
        self.statistics.span_bytes += self.geometry.bytes_of(run);
        let key = self.key_of(request);
        let bytes = self.geometry.bytes_of(run);
        let Some(key) = key else {
            self.spans.insert(run.first, Span { pages: run.pages, kind: Kind::Whole });
            self.statistics.took(bytes);
            return Block { offset: self.geometry.offset_of(run.first), bytes, is_fresh, is_foreign: !is_fresh };
        };
        let page_bytes = key.is_separate.then_some(self.geometry.page_bytes);
        let blocks = Blocks::new(key.class, bytes, page_bytes, is_fresh);
        let pool = self.pools.entry(key).or_default();
        pool.spans += 1;
        pool.blocks += blocks.count();
        self.spans.insert(run.first, Span { pages: run.pages, kind: Kind::Cut(key, blocks) });
        pool.open.insert(run.first);
        self.take_from(run.first)
    }

    /// Whether this node may hand out blocks of the page that contains this byte.
    pub(super) fn owns(&self, offset: u64) -> bool {
        self.span_at(offset).is_some()
    }

    /// The size in bytes of the block that begins at `offset`, if it is handed out.
    pub(super) fn measure(&self, offset: u64) -> Option<u64> {
        let (first, span) = self.span_at(offset)?;
        let within = offset - self.geometry.offset_of(first);
        match &span.kind {
            Kind::Whole => (within == 0).then(|| u64::from(span.pages) * u64::from(self.geometry.page_bytes)),
            Kind::Cut(_, blocks) => blocks.find(within).map(|_| u64::from(blocks.size())),
        }
    }

    /// Takes back the block that begins at `offset`; `None` if there is none.
    pub(super) fn free(&mut self, offset: u64, by_other: bool) -> Option<Freed> {
        let bytes = self.measure(offset)?;
        self.statistics.gave_back(bytes, by_other);
        let (first, span) = self.span_at(offset)?;
        let Kind::Cut(..) = &span.kind else {
            let run = self.remove(first);
            return Some(if by_other { Freed::Whole(run) } else { self.spare(run) });
        };
        let within = offset - self.geometry.offset_of(first);
        let span = self.spans.get_mut(&first).expect("it was found above");
        let Kind::Cut(key, blocks) = &mut span.kind else { unreachable!("it is cut into blocks") };
        let index = blocks.find(within).expect("it was measured above");
        blocks.give_back(index, by_other);
        let is_empty = blocks.live() == 0;
        let pool = self.pools.get_mut(key).expect("each span is in its pool");
        pool.open.insert(first);
        if !is_empty || pool.open.len() == 1 {
            return Some(Freed::Kept);
        }
        let run = self.remove(first);
        Some(self.spare(run))
    }

    /// Makes every empty span surplus and returns their first pages.
    pub(super) fn trim(&mut self) -> Vec<u32> {
        let is_empty = |span: &Span| matches!(&span.kind, Kind::Cut(_, blocks) if blocks.live() == 0);
        let empty: Vec<u32> = self.spans.iter().filter(|(_, span)| is_empty(span)).map(|(&first, _)| first).collect();
        for &first in &empty {
            let run = self.remove(first);
            self.spare(run);
        }
        empty
    }

    /// Removes a surplus span, which now goes to the directory.
    pub(super) fn let_go(&mut self, first: u32) -> Option<Run> {
        self.surplus.remove(&first).map(|pages| Run { first, pages })
    }

    fn spare(&mut self, run: Run) -> Freed {
        self.surplus.insert(run.first, run.pages);
        Freed::Emptied(run.first)
    }

    /// The number of blocks of a pool that have pages of their own while there are few.
    fn separate_max(&self) -> u32 {
        SEPARATE_MAX.min((self.geometry.end_page - self.geometry.first_page) / PAGES_FOR_SEPARATE)
    }

    fn key_of(&self, request: &Request) -> Option<Key> {
        let is_cut = request.separation != Separation::Always && request.align <= u64::from(self.geometry.page_bytes);
        let class = is_cut.then(|| size_classes::class_of(request.bytes, request.align)).flatten()?;
        let is_separate = request.separation == Separation::WhileFew;
        Some(Key { home: request.home, zone: request.zone, class, is_separate })
    }

    fn take_from(&mut self, first: u32) -> Block {
        let span = self.spans.get_mut(&first).expect("an open span is here");
        let Kind::Cut(key, blocks) = &mut span.kind else { unreachable!("a pool's spans are cut into blocks") };
        let (index, Past { is_fresh, is_foreign }) = blocks.take().expect("an open span has a free block");
        let bytes = u64::from(blocks.size());
        if blocks.is_full() {
            self.pools.get_mut(key).expect("each span is in its pool").open.remove(&first);
        }
        self.statistics.took(bytes);
        let offset = self.geometry.offset_of(first) + blocks.place(index);
        Block { offset, bytes, is_fresh, is_foreign }
    }

    fn span_at(&self, offset: u64) -> Option<(u32, &Span)> {
        let page = self.geometry.page_of(offset);
        let (&first, span) = self.spans.range(..=page).next_back()?;
        (page - first < span.pages).then_some((first, span))
    }

    /// Forgets a span that has no live block, or whose only block is freed.
    fn remove(&mut self, first: u32) -> Run {
        let span = self.spans.remove(&first).expect("a span that is here");
        let run = Run { first, pages: span.pages };
        if let Kind::Cut(key, blocks) = &span.kind {
            debug_assert_eq!(blocks.live(), 0);
            let pool = self.pools.get_mut(key).expect("each span is in its pool");
            pool.open.remove(&first);
            pool.spans -= 1;
            pool.blocks -= blocks.count();
        }
        self.statistics.spans -= 1;
        self.statistics.span_bytes -= self.geometry.bytes_of(run);
        run
    }
}
