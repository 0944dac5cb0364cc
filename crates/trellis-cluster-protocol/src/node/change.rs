//! One change of the protocol of pages, from the point of view of one node: either all nodes change, or none does.
//!
//! Every node makes the same call, and the nodes meet at five barriers. When a barrier is over, the following holds:
//!
//! 1. All nodes have come.
//! 2. Their pages are *frozen*, and each node that objects has said so.
//! 3. Nothing is under way.
//! 4. Every page is at its home.
//! 5. Every node has changed.
//!
//! A node that cannot wait any longer tries to *give up* for all nodes. One word decides whether that happened before all
//! nodes had met for the fourth time. If so, no node changes. Otherwise the node goes on like the others.
//!
//! Promises: if the change ends as [`Ending::Agreed`] at one node, it ends so at every other node, with the same number of
//! objections, or as [`Ending::Disagree`], after which the cluster must not go on. A node that gives up leaves no other
//! node waiting for it. Barriers and words of a change that was given up are never used again. It must never give an order
//! before the previous one has ended.

use crate::page::NodeId;
use crate::sync::Operation;
use core::ops::Range;

/// The barriers between the steps, in order.
const ARRIVED: u64 = 0;
const FROZEN: u64 = 1;
const SETTLED: u64 = 2;
const GATHERED: u64 = 3;
const CHANGED: u64 = 4;

/// The word that decides. It holds how many changes were agreed on, or that a node gave up.
const DECISION: u64 = 0;
/// The word that holds what the nodes are to change, for the duration of the change.
const PROPOSAL: u64 = 1;
/// The word that counts the nodes that object.
const OBJECTIONS: u64 = 2;

/// The mark in [`DECISION`] that a node gave up. It comes with the number of that node.
const GIVEN_UP: u64 = 1 << 63;

/// How many numbers one set of barriers takes. A change that was given up leaves barriers that not all nodes have left, so
/// later changes use another set.
const NUMBERS_PER_SET: u64 = 8;

/// How the changes of this node have ended so far. All nodes agree on it whenever they begin a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Changes {
    /// Changes that were given up.
    given_up: u64,
    /// Changes since then that were agreed on.
    agreed: u64,
}

/// What the node does next. Each order ends with the input that it names. An order that waits may end with
/// [`Input::TooLong`] instead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Arrive at this barrier of all nodes and wait in it: [`Input::Met`].
    Barrier(u64),
    /// Wait once more in this barrier, at which the node has arrived: [`Input::Met`].
    WaitAgain(u64),
    /// Apply the operation to this word: [`Input::Value`].
    Operate(u64, Operation),
    /// Freeze the pages: threads that need one wait, and nothing new is requested: [`Input::Frozen`].
    Freeze,
    /// Wait until no request of this node is under way, and close its copies: [`Input::Done`].
    Settle,
    /// Bring here the pages of which this node is the home: [`Input::Done`].
    Gather,
    /// Change this node's own protocol: [`Input::Done`].
    Change,
    /// Arrive at these barriers without waiting in any of them: [`Input::Done`].
    Pass(Range<u64>),
    /// The change is over; thaw the pages.
    End(Ending),
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// All nodes have arrived at the barrier.
    Met,
    /// The value of the word before the operation.
    Value(u64),
    /// The pages are frozen. The field says whether this node objects to the change.
    Frozen {
        /// For example because its program holds a lock of a page.
        objects: bool,
    },
    /// The order was carried out.
    Done,
    /// The time-out of the call is over.
    TooLong,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// All nodes agreed. If there are no objections, all nodes have changed, otherwise none.
    Agreed {
        /// The number of nodes that objected.
        objections: u64,
        /// This node was asked to make another change than some other node.
        differs: bool,
    },
    /// A node could not wait any longer, and no node has changed. It is this node, or the one that is named.
    GivenUp {
        /// The other node.
        by: Option<NodeId>,
    },
    /// It is not known whether other nodes have changed. This node must not go on.
    Disagree,
}

