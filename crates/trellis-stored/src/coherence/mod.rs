//! The coherence of the copies of a region's pages: release consistency, with one log for each region.
//!
//! # The contract
//!
//! 1. A *release* makes everything that this process stored before it part of the region, together with the change that
//!    releases (of a lock, a semaphore, a barrier): one call of the store, `[pages .., Append, change ..]`. It takes
//!    effect completely or not at all; if the change is refused or the guard does not hold, nothing is written.
//! 2. An *acquire* includes the change that acquires and asks for the new entries of the log: one call, `[change ..,
//!    Entries, pending?]`. When it returns, no copy in this process is older than what was released before.
//! 3. The log is totally ordered, so there is no vector time. An entry names the pages that changed. It includes up to
//!    [`entry::INLINE_BYTES_MAX`] changed bytes, with which copies are patched; otherwise copies are dropped. If
//!    entries were deleted before they were read, every clean copy is dropped.
//! 4. A release that is too large for one call, or for a store that changes only control keys together, is *staged*:
//!    first redo records are written, then one commit (`[pending := redo records, Append, change ..]`), then the pages,
//!    and then `pending` is cleared. A process that finds `pending` set completes the rest before it continues, so that
//!    a writer that ends at any moment leaves all of the release or none of it. While `pending` is set, no process
//!    commits anything else.
//! 5. A process releases only while its member record says that it is alive; a process that was declared dead is
//!    *fenced*.
//!
//! It promises nothing to processes that share data without releasing: they may see a store early, or a page partly
//! changed.
//!
//! It must never hold a lock of the program's threads while it waits for a lock in the store, or undo a change that the
//! store has acknowledged.
//!
//! On a store with [`trellis_store::Atomic::Control`], a helper that is paused for longer than a lease *between* its
//! read of `pending` and its write of a page may overwrite a newer byte with an old one: such a store cannot make the
//! two atomic.
//!
//! Locks, heaps and tools use the trait [`Shared`]. [`log::Coherence`] implements it over any [`log::Copies`];
//! [`log::NoCopies`] is for a process that keeps none.

pub mod entry;
pub(crate) mod keys;
pub mod log;
#[cfg(test)]
mod tests;

use std::time::Instant;

use trellis_store::{Applied, Guard, Operation, Store};

use super::error::StoredError;

/// A region as its locks see it: changes of control keys that release or acquire memory. Any number of threads may call
/// any method at once.
///
/// The outcomes in an answer are those of `change`, one for each step, and the index of a refused step refers to
/// `change`, whatever else the call contained.
pub trait Shared: Send + Sync {
    /// The store of the region.
    fn store(&self) -> &dyn Store;

    /// The region's number, for keys.
    fn region(&self) -> u32;

    /// This process's member number in the region. It is never 0, and never assigned twice.
    fn member(&self) -> u64;

    /// Makes `change` as a release. Without `guard`, the member record guards it. This takes one call, or more if the
    /// release must be staged. If it is refused, or fenced by the caller's guard, nothing was written, and the stored
    /// changes remain to be released.
    ///
    /// # Errors
    ///
    /// The errors of the store; [`StoredError::Fenced`] if other processes declared this one dead.
    fn release(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError>;

    /// Makes `change` as an acquire. With a deadline, it waits until nothing refuses the change; without one, it tries
    /// once. Only [`Applied::Done`] acquires. `change` may be empty; the call then only fetches what was released.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn acquire(
        &self,
        change: &[Operation],
        guard: Option<&Guard>,
        deadline: Option<Instant>,
    ) -> Result<Applied, StoredError>;

    /// Makes a release and an acquire in one call, for a change that does both (the last arrival at a barrier). It
    /// never waits for the change.
    ///
    /// # Errors
    ///
    /// As [`Shared::release`].
    fn exchange(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError>;
}
