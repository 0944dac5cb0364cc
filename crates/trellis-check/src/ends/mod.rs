//! The end of a program whose threads run at several nodes: the explorer's model for it.
//!
//! Every node takes the steps that a runtime carries out ([`ProgramEnd`]), with counts that all nodes see alike. Any node
//! may be the next to take one. The model checks:
//!
//! 1. *Node 0 ends first where threads still run*, and only when every node has written its record.
//! 2. *All leave together elsewhere*: then no node ends by itself.
//! 3. *Every node ends.*
//!
//! It must never inspect the state machine: it uses only steps.

mod faults;

pub use faults::EndFault;

use crate::explore::Model;
use crate::intern::guarded;
use crate::world::{self, Pass, Piece, Pieces, Worlds};
use trellis_cluster_protocol::sync::{EndStep, ProgramEnd};

/// The size of a cluster, and where threads still run at the end.
#[derive(Clone, Copy, Debug)]
pub struct EndInstance {
    /// Number of nodes, at most four.
    pub nodes: u8,
    /// The nodes at which threads still run, one bit each.
    pub busy: u8,
    /// The rule that this instance breaks on purpose.
    pub fault: EndFault,
}

impl EndInstance {
    /// Every instance of one to four nodes.
    pub fn all(fault: EndFault) -> Vec<EndInstance> {
        let of = |nodes: u8| (0..1 << nodes).map(move |busy| EndInstance { nodes, busy, fault });
        (1..=4).flat_map(of).collect()
    }

    /// The model of this instance.
    pub fn model(&self) -> impl Model {
        let nodes = vec![Piece::new(Node { at: At::Runs, has_record: false }); usize::from(self.nodes)];
        Worlds::new(World { instance: *self, nodes, counts: Piece::new(Counts::default()) })
    }

    /// A description of this instance.
    pub fn describe(&self) -> String {
        format!("ends nodes={} busy={:b}", self.nodes, self.busy)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Its program runs.
    Runs,
    /// It is about to take this step.
    Does(ProgramEnd, EndStep),
    /// Its process has ended.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    at: At,
    has_record: bool,
}

/// What all nodes see alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Counts {
    is_announced: bool,
    busy: u8,
    ready: u8,
    go: u8,
}

#[derive(Clone)]
struct World {
    instance: EndInstance,
    nodes: Vec<Piece<Node>>,
    counts: Piece<Counts>,
}

impl world::World for World {
    /// A node takes its next step.
    type Action = usize;
    type Tables = (Pieces<Node>, Pieces<Counts>);

    fn enabled(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&node| self.can_go(node)).collect()
    }

    fn take(&mut self, node: usize) -> Result<(), String> {
        let (end, step) = match self.nodes[node].at {
            At::Runs => ProgramEnd::begin(node == 0, self.instance.busy >> node & 1 != 0),
            At::Does(mut end, step) => {
                let Some(busy_nodes) = self.carry_out(node, step)? else {
                    self.nodes[node].at = At::Over;
                    return Ok(());
                };
                let next = guarded(|| end.go_on(busy_nodes.into()))?;
                (end, next)
            }
            At::Over => unreachable!("its process has ended"),
        };
        self.nodes[node].at = At::Does(end, step);
        Ok(())
    }

    fn check_last(self) -> Result<(), String> {
        match self.nodes.iter().position(|node| node.at != At::Over) {
            Some(node) => Err(format!("node {node} waits for ever: {:?}", self.nodes[node].at)),
            None => Ok(()),
        }
    }

    fn describe(&self, node: usize) -> String {
        format!("node {node}: {:?}", self.nodes[node].at)
    }

    fn pass(&mut self, (nodes, counts): &mut Self::Tables, pass: &mut Pass) {
        pass.each(nodes, &mut self.nodes);
        pass.one(counts, &mut self.counts);
    }
}

impl World {
    fn others(&self) -> u8 {
        self.instance.nodes - 1
    }

    fn can_go(&self, node: usize) -> bool {
        let Counts { is_announced, ready, go, .. } = *self.counts;
        match self.nodes[node].at {
            At::Runs => node == 0 || is_announced,
            At::Does(_, step) if self.instance.fault.passes_over(step, ready) => true,
            At::Does(_, EndStep::AwaitReady) => ready >= self.others(),
            At::Does(_, EndStep::AwaitGo) => go > 0,
            At::Does(_, EndStep::AwaitEnd) => self.nodes[0].at == At::Over,
            At::Does(_, EndStep::Leave) => {
                self.nodes.iter().all(|node| matches!(node.at, At::Does(_, EndStep::Leave) | At::Over))
            }
            At::Does(..) => true,
            At::Over => false,
        }
    }

    /// Returns what was looked up, or nothing if the process has ended.
    fn carry_out(&mut self, node: usize, step: EndStep) -> Result<Option<u8>, String> {
        let (others, fault) = (self.others(), self.instance.fault);
        if fault.passes_over(step, self.counts.ready) {
            return Ok(Some(0));
        }
        match step {
            EndStep::CountBusy if fault == EndFault::CountsLate && node != 0 => {}
            EndStep::CountBusy => self.counts.busy += 1,
            EndStep::Announce => self.counts.is_announced = true,
            EndStep::SayReady => self.counts.ready += 1,
            EndStep::AwaitReady => self.counts.ready -= others,
            EndStep::LetGo if fault == EndFault::LetsOneGo => self.counts.go += 1,
            EndStep::LetGo => self.counts.go += others,
            EndStep::AwaitGo => {
                self.counts.go -= 1;
                let is_late = fault == EndFault::CountsLate && self.instance.busy >> node & 1 != 0;
                self.counts.busy += u8::from(is_late);
            }
            EndStep::LookUpBusy => return Ok(Some(self.counts.busy)),
            EndStep::WriteRecord => self.nodes[node].has_record = true,
            EndStep::AwaitEnd => {}
            EndStep::Leave if self.instance.busy != 0 => {
                return Err(format!("node {node} leaves while threads of the program run"));
            }
            EndStep::Leave => return Ok(None),
            EndStep::Exit => return self.check_exit(node).map(|()| None),
        }
        Ok(Some(0))
    }

    fn check_exit(&self, node: usize) -> Result<(), String> {
        let unrecorded = self.nodes.iter().position(|node| !node.has_record);
        match unrecorded {
            _ if self.instance.busy == 0 => Err(format!("node {node} ends alone, and no thread runs")),
            _ if node != 0 && self.nodes[0].at != At::Over => Err(format!("node {node} ends before node 0")),
            Some(other) => Err(format!("node {node} ends, and node {other} has not written its record")),
            None => Ok(()),
        }
    }
}
