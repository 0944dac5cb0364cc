//! Carries out the decisions of the protocols: on memory, threads and the link.
//!
//! Promises: a part of the node is held by its lock, as long as something is done with it, and its effects are carried out
//! in that time. It must never decide anything.

use std::convert::Infallible;
use std::ops::{DerefMut, Range};

use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Message, Protocol, Ranges};
use trellis_cluster_protocol::node::{self, Carrier, Consistency, Order, Parts, Piggybacking, Publisher, Releases};
use trellis_cluster_protocol::sync::Waiter;
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange, wire};

use super::diffs::Pieces;
use super::ordered::{Guard, lock};
use super::pages::{HOLD, Shard, Waiting};
use super::{Node, SHARDS, synchronisation};

/// A node, which carries out decisions. It holds a shard, or no part of the node.
pub(super) struct NodeCarrier<'a, Held> {
    pub(super) node: &'a Node,
    pub(super) held: Held,
}

impl Node {
    /// This node, of which no part is held.
    pub(super) fn carrier(&self) -> NodeCarrier<'_, ()> {
        NodeCarrier { node: self, held: () }
    }
}

impl<'a, S: DerefMut<Target = Shard>> Carrier for NodeCarrier<'a, S> {
    type Protocol = Ranges;
    type Attached = Option<Pieces<'a>>;
    type Breach = Infallible;

    fn shard(&mut self) -> &mut node::Shard<Ranges> {
        &mut self.held.node
    }

    fn decide(&mut self, input: Input, effects: &mut Vec<Effect>) {
        // Only layers look at the time.
        let now = if self.held.is_timed { self.node.now() } else { self.node.recent() };
        self.held.node.protocol.step(now, input, effects);
    }

    fn order(&mut self, effect: Effect) -> Order {
        self.held.node.order(effect, || self.node.now(), HOLD.nanoseconds())
    }

    fn carry_out(&mut self, order: Order, pieces: Option<Pieces<'a>>) -> Result<(), Infallible> {
        let NodeCarrier { node, held: shard } = self;
        match order {
            Order::CarryOut(effect) => node.change_pages(shard, effect, pieces),
            Order::Send { to, message } if message.piggybacked().is_some() => node.send_page_piggybacked(to, message),
            Order::Send { to, message } => {
                if let Message::Request { demand, requester, .. } | Message::Forward { demand, requester, .. } = message
                    && requester == node.me
                {
                    shard.note_asked(demand, to, false);
                }
                node.send(to, &wire::Message::Coherence(message));
            }
            Order::Granted { call, .. } => {
                if let Some(call) = shard.node.locks.find(call) {
                    node.waiters.signal(call.waiter, 0);
                }
            }
            Order::WakeAt { now, due } => node.progress.wake_at(now, due),
            Order::Nothing => {}
            Order::Lost { to, message } => {
                node.fail(format!("{message} is for {to}, which has gone, and no node is left to answer it"));
            }
        }
        Ok(())
    }

    fn send_diffs(
        &mut self,
        message: Message,
        to: impl Iterator<Item = NodeId>,
        pieces: Option<Pieces<'a>>,
    ) -> Result<(), Infallible> {
        self.node.send_diffs(message, to, pieces);
        Ok(())
    }

    fn look_for_stores(&mut self, stored: &mut Vec<PageIndex>) -> Result<(), Infallible> {
        let NodeCarrier { node, held: shard } = self;
        let protect = |page: PageIndex| node.region.downgrade(page.0 as usize, 1);
        if let Err(error) = shard.node.look_for_stores(|page| node.differs_from_twin(page), protect, stored) {
            node.fail(format!("cannot protect a page again: {error}"));
        }
        if !shard.node.is_watching() {
            node.consistency.watch_no_longer(shard.node.number());
        }
        Ok(())
    }

    fn owes(&mut self, answers: u32) {
        self.consistency().owes(answers);
    }

    fn wait_for(&mut self, page: PageIndex, waiter: Waiter) {
        self.held.waiting.push(Waiting::Thread { page, ticket: waiter });
    }

    fn has_changed(&mut self, run: PageRange, protocol: Protocol) {
        self.held.note_protocol(protocol);
        self.node.open_again(&self.held, run);
    }
}

impl<Held> Releases for NodeCarrier<'_, Held> {
    fn consistency(&mut self) -> impl DerefMut<Target = Consistency> {
        lock(&self.node.consistency.state)
    }

    fn publication_is_over(&mut self, publisher: u32) {
        self.node.waiters.signal(publisher, 0);
    }
}

impl<'n> Parts for NodeCarrier<'n, ()> {
    type Held<'a>
        = NodeCarrier<'n, Guard<'n, Shard>>
    where
        Self: 'a;
    type Breach = Infallible;

    fn shards(&self) -> u32 {
        SHARDS
    }

    fn hold(&mut self, shard: u32) -> NodeCarrier<'n, Guard<'n, Shard>> {
        NodeCarrier { node: self.node, held: lock(&self.node.shards[shard as usize]) }
    }
}

impl Publisher for NodeCarrier<'_, ()> {
    type Synchronisation = synchronisation::State;

    #[inline]
    fn with_synchronisation<R>(&mut self, act: impl FnOnce(&mut synchronisation::State) -> R) -> R {
        act(&mut lock(&self.node.synchronisation))
    }

    fn has_releases(&mut self) -> bool {
        self.node.consistency.is_used()
    }

    fn is_watching(&mut self, shard: u32) -> bool {
        self.node.consistency.is_watching(shard)
    }

    fn stores_in(
        &mut self,
        pages: Range<u32>,
        mut found: impl FnMut(&mut Self, Range<u32>) -> Result<(), Infallible>,
    ) -> Result<(), Infallible> {
        let node = self.node;
        let found = &mut |page: usize, count: usize| {
            let Ok(()) = found(self, page as u32..(page + count) as u32);
        };
        if let Err(error) = node.region.stored_to(pages.start as usize, pages.len(), found) {
            node.fail(format!("cannot find out which pages were stored to: {error}"));
        }
        Ok(())
    }

    fn piggybacking(&self, to: NodeId) -> Piggybacking {
        Piggybacking::new(to, self.node.config.page_bytes, self.node.has_changed_protocols())
    }

    fn use_message(&mut self, from: NodeId, message: wire::Message) -> Result<(), Infallible> {
        match message {
            wire::Message::Sync(message) => self.node.sync_message(from, message),
            wire::Message::Heap(message) => self.node.heap_message(from, message),
            wire::Message::Coherence(_) | wire::Message::Membership(_) => unreachable!("they carry no knowledge"),
        }
        Ok(())
    }

    fn refuse(&mut self, from: NodeId, why: &'static str) -> Result<(), Infallible> {
        self.node.refuse_frame(from, why);
        Ok(())
    }
}
