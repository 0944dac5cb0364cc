//! The cluster and its clock: takes one event after the other.
//!
//! Promises: virtual time never goes back; every effect is checked when it is carried out; a run ends when every thread
//! is done, with an error when one cannot be. It must never look at a real clock, nor into a protocol.

use super::blocks::{Blocks, heap_of};
use super::datagrams::Datagrams;
use super::events::{Event, Queue};
use super::leaving::TAKER;
use super::members::Members;
use super::network::Network;
use super::node::{Doing, Node, State, Taker, Thread};
use super::node_faults::NodeFault;
use super::pages::Pages;
use super::record::Recorder;
use super::scenario::{Layout, Pattern, Scenario, Wires};
use super::{Start, Tally};
use crate::model::{self, At, Memory, Stepping};
use std::collections::BTreeMap;
use trellis_base::Random;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message};
use trellis_cluster_protocol::node::{self, Effects, LeavingStep, Order, Shard};
use trellis_cluster_protocol::sync::Waiter;
use trellis_cluster_protocol::{Access, Nanoseconds, NodeId, PageIndex, PageRange, heap, membership, sync, wire};

/// Virtual time after which a run counts as endless in which nothing was done.
const RUN_NS_MAX: Nanoseconds = 400_000_000_000;
/// Steps after which it does.
const STEPS_MAX: u64 = 60_000_000;
/// Each access and call that was done may have taken so many steps more, …
const STEPS_OF_OPERATION_MAX: u64 = 64;
/// … and so many messages and pages, one after the other.
const TRANSFERS_OF_OPERATION_MAX: u64 = 16;
/// A message has a header and perhaps this.
const SMALL_BODY_BYTES: u32 = 16;

/// A message under way.
type Envelope = model::Envelope<wire::Message>;

/// A simulation. See the module's documentation.
pub(super) struct World<'a, S: Start> {
    pub(super) scenario: Scenario,
    pub(super) start: &'a S,
    pub(super) now: Nanoseconds,
    pub(super) queue: Queue,
    pub(super) nodes: Vec<Node<S::Node>>,
    pub(super) memory: Memory<Layout>,
    pub(super) pages: Pages,
    pub(super) network: Network,
    pub(super) datagrams: Option<Datagrams>,
    pub(super) members: Members,
    /// Nodes look at the clock for silent peers.
    pub(super) watches: bool,
    pub(super) recorder: Recorder,
    pub(super) random: Random,
    pub(super) tally: Tally,
    /// Threads are given nothing more to do from here on.
    pub(super) stop_at: Nanoseconds,
    pub(super) is_healed: bool,
    /// Threads that are not done.
    pub(super) busy_threads: usize,
    /// The holders of locks, the entries into barriers, and the blocks of the heap.
    pub(super) lock_holders: BTreeMap<u64, u16>,
    pub(super) arrivals: Vec<u32>,
    pub(super) blocks: Blocks,
    /// For each word: additions that began, and the last value that an ended one saw.
    pub(super) words: BTreeMap<u64, (u64, u64)>,
    /// For each change of a protocol that ended somewhere, whether the pages have changed.
    pub(super) changed: BTreeMap<u32, bool>,
    envelopes: Vec<Envelope>,
    free: Vec<u32>,
    /// How much virtual time each operation that was done may explain.
    operation_ns_max: Nanoseconds,
}

