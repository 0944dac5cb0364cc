//! The wires between nodes: how long a message takes, and what happens to it.
//!
//! Promises: what a node sends at the same time queues behind each other; without reordering, messages of one pair keep
//! their order; a stream loses nothing, whatever is wrong with the network, and a datagram may be lost. It must never
//! look at what a message says.

use super::scenario::{Faults, Scenario, Wires};
use trellis_base::{Random, mixed};
use trellis_cluster_protocol::Nanoseconds;

/// Up to here each pair's order is remembered; larger clusters have wires on which nothing overtakes.
const PAIRS_NODES_MAX: u16 = 64;
/// What a message takes that takes very long.
const DELAY_NS_MAX: Nanoseconds = 10_000_000;
const MICROSECOND: Nanoseconds = 1_000;
/// With reordering a message takes up to so many times the latency longer.
pub(super) const REORDERED_LATENCIES: u64 = 4;

pub(super) struct Network {
    nodes: usize,
    wires: Wires,
    faults: Faults,
    random: Random,
    /// When each node's wire is free again.
    free_at: Vec<Nanoseconds>,
    /// When the last message of each pair arrives.
    last: Vec<Nanoseconds>,
    /// Which part of the network each node is in, and until when there are two.
    parts: Vec<bool>,
    parted_until: Nanoseconds,
}

impl Network {
    pub(super) fn new(scenario: &Scenario) -> Network {
        let nodes = usize::from(scenario.nodes());
        let keeps_order = scenario.nodes() <= PAIRS_NODES_MAX;
        Network {
            nodes,
            wires: scenario.wires,
            faults: scenario.faults,
            random: Random::for_purpose(scenario.seed.number, 1),
            free_at: vec![0; nodes],
            last: vec![0; if keeps_order { nodes * nodes } else { 0 }],
            parts: vec![false; nodes],
            parted_until: 0,
        }
    }

    /// When a message that is sent now arrives on a stream. One that `is_last` arrives after everything that was sent
    /// before it, whatever the network does.
    pub(super) fn stream(&mut self, now: Nanoseconds, from: u16, to: u16, bytes: u32, is_last: bool) -> Nanoseconds {
        let mut arrival = self.way(now, from, to, bytes);
        if now < self.parted_until && self.is_parted(from, to) {
            // A stream waits, and goes on when the network is whole again.
            arrival = arrival.max(self.parted_until + self.wires.latency_ns);
        }
        if !self.last.is_empty() {
            let last = &mut self.last[usize::from(from) * self.nodes + usize::from(to)];
            if is_last || !self.faults.reorder {
                arrival = arrival.max(*last + 1);
            }
            *last = arrival.max(*last);
        }
        arrival
    }

    /// When a datagram that is sent now arrives, for each time that it does.
    pub(super) fn datagram(&mut self, now: Nanoseconds, from: u16, to: u16, bytes: u32) -> [Option<Nanoseconds>; 2] {
        let arrival = self.way(now, from, to, bytes);
        let is_cut = now < self.parted_until && self.is_parted(from, to);
        if is_cut || self.faults.drop && self.random.percent(10) {
            return [None, None];
        }
        let twice = self.faults.duplicate && self.random.percent(5);
        let second = twice.then(|| arrival + self.random.below(self.wires.latency_ns * 4 + MICROSECOND));
        [Some(arrival), second]
    }

    fn way(&mut self, now: Nanoseconds, from: u16, to: u16, bytes: u32) -> Nanoseconds {
        let wires = self.wires;
        let free_at = &mut self.free_at[usize::from(from)];
        *free_at = now.max(*free_at) + u64::from(bytes) * 1_000_000_000 / wires.bytes_per_second;
        let mut arrival = *free_at + wires.latency_ns;
        if wires.spread_ns > 0 {
            arrival += mixed(u64::from(from.min(to)) << 16 | u64::from(from.max(to))) % wires.spread_ns;
        }
        if wires.jitter_ns > 0 {
            arrival += self.random.below(wires.jitter_ns);
        }
        if self.faults.reorder {
            arrival += self.random.below(wires.latency_ns * REORDERED_LATENCIES);
        }
        if self.faults.delay && self.random.once_in(50) {
            arrival += self.random.below(DELAY_NS_MAX);
        }
        arrival
    }

    /// The network falls into two parts for `span`.
    pub(super) fn part(&mut self, now: Nanoseconds, span: Nanoseconds) {
        self.parted_until = now + span;
        for part in &mut self.parts {
            *part = self.random.once_in(2);
        }
    }

    /// From now on nothing goes wrong any more. What was delayed stays delayed.
    pub(super) fn heal(&mut self, now: Nanoseconds) {
        self.parted_until = self.parted_until.min(now);
        self.faults = Faults { reorder: self.faults.reorder, ..Faults::default() };
    }

    fn is_parted(&self, from: u16, to: u16) -> bool {
        self.parts[usize::from(from)] != self.parts[usize::from(to)]
    }
}
