//! Barriers: for one thread of every node, with or without a value that is reduced; and for a number of participants.

use std::time::Duration;

use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{Demand, Reduction};

use crate::cluster::{Cluster, WaitError};
use crate::names::Name;
use crate::runtime::Timeout;

/// How a barrier reduces the values of the nodes to one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduce {
    /// Their sum, modulo 2^64 for whole numbers. For floating-point numbers, it has the same bits at every node and in
    /// every run with the same number of nodes.
    Sum,
    /// The least.
    Least,
    /// The greatest.
    Greatest,
    /// The bits that all values have.
    And,
    /// The bits that any value has.
    Or,
    /// The bits that an odd number of values have.
    ExclusiveOr,
}

/// A number that a barrier can carry.
pub trait Reducible: Copy + sealed::Bits {
    /// The protocol's operation for `reduce`; `None` if these numbers cannot be reduced that way.
    #[doc(hidden)]
    fn reduction(reduce: Reduce) -> Option<Reduction>;
}

mod sealed {
    /// A number as 64 bits.
    pub trait Bits {
        fn to_bits(self) -> u64;
        fn of_bits(bits: u64) -> Self;
    }

    impl Bits for u64 {
        fn to_bits(self) -> u64 {
            self
        }
        fn of_bits(bits: u64) -> u64 {
            bits
        }
    }

    impl Bits for i64 {
        fn to_bits(self) -> u64 {
            self as u64
        }
        fn of_bits(bits: u64) -> i64 {
            bits as i64
        }
    }

    impl Bits for f64 {
        fn to_bits(self) -> u64 {
            f64::to_bits(self)
        }
        fn of_bits(bits: u64) -> f64 {
            f64::from_bits(bits)
        }
    }
}

/// The operations that are the same for signed and unsigned numbers.
fn of_bits(reduce: Reduce) -> Option<Reduction> {
    match reduce {
        Reduce::Sum => Some(Reduction::Sum),
        Reduce::And => Some(Reduction::And),
        Reduce::Or => Some(Reduction::Or),
        Reduce::ExclusiveOr => Some(Reduction::ExclusiveOr),
        Reduce::Least | Reduce::Greatest => None,
    }
}

impl Reducible for u64 {
    fn reduction(reduce: Reduce) -> Option<Reduction> {
        match reduce {
            Reduce::Least => Some(Reduction::Least),
            Reduce::Greatest => Some(Reduction::Greatest),
            other => of_bits(other),
        }
    }
}

impl Reducible for i64 {
    fn reduction(reduce: Reduce) -> Option<Reduction> {
        match reduce {
            Reduce::Least => Some(Reduction::LeastSigned),
            Reduce::Greatest => Some(Reduction::GreatestSigned),
            other => of_bits(other),
        }
    }
}

impl Reducible for f64 {
    fn reduction(reduce: Reduce) -> Option<Reduction> {
        match reduce {
            Reduce::Sum => Some(Reduction::SumFloat),
            Reduce::Least => Some(Reduction::LeastFloat),
            Reduce::Greatest => Some(Reduction::GreatestFloat),
            Reduce::And | Reduce::Or | Reduce::ExclusiveOr => None,
        }
    }
}