impl<'a, S: Start> World<'a, S> {
    pub(super) fn new(scenario: Scenario, start: &'a S, lines: usize) -> World<'a, S> {
        let nodes = scenario.nodes();
        let mut world = World {
            start,
            now: 0,
            queue: Queue::new(),
            nodes: Vec::with_capacity(usize::from(nodes)),
            memory: Memory::new(scenario.layout, usize::from(nodes), ()),
            pages: Pages::new(scenario.layout),
            network: Network::new(&scenario),
            datagrams: scenario.datagrams.then(|| Datagrams::new(&scenario)),
            members: Members::new(&scenario),
            watches: false,
            recorder: Recorder::new(lines),
            random: Random::for_purpose(scenario.seed.number, 2),
            tally: Tally::default(),
            stop_at: Nanoseconds::MAX,
            is_healed: false,
            busy_threads: 0,
            lock_holders: BTreeMap::new(),
            arrivals: vec![0; usize::from(scenario.founders)],
            words: BTreeMap::new(),
            blocks: Blocks::default(),
            changed: BTreeMap::new(),
            envelopes: Vec::with_capacity(256),
            free: Vec::with_capacity(256),
            operation_ns_max: operation_ns_max(&scenario.wires),
            scenario,
        };
        for me in 0..nodes {
            let shard = |shard| {
                let geometry = world.geometry(me, shard);
                let machine = start.start(world.scenario.protocol, geometry);
                Shard::new(machine, geometry, NodeId(world.scenario.coordinator))
            };
            let shards = (0..world.scenario.layout.shards()).map(shard).collect();
            let (founders, coordinator) = (world.scenario.founders, NodeId(world.scenario.coordinator));
            let mut parts = node::Node::new(shards, sync::Sync::new(NodeId(me), founders), None, coordinator);
            parts.heap = Some(heap_of(&world.scenario, me));
            world.nodes.push(Node::new(me < founders, parts));
        }
        world
    }

    /// Runs to the end.
    pub(super) fn run(&mut self) -> Result<(), String> {
        (0..self.scenario.founders).for_each(|node| self.start_threads(node));
        self.plan_faults();
        while let Some((time, event)) = self.queue.take() {
            assert!(time >= self.now, "virtual time goes back");
            self.now = time;
            if self.is_put_off(event) {
                continue;
            }
            self.happen(event)?;
            if self.queue.is_idle() && self.is_over()? && !self.returns_spans() {
                break;
            }
            if self.is_endless() {
                return Err(format!("no end after {} steps: {}", self.tally.steps, self.who_waits()));
            }
        }
        self.check_end()
    }

    /// Whether it went on for longer than what was done can explain. A run of ten million operations is long, but no run
    /// may go on without ending any.
    fn is_endless(&self) -> bool {
        let done = self.tally.accesses + self.tally.calls;
        self.tally.steps > STEPS_MAX.saturating_add(done.saturating_mul(STEPS_OF_OPERATION_MAX))
            || self.now > RUN_NS_MAX.saturating_add(done.saturating_mul(self.operation_ns_max))
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        self.tally.events += 1;
        match event {
            Event::Arrive { envelope } => self.arrive(envelope),
            Event::Think { node, thread } => self.think(node, thread),
            Event::Submit { node, thread } => self.submit(node, thread),
            Event::Look { node, thread, ticket } => self.look(node, thread, ticket),
            Event::Due { node } => self.say_due(node),
            Event::GiveUp { node, thread, time_out } => self.give_up(node, thread, time_out),
            Event::Datagram { slot } => self.datagram_arrives(slot),
            Event::Timer { node, peer } => self.timer(node, peer),
            Event::Take { node } => {
                self.nodes[usize::from(node)].taker = Taker::Ready;
                self.take_over(node)
            }
            Event::Heal => {
                self.is_healed = true;
                self.network.heal(self.now);
                self.recorder.note(self.now, || "no more faults".to_string());
                Ok(())
            }
            other => self.change_members(other),
        }
    }

    /// A paused node does everything later, in the same order; one that is no more does nothing.
    fn is_put_off(&mut self, event: Event) -> bool {
        let node = match event {
            Event::Arrive { envelope } => self.envelopes[envelope as usize].to,
            Event::Datagram { slot } => self.datagrams.as_ref().expect("it travels").receiver(slot),
            _ => match event.node() {
                Some(node) => node,
                None => return false,
            },
        };
        let node = &self.nodes[usize::from(node)];
        if self.now < node.paused_until {
            self.queue.put(node.paused_until, event);
            return true;
        }
        // What was under way to a node that is no more has to be taken from the table.
        !node.is_present() && !matches!(event, Event::Arrive { .. } | Event::Datagram { .. })
    }

    /// One fact for the locks, barriers and words of a node.
    pub(super) fn synchronise(&mut self, node: u16, input: sync::Input) -> Result<(), String> {
        node::take_fact(&mut self.at(node), node::Input::Sync(input))
    }

    pub(super) fn send(&mut self, from: u16, to: NodeId, message: wire::Message) -> Result<(), String> {
        let bytes = self.bytes_of(&message);
        match self.nodes.get(usize::from(to.0)).map(|node| node.state) {
            None => return Err(format!("node {from} sends to {to}, which does not exist")),
            Some(_) if to.0 == from => return Err(format!("node {from} sends to itself")),
            Some(State::Absent) => return Err(format!("node {from} sends to {to}, which has not joined")),
            Some(State::Left) => {
                let said = message.to_string();
                return Err(format!("node {from} sends to {to}, which has left: {said}"));
            }
            Some(State::Crashed | State::Failed(..) | State::Present) => {}
        }
        let sender = &self.nodes[usize::from(from)];
        let is_gone = sender.parts.membership.as_ref().is_some_and(|members| members.is_gone(to));
        let is_about_members = matches!(message, wire::Message::Membership(_));
        // A node that leaves serves until every other node has said farewell to it.
        if is_gone && !is_about_members && sender.is_present() && sender.parts.leaving.is_none() {
            return Err(format!("node {from} sends to {to}, to which it said farewell: {message}"));
        }
        self.tally.messages += 1;
        self.tally.bytes += u64::from(bytes);
        self.members.sent(from, to.0);
        let envelope = self.keep(Envelope { from, to: to.0, message });
        if self.datagrams.is_some() {
            self.submit_frame(from, to.0, envelope, bytes - wire::HEADER_BYTES as u32);
        } else {
            let time = self.network.stream(self.now, from, to.0, bytes, is_about_members);
            self.queue.put(time, Event::Arrive { envelope });
        }
        Ok(())
    }

    fn bytes_of(&self, message: &wire::Message) -> u32 {
        let body = match message {
            wire::Message::Coherence(message) => {
                message.bytes().map_or(0, PageRange::count) * self.scenario.wires.page_bytes
            }
            wire::Message::Sync(sync::Message::AtomicRequest(..) | sync::Message::AtomicReply(..)) => SMALL_BODY_BYTES,
            _ => 0,
        };
        wire::HEADER_BYTES as u32 + body
    }

    /// A whole message is there, once.
    pub(super) fn arrive(&mut self, envelope: u32) -> Result<(), String> {
        let Envelope { from, to, message } = self.envelopes[envelope as usize];
        self.free.push(envelope);
        self.members.arrived(from, to);
        if !self.nodes[usize::from(to)].is_present() {
            return Ok(());
        }
        self.heard(to, from)?;
        match message {
            wire::Message::Coherence(message) => {
                // What is due comes first: a node that paused hears of both at once.
                self.say_due(to)?;
                self.hand_over(from, to, message)
            }
            message => {
                node::receive(&mut self.at(to), NodeId(from), message, &[])?;
                self.take_over(to)
            }
        }
    }

    fn keep(&mut self, envelope: Envelope) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.envelopes[index as usize] = envelope;
                index
            }
            None => {
                self.envelopes.push(envelope);
                self.envelopes.len() as u32 - 1
            }
        }
    }

    pub(super) fn start_threads(&mut self, node: u16) {
        // A node that joins and leaves again does so while the others work.
        let is_visitor = node >= self.scenario.founders && self.scenario.faults.leave;
        let total = if is_visitor { self.scenario.operations.div_ceil(4) } else { self.scenario.operations };
        for thread in 0..self.scenario.threads {
            let purpose = 1000 + u64::from(node) * 16 + u64::from(thread);
            let random = Random::for_purpose(self.scenario.seed.number, purpose);
            self.nodes[usize::from(node)].threads.push(Thread::new(random, total));
            self.busy_threads += 1;
            // Nobody begins at the same time.
            let at = self.now + self.random.below(self.scenario.manners.think_ns + 1000);
            self.queue.put(at, Event::Think { node, thread });
        }
    }

    /// The geometry of a shard of a node.
    fn geometry(&self, me: u16, shard: u32) -> Geometry {
        Geometry {
            me: NodeId(me),
            nodes: self.scenario.nodes(),
            founders: self.scenario.founders,
            pages: self.scenario.layout.pages(),
            shard,
            shards: self.scenario.layout.shards(),
            home: self.scenario.home,
            marks: false,
        }
    }

    /// Nothing will happen by itself any more: is that the end?
    fn is_over(&self) -> Result<bool, String> {
        if self.datagrams.as_ref().is_some_and(Datagrams::is_busy) || self.members.is_busy() {
            return Ok(false);
        }
        if self.busy_threads > 0 {
            return Err(format!("threads wait for ever: {}", self.who_waits()));
        }
        Ok(true)
    }

    /// After the end nobody may wait for anything.
    fn check_end(&self) -> Result<(), String> {
        self.check_members()?;
        self.check_heap()?;
        if self.busy_threads > 0 {
            return Err(format!("threads wait for ever: {}", self.who_waits()));
        }
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_present()) {
            let pages = (0..self.scenario.layout.places()).map(|place| self.scenario.layout.page(place));
            if let Some(page) = pages.into_iter().find(|&page| node.parts.shard(page).protocol.is_pending(page)) {
                return Err(format!("a request of node {index} for {page} is under way for ever"));
            }
        }
        let barriers = matches!(self.scenario.pattern, Pattern::Phases | Pattern::Barriers);
        if barriers && self.members.culprit().is_none() && self.arrivals.windows(2).any(|two| two[0] != two[1]) {
            return Err(format!("nodes entered the barriers {:?} times", self.arrivals));
        }
        Ok(())
    }

    /// Who waits for what, in words.
    pub(super) fn who_waits(&self) -> String {
        let mut waiting = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_present()) {
            for (number, thread) in node.threads.iter().enumerate().filter(|(_, thread)| !thread.is_over()) {
                let (doing, action) = (thread.doing, thread.action);
                let what = match (doing, action) {
                    (Doing::Thinking, _) => "computes".to_string(),
                    (_, Some(action)) => format!("waits since {} us: {action:?}", thread.since / 1000),
                    (_, None) => format!("{doing:?}"),
                };
                waiting.push(format!("node {index} thread {number} {what}"));
            }
        }
        let more = waiting.len().saturating_sub(6);
        waiting.truncate(6);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        format!("{}{rest}", waiting.join("; "))
    }
}

