//! Stores around stores, which count, delay or fail the calls that pass through them.
//!
//! Each promises to pass everything else on unchanged, and never to hold a lock while it does so.

mod counted;
mod delayed;
mod failing;

use std::time::Instant;

pub use counted::{Counted, Counts};
pub use delayed::Delayed;
pub use failing::{Failing, Fault};

use crate::capabilities::Capabilities;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::store::Store;

/// A call that passes through.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// [`Store::get_many`]
    Get(&'a [Key]),
    /// [`Store::apply`]
    Apply(&'a [Operation]),
    /// [`Store::apply_when`]
    ApplyWhen(&'a [Operation]),
    /// [`Store::numbers`] or [`Store::names`]
    List,
}

/// A store in front of another one that treats all calls alike. It implements [`Store`] itself.
pub trait Wrapper: Send + Sync {
    /// The store behind it.
    fn inner(&self) -> &dyn Store;

    /// Passes a call on by running `on` with the inner store, or refuses it.
    ///
    /// # Errors
    ///
    /// The store's, or its own.
    fn pass<T>(&self, call: Call<'_>, on: impl FnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, StoreError>;
}

impl<W: Wrapper> Store for W {
    fn name(&self) -> &str {
        self.inner().name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.pass(Call::Get(keys), |store| store.get_many(keys))
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        self.pass(Call::Apply(operations), |store| store.apply(operations, guard))
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        self.pass(Call::ApplyWhen(operations), |store| store.apply_when(operations, guard, deadline))
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        self.pass(Call::List, |store| store.numbers(region, kind, from, count))
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.pass(Call::List, |store| store.names(region, after, count))
    }
}
