//! The default heap: small blocks from spans of one size class that belong to one thread, large blocks from whole
//! pages.
//!
//! A thread allocates blocks from spans of its own part, under a lock that is uncontended as long as there are no more
//! threads than [`PARTS`]. Any thread may free a block: it only clears the block's bit in the span, unless the span was
//! full or is now empty. Empty spans are returned to the free pages, where neighbours are merged. A part keeps one
//! empty span of each size class.
//!
//! Promises: locks are taken in one order, a part's before that of the pages. It must never call [`Memory`] under any
//! of them, except [`Memory::fresh`] under a part's lock.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trellis_base::size_classes::SMALL_BYTES_MAX;
use trellis_base::size_classes::{class_of, size_of};

use super::description::{Described, UNKNOWN, WHOLE};
use super::directory::SEGMENT_PAGES;
use super::pages::{Pages, WARM_PAGES_MAX};
use super::pools::Pools;
use super::span::{BLOCKS_MAX, Plan, Span, State};
use super::table::{Dense, PageMap};
use super::{ALIGN_BYTES_MIN, Allocator, Block, Held, Memory, PAGE_BYTES, Refusal, Statistics, lock, threads};

/// The number of parts. If there are more threads, they share parts.
const PARTS: u32 = 64;
/// The length of a span, if this gives at least [`BLOCKS_MIN`] blocks and no more than a span may have.
const SPAN_BYTES: u64 = 64 << 10;
const BLOCKS_MIN: u64 = 8;

pub(super) struct Scalable {
    range: Range<u64>,
    parts: Box<[Mutex<Pools>]>,
    ground: Mutex<Ground>,
    spans: Dense<Span>,
    /// The number of a page's span plus one. For a large block, only at its first page.
    map: PageMap,
    /// The size class for a size in units of 16 bytes, for blocks without a larger alignment.
    classes: Box<[u8]>,
    memory: Arc<dyn Memory>,
    /// Segments in which spans or blocks changed since the last query, if changes are tracked.
    changed: Option<Mutex<BTreeSet<u32>>>,
    /// Whether a span began since the last query.
    has_begun: AtomicBool,
    /// The number of free pages when some were last returned.
    free_pages: AtomicU64,
}

/// The pages, and the numbers of spans.
struct Ground {
    pages: Pages,
    /// The number of pages that this heap was given.
    all_pages: u64,
    idle: Vec<u32>,
    /// The lowest number that no span has had.
    next: u32,
}

