//! A call of the program: the steps of its node, and the order in which stores become known.
//!
//! Promises: a call that releases something enters [`Sync`](super::Sync) only after the node has published what it stored. A
//! call that acquires something ends only after the node has applied what was released to it. A call that could not publish
//! releases nothing. It must never wait: the caller carries out one step after the other.

use super::Input;
use super::held::Holding;

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallStep {
    /// Publish what this node stored: [`CallOutcome::Done`].
    Publish,
    /// Give the input to [`Sync`](super::Sync): [`CallOutcome::Done`], or [`CallOutcome::Failed`] if it does not allow it
    /// ([`Sync::allows`](super::Sync::allows)), or if the thread would wait for itself ([`Held`](super::Held)).
    Enter,
    /// Wait until the call is woken: [`CallOutcome::Granted`]. If its time is over, give [`Input::abandoned_by`] to
    /// [`Sync`](super::Sync), which wakes the call after all, or refuses it: [`CallOutcome::NotGranted`], or
    /// [`CallOutcome::Failed`] if the program must hear of that as an error.
    Await,
    /// Apply what was released to this node: [`CallOutcome::Done`].
    Refresh,
    /// The call is over.
    End(CallOutcome),
}

/// The outcome of a step, or of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// The step is done. Of a call: it is done, and has no answer.
    Done,
    /// The answer.
    Granted(u64),
    /// No answer came in time.
    NotGranted,
    /// The step failed.
    Failed,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    input: Input,
    step: CallStep,
    answer: u64,
}

impl Call {
    /// The call with this input, and its first step.
    pub fn begin(input: Input) -> (Call, CallStep) {
        let step = if input.releases() { CallStep::Publish } else { CallStep::Enter };
        (Call { input, step, answer: 0 }, step)
    }

    /// The input of the call.
    pub fn input(&self) -> Input {
        self.input
    }

    /// The step after the one whose outcome is `outcome`.
    ///
    /// # Panics
    ///
    /// If the step cannot end in this way.
    pub fn go_on(&mut self, outcome: CallOutcome) -> CallStep {
        self.step = match (self.step, outcome) {
            (CallStep::Publish, CallOutcome::Done) => CallStep::Enter,
            (CallStep::Enter, CallOutcome::Done) if self.input.is_answered() => CallStep::Await,
            (CallStep::Enter, CallOutcome::Done) => CallStep::End(outcome),
            (CallStep::Await, CallOutcome::Granted(answer)) => {
                self.answer = answer;
                let has_failed = matches!(self.input, Input::TryAcquire(..)) && answer == 0;
                if self.input.acquires() && !has_failed { CallStep::Refresh } else { CallStep::End(outcome) }
            }
            (CallStep::Await, CallOutcome::NotGranted) => CallStep::End(outcome),
            (CallStep::Refresh, CallOutcome::Done) => CallStep::End(CallOutcome::Granted(self.answer)),
            (CallStep::Publish | CallStep::Enter | CallStep::Await, CallOutcome::Failed) => CallStep::End(outcome),
            (step, outcome) => panic!("{outcome:?} is no outcome of {step:?}"),
        };
        self.step
    }
}

impl Input {
    /// Whether the call waits for an answer.
    fn is_answered(&self) -> bool {
        match self {
            Input::Acquire(..) | Input::TryAcquire(..) | Input::Arrive(..) | Input::Operate(..) => true,
            Input::Demand(_, demand, _) => !demand.is_silent(),
            _ => false,
        }
    }

    /// The input by which the call waits no longer. `None` for an operation on a word, which is carried out in any case.
    pub fn abandoned_by(&self) -> Option<Input> {
        match *self {
            Input::Acquire(id, waiter) | Input::TryAcquire(id, waiter) => Some(Input::Abandon(id, waiter)),
            Input::Arrive(id, _, waiter) => Some(Input::AbandonBarrier(id, waiter)),
            Input::Demand(_, _, waiter) => Some(Input::AbandonDemand(waiter)),
            _ => None,
        }
    }

    /// The object that the caller gives back with the call, and how it held it.
    pub fn gives_back(&self) -> Option<(Holding, u64)> {
        match self {
            Input::Release(id) => Some((Holding::Lock, *id)),
            Input::Demand(id, demand, _) => demand.gives_back().map(|how| (how, *id)),
            _ => None,
        }
    }

    /// The object that the caller waits to hold, and how. `None` for a call that only tries, which is answered at once.
    pub fn waits_to_hold(&self) -> Option<(Holding, u64)> {
        match self {
            Input::Acquire(id, _) => Some((Holding::Lock, *id)),
            Input::Demand(id, demand, _) => demand.waits_to_hold().map(|how| (how, *id)),
            _ => None,
        }
    }

