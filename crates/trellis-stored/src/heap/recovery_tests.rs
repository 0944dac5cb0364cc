//! Tests members of a shared heap that die at every call: their memory is reused, blocks that others know are not, and
//! a member that was only slow changes nothing any more.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use trellis_base::Random;
use trellis_store::stores::embedded::Embedded;
use trellis_store::wrap::{Failing, Fault};
use trellis_store::{Applied, Change, Key, Kind as KeyKind, Operation, Store};

use super::directory::Directory;
use super::tests::with_seed;
use super::*;
use crate::end;
use crate::liveness::Liveness;
use crate::synchronisation::member;

const BASE: u64 = 0x2000_0000_0000;
const BYTES: u64 = 256 << 20;
const REGION: u32 = 6;
/// The list of blocks that the processes of a test share, released together with the heap's changes.
const LIST: Key = Key::new(REGION, KeyKind::Directory, 99);
/// The approximate number of the program's blocks.
const BLOCKS: usize = 60;

/// Memory for tests that only examine the heap's own state.
struct Unseen;

impl Memory for Unseen {
    fn released(&self, _: Range<u64>) -> bool {
        false
    }

    fn fresh(&self, _: Range<u64>) {}

    fn zero(&self, _: Range<u64>) {}

    fn copy(&self, _: u64, _: u64, _: u64) {}

    // SAFETY: it touches nothing.
    unsafe fn write(&self, _: u64, _: &[u8]) {}
}

fn join(store: &Arc<dyn Store>) -> u64 {
    member::join(&**store, REGION, Duration::from_secs(10)).unwrap()
}

fn heap(store: &Arc<dyn Store>, member: u64) -> Heap {
    let share = Share { store: Arc::clone(store), region: REGION, member };
    Heap::shared(BASE..BASE + BYTES, Kind::Scalable, Arc::new(Unseen), share).unwrap()
}

/// Makes a member look killed: another process has its process number.
fn kill(store: &Arc<dyn Store>, number: u64) {
    let key = member::key(REGION, number);
    let Some(mut record) = store.get_many(std::slice::from_ref(&key)).unwrap().pop().flatten() else { return };
    let identity = end::identity();
    let at = record.len() - identity.len();
    assert_eq!(&record[at..], identity.as_bytes());
    record.push(b'0');
    store.apply(&[Operation::Change { key, change: Change::Put(record) }], None).unwrap();
}

fn release(store: &Arc<dyn Store>, heap: &Heap, member: u64, blocks: &BTreeMap<u64, u64>) -> Result<(), HeapError> {
    let value = blocks.iter().flat_map(|(at, bytes)| [at.to_le_bytes(), bytes.to_le_bytes()]).flatten().collect();
    let mut steps = heap.changes();
    steps.push(Operation::Change { key: LIST, change: Change::Put(value) });
    match store.apply(&steps, Some(&member::guard(REGION, member)))? {
        Applied::Done(_) => Ok(()),
        other => Err(HeapError::Misuse(format!("{other:?}"))),
    }
}

/// Does the work of a process until it ends or its store fails.
fn work(store: &Arc<dyn Store>, member: u64, random: &mut Random) -> Result<(), HeapError> {
    let heap = heap(store, member);
    heap.take_over_dead()?;
    let mut known = list(store)?;
    for _ in 0..3 {
        for _ in 0..25 {
            if known.len() > BLOCKS {
                let at = *known.keys().nth(random.index(known.len())).unwrap();
                // Everything belongs to the only living process.
                heap.free(at)?;
                known.remove(&at);
            }
            let bytes = if random.once_in(20) { 1_500_000 } else { random.below(5000) + 1 };
            let at = heap.malloc(bytes)?;
            let before = known.range(..=at).next_back().map_or(0, |(at, bytes)| at + bytes);
            let after = known.range(at..).next().map_or(u64::MAX, |(at, _)| *at);
            assert!(before <= at && at + bytes <= after, "block {at:#x} of {bytes} is one that others know");
            known.insert(at, bytes);
        }
        release(store, &heap, member, &known)?;
    }
    Ok(())
}

/// The blocks that all processes know: address and size.
fn list(store: &Arc<dyn Store>) -> Result<BTreeMap<u64, u64>, HeapError> {
    let value = store.get_many(&[LIST])?.pop().flatten().unwrap_or_default();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    Ok(value.chunks_exact(16).map(|entry| (number(&entry[..8]), number(&entry[8..]))).collect())
}

