//! The store `etcd`: values and logs as keys of an etcd cluster, below `trellis/`.
//!
//! Promises: a call is done completely in one transaction of etcd, or not at all. A call takes one round trip to read
//! and one to write; a call that only reads, or that changes something unconditionally, takes one in all. A change
//! whose answer was lost is never done twice: every transaction also updates the *receipt* of its connection
//! ([`receipt`]), on the condition that the receipt is as the transaction before left it. The result of a lost
//! transaction can thus be read, and one that is still under way can be invalidated. Waiting uses a watch of etcd.
//!
//! It must never touch a key outside `trellis/`.

mod address;
mod link;
mod receipt;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;
use crate::store::Store;
use crate::stores::grpc::lanes::Open;
use crate::stores::grpc::served::{self, Limits};
use address::Address;
use link::Link;

/// The maximum number of operations in a transaction of etcd; its default `--max-txn-ops`.
const TRANSACTION_OPERATIONS_MAX: usize = 128;
/// The maximum number of bytes in a request of etcd; its default `--max-request-bytes` is 1.5 MiB, from which space for
/// keys is subtracted.
const REQUEST_BYTES_MAX: usize = (3 << 19) - (32 << 10);

const LIMITS: Limits = Limits {
    capabilities: Capabilities {
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
    },
    name_bytes_max: usize::MAX,
};

/// Opens `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT][?tls]`.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    served::open(Arc::new(Address::parse(url, rest)?), LIMITS, deadline)
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
