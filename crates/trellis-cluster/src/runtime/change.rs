//! Carries out changes of the protocol of pages while the cluster runs ([`PageChange`]). Every node makes the same call.
//!
//! Promises: the bytes of pages stay the same. Either every node changes or none does, and then the call says why at each
//! of them. Threads may use the region meanwhile. It must never change a page that the program has locked, and never go on
//! in a cluster whose nodes may disagree.

use std::hash::Hasher as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use trellis_base::Fnv1a;
use trellis_cluster_protocol::coherence::{Coherence, PROTOCOLS_MAX, Protocol};
use trellis_cluster_protocol::node::change::{Ending, Input};
use trellis_cluster_protocol::node::{self, Next, PageChange};
use trellis_cluster_protocol::{Access, PageIndex, PageRange};
use trellis_memory::{Detection, MapError};

use super::consistency::Turn;
use super::faults::Why;
use super::ordered::{Ordered, Rank, lock};
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

/// The result of one call of the program.
#[derive(Default)]
struct Call<'a> {
    /// For the barrier to which this node came last.
    barrier: Option<Ticket<'a>>,
    /// While it is held, no other thread of this node publishes.
    turn: Option<Turn<'a>>,
    /// Why this node cannot have the change.
    objection: Option<String>,
    /// The step that took too long last.
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
        let Ok(()) = node::thaw(&mut self.carrier(), pages);
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
        let (what, proposal) = ((pages.clone(), protocol), proposal(&pages, protocol));
        let begun = PageChange::begin(&lock(&self.changes.ended), self.me, what, proposal, RESERVED_FIRST);
        let Some((mut change, mut next)) = begun else {
            let what =
                "so many changes of protocols were given up that no numbers are left for another; restart the cluster";
            return Err(WaitError::Misuse(what.to_owned()));
        };
        let (mut call, mut ticket) = (Call::default(), None);
        loop {
            if let Next::End(ending) = next {
                lock(&self.changes.ended).end(ending);
                return self.ended(call, &pages, protocol, ending);
            }
            let input = match self.do_next(&mut call, ticket.take(), next, &pages, protocol) {
                Err(error @ WaitError::Failed(_)) => return Err(error),
                Err(error) => {
                    call.late = Some(error);
                    Input::TooLong
                }
                Ok(input) => input,
            };
            let waiter = ticket.insert(self.waiters.take()).name();
            let Ok(after) = change.go_on(&mut self.carrier(), self.now(), input, waiter);
            next = after;
        }
    }

    /// Does what the change needs next. A thread that waits for a page waits with `ticket`.
    fn do_next<'a>(
        &'a self,
        call: &mut Call<'a>,
        ticket: Option<Ticket<'a>>,
        next: Next,
        pages: &Range<u32>,
        protocol: Protocol,
    ) -> Result<Input, WaitError> {
        // Threads that wait for frozen pages may have all other tickets.
        let ticket = ticket.filter(|_| matches!(next, Next::Page(_)));
        match next {
            Next::Barrier(barrier) => {
                let ticket = call.barrier.insert(self.enter_barrier(barrier));
                self.wait_in_barrier(ticket, barrier, WAIT)?;
                return Ok(Input::Met);
            }
            Next::Again(barrier) => {
                let ticket = call.barrier.as_ref().expect("this node has come to the barrier");
                self.wait_in_barrier(ticket, barrier, WAIT)?;
                return Ok(Input::Met);
            }
            Next::Operate(word, operation) => return self.operate_as(word, operation, WAIT).map(Input::Value),
            Next::Object(locked) => {
                call.objection = self.objection(locked, protocol);
                return Ok(Input::Frozen { objects: call.objection.is_some() });
            }
            Next::Page(page) => self.wait_for_change(&ticket.expect("the page was waited for"), page)?,
            Next::Gather(away) => {
                let fetched = self.fetch(away.first().0..away.end(), true, Why::Gathered);
                fetched.map_err(|error| match error {
                    WaitError::TooLong { what, seconds, whom } => {
                        WaitError::TooLong { what: WAIT.to_string(), seconds, whom: format!("{what}: {whom}") }
                    }
                    other => other,
                })?;
            }
            Next::Publish => call.turn = self.publish_and_stay()?,
            Next::Prepare => self.prepare_change(pages, protocol),
            Next::Pass(barriers) => barriers.for_each(|barrier| drop(self.enter_barrier(barrier))),
            Next::End(_) => unreachable!("nothing follows the end"),
        }
        Ok(Input::Done)
    }

    /// The error for the program.
    fn ended(&self, call: Call<'_>, pages: &Range<u32>, protocol: Protocol, ending: Ending) -> Result<(), WaitError> {
        let Call { objection, late, turn, .. } = call;
        drop(turn);
        let late = || late.expect("something took too long");
        match ending {
            Ending::Agreed { objections: 0, .. } => {
                // The change orders memory like a barrier, also that of other pages.
                self.refresh();
                Ok(())
            }
            Ending::Agreed { differs, .. } => {
                Err(WaitError::Misuse(objection.unwrap_or_else(|| refused(pages, protocol, differs))))
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

    /// Why this node objects to the change, if it does. Locks that are waited for count: they may come at any time.
    fn objection(&self, locked: Option<PageRange>, protocol: Protocol) -> Option<String> {
        if let Some(held) = locked {
            return Some(format!(
                "this node's program holds or waits for a lock of {held}; give it back before the protocol changes"
            ));
        }
        let known = lock(&self.protocols);
        (!known.contains(&protocol) && known.len() >= PROTOCOLS_MAX).then(|| {
            format!(
                "the region has had {PROTOCOLS_MAX} different protocols, and {protocol} would be one more; use one \
                 that it had"
            )
        })
    }

    /// This node's pages are about to change.
    fn prepare_change(&self, pages: &Range<u32>, protocol: Protocol) {
        self.changes.any.store(true, Ordering::Release);
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
    pub(super) fn open_again(&self, shard: &super::Shard, run: PageRange) {
        let is_open = |page: &PageIndex| shard.node.protocol.access(*page) == Access::Write;
        let mut open = run.pages().filter(is_open).filter(|_| self.geometry.marks);
        if let Err(error) = open.try_for_each(|page| self.region.upgrade(page.0 as usize, 1)) {
            self.fail(format!("cannot change the access to pages: {error}"));
        }
    }

    fn wait_for_change(&self, ticket: &super::Ticket<'_>, page: PageIndex) -> Result<(), WaitError> {
        let waited = self.wait(ticket, WAIT);
        self.has_waited(waited, || WaitError::TooLong {
            what: WAIT.to_string(),
            seconds: self.config.wait_seconds_max,
            whom: format!("page {} did not come: {}", page.0, self.who_has_page(page)),
        })
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