#[test]
fn what_the_dead_had_is_used_again_at_whatever_call_they_died() {
    let test = "what_the_dead_had_is_used_again_at_whatever_call_they_died";
    with_seed(test, |seed| {
        let (store, mut random) = (Arc::new(Embedded::new()) as Arc<dyn Store>, Random::new(seed));
        let mut died = 0;
        for round in 0.. {
            let (at, applied) = (round / 6 + 1, round % 2 == 0);
            let failing = Failing::new(Arc::clone(&store), at, Fault::End { applied });
            let member = join(&store);
            let ended = work(&(failing.clone() as Arc<dyn Store>), member, &mut random);
            kill(&store, member);
            if failing.calls() < at {
                ended.unwrap();
                break;
            }
            died += 1;
        }
        assert!(died > 40, "they died {died} times");
        let untouched = Directory::new(Arc::clone(&store), REGION, 0, (BYTES >> 20) as u32).look().unwrap().untouched;
        assert!(untouched < 80, "{untouched} MiB were used for 20, by processes that died {died} times");
        let last = join(&store);
        let heap = heap(&store, last);
        heap.take_over_dead().unwrap();
        assert_eq!(heap.statistics().blocks, list(&store).unwrap().len() as u64, "nothing but what is known was kept");
        list(&store).unwrap().keys().for_each(|at| heap.free(*at).unwrap());
        heap.settle(true).unwrap();
        assert_eq!((heap.statistics(), heap.owners().unwrap()), (Statistics::default(), vec![]));
        let said = store.numbers(REGION, KeyKind::Heap, 1, 1000).unwrap();
        assert_eq!(said, [0; 0], "of memory that nobody has nothing is said");
    });
}

/// A member with blocks, all of them released.
fn settled(store: &Arc<dyn Store>, count: u64) -> (u64, Heap, BTreeMap<u64, u64>) {
    let member = join(store);
    let heap = heap(store, member);
    let blocks: BTreeMap<u64, u64> =
        (0..count).map(|index| (heap.malloc(index * 37 % 3000 + 1).unwrap(), index * 37 % 3000 + 1)).collect();
    release(store, &heap, member, &blocks).unwrap();
    (member, heap, blocks)
}

#[test]
fn of_two_that_take_over_each_block_is_ones() {
    for _ in 0..20 {
        let store = Arc::new(Embedded::new()) as Arc<dyn Store>;
        let (dead, _, blocks) = settled(&store, 2000);
        kill(&store, dead);
        let barrier = Barrier::new(2);
        let heaps: Vec<Heap> = std::thread::scope(|scope| {
            let one = || {
                let heap = heap(&store, join(&store));
                barrier.wait();
                heap.take_over_dead().unwrap();
                heap
            };
            let threads = [scope.spawn(one), scope.spawn(one)];
            threads.map(|thread| thread.join().unwrap()).into()
        });
        let have: u64 = heaps.iter().map(|heap| heap.statistics().blocks).sum();
        assert_eq!(have, blocks.len() as u64, "each block has one owner");
        for at in blocks.keys() {
            heaps[0].free(*at).unwrap();
        }
    }
}

#[test]
fn who_was_only_slow_is_told_and_changes_nothing() {
    let store = Arc::new(Embedded::new()) as Arc<dyn Store>;
    let (slow, slow_heap, blocks) = settled(&store, 100);
    let (_, other_heap, of_other) = settled(&store, 100);
    let theirs = *of_other.keys().next().unwrap();
    slow_heap.free(theirs).unwrap();
    kill(&store, slow);
    other_heap.take_over_dead().unwrap();
    assert_eq!(other_heap.statistics().blocks, 200);
    let assert_fenced = |error: HeapError| {
        assert!(matches!(error, HeapError::Fenced { .. }), "{error}");
        assert!(error.to_string().contains("declared this one (member 1) dead"), "{error}");
    };
    assert_fenced(slow_heap.settle(false).unwrap_err());
    assert_fenced(slow_heap.malloc(50 << 20).unwrap_err());
    assert!(release(&store, &slow_heap, slow, &blocks).is_err());
    other_heap.settle(false).unwrap();
    assert_eq!((other_heap.statistics().blocks, other_heap.statistics().strays), (200, 0), "nothing came of its free");
    other_heap.free(theirs).unwrap();
}

#[test]
fn who_grows_takes_first_what_the_dead_had() {
    let store = Arc::new(Embedded::new()) as Arc<dyn Store>;
    let (_, living, _) = settled(&store, 10);
    let (dead, heap_of_dead, _) = settled(&store, 10);
    heap_of_dead.malloc(60 << 20).unwrap();
    kill(&store, dead);
    living.take_over_dead().unwrap();
    assert_eq!(living.owners().unwrap(), [1]);
    let untouched = || Directory::new(Arc::clone(&store), REGION, 0, (BYTES >> 20) as u32).look().unwrap().untouched;
    let before = untouched();
    living.malloc(59 << 20).unwrap();
    assert_eq!(untouched(), before, "60 MiB that were never released are free");
}

