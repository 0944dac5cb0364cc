//! The store `bigtable`: rows of one table of Google Bigtable.
//!
//! Promises what a row of Bigtable can promise. All control keys of a region lie in one row, so that a guard, an entry
//! of a log and a lock change together ([`control`]). Every other key has a row of its own ([`pages`]). A change of
//! some bytes of a page is sent as those bytes, without reading: each changed byte has a cell of its own beside the
//! cell of the whole value ([`cells`]), so that concurrent writers of neighbouring bytes never lose a change.
//!
//! A change that depends on what was read is conditional on the row's *mark*, which every change replaces. It therefore
//! takes effect once, even if its answer is lost. A change that depends on nothing is sent once; if its answer is lost
//! and its mark is not found, the error is [`StoreError::OutcomeUnknown`].

mod cells;
mod control;
mod link;
mod pages;
mod table;

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
use table::Table;

const CAPABILITIES: Capabilities = Capabilities {
    atomic: Atomic::Control,
    byte_ranges: true,
    native_add: false,
    wait: false,
    durable: true,
    shared: true,
    // Bigtable accepts 100 MiB and recommends no more than 10.
    value_bytes_max: 8 << 20,
    operations_max: 256,
    call_bytes_max: 64 << 20,
};

/// A table of Bigtable.
pub struct Bigtable {
    table: Arc<Table>,
    lanes: Lanes<Arc<Table>>,
}

/// Opens `bigtable://PROJECT/INSTANCE/TABLE`. In an emulator, creates the table if it does not exist.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    let table = Arc::new(Table::find(url, rest)?);
    let lanes = Lanes::new(Arc::clone(&table), deadline);
    lanes.call(async |link: &mut Link| link.probe().await)?;
    Ok(Arc::new(Bigtable { table, lanes }))
}

impl Open for Arc<Table> {
    type Client = Link;

    async fn open(&self) -> Result<Link, StoreError> {
        Ok(Link::new(Arc::clone(self)))
    }

    fn name(&self) -> &str {
        &self.site.store
    }
}

impl Store for Bigtable {
    fn name(&self) -> &str {
        &self.table.site.store
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(self.name(), keys)?;
        self.lanes.call(async |link| link.values(keys).await)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        steps::check(self.name(), &CAPABILITIES, operations, guard)?;
        let control = operations.first().is_none_or(|operation| operation.key().kind().is_control());
        self.lanes.call(async |link| match control {
            true => control::apply(link, operations, guard).await,
            false => pages::apply(link, operations, guard).await,
        })
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
