//! Actions that are done once in a cluster.

use trellis_cluster_protocol::sync::{Demand, OnceDemand};

use super::given_back;
use crate::cluster::{Cluster, WaitError};
use crate::names::Name;

impl Cluster {
    /// The one-time action `name`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let mut times = 0;
    /// cluster.once(1).call_once(|| times += 1)?;
    /// cluster.once(1).call_once(|| times += 1)?;
    /// assert_eq!(times, 1);
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn once<'n>(&self, name: impl Into<Name<'n>>) -> Once<'_> {
        Once { cluster: self, id: self.inner().number_of(name) }
    }

    /// A one-time action of Trellis itself.
    pub(crate) fn own_once(&self, id: u64) -> Once<'_> {
        Once { cluster: self, id }
    }
}

/// An action that one thread of one node does, while others that come wait until it is done. It is kept at its home:
/// each caller needs one round trip, the one that did it one more, and the home itself none.
#[derive(Clone, Copy)]
pub struct Once<'a> {
    cluster: &'a Cluster,
    id: u64,
}

/// A turn that has not ended yet. Dropping it ends it as failed.
struct Turn<'a>(Option<Once<'a>>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(once) = self.0.take() {
            given_back(once.cluster, once.failed());
        }
    }
}

impl Once<'_> {
    /// Does `work` if it is not done, and returns when it is done. Returns whether this call did it. If `work` panics,
    /// the next caller does it.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the node that is doing it.
    pub fn call_once(&self, work: impl FnOnce()) -> Result<bool, WaitError> {
        if !self.begin()? {
            return Ok(false);
        }
        let mut turn = Turn(Some(*self));
        work();
        turn.0 = None;
        self.done()?;
        Ok(true)
    }

    /// Whether the action is done.
    pub fn is_completed(&self) -> Result<bool, WaitError> {
        self.demand(OnceDemand::IsDone).map(|done| done == 1)
    }

    /// Begins the action. If it returns true, the caller must do it and then call [`Once::done`] or [`Once::failed`].
    /// False means that it is done.
    pub fn begin(&self) -> Result<bool, WaitError> {
        self.demand(OnceDemand::Begin).map(|mine| mine == 1)
    }

    /// Says that the action is done. All waiting threads continue.
    pub fn done(&self) -> Result<(), WaitError> {
        self.demand(OnceDemand::Done).map(drop)
    }

    /// Says that the action could not be done. The next thread that waits or comes does it.
    pub fn failed(&self) -> Result<(), WaitError> {
        self.demand(OnceDemand::Failed).map(drop)
    }

    fn demand(&self, demand: OnceDemand) -> Result<u64, WaitError> {
        self.cluster.inner().demand(self.id, Demand::Once(demand))
    }
}
