//! Locks of ranges: every page of a range is here, for stores, and stays.
//!
//! Promises: the pages of a range are taken in ascending order and given back in descending order, so that nodes whose
//! ranges overlap cannot wait for each other for ever; a lock that was not got is given up on every page; a refusal
//! says which protocol is in the way. Must never be used on the fault path: a lock is a call of the program.

use std::ops::Range;
use std::sync::atomic::Ordering;

use trellis_cluster_protocol::coherence::choices::{Layer, Waiting as LockWaiting};
use trellis_cluster_protocol::coherence::{Coherence, Input};
use trellis_cluster_protocol::{Access, PageIndex, PageRange};

use super::ordered::lock;
use super::pages::{Shard, Waiting, runs};
use super::progress::Waited;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::waits::Wait;
use trellis_cache::this_thread;
use trellis_record::LiveCounters;

/// A call of the program for the pages of a run: waits for them, or holds them.
pub(super) struct LockCall {
    pub(super) range: PageRange,
    call: u32,
    /// Of the thread that waits.
    ticket: u32,
    thread: u64,
    stay: Option<u64>,
    /// Since when the pages are held.
    since: Option<u64>,
}

impl LockCall {
    /// Whether the lock was given for a time that is over.
    pub(super) fn has_ended(&self, now: u64) -> bool {
        self.stay.zip(self.since).is_some_and(|(stay, since)| now.saturating_sub(since) >= stay)
    }
}

/// The time of the lock that was given last from `first` on runs from now: it is over when the alarm for it is due.
pub(super) fn time_runs(shard: &mut Shard, first: PageIndex, now: u64) {
    let timed = shard.locks.iter_mut().filter(|held| held.range.first() == first && held.stay.is_some());
    if let Some(given) = timed.max_by_key(|held| held.since) {
        given.since = Some(now);
    }
}

/// What a thread holds after [`Node::lock_range`]: runs with the numbers of their calls, in ascending order.
#[derive(Debug)]
pub(crate) struct RangeLock {
    pieces: Vec<(PageRange, u32)>,
}

/// A range that is held without a guard: its offset and length, the thread that took it, and what it took.
pub(super) type Unguarded = ((usize, usize), std::thread::ThreadId, RangeLock);

