//! *BlueBridge: Pushing Shared Memory Management into the Network* (Ruffy and Carbonari): its figures 4 and 5 and its
//! table 1.
//!
//! Promises: numbers under "paper" are printed in the paper, and what it only draws is called a plot. The directory
//! service is a server process that is asked over the network. Everything ends with the command.

mod disk;
#[cfg(feature = "fabric")]
mod fabric;
mod fault;
mod measure;
mod picture;
mod requests;
mod shown;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::{Settings, chosen, show};
use crate::bench::cluster::Common;
use crate::bench::switch::{inside, pinned};
use trellis_command::exit::{Ending, Failure};
use trellis_command::terminal::Progress;

pub(crate) use measure::{PaperFound, PaperTask};

const EXAMPLES: &str = "\
Examples:
  trellis reproduce bluebridge                     everything; pictures go to trellis-reproduce/
  trellis reproduce bluebridge figure5 --switch user
  trellis reproduce bluebridge table1 --runs 9 --json
  trellis reproduce bluebridge --quick

The paper ran three hosts, three servers and a switch under Mininet on a Core 2 Quad. Here a lab of network namespaces is made \
for it, as `trellis lab` makes them; root is needed for switches in the kernel only. Everything that is timed runs on one \
processor.

Exit codes: 0 fine; 1 an answer was wrong; 71 refused by the operating system; 74 a file cannot be made; 78 a switch that \
there is not, or that takes root.";

/// BlueBridge: Pushing Shared Memory Management into the Network (Ruffy and Carbonari)
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BluebridgeArguments {
    /// Which table or figure; all of them when none is named
    #[arg(value_enum)]
    experiment: Option<Experiment>,
    /// Which switch; `trellis lab up --help` lists them [default: the best that works here]
    #[arg(long, value_name = "NAME")]
    switch: Option<String>,
    /// Use no root rights, even if there are some: everything runs in a user namespace
    #[arg(long)]
    rootless: bool,
    /// Runs; each touches 1,500 pages in every condition, and makes 1,500 requests of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// A few pages, to see that everything works
    #[arg(long, conflicts_with = "runs")]
    quick: bool,
    /// Where the pictures are written
    #[arg(long, value_name = "DIRECTORY", default_value = "trellis-reproduce")]
    directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A table or figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Time of a page fault: with a directory service, without one, from a local file
    Figure4,
    /// The same, split into enter handler, access directory, get data, exit handler
    Figure5,
    /// Create, read, update and delete: UDP beside RDMA
    Table1,
}

/// What the paper measured: each page once.
const PAGES: usize = 1500;
/// The number with `--quick`.
const FEW_PAGES: usize = 64;

/// Runs `trellis reproduce bluebridge`.
pub(super) fn run(arguments: &BluebridgeArguments) -> Ending {
    let experiments = chosen(arguments.experiment);
    let (kind, rootless) = inside::choose(arguments.switch.as_deref(), arguments.rootless)?;
    let mut progress = Progress::default();
    progress.step("measuring…");
    let task = PaperTask {
        switch: kind.name.to_owned(),
        pages: if arguments.quick { FEW_PAGES } else { PAGES },
        runs: if arguments.quick { 1 } else { arguments.runs },
        has_faults: experiments.iter().any(|experiment| *experiment != Experiment::Table1),
        has_requests: experiments.contains(&Experiment::Table1),
    };
    let found: PaperFound = inside::start(&inside::Task::Paper(task.clone()), rootless)?;
    // This paper needs no cluster; only the printing is shared.
    let common = Common { json: arguments.json, ..Common::default() };
    let mut settings = Settings { runs: task.runs as usize, common: &common, progress: &mut progress };
    let run = |experiment: &Experiment, _: &mut Settings| {
        Ok(match experiment {
            Experiment::Figure4 => shown::figure4(&task, &found),
            Experiment::Figure5 => shown::figure5(&task, &found),
            Experiment::Table1 => shown::table1(&task, &found),
        })
    };
    show(&experiments, &arguments.directory, &mut settings, run, |_| summary(&task, &found))
}

/// Measures, in the process for that.
pub(crate) fn measure(task: &PaperTask) -> Result<PaperFound, Failure> {
    let mut found = pinned(|| measure::measure(task))?;
    if task.has_requests {
        // Both ends poll: on one processor they would wait for each other's turn.
        match over_fabric(task) {
            Ok(requests) => found.requests.push(requests),
            Err(why) => found.fabric_left_out = Some(why),
        }
    }
    Ok(found)
}

#[cfg(feature = "fabric")]
fn over_fabric(task: &PaperTask) -> Result<requests::Requests, String> {
    fabric::over_fabric(task).map_err(|why| why.sentence)
}

#[cfg(not(feature = "fabric"))]
fn over_fabric(_: &PaperTask) -> Result<requests::Requests, String> {
    let next = "`cargo xtask install --prefix PREFIX --features fabric` installs one that has it";
    Err(format!("this build was made without the link fabric; {next}"))
}

/// The switch, and the figures that have a bound.
fn summary(task: &PaperTask, found: &PaperFound) -> Map<String, Value> {
    let mut object = if task.has_faults { shown::summary(found) } else { Map::new() };
    object.insert("switch".to_owned(), task.switch.clone().into());
    object
}

#[cfg(test)]
mod tests {
    use super::super::name_of;
    use super::*;

    #[test]
    fn experiments_are_named_as_in_the_paper() {
        let names: Vec<String> = chosen::<Experiment>(None).iter().map(name_of).collect();
        assert_eq!(names, ["figure4", "figure5", "table1"]);
    }

    #[test]
    fn ratios_are_beside_the_experiments() {
        let found = shown::tests::example();
        let task = PaperTask { switch: "user".to_owned(), pages: 4, runs: 1, has_faults: true, has_requests: false };
        let all = summary(&task, &found);
        assert_eq!((&all["switch"], &all["fault_over_read"]), (&"user".into(), &1.5.into()));
        assert!(all["fault_in_kernel_over_read"].is_null() && all["fault_in_kernel_left_out"] == "no root");
    }
}
