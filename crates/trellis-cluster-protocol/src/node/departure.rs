//! A node leaves, and the parts of every other node hear that it came or left.
//!
//! Promises: a node that leaves carries out [`LeavingStep::ALL`] in order, and goes on when the step before is over. Before a
//! node is told that another one departs, nothing for that one is held back. It must never wait: its thread does.

use super::{Carrier, Holds, Input as Fact, LeavingStep, Parts, Whole, left_behind, take, take_due, take_fact};
use crate::Nanoseconds;
use crate::coherence::{Input, Purpose};
use crate::membership;
use crate::page::{NodeId, PageIndex, runs};
use crate::sync::{self, Waiter};

/// A reason for which the thread of a node that leaves waits before it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Something that other nodes do.
    Others,
    /// A change of this page ([`Carrier::wait_for`]).
    Page(PageIndex),
    /// The time at which an alarm goes off.
    Time(Nanoseconds),
}

/// A node that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leaving {
    /// The pages of the region.
    pages: u32,
    /// The place of its step in [`LeavingStep::ALL`].
    place: usize,
}

impl Leaving {
    /// It begins to leave.
    pub fn new(pages: u32) -> Leaving {
        Leaving { pages, place: 0 }
    }

    /// Goes on as far as it can. Returns what it waits for; `None` when nothing is left to do. `waiter` is its thread.
    pub fn go_on<P: Whole>(
        &mut self,
        parts: &mut P,
        now: Nanoseconds,
        waiter: Waiter,
    ) -> Result<Option<Awaited>, <P as Parts>::Breach> {
        while let Some(&step) = LeavingStep::ALL.get(self.place) {
            if !parts.skips(step)
                && let Some(awaited) = self.carry_out(parts, step, now, waiter)?
            {
                return Ok(Some(awaited));
            }
            self.place += 1;
        }
        Ok(None)
    }

    fn carry_out<P: Whole>(
        &self,
        parts: &mut P,
        step: LeavingStep,
        now: Nanoseconds,
        waiter: Waiter,
    ) -> Result<Option<Awaited>, <P as Parts>::Breach> {
        // When every other node has said farewell, nobody is left for whom it could wait.
        let is_alone = Leaving::has_come(parts, LeavingStep::AwaitFarewells);
        match step {
            LeavingStep::Announce => {
                take_fact(parts, Fact::Sync(sync::Input::Depart))?;
                take_fact(parts, Fact::Membership(membership::Input::Leave))?;
            }
            LeavingStep::AwaitTurn | LeavingStep::AwaitSynchronisation | LeavingStep::AwaitFarewells => {
                return Ok((!is_alone && !Leaving::has_come(parts, step)).then_some(Awaited::Others));
            }
            LeavingStep::AnswerDeferred => answer_deferred(parts)?,
            LeavingStep::AwaitRequests if is_alone => {}
            LeavingStep::AwaitRequests => {
                for run in runs(0..self.pages) {
                    let mut held = parts.hold_of(run.first());
                    if let Some(page) = held.shard().unsettled(run) {
                        held.wait_for(page, waiter);
                        return Ok(Some(Awaited::Page(page)));
                    }
                }
            }
            LeavingStep::NamePages => self.name_pages(parts)?,
            LeavingStep::AnswerHeld => return Ok(answer_held(parts, now)?.map(Awaited::Time)),
        }
        Ok(None)
    }

    /// Whether a step is over that waits for other nodes.
    fn has_come<P: Whole>(parts: &mut P, step: LeavingStep) -> bool {
        match step {
            LeavingStep::AwaitTurn => parts.with_membership(|members| members.part().may_hand_over()),
            LeavingStep::AwaitSynchronisation => parts.with_objects(|objects| objects.part().is_clear()),
            _ => parts.with_membership(|members| members.part().has_finished()),
        }
    }

    fn name_pages<P: Whole>(&self, parts: &mut P) -> Result<(), <P as Parts>::Breach> {
        for run in runs(0..self.pages) {
            let mut next = run.first().0;
            while let Some(behind) = { left_behind(&parts.hold_of(run.first()).shard().protocol, run, next) } {
                next = behind.end();
                take_fact(parts, Fact::Membership(membership::Input::Behind(behind)))?;
            }
        }
        take_fact(parts, Fact::Membership(membership::Input::HandedOver))
    }
}

/// Answers the nodes that were told to ask again ([`super::Departures::take_deferred`]).
pub fn answer_deferred<P: Parts>(parts: &mut P) -> Result<(), P::Breach> {
    for number in 0..parts.shards() {
        let mut held = parts.hold(number);
        for input in held.shard().departures.take_deferred() {
            take(&mut held, input)?;
        }
    }
    Ok(())
}

/// Handles the messages that were held back here: no message arrives after the last farewell, and no node may be left waiting
/// for an answer. Returns when the next alarm that holds back an answer goes off.
pub fn answer_held<P: Parts>(parts: &mut P, now: Nanoseconds) -> Result<Option<Nanoseconds>, P::Breach> {
    let mut next = None;
    for number in 0..parts.shards() {
        let mut held = parts.hold(number);
        take_due(&mut held, now)?;
        while let Some(input) = held.shard().timers.pop_held() {
            take(&mut held, input)?;
        }
        next = next.into_iter().chain(held.shard().timers.next_alarm(Purpose::Threshold)).min();
    }
    Ok(next)
}

/// Applies an effect of the membership to the pages. `coordinator` takes over what a node leaves behind. After
/// [`membership::Effect::Departs`] nothing more is sent to the node.
pub fn members_changed<P: Parts>(
    parts: &mut P,
    effect: membership::Effect,
    coordinator: NodeId,
) -> Result<(), P::Breach> {
    for number in 0..parts.shards() {
        let mut held = parts.hold(number);
        match effect {
            membership::Effect::Came(node) => held.shard().departures.come(node),
            membership::Effect::Absent(node) | membership::Effect::Departs(node) => {
                held.shard().departures.depart(node);
            }
            membership::Effect::Vanished(node) => take(&mut held, Input::Gone { node, successor: coordinator })?,
            _ => {}
        }
    }
    Ok(())
}
