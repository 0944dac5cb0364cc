//! Tests the heap against a model: no overlap, alignment, contents, zeros, refusals, and nothing left at the end.
//!
//! `TRELLIS_HEAP_OPERATIONS` sets the number of operations, `TRELLIS_HEAP_SEED` their seed; a failure prints both.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trellis_base::Random;

use super::*;

const BASE: u64 = 0x2000_0000_0000;
const BYTES: u64 = 64 << 20;
const GARBAGE: u64 = 0xdead_dead_dead_dead;

/// Bytes as words. Released memory is garbage, or zero if it is reported to read as zero.
pub(super) struct Words {
    words: Box<[AtomicU64]>,
    zeroes: bool,
    pub(super) released: AtomicU64,
    pub(super) fresh: AtomicU64,
}

impl Words {
    pub(super) fn new(bytes: u64, zeroes: bool) -> Arc<Words> {
        let words = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Words { words, zeroes, released: AtomicU64::new(0), fresh: AtomicU64::new(0) })
    }

    fn within(&self, bytes: Range<u64>) -> &[AtomicU64] {
        &self.words[(bytes.start - BASE) as usize / 8..(bytes.end - BASE).div_ceil(8) as usize]
    }

    /// Writes a pattern into whole words of a block, or into both ends of a long one.
    pub(super) fn fill(&self, block: &Range<u64>, tag: u64) {
        for (index, word) in self.marked(block) {
            word.store(tag ^ index, Ordering::Relaxed);
        }
    }

    pub(super) fn holds(&self, block: &Range<u64>, tag: u64) -> bool {
        self.marked(block).all(|(index, word)| word.load(Ordering::Relaxed) == tag ^ index)
    }

    fn marked(&self, block: &Range<u64>) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let whole = (block.end - block.start) / 8;
        let words = &self.within(block.clone())[..whole as usize];
        (0..whole)
            .filter(move |index| *index < 64 || index + 64 >= whole)
            .map(move |index| (index, &words[index as usize]))
    }

    fn is_zero(&self, bytes: Range<u64>) -> bool {
        let whole = (bytes.end - bytes.start) / 8;
        self.within(bytes)[..whole as usize].iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

impl Memory for Words {
    fn released(&self, pages: Range<u64>) -> bool {
        assert!(pages.start.is_multiple_of(PAGE_BYTES) && pages.end.is_multiple_of(PAGE_BYTES) && !pages.is_empty());
        self.released.fetch_add(pages.end - pages.start, Ordering::Relaxed);
        let left = if self.zeroes { 0 } else { GARBAGE };
        self.within(pages).iter().for_each(|word| word.store(left, Ordering::Relaxed));
        self.zeroes
    }

    fn fresh(&self, pages: Range<u64>) {
        assert!(pages.start.is_multiple_of(PAGE_BYTES) && pages.end.is_multiple_of(PAGE_BYTES) && !pages.is_empty());
        self.fresh.fetch_add(pages.end - pages.start, Ordering::Relaxed);
        assert!(self.is_zero(pages.clone()), "pages {pages:x?} are called fresh and are not zero");
    }

    fn zero(&self, bytes: Range<u64>) {
        self.within(bytes).iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) {
        assert!(from + bytes <= to || to + bytes <= from, "{bytes} bytes at {from:#x} and at {to:#x} overlap");
        let from = self.within(from..from + bytes);
        let to = self.within(to..to + bytes);
        from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
    }

    // SAFETY: it touches nothing.
    unsafe fn write(&self, _: u64, _: &[u8]) {
        unreachable!("only C wants answers at addresses");
    }
}

/// A random size, mostly small, at times up to `bytes_max`.
pub(super) fn size(random: &mut Random, bytes_max: u64) -> u64 {
    let bits = random.below(u64::from(bytes_max.ilog2()) + 1).min(random.below(24));
    random.below(1 << bits).min(bytes_max)
}

/// A block of the program: its requested end, its real end, and its content.
struct Owned {
    asked_end: u64,
    end: u64,
    tag: u64,
}

struct Model {
    heap: Heap,
    words: Arc<Words>,
    blocks: BTreeMap<u64, Owned>,
    addresses: Vec<u64>,
    random: Random,
    tag: u64,
}

impl Model {
    fn new(kind: Kind, zeroes: bool, seed: u64) -> Model {
        let words = Words::new(BYTES, zeroes);
        let heap = Heap::local(BASE..BASE + BYTES, kind, words.clone()).unwrap();
        Model { heap, words, blocks: BTreeMap::new(), addresses: Vec::new(), random: Random::new(seed), tag: 0 }
    }

    fn step(&mut self) {
        let most = if self.addresses.len() > 3000 { 40 } else { 60 };
        match self.random.below(100) {
            0..5 => self.calloc(),
            5..10 => self.aligned(),
            10..25 => self.realloc(),
            25..30 => self.measure(),
            30..31 => self.misuse(),
            at if at < most => self.malloc(),
            _ => self.free_any(),
        }
    }

    /// Records an answer, and checks that it is allowed.
    fn took(&mut self, answer: Result<u64, HeapError>, asked: u64, align: u64) {
        let address = match answer {
            Ok(address) => address,
            Err(HeapError::NoRoom(_)) => return,
            Err(other) => panic!("{asked} bytes aligned to {align}: {other}"),
        };
        let bytes = self.heap.usable_bytes(address).unwrap();
        assert!(
            bytes >= asked && address.is_multiple_of(align.max(16)),
            "{address:#x}: {asked} bytes, aligned to {align}"
        );
        assert!(address >= BASE && address + bytes <= BASE + BYTES);
        let before = self.blocks.range(..=address).next_back().map_or(0, |(_, block)| block.end);
        let after = self.blocks.range(address..).next().map_or(u64::MAX, |(&next, _)| next);
        assert!(before <= address && address + bytes <= after, "block {address:#x} of {bytes} overlaps another");
        self.tag += 1;
        self.words.fill(&(address..address + asked), self.tag << 20);
        self.blocks.insert(address, Owned { asked_end: address + asked, end: address + bytes, tag: self.tag << 20 });
        self.addresses.push(address);
    }

    fn malloc(&mut self) {
        let bytes = size(&mut self.random, 1 << 20);
        let answer = self.heap.malloc(bytes);
        self.took(answer, bytes, 16);
    }

    fn calloc(&mut self) {
        let (count, bytes) = (size(&mut self.random, 200), size(&mut self.random, 2000));
        let answer = self.heap.calloc(count, bytes);
        if let Ok(address) = answer {
            assert!(self.words.is_zero(address..address + count * bytes), "calloc gave something else than zeros");
        }
        self.took(answer, count * bytes, 16);
    }

    fn aligned(&mut self) {
        let (bytes, align) = (size(&mut self.random, 40_000), 1 << self.random.below(18));
        let answer = self.heap.aligned(align, bytes);
        self.took(answer, bytes, align);
    }

    /// Removes one of the program's blocks from the model.
    fn any(&mut self) -> Option<(u64, Owned)> {
        if self.addresses.is_empty() {
            return None;
        }
        let index = self.random.index(self.addresses.len());
        let address = self.addresses.swap_remove(index);
        let block = self.blocks.remove(&address).unwrap();
        assert!(self.words.holds(&(address..block.asked_end), block.tag), "block {address:#x} lost its contents");
        Some((address, block))
    }

    fn realloc(&mut self) {
        let Some((address, block)) = self.any() else { return };
        let bytes = size(&mut self.random, 1 << 19).max(1);
        let answer = self.heap.realloc(address, bytes);
        let Ok(now) = answer else {
            self.blocks.insert(address, block);
            self.addresses.push(address);
            return;
        };
        let kept = bytes.min(block.asked_end - address).min(64 * 8);
        assert!(self.words.holds(&(now..now + kept), block.tag) || kept % 8 > 0 && kept < 8, "realloc lost contents");
        self.took(answer, bytes, 16);
    }

    fn free_any(&mut self) {
        let Some((address, _)) = self.any() else { return };
        self.heap.free(address).unwrap();
        let again = self.heap.free(address).unwrap_err();
        assert!(matches!(again, HeapError::Misuse(_)), "{again}");
    }

    fn measure(&mut self) {
        if let Some((address, block)) = self.any() {
            assert_eq!(self.heap.usable_bytes(address).unwrap(), block.end - address);
            self.blocks.insert(address, block);
            self.addresses.push(address);
        }
    }

    /// Addresses at which no block begins are refused.
    fn misuse(&mut self) {
        let address = BASE - 4096 + self.random.below(BYTES + 8192);
        if !self.blocks.contains_key(&address) {
            assert!(matches!(self.heap.free(address), Err(HeapError::Misuse(_))), "{address:#x} was freed");
            assert!(matches!(self.heap.usable_bytes(address), Err(HeapError::Misuse(_))));
            assert!(matches!(self.heap.realloc(address, 10), Err(HeapError::Misuse(_))));
        }
    }

    fn check_totals(&self) {
        let statistics = self.heap.statistics();
        let bytes: u64 = self.blocks.iter().map(|(address, block)| block.end - address).sum();
        assert_eq!((statistics.blocks, statistics.block_bytes), (self.blocks.len() as u64, bytes));
        assert!(statistics.held_bytes >= bytes);
    }

    fn finish(mut self) {
        while let Some((address, _)) = self.any() {
            self.heap.free(address).unwrap();
        }
        self.heap.trim().unwrap();
        let nothing = Statistics { free_runs: 1, ..Statistics::default() };
        assert_eq!(self.heap.statistics(), nothing, "everything was freed: one run of free memory, and nothing held");
        assert!(self.words.released.load(Ordering::Relaxed) > 0, "the heap became smaller and gave pages up");
        let whole = self.heap.malloc(BYTES - 4096).expect("all of it is one run");
        self.heap.free(whole).unwrap();
    }
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// The number of operations of a test; the thorough run sets the variable.
pub(super) fn operations() -> u64 {
    number_from("TRELLIS_HEAP_OPERATIONS", 100_000)
}

/// Runs a test with a seed, which a failure prints.
pub(super) fn with_seed(test: &str, body: impl Fn(u64)) {
    struct SeedReport<'a>(&'a str, u64);
    impl Drop for SeedReport<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let (test, seed, operations) = (self.0, self.1, operations());
                eprintln!(
                    "again: TRELLIS_HEAP_SEED={seed} TRELLIS_HEAP_OPERATIONS={operations} cargo test -p trellis-stored --lib {test}"
                );
            }
        }
    }
    let seed = number_from("TRELLIS_HEAP_SEED", 0x005e_ed0f_4ea9);
    let _report = SeedReport(test, seed);
    body(seed);
}

