//! Nodes that stop, pause and join, and which node learns of it. For nodes that leave see [`super::leaving`].
//!
//! Promises: the membership of the protocol crate decides, driven as in the runtime. A node that stops for ever is known to
//! every other within the bound of the membership, by name. A node that only pauses, or leaves, is never taken for dead. It
//! must never let a node know what no message told it.

use super::Start;
use super::datagrams::Datagrams;
use super::events::Event;
use super::node::{Doing, State};
use super::node_faults::NodeFault;
use super::scenario::Scenario;
use super::world::World;
use crate::model::Stepping;
use trellis_base::Random;
use trellis_cluster_protocol::membership::{self, Effect, Input as Fact, Membership};
use trellis_cluster_protocol::{Nanoseconds, NodeId, node, wire};

/// After so long without a word a peer counts as lost.
pub(super) const SILENCE_NS_MAX: Nanoseconds = 2_000_000_000;
/// The longest pause and the longest partition.
const PAUSE_NS_MAX: Nanoseconds = 20_000_000;
const PARTITION_NS_MAX: Nanoseconds = 20_000_000;
/// A connection is made within so many latencies after a node joins.
const CONNECTION_LATENCIES_MAX: Nanoseconds = 10;

/// Everything about which nodes are present.
pub(super) struct Members {
    nodes: usize,
    pub(super) random: Random,
    pub(super) coordinator: u16,
    /// Messages under way by pair, where nodes may leave.
    between: Vec<u32>,
    /// The node that stopped, and when.
    crashed: Option<(u16, Nanoseconds)>,
    /// Live nodes that have not learned of it.
    unaware: usize,
    /// Nodes that join or leave now.
    pub(super) changing: usize,
}

impl Members {
    pub(super) fn new(scenario: &Scenario) -> Members {
        let nodes = usize::from(scenario.nodes());
        Members {
            nodes,
            random: Random::for_purpose(scenario.seed.number, 3),
            coordinator: scenario.coordinator,
            between: if scenario.faults.leave { vec![0; nodes * nodes] } else { Vec::new() },
            crashed: None,
            unaware: 0,
            changing: 0,
        }
    }

    /// Whether something is under way that no event in the queue stands for.
    pub(super) fn is_busy(&self) -> bool {
        self.unaware > 0 || self.changing > 0
    }

    /// Who stopped for ever.
    pub(super) fn culprit(&self) -> Option<u16> {
        self.crashed.map(|(node, _)| node)
    }

    pub(super) fn sent(&mut self, from: u16, to: u16) {
        if let Some(count) = self.between.get_mut(usize::from(from) * self.nodes + usize::from(to)) {
            *count += 1;
        }
    }

    pub(super) fn arrived(&mut self, from: u16, to: u16) {
        if let Some(count) = self.between.get_mut(usize::from(from) * self.nodes + usize::from(to)) {
            *count -= 1;
        }
    }

    /// The number of messages that are under way.
    pub(super) fn under_way(&self, from: u16, to: u16) -> u32 {
        self.between[usize::from(from) * self.nodes + usize::from(to)]
    }
}

