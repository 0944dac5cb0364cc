//! The operations of each program's threads, and the rules that must hold when one of their calls ends.
//!
//! Promises: the rules use only what a program can know: which calls have begun, and which have ended, in which order.
//! Where two orders are possible, both are allowed.

use super::{Activity, Phase, Program, State, SyncInstance, Thread};
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{
    ConditionDemand, Contribution, Demand, EventDemand, Input, OnceDemand, Operation, ReadWriteDemand, Reduction,
    SemaphoreDemand, Waiter,
};

/// The operations of the thread that uses the event, in this order.
const EVENT_STEPS: [EventDemand; 3] = [EventDemand::Set, EventDemand::Clear, EventDemand::Set];
/// Indexes of the ledger. Events: operations of the first thread that have begun, and that have ended.
const BEGUN: usize = 0;
const ENDED: usize = 1;
/// Onces: a thread has begun to report that the work is done.
const DONE: usize = 0;
/// Conditions: a notification that has not arrived; the threads that must receive it; notifications that may have
/// been lost correctly.
const OUTSTANDING: usize = 0;
const FOR_WHOM: usize = 1;
const MAYBE: usize = 2;
/// Values of [`OUTSTANDING`].
const ONE: u8 = 1;
const ALL: u8 = 2;

/// The number of threads that the semaphore admits. If calls may be abandoned it is one, so that a lost release leaves a
/// thread waiting.
fn permits(instance: &SyncInstance) -> u64 {
    if instance.time_outs == 0 { 2 } else { 1 }
}

/// The number of rounds of `thread`.
pub(super) fn rounds(instance: &SyncInstance, thread: usize) -> u8 {
    match (instance.program, thread) {
        (Program::Events, 0) => EVENT_STEPS.len() as u8,
        (Program::Conditions, 0) => 0,
        _ => instance.rounds,
    }
}

/// The inputs, each at a home, before any thread runs.
pub(super) fn prelude(instance: &SyncInstance) -> Vec<(NodeId, Input)> {
    if instance.program != Program::Semaphores {
        return Vec::new();
    }
    let release = |object: u8| {
        let home = NodeId(u16::from(object) % instance.nodes);
        let demand = Demand::Semaphore(SemaphoreDemand::Release(permits(instance)));
        (home, Input::Demand(u64::from(object), demand, Waiter::MAX))
    };
    (0..instance.objects).map(release).collect()
}

/// The operations that an idle thread may begin.
pub(super) fn modes(instance: &SyncInstance, state: &State, index: usize) -> std::ops::Range<u8> {
    let thread = state.threads[index];
    if instance.program == Program::Conditions && index == 0 {
        let waits = state.threads.iter().any(|other| other.activity == Activity::Waiting && other.floor == 1);
        return if waits && state.ledger[OUTSTANDING] == 0 { 0..2 } else { 0..0 };
    }
    match instance.program {
        _ if thread.left == 0 => 0..0,
        Program::TriedLocks | Program::Semaphores => 0..2,
        Program::ReadWriteLocks => 0..4,
        _ => 0..1,
    }
}

/// The operation as text, for traces.
pub(super) fn mode_name(program: Program, mode: u8) -> &'static str {
    match (program, mode) {
        (Program::ReadWriteLocks, 0) => "to read",
        (Program::ReadWriteLocks, 1) => "to write",
        (Program::ReadWriteLocks, 2) => "to try to read",
        (Program::ReadWriteLocks, _) => "to try to write",
        (Program::Conditions, 1) => "to notify all, or wait",
        (_, 1) => "to try",
        _ => "as its program says",
    }
}

