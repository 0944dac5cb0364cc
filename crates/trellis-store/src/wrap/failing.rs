//! A store that fails at a chosen call.
//!
//! For tests of what remains after a failure: a client that ends in the middle of an operation, or a connection that is
//! lost before or after the store carried out the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Call, Wrapper};
use crate::error::StoreError;
use crate::store::Store;

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not carried out and fails with [`StoreError::Unreachable`]. Later calls succeed.
    Unreachable,
    /// The call is carried out if `applied`, and fails with [`StoreError::OutcomeUnknown`]. Later calls succeed.
    Unknown {
        /// Whether the call is carried out.
        applied: bool,
    },
    /// The call is carried out if `applied`. It and every later call fail, as for a client that has ended.
    End {
        /// Whether the call is carried out.
        applied: bool,
    },
    /// The call is carried out if `applied`, and then the process ends as if it had been killed.
    Kill {
        /// Whether the call is carried out.
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
    /// Fails the call with this number, counted from 1; 0 fails none.
    pub fn new(store: Arc<dyn Store>, at: u64, fault: Fault) -> Arc<Failing> {
        Arc::new(Failing { store, calls: AtomicU64::new(0), at, fault })
    }

    /// The number of calls so far.
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
            // Unlike an exit, an abort runs none of the handlers that a program has registered for its end.
            Fault::Kill { .. } => std::process::abort(),
        }
    }
}
