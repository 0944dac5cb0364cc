//! A small cluster whose threads use locks, barriers and atomic words: what the explorer walks
//! through for synchronisation.
//!
//! The network is a bag: any message may arrive next. What is checked:
//!
//! 1. *Mutual exclusion*: a lock is given to a thread only while nobody holds it.
//! 2. *First come, first served*: nodes get the token in the order in which their requests reached
//!    the lock's home.
//! 3. *Nobody leaves a barrier* before every node has entered it.
//! 4. *Additions are linearizable*: each sees a value that no other saw, larger than all that were
//!    seen before it began and smaller than the number of additions begun.
//! 5. *Every call ends*, and is woken exactly once.
//!
//! It must never look into the protocol: it knows inputs and effects and nothing else.

use crate::explore::{Model, Successors};
use crate::intern::{Numbered, Stepped, Steps, guarded};
use std::hash::Hash;
use trellis_protocol::NodeId;
use trellis_protocol::sync::{Effect, Input, Message, Operation, Sync, Waiter};

/// What every thread does, `rounds` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// Takes one of the locks and gives it back.
    Locks,
    /// The same, but may give up while it waits.
    ImpatientLocks,
    /// Enters the barrier (one thread per node).
    Barrier,
    /// Adds one to one of the words.
    Words,
}

/// The size of a cluster and what its threads do.
#[derive(Clone, Copy, Debug)]
pub struct SyncInstance {
    /// What every thread does.
    pub program: Program,
    /// Number of nodes.
    pub nodes: u16,
    /// Threads of each node.
    pub threads: u8,
    /// How often.
    pub rounds: u8,
    /// Locks or words to choose from, with homes at different nodes.
    pub objects: u8,
}

/// What can stand at a node.
pub trait Synchronises: Clone + Eq + Hash {
    /// As [`Sync::step`].
    fn step(&mut self, input: Input, effects: &mut Vec<Effect>);
}

impl Synchronises for Sync {
    fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        Sync::step(self, input, effects);
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

    /// What makes this instance different from others, in a few words.
    pub fn describe(&self) -> String {
        format!(
            "{} nodes={} threads={} rounds={} objects={}",
            match self.program {
                Program::Locks => "locks",
                Program::ImpatientLocks => "locks abandoned",
                Program::Barrier => "barrier",
                Program::Words => "words",
            },
            self.nodes,
            self.threads,
            self.rounds,
            self.objects
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Activity {
    Idle,
    Waiting,
    Holding,
}

#[derive(Clone, Copy)]
struct Thread {
    activity: Activity,
    left: u8,
    object: u8,
    /// The least value that the addition under way may see.
    floor: u8,
}

#[derive(Clone)]
struct State {
    nodes: Vec<u32>,
    threads: Vec<Thread>,
    /// Per object, the values that additions saw, one bit each.
    seen: Vec<u32>,
    /// Per object, how many additions began.
    begun: Vec<u8>,
    /// Per object, the nodes whose requests reached the home, in that order, without the token yet.
    queues: Vec<Vec<u8>>,
    messages: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Action {
    Deliver(u32),
    Begin { thread: usize, object: u8 },
    Release { thread: usize },
    Abandon { thread: usize },
}

impl<N: Synchronises> Model for Calls<N> {
    fn initial(&mut self) -> Vec<u8> {
        let objects = usize::from(self.instance.objects);
        let thread = Thread { activity: Activity::Idle, left: self.instance.rounds, object: 0, floor: 0 };
        let threads = usize::from(self.instance.nodes) * usize::from(self.instance.threads);
        State {
            nodes: self.start.clone(),
            threads: vec![thread; threads],
            seen: vec![0; objects],
            begun: vec![0; objects],
            queues: vec![Vec::new(); objects],
            messages: Vec::new(),
        }
        .write()
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
            None => Ok(()),
        }
    }

    fn tell(&mut self, state: &[u8], action: usize) -> Vec<String> {
        let mut state = self.read(state);
        let action = self.enabled(&state).0[action];
        let mut lines = vec![match action {
            Action::Deliver(number) => format!("arrives: {}", self.envelope_text(number)),
            Action::Begin { thread, object } => format!("{} calls for {object}", self.name(thread)),
            Action::Release { thread } => format!("{} releases", self.name(thread)),
            Action::Abandon { thread } => format!("{} gives up", self.name(thread)),
        }];
        if let Err(what) = self.act(&mut state, action, Some(&mut lines)) {
            lines.push(format!("    ! {what}"));
        }
        lines
    }
}

impl<N: Synchronises> Calls<N> {
    /// What can happen, and whether any of it must happen some time.
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
                Activity::Idle if thread.left > 0 => {
                    actions.extend((0..self.instance.objects).map(|object| Action::Begin { thread: index, object }))
                }
                Activity::Holding => actions.push(Action::Release { thread: index }),
                _ => {}
            }
        }
        let must_go_on = !actions.is_empty();
        if self.instance.program == Program::ImpatientLocks {
            let waiting =
                (0..state.threads.len()).filter(|&thread| state.threads[thread].activity == Activity::Waiting);
            actions.extend(waiting.map(|thread| Action::Abandon { thread }));
        }
        (actions, must_go_on)
    }

