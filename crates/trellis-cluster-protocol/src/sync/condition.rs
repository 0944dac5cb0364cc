//! Condition variables: a waiting call is woken by a notification that was given while it waited, and by nothing else.
//! A wake-up, which has no answer, is given when it arrives.
//!
//! A wait is enrolled here before its lock is released, so no notification that is given under the lock is missed. A
//! notification of one wakes the call that has waited longest. If it was on its way to a call which was abandoned, it goes
//! to the next call that was enrolled when it was given. It must never go to a call that came later, for which it would be
//! a spurious wake-up. The number of enrolments at the time of the notification, which travels with it, tells them apart.

use super::objects::{Answer, Caller, HomeObject, Outcome};
use crate::page::NodeId;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The demands on a condition variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionDemand {
    /// Wait for a notification. Enrolled at once; answered when notified, with a mark that the condition chose.
    Wait,
    /// Wake the call that has waited longest. Answered with the number of calls that were woken.
    NotifyOne,
    /// Wake all calls. Answered with the number of calls that were woken.
    NotifyAll,
    /// As [`ConditionDemand::NotifyOne`], without an answer.
    WakeOne,
    /// As [`ConditionDemand::NotifyAll`], without an answer.
    WakeAll,
}

impl ConditionDemand {
    /// Whether no answer is given.
    pub(super) fn is_silent(self) -> bool {
        matches!(self, ConditionDemand::WakeOne | ConditionDemand::WakeAll)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Condition {
    /// The waiting calls, each with the number of its enrolment.
    queue: VecDeque<(Caller, u64)>,
}

impl HomeObject for Condition {
    type Demand = ConditionDemand;

    fn demand(&mut self, caller: Caller, demand: ConditionDemand, numbers: &mut u64, answers: &mut Vec<Answer>) {
        match demand {
            ConditionDemand::Wait => {
                self.queue.push_back((caller, *numbers));
                *numbers += 1;
                answers.push(Answer::To(caller, Outcome::Enrolled));
            }
            ConditionDemand::NotifyOne
            | ConditionDemand::NotifyAll
            | ConditionDemand::WakeOne
            | ConditionDemand::WakeAll => {
                let is_for_one = matches!(demand, ConditionDemand::NotifyOne | ConditionDemand::WakeOne);
                let count = if is_for_one { self.queue.len().min(1) } else { self.queue.len() };
                for (waiting, _) in self.queue.drain(..count) {
                    answers.push(Answer::To(waiting, Outcome::Done(*numbers)));
                }
                if !demand.is_silent() {
                    answers.push(Answer::To(caller, Outcome::Done(count as u64)));
                }
            }
        }
    }

    fn forget(&mut self, caller: Caller, _: &mut Vec<Answer>) -> bool {
        let before = self.queue.len();
        self.queue.retain(|(other, _)| *other != caller);
        self.queue.len() < before
    }

    fn undo(&mut self, _: NodeId, demand: ConditionDemand, value: u64, answers: &mut Vec<Answer>) {
        if demand != ConditionDemand::Wait {
            return;
        }
        if let Some(&(next, number)) = self.queue.front()
            && number < value
        {
            self.queue.pop_front();
            answers.push(Answer::To(next, Outcome::Done(value)));
        }
    }
}
