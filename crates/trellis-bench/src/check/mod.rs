//! `trellis check`: the checkers of `trellis-check`, with real processes and pictures for those that need them.
//!
//! Promises: output and exit codes are those of `trellis-check`. Clusters are started as by `trellis run`, and
//! nothing of them remains when a check ends. It must never judge observations: the checkers do that.

pub(crate) mod nodes;
mod picture;

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use trellis_check::commands::real::{HistoryRequest, Host, LitmusRequest};
use trellis_check::history::{History, log};
use trellis_check::litmus::oracle::allowed;
use trellis_check::litmus::program::Outcome;
use trellis_check::litmus::real::{RealPlan, RealReport};
use trellis_check::litmus::{Failure as LitmusFailure, Kind, LitmusReport};
use trellis_check::scale::ScaleRow;

use crate::bench::cluster::{ClusterPlan, Common};
use crate::bench::node::Task;
use nodes::{HistoryTask, LitmusTask, Seen};
use trellis_command::exit;

/// A longer wait ends the run as stuck.
const WAIT_SECONDS_MAX: &str = "60";

/// Check protocols: explore, simulate, litmus tests, histories, mutants
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    #[command(flatten)]
    arguments: trellis_check::commands::Arguments,
}

/// Runs one check.
pub fn check(chosen: &CheckArguments) -> ExitCode {
    trellis_check::commands::run(&chosen.arguments, Some(&mut Command))
}

/// Starts this executable again as the nodes of a cluster, and draws like its other commands.
struct Command;

impl Host for Command {
    fn litmus(&mut self, request: &LitmusRequest) -> Result<LitmusReport, String> {
        let plans = request.plans()?;
        let mut report = LitmusReport { protocols: vec![request.protocol.to_string()], ..LitmusReport::default() };
        let task = Task::Litmus(LitmusTask::of(request));
        let words = plans.iter().map(RealPlan::words).max().unwrap_or(0);
        match run::<Vec<Seen>>(
            usize::from(request.nodes),
            &request.protocol.to_string(),
            &request.settings,
            words,
            &task,
        ) {
            Ok(answers) => answers.iter().flatten().try_for_each(|seen| add(seen, &plans, &mut report))?,
            // The cluster could not go on: the tests are meant to find that.
            Err(failure) if failure.code == exit::CLUSTER => {
                report.runs = plans.iter().map(RealPlan::runs).sum();
                report.stuck = report.runs;
                report.failures.push(LitmusFailure {
                    index: 0,
                    kind: Kind::Stuck,
                    seed: request.seed,
                    number: 0,
                    protocol: request.protocol.to_string(),
                    shape: "all".to_owned(),
                    what: failure.sentence,
                });
            }
            Err(failure) => return Err(failure.sentence),
        }
        Ok(report)
    }

    fn history(&mut self, request: &HistoryRequest) -> Result<History, String> {
        let task = Task::History(HistoryTask::of(request));
        let (nodes, protocol) = (usize::from(request.plan.nodes), request.protocol.to_string());
        let answers = run::<String>(nodes, &protocol, &request.settings, request.plan.words(), &task)
            .map_err(|failure| failure.sentence)?;
        let mut history = History::default();
        for (node, text) in answers.iter().enumerate() {
            log::read(&format!("the log of node {node}"), &mut text.as_bytes(), &mut history)?;
        }
        Ok(history)
    }

    fn picture_of(&mut self, rows: &[ScaleRow]) -> String {
        picture::picture_of(rows).into_file()
    }
}

fn run<R: serde::de::DeserializeOwned>(
    nodes: usize,
    protocol: &str,
    settings: &[(String, String)],
    words: usize,
    task: &Task,
) -> Result<Vec<R>, exit::Failure> {
    let common = Common { set: settings.to_vec(), ..Common::default() };
    let region_bytes = (words * 8).next_multiple_of(1 << 20).max(1 << 20);
    let settings = vec![
        ("coherence", protocol.to_owned()),
        ("region_bytes", region_bytes.to_string()),
        ("wait_seconds_max", WAIT_SECONDS_MAX.to_owned()),
    ];
    ClusterPlan { nodes, common: &common, settings, task, with_connection: false }.run()
}

/// Adds what node 0 observed of one plan, with the oracle's verdict.
fn add(seen: &Seen, plans: &[RealPlan], report: &mut LitmusReport) -> Result<(), String> {
    let plan = plans.get(seen.plan).ok_or("a node tells of a test that nobody asked for")?;
    let outcome = |text: &String| {
        u128::from_str_radix(text, 16).map(Outcome).map_err(|_| "a node tells of an outcome that is none".to_owned())
    };
    let mut outcomes = BTreeMap::new();
    for (text, count) in &seen.outcomes {
        outcomes.insert(outcome(text)?, *count);
    }
    let mut forbidden = Vec::new();
    for (batch, instance, text) in &seen.forbidden {
        forbidden.push((*batch, *instance, outcome(text)?));
    }
    let allowed = allowed(&plan.program, plan.memory())?;
    RealReport { outcomes, allowed, forbidden }.add_to(plan, report);
    Ok(())
}

/// The source of a test, in the form that is sent to a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SourceTask {
    Shape(String),
    File(String, String),
}
