//! Nodes that stop, pause, join and leave, and who learns of it.
//!
//! Promises: a node that stops for ever is known to every other within the bound of the membership, by name; a node
//! that only pauses is never taken for dead; a node that leaves hands on what it answers for before it is forgotten. It
//! must never let a node know what no message told it.

use super::Start;
use super::datagrams::Datagrams;
use super::events::Event;
use super::node::{Action, Doing, State, Thread};
use super::scenario::Scenario;
use super::world::World;
use trellis_base::Random;
use trellis_cluster_protocol::coherence::{Coherence, Input};
use trellis_cluster_protocol::membership::{Effect, Input as Fact, Membership, Message};
use trellis_cluster_protocol::{Nanoseconds, NodeId, wire};

/// After so long without a word a peer counts as lost.
pub(super) const SILENCE_NS_MAX: Nanoseconds = 2_000_000_000;
/// The longest pause and the longest partition.
const PAUSE_NS_MAX: Nanoseconds = 20_000_000;
const PARTITION_NS_MAX: Nanoseconds = 20_000_000;
const POLL_NS: Nanoseconds = 10_000;

/// Everything about who is there.
pub(super) struct Members {
    nodes: usize,
    random: Random,
    coordinator: u16,
    /// Messages under way by pair, where somebody may leave.
    between: Vec<u32>,
    /// Who stopped, and when.
    crashed: Option<(u16, Nanoseconds)>,
    /// Live nodes that have not learned of it.
    unaware: usize,
    leaving: Option<Leaving>,
    /// Nodes that are done and wait for their turn to leave.
    want_to_leave: Vec<u16>,
}

struct Leaving {
    node: u16,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its own requests end.
    Draining,
    /// The coordinator takes over its pages.
    Pulling,
    /// So many nodes have not forgotten it yet.
    Telling(u32),
    /// What is under way to and from it arrives.
    Closing,
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
            leaving: None,
            want_to_leave: Vec::new(),
        }
    }

    /// Whether something is under way that no event in the queue stands for.
    pub(super) fn is_busy(&self) -> bool {
        self.unaware > 0 || self.leaving.is_some()
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

    fn is_quiet_between(&self, one: u16, other: u16) -> bool {
        let count = |from: u16, to: u16| self.between[usize::from(from) * self.nodes + usize::from(to)];
        count(one, other) == 0 && count(other, one) == 0
    }
}

