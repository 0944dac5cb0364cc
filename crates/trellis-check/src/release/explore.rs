//! Every order of events of a small cluster, as a model for the explorer.
//!
//! A state contains a number for every node, one for what threads may see, what may still go wrong, and a number for every
//! message under way. The result of a node's step is computed once for each pair of a node state and a fact. Besides the
//! checks of the memory model, in every state some event must happen, or all threads are done and no message is under way;
//! and at the end no store is lost.
//!
//! It must never leave out an order: any message may be the next, and any thread, unless the setup says that messages
//! keep their order.

use super::effects::{Envelope, Event, Out, Packet};
use super::ghost::Ghost;
use super::node::Node;
use super::{Setup, Troubles, Turn, cluster};
use crate::explore::{Model, Successors};
use crate::fingerprint::Table;
use crate::intern::{Numbered, guarded};
use crate::model::twinned::Body;

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A thread takes a turn.
    Take { node: u16, thread: u8, turn: Turn },
    /// The message at this index of the state arrives.
    Deliver { place: usize },
}

impl Action {
    /// Whether it happens at some time, unless another one prevents it.
    fn must_happen(self) -> bool {
        match self {
            Action::Take { turn, .. } => turn.must_happen(),
            Action::Deliver { .. } => true,
        }
    }
}

/// The result of a step of a node.
struct Stepped {
    after: u32,
    packets: Vec<u32>,
    events: Vec<Event>,
    problem: Option<String>,
}

/// See the module's documentation.
pub struct Orders {
    setup: Setup,
    nodes: Numbered<Node>,
    packets: Numbered<Envelope>,
    ghosts: Numbered<Ghost>,
    /// Steps by node state, and thread or message.
    steps: Table<u64, usize>,
    stepped: Vec<Stepped>,
    /// Results by checker state and step, for steps that need no check of the homes.
    judged: Table<u64, u32>,
    start: Vec<u32>,
}

/// A decoded state.
#[derive(Clone)]
struct State {
    nodes: Vec<u32>,
    ghost: u32,
    troubles: Troubles,
    packets: Vec<u32>,
}

/// Marks a thread, rather than a message, as the cause of a step. Its branch, its turn and its index are below.
const THREAD: u32 = 1 << 31;
/// The number of a turn that is a choice; those of others are places in [`Turn::PLAIN`].
const CHOICE: u8 = Turn::PLAIN.len() as u8;

impl Orders {
    /// The model of a setup.
    pub fn new(setup: Setup) -> Orders {
        let mut nodes = Numbered::new();
        let mut ghosts = Numbered::new();
        let mut start: Vec<u32> = (0..setup.nodes).map(|me| nodes.number(Node::new(&setup, me))).collect();
        start.push(ghosts.number(Ghost::new(&setup)));
        start.push(u32::from_le_bytes([setup.troubles.give_ups, setup.troubles.objections, 0, 0]));
        Orders {
            setup,
            nodes,
            packets: Numbered::new(),
            ghosts,
            steps: Table::default(),
            stepped: Vec::new(),
            judged: Table::default(),
            start,
        }
    }

    /// The number of distinct node states, and of computed steps.
    pub fn sizes(&self) -> (usize, usize) {
        (self.nodes.len(), self.stepped.len())
    }

    fn taken_apart(&self, bytes: &[u8]) -> State {
        let mut numbers: Vec<u32> =
            bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect();
        let packets = numbers.split_off(usize::from(self.setup.nodes) + 2);
        let [.., ghost, troubles] = numbers[..] else { unreachable!("a state has both") };
        numbers.truncate(usize::from(self.setup.nodes));
        let [give_ups, objections, ..] = troubles.to_le_bytes();
        State { nodes: numbers, ghost, troubles: Troubles { give_ups, objections }, packets }
    }

