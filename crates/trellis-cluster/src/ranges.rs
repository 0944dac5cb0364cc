//! Parts of the region: locks of ranges, and which protocol looks after them.
//!
//! Promises: a range that leaves the region, or a protocol that cannot do what is asked, is refused with a sentence and
//! nothing has happened. Bytes are named by their offset; what is locked or changed are the pages that hold them.

use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use trellis_cluster_protocol::PageIndex;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::NoProtocol;
use trellis_cluster_protocol::node::LockedRange;

use crate::cluster::{Region, WaitError};
use crate::runtime::Node;

/// What names a protocol: a [`Protocol`], or its words such as `"lock(dynamic)"`.
pub trait ToProtocol {
    /// The protocol, or the sentence that lists what there is.
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

/// A range that is locked; dropping it gives the range back.
pub struct RangeGuard<'a> {
    node: &'a Node,
    taken: LockedRange,
    /// As with `std::sync::MutexGuard`, the thread that took the lock gives it back.
    not_send: PhantomData<*const ()>,
}

impl RangeGuard<'_> {
    /// Gives the range back, as dropping does, and says whether it was locked until now.
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
        // It can only fail where the time was over, and then nobody asked to be told.
        let _ = self.node.unlock_range(&mut self.taken);
    }
}

impl<'a> Region<'a> {
    /// Locks the pages that hold bytes `[offset, offset + bytes)`: they come here, for stores, and stay until the guard
    /// is dropped. No other node sees them meanwhile, and no other call for them succeeds, on this node neither; plain
    /// loads and stores of this node's own threads go on. So the range is a lock between nodes, and what is stored
    /// while it is held appears to others at once.
    ///
    /// Not recursive. Ranges that span chunks or borders of protocols are taken piece by piece in ascending order.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if the range leaves the region, or its protocol has no lock layer;
    /// [`WaitError::TooLong`] names who holds it.
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

    /// As [`Region::lock_range`], but the lock ends by itself `stay` after it was got: nobody waits longer for a node
    /// that is slow. What is stored after that is seen as it happens.
    pub fn lock_range_for(&self, offset: usize, bytes: usize, stay: Duration) -> Result<RangeGuard<'a>, WaitError> {
        self.guard(offset, bytes, Some(stay))
    }

    /// As [`Region::lock_range`] (or [`Region::lock_range_for`] where `stay` is given), without a guard: for interfaces
    /// to other languages. [`Region::lock_range_release`] gives the range back.
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

    /// Gives the pages of `[offset, offset + bytes)` to another protocol. Every node makes the same call, as with a
    /// barrier; it returns when all nodes have changed. The bytes stay what they are, and threads may go on using the
    /// region: those that need one of these pages meanwhile wait.
    ///
    /// # Errors
    ///
    /// [`WaitError::Misuse`] if the range leaves the region or does not begin and end with a page, if nodes asked for
    /// different changes, or if the program of a node holds or waits for a lock of a page of the range: then nothing
    /// has changed on any node. [`WaitError::TooLong`] names who did not come, or which node could not wait any longer:
    /// this call returns it on every node, whenever they come, nothing has changed on any, and the next call is a new
    /// one. Once all have agreed a node that does not come ends the cluster.
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

    /// The protocol that looks after the byte at `offset`.
    ///
    /// # Panics
    ///
    /// If that is outside of the region.
    pub fn protocol(&self, offset: usize) -> Protocol {
        assert!(offset < self.bytes(), "byte {offset} is not inside the region of {} bytes", self.bytes());
        self.node.protocol_of(PageIndex((offset / self.page_bytes()) as u32))
    }

    fn guard(&self, offset: usize, bytes: usize, stay: Option<Duration>) -> Result<RangeGuard<'a>, WaitError> {
        let taken = self.node.lock_range(self.pages(offset, bytes)?, stay.map(nanoseconds))?;
        Ok(RangeGuard { node: self.node, taken, not_send: PhantomData })
    }

    /// The pages that hold these bytes; at least one.
    fn pages(&self, offset: usize, bytes: usize) -> Result<Range<u32>, WaitError> {
        self.node.check_range(offset, bytes)?;
        if bytes == 0 {
            return Err(WaitError::Misuse(format!("the range at byte {offset} is empty; give at least one byte")));
        }
        Ok(self.node.pages_of(offset, bytes))
    }
}

/// A lock that ends in five centuries ends in time.
fn nanoseconds(stay: Duration) -> u64 {
    u64::try_from(stay.as_nanos()).unwrap_or(u64::MAX)
}