impl Ground {
    fn number(&mut self) -> u32 {
        self.idle.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Scalable {
    /// Makes a heap that has all pages of a range.
    pub(super) fn local(range: Range<u64>, memory: Arc<dyn Memory>) -> Scalable {
        let pages = ((range.end - range.start) / PAGE_BYTES).min(u64::from(u32::MAX)) as u32;
        let heap = Scalable::empty(range, memory, None);
        heap.insert(0..pages, true);
        heap
    }

    /// Makes a heap that has no pages of a range yet, and tracks which segments changed.
    pub(super) fn of_segments(range: Range<u64>, memory: Arc<dyn Memory>) -> Scalable {
        Scalable::empty(range, memory, Some(Mutex::default()))
    }

    fn empty(range: Range<u64>, memory: Arc<dyn Memory>, changed: Option<Mutex<BTreeSet<u32>>>) -> Scalable {
        let pages = Pages::new(range.start / PAGE_BYTES);
        let classes = (0..=SMALL_BYTES_MAX / 16)
            .map(|units| class_of(units * 16, ALIGN_BYTES_MIN).expect("small sizes have classes"))
            .collect();
        Scalable {
            range,
            parts: (0..PARTS).map(|_| Mutex::new(Pools::new())).collect(),
            ground: Mutex::new(Ground { pages, all_pages: 0, idle: Vec::new(), next: 0 }),
            spans: Dense::new(),
            map: PageMap::new(),
            classes,
            memory,
            changed,
            has_begun: AtomicBool::new(false),
            free_pages: AtomicU64::new(0),
        }
    }

    /// Adds pages that belong to this heap from now on.
    pub(super) fn insert(&self, pages: Range<u32>, is_clean: bool) {
        let mut ground = lock(&self.ground);
        ground.all_pages += pages.len() as u64;
        ground.pages.insert(pages, is_clean);
    }

    /// Records that a span began or ended at this page.
    fn mark(&self, page: u32) {
        if let Some(changed) = &self.changed {
            lock(changed).insert(page / SEGMENT_PAGES);
        }
    }

    /// Records that a span began.
    fn mark_begun(&self, page: u32) {
        self.mark(page);
        self.has_begun.store(true, Ordering::Release);
    }

    /// Whether a span began, or became longer, since the last query.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire) && self.has_begun.swap(false, Ordering::AcqRel)
    }

    /// Records that a block of a span was allocated or freed.
    fn mark_block(&self, span: &Span) {
        if self.changed.is_some() && span.is_news() {
            self.mark(span.first_page());
        }
    }

    /// The segments in which something changed since the last query.
    pub(super) fn take_changed(&self) -> BTreeSet<u32> {
        self.changed.as_ref().map(|changed| std::mem::take(&mut *lock(changed))).unwrap_or_default()
    }

    /// The spans that begin in a segment, with their live blocks or marked such that any block may be in use.
    pub(super) fn describe(&self, segment: u32, with_live: bool) -> Vec<Described> {
        let (mut page, end) = (segment * SEGMENT_PAGES, (segment + 1).saturating_mul(SEGMENT_PAGES));
        let mut spans = Vec::new();
        while page < end {
            let span = self.map.get(page).checked_sub(1).and_then(|number| self.spans.get(number));
            let span = span.filter(|span| span.state() != State::Idle && span.first_page() == page);
            page += 1;
            if let Some(span) = span {
                let (first_page, pages) = (span.first_page(), span.pages());
                let class = if span.block_bytes() == 0 { WHOLE } else { span.class() };
                if with_live {
                    span.note_description();
                }
                spans.push(Described {
                    first_page,
                    pages,
                    class,
                    live: if with_live { span.live() } else { Vec::new() },
                });
                page = first_page + pages;
            }
        }
        spans
    }

    /// Takes over spans of another heap, and the pages between them.
    pub(super) fn adopt(&self, segments: Range<u32>, spans: &[Described]) {
        let mut from = segments.start * SEGMENT_PAGES;
        let end = segments.end * SEGMENT_PAGES;
        for span in spans {
            if span.first_page < from
                || span.pages == 0
                || span.is_empty()
                || u64::from(span.first_page) + u64::from(span.pages) > end.into()
            {
                continue;
            }
            self.insert(from..span.first_page, false);
            from = span.first_page + span.pages;
            lock(&self.ground).all_pages += u64::from(span.pages);
            if span.class != UNKNOWN {
                self.adopt_span(span);
            }
        }
        self.insert(from..end, false);
    }

    fn adopt_span(&self, described: &Described) {
        let pages = described.first_page..described.first_page + described.pages;
        let number = lock(&self.ground).number();
        let span = self.spans.make(number);
        if described.class == WHOLE {
            span.begin_whole(pages.start, described.pages);
            self.map.set(pages.start, number + 1);
        } else {
            let home = threads::number() % PARTS;
            let mut pools = lock(&self.parts[home as usize]);
            span.begin(plan(pages.clone(), described.class, home, false));
            span.set_live(&described.live);
            pages.clone().for_each(|page| self.map.set(page, number + 1));
            pools.add(number, span);
        }
        self.mark(pages.start);
    }

    /// Gives up whole free segments, except for this number of them; they no longer belong to this heap.
    pub(super) fn surrender(&self, keep: usize) -> Vec<Range<u32>> {
        self.give_back(0..0, None, 0);
        let mut ground = lock(&self.ground);
        let segments = |run: Range<u32>| run.start.div_ceil(SEGMENT_PAGES)..run.end / SEGMENT_PAGES;
        let mut whole: Vec<_> = ground.pages.free_runs().map(segments).filter(|run| !run.is_empty()).collect();
        let mut kept = 0;
        whole.retain_mut(|run| {
            let stay = run.len().min(keep - kept);
            kept += stay;
            run.start += stay as u32;
            run.start < run.end
        });
        for run in &whole {
            let pages = run.start * SEGMENT_PAGES..run.end * SEGMENT_PAGES;
            ground.all_pages -= pages.len() as u64;
            ground.pages.take_exactly(pages).expect("the pages of a free run are free");
        }
        self.free_pages.store(ground.pages.free_pages(), Ordering::Relaxed);
        drop(ground);
        if let Some(changed) = &self.changed {
            lock(changed).retain(|segment| !whole.iter().any(|run| run.contains(segment)));
        }
        whole
    }

    /// Approximately how many pages are free.
    pub(super) fn free_pages(&self) -> u64 {
        self.free_pages.load(Ordering::Relaxed)
    }

    fn page_of(&self, address: u64) -> u32 {
        ((address - self.range.start) / PAGE_BYTES) as u32
    }

    fn address_of(&self, page: u32) -> u64 {
        self.range.start + u64::from(page) * PAGE_BYTES
    }

    fn span(&self, number: u32) -> &Span {
        self.spans.get(number).expect("a span that has a number was made")
    }

    /// The span of the block that begins at an address, with its number and the block's index in it.
    fn find(&self, address: u64) -> Result<(u32, &Span, u32), Refusal> {
        if !self.range.contains(&address) {
            return Err(Refusal::Foreign);
        }
        let number = self.map.get(self.page_of(address)).checked_sub(1).ok_or(Refusal::Foreign)?;
        let span = self.span(number);
        let within = address.wrapping_sub(self.address_of(span.first_page()));
        let index = u32::try_from(within).ok().and_then(|within| span.index_of(within)).ok_or(Refusal::NoBlock)?;
        Ok((number, span, index))
    }

    fn small(&self, class: u8) -> Result<Block, Refusal> {
        let home = threads::number() % PARTS;
        let mut pools = lock(&self.parts[home as usize]);
        loop {
            let Some(number) = pools.current(class) else {
                let number = self.cut(class, home)?;
                pools.add(number, self.span(number));
                continue;
            };
            let span = self.span(number);
            if let Some((index, is_zero)) = span.take() {
                self.mark_block(span);
                let bytes = u64::from(span.block_bytes());
                let address = self.address_of(span.first_page()) + u64::from(index) * bytes;
                return Ok(Block { address, bytes, is_zero });
            }
            pools.remove(number, span, &self.spans, State::Full);
            // A thread that freed a block before the span was marked full has not reported it.
            if span.has_room() {
                pools.add(number, span);
            }
        }
    }

    /// Creates a span of small blocks for a part of the heap.
    fn cut(&self, class: u8, home: u32) -> Result<u32, Refusal> {
        let size = u64::from(size_of(class));
        let wanted = SPAN_BYTES.min(size * u64::from(BLOCKS_MAX)).max(size * BLOCKS_MIN).div_ceil(PAGE_BYTES) as u32;
        let least = size.div_ceil(PAGE_BYTES) as u32;
        let (taken, number) = {
            let mut ground = lock(&self.ground);
            let taken = ground.pages.take(wanted, 1).or_else(|| ground.pages.take(least, 1));
            let taken = taken.ok_or(Refusal::NoRoom { pages: u64::from(wanted), align_pages: 1 })?;
            (taken, ground.number())
        };
        let (pages, clean) = taken;
        self.say_fresh(&clean);
        let span = self.spans.make(number);
        span.begin(plan(pages.clone(), class, home, clean == [pages.clone()]));
        pages.clone().for_each(|page| self.map.set(page, number + 1));
        self.mark_begun(pages.start);
        Ok(number)
    }

    fn large(&self, bytes: u64, align: u64) -> Result<Block, Refusal> {
        let (pages, align_pages) = (bytes.div_ceil(PAGE_BYTES), (align / PAGE_BYTES).max(1));
        let no_room = Refusal::NoRoom { pages, align_pages };
        let (Ok(count), Ok(align)) = (u32::try_from(pages), u32::try_from(align_pages)) else { return Err(no_room) };
        let ((pages, clean), number) = {
            let mut ground = lock(&self.ground);
            let taken = ground.pages.take(count, align).ok_or(no_room)?;
            (taken, ground.number())
        };
        self.say_fresh(&clean);
        self.spans.make(number).begin_whole(pages.start, count);
        self.map.set(pages.start, number + 1);
        self.mark_begun(pages.start);
        let is_zero = clean == [pages.clone()];
        Ok(Block { address: self.address_of(pages.start), bytes: u64::from(count) * PAGE_BYTES, is_zero })
    }

    fn say_fresh(&self, clean: &[Range<u32>]) {
        for pages in clean {
            self.memory
                .fresh(self.address_of(pages.start)..self.address_of(pages.start) + pages.len() as u64 * PAGE_BYTES);
        }
    }

    /// Handles a span in which a block was freed while it was full, or which may be empty.
    fn settle(&self, number: u32, span: &Span) {
        let home = span.home();
        let mut pools = lock(&self.parts[home as usize % PARTS as usize]);
        // Another thread may have handled it, and its number may be another span's by now, even in another part.
        if span.home() != home || !matches!(span.state(), State::Open | State::Full) {
            return;
        }
        if span.state() == State::Full && span.has_room() {
            pools.add(number, span);
        }
        let is_spare = span.state() == State::Open && pools.open_spans(span.class()) > 1 && span.live_blocks() == 0;
        if is_spare {
            pools.remove(number, span, &self.spans, State::Idle);
            drop(pools);
            self.retire(number, span);
        }
    }

    /// Returns the pages of a span that is no longer in any pool.
    fn retire(&self, number: u32, span: &Span) {
        let pages = span.first_page()..span.first_page() + span.pages();
        if span.block_bytes() == 0 {
            self.map.set(pages.start, 0);
        } else {
            pages.clone().for_each(|page| self.map.set(page, 0));
        }
        span.set_state(State::Idle);
        self.mark(pages.start);
        self.give_back(pages, Some(number), WARM_PAGES_MAX);
    }

    /// Returns unused pages; if too many of them still have content, that is released.
    fn give_back(&self, pages: Range<u32>, number: Option<u32>, warm_pages_max: u64) {
        let warm = {
            let mut ground = lock(&self.ground);
            ground.idle.extend(number);
            if !pages.is_empty() {
                ground.pages.give_back(pages);
            }
            self.free_pages.store(ground.pages.free_pages(), Ordering::Relaxed);
            if ground.pages.warm_pages() <= warm_pages_max {
                return;
            }
            ground.pages.take_warm()
        };
        for run in warm {
            let bytes = self.address_of(run.start)..self.address_of(run.start) + run.len() as u64 * PAGE_BYTES;
            let is_clean = self.memory.released(bytes);
            lock(&self.ground).pages.insert(run, is_clean);
        }
    }

    /// Resizes a large block in place.
    fn resize_whole(&self, span: &Span, bytes: u64) -> bool {
        let (first, before) = (span.first_page(), span.pages());
        let Ok(after) = u32::try_from(bytes.div_ceil(PAGE_BYTES).max(1)) else { return false };
        if after > before {
            let Some(end) = first.checked_add(after) else { return false };
            let Some(clean) = lock(&self.ground).pages.take_exactly(first + before..end) else { return false };
            self.say_fresh(&clean);
        }
        span.set_pages(after);
        self.mark_begun(first);
        if after < before {
            self.give_back(first + after..first + before, None, WARM_PAGES_MAX);
        }
        true
    }
}

/// How pages are divided into blocks of a class.
fn plan(pages: Range<u32>, class: u8, home: u32, is_zero: bool) -> Plan {
    let block_bytes = size_of(class);
    let blocks = (pages.len() as u64 * PAGE_BYTES / u64::from(block_bytes)).min(u64::from(BLOCKS_MAX)) as u32;
    Plan { first_page: pages.start, pages: pages.len() as u32, class, block_bytes, blocks, home, is_zero }
}

impl Allocator for Scalable {
    fn allocate(&self, bytes: u64, align: u64) -> Result<Block, Refusal> {
        let class = if align == ALIGN_BYTES_MIN {
            self.classes.get(bytes.div_ceil(16) as usize).copied()
        } else if align <= PAGE_BYTES {
            class_of(bytes, align)
        } else {
            None
        };
        match class {
            Some(class) => self.small(class),
            None => self.large(bytes, align),
        }
    }