impl<S: Start> model::Cluster for World<'_, S> {
    type Layout = Layout;
    type Bytes = ();

    fn memory(&mut self) -> &mut Memory<Layout> {
        &mut self.memory
    }

    fn put_under_way(&mut self, node: u16, to: NodeId, message: Message) -> Result<(), String> {
        self.tally.pages_sent += u64::from(message.bytes().map_or(0, PageRange::count));
        self.tally.page_messages += 1;
        self.send(node, to, wire::Message::Coherence(message))
    }

    fn look_again(&mut self, node: u16, pages: PageRange) -> Result<(), String> {
        self.wake(node, pages);
        Ok(())
    }

    fn waits(&mut self, node: u16, page: PageIndex, waiter: Waiter) {
        if waiter == TAKER {
            self.nodes[usize::from(node)].taker = Taker::Waits(page);
        }
    }

    fn has_timer(&mut self, node: u16, due: Nanoseconds) {
        self.wake_at(node, due);
    }

    fn has_locked(&mut self, node: u16, pages: PageRange, call: u32) -> Result<(), String> {
        self.locked(node, pages, call)
    }

    fn check_unlocked(&self, node: u16, pages: PageRange) -> Result<(), String> {
        match pages.pages().find(|&page| self.pages.is_locked_by(node, page, self.now)) {
            Some(page) => Err(format!("{page} leaves node {node} while a program of that node has locked it")),
            None => Ok(()),
        }
    }

    fn opened(&mut self, _node: u16, pages: PageRange, _access: Access) -> Result<(), String> {
        self.pages.granted(pages);
        Ok(())
    }
}

