//! A small cluster whose nodes change a protocol together: the explorer's model for changes.
//!
//! Every node makes the same calls, one after the other, with the real state machine of a change and the real barriers
//! and words. The network is a multiset: any message may arrive next. Waits may become too long, as often as the
//! instance allows, and any node may object. The model checks:
//!
//! 1. *All or none*: where one node's change ended as agreed, every other node's did so with the same objections.
//! 2. *Nothing is changed too early*: a node changes its own choice only when every node has its pages at home.
//! 3. *Progress*: where no node objected, was given a different change or waited too long, all change.
//! 4. *Every call ends.* A node whose ending may differ from that of others ends the cluster, and only after a wait
//!    that was too long.
//!
//! It must never inspect the state machines: it uses only orders, inputs and effects.

use crate::explore::{Model, Successors};
use crate::intern::{Numbered, guarded};
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::node::change::{Change, Changes, Ending, Input, Order};
use trellis_cluster_protocol::sync::{self, Contribution, Message, Operation, Sync, Waiter};

/// The first number of barriers and words; sets of numbers begin at multiples of eight.
const FIRST_NUMBER: u64 = 0;
const NUMBERS_PER_SET: u64 = 8;
/// The index of the word that counts objections, in a set of numbers.
const OBJECTIONS: u64 = 2;
/// The proposal that all nodes are given, and the different one for a single node.
const PROPOSAL: u64 = 7;
const OTHER_PROPOSAL: u64 = 9;

/// The size of a cluster and the faults that may happen to it.
#[derive(Clone, Copy, Debug)]
pub struct ChangeInstance {
    /// Number of nodes.
    pub nodes: u16,
    /// The number of changes, one after the other.
    pub calls: u8,
    /// How many waits may be too long, in all.
    pub late: u8,
    /// How often nodes may object, in all.
    pub objections: u8,
    /// Whether the last node is given a different change the first time.
    pub differs: bool,
    /// The rule that this instance breaks on purpose.
    pub fault: ChangeFault,
}

/// Faults: each breaks one rule of changes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeFault {
    /// No fault.
    None,
    /// A node that gives up does not decide this for all nodes.
    GivesUpAlone,
    /// A node that gives up does not come to the barriers in which others wait.
    StaysAway,
    /// Nodes change without a decision that excludes giving up.
    Undecided,
    /// A node does not count objections.
    PassesOverObjections,
    /// Objections count for the next change, too.
    KeepsObjections,
    /// After a change that was given up, its numbers are used again.
    KeepsNumbers,
}

impl ChangeInstance {
    /// The model of this instance.
    pub fn model(&self) -> ChangeModel {
        ChangeModel { instance: *self, nodes: Numbered::new(), envelopes: Numbered::new() }
    }

    /// A description of this instance: its size and its limits.
    pub fn describe(&self) -> String {
        let ChangeInstance { nodes, calls, late, objections, .. } = self;
        let differs = if self.differs { " differs" } else { "" };
        format!("changes nodes={nodes} calls={calls} late={late} objections={objections}{differs}")
    }
}

/// A node: its state machines and the state of its call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    me: NodeId,
    sync: Sync,
    changes: Changes,
    change: Option<Change>,
    /// The order in progress; `None` between two calls.
    order: Option<Order>,
    /// The number of calls of barriers and words so far; it numbers each call.
    asked: Waiter,
    /// The call that the order waits for.
    waits_for: Option<Waiter>,
    /// The barrier to which this node came last, and whether all have arrived.
    ticket: (Waiter, bool),
    endings: Vec<Ending>,
    /// The number of calls for which this node gathered its pages, and changed its own choice.
    gathered: u8,
    changed: u8,
    /// The calls to which it objected, one bit each.
    objected: u8,
}

type Envelope = (NodeId, NodeId, Message);

/// The model; see the module's documentation.
pub struct ChangeModel {
    instance: ChangeInstance,
    nodes: Numbered<Node>,
    envelopes: Numbered<Envelope>,
}

#[derive(Clone)]
struct State {
    nodes: Vec<u32>,
    late: u8,
    objections: u8,
    messages: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Deliver(u32),
    /// A call begins.
    Begin(usize),
    /// The pages are frozen; says whether the node objects.
    Freeze(usize, bool),
    /// Nothing is in progress any more, or the pages have arrived.
    Done(usize),
    /// The order takes too long.
    Late(usize),
}

