//! Event flags: all waiting calls go on when the flag is set, and no call waits while it is set.

use super::objects::{Answer, Caller, HomeObject, Outcome};
use crate::page::NodeId;
use alloc::vec::Vec;

/// The demands on an event flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventDemand {
    /// Set it; all waiting calls go on. Answered with 0 when done.
    Set,
    /// Clear it; later calls wait. Answered with 0 when done.
    Clear,
    /// Go on when it is set. Answered with 1.
    Wait,
    /// Read whether it is set. Answered with 1 if it is.
    IsSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Event {
    is_set: bool,
    waiting: Vec<Caller>,
}

impl HomeObject for Event {
    type Demand = EventDemand;

    fn demand(&mut self, caller: Caller, demand: EventDemand, _: &mut u64, answers: &mut Vec<Answer>) {
        debug_assert!(!self.is_set || self.waiting.is_empty(), "nobody waits while it is set");
        let answer = match demand {
            EventDemand::Wait if !self.is_set => return self.waiting.push(caller),
            EventDemand::Set => {
                self.is_set = true;
                answers.extend(self.waiting.drain(..).map(|waiting| Answer::To(waiting, Outcome::Done(1))));
                0
            }
            EventDemand::Clear => {
                self.is_set = false;
                0
            }
            EventDemand::Wait | EventDemand::IsSet => u64::from(self.is_set),
        };
        answers.push(Answer::To(caller, Outcome::Done(answer)));
    }

    fn forget(&mut self, caller: Caller, _: &mut Vec<Answer>) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|other| *other != caller);
        self.waiting.len() < before
    }

    /// A wait that went on took nothing, so there is nothing to undo.
    fn undo(&mut self, _: NodeId, _: EventDemand, _: u64, _: &mut Vec<Answer>) {}
}