    /// The object that the caller holds after the call was answered with `answer`, and how.
    pub fn takes(&self, answer: u64) -> Option<(Holding, u64)> {
        match self {
            Input::Acquire(id, _) => Some((Holding::Lock, *id)),
            Input::TryAcquire(id, _) => Some((Holding::Lock, *id)).filter(|_| answer == 1),
            Input::Demand(id, demand, _) => demand.holding().map(|how| (how, *id)).filter(|_| answer == 1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Contribution, Demand, OnceDemand, Operation, ReadWriteDemand};
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// The steps of a call that is answered with 1 and of which nothing fails.
    fn steps(input: Input) -> Vec<CallStep> {
        let (mut call, first) = Call::begin(input);
        let mut steps = vec![first];
        while !matches!(steps[steps.len() - 1], CallStep::End(_)) {
            let outcome = match steps[steps.len() - 1] {
                CallStep::Await => CallOutcome::Granted(1),
                _ => CallOutcome::Done,
            };
            steps.push(call.go_on(outcome));
        }
        steps
    }

    #[test]
    fn stores_are_published_before_a_release_and_applied_after_an_acquire() {
        use CallStep::{Await, End, Enter, Publish, Refresh};
        let granted = End(CallOutcome::Granted(1));
        assert_eq!(steps(Input::Acquire(3, 1)), [Enter, Await, Refresh, granted]);
        assert_eq!(steps(Input::Release(3)), [Publish, Enter, End(CallOutcome::Done)]);
        let both = [Publish, Enter, Await, Refresh, granted];
        assert_eq!(steps(Input::Arrive(3, Contribution::Nothing, 1)), both);
        assert_eq!(steps(Input::Operate(3, Operation::FetchAdd(1), 1)), both);
        assert_eq!(steps(Input::Operate(3, Operation::Load, 1)), both[1..]);
        let end = Demand::ReadWriteLock(ReadWriteDemand::EndRead);
        assert_eq!(steps(Input::Demand(3, end, 0)), [Publish, Enter, End(CallOutcome::Done)]);
        let done = Demand::Once(OnceDemand::Done);
        assert_eq!(steps(Input::Demand(3, done, 1)), [Publish, Enter, Await, granted]);
    }

    #[test]
    fn a_call_that_fails_releases_nothing() {
        let (mut call, _) = Call::begin(Input::Release(3));
        assert_eq!(call.go_on(CallOutcome::Failed), CallStep::End(CallOutcome::Failed));
        let (mut call, _) = Call::begin(Input::Release(3));
        call.go_on(CallOutcome::Done);
        assert_eq!(call.go_on(CallOutcome::Failed), CallStep::End(CallOutcome::Failed));
        let (mut call, _) = Call::begin(Input::Acquire(3, 1));
        call.go_on(CallOutcome::Done);
        let mut late = call;
        assert_eq!(late.go_on(CallOutcome::NotGranted), CallStep::End(CallOutcome::NotGranted));
        assert_eq!(call.go_on(CallOutcome::Failed), CallStep::End(CallOutcome::Failed));
    }

    #[test]
    fn an_attempt_that_fails_applies_nothing() {
        for (answer, next) in [(1, CallStep::Refresh), (0, CallStep::End(CallOutcome::Granted(0)))] {
            let (mut call, _) = Call::begin(Input::TryAcquire(3, 1));
            call.go_on(CallOutcome::Done);
            assert_eq!(call.go_on(CallOutcome::Granted(answer)), next);
        }
    }

    #[test]
    fn what_a_call_takes_another_one_gives_back() {
        use Demand::{Once, ReadWriteLock};
        let end = |demand| Input::Demand(3, demand, 0);
        let pairs = [
            (Input::Acquire(3, 1), Input::Release(3)),
            (Input::TryAcquire(3, 1), Input::Release(3)),
            (end(ReadWriteLock(ReadWriteDemand::Read)), end(ReadWriteLock(ReadWriteDemand::EndRead))),
            (end(ReadWriteLock(ReadWriteDemand::TryWrite)), end(ReadWriteLock(ReadWriteDemand::EndWrite))),
            (end(Once(OnceDemand::Begin)), end(Once(OnceDemand::Failed))),
        ];
        for (takes, gives_back) in pairs {
            assert_eq!(takes.takes(1), gives_back.gives_back(), "{takes:?}");
            assert_eq!((takes.gives_back(), gives_back.takes(1)), (None, None), "{takes:?}");
        }
        assert_eq!(Input::TryAcquire(3, 1).takes(0), None);
        assert_eq!(end(Once(OnceDemand::Begin)).takes(0), None, "another node has done it");
    }

    #[test]
    fn every_call_but_one_on_a_word_can_be_abandoned() {
        assert_eq!(Input::Acquire(3, 1).abandoned_by(), Some(Input::Abandon(3, 1)));
        assert_eq!(Input::Arrive(3, Contribution::Nothing, 1).abandoned_by(), Some(Input::AbandonBarrier(3, 1)));
        let begin = Input::Demand(3, Demand::Once(OnceDemand::Begin), 1);
        assert_eq!(begin.abandoned_by(), Some(Input::AbandonDemand(1)));
        assert_eq!(Input::Operate(3, Operation::Load, 1).abandoned_by(), None);
    }
}