#[test]
fn where_stores_are_seen_at_once_every_block_may_be_known() {
    struct AtOnce;
    impl Memory for AtOnce {
        fn released(&self, _: Range<u64>) -> bool {
            false
        }

        fn fresh(&self, _: Range<u64>) {}

        fn zero(&self, _: Range<u64>) {}

        fn copy(&self, _: u64, _: u64, _: u64) {}

        // SAFETY: it touches nothing.
        unsafe fn write(&self, _: u64, _: &[u8]) {}

        fn is_seen_at_once(&self) -> bool {
            true
        }
    }
    let store = Arc::new(Embedded::new()) as Arc<dyn Store>;
    let dead = join(&store);
    let share = Share { store: Arc::clone(&store), region: REGION, member: dead };
    let heap_of_dead = Heap::shared(BASE..BASE + BYTES, Kind::Scalable, Arc::new(AtOnce), share).unwrap();
    // Nothing is released, but the pointers are known nevertheless.
    let small: Vec<u64> = (0..500).map(|index| heap_of_dead.malloc(index * 7 + 1).unwrap()).collect();
    let large = heap_of_dead.malloc(3 << 20).unwrap();
    kill(&store, dead);
    let living = heap(&store, join(&store));
    living.take_over_dead().unwrap();
    for _ in 0..5000 {
        let at = living.malloc(2000).unwrap();
        assert!(!small.contains(&at) && !(large..large + (3 << 20)).contains(&at), "{at:#x} is known to others");
    }
    small.iter().for_each(|at| living.free(*at).unwrap());
    living.free(large).unwrap();
}

#[test]
fn silence_is_a_lease_over_two_more_looks() {
    let store = Arc::new(Embedded::new()) as Arc<dyn Store>;
    let lease = Duration::from_secs(10);
    let [me, silent, living] = [0, 1, 2].map(|_| join(&store));
    let liveness = Liveness::new(Arc::clone(&store), REGION, me);
    let begin = Instant::now();
    let gone = |after: Duration| liveness.gone(&[me, silent, living], begin + after).unwrap();
    assert_eq!(gone(Duration::ZERO), [0; 0]);
    assert!(!liveness.is_time(begin + lease / 4) && liveness.is_time(begin + lease / 2));
    // The store could not be reached for an hour: no process could have given a heartbeat.
    assert_eq!(gone(Duration::from_secs(3_600)), [0; 0]);
    assert_eq!(gone(Duration::from_secs(3_601)), [0; 0], "too soon after the last look");
    assert!(member::heartbeat(&*store, REGION, living).unwrap());
    assert_eq!(gone(Duration::from_secs(3_605)), [silent]);
    assert!(!member::heartbeat(&*store, REGION, silent).unwrap(), "it was replaced");
    assert_eq!(gone(Duration::from_secs(3_606)), [silent], "and stays so");
    member::leave(&*store, REGION, living).unwrap();
    assert_eq!(gone(Duration::from_secs(3_607)), [silent, living], "who left is gone, too");
}

#[test]
fn a_free_that_the_dead_never_read_is_done_once_at_whatever_call_who_takes_over_dies() {
    for at in 1..30 {
        for applied in [true, false] {
            let store = Arc::new(Embedded::new()) as Arc<dyn Store>;
            let (_, living, _) = settled(&store, 1);
            let (dead, _, blocks) = settled(&store, 300);
            let freed: Vec<u64> = blocks.keys().copied().step_by(3).collect();
            freed.iter().for_each(|block| living.free(*block).unwrap());
            living.settle(false).unwrap();
            kill(&store, dead);
            let failing = Failing::new(Arc::clone(&store), at, Fault::End { applied }) as Arc<dyn Store>;
            let first = join(&store);
            let _ = heap(&failing, first).take_over_dead();
            kill(&store, first);
            living.take_over_dead().unwrap();
            assert_eq!(living.statistics().blocks, 1 + 200, "call {at}, applied: {applied}");
        }
    }
}

#[test]
fn what_does_not_fit_a_release_is_unknown_until_it_is_over() {
    let store = Arc::new(Embedded::new()) as Arc<dyn Store>;
    let (dead, heap_of_dead, blocks) = settled(&store, 200);
    let large = heap_of_dead.malloc(5 << 20).unwrap();
    let changes = heap_of_dead.changes();
    let withheld = heap_of_dead.withheld(&changes);
    assert_eq!(withheld.len(), changes.len());
    store.apply(&withheld, Some(&member::guard(REGION, dead))).unwrap();
    kill(&store, dead);
    let living = heap(&store, join(&store));
    living.take_over_dead().unwrap();
    for _ in 0..2000 {
        let at = living.malloc(3000).unwrap();
        assert!(!blocks.contains_key(&at) && !(large..large + (5 << 20)).contains(&at), "{at:#x} may be known");
    }
}
