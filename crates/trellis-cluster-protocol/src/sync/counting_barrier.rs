//! Counting barriers: open when as many calls have arrived as each of them says, from whatever nodes.
//!
//! Several threads of a node may arrive, also on nodes that joined later, and some nodes may not take part at all. All
//! messages go to one home; if one thread of every node meets, the tree of [`super::barrier`] spreads them. An arrival
//! stands even after its deadline: the caller's side lets the next call of that node continue the wait.

use super::objects::{Answer, Caller, HomeObject, Outcome, Refusal};
use crate::page::NodeId;
use alloc::vec::Vec;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CountingBarrier {
    participants: u32,
    arrived: Vec<Caller>,
}

impl HomeObject for CountingBarrier {
    type Demand = u32;

    fn demand(&mut self, caller: Caller, participants: u32, _: &mut u64, answers: &mut Vec<Answer>) {
        let agrees = self.arrived.is_empty() || participants == self.participants;
        if participants == 0 || !agrees {
            return answers.push(Answer::To(caller, Outcome::Refused(Refusal::Participants)));
        }
        self.arrived.push(caller);
        if (self.arrived.len() as u64) < u64::from(participants) {
            self.participants = participants;
            return;
        }
        self.participants = 0;
        for arrived in self.arrived.drain(..) {
            answers.push(Answer::To(arrived, Outcome::Done(u64::from(arrived == caller))));
        }
    }

    fn forget(&mut self, _: Caller, _: &mut Vec<Answer>) -> bool {
        false
    }

    fn undo(&mut self, _: NodeId, _: u32, _: u64, _: &mut Vec<Answer>) {}
}
