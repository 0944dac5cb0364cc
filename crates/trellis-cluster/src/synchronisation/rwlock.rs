//! Read-write locks: one writer, or any number of readers.

use std::marker::PhantomData;
use std::time::Duration;

use trellis_cluster_protocol::sync::{Demand, ReadWriteDemand};

use super::given_back;
use crate::cluster::{Cluster, WaitError};
use crate::names::Name;
use crate::runtime::Timeout;

impl Cluster {
    /// Read-write lock `name`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let lock = cluster.rwlock(1);
    /// let (one, two) = (lock.read()?, lock.read()?);
    /// assert!(lock.try_write()?.is_none());
    /// drop((one, two));
    /// let _writer = lock.write()?;
    /// assert!(lock.try_read()?.is_none());
    /// # drop(_writer);
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rwlock<'n>(&self, name: impl Into<Name<'n>>) -> RwLock<'_> {
        RwLock { cluster: self, id: self.inner().number_of(name) }
    }
}

/// A lock that one writer has alone, or readers have together, in the order of their requests. It is kept at its home:
/// taking it costs a round trip, releasing it one message, and neither costs the home itself a message. It is not
/// recursive: a thread that reads and requests to read again may wait behind a writer that waits for it.
#[derive(Clone, Copy)]
pub struct RwLock<'a> {
    cluster: &'a Cluster,
    id: u64,
}

impl<'a> RwLock<'a> {
    /// Takes the lock to read, together with other readers.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the nodes that hold it.
    pub fn read(&self) -> Result<RwLockReadGuard<'a>, WaitError> {
        self.read_acquire()?;
        Ok(self.reader())
    }

    /// Takes the lock to write, alone.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the nodes that hold it.
    pub fn write(&self) -> Result<RwLockWriteGuard<'a>, WaitError> {
        self.write_acquire()?;
        Ok(self.writer())
    }

    /// Takes the lock to read if no thread writes or waits to write.
    pub fn try_read(&self) -> Result<Option<RwLockReadGuard<'a>>, WaitError> {
        Ok(self.try_read_acquire()?.then(|| self.reader()))
    }

    /// Takes the lock to write if no thread has it or waits for it.
    pub fn try_write(&self) -> Result<Option<RwLockWriteGuard<'a>>, WaitError> {
        Ok(self.try_write_acquire()?.then(|| self.writer()))
    }

    /// Takes the lock to read if that is possible before `duration` has passed.
    pub fn try_read_for(&self, duration: Duration) -> Result<Option<RwLockReadGuard<'a>>, WaitError> {
        Ok(self.try_read_acquire_for(duration)?.then(|| self.reader()))
    }

    /// Takes the lock to write if that is possible before `duration` has passed.
    pub fn try_write_for(&self, duration: Duration) -> Result<Option<RwLockWriteGuard<'a>>, WaitError> {
        Ok(self.try_write_acquire_for(duration)?.then(|| self.writer()))
    }

    /// Waits like [`RwLock::read`], without a guard.
    pub fn read_acquire(&self) -> Result<(), WaitError> {
        self.demand(ReadWriteDemand::Read).map(drop)
    }

    /// Waits like [`RwLock::write`], without a guard.
    pub fn write_acquire(&self) -> Result<(), WaitError> {
        self.demand(ReadWriteDemand::Write).map(drop)
    }

    /// Tries like [`RwLock::try_read`], without a guard. Returns whether the lock was taken.
    pub fn try_read_acquire(&self) -> Result<bool, WaitError> {
        self.demand(ReadWriteDemand::TryRead)
    }

    /// Tries like [`RwLock::try_write`], without a guard. Returns whether the lock was taken.
    pub fn try_write_acquire(&self) -> Result<bool, WaitError> {
        self.demand(ReadWriteDemand::TryWrite)
    }

    /// Tries like [`RwLock::try_read_for`], without a guard. Returns whether the lock was taken.
    pub fn try_read_acquire_for(&self, duration: Duration) -> Result<bool, WaitError> {
        self.demand_for(ReadWriteDemand::Read, duration)
    }

    /// Tries like [`RwLock::try_write_for`], without a guard. Returns whether the lock was taken.
    pub fn try_write_acquire_for(&self, duration: Duration) -> Result<bool, WaitError> {
        self.demand_for(ReadWriteDemand::Write, duration)
    }

    /// Ends one read of this node. Fails as [`Mutex::release`](super::Mutex::release) does.
    pub fn read_release(&self) -> Result<(), WaitError> {
        self.cluster.inner().end(self.id, ReadWriteDemand::EndRead)
    }

    /// Ends the write of this node. Fails as [`Mutex::release`](super::Mutex::release) does.
    pub fn write_release(&self) -> Result<(), WaitError> {
        self.cluster.inner().end(self.id, ReadWriteDemand::EndWrite)
    }

    fn demand(&self, demand: ReadWriteDemand) -> Result<bool, WaitError> {
        self.cluster.inner().demand(self.id, Demand::ReadWriteLock(demand)).map(|got| got == 1)
    }

    fn demand_for(&self, demand: ReadWriteDemand, duration: Duration) -> Result<bool, WaitError> {
        let demand = Demand::ReadWriteLock(demand);
        let got = self.cluster.inner().demand_within(self.id, demand, Timeout::For(duration))?;
        Ok(got == Some(1))
    }

    fn reader(&self) -> RwLockReadGuard<'a> {
        RwLockReadGuard { lock: *self, is_held: true, not_send: PhantomData }
    }

    fn writer(&self) -> RwLockWriteGuard<'a> {
        RwLockWriteGuard { lock: *self, is_held: true, not_send: PhantomData }
    }
}

