//! Tests a client that ends at every call of a release: others see all of the release or none of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trellis_store::{
    Applied, Atomic, Capabilities, Change, Expect, Guard, Key, Kind, Operation, Outcome, Store, StoreError,
};

use super::entry::{Notice, Patch};
use super::log::{Coherence, Collected, Copies, ENTRIES_KEPT, ENTRIES_READ_MAX, Identity, NoCopies};
use super::{Shared, keys};
use crate::error::StoredError;
use crate::synchronisation::member::key as member_key;

const REGION: u32 = 7;

/// A store with smaller limits, whose client ends at a chosen call: before it is carried out, or before its answer
/// arrives.
struct Mortal {
    inner: Arc<dyn Store>,
    can: Capabilities,
    calls: AtomicUsize,
    /// The call at which the client ends, and whether that call is still carried out.
    end: (usize, bool),
    /// Whether the client lives again.
    is_back: AtomicBool,
}

impl Mortal {
    fn new(inner: &Arc<dyn Store>, shape: Shape, end: (usize, bool)) -> Arc<Mortal> {
        let can = match shape {
            Shape::OneCall => inner.capabilities(),
            Shape::SmallCalls => Capabilities { operations_max: 12, call_bytes_max: 1024, ..inner.capabilities() },
            Shape::Control => Capabilities { atomic: Atomic::Control, ..inner.capabilities() },
            Shape::SmallControl => Capabilities {
                atomic: Atomic::Control,
                operations_max: 12,
                call_bytes_max: 1024,
                ..inner.capabilities()
            },
        };
        Arc::new(Mortal {
            inner: Arc::clone(inner),
            can,
            calls: AtomicUsize::new(0),
            end,
            is_back: AtomicBool::new(false),
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn call<T>(&self, what: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let gone = StoreError::Unreachable { store: "mortal".to_owned(), reason: "the client ended".to_owned() };
        let (end, carried_out) = self.end;
        if call < end || self.is_back.load(Ordering::SeqCst) {
            return what();
        }
        if call == end && carried_out {
            what()?;
        }
        Err(gone)
    }

    fn check(&self, operations: &[Operation]) {
        assert!(operations.len() <= self.can.operations_max, "{} steps", operations.len());
        let control = operations.iter().filter(|operation| operation.key().kind().is_control()).count();
        assert!(
            self.can.atomic == Atomic::Call || control == 0 || control == operations.len(),
            "a call mixes control keys and others: {operations:?}"
        );
    }
}

impl Store for Mortal {
    fn name(&self) -> &str {
        "mortal"
    }

    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.call(|| self.inner.get_many(keys))
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        self.check(operations);
        self.call(|| self.inner.apply(operations, guard))
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        self.check(operations);
        self.call(|| self.inner.apply_when(operations, guard, deadline))
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        self.call(|| self.inner.numbers(region, kind, from, count))
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.call(|| self.inner.names(region, after, count))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    OneCall,
    SmallCalls,
    Control,
    SmallControl,
}

const SHAPES: [Shape; 4] = [Shape::OneCall, Shape::SmallCalls, Shape::Control, Shape::SmallControl];

/// Copies as a list of changes.
struct List {
    member: u64,
    changes: Mutex<Vec<Arc<Patch>>>,
    redo_records: AtomicU64,
    notices: Mutex<Vec<Notice>>,
    settled: AtomicUsize,
}

impl List {
    fn new(member: u64) -> Arc<List> {
        Arc::new(List {
            member,
            changes: Mutex::default(),
            redo_records: AtomicU64::new(0),
            notices: Mutex::default(),
            settled: AtomicUsize::new(0),
        })
    }

    fn change(&self, page: u64, offset: u16, bytes: &[u8]) {
        self.changes.lock().unwrap().push(Arc::new(Patch { page, runs: vec![(offset, bytes.to_vec())] }));
    }
}

impl Copies for List {
    fn collect(&self, bytes_max: usize) -> Result<Collected, StoredError> {
        let mut changes = self.changes.lock().unwrap();
        let mut bytes = 0;
        let fitting = changes.iter().take_while(|patch| {
            bytes += patch.bytes();
            bytes <= bytes_max
        });
        let count = fitting.count();
        let patches: Vec<_> = changes.drain(..count).collect();
        Ok(Collected { patches, more: !changes.is_empty(), ..Collected::default() })
    }

    fn staged(&self, _redo_record: u64, _patches: &[Arc<Patch>]) {}

    fn next_redo_record(&self) -> u64 {
        keys::redo_record_number(self.member, self.redo_records.fetch_add(1, Ordering::SeqCst))
    }

    fn settled(&self) {
        self.settled.fetch_add(1, Ordering::SeqCst);
    }

    fn apply_notices(&self, notices: &[Notice]) -> Result<(), StoredError> {
        self.notices.lock().unwrap().extend_from_slice(notices);
        Ok(())
    }
}

fn member(store: Arc<dyn Store>, number: u64, copies: Arc<dyn Copies>) -> Coherence {
    let who = Identity {
        name: "test".to_owned(),
        region: REGION,
        member: number,
        lease: Duration::from_millis(20),
        is_private: false,
    };
    Coherence::new(store, who, copies, 0)
}

fn world() -> Arc<dyn Store> {
    let store = trellis_store::open("embedded:").expect("it needs nothing");
    for number in 1..=3 {
        let alive =
            Operation::Change { key: member_key(REGION, number), change: Change::Put(1u64.to_le_bytes().to_vec()) };
        store.apply(&[alive], None).expect("it is in this process");
    }
    store
}

fn lock() -> Key {
    Key::new(REGION, Kind::Synchronisation, 1)
}

fn set_lock(from: &[u8], to: &[u8]) -> Operation {
    let expect = if from.is_empty() { Expect::Absent } else { Expect::Value(from.to_vec()) };
    Operation::CompareAndSwap { key: lock(), expect, change: Change::Put(to.to_vec()) }
}

fn pages(store: &dyn Store) -> BTreeMap<u64, Vec<u8>> {
    let numbers = store.numbers(REGION, Kind::Memory, 0, 1000).expect("readable");
    let keys: Vec<Key> = numbers.iter().map(|&number| Key::page(REGION, number)).collect();
    let values = store.get_many(&keys).expect("readable");
    numbers.into_iter().zip(values.into_iter().flatten()).collect()
}

fn many_changes(list: &List, round: u8) {
    for page in 0..9 {
        list.change(page, 10 * u16::from(round), &[round; 100]);
        list.change(page, 3000, &[round; 3]);
    }
}

/// The content of the pages after the release of these rounds.
fn expected(rounds: &[u8]) -> BTreeMap<u64, Vec<u8>> {
    let list = List::new(9);
    let mut pages = BTreeMap::new();
    for round in rounds {
        many_changes(&list, *round);
    }
    for patch in list.changes.lock().unwrap().iter() {
        let page: &mut Vec<u8> = pages.entry(patch.page).or_insert_with(|| vec![0; 4096]);
        patch.apply(page);
    }
    pages.values_mut().for_each(|page| page.truncate(3003));
    pages
}

#[test]
fn a_client_that_ends_at_any_call_leaves_all_or_nothing() {
    for shape in SHAPES {
        let whole = Mortal::new(&world(), shape, (usize::MAX, false));
        let list = List::new(1);
        let first = member(Arc::clone(&whole) as Arc<dyn Store>, 1, Arc::clone(&list) as Arc<dyn Copies>);
        many_changes(&list, 1);
        first.release(&[set_lock(b"", b"free 1")], None).expect("nothing fails");
        let calls = whole.calls();
        if shape == Shape::OneCall {
            assert_eq!(calls, 1, "a release is one call");
        }
        for end in 0..=calls {
            for carried_out in [false, true] {
                ends_at(shape, end, carried_out);
            }
        }
    }
}

fn ends_at(shape: Shape, end: usize, carried_out: bool) {
    let what = format!("{shape:?}, the client ends at call {end} (carried out: {carried_out})");
    let store = world();
    let mortal = Mortal::new(&store, shape, (end, carried_out));
    let list = List::new(1);
    let first = member(mortal, 1, Arc::clone(&list) as Arc<dyn Copies>);
    many_changes(&list, 1);
    let acknowledged = first.release(&[set_lock(b"", b"free 1")], None).is_ok();
    drop(first);

    let others = Mortal::new(&store, shape, (usize::MAX, false));
    let second_list = List::new(2);
    let second = member(others, 2, Arc::clone(&second_list) as Arc<dyn Copies>);
    let taken = second.acquire(&[set_lock(b"free 1", b"held 2")], None, None).expect(&what);
    let is_released = matches!(taken, Applied::Done(_));
    assert!(is_released || !acknowledged, "{what}: an acknowledged release is lost");
    let found = pages(&*store);
    if is_released {
        assert_eq!(found, expected(&[1]), "{what}: the lock is free, so everything is there");
        assert!(!second_list.notices.lock().unwrap().is_empty(), "{what}: and is noticed");
    } else {
        assert_eq!(found, BTreeMap::new(), "{what}: the lock is not free, so nothing is there");
    }
    assert_eq!(store.get_many(&[keys::pending(REGION)]).expect(&what), [None], "{what}: nothing is left half done");

    // The next release works.
    many_changes(&second_list, 2);
    let next = if is_released { set_lock(b"held 2", b"free 2") } else { set_lock(b"", b"free 2") };
    assert!(matches!(second.release(&[next], None).expect(&what), Applied::Done(_)), "{what}");
    let rounds: &[u8] = if is_released { &[1, 2] } else { &[2] };
    assert_eq!(pages(&*store), expected(rounds), "{what}: the next release lies on top");
}

/// The call at which a release becomes part of the region, with nothing of it in the pages yet.
fn commit_of(shape: Shape) -> usize {
    let is_pending = |end: &usize| {
        let store = world();
        let list = List::new(1);
        many_changes(&list, 1);
        let ending = Mortal::new(&store, shape, (*end, true));
        let _ = member(ending, 1, list as Arc<dyn Copies>).release(&[], None);
        store.get_many(&[keys::pending(REGION)]).expect("readable") != [None]
    };
    (0..100).find(is_pending).expect("something is pending at some time")
}

#[test]
fn a_helper_that_ends_at_any_call_is_helped_in_turn() {
    for shape in [Shape::SmallCalls, Shape::SmallControl] {
        let commit_at = commit_of(shape);
        for end in 0..12 {
            for carried_out in [false, true] {
                let what = format!("{shape:?}, the helper ends at call {end} (carried out: {carried_out})");
                let store = world();
                let list = List::new(1);
                many_changes(&list, 1);
                let first = member(Mortal::new(&store, shape, (commit_at, true)), 1, list as Arc<dyn Copies>);
                first.release(&[], None).expect_err("the client ended");
                let helper = member(Mortal::new(&store, shape, (end, carried_out)), 2, Arc::new(NoCopies));
                let helped = helper.acquire(&[], None, None).is_ok();
                let third = member(Mortal::new(&store, shape, (usize::MAX, false)), 3, Arc::new(NoCopies));
                if helped {
                    assert_eq!(pages(&*store), expected(&[1]), "{what}");
                }
                third.acquire(&[], None, None).expect(&what);
                assert_eq!(pages(&*store), expected(&[1]), "{what}");
            }
        }
    }
}

#[test]
fn a_slow_writer_changes_nothing_after_it_was_helped() {
    let store = world();
    let list = List::new(1);
    many_changes(&list, 1);
    let shape = Shape::SmallCalls;
    let slow = member(Mortal::new(&store, shape, (usize::MAX, false)), 1, Arc::clone(&list) as Arc<dyn Copies>);
    slow.release(&[], None).expect("nothing fails");
    // The record of a release that was finished meanwhile, as a suspended writer would still have it.
    let stale = super::entry::Pending {
        member: 1,
        release: 77,
        redo_records: Vec::new(),
        patches: vec![Patch { page: 0, runs: vec![(10, vec![0xee; 100])] }],
    };
    let before = pages(&*store);
    assert!(!slow.apply_patches_for_test(&stale).expect("the store works"), "it is told that it is late");
    assert_eq!(pages(&*store), before);
}

#[test]
fn a_refused_change_releases_nothing_and_the_next_release_has_it() {
    for shape in SHAPES {
        let store = world();
        let list = List::new(1);
        let one = member(Mortal::new(&store, shape, (usize::MAX, false)), 1, Arc::clone(&list) as Arc<dyn Copies>);
        many_changes(&list, 1);
        let Applied::Refused(refused, _) =
            one.release(&[Operation::Get { key: lock(), range: None }, set_lock(b"mine", b"free")], None).unwrap()
        else {
            panic!("{shape:?}: the lock is not ours");
        };
        assert_eq!((refused.step, refused.found), (1, None), "{shape:?}");
        assert_eq!(pages(&*store), BTreeMap::new(), "{shape:?}");
        assert_eq!(list.settled.load(Ordering::SeqCst), 0, "{shape:?}");
        many_changes(&list, 2);
        assert!(matches!(one.release(&[set_lock(b"", b"free")], None).unwrap(), Applied::Done(_)), "{shape:?}");
        assert_eq!(pages(&*store), expected(&[1, 2]), "{shape:?}");
        assert_eq!(list.settled.load(Ordering::SeqCst), 1, "{shape:?}");
    }
}

#[test]
fn a_release_whose_answer_was_lost_may_be_released_again() {
    for shape in SHAPES {
        for end in 0..20 {
            let what = format!("{shape:?}, the answer to call {end} is lost");
            let store = world();
            let list = List::new(1);
            let mortal = Mortal::new(&store, shape, (end, true));
            let one = member(Arc::clone(&mortal) as Arc<dyn Store>, 1, Arc::clone(&list) as Arc<dyn Copies>);
            many_changes(&list, 1);
            let _ = one.release(&[], None);
            mortal.calls.store(usize::MAX / 2, Ordering::SeqCst);
            // The connection is back.
            mortal.is_back.store(true, Ordering::SeqCst);
            many_changes(&list, 2);
            one.release(&[set_lock(b"", b"free")], None).expect(&what);
            assert_eq!(pages(&*store), expected(&[1, 2]), "{what}");
            assert_eq!(store.get_many(&[keys::pending(REGION)]).expect(&what), [None], "{what}");
        }
    }
}

#[test]
fn who_was_declared_dead_is_fenced() {
    for shape in SHAPES {
        let store = world();
        let list = List::new(1);
        let one = member(Mortal::new(&store, shape, (usize::MAX, false)), 1, Arc::clone(&list) as Arc<dyn Copies>);
        let dead = Operation::Change { key: member_key(REGION, 1), change: Change::Put(2u64.to_le_bytes().to_vec()) };
        store.apply(&[dead], None).unwrap();
        many_changes(&list, 1);
        let error = one.release(&[], None).expect_err("it is dead");
        assert!(matches!(error, StoredError::Fenced { member: 1, .. }), "{shape:?}: {error}");
        assert_eq!(pages(&*store), BTreeMap::new(), "{shape:?}");
    }
}

#[test]
fn an_acquire_is_one_call_and_tells_what_others_changed() {
    let store = world();
    let (one_list, two_list) = (List::new(1), List::new(2));
    let one = member(Arc::clone(&store), 1, Arc::clone(&one_list) as Arc<dyn Copies>);
    let counted = Mortal::new(&store, Shape::OneCall, (usize::MAX, false));
    let two = member(Arc::clone(&counted) as Arc<dyn Store>, 2, Arc::clone(&two_list) as Arc<dyn Copies>);
    one_list.change(3, 5, b"abc");
    one.release(&[], None).unwrap();
    one_list.change(4, 0, &[1; 2000]);
    one.release(&[], None).unwrap();
    two.acquire(&[], None, None).unwrap();
    assert_eq!(counted.calls(), 1);
    let small = Notice::Inline(vec![Patch { page: 3, runs: vec![(5, b"abc".to_vec())] }]);
    assert_eq!(*two_list.notices.lock().unwrap(), [small, Notice::Named(vec![(4, 1)])]);
    two.acquire(&[], None, None).unwrap();
    assert_eq!(two_list.notices.lock().unwrap().len(), 2, "nothing is told twice");
    two_list.change(3, 0, b"z");
    two.release(&[], None).unwrap();
    two.acquire(&[], None, None).unwrap();
    assert_eq!(two_list.notices.lock().unwrap().len(), 2, "nobody is told of what it did itself");
    let before = counted.calls();
    two.release(&[], None).unwrap();
    assert_eq!(counted.calls(), before, "a release of nothing is no call");
    one_list.change(1, 1, b"x");
    let Applied::Done(outcomes) = one.exchange(&[set_lock(b"", b"1")], None).unwrap() else {
        panic!("nothing refuses")
    };
    assert_eq!(outcomes, [Outcome::Changed]);
    assert_eq!(
        *one_list.notices.lock().unwrap(),
        [Notice::Inline(vec![Patch { page: 3, runs: vec![(0, b"z".to_vec())] }])]
    );
}

#[test]
fn who_is_far_behind_drops_everything_and_the_log_stays_short() {
    let store = world();
    let (one_list, two_list) = (List::new(1), List::new(2));
    let one = member(Arc::clone(&store), 1, Arc::clone(&one_list) as Arc<dyn Copies>);
    let two = member(Arc::clone(&store), 2, Arc::clone(&two_list) as Arc<dyn Copies>);
    for _ in 0..=ENTRIES_READ_MAX {
        one_list.change(1, 1, b"x");
        one.release(&[], None).unwrap();
    }
    two.acquire(&[], None, None).unwrap();
    assert_eq!(*two_list.notices.lock().unwrap(), [Notice::Everything]);
    for _ in 0..ENTRIES_KEPT + 1024 {
        one_list.change(1, 1, b"x");
        one.release(&[], None).unwrap();
    }
    let kept = Operation::Entries { log: keys::log(REGION), after: 0, count: 1 };
    let Applied::Done(outcomes) = store.apply(&[kept], None).unwrap() else { panic!("a read is never refused") };
    let Outcome::Entries { last, first, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(last - first < ENTRIES_KEPT + 1024, "{first} to {last} are kept");
    two.acquire(&[], None, None).unwrap();
    assert_eq!(two_list.notices.lock().unwrap().len(), 2, "what was forgotten may have been anything");
}
