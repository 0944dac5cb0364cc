//! Carries out release consistency ([`node::Consistency`]): this node publishes its stores before it releases anything,
//! and applies what others published before an acquire ends. It costs nothing where no page is under `hlrc`.
//!
//! Promises: a release continues only when every store that was made before it is at its home. Messages that release
//! something carry what their receiver may not know. An acquire ends only when no page here is older than what was
//! released to this node. One thread publishes at a time. It must never let a message release something before
//! everything that the message depends on is known here.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use trellis_base::{Deadline, Limit};
use trellis_cluster_protocol::coherence::Input;
use trellis_cluster_protocol::node::{self, PublicationLimits};
use trellis_cluster_protocol::wire;
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange, runs};

use super::ordered::{Guard, Ordered, Rank, lock};
use super::pages::{Waiting, shard_number};
use super::{Node, SHARDS};
use crate::cluster::WaitError;
use crate::waits::Wait;
use trellis_record::LiveCounters;

/// One thread of a node publishes at a time.
pub(crate) const TURN: Deadline = Deadline {
    who: "a thread of a node",
    waits_for: "another thread that sends its stores home (`hlrc`), or changes a protocol",
    limit: Limit::Other("as long as that takes, above"),
    then: "it waits",
    tested: "the wait of the other thread ends it",
};
/// The maximum number of messages of one peer that wait for knowledge which they overtook. A link without order delivers
/// at most this many behind a missing one.
const EARLY_MAX: usize = trellis_transport::links::udp::delivery::WINDOW as usize;

/// What a node keeps for release consistency.
pub(super) struct Consistency {
    /// Some pages of the region are under a protocol with release consistency.
    is_used: AtomicBool,
    pub(super) state: Ordered<node::Consistency>,
    limits: PublicationLimits,
    /// Held by the thread that publishes; the chunks in which it has the kernel look for marks.
    turn: Ordered<Vec<PageRange>>,
    /// Held by the thread that applies notices: another acquire does not end before that.
    applying: Ordered<()>,
    /// One bit per shard that may have pages whose stores are noticed by marks; the others need not be looked at.
    watching: AtomicU32,
    /// Every acquire drops all copies.
    drops_all: bool,
}

/// The turn of a thread that publishes, or changes a protocol.
pub(super) type Turn<'a> = Guard<'a, Vec<PageRange>>;

