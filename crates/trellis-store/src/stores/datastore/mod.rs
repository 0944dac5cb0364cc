//! The store `datastore`: entities of one kind in Google Datastore (Firestore in Datastore mode).
//!
//! Promises that a call is one transaction. It takes one round trip to begin and read, and one to commit; a call that
//! only reads, or that changes something unconditionally, takes one in all. Datastore cannot tell whether a commit
//! whose answer was lost was done. Every entity therefore has the *marks* of the changes that wrote it last, and the
//! result of such a commit is read from them ([`transaction`]). If they do not show it, because no entity existed
//! before or many other changes followed, the error is [`StoreError::OutcomeUnknown`].

mod link;
mod place;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::steps;
use crate::store::Store;
use crate::stores::grpc::lanes::{Lanes, Open};
use crate::stores::listing;
use link::Link;
use place::Place;

const CAPABILITIES: Capabilities = Capabilities {
    atomic: Atomic::Call,
    byte_ranges: false,
    native_add: false,
    wait: false,
    durable: true,
    shared: true,
    // An entity may have 1 MiB, including its key, its marks and their names.
    value_bytes_max: 1_000_000,
    // Datastore accepts 500 changes; an append needs up to two.
    operations_max: 240,
    call_bytes_max: 8 << 20,
};

/// A namespace of Datastore.
pub struct Datastore {
    place: Arc<Place>,
    lanes: Lanes<Arc<Place>>,
}

/// Opens `datastore://PROJECT[/NAMESPACE]`.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    let place = Arc::new(Place::find(url, rest)?);
    let lanes = Lanes::new(Arc::clone(&place), deadline);
    lanes.call(async |link: &mut Link| link.probe().await)?;
    Ok(Arc::new(Datastore { place, lanes }))
}

impl Open for Arc<Place> {
    type Client = Link;

    async fn open(&self) -> Result<Link, StoreError> {
        Ok(Link::new(Arc::clone(self)))
    }

    fn name(&self) -> &str {
        &self.site.store
    }
}

impl Store for Datastore {
    fn name(&self) -> &str {
        &self.place.site.store
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(self.name(), keys)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.place.check_names(keys.iter())?;
        self.lanes.call(async |link| link.values(keys).await)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        steps::check(self.name(), &CAPABILITIES, operations, guard)?;
        self.place.check_names(operations.iter().map(Operation::key))?;
        self.lanes.call(async |link| transaction::apply(link, operations, guard).await)
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        if kind == Kind::Named {
            return Ok(Vec::new());
        }
        let keys = self.lanes.call(async |link| link.keys(region, kind).await)?;
        Ok(listing::numbers(&keys, from, count))
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let keys = self.lanes.call(async |link| link.keys(region, Kind::Named).await)?;
        Ok(listing::names(&keys, after, count))
    }
}
