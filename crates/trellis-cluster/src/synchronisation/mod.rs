//! Objects by which threads of different nodes wait for each other: mutexes, barriers, words, and objects that are kept
//! at their home. They have the names of the standard library, as those of memory in a store do (`trellis::stored`).
//!
//! Any 64-bit number names an object. Objects of different kinds may have the same number, and an object exists from
//! its first use. (The last 65,536 numbers are reserved for Trellis itself.) A thread that *acquires* after another one
//! *released* reads what that one wrote before. To release is to release a lock or a semaphore, to come to a barrier,
//! to set an event, to notify, or to change a word. To acquire is to take the lock or a permit, to leave the barrier,
//! to return from a wait, or to read the word.
//!
//! Promises: every wait has the deadline `wait_seconds_max`, whose error says which node holds the object or is
//! missing, or the caller's own timeout, whose end is no error. A wait that ends in either way leaves nothing locked
//! and takes nothing from others. It must never decide what the protocol decides.

mod atomic;
mod barrier;
mod condvar;
mod event;
mod mutex;
mod once;
mod rwlock;
mod semaphore;

use crate::cluster::{Cluster, WaitError};

/// Handles the outcome when a guard gives back what it guards. No thread can try again after the guard is gone, and
/// others would wait for ever, so an error ends the cluster. If the cluster has already failed, the next call says so.
pub(crate) fn given_back<T>(cluster: &Cluster, outcome: Result<T, WaitError>) {
    if let Err(error @ WaitError::TooLong { .. }) = outcome {
        cluster.abandon(&format!("what a guard held cannot be given back: {error}"));
    }
}

pub use atomic::Atomic;
pub use barrier::{Barrier, Reduce, Reducible};
pub use condvar::{Condvar, Guard};
pub use event::Event;
pub use mutex::{Mutex, MutexGuard};
pub use once::Once;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::Semaphore;