/// Records that a thread, which waits now, has begun.
pub(super) fn begin(instance: &SyncInstance, state: &mut State, index: usize) {
    let object = usize::from(state.threads[index].object);
    match instance.program {
        Program::Words => {
            state.threads[index].floor = (32 - state.seen[object].leading_zeros()) as u8;
            state.begun[object] += 1;
        }
        Program::Events if index == 0 => state.ledger[BEGUN] += 1,
        // This distinguishes the main answer from one that says "enrolled".
        Program::Events => state.threads[index].floor = 1 + state.ledger[ENDED],
        Program::Conditions if index == 0 => begin_notify(state),
        // A notification of all under way may reach this thread.
        Program::Conditions => {
            let notifier = state.threads[0];
            let notifies_all = notifier.activity == Activity::Waiting && notifier.mode == 1;
            state.threads[index].mode = u8::from(notifies_all);
        }
        Program::Barrier | Program::Reduce | Program::CountingBarrier => state.threads[index].floor = 1,
        _ => state.threads[index].floor = 1,
    }
}

fn begin_notify(state: &mut State) {
    let is_for_all = state.threads[0].mode == 1;
    state.ledger[OUTSTANDING] = if is_for_all { ALL } else { ONE };
    state.ledger[FOR_WHOM] = 0;
    for (index, thread) in state.threads.iter_mut().enumerate().skip(1) {
        if thread.activity == Activity::Waiting {
            state.ledger[FOR_WHOM] |= u8::from(thread.floor == 1) << index;
            thread.mode |= u8::from(is_for_all);
        }
    }
}

/// The input of a thread that has begun.
pub(super) fn call(instance: &SyncInstance, thread: &Thread, index: usize, waiter: impl Fn(Phase) -> Waiter) -> Input {
    let (id, main) = (u64::from(thread.object), waiter(Phase::Main));
    let demand = |demand| Input::Demand(id, demand, main);
    let participants = u32::from(instance.nodes) * u32::from(instance.threads);
    match (instance.program, thread.mode) {
        (Program::TriedLocks, 1) => Input::TryAcquire(id, main),
        (Program::Locks | Program::AbandonedLocks | Program::TriedLocks, _) => Input::Acquire(id, main),
        (Program::Barrier, _) => Input::Arrive(id, Contribution::Nothing, main),
        (Program::Reduce, _) => {
            Input::Arrive(id, Contribution::Value(Reduction::Sum, brought(instance, thread, index)), main)
        }
        (Program::Words, _) => Input::Operate(id, Operation::FetchAdd(1), main),
        (Program::ReadWriteLocks, mode) => demand(Demand::ReadWriteLock(match mode {
            0 => ReadWriteDemand::Read,
            1 => ReadWriteDemand::Write,
            2 => ReadWriteDemand::TryRead,
            _ => ReadWriteDemand::TryWrite,
        })),
        (Program::Semaphores, 0) => demand(Demand::Semaphore(SemaphoreDemand::Acquire)),
        (Program::Semaphores, _) => demand(Demand::Semaphore(SemaphoreDemand::TryAcquire)),
        (Program::Events, _) if index == 0 => {
            demand(Demand::Event(EVENT_STEPS[EVENT_STEPS.len() - usize::from(thread.left)]))
        }
        (Program::Events, _) => demand(Demand::Event(EventDemand::Wait)),
        (Program::Onces, _) => demand(Demand::Once(OnceDemand::Begin)),
        (Program::Conditions, 1) if index == 0 => demand(Demand::Condition(ConditionDemand::NotifyAll)),
        (Program::Conditions, _) if index == 0 => demand(Demand::Condition(ConditionDemand::NotifyOne)),
        (Program::Conditions, _) => Input::Enroll(id, waiter(Phase::Enrolled), main),
        (Program::CountingBarrier, _) => demand(Demand::CountingBarrier(participants)),
    }
}

/// The contribution of a thread to the barrier in its round: different for each, so that a sum shows which is missing.
fn brought(instance: &SyncInstance, thread: &Thread, index: usize) -> u64 {
    let round = u64::from(instance.rounds - thread.left);
    (round + 1) << (8 * index)
}

