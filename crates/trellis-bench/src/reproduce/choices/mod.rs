//! *Distributed Virtual Memory Consistency Protocols: Design and Performance* (Sane, MacGregor and Campbell, 1990):
//! its three tables and its figure.
//!
//! Promises: numbers under "paper" are printed in the paper. Its nodes were Encore Multimaxes with an Ethernet, so
//! only ratios and packets can be compared, never milliseconds.

mod buffer;
mod events;
mod multiplication;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::{Reproduced, Settings, chosen, name_of, show};
use crate::bench::cluster::Common;
use trellis_command::exit::{Ending, Failure};
use trellis_command::terminal::Progress;

const EXAMPLES: &str = "\
Examples:
  trellis reproduce choices                         everything; pictures go to trellis-reproduce/
  trellis reproduce choices table1 --sizes 256 --nodes 2,4,8
  trellis reproduce choices table2 --runs 9 --json

The paper ran on two Encore Multimaxes with four processors each and an Ethernet; here all nodes are on this machine.";

/// Choices: Distributed Virtual Memory Consistency Protocols (Sane, MacGregor and Campbell, 1990)
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChoicesArguments {
    /// Which table or figure; all of them when none is named
    #[arg(value_enum)]
    experiment: Option<Experiment>,
    /// Runs of each configuration; the median is shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Rows of the matrices of table 1
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', default_value = "256,512,1024",
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    sizes: Vec<u32>,
    /// Nodes of table 1, in addition to one
    #[arg(long, value_name = "NODES,…", value_delimiter = ',', default_value = "2",
          value_parser = clap::value_parser!(u8).range(2..=64))]
    nodes: Vec<u8>,
    /// The largest buffer of table 2
    #[arg(long, value_name = "PAGES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pages_max: u32,
    /// Items of each run of table 2 with a buffer of one page; larger buffers get fewer, but at least 20
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(20..=10_000_000))]
    items: u32,
    /// Events of each kind in a run of table 3
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    samples: u32,
    /// Where the pictures are written
    #[arg(long, value_name = "DIRECTORY", default_value = "trellis-reproduce")]
    directory: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// A table or figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Matrix multiplication
    Table1,
    /// Producer and consumer, buffers of 1, 3, 10, … pages until Lock stops paying
    Table2,
    /// The basic events, and the cost model fitted to them
    Table3,
    /// 256x256 matrix multiplication with shared and distributed memory
    Figure1,
}

/// Runs `trellis reproduce choices`.
pub(super) fn run(arguments: &ChoicesArguments) -> Ending {
    let experiments = chosen(arguments.experiment);
    let progress = &mut Progress::default();
    let mut settings = Settings { runs: arguments.runs as usize, common: &arguments.common, progress };
    let run = |experiment: &Experiment, settings: &mut Settings| experiment.run(arguments, settings);
    show(&experiments, &arguments.directory, &mut settings, run, |all| with_rows(&experiments, all))
}

impl Experiment {
    fn run(self, arguments: &ChoicesArguments, settings: &mut Settings) -> Result<Reproduced, Failure> {
        match self {
            Experiment::Table1 => {
                let sizes: Vec<usize> = arguments.sizes.iter().map(|size| *size as usize).collect();
                let mut nodes: Vec<usize> = arguments.nodes.iter().map(|nodes| usize::from(*nodes)).collect();
                nodes.insert(0, 1);
                nodes.dedup();
                multiplication::table1(settings, &sizes, &nodes)
            }
            Experiment::Table2 => buffer::table2(settings, arguments.pages_max as usize, arguments.items as usize),
            Experiment::Table3 => events::table3(settings, arguments.samples as usize),
            Experiment::Figure1 => multiplication::figure1(settings),
        }
    }
}

/// The rows of all experiments, each with the name of its experiment, in one list.
fn with_rows(experiments: &[Experiment], all: &Map<String, Value>) -> Map<String, Value> {
    let mut rows = Vec::new();
    for name in experiments.iter().map(name_of) {
        for row in all[&name]["rows"].as_array().into_iter().flatten() {
            let mut row = row.clone();
            row["experiment"] = name.clone().into();
            rows.push(row);
        }
    }
    Map::from_iter([("rows".to_owned(), rows.into())])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn experiments_are_named_as_in_the_paper() {
        let names: Vec<String> = chosen::<Experiment>(None).iter().map(name_of).collect();
        assert_eq!(names, ["table1", "table2", "table3", "figure1"]);
    }

    #[test]
    fn rows_name_their_experiment() {
        let mut all = Map::new();
        all.insert("table1".to_owned(), json!({ "rows": [{ "size": 256 }] }));
        all.insert("table2".to_owned(), json!({ "rows": [{ "pages": 1 }, { "pages": 3 }] }));
        let object = with_rows(&[Experiment::Table1, Experiment::Table2], &all);
        assert_eq!(object["rows"][0], json!({ "size": 256, "experiment": "table1" }));
        assert_eq!(object["rows"].as_array().map(Vec::len), Some(3));
    }
}
