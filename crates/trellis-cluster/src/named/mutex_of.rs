//! A value of all nodes under a lock.
//!
//! Promises: only the thread that holds the lock can reach the value, at any node.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytemuck::Pod;

use super::{Handle, Kind};
use crate::cluster::{Cluster, WaitError};
use crate::heap::HeapError;
use crate::synchronisation::{Mutex, MutexGuard, given_back};

/// A value of all nodes, which only the thread that holds its lock can reach.
pub struct MutexOf<T> {
    handle: Handle<T>,
}

/// The value, locked. Dropping it releases the lock. [`Condvar::wait`](crate::synchronisation::Condvar::wait) takes it
/// as it takes the guard of a mutex; if a wait could not take the lock again, using the value panics.
#[must_use = "dropping it releases the mutex"]
pub struct MutexOfGuard<'a, T> {
    of: &'a MutexOf<T>,
    guard: MutexGuard<'a>,
}

impl Cluster {
    /// The value `name` under a lock. The first node that asks for it stores `initial`; the others find it.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] if another node asked for another type, or if this node joined later and no other has
    /// asked yet. [`HeapError::NoRoom`] says how much there is: a value takes at least a page.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let total = cluster.mutex_of("total", 0.5)?;
    /// *total.lock()? += 1.0;
    /// assert_eq!(*total.lock()?, 1.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mutex_of<T: Pod>(&self, name: &str, initial: T) -> Result<MutexOf<T>, HeapError> {
        // SAFETY: the memory is new, has room for a `T` and is aligned for it.
        let fill = |value: std::ptr::NonNull<T>| unsafe { value.write(initial) };
        Handle::open(self, Kind::Value, name, 1, fill).map(|handle| MutexOf { handle })
    }
}

impl<T: Pod> MutexOf<T> {
    /// Waits for the lock.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`].
    pub fn lock(&self) -> Result<MutexOfGuard<'_, T>, WaitError> {
        self.mutex().lock().map(|guard| MutexOfGuard { of: self, guard })
    }

    /// The value if its lock is free, as [`Mutex::try_lock`].
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`].
    pub fn try_lock(&self) -> Result<Option<MutexOfGuard<'_, T>>, WaitError> {
        Ok(self.mutex().try_lock()?.map(|guard| MutexOfGuard { of: self, guard }))
    }

    /// The value if its lock can be taken before `duration` has passed, as [`Mutex::try_lock_for`].
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`].
    pub fn try_lock_for(&self, duration: Duration) -> Result<Option<MutexOfGuard<'_, T>>, WaitError> {
        Ok(self.mutex().try_lock_for(duration)?.map(|guard| MutexOfGuard { of: self, guard }))
    }

    /// The lock of the value.
    fn mutex(&self) -> Mutex<'_> {
        self.handle.cluster.own_mutex(self.handle.number)
    }
}

impl<T> MutexOfGuard<'_, T> {
    /// Releases the lock, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`MutexGuard::unlock`], but after [`WaitError::TooLong`] the cluster ends, as it does when a guard is
    /// dropped.
    pub fn unlock(self) -> Result<(), WaitError> {
        let outcome = self.guard.unlock();
        given_back(&self.of.handle.cluster, outcome.clone());
        outcome
    }
}

// For waits for a condition.
impl<'a, T> MutexOfGuard<'a, T> {
    pub(crate) fn lock_guard(&self) -> &MutexGuard<'a> {
        &self.guard
    }

    pub(crate) fn lock_guard_mut(&mut self) -> &mut MutexGuard<'a> {
        &mut self.guard
    }

    fn address(&self) -> std::ptr::NonNull<T> {
        assert!(self.guard.is_held, "a wait for a condition could not take the lock again, so the value is not locked");
        self.of.handle.first
    }
}

impl<T: Pod> Deref for MutexOfGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the handle keeps the memory, any bytes are a `T`, and only the thread with the guard uses it.
        unsafe { self.address().as_ref() }
    }
}

impl<T: Pod> DerefMut for MutexOfGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        unsafe { self.address().as_mut() }
    }
}

impl<T> fmt::Debug for MutexOf<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MutexOf({} bytes)", size_of::<T>())
    }
}
