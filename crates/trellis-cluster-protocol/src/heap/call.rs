//! The steps of a program's call, and the order in which stores become known.
//!
//! Promises: before a span goes back, and before a block is freed at another node, what this node stored has been
//! published. Otherwise a late publication would overwrite the stores of the next owner. A block that another node may have
//! had is given to the program only after this node has applied what was released to it. A span is surplus before the
//! publication begins with which it goes back. It must never wait: the caller carries out one step after the other.

use super::{Answer, Heap, Input, Request, Run};
use crate::sync::Waiter;
use alloc::vec::Vec;

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Publish what this node stored; then [`Call::go_on`] with [`StepOutcome::Done`].
    Publish,
    /// Apply what was released to this node; then [`StepOutcome::Done`].
    Refresh,
    /// Give these pages their home; then [`StepOutcome::Done`].
    Place(Run),
    /// Give this input to the heap, and wait for its answer; then [`StepOutcome::Answer`].
    Ask(Input),
    /// The call is over.
    End(Answer),
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepOutcome {
    /// It is done.
    Done,
    /// The heap has answered.
    Answer(Answer),
}

/// A call of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    goal: Goal,
    waiter: Waiter,
    stage: Stage,
    /// Spans that go back, and what follows then.
    surplus: Vec<u32>,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Goal {
    Allocate(Request),
    Free(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// What was written to surplus spans is being published.
    Publishes,
    GivesBack,
    Allocates,
    Places,
    Refreshes(Answer),
    Frees,
    /// What was written to a block of another node is being published.
    PublishesBlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Allocate,
    /// Once more, after empty spans have gone back.
    AllocateAgain,
    End(Answer),
}

impl Call {
    /// The program wants a block.
    pub fn allocate(request: Request, waiter: Waiter) -> Call {
        Call::new(Goal::Allocate(request), waiter)
    }

    /// The program frees the block at this offset, whichever node handed it out.
    pub fn free(offset: u64, waiter: Waiter) -> Call {
        Call::new(Goal::Free(offset), waiter)
    }

    fn new(goal: Goal, waiter: Waiter) -> Call {
        Call { goal, waiter, stage: Stage::Frees, surplus: Vec::new(), then: Then::Allocate }
    }

    /// The first step.
    pub fn begin(&mut self, heap: &mut Heap) -> Step {
        match self.goal {
            Goal::Allocate(_) => self.give_back(heap, Then::Allocate),
            Goal::Free(offset) => Step::Ask(Input::Free(offset, self.waiter)),
        }
    }

    /// The step after the one whose outcome is `outcome`.
    pub fn go_on(&mut self, heap: &mut Heap, outcome: StepOutcome) -> Step {
        match (self.stage, outcome) {
            (Stage::Publishes, StepOutcome::Done) | (Stage::GivesBack, StepOutcome::Answer(_)) => self.give_back_next(),
            (Stage::Allocates, StepOutcome::Answer(answer)) => self.allocated(heap, answer),
            (Stage::Places, StepOutcome::Done) => {
                self.stage = Stage::Allocates;
                Step::Ask(Input::Adopt(self.waiter))
            }
            (Stage::Refreshes(block), StepOutcome::Done) => Step::End(block),
            (Stage::Frees, StepOutcome::Answer(Answer::Elsewhere)) => {
                self.stage = Stage::PublishesBlock;
                Step::Publish
            }
            (Stage::PublishesBlock, StepOutcome::Done) => {
                let Goal::Free(offset) = self.goal else { unreachable!("only a block that is freed is elsewhere") };
                self.stage = Stage::Frees;
                Step::Ask(Input::FreeElsewhere(offset, self.waiter))
            }
            (Stage::Frees, StepOutcome::Answer(Answer::Freed)) => self.give_back(heap, Then::End(Answer::Freed)),
            (Stage::Frees, StepOutcome::Answer(answer)) => Step::End(answer),
            (stage, outcome) => unreachable!("{outcome:?} is no outcome of {stage:?}"),
        }
    }

    /// A step failed: the call is over when the heap has taken the input that is returned. Pages that came for the call go
    /// back, and a later call gives surplus spans back. A block that could not be refreshed stays allocated.
    pub fn give_up(self, heap: &mut Heap) -> Input {
        heap.surplus.extend(self.surplus);
        Input::Abandon(self.waiter)
    }

    fn allocated(&mut self, heap: &mut Heap, answer: Answer) -> Step {
        match answer {
            Answer::Span(run) => {
                self.stage = Stage::Places;
                Step::Place(run)
            }
            Answer::Block(block) if block.is_foreign => {
                self.stage = Stage::Refreshes(answer);
                Step::Refresh
            }
            Answer::NoRoom { .. } if self.then == Then::Allocate => {
                heap.trim();
                // There may be enough free pages in a row when the empty spans have gone back.
                match heap.surplus.is_empty() {
                    true => Step::End(answer),
                    false => self.give_back(heap, Then::AllocateAgain),
                }
            }
            answer => Step::End(answer),
        }
    }

    /// Gives the surplus spans back, and goes on with `then`.
    fn give_back(&mut self, heap: &mut Heap, then: Then) -> Step {
        self.then = then;
        self.surplus = core::mem::take(&mut heap.surplus);
        if self.surplus.is_empty() {
            return self.give_back_next();
        }
        self.stage = Stage::Publishes;
        Step::Publish
    }

    fn give_back_next(&mut self) -> Step {
        if let Some(first) = self.surplus.pop() {
            self.stage = Stage::GivesBack;
            return Step::Ask(Input::GiveBack(first, self.waiter));
        }
        match (self.then, self.goal) {
            (Then::End(answer), _) => Step::End(answer),
            (Then::Allocate | Then::AllocateAgain, Goal::Allocate(request)) => {
                self.stage = Stage::Allocates;
                Step::Ask(Input::Allocate(request, self.waiter))
            }
            (_, Goal::Free(_)) => unreachable!("a block that is freed is not allocated"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Effect, Geometry, Message, Outcome, Separation};
    use super::*;
    use crate::heap::Zone;
    use crate::page::NodeId;

    const DIRECTORY: NodeId = NodeId(0);
    const WAITER: Waiter = 7;
    const BYTES: u64 = 100_000;

    fn heap_of(me: NodeId, pages: u32) -> Heap {
        Heap::new(Geometry {
            me,
            directory: DIRECTORY,
            first_page: 0,
            border_page: pages,
            end_page: pages,
            page_bytes: 4096,
            base_pages: 0,
        })
    }

    fn request(bytes: u64) -> Request {
        Request { bytes, align: 8, home: DIRECTORY, separation: Separation::Always, zone: Zone::Lower }
    }

    /// Carries a call out at the node of the directory. Returns its steps but the inputs' details, and its answer.
    fn run(heap: &mut Heap, mut call: Call) -> (Vec<&'static str>, Answer) {
        let (mut steps, mut step) = (Vec::new(), call.begin(heap));
        loop {
            let outcome = match step {
                Step::End(answer) => return (steps, answer),
                Step::Ask(input) => {
                    steps.push(match input {
                        Input::Allocate(..) => "allocate",
                        Input::Adopt(_) => "adopt",
                        Input::GiveBack(..) => "give back",
                        Input::Free(..) => "free",
                        _ => "other",
                    });
                    let mut effects = Vec::new();
                    heap.step(input, &mut effects);
                    let [Effect::Done(WAITER, answer)] = effects[..] else { panic!("{effects:?}") };
                    StepOutcome::Answer(answer)
                }
                Step::Publish => {
                    steps.push("publish");
                    StepOutcome::Done
                }
                Step::Refresh => {
                    steps.push("refresh");
                    StepOutcome::Done
                }
                Step::Place(_) => {
                    steps.push("place");
                    StepOutcome::Done
                }
            };
            step = call.go_on(heap, outcome);
        }
    }

    fn block(answer: Answer) -> u64 {
        let Answer::Block(block) = answer else { panic!("{answer:?}") };
        block.offset
    }

    #[test]
    fn a_span_goes_back_after_a_publication_and_its_next_user_applies_what_was_released() {
        let mut heap = heap_of(DIRECTORY, 64);
        let (steps, answer) = run(&mut heap, Call::allocate(request(BYTES), WAITER));
        assert_eq!(steps, ["allocate", "place", "adopt"], "the pages are fresh");
        let (steps, freed) = run(&mut heap, Call::free(block(answer), WAITER));
        assert_eq!((steps, freed), (["free", "publish", "give back"].to_vec(), Answer::Freed));
        let (steps, _) = run(&mut heap, Call::allocate(request(BYTES), WAITER));
        assert_eq!(steps, ["allocate", "place", "adopt", "refresh"], "another node may have had them");
    }

    #[test]
    fn without_room_empty_spans_go_back_once() {
        let mut heap = heap_of(DIRECTORY, 64);
        let small = Request { separation: Separation::Never, ..request(100) };
        let (_, answer) = run(&mut heap, Call::allocate(small, WAITER));
        run(&mut heap, Call::free(block(answer), WAITER));
        let all = request(64 * 4096);
        let (steps, answer) = run(&mut heap, Call::allocate(all, WAITER));
        assert_eq!(steps, ["allocate", "publish", "give back", "allocate", "place", "adopt", "refresh"]);
        assert!(matches!(answer, Answer::Block(_)));
        let (steps, answer) = run(&mut heap, Call::allocate(all, WAITER));
        assert_eq!((steps, matches!(answer, Answer::NoRoom { .. })), (["allocate"].to_vec(), true));
    }

    #[test]
    fn a_block_of_another_node_is_freed_after_a_publication() {
        let mut heap = heap_of(NodeId(1), 64);
        let mut call = Call::free(8192, WAITER);
        let mut effects = Vec::new();
        assert_eq!(call.begin(&mut heap), Step::Ask(Input::Free(8192, WAITER)));
        assert_eq!(call.go_on(&mut heap, StepOutcome::Answer(Answer::Elsewhere)), Step::Publish);
        let ask = call.go_on(&mut heap, StepOutcome::Done);
        assert_eq!(ask, Step::Ask(Input::FreeElsewhere(8192, WAITER)));
        heap.step(Input::FreeElsewhere(8192, WAITER), &mut effects);
        let reply = Message::Reply { waiter: WAITER, outcome: Outcome::Freed, owner: DIRECTORY };
        heap.step(Input::Message(DIRECTORY, reply), &mut effects);
        assert_eq!(effects.last(), Some(&Effect::Done(WAITER, Answer::Freed)));
        assert_eq!(call.go_on(&mut heap, StepOutcome::Answer(Answer::Freed)), Step::End(Answer::Freed));
    }

    #[test]
    fn a_call_that_fails_leaves_its_surplus_to_the_next_one() {
        let mut heap = heap_of(DIRECTORY, 64);
        let (_, answer) = run(&mut heap, Call::allocate(request(BYTES), WAITER));
        let mut call = Call::free(block(answer), WAITER);
        let mut effects = Vec::new();
        let Step::Ask(input) = call.begin(&mut heap) else { panic!("it begins with the heap") };
        heap.step(input, &mut effects);
        assert_eq!(call.go_on(&mut heap, StepOutcome::Answer(Answer::Freed)), Step::Publish);
        let abandon = call.give_up(&mut heap);
        heap.step(abandon, &mut effects);
        let (steps, _) = run(&mut heap, Call::allocate(request(BYTES), WAITER));
        assert_eq!(steps[..3], ["publish", "give back", "allocate"]);
    }
}