impl<S: Start> Stepping for World<'_, S> {
    type Protocol = S::Node;

    fn node(&self, node: u16) -> &node::Node<S::Node> {
        &self.nodes[usize::from(node)].parts
    }

    fn node_mut(&mut self, node: u16) -> &mut node::Node<S::Node> {
        &mut self.nodes[usize::from(node)].parts
    }

    fn now(&self) -> Nanoseconds {
        self.now
    }

    fn order(&mut self, node: u16, shard: usize, effect: Effect) -> Order {
        let shard = &mut self.nodes[usize::from(node)].parts.shards[shard];
        self.start.fault().order(shard, effect, self.now, self.scenario.manners.hold_ns)
    }

    fn note_input(&mut self, node: u16, input: Input) {
        self.tally.steps += 1;
        self.recorder.input(self.now, node, &input);
    }

    fn note_effect(&mut self, _node: u16, effect: Effect) {
        self.recorder.effect(&effect);
    }
}

impl<S: Start> Effects for At<'_, World<'_, S>> {
    type Protocol = S::Node;

    fn node(&mut self) -> &mut node::Node<S::Node> {
        self.cluster.node_mut(self.node)
    }

    fn now(&self) -> Nanoseconds {
        self.cluster.now
    }

    fn takes(&mut self, input: &node::Input) -> bool {
        let At { cluster, node, .. } = self;
        cluster.tally.steps +=
            u64::from(matches!(input, node::Input::Sync(_) | node::Input::Membership(_) | node::Input::Heap(_)));
        match (input, cluster.start.fault()) {
            (node::Input::Sync(sync::Input::Depart), NodeFault::KeepsTokens)
            | (node::Input::Membership(membership::Input::Behind(_)), NodeFault::NamesNothing) => return false,
            // Its program loads nothing any more, though its views may still allow it.
            (node::Input::Membership(membership::Input::HandedOver), _) => cluster.memory.retire(*node),
            (node::Input::Membership(membership::Input::Message(from, _)), _) => {
                cluster.recorder.fold(cluster.now ^ u64::from(*node) << 32 ^ u64::from(from.0));
            }
            (node::Input::Sync(input), _) => {
                cluster.recorder.fold(cluster.now ^ u64::from(*node));
                cluster.recorder.note(cluster.now, || format!("n{node} {input:?}"));
            }
            (node::Input::Heap(input), _) => {
                cluster.recorder.fold(cluster.now ^ u64::from(*node) << 48);
                cluster.recorder.note(cluster.now, || format!("n{node} {input:?}"));
            }
            _ => {}
        }
        true
    }

