//! One test suite for every store.
//!
//! `run(name, open)` runs every case with a region of its own. `open` returns a handle to the same store each time it is
//! called (a separate client if the store is a server). A case must never access anything outside its region, and must
//! leave nothing behind.

#![allow(dead_code, reason = "each test program uses its part")]

mod atomic;
mod listing;
mod logs;
pub(crate) mod model;
mod threads;
mod values;
mod waiting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trellis_store::{Applied, Change, Expect, Guard, Key, Kind, Operation, Outcome, Refused, Store};

/// Longer than any store needs for any operation.
const TIMEOUT: Duration = Duration::from_secs(30);

type Open<'a> = &'a (dyn Fn() -> Arc<dyn Store> + Sync);

/// The environment of a case.
pub(crate) struct Context<'a> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) open: Open<'a>,
    pub(crate) region: u32,
}

type Case = (&'static str, fn(&Context));

/// Runs every case, and fails with the names of the failed ones.
pub(crate) fn run(name: &str, open: Open) {
    run_cases(name, open, &all());
}

/// Runs the cases whose name contains `part`.
pub(crate) fn run_some(name: &str, open: Open, part: &str) {
    let cases: Vec<Case> = all().into_iter().filter(|(case, _)| case.contains(part)).collect();
    assert!(!cases.is_empty(), "no case is called {part}");
    run_cases(name, open, &cases);
}

fn all() -> Vec<Case> {
    [values::CASES, atomic::CASES, logs::CASES, threads::CASES, waiting::CASES, listing::CASES, model::CASES].concat()
}

fn run_cases(name: &str, open: Open, cases: &[Case]) {
    let mut failed = Vec::new();
    // A store that outlives the test must not show it what an earlier run left.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u32;
    for (number, (case, body)) in cases.iter().enumerate() {
        let region = (now.wrapping_add(100 * number as u32) & 0x3fff_ffff) + 1_000;
        let context = Context { store: open(), open, region };
        println!("{name}: {case} (region {region})");
        if catch_unwind(AssertUnwindSafe(|| body(&context))).is_err() {
            failed.push(*case);
        }
        context.clean_up();
    }
    assert!(failed.is_empty(), "{name} fails {failed:?}");
}

impl Context<'_> {
    /// A key of memory.
    pub(crate) fn page(&self, number: u64) -> Key {
        Key::page(self.region, number)
    }

    /// A control key.
    pub(crate) fn control(&self, number: u64) -> Key {
        Key::new(self.region, Kind::Synchronisation, number)
    }

    /// A log.
    pub(crate) fn log(&self, number: u64) -> Key {
        Key::new(self.region, Kind::Log, number)
    }

    pub(crate) fn apply(&self, operations: &[Operation]) -> Applied {
        self.store.apply(operations, None).expect("the store answers")
    }

    /// Makes a call that must not be refused.
    pub(crate) fn done(&self, operations: &[Operation]) -> Vec<Outcome> {
        match self.apply(operations) {
            Applied::Done(outcomes) => outcomes,
            other => panic!("{operations:?} gave {other:?}"),
        }
    }

    /// Makes a call that must be refused; returns the refusing step, and what it found.
    pub(crate) fn refused(&self, operations: &[Operation]) -> (usize, Option<Vec<u8>>) {
        match self.apply(operations) {
            Applied::Refused(Refused { step, found }, outcomes) => {
                assert_eq!(outcomes.len(), operations.len());
                (step, found)
            }
            other => panic!("{operations:?} gave {other:?}"),
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.store.get_many(std::slice::from_ref(key)).expect("the store answers").remove(0)
    }

    fn clean_up(&self) {
        for region in [self.region, self.region + 1] {
            for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Named) {
                for number in self.store.numbers(region, kind, 0, usize::MAX).unwrap_or_default() {
                    self.store.apply(&[delete(&Key::new(region, kind, number))], None).ok();
                }
            }
            for name in self.store.names(region, None, usize::MAX).unwrap_or_default() {
                self.store.apply(&[delete(&Key::named(region, &name))], None).ok();
            }
        }
    }
}

pub(crate) fn get(key: &Key) -> Operation {
    Operation::Get { key: key.clone(), range: None }
}

pub(crate) fn get_range(key: &Key, offset: u32, length: u32) -> Operation {
    Operation::Get { key: key.clone(), range: Some((offset, length)) }
}

pub(crate) fn put(key: &Key, bytes: &[u8]) -> Operation {
    Operation::Change { key: key.clone(), change: Change::Put(bytes.to_vec()) }
}

pub(crate) fn put_range(key: &Key, offset: u32, bytes: &[u8]) -> Operation {
    Operation::Change { key: key.clone(), change: Change::PutRange { offset, bytes: bytes.to_vec() } }
}

pub(crate) fn delete(key: &Key) -> Operation {
    Operation::Change { key: key.clone(), change: Change::Delete }
}

pub(crate) fn swap(key: &Key, expect: Expect, change: Change) -> Operation {
    Operation::CompareAndSwap { key: key.clone(), expect, change }
}

pub(crate) fn swap_value(key: &Key, expect: &[u8], to: &[u8]) -> Operation {
    swap(key, Expect::Value(expect.to_vec()), Change::Put(to.to_vec()))
}

pub(crate) fn add(key: &Key, offset: u32, width: u8, delta: i64) -> Operation {
    Operation::Add { key: key.clone(), offset, width, delta, bounds: None }
}

pub(crate) fn add_within(key: &Key, delta: i64, bounds: (i64, i64)) -> Operation {
    Operation::Add { key: key.clone(), offset: 0, width: 8, delta, bounds: Some(bounds) }
}

pub(crate) fn append(log: &Key, bytes: &[u8]) -> Operation {
    Operation::Append { log: log.clone(), bytes: bytes.to_vec() }
}

pub(crate) fn entries(log: &Key, after: u64, count: u32) -> Operation {
    Operation::Entries { log: log.clone(), after, count }
}

pub(crate) fn trim(log: &Key, upto: u64) -> Operation {
    Operation::Trim { log: log.clone(), upto }
}

pub(crate) fn guard(key: &Key, value: &[u8]) -> Guard {
    Guard { key: key.clone(), expect: Expect::Value(value.to_vec()) }
}

pub(crate) fn value(bytes: &[u8]) -> Outcome {
    Outcome::Value(Some(bytes.to_vec()))
}
