//! Event flags.

use std::time::Duration;

use trellis_cluster_protocol::sync::{Demand, EventDemand};

use crate::cluster::{Cluster, WaitError};
use crate::names::Name;
use crate::runtime::Timeout;

impl Cluster {
    /// Event flag `name`, not set at first.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let loaded = cluster.event(1);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| loaded.set());
    ///     loaded.wait()
    /// })?;
    /// assert!(loaded.is_set()?);
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn event<'n>(&self, name: impl Into<Name<'n>>) -> Event<'_> {
        Event { cluster: self, id: self.inner().number_of(name) }
    }
}

/// A flag, kept at its home. Threads that wait continue when it is set, and no thread waits while it is set. Every
/// operation is one round trip, and none at the home itself.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    cluster: &'a Cluster,
    id: u64,
}

impl Event<'_> {
    /// Sets the flag. Every thread that waits continues.
    pub fn set(&self) -> Result<(), WaitError> {
        self.demand(EventDemand::Set).map(drop)
    }

    /// Clears the flag. Threads that come from now on wait.
    pub fn clear(&self) -> Result<(), WaitError> {
        self.demand(EventDemand::Clear).map(drop)
    }

    /// Waits until the flag is set.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] says that no thread has set it, and which other nodes wait.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.demand(EventDemand::Wait).map(drop)
    }

    /// Waits like [`Event::wait`], for `duration` at most. Returns whether the flag was set.
    pub fn wait_for(&self, duration: Duration) -> Result<bool, WaitError> {
        let demand = Demand::Event(EventDemand::Wait);
        Ok(self.cluster.inner().demand_within(self.id, demand, Timeout::For(duration))?.is_some())
    }

    /// Whether the flag is set. Others may change it at any moment.
    pub fn is_set(&self) -> Result<bool, WaitError> {
        self.demand(EventDemand::IsSet).map(|set| set == 1)
    }

    fn demand(&self, demand: EventDemand) -> Result<u64, WaitError> {
        self.cluster.inner().demand(self.id, Demand::Event(demand))
    }
}
