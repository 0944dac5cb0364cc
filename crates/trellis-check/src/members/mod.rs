//! A small cluster that nodes join and leave: the explorer's model for membership.
//!
//! Founders meet in any order. Processes get numbers from the coordinator, connect to every node that is there, join, and
//! leave when they like; so do the founders' programs. Messages of a pair keep their order, and otherwise anything may
//! happen next. One process may be killed, at any moment. The model checks:
//!
//! 1. *Every node is known.* When a node has joined, every node that is present knows it, it knows every one of them, and
//!    it was told of every other number that it is absent.
//! 2. *One at a time.* One node comes or goes, and none comes before every founder has met the coordinator.
//! 3. *Nothing is sent to a node that is gone.* A message goes only over a connection, and none to a node after the farewell to it.
//!    When a node counts as vanished, it has ended, and no message of it is under way.
//! 4. *No page is lost.* A node goes only after the coordinator took all pages that it left behind.
//! 5. *No node goes too early.* A founder goes when the coordinator is gone, the coordinator when no node is left that needs
//!    it, and a joined node when every other one has said farewell.
//! 6. *No node is blamed* but one that was killed, and every node ends. Only a node that is still at its start may wait for
//!    one that was killed: its wait has a limit.
//!
//! It must never inspect the state machines: it uses only inputs, effects, and whom a node takes for present.

mod faults;

pub use faults::MemberFault;

use crate::explore::Model;
use crate::intern::guarded;
use crate::world::{self, Pass, Piece, Pieces, Worlds};
use trellis_cluster_protocol::membership::{Effect, Input, Membership, Message};
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange};

/// A founder, and not the first, so that its number means nothing.
const COORDINATOR: u16 = 1;
/// The number of page ranges that a joined node leaves behind.
const RANGES: u8 = 2;

/// The size of a cluster, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub struct MemberInstance {
    /// Number of founders, at least two.
    pub founders: u16,
    /// Number of processes that join.
    pub joiners: u16,
    /// One process may be killed.
    pub kills: bool,
    /// The rule that this instance breaks on purpose.
    pub fault: MemberFault,
}

impl MemberInstance {
    /// The model of this instance.
    pub fn model(&self) -> impl Model {
        Worlds::new(World::first(*self))
    }

    /// A description of this instance.
    pub fn describe(&self) -> String {
        let kills = if self.kills { " kills" } else { "" };
        format!("members founders={} joiners={}{kills}", self.founders, self.joiners)
    }

    fn nodes(&self) -> u16 {
        self.founders + self.joiners
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    NotBegun,
    Runs,
    Ended,
    /// It was killed.
    Killed,
}

/// A node, and its knowledge of the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    membership: Membership,
    life: Life,
    has_joined: bool,
    is_leaving: bool,
    /// The reports to this node about each node.
    of: Vec<Reported>,
    /// At the coordinator: the node that comes or goes now.
    changing: Option<NodeId>,
    /// At the coordinator: it has to take over the named pages.
    takes_over: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Reported {
    is_connected: bool,
    has_met: bool,
    is_absent: bool,
    came: bool,
    departs: bool,
    said_farewell: bool,
    vanished: bool,
    /// At the coordinator: page ranges of that node that were named, and whether they were taken.
    named: u8,
    taken: bool,
}

/// A message under way from one node to another, or the end of the connection.
type Signal = Option<Message>;

#[derive(Clone)]
struct World {
    instance: MemberInstance,
    nodes: Vec<Piece<Node>>,
    /// By sender and receiver.
    queues: Vec<Piece<Vec<Signal>>>,
    /// Pairs that will be connected: bits in the order of the queues, the larger number first.
    apart: Piece<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Deliver(u16, u16),
    Connect(u16, u16),
    /// A process asks for a number.
    Join,
    Leave(u16),
    /// The coordinator has taken the named pages.
    TookOver,
    /// A process that was not let in finds no coordinator at its address.
    GiveUp(u16),
    Kill(u16),
}

impl world::World for World {
    type Action = Action;
    type Tables = (Pieces<u64>, Pieces<Node>, Pieces<Vec<Signal>>);