impl Node {
    fn new(me: u16, nodes: u16) -> Node {
        Node {
            me: NodeId(me),
            sync: Sync::new(NodeId(me), nodes),
            changes: Changes::default(),
            change: None,
            order: None,
            asked: 0,
            waits_for: None,
            ticket: (0, false),
            endings: Vec::new(),
            gathered: 0,
            changed: 0,
            objected: 0,
        }
    }

    fn begin(&mut self, instance: &ChangeInstance, out: &mut Vec<Envelope>) -> Result<(), String> {
        let differs = instance.differs && self.me.0 + 1 == instance.nodes && self.endings.is_empty();
        let proposal = if differs { OTHER_PROPOSAL } else { PROPOSAL };
        let (change, order) = self.changes.begin(self.me, proposal, FIRST_NUMBER).expect("few calls are given up");
        self.change = Some(change);
        self.carry_out(instance, order, out)
    }

    /// Ends the current order with `input`.
    fn end(&mut self, instance: &ChangeInstance, input: Input, out: &mut Vec<Envelope>) -> Result<(), String> {
        self.waits_for = None;
        let change = self.change.as_mut().expect("an order is a change's");
        let order =
            guarded(|| change.step(input)).map_err(|what| format!("the change at {} stopped: {what}", self.me))?;
        self.carry_out(instance, order, out)
    }

    fn carry_out(&mut self, instance: &ChangeInstance, order: Order, out: &mut Vec<Envelope>) -> Result<(), String> {
        if let Some(input) = self.broken(instance, &order) {
            return self.end(instance, input, out);
        }
        self.order = Some(order.clone());
        match order {
            Order::Barrier(barrier) => {
                let waiter = self.ask();
                self.ticket = (waiter, false);
                self.waits_for = Some(waiter);
                self.sync_step(instance, sync::Input::Arrive(barrier, Contribution::Nothing, waiter), out)
            }
            Order::WaitAgain(_) if self.ticket.1 => self.end(instance, Input::Met, out),
            Order::WaitAgain(_) => {
                self.waits_for = Some(self.ticket.0);
                Ok(())
            }
            Order::Operate(word, operation) => {
                let waiter = self.ask();
                self.waits_for = Some(waiter);
                self.sync_step(instance, sync::Input::Operate(word, operation, waiter), out)
            }
            Order::Freeze | Order::Settle | Order::Gather => Ok(()),
            Order::Change => {
                self.changed = self.call() + 1;
                self.end(instance, Input::Done, out)
            }
            Order::Pass(barriers) => {
                for barrier in barriers {
                    let waiter = self.ask();
                    self.sync_step(instance, sync::Input::Arrive(barrier, Contribution::Nothing, waiter), out)?;
                }
                self.end(instance, Input::Done, out)
            }
            Order::End(ending) => {
                if !(instance.fault == ChangeFault::KeepsNumbers && matches!(ending, Ending::GivenUp { .. })) {
                    self.changes.end(ending);
                }
                self.endings.push(ending);
                (self.change, self.order) = (None, None);
                Ok(())
            }
        }
    }

    /// With a fault: the result of an order that is not carried out.
    fn broken(&self, instance: &ChangeInstance, order: &Order) -> Option<Input> {
        match (instance.fault, order) {
            (ChangeFault::GivesUpAlone, Order::Operate(_, Operation::CompareExchange(before, decision)))
                if *decision > u64::from(u32::MAX) =>
            {
                Some(Input::Value(*before))
            }
            (ChangeFault::Undecided, Order::Operate(_, Operation::CompareExchange(before, decision)))
                if *decision == before + 1 =>
            {
                Some(Input::Value(*before))
            }
            (ChangeFault::StaysAway, Order::Pass(_)) => Some(Input::Done),
            (ChangeFault::PassesOverObjections, Order::Operate(word, Operation::Load))
                if word % NUMBERS_PER_SET == OBJECTIONS && self.me.0 + 1 == instance.nodes =>
            {
                Some(Input::Value(0))
            }
            (ChangeFault::KeepsObjections, Order::Operate(word, Operation::Exchange(_)))
                if word % NUMBERS_PER_SET == OBJECTIONS =>
            {
                Some(Input::Value(0))
            }
            _ => None,
        }
    }

