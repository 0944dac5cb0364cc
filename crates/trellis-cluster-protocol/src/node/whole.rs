//! A whole node as one value: everything that decides at a node, and the facts for any of it.
//!
//! A runtime keeps each part under a lock of its own. Where one thread steps a node, the node is this value, and [`Effects`]
//! carries out what follows. Both take facts by [`super::take_fact`] and [`super::receive`]. A thread that waits has a ticket,
//! which [`Effects::wake`] or [`Effects::answer`] completes. Bytes of pages come with their messages, so the shards take these
//! alone ([`super::step`]). Each of them gets what concerns all of them as an input.
//!
//! Promises: the parts decide as in a runtime, in the same functions. It must never wait, or carry anything out.

use super::change::Changes;
use super::{
    Carrier, Consistency, Holds, HoldsObjects, Input, Leaving, LeavingStep, Outlet, Parts, Releases, Shard, TakeOver,
    Whole,
};
use crate::coherence::Coherence;
use crate::heap::{self, Heap};
use crate::membership::{self, Membership};
use crate::page::{CHUNK_PAGES, NodeId, PageIndex};
use crate::sync::{self, Sync, Waiter};
use crate::{Nanoseconds, wire};
use alloc::vec::Vec;
use core::ops::{DerefMut, Range};

/// The size of a page, as far as it limits what goes with a token.
const PAGE_BYTES: usize = 4096;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node<C> {
    /// Its pages.
    pub shards: Vec<Shard<C>>,
    /// Locks, barriers and other objects.
    pub sync: Sync,
    /// Its knowledge of releases, if pages are under release consistency.
    pub releases: Option<Consistency>,
    /// Its part of the shared heap, if programs allocate.
    pub heap: Option<Heap>,
    /// The nodes that are present, if nodes may join or leave, or are watched.
    pub membership: Option<Membership>,
    /// How its changes of protocols have ended.
    pub changes: Changes,
    /// Its steps, if it leaves.
    pub leaving: Option<Leaving>,
    /// At the coordinator: the pages to take over from a node that leaves.
    pub take_over: TakeOver,
    coordinator: NodeId,
}

/// A node that takes a step, and what carries out its effects.
pub trait Effects: Parts + Sized {
    /// The protocol of its pages.
    type Protocol: Coherence;

    /// The node.
    fn node(&mut self) -> &mut Node<Self::Protocol>;

    /// The time.
    fn now(&self) -> Nanoseconds;

    /// Whether the node takes this fact. A checker that breaks a rule passes over some.
    fn takes(&mut self, _input: &Input) -> bool {
        true
    }

    /// Whether the node heeds what the membership decided. This does the rest.
    ///
    /// # Errors
    ///
    /// The decision breaks a rule.
    fn heeds(&mut self, effect: membership::Effect) -> Result<bool, <Self as Parts>::Breach>;

    /// The objects take a fact. A checker that breaks a rule alters it, or what they decide.
    fn decide_objects(&mut self, input: sync::Input, decided: &mut Vec<sync::Effect>) {
        self.node().sync.step(input, decided);
    }

    /// Sends a message, with the knowledge that is attached to it.
    fn send(&mut self, to: NodeId, message: wire::Message, knowledge: Vec<u8>) -> Result<(), <Self as Parts>::Breach>;

    /// The knowledge of releases that goes with a message.
    fn attached(&mut self, to: NodeId, _message: &wire::Message) -> Vec<u8> {
        let mut knowledge = Vec::new();
        self.consistency().knowledge.intervals.append_notices(to, &mut knowledge);
        knowledge
    }

    /// The thread with this ticket goes on: its call is answered.
    ///
    /// # Errors
    ///
    /// No thread waits with this ticket.
    fn wake(&mut self, waiter: Waiter, value: u64) -> Result<(), <Self as Parts>::Breach>;

    /// The thread with this ticket goes on: its call was abandoned, or breaks a rule.
    ///
    /// # Errors
    ///
    /// The program gives up no call, and breaks no rule.
    fn refuse(&mut self, _waiter: Waiter, why: &'static str) -> Result<(), <Self as Parts>::Breach> {
        Effects::breach(self, None, why)
    }

    /// The heap has answered the call with this ticket.
    ///
    /// # Errors
    ///
    /// No call waits with this ticket.
    fn answer(&mut self, waiter: Waiter, answer: heap::Answer) -> Result<(), <Self as Parts>::Breach>;

    /// The thread with this ticket goes on, if it still waits: its publication is over.
    fn wake_publisher(&mut self, _publisher: Waiter) {}

