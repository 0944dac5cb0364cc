//! Locks, barriers and words, and what all waits for objects have in common: passes the program's calls to the pure
//! state machine and waits.
//!
//! Promises: [`Node::publish`] precedes every release. If it fails, the release does not happen: the lock stays held
//! and can be given back again. [`Node::refresh`] follows every acquire. A call whose deadline passes asks who is in
//! its way, is abandoned, and leaves nothing locked; but if it was granted at the last moment, it succeeds. It must
//! never wait while the state machine is locked.

mod inquiry;
mod objects;

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use trellis_cluster_protocol::sync::{
    ABANDONED, Call, CallOutcome, CallStep, ConditionDemand, Contribution, Demand, Held, Holding, Input, OnceDemand,
    Operation, Reduction, Sync,
};
use trellis_cluster_protocol::{NodeId, node};

use super::ordered::lock;
use super::progress::Waited;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::names::OF_MEMORY_FIRST;
use crate::waits::Wait;
use trellis_record::LiveCounters;

pub(crate) use objects::Guarding;

/// The first number of barriers, locks and other objects that is reserved for Trellis itself.
pub(crate) const RESERVED_FIRST: u64 = u64::MAX - 0xffff;

/// The locks, barriers and other objects of a node, behind one lock.
pub(super) struct State {
    pub(super) sync: Sync,
    /// The objects that threads of the program hold.
    held: Held,
}

impl State {
    pub(super) fn new(me: NodeId, founders: u16) -> State {
        State { sync: Sync::new(me, founders), held: Held::default() }
    }
}

thread_local! {
    /// Ends waits of this thread early while it is set.
    static INTERRUPT: Cell<Option<&'static AtomicBool>> = const { Cell::new(None) };
}

/// Calls `work`, in which waits for a time of their own end early while `interrupt` is set.
pub(crate) fn interruptible<T>(interrupt: &'static AtomicBool, work: impl FnOnce() -> T) -> T {
    let before = INTERRUPT.replace(Some(interrupt));
    let result = work();
    INTERRUPT.set(before);
    result
}

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timeout {
    /// As long as the configuration says; then the call returns an error.
    Configured,
    /// For this time; then the call returns that it did not succeed.
    For(Duration),
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
        let ticket = self.waiters.take();
        Ok(self.call(Some(&ticket), Input::Acquire(id, ticket.name()), timeout)?.is_some())
    }

    /// Takes the lock if it is free. Returns whether it was.
    pub(crate) fn try_acquire(&self, id: u64) -> Result<bool, WaitError> {
        refuse_reserved(id)?;
        let ticket = self.waiters.take();
        Ok(self.call(Some(&ticket), Input::TryAcquire(id, ticket.name()), Timeout::Configured)? == Some(1))
    }

    pub(crate) fn release(&self, id: u64) -> Result<(), WaitError> {
        refuse_reserved(id)?;
        self.call(None, Input::Release(id), Timeout::Configured).map(drop)
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
        self.call_answered(&ticket, Input::Arrive(id, own, ticket.name()))
    }

    fn count_barrier(&self, waited_ns: u64) {
        LiveCounters::add(&self.counters().barriers, 1);
        LiveCounters::add(&self.counters().barrier_wait_ns, waited_ns);
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
        let waited = self.wait_at(ticket, wait, Timeout::Configured);
        let result = self.has_waited(waited, || self.too_long(wait, self.who_is_missing(id)));
        self.count_barrier(self.now() - started);
        result.and_then(|()| self.outcome(ticket).map(drop))
    }
}

// Words.
impl Node {
    pub(crate) fn operate(&self, id: u64, operation: Operation) -> Result<u64, WaitError> {
        refuse_reserved(id)?;
        let ticket = self.waiters.take();
        self.call_answered(&ticket, Input::Operate(id, operation, ticket.name()))
    }

