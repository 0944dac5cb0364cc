//! Mutants of locks, barriers, words, and objects at their home.
//!
//! Promises: with [`SyncFault::None`] it behaves exactly like the protocol. It must never use more of it than its inputs
//! and effects.

use crate::release::node::NAME_NEXT_SHIFT;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{
    ConditionDemand, Contribution, Demand, Effect, EventDemand, Input, Message, OnceDemand, Outcome, ReadWriteDemand,
    SemaphoreDemand, Sync, Waiter,
};

const END_READ: Demand = Demand::ReadWriteLock(ReadWriteDemand::EndRead);
const END_WRITE: Demand = Demand::ReadWriteLock(ReadWriteDemand::EndWrite);
const WAIT: Demand = Demand::Condition(ConditionDemand::Wait);

/// The faults; the table in the parent module describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum SyncFault {
    None,
    TokenTwice,
    NoForward,
    Misroutes,
    ReleasesEarly,
    ForgetsChild,
    AddsTwice,
    NoReply,
    BusyForgets,
    SumForgetsChild,
    OpenedIsLost,
    WriterAmongReaders,
    ReadEndsTwice,
    WriteNeverEnds,
    GrantIsKept,
    AbandonedInSilence,
    ReleasesTwice,
    ReleaseLostWithWaiter,
    WakesOne,
    NeverClears,
    DoesTwice,
    FailureIsDone,
    NotifiesAll,
    NotificationLostWithWaiter,
    NotificationForLatecomer,
    EnrolsLate,
    OpensOneEarly,
    AnswersTwice,
}

/// One fault of the real synchronisation, and what it remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SyncMutant {
    me: NodeId,
    last: NodeId,
    fault: SyncFault,
    /// Generations in which the last child was assumed to have arrived.
    anticipated: Vec<u32>,
    /// A received input that is processed later.
    held_back: Option<Input>,
}

impl SyncMutant {
    /// Node `me` of `nodes` with `fault`.
    pub fn new(me: NodeId, nodes: u16, fault: SyncFault) -> SyncMutant {
        SyncMutant { me, last: NodeId(nodes - 1), fault, anticipated: Vec::new(), held_back: None }
    }

    fn is_anticipated(&mut self, input: Input) -> bool {
        let Input::Message(from, Message::BarrierArrive(_, generation, _)) = input else {
            return false;
        };
        let index = self.anticipated.iter().position(|&other| other == generation);
        if from != self.last {
            return false;
        }
        index.map(|index| self.anticipated.remove(index)).is_some()
    }
}

impl SyncMutant {
    /// Has `inner`, which is always the same, take a fact.
    pub(crate) fn step(&mut self, inner: &mut Sync, input: Input, effects: &mut Vec<Effect>) {
        if self.is_anticipated(input) {
            return;
        }
        let late = self.held_back.take();
        let Some(input) = self.heard(inner, input, effects) else { return };
        let before = inner.clone();
        let start = effects.len();
        inner.step(input, effects);
        if let Some(late) = late {
            inner.step(late, effects);
        }
        let hands_over = effects[start..].iter().any(|effect| matches!(effect, Effect::Send(_, Message::LockToken(_))));
        match self.fault {
            SyncFault::TokenTwice if hands_over && !matches!(input, Input::Release(_)) => {
                *inner = before;
            }
            SyncFault::NoForward => {
                effects.retain(|effect| !matches!(effect, Effect::Send(_, Message::LockForward(..))))
            }
            SyncFault::Misroutes => {
                for effect in &mut effects[start..] {
                    if let Effect::Send(to, Message::LockForward(_, next, _)) = effect {
                        let other = NodeId((next.0 + 1) % (self.last.0 + 1));
                        *next = if other == *to { *next } else { other };
                    }
                }
            }
            SyncFault::ReleasesEarly if matches!(input, Input::Arrive(..)) && self.me.0 == 0 => {
                let Input::Arrive(id, own, waiter) = input else { unreachable!("just matched") };
                let generation = waiter >> NAME_NEXT_SHIFT;
                self.anticipated.push(generation);
                let arrival = Input::Message(self.last, Message::BarrierArrive(id, generation, own));
                inner.step(arrival, effects);
            }
            SyncFault::ForgetsChild => {
                let last = self.last;
                effects
                    .retain(|effect| !matches!(effect, Effect::Send(to, Message::BarrierRelease(..)) if *to == last));
            }
            SyncFault::AddsTwice if matches!(input, Input::Message(_, Message::AtomicRequest(..))) => {
                inner.step(input, &mut Vec::new());
            }
            SyncFault::BusyForgets if busy_follows(&effects[start..]) => *inner = before,
            SyncFault::OpenedIsLost => lose_opened(inner, input, start, effects),
            SyncFault::GrantIsKept => {
                effects.retain(|effect| !matches!(effect, Effect::Send(_, Message::ObjectUndo(..))));
            }
            SyncFault::AbandonedInSilence => {
                effects.retain(|effect| !matches!(effect, Effect::Send(_, Message::ObjectAbandon(..))));
            }
            SyncFault::WakesOne if is_demand(input, Demand::Event(EventDemand::Set)) => {
                keep_first_answer(start, effects);
            }
            SyncFault::AnswersTwice => {
                let twice = effects[start..].iter().find(|effect| is_answer(effect)).copied();
                effects.extend(twice);
            }
            SyncFault::NoReply => effects.retain(|effect| !matches!(effect, Effect::Send(_, Message::AtomicReply(..)))),
            _ => {}
        }
    }
}

