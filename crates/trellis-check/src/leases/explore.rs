//! Every order of events of a small cluster with leases, as a model for the explorer.
//!
//! Real time is a small number. At any moment it may advance by one, and every clock with it by its own rate, up to
//! the end of the setup. Any message under way may be the next to arrive, or never arrive. A node whose timer has
//! expired may notice it at any later moment, which includes nodes that sleep. Equal messages count once: the network
//! may repeat them, as often as the setup allows. A state contains a number for every node, one for what clients may
//! have seen, and one for every message.
//!
//! It must never leave out an order within those bounds.

use super::ghost::{Ghost, check_rights};
use super::node::{Cause, Envelope, Node, Out, name};
use super::{Injection, Setup};
use crate::explore::{Model, Successors};
use crate::fingerprint::Table;
use crate::intern::{Numbered, guarded};
use crate::leases::ghost::Event;
use trellis_fabric_protocol::lease::controller::Input as Directive;

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Real time advances.
    Time,
    /// The timer of this state machine of a node expires.
    Tick(usize, usize),
    Go(usize),
    Change(usize),
    /// The message at this place of the state arrives at this node; says whether it also stays under way.
    Deliver {
        place: usize,
        node: usize,
        stays: bool,
    },
    /// One of the setup's faults.
    Inject(usize),
}

/// The result of a step of a node.
struct Stepped {
    after: u32,
    envelopes: Vec<u32>,
    events: Vec<Event>,
    problem: Option<String>,
}

/// See the module's documentation.
pub struct Orders {
    setup: Setup,
    nodes: Numbered<Node>,
    envelopes: Numbered<Envelope>,
    ghosts: Numbered<Ghost>,
    causes: Numbered<Cause>,
    /// Steps by node state, cause and real time.
    steps: Table<(u32, u32, u32), usize>,
    stepped: Vec<Stepped>,
}

/// A decoded state.
#[derive(Clone)]
struct State {
    nodes: Vec<u32>,
    ghost: u32,
    real: u8,
    duplicates: u8,
    misrouted: u8,
    /// Bits of the faults that have happened.
    injections: u8,
    envelopes: Vec<u32>,
}

impl Orders {
    /// The model of a setup.
    pub fn new(setup: Setup) -> Orders {
        assert!(setup.injections.len() <= 8 && setup.rates.len() == setup.nodes(), "{}", setup.describe());
        Orders {
            setup,
            nodes: Numbered::new(),
            envelopes: Numbered::new(),
            ghosts: Numbered::new(),
            causes: Numbered::new(),
            steps: Table::default(),
            stepped: Vec::new(),
        }
    }

    /// The number of distinct node states, and of computed steps.
    pub fn sizes(&self) -> (usize, usize) {
        (self.nodes.len(), self.stepped.len())
    }

    fn taken_apart(&self, bytes: &[u8]) -> State {
        let mut numbers: Vec<u32> =
            bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect();
        let envelopes = numbers.split_off(self.setup.nodes() + 2);
        let [real, duplicates, misrouted, injections] = numbers.pop().expect("a state has a time").to_le_bytes();
        let ghost = numbers.pop().expect("a state has a ghost");
        State { nodes: numbers, ghost, real, duplicates, misrouted, injections, envelopes }
    }

    fn put(state: &State, bytes: &mut Vec<u8>) {
        let small = u32::from_le_bytes([state.real, state.duplicates, state.misrouted, state.injections]);
        let numbers = state.nodes.iter().chain([&state.ghost, &small]).chain(&state.envelopes);
        numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    }

    fn node(&self, state: &State, node: usize) -> &Node {
        self.nodes.value(state.nodes[node])
    }

