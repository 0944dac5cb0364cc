//! Counting semaphores.

use std::time::Duration;

use trellis_cluster_protocol::sync::{Demand, SemaphoreDemand};

use crate::cluster::{Cluster, WaitError};
use crate::names::Name;
use crate::runtime::Timeout;

impl Cluster {
    /// Semaphore `name`, zero at first.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let items = cluster.semaphore(1);
    /// items.release(2)?;
    /// items.acquire()?;
    /// assert!(items.try_acquire()?);
    /// assert!(!items.try_acquire()?);
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn semaphore<'n>(&self, name: impl Into<Name<'n>>) -> Semaphore<'_> {
        Semaphore { cluster: self, id: self.inner().number_of(name) }
    }
}

/// A number of permits, kept at its home. A release adds permits, and an acquisition takes one as soon as there is one,
/// in the order of the requests. Every operation but [`Semaphore::post`] is one round trip, and none at the home
/// itself. With releases of one permit, it is an event that one waiting thread uses up (a pulse).
#[derive(Clone, Copy)]
pub struct Semaphore<'a> {
    cluster: &'a Cluster,
    id: u64,
}

impl Semaphore<'_> {
    /// Waits for a permit and takes it.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] says that no thread has released, and which other nodes wait. A release that comes later
    /// is not lost.
    pub fn acquire(&self) -> Result<(), WaitError> {
        self.demand(SemaphoreDemand::Acquire).map(drop)
    }

    /// Takes a permit if there is one. Returns whether there was.
    pub fn try_acquire(&self) -> Result<bool, WaitError> {
        self.demand(SemaphoreDemand::TryAcquire).map(|got| got == 1)
    }

    /// Waits like [`Semaphore::acquire`], for `duration` at most. Returns whether a permit was taken.
    pub fn try_acquire_for(&self, duration: Duration) -> Result<bool, WaitError> {
        let demand = Demand::Semaphore(SemaphoreDemand::Acquire);
        Ok(self.cluster.inner().demand_within(self.id, demand, Timeout::For(duration))?.is_some())
    }

    /// Adds `count` permits. As many acquisitions continue, now or when they come.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if the number of permits would pass 2^64 - 1.
    pub fn release(&self, count: u64) -> Result<(), WaitError> {
        self.demand(SemaphoreDemand::Release(count)).map(drop)
    }

    /// Adds `count` permits like [`Semaphore::release`], and returns before that has happened: a call that follows,
    /// also one of this thread, may not find them yet. The number stays as it is if it would pass 2^64 - 1.
    pub fn post(&self, count: u64) -> Result<(), WaitError> {
        self.cluster.inner().demand_silently(self.id, Demand::Semaphore(SemaphoreDemand::Post(count)))
    }

    /// The number of permits. Others may change it at any moment.
    pub fn value(&self) -> Result<u64, WaitError> {
        self.demand(SemaphoreDemand::Value)
    }

    fn demand(&self, demand: SemaphoreDemand) -> Result<u64, WaitError> {
        self.cluster.inner().demand(self.id, Demand::Semaphore(demand))
    }
}
