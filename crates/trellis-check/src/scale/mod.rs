//! How protocols and synchronisation scale: the simulator on 2 to 1,024 nodes.
//!
//! Promises: the same options give the same rows on every machine. Every check of the [simulator](crate::simulate) is
//! on. What cannot be run is an error, never a missing row. It must never report a real time as a simulated one.

pub mod chart;
mod delay;

pub use delay::{DelayRow, DelayStudy, delay_study};

use crate::simulate::{Layout, Outcome, Pattern, Real, Scenario, Seed, Verdict, Wires, run};
use std::fmt;
use trellis_cluster_protocol::Nanoseconds;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{Home, Interleaved};

/// The maximum number of nodes of a row.
pub const NODES_MAX: u16 = 1024;
/// The maximum number of homes of pages.
const HOMES_MAX: u16 = 16;
/// The number of pages of each home.
const PAGES_OF_HOME: u32 = 4;

/// What the nodes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Loads, and some stores, to any page.
    Uniform,
    /// The same to one page.
    Hot,
    /// Barriers of all nodes; an operation is one barrier.
    Barrier,
    /// One lock, taken and released.
    Lock,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 4] = [Workload::Uniform, Workload::Hot, Workload::Barrier, Workload::Lock];

    /// Whether the protocol of the pages matters.
    pub fn is_about_pages(self) -> bool {
        matches!(self, Workload::Uniform | Workload::Hot)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Uniform => "uniform",
            Workload::Hot => "hot",
            Workload::Barrier => "barrier",
            Workload::Lock => "lock",
        })
    }
}

/// The parameters of the simulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of nodes, each at least 2 and at most [`NODES_MAX`].
    pub nodes: Vec<u16>,
    /// The protocols, for the workloads that access pages.
    pub protocols: Vec<Protocol>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Operations of all nodes together.
    pub operations: u32,
    /// The percentage of stores among the accesses.
    pub write_percent: u8,
    /// Latency from node to node.
    pub latency_ns: Nanoseconds,
    /// Bytes per second that a node can send.
    pub bytes_per_second: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Selects the programs.
    pub seed: u64,
}

impl Default for Options {
    /// 2 to 1,024 nodes in powers of two, every protocol, ten thousand operations, a tenth of them stores, on a network
    /// of 10 Gbit/s with 25 us from node to node.
    fn default() -> Options {
        Options {
            nodes: (1..=10).map(|power| 1 << power).collect(),
            protocols: Protocol::all(),
            workloads: Workload::ALL.to_vec(),
            operations: 10_000,
            write_percent: 10,
            latency_ns: 25_000,
            bytes_per_second: 1_250_000_000,
            page_bytes: 4096,
            seed: 1,
        }
    }
}

impl Options {
    /// Whether the options can be simulated.
    ///
    /// # Errors
    ///
    /// A sentence about an impossible number of nodes.
    pub fn check(&self) -> Result<(), String> {
        match self.nodes.iter().find(|nodes| !(2..=NODES_MAX).contains(nodes)) {
            Some(nodes) => Err(format!("--nodes {nodes}: so many cannot be simulated; choose 2 to {NODES_MAX}")),
            None => Ok(()),
        }
    }
}

/// The cost of a workload on one cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleRow {
    /// The protocol; `None` where it does not matter.
    pub protocol: Option<Protocol>,
    /// The workload.
    pub workload: Workload,
    /// The number of nodes.
    pub nodes: u16,
    /// Operations of all nodes together; for barriers, the number of barriers.
    pub operations: u64,
    /// Messages per operation.
    pub messages_per_operation: f64,
    /// Bytes of messages per operation, with headers.
    pub bytes_per_operation: f64,
    /// The time of an operation at its node, in simulated time.
    pub simulated_microseconds_per_operation: f64,
    /// Steps of protocols in the simulation.
    pub steps: u64,
}

/// A quantity that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Messages per operation.
    Messages,
    /// Bytes per operation.
    Bytes,
    /// Simulated time per operation, in microseconds.
    Microseconds,
}

impl Quantity {
    /// All quantities.
    pub const ALL: [Quantity; 3] = [Quantity::Messages, Quantity::Bytes, Quantity::Microseconds];

    /// The value of this quantity in a row.
    pub fn of(self, row: &ScaleRow) -> f64 {
        match self {
            Quantity::Messages => row.messages_per_operation,
            Quantity::Bytes => row.bytes_per_operation,
            Quantity::Microseconds => row.simulated_microseconds_per_operation,
        }
    }
}

