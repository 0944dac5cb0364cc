//! Locks of page ranges, as calls of the program: waits for the pages, and says why a call failed.
//!
//! Promises: decisions of [`trellis_cluster_protocol::node::RangeLocks`] are carried out in their order. A call that
//! fails holds no page. A refusal says which protocol is in the way. It must never be used on the fault path.

use std::ops::Range;
use std::sync::atomic::Ordering;

use trellis_cluster_protocol::coherence::Coherence;
use trellis_cluster_protocol::coherence::choices::{Layer, Waiting as LockWaiting};
use trellis_cluster_protocol::node::{CannotLock, LockedRange, RangeLockCall};
use trellis_cluster_protocol::{Access, PageRange, runs};

use super::ordered::lock;
use super::pages::{Shard, Waiting};
use super::progress::Waited;
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
        let counters = self.counters();
        self.refuse_with_leases("no range can be locked", "use a lock, or `update` of your own under one")?;
        for run in runs(pages.clone()) {
            self.refuse_unlockable(&lock(self.shard_of(run.first())), run)?;
        }
        let mut taken = LockedRange::new(pages);
        let mut is_local = true;
        while let Some(rest) = taken.wanted() {
            match self.lock_run(rest, stay, started) {
                Ok((piece, call, waited)) => {
                    is_local &= !waited;
                    taken.took(piece, call);
                }
                Err(error) => {
                    // It does not matter any more whether the time of a piece was over.
                    let _ = self.unlock_range(&mut taken);
                    return Err(error);
                }
            }
        }
        LiveCounters::add(&counters.lock_acquires, 1);
        if is_local {
            LiveCounters::add(&counters.lock_acquires_local, 1);
        } else {
            LiveCounters::add(&counters.lock_wait_ns, self.now() - started);
        }
        Ok(taken)
    }

    /// Gives a range back. A second call does nothing. The error says that its time was over before.
    pub(crate) fn unlock_range(&self, taken: &mut LockedRange) -> Result<(), WaitError> {
        let mut ended = false;
        while let Some((range, call)) = taken.pop() {
            ended |= self.unlock_run(range, call);
        }
        if ended {
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
        for shard in &self.shards {
            let mut shard = lock(shard);
            while let Some(input) = shard.node.locks.pop() {
                self.step(&mut shard, input);
            }
        }
    }

    /// Wakes the thread of a call that got its pages.
    pub(super) fn wake_call(&self, shard: &mut Shard, call: u32) {
        if let Some(ticket) = shard.forget_waiting_call(call) {
            self.waiters.signal(ticket, 0);
        }
    }

    /// Takes the pages at the start of `rest` that have one protocol. Returns them, the number of the call, and whether
    /// it took messages or a wait.
    fn lock_run(&self, rest: PageRange, stay: Option<u64>, started: u64) -> Result<(PageRange, u32, bool), WaitError> {
        let ticket = self.waiters.take();
        let deadline = started.saturating_add(Wait::LockRange(0).limit_ns(&self.config));
        let (mut shard, range, number, input) = loop {
            let mut shard = lock(self.shard_of(rest.first()));
            let range = shard.node.protocol.alike(rest.first(), rest);
            self.refuse_unlockable(&shard, range)?;
            let number = self.lock_calls.fetch_add(1, Ordering::Relaxed);
            // This releases locks whose time is over. One whose time ends from now on is still held for this call.
            let now = self.now();
            self.release_due(&mut shard);
            match shard.node.lock(RangeLockCall { range, number, thread: this_thread(), stay }, now) {
                Ok(input) => break (shard, range, number, input),
                Err(CannotLock::Frozen(page)) => {
                    shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
                    drop(shard);
                    self.wait_for_lock(&ticket, rest, deadline)?;
                    ticket.rearm();
                }
                Err(CannotLock::Held(held)) => {
                    return Err(WaitError::Misuse(format!(
                        "this thread holds {held} already, and would wait for itself; give them back before, or lock \
                         them together"
                    )));
                }
            }
        };
        shard.waiting.push(Waiting::Lock { call: number, ticket: ticket.name() });
        let waits = self.step(&mut shard, input) > 0 || !ticket.is_done();
        drop(shard);
        if let Err(error) = self.wait_for_lock(&ticket, range, deadline) {
            self.unlock_run(range, number);
            return Err(error);
        }
        Ok((range, number, waits))
    }

    /// Gives a piece back. Returns whether its time was over already.
    fn unlock_run(&self, range: PageRange, call: u32) -> bool {
        let now = self.now();
        let mut shard = lock(self.shard_of(range.first()));
        shard.forget_waiting_call(call);
        let given_back = shard.node.locks.give_back(call, now);
        if let Some(input) = given_back.input {
            self.step(&mut shard, input);
        }
        given_back.was_over
    }

    fn wait_for_lock(&self, ticket: &Ticket<'_>, range: PageRange, deadline: u64) -> Result<(), WaitError> {
        let wait = Wait::LockRange(u64::from(range.first().0));
        match self.wait_polling(None, ticket, wait, deadline) {
            Waited::Done => Ok(()),
            Waited::Failed => Err(WaitError::Failed(self.failure.sentence())),
            Waited::TooLong => Err(self.too_long(wait, self.who_locks(range))),
        }
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

    fn refuse_unlockable(&self, shard: &Shard, run: PageRange) -> Result<(), WaitError> {
        let Some(page) = run.pages().find(|&page| !shard.node.protocol.protocol(page).can_lock()) else {
            return Ok(());
        };
        let refused = shard.node.protocol.alike(page, run);
        let protocol = shard.node.protocol.protocol(page);
        let pages = match refused.count() {
            1 => format!("page {} is", page.0),
            _ => format!("pages {} to {} are", refused.first().0, refused.end() - 1),
        };
        let choice = protocol.within(Layer::Lock(LockWaiting::default())).map_or_else(String::new, |it| it.to_string());
        Err(WaitError::Misuse(format!(
            "{pages} under {protocol}, which has no locks; choose {choice} with set_protocol or the key coherence"
        )))
    }
}