/// The purpose of the last order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Barrier(u64),
    LooksAtDecision(u64),
    Freezes,
    Proposes,
    Objects,
    CountsObjections,
    Settles,
    Gathers,
    /// All nodes have come for the fourth time: decide that no node can give up any more.
    Agrees,
    /// Not all nodes have come in time: give up, unless the opposite was already decided.
    Overrules,
    /// The opposite was decided: the news that all nodes have come is on its way.
    WaitsAgain,
    ForgetsProposal,
    ForgetsObjections,
    Changes,
    LastBarrier,
    GivesUp {
        by: Option<NodeId>,
    },
    Passes {
        by: Option<NodeId>,
    },
    Over,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    me: NodeId,
    /// The number of the first barrier and of the first word.
    first: u64,
    /// The value of [`DECISION`] until this change is decided. It is one more once all nodes have agreed.
    round: u64,
    /// What this node is to change, as a number; never zero.
    proposal: u64,
    /// The first barrier at which this node has not arrived.
    next: u64,
    step: Step,
    objects: bool,
    differs: bool,
    objections: u64,
}

impl Changes {
    /// Begins a change at node `me`. `proposal` is what to change, as a number that is not zero and that is the same at
    /// every node that was asked for the same change. Barriers and words have numbers from `first_number` to `u64::MAX`.
    /// Returns the change and its first order, or `None` if the numbers are used up.
    pub fn begin(&self, me: NodeId, proposal: u64, first_number: u64) -> Option<(Change, Order)> {
        let first = self.given_up.checked_mul(NUMBERS_PER_SET)?.checked_add(first_number)?;
        first.checked_add(NUMBERS_PER_SET)?;
        let mut change = Change {
            me,
            first,
            round: self.agreed,
            proposal,
            next: ARRIVED,
            step: Step::Over,
            objects: false,
            differs: false,
            objections: 0,
        };
        let order = change.barrier(ARRIVED);
        Some((change, order))
    }

    /// Notes how the most recent change ended.
    pub fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Agreed { .. } => self.agreed += 1,
            Ending::GivenUp { .. } => *self = Changes { given_up: self.given_up + 1, agreed: 0 },
            Ending::Disagree => {}
        }
    }
}

impl Change {
    /// Whether the node waits in the last barrier. It cannot give up there: other nodes may have changed.
    pub fn is_in_last_barrier(&self) -> bool {
        self.step == Step::LastBarrier
    }

    /// Whether the node has said that none of its requests is under way, and waits until all have.
    pub fn has_settled(&self) -> bool {
        self.step == Step::Barrier(SETTLED)
    }