    /// No correct node does `what`: a peer, or, if there is none, the program of this node.
    fn breach(&mut self, by: Option<NodeId>, what: &'static str) -> Result<(), <Self as Parts>::Breach>;

    /// Passes to `found` those of `pages` that were stored to, where stores are marked.
    fn marked_in(
        &mut self,
        _pages: Range<u32>,
        _found: impl FnMut(&mut Self, Range<u32>) -> Result<(), <Self as Parts>::Breach>,
    ) -> Result<(), <Self as Parts>::Breach> {
        Ok(())
    }

    /// Whether a checker looks for no stores in this shard.
    fn passes_over(&self, _shard: u32) -> bool {
        false
    }

    /// Whether a checker leaves out this step of a node that leaves.
    fn skips(&self, _step: LeavingStep) -> bool {
        false
    }
}

impl<C: Coherence> Node<C> {
    /// A node at its start: no node is watched. `coordinator` takes over what a departed node leaves behind.
    pub fn new(shards: Vec<Shard<C>>, sync: Sync, releases: Option<Consistency>, coordinator: NodeId) -> Node<C> {
        Node {
            shards,
            sync,
            releases,
            heap: None,
            membership: None,
            changes: Changes::default(),
            leaving: None,
            take_over: TakeOver::default(),
            coordinator,
        }
    }

    /// The shard of a page.
    pub fn shard(&self, page: PageIndex) -> &Shard<C> {
        &self.shards[(page.0 / CHUNK_PAGES) as usize % self.shards.len()]
    }

    /// The same, to change it.
    pub fn shard_mut(&mut self, page: PageIndex) -> &mut Shard<C> {
        let shards = self.shards.len();
        &mut self.shards[(page.0 / CHUNK_PAGES) as usize % shards]
    }
}

impl<E: Effects> Releases for E {
    fn consistency(&mut self) -> impl DerefMut<Target = Consistency> {
        self.node().releases.as_mut().expect("pages are under release consistency")
    }

    fn publication_is_over(&mut self, publisher: Waiter) {
        self.wake_publisher(publisher);
    }
}

impl<E: Effects> Outlet for E {
    type Breach = <E as Parts>::Breach;

    fn send(&mut self, to: NodeId, message: wire::Message) -> Result<(), <E as Parts>::Breach> {
        let knowledge = match self.has_releases() && message.releases() {
            true => self.attached(to, &message),
            false => Vec::new(),
        };
        Effects::send(self, to, message, knowledge)
    }

    fn wake(&mut self, waiter: Waiter, value: u64) -> Result<(), <E as Parts>::Breach> {
        Effects::wake(self, waiter, value)
    }

    fn refuse(&mut self, waiter: Waiter, why: &'static str) -> Result<(), <E as Parts>::Breach> {
        Effects::refuse(self, waiter, why)
    }

    fn answer(&mut self, waiter: Waiter, answer: heap::Answer) -> Result<(), <E as Parts>::Breach> {
        Effects::answer(self, waiter, answer)
    }

    fn heeds(&mut self, effect: membership::Effect) -> Result<bool, <E as Parts>::Breach> {
        Effects::heeds(self, effect)
    }

    fn note(&mut self, effect: membership::Effect) -> Result<(), <E as Parts>::Breach> {
        match effect {
            membership::Effect::TakeOver(range) => self.node().take_over.name(range),
            membership::Effect::TakeOverEnds => self.node().take_over.end(),
            _ => {}
        }
        Ok(())
    }

    fn breach(&mut self, by: NodeId, what: &'static str) -> Result<(), <E as Parts>::Breach> {
        Effects::breach(self, Some(by), what)
    }
}

impl<E: Effects> Holds<Sync> for E {
    fn part(&mut self) -> &mut Sync {
        &mut self.node().sync
    }
}

impl<E: Effects> HoldsObjects for E {
    fn decide(&mut self, input: sync::Input, decided: &mut Vec<sync::Effect>) {
        self.decide_objects(input, decided);
    }
}

impl<E: Effects> Holds<Heap> for E {
    fn part(&mut self) -> &mut Heap {
        self.node().heap.as_mut().expect("programs allocate")
    }
}

impl<E: Effects> Holds<Membership> for E {
    fn part(&mut self) -> &mut Membership {
        self.node().membership.as_mut().expect("nodes join or leave, or are watched")
    }
}

impl<E: Effects> Whole for E {
    type Objects = E;
    type Heap = E;
    type Members = E;

    fn with_objects<R>(&mut self, act: impl FnOnce(&mut E) -> R) -> R {
        act(self)
    }

    fn with_heap<R>(&mut self, act: impl FnOnce(&mut E) -> R) -> R {
        act(self)
    }

    fn with_membership<R>(&mut self, act: impl FnOnce(&mut E) -> R) -> R {
        act(self)
    }

    fn now(&self) -> Nanoseconds {
        Effects::now(self)
    }

    fn coordinator(&mut self) -> NodeId {
        self.node().coordinator
    }

    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn has_releases(&mut self) -> bool {
        self.node().releases.is_some()
    }

    fn has_changed_protocols(&mut self) -> bool {
        Carrier::has_changed_protocols(&self.hold(0))
    }

    fn is_watching(&mut self, shard: u32) -> bool {
        self.node().shards[shard as usize].is_watching() && !self.passes_over(shard)
    }

    fn stores_in(
        &mut self,
        pages: Range<u32>,
        found: impl FnMut(&mut Self, Range<u32>) -> Result<(), <E as Parts>::Breach>,
    ) -> Result<(), <E as Parts>::Breach> {
        self.marked_in(pages, found)
    }

    fn takes(&mut self, input: &Input) -> bool {
        Effects::takes(self, input)
    }

    fn skips(&self, step: LeavingStep) -> bool {
        Effects::skips(self, step)
    }
}
