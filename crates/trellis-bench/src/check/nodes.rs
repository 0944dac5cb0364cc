//! The node side of a check on real processes.
//!
//! Promises: every node computes the same plans from the task; node 0 reports what it observed. It must never access
//! the shared memory except through atomic words.

use std::sync::atomic::AtomicU64;

use serde::{Deserialize, Serialize};
use trellis::Cluster;
use trellis_check::commands::real::{HistoryRequest, LitmusRequest, Source};
use trellis_check::history::log;
use trellis_check::history::record::{RecordPlan, record_node};
use trellis_check::litmus::real::{Calls, run_calling_node};
use trellis_cluster_protocol::coherence::choices::NoProtocol;

use super::SourceTask;
use crate::bench::node::{Found, Member, WorkError};

/// Barriers of the checks have numbers that no other part of this command uses.
const BARRIER: u64 = 0x6368_6563_6b00;

/// [`LitmusRequest`], in the form that is sent to a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LitmusTask {
    protocol: String,
    sources: Vec<SourceTask>,
    nodes: u8,
    runs: u64,
    everything: bool,
    seed: u64,
}

/// What node 0 observed of one plan.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) plan: usize,
    /// Outcomes in hexadecimal, and how often each occurred.
    pub(crate) outcomes: Vec<(String, u64)>,
    /// Batch, instance, outcome.
    pub(crate) forbidden: Vec<(u32, u32, String)>,
}

/// [`HistoryRequest`], in the form that is sent to a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HistoryTask {
    nodes: u16,
    threads: u16,
    operations: u32,
    rounds: u32,
    pages: u32,
    cells: u32,
    exchange_once_in: u32,
    seed: u64,
}

impl LitmusTask {
    pub(crate) fn of(request: &LitmusRequest) -> LitmusTask {
        let source = |source: &Source| match source {
            Source::Shape(name) => SourceTask::Shape(name.clone()),
            Source::File(name, text) => SourceTask::File(name.clone(), text.clone()),
        };
        LitmusTask {
            protocol: request.protocol.to_string(),
            sources: request.sources.iter().map(source).collect(),
            nodes: request.nodes,
            runs: request.runs,
            everything: request.everything,
            seed: request.seed,
        }
    }

    fn request(&self) -> Result<LitmusRequest, NoProtocol> {
        let source = |source: &SourceTask| match source.clone() {
            SourceTask::Shape(name) => Source::Shape(name),
            SourceTask::File(name, text) => Source::File(name, text),
        };
        Ok(LitmusRequest {
            // It names the model by which outcomes are judged; the cluster's own is in its configuration.
            protocol: self.protocol.parse()?,
            sources: self.sources.iter().map(source).collect(),
            nodes: self.nodes,
            runs: self.runs,
            everything: self.everything,
            seed: self.seed,
            settings: Vec::new(),
        })
    }
}

impl HistoryTask {
    pub(crate) fn of(request: &HistoryRequest) -> HistoryTask {
        let RecordPlan { nodes, threads, operations, rounds, pages, cells, exchange_once_in, seed, .. } = request.plan;
        HistoryTask { nodes, threads, operations, rounds, pages, cells, exchange_once_in, seed }
    }

    fn plan(&self, page_words: u32) -> RecordPlan {
        let HistoryTask { nodes, threads, operations, rounds, pages, cells, exchange_once_in, seed } = *self;
        RecordPlan { nodes, threads, operations, rounds, pages, cells, page_words, exchange_once_in, seed }
    }
}

pub(crate) fn litmus_node(task: &LitmusTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let mut all = Vec::new();
    for (number, mut plan) in task.request()?.plans()?.into_iter().enumerate() {
        plan.page_words = page_words(cluster);
        let seen = run_calling_node(&plan, cluster.node() as u8, words(cluster), &Library(cluster))?;
        let hexadecimal = |outcome: trellis_check::litmus::program::Outcome| format!("{:x}", outcome.0);
        if let Some(seen) = seen {
            all.push(Seen {
                plan: number,
                outcomes: seen.outcomes.iter().map(|(&outcome, &count)| (hexadecimal(outcome), count)).collect(),
                forbidden: seen
                    .forbidden
                    .iter()
                    .map(|&(batch, at, outcome)| (batch, at, hexadecimal(outcome)))
                    .collect(),
            });
        }
    }
    Ok(serde_json::to_value(all)?)
}

pub(crate) fn history_node(task: &HistoryTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let plan = task.plan(page_words(cluster));
    let threads = record_node(&plan, cluster.node() as u16, words(cluster), &mut || barrier(cluster))?;
    let mut text = Vec::new();
    log::write(&mut text, &threads)?;
    Ok(String::from_utf8(text)?.into())
}

/// The calls that threads of litmus tests make.
struct Library<'a>(&'a Cluster);

/// Locks and flags of the tests have numbers that no other part of this command uses.
const OBJECTS: u64 = 0x6c69_746d_7573_0000;

fn sentence(error: trellis::WaitError) -> String {
    WorkError::from(error).to_string()
}

impl Calls for Library<'_> {
    fn barrier(&self) -> Result<(), String> {
        barrier(self.0)
    }

    fn lock(&self, lock: u64) -> Result<(), String> {
        self.0.mutex(OBJECTS + lock).acquire().map_err(sentence)
    }

    fn unlock(&self, lock: u64) -> Result<(), String> {
        self.0.mutex(OBJECTS + lock).release().map_err(sentence)
    }

    fn set(&self, flag: u64, value: u64) -> Result<(), String> {
        self.0.atomic(OBJECTS + flag).store(value).map_err(sentence)
    }

    fn get(&self, flag: u64) -> Result<u64, String> {
        self.0.atomic(OBJECTS + flag).load().map_err(sentence)
    }
}

fn page_words(cluster: &Cluster) -> u32 {
    (cluster.config().page_bytes / 8) as u32
}

/// The whole region as words.
fn words(cluster: &Cluster) -> &[AtomicU64] {
    let region = cluster.region();
    // SAFETY: the region is page-aligned, has this length, and lives as long as the cluster; every node accesses it
    // only through these atomic words.
    unsafe { std::slice::from_raw_parts(region.base().cast::<AtomicU64>(), region.bytes() / 8) }
}

fn barrier(cluster: &Cluster) -> Result<(), String> {
    cluster.barrier(BARRIER).map_err(|error: trellis::WaitError| WorkError::from(error).to_string())
}
