//! What is done once in a cluster.

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

    /// The same for an object of Trellis itself.
    pub(crate) fn own_once(&self, id: u64) -> Once<'_> {
        Once { cluster: self, id }
    }
}

/// Something that one thread of one node does, while others that come wait until it is done. Kept at its home: one round
/// trip for each caller, one more for the one that did it, none at the home itself.
#[derive(Clone, Copy)]
pub struct Once<'a> {
    cluster: &'a Cluster,
    id: u64,
}

/// A turn that is not ended yet: ends as failed.
struct Turn<'a>(Option<Once<'a>>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(once) = self.0.take() {
            given_back(once.cluster, once.failed());
        }
    }
}

impl Once<'_> {
    /// Does `work` if nobody has done it, and returns when it is done; whether it was done here. If `work` panics, the
    /// next who comes does it.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the node that does it.
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

    /// Whether it is done.
    pub fn is_completed(&self) -> Result<bool, WaitError> {
        self.demand(OnceDemand::IsDone).map(|done| done == 1)
    }

    /// True: do it, then say [`Once::done`] or [`Once::failed`]. False: it is done.
    pub fn begin(&self) -> Result<bool, WaitError> {
        self.demand(OnceDemand::Begin).map(|mine| mine == 1)
    }

    /// It is done: everybody goes on.
    pub fn done(&self) -> Result<(), WaitError> {
        self.demand(OnceDemand::Done).map(drop)
    }

    /// It could not be done: the next who waits, or comes, does it.
    pub fn failed(&self) -> Result<(), WaitError> {
        self.demand(OnceDemand::Failed).map(drop)
    }

    fn demand(&self, demand: OnceDemand) -> Result<u64, WaitError> {
        self.cluster.inner().demand(self.id, Demand::Once(demand))
    }
}
