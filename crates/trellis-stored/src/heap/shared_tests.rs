//! Tests one heap in several processes, represented by several heaps over one store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trellis_base::Random;
use trellis_store::Applied;
use trellis_store::stores::embedded::Embedded;
use trellis_store::wrap::Counted;
use trellis_testing::redis_server::RedisServer;

use super::tests::{Words, size, with_seed};
use super::*;

const BASE: u64 = 0x2000_0000_0000;
const BYTES: u64 = 64 << 20;
const REGION: u32 = 5;

/// The representation of a process in a test.
struct Process {
    heap: Heap,
    store: Arc<Counted>,
}

fn process(store: &Arc<dyn Store>, words: &Arc<Words>, member: u64) -> Process {
    live(store, member);
    let counted = Counted::new(Arc::clone(store));
    let share = Share { store: counted.clone(), region: REGION, member };
    let heap = Heap::shared(BASE..BASE + BYTES, Kind::Scalable, words.clone(), share).unwrap();
    Process { heap, store: counted }
}

/// Writes the record of a member that was not replaced.
fn live(store: &Arc<dyn Store>, number: u64) {
    let record = [1u64, 0, 0, 10_000].iter().flat_map(|word| word.to_le_bytes()).collect();
    let key = crate::synchronisation::member::key(REGION, number);
    store.apply(&[trellis_store::Operation::Change { key, change: trellis_store::Change::Put(record) }], None).unwrap();
}

impl Process {
    /// Applies the changes, as a release does.
    fn release(&self) {
        for change in self.heap.changes() {
            assert!(matches!(self.store.apply(&[change], None).unwrap(), Applied::Done(_)));
        }
    }

    fn calls(&self) -> u64 {
        self.store.counts().calls()
    }
}

fn embedded() -> (Arc<dyn Store>, Arc<Words>) {
    (Arc::new(Embedded::new()), Words::new(BYTES, false))
}

#[test]
fn many_allocations_are_few_calls() {
    let (store, words) = embedded();
    let a = process(&store, &words, 1);
    let blocks: Vec<u64> = (0..100_000).map(|_| a.heap.malloc(64).unwrap()).collect();
    assert!(a.calls() <= 6, "100,000 blocks, 6.4 MB, took {} calls", a.calls());
    let before = a.calls();
    blocks.iter().for_each(|&block| a.heap.free(block).unwrap());
    assert_eq!(a.calls(), before, "freeing one's own blocks is no call");
    let again: Vec<u64> = (0..100_000).map(|_| a.heap.malloc(64).unwrap()).collect();
    assert_eq!(a.calls(), before, "nor is using them again");
    again.iter().for_each(|&block| a.heap.free(block).unwrap());
    a.heap.settle(true).unwrap();
    assert_eq!(a.heap.statistics(), Statistics::default(), "everything went back");
    assert_eq!(a.heap.owners().unwrap(), [0; 0]);
    let b = process(&store, &words, 2);
    assert!(b.heap.malloc(BYTES / 2).is_ok(), "another process may have it");
}

#[test]
fn a_block_may_be_freed_by_another_process() {
    let (store, words) = embedded();
    let (a, b) = (process(&store, &words, 1), process(&store, &words, 2));
    let blocks: Vec<u64> = (0..1000).map(|index| a.heap.malloc(index % 500).unwrap()).collect();
    let large = a.heap.malloc(3 << 20).unwrap();
    let unknown = b.heap.usable_bytes(blocks[7]).unwrap_err().to_string();
    assert!(unknown.contains("another process allocated"), "{unknown}");
    a.release();
    for &block in &blocks {
        assert_eq!(b.heap.usable_bytes(block).unwrap(), a.heap.usable_bytes(block).unwrap());
    }
    assert_eq!(b.heap.usable_bytes(large).unwrap(), 3 << 20);
    let before = b.calls();
    blocks.iter().for_each(|&block| b.heap.free(block).unwrap());
    b.heap.free(large).unwrap();
    assert!(b.calls() - before <= 1001 / 256 + 2, "{} calls for 1001 blocks of another process", b.calls() - before);
    assert!(b.heap.free(large).is_err_and(|error| error.to_string().contains("double free")), "it is on its way");
    assert_eq!(a.heap.statistics().blocks, 1001);
    b.heap.settle(false).unwrap();
    a.heap.settle(false).unwrap();
    assert_eq!((a.heap.statistics(), a.heap.owners().unwrap()), (Statistics::default(), vec![]));
    assert!(matches!(b.heap.free(BASE + BYTES - 4096), Err(HeapError::Misuse(_))), "nobody has that");
    assert!(matches!(b.heap.free(16), Err(HeapError::Misuse(_))));
}

