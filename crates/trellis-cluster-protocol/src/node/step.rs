//! A step of a shard: a fact goes in, and what follows from it is carried out.
//!
//! Promises: effects are carried out in the order in which the protocol decided them, while the shard is held. What the
//! shard itself concludes follows in the same step: changes of pages that were inspected, and the answers of departed nodes.
//! It must never step another shard. The room for effects is kept, so that a step allocates only when it needs more.

use super::{Order, Resumes, Shard};
use crate::Nanoseconds;
use crate::coherence::{Coherence, Effect, Input, Message, Protocol};
use crate::page::{CHUNK_PAGES, NodeId, PageIndex, PageRange};
use crate::sync::Waiter;
use alloc::vec::Vec;

/// Holds a shard, and carries out what it orders.
pub trait Carrier {
    /// The protocol of its pages.
    type Protocol: Coherence;
    /// The diffs, or the bytes of a page, that came with a message. By default nothing.
    type Attached: Copy + Default;
    /// Why a step ends early: the error of everything here. A checker ends a step that breaks a rule; a runtime ends none.
    type Breach;

    /// The shard.
    fn shard(&mut self) -> &mut Shard<Self::Protocol>;

    /// Lets the protocol decide about `input`.
    fn decide(&mut self, input: Input, effects: &mut Vec<Effect>);

    /// What the shard orders for an effect ([`Shard::order`]).
    fn order(&mut self, effect: Effect) -> Order;

    /// Carries out an order.
    fn carry_out(&mut self, order: Order, attached: Self::Attached) -> Result<(), Self::Breach>;

    /// Sends a message with the same diffs to one node or to several.
    fn send_diffs(
        &mut self,
        message: Message,
        to: impl Iterator<Item = NodeId>,
        attached: Self::Attached,
    ) -> Result<(), Self::Breach>;

    /// All effects of a decision are carried out.
    ///
    /// # Errors
    ///
    /// The pages are not what the protocol takes them for.
    fn has_carried_out(&mut self, _effects: &[Effect]) -> Result<(), Self::Breach> {
        Ok(())
    }

    /// Under release consistency: passes to [`Shard::look_for_stores`] how pages are compared and protected.
    fn look_for_stores(&mut self, _stored: &mut Vec<PageIndex>) -> Result<(), Self::Breach> {
        Ok(())
    }

    /// Under release consistency: the shard owes so many answers to a publication from now on ([`super::Consistency::owes`]).
    fn owes(&mut self, _answers: u32) {}

    /// This thread is woken when something about `page` has changed. A thread that looks again by itself needs no wake.
    fn wait_for(&mut self, _page: PageIndex, _waiter: Waiter) {}

    /// Whether the protocols of pages are, or may be, others than at the start ([`super::Whole::has_changed_protocols`]).
    fn has_changed_protocols(&self) -> bool {
        false
    }

    /// The pages of `run` have this protocol from now on ([`Shard::change`]).
    fn has_changed(&mut self, _run: PageRange, _protocol: Protocol) {}
}

/// A node with several shards. Each is held alone, for as long as something is done with it.
pub trait Parts {
    /// A shard that is held.
    type Held<'a>: Carrier<Breach = Self::Breach>
    where
        Self: 'a;
    /// See [`Carrier::Breach`].
    type Breach;

    /// The number of shards.
    fn shards(&self) -> u32;

    /// Holds a shard.
    fn hold(&mut self, shard: u32) -> Self::Held<'_>;

    /// Holds the shard of `page`.
    fn hold_of(&mut self, page: PageIndex) -> Self::Held<'_> {
        self.hold(page.0 / CHUNK_PAGES % self.shards())
    }
}

/// The shard takes one fact, with what came with it. Returns the number of messages that it sent.
#[inline]
pub fn step<C: Carrier>(carrier: &mut C, input: Input, attached: C::Attached) -> Result<u32, C::Breach> {
    if let Input::Message { message: Message::Piggybacked { .. }, .. } = input
        && carrier.has_changed_protocols()
    {
        // No node waited for such a page when all met to change protocols, so it may have the old protocol.
        return Ok(0);
    }
    let mut sent = step_once(carrier, input, attached)?;
    while let Some(input) = carrier.shard().next_conclusion() {
        sent += step_once(carrier, input, C::Attached::default())?;
    }
    Ok(sent)
}

/// The shard takes a fact with which nothing came.
pub fn take<C: Carrier>(carrier: &mut C, input: Input) -> Result<(), C::Breach> {
    step(carrier, input, C::Attached::default()).map(drop)
}

