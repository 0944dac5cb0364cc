//! Locks, barriers and words, and what all waits for objects have in common: passes the program's calls to the pure
//! state machine and waits.
//!
//! Promises: [`Node::publish`] precedes every release. If it fails, the release does not happen: the lock stays held
//! and can be given back again. [`Node::refresh`] follows every acquire. A call whose deadline passes asks who is in
//! its way, is abandoned, and leaves nothing locked; but if it was granted at the last moment, it succeeds. It must
//! never wait while the state machine is locked.

mod held;
mod inquiry;
mod objects;

use std::time::Duration;

use trellis_cluster_protocol::sync::{
    ABANDONED, Contribution, Effect, Holding, Input, Message, Operation, Reduction, Sync,
};
use trellis_cluster_protocol::{NodeId, wire};

use super::ordered::{Guard, lock};
use super::progress::Waited;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::names::OF_MEMORY_FIRST;
use crate::waits::Wait;
use trellis_record::LiveCounters;

pub(crate) use objects::Guarding;

/// The first number of barriers, locks and other objects that is reserved for Trellis itself.
pub(crate) const RESERVED_FIRST: u64 = u64::MAX - 0xffff;

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timeout {
    /// As long as the configuration says; then the call returns an error.
    Configured,
    /// For this time; then the call returns that it did not succeed.
    For(Duration),
}

/// How a call that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Woken(u64),
    /// The call was abandoned after the caller's own timeout.
    NotYet,
}

fn refuse_reserved(id: u64) -> Result<(), WaitError> {
    if id < RESERVED_FIRST {
        return Ok(());
    }
    Err(WaitError::Misuse(format!(
        "the numbers from {OF_MEMORY_FIRST:#x} on are kept for Trellis itself; use one below, or a name, for barriers, locks, \
         words and other objects"
    )))
}

// Locks.
impl Node {
    pub(crate) fn acquire(&self, id: u64) -> Result<(), WaitError> {
        self.acquire_within(id, Timeout::Configured).map(drop)
    }

    /// Takes the lock. Returns whether it got it within `timeout`.
    pub(crate) fn acquire_within(&self, id: u64, timeout: Timeout) -> Result<bool, WaitError> {
        refuse_reserved(id)?;
        self.refuse_own(Holding::Lock, id, timeout)?;
        let ticket = self.waiters.take();
        let started = self.now();
        let call = Input::Acquire(id, ticket.name());
        let sent = self.sync_step(call);
        let counters = self.counters();
        LiveCounters::add(&counters.lock_acquires, 1);
        if ticket.is_done() && !sent {
            LiveCounters::add(&counters.lock_acquires_local, 1);
        }
        let abandon = Input::Abandon(id, ticket.name());
        let wait = Wait::Lock(id);
        let ended = self.wait_for_call(&ticket, wait, timeout, abandon, |node| node.whom(wait));
        LiveCounters::add(&counters.lock_wait_ns, self.now() - started);
        if ended? == Ended::NotYet {
            return Ok(false);
        }
        self.apply_or_release(&call, id)
    }

    /// Takes the lock if it is free. Returns whether it was.
    pub(crate) fn try_acquire(&self, id: u64) -> Result<bool, WaitError> {
        refuse_reserved(id)?;
        let ticket = self.waiters.take();
        let started = self.now();
        let call = Input::TryAcquire(id, ticket.name());
        let sent = self.sync_step(call);
        let abandon = Input::Abandon(id, ticket.name());
        let home = |node: &Node| node.whose_home(id);
        let ended = self.wait_for_call(&ticket, Wait::Lock(id), Timeout::Configured, abandon, home);
        let counters = self.counters();
        LiveCounters::add(&counters.lock_wait_ns, self.now() - started);
        if ended? != Ended::Woken(1) {
            return Ok(false);
        }
        LiveCounters::add(&counters.lock_acquires, 1);
        LiveCounters::add(&counters.lock_acquires_local, u64::from(!sent));
        self.apply_or_release(&call, id)
    }

    /// Applies what was released to this node, after it got the lock. On an error it gives the lock back.
    fn apply_or_release(&self, call: &Input, id: u64) -> Result<bool, WaitError> {
        if let Err(error) = self.refresh_after(call) {
            self.sync_step(Input::Release(id));
            return Err(error);
        }
        self.note_held(Holding::Lock, id);
        Ok(true)
    }

    pub(crate) fn release(&self, id: u64) -> Result<(), WaitError> {
        let not_held = || WaitError::Misuse(format!("lock {} is not held by this node", self.object(id)));
        if !lock(&self.synchronisation).0.holds(id) {
            refuse_reserved(id)?;
            return Err(not_held());
        }
        let call = Input::Release(id);
        // The next holder must find these stores, so the lock stays here until they are at their homes.
        self.publish_before(&call)?;
        // Another thread of this node may have given it back meanwhile.
        self.note_given_back(Holding::Lock, id);
        // A request for the lock may have come while no thread was free to receive it. It is served now, and not after
        // this thread has taken the lock many more times.
        self.receive_now_and_then();
        self.sync_step_if(|state| state.holds(id), call).map(drop).ok_or_else(not_held)
    }
}

