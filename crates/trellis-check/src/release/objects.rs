//! Threads that call objects where nothing is published: they choose what they do, give up, and fail.
//!
//! Promises: between two messages a thread does all that it can, since nothing else at its node could be done in between. It
//! must never call an object of its own accord while it waits.

use super::effects::{Event, Out};
use super::node::{Doing, Node};
use super::{Operation, Setup};
use trellis_cluster_protocol::sync::{self, Call, CallOutcome, ConditionDemand, Demand, OnceDemand};

impl Node {
    /// How many things the thread at this index may choose from now.
    pub(super) fn choices(&self, setup: &Setup, thread: usize) -> u8 {
        let thread = &self.threads[thread];
        if setup.objects.is_none() || thread.doing != Doing::Ready {
            return 0;
        }
        match thread.operation(setup) {
            Operation::Choose { count, .. } => count,
            // It notifies one, or all.
            Operation::Notify(_) => 2,
            _ => 0,
        }
    }

    /// The thread does this branch of its choice, or notifies one or all.
    pub(super) fn choose(&mut self, setup: &Setup, thread: usize, branch: u8, out: &mut Out) {
        match self.threads[thread].operation(setup) {
            Operation::Choose { first, .. } => {
                self.threads[thread].branch = Some(first + branch);
                self.go(setup, thread, out);
            }
            Operation::Notify(condition) => {
                let demand = if branch == 0 { ConditionDemand::NotifyOne } else { ConditionDemand::NotifyAll };
                let call =
                    sync::Input::Demand(condition.into(), Demand::Condition(demand), self.threads[thread].name());
                self.begin_call(setup, thread, call, out);
            }
            operation => out.problem(format!("{operation:?} is no choice")),
        }
    }

    /// Whether the thread may abandon its call: it waits for something, and not only for the home of an object.
    pub(super) fn may_abandon(&self, setup: &Setup, thread: usize) -> bool {
        let may = |call: sync::Input| call.acquires() && call.abandoned_by().is_some();
        setup.objects.is_some() && self.threads[thread].call.as_ref().map(Call::input).is_some_and(may)
    }

    /// Whether the thread may fail to do what it is about to report as done.
    pub(super) fn may_fail(&self, setup: &Setup, thread: usize) -> bool {
        let is_done = |operation| matches!(operation, Operation::Demand { demand: Demand::Once(OnceDemand::Done), .. });
        setup.objects.is_some() && is_done(self.threads[thread].operation(setup))
    }

    /// The thread reports that it failed.
    pub(super) fn fail(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        let Operation::Demand { object, .. } = self.threads[thread].operation(setup) else {
            return out.problem("a thread fails that does nothing once".to_owned());
        };
        let call = sync::Input::Demand(object.into(), Demand::Once(OnceDemand::Failed), self.threads[thread].name());
        self.begin_call(setup, thread, call, out);
    }

    /// The thread's call of an object is over.
    pub(super) fn end_object_call(
        &mut self,
        setup: &Setup,
        thread: usize,
        call: sync::Input,
        outcome: CallOutcome,
        out: &mut Out,
    ) {
        let of = &mut self.threads[thread];
        let (number, operation) = (of.number, of.operation(setup));
        let left_out = u8::from(operation.is_given_back());
        match outcome {
            CallOutcome::Granted(value) => {
                out.event(Event::Answered { thread: number, call, value });
                let is_attempt = matches!(call, sync::Input::TryAcquire(..) | sync::Input::Demand(..));
                match operation {
                    // It notifies again while somebody waits.
                    Operation::Notify(_) => (of.doing, of.tries) = (Doing::Ready, 0),
                    _ => self.passes(setup, thread, if is_attempt && value == 0 { left_out } else { 0 }),
                }
            }
            CallOutcome::NotGranted => {
                out.event(Event::Abandoned { thread: number, call });
                match call {
                    // The thread has come to the barrier all the same, and calls again.
                    sync::Input::Arrive(..) | sync::Input::Demand(_, Demand::CountingBarrier(_), _) => {
                        (of.doing, of.tries) = (Doing::Ready, of.tries + 1);
                    }
                    _ => self.passes(setup, thread, left_out),
                }
            }
            CallOutcome::Done => self.passes(setup, thread, 0),
            CallOutcome::Failed => out.problem(format!("thread {number} ends {operation:?} with {outcome:?}")),
        }
    }
}
