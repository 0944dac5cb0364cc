//! The store `embedded`: a map in this process.
//!
//! Promises: a value is read or written in tens of nanoseconds, and calls on different keys do not wait for each other,
//! because the map is divided into shards that each have a lock. A call is carried out under the locks of all shards
//! that it touches, taken in ascending order. The content is dropped with the last handle.
//!
//! It must never wait for anything while a shard is locked.

mod shard;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation, Outcome, Refused};
use crate::steps;
use crate::store::Store;
use shard::{Shard, Undo, hash};
use watch::Waiter;

/// The number of shards; one bit each in a word.
const SHARDS: usize = 64;

const CAPABILITIES: Capabilities = Capabilities {
    atomic: Atomic::Call,
    byte_ranges: true,
    native_add: true,
    wait: true,
    durable: false,
    shared: false,
    value_bytes_max: 16 << 20,
    operations_max: 1 << 16,
    call_bytes_max: 64 << 20,
};

/// The named keys of all regions in order, for [`Store::names`].
type Names = Mutex<BTreeSet<(u32, Arc<[u8]>)>>;

/// A map in this process.
pub struct Embedded {
    name: String,
    shards: Box<[Mutex<Shard>; SHARDS]>,
    names: Names,
}

/// The named stores, as long as they are in use.
static NAMED: LazyLock<Mutex<HashMap<String, Weak<Embedded>>>> = LazyLock::new(Mutex::default);

impl Embedded {
    /// A new, empty store.
    pub fn new() -> Embedded {
        Embedded::called("embedded")
    }

    /// A new store if there is no name; otherwise this process' store of that name.
    pub(super) fn open(name: &str) -> Arc<dyn Store> {
        if name.is_empty() {
            return Arc::new(Embedded::new());
        }
        let mut named = locked(&NAMED);
        if let Some(store) = named.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = Arc::new(Embedded::called(&format!("embedded:{name}")));
        named.retain(|_, store| store.strong_count() > 0);
        named.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    fn called(name: &str) -> Embedded {
        Embedded {
            name: name.to_owned(),
            shards: Box::new(std::array::from_fn(|_| Mutex::default())),
            names: Mutex::default(),
        }
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        locked(&self.shards[index(key)])
    }

    /// Locks the shards that a call touches.
    fn lock(&self, operations: &[Operation], guard: Option<&Guard>) -> Locked<'_> {
        let keys = operations.iter().map(Operation::key).chain(guard.map(|guard| &guard.key));
        let mask = keys.fold(0u64, |mask, key| mask | 1 << index(key));
        let mut left = mask;
        let mut shards = Vec::with_capacity(mask.count_ones() as usize);
        while left != 0 {
            shards.push(locked(&self.shards[left.trailing_zeros() as usize]));
            left &= left - 1;
        }
        Locked { names: &self.names, mask, shards }
    }
}

impl Default for Embedded {
    fn default() -> Embedded {
        Embedded::new()
    }
}

impl Store for Embedded {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(&self.name, keys)?;
        Ok(keys.iter().map(|key| self.shard(key).value(key).map(<[u8]>::to_vec)).collect())
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        steps::check(&self.name, &CAPABILITIES, operations, guard)?;
        if let ([operation], None) = (operations, guard) {
            let mut shard = self.shard(operation.key());
            return Ok(match shard.step(&self.names, operation, None) {
                Some(outcome) => {
                    shard.changed(operation);
                    Applied::Done(vec![outcome])
                }
                None => Applied::Refused(shard.refused(0, operation), vec![Outcome::Skipped]),
            });
        }
        Ok(self.lock(operations, guard).run(operations, guard))
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        steps::check(&self.name, &CAPABILITIES, operations, guard)?;
        let waiter = Waiter::new();
        loop {
            let mut locked = self.lock(operations, guard);
            let applied = locked.run(operations, guard);
            let Applied::Refused(Refused { step, .. }, _) = &applied else { return Ok(applied) };
            if Instant::now() >= deadline {
                return Ok(applied);
            }
            // Only the key that refused, or the guard's key, can change the answer: the effects of the call's earlier
            // steps depend on the same keys.
            let watched: Vec<&Key> = std::iter::once(operations[*step].key()).chain(guard.map(|g| &g.key)).collect();
            for key in &watched {
                locked.shard(key).watch(key, &waiter);
            }
            drop(locked);
            waiter.sleep(deadline);
            for key in &watched {
                self.shard(key).forget(&waiter);
            }
        }
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        let mut numbers = Vec::new();
        for shard in self.shards.iter() {
            locked(shard).numbers(region, kind, from, &mut numbers);
        }
        numbers.sort_unstable();
        numbers.truncate(count);
        Ok(numbers)
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let from = match after {
            Some(after) => Bound::Excluded((region, Arc::from(after))),
            None => Bound::Included((region, Arc::from(&[][..]))),
        };
        let names = locked(&self.names);
        let of_region = names.range((from, Bound::Unbounded)).take_while(|(of, _)| *of == region);
        Ok(of_region.take(count).map(|(_, name)| name.to_vec()).collect())
    }
}

/// The locked shards of one call.
struct Locked<'a> {
    names: &'a Names,
    /// One bit for each locked shard.
    mask: u64,
    shards: Vec<MutexGuard<'a, Shard>>,
}

impl Locked<'_> {
    fn shard(&mut self, key: &Key) -> &mut Shard {
        let below = self.mask & ((1 << index(key)) - 1);
        &mut self.shards[below.count_ones() as usize]
    }

    fn run(&mut self, operations: &[Operation], guard: Option<&Guard>) -> Applied {
        if let Some(guard) = guard {
            let found = self.shard(&guard.key).value(&guard.key);
            if !steps::holds(&guard.expect, found) {
                return Applied::Fenced { found: found.map(<[u8]>::to_vec) };
            }
        }
        // Steps after the last one that may refuse need no undo record.
        let last = operations.iter().rposition(may_refuse);
        let mut undo = Vec::new();
        let mut outcomes = Vec::with_capacity(operations.len());
        for (step, operation) in operations.iter().enumerate() {
            let remember = last.is_some_and(|last| step < last).then_some(&mut undo);
            let names = self.names;
            let shard = self.shard(operation.key());
            let Some(outcome) = shard.step(names, operation, remember) else {
                let refused = shard.refused(step, operation);
                self.undo(undo);
                return Applied::Refused(refused, self.reads(operations));
            };
            outcomes.push(outcome);
        }
        for operation in operations {
            self.shard(operation.key()).changed(operation);
        }
        Applied::Done(outcomes)
    }

    fn undo(&mut self, undo: Vec<Undo>) {
        let names = self.names;
        for change in undo.into_iter().rev() {
            self.shard(change.key()).undo(names, change);
        }
    }

    fn reads(&mut self, operations: &[Operation]) -> Vec<Outcome> {
        let names = self.names;
        let mut read = |operation: &Operation| match operation.only_reads() {
            true => self.shard(operation.key()).step(names, operation, None).unwrap_or(Outcome::Skipped),
            false => Outcome::Skipped,
        };
        operations.iter().map(&mut read).collect()
    }
}

/// Whether the store's content can make this step refuse its call.
fn may_refuse(operation: &Operation) -> bool {
    matches!(operation, Operation::CompareAndSwap { .. } | Operation::Add { bounds: Some(_), .. })
}

fn index(key: &Key) -> usize {
    // The map inside the shard uses the lowest and the highest bits of the hash.
    (hash(key) >> 40) as usize % SHARDS
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panicking thread leaves no change half done, because steps themselves do not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