impl<S: Start> World<'_, S> {
    /// Draws when what goes wrong.
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
        for node in self.scenario.founders..self.scenario.nodes() {
            self.queue.put(random.below(heal_at), Event::Join { node });
        }
        let watches = faults.crash || faults.pause || faults.partition;
        if watches && !faults.leave {
            (0..self.scenario.founders).for_each(|node| self.watch(node));
        }
    }

    /// Gives a node a membership, and tells the others of it.
    fn watch(&mut self, node: u16) {
        let mut mine = Membership::new(NodeId(node), self.scenario.nodes(), SILENCE_NS_MAX);
        let mut nothing = Vec::new();
        for index in 0..self.nodes.len() {
            let other = &mut self.nodes[index];
            if let Some(theirs) = &mut other.membership {
                theirs.step(self.now, Fact::Connected(NodeId(node)), &mut nothing);
                mine.step(self.now, Fact::Connected(NodeId(index as u16)), &mut nothing);
            }
        }
        let first = self.now + self.members.random.below(mine.tick_interval());
        self.nodes[usize::from(node)].membership = Some(mine);
        self.queue.put(first, Event::Tick { node });
    }

    pub(super) fn change_members(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick { node } => {
                let membership = self.nodes[usize::from(node)].membership.as_ref();
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
            Event::Join { node } if self.members.leaving.is_some() => {
                // The coordinator does one thing at a time.
                self.queue.put(self.now + 10 * POLL_NS, Event::Join { node });
                Ok(())
            }
            Event::Join { node } => {
                self.recorder.note(self.now, || format!("n{node} joins"));
                self.join_machine(node);
                if self.nodes[0].membership.is_some() {
                    self.watch(node);
                }
                self.start_threads(node);
                Ok(())
            }
            Event::Gone { node, leaver } if node == leaver => self.advance_leaving(),
            Event::Gone { node, leaver } => self.tell_gone(node, leaver),
            _ => Ok(()),
        }
    }

    /// One fact for the membership of a node.
    fn member(&mut self, node: u16, fact: Fact) -> Result<(), String> {
        let Some(membership) = &mut self.nodes[usize::from(node)].membership else { return Ok(()) };
        self.tally.steps += 1;
        let mut effects = Vec::new();
        membership.step(self.now, fact, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send(to, message) => self.send(node, to, wire::Message::Membership(message))?,
                Effect::Died(peer) | Effect::Silent(peer, _) | Effect::Failed(peer) => self.learns(node, peer)?,
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn member_message(&mut self, node: u16, from: u16, message: Message) -> Result<(), String> {
        self.recorder.fold(self.now ^ u64::from(node) << 32 ^ u64::from(from));
        self.member(node, Fact::Message(NodeId(from), message))
    }

    /// Anything that arrives is a sign of life.
    pub(super) fn heard(&mut self, node: u16, from: u16) -> Result<(), String> {
        match &mut self.nodes[usize::from(node)].membership {
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
        for other in (0..self.nodes.len() as u16).filter(|&other| other != node) {
            if self.nodes[usize::from(other)].is_present() {
                self.send(node, NodeId(other), wire::Message::Membership(Message::Fail(peer)))?;
            }
        }
        Ok(())
    }

    /// The node takes no part any more; its threads end.
    fn end_node(&mut self, index: u16, state: State) {
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
        self.memories.remove(index);
        // What a node that ends with an error still says is on its way.
        if !matches!(state, State::Failed(..)) {
            self.datagrams.iter_mut().for_each(|datagrams: &mut Datagrams| datagrams.forget(index));
        }
    }

    /// The last thread of a node that joined is done: it may leave.
    pub(super) fn thread_ended(&mut self, node: u16) {
        let all_done = |threads: &[Thread]| threads.iter().all(Thread::is_over);
        if let Some(Leaving { node: leaver, stage: Stage::Pulling }) = self.members.leaving
            && node == self.members.coordinator
        {
            self.queue.put(self.now + POLL_NS, Event::Gone { node: leaver, leaver });
        }
        let joined = node >= self.scenario.founders;
        if joined && self.scenario.faults.leave && all_done(&self.nodes[usize::from(node)].threads) {
            self.members.want_to_leave.push(node);
            if self.members.leaving.is_none() {
                self.leave_next();
            }
        }
    }

    fn leave_next(&mut self) {
        if let Some(node) = self.members.want_to_leave.pop() {
            self.recorder.note(self.now, || format!("n{node} wants to leave"));
            self.members.leaving = Some(Leaving { node, stage: Stage::Draining });
            self.queue.put(self.now + POLL_NS, Event::Gone { node, leaver: node });
        }
    }

    fn advance_leaving(&mut self) -> Result<(), String> {
        let Some(Leaving { node, stage }) = self.members.leaving else { return Ok(()) };
        let layout = self.scenario.layout;
        let pages = (0..layout.places()).map(|place| layout.page(place));
        let machine = self.nodes[usize::from(node)].machine.as_ref().expect("it took part");
        let coordinator = self.members.coordinator;
        match stage {
            Stage::Draining => {
                if let Some(range) = self.nodes[usize::from(node)].locks.any_in_use(self.now) {
                    return Err(format!("node {node} leaves while its program locks {range}"));
                }
                if pages.clone().any(|page| machine.is_pending(page)) {
                    self.queue.put(self.now + POLL_NS, Event::Gone { node, leaver: node });
                    return Ok(());
                }
                let behind = pages.filter(|&page| machine.leaves_behind(page));
                let mut puller = Thread::new(Random::for_purpose(self.scenario.seed.number, 5), 0);
                puller.plan.extend(behind.map(Action::Pull));
                let threads = &mut self.nodes[usize::from(coordinator)].threads;
                threads.push(puller);
                let thread = threads.len() as u8 - 1;
                self.busy_threads += 1;
                self.members.leaving = Some(Leaving { node, stage: Stage::Pulling });
                // The list travels from the leaver to the coordinator.
                self.queue.put(self.now + self.scenario.wires.latency_ns, Event::Think { node: coordinator, thread });
            }
            Stage::Pulling => {
                let puller = self.nodes[usize::from(coordinator)].threads.last();
                if puller.is_some_and(Thread::is_over) {
                    let others = (0..self.nodes.len() as u16).filter(|&other| other != node);
                    let others: Vec<u16> =
                        others.filter(|&other| self.nodes[usize::from(other)].is_present()).collect();
                    self.members.leaving = Some(Leaving { node, stage: Stage::Telling(others.len() as u32) });
                    self.memories.retire(node);
                    for other in others {
                        let at = self.now + self.members.random.below(4 * self.scenario.wires.latency_ns);
                        self.queue.put(at, Event::Gone { node: other, leaver: node });
                    }
                }
            }
            Stage::Telling(_) => {}
            Stage::Closing => {
                if (0..self.nodes.len() as u16).all(|other| self.members.is_quiet_between(node, other)) {
                    self.recorder.note(self.now, || format!("n{node} has left"));
                    self.end_node(node, State::Left);
                    self.members.leaving = None;
                    self.leave_next();
                } else {
                    self.queue.put(self.now + POLL_NS, Event::Gone { node, leaver: node });
                }
            }
        }
        Ok(())
    }

    fn tell_gone(&mut self, node: u16, leaver: u16) -> Result<(), String> {
        if !self.members.is_quiet_between(node, leaver) {
            self.queue.put(self.now + POLL_NS, Event::Gone { node, leaver });
            return Ok(());
        }
        let successor = NodeId(self.members.coordinator);
        self.step(node, Input::Gone { node: NodeId(leaver), successor })?;
        if let Some(Leaving { stage: Stage::Telling(rest), .. }) = &mut self.members.leaving {
            *rest -= 1;
            if *rest == 0 {
                self.members.leaving = Some(Leaving { node: leaver, stage: Stage::Closing });
                self.queue.put(self.now + POLL_NS, Event::Gone { node: leaver, leaver });
            }
        }
        Ok(())
    }

    /// At the end: whoever lives knows who died, and nobody was taken for dead who was not.
    pub(super) fn check_members(&self) -> Result<(), String> {
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
