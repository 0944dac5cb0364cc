//! Two nodes that take turns with a page, with nothing around their protocol: for tools that count its instructions.
//!
//! Promises: each access that faults is served before the next one begins, and no message is lost. Alarms go off at once.
//! It must never do more for a fault than to pass effects on, so that what is counted is the protocol.

use std::collections::VecDeque;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Protocol, Running};
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::{Access, CHUNK_PAGES, NodeId, PageIndex, PageRange};

/// The accesses of a node in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Turn {
    /// It stores to the page.
    Stores,
    /// It loads from the page, and then stores to it.
    LoadsAndStores,
}

/// The page. It is not the first one, so that an index of zero helps nobody.
const PAGE: PageIndex = PageIndex(5);

struct Pair {
    nodes: [Running; 2],
    effects: Vec<Effect>,
    /// Facts that follow from effects: the node, and the input.
    facts: VecDeque<(usize, Input)>,
    faults: u64,
}

/// Lets two nodes with this protocol take so many turns. Returns the number of faults.
///
/// # Panics
///
/// If an access is not served, or if the protocol has release consistency.
pub fn take(protocol: Protocol, turns: u32, turn: Turn) -> u64 {
    assert!(!protocol.is_release_consistent(), "{protocol} moves pages at releases, and there are none here");
    let node = |me| {
        protocol.start(Geometry {
            me: NodeId(me),
            nodes: 2,
            founders: 2,
            pages: CHUNK_PAGES,
            shard: 0,
            shards: 1,
            home: Home::Manager(Manager(NodeId(0))),
            marks: false,
        })
    };
    let mut pair = Pair {
        nodes: [node(0), node(1)],
        effects: Vec::with_capacity(64),
        facts: VecDeque::with_capacity(64),
        faults: 0,
    };
    for number in 0..turns {
        let node = number as usize % 2;
        if turn == Turn::LoadsAndStores {
            pair.access(node, false);
        }
        pair.access(node, true);
    }
    pair.faults
}

impl Pair {
    fn access(&mut self, node: usize, write: bool) {
        let needed = if write { Access::Write } else { Access::Read };
        if self.nodes[node].access(PAGE) >= needed {
            return;
        }
        self.faults += 1;
        self.facts.push_back((node, Input::Fault { page: PAGE, write, wanted: PageRange::one(PAGE) }));
        self.settle();
        assert!(self.nodes[node].access(PAGE) >= needed, "node {node} waits for ever");
        self.facts.push_back((node, Input::Resumed { page: PAGE }));
        self.settle();
    }

    fn settle(&mut self) {
        while let Some((node, input)) = self.facts.pop_front() {
            self.nodes[node].step(0, input, &mut self.effects);
            for effect in self.effects.drain(..) {
                match effect {
                    Effect::Send { to, message } => {
                        let input = Input::Message { from: NodeId(node as u16), message };
                        self.facts.push_back((usize::from(to.0), input));
                    }
                    Effect::Alarm { page, purpose, .. } => {
                        self.facts.push_back((node, Input::Alarm { page, purpose }));
                    }
                    Effect::Violation { what, .. } => panic!("node {node} complains: {what}"),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_of_the_other_node_faults() {
        for protocol in Protocol::all() {
            assert_eq!(take(protocol, 10, Turn::Stores), 10, "{protocol}");
        }
        let loads_first = |name: &str| take(name.parse().expect("a protocol"), 100, Turn::LoadsAndStores);
        // The first turn is of the page's home, which loads from it and stores to it at once.
        assert_eq!((loads_first("dynamic"), loads_first("migrate")), (199, 100));
        let (ivy, auto) = (loads_first("ivy"), loads_first("auto"));
        assert!((100..120).contains(&ivy) && (100..120).contains(&auto), "{ivy} and {auto} faults");
    }
}