    fn free(&self, address: u64) -> Result<(), Refusal> {
        let (number, span, index) = self.find(address)?;
        let is_whole = span.block_bytes() == 0;
        let may_be_empty = span.put(index).ok_or(Refusal::NoBlock)?;
        self.mark_block(span);
        if is_whole {
            self.retire(number, span);
        } else if may_be_empty || span.state() == State::Full {
            self.settle(number, span);
        }
        Ok(())
    }

    fn resize(&self, address: u64, bytes: u64) -> Result<bool, Refusal> {
        let (_, span, index) = self.find(address)?;
        if !span.is_live(index) {
            return Err(Refusal::NoBlock);
        }
        let size = u64::from(span.block_bytes());
        if size == 0 {
            return Ok(self.resize_whole(span, bytes));
        }
        // A block that is more than twice as large as needed justifies a copy.
        Ok(bytes <= size && (bytes * 2 >= size || size <= 64))
    }

    fn usable_bytes(&self, address: u64) -> Result<u64, Refusal> {
        let (_, span, index) = self.find(address)?;
        if !span.is_live(index) {
            return Err(Refusal::NoBlock);
        }
        let size = u64::from(span.block_bytes());
        Ok(if size == 0 { u64::from(span.pages()) * PAGE_BYTES } else { size })
    }