/// The input of a thread that holds an object and releases it; mode 1 means that the thread failed to do its work.
pub(super) fn end(instance: &SyncInstance, state: &mut State, index: usize, mode: u8, waiter: Waiter) -> Input {
    let thread = state.threads[index];
    let id = u64::from(thread.object);
    match instance.program {
        Program::ReadWriteLocks if thread.mode.is_multiple_of(2) => {
            Input::Demand(id, Demand::ReadWriteLock(ReadWriteDemand::EndRead), 0)
        }
        Program::ReadWriteLocks => Input::Demand(id, Demand::ReadWriteLock(ReadWriteDemand::EndWrite), 0),
        Program::Semaphores => Input::Demand(id, Demand::Semaphore(SemaphoreDemand::Release(1)), waiter),
        Program::Onces if mode == 0 => {
            state.ledger[DONE] = 1;
            Input::Demand(id, Demand::Once(OnceDemand::Done), waiter)
        }
        Program::Onces => {
            state.time_outs -= 1;
            Input::Demand(id, Demand::Once(OnceDemand::Failed), waiter)
        }
        _ => Input::Release(id),
    }
}

/// Whether the thread waits for the answer to that input.
pub(super) fn is_end_answered(program: Program) -> bool {
    matches!(program, Program::Semaphores | Program::Onces)
}

/// A call of the thread was abandoned.
pub(super) fn abandoned(instance: &SyncInstance, state: &mut State, index: usize) {
    let thread = &mut state.threads[index];
    match instance.program {
        // The thread has entered the barrier all the same, and calls again: see `has_entered`.
        Program::Barrier | Program::Reduce | Program::CountingBarrier => {
            thread.activity = Activity::Idle;
            thread.tries += 1;
        }
        Program::Conditions => {
            thread.retire();
            state.ledger[FOR_WHOM] &= !(1 << index);
            if state.ledger[FOR_WHOM] == 0 && state.ledger[OUTSTANDING] == ONE {
                state.ledger[MAYBE] += 1;
            }
            if state.ledger[FOR_WHOM] == 0 {
                state.ledger[OUTSTANDING] = 0;
            }
        }
        _ => thread.retire(),
    }
}

/// A call of the thread has been answered: checks whether it may be, and sets what the thread does next.
pub(super) fn woken(
    instance: &SyncInstance,
    state: &mut State,
    index: usize,
    value: u64,
    name: impl Fn(usize) -> String,
) -> Result<(), String> {
    let thread = state.threads[index];
    match instance.program {
        Program::TriedLocks if thread.mode == 1 && value == 0 => state.threads[index].retire(),
        Program::Locks | Program::AbandonedLocks | Program::TriedLocks => {
            refuse_holder(state, index, |_| true, "gets the lock although", name)?;
            state.threads[index].activity = Activity::Holding;
        }
        Program::Words => woken_with_value(state, index, value, name)?,
        Program::Barrier => leave(instance, state, index, name)?,
        Program::CountingBarrier => leave(instance, state, index, name)?,
        Program::Reduce => {
            let sum = (0..state.threads.len()).map(|other| brought(instance, &thread, other)).sum::<u64>();
            if value != sum {
                return Err(format!("{} gets {value:#x}, but the sum is {sum:#x}", name(index)));
            }
            leave(instance, state, index, name)?;
        }
        Program::ReadWriteLocks => {
            if value == 0 {
                return refused(state, index, thread.mode >= 2, name);
            }
            let writes = thread.mode % 2 == 1;
            let excludes = |other: &Thread| writes || other.mode % 2 == 1;
            refuse_holder(state, index, excludes, "gets the lock although", name)?;
            state.threads[index].activity = Activity::Holding;
        }
        Program::Semaphores => {
            if value == 0 {
                return refused(state, index, thread.mode == 1, name);
            }
            let inside = |other: &&Thread| other.activity == Activity::Holding && other.object == thread.object;
            if state.threads.iter().filter(inside).count() as u64 >= permits(instance) {
                return Err(format!("{} is let in by a semaphore that is used up", name(index)));
            }
            state.threads[index].activity = Activity::Holding;
        }
        Program::Events => woken_by_event(state, index, name)?,
        Program::Onces => find_done(state, index, value, name)?,
        Program::Conditions => woken_by_condition(state, index, name)?,
    }
    Ok(())
}

