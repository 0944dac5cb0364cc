//! Event flags: who waits goes on when the flag is set, all together, and nobody waits while it is.

use super::objects::{Answer, Caller, Kept, Outcome};
use crate::page::NodeId;
use alloc::vec::Vec;

/// What is demanded of an event flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventDemand {
    /// To set it; everybody who waits goes on. Answered with 0 when done.
    Set,
    /// To clear it; who comes from now on waits. Answered with 0 when done.
    Clear,
    /// To go on when it is set. Answered with 1.
    Wait,
    /// To know whether it is set. Answered with 1 if it is.
    IsSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Event {
    is_set: bool,
    waiting: Vec<Caller>,
}

impl Kept for Event {
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

    /// To have gone on takes nothing from anybody.
    fn undo(&mut self, _: NodeId, _: EventDemand, _: u64, _: &mut Vec<Answer>) {}
}
