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
use crate::store::Store;
use crate::stores::grpc::lanes::Open;
use crate::stores::grpc::served::{self, Limits};
use link::Link;
use table::Table;

const LIMITS: Limits = Limits {
    capabilities: Capabilities {
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
    },
    name_bytes_max: usize::MAX,
};

/// Opens `bigtable://PROJECT/INSTANCE/TABLE`. In an emulator, creates the table if it does not exist.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    served::open(Arc::new(Table::find(url, rest)?), LIMITS, deadline)
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
