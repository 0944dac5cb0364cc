//! One change of the protocol of pages, as one node sees it: all nodes change, or none does.
//!
//! Every node makes the same call, and they meet at five barriers: all have come; their pages are *frozen*, and who objects
//! has said so; nothing is under way; every page is at its home; every node has changed. A node that cannot wait any longer
//! tries to *give up* for all: one word decides whether that came before all nodes had met for the fourth time. If so, none
//! changes. Otherwise the node goes on like the others.
//!
//! Promises: where one node's change ends as [`Ending::Agreed`], every other one's ends so, with the same number of
//! objections, or as [`Ending::Disagree`], after which the cluster must not go on; a node that gives up leaves nobody waiting
//! for it. Barriers and words of a change that was given up are never used again. It must never give an order before the one
//! before has ended.

use crate::page::NodeId;
use crate::sync::Operation;
use core::ops::Range;

/// The barriers between the steps, in their order.
const ARRIVED: u64 = 0;
const FROZEN: u64 = 1;
const SETTLED: u64 = 2;
const GATHERED: u64 = 3;
const CHANGED: u64 = 4;

/// The word that decides: how many changes were agreed on, or that a node gave up.
const DECISION: u64 = 0;
/// The word that holds what the nodes shall change, while they do.
const PROPOSAL: u64 = 1;
/// The word that counts the nodes that cannot.
const OBJECTIONS: u64 = 2;

/// In [`DECISION`], with the number of the node that gave up.
const GIVEN_UP: u64 = 1 << 63;

/// A change that was given up leaves barriers that not all nodes have left, so later ones use others: this many numbers.
const NUMBERS_PER_SET: u64 = 8;

/// How the changes of this node ended up to now. All nodes agree on it whenever they begin one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Changes {
    /// Changes that were given up.
    given_up: u64,
    /// Changes since then that were not.
    agreed: u64,
}

/// What the node does next. Each order ends with the input that it names, or with [`Input::TooLong`] where it waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Come to this barrier of all nodes and wait in it: [`Input::Met`].
    Meet(u64),
    /// Wait once more in this barrier, to which the node has come: [`Input::Met`].
    MeetAgain(u64),
    /// Operate on this word: [`Input::Value`].
    Operate(u64, Operation),
    /// Freeze the pages: threads that need one wait, nothing new is asked for: [`Input::Frozen`].
    Freeze,
    /// Wait until nothing that this node asked for is under way, and close its copies: [`Input::Done`].
    Settle,
    /// Bring the pages of which this node is the home here: [`Input::Done`].
    Gather,
    /// Change this node's own choice: [`Input::Done`].
    Change,
    /// Come to these barriers, and wait in none: [`Input::Done`].
    Pass(Range<u64>),
    /// The change is over; thaw the pages.
    End(Ending),
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// All nodes have come to the barrier.
    Met,
    /// The value of the word before the operation.
    Value(u64),
    /// The pages are frozen; whether this node objects to the change.
    Frozen {
        /// Its program holds a lock of a page, say.
        objects: bool,
    },
    /// It is done.
    Done,
    /// The time of the call is over.
    TooLong,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// All nodes agreed. Without objections all have changed, otherwise none.
    Agreed {
        /// Nodes that objected.
        objections: u64,
        /// This node was told to change something else than another one.
        differs: bool,
    },
    /// A node could not wait any longer, and none has changed: this one, or the one that is named.
    GivenUp {
        /// Another node.
        by: Option<NodeId>,
    },
    /// Whether others have changed is not known. This node must not go on.
    Disagree,
}

