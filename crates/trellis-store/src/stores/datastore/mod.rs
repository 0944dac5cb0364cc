//! The store `datastore`: entities of one kind in Google Datastore (Firestore in Datastore mode).
//!
//! It promises that a call is one transaction. It takes one round trip to begin and read, and one to commit; a call
//! that only reads, or that changes something unconditionally, takes one in all. Datastore cannot tell whether a commit
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
use crate::store::Store;
use crate::stores::grpc::lanes::Open;
use crate::stores::grpc::served::{self, Limits};
use link::Link;
use place::{NAME_BYTES_MAX, Place};

const LIMITS: Limits = Limits {
    capabilities: Capabilities {
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
    },
    name_bytes_max: NAME_BYTES_MAX,
};

/// Opens `datastore://PROJECT[/NAMESPACE]`.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    served::open(Arc::new(Place::find(url, rest)?), LIMITS, deadline)
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