    /// The nodes where the message may arrive: its destination, and others if the switch may still misroute.
    fn places(&self, state: &State, envelope: &Envelope) -> Vec<usize> {
        let meant = self.setup.node(envelope.to.host);
        let may_err = envelope.is_page_request() && state.misrouted < self.setup.misrouted;
        (0..self.setup.controller() + 1)
            .filter(|&number| {
                let node = self.node(state, number);
                let is_meant = Some(number) == meant && (envelope.is_page_request() || node.party == envelope.to);
                !node.is_dead && (is_meant || may_err && number != self.setup.controller())
            })
            .collect()
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (place, &number) in state.envelopes.iter().enumerate() {
            for node in self.places(state, self.envelopes.value(number)) {
                actions.push(Action::Deliver { place, node, stays: false });
                if state.duplicates < self.setup.duplicates {
                    actions.push(Action::Deliver { place, node, stays: true });
                }
            }
        }
        for node in 0..self.setup.nodes() {
            let now = self.setup.now(node, state.real.into());
            let machine = self.node(state, node);
            let due = machine.alarms().filter(|(_, alarm)| *alarm <= now);
            actions.extend(due.map(|(unit, _)| Action::Tick(node, unit)));
            if machine.can_go(&self.setup) {
                actions.push(Action::Go(node));
            }
            if machine.can_change(&self.setup, now) {
                actions.push(Action::Change(node));
            }
        }
        let left = |index: &usize| state.injections >> index & 1 == 0;
        actions.extend((0..self.setup.injections.len()).filter(left).map(Action::Inject));
        if state.real < self.setup.ticks {
            actions.push(Action::Time);
        }
        actions
    }

    /// The node that an action concerns, and the cause of its step.
    fn cause(&self, state: &State, action: Action) -> Option<(usize, Cause)> {
        Some(match action {
            Action::Time => return None,
            Action::Tick(node, unit) => (node, Cause::Tick(unit)),
            Action::Go(node) => (node, Cause::Go),
            Action::Change(node) => (node, Cause::Change),
            Action::Deliver { place, node, .. } => {
                (node, Cause::Envelope(self.envelopes.value(state.envelopes[place]).clone()))
            }
            Action::Inject(index) => match self.setup.injections[index] {
                Injection::Restart(node) => (node, Cause::Restart { keeps: true }),
                Injection::Blank(node) => (node, Cause::Restart { keeps: false }),
                Injection::Death(node) => (node, Cause::Death),
                Injection::Move(to) => (self.setup.controller(), Cause::Directive(0, Directive::Move(to))),
                Injection::Back(host) => (self.setup.controller(), Cause::Directive(0, Directive::Back(host))),
                Injection::Drop(host) => (self.setup.controller(), Cause::Directive(0, Directive::Drop(host))),
                Injection::Split(first, pages) => (self.setup.controller(), Cause::Split(first, pages)),
                Injection::Merge => (self.setup.controller(), Cause::Merge(0)),
                Injection::MovePart(to) => (self.setup.controller(), Cause::Directive(1, Directive::Move(to))),
                Injection::BackPart(host) => (self.setup.controller(), Cause::Directive(1, Directive::Back(host))),
            },
        })
    }

    fn step(&mut self, state: &State, node: usize, cause: &Cause) -> usize {
        let key = (state.nodes[node], self.causes.number(cause.clone()), u32::from(state.real));
        if let Some(&place) = self.steps.get(&key) {
            return place;
        }
        let mut out = Out::default();
        let (after, problem) = self.work_out(state, node, cause, &mut out);
        let envelopes = out.envelopes.into_iter().map(|envelope| self.envelopes.number(envelope)).collect();
        self.stepped.push(Stepped { after, envelopes, events: out.events, problem });
        self.steps.insert(key, self.stepped.len() - 1);
        self.stepped.len() - 1
    }

    fn work_out(&mut self, state: &State, number: usize, cause: &Cause, out: &mut Out) -> (u32, Option<String>) {
        let mut node = self.node(state, number).clone();
        let now = self.setup.now(number, state.real.into());
        let done = guarded(|| node.step(&self.setup, now, cause, out));
        let problem = done.err().map(|what| format!("the machine of node {number} stopped: {what}"));
        (self.nodes.number(node), problem)
    }

