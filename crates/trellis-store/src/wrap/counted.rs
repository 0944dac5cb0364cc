//! Counts the calls of a store.
//!
//! Promises exact numbers: a call is counted once, when it begins, whatever its result and however long it waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Call, Wrapper};
use crate::error::StoreError;
use crate::operation::Operation;
use crate::store::Store;

/// A store whose calls are counted.
pub struct Counted {
    store: Arc<dyn Store>,
    gets: AtomicU64,
    reads: AtomicU64,
    changes: AtomicU64,
    waits: AtomicU64,
    listings: AtomicU64,
    keys: AtomicU64,
    steps: AtomicU64,
}

/// The number of calls, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of [`Store::get_many`].
    pub gets: u64,
    /// Calls of [`Store::apply`] that only read.
    pub reads: u64,
    /// Calls of [`Store::apply`] that change something.
    pub changes: u64,
    /// Calls of [`Store::apply_when`].
    pub waits: u64,
    /// Calls of [`Store::numbers`] and [`Store::names`].
    pub listings: u64,
    /// Keys in all calls of [`Store::get_many`].
    pub keys: u64,
    /// Steps in all calls of [`Store::apply`] and [`Store::apply_when`].
    pub steps: u64,
}

impl Counts {
    /// All calls.
    pub fn calls(&self) -> u64 {
        self.gets + self.reads + self.changes + self.waits + self.listings
    }

    /// The calls since `before`.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            gets: self.gets - before.gets,
            reads: self.reads - before.reads,
            changes: self.changes - before.changes,
            waits: self.waits - before.waits,
            listings: self.listings - before.listings,
            keys: self.keys - before.keys,
            steps: self.steps - before.steps,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(
            out,
            "{} calls (get {}, read {}, change {}, wait {}, list {}; {} keys, {} steps)",
            self.calls(),
            self.gets,
            self.reads,
            self.changes,
            self.waits,
            self.listings,
            self.keys,
            self.steps
        )
    }
}

impl Counted {
    /// Counts the calls of a store from now on.
    pub fn new(store: Arc<dyn Store>) -> Arc<Counted> {
        Arc::new(Counted {
            store,
            gets: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            listings: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        })
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            gets: load(&self.gets),
            reads: load(&self.reads),
            changes: load(&self.changes),
            waits: load(&self.waits),
            listings: load(&self.listings),
            keys: load(&self.keys),
            steps: load(&self.steps),
        }
    }
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

impl Wrapper for Counted {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn pass<T>(&self, call: Call<'_>, on: impl FnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let (counter, keys, steps) = match call {
            Call::Get(keys) => (&self.gets, keys.len(), 0),
            Call::Apply(steps) if steps.iter().all(Operation::only_reads) => (&self.reads, 0, steps.len()),
            Call::Apply(steps) => (&self.changes, 0, steps.len()),
            Call::ApplyWhen(steps) => (&self.waits, 0, steps.len()),
            Call::List => (&self.listings, 0, 0),
        };
        count(counter, 1);
        count(&self.keys, keys);
        count(&self.steps, steps);
        on(&*self.store)
    }
}
