//! The benefit of the delay layer, and its cost where it is a disadvantage.
//!
//! Three programs use one page, each with every threshold and without the layer:
//!
//! * *writers*: every node stores all the time. Without a delay the page travels for nearly every store.
//! * *turns*: the nodes pass the page on in a circle; a waiting node loads until it is its turn. Keeping the page
//!   gains nothing, so a threshold can only harm.
//! * *exchanges*: the same, but a waiting node stores all the time, as on a test-and-set lock. The layer cannot
//!   distinguish this from the writers: it is the worst case.
//!
//! Promises: every row comes from the real layer in the simulator, with all checks on.

use crate::simulate::{Outcome, Pattern, Scenario, Verdict, Wires, run_until};
use trellis_cluster_protocol::Nanoseconds;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::{Layer, Threshold};

/// More than any thread can do in its time.
const OPERATIONS: u32 = u32::MAX / 2;

/// The parameters that are varied.
#[derive(Clone, Debug)]
pub struct DelayStudy {
    /// The protocol inside the layer.
    pub base: Protocol,
    /// Numbers of nodes.
    pub nodes: Vec<u16>,
    /// Fixed thresholds in microseconds; no layer, and the adaptive threshold, are always tried.
    pub fixed_microseconds: Vec<u32>,
    /// Latency from node to node.
    pub latency_ns: Nanoseconds,
    /// How long each program runs, in simulated time.
    pub span_ns: Nanoseconds,
}

impl Default for DelayStudy {
    fn default() -> DelayStudy {
        DelayStudy {
            base: Protocol::DYNAMIC,
            nodes: vec![2, 4, 8],
            fixed_microseconds: vec![100, 1_000, 5_000],
            latency_ns: 25_000,
            span_ns: 100_000_000,
        }
    }
}

/// One threshold on one number of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayRow {
    /// The layer; `None` for the protocol alone.
    pub threshold: Option<Threshold>,
    /// Number of nodes.
    pub nodes: u16,
    /// *Writers*: stores per transfer of the page.
    pub stores_per_transfer: f64,
    /// *Writers*: the longest wait of a store, and how often others got the page meanwhile at most.
    pub longest_wait_microseconds: f64,
    /// See [`DelayRow::longest_wait_microseconds`].
    pub overtaken_max: u32,
    /// *Turns*: the time of a turn.
    pub turn_microseconds: f64,
    /// *Turns*: the time of a turn relative to that without the layer.
    pub turn_slowdown: f64,
    /// *Exchanges*: the time of a turn.
    pub exchange_microseconds: f64,
    /// *Exchanges*: the time of a turn relative to that without the layer.
    pub exchange_slowdown: f64,
}

/// Runs every program with every threshold.
///
/// # Errors
///
/// A sentence about a rule that was broken.
pub fn delay_study(study: &DelayStudy) -> Result<Vec<DelayRow>, String> {
    let fixed = study.fixed_microseconds.iter().map(|&microseconds| Some(Threshold::Fixed(microseconds)));
    let thresholds: Vec<Option<Threshold>> =
        [None].into_iter().chain(fixed).chain([Some(Threshold::Adaptive)]).collect();
    let mut rows: Vec<DelayRow> = Vec::new();
    for &nodes in &study.nodes {
        // The time of a turn without the layer, which comes first.
        let (mut plain_turn, mut plain_exchange) = (0.0, 0.0);
        for &threshold in &thresholds {
            let writers = program(study, threshold, nodes, Pattern::Writers)?;
            let turn = microseconds_per_turn(study, &program(study, threshold, nodes, Pattern::Turns)?);
            let exchange = microseconds_per_turn(study, &program(study, threshold, nodes, Pattern::Exchanges)?);
            if threshold.is_none() {
                (plain_turn, plain_exchange) = (turn, exchange);
            }
            rows.push(DelayRow {
                threshold,
                nodes,
                stores_per_transfer: writers.tally.stores as f64 / writers.tally.pages_sent.max(1) as f64,
                longest_wait_microseconds: writers.tally.wait_ns_max as f64 / 1e3,
                overtaken_max: writers.tally.overtaken_max,
                turn_microseconds: turn,
                turn_slowdown: turn / plain_turn,
                exchange_microseconds: exchange,
                exchange_slowdown: exchange / plain_exchange,
            });
        }
    }
    Ok(rows)
}

fn microseconds_per_turn(study: &DelayStudy, outcome: &Outcome) -> f64 {
    study.span_ns as f64 / 1e3 / outcome.tally.turns.max(1) as f64
}

fn program(study: &DelayStudy, threshold: Option<Threshold>, nodes: u16, pattern: Pattern) -> Result<Outcome, String> {
    let layered = threshold.map_or(Some(study.base), |threshold| study.base.within(Layer::Delay(threshold)));
    let protocol = layered.ok_or_else(|| format!("{} has a delay layer already", study.base))?;
    let calm = Scenario::calm(protocol, nodes, pattern);
    let wires = Wires { latency_ns: study.latency_ns, ..calm.wires };
    let scenario = Scenario { operations: OPERATIONS, write_percent: 100, wires, ..calm };
    let outcome = run_until(scenario, study.span_ns);
    match &outcome.verdict {
        Verdict::Passed => Ok(outcome),
        Verdict::Broken(what) => Err(format!("{protocol} on {nodes} nodes, {pattern:?}: {what}")),
    }
}
