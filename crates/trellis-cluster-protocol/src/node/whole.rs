//! A whole node as one value: everything that decides at a node, and the facts for any of it.
//!
//! A runtime keeps each part under a lock of its own. Where one thread steps a node, the node is this value: [`Node::step`]
//! gives a fact to the part that it concerns, and [`Effects`] carries out what follows. A thread that waits has a ticket,
//! which [`Effects::wake`] or [`Effects::answer`] completes. Bytes of pages come with their messages, so the shards take these alone
//! ([`super::step`]). Each of them gets what concerns all of them as an input.
//!
//! Promises: the parts decide as in a runtime, in the same functions. Under release consistency, a lock's token leaves a
//! node where that was foreseen ([`Sync::token_goes_to`]). It must never wait, or carry anything out.

use super::change::Changes;
use super::{
    Consistency, Leaving, LeavingStep, Member, Parts, Piggybacking, Publisher, Releases, Shard, TakeOver, hear,
    members_changed, take, take_due, with_token,
};
use crate::coherence::{self, Coherence};
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
    /// It is its turn to leave.
    may_hand_over: bool,
    /// Every other node has said farewell.
    all_left: bool,
    /// Room for the effects of a step; empty between steps.
    effects: Vec<sync::Effect>,
}

/// A fact for a node: all but messages about pages, whose bytes its shards take with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// About a page, with which nothing came.
    Page(PageIndex, coherence::Input),
    /// The time has come for what is pending in the shards.
    Due,
    /// About objects.
    Sync(sync::Input),
    /// About the shared heap.
    Heap(heap::Input),
    /// About the nodes that are present.
    Membership(membership::Input),
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
    fn heeds(&mut self, effect: membership::Effect) -> Result<bool, Self::Breach>;

    /// Sends a message, with the knowledge that is attached to it.
    fn send(&mut self, to: NodeId, message: wire::Message, knowledge: Vec<u8>) -> Result<(), Self::Breach>;

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
    fn wake(&mut self, waiter: Waiter, value: u64) -> Result<(), Self::Breach>;

    /// The heap has answered the call with this ticket.
    ///
    /// # Errors
    ///
    /// No call waits with this ticket.
    fn answer(&mut self, waiter: Waiter, answer: heap::Answer) -> Result<(), Self::Breach>;

    /// The thread with this ticket goes on, if it still waits: its publication is over.
    fn wake_publisher(&mut self, _publisher: Waiter) {}

    /// No correct node does `what`: a peer, or, if there is none, the program of this node.
    fn breach(&mut self, by: Option<NodeId>, what: &'static str) -> Result<(), Self::Breach>;

    /// Passes to `found` those of `pages` that were stored to, where stores are marked.
    fn marked_in(
        &mut self,
        _pages: Range<u32>,
        _found: impl FnMut(&mut Self, Range<u32>) -> Result<(), Self::Breach>,
    ) -> Result<(), Self::Breach> {
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
            may_hand_over: false,
            all_left: false,
            effects: Vec::new(),
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

    /// A part of the node takes one fact.
    pub fn step<E: Effects<Protocol = C>>(effects: &mut E, input: Input) -> Result<(), E::Breach> {
        match input {
            input if !effects.takes(&input) => Ok(()),
            Input::Page(page, input) => take(&mut effects.hold_of(page), input),
            Input::Due => {
                let now = effects.now();
                (0..effects.shards()).try_for_each(|shard| take_due(&mut effects.hold(shard), now))
            }
            Input::Sync(input) => Node::synchronise(effects, input),
            Input::Heap(input) => Node::allocate(effects, input),
            Input::Membership(input) => Node::hear_of_members(effects, input),
        }
    }

    /// A message arrives that is not about pages, with what is attached to it.
    pub fn receive<E: Effects<Protocol = C>>(
        effects: &mut E,
        from: NodeId,
        message: wire::Message,
        knowledge: &[u8],
    ) -> Result<(), E::Breach> {
        match effects.has_releases() && message.releases() {
            true => hear(effects, from, message, knowledge),
            false => effects.use_message(from, message),
        }
    }

    fn synchronise<E: Effects<Protocol = C>>(effects: &mut E, input: sync::Input) -> Result<(), E::Breach> {
        let has_releases = effects.has_releases();
        let next = has_releases.then(|| effects.node().sync.token_goes_to(&input)).flatten();
        let mut decided = core::mem::take(&mut effects.node().effects);
        with_token(effects, &input, |sync| sync.step(input, &mut decided))?;
        let mut given_to = None;
        for effect in decided.drain(..) {
            match effect {
                sync::Effect::Send(to, message) => {
                    if matches!(message, sync::Message::LockToken(_)) {
                        given_to = Some(to);
                    }
                    post(effects, to, wire::Message::Sync(message))?;
                }
                sync::Effect::Wake(waiter, value) => effects.wake(waiter, value)?,
                sync::Effect::Violation(from, what) => effects.breach(Some(from), what)?,
                sync::Effect::Refused(_, what) => effects.breach(None, what)?,
            }
        }
        effects.node().effects = decided;
        assert!(next.is_none() || given_to == next, "a token goes to {given_to:?}, and not to {next:?}: {input:?}");
        Ok(())
    }

    fn allocate<E: Effects<Protocol = C>>(effects: &mut E, input: heap::Input) -> Result<(), E::Breach> {
        let mut decided = Vec::new();
        match (&mut effects.node().heap, input) {
            (Some(heap), input) => heap.step(input, &mut decided),
            (None, heap::Input::Message(from, _)) => {
                return effects.breach(Some(from), "a message about a heap to a node without");
            }
            (None, _) => return effects.breach(None, "a call of the heap at a node without"),
        }
        decided.into_iter().try_for_each(|effect| match effect {
            heap::Effect::Send(to, message) => post(effects, to, wire::Message::Heap(message)),
            heap::Effect::Done(waiter, answer) => effects.answer(waiter, answer),
            heap::Effect::Violation(from, what) => effects.breach(Some(from), what),
        })
    }

    fn hear_of_members<E: Effects<Protocol = C>>(effects: &mut E, input: membership::Input) -> Result<(), E::Breach> {
        use membership::Effect;
        let (now, mut decided) = (effects.now(), Vec::new());
        let Some(membership) = &mut effects.node().membership else { return Ok(()) };
        membership.step(now, input, &mut decided);
        for effect in decided {
            if !effects.heeds(effect)? {
                continue;
            }
            let node = effects.node();
            match effect {
                Effect::Send(to, message) => effects.send(to, wire::Message::Membership(message), Vec::new())?,
                Effect::HandOver => node.may_hand_over = true,
                Effect::AllLeft => node.all_left = true,
                Effect::TakeOver(range) => node.take_over.name(range),
                Effect::TakeOverEnds => node.take_over.end(),
                Effect::Came(_) | Effect::Absent(_) | Effect::Departs(_) | Effect::Vanished(_) => {
                    let coordinator = node.coordinator;
                    members_changed(effects, effect, coordinator)?;
                }
                Effect::Violation(from, what) => effects.breach(Some(from), what)?,
                Effect::Died(_) | Effect::Silent(..) | Effect::Failed(_) | Effect::Joined | Effect::Ended => {}
            }
        }
        Ok(())
    }
}

/// Sends a message with the knowledge that goes with it.
fn post<E: Effects>(effects: &mut E, to: NodeId, message: wire::Message) -> Result<(), E::Breach> {
    let knowledge = match effects.has_releases() && message.releases() {
        true => effects.attached(to, &message),
        false => Vec::new(),
    };
    effects.send(to, message, knowledge)
}

impl<E: Effects> Releases for E {
    fn consistency(&mut self) -> impl DerefMut<Target = Consistency> {
        self.node().releases.as_mut().expect("pages are under release consistency")
    }

    fn publication_is_over(&mut self, publisher: Waiter) {
        self.wake_publisher(publisher);
    }
}

impl<E: Effects> Publisher for E {
    type Synchronisation = Sync;

    fn with_synchronisation<R>(&mut self, act: impl FnOnce(&mut Sync) -> R) -> R {
        act(&mut self.node().sync)
    }

    fn has_releases(&mut self) -> bool {
        self.node().releases.is_some()
    }

    fn is_watching(&mut self, shard: u32) -> bool {
        self.node().shards[shard as usize].is_watching() && !self.passes_over(shard)
    }

    fn stores_in(
        &mut self,
        pages: Range<u32>,
        found: impl FnMut(&mut Self, Range<u32>) -> Result<(), E::Breach>,
    ) -> Result<(), E::Breach> {
        self.marked_in(pages, found)
    }

    fn piggybacking(&self, to: NodeId) -> Piggybacking {
        Piggybacking::new(to, PAGE_BYTES, false)
    }

    fn use_message(&mut self, from: NodeId, message: wire::Message) -> Result<(), E::Breach> {
        match message {
            wire::Message::Sync(message) => Node::step(self, Input::Sync(sync::Input::Message(from, message))),
            wire::Message::Membership(message) => {
                Node::step(self, Input::Membership(membership::Input::Message(from, message)))
            }
            wire::Message::Coherence(_) => unreachable!("its shard takes it"),
            wire::Message::Heap(message) => Node::step(self, Input::Heap(heap::Input::Message(from, message))),
        }
    }

    fn refuse(&mut self, from: NodeId, why: &'static str) -> Result<(), E::Breach> {
        self.breach(Some(from), why)
    }
}

impl<E: Effects> Member for E {
    fn pass_tokens_on(&mut self) -> Result<(), E::Breach> {
        Node::step(self, Input::Sync(sync::Input::Depart))
    }

    fn tell_members(&mut self, fact: membership::Input) -> Result<(), E::Breach> {
        Node::step(self, Input::Membership(fact))
    }

    fn has_come(&mut self, step: LeavingStep) -> bool {
        let node = self.node();
        match step {
            LeavingStep::AwaitTurn => node.may_hand_over,
            LeavingStep::AwaitSynchronisation => node.sync.is_clear(),
            _ => node.all_left,
        }
    }

    fn skips(&self, step: LeavingStep) -> bool {
        Effects::skips(self, step)
    }
}