    fn enabled(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (from, to) in self.all().flat_map(|from| self.others(from).map(move |to| (from, to))) {
            if !self.queues[self.place(from, to)].is_empty() {
                actions.push(Action::Deliver(from, to));
            }
            if from > to && *self.apart & self.bit(from, to) != 0 {
                actions.push(Action::Connect(from, to));
            }
        }
        let coordinator = self.node(COORDINATOR);
        if coordinator.life == Life::Runs && coordinator.membership.clone().reserve().is_ok() {
            actions.push(Action::Join);
        }
        actions.extend(self.all().filter(|&node| self.may_leave(node)).map(Action::Leave));
        if coordinator.takes_over && coordinator.life == Life::Runs {
            actions.push(Action::TookOver);
        }
        let is_alone = |&index: &u16| {
            let node = self.node(index);
            let is_apart =
                *self.apart & self.bit(index, COORDINATOR) == 0 && !node.of[usize::from(COORDINATOR)].has_met;
            !self.is_founder(index) && node.life == Life::Runs && is_apart
        };
        actions.extend(self.all().filter(is_alone).map(Action::GiveUp));
        if self.instance.kills && !self.all().any(|node| self.is_killed(node)) {
            let running = self.all().filter(|&node| self.node(node).life == Life::Runs);
            actions.extend(running.map(Action::Kill));
        }
        actions
    }

    fn must_happen(action: Action) -> bool {
        !matches!(action, Action::Kill(_))
    }

    fn take(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Deliver(from, to) => {
                let place = self.place(from, to);
                let input = match self.queues[place].remove(0) {
                    Some(message) => Input::Message(NodeId(from), message),
                    None => {
                        self.nodes[usize::from(to)].of[usize::from(from)].is_connected = false;
                        Input::Lost(NodeId(from))
                    }
                };
                let ends = matches!(input, Input::Message(_, Message::Joined) | Input::Lost(_));
                let receiver = &mut self.nodes[usize::from(to)];
                if ends && receiver.changing == Some(NodeId(from)) {
                    receiver.changing = None;
                }
                self.step(to, input)?;
                let reported = self.node(to).of[usize::from(from)];
                if matches!(input, Input::Lost(_)) && reported.departs && !reported.vanished {
                    return Err(format!("node {from}, which departed, has not vanished for node {to}"));
                }
                Ok(())
            }
            Action::Connect(one, other) => {
                *self.apart &= !self.bit(one, other);
                for (node, peer) in [(one, other), (other, one)] {
                    let reported = &mut self.nodes[usize::from(node)].of[usize::from(peer)];
                    (reported.is_connected, reported.has_met) = (true, true);
                }
                self.step(one, Input::Connected(NodeId(other)))?;
                self.step(other, Input::Connected(NodeId(one)))
            }
            Action::Join => {
                let reserved = self.nodes[usize::from(COORDINATOR)].membership.reserve();
                let node = reserved.map_err(|why| format!("a process gets no number: {why:?}"))?.0;
                self.nodes[usize::from(node)].life = Life::Runs;
                let is_gone = |other: u16| self.node(COORDINATOR).membership.is_gone(NodeId(other));
                let there = self.others(node).filter(|&other| self.node(other).life == Life::Runs && !is_gone(other));
                let bits = there.fold(0, |bits, other| bits | self.bit(node, other));
                *self.apart |= bits;
                Ok(())
            }
            Action::Leave(node) => {
                self.nodes[usize::from(node)].is_leaving = true;
                self.step(node, Input::Leave)
            }
            Action::TookOver => {
                let coordinator = &mut self.nodes[usize::from(COORDINATOR)];
                coordinator.takes_over = false;
                if let Some(NodeId(leaver)) = coordinator.changing {
                    coordinator.of[usize::from(leaver)].taken = true;
                }
                self.step(COORDINATOR, Input::TookOver)
            }
            Action::GiveUp(node) => {
                self.end(node, Life::Ended, Some(Message::Fail(NodeId(COORDINATOR))));
                Ok(())
            }
            Action::Kill(node) => {
                self.end(node, Life::Killed, None);
                Ok(())
            }
        }
    }

