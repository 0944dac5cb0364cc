//! How threads of different nodes wait for each other: mutexes, barriers, words, and objects that are kept at their home.
//! The objects have the words of the standard library; those of memory in a store (`trellis::stored`) have the same.
//!
//! Any 64-bit number names an object, objects of different kinds may have the same, and none has to be made: it exists
//! from its first use. (The last 65,536 numbers are kept for Trellis itself.) What a thread wrote before it *released*
//! (a lock or a semaphore, came to a barrier, set, notified, changed a word) a thread reads that *acquires* after it
//! (takes the lock or a permit, leaves the barrier, waited, was woken, read the word).
//!
//! Promises: every wait has a deadline, `wait_seconds_max`, and its error says who holds or who is missing, or it has the
//! time that it was given, and the end of that is no error; a wait that was given up leaves nothing locked, and takes
//! nothing from others. Must never do by itself what the protocol decides.

mod atomic;
mod barrier;
mod condvar;
mod event;
mod mutex;
mod once;
mod rwlock;
mod semaphore;

use crate::cluster::{Cluster, WaitError};

/// What a guard does with the outcome of giving back what it guards. When the guard is gone nobody can try again, and
/// others would wait for ever: the cluster ends. Where it failed already, the next call says so.
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
