//! Another protocol for a part of the region, while the cluster runs.
//!
//! Every node makes the same call. Once all have come, so that none waits for another node's program any more, each
//! *freezes* the pages: its threads that need one wait, no guess asks for one, and nobody begins to lock one. Then each
//! says whether it objects, and only if none does, each waits until nothing that it asked for is under way, and the home
//! of each page pulls it, for stores, unless nobody ever touched it. When all homes have done so, every node changes its
//! own choice, and when all have, the pages thaw.
//!
//! A node that cannot wait any longer tries to *give up* for all: one word decides whether that came before all nodes had
//! met for the last time. If so none changes; if not, the node goes on like the others.
//!
//! Promises: bytes stay what they are; either every node changes or none does, and then each says why; threads may go
//! on using the region meanwhile. Must never change a page that is locked by the program, and never go on in a cluster
//! whose nodes may disagree.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trellis_cluster_protocol::coherence::{Coherence, Input, PROTOCOLS_MAX, Protocol};
use trellis_cluster_protocol::sync::Operation;
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};
use trellis_memory::{Detection, MapError};

use super::faults::Why;
use super::ordered::lock;
use super::pages::{Waiting, runs};
use super::progress::Waited;
use super::synchronisation::RESERVED_FIRST;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::waits::Wait;

/// The barriers between the steps, in their order: all nodes have come; their pages are frozen, and who objects has said
/// so; nothing is under way; every page is at its home; every node has changed.
const ARRIVED: u64 = 0;
const FROZEN: u64 = 1;
const SETTLED: u64 = 2;
const GATHERED: u64 = 3;
const CHANGED: u64 = 4;

/// The word that decides: how many calls were agreed on, or that a node gave up.
const DECISION: u64 = 0;
/// The word that holds what the nodes shall change, while they do.
const PROPOSAL: u64 = 1;
/// The word that counts the nodes that cannot.
const OBJECTIONS: u64 = 2;

/// In [`DECISION`], with the number of the node that gave up.
const GIVEN_UP: u64 = 1 << 63;

/// A call that was given up leaves barriers that not all nodes have left, so later calls use others: this many numbers.
const NUMBERS_PER_SET: u64 = 8;
const SETS_MAX: u64 = (u64::MAX - RESERVED_FIRST) / NUMBERS_PER_SET;

const WAIT: Wait = Wait::ProtocolChange;

/// What a node knows about the changes up to now. All nodes agree on the numbers whenever they begin a call.
#[derive(Default)]
pub(super) struct Changes {
    /// A thread of this node is changing protocols.
    is_busy: AtomicBool,
    /// Protocols were changed since the start.
    any: AtomicBool,
    /// Calls that were given up.
    given_up: AtomicU64,
    /// Calls since then that were not.
    agreed: AtomicU64,
}

/// One call, by the numbers of its barriers and words.
struct Call {
    first: u64,
    /// What [`DECISION`] says until this call is decided, and one more when all nodes agreed on how it ends.
    round: u64,
    /// The first barrier that this node has not come to.
    next: u64,
}

/// What the nodes said about a call.
struct Votes {
    objection: Option<String>,
    differs: bool,
    objections: u64,
}

impl Node {
    /// Gives `pages` to `protocol`; every node calls this with the same arguments.
    pub(crate) fn set_protocol(&self, pages: Range<u32>, protocol: Protocol) -> Result<(), WaitError> {
        self.refuse_with_leases("no page has another protocol", "start the cluster with another home for that")?;
        if self.founders < self.nodes {
            let what = "a cluster that others may join (joiners_max above 0) keeps the protocols that it starts with; \
                        choose them with the keys coherence and coherence_ranges";
            return Err(WaitError::Misuse(what.to_owned()));
        }
        if self.changes.is_busy.swap(true, Ordering::Acquire) {
            let what = "another thread of this node is changing protocols; one thread per node may";
            return Err(WaitError::Misuse(what.to_owned()));
        }
        let changed = self.change_together(&pages, protocol);
        self.thaw(pages);
        self.changes.is_busy.store(false, Ordering::Release);
        changed
    }

    /// The protocol of `page`.
    pub(crate) fn protocol_of(&self, page: PageIndex) -> Protocol {
        lock(self.shard_of(page)).protocol.protocol(page)
    }

    /// Whether the protocols are, or may be, others than at the start.
    pub(crate) fn has_changed_protocols(&self) -> bool {
        self.changes.is_busy.load(Ordering::Acquire) || self.changes.any.load(Ordering::Acquire)
    }

