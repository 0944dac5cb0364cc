//! Facts for a node that are not about its pages: the part that takes each one, and what follows.
//!
//! The runtime holds each part by its lock. A checker has all of them in one value ([`super::Node`]). Both carry out here what
//! the objects, the heap and the membership decide.
//!
//! Promises: what a part decides is carried out in its order, while the part is held. A failure, and pages of a node that
//! has vanished, follow when the part is let go, because they need parts that must not be held with it. Under release
//! consistency, a lock's token leaves a node where that was foreseen ([`Sync::token_goes_to`]). It must never wait.

use super::{LeavingStep, Parts, Releases, hear, members_changed, take, take_due, with_token};
use crate::coherence;
use crate::heap::{self, Heap};
use crate::membership::{self, Membership};
use crate::page::{NodeId, PageIndex};
use crate::sync::{self, Subject, Sync, Waiter};
use crate::{Nanoseconds, wire};
use alloc::vec::Vec;
use core::ops::Range;

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

/// Carries out what the parts of a node decide, whichever of them is held.
pub trait Outlet {
    /// Why a step ends early: see [`super::Carrier::Breach`].
    type Breach;

    /// Sends a message. If it releases something, what its receiver may not know goes with it.
    ///
    /// # Errors
    ///
    /// All of these end the step of a checker.
    fn send(&mut self, to: NodeId, message: wire::Message) -> Result<(), Self::Breach>;

    /// The thread with this ticket goes on: its call is answered.
    fn wake(&mut self, waiter: Waiter, value: u64) -> Result<(), Self::Breach>;

