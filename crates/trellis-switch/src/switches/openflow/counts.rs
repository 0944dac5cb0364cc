//! The counters of a port, from the counts of the switch's flows and ports, and from packets that were decided in the
//! controller.
//!
//! A switch's counts restart from zero when it is restarted, and those of its ports began before this controller used it.

use std::collections::HashMap;

use super::codec::{FlowStats, PortStats};
use super::pipeline;
use crate::layout;
use crate::observed::Counters;

/// A count that continues when the count that it follows restarts.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    carried: u64,
    last: u64,
}

impl Total {
    fn follow(&mut self, number: u64) -> u64 {
        if number < self.last {
            self.carried += self.last;
        }
        self.last = number;
        self.carried + number
    }
}

/// A port's own counts: packets and bytes in, packets and bytes out.
type PortTotals = [Total; 4];

/// What was counted.
#[derive(Default)]
pub(super) struct Counts {
    flows: HashMap<(usize, u16), Total>,
    ports: HashMap<u16, PortTotals>,
    /// The counts of ports before this controller used them.
    before: HashMap<u16, [u64; 4]>,
    /// Packets that arrived and are in no flow's count: the switch had no room for them.
    overflowed: HashMap<u16, u64>,
}

/// The current counts of a port and its flows.
pub(super) struct Reading {
    counters: Counters,
    packets_in: u64,
}

impl Counts {
    /// Excludes what a port has counted so far.
    pub(super) fn begin(&mut self, port: u16, stats: &PortStats) {
        let counts = self.follow_port(port, stats);
        self.before.insert(port, counts);
    }

    fn follow_port(&mut self, port: u16, stats: &PortStats) -> [u64; 4] {
        let totals = self.ports.entry(port).or_default();
        let now = [stats.packets_in, stats.bytes_in, stats.packets_out, stats.bytes_out];
        std::array::from_fn(|index| totals[index].follow(now[index]))
    }

    /// Adds what was read. `decided` are the results of packets that no flow counts.
    pub(super) fn read(&mut self, port: u16, flows: &[FlowStats], stats: &PortStats, decided: &Counters) -> Reading {
        let mut values = decided.values();
        for flow in flows {
            let (counter, flow_port) = pipeline::counter_of(flow.cookie);
            if flow_port == port && counter < layout::COUNTERS {
                values[counter] += self.flows.entry((counter, port)).or_default().follow(flow.packets);
            }
        }
        let now = self.follow_port(port, stats);
        let before = self.before.get(&port).copied().unwrap_or_default();
        let [packets_in, bytes_in, packets_out, bytes_out] =
            std::array::from_fn(|index| now[index].saturating_sub(before[index]));
        values[layout::COUNT_OVERFLOWED] += self.overflowed.get(&port).copied().unwrap_or_default();
        (values[layout::COUNT_BYTES_IN], values[layout::COUNT_PACKETS_OUT]) = (bytes_in, packets_out);
        values[layout::COUNT_BYTES_OUT] = bytes_out;
        Reading { counters: Counters::from_values(&values), packets_in }
    }

    /// Returns the counters although some packets are missing in them: those count as lost.
    pub(super) fn give_up(&mut self, port: u16, reading: &Reading) -> Counters {
        let missing = reading.missing();
        *self.overflowed.entry(port).or_default() += missing;
        let mut counters = reading.counters;
        counters.overflowed += missing;
        counters
    }
}

impl Reading {
    /// Packets that arrived and are not in any count yet.
    pub(super) fn missing(&self) -> u64 {
        self.packets_in.saturating_sub(self.counters.packets_in())
    }

    /// The counters, if they include this many packets.
    pub(super) fn counters_of(&self, packets: u64) -> Option<Counters> {
        (self.counters.packets_in() >= packets).then_some(self.counters)
    }

    pub(super) fn packets_in(&self) -> u64 {
        self.packets_in
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::Match;
    use super::*;

    fn flow(counter: usize, port: u64, packets: u64) -> FlowStats {
        FlowStats {
            table: 0,
            age: (0, 0),
            priority: 0,
            idle_timeout: 0,
            hard_timeout: 0,
            flags: 0,
            cookie: (counter as u64) << 16 | port,
            packets,
            bytes: 0,
            matching: Match::any(),
            instructions: Vec::new(),
        }
    }

    fn port(packets_in: u64) -> PortStats {
        PortStats { packets_in, bytes_in: 100 * packets_in, packets_out: 7, ..PortStats::default() }
    }

    #[test]
    fn counters_are_of_flows_ports_and_what_was_decided_here() {
        let mut counts = Counts::default();
        counts.begin(3, &port(10));
        let decided = Counters { granted: 1, delivered: 2, ..Counters::default() };
        let flows =
            [flow(layout::COUNT_DELIVERED, 3, 5), flow(layout::COUNT_FORGED, 3, 1), flow(layout::COUNT_FORGED, 4, 9)];
        let reading = counts.read(3, &flows, &port(19), &decided);
        let counters = reading.counters_of(8).unwrap();
        assert_eq!((counters.delivered, counters.forged, counters.granted, counters.bytes_in), (7, 1, 1, 900));
        assert_eq!((reading.missing(), reading.counters_of(9), counters.packets_out), (1, None, 0));
        assert_eq!(counts.give_up(3, &reading).overflowed, 1);
        let reading = counts.read(3, &flows, &port(19), &decided);
        assert_eq!((reading.missing(), reading.counters_of(9).unwrap().overflowed), (0, 1));
    }

    #[test]
    fn a_switch_that_was_started_again_counts_on() {
        let mut counts = Counts::default();
        let none = Counters::default();
        counts.read(3, &[flow(layout::COUNT_DELIVERED, 3, 5)], &port(5), &none);
        let reading = counts.read(3, &[flow(layout::COUNT_DELIVERED, 3, 2)], &port(2), &none);
        assert_eq!(reading.counters_of(7).unwrap().delivered, 7);
        assert_eq!(reading.packets_in(), 7);
    }
}