    fn change_together(&self, pages: &Range<u32>, protocol: Protocol) -> Result<(), WaitError> {
        let sets = self.changes.given_up.load(Ordering::Relaxed);
        if sets == SETS_MAX {
            return Err(WaitError::Misuse(format!("{SETS_MAX} changes of protocols were given up, which is the most")));
        }
        let round = self.changes.agreed.load(Ordering::Relaxed);
        let mut call = Call { first: RESERVED_FIRST + sets * NUMBERS_PER_SET, round, next: ARRIVED };
        let votes = self.vote(&mut call, pages, protocol).and_then(|votes| self.agree(&mut call).map(|()| votes));
        let votes = votes.map_err(|error| self.give_up(&mut call, error))?;
        self.changes.agreed.store(round + 1, Ordering::Relaxed);
        let ended = self.carry_out_together(&mut call, pages, protocol, votes.objections);
        ended.map_err(|error| self.disagree(error))?;
        votes.result(pages, protocol)
    }

    /// Up to where every page is at its home, unless a node objects.
    fn vote(&self, call: &mut Call, pages: &Range<u32>, protocol: Protocol) -> Result<Votes, WaitError> {
        self.meet(call, ARRIVED)?;
        self.freeze(pages.clone());
        let objection = self.objection(pages, protocol);
        let ours = proposal(pages, protocol);
        let theirs = self.operate_as(call.first + PROPOSAL, Operation::CompareExchange(0, ours), WAIT)?;
        let differs = theirs != 0 && theirs != ours;
        if differs || objection.is_some() {
            self.operate_as(call.first + OBJECTIONS, Operation::FetchAdd(1), WAIT)?;
        }
        self.meet(call, FROZEN)?;
        let objections = self.operate_as(call.first + OBJECTIONS, Operation::Load, WAIT)?;
        if objections == 0 {
            // Nobody has locked a page of these, and nobody can: whatever was asked for comes.
            self.settle(pages)?;
            self.close_copies(pages)?;
            self.meet(call, SETTLED)?;
            self.gather(pages)?;
        }
        Ok(Votes { objection, differs, objections })
    }

    /// All nodes are done with a step, and none has given up as far as is known.
    fn meet(&self, call: &mut Call, barrier: u64) -> Result<(), WaitError> {
        let ticket = self.come_to(call, barrier);
        self.wait_in_barrier(&ticket, call.first + barrier, WAIT)?;
        self.unless_given_up(self.operate_as(call.first + DECISION, Operation::Load, WAIT)?)
    }

