//! The cluster of all checkers: its nodes carry out what their protocols decide.
//!
//! A checker is a scheduler, which chooses the next step, and an oracle, which says what must hold. Between them is
//! this model of a cluster:
//!
//! - Under sequential consistency `Memory` has the views and copies of all nodes, and checks the contract of
//!   [`trellis_cluster_protocol::coherence`]. `Cluster::carry_out` is the one place where an order of a shard changes
//!   them, sends a message or wakes threads. `Stepping::step` lets a shard take a fact, and `Stepping::hand_over`
//!   delivers a message with the bytes that travel with it. The explorer, the simulator and [`Driven`], of which scripts
//!   and litmus tests choose every step, are such clusters.
//! - Under release consistency [`twinned`] has the views, bytes and twins of one node, because no rule is about
//!   several. [`twinned::Releasing::obey`] and [`twinned::Releasing::arrive`] are the same for them.
//!
//! Promises: orders are carried out one after the other, and each is checked when it is carried out. Bytes of
//! sequentially consistent pages are taken from the supplier when their message arrives, which the contract allows. It
//! must never choose what happens next, decide what a node decides, or look into a protocol.

pub(crate) mod datagrams;
mod driven;
mod memory;
pub mod twinned;
pub(crate) mod views;

pub use driven::{Alarm, Call, Driven, Outcome, RunsOn, Waiting, nodes_of};
pub(crate) use memory::{ABSENT, First, Layout, Memory};

use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Message};
use trellis_cluster_protocol::node::{self, Carrier, Node, Order, Parts, Shard};
use trellis_cluster_protocol::sync::Waiter;
use trellis_cluster_protocol::{Access, CHUNK_PAGES, Nanoseconds, NodeId, PageIndex, PageRange};
use views::check_thought;

/// A message under way between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope<M = Message> {
    /// Its sender.
    pub from: u16,
    /// Its receiver.
    pub to: u16,
    /// The message.
    pub message: M,
}

/// What `node` says when no correct node does `what`: a peer, or, if there is none, its own program.
pub(crate) fn breach(node: u16, by: Option<NodeId>, what: &str) -> String {
    match by {
        Some(from) => format!("node {node} reports of {from}: {what}"),
        None => format!("node {node} refuses a call: {what}"),
    }
}

/// The part of a cluster that differs between schedulers: threads, links and time.
pub(crate) trait Cluster {
    /// The pages.
    type Layout: Layout;
    /// The content of a copy besides its version.
    type Bytes: Copy + Default;

    /// The views and copies.
    fn memory(&mut self) -> &mut Memory<Self::Layout, Self::Bytes>;

    /// A message is under way from now on; the bytes that go with it have been read out.
    fn put_under_way(&mut self, node: u16, to: NodeId, message: Message) -> Result<(), String>;

    /// The threads of `node` that wait for one of these pages look again.
    fn look_again(&mut self, node: u16, pages: PageRange) -> Result<(), String>;

    /// This thread of `node` looks again when something about `page` has changed. Most look by themselves.
    fn waits(&mut self, _node: u16, _page: PageIndex, _waiter: Waiter) {}

    /// The timers of `node` have something for `due`.
    fn has_timer(&mut self, _node: u16, _due: Nanoseconds) {}

    /// A call has locked these pages, all of which may be stored to here.
    fn has_locked(&mut self, node: u16, pages: PageRange, call: u32) -> Result<(), String>;

    /// Checks that no thread of `node` has locked one of these pages, which leave.
    fn check_unlocked(&self, _node: u16, _pages: PageRange) -> Result<(), String> {
        Ok(())
    }

    /// `node` has these pages from now on, for loads or for stores.
    fn opened(&mut self, _node: u16, _pages: PageRange, _access: Access) -> Result<(), String> {
        Ok(())
    }

    /// `node` reports that no correct peer would do what `from` did.
    fn violation(&mut self, node: u16, from: NodeId, what: &str) -> Result<(), String> {
        Err(breach(node, Some(from), what))
    }

    /// Carries out an order of the shard of `node`.
    fn carry_out(&mut self, node: u16, order: Order) -> Result<(), String> {
        match order {
            Order::CarryOut(effect) => self.change(node, effect),
            Order::Send { to, message } => {
                if let Some(range) = message.bytes() {
                    let write = matches!(message, Message::Grant { write: true, .. });
                    self.memory().read_out(node, range, write)?;
                }
                if to.0 == node {
                    return Err(format!("node {node} sends to itself: {message}"));
                }
                self.put_under_way(node, to, message)
            }
            Order::Granted { range, call } => {
                let memory = self.memory();
                let may_store = |page: &PageIndex| memory.view(node, *page) == Access::Write;
                match range.pages().find(|page| !may_store(page)) {
                    Some(page) => Err(format!("node {node} has locked {page}, which it may not store to")),
                    None => self.has_locked(node, range, call),
                }
            }
            Order::WakeAt { due, .. } => {
                self.has_timer(node, due);
                Ok(())
            }
            Order::Nothing => Ok(()),
            Order::Lost { to, message } => Err(format!("node {node} would send {message} to {to}, which has departed")),
        }
    }

