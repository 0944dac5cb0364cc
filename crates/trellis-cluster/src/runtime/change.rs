//! Carries out changes of the protocol of pages while the cluster runs ([`node::change`]).
//!
//! Every node makes the same call. Threads that need a frozen page wait, no guess requests one, and no thread begins to
//! lock one. Before the protocol changes, the home of each page fetches it, for stores, unless no node ever touched it.
//!
//! Promises: the bytes of pages stay the same. Either every node changes or none does, and then the call says why at each
//! of them. Threads may use the region meanwhile. It must never change a page that the program has locked, and never go on
//! in a cluster whose nodes may disagree.

use std::hash::Hasher as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use trellis_base::Fnv1a;
use trellis_cluster_protocol::coherence::{Coherence, Input, PROTOCOLS_MAX, Protocol};
use trellis_cluster_protocol::node::change::{self, Ending, Order};
use trellis_cluster_protocol::node::{GatherStep, Gathering};
use trellis_cluster_protocol::{Access, PageIndex, PageRange, node, runs};
use trellis_memory::{Detection, MapError};

use super::faults::Why;
use super::ordered::{Ordered, Rank, lock};
use super::pages::Waiting;
use super::progress::Waited;
use super::synchronisation::RESERVED_FIRST;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::waits::Wait;

const WAIT: Wait = Wait::ProtocolChange;

/// What a node knows about the changes up to now.
pub(super) struct Changes {
    /// A thread of this node is changing protocols.
    is_busy: AtomicBool,
    /// Protocols were changed since the start.
    any: AtomicBool,
    ended: Ordered<node::change::Changes>,
}

impl Changes {
    pub(super) fn new() -> Changes {
        let ended = Ordered::new(Rank::Last, node::change::Changes::default());
        Changes { is_busy: AtomicBool::new(false), any: AtomicBool::new(false), ended }
    }
}