    fn heeds(&mut self, effect: membership::Effect) -> Result<bool, String> {
        self.cluster.heeds(self.node, effect)
    }

    fn send(&mut self, to: NodeId, message: wire::Message, _knowledge: Vec<u8>) -> Result<(), String> {
        self.cluster.tally.sync_messages += u64::from(matches!(message, wire::Message::Sync(_)));
        self.cluster.send(self.node, to, message)
    }

    fn wake(&mut self, waiter: Waiter, value: u64) -> Result<(), String> {
        self.cluster.returned(self.node, waiter, value)
    }

    fn answer(&mut self, waiter: Waiter, answer: heap::Answer) -> Result<(), String> {
        self.cluster.heap_answered(self.node, waiter, answer)
    }

    fn breach(&mut self, by: Option<NodeId>, what: &'static str) -> Result<(), String> {
        Err(model::breach(self.node, by, what))
    }

    fn skips(&self, step: LeavingStep) -> bool {
        self.cluster.start.fault().skipped() == Some(step)
    }
}

fn operation_ns_max(wires: &Wires) -> Nanoseconds {
    let page_ns = u64::from(wires.page_bytes).saturating_mul(1_000_000_000) / wires.bytes_per_second.max(1);
    let transfer_ns =
        [wires.spread_ns, wires.jitter_ns, page_ns].into_iter().fold(wires.latency_ns, u64::saturating_add);
    transfer_ns.saturating_mul(TRANSFERS_OF_OPERATION_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Real, Seed};

    #[test]
    fn a_run_may_be_as_long_as_what_was_done_explains() {
        let scenario = Scenario::from_seed(Seed { protocol: None, number: 1 });
        let (real, wires) = (Real, scenario.wires);
        let mut world = World::new(scenario, &real, 0);
        let seems_endless = |world: &mut World<'_, Real>, steps: u64, now: Nanoseconds, done: u64| {
            (world.tally.steps, world.now) = (steps, now);
            (world.tally.accesses, world.tally.calls) = (done / 2, done - done / 2);
            world.is_endless()
        };
        assert!(!seems_endless(&mut world, STEPS_MAX, RUN_NS_MAX, 0));
        assert!(seems_endless(&mut world, STEPS_MAX + 1, 0, 0) && seems_endless(&mut world, 0, RUN_NS_MAX + 1, 0));
        // Ten million operations, in eight steps and one way through the network each.
        let done = 10_240_000;
        assert!(!seems_endless(&mut world, done * 8, done * wires.latency_ns, done));
        assert!(seems_endless(&mut world, STEPS_MAX + done * STEPS_OF_OPERATION_MAX + 1, 0, done));
        assert!(seems_endless(&mut world, 0, RUN_NS_MAX + done * operation_ns_max(&wires) + 1, done));
    }

    #[test]
    fn slow_wires_give_more_time_and_none_overflow() {
        let of = |latency_ns, bytes_per_second| {
            operation_ns_max(&Wires { latency_ns, spread_ns: 0, jitter_ns: 0, bytes_per_second, page_bytes: 4096 })
        };
        assert_eq!(of(1_000, 4_096_000_000), 16 * 2_000);
        assert!(of(1_000_000, 4_096_000_000) > of(1_000, 4_096_000_000) && of(1_000, 1) > of(1_000, 1_000));
        assert_eq!(of(u64::MAX, 1), u64::MAX);
    }
}