impl<S: Start> World<'_, S> {
    /// Chooses the times of the faults.
    pub(super) fn plan_faults(&mut self) {
        let (faults, heal_at) = (self.scenario.faults, self.scenario.heal_at);
        self.queue.put(heal_at, Event::Heal);
        let founders = u64::from(self.scenario.founders);
        let mut random = Random::for_purpose(self.scenario.seed.number, 4);
        if faults.crash {
            let node = random.below(founders) as u16;
            self.queue.put(random.below(heal_at), Event::Crash { node });
        }
        if faults.pause {
            for _ in 0..random.between(1, 4) {
                let node = random.below(u64::from(self.scenario.nodes())) as u16;
                self.queue.put(random.below(heal_at), Event::Pause { node });
            }
        }
        if faults.partition {
            (0..random.between(1, 3)).for_each(|_| self.queue.put(random.below(heal_at), Event::Partition));
        }
        (0..self.scenario.joiners).for_each(|_| self.queue.put(random.below(heal_at), Event::Join));
        let watches = faults.crash || faults.pause || faults.partition;
        if watches || self.scenario.joiners > 0 {
            (0..self.scenario.founders).for_each(|node| self.begin_membership(node));
            let pairs = (0..self.scenario.founders).flat_map(|node| (0..node).map(move |peer| (node, peer)));
            for (node, peer) in pairs {
                self.connect(node, peer).expect("no node is told anything at the start");
            }
        }
        self.watches = watches;
        if watches {
            (0..self.scenario.founders).for_each(|node| self.watch(node));
        }
    }

    fn begin_membership(&mut self, node: u16) {
        let membership = Membership::new(NodeId(node), self.scenario.nodes(), SILENCE_NS_MAX);
        let coordinator = NodeId(self.members.coordinator);
        self.nodes[usize::from(node)].parts.membership = Some(match self.scenario.joiners {
            0 => membership,
            _ => membership.elastic(self.scenario.founders, coordinator),
        });
    }

    /// The node looks at the clock from now on.
    fn watch(&mut self, node: u16) {
        let membership = self.nodes[usize::from(node)].parts.membership.as_ref();
        let interval = membership.expect("it was begun").tick_interval();
        let first = self.now + self.members.random.below(interval);
        self.queue.put(first, Event::Tick { node });
    }

    /// There is a connection between two nodes, if both are still there.
    fn connect(&mut self, node: u16, peer: u16) -> Result<(), String> {
        if self.nodes[usize::from(node)].is_present() && self.nodes[usize::from(peer)].is_present() {
            self.member(node, Fact::Connected(NodeId(peer)))?;
            self.member(peer, Fact::Connected(NodeId(node)))?;
        }
        Ok(())
    }

    /// A process gets a number from the coordinator, and connects to every node that is present.
    fn join(&mut self) -> Result<(), String> {
        let coordinator = self.nodes[usize::from(self.members.coordinator)].parts.membership.as_mut();
        let number = coordinator.expect("nodes may join").reserve();
        let node = number.map_err(|why| format!("a process gets no number: {why:?}"))?.0;
        self.recorder.note(self.now, || format!("n{node} asks to join"));
        self.members.changing += 1;
        self.nodes[usize::from(node)].state = State::Present;
        self.begin_membership(node);
        if self.watches {
            self.watch(node);
        }
        let latest_ns = CONNECTION_LATENCIES_MAX * self.scenario.wires.latency_ns;
        for peer in (0..self.nodes.len() as u16).filter(|&peer| peer != node) {
            if self.nodes[usize::from(peer)].is_present() {
                let at = self.now + self.members.random.below(latest_ns);
                self.queue.put(at, Event::Connect { node, peer });
            }
        }
        Ok(())
    }

    pub(super) fn change_members(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick { node } => {
                let membership = self.nodes[usize::from(node)].parts.membership.as_ref();
                let interval = membership.expect("who ticks has one").tick_interval();
                self.queue.put(self.now + interval, Event::Tick { node });
                self.member(node, Fact::Tick)
            }
            Event::Lost { node, peer } => self.member(node, Fact::Lost(NodeId(peer))),
            Event::Crash { node } => {
                self.crash(node);
                Ok(())
            }
            Event::Pause { node } => {
                let span = self.members.random.between(1, PAUSE_NS_MAX);
                self.recorder.note(self.now, || format!("n{node} pauses for {} us", span / 1000));
                self.nodes[usize::from(node)].paused_until = self.now + span;
                Ok(())
            }
            Event::Partition if !self.is_healed => {
                let span = self.members.random.between(1, PARTITION_NS_MAX);
                self.recorder.note(self.now, || format!("the network falls apart for {} us", span / 1000));
                self.network.part(self.now, span);
                Ok(())
            }
            Event::Join => self.join(),
            Event::Connect { node, peer } => self.connect(node, peer),
            Event::Leave { node } => self.advance_leaving(node),
            _ => Ok(()),
        }
    }

    /// One fact for the membership of a node.
    pub(super) fn member(&mut self, node: u16, fact: Fact) -> Result<(), String> {
        node::take_fact(&mut self.at(node), node::Input::Membership(fact))?;
        self.take_over(node)
    }

    /// The membership of a node has decided. Returns whether the node heeds it.
    pub(super) fn heeds(&mut self, node: u16, effect: Effect) -> Result<bool, String> {
        match (effect, self.start.fault()) {
            (Effect::Died(peer) | Effect::Silent(peer, _) | Effect::Failed(peer), _) => self.learns(node, peer)?,
            (Effect::Joined, _) => {
                self.recorder.note(self.now, || format!("n{node} has joined"));
                self.members.changing -= 1;
                self.start_threads(node);
            }
            (Effect::Ended, _) => return Err(format!("node {node} believes that the cluster has ended")),
            (Effect::TakeOver(_), NodeFault::TakesNothing) | (Effect::Came(_), NodeFault::ForgetsComers) => {
                return Ok(false);
            }
            _ => {}
        }
        Ok(true)
    }

    /// Anything that arrives is a sign of life.
    pub(super) fn heard(&mut self, node: u16, from: u16) -> Result<(), String> {
        match &mut self.nodes[usize::from(node)].parts.membership {
            Some(membership) => {
                membership.step(self.now, Fact::Heard(NodeId(from)), &mut Vec::new());
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn crash(&mut self, node: u16) {
        self.recorder.note(self.now, || format!("n{node} stops for ever"));
        self.end_node(node, State::Crashed);
        self.members.crashed = Some((node, self.now));
        self.members.unaware = self.nodes.iter().filter(|node| node.is_present()).count();
        // A process that ends takes its connections with it; a machine that loses power takes leave of nobody.
        if self.members.random.once_in(2) {
            for other in 0..self.nodes.len() as u16 {
                let at = self.now + self.scenario.wires.latency_ns * self.members.random.between(1, 5);
                self.queue.put(at, Event::Lost { node: other, peer: node });
            }
        }
    }

    /// A node learns that `peer` is lost: it tells everybody, and its program ends with an error.
    fn learns(&mut self, node: u16, peer: NodeId) -> Result<(), String> {
        let Some((crashed, at)) = self.members.crashed.filter(|&(crashed, _)| crashed == peer.0) else {
            return Err(format!("node {node} takes {peer} for lost, which is not"));
        };
        let waited = self.now - at;
        // The last sign of life may have come just after the crash; clocks are looked at eight times in that span.
        let most = SILENCE_NS_MAX + SILENCE_NS_MAX / 4 + 2 * PAUSE_NS_MAX + PARTITION_NS_MAX;
        if waited > most {
            return Err(format!("node {node} learned of the loss of node {crashed} only after {} us", waited / 1000));
        }
        self.recorder.note(self.now, || format!("n{node} learns that n{crashed} is lost"));
        self.end_node(node, State::Failed(peer, self.now));
        self.members.unaware -= 1;
        for (other, message) in membership::failure_messages(NodeId(node), self.nodes.len() as u16, peer) {
            if self.nodes[usize::from(other.0)].is_present() {
                self.send(node, other, wire::Message::Membership(message))?;
            }
        }
        Ok(())
    }

    /// The node takes no part any more; its threads end.
    pub(super) fn end_node(&mut self, index: u16, state: State) {
        let node = &mut self.nodes[usize::from(index)];
        node.state = state;
        let culprit = match state {
            State::Failed(culprit, _) => culprit,
            _ => NodeId(index),
        };
        for thread in &mut node.threads {
            if !thread.is_over() {
                self.busy_threads -= 1;
                if thread.is_waiting() {
                    self.tally.failed_waits += 1;
                }
                thread.doing = Doing::Failed(culprit);
            }
        }
        self.memory.remove(index);
        self.pages.remove(index);
        // What a node that ends with an error still says is on its way.
        if !matches!(state, State::Failed(..)) {
            self.datagrams.iter_mut().for_each(|datagrams: &mut Datagrams| datagrams.forget(index));
        }
    }

    /// At the end: whoever lives knows who died, and nobody was taken for dead who was not.
    pub(super) fn check_members(&self) -> Result<(), String> {
        if self.members.changing > 0 {
            return Err(format!("{} nodes join or leave for ever", self.members.changing));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            match (node.state, self.members.crashed) {
                (State::Present, Some((crashed, _))) => {
                    return Err(format!("node {index} never learned that node {crashed} is lost"));
                }
                (State::Failed(culprit, _), None) => {
                    return Err(format!("node {index} ended because of {culprit}, which was not lost"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