    fn put(state: &State, bytes: &mut Vec<u8>) {
        let troubles = u32::from_le_bytes([state.troubles.give_ups, state.troubles.objections, 0, 0]);
        let numbers = state.nodes.iter().chain([&state.ghost, &troubles]).chain(&state.packets);
        numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.ghosts.value(state.ghost).has_failed() {
            return actions;
        }
        for place in 0..state.packets.len() {
            let packet = state.packets[place];
            let is_first = |other: &u32| {
                let (one, other) = (self.packets.value(packet), self.packets.value(*other));
                (one.from, one.to) == (other.from, other.to)
            };
            let is_kept_back = if self.setup.is_ordered {
                state.packets[..place].iter().any(is_first)
            } else {
                state.packets[..place].contains(&packet)
            };
            if !is_kept_back {
                actions.push(Action::Deliver { place });
            }
        }
        for node in 0..self.setup.nodes {
            let of = self.nodes.value(state.nodes[usize::from(node)]);
            for turn in Turn::PLAIN.into_iter().filter(|&turn| state.troubles.allow(turn)) {
                let able = (0..of.threads.len()).filter(|&thread| of.can_take(&self.setup, thread, turn));
                actions.extend(able.map(|thread| Action::Take { node, thread: thread as u8, turn }));
            }
            if self.setup.objects.is_some() {
                self.choices(state, node, &mut actions);
            }
        }
        actions
    }

    /// Adds what the threads of a node may choose.
    fn choices(&self, state: &State, node: u16, actions: &mut Vec<Action>) {
        let of = self.nodes.value(state.nodes[usize::from(node)]);
        for thread in 0..of.threads.len() {
            let choices = of.choices(&self.setup, thread);
            if choices > 0 && self.ghosts.value(state.ghost).may_choose(of.threads[thread].operation(&self.setup)) {
                let all = (0..choices).map(Turn::Chooses);
                actions.extend(all.map(|turn| Action::Take { node, thread: thread as u8, turn }));
            }
        }
    }

    /// The message in the form in which it arrives now.
    fn as_delivered(&mut self, state: &State, number: u32) -> u32 {
        let envelope = self.packets.value(number);
        let Packet::Page { message, body: Body::Late } = &envelope.message else { return number };
        let range = message.bytes().expect("it has bytes");
        let sender = self.nodes.value(state.nodes[usize::from(envelope.from)]);
        let message = Packet::Page { message: *message, body: Body::Pages(sender.bytes_of(&self.setup, range)) };
        let envelope = Envelope { message, ..envelope.clone() };
        self.packets.number(envelope)
    }

    /// The node of an action, and its cause by number.
    fn cause(&mut self, state: &State, action: Action) -> (u16, u32) {
        match action {
            Action::Take { node, thread, turn } => {
                let [turn, branch] = match turn {
                    Turn::Goes => [0, 0],
                    Turn::GivesUp => [1, 0],
                    Turn::Objects => [2, 0],
                    Turn::Chooses(branch) => [CHOICE, branch],
                };
                (node, THREAD | u32::from_le_bytes([thread, turn, branch, 0]))
            }
            Action::Deliver { place } => {
                let number = self.as_delivered(state, state.packets[place]);
                (self.packets.value(number).to, number)
            }
        }
    }

    /// The result of `action`: the index in `stepped`, and the node.
    fn step(&mut self, state: &State, action: Action) -> (usize, u16) {
        let (node, cause) = self.cause(state, action);
        let before = state.nodes[usize::from(node)];
        let key = u64::from(before) << 32 | u64::from(cause);
        if let Some(&place) = self.steps.get(&key) {
            return (place, node);
        }
        let mut out = Out::default();
        let after = self.work_out(before, cause, &mut out);
        let stepped = Stepped {
            after,
            packets: out.packets.into_iter().map(|envelope| self.packets.number(envelope)).collect(),
            events: out.events,
            problem: out.problem,
        };
        self.stepped.push(stepped);
        self.steps.insert(key, self.stepped.len() - 1);
        (self.stepped.len() - 1, node)
    }