/// The purpose of the last order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Meets(u64),
    LooksAtDecision(u64),
    Freezes,
    Proposes,
    Objects,
    CountsObjections,
    Settles,
    Gathers,
    /// All have come for the fourth time: to decide that nobody can give up any more.
    Agrees,
    /// Not all have come in time: to give up, unless it was decided otherwise.
    Overrules,
    /// It was: that all have come is on its way.
    MeetsAgain,
    ForgetsProposal,
    ForgetsObjections,
    Changes,
    MeetsLast,
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
    /// What [`DECISION`] says until this change is decided, and one more when all nodes agreed.
    round: u64,
    /// What this node shall change, as a number; never zero.
    proposal: u64,
    /// The first barrier that this node has not come to.
    next: u64,
    step: Step,
    objects: bool,
    differs: bool,
    objections: u64,
}

impl Changes {
    /// Begins a change at node `me`. `proposal` is what it shall change, as a number that is not zero and the same at every
    /// node that was told the same. Barriers and words have numbers from `first_number` to `u64::MAX`. Returns the change
    /// and its first order, or nothing where the numbers are used up.
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
        let order = change.meet(ARRIVED);
        Some((change, order))
    }

    /// Notes how the change that was begun last ended.
    pub fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Agreed { .. } => self.agreed += 1,
            Ending::GivenUp { .. } => *self = Changes { given_up: self.given_up + 1, agreed: 0 },
            Ending::Disagree => {}
        }
    }
}

impl Change {
    /// How the last order ended; returns the next.
    ///
    /// # Panics
    ///
    /// The order cannot end so.
    pub fn step(&mut self, input: Input) -> Order {
        match (self.step, input) {
            (Step::Meets(GATHERED), Input::Met) => {
                let decision = self.round + 1;
                self.decide(Step::Agrees, decision)
            }
            (Step::Meets(GATHERED), Input::TooLong) => {
                let decision = self.giving_up();
                self.decide(Step::Overrules, decision)
            }
            (Step::Meets(barrier), Input::Met) => {
                self.operate(Step::LooksAtDecision(barrier), DECISION, Operation::Load)
            }
            (Step::LooksAtDecision(barrier), Input::Value(decision)) => match gave_up(decision) {
                Some(by) => self.give_up(Some(by)),
                None => self.after_meeting(barrier),
            },
            (Step::Freezes, Input::Frozen { objects }) => {
                self.objects = objects;
                self.operate(Step::Proposes, PROPOSAL, Operation::CompareExchange(0, self.proposal))
            }
            (Step::Proposes, Input::Value(before)) => {
                self.differs = before != 0 && before != self.proposal;
                match self.differs || self.objects {
                    true => self.operate(Step::Objects, OBJECTIONS, Operation::FetchAdd(1)),
                    false => self.meet(FROZEN),
                }
            }
            (Step::Objects, Input::Value(_)) => self.meet(FROZEN),
            (Step::CountsObjections, Input::Value(objections)) => {
                self.objections = objections;
                match objections {
                    // Nobody has locked a page of these, and nobody can: whatever was asked for comes.
                    0 => self.order(Step::Settles, Order::Settle),
                    _ => self.meet(GATHERED),
                }
            }
            (Step::Settles, Input::Done) => self.meet(SETTLED),
            (Step::Gathers, Input::Done) => self.meet(GATHERED),
            (Step::Agrees, Input::Value(before)) => match gave_up(before) {
                Some(by) => self.give_up(Some(by)),
                None => self.carry_out(),
            },
            (Step::Overrules, Input::Value(before)) if before == self.round + 1 => {
                self.order(Step::MeetsAgain, Order::MeetAgain(self.first + GATHERED))
            }
            (Step::Overrules, Input::Value(_)) => self.pass(None),
            (Step::MeetsAgain, Input::Met) => self.carry_out(),
            (Step::ForgetsProposal, Input::Value(_)) => {
                self.operate(Step::ForgetsObjections, OBJECTIONS, Operation::Exchange(0))
            }
            (Step::ForgetsObjections, Input::Value(_)) => self.change(),
            (Step::Changes, Input::Done) => self.meet_last(),
            (Step::MeetsLast, Input::Met) => {
                self.end(Ending::Agreed { objections: self.objections, differs: self.differs })
            }
            (Step::GivesUp { by }, Input::Value(_)) => self.pass(by),
            (Step::Passes { by }, Input::Done) => self.end(Ending::GivenUp { by }),
            (step, Input::TooLong) if step.can_be_given_up() => self.give_up(None),
            // What was decided, or whether others have changed, is not known.
            (_, Input::TooLong) => self.end(Ending::Disagree),
            (step, input) => panic!("{step:?} cannot end with {input:?}"),
        }
    }

