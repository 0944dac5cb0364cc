//! How threads of different processes wait for each other when all they share is a store: locks, read-write locks,
//! semaphores, barriers, condition variables, events, and what is done once.
//!
//! ```text
//! let session = Session::new(region, Options::default())?;
//! let jobs = session.lock("jobs")?;        // by a name, or by an address in the region
//! let guard = jobs.lock()?;                // one call of the store
//! ...                                      // loads and stores of the region
//! guard.release()?;                        // one call: what changed, the log, the lock
//! ```
//!
//! An object exists from its first use, all of it zero. What a thread wrote before it *released* (gave a lock back, came
//! to a barrier, posted, set, notified) a thread reads that *acquires* after it (takes the lock, leaves the barrier,
//! waited, was woken). That is [`super::coherence`]'s; each call here carries it along.
//!
//! | what is done | calls of the store |
//! |---|---|
//! | take a lock that is free, or becomes free while one waits less than a third of a lease | 1 |
//! | give a lock back | 1 |
//! | semaphore: wait, post; event: set, wait | 1 |
//! | barrier: the last to come, the others | 1, 2 |
//! | condition: wait, which gives the lock back and takes it again | 2 |
//! | condition: notify; together with giving the lock back | 1, 0 |
//! | a name, the first time in a process | 1 |
//!
//! **Who crashed.** A process is a [`member`] of its region and gives signs of life while it holds a lock. Whoever waits
//! for it and sees none for a lease, by its own clock, replaces it: then every lock it held is free for who waits, and nothing
//! that it stored since its last release ever becomes part of the region, even if it only slept. Its next call says so.
//! Permits of semaphores are not given back, and arrivals at barriers neither; see [`Semaphore`] and [`Barrier`].
//!
//! **Who waits** is served in no promised order. Every wait has a deadline, and its error says who has what is waited
//! for, and for how long at least, or who is missing; a wait that was given up leaves nothing taken.
//!
//! Must never: compare the clocks of two machines, or hold a lock of this process during a call of the store.

mod barrier;
mod clock;
mod condition;
mod error;
mod event;
mod lock;
pub mod member;
mod object;
mod once;
pub mod process;
mod read_write_lock;
mod record;
mod semaphore;
mod session;
mod slots;
mod watch;

#[cfg(test)]
mod tests;

pub use barrier::Barrier;
pub use clock::{Clock, SystemClock};
pub use condition::{Condition, Waited};
pub use error::SynchronisationError;
pub use event::Event;
pub use lock::{HeldLock, Lock, LockGuard};
pub use object::{NAME_BYTES_MAX, Place};
pub use once::{Once, Turn};
pub use read_write_lock::{Access, HeldAccess, ReadGuard, ReadWriteLock, WriteGuard};
pub use semaphore::Semaphore;
pub use session::{Options, Session, WAIT_MAX};
