//! What needs more than this crate: it starts no processes and draws no pictures. The `trellis` command does both, and
//! hands itself in.
//!
//! Promises: a request holds everything that a node must know, so every node of a run can work out the same plan from
//! it. It must never hold what only this process knows, such as an open file.

use crate::history::{History, record::RecordPlan};
use crate::litmus::LitmusReport;
use crate::litmus::parse;
use crate::litmus::program::Program;
use crate::litmus::real::{RealPlan, arrangements};
use crate::release::shapes;
use crate::scale::ScaleRow;
use trellis_cluster_protocol::coherence::Protocol;

/// Where a litmus test comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Generated, by its name.
    Shape(String),
    /// The name of a file and what is in it.
    File(String, String),
}

impl Source {
    /// The test.
    ///
    /// # Errors
    ///
    /// A sentence that names the shape, or file and line.
    pub fn program(&self) -> Result<Program, String> {
        match self {
            Source::File(name, text) => parse::parse(name, text),
            Source::Shape(name) => {
                let found = shapes::shapes().into_iter().find(|program| program.name == *name);
                found.ok_or_else(|| {
                    format!("--shape {name}: there is no such test; `trellis check litmus --list` names all")
                })
            }
        }
    }
}

/// Litmus tests on a cluster of processes.
#[derive(Clone, Debug)]
pub struct LitmusRequest {
    /// On which protocol.
    pub protocol: Protocol,
    /// Which tests.
    pub sources: Vec<Source>,
    /// How many processes.
    pub nodes: u8,
    /// Runs of each test, spread over its arrangements.
    pub runs: u64,
    /// Every placement and layout, not only those where the threads are as far apart as possible.
    pub everything: bool,
    /// Chooses layouts and delays.
    pub seed: u64,
    /// More keys of the configuration.
    pub settings: Vec<(String, String)>,
}

impl LitmusRequest {
    /// What the nodes do, one plan after the other: the same on every node.
    ///
    /// # Errors
    ///
    /// A sentence about a test that cannot be had.
    pub fn plans(&self) -> Result<Vec<RealPlan>, String> {
        let mut plans = Vec::new();
        let mut batches = 0;
        for source in &self.sources {
            let program = source.program()?;
            let pairs = arrangements(&program, self.nodes, self.everything);
            // There is none for a test that needs more nodes.
            let runs = self.runs.div_ceil(pairs.len().max(1) as u64);
            for (placement, layout) in pairs {
                let mut plan = RealPlan::new(program.clone(), placement, layout, self.nodes, runs);
                plan.seed = self.seed;
                plan.batches_before = batches;
                batches = batches.saturating_add(plan.batches);
                plan.is_released = self.protocol.is_release_consistent();
                plans.push(plan);
            }
        }
        Ok(plans)
    }
}

/// A history to be recorded by a cluster of processes.
#[derive(Clone, Debug)]
pub struct HistoryRequest {
    /// On which protocol.
    pub protocol: Protocol,
    /// What every node does.
    pub plan: RecordPlan,
    /// More keys of the configuration.
    pub settings: Vec<(String, String)>,
}

/// Somebody who can start processes and draw.
pub trait Host {
    /// Runs litmus tests. A run that the cluster gave up counts as stuck in the report.
    ///
    /// # Errors
    ///
    /// A sentence: no cluster could be started.
    fn litmus(&mut self, request: &LitmusRequest) -> Result<LitmusReport, String>;

    /// Records a history.
    ///
    /// # Errors
    ///
    /// A sentence: no cluster could be started, or it failed.
    fn history(&mut self, request: &HistoryRequest) -> Result<History, String>;

    /// Draws what clusters of different sizes cost: an SVG file.
    fn picture_of(&mut self, rows: &[ScaleRow]) -> String;
}