/// The costs in different sizes: a line of a chart.
#[derive(Clone, Debug)]
pub struct Series<'a> {
    /// The protocol, or the workload if the protocol does not matter.
    pub name: String,
    /// One for each size, the smallest first.
    pub rows: Vec<&'a ScaleRow>,
}

/// The lines of each workload; workloads and lines in the order of the rows.
pub fn series(rows: &[ScaleRow]) -> Vec<(Workload, Vec<Series<'_>>)> {
    let mut all: Vec<(Workload, Vec<Series<'_>>)> = Vec::new();
    for row in rows {
        let name = row.protocol.map_or_else(|| row.workload.to_string(), |protocol| protocol.to_string());
        if all.last().is_none_or(|(workload, _)| *workload != row.workload) {
            all.push((row.workload, Vec::new()));
        }
        let (_, lines) = all.last_mut().expect("there is one now");
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.rows.push(row),
            None => lines.push(Series { name, rows: vec![row] }),
        }
    }
    let lines = all.iter_mut().flat_map(|(_, lines)| lines);
    lines.for_each(|line| line.rows.sort_by_key(|row| row.nodes));
    all
}

/// Runs every combination, the smaller clusters first; passes each row to `progress`.
///
/// # Errors
///
/// A sentence about an impossible number of nodes, or about a broken rule, with the seed.
pub fn scale(options: &Options, progress: &mut dyn FnMut(&ScaleRow)) -> Result<Vec<ScaleRow>, String> {
    options.check()?;
    let mut rows = Vec::new();
    for &workload in &options.workloads {
        let protocols = options.protocols.iter().map(|&protocol| Some(protocol));
        let protocols: Vec<Option<Protocol>> = if workload.is_about_pages() { protocols.collect() } else { vec![None] };
        for protocol in protocols {
            for &nodes in &options.nodes {
                let row = measure(options, workload, protocol, nodes)?;
                progress(&row);
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn measure(options: &Options, workload: Workload, protocol: Option<Protocol>, nodes: u16) -> Result<ScaleRow, String> {
    let scenario = scenario(options, workload, protocol.unwrap_or(Protocol::IVY), nodes);
    let each = u64::from(scenario.operations);
    let outcome = run(scenario, &Real);
    check(&outcome, workload)?;
    let operations = if workload == Workload::Barrier { each } else { each * u64::from(nodes) };
    let per_operation = |sum: u64| sum as f64 / operations as f64;
    Ok(ScaleRow {
        protocol,
        workload,
        nodes,
        operations,
        messages_per_operation: per_operation(outcome.tally.messages),
        bytes_per_operation: per_operation(outcome.tally.bytes),
        // Every node does its operations one after the other, and all nodes run at the same time.
        simulated_microseconds_per_operation: outcome.tally.last_done as f64 / each as f64 / 1e3,
        steps: outcome.tally.steps,
    })
}

fn check(outcome: &Outcome, workload: Workload) -> Result<(), String> {
    match &outcome.verdict {
        Verdict::Passed => Ok(()),
        Verdict::Broken(what) => {
            let (nodes, protocol) = (outcome.scenario.founders, outcome.scenario.protocol);
            Err(format!("{workload} with {protocol} on {nodes} nodes: {what}"))
        }
    }
}

/// A cluster without faults.
fn scenario(options: &Options, workload: Workload, protocol: Protocol, nodes: u16) -> Scenario {
    let homes = nodes.min(HOMES_MAX);
    let pattern = match workload {
        Workload::Uniform | Workload::Hot => Pattern::Uniform,
        Workload::Barrier => Pattern::Barriers,
        Workload::Lock => Pattern::OneLock,
    };
    let calm = Scenario::calm(protocol, nodes, pattern);
    Scenario {
        seed: Seed { protocol: Some(protocol), number: options.seed },
        home: if workload == Workload::Hot { calm.home } else { Home::Interleaved(Interleaved) },
        layout: match workload {
            Workload::Uniform => Layout { chunks: u32::from(homes), pages_of_chunk: PAGES_OF_HOME },
            _ => calm.layout,
        },
        operations: options.operations.div_ceil(u32::from(nodes)),
        write_percent: options.write_percent,
        wires: Wires {
            latency_ns: options.latency_ns,
            bytes_per_second: options.bytes_per_second,
            page_bytes: options.page_bytes,
            ..calm.wires
        },
        ..calm
    }
}
