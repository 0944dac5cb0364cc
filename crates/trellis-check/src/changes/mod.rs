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

use crate::explore::Model;
use crate::intern::guarded;
use crate::world::{self, Pass, Piece, Pieces, Worlds};
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
    pub fn model(&self) -> impl Model {
        let ChangeInstance { nodes, late, objections, .. } = *self;
        let nodes = (0..nodes).map(|me| Piece::new(Node::new(me, nodes))).collect();
        let (late, objections) = (Piece::new(late), Piece::new(objections));
        Worlds::new(World { instance: *self, nodes, late, objections, messages: Vec::new() })
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

/// The messages under way.
type Messages = Vec<Piece<Envelope>>;

#[derive(Clone)]
struct World {
    instance: ChangeInstance,
    nodes: Vec<Piece<Node>>,
    /// How many waits may still be too long, and how often nodes may still object.
    late: Piece<u8>,
    objections: Piece<u8>,
    messages: Messages,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Deliver(usize),
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

    fn begin(&mut self, instance: &ChangeInstance, out: &mut Messages) -> Result<(), String> {
        let differs = instance.differs && self.me.0 + 1 == instance.nodes && self.endings.is_empty();
        let proposal = if differs { OTHER_PROPOSAL } else { PROPOSAL };
        let (change, order) = self.changes.begin(self.me, proposal, FIRST_NUMBER).expect("few calls are given up");
        self.change = Some(change);
        self.carry_out(instance, order, out)
    }

    /// Ends the current order with `input`.
    fn end(&mut self, instance: &ChangeInstance, input: Input, out: &mut Messages) -> Result<(), String> {
        self.waits_for = None;
        let change = self.change.as_mut().expect("an order is a change's");
        let order =
            guarded(|| change.step(input)).map_err(|what| format!("the change at {} stopped: {what}", self.me))?;
        self.carry_out(instance, order, out)
    }

    fn carry_out(&mut self, instance: &ChangeInstance, order: Order, out: &mut Messages) -> Result<(), String> {
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

    fn sync_step(&mut self, instance: &ChangeInstance, input: sync::Input, out: &mut Messages) -> Result<(), String> {
        let mut effects = Vec::new();
        self.sync.step(input, &mut effects);
        for effect in effects {
            match effect {
                sync::Effect::Send(to, message) => out.push(Piece::new((self.me, to, message))),
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
        out: &mut Messages,
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
}

impl world::World for World {
    type Action = Action;
    type Tables = (Pieces<u8>, Pieces<Node>, Pieces<Envelope>);

    fn enabled(&self) -> Vec<Action> {
        if self.has_failed() {
            return Vec::new();
        }
        // Equal messages are side by side.
        let is_other = |&place: &usize| place == 0 || *self.messages[place] != *self.messages[place - 1];
        let mut actions: Vec<Action> = (0..self.messages.len()).filter(is_other).map(Action::Deliver).collect();
        for (index, node) in self.nodes.iter().enumerate() {
            match &node.order {
                None if node.call() < self.instance.calls => actions.push(Action::Begin(index)),
                None => {}
                Some(Order::Freeze) => {
                    actions.push(Action::Freeze(index, false));
                    if *self.objections > 0 {
                        actions.push(Action::Freeze(index, true));
                    }
                }
                Some(Order::Settle | Order::Gather) => actions.push(Action::Done(index)),
                Some(_) => {}
            }
            if *self.late > 0 && node.order.is_some() && node.order != Some(Order::Freeze) {
                actions.push(Action::Late(index));
            }
        }
        actions
    }

    fn must_happen(action: Action) -> bool {
        !matches!(action, Action::Late(_))
    }

    fn take(&mut self, action: Action) -> Result<(), String> {
        let World { instance, nodes, late, objections, messages } = self;
        match action {
            Action::Deliver(place) => {
                let (from, to, message) = *messages.remove(place);
                let input = sync::Input::Message(from, message);
                nodes[usize::from(to.0)].sync_step(instance, input, messages)?;
            }
            Action::Begin(index) => nodes[index].begin(instance, messages)?,
            Action::Freeze(index, objects) => {
                **objections -= u8::from(objects);
                let node = &mut *nodes[index];
                node.objected |= u8::from(objects) << node.call();
                node.end(instance, Input::Frozen { objects }, messages)?;
            }
            Action::Done(index) => {
                let node = &mut *nodes[index];
                if node.order == Some(Order::Gather) {
                    node.gathered = node.call() + 1;
                }
                node.end(instance, Input::Done, messages)?;
            }
            Action::Late(index) => {
                **late -= 1;
                nodes[index].end(instance, Input::TooLong, messages)?;
            }
        }
        self.check()
    }

    fn check_last(self) -> Result<(), String> {
        let waits = |node: &&Piece<Node>| node.call() < self.instance.calls && !self.has_failed();
        match self.nodes.iter().find(waits) {
            Some(node) => Err(format!("{} waits for ever: {:?}", node.me, node.order)),
            None => Ok(()),
        }
    }

    fn describe(&self, action: Action) -> String {
        match action {
            Action::Deliver(place) => {
                let (from, to, message) = *self.messages[place];
                format!("arrives: {}->{} {message}", from.0, to.0)
            }
            Action::Begin(node) => format!("n{node} calls"),
            Action::Freeze(node, true) => format!("n{node} freezes its pages, and objects"),
            Action::Freeze(node, false) => format!("n{node} freezes its pages"),
            Action::Done(node) => format!("n{node} is done"),
            Action::Late(node) => format!("n{node} waits no longer"),
        }
    }

    fn lines(&self) -> Vec<String> {
        let line = |node: &Piece<Node>| format!("    {}: {:?}, ended {:?}", node.me, node.order, node.endings);
        self.nodes.iter().map(line).collect()
    }

    fn pass(&mut self, (limits, nodes, envelopes): &mut Self::Tables, pass: &mut Pass) {
        pass.one(limits, &mut self.late);
        pass.one(limits, &mut self.objections);
        pass.each(nodes, &mut self.nodes);
        pass.unordered(envelopes, &mut self.messages);
    }
}

impl World {
    /// A node whose ending may differ from that of others has ended the cluster.
    fn has_failed(&self) -> bool {
        self.nodes.iter().any(|node| node.endings.contains(&Ending::Disagree))
    }

    fn check(&self) -> Result<(), String> {
        let is_late = *self.late < self.instance.late;
        for node in self.nodes.iter() {
            if let Some(other) = self.nodes.iter().find(|other| other.gathered < node.changed) {
                return Err(format!("{} changes before the pages of {} are at home", node.me, other.me));
            }
            for (call, ending) in node.endings.iter().enumerate() {
                let is_hindered = self.nodes.iter().any(|other| other.objected >> call & 1 != 0)
                    || self.instance.differs && call == 0
                    || is_late;
                if !is_hindered && !matches!(ending, Ending::Agreed { objections: 0, .. }) {
                    return Err(format!("{} does not change, and nothing hinders it: {ending:?}", node.me));
                }
                let different =
                    |other: &&Piece<Node>| other.endings.get(call).is_some_and(|theirs| differ(*ending, *theirs));
                if let Some(other) = self.nodes.iter().find(different) {
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
