//! A thread that takes an item, or waits for a condition until there is one: the real [`ConditionWait`] decides the steps.
//!
//! The items are a number in a word of a page, which is loaded and stored under a lock. A step is carried out as a runtime
//! does, with the calls of a program: the lock is released after a publication. A wait may be given up, and its publication
//! or its lock may take too long.
//!
//! Promises: a thread that was notified looks again; one that was not, or whose wait failed, takes nothing. It must never
//! look at the items of its own accord while it waits.

use super::effects::{Event, Out};
use super::node::{Doing, Node, Thread};
use super::{Fault, Setup};
use trellis_cluster_protocol::node;
use trellis_cluster_protocol::sync::{
    self, CallStep, ConditionDemand, ConditionWait, Demand, WaitEnd, WaitOutcome, WaitStep, Waiter,
};

/// Marks the name of a wait, and that of an enrolment.
const WAIT: Waiter = 1 << 29;
const ENROLMENT: Waiter = 1 << 28;

/// A wait for a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    steps: ConditionWait,
    lock: u8,
    condition: u8,
    name: Waiter,
    is_notified: bool,
}

/// Whether this is the name of a wait, or of an enrolment.
pub(super) fn is_wait(name: Waiter) -> bool {
    name & (WAIT | ENROLMENT) != 0
}

/// The input by which a call begins: one that waits for a condition enrolls itself.
pub(super) fn enrolling(call: sync::Input) -> sync::Input {
    match call {
        sync::Input::Demand(id, Demand::Condition(ConditionDemand::Wait), name) => {
            sync::Input::Enroll(id, enrolment(name), name)
        }
        _ => call,
    }
}

/// The name of the enrolment of a wait.
fn enrolment(name: Waiter) -> Waiter {
    name | ENROLMENT
}

impl Node {
    /// A thread, which holds the lock, begins to wait.
    pub(super) fn begin_wait(&mut self, thread: usize, lock: u8, condition: u8) {
        let of = &mut self.threads[thread];
        of.tries += 1;
        let name = of.name() | WAIT;
        let (steps, first) = ConditionWait::begin();
        of.wait = Some(Wait { steps, lock, condition, name, is_notified: false });
        of.doing = Doing::Waits(first);
    }

    /// A thread takes this step of its wait.
    pub(super) fn take_wait_step(&mut self, setup: &Setup, thread: usize, step: WaitStep, out: &mut Out) {
        let Wait { lock, condition, name, is_notified, .. } = self.threads[thread].wait.expect("it waits");
        match in_order(setup.fault, step) {
            WaitStep::Enroll => {
                self.threads[thread].doing = Doing::AwaitsNotice(WaitStep::Enroll);
                if setup.fault == Fault::EnrolledAtOnce {
                    self.go_on_waiting(thread, WaitOutcome::Done);
                }
                self.take_sync(setup, sync::Input::Enroll(condition.into(), enrolment(name), name), out);
            }
            WaitStep::LetGo => self.begin_call(setup, thread, sync::Input::Release(lock.into()), out),
            WaitStep::Await if is_notified => self.go_on_waiting(thread, WaitOutcome::Done),
            WaitStep::Await => self.threads[thread].doing = Doing::AwaitsNotice(WaitStep::Await),
            WaitStep::Withdraw => {
                self.go_on_waiting(thread, WaitOutcome::Done);
                if setup.fault != Fault::WithdrawsNothing {
                    self.take_sync(setup, sync::Input::AbandonDemand(name), out);
                }
            }
            WaitStep::TakeAgain if setup.fault == Fault::TakesNothing => self.go_on_waiting(thread, WaitOutcome::Done),
            WaitStep::TakeAgain => {
                let call = sync::Input::Acquire(lock.into(), self.threads[thread].name());
                self.begin_call(setup, thread, call, out);
            }
            WaitStep::End(end) => self.end_wait(setup, thread, end, out),
        }
    }

    /// The step of the thread's wait has this outcome.
    pub(super) fn go_on_waiting(&mut self, thread: usize, outcome: WaitOutcome) {
        let of = &mut self.threads[thread];
        of.doing = Doing::Waits(of.wait.as_mut().expect("it waits").steps.go_on(outcome));
    }

    /// A thread waits for its notification no longer.
    pub(super) fn give_up_wait(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        let Wait { condition, name, .. } = self.threads[thread].wait.expect("it waits");
        if setup.fault == Fault::GivesUpSilently {
            return self.go_on_waiting(thread, WaitOutcome::NotNotified);
        }
        let call = sync::Input::Demand(condition.into(), Demand::Condition(ConditionDemand::Wait), name);
        self.take_sync(setup, call.abandoned_by().expect("it can be abandoned"), out);
    }

    /// A wait, or its enrolment, is answered. Nobody may wait for that any more.
    ///
    /// # Errors
    ///
    /// A thread was enrolled twice, or after it was woken.
    pub(super) fn notified(
        &mut self,
        setup: &Setup,
        name: Waiter,
        outcome: WaitOutcome,
        out: &mut Out,
    ) -> Result<(), String> {
        if setup.objects.is_some() {
            return self.enrolled(name & !ENROLMENT, out);
        }
        let is_enrolment = name & ENROLMENT != 0;
        let awaited = if is_enrolment { WaitStep::Enroll } else { WaitStep::Await };
        let is_it = |wait: &Wait| wait.name == name & !ENROLMENT;
        let Some(thread) = self.threads.iter().position(|thread| thread.wait.as_ref().is_some_and(is_it)) else {
            return Ok(());
        };
        if self.threads[thread].doing == Doing::AwaitsNotice(awaited) {
            self.go_on_waiting(thread, outcome);
        } else if let Some(wait) = self.threads[thread].wait.as_mut().filter(|_| !is_enrolment) {
            wait.is_notified = outcome == WaitOutcome::Done;
        }
        Ok(())
    }

    /// A call that waits for a condition without a lock is enrolled.
    fn enrolled(&mut self, name: Waiter, out: &mut Out) -> Result<(), String> {
        let awaits = Doing::Awaits(CallStep::Await);
        let is_it = |thread: &&mut Thread| thread.name() == name && thread.doing == awaits && !thread.is_enrolled;
        let Some(thread) = self.threads.iter_mut().find(is_it) else {
            return Err(format!("node {} enrolls {name}, which does not wait for that", self.me));
        };
        thread.is_enrolled = true;
        out.event(Event::Enrolled { thread: thread.number });
        Ok(())
    }

    fn end_wait(&mut self, setup: &Setup, thread: usize, end: WaitEnd, out: &mut Out) {
        let WaitEnd { is_notified, is_lock_held } = end;
        let of = &mut self.threads[thread];
        let Wait { lock, .. } = of.wait.take().expect("it waits");
        out.event(Event::Waited { thread: of.number, lock, is_lock_held });
        match (is_lock_held, is_notified) {
            (true, Some(true)) => of.doing = Doing::Ready,
            (true, _) => self.passes(setup, thread, 0),
            (false, _) => of.doing = Doing::Over,
        }
    }

    fn take_sync(&mut self, setup: &Setup, input: sync::Input, out: &mut Out) {
        self.take(setup, node::Input::Sync(input), out);
    }
}

/// The step in place of `step`: with a fault, the lock is released before the wait is enrolled.
fn in_order(fault: Fault, step: WaitStep) -> WaitStep {
    match (fault, step) {
        (Fault::LetsGoFirst, WaitStep::Enroll) => WaitStep::LetGo,
        (Fault::LetsGoFirst, WaitStep::LetGo) => WaitStep::Enroll,
        _ => step,
    }
}
