//! The interface to a host program that starts processes and draws pictures, which this crate does not do.
//!
//! The `trellis` command does both and passes itself in. Promises: a request contains everything that a node must
//! know, so every node of a run can compute the same plan from it. It must never contain what only this process has,
//! such as an open file.

use crate::history::{History, record::RecordPlan};
use crate::litmus::LitmusReport;
use crate::litmus::parse;
use crate::litmus::program::Program;
use crate::litmus::real::{RealPlan, arrangements};
use crate::release::shapes;
use crate::scale::ScaleRow;
use trellis_cluster_protocol::coherence::Protocol;

/// The source of a litmus test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A generated test, by its name.
    Shape(String),
    /// The name and content of a file.
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

/// A request to run litmus tests on a cluster of processes.
#[derive(Clone, Debug)]
pub struct LitmusRequest {
    /// The protocol.
    pub protocol: Protocol,
    /// The tests.
    pub sources: Vec<Source>,
    /// The number of processes.
    pub nodes: u8,
    /// Runs of each test, spread over its arrangements.
    pub runs: u64,
    /// Every placement and layout, not only those where the threads are as far apart as possible.
    pub everything: bool,
    /// Selects layouts and delays.
    pub seed: u64,
    /// Further configuration keys.
    pub settings: Vec<(String, String)>,
}

impl LitmusRequest {
    /// The plans of the nodes, one after the other: the same on every node.
    ///
    /// # Errors
    ///
    /// A sentence about a test that cannot be read or planned.
    pub fn plans(&self) -> Result<Vec<RealPlan>, String> {
        let mut plans = Vec::new();
        let mut batches = 0;
        for source in &self.sources {
            let program = source.program()?;
            let pairs = arrangements(&program, self.nodes, self.everything);
            // The list is empty for a test that needs more nodes.
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

/// A request to record a history on a cluster of processes.
#[derive(Clone, Debug)]
pub struct HistoryRequest {
    /// The protocol.
    pub protocol: Protocol,
    /// What every node does.
    pub plan: RecordPlan,
    /// Further configuration keys.
    pub settings: Vec<(String, String)>,
}

/// A program that can start processes and draw.
pub trait Host {
    /// Runs litmus tests. A run on which the cluster gave up counts as stuck in the report.
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

    /// Draws the costs of clusters of different sizes as an SVG file.
    fn picture_of(&mut self, rows: &[ScaleRow]) -> String;
}