#[test]
fn a_block_of_another_process_can_be_reallocated() {
    let (store, words) = embedded();
    let (a, b) = (process(&store, &words, 1), process(&store, &words, 2));
    let block = a.heap.malloc(1000).unwrap();
    words.fill(&(block..block + 1000), 7 << 20);
    a.release();
    assert_eq!(b.heap.realloc(block, 900).unwrap(), block);
    let moved = b.heap.realloc(block, 5000).unwrap();
    assert!(moved != block && words.holds(&(moved..moved + 512), 7 << 20));
    b.heap.free(moved).unwrap();
    b.heap.settle(true).unwrap();
    a.heap.settle(true).unwrap();
    assert_eq!(a.heap.statistics().blocks + b.heap.statistics().blocks, 0);
}

#[test]
fn what_a_process_leaves_can_be_taken_over() {
    let (store, words) = embedded();
    let (a, b) = (process(&store, &words, 1), process(&store, &words, 2));
    let blocks: Vec<u64> = (0..10_000).map(|index| a.heap.malloc(index % 3000).unwrap()).collect();
    let large = a.heap.malloc(5 << 20).unwrap();
    for block in blocks.iter().skip(1).step_by(2) {
        a.heap.free(*block).unwrap();
    }
    b.heap.free(blocks[0]).unwrap();
    a.heap.settle(true).unwrap();
    drop(a);
    b.heap.settle(false).unwrap();
    assert_eq!(b.heap.owners().unwrap(), [1]);
    b.heap.take_over(1).unwrap();
    assert_eq!(b.heap.owners().unwrap(), [2]);
    assert_eq!(b.heap.statistics().blocks, 5000, "half of 10,000, less one, and the large one");
    assert!(b.heap.free(blocks[1]).is_err(), "the owner had freed it");
    blocks.iter().skip(2).step_by(2).for_each(|&block| b.heap.free(block).unwrap());
    b.heap.free(large).unwrap();
    b.heap.settle(true).unwrap();
    assert_eq!((b.heap.statistics(), b.heap.owners().unwrap()), (Statistics::default(), vec![]));
}

#[test]
fn what_a_dead_process_had_is_not_handed_out_again() {
    let (store, words) = embedded();
    let (a, b) = (process(&store, &words, 1), process(&store, &words, 2));
    let blocks: Vec<u64> = (0..1000).map(|_| a.heap.malloc(100).unwrap()).collect();
    a.release();
    drop(a);
    let mine = b.heap.malloc(100).unwrap();
    b.heap.free(blocks[3]).unwrap();
    b.heap.take_over(1).unwrap();
    let held = b.heap.statistics();
    let more: Vec<u64> = (0..100_000).map(|_| b.heap.malloc(100).unwrap()).collect();
    let taken: std::collections::BTreeSet<u64> = more.iter().copied().collect();
    assert!(taken.len() == more.len() && !taken.contains(&mine));
    assert!(blocks.iter().filter(|block| **block != blocks[3]).all(|block| !taken.contains(block)));
    assert!(held.blocks >= 1000, "{held:?}");
    blocks.iter().filter(|&&block| block != blocks[3]).for_each(|&block| b.heap.free(block).unwrap());
    b.heap.settle(false).unwrap();
    assert!(b.heap.free(blocks[3]).is_err(), "what was on its way to the dead process was freed");
}

#[test]
fn who_frees_learns_that_the_owner_is_another_one_now() {
    let (store, words) = embedded();
    let [a, b, c] = [1, 2, 3].map(|member| process(&store, &words, member));
    let blocks = [0, 1].map(|_| a.heap.malloc(100).unwrap());
    a.release();
    c.heap.free(blocks[0]).unwrap();
    b.heap.take_over(1).unwrap();
    c.heap.settle(false).unwrap();
    b.heap.settle(false).unwrap();
    assert!(b.heap.free(blocks[0]).is_err(), "the block came to its new owner");
    b.heap.free(blocks[1]).unwrap();
    let logs = store.numbers(REGION, trellis_store::Kind::Log, 0, 10).unwrap();
    assert!(logs.iter().all(|log| log & 0xffff == 2), "nothing is kept for who is gone: {logs:x?}");
}

/// Processes allocate, hand over, reallocate and free, in an order determined by a seed.
fn at_random(store: &Arc<dyn Store>, seed: u64, operations: u64) {
    let words = Words::new(BYTES, false);
    let processes: Vec<Process> = (1..=3).map(|member| process(store, &words, member)).collect();
    let (mut random, mut blocks) = (Random::new(seed), Vec::<(Range<u64>, u64)>::new());
    for step in 0..operations {
        let who = &processes[random.index(3)];
        if random.percent(52) && blocks.len() < 20_000 {
            let bytes = size(&mut random, 300_000);
            let Ok(address) = who.heap.malloc(bytes) else { continue };
            who.release();
            words.fill(&(address..address + bytes), step << 20);
            blocks.push((address..address + bytes, step << 20));
        } else if !blocks.is_empty() {
            let (block, tag) = blocks.swap_remove(random.index(blocks.len()));
            assert!(words.holds(&block, tag), "step {step}: block {block:x?} lost its contents");
            if !random.once_in(4) {
                who.heap.free(block.start).unwrap();
                continue;
            }
            let bytes = size(&mut random, 10_000).max(1);
            let now = who.heap.realloc(block.start, bytes).unwrap();
            who.release();
            words.fill(&(now..now + bytes), tag);
            blocks.push((now..now + bytes, tag));
        }
    }
    for (index, (block, tag)) in blocks.into_iter().enumerate() {
        assert!(words.holds(&block, tag), "block {block:x?} lost its contents");
        processes[index % 3].heap.free(block.start).unwrap();
    }
    for _ in 0..2 {
        processes.iter().for_each(|process| process.heap.settle(true).unwrap());
    }
    for process in &processes {
        assert_eq!(process.heap.statistics(), Statistics::default(), "nothing is held, and nothing went astray");
    }
    assert_eq!(processes[0].heap.owners().unwrap(), [0; 0]);
    assert!(words.released.load(Ordering::Relaxed) > 0);
}

