//! How threads of different nodes wait for each other: locks, barriers, words, and objects that are kept at their home.
//!
//! Any 64-bit number names an object, objects of different kinds may have the same, and none has to be made: it exists
//! from its first use. (The last 65,536 numbers are kept for Trellis itself.) What a thread wrote before it *released*
//! (gave a lock back, came to a barrier, posted, set, signalled, changed a word) a thread reads that *acquires* after it
//! (takes the lock, leaves the barrier, waited, was woken, read the word).
//!
//! Promises: every wait has a deadline, `wait_seconds_max`, and its error says who holds or who is missing, or it has the
//! time that it was given, and the end of that is no error; a wait that was given up leaves nothing locked, and takes
//! nothing from others. Must never do by itself what the protocol decides.

mod atomic;
mod barrier;
mod condition;
mod event;
mod lock;
mod once;
mod read_write_lock;
mod semaphore;

use crate::cluster::{Cluster, WaitError};

/// What a guard does with the outcome of giving back what it guards. When the guard is gone nobody can try again, and
/// others would wait for ever: the cluster ends. Where it failed already, the next call says so.
fn given_back<T>(cluster: &Cluster, outcome: Result<T, WaitError>) {
    if let Err(error @ WaitError::TooLong { .. }) = outcome {
        cluster.abandon(&format!("what a guard held cannot be given back: {error}"));
    }
}

pub use atomic::Atomic;
pub use barrier::{Reduce, Reducible};
pub use condition::{Condition, Guard};
pub use event::Event;
pub use lock::LockGuard;
pub use once::Once;
pub use read_write_lock::{ReadGuard, ReadWriteLock, WriteGuard};
pub use semaphore::Semaphore;
