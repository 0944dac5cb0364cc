//! The store `etcd`: values and logs as keys of an etcd cluster, below `trellis/`.
//!
//! Promises: a call is done completely in one transaction of etcd, or not at all. A call takes one round trip to read
//! and one to write; a call that only reads, or that changes something unconditionally, takes one in all. A change
//! whose answer was lost is never done twice: every transaction also updates the *receipt* of its connection
//! ([`receipt`]), on the condition that the receipt is as the transaction before left it. The result of a lost
//! transaction can thus be read, and one that is still under way can be invalidated. Waiting uses a watch of etcd.
//!
//! Must never touch a key outside `trellis/`.

mod address;
mod link;
mod receipt;
mod transaction;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::steps;
use crate::store::Store;
use crate::stores::grpc::lanes::{Lanes, Open};
use crate::stores::listing;
use address::Address;
use link::Link;

/// The maximum number of operations in a transaction of etcd; its default `--max-txn-ops`.
const TRANSACTION_OPERATIONS_MAX: usize = 128;
/// The maximum number of bytes in a request of etcd; its default `--max-request-bytes` is 1.5 MiB, from which space for
/// keys is subtracted.
const REQUEST_BYTES_MAX: usize = (3 << 19) - (32 << 10);

const CAPABILITIES: Capabilities = Capabilities {
    atomic: Atomic::Call,
    byte_ranges: false,
    native_add: false,
    wait: true,
    durable: true,
    shared: true,
    value_bytes_max: 1 << 20,
    // Each step writes at most one key, an append also its log's bounds, and each transaction also its receipt.
    operations_max: 120,
    call_bytes_max: REQUEST_BYTES_MAX,
};

/// An etcd cluster.
pub struct Etcd {
    address: Arc<Address>,
    lanes: Lanes<Arc<Address>>,
}

/// Opens `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT][?tls]`.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    let address = Arc::new(Address::parse(url, rest)?);
    let lanes = Lanes::new(Arc::clone(&address), deadline);
    lanes.call(async |link: &mut Link| link.probe().await)?;
    Ok(Arc::new(Etcd { address, lanes }))
}

impl Open for Arc<Address> {
    type Client = Link;

    async fn open(&self) -> Result<Link, StoreError> {
        Link::open(Arc::clone(self)).await
    }

    fn name(&self) -> &str {
        &self.site.store
    }
}

impl Store for Etcd {
    fn name(&self) -> &str {
        &self.address.site.store
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(self.name(), keys)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.lanes.call(async |link| link.values(keys).await)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        steps::check(self.name(), &CAPABILITIES, operations, guard)?;
        self.lanes.call(async |link| Ok(link.apply(operations, guard).await?.0))
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        steps::check(self.name(), &CAPABILITIES, operations, guard)?;
        self.lanes.call(async |link| link.apply_when(operations, guard, deadline).await)
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        if kind == Kind::Named {
            return Ok(Vec::new());
        }
        let keys = self.lanes.call(async |link| link.keys(region, kind, from).await)?;
        Ok(listing::numbers(&keys, from, count))
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let keys = self.lanes.call(async |link| link.keys(region, Kind::Named, 0).await)?;
        Ok(listing::names(&keys, after, count))
    }
}