    fn trim(&self) -> Result<(), Refusal> {
        for part in &self.parts {
            let mut pools = lock(part);
            let empty = pools.empty(&self.spans);
            for &number in &empty {
                pools.remove(number, self.span(number), &self.spans, State::Idle);
            }
            drop(pools);
            empty.into_iter().for_each(|number| self.retire(number, self.span(number)));
        }
        self.give_back(0..0, None, 0);
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        let ground = lock(&self.ground);
        let mut statistics = Statistics {
            held_bytes: (ground.all_pages - ground.pages.free_pages()) * PAGE_BYTES,
            free_runs: ground.pages.free_runs().count() as u64,
            ..Statistics::default()
        };
        for span in (0..ground.next).filter_map(|number| self.spans.get(number)) {
            if span.state() == State::Idle {
                continue;
            }
            let (blocks, size) = (u64::from(span.live_blocks()), u64::from(span.block_bytes()));
            statistics.blocks += blocks;
            statistics.block_bytes += blocks * if size == 0 { u64::from(span.pages()) * PAGE_BYTES } else { size };
        }
        statistics
    }

    fn hold(&self) -> Held<'_> {
        threads::hold().and(Held::of(&self.parts)).and(Held::of([&self.ground])).and(Held::of(&self.changed))
    }
}
