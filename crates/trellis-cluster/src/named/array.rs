//! Arrays that all nodes share: each node changes its own partition, and all read what is frozen.
//!
//! Promises: no node can read an element that another node may change at the same time: an array is either divided
//! ([`SharedVec`]) or frozen ([`FrozenVec`]) at all nodes, and a barrier of all nodes lies between the two. A node has
//! one handle to an array. It must never copy elements.

use std::fmt;
use std::ops::{Deref, Range};

use bytemuck::Pod;

use super::{Handle, Kind, Partitions};
use crate::cluster::{Cluster, WaitError};
use crate::heap::HeapError;

/// An array of all nodes. This node may change its own partition.
///
/// The array shares no page with anything else, and is zero at first. [`SharedVec::freeze`] makes all of it readable at
/// all nodes.
pub struct SharedVec<T> {
    handle: Handle<T>,
}

/// An array of all nodes that no node changes: a slice. [`FrozenVec::thaw`] divides it again.
pub struct FrozenVec<T> {
    handle: Handle<T>,
}

impl Cluster {
    /// The array `name` of `length` elements. Every node calls this once; the first call makes the array, and the
    /// others find it. Its elements are divided into one [partition](SharedVec::partition) for each node.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] if another node asked for another length or type, if this node has opened the array
    /// before, or if it joined later and thus has no partition. [`HeapError::NoRoom`] says how much there is.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let mut squares = cluster.array::<u64>("squares", 1000)?;
    /// let first = squares.partition(cluster.node()).start;
    /// for (index, square) in squares.mine_mut().iter_mut().enumerate() {
    ///     *square = ((first + index) as u64).pow(2);
    /// }
    /// let squares = squares.freeze()?; // every node has stored its partition
    /// assert_eq!(squares[999], 998_001);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn array<T: Pod>(&self, name: &str, length: usize) -> Result<SharedVec<T>, HeapError> {
        if self.has_joined_later() {
            return Err(HeapError::Misuse(format!(
                "array `{name}` is divided among the {} nodes that the cluster started with; node {} joined later",
                self.nodes(),
                self.node()
            )));
        }
        Handle::open(self, Kind::Array, name, length, |_| ()).map(|handle| SharedVec { handle })
    }

    /// How an array of this length and type is divided among the nodes.
    pub fn partitions_of(&self, length: usize, element_bytes: usize) -> Partitions {
        Partitions { length, element_bytes, page_bytes: self.region().page_bytes(), nodes: self.nodes() }
    }
}

impl<T> Handle<T> {
    fn partitions(&self) -> Partitions {
        self.cluster.partitions_of(self.length, size_of::<T>())
    }

    /// Waits in the barrier `number` of all nodes.
    fn meet(&self, number: u64) -> Result<(), WaitError> {
        self.cluster.inner().barrier(number)
    }

    /// The first element of `part` and their number.
    fn part(&self, part: &Range<usize>) -> (*mut T, usize) {
        (self.first.as_ptr().wrapping_add(part.start), part.len())
    }
}

impl<T: Pod> SharedVec<T> {
    /// The number of elements of all nodes.
    pub fn len(&self) -> usize {
        self.handle.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The indexes of the elements of `node`. The partitions lie in the order of the nodes and cover the array. They
    /// begin at page borders unless that makes one of them more than a quarter larger or smaller than an equal share.
    pub fn partition(&self, node: usize) -> Range<usize> {
        self.handle.partitions().of(node)
    }

    /// The partition of this node.
    pub fn mine(&self) -> &[T] {
        let (first, length) = self.handle.part(&self.handle.own);
        // SAFETY: the elements are in the memory of the handle and any bytes are a `T`. While the array is divided,
        // only this handle stores to this partition, and `self` is borrowed.
        unsafe { std::slice::from_raw_parts(first, length) }
    }

    /// The partition of this node, to be changed.
    pub fn mine_mut(&mut self) -> &mut [T] {
        let (first, length) = self.handle.part(&self.handle.own);
        // SAFETY: as in `mine`, and no other node reads this partition; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(first, length) }
    }

    /// Waits until every node has called this. From then on, all nodes can read all elements, and none changes them.
    /// This is a barrier of all nodes.
    ///
    /// # Errors
    ///
    /// As [`Cluster::barrier`]. The array cannot be used at this node afterwards.
    pub fn freeze(self) -> Result<FrozenVec<T>, WaitError> {
        self.handle.meet(self.handle.number)?;
        Ok(FrozenVec { handle: self.handle })
    }
}

impl<T: Pod> FrozenVec<T> {
    /// The indexes of the elements of `node`.
    pub fn partition(&self, node: usize) -> Range<usize> {
        self.handle.partitions().of(node)
    }

    /// Waits until every node has called this. From then on, every node can change its partition again.
    ///
    /// # Errors
    ///
    /// As [`SharedVec::freeze`].
    pub fn thaw(self) -> Result<SharedVec<T>, WaitError> {
        self.handle.meet(self.handle.number)?;
        Ok(SharedVec { handle: self.handle })
    }

    /// Thaws this array and freezes `next`, with one barrier: the step of a computation that reads one array and writes
    /// another one. All nodes give the same two arrays.
    ///
    /// # Errors
    ///
    /// As [`SharedVec::freeze`], for both arrays. [`WaitError::Misuse`] if they belong to two clusters of this process.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let mut now = cluster.array::<f64>("now", 100)?.freeze()?;
    /// let mut next = cluster.array::<f64>("next", 100)?;
    /// for step in 0..10 {
    ///     let partition = next.partition(cluster.node());
    ///     for (index, value) in partition.zip(next.mine_mut()) {
    ///         *value = now[index] + f64::from(step);
    ///     }
    ///     (next, now) = now.exchange(next)?;
    /// }
    /// assert_eq!(now[99], 45.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exchange(self, next: SharedVec<T>) -> Result<(SharedVec<T>, FrozenVec<T>), WaitError> {
        let node = self.handle.cluster.inner();
        if !std::ptr::eq(node, next.handle.cluster.inner()) {
            return Err(WaitError::Misuse("arrays of two clusters cannot be exchanged".to_owned()));
        }
        // The barrier belongs to these two arrays in this order: nodes with other arrays do not meet in it.
        let text = format!("exchange {:x} {:x}", self.handle.number, next.handle.number);
        self.handle.meet(node.number_of_memory(&text, "exchange of two arrays"))?;
        Ok((SharedVec { handle: self.handle }, FrozenVec { handle: next.handle }))
    }
}

impl<T: Pod> Deref for FrozenVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the elements are in the memory of the handle and any bytes are a `T`. Every node has given up its
        // `SharedVec` for a `FrozenVec` before this one existed, and gets another one only after this one is given up.
        unsafe { std::slice::from_raw_parts(self.handle.first.as_ptr(), self.handle.length) }
    }
}

impl<T> fmt::Debug for SharedVec<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedVec({} elements, {:?} are those of this node)", self.handle.length, self.handle.own)
    }
}

impl<T> fmt::Debug for FrozenVec<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FrozenVec({} elements)", self.handle.length)
    }
}