    /// Takes how the last order ended, and returns the next order.
    ///
    /// # Panics
    ///
    /// If the order cannot end in this way.
    pub fn step(&mut self, input: Input) -> Order {
        match (self.step, input) {
            (Step::Barrier(GATHERED), Input::Met) => {
                let decision = self.round + 1;
                self.decide(Step::Agrees, decision)
            }
            (Step::Barrier(GATHERED), Input::TooLong) => {
                let decision = self.giving_up();
                self.decide(Step::Overrules, decision)
            }
            (Step::Barrier(barrier), Input::Met) => {
                self.operate(Step::LooksAtDecision(barrier), DECISION, Operation::Load)
            }
            (Step::LooksAtDecision(barrier), Input::Value(decision)) => match gave_up(decision) {
                Some(by) => self.give_up(Some(by)),
                None => self.after_barrier(barrier),
            },
            (Step::Freezes, Input::Frozen { objects }) => {
                self.objects = objects;
                self.operate(Step::Proposes, PROPOSAL, Operation::CompareExchange(0, self.proposal))
            }
            (Step::Proposes, Input::Value(before)) => {
                self.differs = before != 0 && before != self.proposal;
                match self.differs || self.objects {
                    true => self.operate(Step::Objects, OBJECTIONS, Operation::FetchAdd(1)),
                    false => self.barrier(FROZEN),
                }
            }
            (Step::Objects, Input::Value(_)) => self.barrier(FROZEN),
            (Step::CountsObjections, Input::Value(objections)) => {
                self.objections = objections;
                match objections {
                    // No node has locked any of these pages, and none can do so now: every request will be answered.
                    0 => self.order(Step::Settles, Order::Settle),
                    _ => self.barrier(GATHERED),
                }
            }
            (Step::Settles, Input::Done) => self.barrier(SETTLED),
            (Step::Gathers, Input::Done) => self.barrier(GATHERED),
            (Step::Agrees, Input::Value(before)) => match gave_up(before) {
                Some(by) => self.give_up(Some(by)),
                None => self.carry_out(),
            },
            (Step::Overrules, Input::Value(before)) if before == self.round + 1 => {
                self.order(Step::WaitsAgain, Order::WaitAgain(self.first + GATHERED))
            }
            (Step::Overrules, Input::Value(_)) => self.pass(None),
            (Step::WaitsAgain, Input::Met) => self.carry_out(),
            (Step::ForgetsProposal, Input::Value(_)) => {
                self.operate(Step::ForgetsObjections, OBJECTIONS, Operation::Exchange(0))
            }
            (Step::ForgetsObjections, Input::Value(_)) => self.change(),
            (Step::Changes, Input::Done) => self.meet_last(),
            (Step::LastBarrier, Input::Met) => {
                self.end(Ending::Agreed { objections: self.objections, differs: self.differs })
            }
            (Step::GivesUp { by }, Input::Value(_)) => self.pass(by),
            (Step::Passes { by }, Input::Done) => self.end(Ending::GivenUp { by }),
            (step, Input::TooLong) if step.can_be_given_up() => self.give_up(None),
            // It is not known what was decided, or whether other nodes have changed.
            (_, Input::TooLong) => self.end(Ending::Disagree),
            (step, input) => panic!("{step:?} cannot end with {input:?}"),
        }
    }

    fn after_barrier(&mut self, barrier: u64) -> Order {
        match barrier {
            ARRIVED => self.order(Step::Freezes, Order::Freeze),
            FROZEN => self.operate(Step::CountsObjections, OBJECTIONS, Operation::Load),
            _ => self.order(Step::Gathers, Order::Gather),
        }
    }

    fn order(&mut self, step: Step, order: Order) -> Order {
        self.step = step;
        order
    }

    fn barrier(&mut self, barrier: u64) -> Order {
        self.next = barrier + 1;
        self.order(Step::Barrier(barrier), Order::Barrier(self.first + barrier))
    }

    fn operate(&mut self, step: Step, word: u64, operation: Operation) -> Order {
        self.order(step, Order::Operate(self.first + word, operation))
    }

    /// The first node to decide does so for all.
    fn decide(&mut self, step: Step, decision: u64) -> Order {
        self.operate(step, DECISION, Operation::CompareExchange(self.round, decision))
    }

    fn giving_up(&self) -> u64 {
        GIVEN_UP | u64::from(self.me.0)
    }

    /// Makes all nodes give up.
    fn give_up(&mut self, by: Option<NodeId>) -> Order {
        match by {
            // It is already decided, by another node.
            Some(_) => self.pass(by),
            None => {
                let decision = self.giving_up();
                self.decide(Step::GivesUp { by }, decision)
            }
        }
    }

    /// Other nodes must not wait for this node, which will not come.
    fn pass(&mut self, by: Option<NodeId>) -> Order {
        let barriers = self.first + self.next..self.first + GATHERED + 1;
        self.next = CHANGED;
        self.order(Step::Passes { by }, Order::Pass(barriers))
    }

    /// It is decided that all nodes carry out the change.
    fn carry_out(&mut self) -> Order {
        match self.me.0 {
            0 => self.operate(Step::ForgetsProposal, PROPOSAL, Operation::Exchange(0)),
            _ => self.change(),
        }
    }

    fn change(&mut self) -> Order {
        match self.objections {
            0 => self.order(Step::Changes, Order::Change),
            _ => self.meet_last(),
        }
    }

    fn meet_last(&mut self) -> Order {
        self.next = CHANGED + 1;
        self.order(Step::LastBarrier, Order::Barrier(self.first + CHANGED))
    }

