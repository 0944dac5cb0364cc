//! Carries out the decisions of the protocols: on memory, threads and the link.
//!
//! Promises: a part of the node is held by its lock, as long as something is done with it, and its effects are carried out
//! in that time. It must never decide anything.

use std::convert::Infallible;
use std::ops::{DerefMut, Range};

use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Message, Protocol, Ranges};
use trellis_cluster_protocol::heap::{self, Heap};
use trellis_cluster_protocol::membership::{self, Membership};
use trellis_cluster_protocol::node::{
    self, Carrier, Consistency, Holds, HoldsObjects, Order, Outlet, Parts, Releases, Whole,
};
use trellis_cluster_protocol::sync::{Sync, Waiter};
use trellis_cluster_protocol::{Nanoseconds, NodeId, PageIndex, PageRange, wire};

use super::diffs::Pieces;
use super::ordered::{Guard, lock};
use super::pages::{HOLD, Shard, Waiting};
use super::{Node, SHARDS, synchronisation};

/// A node, which carries out decisions. It holds one part of the node, or none.
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

    fn has_changed_protocols(&self) -> bool {
        self.node.has_changed_protocols()
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

impl<'n, Held> Parts for NodeCarrier<'n, Held> {
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

impl<Held> Outlet for NodeCarrier<'_, Held> {
    type Breach = Infallible;

    fn send(&mut self, to: NodeId, message: wire::Message) -> Result<(), Infallible> {
        self.node.send(to, &message);
        Ok(())
    }

    fn wake(&mut self, waiter: Waiter, value: u64) -> Result<(), Infallible> {
        self.node.waiters.signal(waiter, value);
        Ok(())
    }

    fn refuse(&mut self, waiter: Waiter, why: &'static str) -> Result<(), Infallible> {
        self.node.waiters.refuse(waiter, why);
        Ok(())
    }

    fn answer(&mut self, waiter: Waiter, answer: heap::Answer) -> Result<(), Infallible> {
        self.node.heap_answered(waiter, answer);
        Ok(())
    }

    fn note(&mut self, effect: membership::Effect) -> Result<(), Infallible> {
        self.node.note_of_members(effect);
        Ok(())
    }

    fn breach(&mut self, by: NodeId, what: &'static str) -> Result<(), Infallible> {
        self.node.refuse_frame(by, what);
        Ok(())
    }
}

impl Holds<Sync> for NodeCarrier<'_, Guard<'_, synchronisation::State>> {
    fn part(&mut self) -> &mut Sync {
        &mut self.held.sync
    }

    fn has_stepped(&mut self) {
        if self.node.is_leaving() && self.held.sync.is_clear() {
            self.node.rouse_leaver();
        }
    }
}

impl HoldsObjects for NodeCarrier<'_, Guard<'_, synchronisation::State>> {}

impl Holds<Heap> for NodeCarrier<'_, Guard<'_, Heap>> {
    fn part(&mut self) -> &mut Heap {
        &mut self.held
    }
}

impl Holds<Membership> for NodeCarrier<'_, Guard<'_, Membership>> {
    fn part(&mut self) -> &mut Membership {
        &mut self.held
    }
}

impl<'n> Whole for NodeCarrier<'n, ()> {
    type Objects = NodeCarrier<'n, Guard<'n, synchronisation::State>>;
    type Heap = NodeCarrier<'n, Guard<'n, Heap>>;
    type Members = NodeCarrier<'n, Guard<'n, Membership>>;

    #[inline]
    fn with_objects<R>(&mut self, act: impl FnOnce(&mut Self::Objects) -> R) -> R {
        act(&mut NodeCarrier { node: self.node, held: lock(&self.node.synchronisation) })
    }

    fn with_heap<R>(&mut self, act: impl FnOnce(&mut Self::Heap) -> R) -> R {
        act(&mut NodeCarrier { node: self.node, held: self.node.hold_heap() })
    }

    fn with_membership<R>(&mut self, act: impl FnOnce(&mut Self::Members) -> R) -> R {
        act(&mut NodeCarrier { node: self.node, held: lock(&self.node.membership) })
    }

    fn now(&self) -> Nanoseconds {
        self.node.now()
    }

    fn coordinator(&mut self) -> NodeId {
        NodeId(self.node.config.manager as u16)
    }

    fn page_bytes(&self) -> usize {
        self.node.config.page_bytes
    }

    fn has_releases(&mut self) -> bool {
        self.node.consistency.is_used()
    }

    fn has_changed_protocols(&mut self) -> bool {
        self.node.has_changed_protocols()
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
}
