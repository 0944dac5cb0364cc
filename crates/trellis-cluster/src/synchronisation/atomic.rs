//! Words with atomic operations that live at their home and not in the region.

use trellis_cluster_protocol::sync::Operation;

use crate::cluster::{Cluster, WaitError};
use crate::names::Name;
use crate::runtime::Node;

impl Cluster {
    /// The word `name`: 64 bits, zero at first. It lives at its home and not in the region.
    pub fn atomic<'n>(&self, name: impl Into<Name<'n>>) -> Atomic<'_> {
        Atomic { node: self.inner(), id: self.inner().number_of(name) }
    }

    /// A word of Trellis itself.
    pub(crate) fn own_atomic(&self, id: u64) -> Atomic<'_> {
        Atomic { node: self.inner(), id }
    }
}

/// A 64-bit word that lives at its home. Every operation is one round trip to the home, and none at the home itself.
#[derive(Clone, Copy)]
pub struct Atomic<'a> {
    node: &'a Node,
    id: u64,
}

impl Atomic<'_> {
    /// Returns the value.
    pub fn load(&self) -> Result<u64, WaitError> {
        self.node.operate(self.id, Operation::Load)
    }

    /// Stores `value`.
    pub fn store(&self, value: u64) -> Result<(), WaitError> {
        self.exchange(value).map(drop)
    }

    /// Stores `value`. Returns the value before.
    pub fn exchange(&self, value: u64) -> Result<u64, WaitError> {
        self.node.operate(self.id, Operation::Exchange(value))
    }

    /// Adds `value` modulo 2^64. Returns the value before.
    pub fn fetch_add(&self, value: u64) -> Result<u64, WaitError> {
        self.node.operate(self.id, Operation::FetchAdd(value))
    }

    /// Stores `value` if the word is `current`. Returns the value before: in `Ok` if it was `current`, in `Err` if not.
    pub fn compare_exchange(&self, current: u64, value: u64) -> Result<Result<u64, u64>, WaitError> {
        let before = self.node.operate(self.id, Operation::CompareExchange(current, value))?;
        Ok(if before == current { Ok(before) } else { Err(before) })
    }
}
