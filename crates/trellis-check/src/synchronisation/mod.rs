//! A small cluster whose threads wait for each other in every possible way: the explorer's model for synchronisation.
//!
//! The network is a multiset: any message may arrive next. The oracle checks for each program:
//!
//! 1. *Mutual exclusion*: a lock is given to a thread only while no other holds it; a read-write lock only to one
//!    writer or to readers; a semaphore admits as many threads as there were permits.
//! 2. *First come, first served*: nodes get the token of a lock in the order in which their requests reached its home.
//! 3. *No thread leaves a barrier* before all have entered it; a reduction contains every contribution.
//! 4. *Additions are linearizable*: each sees a value that no other saw, larger than all that were seen before it
//!    began and smaller than the number of additions begun.
//! 5. *No wake-up without a cause*: an event must have been set, a condition notified, a once completed.
//! 6. *Every call ends*, and is woken exactly once: no notification, permit or lock is lost, even if calls are abandoned.
//! 7. *Nothing is left behind*: at the end no node remembers anything about calls.
//!
//! It must never inspect the protocol: it uses only inputs and effects.

mod oracle;

use crate::explore::{Model, Successors};
use crate::intern::{Numbered, Stepped, Steps, guarded};
use std::hash::Hash;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{ABANDONED, Effect, Input, Message, Sync, Waiter};

/// The programs; every thread runs its program `rounds` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Program {
    /// Takes one of the locks and releases it.
    Locks,
    /// The same, but a waiting call may be abandoned.
    AbandonedLocks,
    /// Enters the barrier (one thread per node).
    Barrier,
    /// Adds one to one of the words.
    Words,
    /// Takes or tries one of the locks, and releases it if it was taken.
    TriedLocks,
    /// Enters the barrier with a number, and receives the sum (one thread per node).
    Reduce,
    /// Reads or writes under one of the read-write locks, or tries to.
    ReadWriteLocks,
    /// Lowers the semaphore, which admits two threads, or tries to; then raises it.
    Semaphores,
    /// The first thread sets the event, clears it, and sets it again; each other waits for it once.
    Events,
    /// Finds the work done, or does it, or fails to do it, which counts as an abandoned call.
    Onces,
    /// The first thread notifies one or all while another waits; each other thread waits to be woken.
    Conditions,
    /// Enters the counting barrier.
    CountingBarrier,
}

/// The size of a cluster and the program of its threads.
#[derive(Clone, Copy, Debug)]
pub struct SyncInstance {
    /// The program of every thread.
    pub program: Program,
    /// Number of nodes.
    pub nodes: u16,
    /// Threads of each node.
    pub threads: u8,
    /// The number of rounds.
    pub rounds: u8,
    /// Locks or words to choose from, with homes at different nodes.
    pub objects: u8,
    /// The maximum number of abandoned calls, in all.
    pub time_outs: u8,
}

/// The synchronisation of a node.
pub trait Synchronises: Clone + Eq + Hash {
    /// See [`Sync::step`].
    fn step(&mut self, input: Input, effects: &mut Vec<Effect>);

    /// See [`Sync::is_quiet`].
    fn is_quiet(&self) -> bool;
}

impl Synchronises for Sync {
    fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        Sync::step(self, input, effects);
    }

    fn is_quiet(&self) -> bool {
        Sync::is_quiet(self)
    }
}

impl SyncInstance {
    /// The model of this instance with the real protocol at every node.
    pub fn model(&self) -> Calls<Sync> {
        self.model_of(Sync::new)
    }

    /// The model of this instance with `start` in place of the real protocol.
    pub fn model_of<N: Synchronises>(&self, start: impl Fn(NodeId, u16) -> N) -> Calls<N> {
        let mut nodes = Numbered::new();
        let members = (0..self.nodes).map(NodeId);
        let start = members.map(|me| nodes.number(start(me, self.nodes))).collect();
        Calls {
            instance: *self,
            nodes,
            envelopes: Numbered::new(),
            inputs: Numbered::new(),
            steps: Steps::new(),
            start,
        }
    }

