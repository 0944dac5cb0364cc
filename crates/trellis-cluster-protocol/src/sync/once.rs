//! Once objects: work that is done once in a cluster. The first caller does it, and the others wait until it is done.
//!
//! If it fails, the next waiting caller does it. Once it is done, it stays done.

use super::objects::{Answer, Caller, HomeObject, Outcome};
use crate::page::NodeId;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The demands on a once object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnceDemand {
    /// Wait until the work is done. Answered with 0 when it is, or with 1: do it yourself, then report `Done` or `Failed`.
    Begin,
    /// The work is done. Answered with 0.
    Done,
    /// The work could not be done. Answered with 0.
    Failed,
    /// Read whether the work is done. Answered with 1 if it is.
    IsDone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    #[default]
    Fresh,
    Running(NodeId),
    Done,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Once {
    state: State,
    queue: VecDeque<Caller>,
}

impl HomeObject for Once {
    type Demand = OnceDemand;

    fn demand(&mut self, caller: Caller, demand: OnceDemand, _: &mut u64, answers: &mut Vec<Answer>) {
        let answer = match (demand, self.state) {
            (OnceDemand::Begin, State::Running(_)) => return self.queue.push_back(caller),
            (OnceDemand::Begin, State::Fresh) => {
                self.state = State::Running(caller.node);
                1
            }
            (OnceDemand::Begin, State::Done) => 0,
            (OnceDemand::Done, State::Running(node)) if node == caller.node => {
                self.state = State::Done;
                answers.extend(self.queue.drain(..).map(|waiting| Answer::To(waiting, Outcome::Done(0))));
                0
            }
            (OnceDemand::Failed, State::Running(node)) if node == caller.node => {
                self.pass_on(answers);
                0
            }
            (OnceDemand::Done | OnceDemand::Failed, _) => {
                return answers.push(Answer::Wrong("the end of what it does not do"));
            }
            (OnceDemand::IsDone, state) => u64::from(state == State::Done),
        };
        answers.push(Answer::To(caller, Outcome::Done(answer)));
    }

    fn forget(&mut self, caller: Caller, _: &mut Vec<Answer>) -> bool {
        let before = self.queue.len();
        self.queue.retain(|other| *other != caller);
        self.queue.len() < before
    }

    fn undo(&mut self, node: NodeId, demand: OnceDemand, value: u64, answers: &mut Vec<Answer>) {
        if demand != OnceDemand::Begin || value == 0 {
            return;
        }
        if self.state == State::Running(node) {
            self.pass_on(answers);
        } else {
            answers.push(Answer::Wrong("an undoing of what it does not do"));
        }
    }
}

impl Once {
    fn pass_on(&mut self, answers: &mut Vec<Answer>) {
        self.state = match self.queue.pop_front() {
            Some(next) => {
                answers.push(Answer::To(next, Outcome::Done(1)));
                State::Running(next.node)
            }
            None => State::Fresh,
        };
    }
}