#[test]
fn processes_share_a_heap_at_random() {
    with_seed("processes_share_a_heap_at_random", |seed| {
        at_random(&embedded().0, seed, super::tests::operations() / 5)
    });
}

#[test]
fn processes_share_a_heap_at_the_same_time() {
    with_seed("processes_share_a_heap_at_the_same_time", |seed| {
        let (store, words) = embedded();
        let processes: Vec<Process> = (1..=3).map(|member| process(&store, &words, member)).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| std::sync::mpsc::channel()).unzip();
        std::thread::scope(|scope| {
            for ((number, receiver), process) in receivers.into_iter().enumerate().zip(&processes) {
                let (words, senders) = (&words, senders.clone());
                scope.spawn(move || {
                    let mut random = Random::for_purpose(seed, number as u64);
                    let check = |(block, tag): (Range<u64>, u64)| {
                        assert!(words.holds(&block, tag), "block {block:x?} lost its contents");
                        process.heap.free(block.start).unwrap();
                    };
                    for step in 0..super::tests::operations() / 10 {
                        let bytes = size(&mut random, 50_000);
                        let Ok(address) = process.heap.malloc(bytes) else { continue };
                        let (block, tag) = (address..address + bytes, (step << 8 | number as u64) << 20);
                        words.fill(&block, tag);
                        senders[random.index(3)].send((block, tag)).unwrap();
                        (0..2).filter_map(|_| receiver.try_recv().ok()).for_each(check);
                    }
                    drop(senders);
                    receiver.iter().for_each(check);
                });
            }
            drop(senders);
        });
        for _ in 0..2 {
            processes.iter().for_each(|process| process.heap.settle(true).unwrap());
        }
        assert!(processes.iter().all(|process| process.heap.statistics() == Statistics::default()));
    });
}

#[test]
fn a_shared_number_that_grows_is_one_call_for_each_allocation() {
    let (store, words) = embedded();
    let heaps: Vec<(Heap, Arc<Counted>)> = (1..=2)
        .map(|member| {
            let counted = Counted::new(Arc::clone(&store));
            let share = Share { store: counted.clone(), region: REGION, member };
            (Heap::shared(BASE..BASE + BYTES, Kind::Bump, words.clone(), share).unwrap(), counted)
        })
        .collect();
    let mut blocks: Vec<u64> = (0..200).map(|index| heaps[index % 2].0.aligned(64, 100).unwrap()).collect();
    assert_eq!(heaps[0].1.counts().calls(), 100);
    blocks.sort_unstable();
    assert!(blocks.windows(2).all(|pair| pair[0] + 100 <= pair[1]));
    assert!(matches!(heaps[0].0.malloc(BYTES), Err(HeapError::NoRoom(_))));
    assert!(heaps[1].0.malloc(16).is_ok(), "what was refused took nothing");
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let (store, words) = embedded();
    let share = Share { store: Arc::clone(&store), region: REGION, member: 1 };
    let refused = Heap::shared(BASE..BASE + BYTES, Kind::FirstFit, words.clone(), share.clone()).unwrap_err();
    assert!(refused.to_string().contains("use `scalable`"), "{refused}");
    let a = process(&store, &words, 1);
    a.heap.malloc(1).unwrap();
    let other = Heap::shared(BASE..BASE + BYTES / 2, Kind::Scalable, words, share).unwrap();
    let refused = other.malloc(1).unwrap_err().to_string();
    assert!(refused.contains("give every process the same size"), "{refused}");
}

#[test]
fn everything_can_be_allocated_by_one_and_then_by_the_other() {
    let (store, words) = embedded();
    let (a, b) = (process(&store, &words, 1), process(&store, &words, 2));
    for process in [&a, &b, &a] {
        let all = process.heap.malloc(BYTES).unwrap();
        assert!(matches!(process.heap.malloc(1), Err(HeapError::NoRoom(_))));
        process.heap.free(all).unwrap();
        process.heap.settle(false).unwrap();
    }
}

#[test]
fn processes_share_a_heap_on_redis() {
    let Some(redis) = RedisServer::start("processes_share_a_heap_on_redis", &[]) else { return };
    let store = trellis_store::open(&redis.socket_url()).unwrap();
    with_seed("processes_share_a_heap_on_redis", |seed| at_random(&store, seed, super::tests::operations() / 50));
}
