//! Locks: one thread of one node has it.

use std::marker::PhantomData;
use std::time::Duration;

use super::given_back;
use crate::cluster::{Cluster, WaitError};
use crate::runtime::Timeout;

impl Cluster {
    /// Takes lock `id` and gives it back when the guard is dropped. Taken again by the node that had it last, it costs no
    /// message; handed to a waiter elsewhere, one.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the node that holds it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let guard = cluster.lock(1)?;
    /// assert!(cluster.try_lock(1)?.is_none(), "locks are not recursive");
    /// drop(guard);
    /// assert!(cluster.try_lock(1)?.is_some());
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock(&self, id: u64) -> Result<LockGuard<'_>, WaitError> {
        self.lock_acquire(id)?;
        Ok(LockGuard::of(self, id))
    }

    /// Takes lock `id` if nobody has it. `None` means that somebody had it, or waited for it, a moment ago; it may also
    /// be on its way between nodes.
    pub fn try_lock(&self, id: u64) -> Result<Option<LockGuard<'_>>, WaitError> {
        Ok(self.lock_try_acquire(id)?.then(|| LockGuard::of(self, id)))
    }

    /// Takes lock `id` if that is possible before `duration` has passed.
    pub fn try_lock_for(&self, id: u64, duration: Duration) -> Result<Option<LockGuard<'_>>, WaitError> {
        Ok(self.lock_acquire_for(id, duration)?.then(|| LockGuard::of(self, id)))
    }

    /// Takes lock `id`: one thread of one node has it; others queue and get it in the order in which they asked.
    pub fn lock_acquire(&self, id: u64) -> Result<(), WaitError> {
        self.inner().acquire(id)
    }

    /// As [`Cluster::try_lock`], without a guard: whether the lock was taken.
    pub fn lock_try_acquire(&self, id: u64) -> Result<bool, WaitError> {
        self.inner().try_acquire(id)
    }

    /// As [`Cluster::try_lock_for`], without a guard: whether the lock was taken.
    pub fn lock_acquire_for(&self, id: u64, duration: Duration) -> Result<bool, WaitError> {
        self.inner().acquire_within(id, Timeout::For(duration))
    }

    /// Gives lock `id` back.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] under release consistency: a home has not taken what this node stored. The lock is still
    /// held, and giving it back again goes on waiting. [`WaitError::Misuse`] if this node does not hold it.
    pub fn lock_release(&self, id: u64) -> Result<(), WaitError> {
        self.inner().release(id)
    }
}

/// A lock that is held; dropping it gives the lock back.
pub struct LockGuard<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) id: u64,
    /// Not so after a wait for a condition that could not take the lock again.
    pub(super) is_held: bool,
    /// As with `std::sync::MutexGuard`, the thread that took the lock gives it back.
    not_send: PhantomData<*const ()>,
}

impl<'a> LockGuard<'a> {
    fn of(cluster: &'a Cluster, id: u64) -> LockGuard<'a> {
        LockGuard { cluster, id, is_held: true, not_send: PhantomData }
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if self.is_held {
            given_back(self.cluster, self.cluster.lock_release(self.id));
        }
    }
}