impl SyncMutant {
    /// The input that the protocol receives instead; `None` if it receives none now.
    fn heard(&mut self, inner: &mut Sync, input: Input, effects: &mut Vec<Effect>) -> Option<Input> {
        let is_sent = matches!(input, Input::Message(..));
        let replaced = |of: Demand| match (self.fault, of) {
            (SyncFault::WriterAmongReaders, Demand::ReadWriteLock(demand)) if is_sent => {
                Demand::ReadWriteLock(match demand {
                    ReadWriteDemand::Write => ReadWriteDemand::Read,
                    ReadWriteDemand::EndWrite => ReadWriteDemand::EndRead,
                    other => other,
                })
            }
            (SyncFault::ReleasesTwice, Demand::Semaphore(SemaphoreDemand::Release(1))) => {
                Demand::Semaphore(SemaphoreDemand::Release(2))
            }
            (SyncFault::NeverClears, Demand::Event(EventDemand::Clear)) => Demand::Event(EventDemand::IsSet),
            (SyncFault::FailureIsDone, Demand::Once(OnceDemand::Failed)) => Demand::Once(OnceDemand::Done),
            (SyncFault::NotifiesAll, Demand::Condition(ConditionDemand::NotifyOne)) => {
                Demand::Condition(ConditionDemand::NotifyAll)
            }
            (SyncFault::OpensOneEarly, Demand::CountingBarrier(count)) => Demand::CountingBarrier(count - 1),
            (_, same) => same,
        };
        match (self.fault, input) {
            (SyncFault::WriteNeverEnds, Input::Message(_, Message::ObjectRequest(_, END_WRITE, _))) => return None,
            (SyncFault::ReadEndsTwice, Input::Message(_, Message::ObjectRequest(_, END_READ, _))) => {
                inner.step(input, effects);
            }
            (SyncFault::DoesTwice, Input::Message(from, Message::ObjectReply(id, waiter, Outcome::Done(0)))) => {
                return Some(Input::Message(from, Message::ObjectReply(id, waiter, Outcome::Done(1))));
            }
            (SyncFault::SumForgetsChild, Input::Message(from, Message::BarrierArrive(id, generation, brought)))
                if from == self.last =>
            {
                let Contribution::Value(reduction, _) = brought else { return Some(input) };
                let nothing = Contribution::Value(reduction, 0);
                return Some(Input::Message(from, Message::BarrierArrive(id, generation, nothing)));
            }
            (
                SyncFault::ReleaseLostWithWaiter | SyncFault::NotificationLostWithWaiter,
                Input::Message(from, Message::ObjectUndo(id, demand, waiter, _)),
            ) => return Some(Input::Message(from, Message::ObjectUndo(id, demand, waiter, 0))),
            (SyncFault::NotificationForLatecomer, Input::Message(from, Message::ObjectUndo(id, demand, waiter, _))) => {
                return Some(Input::Message(from, Message::ObjectUndo(id, demand, waiter, u64::MAX)));
            }
            (SyncFault::EnrolsLate, Input::Message(from, Message::ObjectRequest(id, WAIT, waiter))) => {
                effects.push(Effect::Send(from, Message::ObjectReply(id, waiter, Outcome::Enrolled)));
                self.held_back = Some(input);
                return None;
            }
            _ => {}
        }
        Some(match input {
            Input::Message(from, Message::ObjectRequest(id, demand, waiter)) => {
                Input::Message(from, Message::ObjectRequest(id, replaced(demand), waiter))
            }
            // A call of the home's own program is not sent as a message.
            Input::Demand(id, demand, waiter) if id % u64::from(self.last.0 + 1) == u64::from(self.me.0) => {
                Input::Demand(id, replaced(demand), waiter)
            }
            other => other,
        })
    }
}

/// Forgets a barrier that opens for an abandoned call, so the next call enters it again.
fn lose_opened(inner: &mut Sync, input: Input, start: usize, effects: &[Effect]) {
    let Input::Message(_, Message::BarrierRelease(id, ..)) = input else { return };
    let woken = effects[start..].iter().any(|effect| matches!(effect, Effect::Wake(..)));
    if !woken {
        inner.step(Input::Arrive(id, Contribution::Nothing, Waiter::MAX), &mut Vec::new());
    }
}

fn busy_follows(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Send(_, Message::LockBusy(_))))
}

fn is_demand(input: Input, demand: Demand) -> bool {
    match input {
        Input::Demand(_, other, _) | Input::Message(_, Message::ObjectRequest(_, other, _)) => other == demand,
        _ => false,
    }
}

/// Whether the effect is the answer to a call for an object.
fn is_answer(effect: &Effect) -> bool {
    matches!(effect, Effect::Send(_, Message::ObjectReply(_, _, Outcome::Done(_))))
}

/// Keeps the first of the answers to waiting calls, and the last answer, which is for the caller that woke them.
fn keep_first_answer(start: usize, effects: &mut Vec<Effect>) {
    if effects.len() > start + 2 {
        let last = effects.len() - 1;
        effects.drain(start + 1..last);
    }
}
