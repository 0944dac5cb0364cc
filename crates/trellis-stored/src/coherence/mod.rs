//! What copies of a region's pages agree on: release consistency, with one log for each region.
//!
//! # The contract
//!
//! 1. A *release* makes everything that this process stored before it part of the region, together with the change that
//!    releases (of a lock, a semaphore, a barrier): one call of the store, `[pages .., Append, change ..]`. It is stored
//!    whole or not at all; when the change is refused or the guard does not hold, nothing of it is.
//! 2. An *acquire* carries the change that acquires and asks for the entries of the log that are new: one call,
//!    `[change .., Entries, pending?]`. When it returns, no copy here is older than what was released before.
//! 3. The order of the log is total, so there is no vector time. An entry names what it changed; up to
//!    [`entry::INLINE_BYTES_MAX`] bytes it carries, and then copies are patched; otherwise they are dropped. Where entries
//!    were forgotten, every clean copy is dropped.
//! 4. A release that is too large for one call, or for a store that changes only control keys together, is *staged*:
//!    chunks first, then one commit (`[pending := chunks, Append, change ..]`), then the pages, then `pending` is
//!    cleared. Whoever finds `pending` set does the rest before it goes on, so a writer's end at any moment leaves all or
//!    nothing. While `pending` is set, nobody commits anything else.
//! 5. A process releases only while its member record says that it lives; who was declared dead is *fenced*.
//!
//! Promises nothing to processes that share without releasing: they may see a store early, or a page in parts.
//!
//! Must never: hold a lock of the program's threads while it waits for a lock in the store; or take a change back that
//! the store acknowledged.
//!
//! On a store with [`trellis_store::Atomic::Control`] a helper that stops for longer than a lease *between* its look at
//! `pending` and its write of a page may write an old byte over a newer one: such a store cannot tie the two together.
//!
//! [`Shared`] is what locks, heaps and tools use of it; [`log::Coherence`] is it, over any [`log::Copies`]:
//! [`log::NoCopies`] for a process that keeps none.

pub mod entry;
pub(crate) mod keys;
pub mod log;
#[cfg(test)]
mod tests;

use std::time::Instant;

use trellis_store::{Applied, Guard, Operation, Store};

use super::error::StoredError;

/// A region as its locks see it: changes of control keys that release or acquire memory. Every method may be called by
/// many threads at once.
///
/// The outcomes of an answer are those of `change`, one for each step, and a refused step is counted in `change`, whatever
/// else the call carried.
pub trait Shared: Send + Sync {
    /// Where the region is.
    fn store(&self) -> &dyn Store;

    /// Its number, for keys.
    fn region(&self) -> u32;

    /// This process's number among the members of the region; never 0, and never given twice.
    fn member(&self) -> u64;

    /// Does `change` as a release. Without `guard` the member record guards it. One call, more when it must be staged.
    /// When it is refused or fenced by the caller's guard, nothing was written, and what was stored stays to be released.
    ///
    /// # Errors
    ///
    /// As the store's; [`StoredError::Fenced`] when others declared this process dead.
    fn release(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError>;

    /// Does `change` as an acquire, as soon as nothing refuses it where there is a deadline, at once or not at all
    /// without. Only [`Applied::Done`] acquires. `change` may be empty: then what was released is looked up.
    ///
    /// # Errors
    ///
    /// As the store's.
    fn acquire(
        &self,
        change: &[Operation],
        guard: Option<&Guard>,
        deadline: Option<Instant>,
    ) -> Result<Applied, StoredError>;

    /// Both in one call, for a change that releases and may acquire at once (the last to arrive at a barrier). Never
    /// waits for the change.
    ///
    /// # Errors
    ///
    /// As [`Shared::release`].
    fn exchange(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError>;
}