    /// Operates on a word of Trellis itself, which makes no stores known.
    pub(super) fn operate_as(&self, id: u64, operation: Operation, wait: Wait) -> Result<u64, WaitError> {
        let ticket = self.waiters.take();
        let call = Input::Operate(id, operation, ticket.name());
        let started = self.now();
        self.sync_step(call);
        let answer = self.wait_for_answer(&ticket, &call, wait, Timeout::Configured);
        self.count_call(&call, self.now() - started, false, None);
        Ok(answer?.expect("the configured timeout ends with an error"))
    }
}

// Calls of the program.
impl Node {
    /// Carries out a call that waits for its answer at most for the configured time.
    fn call_answered(&self, ticket: &Ticket<'_>, input: Input) -> Result<u64, WaitError> {
        let answer = self.call(Some(ticket), input, Timeout::Configured)?;
        Ok(answer.expect("the configured timeout ends with an error"))
    }

    /// Carries out a call, and returns its answer: `None` if it has none, as a call without a ticket, or if the answer did
    /// not come within `timeout`.
    fn call(&self, ticket: Option<&Ticket<'_>>, input: Input, timeout: Timeout) -> Result<Option<u64>, WaitError> {
        if self.consistency.is_used() && input.gives_back().is_some() {
            self.refuse_before_publishing(&input)?;
        }
        let (mut call, mut step) = Call::begin(input);
        let (mut failed, mut started, mut is_local) = (None, 0, false);
        loop {
            let outcome = match step {
                CallStep::Publish => self.publish().map(|()| CallOutcome::Done),
                CallStep::Enter => self.enter_call(&input, ticket, timeout).map(|is_over| {
                    is_local = is_over;
                    // A lock that is taken again and again costs no look at the clock.
                    started = if is_local || ticket.is_none() { 0 } else { self.now() };
                    CallOutcome::Done
                }),
                CallStep::Await => {
                    let ticket = ticket.expect("a call that is answered has a ticket");
                    let answer = self.wait_for_answer(ticket, &input, wait_of(&input), timeout);
                    let taken = answer.as_ref().ok().copied().flatten().and_then(|answer| input.takes(answer));
                    let waited_ns = if is_local { 0 } else { self.now() - started };
                    self.count_call(&input, waited_ns, is_local, taken);
                    node::leaves(&mut self.carrier(), &input, answer.is_ok());
                    answer.map(|answer| answer.map_or(CallOutcome::NotGranted, CallOutcome::Granted))
                }
                CallStep::Refresh => {
                    self.refresh();
                    Ok(CallOutcome::Done)
                }
                CallStep::End(CallOutcome::Granted(answer)) => {
                    if !is_local && let Some((how, id)) = input.takes(answer) {
                        lock(&self.synchronisation).held.took(how, id, trellis_cache::this_thread());
                    }
                    return Ok(Some(answer));
                }
                CallStep::End(CallOutcome::Done | CallOutcome::NotGranted) => return Ok(None),
                CallStep::End(CallOutcome::Failed) => return Err(failed.expect("a step failed")),
            };
            step = call.go_on(outcome.unwrap_or_else(|error| {
                failed = Some(error);
                CallOutcome::Failed
            }));
        }
    }

    /// Refuses a call before anything is published for it, if what it gives back is not held.
    fn refuse_before_publishing(&self, input: &Input) -> Result<(), WaitError> {
        let is_held = lock(&self.synchronisation).sync.allows(input);
        if is_held { Ok(()) } else { Err(self.not_held(input)) }
    }