/// The shard takes everything whose time has come.
pub fn take_due<C: Carrier>(carrier: &mut C, now: Nanoseconds) -> Result<(), C::Breach> {
    while let Some(input) = carrier.shard().pop_due(now) {
        take(carrier, input)?;
    }
    Ok(())
}

/// A thread that was woken for `page` after a fault is about to retry ([`super::Timers::looks`]).
pub fn looks<C: Carrier>(carrier: &mut C, page: PageIndex, now: impl Fn() -> Nanoseconds) -> Result<(), C::Breach> {
    let resumes = carrier.shard().timers.looks(page, &now);
    resume(carrier, resumes, now)
}

/// A thread runs on that was woken for `page`, but not after a fault ([`super::Timers::runs_on`]).
pub fn runs_on<C: Carrier>(carrier: &mut C, page: PageIndex, now: impl Fn() -> Nanoseconds) -> Result<(), C::Breach> {
    let resumes = carrier.shard().timers.runs_on(page, &now);
    resume(carrier, resumes, now)
}

fn resume<C: Carrier>(
    carrier: &mut C,
    resumes: Option<Resumes>,
    now: impl Fn() -> Nanoseconds,
) -> Result<(), C::Breach> {
    match resumes {
        Some(Resumes::Now(input)) => take(carrier, input),
        Some(Resumes::At(due)) => carrier.carry_out(Order::WakeAt { now: now(), due }, C::Attached::default()),
        None => Ok(()),
    }
}

fn step_once<C: Carrier>(carrier: &mut C, input: Input, attached: C::Attached) -> Result<u32, C::Breach> {
    let mut effects = carrier.shard().take_room();
    carrier.decide(input, &mut effects);
    let (mut sent, mut index) = (0, 0);
    while index < effects.len() {
        let (effect, count) = joined(&effects[index..]);
        match effect {
            // Under release consistency no node leaves.
            Effect::Send { message, .. } if message.diffs().is_some() => {
                sent += count as u32;
                carrier.send_diffs(message, effects[index..index + count].iter().filter_map(receiver), attached)?;
            }
            _ => {
                sent += u32::from(receiver(&effect).is_some());
                let order = carrier.order(effect);
                carrier.carry_out(order, attached)?;
            }
        }
        index += count;
    }
    carrier.has_carried_out(&effects)?;
    carrier.shard().give_room(effects);
    Ok(sent)
}

/// Joins the first effects that can be carried out as one: the same effect on neighbouring runs of pages, or the same
/// diffs to several nodes. Returns also how many they are.
fn joined(effects: &[Effect]) -> (Effect, usize) {
    let first = effects[0];
    if let Effect::Send { message, .. } = first
        && message.diffs().is_some()
    {
        let same = |effect: &&Effect| matches!(effect, Effect::Send { message: other, .. } if *other == message);
        return (first, effects.iter().take_while(same).count());
    }
    let (mut whole, mut count) = (first, 1);
    for next in &effects[1..] {
        match join(whole, *next) {
            Some(both) => whole = both,
            None => break,
        }
        count += 1;
    }
    (whole, count)
}

fn join(one: Effect, next: Effect) -> Option<Effect> {
    let both = |one: PageRange, next: PageRange| {
        (one.end() == next.first().0).then(|| PageRange::new(one.first(), one.count() + next.count())).flatten()
    };
    Some(match (one, next) {
        (Effect::Revoke(one), Effect::Revoke(next)) => Effect::Revoke(both(one, next)?),
        (Effect::Downgrade(one), Effect::Downgrade(next)) => Effect::Downgrade(both(one, next)?),
        (Effect::KeepTwin(one), Effect::KeepTwin(next)) => Effect::KeepTwin(both(one, next)?),
        _ => return None,
    })
}

/// The node to which an effect sends a message.
fn receiver(effect: &Effect) -> Option<NodeId> {
    match effect {
        Effect::Send { to, .. } | Effect::SendTwins { to, .. } => Some(*to),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count).expect("pages of one chunk")
    }

    #[test]
    fn neighbouring_runs_are_joined_in_one_chunk() {
        let effects = [(3, 2), (5, 1), (6, 1), (8, 1)].map(|(first, count)| Effect::Revoke(run(first, count)));
        assert_eq!(joined(&effects), (Effect::Revoke(run(3, 4)), 3));
        let over_chunks = [run(CHUNK_PAGES - 1, 1), run(CHUNK_PAGES, 1)].map(Effect::Downgrade);
        assert_eq!(joined(&over_chunks), (over_chunks[0], 1));
        let of_two_kinds = [Effect::Revoke(run(3, 1)), Effect::Downgrade(run(4, 1))];
        assert_eq!(joined(&of_two_kinds), (of_two_kinds[0], 1));
    }
}