    /// The successor of an action, or the rule that it breaks.
    fn behind(&mut self, state: &State, action: Action) -> Result<State, String> {
        let mut next = state.clone();
        match action {
            Action::Time => next.real += 1,
            Action::Deliver { place, stays: false, .. } => drop(next.envelopes.remove(place)),
            Action::Deliver { .. } => next.duplicates += 1,
            Action::Inject(index) => next.injections |= 1 << index,
            Action::Tick(..) | Action::Go(_) | Action::Change(_) => {}
        }
        if let Action::Deliver { place, node, .. } = action {
            let meant = self.setup.node(self.envelopes.value(state.envelopes[place]).to.host);
            next.misrouted += u8::from(meant != Some(node));
        }
        if let Some((node, cause)) = self.cause(state, action) {
            let place = self.step(state, node, &cause);
            let Stepped { after, envelopes, events, problem } = &self.stepped[place];
            if let Some(problem) = problem {
                return Err(problem.clone());
            }
            next.nodes[node] = *after;
            next.envelopes.extend_from_slice(envelopes);
            if !events.is_empty() {
                let mut ghost = self.ghosts.value(state.ghost).clone();
                events.iter().try_for_each(|&event| ghost.note(event))?;
                next.ghost = self.ghosts.number(ghost);
            }
            next.envelopes.sort_unstable();
            next.envelopes.dedup();
            let arrives = |envelope: &u32| !self.places(&next, self.envelopes.value(*envelope)).is_empty();
            next.envelopes = next.envelopes.iter().copied().filter(arrives).collect();
        }
        let nodes = next.nodes.iter().map(|&number| self.nodes.value(number));
        let now = |node, real| self.setup.now(node, real);
        if let Some(holders) = self.ghosts.value(next.ghost).other_holders(next.real.into(), nodes.clone(), now) {
            let mut ghost = self.ghosts.value(next.ghost).clone();
            ghost.hold(holders);
            next.ghost = self.ghosts.number(ghost);
        }
        check_rights(&self.setup, next.real.into(), nodes, |node, real| self.setup.now(node, real))?;
        Ok(next)
    }
}

impl Model for Orders {
    fn initial(&mut self) -> Vec<u8> {
        let nodes = (0..self.setup.nodes()).map(|number| self.nodes.number(Node::new(&self.setup, number))).collect();
        let ghost = self.ghosts.number(Ghost::new(&self.setup));
        let start = State { nodes, ghost, real: 0, duplicates: 0, misrouted: 0, injections: 0, envelopes: Vec::new() };
        let mut bytes = Vec::new();
        Orders::put(&start, &mut bytes);
        bytes
    }

    fn expand(&mut self, bytes: &[u8], next: &mut Successors) -> Result<(), String> {
        let state = self.taken_apart(bytes);
        for action in self.actions(&state) {
            match self.behind(&state, action) {
                Ok(after) => next.push(|bytes| Orders::put(&after, bytes)),
                Err(what) => next.push_broken(what),
            }
        }
        Ok(())
    }

    fn tell(&mut self, bytes: &[u8], action: usize) -> Vec<String> {
        let state = self.taken_apart(bytes);
        let action = self.actions(&state)[action];
        let first = match action {
            Action::Time => return vec![format!("real time is {}", state.real + 1)],
            Action::Deliver { place, node, stays } => {
                let envelope = self.envelopes.value(state.envelopes[place]);
                let Envelope { from, to, .. } = envelope;
                let meant = if self.setup.node(to.host) == Some(node) { "" } else { " (where the switch sent it)" };
                let again = if stays { ", and may again" } else { "" };
                format!("node {node}{meant} hears from {}: {}{again}", name(*from), envelope.text())
            }
            Action::Inject(index) => format!("{:?}", self.setup.injections[index]),
            Action::Tick(node, unit) => {
                let now = self.setup.now(node, state.real.into());
                let of = if unit == 0 { String::new() } else { format!(" for part {}", unit - 1) };
                format!("node {node} notices the time{of}: {now}")
            }
            Action::Go(node) => format!("node {node} goes on"),
            Action::Change(node) => format!("node {node} changes the last page itself"),
        };
        let mut out = Out { story: Some(vec![first]), ..Out::default() };
        if let Some((node, cause)) = self.cause(&state, action) {
            self.work_out(&state, node, &cause, &mut out);
        }
        out.story.unwrap_or_default()
    }
}
