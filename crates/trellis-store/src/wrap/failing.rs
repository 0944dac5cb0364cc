//! A store that fails at a call that was chosen.
//!
//! For tests of what is left behind: a client that ends in the middle of something, a connection that is lost before or
//! after the store did what it was asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Call, Wrapper};
use crate::error::StoreError;
use crate::store::Store;

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not done, and fails with [`StoreError::Unreachable`]. Later ones are done.
    Unreachable,
    /// The call is done if `applied`, and fails with [`StoreError::OutcomeUnknown`]. Later ones are done.
    Unknown {
        /// Whether it is done.
        applied: bool,
    },
    /// The call is done if `applied`; it and every later one fails, as for a client that has ended.
    End {
        /// Whether it is done.
        applied: bool,
    },
    /// The call is done if `applied`, and then the process ends as if it was killed.
    Kill {
        /// Whether it is done.
        applied: bool,
    },
}

/// A store that fails at one call.
pub struct Failing {
    store: Arc<dyn Store>,
    calls: AtomicU64,
    at: u64,
    fault: Fault,
}

impl Failing {
    /// Fails the call of this number, counted from 1; none for 0.
    pub fn new(store: Arc<dyn Store>, at: u64, fault: Fault) -> Arc<Failing> {
        Arc::new(Failing { store, calls: AtomicU64::new(0), at, fault })
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Wrapper for Failing {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn pass<T>(&self, call: Call<'_>, on: impl FnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let ended = matches!(self.fault, Fault::End { .. }) && self.at != 0 && number > self.at;
        if number != self.at && !ended {
            return on(&*self.store);
        }
        let store = self.name().to_owned();
        let what = match call {
            Call::Get(_) => "a read of values",
            Call::Apply(_) => "a call",
            Call::ApplyWhen(_) => "a call that waits",
            Call::List => "a listing",
        };
        let reason = format!("call {number} was told to fail");
        let applied = match self.fault {
            _ if ended => false,
            Fault::Unreachable => false,
            Fault::Unknown { applied } | Fault::End { applied } | Fault::Kill { applied } => applied,
        };
        if applied {
            on(&*self.store)?;
        }
        match self.fault {
            Fault::Unknown { .. } => Err(StoreError::OutcomeUnknown { store, what: what.to_owned(), reason }),
            Fault::Unreachable | Fault::End { .. } => Err(StoreError::Unreachable { store, reason }),
            // Nothing that a program has registered for its end runs.
            Fault::Kill { .. } => std::process::abort(),
        }
    }
}