fn refused(state: &mut State, index: usize, tries: bool, name: impl Fn(usize) -> String) -> Result<(), String> {
    if !tries {
        return Err(format!("{} did not only try, but got nothing", name(index)));
    }
    state.threads[index].retire();
    Ok(())
}

fn refuse_holder(
    state: &State,
    index: usize,
    excludes: impl Fn(&Thread) -> bool,
    what: &str,
    name: impl Fn(usize) -> String,
) -> Result<(), String> {
    let object = state.threads[index].object;
    let is_in_the_way =
        |other: &Thread| other.activity == Activity::Holding && other.object == object && excludes(other);
    match state.threads.iter().position(is_in_the_way) {
        Some(holder) => Err(format!("{} {what} {} holds it", name(index), name(holder))),
        None => Ok(()),
    }
}

fn woken_with_value(state: &mut State, index: usize, value: u64, name: impl Fn(usize) -> String) -> Result<(), String> {
    let (object, floor) = (usize::from(state.threads[index].object), state.threads[index].floor);
    let range = u64::from(floor)..u64::from(state.begun[object]);
    if !range.contains(&value) || state.seen[object] >> value & 1 != 0 {
        return Err(format!("{} sees {value}, which cannot be", name(index)));
    }
    state.seen[object] |= 1 << value;
    state.threads[index].retire();
    Ok(())
}

/// Leaves a barrier that all threads have entered.
fn leave(
    instance: &SyncInstance,
    state: &mut State,
    index: usize,
    name: impl Fn(usize) -> String,
) -> Result<(), String> {
    let round = instance.rounds - state.threads[index].left;
    let has_entered = |other: &Thread| instance.rounds - other.left + other.floor > round;
    if let Some(late) = state.threads.iter().position(|other| !has_entered(other)) {
        return Err(format!("{} leaves the barrier before {} entered it", name(index), name(late)));
    }
    state.threads[index].retire();
    Ok(())
}

fn woken_by_event(state: &mut State, index: usize, name: impl Fn(usize) -> String) -> Result<(), String> {
    if index == 0 {
        state.ledger[ENDED] += 1;
        state.threads[0].retire();
        return Ok(());
    }
    let ended_before = state.threads[index].floor - 1;
    let by_the_first = state.ledger[BEGUN] >= 1 && ended_before < 2;
    if !by_the_first && state.ledger[BEGUN] < 3 {
        return Err(format!("{} goes on although the event is not set", name(index)));
    }
    state.threads[index].retire();
    Ok(())
}

fn find_done(state: &mut State, index: usize, value: u64, name: impl Fn(usize) -> String) -> Result<(), String> {
    match (value, state.ledger[DONE]) {
        (0, 0) => return Err(format!("{} finds done what nobody has done", name(index))),
        (0, _) => state.threads[index].retire(),
        (_, 0) => {
            refuse_holder(state, index, |_| true, "is to do it although", name)?;
            state.threads[index].activity = Activity::Holding;
        }
        _ => return Err(format!("{} is to do what is done", name(index))),
    }
    Ok(())
}

fn woken_by_condition(state: &mut State, index: usize, name: impl Fn(usize) -> String) -> Result<(), String> {
    if index == 0 {
        state.threads[0] = Thread::idle(0);
        return Ok(());
    }
    let by_all = state.threads[index].mode == 1;
    match state.ledger[OUTSTANDING] {
        ALL if by_all => {
            state.ledger[FOR_WHOM] &= !(1 << index);
            if state.ledger[FOR_WHOM] == 0 {
                state.ledger[OUTSTANDING] = 0;
            }
        }
        ONE => {
            // The cause may have been an earlier notification of all: then this one is still to come.
            state.ledger[MAYBE] += u8::from(by_all);
            state.ledger[OUTSTANDING] = 0;
        }
        _ if by_all => {}
        _ if state.ledger[MAYBE] > 0 => state.ledger[MAYBE] -= 1,
        _ => return Err(format!("{} is woken although nobody notified", name(index))),
    }
    state.threads[index].retire();
    Ok(())
}