    /// Takes the step of a call, unless what it gives back is not held, or this thread would wait for itself. Returns
    /// whether the call is over without a message; what it took is noted then.
    fn enter_call(&self, input: &Input, ticket: Option<&Ticket<'_>>, timeout: Timeout) -> Result<bool, WaitError> {
        node::enters(&mut self.carrier(), input);
        // A request for the lock may have come while no thread was free to receive it. It is served now, and not after
        // this thread has taken the lock many more times.
        if matches!(input, Input::Release(_))
            && self.is_look_due()
            && lock(&self.synchronisation).sync.token_goes_to(input).is_none()
        {
            self.receive_before_giving_back();
        }
        let thread = trellis_cache::this_thread();
        let entered = node::with_token(&mut self.carrier(), input, |objects| {
            let state = &mut objects.held;
            // Another thread of this node may have given it back while this one published.
            if !state.sync.allows(input) {
                return Err(None);
            }
            if let Some((wanted, id)) = input.waits_to_hold().filter(|_| matches!(timeout, Timeout::Configured))
                && let Some(how) = state.held.in_the_way(wanted, id, thread)
            {
                return Err(Some((how, id)));
            }
            if let Some((how, id)) = input.gives_back() {
                state.held.gave_back(how, id, thread);
            }
            let Ok(sent) = node::step_objects(objects, *input);
            if sent.any {
                return Ok(false);
            }
            let Some(ticket) = ticket else { return Ok(true) };
            let is_over = ticket.is_done();
            if is_over && let Some((how, id)) = ticket.outcome().ok().and_then(|answer| input.takes(answer)) {
                objects.held.held.took(how, id, thread);
            }
            Ok(is_over)
        });
        let Ok(entered) = entered;
        entered.map_err(|in_the_way| match in_the_way {
            None => self.not_held(input),
            Some((how, id)) => self.waits_for_itself(how, id),
        })
    }

    /// Waits for the answer of a call, and abandons the call when its time is over. If that is an error, this first finds
    /// out for whom the call waits.
    fn wait_for_answer(
        &self,
        ticket: &Ticket<'_>,
        input: &Input,
        wait: Wait,
        timeout: Timeout,
    ) -> Result<Option<u64>, WaitError> {
        let mut sentence = None;
        match self.wait_at(ticket, wait, timeout) {
            Waited::Done => {}
            Waited::Failed => return Err(WaitError::Failed(self.failure.sentence())),
            Waited::TooLong => {
                sentence = matches!(timeout, Timeout::Configured).then(|| self.whom_for(input, wait));
                match input.abandoned_by() {
                    Some(abandon) => self.sync_step(abandon),
                    None => return Err(self.too_long(wait, sentence.expect("a word is waited for as configured"))),
                };
                debug_assert!(ticket.is_done(), "an abandoned call has been woken or refused");
            }
        }
        // A call that was granted at the last moment succeeds.
        match (ticket.outcome(), sentence) {
            (Ok(value), _) => Ok(Some(value)),
            (Err(ABANDONED), Some(sentence)) => Err(self.too_long(wait, sentence)),
            (Err(ABANDONED), None) => Ok(None),
            (Err(why), _) => Err(WaitError::Misuse(why.to_owned())),
        }
    }

    /// A text that names the nodes for which a call waits.
    fn whom_for(&self, input: &Input, wait: Wait) -> String {
        match *input {
            Input::TryAcquire(id, _) | Input::Operate(id, ..) => self.whose_home(id),
            Input::Demand(id, demand, _) => match demand {
                Demand::CountingBarrier(participants) => self.who_has_come(id, Some(participants)),
                Demand::Once(OnceDemand::Done | OnceDemand::Failed)
                | Demand::Condition(ConditionDemand::NotifyOne | ConditionDemand::NotifyAll) => self.whose_home(id),
                _ => self.whom(wait),
            },
            _ => self.whom(wait),
        }
    }

    /// Counts a call that waited for its answer, and what it took. It was answered at once, without a message, if
    /// `is_local`.
    fn count_call(&self, input: &Input, waited_ns: u64, is_local: bool, taken: Option<(Holding, u64)>) {
        let counters = self.counters();
        match input {
            Input::Arrive(..) | Input::Demand(_, Demand::CountingBarrier(_), _) => {
                return self.count_barrier(waited_ns);
            }
            Input::Operate(..) => LiveCounters::add(&counters.atomics, 1),
            _ => {}
        }
        if let Some((Holding::Lock | Holding::Read | Holding::Write, _)) = taken {
            LiveCounters::add(&counters.lock_acquires, 1);
            LiveCounters::add(&counters.lock_acquires_local, u64::from(is_local));
        }
        self.count_lock_wait(waited_ns);
    }