fn against_model(test: &str, kind: Kind, zeroes: bool) {
    with_seed(test, |seed| {
        let mut model = Model::new(kind, zeroes, seed);
        let operations = operations();
        for step in 0..operations {
            model.step();
            if step % (operations / 20).max(1) == 0 {
                model.check_totals();
            }
        }
        model.check_totals();
        model.finish();
    });
}

#[test]
fn scalable_keeps_its_promises_against_a_model() {
    against_model("scalable_keeps_its_promises_against_a_model", Kind::Scalable, true);
}

#[test]
fn scalable_keeps_its_promises_where_released_memory_is_garbage() {
    against_model("scalable_keeps_its_promises_where_released_memory_is_garbage", Kind::Scalable, false);
}

#[test]
fn first_fit_keeps_its_promises_against_a_model() {
    against_model("first_fit_keeps_its_promises_against_a_model", Kind::FirstFit, true);
}

#[test]
fn first_fit_keeps_its_promises_where_released_memory_is_garbage() {
    against_model("first_fit_keeps_its_promises_where_released_memory_is_garbage", Kind::FirstFit, false);
}

/// Threads allocate, hand blocks to each other and free what they got.
fn across_threads(test: &str, kind: Kind) {
    const THREADS: usize = 4;
    with_seed(test, |seed| {
        let words = Words::new(BYTES, true);
        let heap = Heap::local(BASE..BASE + BYTES, kind, words.clone()).unwrap();
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| std::sync::mpsc::channel::<(Range<u64>, u64)>()).unzip();
        std::thread::scope(|scope| {
            for (thread, receiver) in receivers.into_iter().enumerate() {
                let (heap, words, senders) = (&heap, &words, senders.clone());
                scope.spawn(move || {
                    let mut random = Random::for_purpose(seed, thread as u64);
                    let check = |(block, tag): (Range<u64>, u64)| {
                        assert!(words.holds(&block, tag), "block {block:x?} lost its contents");
                        heap.free(block.start).unwrap();
                    };
                    for step in 0..operations() / THREADS as u64 {
                        let bytes = size(&mut random, 100_000);
                        let Ok(address) = heap.malloc(bytes) else { continue };
                        let (block, tag) = (address..address + bytes, (step << 8 | thread as u64) << 20);
                        words.fill(&block, tag);
                        senders[random.index(THREADS)].send((block, tag)).unwrap();
                        // It sometimes receives one more than it sends, so that few are under way.
                        (0..2).filter_map(|_| receiver.try_recv().ok()).for_each(check);
                    }
                    drop(senders);
                    receiver.iter().for_each(check);
                });
            }
            drop(senders);
        });
        heap.trim().unwrap();
        assert_eq!(heap.statistics(), Statistics { free_runs: 1, ..Statistics::default() });
    });
}