    /// A short description of this instance, with everything that distinguishes it.
    pub fn describe(&self) -> String {
        format!(
            "{} nodes={} threads={} rounds={} objects={} time_outs={}",
            match self.program {
                Program::Locks => "locks",
                Program::AbandonedLocks => "locks abandoned",
                Program::Barrier => "barrier",
                Program::Words => "words",
                Program::TriedLocks => "locks tried",
                Program::Reduce => "barrier with a sum",
                Program::ReadWriteLocks => "read-write locks",
                Program::Semaphores => "semaphores",
                Program::Events => "events",
                Program::Onces => "onces",
                Program::Conditions => "conditions",
                Program::CountingBarrier => "counting barrier",
            },
            self.nodes,
            self.threads,
            self.rounds,
            self.objects,
            self.time_outs
        )
    }
}

/// The model; see the module's documentation.
pub struct Calls<N> {
    instance: SyncInstance,
    nodes: Numbered<N>,
    envelopes: Numbered<Envelope>,
    inputs: Numbered<(NodeId, Input)>,
    steps: Steps<Effect>,
    start: Vec<u32>,
}

type Envelope = (NodeId, NodeId, Message);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Idle,
    Waiting,
    Holding,
    /// Waits for the answer to the call that ends its hold.
    Ending,
}

/// The part of an operation to which a call belongs; one operation may make several calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Main,
    Ending,
    /// The notification that a wait for a condition has begun.
    Enrolled,
}

#[derive(Clone, Copy)]
struct Thread {
    activity: Activity,
    left: u8,
    object: u8,
    /// What the thread may see, or has seen; its meaning depends on the program.
    floor: u8,
    /// The operation that the thread chose among those that the program allows.
    mode: u8,
    /// The number of calls that it abandoned in this round.
    tries: u8,
}

#[derive(Clone)]
struct State {
    nodes: Vec<u32>,
    threads: Vec<Thread>,
    /// For each object, the values that additions saw, one bit each.
    seen: Vec<u32>,
    /// For each object, the number of additions begun.
    begun: Vec<u8>,
    /// For each object, the nodes whose requests reached the home, in that order, and that have not received the
    /// token.
    queues: Vec<Vec<u8>>,
    /// The number of calls that may still be abandoned.
    time_outs: u8,
    /// The state of the program's oracle.
    ledger: [u8; 3],
    messages: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Action {
    Deliver(u32),
    Begin { thread: usize, object: u8, mode: u8 },
    Release { thread: usize, mode: u8 },
    Abandon { thread: usize },
}

impl<N: Synchronises> Model for Calls<N> {
    fn initial(&mut self) -> Vec<u8> {
        let objects = usize::from(self.instance.objects);
        let threads = usize::from(self.instance.nodes) * usize::from(self.instance.threads);
        let left = |thread| oracle::rounds(&self.instance, thread);
        let mut state = State {
            nodes: self.start.clone(),
            threads: (0..threads).map(|thread| Thread::idle(left(thread))).collect(),
            seen: vec![0; objects],
            begun: vec![0; objects],
            queues: vec![Vec::new(); objects],
            time_outs: self.instance.time_outs,
            ledger: [0; 3],
            messages: Vec::new(),
        };
        for (home, input) in oracle::prelude(&self.instance) {
            let stepped = self.stepped(state.nodes[usize::from(home.0)], home, input).expect("a first step");
            state.nodes[usize::from(home.0)] = stepped.after;
        }
        state.write()
    }

    fn expand(&mut self, state: &[u8], next: &mut Successors) -> Result<(), String> {
        let before = self.read(state);
        let (actions, must_go_on) = self.enabled(&before);
        for action in actions {
            let mut after = before.clone();
            match self.act(&mut after, action, None) {
                Ok(()) => next.push(|bytes| bytes.extend(after.write())),
                Err(what) => next.push_broken(what),
            }
        }
        let waits = before.threads.iter().position(|thread| thread.activity != Activity::Idle);
        match waits.filter(|_| !must_go_on) {
            Some(thread) => Err(format!("{} waits for ever", self.name(thread))),
            None if before.is_over() => self.refuse_leftovers(&before),
            None => Ok(()),
        }
    }

