//! Synchronisation between threads of different processes that share only a store: mutexes, read-write locks,
//! semaphores, barriers, condition variables, events, and one-time actions. They have the names of the standard
//! library, as those of a cluster do (`trellis::synchronisation`).
//!
//! ```text
//! let session = Session::new(region, Options::default())?;
//! let jobs = session.mutex("jobs")?;       // by a name, or by an address in the region
//! let guard = jobs.lock()?;                // one call of the store
//! ...                                      // loads and stores of the region
//! guard.unlock()?;                         // one call: what changed, the log, the lock
//! ```
//!
//! An object exists from its first use, with all fields zero. What a thread wrote before it *released* (unlocked,
//! arrived at a barrier, released a semaphore, set, notified) is visible to a thread that *acquires* afterwards (locks,
//! leaves the barrier, acquires a semaphore, has waited, was woken). [`super::coherence`] provides this; each call here
//! includes it.
//!
//! | operation | calls of the store |
//! |---|---|
//! | take a lock that is free, or becomes free after a wait of less than a third of a lease | 1 |
//! | release a lock | 1 |
//! | semaphore: acquire, release; event: set, wait | 1 |
//! | barrier: the last arrival, the others | 1, 2 |
//! | condition variable: wait, which releases the lock and takes it again | 2 |
//! | condition variable: notify; together with the release of the lock | 1, 0 |
//! | a name, the first time in a process | 1 |
//!
//! **Crashes.** A process is a [`member`] of its region and gives heartbeats while it holds a lock. A process that
//! waits for it and sees no heartbeat for a lease, by its own clock, replaces it. Every lock that the replaced process
//! held is then free for those that wait, and nothing that it stored since its last release ever becomes part of the
//! region, even if it had only been suspended; its next call reports this. Permits of semaphores and arrivals at
//! barriers are not returned; see [`Semaphore`] and [`Barrier`].
//!
//! **Waiting** threads are served in no promised order. Every wait has a deadline. Its error names the holder and for
//! how long at least it has held the object, or it names those that are missing. A wait that was given up leaves
//! nothing taken.
//!
//! It must never compare the clocks of two machines, or hold a lock of this process during a call of the store.

mod barrier;
mod clock;
mod condvar;
mod error;
mod event;
pub mod member;
mod mutex;
mod object;
mod once;
pub mod process;
mod record;
mod rwlock;
mod semaphore;
pub(crate) mod session;
mod slots;
mod watch;

#[cfg(test)]
mod tests;

pub use barrier::Barrier;
pub use clock::{Clock, SystemClock};
pub use condvar::{Condvar, Waited};
pub use error::SynchronisationError;
pub use event::Event;
pub use mutex::{HeldMutex, Mutex, MutexGuard};
pub use object::{NAME_BYTES_MAX, Place};
pub use once::{Once, Turn};
pub use rwlock::{Access, HeldAccess, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::Semaphore;
pub use session::{Options, Session, WAIT_MAX};
