//! The store `spanner`: rows of one table of Google Spanner, `Trellis (Place, Bytes)`.
//!
//! It promises that a call is one transaction. A call begins its transaction and reads what it needs in one round trip,
//! and commits in the next; a call that only reads takes one. Transactions are optimistic: reads hold no locks, and a
//! commit is refused if something that was read has changed; the call then begins again. A commit whose answer was lost
//! is sent again, and Spanner does not do it twice.

mod database;
mod link;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;
use crate::store::Store;
use crate::stores::grpc::lanes::Open;
use crate::stores::grpc::served::{self, Limits};
use database::{Database, NAME_BYTES_MAX};
use link::Link;

const LIMITS: Limits = Limits {
    capabilities: Capabilities {
        atomic: Atomic::Call,
        byte_ranges: false,
        native_add: false,
        wait: false,
        durable: true,
        shared: true,
        value_bytes_max: 10 << 20,
        operations_max: 1_000,
        // Spanner accepts 100 MB, and bytes grow by a third in the request.
        call_bytes_max: 32 << 20,
    },
    name_bytes_max: NAME_BYTES_MAX,
};

/// Opens `spanner://PROJECT/INSTANCE/DATABASE`. In an emulator, creates the database if it does not exist.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    served::open(Arc::new(Database::find(url, rest)?), LIMITS, deadline)
}

impl Open for Arc<Database> {
    type Client = Link;

    async fn open(&self) -> Result<Link, StoreError> {
        Ok(Link::new(Arc::clone(self)))
    }

    fn name(&self) -> &str {
        &self.site.store
    }
}