    fn work_out(&mut self, before: u32, cause: u32, out: &mut Out) -> u32 {
        let mut node = self.nodes.value(before).clone();
        let (setup, packets) = (&self.setup, &self.packets);
        let done = guarded(|| match cause & THREAD {
            0 => {
                let Envelope { from, message, .. } = packets.value(cause);
                node.deliver(setup, *from, message, out);
            }
            _ => {
                let [thread, turn, branch, _] = cause.to_le_bytes();
                let turn = Turn::PLAIN.get(usize::from(turn)).copied().unwrap_or(Turn::Chooses(branch));
                node.take_turn(setup, thread.into(), turn, out);
            }
        });
        if let Err(what) = done {
            out.problem(format!("the protocol at node {} stopped: {what}", node.me));
        }
        self.nodes.number(node)
    }

    /// The successor of an action, or the rule that it breaks.
    fn behind(&mut self, state: &State, action: Action) -> Result<State, String> {
        let (place, node) = self.step(state, action);
        let Stepped { after, packets, events, problem } = &self.stepped[place];
        if let Some(problem) = problem {
            return Err(problem.clone());
        }
        let mut next = state.clone();
        next.nodes[usize::from(node)] = *after;
        match action {
            Action::Deliver { place } => drop(next.packets.remove(place)),
            Action::Take { turn, .. } => next.troubles = next.troubles.after(turn),
        }
        next.packets.extend_from_slice(packets);
        if self.setup.is_ordered {
            // Only the order within a pair of nodes matters.
            let ends = |&number: &u32| {
                let envelope = self.packets.value(number);
                (envelope.from, envelope.to)
            };
            next.packets.sort_by_key(ends);
        } else {
            next.packets.sort_unstable();
        }
        if events.is_empty() {
            return Ok(next);
        }
        let looks_at_homes =
            events.iter().any(|event| matches!(event, Event::Published { .. } | Event::Changes { .. }));
        let key = u64::from(state.ghost) << 32 | place as u64;
        if let Some(&ghost) = self.judged.get(&key).filter(|_| !looks_at_homes) {
            next.ghost = ghost;
            return Ok(next);
        }
        let mut ghost = self.ghosts.value(state.ghost).clone();
        let nodes = next.nodes.iter().map(|&number| self.nodes.value(number));
        cluster::judge(&self.setup, &mut ghost, events, nodes)?;
        next.ghost = self.ghosts.number(ghost);
        self.judged.insert(key, next.ghost);
        Ok(next)
    }

    fn check_rest(&self, state: &State) -> Result<(), String> {
        let nodes = state.nodes.iter().map(|&number| self.nodes.value(number));
        cluster::check_rest(&self.setup, self.ghosts.value(state.ghost), nodes)
    }
}

impl Model for Orders {
    fn initial(&mut self) -> Vec<u8> {
        self.start.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn expand(&mut self, bytes: &[u8], next: &mut Successors) -> Result<(), String> {
        let state = self.taken_apart(bytes);
        let actions = self.actions(&state);
        let must_go_on = actions.iter().any(|action| action.must_happen());
        for action in actions {
            match self.behind(&state, action) {
                Ok(after) => next.push(|bytes| Orders::put(&after, bytes)),
                Err(what) => next.push_broken(what),
            }
        }
        if must_go_on { Ok(()) } else { self.check_rest(&state) }
    }

    fn tell(&mut self, bytes: &[u8], action: usize) -> Vec<String> {
        let state = self.taken_apart(bytes);
        let action = self.actions(&state)[action];
        let mut out = Out { story: Some(Vec::new()), ..Out::default() };
        let (node, cause) = self.cause(&state, action);
        let before = state.nodes[usize::from(node)];
        let first = match action {
            Action::Take { thread, turn, .. } => {
                let it = &self.nodes.value(before).threads[usize::from(thread)];
                let (number, operation, doing) = (it.number, it.operation(&self.setup), it.doing);
                format!("thread {number} at node {node} {}: {operation:?}, {doing:?}", turn.words())
            }
            Action::Deliver { .. } => {
                let Envelope { from, to, message } = self.packets.value(cause);
                format!("{from}->{to} arrives: {message}")
            }
        };
        self.work_out(before, cause, &mut out);
        let mut lines = vec![first];
        lines.extend(out.story.unwrap_or_default());
        lines.extend(out.problem.map(|problem| format!("! {problem}")));
        lines
    }
}
