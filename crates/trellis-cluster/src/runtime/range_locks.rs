//! Locks of page ranges, as calls of the program: waits for the pages, and says why a call failed.
//!
//! Promises: decisions of [`LockedRange`] are carried out in their order. A call that fails holds no page. A refusal
//! says which protocol is in the way. It must never be used on the fault path.

use std::ops::Range;
use std::sync::atomic::Ordering;

use trellis_cluster_protocol::coherence::Coherence;
use trellis_cluster_protocol::coherence::choices::{Layer, Waiting as LockWaiting};
use trellis_cluster_protocol::node::{self, LockStep, LockedRange};
use trellis_cluster_protocol::{Access, PageRange};

use super::ordered::lock;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::waits::Wait;
use trellis_cache::this_thread;
use trellis_record::LiveCounters;

/// A range that is held without a guard: its offset and length in bytes, the thread that took it, and its pages.
pub(super) type Unguarded = ((usize, usize), std::thread::ThreadId, LockedRange);

impl Node {
    /// Takes every page of `pages` for stores and keeps them until [`Node::unlock_range`], or for `stay` nanoseconds.
    pub(crate) fn lock_range(&self, pages: Range<u32>, stay: Option<u64>) -> Result<LockedRange, WaitError> {
        let started = self.now();
        self.refuse_with_leases("no range can be locked", "use a lock, or `update` of your own under one")?;
        let deadline = started.saturating_add(Wait::LockRange(0).limit_ns(&self.config));
        let mut taken = LockedRange::new(pages, this_thread(), stay);
        let ticket = self.waiters.take();
        loop {
            let number = self.lock_calls.fetch_add(1, Ordering::Relaxed);
            let Ok(step) = taken.go_on(&mut self.carrier(), self.now(), number, ticket.name());
            let awaited = match step {
                LockStep::Page(page) => PageRange::one(page),
                LockStep::Piece(range) => range,
                LockStep::Locked => break,
                LockStep::NoLocks(range) => return Err(self.without_locks(range)),
                LockStep::Held(held) => {
                    return Err(WaitError::Misuse(format!(
                        "this thread holds {held} already, and would wait for itself; give them back before, or lock \
                         them together"
                    )));
                }
            };
            if let Err(error) = self.wait_for_lock(&ticket, awaited, deadline) {
                // It does not matter any more whether the time of a piece was over.
                let _ = self.unlock_range(&mut taken);
                return Err(error);
            }
            ticket.rearm();
        }
        let counters = self.counters();
        LiveCounters::add(&counters.lock_acquires, 1);
        if taken.is_local() {
            LiveCounters::add(&counters.lock_acquires_local, 1);
        } else {
            self.count_lock_wait(self.now() - started);
        }
        Ok(taken)
    }

    /// Gives a range back. A second call does nothing. The error says that its time was over before.
    pub(crate) fn unlock_range(&self, taken: &mut LockedRange) -> Result<(), WaitError> {
        let Ok(was_over) = taken.give_back(&mut self.carrier(), self.now());
        if was_over {
            let what = "the time of this lock was over before it was given back; others may have used the range since";
            return Err(WaitError::Misuse(what.to_owned()));
        }
        Ok(())
    }

    /// Locks a range like [`Node::lock_range`], but this node keeps it until [`Node::give_back_range`].
    pub(crate) fn hold_range(
        &self,
        range: (usize, usize),
        pages: Range<u32>,
        stay: Option<u64>,
    ) -> Result<(), WaitError> {
        let taken = self.lock_range(pages, stay)?;
        let this_thread = std::thread::current().id();
        let mut unguarded = lock(&self.unguarded);
        let before = unguarded.iter().position(|held| held.0 == range && held.1 == this_thread);
        let before = before.map(|index| unguarded.swap_remove(index));
        unguarded.push((range, this_thread, taken));
        drop(unguarded);
        if let Some((_, _, mut ended)) = before {
            // Its time was over, or this thread would not have got the range again.
            let _ = self.unlock_range(&mut ended);
        }
        Ok(())
    }

    /// Gives back `range`: the one that this thread took last, or else the one that another thread took last.
    pub(crate) fn give_back_range(&self, range: (usize, usize)) -> Result<(), WaitError> {
        let this_thread = std::thread::current().id();
        let mut unguarded = lock(&self.unguarded);
        let of_this_thread = unguarded.iter().rposition(|held| held.0 == range && held.1 == this_thread);
        let index = of_this_thread.or_else(|| unguarded.iter().rposition(|held| held.0 == range));
        let Some(index) = index else {
            let (offset, end) = (range.0, range.0 + range.1);
            return Err(WaitError::Misuse(format!("the range of bytes {offset} to {end} is not locked by this node")));
        };
        let (_, _, mut taken) = unguarded.swap_remove(index);
        drop(unguarded);
        self.unlock_range(&mut taken)
    }

    /// Gives back everything that the program still holds, because it is done and others may wait.
    pub(crate) fn unlock_all_ranges(&self) {
        let Ok(()) = node::give_back_all(&mut self.carrier());
    }

    fn wait_for_lock(&self, ticket: &Ticket<'_>, range: PageRange, deadline: u64) -> Result<(), WaitError> {
        let wait = Wait::LockRange(u64::from(range.first().0));
        let waited = self.wait_polling(None, ticket, wait, deadline);
        self.has_waited(waited, || self.too_long(wait, self.who_locks(range)))
    }

    fn who_locks(&self, range: PageRange) -> String {
        let missing = {
            let shard = lock(self.shard_of(range.first()));
            range.pages().find(|&page| shard.node.protocol.access(page) < Access::Write)
        };
        match missing {
            Some(page) => format!("page {} did not come: {}", page.0, self.who_has_page(page)),
            None => "another thread of this node holds it".to_owned(),
        }
    }

    /// Refuses to lock these pages, which have one protocol.
    fn without_locks(&self, refused: PageRange) -> WaitError {
        let protocol = self.protocol_of(refused.first());
        let pages = match refused.count() {
            1 => format!("page {} is", refused.first().0),
            _ => format!("pages {} to {} are", refused.first().0, refused.end() - 1),
        };
        let choice = protocol.within(Layer::Lock(LockWaiting::default())).map_or_else(String::new, |it| it.to_string());
        WaitError::Misuse(format!(
            "{pages} under {protocol}, which has no locks; choose {choice} with set_protocol or the key coherence"
        ))
    }
}
