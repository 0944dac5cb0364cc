//! Another protocol for a part of the region, while the cluster runs.
//!
//! Every node makes the same call. Each node first *freezes* the pages: its threads that need one wait, and no guess
//! asks for one; then it waits until nothing that it asked for is under way. When all nodes have done so, the home of
//! each page pulls it, for stores, unless nobody ever touched it. When all homes have done so, every node changes its
//! own choice, and when all have, the pages thaw.
//!
//! Promises: bytes stay what they are; either every node changes or none does, and then each says why; threads may go
//! on using the region meanwhile. Must never change a page that is locked by the program.

use std::ops::Range;
use std::sync::atomic::Ordering;

use trellis_protocol::coherence::{Coherence, Input, PROTOCOLS_MAX, Protocol};
use trellis_protocol::sync::Operation;
use trellis_protocol::{Access, PageIndex, PageRange};

use super::Node;
use super::faults::Why;
use super::pages::{Waiting, lock, runs};
use super::progress::Waited;
use super::synchronisation::RESERVED_FIRST;
use crate::cluster::WaitError;
use crate::launch::Activity;

/// The word that holds what the nodes shall change, while they do.
const PROPOSAL: u64 = RESERVED_FIRST;
/// The word that counts the nodes that cannot.
const OBJECTIONS: u64 = RESERVED_FIRST + 1;
/// The barriers between the steps.
const FROZEN: u64 = RESERVED_FIRST + 2;
const GATHERED: u64 = RESERVED_FIRST + 3;
const CHANGED: u64 = RESERVED_FIRST + 4;

const ACTIVITY: Activity = Activity::ChangingProtocol;

impl Node {
    /// Gives `pages` to `protocol`; every node calls this with the same arguments.
    pub(crate) fn set_protocol(&self, pages: Range<u32>, protocol: Protocol) -> Result<(), WaitError> {
        if self.founders < self.nodes {
            let what = "a cluster that others may join (joiners_max above 0) keeps the protocols that it starts with; \
                        choose them with the keys coherence and coherence_ranges";
            return Err(WaitError::Misuse(what.to_owned()));
        }
        if self.changing.swap(true, Ordering::Acquire) {
            let what = "another thread of this node is changing protocols; one thread per node may";
            return Err(WaitError::Misuse(what.to_owned()));
        }
        self.freeze(pages.clone());
        let changed = self.change_together(&pages, protocol);
        self.thaw(pages);
        self.changing.store(false, Ordering::Release);
        changed
    }

    /// The protocol of `page`.
    pub(crate) fn protocol_of(&self, page: PageIndex) -> Protocol {
        lock(self.shard_of(page)).protocol.protocol(page)
    }

    /// Whether the protocols are, or may be, others than at the start.
    pub(crate) fn has_changed_protocols(&self) -> bool {
        self.changing.load(Ordering::Acquire) || self.changed.load(Ordering::Acquire)
    }

    fn change_together(&self, pages: &Range<u32>, protocol: Protocol) -> Result<(), WaitError> {
        self.settle(pages)?;
        let objection = self.objection(pages, protocol);
        let ours = proposal(pages, protocol);
        let theirs = self.operate_as(PROPOSAL, Operation::CompareExchange(0, ours), ACTIVITY)?;
        let differs = theirs != 0 && theirs != ours;
        if differs || objection.is_some() {
            self.operate_as(OBJECTIONS, Operation::FetchAdd(1), ACTIVITY)?;
        }
        self.barrier_as(FROZEN, ACTIVITY)?;
        let objections = self.operate_as(OBJECTIONS, Operation::Load, ACTIVITY)?;
        if objections == 0 {
            self.gather(pages)?;
        }
        self.barrier_as(GATHERED, ACTIVITY)?;
        if self.me.0 == 0 {
            self.operate_as(PROPOSAL, Operation::Exchange(0), ACTIVITY)?;
            self.operate_as(OBJECTIONS, Operation::Exchange(0), ACTIVITY)?;
        }
        if objections == 0 {
            self.changed.store(true, Ordering::Release);
            self.change(pages, protocol);
        }
        self.barrier_as(CHANGED, ACTIVITY)?;
        match (objection, differs, objections) {
            (_, _, 0) => Ok(()),
            (Some(objection), ..) => Err(WaitError::Misuse(objection)),
            (None, true, _) => Err(WaitError::Misuse(format!(
                "another node changes other pages or to another protocol than {protocol} for pages {} to {}; call \
                 set_protocol with the same arguments on every node",
                pages.start,
                pages.end - 1
            ))),
            (None, false, _) => Err(WaitError::Misuse(
                "another node refuses to change the protocol; its own error says why, and nothing has changed"
                    .to_owned(),
            )),
        }
    }

    fn freeze(&self, pages: Range<u32>) {
        for shard in &self.shards {
            lock(shard).frozen = pages.clone();
        }
    }

    fn thaw(&self, pages: Range<u32>) {
        for shard in &self.shards {
            lock(shard).frozen = 0..0;
        }
        for run in runs(pages) {
            self.wake(&mut lock(self.shard_of(run.first())), run);
        }
    }

    /// Waits until nothing that this node asked for is under way.
    fn settle(&self, pages: &Range<u32>) -> Result<(), WaitError> {
        for run in runs(pages.clone()) {
            loop {
                let ticket = self.waiters.take();
                let mut shard = lock(self.shard_of(run.first()));
                let Some(page) = run.pages().find(|&page| shard.protocol.is_pending(page)) else { break };
                shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
                drop(shard);
                self.wait_for_change(&ticket, page)?;
            }
        }
        Ok(())
    }

