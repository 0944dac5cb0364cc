//! Locks: one thread of one node holds a mutex.

use std::marker::PhantomData;
use std::time::Duration;

use super::given_back;
use crate::cluster::{Cluster, WaitError};
use crate::names::Name;
use crate::runtime::Timeout;

impl Cluster {
    /// Mutex `name`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let jobs = cluster.mutex(1);
    /// let guard = jobs.lock()?;
    /// assert!(jobs.try_lock()?.is_none(), "mutexes are not recursive");
    /// guard.unlock()?;
    /// assert!(jobs.try_lock()?.is_some());
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mutex<'n>(&self, name: impl Into<Name<'n>>) -> Mutex<'_> {
        Mutex { cluster: self, id: self.inner().number_of(name) }
    }

    /// A mutex of Trellis itself.
    pub(crate) fn own_mutex(&self, id: u64) -> Mutex<'_> {
        Mutex { cluster: self, id }
    }
}

/// A lock that one thread of one node holds. Others queue and get it in the order of their requests. Taking it again at
/// the node that held it last costs no message; handing it to a waiter of another node costs one.
#[derive(Clone, Copy)]
pub struct Mutex<'a> {
    cluster: &'a Cluster,
    id: u64,
}

impl<'a> Mutex<'a> {
    /// Waits for the mutex. Dropping the guard releases it.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the node that holds it.
    pub fn lock(&self) -> Result<MutexGuard<'a>, WaitError> {
        self.acquire()?;
        Ok(self.guard())
    }

    /// Takes the mutex if it is free. `None` means that a thread held it or waited for it a moment ago; it may also be
    /// on its way between nodes.
    pub fn try_lock(&self) -> Result<Option<MutexGuard<'a>>, WaitError> {
        Ok(self.try_acquire()?.then(|| self.guard()))
    }

    /// Takes the mutex if that is possible before `duration` has passed.
    pub fn try_lock_for(&self, duration: Duration) -> Result<Option<MutexGuard<'a>>, WaitError> {
        Ok(self.try_acquire_for(duration)?.then(|| self.guard()))
    }

    /// Waits like [`Mutex::lock`], without a guard.
    pub fn acquire(&self) -> Result<(), WaitError> {
        self.cluster.inner().acquire(self.id)
    }

    /// Tries like [`Mutex::try_lock`], without a guard. Returns whether the mutex was taken.
    pub fn try_acquire(&self) -> Result<bool, WaitError> {
        self.cluster.inner().try_acquire(self.id)
    }

    /// Tries like [`Mutex::try_lock_for`], without a guard. Returns whether the mutex was taken.
    pub fn try_acquire_for(&self, duration: Duration) -> Result<bool, WaitError> {
        self.cluster.inner().acquire_within(self.id, Timeout::For(duration))
    }

    /// Releases the mutex.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] under release consistency, if a home has not taken what this node stored. The mutex is
    /// still held, and releasing it again continues the wait. [`WaitError::Misuse`] if this node does not hold it.
    pub fn release(&self) -> Result<(), WaitError> {
        self.cluster.inner().release(self.id)
    }

    fn guard(&self) -> MutexGuard<'a> {
        MutexGuard { mutex: *self, is_held: true, not_send: PhantomData }
    }
}

/// A held mutex. Dropping the guard releases the mutex. If a home does not take this node's stores in time, dropping
/// ends the cluster, because no thread could release the mutex any more.
#[must_use = "dropping it releases the mutex"]
pub struct MutexGuard<'a> {
    mutex: Mutex<'a>,
    /// False after a wait for a condition that could not take the mutex again.
    pub(crate) is_held: bool,
    /// As with `std::sync::MutexGuard`, the thread that took the mutex releases it.
    not_send: PhantomData<*const ()>,
}

impl MutexGuard<'_> {
    /// Releases the mutex, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`Mutex::release`]. After [`WaitError::TooLong`], the mutex is still held, and [`Mutex::release`] continues
    /// the wait.
    pub fn unlock(mut self) -> Result<(), WaitError> {
        if std::mem::take(&mut self.is_held) { self.mutex.release() } else { Ok(()) }
    }

    pub(super) fn id(&self) -> u64 {
        self.mutex.id
    }

    pub(super) fn of_cluster(&self) -> &Cluster {
        self.mutex.cluster
    }
}

impl Drop for MutexGuard<'_> {
    fn drop(&mut self) {
        if self.is_held {
            given_back(self.mutex.cluster, self.mutex.release());
        }
    }
}