    fn tell(&mut self, state: &[u8], action: usize) -> Vec<String> {
        let mut state = self.read(state);
        let action = self.enabled(&state).0[action];
        let mut lines = vec![match action {
            Action::Deliver(number) => format!("arrives: {}", self.envelope_text(number)),
            Action::Begin { thread, object, mode } => {
                format!("{} calls for {object}, {}", self.name(thread), oracle::mode_name(self.instance.program, mode))
            }
            Action::Release { thread, mode: 0 } => format!("{} releases", self.name(thread)),
            Action::Release { thread, .. } => format!("{} fails", self.name(thread)),
            Action::Abandon { thread } => format!("{} gives up", self.name(thread)),
        }];
        if let Err(what) = self.act(&mut state, action, Some(&mut lines)) {
            lines.push(format!("    ! {what}"));
        }
        lines
    }
}

impl<N: Synchronises> Calls<N> {
    /// The possible actions, and whether one of them must happen at some time.
    fn enabled(&self, state: &State) -> (Vec<Action>, bool) {
        let mut actions = Vec::new();
        let mut last = None;
        for &number in &state.messages {
            if last.replace(number) != Some(number) {
                actions.push(Action::Deliver(number));
            }
        }
        for (index, thread) in state.threads.iter().enumerate() {
            match thread.activity {
                Activity::Idle => {
                    for mode in oracle::modes(&self.instance, state, index) {
                        let begin = |object| Action::Begin { thread: index, object, mode };
                        actions.extend((0..self.instance.objects).map(begin));
                    }
                }
                Activity::Holding => actions.push(Action::Release { thread: index, mode: 0 }),
                Activity::Waiting | Activity::Ending => {}
            }
        }
        let must_go_on = !actions.is_empty();
        let may_abandon = self.instance.program == Program::AbandonedLocks || state.time_outs > 0;
        for (index, thread) in state.threads.iter().enumerate().filter(|_| may_abandon) {
            match (thread.activity, self.instance.program) {
                // A thread that notifies waits only for the home.
                (Activity::Waiting, Program::Events | Program::Conditions) if index == 0 => {}
                (Activity::Waiting, _) => actions.push(Action::Abandon { thread: index }),
                (Activity::Holding, Program::Onces) => actions.push(Action::Release { thread: index, mode: 1 }),
                _ => {}
            }
        }
        (actions, must_go_on)
    }

    fn act(&mut self, state: &mut State, action: Action, lines: Option<&mut Vec<String>>) -> Result<(), String> {
        match action {
            Action::Deliver(number) => {
                let index = state.messages.iter().position(|&other| other == number);
                state.messages.remove(index.expect("a message under way"));
                let (from, to, message) = *self.envelopes.value(number);
                match message {
                    Message::LockRequest(id, _) => {
                        state.queues[id as usize].push(from.0 as u8);
                    }
                    Message::LockToken(id) => state.take_turn(id as usize, to.0 as u8)?,
                    _ => {}
                }
                self.step(state, to, Input::Message(from, message), lines)
            }
            Action::Begin { thread, object, mode } => {
                let began = &mut state.threads[thread];
                (began.activity, began.object, began.mode) = (Activity::Waiting, object, mode);
                oracle::begin(&self.instance, state, thread);
                let input = oracle::call(&self.instance, &state.threads[thread], thread, |phase| {
                    self.waiter(state, thread, phase)
                });
                self.step(state, self.node_of(thread), input, lines)
            }
            Action::Release { thread, mode } => {
                let waiter = self.waiter(state, thread, Phase::Ending);
                let input = oracle::end(&self.instance, state, thread, mode, waiter);
                match oracle::is_end_answered(self.instance.program) {
                    true => state.threads[thread].activity = Activity::Ending,
                    false => state.threads[thread].retire(),
                }
                self.step(state, self.node_of(thread), input, lines)
            }
            Action::Abandon { thread } => {
                let waiter = self.waiter(state, thread, Phase::Main);
                let object = u64::from(state.threads[thread].object);
                let input = match self.instance.program {
                    Program::Locks | Program::AbandonedLocks | Program::TriedLocks => Input::Abandon(object, waiter),
                    Program::Barrier | Program::Reduce => Input::AbandonBarrier(object, waiter),
                    _ => Input::AbandonDemand(waiter),
                };
                state.time_outs = state.time_outs.saturating_sub(1);
                self.step(state, self.node_of(thread), input, lines)
            }
        }
    }