impl Node {
    /// Takes every page of `pages` for stores and keeps it, until [`Node::unlock_range`] or for `stay` nanoseconds.
    pub(crate) fn lock_range(&self, pages: Range<u32>, stay: Option<u64>) -> Result<RangeLock, WaitError> {
        let started = self.now();
        let counters = self.counters();
        self.refuse_with_leases("no range can be locked", "use a lock, or `update` of your own under one")?;
        for run in runs(pages.clone()) {
            self.refuse_unlockable(&lock(self.shard_of(run.first())), run)?;
        }
        let mut taken = RangeLock { pieces: Vec::with_capacity(1) };
        let mut next = pages.start;
        let mut is_local = true;
        while next < pages.end {
            let rest = PageRange::around(PageIndex(next), next, pages.end);
            match self.lock_run(rest, stay, started) {
                Ok((piece, waited)) => {
                    is_local &= !waited;
                    next = piece.0.end();
                    taken.pieces.push(piece);
                }
                Err(error) => {
                    // That a piece of it had ended by itself does not matter any more.
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

    /// Gives a range back; a second time does nothing. An error says that its time was over before.
    pub(crate) fn unlock_range(&self, taken: &mut RangeLock) -> Result<(), WaitError> {
        let mut ended = false;
        for (range, call) in taken.pieces.drain(..).rev() {
            ended |= self.unlock_run(range, call);
        }
        if ended {
            let what = "the time of this lock was over before it was given back; others may have used the range since";
            return Err(WaitError::Misuse(what.to_owned()));
        }
        Ok(())
    }

    /// As [`Node::lock_range`], but this node keeps what was taken until [`Node::give_back_range`].
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
            // It ended by itself, or this thread would not have got the range again.
            let _ = self.unlock_range(&mut ended);
        }
        Ok(())
    }

    /// Gives back the range that this thread took last, or else another thread.
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

    /// Gives back whatever the program still holds: it is done, and others may wait for it.
    pub(crate) fn unlock_all_ranges(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            for LockCall { range, call, .. } in std::mem::take(&mut shard.locks) {
                self.step(&mut shard, Input::Unlock { range, call });
            }
        }
    }

    /// The protocol gave a call its pages.
    pub(super) fn locked(&self, shard: &mut Shard, call: u32, now: u64) {
        if let Some(waiting) = shard.locks.iter_mut().find(|waiting| waiting.call == call) {
            waiting.since = Some(now);
            self.waiters.signal(waiting.ticket, 0);
        }
    }

    /// Takes the pages at the start of `rest` that have one protocol; returns them, and whether that took messages.
    fn lock_run(
        &self,
        rest: PageRange,
        stay: Option<u64>,
        started: u64,
    ) -> Result<((PageRange, u32), bool), WaitError> {
        let ticket = self.waiters.take();
        let deadline = started.saturating_add(Wait::LockRange(0).limit_ns(&self.config));
        let mut shard = lock(self.shard_of(rest.first()));
        while let Some(page) = rest.pages().find(|page| shard.frozen.contains(&page.0)) {
            shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
            drop(shard);
            self.wait_for_lock(&ticket, rest, deadline)?;
            ticket.rearm();
            shard = lock(self.shard_of(rest.first()));
        }
        let range = shard.protocol.alike(rest.first(), rest);
        self.refuse_unlockable(&shard, range)?;
        let call = self.lock_calls.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        // Locks that ended by themselves and are never given back.
        self.release_due(&mut shard);
        shard.locks.retain(|held| !held.has_ended(now));
        self.refuse_own_range(&shard, range)?;
        let thread = this_thread();
        shard.locks.push(LockCall { range, call, ticket: ticket.name(), thread, stay, since: None });
        self.step(&mut shard, Input::Lock { range, call, stay });
        let waits = shard.sent > 0 || !ticket.is_done();
        drop(shard);
        if let Err(error) = self.wait_for_lock(&ticket, range, deadline) {
            self.unlock_run(range, call);
            return Err(error);
        }
        Ok(((range, call), waits))
    }

    /// Whether the time of the lock was over already.
    fn unlock_run(&self, range: PageRange, call: u32) -> bool {
        let now = self.now();
        let mut shard = lock(self.shard_of(range.first()));
        let Some(index) = shard.locks.iter().position(|waiting| waiting.call == call) else { return true };
        let ended = shard.locks.swap_remove(index).has_ended(now);
        self.step(&mut shard, Input::Unlock { range, call });
        ended
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
            range.pages().find(|&page| shard.protocol.access(page) < Access::Write)
        };
        match missing {
            Some(page) => format!("page {} did not come: {}", page.0, self.who_has_page(page)),
            None => "another thread of this node holds it".to_owned(),
        }
    }

    /// Refuses pages that this thread holds already: it would wait for itself. One that it holds for a time it gets again.
    fn refuse_own_range(&self, shard: &Shard, range: PageRange) -> Result<(), WaitError> {
        let me = this_thread();
        let is_own = |held: &&LockCall| {
            let overlaps = held.range.first().0 < range.end() && range.first().0 < held.range.end();
            held.thread == me && held.stay.is_none() && overlaps
        };
        match shard.locks.iter().find(is_own) {
            None => Ok(()),
            Some(held) => Err(WaitError::Misuse(format!(
                "this thread holds {} already, and would wait for itself; give them back before, or lock them together",
                held.range
            ))),
        }
    }

    fn refuse_unlockable(&self, shard: &Shard, run: PageRange) -> Result<(), WaitError> {
        let Some(page) = run.pages().find(|&page| !shard.protocol.protocol(page).can_lock()) else { return Ok(()) };
        let refused = shard.protocol.alike(page, run);
        let protocol = shard.protocol.protocol(page);
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