    /// The error of a wait that this thread itself would prevent from ending.
    fn waits_for_itself(&self, how: Holding, id: u64) -> WaitError {
        let id = self.object(id);
        WaitError::Misuse(match how {
            Holding::Lock => {
                format!("this thread holds lock {id} already, and would wait for itself; locks are not recursive")
            }
            Holding::Read => format!(
                "this thread reads under read-write lock {id}, and would wait for itself to write; give it back before"
            ),
            Holding::Write => {
                format!(
                    "this thread writes under read-write lock {id} already, and would wait for itself; give it back before"
                )
            }
            Holding::Once => format!("this thread does once {id}, and would wait for itself to have done it"),
        })
    }

    fn not_held(&self, input: &Input) -> WaitError {
        let (how, id) = input.gives_back().expect("only such a call is refused");
        let id = self.object(id);
        WaitError::Misuse(match how {
            Holding::Lock => format!("lock {id} is not held by this node"),
            Holding::Read => format!("read-write lock {id} is not read by this node"),
            Holding::Write => format!("read-write lock {id} is not written by this node"),
            Holding::Once => {
                format!("once {id} is not being done by this node; only who was told to do it can end it")
            }
        })
    }
}

/// What a call waits for.
fn wait_of(input: &Input) -> Wait {
    match *input {
        Input::Acquire(id, _) | Input::TryAcquire(id, _) => Wait::Lock(id),
        Input::Arrive(id, ..) => Wait::Barrier(id),
        Input::Operate(id, ..) => Wait::Atomic(id),
        Input::Demand(id, demand, _) => match demand {
            Demand::ReadWriteLock(_) => Wait::ReadWriteLock(id),
            Demand::Semaphore(_) => Wait::Semaphore(id),
            Demand::Event(_) => Wait::Event(id),
            Demand::Once(_) => Wait::Once(id),
            Demand::Condition(_) => Wait::Condition(id),
            Demand::CountingBarrier(_) => Wait::CountingBarrier(id),
        },
        _ => unreachable!("no call of the program waits for this"),
    }
}

// The state machine.
impl Node {
    /// The objects take a fact.
    pub(super) fn sync_step(&self, input: Input) {
        let Ok(()) = node::take_fact(&mut self.carrier(), node::Input::Sync(input));
    }
}

// Waiting.
impl Node {
    fn wait_at(&self, ticket: &Ticket<'_>, wait: Wait, timeout: Timeout) -> Waited {
        if ticket.is_done() {
            return Waited::Done;
        }
        let nanoseconds = match timeout {
            Timeout::Configured => wait.limit_ns(&self.config),
            Timeout::For(duration) => {
                ticket.set_interrupt(INTERRUPT.get());
                u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
            }
        };
        self.wait_polling(None, ticket, wait, self.now().saturating_add(nanoseconds))
    }

    /// The error with which a wait ended, if it did; `too_long` is that of one that took too long.
    pub(in crate::runtime) fn has_waited(
        &self,
        waited: Waited,
        too_long: impl FnOnce() -> WaitError,
    ) -> Result<(), WaitError> {
        match waited {
            Waited::Done => Ok(()),
            Waited::Failed => Err(WaitError::Failed(self.failure.sentence())),
            Waited::TooLong => Err(too_long()),
        }
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
        let missing = lock(&self.synchronisation).sync.missing(barrier);
        let names: Vec<String> = missing.into_iter().map(|node| self.name_of(node)).collect();
        format!("waiting for {}", names.join(", "))
    }
}