    fn check_last(self) -> Result<(), String> {
        // A founder, or a process that was let in: others may have to meet it.
        let is_met = |node: u16| self.is_founder(node) || self.node(COORDINATOR).of[usize::from(node)].came;
        let is_missed = self.all().any(|node| self.is_killed(node) && is_met(node));
        let may_wait = |node| is_missed && !self.has_begun(node);
        match self.all().find(|&node| self.node(node).life == Life::Runs && !may_wait(node)) {
            Some(node) => Err(format!("node {node} waits for ever")),
            None => Ok(()),
        }
    }

    fn describe(&self, action: Action) -> String {
        match action {
            Action::Deliver(from, to) => match self.queues[self.place(from, to)][0] {
                Some(message) => format!("arrives: {from}->{to} {message:?}"),
                None => format!("the connection of node {from} to node {to} ends"),
            },
            Action::Connect(one, other) => format!("nodes {one} and {other} are connected"),
            Action::Join => "a process gets a number".to_owned(),
            Action::Leave(node) => format!("the program of node {node} is done"),
            Action::TookOver => "the coordinator has taken over what was named".to_owned(),
            Action::GiveUp(node) => format!("node {node} finds no coordinator"),
            Action::Kill(node) => format!("node {node} is killed"),
        }
    }

    fn lines(&self) -> Vec<String> {
        let joined = |node: &Node| if node.has_joined { ", joined" } else { "" };
        let nodes = self.nodes.iter().enumerate();
        nodes.map(|(index, node)| format!("    n{index}: {:?}{}", node.life, joined(node))).collect()
    }

    fn pass(&mut self, (numbers, nodes, queues): &mut Self::Tables, pass: &mut Pass) {
        pass.one(numbers, &mut self.apart);
        pass.each(nodes, &mut self.nodes);
        pass.each(queues, &mut self.queues);
    }
}

impl World {
    fn first(instance: MemberInstance) -> World {
        let all = instance.nodes();
        let node = |me: u16| Node {
            membership: Membership::new(NodeId(me), all, 1_000_000).elastic(instance.founders, NodeId(COORDINATOR)),
            life: if me < instance.founders { Life::Runs } else { Life::NotBegun },
            has_joined: false,
            is_leaving: false,
            of: vec![Reported::default(); usize::from(all)],
            changing: None,
            takes_over: false,
        };
        let nodes = (0..all).map(|me| Piece::new(node(me))).collect();
        let queues = vec![Piece::new(Vec::new()); usize::from(all) * usize::from(all)];
        let mut world = World { instance, nodes, queues, apart: Piece::new(0) };
        for (node, other) in (0..instance.founders).flat_map(|node| (0..node).map(move |other| (node, other))) {
            *world.apart |= world.bit(node, other);
        }
        world
    }

    fn place(&self, from: u16, to: u16) -> usize {
        usize::from(from) * self.nodes.len() + usize::from(to)
    }

    fn bit(&self, one: u16, other: u16) -> u64 {
        1 << self.place(one.max(other), one.min(other))
    }

    fn node(&self, node: u16) -> &Node {
        &self.nodes[usize::from(node)]
    }

    fn all(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.nodes.len() as u16
    }

    fn others(&self, node: u16) -> impl Iterator<Item = u16> + use<> {
        self.all().filter(move |&other| other != node)
    }

    fn is_founder(&self, node: u16) -> bool {
        node < self.instance.founders
    }

    /// Whether a node is past its start: a founder has met all founders, and a joined node is a member.
    fn has_begun(&self, index: u16) -> bool {
        let node = self.node(index);
        let mut founders = (0..self.instance.founders).filter(|&other| other != index);
        match self.is_founder(index) {
            true => founders.all(|other| node.of[usize::from(other)].has_met),
            false => node.has_joined,
        }
    }

    /// Whether a program may end.
    fn may_leave(&self, index: u16) -> bool {
        let node = self.node(index);
        node.life == Life::Runs && self.has_begun(index) && !node.is_leaving
    }

