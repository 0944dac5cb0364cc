//! Tests the order in which a shared heap calls the store and publishes or refreshes memory: memory passes to another
//! process only after its content was published, and memory from another process is used only after a refresh.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trellis_store::stores::embedded::Embedded;
use trellis_store::wrap::{Call, Wrapper};
use trellis_store::{Kind as KeyKind, Operation, Store, StoreError};

use super::*;
use crate::synchronisation::member;

const BASE: u64 = 0x2000_0000_0000;
const BYTES: u64 = 64 << 20;
const REGION: u32 = 7;

/// The actions of one process, in order. It serves as the process's memory and stands in front of its store.
struct Trace {
    store: Arc<dyn Store>,
    done: Mutex<Vec<&'static str>>,
    refuses_directory: AtomicBool,
}

impl Trace {
    fn say(&self, what: &'static str) {
        lock(&self.done).push(what);
    }

    /// The actions since the last query.
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *lock(&self.done))
    }
}

impl Wrapper for Trace {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn pass<T>(&self, call: Call<'_>, on: impl FnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let Call::Apply(operations) = call else { return on(&*self.store) };
        for operation in operations {
            match operation {
                // Other comparisons concern members' records.
                Operation::CompareAndSwap { key, .. } if key.kind() == KeyKind::Heap => {
                    if self.refuses_directory.load(Ordering::Relaxed) {
                        return Err(StoreError::Protocol { store: "test".to_owned(), reason: "not now".to_owned() });
                    }
                    self.say("directory");
                }
                Operation::Append { .. } => self.say("tell"),
                Operation::Entries { .. } => self.say("read mail"),
                Operation::Trim { .. } => self.say("forget mail"),
                _ => {}
            }
        }
        on(&*self.store)
    }
}

/// The memory of a process; reads and writes are not examined.
struct Spoken(Arc<Trace>);

impl Memory for Spoken {
    fn released(&self, _: Range<u64>) -> bool {
        false
    }

    fn fresh(&self, _: Range<u64>) {}

    fn zero(&self, _: Range<u64>) {}

    fn copy(&self, _: u64, _: u64, _: u64) {}

    // SAFETY: it touches nothing.
    unsafe fn write(&self, _: u64, _: &[u8]) {}

    fn publish(&self) -> Result<(), HeapError> {
        self.0.say("publish");
        Ok(())
    }

    fn refresh(&self) -> Result<(), HeapError> {
        self.0.say("refresh");
        Ok(())
    }
}

struct Process {
    heap: Heap,
    trace: Arc<Trace>,
}

fn process(store: &Arc<dyn Store>) -> Process {
    let member = member::join(&**store, REGION, Duration::from_secs(10)).unwrap();
    let (done, refuses_directory) = (Mutex::default(), AtomicBool::new(false));
    let trace = Arc::new(Trace { store: Arc::clone(store), done, refuses_directory });
    let share = Share { store: trace.clone(), region: REGION, member };
    let heap = Heap::shared(BASE..BASE + BYTES, Kind::Scalable, Arc::new(Spoken(trace.clone())), share).unwrap();
    Process { heap, trace }
}

fn two() -> (Process, Process) {
    let store: Arc<dyn Store> = Arc::new(Embedded::new());
    (process(&store), process(&store))
}

#[test]
fn a_block_is_told_after_its_bytes_and_taken_before_it_is_used() {
    let (owner, other) = two();
    let block = owner.heap.malloc(100).unwrap();
    owner.trace.take();
    other.heap.free(block).unwrap();
    other.heap.settle(false).unwrap();
    let steps = other.trace.take();
    assert_eq!(steps[..2], ["publish", "tell"], "{steps:?}");
    owner.heap.settle(false).unwrap();
    let took = owner.trace.take();
    // The mail is deleted first: a process that takes over from a dead owner must not free the blocks once more.
    assert_eq!(took[..3], ["read mail", "forget mail", "refresh"], "{took:?}");
}

#[test]
fn memory_goes_back_after_its_bytes_and_is_refreshed_by_who_gets_it() {
    let (before, after) = two();
    let block = before.heap.malloc(BYTES - (1 << 20)).unwrap();
    before.heap.free(block).unwrap();
    before.trace.take();
    before.heap.settle(false).unwrap();
    let gave = before.trace.take();
    let back = gave.iter().position(|done| *done == "directory").expect("its segments go back");
    assert!(gave[..back].contains(&"publish"), "{gave:?}");
    after.heap.malloc(BYTES - (1 << 20)).unwrap();
    let took = after.trace.take();
    let got = took.iter().position(|done| *done == "directory").expect("it gets segments");
    assert!(took[got..].contains(&"refresh"), "somebody else had them: {took:?}");
}

#[test]
fn memory_that_nobody_had_needs_no_refresh() {
    let (one, _) = two();
    one.heap.malloc(100).unwrap();
    assert_eq!(one.trace.take(), ["directory", "read mail"]);
}

#[test]
fn memory_that_cannot_go_back_stays_in_use() {
    let (one, _) = two();
    let block = one.heap.malloc(10 << 20).unwrap();
    one.heap.free(block).unwrap();
    one.trace.refuses_directory.store(true, Ordering::Relaxed);
    assert!(one.heap.settle(false).is_err());
    // The store still refuses, so this comes from local memory.
    assert_eq!(one.heap.malloc(10 << 20).unwrap(), block);
}