    fn act(&mut self, state: &mut State, action: Action, told: Option<&mut Vec<String>>) -> Result<(), String> {
        match action {
            Action::Deliver(number) => {
                let index = state.messages.iter().position(|&other| other == number);
                state.messages.remove(index.expect("a message under way"));
                let (from, to, message) = *self.envelopes.value(number);
                match message {
                    Message::LockRequest(id) => {
                        state.queues[id as usize].push(from.0 as u8);
                    }
                    Message::LockToken(id) => state.take_turn(id as usize, to.0 as u8)?,
                    _ => {}
                }
                self.step(state, to, Input::Message(from, message), told)
            }
            Action::Begin { thread, object } => {
                let waiter = self.waiter(state, thread);
                let seen = state.seen[usize::from(object)];
                let began = &mut state.threads[thread];
                began.activity = Activity::Waiting;
                began.object = object;
                let id = u64::from(object);
                let input = match self.instance.program {
                    Program::Locks | Program::ImpatientLocks => Input::Acquire(id, waiter),
                    Program::Barrier => Input::Arrive(id, waiter),
                    Program::Words => {
                        began.floor = (32 - seen.leading_zeros()) as u8;
                        state.begun[usize::from(object)] += 1;
                        Input::Operate(id, Operation::FetchAdd(1), waiter)
                    }
                };
                self.step(state, self.node_of(thread), input, told)
            }
            Action::Release { thread } => {
                let object = state.threads[thread].object;
                state.threads[thread].retire();
                self.step(state, self.node_of(thread), Input::Release(u64::from(object)), told)
            }
            Action::Abandon { thread } => {
                let waiter = self.waiter(state, thread);
                let object = u64::from(state.threads[thread].object);
                self.step(state, self.node_of(thread), Input::Abandon(object, waiter), told)
            }
        }
    }

    fn step(
        &mut self,
        state: &mut State,
        me: NodeId,
        input: Input,
        told: Option<&mut Vec<String>>,
    ) -> Result<(), String> {
        let stepped = self.stepped(state.nodes[usize::from(me.0)], me, input)?;
        state.nodes[usize::from(me.0)] = stepped.after;
        let effects = self.steps.effects(stepped.effects).to_vec();
        if let Some(lines) = told {
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
                if let Message::LockForward(id, next) = message
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
                let thread = self.thread_of(state, me, waiter)?;
                if what != "abandoned" {
                    return Err(format!("{} is refused: {what}", self.name(thread)));
                }
                state.threads[thread].retire();
            }
            Effect::Violation(from, what) => {
                return Err(format!("{me} reports of {from}: {what}"));
            }
        }
        Ok(())
    }

    fn woken(&self, state: &mut State, me: NodeId, waiter: Waiter, value: u64) -> Result<(), String> {
        let index = self.thread_of(state, me, waiter)?;
        let thread = state.threads[index];
        match self.instance.program {
            Program::Locks | Program::ImpatientLocks => {
                let holder = state
                    .threads
                    .iter()
                    .position(|other| other.activity == Activity::Holding && other.object == thread.object);
                if let Some(holder) = holder {
                    let (new, old) = (self.name(index), self.name(holder));
                    return Err(format!("{new} gets the lock that {old} holds"));
                }
                state.threads[index].activity = Activity::Holding;
            }
            Program::Barrier => {
                let round = self.instance.rounds - thread.left;
                let late = state.threads.iter().position(|other| {
                    let entered = self.instance.rounds - other.left;
                    entered + u8::from(other.activity == Activity::Waiting) <= round
                });
                if let Some(late) = late {
                    let (new, late) = (self.name(index), self.name(late));
                    return Err(format!("{new} leaves the barrier before {late} entered it"));
                }
                state.threads[index].retire();
            }
            Program::Words => {
                let object = usize::from(thread.object);
                let range = u64::from(thread.floor)..u64::from(state.begun[object]);
                if !range.contains(&value) || state.seen[object] >> value & 1 != 0 {
                    return Err(format!("{} sees {value}, which cannot be", self.name(index)));
                }
                state.seen[object] |= 1 << value;
                state.threads[index].retire();
            }
        }
        Ok(())
    }

    /// Waiters are different for every call: a wake for an old one is noticed.
    fn waiter(&self, state: &State, thread: usize) -> Waiter {
        let round = self.instance.rounds - state.threads[thread].left;
        Waiter::from(round) | (thread as u32) << 8
    }

    fn thread_of(&self, state: &State, me: NodeId, waiter: Waiter) -> Result<usize, String> {
        let thread = (waiter >> 8) as usize;
        let waits = state
            .threads
            .get(thread)
            .is_some_and(|other| other.activity == Activity::Waiting && self.waiter(state, thread) == waiter);
        if waits && self.node_of(thread) == me {
            return Ok(thread);
        }
        Err(format!("{me} wakes call {waiter}, which does not wait"))
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
            let activity = match activity {
                0 => Activity::Idle,
                1 => Activity::Waiting,
                _ => Activity::Holding,
            };
            Thread { activity, left, object, floor }
        });
        let threads = threads.collect();
        let begun = (0..objects).map(|_| four() as u8).collect();
        let queues = (0..objects)
            .map(|_| {
                let waiting = four();
                (0..waiting).map(|_| four() as u8).collect()
            })
            .collect();
        let count = four();
        let messages = (0..count).map(|_| four()).collect();
        State { nodes, threads, seen, begun, queues, messages }
    }
}

impl Thread {
    fn retire(&mut self) {
        *self = Thread { activity: Activity::Idle, left: self.left - 1, object: 0, floor: 0 };
    }
}

impl State {
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
        }
        self.begun.iter().for_each(|&count| four(u32::from(count)));
        for queue in &self.queues {
            four(queue.len() as u32);
            queue.iter().for_each(|&node| four(u32::from(node)));
        }
        four(self.messages.len() as u32);
        self.messages.iter().for_each(|&number| four(number));
        bytes
    }
}
