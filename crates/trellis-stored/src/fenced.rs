//! A store as used by a process without a cache: every change in its region is guarded by its member record.
//!
//! Promises: after a member was replaced, no further change of it takes effect, not even a single store to memory, if
//! the store changes everything in one call atomically. No additional calls are made. It must never add a guard to a
//! call that already has one, or guard a region of this process alone.

use std::sync::Arc;
use std::time::Instant;

use trellis_store::{Applied, Atomic, Capabilities, Guard, Key, Kind, Operation, Store, StoreError};

use super::synchronisation::member;

/// The guarded store of a member; see the module.
pub(crate) struct Fenced {
    store: Arc<dyn Store>,
    name: String,
    region: u32,
    member: u64,
    guard: Guard,
}

impl Fenced {
    /// The store for `member` of a region. `name` is the region's name in messages. A store that checks a guard in a
    /// separate round trip is returned unchanged: the check would cost as much as the change itself, and would prove
    /// nothing about what follows it.
    pub(crate) fn over(store: Arc<dyn Store>, name: &str, region: u32, member: u64) -> Arc<dyn Store> {
        if store.capabilities().atomic != Atomic::Call {
            return store;
        }
        let guard = member::guard(region, member);
        Arc::new(Fenced { store, name: name.to_owned(), region, member, guard })
    }

    /// The guard for a call that has none.
    fn guard<'a>(&'a self, operations: &[Operation], given: Option<&'a Guard>) -> Option<&'a Guard> {
        let changes = |operation: &Operation| operation.key().region() == self.region && !operation.only_reads();
        given.or_else(|| operations.iter().any(changes).then_some(&self.guard))
    }

    fn answered(&self, applied: Applied, given: Option<&Guard>) -> Result<Applied, StoreError> {
        if !matches!(applied, Applied::Fenced { .. }) || given.is_some() {
            return Ok(applied);
        }
        Err(StoreError::Denied {
            store: self.store.name().to_owned(),
            reason: format!(
                "the other processes of region `{}` declared this one (member {}) dead, because its record did not change for \
                 a lease, and went on without it",
                self.name, self.member
            ),
            hint: "start it again".to_owned(),
        })
    }
}

impl Store for Fenced {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.store.get_many(keys)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        self.answered(self.store.apply(operations, self.guard(operations, guard))?, guard)
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        self.answered(self.store.apply_when(operations, self.guard(operations, guard), deadline)?, guard)
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        self.store.numbers(region, kind, from, count)
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.store.names(region, after, count)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use trellis_store::wrap::Counted;
    use trellis_store::{Change, Expect};

    #[test]
    fn a_replaced_member_stores_nothing() {
        let counted = Counted::new(trellis_store::open("embedded:").expect("it needs nothing"));
        let plain = Arc::clone(&counted) as Arc<dyn Store>;
        let [slow, other] = [0, 1].map(|_| member::join(&*plain, 7, Duration::from_secs(1)).expect("joined"));
        let fenced = Fenced::over(Arc::clone(&plain), "jobs", 7, slow);
        let put = |region, byte| {
            let change = Change::PutRange { offset: 5, bytes: vec![byte] };
            Operation::Change { key: Key::page(region, 3), change }
        };
        let before = counted.counts().calls();
        assert!(matches!(fenced.apply(&[put(7, 1)], None), Ok(Applied::Done(_))));
        assert_eq!(counted.counts().calls() - before, 1, "a store is one call, guarded or not");
        let record = member::records(&*plain, 7, &[slow]).expect("readable").remove(0);
        plain.apply(&[member::replace(7, &record, other)], None).expect("replaced");
        let said = fenced.apply(&[put(7, 2)], None).expect_err("it was replaced").to_string();
        assert!(
            said.contains("region `jobs`") && said.contains("member 1") && said.contains("start it again"),
            "{said}"
        );
        let swap = Operation::CompareAndSwap {
            key: Key::page(7, 3),
            expect: Expect::Range { offset: 5, bytes: vec![1] },
            change: Change::Delete,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(fenced.apply_when(&[swap], None, deadline).is_err(), "nor does it wait in order to");
        assert_eq!(fenced.get_many(&[Key::page(7, 3)]).expect("it may read"), [Some(vec![0, 0, 0, 0, 0, 1])]);
        let get = Operation::Get { key: Key::page(7, 3), range: None };
        assert!(matches!(fenced.apply(&[get], None), Ok(Applied::Done(_))));
        assert!(matches!(fenced.apply(&[put(8, 2)], None), Ok(Applied::Done(_))), "its own region is its own");
    }
}
