//! Threads of a small cluster that wait for a condition under a lock: the explorer's model for such waits.
//!
//! Consumers take the lock, wait while there is no item, take one and release the lock. A producer takes the lock, adds
//! items, notifies and releases the lock. A wait takes the steps that a runtime carries out ([`ConditionWait`]), with
//! the real locks and conditions. Messages arrive in any order. A wait may be given up, and a step may fail, as often
//! as the program allows. The model checks:
//!
//! 1. *The lock excludes.* It has one holder, and only the holder looks at the items.
//! 2. *No notification is lost.* When nothing is under way, no thread waits although there is an item, unless one that was
//!    notified could not take its lock again and said so.
//! 3. *A wait returns with its lock*, or says that it is not held.
//! 4. *Every thread ends*, if there is an item for each.
//!
//! It must never inspect the state machines: it uses steps, inputs and effects.

mod faults;

pub use faults::WaitFault;

use crate::explore::Model;
use crate::intern::guarded;
use crate::world::{self, Pass, Piece, Pieces, Worlds};
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{
    ABANDONED, ConditionDemand, ConditionWait, Demand, Effect, Input, Message, Sync, WaitEnd, WaitOutcome, WaitStep,
    Waiter,
};

/// The lock, whose home is node 0, and the condition, whose home is node 1.
const LOCK: u64 = 0;
const CONDITION: u64 = 1;
const NODES: u16 = 3;

/// What the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitProgram {
    /// Two items come one after the other, each with a notification of one thread.
    One,
    /// Two items come at once, with a notification of all threads.
    All,
    /// One item comes for two threads, and a wait is given up.
    Late,
    /// One item comes for two threads, and a step fails.
    Fails,
}

impl WaitProgram {
    /// All programs.
    pub const ALL: [WaitProgram; 4] = [WaitProgram::One, WaitProgram::All, WaitProgram::Late, WaitProgram::Fails];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            WaitProgram::One => "one",
            WaitProgram::All => "all",
            WaitProgram::Late => "late",
            WaitProgram::Fails => "fails",
        }
    }

    /// The producer's rounds: items, and whether all are notified.
    fn rounds(self) -> &'static [(u8, bool)] {
        match self {
            WaitProgram::One => &[(1, false), (1, false)],
            WaitProgram::All => &[(2, true)],
            WaitProgram::Late | WaitProgram::Fails => &[(1, false)],
        }
    }

    /// Whether there is an item for each consumer.
    fn is_enough(self) -> bool {
        matches!(self, WaitProgram::One | WaitProgram::All)
    }
}

/// The nodes of the consumers, and that of the producer.
const CONSUMERS: [u16; 2] = [1, 2];
const PRODUCER: u16 = 2;
/// The number of the producer among the threads.
const LAST: usize = CONSUMERS.len();

/// A program and the rule that is broken.
#[derive(Clone, Copy, Debug)]
pub struct WaitInstance {
    /// What the threads do.
    pub program: WaitProgram,
    /// The rule that this instance breaks on purpose.
    pub fault: WaitFault,
}

impl WaitInstance {
    /// The model of this instance.
    pub fn model(&self) -> impl Model {
        Worlds::new(World::first(*self))
    }

