//! A store as far away as one likes.
//!
//! Promises that each call takes one round trip longer than it would: half of it passes before the store is asked, half
//! after it answered. A call that waits takes it once, on top of its waiting. The last stretch of each half is polled,
//! since a sleeping thread wakes too late by about as much as a fast store takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::capabilities::Capabilities;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::store::Store;

/// By how much a sleep may be late.
const LATE: Duration = Duration::from_micros(120);

/// A store with a round trip added to each call.
pub struct Delayed {
    store: Arc<dyn Store>,
    half: Duration,
}

impl Delayed {
    /// Adds `round_trip` to each call of a store.
    pub fn new(store: Arc<dyn Store>, round_trip: Duration) -> Arc<Delayed> {
        Arc::new(Delayed { store, half: round_trip / 2 })
    }

    fn away<T>(&self, call: impl FnOnce(&dyn Store) -> T) -> T {
        pass(self.half);
        let answer = call(&*self.store);
        pass(self.half);
        answer
    }
}

/// Waits accurately.
fn pass(time: Duration) {
    if time.is_zero() {
        return;
    }
    let end = Instant::now() + time;
    if let Some(sleep) = time.checked_sub(LATE) {
        std::thread::sleep(sleep);
    }
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

impl Store for Delayed {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.away(|store| store.get_many(keys))
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        self.away(|store| store.apply(operations, guard))
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        self.away(|store| store.apply_when(operations, guard, deadline))
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        self.away(|store| store.numbers(region, kind, from, count))
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.away(|store| store.names(region, after, count))
    }
}