impl Consistency {
    pub(super) fn new(
        me: NodeId,
        nodes: u16,
        limits: PublicationLimits,
        pages: u32,
        is_ordered: bool,
        is_used: bool,
        drops_all: bool,
    ) -> Consistency {
        Consistency {
            is_used: AtomicBool::new(is_used),
            state: Ordered::new(Rank::Knowledge, node::Consistency::new(me, nodes, pages, is_ordered, EARLY_MAX)),
            limits,
            turn: Ordered::new(Rank::Program, Vec::new()),
            applying: Ordered::new(Rank::Program, ()),
            watching: AtomicU32::new(0),
            drops_all,
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Some pages are under such a protocol from now on.
    pub(super) fn use_it(&self) {
        self.is_used.store(true, Ordering::Release);
    }

    /// The shard of `page` may have pages whose stores are noticed by marks.
    pub(super) fn watch(&self, page: PageIndex) {
        const { assert!(SHARDS <= u32::BITS, "each shard has a bit") };
        let bit = 1 << shard_number(page);
        if self.watching.load(Ordering::Relaxed) & bit == 0 {
            self.watching.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Called while the shard is locked, so that it is not watched again meanwhile.
    pub(super) fn watch_no_longer(&self, shard: u32) {
        self.watching.fetch_and(!(1 << shard), Ordering::AcqRel);
    }

    pub(super) fn is_watching(&self, shard: u32) -> bool {
        self.watching.load(Ordering::Acquire) >> shard & 1 != 0
    }
}

impl Node {
    /// Called before every release: before a lock is given back, a barrier is entered, a semaphore is raised, a word is
    /// stored to. When it returns without an error, every store that this node's program made before is at its home. After
    /// an error nothing may be released. If the time was over, the next call finishes what is left.
    pub(super) fn publish(&self) -> Result<(), WaitError> {
        self.publish_and_stay().map(drop)
    }

    /// The same. No other thread of this node publishes until the turn is dropped.
    pub(super) fn publish_and_stay(&self) -> Result<Option<Turn<'_>>, WaitError> {
        self.note_thread();
        if !self.consistency.is_used() {
            return Ok(None);
        }
        let started = self.now();
        let _inside = self.inside(started);
        let mut turn = lock(&self.consistency.turn);
        let Ok(()) = node::look_for_stores(&mut self.carrier(), &mut turn);
        let ticket = self.waiters.take_for_publication();
        let early = self.poll_early();
        let Ok(()) = node::publish(&mut self.carrier(), ticket.name(), &self.consistency.limits);
        let deadline = self.now().saturating_add(Wait::Publication.limit_ns(&self.config));
        let waited = self.wait_polling(early, &ticket, Wait::Publication, deadline);
        lock(&self.consistency.state).end();
        LiveCounters::add(&self.counters().overhead_ns, self.now() - started);
        self.has_waited(waited, || self.too_long(Wait::Publication, self.whom(Wait::Publication)))?;
        Ok(Some(turn))
    }

    pub(super) fn homes_that_owe_an_answer(&self) -> String {
        let mut homes: Vec<NodeId> = Vec::new();
        for shard in &self.shards {
            homes.extend(lock(shard).node.protocol.awaited_from());
        }
        homes.sort_unstable();
        homes.dedup();
        format!("waiting for {}", self.names(&homes))
    }

    /// Called after every acquire: after a lock was taken, a barrier was left, a semaphore was lowered, a word was loaded.
    /// When it returns, no page here is older than what was released to this node.
    pub(super) fn refresh(&self) {
        self.note_thread();
        if !self.consistency.is_used() {
            return;
        }
        let _inside = self.inside(self.recent());
        let _applying = lock(&self.consistency.applying);
        let Ok(notices) = node::acquired(&mut self.carrier(), self.consistency.drops_all);
        let Some(notices) = notices else { return };
        let started = self.now();
        let Ok(()) = node::apply(&mut self.carrier(), notices);
        LiveCounters::add(&self.counters().overhead_ns, self.now() - started);
    }

    /// Whether a message may release something to its receiver. If so, it carries what this node knows.
    pub(super) fn releases(&self, message: &wire::Message) -> bool {
        self.consistency.is_used() && message.releases()
    }

    /// Sends a message that releases something, with what its receiver may not know.
    pub(super) fn send_with_knowledge(&self, to: NodeId, message: &wire::Message) {
        // Notices depend on earlier ones, so messages are sent in the order in which their notices were appended.
        let mut state = lock(&self.consistency.state);
        let mut notices = Vec::new();
        state.knowledge.intervals.append_notices(to, &mut notices);
        self.send_attached(to, message, &notices);
    }

    /// Makes `node` the home of those pages that no node has touched and whose protocol lets a home be chosen.
    pub(crate) fn place(&self, pages: std::ops::Range<u32>, node: usize) -> Result<(), WaitError> {
        if !self.consistency.is_used() {
            return Ok(());
        }
        let node = NodeId(node as u16);
        let deadline = self.now().saturating_add(Wait::Placement(0).limit_ns(&self.config));
        for run in runs(pages) {
            let started = self.now();
            let ticket = self.waiters.take();
            let mut shard = lock(self.shard_of(run.first()));
            if !shard.node.protocol.protocol(run.first()).is_release_consistent() {
                continue;
            }
            shard.waiting.push(Waiting::Thread { page: run.first(), ticket: ticket.name() });
            self.step(&mut shard, Input::Place { range: run, node });
            drop(shard);
            let wait = Wait::Placement(u64::from(run.first().0));
            let waited = self.wait_polling(None, &ticket, wait, deadline);
            LiveCounters::add(&self.counters().overhead_ns, self.now() - started);
            self.has_waited(waited, || self.too_long(wait, self.whom(wait)))?;
        }
        Ok(())
    }
}
