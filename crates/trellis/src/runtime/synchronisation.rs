//! Locks, barriers and words: hands the program's calls to the pure state machine and waits.

use trellis_protocol::sync::{Effect, Input, Message, Operation};
use trellis_protocol::{NodeId, wire};

use super::pages::lock;
use super::progress::Waited;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::launch::Activity;
use crate::record::LiveCounters;

/// Numbers of barriers, locks and words from here on are for Trellis itself.
pub(crate) const RESERVED_FIRST: u64 = u64::MAX - 0xffff;

fn refuse_reserved(id: u64) -> Result<(), WaitError> {
    if id < RESERVED_FIRST {
        return Ok(());
    }
    Err(WaitError::Misuse(format!(
        "the number {id:#x} is kept for Trellis itself; use one below {RESERVED_FIRST:#x} for barriers, locks and words"
    )))
}

impl Node {
    pub(crate) fn acquire(&self, id: u64) -> Result<(), WaitError> {
        refuse_reserved(id)?;
        let started = self.now();
        let ticket = self.waiters.take();
        let sent = self.sync_step(Input::Acquire(id, ticket.name()));
        let counters = self.counters();
        LiveCounters::add(&counters.lock_acquires, 1);
        if ticket.is_done() && !sent {
            LiveCounters::add(&counters.lock_acquires_local, 1);
            return self.outcome(&ticket).map(drop);
        }
        let result = self.wait_for_call(&ticket, Activity::Lock(id), |node| node.who_has(id));
        LiveCounters::add(&counters.lock_wait_ns, self.now() - started);
        if matches!(result, Err(WaitError::TooLong { .. })) {
            self.sync_step(Input::Abandon(id, ticket.name()));
            // The lock may have come at the last moment: then it is ours to give back.
            if ticket.is_done() && ticket.outcome().is_ok() {
                self.sync_step(Input::Release(id));
            }
        }
        result.map(drop)
    }

    pub(crate) fn release(&self, id: u64) -> Result<(), WaitError> {
        let held = lock(&self.synchronisation).0.holds(id);
        if !held {
            return Err(WaitError::Misuse(format!("lock {id} is not held by this node")));
        }
        self.sync_step(Input::Release(id));
        Ok(())
    }

    pub(crate) fn barrier(&self, id: u64) -> Result<(), WaitError> {
        refuse_reserved(id)?;
        self.barrier_as(id, Activity::Barrier(id))
    }

    /// Waits in a barrier, be it the program's or our own.
    fn barrier_as(&self, id: u64, activity: Activity) -> Result<(), WaitError> {
        let ticket = self.enter_barrier(id);
        self.wait_in_barrier(&ticket, id, activity)
    }

    /// This node has come to a barrier from now on, whether or not anybody waits in it.
    pub(super) fn enter_barrier(&self, id: u64) -> Ticket<'_> {
        let ticket = self.waiters.take();
        self.sync_step(Input::Arrive(id, ticket.name()));
        ticket
    }

    /// Waits for the others, also once more after an error.
    pub(super) fn wait_in_barrier(&self, ticket: &Ticket<'_>, id: u64, activity: Activity) -> Result<(), WaitError> {
        let started = self.now();
        let result = self.wait_for_call(ticket, activity, |node| node.who_is_missing(id));
        LiveCounters::add(&self.counters().barriers, 1);
        LiveCounters::add(&self.counters().barrier_wait_ns, self.now() - started);
        result.map(drop)
    }

    pub(crate) fn operate(&self, id: u64, operation: Operation) -> Result<u64, WaitError> {
        refuse_reserved(id)?;
        self.operate_as(id, operation, Activity::Atomic(id))
    }

    /// Operates on a word, be it the program's or our own.
    pub(super) fn operate_as(&self, id: u64, operation: Operation, activity: Activity) -> Result<u64, WaitError> {
        let ticket = self.waiters.take();
        self.sync_step(Input::Operate(id, operation, ticket.name()));
        LiveCounters::add(&self.counters().atomics, 1);
        self.wait_for_call(&ticket, activity, |node| {
            format!("its home is {}", node.name_of(NodeId((id % u64::from(node.founders)) as u16)))
        })
    }

    pub(super) fn sync_message(&self, from: NodeId, message: Message) {
        self.sync_step(Input::Message(from, message));
    }

    /// Whether anything was sent.
    pub(super) fn sync_step(&self, input: Input) -> bool {
        let mut guard = lock(&self.synchronisation);
        let (state, effects) = &mut *guard;
        state.step(input, effects);
        let mut sent = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(to, message) => {
                    sent = true;
                    self.send(to, &wire::Message::Sync(message));
                }
                Effect::Wake(ticket, value) => self.waiters.signal(ticket, value),
                Effect::Refused(ticket, reason) => self.waiters.refuse(ticket, reason),
                Effect::Violation(from, what) => {
                    self.fail(format!("{} sent {what}", self.name_of(from)));
                }
            }
        }
        if self.is_leaving() && state.is_clear() {
            self.rouse_leaver();
        }
        sent
    }

    fn wait_for_call(
        &self,
        ticket: &Ticket<'_>,
        activity: Activity,
        whom: impl Fn(&Node) -> String,
    ) -> Result<u64, WaitError> {
        if !ticket.is_done() {
            self.doing(activity);
            let seconds = self.config.wait_seconds_max;
            let waited = self.wait(ticket, self.now().saturating_add(seconds.saturating_mul(1_000_000_000)));
            match waited {
                Waited::Done => {}
                Waited::Failed => return Err(WaitError::Failed(self.failure.sentence())),
                Waited::TooLong => {
                    return Err(WaitError::TooLong { what: activity.to_string(), seconds, whom: whom(self) });
                }
            }
            self.doing(Activity::Computing);
        }
        self.outcome(ticket)
    }

    fn outcome(&self, ticket: &Ticket<'_>) -> Result<u64, WaitError> {
        ticket.outcome().map_err(|why| WaitError::Misuse(why.to_owned()))
    }

    fn who_is_missing(&self, barrier: u64) -> String {
        let missing = lock(&self.synchronisation).0.missing(barrier);
        let names: Vec<String> = missing.into_iter().map(|node| self.name_of(node)).collect();
        format!("waiting for {}", names.join(", "))
    }

    fn who_has(&self, id: u64) -> String {
        let home = self.name_of(NodeId((id % u64::from(self.founders)) as u16));
        if lock(&self.synchronisation).0.holds(id) {
            "another thread of this node holds it".to_owned()
        } else {
            format!("another node holds it; its home is {home}")
        }
    }
}