    fn come_to(&self, call: &mut Call, barrier: u64) -> Ticket<'_> {
        call.next = barrier + 1;
        self.enter_barrier(call.first + barrier)
    }

    /// All nodes have voted: from here on nobody can give up.
    fn agree(&self, call: &mut Call) -> Result<(), WaitError> {
        let ticket = self.come_to(call, GATHERED);
        let met = self.wait_in_barrier(&ticket, call.first + GATHERED, WAIT);
        if let Err(error) = met {
            if matches!(error, WaitError::Failed(_)) || self.decide(call, self.giving_up())? != call.round + 1 {
                return Err(error);
            }
            // Another node was let go on, so all have come here; that news is on its way.
            let met = self.wait_in_barrier(&ticket, call.first + GATHERED, WAIT);
            return met.map_err(|error| self.disagree(error));
        }
        self.unless_given_up(self.decide(call, call.round + 1)?)
    }

    /// What the word says once it has been decided; the first to decide does.
    fn decide(&self, call: &Call, decision: u64) -> Result<u64, WaitError> {
        let operation = Operation::CompareExchange(call.round, decision);
        let before = self.operate_as(call.first + DECISION, operation, WAIT);
        let before = before.map_err(|error| self.disagree(error))?;
        Ok(if before == call.round { decision } else { before })
    }

    fn giving_up(&self) -> u64 {
        GIVEN_UP | u64::from(self.me.0)
    }

    fn unless_given_up(&self, decision: u64) -> Result<(), WaitError> {
        if decision & GIVEN_UP == 0 {
            return Ok(());
        }
        Err(WaitError::TooLong {
            what: WAIT.to_string(),
            seconds: self.config.wait_seconds_max,
            whom: format!(
                "{} could not wait any longer, and nothing has changed on any node",
                self.name_of(NodeId((decision & !GIVEN_UP) as u16))
            ),
        })
    }

    /// Makes all nodes give up because of `error`; returns what the program is told.
    fn give_up(&self, call: &mut Call, error: WaitError) -> WaitError {
        if matches!(error, WaitError::Failed(_)) {
            return error;
        }
        if let Err(failed) = self.decide(call, self.giving_up()) {
            return failed;
        }
        // The others must not wait for this node, which will not come.
        while call.next <= GATHERED {
            drop(self.come_to(call, call.next));
        }
        self.changes.given_up.fetch_add(1, Ordering::Relaxed);
        self.changes.agreed.store(0, Ordering::Relaxed);
        error
    }

    /// After the decision every node does its part: where one cannot, none may go on.
    fn disagree(&self, error: WaitError) -> WaitError {
        if !matches!(error, WaitError::Failed(_)) {
            self.fail(format!("{error}; the nodes may disagree about the protocol of pages now, so none goes on"));
        }
        WaitError::Failed(self.failure.sentence())
    }

    fn carry_out_together(
        &self,
        call: &mut Call,
        pages: &Range<u32>,
        protocol: Protocol,
        objections: u64,
    ) -> Result<(), WaitError> {
        if self.me.0 == 0 {
            self.operate_as(call.first + PROPOSAL, Operation::Exchange(0), WAIT)?;
            self.operate_as(call.first + OBJECTIONS, Operation::Exchange(0), WAIT)?;
        }
        if objections == 0 {
            self.changes.any.store(true, Ordering::Release);
            self.change(pages, protocol);
        }
        let ticket = self.come_to(call, CHANGED);
        self.wait_in_barrier(&ticket, call.first + CHANGED, WAIT)
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

    /// Under release consistency several nodes may store to a page: all but its directory close it, and their stores are
    /// at its home when this returns.
    fn close_copies(&self, pages: &Range<u32>) -> Result<(), WaitError> {
        for run in runs(pages.clone()) {
            self.step(&mut lock(self.shard_of(run.first())), Input::Close { range: run });
        }
        self.publish()
    }

    /// Why this node cannot have the change, if so. Locks that are waited for count: they may come at any time.
    fn objection(&self, pages: &Range<u32>, protocol: Protocol) -> Option<String> {
        for run in runs(pages.clone()) {
            let mut shard = lock(self.shard_of(run.first()));
            let now = self.now();
            // Locks whose time is over end before this looks.
            self.release_due(&mut shard);
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
                self.fetch(away, true, Why::Gathered).map_err(|error| match error {
                    WaitError::TooLong { what, seconds, whom } => {
                        WaitError::TooLong { what: WAIT.to_string(), seconds, whom: format!("{what}: {whom}") }
                    }
                    other => other,
                })?;
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
        if protocol.is_release_consistent() {
            self.consistency.use_it();
        }
        if let Err(error) = self.detect_stores(pages, protocol) {
            self.fail(format!("cannot change how stores to pages are noticed: {error}"));
        }
        for run in runs(pages.clone()) {
            let mut shard = lock(self.shard_of(run.first()));
            for page in run.pages().filter(|&page| shard.protocol.access(page) != Access::None).collect::<Vec<_>>() {
                // A thread for which it was granted runs on whatever happens: at its home the view stays as it is.
                self.step(&mut shard, Input::Resumed { page });
            }
            shard.timers.forget_held(run);
            shard.change(run, protocol);
            if let Err(error) = self.open_again(&shard, run) {
                self.fail(format!("cannot change the access to pages: {error}"));
            }
        }
    }

    /// The kernel marks stores under release consistency, where it can, and reports them as faults otherwise.
    fn detect_stores(&self, pages: &Range<u32>, protocol: Protocol) -> Result<(), MapError> {
        if !self.geometry.marks {
            return Ok(());
        }
        let detection = if protocol.is_release_consistent() { Detection::Marks } else { Detection::Faults };
        self.region.detect(pages.start as usize, pages.len(), detection)
    }

    /// Where the new protocol takes a page over as one that allows stores, the view does, whatever noticed them before.
    fn open_again(&self, shard: &super::Shard, run: PageRange) -> Result<(), MapError> {
        if !self.geometry.marks {
            return Ok(());
        }
        let is_open = |page: PageIndex| shard.protocol.access(page) == Access::Write;
        for page in run.pages().filter(|&page| is_open(page)) {
            self.region.upgrade(page.0 as usize, 1)?;
        }
        Ok(())
    }

    fn wait_for_change(&self, ticket: &super::Ticket<'_>, page: PageIndex) -> Result<(), WaitError> {
        match self.wait(ticket, WAIT) {
            Waited::Done => Ok(()),
            waited => Err(self.not_gathered(waited, page)),
        }
    }

    fn not_gathered(&self, waited: Waited, page: PageIndex) -> WaitError {
        match waited {
            Waited::Failed => WaitError::Failed(self.failure.sentence()),
            _ => WaitError::TooLong {
                what: WAIT.to_string(),
                seconds: self.config.wait_seconds_max,
                whom: format!("page {} did not come: {}", page.0, self.who_has_page(page)),
            },
        }
    }
}

impl Votes {
    fn result(self, pages: &Range<u32>, protocol: Protocol) -> Result<(), WaitError> {
        let sentence = match self {
            Votes { objections: 0, .. } => return Ok(()),
            Votes { objection: Some(objection), .. } => objection,
            Votes { differs: true, .. } => format!(
                "another node changes other pages or to another protocol than {protocol} for pages {} to {}; call \
                 set_protocol with the same arguments on every node",
                pages.start,
                pages.end - 1
            ),
            _ => "another node refuses to change the protocol; its own error says why, and nothing has changed"
                .to_owned(),
        };
        Err(WaitError::Misuse(sentence))
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