    fn step(
        &mut self,
        state: &mut State,
        me: NodeId,
        input: Input,
        lines: Option<&mut Vec<String>>,
    ) -> Result<(), String> {
        let stepped = self.stepped(state.nodes[usize::from(me.0)], me, input)?;
        state.nodes[usize::from(me.0)] = stepped.after;
        let effects = self.steps.effects(stepped.effects).to_vec();
        if let Some(lines) = lines {
            lines.extend(effects.iter().map(|effect| format!("    {effect:?}")));
        }
        effects.into_iter().try_for_each(|effect| self.carry_out(state, me, effect))
    }

    fn stepped(&mut self, before: u32, me: NodeId, input: Input) -> Result<Stepped, String> {
        let number = self.inputs.number((me, input));
        if let Some(stepped) = self.steps.known(before, number) {
            return Ok(stepped);
        }
        let mut after = self.nodes.value(before).clone();
        let mut effects = Vec::new();
        guarded(|| after.step(input, &mut effects)).map_err(|what| format!("the protocol at {me} stopped: {what}"))?;
        let after = self.nodes.number(after);
        Ok(self.steps.remember(before, number, after, effects))
    }

    fn carry_out(&mut self, state: &mut State, me: NodeId, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Send(to, _) if to == me || to.0 >= self.instance.nodes => {
                return Err(format!("{me} sends a message to itself or to nobody"));
            }
            Effect::Send(to, message) => {
                if let Message::LockForward(id, next, _) = message
                    && next == me
                {
                    state.queues[id as usize].push(me.0 as u8);
                }
                let number = self.envelopes.number((me, to, message));
                let at = state.messages.partition_point(|&other| other <= number);
                state.messages.insert(at, number);
            }
            Effect::Wake(waiter, value) => self.woken(state, me, waiter, value)?,
            Effect::Refused(waiter, what) => {
                let (thread, _) = self.thread_of(state, me, waiter)?;
                if what != ABANDONED {
                    return Err(format!("{} is refused: {what}", self.name(thread)));
                }
                oracle::abandoned(&self.instance, state, thread);
            }
            Effect::Violation(from, what) => {
                return Err(format!("{me} reports of {from}: {what}"));
            }
        }
        Ok(())
    }

    fn woken(&self, state: &mut State, me: NodeId, waiter: Waiter, value: u64) -> Result<(), String> {
        let (thread, phase) = self.thread_of(state, me, waiter)?;
        match phase {
            Phase::Main => {
                oracle::woken(&self.instance, state, thread, value, |thread| self.name(thread))?;
            }
            Phase::Enrolled => state.threads[thread].floor = 1,
            Phase::Ending => state.threads[thread].retire(),
        }
        Ok(())
    }

    /// At the end no node may remember anything about calls.
    fn refuse_leftovers(&self, state: &State) -> Result<(), String> {
        match state.nodes.iter().position(|&node| !self.nodes.value(node).is_quiet()) {
            Some(node) => Err(format!("all is over, but node {node} remembers calls")),
            None => Ok(()),
        }
    }

    /// Waiters are different for every call, so that a wake for an old one is noticed.
    fn waiter(&self, state: &State, thread: usize, phase: Phase) -> Waiter {
        let of = &state.threads[thread];
        let round = oracle::rounds(&self.instance, thread) - of.left;
        Waiter::from(round) | (phase as u32) << 4 | u32::from(of.tries) << 6 | (thread as u32) << 8
    }