    /// The thread with this ticket goes on: its call breaks a rule.
    fn refuse(&mut self, waiter: Waiter, why: &'static str) -> Result<(), Self::Breach>;

    /// The heap has answered the call with this ticket.
    fn answer(&mut self, waiter: Waiter, answer: heap::Answer) -> Result<(), Self::Breach>;

    /// The membership decided something that is not about messages and pages.
    fn note(&mut self, effect: membership::Effect) -> Result<(), Self::Breach>;

    /// No correct peer does `what`.
    fn breach(&mut self, by: NodeId, what: &'static str) -> Result<(), Self::Breach>;

    /// Whether the node heeds what the membership decided. A checker that breaks a rule passes over some.
    fn heeds(&mut self, _effect: membership::Effect) -> Result<bool, Self::Breach> {
        Ok(true)
    }
}

/// A part of a node that is held.
pub trait Holds<Part>: Outlet {
    /// The part.
    fn part(&mut self) -> &mut Part;

    /// The part took a fact, and what it decided is carried out.
    fn has_stepped(&mut self) {}
}

/// The objects, which are held.
pub trait HoldsObjects: Holds<Sync> {
    /// They take a fact. A checker that breaks a rule alters it, or what they decide.
    fn decide(&mut self, input: sync::Input, decided: &mut Vec<sync::Effect>) {
        self.part().step(input, decided);
    }
}

/// A node, of which no part is held. Each part is held alone, for as long as something is done with it.
pub trait Whole: Parts + Releases + Outlet<Breach = <Self as Parts>::Breach> {
    /// Locks, barriers and other objects, when they are held.
    type Objects: HoldsObjects + Outlet<Breach = <Self as Parts>::Breach>;
    /// The shared heap, when it is held.
    type Heap: Holds<Heap> + Outlet<Breach = <Self as Parts>::Breach>;
    /// The membership, when it is held. Shards may be held with it.
    type Members: Holds<Membership> + Outlet<Breach = <Self as Parts>::Breach> + Parts<Breach = <Self as Parts>::Breach>;

    /// Holds the objects.
    fn with_objects<R>(&mut self, act: impl FnOnce(&mut Self::Objects) -> R) -> R;

    /// Holds the heap.
    fn with_heap<R>(&mut self, act: impl FnOnce(&mut Self::Heap) -> R) -> R;

    /// Holds the membership.
    fn with_membership<R>(&mut self, act: impl FnOnce(&mut Self::Members) -> R) -> R;

    /// The time.
    fn now(&self) -> Nanoseconds;

    /// The node that takes over what a departed node leaves behind.
    fn coordinator(&mut self) -> NodeId;

    /// The bytes of a page.
    fn page_bytes(&self) -> usize;

    /// Whether some page is under release consistency.
    fn has_releases(&mut self) -> bool;

    /// Whether the protocols of pages are, or may be, others than at the start.
    fn has_changed_protocols(&mut self) -> bool;

    /// Whether stores may have to be looked for in this shard.
    fn is_watching(&mut self, shard: u32) -> bool;

    /// Passes to `found` those of `pages` that the kernel marked.
    fn stores_in(
        &mut self,
        pages: Range<u32>,
        found: impl FnMut(&mut Self, Range<u32>) -> Result<(), <Self as Parts>::Breach>,
    ) -> Result<(), <Self as Parts>::Breach>;

    /// Whether the node takes this fact. A checker that breaks a rule passes over some.
    fn takes(&mut self, _input: &Input) -> bool {
        true
    }

    /// Whether a checker leaves out this step of a node that leaves.
    fn skips(&self, _step: LeavingStep) -> bool {
        false
    }
}

/// The outcome of a decision.
pub(super) type Outcome<P> = Result<(), <P as Parts>::Breach>;

/// A part of the node takes one fact.
pub fn take_fact<W: Whole>(whole: &mut W, input: Input) -> Outcome<W> {
    if !whole.takes(&input) {
        return Ok(());
    }
    match input {
        Input::Page(page, input) => take(&mut whole.hold_of(page), input),
        Input::Due => {
            let now = whole.now();
            (0..whole.shards()).try_for_each(|shard| take_due(&mut whole.hold(shard), now))
        }
        Input::Sync(input) => {
            let has_releases = whole.has_releases();
            with_token(whole, &input, |objects| {
                let foreseen = has_releases.then(|| objects.part().token_goes_to(&input)).flatten();
                let sent = step_objects(objects, input)?;
                let goes_to = sent.token_to;
                assert!(
                    foreseen.is_none() || goes_to == foreseen,
                    "a token goes to {goes_to:?}, and not to {foreseen:?}: {input:?}"
                );
                Ok(())
            })?
        }
        Input::Heap(input) => whole.with_heap(|heap| step_heap(heap, input)),
        Input::Membership(input) => step_membership(whole, input),
    }
}

/// A message arrives that is not about pages, with what is attached to it. It is used when everything that it depends on is
/// known.
pub fn receive<W: Whole>(whole: &mut W, from: NodeId, message: wire::Message, knowledge: &[u8]) -> Outcome<W> {
    match whole.has_releases() && message.releases() {
        true => hear(whole, from, message, knowledge),
        false => use_message(whole, from, message),
    }
}

pub(super) fn use_message<W: Whole>(whole: &mut W, from: NodeId, message: wire::Message) -> Outcome<W> {
    let input = match message {
        wire::Message::Sync(message) => Input::Sync(sync::Input::Message(from, message)),
        wire::Message::Heap(message) => Input::Heap(heap::Input::Message(from, message)),
        wire::Message::Membership(message) => Input::Membership(membership::Input::Message(from, message)),
        wire::Message::Coherence(_) => unreachable!("its shard takes it"),
    };
    take_fact(whole, input)
}

/// The messages of a step of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// There was one.
    pub any: bool,
    /// The node to which the token of a lock was given.
    pub token_to: Option<NodeId>,
}

/// The objects, which are held, take a fact.
pub fn step_objects<O: HoldsObjects>(objects: &mut O, input: sync::Input) -> Result<Sent, O::Breach> {
    decide_objects(objects, |objects, decided| objects.decide(input, decided))
}

/// The objects, which are held, ask `peers` about one of them ([`Sync::inquire`]).
pub fn inquire<O: Holds<Sync>>(
    objects: &mut O,
    subject: Subject,
    peers: impl Iterator<Item = NodeId>,
    waiter: Waiter,
) -> Result<(), O::Breach> {
    let ask = |objects: &mut O, decided: &mut Vec<_>| objects.part().inquire(subject, peers, waiter, decided);
    decide_objects(objects, ask).map(drop)
}

fn decide_objects<O: Holds<Sync>>(
    objects: &mut O,
    decide: impl FnOnce(&mut O, &mut Vec<sync::Effect>),
) -> Result<Sent, O::Breach> {
    let mut decided = objects.part().take_room();
    decide(objects, &mut decided);
    let mut sent = Sent::default();
    for effect in decided.drain(..) {
        match effect {
            sync::Effect::Send(to, message) => {
                sent.any = true;
                if matches!(message, sync::Message::LockToken(_)) {
                    sent.token_to = Some(to);
                }
                objects.send(to, wire::Message::Sync(message))?;
            }
            sync::Effect::Wake(waiter, value) => objects.wake(waiter, value)?,
            sync::Effect::Refused(waiter, why) => objects.refuse(waiter, why)?,
            sync::Effect::Violation(from, what) => objects.breach(from, what)?,
        }
    }
    objects.part().give_room(decided);
    objects.has_stepped();
    Ok(sent)
}

/// The heap, which is held, takes a fact.
pub fn step_heap<H: Holds<Heap>>(heap: &mut H, input: heap::Input) -> Result<(), H::Breach> {
    let mut decided = heap.part().take_room();
    heap.part().step(input, &mut decided);
    for effect in decided.drain(..) {
        match effect {
            heap::Effect::Send(to, message) => heap.send(to, wire::Message::Heap(message))?,
            heap::Effect::Done(waiter, answer) => heap.answer(waiter, answer)?,
            heap::Effect::Violation(from, what) => heap.breach(from, what)?,
        }
    }
    heap.part().give_room(decided);
    Ok(())
}

fn step_membership<W: Whole>(whole: &mut W, input: membership::Input) -> Outcome<W> {
    use membership::Effect;
    let (now, coordinator) = (whole.now(), whole.coordinator());
    let later = whole.with_membership(|members| {
        let (mut decided, mut later) = (Vec::new(), Vec::new());
        members.part().step(now, input, &mut decided);
        for effect in decided {
            if !members.heeds(effect)? {
                continue;
            }
            match effect {
                Effect::Send(to, message) => members.send(to, wire::Message::Membership(message))?,
                Effect::Came(_) | Effect::Absent(_) | Effect::Departs(_) => {
                    members_changed(members, effect, coordinator)?;
                }
                Effect::Joined | Effect::HandOver | Effect::TakeOver(_) | Effect::AllLeft => members.note(effect)?,
                _ => later.push(effect),
            }
        }
        Ok(later)
    })?;
    later.into_iter().try_for_each(|effect| match effect {
        Effect::Vanished(_) => members_changed(whole, effect, coordinator),
        Effect::Violation(from, what) => whole.breach(from, what),
        _ => whole.note(effect),
    })
}
