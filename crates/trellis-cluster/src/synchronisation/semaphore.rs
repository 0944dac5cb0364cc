//! Counting semaphores.

use std::time::Duration;

use trellis_cluster_protocol::sync::{Demand, SemaphoreDemand};

use crate::cluster::{Cluster, WaitError};
use crate::runtime::Timeout;

impl Cluster {
    /// Semaphore `id`, zero at first.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let items = cluster.semaphore(1);
    /// items.post(2)?;
    /// items.wait()?;
    /// assert!(items.try_wait()?);
    /// assert!(!items.try_wait()?);
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn semaphore(&self, id: u64) -> Semaphore<'_> {
        Semaphore { cluster: self, id }
    }
}

/// A number, kept at its home, that posts raise and waits lower while it is above zero; who waits goes on in the order
/// of coming. Every operation is one round trip, none at the home itself. With posts of one it is an event that is used
/// up by the thread which waited for it (a pulse).
#[derive(Clone, Copy)]
pub struct Semaphore<'a> {
    cluster: &'a Cluster,
    id: u64,
}

impl Semaphore<'_> {
    /// Waits until the semaphore is above zero, and lowers it by one.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] says that nobody has posted, and who else waits. A post that comes later is not lost.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.demand(SemaphoreDemand::Wait).map(drop)
    }

    /// Lowers the semaphore by one if it is above zero; whether it was.
    pub fn try_wait(&self) -> Result<bool, WaitError> {
        self.demand(SemaphoreDemand::TryWait).map(|got| got == 1)
    }

    /// As [`Semaphore::wait`], for `duration` at most; whether it was lowered.
    pub fn wait_for(&self, duration: Duration) -> Result<bool, WaitError> {
        let demand = Demand::Semaphore(SemaphoreDemand::Wait);
        Ok(self.cluster.inner().demand_within(self.id, demand, Timeout::For(duration))?.is_some())
    }

    /// Raises the semaphore by `count`: so many waits go on, now or when they come.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if it would pass 2^64 - 1.
    pub fn post(&self, count: u64) -> Result<(), WaitError> {
        self.demand(SemaphoreDemand::Post(count)).map(drop)
    }

    /// What it stands at; others may change it at any moment.
    pub fn value(&self) -> Result<u64, WaitError> {
        self.demand(SemaphoreDemand::Value)
    }

    fn demand(&self, demand: SemaphoreDemand) -> Result<u64, WaitError> {
        self.cluster.inner().demand(self.id, Demand::Semaphore(demand))
    }
}