    /// A description of this instance.
    pub fn describe(&self) -> String {
        format!("waits program={}", self.program.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// It is about to do this.
    Does(Next),
    /// It waits for the answer to the call with this name.
    Calls(Waiter, Next),
    Over,
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Next {
    /// It takes the lock for the first time in a round.
    Lock,
    /// It holds the lock and looks at the items.
    Look,
    /// The step of its wait.
    Step(WaitStep),
    /// The outcome of that step.
    GoOn(WaitOutcome),
    /// The same, after it took the lock again.
    Taken,
    /// The producer notifies.
    Notify,
    Unlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Thread {
    at: At,
    /// The producer's round.
    round: u8,
    wait: Option<ConditionWait>,
    /// The name of the wait in the condition, and whether it was notified.
    notified: Option<(Waiter, bool)>,
    /// How many calls it made.
    calls: u8,
}

type Envelope = (u16, u16, Message);

#[derive(Clone)]
struct World {
    instance: WaitInstance,
    nodes: Vec<Piece<Sync>>,
    threads: Vec<Piece<Thread>>,
    network: Vec<Piece<Envelope>>,
    items: Piece<u8>,
    /// The thread that holds the lock.
    holder: Piece<Option<u8>>,
    /// How often a wait may still be given up, or a step may fail.
    troubles: Piece<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Run(usize),
    Deliver(usize),
    /// The thread waits for a notification no longer.
    GiveUp(usize),
    /// The thread's step fails.
    Fail(usize),
}

impl world::World for World {
    type Action = Action;
    type Tables = (Pieces<u8>, Pieces<Option<u8>>, Pieces<Sync>, Pieces<Thread>, Pieces<Envelope>);

    fn enabled(&self) -> Vec<Action> {
        let mut actions: Vec<Action> = (0..self.network.len()).map(Action::Deliver).collect();
        let can_run = |&index: &usize| matches!(self.threads[index].at, At::Does(_));
        actions.extend((0..self.threads.len()).filter(can_run).map(Action::Run));
        for (index, thread) in self.threads.iter().enumerate().filter(|_| *self.troubles > 0) {
            match (self.instance.program, thread.at) {
                (WaitProgram::Late, At::Calls(_, Next::GoOn(_))) if self.awaits(index) => {
                    actions.push(Action::GiveUp(index));
                }
                (WaitProgram::Fails, At::Does(Next::Step(WaitStep::LetGo))) => actions.push(Action::Fail(index)),
                (WaitProgram::Fails, At::Calls(_, Next::Taken)) => actions.push(Action::Fail(index)),
                _ => {}
            }
        }
        actions
    }

    fn must_happen(action: Action) -> bool {
        matches!(action, Action::Run(_) | Action::Deliver(_))
    }

    fn take(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Run(thread) => {
                let At::Does(next) = self.threads[thread].at else { unreachable!("it can run") };
                self.run(thread, next)
            }
            Action::Deliver(index) => {
                let (from, to, message) = *self.network.swap_remove(index);
                self.step(to, Input::Message(NodeId(from), message))
            }
            Action::GiveUp(thread) => {
                *self.troubles -= 1;
                let (name, _) = self.threads[thread].notified.expect("it waits");
                self.threads[thread].at = At::Does(Next::GoOn(WaitOutcome::NotNotified));
                self.threads[thread].notified = None;
                match self.instance.fault {
                    WaitFault::GivesUpSilently => Ok(()),
                    _ => self.step(self.node_of(thread), Input::AbandonDemand(name)),
                }
            }
            Action::Fail(thread) => {
                *self.troubles -= 1;
                let at = self.threads[thread].at;
                self.threads[thread].at = At::Does(Next::GoOn(WaitOutcome::Failed { is_lock_lost: false }));
                let At::Calls(name, _) = at else { return Ok(()) };
                // The thread may have been notified, and tells its program that it failed.
                *self.items = 0;
                self.step(self.node_of(thread), Input::Abandon(LOCK, name))
            }
        }
    }

    fn check_last(self) -> Result<(), String> {
        match self.threads.iter().position(|thread| thread.at != At::Over) {
            Some(thread) if self.instance.program.is_enough() => Err(format!("thread {thread} waits for ever")),
            Some(thread) if *self.items > 0 => Err(format!("thread {thread} waits, and there is an item")),
            _ => Ok(()),
        }
    }

    fn describe(&self, action: Action) -> String {
        match action {
            Action::Run(thread) => format!("thread {thread}: {:?}", self.threads[thread].at),
            Action::Deliver(index) => {
                let (from, to, message) = *self.network[index];
                format!("arrives: {from}->{to} {message:?}")
            }
            Action::GiveUp(thread) => format!("thread {thread} gives its wait up"),
            Action::Fail(thread) => format!("a step of thread {thread} fails"),
        }
    }

    fn pass(&mut self, (counts, holders, nodes, threads, envelopes): &mut Self::Tables, pass: &mut Pass) {
        pass.one(counts, &mut self.items);
        pass.one(counts, &mut self.troubles);
        pass.one(holders, &mut self.holder);
        pass.each(nodes, &mut self.nodes);
        pass.each(threads, &mut self.threads);
        pass.unordered(envelopes, &mut self.network);
    }
}

impl World {
    fn first(instance: WaitInstance) -> World {
        let thread = Thread { at: At::Does(Next::Lock), round: 0, wait: None, notified: None, calls: 0 };
        World {
            instance,
            nodes: (0..NODES).map(|me| Piece::new(Sync::new(NodeId(me), NODES))).collect(),
            threads: vec![Piece::new(thread); LAST + 1],
            network: Vec::new(),
            items: Piece::new(0),
            holder: Piece::new(None),
            troubles: Piece::new(u8::from(!instance.program.is_enough())),
        }
    }

    fn node_of(&self, thread: usize) -> u16 {
        CONSUMERS.get(thread).copied().unwrap_or(PRODUCER)
    }

    /// Whether the thread waits for its notification.
    fn awaits(&self, thread: usize) -> bool {
        let Thread { at, notified, .. } = *self.threads[thread];
        matches!((at, notified), (At::Calls(call, _), Some((name, false))) if call == name)
    }

    fn run(&mut self, thread: usize, next: Next) -> Result<(), String> {
        let node = self.node_of(thread);
        match next {
            Next::Lock => {
                let name = self.call(thread, Next::Look);
                self.step(node, Input::Acquire(LOCK, name))
            }
            Next::Look => self.look(thread),
            Next::Notify => {
                let (_, is_for_all) = self.instance.program.rounds()[usize::from(self.threads[thread].round)];
                // One of the two forms of each is explored.
                let (demand, name) = if is_for_all {
                    (ConditionDemand::NotifyAll, self.call(thread, Next::Unlock))
                } else {
                    self.threads[thread].at = At::Does(Next::Unlock);
                    (ConditionDemand::WakeOne, 0)
                };
                self.step(node, Input::Demand(CONDITION, Demand::Condition(demand), name))
            }
            Next::Unlock => {
                let has_more = thread == LAST
                    && usize::from(self.threads[thread].round) + 1 < self.instance.program.rounds().len();
                self.threads[thread].round += u8::from(has_more);
                self.threads[thread].at = if has_more { At::Does(Next::Lock) } else { At::Over };
                self.unlock(thread)
            }
            Next::Step(step) => self.carry_out(thread, step),
            Next::Taken => self.run(thread, Next::GoOn(WaitOutcome::Done)),
            Next::GoOn(outcome) => {
                let wait = self.threads[thread].wait.as_mut().expect("a wait");
                let step = guarded(|| wait.go_on(outcome))?;
                self.threads[thread].at = At::Does(Next::Step(step));
                Ok(())
            }
        }
    }

    fn look(&mut self, thread: usize) -> Result<(), String> {
        if *self.holder != Some(thread as u8) {
            return Err(format!("thread {thread} looks at the items and does not hold the lock"));
        }
        let next = if thread == LAST {
            *self.items += self.instance.program.rounds()[usize::from(self.threads[thread].round)].0;
            Next::Notify
        } else if *self.items > 0 {
            *self.items -= 1;
            Next::Unlock
        } else {
            let (wait, step) = ConditionWait::begin();
            self.threads[thread].wait = Some(wait);
            Next::Step(step)
        };
        self.threads[thread].at = At::Does(next);
        Ok(())
    }

    fn carry_out(&mut self, thread: usize, step: WaitStep) -> Result<(), String> {
        let (node, fault) = (self.node_of(thread), self.instance.fault);
        let done = At::Does(Next::GoOn(WaitOutcome::Done));
        match fault.order(step) {
            WaitStep::Enroll => {
                let enrolled = self.call(thread, Next::GoOn(WaitOutcome::Done));
                let main = self.name(thread);
                self.threads[thread].notified = Some((main, false));
                if fault == WaitFault::EnrolledAtOnce {
                    self.threads[thread].at = done;
                }
                self.step(node, Input::Enroll(CONDITION, enrolled, main))
            }
            WaitStep::LetGo => {
                self.threads[thread].at = done;
                self.unlock(thread)
            }
            WaitStep::Await => {
                let (name, is_there) = self.threads[thread].notified.expect("it was enrolled");
                self.threads[thread].at = done;
                match is_there {
                    true => self.threads[thread].notified = None,
                    false => self.threads[thread].at = At::Calls(name, Next::GoOn(WaitOutcome::Done)),
                }
                Ok(())
            }
            WaitStep::Withdraw => {
                self.threads[thread].at = done;
                let Some((name, _)) = self.threads[thread].notified.take() else { return Ok(()) };
                match fault {
                    WaitFault::WithdrawsNothing => Ok(()),
                    _ => self.step(node, Input::AbandonDemand(name)),
                }
            }
            WaitStep::TakeAgain if fault == WaitFault::TakesNothing => {
                self.threads[thread].at = done;
                Ok(())
            }
            WaitStep::TakeAgain => {
                let name = self.call(thread, Next::Taken);
                self.step(node, Input::Acquire(LOCK, name))
            }
            WaitStep::End(WaitEnd { is_notified, is_lock_held }) => {
                self.threads[thread].wait = None;
                if is_lock_held != (*self.holder == Some(thread as u8)) {
                    return Err(format!("the wait of thread {thread} says whether it holds the lock, and is wrong"));
                }
                self.threads[thread].at = match (is_lock_held, is_notified) {
                    (true, Some(true)) => At::Does(Next::Look),
                    // A program that was not notified does not wait again.
                    (true, _) => At::Does(Next::Unlock),
                    (false, _) => At::Over,
                };
                Ok(())
            }
        }
    }

    fn unlock(&mut self, thread: usize) -> Result<(), String> {
        if self.holder.take() != Some(thread as u8) {
            return Err(format!("thread {thread} releases a lock that it does not hold"));
        }
        self.step(self.node_of(thread), Input::Release(LOCK))
    }

    /// The name of a new call.
    fn name(&mut self, thread: usize) -> Waiter {
        self.threads[thread].calls += 1;
        (thread as Waiter) << 8 | Waiter::from(self.threads[thread].calls)
    }

    /// The thread waits for the answer to a new call, and then does `next`.
    fn call(&mut self, thread: usize, next: Next) -> Waiter {
        let name = self.name(thread);
        self.threads[thread].at = At::Calls(name, next);
        name
    }

    fn step(&mut self, node: u16, input: Input) -> Result<(), String> {
        let mut effects = Vec::new();
        let sync = &mut self.nodes[usize::from(node)];
        guarded(|| sync.step(input, &mut effects)).map_err(|what| format!("node {node} stopped: {what}"))?;
        effects.into_iter().try_for_each(|effect| match effect {
            Effect::Send(to, message) => {
                self.network.push(Piece::new((node, to.0, message)));
                Ok(())
            }
            Effect::Wake(name, _) => self.woken(name),
            // A call that is given up says so itself.
            Effect::Refused(_, ABANDONED) => Ok(()),
            Effect::Refused(name, why) => Err(format!("call {name} is refused: {why}")),
            Effect::Violation(from, what) => Err(format!("node {node} reports of {from}: {what}")),
        })
    }

    fn woken(&mut self, name: Waiter) -> Result<(), String> {
        let index = (name >> 8) as usize;
        let thread = &mut self.threads[index];
        let takes_lock = match thread.at {
            At::Calls(call, next) if call == name => {
                thread.at = At::Does(next);
                thread.notified = thread.notified.filter(|(main, _)| *main != name);
                matches!(next, Next::Look | Next::Taken)
            }
            _ if thread.notified == Some((name, false)) => {
                thread.notified = Some((name, true));
                false
            }
            // The call is over.
            _ => return Ok(()),
        };
        match (takes_lock, *self.holder) {
            (true, Some(holder)) => Err(format!("thread {index} gets the lock, and thread {holder} holds it")),
            (true, None) => {
                *self.holder = Some(index as u8);
                Ok(())
            }
            (false, _) => Ok(()),
        }
    }
}