impl Cluster {
    /// Waits until one thread of every node has entered barrier `name`. After it, every node reads what all nodes wrote
    /// before it. Nodes that joined later take no part; [`Cluster::barrier_of`] is for them.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] names the nodes that did not come. This node has come nevertheless, and its next call for
    /// the same barrier continues the wait. [`WaitError::Misuse`] if another thread of this node is in the same
    /// barrier, or if other nodes came to reduce values.
    pub fn barrier<'n>(&self, name: impl Into<Name<'n>>) -> Result<(), WaitError> {
        self.inner().barrier(self.inner().number_of(name))
    }

    /// Waits like [`Cluster::barrier`]. Every node also gets the reduction of the values of all nodes, in the same
    /// messages.
    ///
    /// # Errors
    ///
    /// As [`Cluster::barrier`]; [`WaitError::Misuse`] also if nodes requested different reductions, or one of the bits
    /// of floating-point numbers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// use trellis::synchronisation::Reduce;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let nodes = cluster.barrier_reduce(0, Reduce::Sum, 1u64)?;
    /// assert_eq!(nodes, cluster.nodes() as u64);
    /// let coldest = cluster.barrier_reduce(0, Reduce::Least, -3.5f64)?;
    /// assert_eq!(coldest, -3.5);
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn barrier_reduce<'n, T: Reducible>(
        &self,
        name: impl Into<Name<'n>>,
        reduce: Reduce,
        value: T,
    ) -> Result<T, WaitError> {
        let Some(reduction) = T::reduction(reduce) else {
            let why = format!("floating-point numbers have no {reduce:?}; reduce their bits as u64");
            return Err(WaitError::Misuse(why));
        };
        self.inner().reduce(self.inner().number_of(name), reduction, value.to_bits()).map(T::of_bits)
    }

    /// Waits like [`Cluster::barrier`]. Every node also gets the `value` of node `from`; the values of others are
    /// ignored.
    ///
    /// # Errors
    ///
    /// As [`Cluster::barrier_reduce`]; [`WaitError::Misuse`] also if `from` is not a founder.
    pub fn broadcast<'n, T: Reducible>(
        &self,
        name: impl Into<Name<'n>>,
        from: usize,
        value: T,
    ) -> Result<T, WaitError> {
        if from >= self.nodes() {
            let why = format!("node {from} cannot give its value: the cluster started with {} nodes", self.nodes());
            return Err(WaitError::Misuse(why));
        }
        let own = if from == self.node() { value.to_bits() } else { 0 };
        self.inner()
            .reduce(self.inner().number_of(name), Reduction::Broadcast(NodeId(from as u16)), own)
            .map(T::of_bits)
    }

    /// Barrier `name` for `participants` threads of any nodes. Several threads of one node may take part, and so may
    /// nodes that joined later. All must give the same number.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let last = std::thread::scope(|scope| {
    ///     let threads = [0; 3].map(|_| scope.spawn(|| cluster.barrier_of(5, 3).wait()));
    ///     threads.map(|thread| thread.join().unwrap()).into_iter().filter(|last| *last == Ok(true)).count()
    /// });
    /// assert_eq!(last, 1);
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn barrier_of<'n>(&self, name: impl Into<Name<'n>>, participants: u32) -> Barrier<'_> {
        Barrier { cluster: self, id: self.inner().number_of(name), participants }
    }
}

/// A barrier for a number of threads, kept at its home.
#[must_use = "nobody waits before `wait` is called"]
#[derive(Clone, Copy)]
pub struct Barrier<'a> {
    cluster: &'a Cluster,
    id: u64,
    participants: u32,
}

impl Barrier<'_> {
    /// Waits until all participants have come. Returns true to the last of them.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] says how many have come, and from which nodes. This thread has come nevertheless, and the
    /// next call of its node for the same barrier continues the wait. [`WaitError::Misuse`] if others gave another
    /// number.
    pub fn wait(&self) -> Result<bool, WaitError> {
        self.cluster.inner().demand(self.id, Demand::CountingBarrier(self.participants)).map(|last| last == 1)
    }

    /// Waits like [`Barrier::wait`], for `duration` at most. Returns `None` if not all have come by then. This thread has
    /// come nevertheless, and the next call of its node for the same barrier continues the wait.
    ///
    /// # Errors
    ///
    /// As [`Barrier::wait`], except [`WaitError::TooLong`].
    pub fn wait_for(&self, duration: Duration) -> Result<Option<bool>, WaitError> {
        let demand = Demand::CountingBarrier(self.participants);
        let last = self.cluster.inner().demand_within(self.id, demand, Timeout::For(duration))?;
        Ok(last.map(|last| last == 1))
    }
}