    fn is_killed(&self, node: u16) -> bool {
        self.node(node).life == Life::Killed
    }

    /// The process ends, after it has said a last word to everybody.
    fn end(&mut self, index: u16, life: Life, last: Option<Message>) {
        self.nodes[usize::from(index)].life = life;
        for other in self.others(index) {
            *self.apart &= !self.bit(index, other);
            let arriving = self.place(other, index);
            self.queues[arriving].clear();
            if self.node(index).of[usize::from(other)].is_connected && self.node(other).life == Life::Runs {
                let leaving = self.place(index, other);
                self.queues[leaving].extend(last.map(Some));
                self.queues[leaving].push(None);
            }
        }
    }

    fn step(&mut self, index: u16, input: Input) -> Result<(), String> {
        let (me, coordinator) = (NodeId(index), NodeId(COORDINATOR));
        let MemberInstance { founders, fault, .. } = self.instance;
        for input in fault.hear(me, coordinator, founders, input) {
            let mut effects = Vec::new();
            let membership = &mut self.nodes[usize::from(index)].membership;
            guarded(|| membership.step(0, input, &mut effects)).map_err(|what| format!("{me} stopped: {what}"))?;
            let altered = effects.into_iter().flat_map(|effect| fault.order(me, coordinator, founders, effect));
            for effect in altered.collect::<Vec<Effect>>() {
                if self.node(index).life == Life::Runs {
                    self.carry_out(index, effect)?;
                }
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, index: u16, effect: Effect) -> Result<(), String> {
        let me = NodeId(index);
        match effect {
            Effect::Send(to, message) => self.send(index, to.0, message),
            Effect::Absent(peer) => {
                self.reported(index, peer).is_absent = true;
                Ok(())
            }
            Effect::Came(peer) => {
                if std::mem::replace(&mut self.reported(index, peer).came, true) {
                    return Err(format!("{peer} comes twice to {me}"));
                }
                if index != COORDINATOR {
                    return Ok(());
                }
                let mut founders = (0..self.instance.founders).filter(|&other| other != index);
                if let Some(late) = founders.find(|&other| !self.node(index).of[usize::from(other)].has_met) {
                    return Err(format!("{peer} comes before node {late}, a founder, has met the coordinator"));
                }
                self.begin_change(peer)
            }
            Effect::Joined => {
                if std::mem::replace(&mut self.nodes[usize::from(index)].has_joined, true) {
                    return Err(format!("{me} joins twice"));
                }
                self.check_joined(index)
            }
            Effect::HandOver => {
                for range in 0..RANGES {
                    let page = PageIndex(u32::from(index) * 8 + u32::from(range));
                    self.step(index, Input::Behind(PageRange::one(page)))?;
                }
                self.step(index, Input::HandedOver)
            }
            Effect::TakeOver(_) => match self.node(index).changing {
                Some(leaver) => {
                    self.reported(index, leaver).named += 1;
                    Ok(())
                }
                None => Err(format!("{me} takes pages over, and nobody leaves")),
            },
            Effect::TakeOverEnds => {
                self.nodes[usize::from(index)].takes_over = true;
                Ok(())
            }
            Effect::Departs(peer) => {
                self.reported(index, peer).departs = true;
                Ok(())
            }
            Effect::Vanished(peer) => {
                let is_under_way = !self.queues[self.place(peer.0, index)].is_empty();
                if self.node(peer.0).life == Life::Runs || is_under_way {
                    return Err(format!("{peer} has vanished for {me}, and a message of it may still come"));
                }
                if !self.node(index).of[usize::from(peer.0)].departs {
                    return Err(format!("{peer} has vanished for {me}, which did not know that it departs"));
                }
                self.reported(index, peer).vanished = true;
                Ok(())
            }
            Effect::AllLeft => {
                self.check_end(index)?;
                self.end(index, Life::Ended, None);
                Ok(())
            }
            Effect::Ended if self.node(COORDINATOR).life != Life::Runs && !self.node(index).has_joined => {
                self.end(index, Life::Ended, None);
                Ok(())
            }
            Effect::Died(peer) | Effect::Failed(peer) if self.is_killed(peer.0) => {
                let last = (self.instance.fault != MemberFault::FailsSilently).then_some(Message::Fail(peer));
                self.end(index, Life::Ended, last);
                Ok(())
            }
            Effect::Ended | Effect::Died(_) | Effect::Failed(_) | Effect::Silent(..) | Effect::Violation(..) => {
                Err(format!("{me} reports {effect:?}, and that is not what failed"))
            }
        }
    }

    fn reported(&mut self, node: u16, of: NodeId) -> &mut Reported {
        &mut self.nodes[usize::from(node)].of[usize::from(of.0)]
    }

    fn begin_change(&mut self, node: NodeId) -> Result<(), String> {
        match self.nodes[usize::from(COORDINATOR)].changing.replace(node) {
            Some(other) => Err(format!("{node} comes or goes while {other} does")),
            None => Ok(()),
        }
    }

    fn send(&mut self, from: u16, to: u16, message: Message) -> Result<(), String> {
        let reported = self.node(from).of[usize::from(to)];
        if !reported.is_connected {
            return Err(format!("node {from} sends {message:?} to node {to}, to which it has no connection"));
        }
        if reported.said_farewell {
            return Err(format!("node {from} sends {message:?} to node {to} after its farewell"));
        }
        match message {
            Message::Farewell if !reported.departs => {
                return Err(format!("node {from} says farewell to node {to}, and does not know that it departs"));
            }
            Message::Farewell => self.reported(from, NodeId(to)).said_farewell = true,
            Message::Turn => self.begin_change(NodeId(to))?,
            Message::Going => {
                let of = self.node(COORDINATOR).of[usize::from(from)];
                if (of.named, of.taken) != (RANGES, true) {
                    let named = of.named;
                    return Err(format!(
                        "node {from} goes, and of its {RANGES} ranges {named} were named and taken over"
                    ));
                }
            }
            _ => {}
        }
        if self.node(to).life == Life::Runs {
            let place = self.place(from, to);
            self.queues[place].push(Some(message));
        }
        Ok(())
    }

    /// The node reports that it has met every other one.
    fn check_joined(&self, index: u16) -> Result<(), String> {
        for other in self.others(index) {
            let (here, there) = (self.node(index).of[usize::from(other)], self.node(other).of[usize::from(index)]);
            let has_departed = self.node(COORDINATOR).of[usize::from(other)].departs;
            let is_member = self.is_founder(other) || self.node(other).has_joined && !has_departed;
            if is_member == here.is_absent {
                let is = if is_member { "present" } else { "absent" };
                return Err(format!("node {index} joined, and does not know that node {other} is {is}"));
            }
            if is_member && self.node(other).life == Life::Runs {
                if !there.came {
                    return Err(format!("node {index} joined, and node {other} does not know it"));
                }
                if !self.node(index).membership.is_present(NodeId(other)) {
                    return Err(format!("node {index} joined, and has not met node {other}"));
                }
            }
        }
        Ok(())
    }

    /// The node believes that it may go.
    fn check_end(&self, index: u16) -> Result<(), String> {
        let too_early = |why: String| Err(format!("node {index} goes too early: {why}"));
        if !self.node(index).is_leaving {
            return too_early("its program is not done".to_owned());
        }
        for other in self.others(index).filter(|&other| self.node(other).life == Life::Runs) {
            let (node, theirs) = (self.node(index).of[usize::from(other)], self.node(other));
            if !self.is_founder(index) {
                if (self.is_founder(other) || node.came || theirs.has_joined)
                    && !theirs.of[usize::from(index)].said_farewell
                {
                    return too_early(format!("node {other} has not said farewell"));
                }
            } else if index != COORDINATOR {
                if other == COORDINATOR {
                    return too_early("the coordinator is there".to_owned());
                }
            } else if self.is_founder(other) && !theirs.is_leaving {
                return too_early(format!("the program of node {other} is not done"));
            } else if node.came && !node.departs {
                return too_early(format!("node {other} is a member"));
            }
        }
        Ok(())
    }
}