#[test]
fn scalable_blocks_may_be_freed_by_other_threads() {
    across_threads("scalable_blocks_may_be_freed_by_other_threads", Kind::Scalable);
}

#[test]
fn first_fit_blocks_may_be_freed_by_other_threads() {
    across_threads("first_fit_blocks_may_be_freed_by_other_threads", Kind::FirstFit);
}

#[test]
fn bump_blocks_never_overlap_across_threads() {
    let words = Words::new(BYTES, true);
    let heap = Heap::local(BASE..BASE + BYTES, Kind::Bump, words.clone()).unwrap();
    let mut blocks: Vec<Range<u64>> = std::thread::scope(|scope| {
        let allocate = |align: u64| {
            let heap = &heap;
            move || -> Vec<Range<u64>> {
                let block = |bytes| heap.aligned(align, bytes).map(|address| address..address + bytes);
                (0..2000).filter_map(|bytes| block(bytes % 700).ok()).collect()
            }
        };
        let threads: Vec<_> = [16, 64, 4096].map(|align| scope.spawn(allocate(align))).into_iter().collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(blocks.len(), 6000);
    blocks.sort_by_key(|block| (block.start, block.end));
    assert!(blocks.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let first = blocks[0].start;
    words.fill(&blocks[0], 77);
    let moved = heap.realloc(first, 5000).unwrap();
    assert!(moved != first && words.holds(&(moved..moved + (blocks[0].end - first)), 77));
    assert!(heap.usable_bytes(first).is_err());
    heap.free(first).unwrap();
    assert!(heap.free(BASE - 16).is_err());
    assert!(matches!(heap.malloc(BYTES), Err(HeapError::NoRoom(_))));
}

fn each_kind(test: impl Fn(Kind, &Heap, &Words)) {
    for kind in [Kind::Scalable, Kind::FirstFit] {
        let words = Words::new(BYTES, true);
        let heap = Heap::local(BASE..BASE + BYTES, kind, words.clone()).unwrap();
        test(kind, &heap, &words);
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    each_kind(|kind, heap, _| {
        for bytes in [BYTES + 1, 1 << 40, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 15, u64::MAX] {
            assert!(matches!(heap.malloc(bytes), Err(HeapError::NoRoom(_))), "{kind}: {bytes}");
            assert!(matches!(heap.aligned(1 << 20, bytes), Err(HeapError::NoRoom(_))));
        }
        assert!(matches!(heap.calloc(1 << 33, 1 << 33), Err(HeapError::NoRoom(_))));
        assert!(matches!(heap.calloc(u64::MAX, 2), Err(HeapError::NoRoom(_))));
        assert!(matches!(heap.aligned(u64::MAX / 2 + 1, 16), Err(HeapError::NoRoom(_))));
        assert!(matches!(heap.aligned(24, 16), Err(HeapError::Misuse(_))));
        let block = heap.malloc(100).unwrap();
        assert!(matches!(heap.realloc(block, u64::MAX), Err(HeapError::NoRoom(_))));
        assert!(matches!(heap.realloc(block, BYTES), Err(HeapError::NoRoom(_))));
        assert!(heap.usable_bytes(block).unwrap() >= 100, "{kind}: a refused realloc changed the block");
        let inside = heap.free(block + 16).unwrap_err().to_string();
        assert!(inside.contains("no block begins at address"), "{inside}");
        let outside = heap.free(0x1000).unwrap_err().to_string();
        assert!(outside.contains("is not in the heap"), "{outside}");
        heap.free(block).unwrap();
        let twice = heap.free(block).unwrap_err().to_string();
        assert!(twice.contains("double free"), "{twice}");
        let (a, b) = (heap.malloc(0).unwrap(), heap.malloc(0).unwrap());
        assert_ne!(a, b, "{kind}: blocks of nothing have addresses of their own");
        heap.free(a).unwrap();
        heap.free(b).unwrap();
    });
    let backwards = Range { start: 8192, end: 4096 };
    for range in [0..4096, 8192..8192, backwards, 4097..8191, u64::MAX - 10..u64::MAX, 4096..u64::MAX] {
        let words = Words::new(4096, true);
        assert!(matches!(Heap::local(range.clone(), Kind::Scalable, words), Err(HeapError::Misuse(_))), "{range:?}");
    }
}

#[test]
fn a_large_block_grows_and_shrinks_where_it_is() {
    each_kind(|kind, heap, words| {
        let block = heap.malloc(1 << 20).unwrap();
        let next = heap.malloc(1 << 20).unwrap();
        let last = heap.malloc(1 << 20).unwrap();
        words.fill(&(block..block + (1 << 20)), 99 << 20);
        let blocks = [block, next, last];
        assert!(blocks.is_sorted(), "{kind}: {blocks:x?}");
        heap.free(next).unwrap();
        assert_eq!(heap.realloc(block, 2 << 20).unwrap(), block, "{kind}: the next one is free");
        assert!(words.holds(&(block..block + 512), 99 << 20));
        assert_ne!(heap.malloc(1 << 20).unwrap(), next);
        assert_eq!(heap.realloc(block, 1 << 19).unwrap(), block, "{kind}: shorter");
        let between = heap.malloc(1 << 20).unwrap();
        assert!((block + (1 << 19)..last).contains(&between), "{kind}: what was split off is used again: {between:#x}");
    });
}

#[test]
fn first_fit_takes_the_first_and_splits_from_32_bytes_on() {
    let words = Words::new(BYTES, true);
    let heap = Heap::local(BASE..BASE + BYTES, Kind::FirstFit, words).unwrap();
    let blocks: Vec<u64> = [96, 16, 64, 16, 200, 16].map(|bytes| heap.malloc(bytes).unwrap()).into();
    assert_eq!(blocks, [0, 96, 112, 176, 192, 400].map(|at| BASE + at), "one after the other");
    for index in [0, 2, 4] {
        heap.free(blocks[index]).unwrap();
    }
    assert_eq!(heap.malloc(60).unwrap(), blocks[0], "the first that suffices, not the best");
    assert_eq!(heap.usable_bytes(blocks[0]).unwrap(), 64, "32 bytes remained, so it was split");
    assert_eq!(heap.malloc(48).unwrap(), blocks[2]);
    assert_eq!(heap.usable_bytes(blocks[2]).unwrap(), 64, "16 bytes remained, so it was not");
    assert_eq!(heap.malloc(32).unwrap(), BASE + 64, "the rest of the first");
    assert_eq!(heap.statistics().held_bytes, 416);
    heap.free(blocks[5]).unwrap();
    assert_eq!(heap.statistics().held_bytes, 192, "the end came down over the free block before, too");
}

#[test]
fn memory_that_was_never_used_is_said_to_be_fresh_once() {
    each_kind(|kind, heap, words| {
        let first = heap.malloc(100 << 10).unwrap();
        let said = words.fresh.load(Ordering::Relaxed);
        assert_eq!(said, 100 << 10, "{kind}");
        heap.free(first).unwrap();
        let again = heap.malloc(100 << 10).unwrap();
        assert_eq!((again, words.fresh.load(Ordering::Relaxed)), (first, said), "{kind}: its pages are still there");
        heap.free(again).unwrap();
        heap.trim().unwrap();
        heap.malloc(100 << 10).unwrap();
        assert_eq!(words.fresh.load(Ordering::Relaxed), said * 2, "{kind}: it was released, and is zero again");
    });
}

#[test]
fn large_free_memory_is_released_without_being_asked() {
    each_kind(|kind, heap, words| {
        let block = heap.malloc(16 << 20).unwrap();
        heap.free(block).unwrap();
        assert_eq!(words.released.load(Ordering::Relaxed), 16 << 20, "{kind}");
    });
}

#[test]
fn small_blocks_that_were_freed_are_memory_for_large_ones() {
    each_kind(|kind, heap, words| {
        let blocks: Vec<u64> = std::iter::from_fn(|| heap.malloc(200).ok()).collect();
        assert!(blocks.len() as u64 > BYTES / 256, "{kind}: {} blocks", blocks.len());
        let half = heap.statistics().held_bytes / 2;
        blocks.iter().for_each(|&block| heap.free(block).unwrap());
        assert!(heap.statistics().held_bytes <= 64 << 10, "{kind}: nobody asked, and {:?}", heap.statistics());
        assert!(words.released.load(Ordering::Relaxed) > half, "{kind}: pages were given up");
        heap.free(heap.malloc(BYTES / 2).unwrap()).unwrap();
    });
}

#[test]
fn kinds_have_names() {
    for kind in [Kind::Scalable, Kind::FirstFit, Kind::Bump] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("best-fit".parse::<Kind>().unwrap_err().contains("first-fit"));
}

#[test]
fn a_held_heap_goes_on_afterwards() {
    each_kind(|_, heap, _| {
        let held = heap.hold();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| heap.malloc(10).unwrap());
            drop(held);
            heap.free(waiting.join().unwrap()).unwrap();
        });
    });
}