    /// Why this node cannot have the change, if so. Locks that are waited for count: they may come at any time.
    fn objection(&self, pages: &Range<u32>, protocol: Protocol) -> Option<String> {
        let now = self.now();
        for run in runs(pages.clone()) {
            let shard = lock(self.shard_of(run.first()));
            let overlaps = |range: PageRange| range.first().0 < run.end() && run.first().0 < range.end();
            if let Some(held) = shard.locks.iter().find(|held| overlaps(held.range) && !held.has_ended(now)) {
                return Some(format!(
                    "this node's program holds or waits for a lock of {}; give it back before the protocol changes",
                    held.range
                ));
            }
        }
        let known = lock(&self.protocols);
        (!known.contains(&protocol) && known.len() >= PROTOCOLS_MAX).then(|| {
            format!(
                "the region has had {PROTOCOLS_MAX} different protocols, and {protocol} would be one more; use one \
                 that it had"
            )
        })
    }

    /// Brings every page of which this node is the home here, for stores, unless nobody ever touched it.
    fn gather(&self, pages: &Range<u32>) -> Result<(), WaitError> {
        for run in runs(pages.clone()).filter(|run| self.home_of(run.first()) == self.me) {
            let mut next = run.first().0;
            while next < run.end() {
                let away = self.away(PageRange::around(PageIndex(next), next, run.end()));
                next = away.end;
                let fetched = self.fetch(away.clone(), true, Why::Gathered);
                fetched.map_err(|waited| self.not_gathered(waited, PageIndex(away.start)))?;
            }
            run.pages().try_for_each(|page| self.pull(page))?;
        }
        Ok(())
    }

    /// The first pages of `run` in a row that cannot change their protocol yet; empty at its end where there are none.
    fn away(&self, run: PageRange) -> Range<u32> {
        let shard = lock(self.shard_of(run.first()));
        let is_away = |page: &PageIndex| !shard.protocol.may_change(*page);
        match run.pages().find(is_away) {
            Some(first) => {
                first.0
                    ..first.0 + run.pages().skip((first.0 - run.first().0) as usize).take_while(is_away).count() as u32
            }
            None => run.end()..run.end(),
        }
    }

    /// Fetches a page as a thread would that stores to it: a wish for pages may be granted in part.
    fn pull(&self, page: PageIndex) -> Result<(), WaitError> {
        let ticket = self.waiters.take();
        loop {
            let mut shard = lock(self.shard_of(page));
            if shard.protocol.may_change(page) {
                return Ok(());
            }
            shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
            if shard.protocol.access(page) < Access::Write {
                self.step(&mut shard, Input::Fault { page, write: true, wish: PageRange::one(page) });
            }
            drop(shard);
            self.wait_for_change(&ticket, page)?;
            ticket.rearm();
            self.step(&mut lock(self.shard_of(page)), Input::Resumed { page });
        }
    }

    /// This node's own choice. Nothing about the pages is under way anywhere.
    fn change(&self, pages: &Range<u32>, protocol: Protocol) {
        let mut known = lock(&self.protocols);
        if !known.contains(&protocol) {
            known.push(protocol);
        }
        drop(known);
        for run in runs(pages.clone()) {
            let mut shard = lock(self.shard_of(run.first()));
            for page in run.pages().filter(|&page| shard.protocol.access(page) != Access::None).collect::<Vec<_>>() {
                // A thread for which it was granted runs on whatever happens: at its home the view stays as it is.
                self.step(&mut shard, Input::Resumed { page });
            }
            shard.held.retain(|(page, _)| !run.contains(*page));
            shard.change(run, protocol);
        }
    }

    fn wait_for_change(&self, ticket: &super::Ticket<'_>, page: PageIndex) -> Result<(), WaitError> {
        if ticket.is_done() {
            return Ok(());
        }
        self.doing(ACTIVITY);
        let limit = self.config.wait_seconds_max.saturating_mul(1_000_000_000);
        let waited = self.wait(ticket, self.now().saturating_add(limit));
        if waited != Waited::Done {
            return Err(self.not_gathered(waited, page));
        }
        self.doing(Activity::Computing);
        Ok(())
    }

    fn not_gathered(&self, waited: Waited, page: PageIndex) -> WaitError {
        match waited {
            Waited::Failed => WaitError::Failed(self.failure.sentence()),
            _ => WaitError::TooLong {
                what: ACTIVITY.to_string(),
                seconds: self.config.wait_seconds_max,
                whom: format!("page {} did not come: {}", page.0, self.who_has_page(page)),
            },
        }
    }
}

/// A number that is never zero and differs where the arguments do, up to one chance in 2^64.
fn proposal(pages: &Range<u32>, protocol: Protocol) -> u64 {
    let mut hash = FNV_OFFSET;
    let numbers = pages.start.to_le_bytes().into_iter().chain(pages.end.to_le_bytes());
    for byte in numbers.chain(protocol.to_string().into_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
    }
    hash.max(1)
}

/// FNV-1a with 64 bits: the same on every machine and in every build.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_names_pages_and_protocol() {
        let of = |pages: Range<u32>, text: &str| proposal(&pages, text.parse().unwrap());
        assert_eq!(of(0..4, "ivy"), of(0..4, "ivy"));
        let all = [of(0..4, "ivy"), of(0..5, "ivy"), of(1..4, "ivy"), of(0..4, "migrate"), of(0..4, "lock(ivy)")];
        for (index, one) in all.iter().enumerate() {
            assert!(*one != 0 && all[index + 1..].iter().all(|other| other != one));
        }
    }
}
