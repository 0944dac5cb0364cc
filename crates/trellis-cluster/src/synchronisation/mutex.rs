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

    /// The same for an object of Trellis itself.
    pub(crate) fn own_mutex(&self, id: u64) -> Mutex<'_> {
        Mutex { cluster: self, id }
    }
}

/// A lock that one thread of one node holds; others queue and get it in the order in which they asked. Taken again by
/// the node that held it last, it costs no message; handed to a waiter elsewhere, one.
#[derive(Clone, Copy)]
pub struct Mutex<'a> {
    cluster: &'a Cluster,
    id: u64,
}

impl<'a> Mutex<'a> {
    /// Waits for the mutex; dropping the guard releases it.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the node that holds it.
    pub fn lock(&self) -> Result<MutexGuard<'a>, WaitError> {
        self.acquire()?;
        Ok(self.guard())
    }

    /// Takes the mutex if nobody has it. `None` means that somebody had it, or waited for it, a moment ago; it may also
    /// be on its way between nodes.
    pub fn try_lock(&self) -> Result<Option<MutexGuard<'a>>, WaitError> {
        Ok(self.try_acquire()?.then(|| self.guard()))
    }

    /// Takes the mutex if that is possible before `duration` has passed.
    pub fn try_lock_for(&self, duration: Duration) -> Result<Option<MutexGuard<'a>>, WaitError> {
        Ok(self.try_acquire_for(duration)?.then(|| self.guard()))
    }

    /// As [`Mutex::lock`], without a guard.
    pub fn acquire(&self) -> Result<(), WaitError> {
        self.cluster.inner().acquire(self.id)
    }

    /// As [`Mutex::try_lock`], without a guard: whether the mutex was taken.
    pub fn try_acquire(&self) -> Result<bool, WaitError> {
        self.cluster.inner().try_acquire(self.id)
    }

    /// As [`Mutex::try_lock_for`], without a guard: whether the mutex was taken.
    pub fn try_acquire_for(&self, duration: Duration) -> Result<bool, WaitError> {
        self.cluster.inner().acquire_within(self.id, Timeout::For(duration))
    }

    /// Releases the mutex.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] under release consistency: a home has not taken what this node stored. The mutex is still
    /// held, and releasing it again goes on waiting. [`WaitError::Misuse`] if this node does not hold it.
    pub fn release(&self) -> Result<(), WaitError> {
        self.cluster.inner().release(self.id)
    }

    fn guard(&self) -> MutexGuard<'a> {
        MutexGuard { mutex: *self, is_held: true, not_send: PhantomData }
    }
}

/// A mutex that is held; dropping it releases the mutex. If a home does not take what this node stored in time, dropping
/// it ends the cluster, because nobody could release the mutex any more.
#[must_use = "dropping it releases the mutex"]
pub struct MutexGuard<'a> {
    mutex: Mutex<'a>,
    /// Not so after a wait for a condition that could not take the mutex again.
    pub(crate) is_held: bool,
    /// As with `std::sync::MutexGuard`, the thread that took the mutex releases it.
    not_send: PhantomData<*const ()>,
}

impl MutexGuard<'_> {
    /// Releases the mutex, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`Mutex::release`]. After [`WaitError::TooLong`] the mutex is still held, and [`Mutex::release`] goes on.
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