    fn after_meeting(&mut self, barrier: u64) -> Order {
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

    fn meet(&mut self, barrier: u64) -> Order {
        self.next = barrier + 1;
        self.order(Step::Meets(barrier), Order::Meet(self.first + barrier))
    }

    fn operate(&mut self, step: Step, word: u64, operation: Operation) -> Order {
        self.order(step, Order::Operate(self.first + word, operation))
    }

    /// The first to decide does.
    fn decide(&mut self, step: Step, decision: u64) -> Order {
        self.operate(step, DECISION, Operation::CompareExchange(self.round, decision))
    }

    fn giving_up(&self) -> u64 {
        GIVEN_UP | u64::from(self.me.0)
    }

    /// Makes all nodes give up.
    fn give_up(&mut self, by: Option<NodeId>) -> Order {
        match by {
            // It is decided.
            Some(_) => self.pass(by),
            None => {
                let decision = self.giving_up();
                self.decide(Step::GivesUp { by }, decision)
            }
        }
    }

    /// The others must not wait for this node, which will not come.
    fn pass(&mut self, by: Option<NodeId>) -> Order {
        let barriers = self.first + self.next..self.first + GATHERED + 1;
        self.next = CHANGED;
        self.order(Step::Passes { by }, Order::Pass(barriers))
    }

    /// It is decided that all do their part.
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
        self.order(Step::MeetsLast, Order::Meet(self.first + CHANGED))
    }

    fn end(&mut self, ending: Ending) -> Order {
        self.order(Step::Over, Order::End(ending))
    }
}

impl Step {
    /// Whether all nodes can be made to give up then: not all have come for the fourth time.
    fn can_be_given_up(self) -> bool {
        match self {
            Step::Meets(_)
            | Step::LooksAtDecision(_)
            | Step::Freezes
            | Step::Proposes
            | Step::Objects
            | Step::CountsObjections
            | Step::Settles
            | Step::Gathers => true,
            Step::Agrees
            | Step::Overrules
            | Step::MeetsAgain
            | Step::ForgetsProposal
            | Step::ForgetsObjections
            | Step::Changes
            | Step::MeetsLast
            | Step::GivesUp { .. }
            | Step::Passes { .. }
            | Step::Over => false,
        }
    }
}

/// The node that gave up, if the word says that.
fn gave_up(decision: u64) -> Option<NodeId> {
    (decision & GIVEN_UP != 0).then_some(NodeId((decision & !GIVEN_UP) as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 1000;

    fn begin(changes: &Changes, me: u16) -> Change {
        let (change, order) = changes.begin(NodeId(me), 7, FIRST).expect("there are numbers");
        assert_eq!(order, Order::Meet(change.first + ARRIVED));
        change
    }

    /// Answers orders until one of them is `until`; the change has the cluster to itself.
    fn go_on(change: &mut Change, mut order: Order, until: &Order) {
        while order != *until {
            let input = match order {
                Order::Meet(_) | Order::MeetAgain(_) => Input::Met,
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
        go_on(&mut change, order, &Order::Meet(FIRST + GATHERED));
        change.step(Input::TooLong);
        assert_eq!(change.step(Input::Value(1)), Order::MeetAgain(FIRST + GATHERED));
        assert_eq!(change.step(Input::Met), Order::Change);
        assert_eq!(change.step(Input::Done), Order::Meet(FIRST + CHANGED));
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
