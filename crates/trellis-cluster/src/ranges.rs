//! Parts of the region: locks of ranges, and their protocols.
//!
//! Promises: a range that leaves the region, or a protocol that does not support the call, is refused with a sentence,
//! and nothing has changed. Calls name bytes by their offset; they lock or change the pages that hold these bytes.

use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use trellis_cluster_protocol::PageIndex;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::NoProtocol;
use trellis_cluster_protocol::node::LockedRange;

use crate::cluster::{Region, WaitError};
use crate::runtime::Node;

/// A value that names a protocol: a [`Protocol`], or its text, such as `"lock(dynamic)"`.
pub trait ToProtocol {
    /// The protocol, or the sentence that lists the protocols.
    fn to_protocol(&self) -> Result<Protocol, NoProtocol>;
}

impl ToProtocol for Protocol {
    fn to_protocol(&self) -> Result<Protocol, NoProtocol> {
        Ok(*self)
    }
}

impl ToProtocol for &str {
    fn to_protocol(&self) -> Result<Protocol, NoProtocol> {
        self.parse()
    }
}

impl ToProtocol for String {
    fn to_protocol(&self) -> Result<Protocol, NoProtocol> {
        self.parse()
    }
}

/// A locked range. Dropping the guard gives the range back.
pub struct RangeGuard<'a> {
    node: &'a Node,
    taken: LockedRange,
    /// As with `std::sync::MutexGuard`, the thread that took the lock gives it back.
    not_send: PhantomData<*const ()>,
}

impl RangeGuard<'_> {
    /// Gives the range back, as dropping does. The error says that it was not locked until now.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if the time of [`Region::lock_range_for`] was over before.
    pub fn unlock(mut self) -> Result<(), WaitError> {
        self.node.unlock_range(&mut self.taken)
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        // This fails only if the time was over. A caller that wants to know that calls `unlock`.
        let _ = self.node.unlock_range(&mut self.taken);
    }
}

impl<'a> Region<'a> {
    /// Locks the pages that hold bytes `[offset, offset + bytes)`. This node gets them for stores and keeps them until
    /// the guard is dropped. Meanwhile, no other node sees them, and no other call for them succeeds, not even on this
    /// node; but plain loads and stores of this node's threads go on. So the range is a lock between nodes, and all
    /// that is stored under it appears to others at once.
    ///
    /// The lock is not recursive. A range that spans chunks or borders of protocols is taken piece by piece in
    /// ascending order.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if the range leaves the region, or its protocol has no lock layer. [`WaitError::TooLong`]
    /// names the node that holds it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let config = trellis::Config { coherence: "lock(ivy)".parse()?, ..trellis::Config::default() };
    /// let cluster = trellis::Cluster::join(config)?;
    /// let region = cluster.region();
    /// let guard = region.lock_range(0, 100)?;
    /// // SAFETY: whoever uses these bytes locks them first.
    /// unsafe { region.slice_mut::<u8>(0, 100) }.fill(7);
    /// drop(guard);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_range(&self, offset: usize, bytes: usize) -> Result<RangeGuard<'a>, WaitError> {
        self.guard(offset, bytes, None)
    }

    /// Locks like [`Region::lock_range`], but the lock ends by itself when `stay` has passed, so that no node waits
    /// longer for a slow one. Stores after that are visible to others at any time.
    pub fn lock_range_for(&self, offset: usize, bytes: usize, stay: Duration) -> Result<RangeGuard<'a>, WaitError> {
        self.guard(offset, bytes, Some(stay))
    }

    /// Locks like [`Region::lock_range`] (or [`Region::lock_range_for`] if `stay` is given) without a guard, for
    /// interfaces to other languages. [`Region::lock_range_release`] gives the range back.
    pub fn lock_range_acquire(&self, offset: usize, bytes: usize, stay: Option<Duration>) -> Result<(), WaitError> {
        let pages = self.pages(offset, bytes)?;
        self.node.hold_range((offset, bytes), pages, stay.map(nanoseconds))
    }

    /// Gives back what [`Region::lock_range_acquire`] took with the same range.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if it is not held, or its time was over before.
    pub fn lock_range_release(&self, offset: usize, bytes: usize) -> Result<(), WaitError> {
        self.node.give_back_range((offset, bytes))
    }

    /// Changes the protocol of the pages of `[offset, offset + bytes)`. Every node makes the same call, as with a
    /// barrier; it returns when all nodes have changed. The bytes do not change. Threads may use the region meanwhile;
    /// those that need one of these pages wait.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if the range leaves the region or does not begin and end with a page, if nodes requested
    /// different changes, or if the program of a node holds or waits for a lock of a page of the range.
    /// [`WaitError::TooLong`] names the nodes that did not come, or the one whose time was over: every node gets it,
    /// even one that comes later, and the next call is a new one. After either error, nothing has changed on any node.
    /// When all nodes have agreed, a node that does not come ends the cluster.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// cluster.region().set_protocol(0, 1 << 20, "lock(dynamic)")?;
    /// assert_eq!(cluster.region().protocol(5).to_string(), "lock(dynamic(forward))");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_protocol(&self, offset: usize, bytes: usize, protocol: impl ToProtocol) -> Result<(), WaitError> {
        let protocol = protocol.to_protocol().map_err(|error| WaitError::Misuse(error.to_string()))?;
        let pages = self.pages(offset, bytes)?;
        let page_bytes = self.page_bytes();
        if !offset.is_multiple_of(page_bytes) || !bytes.is_multiple_of(page_bytes) {
            return Err(WaitError::Misuse(format!(
                "bytes {offset} to {} begin or end inside a page; a protocol is chosen for whole pages of {page_bytes} bytes",
                offset + bytes
            )));
        }
        self.node.set_protocol(pages, protocol)
    }

    /// The protocol of the byte at `offset`.
    ///
    /// # Panics
    ///
    /// If `offset` is outside the region.
    pub fn protocol(&self, offset: usize) -> Protocol {
        assert!(offset < self.bytes(), "byte {offset} is not inside the region of {} bytes", self.bytes());
        self.node.protocol_of(PageIndex((offset / self.page_bytes()) as u32))
    }

    fn guard(&self, offset: usize, bytes: usize, stay: Option<Duration>) -> Result<RangeGuard<'a>, WaitError> {
        let taken = self.node.lock_range(self.pages(offset, bytes)?, stay.map(nanoseconds))?;
        Ok(RangeGuard { node: self.node, taken, not_send: PhantomData })
    }

    /// The pages that hold these bytes, at least one.
    fn pages(&self, offset: usize, bytes: usize) -> Result<Range<u32>, WaitError> {
        self.node.check_range(offset, bytes)?;
        if bytes == 0 {
            return Err(WaitError::Misuse(format!("the range at byte {offset} is empty; give at least one byte")));
        }
        Ok(self.node.pages_of(offset, bytes))
    }
}

/// A duration in nanoseconds, cut to five centuries.
fn nanoseconds(stay: Duration) -> u64 {
    u64::try_from(stay.as_nanos()).unwrap_or(u64::MAX)
}