// Barriers.
impl Node {
    pub(crate) fn barrier(&self, id: u64) -> Result<(), WaitError> {
        self.meet_in(id, Contribution::Nothing).map(drop)
    }

    /// Meets one thread of every node. Returns the reduction of the values that they brought.
    pub(crate) fn reduce(&self, id: u64, reduction: Reduction, value: u64) -> Result<u64, WaitError> {
        self.meet_in(id, Contribution::Value(reduction, value))
    }

    fn meet_in(&self, id: u64, own: Contribution) -> Result<u64, WaitError> {
        refuse_reserved(id)?;
        let ticket = self.waiters.take();
        let call = Input::Arrive(id, own, ticket.name());
        self.publish_before(&call)?;
        let started = self.now();
        self.comes_to_barrier(id);
        self.sync_step(call);
        let abandon = Input::AbandonBarrier(id, ticket.name());
        let wait = Wait::Barrier(id);
        let ended = self.wait_for_call(&ticket, wait, Timeout::Configured, abandon, |node| node.whom(wait));
        self.count_barrier(started);
        self.leaves_barrier(id, ended.is_ok());
        let ended = ended?;
        self.refresh_after(&call)?;
        match ended {
            Ended::Woken(value) => Ok(value),
            Ended::NotYet => unreachable!("the configured timeout ends with an error"),
        }
    }

    fn count_barrier(&self, started: u64) {
        LiveCounters::add(&self.counters().barriers, 1);
        LiveCounters::add(&self.counters().barrier_wait_ns, self.now() - started);
    }

    /// This node has come to one of Trellis's own barriers from now on, whether or not one of its threads waits in it.
    pub(super) fn enter_barrier(&self, id: u64) -> Ticket<'_> {
        let ticket = self.waiters.take();
        self.sync_step(Input::Arrive(id, Contribution::Nothing, ticket.name()));
        ticket
    }

    /// Waits for the others in one of Trellis's own barriers. It may be called again after an error.
    pub(super) fn wait_in_barrier(&self, ticket: &Ticket<'_>, id: u64, wait: Wait) -> Result<(), WaitError> {
        let started = self.now();
        let result = match self.wait_at(ticket, wait, Timeout::Configured) {
            Waited::Done => self.outcome(ticket),
            Waited::Failed => Err(WaitError::Failed(self.failure.sentence())),
            Waited::TooLong => Err(self.too_long(wait, self.who_is_missing(id))),
        };
        self.count_barrier(started);
        result.map(drop)
    }
}

// Words.
impl Node {
    pub(crate) fn operate(&self, id: u64, operation: Operation) -> Result<u64, WaitError> {
        refuse_reserved(id)?;
        let ticket = self.waiters.take();
        let call = Input::Operate(id, operation, ticket.name());
        self.publish_before(&call)?;
        let before = self.operated(&ticket, id, operation, Wait::Atomic(id))?;
        self.refresh_after(&call)?;
        Ok(before)
    }

    /// Operates on a word of Trellis itself.
    pub(super) fn operate_as(&self, id: u64, operation: Operation, wait: Wait) -> Result<u64, WaitError> {
        let ticket = self.waiters.take();
        self.operated(&ticket, id, operation, wait)
    }

    fn operated(&self, ticket: &Ticket<'_>, id: u64, operation: Operation, wait: Wait) -> Result<u64, WaitError> {
        let started = self.now();
        self.sync_step(Input::Operate(id, operation, ticket.name()));
        LiveCounters::add(&self.counters().atomics, 1);
        let waited = self.wait_at(ticket, wait, Timeout::Configured);
        LiveCounters::add(&self.counters().lock_wait_ns, self.now() - started);
        match waited {
            Waited::Done => self.outcome(ticket),
            Waited::Failed => Err(WaitError::Failed(self.failure.sentence())),
            Waited::TooLong => Err(self.too_long(wait, self.whose_home(id))),
        }
    }
}

// The state machine.
impl Node {
    /// Publishes what this node stored, if the call is a release.
    fn publish_before(&self, call: &Input) -> Result<(), WaitError> {
        if call.releases() { self.publish() } else { Ok(()) }
    }

    /// Applies what was released to this node, if the call, which succeeded, is an acquire.
    fn refresh_after(&self, call: &Input) -> Result<(), WaitError> {
        if call.acquires() { self.refresh() } else { Ok(()) }
    }

    pub(super) fn sync_message(&self, from: NodeId, message: Message) {
        self.sync_step(Input::Message(from, message));
    }

    /// Takes a step. Returns whether it sent a message.
    pub(super) fn sync_step(&self, input: Input) -> bool {
        self.sync_step_if(|_| true, input).is_some_and(|sent| sent)
    }

    /// Takes a step if the state allows it. Returns whether it sent a message, or `None` if the state forbade it.
    fn sync_step_if(&self, allows: impl FnOnce(&Sync) -> bool, input: Input) -> Option<bool> {
        let mut guard = self.before_token_leaves(&input);
        let (state, effects) = &mut *guard;
        if !allows(state) {
            return None;
        }
        state.step(input, effects);
        Some(self.carry_out_sync(&mut guard))
    }