/// A read-write lock that is held to read. Dropping the guard releases it.
#[must_use = "dropping it releases the lock"]
pub struct RwLockReadGuard<'a> {
    lock: RwLock<'a>,
    pub(super) is_held: bool,
    not_send: PhantomData<*const ()>,
}

/// A read-write lock that is held to write. Dropping the guard releases it.
#[must_use = "dropping it releases the lock"]
pub struct RwLockWriteGuard<'a> {
    lock: RwLock<'a>,
    pub(super) is_held: bool,
    not_send: PhantomData<*const ()>,
}

impl RwLockReadGuard<'_> {
    /// Releases the lock, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`RwLock::read_release`]. After [`WaitError::TooLong`], the lock is still held, and [`RwLock::read_release`]
    /// continues the wait.
    pub fn unlock(mut self) -> Result<(), WaitError> {
        if std::mem::take(&mut self.is_held) { self.lock.read_release() } else { Ok(()) }
    }

    pub(super) fn id(&self) -> u64 {
        self.lock.id
    }

    pub(super) fn of_cluster(&self) -> &Cluster {
        self.lock.cluster
    }
}

impl RwLockWriteGuard<'_> {
    /// Releases the lock, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`RwLock::write_release`]. After [`WaitError::TooLong`], the lock is still held, and
    /// [`RwLock::write_release`] continues the wait.
    pub fn unlock(mut self) -> Result<(), WaitError> {
        if std::mem::take(&mut self.is_held) { self.lock.write_release() } else { Ok(()) }
    }

    pub(super) fn id(&self) -> u64 {
        self.lock.id
    }

    pub(super) fn of_cluster(&self) -> &Cluster {
        self.lock.cluster
    }
}

impl Drop for RwLockReadGuard<'_> {
    fn drop(&mut self) {
        if self.is_held {
            given_back(self.lock.cluster, self.lock.read_release());
        }
    }
}

impl Drop for RwLockWriteGuard<'_> {
    fn drop(&mut self) {
        if self.is_held {
            given_back(self.lock.cluster, self.lock.write_release());
        }
    }
}