/// One call of the program.
struct Call<'a> {
    pages: Range<u32>,
    protocol: Protocol,
    /// For the barrier to which this node came last.
    ticket: Option<Ticket<'a>>,
    /// Why this node cannot have the change.
    objection: Option<String>,
    /// What took too long last.
    late: Option<WaitError>,
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
        let changed = self.change_together(pages.clone(), protocol);
        self.thaw(pages);
        self.changes.is_busy.store(false, Ordering::Release);
        changed
    }

    /// The protocol of `page`.
    pub(crate) fn protocol_of(&self, page: PageIndex) -> Protocol {
        lock(self.shard_of(page)).node.protocol.protocol(page)
    }

    /// Whether the protocols are, or may be, others than at the start.
    pub(crate) fn has_changed_protocols(&self) -> bool {
        self.changes.is_busy.load(Ordering::Acquire) || self.changes.any.load(Ordering::Acquire)
    }

    fn change_together(&self, pages: Range<u32>, protocol: Protocol) -> Result<(), WaitError> {
        let begun = lock(&self.changes.ended).begin(self.me, proposal(&pages, protocol), RESERVED_FIRST);
        let Some((mut change, mut order)) = begun else {
            let what =
                "so many changes of protocols were given up that no numbers are left for another; restart the cluster";
            return Err(WaitError::Misuse(what.to_owned()));
        };
        let mut call = Call { pages, protocol, ticket: None, objection: None, late: None };
        loop {
            if let Order::End(ending) = order {
                lock(&self.changes.ended).end(ending);
                return self.ended(call, ending);
            }
            let input = match self.carry_out_change(&mut call, order) {
                Err(error @ WaitError::Failed(_)) => return Err(error),
                Err(error) => {
                    call.late = Some(error);
                    change::Input::TooLong
                }
                Ok(input) => input,
            };
            order = change.step(input);
        }
    }

    fn carry_out_change<'a>(&'a self, call: &mut Call<'a>, order: Order) -> Result<change::Input, WaitError> {
        match order {
            Order::Barrier(barrier) => {
                let ticket = call.ticket.insert(self.enter_barrier(barrier));
                self.wait_in_barrier(ticket, barrier, WAIT)?;
                return Ok(change::Input::Met);
            }
            Order::WaitAgain(barrier) => {
                let ticket = call.ticket.as_ref().expect("this node has come to the barrier");
                self.wait_in_barrier(ticket, barrier, WAIT)?;
                return Ok(change::Input::Met);
            }
            Order::Operate(word, operation) => {
                return self.operate_as(word, operation, WAIT).map(change::Input::Value);
            }
            Order::Freeze => {
                self.freeze(call.pages.clone());
                call.objection = self.objection(&call.pages, call.protocol);
                return Ok(change::Input::Frozen { objects: call.objection.is_some() });
            }
            Order::Settle => {
                self.settle(&call.pages)?;
                self.close_copies(&call.pages)?;
            }
            Order::Gather => self.gather(&call.pages)?,
            Order::Change => {
                self.changes.any.store(true, Ordering::Release);
                self.change(&call.pages, call.protocol);
            }
            Order::Pass(barriers) => barriers.for_each(|barrier| drop(self.enter_barrier(barrier))),
            Order::End(_) => unreachable!("the end is no order to carry out"),
        }
        Ok(change::Input::Done)
    }

    /// What the program is told.
    fn ended(&self, call: Call<'_>, ending: Ending) -> Result<(), WaitError> {
        let Call { pages, protocol, objection, late, .. } = call;
        let late = || late.expect("something took too long");
        match ending {
            Ending::Agreed { objections: 0, .. } => Ok(()),
            Ending::Agreed { differs, .. } => {
                Err(WaitError::Misuse(objection.unwrap_or_else(|| refused(&pages, protocol, differs))))
            }
            Ending::GivenUp { by: None } => Err(late()),
            Ending::GivenUp { by: Some(by) } => Err(WaitError::TooLong {
                what: WAIT.to_string(),
                seconds: self.config.wait_seconds_max,
                whom: format!("{} could not wait any longer, and nothing has changed on any node", self.name_of(by)),
            }),
            Ending::Disagree => {
                let why = late();
                self.fail(format!("{why}; the nodes may disagree about the protocol of pages now, so none goes on"));
                Err(WaitError::Failed(self.failure.sentence()))
            }
        }
    }

    fn freeze(&self, pages: Range<u32>) {
        for shard in &self.shards {
            lock(shard).node.freeze(pages.clone());
        }
    }

    fn thaw(&self, pages: Range<u32>) {
        for shard in &self.shards {
            lock(shard).node.thaw();
        }
        for run in runs(pages) {
            self.wake(&mut lock(self.shard_of(run.first())), run);
        }
    }

    /// Waits until none of this node's requests is under way.
    fn settle(&self, pages: &Range<u32>) -> Result<(), WaitError> {
        for run in runs(pages.clone()) {
            loop {
                let ticket = self.waiters.take();
                let mut shard = lock(self.shard_of(run.first()));
                let Some(page) = shard.node.unsettled(run) else { break };
                shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
                drop(shard);
                self.wait_for_change(&ticket, page)?;
            }
        }
        Ok(())
    }

    /// Under release consistency several nodes may store to a page. All but its directory close it; when this returns,
    /// their stores are at its home.
    fn close_copies(&self, pages: &Range<u32>) -> Result<(), WaitError> {
        for run in runs(pages.clone()) {
            self.step(&mut lock(self.shard_of(run.first())), Input::Close { range: run });
        }
        self.publish()
    }

    /// Why this node objects to the change, if it does. Locks that are waited for count: they may come at any time.
    fn objection(&self, pages: &Range<u32>, protocol: Protocol) -> Option<String> {
        for run in runs(pages.clone()) {
            let mut shard = lock(self.shard_of(run.first()));
            let now = self.now();
            // Locks whose time is over end before this looks.
            self.release_due(&mut shard);
            if let Some(held) = shard.node.locks.in_use(run, now) {
                return Some(format!(
                    "this node's program holds or waits for a lock of {held}; give it back before the protocol changes"
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

    /// Gets every page of which this node is the home, for stores, unless no node ever touched it.
    fn gather(&self, pages: &Range<u32>) -> Result<(), WaitError> {
        runs(pages.clone()).filter(|run| self.home_of(run.first()) == self.me).try_for_each(|run| self.gather_run(run))
    }

    fn gather_run(&self, run: PageRange) -> Result<(), WaitError> {
        let mut gathering = Gathering::new(run);
        loop {
            let ticket = self.waiters.take();
            let mut shard = lock(self.shard_of(run.first()));
            match gathering.next(&shard.node) {
                GatherStep::Request(away) => {
                    drop(shard);
                    // The fetch takes a slot of its own, and threads that wait for frozen pages may have all others.
                    drop(ticket);
                    let fetched = self.fetch(away.first().0..away.end(), true, Why::Gathered);
                    fetched.map_err(|error| match error {
                        WaitError::TooLong { what, seconds, whom } => {
                            WaitError::TooLong { what: WAIT.to_string(), seconds, whom: format!("{what}: {whom}") }
                        }
                        other => other,
                    })?;
                }
                GatherStep::Await(page, fault) => {
                    shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
                    if let Some(fault) = fault {
                        self.step(&mut shard, fault);
                    }
                    drop(shard);
                    self.wait_for_change(&ticket, page)?;
                }
                GatherStep::Done => return Ok(()),
            }
        }
    }

    /// Changes this node's own choice. Nothing about the pages is under way anywhere.
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
            for input in shard.node.let_go(run) {
                self.step(&mut shard, input);
            }
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

    /// Opens the pages that the new protocol takes over as open to stores, however stores were noticed before.
    fn open_again(&self, shard: &super::Shard, run: PageRange) -> Result<(), MapError> {
        if !self.geometry.marks {
            return Ok(());
        }
        let is_open = |page: PageIndex| shard.node.protocol.access(page) == Access::Write;
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

/// Why nothing has changed although this node does not object.
fn refused(pages: &Range<u32>, protocol: Protocol, differs: bool) -> String {
    if !differs {
        return "another node refuses to change the protocol; its own error says why, and nothing has changed"
            .to_owned();
    }
    format!(
        "another node changes other pages or to another protocol than {protocol} for pages {} to {}; call set_protocol with \
         the same arguments on every node",
        pages.start,
        pages.end - 1
    )
}

/// A number that is never zero and differs where the arguments do, up to one chance in 2^64.
fn proposal(pages: &Range<u32>, protocol: Protocol) -> u64 {
    let mut hash = Fnv1a::default();
    hash.write(&pages.start.to_le_bytes());
    hash.write(&pages.end.to_le_bytes());
    hash.write(protocol.to_string().as_bytes());
    hash.finish().max(1)
}

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