    /// Carries out an effect on the memory and the threads of a node.
    fn change(&mut self, node: u16, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Revoke(range) => {
                let found = self.memory().revoke(node, range);
                found.and_then(|()| self.check_unlocked(node, range))
            }
            Effect::Downgrade(range) => {
                let found = self.memory().downgrade(node, range);
                found.and_then(|()| self.check_unlocked(node, range))
            }
            Effect::Install { range, access, zero } => {
                let found = self.memory().install(node, range, access, zero);
                found.and_then(|()| self.opened(node, range, access))
            }
            Effect::Upgrade(range) => {
                let found = self.memory().upgrade(node, range);
                found.and_then(|()| self.opened(node, range, Access::Write))
            }
            Effect::Wake(range) => self.look_again(node, range),
            Effect::Chose { .. } => Ok(()),
            Effect::Violation { from, what } => self.violation(node, from, what),
            Effect::KeepTwin(_)
            | Effect::SendTwins { .. }
            | Effect::Apply { .. }
            | Effect::Merge { .. }
            | Effect::Inspect(_)
            | Effect::Notice { .. }
            | Effect::Published => Err(format!("node {node} orders what belongs to release consistency: {effect:?}")),
            Effect::Send { .. } | Effect::Hold(_) | Effect::Alarm { .. } | Effect::Locked { .. } => {
                unreachable!("the shard orders something else for these")
            }
        }
    }
}

/// A cluster of whole nodes, which it steps one after the other.
pub(crate) trait Stepping: Cluster + Sized {
    /// The protocol of the nodes.
    type Protocol: Coherence;

    /// A node.
    fn node(&self, node: u16) -> &Node<Self::Protocol>;

    /// The same, to be stepped.
    fn node_mut(&mut self, node: u16) -> &mut Node<Self::Protocol>;

    /// The time.
    fn now(&self) -> Nanoseconds;

    /// The order of the shard for an effect.
    fn order(&mut self, node: u16, shard: usize, effect: Effect) -> Order;

    /// A shard is about to take this fact.
    fn note_input(&mut self, _node: u16, _input: Input) {}

    /// An effect is about to be carried out.
    fn note_effect(&mut self, _node: u16, _effect: Effect) {}

    /// A node that takes a step.
    fn at(&mut self, node: u16) -> At<'_, Self> {
        At { cluster: self, node, shard: 0 }
    }

    /// The same, with the shard of a page.
    fn at_page(&mut self, node: u16, page: PageIndex) -> At<'_, Self> {
        let shard = (page.0 / CHUNK_PAGES) as usize % self.node(node).shards.len();
        At { cluster: self, node, shard }
    }

    /// The shard of `page` takes one fact.
    fn step(&mut self, node: u16, page: PageIndex, input: Input) -> Result<(), String> {
        node::take(&mut self.at_page(node, page), input)
    }

    /// A thread of `node` that was woken for `page` after a fault is about to retry.
    fn looks(&mut self, node: u16, page: PageIndex) -> Result<(), String> {
        let now = self.now();
        node::looks(&mut self.at_page(node, page), page, || now)
    }

    /// A message arrives: first its bytes, then the message itself.
    fn hand_over(&mut self, from: u16, to: u16, message: Message) -> Result<(), String> {
        if let Some(range) = message.bytes() {
            self.memory().arrive(from, to, range)?;
        }
        self.step(to, message.page(), Input::Message { from: NodeId(from), message })
    }
}

/// A node of a cluster, and one of its shards.
pub(crate) struct At<'a, C> {
    pub(crate) cluster: &'a mut C,
    pub(crate) node: u16,
    shard: usize,
}

impl<C: Stepping> Parts for At<'_, C> {
    type Held<'a>
        = At<'a, C>
    where
        Self: 'a;
    type Breach = String;

    fn shards(&self) -> u32 {
        self.cluster.node(self.node).shards.len() as u32
    }

    fn hold(&mut self, shard: u32) -> At<'_, C> {
        At { cluster: self.cluster, node: self.node, shard: shard as usize }
    }
}

impl<C: Stepping> Carrier for At<'_, C> {
    type Protocol = C::Protocol;
    type Attached = ();
    type Breach = String;

    fn shard(&mut self) -> &mut Shard<C::Protocol> {
        &mut self.cluster.node_mut(self.node).shards[self.shard]
    }

    fn decide(&mut self, input: Input, effects: &mut Vec<Effect>) {
        self.cluster.note_input(self.node, input);
        let now = self.cluster.now();
        self.shard().protocol.step(now, input, effects);
    }

    fn order(&mut self, effect: Effect) -> Order {
        self.cluster.note_effect(self.node, effect);
        self.cluster.order(self.node, self.shard, effect)
    }

    fn carry_out(&mut self, order: Order, (): ()) -> Result<(), String> {
        self.cluster.carry_out(self.node, order)
    }

    fn send_diffs(&mut self, message: Message, _: impl Iterator<Item = NodeId>, (): ()) -> Result<(), String> {
        Err(format!("node {} sends what belongs to release consistency: {message}", self.node))
    }

    fn wait_for(&mut self, page: PageIndex, waiter: Waiter) {
        self.cluster.waits(self.node, page, waiter);
    }

    /// The views must be what the protocol takes them for.
    fn has_carried_out(&mut self, effects: &[Effect]) -> Result<(), String> {
        if !self.cluster.memory().is_checked() {
            return Ok(());
        }
        for effect in effects {
            let (Effect::Revoke(range)
            | Effect::Downgrade(range)
            | Effect::Upgrade(range)
            | Effect::Install { range, .. }) = *effect
            else {
                continue;
            };
            for page in range.pages() {
                let thought = self.shard().protocol.access(page);
                check_thought(self.node, page.0, thought, self.cluster.memory().view(self.node, page))?;
            }
        }
        Ok(())
    }
}