    fn thread_of(&self, state: &State, me: NodeId, waiter: Waiter) -> Result<(usize, Phase), String> {
        let index = (waiter >> 8) as usize;
        let phase = state.threads.get(index).and_then(|thread| match thread.activity {
            Activity::Waiting if waiter == self.waiter(state, index, Phase::Main) => Some(Phase::Main),
            Activity::Waiting if thread.floor == 0 && waiter == self.waiter(state, index, Phase::Enrolled) => {
                Some(Phase::Enrolled)
            }
            Activity::Ending if waiter == self.waiter(state, index, Phase::Ending) => Some(Phase::Ending),
            _ => None,
        });
        phase
            .filter(|_| self.node_of(index) == me)
            .map(|phase| (index, phase))
            .ok_or_else(|| format!("{me} wakes call {waiter}, which does not wait"))
    }

    fn node_of(&self, thread: usize) -> NodeId {
        NodeId((thread / usize::from(self.instance.threads)) as u16)
    }

    fn name(&self, thread: usize) -> String {
        format!("{} thread {}", self.node_of(thread), thread % usize::from(self.instance.threads))
    }

    fn envelope_text(&self, number: u32) -> String {
        let (from, to, message) = self.envelopes.value(number);
        format!("{}->{} {message:?}", from.0, to.0)
    }

    fn read(&self, bytes: &[u8]) -> State {
        let mut bytes = bytes.iter().copied();
        let mut byte = || bytes.next().expect("a state as it was written");
        let mut four = || u32::from_le_bytes([byte(), byte(), byte(), byte()]);
        let nodes = (0..self.instance.nodes).map(|_| four()).collect();
        let objects = usize::from(self.instance.objects);
        let seen = (0..objects).map(|_| four()).collect();
        let threads = usize::from(self.instance.nodes) * usize::from(self.instance.threads);
        let threads = (0..threads).map(|_| {
            let [activity, left, object, floor] = four().to_le_bytes();
            let [mode, tries, _, _] = four().to_le_bytes();
            let activity = match activity {
                0 => Activity::Idle,
                1 => Activity::Waiting,
                2 => Activity::Holding,
                _ => Activity::Ending,
            };
            Thread { activity, left, object, floor, mode, tries }
        });
        let threads = threads.collect();
        let begun = (0..objects).map(|_| four() as u8).collect();
        let queues = (0..objects)
            .map(|_| {
                let waiting = four();
                (0..waiting).map(|_| four() as u8).collect()
            })
            .collect();
        let [time_outs, ledger @ ..] = four().to_le_bytes();
        let count = four();
        let messages = (0..count).map(|_| four()).collect();
        State { nodes, threads, seen, begun, queues, time_outs, ledger, messages }
    }
}

impl Thread {
    fn idle(left: u8) -> Thread {
        Thread { activity: Activity::Idle, left, object: 0, floor: 0, mode: 0, tries: 0 }
    }

    fn retire(&mut self) {
        *self = Thread::idle(self.left - 1);
    }
}

impl State {
    /// Every thread has finished, and no message is under way.
    fn is_over(&self) -> bool {
        self.messages.is_empty()
            && self.threads.iter().all(|thread| thread.activity == Activity::Idle && thread.left == 0)
    }

    /// The token of lock `id` reaches `node`.
    fn take_turn(&mut self, id: usize, node: u8) -> Result<(), String> {
        let queue = &mut self.queues[id];
        if queue.first() != Some(&node) {
            return Err(format!("the token reaches node {node}, but the order is {queue:?}"));
        }
        queue.remove(0);
        Ok(())
    }

    fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        let mut four = |value: u32| bytes.extend_from_slice(&value.to_le_bytes());
        self.nodes.iter().chain(&self.seen).for_each(|&value| four(value));
        for thread in &self.threads {
            let parts = [thread.activity as u8, thread.left, thread.object, thread.floor];
            four(u32::from_le_bytes(parts));
            four(u32::from_le_bytes([thread.mode, thread.tries, 0, 0]));
        }
        self.begun.iter().for_each(|&count| four(u32::from(count)));
        for queue in &self.queues {
            four(queue.len() as u32);
            queue.iter().for_each(|&node| four(u32::from(node)));
        }
        let [one, two, three] = self.ledger;
        four(u32::from_le_bytes([self.time_outs, one, two, three]));
        four(self.messages.len() as u32);
        self.messages.iter().for_each(|&number| four(number));
        bytes
    }
}