    /// Locks the state. If `input` makes the token of a lock leave this node, the pages that go with the token have
    /// been sent.
    fn before_token_leaves(&self, input: &Input) -> Guard<'_, (Sync, Vec<Effect>)> {
        let mut guard = lock(&self.synchronisation);
        let mut piggybacked_to = None;
        // Pages are sent while the state is not locked, so a node may request the lock meanwhile, or a thread may take
        // it.
        while self.consistency.is_used()
            && let Some(next) = guard.0.token_goes_to(input).filter(|next| Some(*next) != piggybacked_to)
        {
            drop(guard);
            self.piggyback(next);
            piggybacked_to = Some(next);
            guard = lock(&self.synchronisation);
        }
        guard
    }

    /// Carries out the effects. Returns whether it sent a message.
    fn carry_out_sync(&self, guard: &mut Guard<'_, (Sync, Vec<Effect>)>) -> bool {
        let (state, effects) = &mut **guard;
        let mut sent = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(to, message) => {
                    sent = true;
                    self.send(to, &wire::Message::Sync(message));
                }
                Effect::Wake(ticket, value) => self.waiters.signal(ticket, value),
                Effect::Refused(ticket, reason) => self.waiters.refuse(ticket, reason),
                Effect::Violation(from, what) => self.refuse_frame(from, what),
            }
        }
        if self.is_leaving() && state.is_clear() {
            self.rouse_leaver();
        }
        sent
    }
}

// Waiting.
impl Node {
    /// Waits for a call of the program, and abandons it when its time is over. If that is an error, `whom` finds out
    /// before who is in its way.
    fn wait_for_call(
        &self,
        ticket: &Ticket<'_>,
        wait: Wait,
        timeout: Timeout,
        abandon: Input,
        whom: impl Fn(&Node) -> String,
    ) -> Result<Ended, WaitError> {
        let mut sentence = None;
        match self.wait_at(ticket, wait, timeout) {
            Waited::Done => {}
            Waited::Failed => return Err(WaitError::Failed(self.failure.sentence())),
            Waited::TooLong => {
                sentence = matches!(timeout, Timeout::Configured).then(|| whom(self));
                self.sync_step(abandon);
                debug_assert!(ticket.is_done(), "an abandoned call has been woken or refused");
            }
        }
        // A call that was granted at the last moment succeeds.
        match (ticket.outcome(), sentence) {
            (Ok(value), _) => Ok(Ended::Woken(value)),
            (Err(ABANDONED), Some(sentence)) => Err(self.too_long(wait, sentence)),
            (Err(ABANDONED), None) => Ok(Ended::NotYet),
            (Err(why), _) => Err(WaitError::Misuse(why.to_owned())),
        }
    }

    fn wait_at(&self, ticket: &Ticket<'_>, wait: Wait, timeout: Timeout) -> Waited {
        let nanoseconds = match timeout {
            Timeout::Configured => wait.limit_ns(&self.config),
            Timeout::For(duration) => u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
        };
        self.wait_polling(None, ticket, wait, self.now().saturating_add(nanoseconds))
    }

    pub(in crate::runtime) fn too_long(&self, wait: Wait, whom: String) -> WaitError {
        let seconds = wait.limit_ns(&self.config) / 1_000_000_000;
        WaitError::TooLong { what: self.described(wait), seconds, whom }
    }

    /// What is waited for, with the program's name of the object if it has one.
    pub(in crate::runtime) fn described(&self, wait: Wait) -> String {
        wait.object().map_or(wait.to_string(), |id| self.in_words(&wait, id))
    }

    /// A text about object `id`, with its name in place of its number.
    pub(in crate::runtime) fn in_words(&self, text: &impl ToString, id: u64) -> String {
        text.to_string().replace(&id.to_string(), &self.object(id))
    }

    /// The program's name of an object, or its number.
    pub(crate) fn object(&self, id: u64) -> String {
        let numbered = || self.object_names.get().map_or_else(|| id.to_string(), |name| name(id));
        self.names.shown(id).unwrap_or_else(numbered)
    }

    fn outcome(&self, ticket: &Ticket<'_>) -> Result<u64, WaitError> {
        ticket.outcome().map_err(|why| WaitError::Misuse(why.to_owned()))
    }

    fn home_of_object(&self, id: u64) -> NodeId {
        NodeId((id % u64::from(self.founders)) as u16)
    }

    fn whose_home(&self, id: u64) -> String {
        format!("its home is {}", self.name_of(self.home_of_object(id)))
    }

    /// Which nodes are missing at a barrier, as far as this node knows without asking.
    fn who_is_missing(&self, barrier: u64) -> String {
        let missing = lock(&self.synchronisation).0.missing(barrier);
        let names: Vec<String> = missing.into_iter().map(|node| self.name_of(node)).collect();
        format!("waiting for {}", names.join(", "))
    }
}