    fn ask(&mut self) -> Waiter {
        self.asked += 1;
        self.asked
    }

    /// The number of the current call, or of the next one.
    fn call(&self) -> u8 {
        self.endings.len() as u8
    }

    fn sync_step(
        &mut self,
        instance: &ChangeInstance,
        input: sync::Input,
        out: &mut Vec<Envelope>,
    ) -> Result<(), String> {
        let mut effects = Vec::new();
        self.sync.step(input, &mut effects);
        for effect in effects {
            match effect {
                sync::Effect::Send(to, message) => out.push((self.me, to, message)),
                sync::Effect::Wake(waiter, value) => self.woken(instance, waiter, value, out)?,
                sync::Effect::Violation(from, what) => return Err(format!("{} reports of {from}: {what}", self.me)),
                sync::Effect::Refused(_, what) => return Err(format!("{} is refused: {what}", self.me)),
            }
        }
        Ok(())
    }

    fn woken(
        &mut self,
        instance: &ChangeInstance,
        waiter: Waiter,
        value: u64,
        out: &mut Vec<Envelope>,
    ) -> Result<(), String> {
        if waiter == self.ticket.0 {
            self.ticket.1 = true;
        }
        if self.waits_for != Some(waiter) {
            // The wait for it was too long and has been abandoned.
            return Ok(());
        }
        let input = match self.order {
            Some(Order::Operate(..)) => Input::Value(value),
            _ => Input::Met,
        };
        self.end(instance, input, out)
    }

    fn has_disagreed(&self) -> bool {
        self.endings.contains(&Ending::Disagree)
    }
}

impl Model for ChangeModel {
    fn initial(&mut self) -> Vec<u8> {
        let ChangeInstance { nodes, late, objections, .. } = self.instance;
        let nodes = (0..nodes).map(|me| self.nodes.number(Node::new(me, nodes))).collect();
        State { nodes, late, objections, messages: Vec::new() }.write()
    }

    fn expand(&mut self, state: &[u8], next: &mut Successors) -> Result<(), String> {
        let before = State::read(&self.instance, state);
        if self.all(&before).any(|node| node.has_disagreed()) {
            // The cluster has failed.
            return Ok(());
        }
        let actions = self.enabled(&before);
        for &action in &actions {
            let mut after = before.clone();
            match self.act(&mut after, action) {
                Ok(()) => next.push(|bytes| bytes.extend(after.write())),
                Err(what) => next.push_broken(what),
            }
        }
        let must_go_on = actions.iter().any(|action| !matches!(action, Action::Late(_)));
        match self.all(&before).find(|node| node.call() < self.instance.calls).filter(|_| !must_go_on) {
            Some(node) => Err(format!("{} waits for ever: {:?}", node.me, node.order)),
            None => Ok(()),
        }
    }

    fn tell(&mut self, state: &[u8], action: usize) -> Vec<String> {
        let mut state = State::read(&self.instance, state);
        let action = self.enabled(&state)[action];
        let mut lines = vec![match action {
            Action::Deliver(number) => {
                let (from, to, message) = self.envelopes.value(number);
                format!("arrives: {}->{} {message}", from.0, to.0)
            }
            Action::Begin(node) => format!("n{node} calls"),
            Action::Freeze(node, true) => format!("n{node} freezes its pages, and objects"),
            Action::Freeze(node, false) => format!("n{node} freezes its pages"),
            Action::Done(node) => format!("n{node} is done"),
            Action::Late(node) => format!("n{node} waits no longer"),
        }];
        if let Err(what) = self.act(&mut state, action) {
            lines.push(format!("    ! {what}"));
        }
        for node in self.all(&state) {
            lines.push(format!("    {}: {:?}, ended {:?}", node.me, node.order, node.endings));
        }
        lines
    }
}

impl ChangeModel {
    fn all<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Node> {
        state.nodes.iter().map(|&number| self.nodes.value(number))
    }

