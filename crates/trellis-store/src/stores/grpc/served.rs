//! The store that a service behind gRPC keeps.
//!
//! Promises: a call that the service cannot do, such as one with too long a name, is refused here. A call without keys
//! takes no round trip. It must never know a service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lanes::{Lanes, Open};
use crate::capabilities::Capabilities;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::steps;
use crate::store::{Store, ask_again};
use crate::stores::listing;

/// What a service does over a connection.
pub(in crate::stores) trait Connection {
    /// Checks that the service is there and accessible.
    async fn probe(&mut self) -> Result<(), StoreError>;

    /// See [`Store::get_many`].
    async fn values(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// The keys of one kind in a region, in no order: with numbers from `from` on, or more.
    async fn keys(&mut self, region: u32, kind: Kind, from: u64) -> Result<Vec<Key>, StoreError>;

    /// See [`Store::apply`].
    async fn apply(&mut self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError>;

    /// See [`Store::apply_when`]. Only a service that can wait is asked.
    async fn apply_when(
        &mut self,
        _operations: &[Operation],
        _guard: Option<&Guard>,
        _deadline: Instant,
    ) -> Result<Applied, StoreError> {
        unreachable!("the service cannot wait")
    }
}

/// What a service can do.
pub(in crate::stores) struct Limits {
    pub(in crate::stores) capabilities: Capabilities,
    /// The maximum length of the name of a key.
    pub(in crate::stores) name_bytes_max: usize,
}

struct Served<O: Open> {
    name: String,
    limits: Limits,
    lanes: Lanes<O>,
}

/// The store at a place.
pub(in crate::stores) fn open<O>(place: O, limits: Limits, deadline: Duration) -> Result<Arc<dyn Store>, StoreError>
where
    O: Open<Client: Connection> + Send + 'static,
{
    let (name, lanes) = (place.name().to_owned(), Lanes::new(place, deadline));
    lanes.call(async |connection| connection.probe().await)?;
    Ok(Arc::new(Served { name, limits, lanes }))
}

impl<O: Open<Client: Connection>> Served<O> {
    fn check_names<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> Result<(), StoreError> {
        let limit = self.limits.name_bytes_max;
        let longest = keys.find_map(|key| key.name().map(<[u8]>::len).filter(|bytes| *bytes > limit));
        longest.map_or(Ok(()), |bytes| {
            Err(StoreError::TooLarge {
                store: self.name.clone(),
                what: "the name of a key".to_owned(),
                bytes,
                limit,
                hint: "use a shorter one".to_owned(),
            })
        })
    }

    fn check(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<(), StoreError> {
        steps::check(&self.name, &self.limits.capabilities, operations, guard)?;
        self.check_names(operations.iter().map(Operation::key))
    }
}

impl<O: Open<Client: Connection> + Send> Store for Served<O> {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.limits.capabilities
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(&self.name, keys)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.check_names(keys.iter())?;
        self.lanes.call(async |connection| connection.values(keys).await)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        self.check(operations, guard)?;
        self.lanes.call(async |connection| connection.apply(operations, guard).await)
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        if !self.limits.capabilities.wait {
            return ask_again(self, operations, guard, deadline);
        }
        self.check(operations, guard)?;
        self.lanes.call(async |connection| connection.apply_when(operations, guard, deadline).await)
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        if kind == Kind::Named {
            return Ok(Vec::new());
        }
        let keys = self.lanes.call(async |connection| connection.keys(region, kind, from).await)?;
        Ok(listing::numbers(&keys, from, count))
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let keys = self.lanes.call(async |connection| connection.keys(region, Kind::Named, 0).await)?;
        Ok(listing::names(&keys, after, count))
    }
}
