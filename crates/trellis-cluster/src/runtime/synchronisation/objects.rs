//! Calls for objects that are kept at their home, and waits for a condition under a lock.
//!
//! Promises what `mod.rs` promises. A wait for a condition returns with its lock held again, or says that it is not. It
//! must never release a lock before the wait is enrolled: a notification would be missed.

use trellis_cluster_protocol::sync::{
    ConditionDemand, ConditionWait, Demand, Input, ReadWriteDemand, WaitEnd, WaitOutcome, WaitStep,
};

use super::{Node, Ticket, Timeout, Wait, WaitError, refuse_reserved};

/// The lock under which a thread waits for a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarding {
    /// A lock of this number.
    Lock(u64),
    /// A read-write lock of this number, held to write.
    WriteLock(u64),
    /// A read-write lock of this number, held to read.
    ReadLock(u64),
}

/// The outcome of a wait for a condition.
pub(crate) struct ConditionWaited {
    /// Whether it was notified within the caller's timeout.
    pub(crate) notified: Result<bool, WaitError>,
    pub(crate) is_lock_held: bool,
}

impl Node {
    /// Demands something of an object and waits for the answer, at most for the configured time.
    pub(crate) fn demand(&self, id: u64, demand: Demand) -> Result<u64, WaitError> {
        let answer = self.demand_within(id, demand, Timeout::Configured)?;
        Ok(answer.expect("the configured timeout ends with an error"))
    }

    /// Demands something and returns the answer, or `None` if it did not come within `timeout`.
    pub(crate) fn demand_within(&self, id: u64, demand: Demand, timeout: Timeout) -> Result<Option<u64>, WaitError> {
        refuse_reserved(id)?;
        self.demand_as(id, demand, timeout)
    }

    /// Does the same for any object, of the program or of Trellis itself.
    pub(in crate::runtime) fn demand_as(
        &self,
        id: u64,
        demand: Demand,
        timeout: Timeout,
    ) -> Result<Option<u64>, WaitError> {
        let ticket = self.waiters.take();
        self.call(Some(&ticket), Input::Demand(id, demand, ticket.name()), timeout)
    }

    /// Demands something that is not answered.
    pub(crate) fn demand_silently(&self, id: u64, demand: Demand) -> Result<(), WaitError> {
        refuse_reserved(id)?;
        self.call(None, Input::Demand(id, demand, 0), Timeout::Configured).map(drop)
    }

    /// Gives a read-write lock back.
    pub(crate) fn end(&self, id: u64, end: ReadWriteDemand) -> Result<(), WaitError> {
        self.demand_silently(id, Demand::ReadWriteLock(end))
    }
}

// Conditions.
impl Node {
    /// Releases the lock, waits to be notified, and takes the lock again.
    pub(crate) fn wait_for_condition(&self, id: u64, guarding: Guarding, timeout: Timeout) -> ConditionWaited {
        if let Err(error) = self.refuse_unguarded(guarding) {
            return ConditionWaited { notified: Err(error), is_lock_held: false };
        }
        if let Err(error) = refuse_reserved(id) {
            return ConditionWaited { notified: Err(error), is_lock_held: true };
        }
        let ticket = self.waiters.take();
        let (mut wait, mut step) = ConditionWait::begin();
        let mut failed = None;
        loop {
            let outcome = match step {
                WaitStep::Enroll => self.enroll(id, &ticket).map(|()| WaitOutcome::Done),
                WaitStep::LetGo => self.let_go(guarding).map(|()| WaitOutcome::Done),
                WaitStep::Await => self.await_notification(id, &ticket, timeout),
                WaitStep::Withdraw => {
                    self.sync_step(Input::AbandonDemand(ticket.name()));
                    Ok(WaitOutcome::Done)
                }
                WaitStep::TakeAgain => self.take_again(guarding).map(|()| WaitOutcome::Done),
                WaitStep::End(WaitEnd { is_notified, is_lock_held }) => {
                    // If the wait failed, the lock failed for the same reason.
                    let notified = is_notified.ok_or_else(|| failed.expect("a step failed"));
                    return ConditionWaited { notified, is_lock_held };
                }
            };
            step = wait.go_on(outcome.unwrap_or_else(|error| {
                let is_lock_lost = matches!(error, WaitError::Misuse(_)) && step == WaitStep::LetGo;
                failed.get_or_insert(error);
                WaitOutcome::Failed { is_lock_lost }
            }));
        }
    }

    /// Waits for the notification, at most for `timeout`.
    fn await_notification(&self, id: u64, ticket: &Ticket<'_>, timeout: Timeout) -> Result<WaitOutcome, WaitError> {
        let call = Input::Demand(id, Demand::Condition(ConditionDemand::Wait), ticket.name());
        let started = self.now();
        let notified = self.wait_for_answer(ticket, &call, Wait::Condition(id), timeout);
        self.count_call(&call, self.now() - started, false, None);
        notified.map(|notified| notified.map_or(WaitOutcome::NotNotified, |_| WaitOutcome::Done))
    }

    /// Enrolls the wait. After this returns, no notification is missed.
    fn enroll(&self, id: u64, ticket: &Ticket<'_>) -> Result<(), WaitError> {
        let enrolled = self.waiters.take();
        let started = self.now();
        self.sync_step(Input::Enroll(id, enrolled.name(), ticket.name()));
        let wait = Wait::Condition(id);
        let waited = self.wait_at(&enrolled, wait, Timeout::Configured);
        self.count_lock_wait(self.now() - started);
        self.has_waited(waited, || self.too_long(wait, self.whose_home(id)))?;
        self.outcome(&enrolled).map(drop)
    }

    fn refuse_unguarded(&self, guarding: Guarding) -> Result<(), WaitError> {
        let sync = &super::lock(&self.synchronisation).sync;
        let (id, held) = match guarding {
            Guarding::Lock(id) => (id, sync.holds(id)),
            Guarding::WriteLock(id) => (id, sync.may_end(id, Demand::ReadWriteLock(ReadWriteDemand::EndWrite))),
            Guarding::ReadLock(id) => (id, sync.may_end(id, Demand::ReadWriteLock(ReadWriteDemand::EndRead))),
        };
        if held {
            return Ok(());
        }
        let lock = self.object(id);
        Err(WaitError::Misuse(format!(
            "lock {lock} is not held by this node; take it before waiting for the condition"
        )))
    }

    fn let_go(&self, guarding: Guarding) -> Result<(), WaitError> {
        match guarding {
            Guarding::Lock(id) => self.release(id),
            Guarding::WriteLock(id) => self.end(id, ReadWriteDemand::EndWrite),
            Guarding::ReadLock(id) => self.end(id, ReadWriteDemand::EndRead),
        }
    }

    fn take_again(&self, guarding: Guarding) -> Result<(), WaitError> {
        let (id, demand) = match guarding {
            Guarding::Lock(id) => return self.acquire(id),
            Guarding::WriteLock(id) => (id, ReadWriteDemand::Write),
            Guarding::ReadLock(id) => (id, ReadWriteDemand::Read),
        };
        self.demand(id, Demand::ReadWriteLock(demand)).map(drop)
    }
}