    fn enabled(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut last = None;
        for &number in &state.messages {
            if last.replace(number) != Some(number) {
                actions.push(Action::Deliver(number));
            }
        }
        for (index, node) in self.all(state).enumerate() {
            match &node.order {
                None if node.call() < self.instance.calls => actions.push(Action::Begin(index)),
                None => {}
                Some(Order::Freeze) => {
                    actions.push(Action::Freeze(index, false));
                    if state.objections > 0 {
                        actions.push(Action::Freeze(index, true));
                    }
                }
                Some(Order::Settle | Order::Gather) => actions.push(Action::Done(index)),
                Some(_) => {}
            }
            if state.late > 0 && node.order.is_some() && node.order != Some(Order::Freeze) {
                actions.push(Action::Late(index));
            }
        }
        actions
    }

    fn act(&mut self, state: &mut State, action: Action) -> Result<(), String> {
        let instance = self.instance;
        let (index, message) = match action {
            Action::Deliver(number) => {
                let at = state.messages.iter().position(|&other| other == number);
                state.messages.remove(at.expect("a message under way"));
                let (from, to, message) = *self.envelopes.value(number);
                (usize::from(to.0), Some((from, message)))
            }
            Action::Begin(index) | Action::Freeze(index, _) | Action::Done(index) | Action::Late(index) => {
                (index, None)
            }
        };
        let mut node = self.nodes.value(state.nodes[index]).clone();
        let mut out = Vec::new();
        match (action, message) {
            (_, Some((from, message))) => {
                node.sync_step(&instance, sync::Input::Message(from, message), &mut out)?;
            }
            (Action::Begin(_), _) => node.begin(&instance, &mut out)?,
            (Action::Freeze(_, objects), _) => {
                state.objections -= u8::from(objects);
                node.objected |= u8::from(objects) << node.call();
                node.end(&instance, Input::Frozen { objects }, &mut out)?;
            }
            (Action::Late(_), _) => {
                state.late -= 1;
                node.end(&instance, Input::TooLong, &mut out)?;
            }
            (_, None) => {
                if node.order == Some(Order::Gather) {
                    node.gathered = node.call() + 1;
                }
                node.end(&instance, Input::Done, &mut out)?;
            }
        }
        state.nodes[index] = self.nodes.number(node);
        for envelope in out {
            let number = self.envelopes.number(envelope);
            let at = state.messages.partition_point(|&other| other <= number);
            state.messages.insert(at, number);
        }
        self.check(state)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let is_late = state.late < self.instance.late;
        for node in self.all(state) {
            if let Some(other) = self.all(state).find(|other| other.gathered < node.changed) {
                return Err(format!("{} changes before the pages of {} are at home", node.me, other.me));
            }
            for (call, ending) in node.endings.iter().enumerate() {
                let is_hindered = self.all(state).any(|other| other.objected >> call & 1 != 0)
                    || self.instance.differs && call == 0
                    || is_late;
                if !is_hindered && !matches!(ending, Ending::Agreed { objections: 0, .. }) {
                    return Err(format!("{} does not change, and nothing hinders it: {ending:?}", node.me));
                }
                let different = |other: &&Node| other.endings.get(call).is_some_and(|theirs| differ(*ending, *theirs));
                if let Some(other) = self.all(state).find(different) {
                    let theirs = other.endings[call];
                    return Err(format!("{} ends with {ending:?}, and {} with {theirs:?}", node.me, other.me));
                }
            }
        }
        Ok(())
    }
}

/// Whether two nodes must not end like this in one call.
fn differ(one: Ending, other: Ending) -> bool {
    match (one, other) {
        (Ending::Disagree, _) | (_, Ending::Disagree) => false,
        (Ending::Agreed { objections: one, .. }, Ending::Agreed { objections: other, .. }) => one != other,
        (Ending::GivenUp { .. }, Ending::GivenUp { .. }) => false,
        _ => true,
    }
}

impl State {
    fn read(instance: &ChangeInstance, bytes: &[u8]) -> State {
        let mut numbers = bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let [late, objections, _, _] = numbers.next().expect("a state as it was written").to_le_bytes();
        let nodes = numbers.by_ref().take(usize::from(instance.nodes)).collect();
        State { nodes, late, objections, messages: numbers.collect() }
    }

    fn write(&self) -> Vec<u8> {
        let first = u32::from_le_bytes([self.late, self.objections, 0, 0]);
        let numbers = [first].into_iter().chain(self.nodes.iter().copied()).chain(self.messages.iter().copied());
        numbers.flat_map(u32::to_le_bytes).collect()
    }
}