    fn end(&mut self, ending: Ending) -> Order {
        self.order(Step::Over, Order::End(ending))
    }
}

impl Step {
    /// Whether all nodes can still be made to give up: they have not all come for the fourth time.
    fn can_be_given_up(self) -> bool {
        match self {
            Step::Barrier(_)
            | Step::LooksAtDecision(_)
            | Step::Freezes
            | Step::Proposes
            | Step::Objects
            | Step::CountsObjections
            | Step::Settles
            | Step::Gathers => true,
            Step::Agrees
            | Step::Overrules
            | Step::WaitsAgain
            | Step::ForgetsProposal
            | Step::ForgetsObjections
            | Step::Changes
            | Step::LastBarrier
            | Step::GivesUp { .. }
            | Step::Passes { .. }
            | Step::Over => false,
        }
    }
}

/// The node that gave up, if the word names one.
fn gave_up(decision: u64) -> Option<NodeId> {
    (decision & GIVEN_UP != 0).then_some(NodeId((decision & !GIVEN_UP) as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 1000;

    fn begin(changes: &Changes, me: u16) -> Change {
        let (change, order) = changes.begin(NodeId(me), 7, FIRST).expect("there are numbers");
        assert_eq!(order, Order::Barrier(change.first + ARRIVED));
        change
    }

    /// Answers orders until one of them is `until`. No other change takes place in the cluster.
    fn go_on(change: &mut Change, mut order: Order, until: &Order) {
        while order != *until {
            let input = match order {
                Order::Barrier(_) | Order::WaitAgain(_) => Input::Met,
                Order::Operate(..) => Input::Value(0),
                Order::Freeze => Input::Frozen { objects: false },
                Order::Settle | Order::Gather | Order::Change | Order::Pass(_) => Input::Done,
                Order::End(ending) => panic!("it ended as {ending:?}"),
            };
            order = change.step(input);
        }
    }

    #[test]
    fn alone_it_agrees() {
        let mut change = begin(&Changes::default(), 0);
        let order = change.step(Input::Met);
        go_on(&mut change, order, &Order::End(Ending::Agreed { objections: 0, differs: false }));
    }

    #[test]
    fn who_gives_up_passes_the_barriers_that_others_wait_in() {
        let mut change = begin(&Changes::default(), 1);
        let order = change.step(Input::Met);
        go_on(&mut change, order, &Order::Settle);
        assert_eq!(
            change.step(Input::TooLong),
            Order::Operate(FIRST + DECISION, Operation::CompareExchange(0, GIVEN_UP | 1))
        );
        assert_eq!(change.step(Input::Value(0)), Order::Pass(FIRST + SETTLED..FIRST + GATHERED + 1));
        assert_eq!(change.step(Input::Done), Order::End(Ending::GivenUp { by: None }));
    }

    #[test]
    fn what_was_agreed_on_cannot_be_given_up() {
        let mut change = begin(&Changes::default(), 1);
        let order = change.step(Input::Met);
        go_on(&mut change, order, &Order::Barrier(FIRST + GATHERED));
        change.step(Input::TooLong);
        assert_eq!(change.step(Input::Value(1)), Order::WaitAgain(FIRST + GATHERED));
        assert_eq!(change.step(Input::Met), Order::Change);
        assert_eq!(change.step(Input::Done), Order::Barrier(FIRST + CHANGED));
        assert_eq!(change.step(Input::TooLong), Order::End(Ending::Disagree));
    }

    #[test]
    fn after_a_change_that_was_given_up_others_use_other_numbers() {
        let mut changes = Changes::default();
        changes.end(Ending::Agreed { objections: 0, differs: false });
        assert_eq!((begin(&changes, 0).first, begin(&changes, 0).round), (FIRST, 1));
        changes.end(Ending::GivenUp { by: None });
        assert_eq!((begin(&changes, 0).first, begin(&changes, 0).round), (FIRST + NUMBERS_PER_SET, 0));
        let last = Changes { given_up: (u64::MAX - FIRST) / NUMBERS_PER_SET, agreed: 0 };
        assert!(last.begin(NodeId(0), 7, FIRST).is_none());
    }
}
