//! The store `spanner`: rows of one table of Google Spanner, `Trellis (Place, Bytes)`.
//!
//! Promises that a call is one transaction. A call begins its transaction and reads what it needs in one round trip,
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
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::steps;
use crate::store::Store;
use crate::stores::grpc::lanes::{Lanes, Open};
use crate::stores::listing;
use database::Database;
use link::Link;

const CAPABILITIES: Capabilities = Capabilities {
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
};

/// A database of Spanner.
pub struct Spanner {
    database: Arc<Database>,
    lanes: Lanes<Arc<Database>>,
}

/// Opens `spanner://PROJECT/INSTANCE/DATABASE`. In an emulator, creates the database if it does not exist.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    let database = Arc::new(Database::find(url, rest)?);
    let lanes = Lanes::new(Arc::clone(&database), deadline);
    lanes.call(async |link: &mut Link| link.probe().await)?;
    Ok(Arc::new(Spanner { database, lanes }))
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

impl Store for Spanner {
    fn name(&self) -> &str {
        &self.database.site.store
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(self.name(), keys)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.database.check_names(keys.iter())?;
        self.lanes.call(async |link| link.values(keys).await)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        steps::check(self.name(), &CAPABILITIES, operations, guard)?;
        self.database.check_names(operations.iter().map(Operation::key))?;
        self.lanes.call(async |link| transaction::apply(link, operations, guard).await)
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
