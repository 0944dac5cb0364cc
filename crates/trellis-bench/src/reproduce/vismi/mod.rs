//! *ViSMI: Software Distributed Shared Memory for InfiniBand Clusters* (Osendorfer, Tao, Trinitis and Mairandres,
//! 2004): its tables 2 and 3 and its figure 3.
//!
//! Promises: the sizes are the paper's unless set otherwise. Numbers under "ViSMI", "HLRC-VIA" and "NEWGENDSM" are
//! printed in the paper. A result that a program did not verify is an error.

mod figure;
mod measure;
mod programs;
mod table;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::{Reproduced, Settings, chosen, show};
use crate::bench::cluster::Common;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::Progress;

use measure::{Request, Row};
use programs::Program;

const EXAMPLES: &str = "\
Examples:
  trellis reproduce vismi                 everything; the picture goes to trellis-reproduce/
  trellis reproduce vismi table3 --program lu,fft --nodes 2
  trellis reproduce vismi figure3 --svg breakdown.svg
  trellis reproduce vismi --quick --json
  trellis reproduce vismi table3 --set coherence=ivy

The programs are built first: a C compiler and m4 are needed. The paper ran on four machines with InfiniBand; here all \
nodes are on this one.

Exit codes: 0 every result was verified; 1 one was not, or a program cannot be built; 74 the programs' sources or the \
library are not there; 127 the compiler or m4 is not there; else as `trellis run`.";

/// ViSMI: Software Distributed Shared Memory for InfiniBand Clusters (Osendorfer, Tao, Trinitis and Mairandres, 2004)
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VismiArguments {
    /// Which table or figure; all of them when none is named
    #[arg(value_enum)]
    experiment: Option<Experiment>,
    /// Runs of each configuration; the median is shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Which programs [default: all]
    #[arg(long, value_enum, value_name = "PROGRAM,…", value_delimiter = ',')]
    program: Vec<Program>,
    /// Numbers of nodes
    #[arg(long, value_name = "NODES,…", value_delimiter = ',', default_value = "1,2,4",
          value_parser = clap::value_parser!(u8).range(1..=64))]
    nodes: Vec<u8>,
    /// Small sizes that take a moment, instead of the paper's
    #[arg(long)]
    quick: bool,
    /// Where the picture is written
    #[arg(long, value_name = "DIRECTORY", default_value = "trellis-reproduce")]
    directory: PathBuf,
    /// The file for the picture of figure3, instead of figure3.svg in the directory
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// A table or figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// The programs and their sizes, and how much memory they share
    Table2,
    /// Execution time, speed-up and efficiency
    Table3,
    /// Where the time went, for each node
    Figure3,
}

/// Runs `trellis reproduce vismi`.
pub(super) fn run(arguments: &VismiArguments) -> Ending {
    let experiments = chosen(arguments.experiment);
    let progress = &mut Progress::default();
    let programs = chosen_programs(&arguments.program);
    let nodes = chosen_nodes(&arguments.nodes);
    let request = Request {
        programs: &programs,
        nodes: &nodes,
        runs: arguments.runs as usize,
        quick: arguments.quick,
        common: &arguments.common,
    };
    let rows = measure::rows(&request, progress)?;
    let mut settings = Settings { runs: request.runs, common: &arguments.common, progress };
    let run = |experiment: &Experiment, _: &mut Settings| experiment.show(arguments, &request, &rows);
    show(&experiments, &arguments.directory, &mut settings, run, |_| with_rows(&rows))?;
    refuse_unverified(&rows)
}

fn chosen_programs(named: &[Program]) -> Vec<Program> {
    let all = Program::value_variants().iter().copied();
    all.filter(|program| named.is_empty() || named.contains(program)).collect()
}

fn chosen_nodes(named: &[u8]) -> Vec<usize> {
    let mut nodes: Vec<usize> = named.iter().map(|&nodes| usize::from(nodes)).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

fn refuse_unverified(rows: &[Row]) -> Ending {
    match rows.iter().find(|row| !row.verified) {
        None => Ok(exit::FINE),
        Some(row) => {
            let (name, nodes) = (row.program.name(), row.nodes);
            Err(Failure::new(exit::FAILED, format!("{name} did not verify its result on {nodes} nodes, or on threads")))
        }
    }
}

impl Experiment {
    fn show(self, arguments: &VismiArguments, request: &Request, rows: &[Row]) -> Result<Reproduced, Failure> {
        match self {
            Experiment::Table2 => Ok(table::table2(rows)),
            Experiment::Table3 => Ok(table::table3(request, rows)),
            Experiment::Figure3 => {
                let mut made = figure::figure3(request, rows);
                if let Some(file) = &arguments.svg {
                    for (_, picture) in made.pictures.drain(..) {
                        trellis_command::files::write(file, picture.into_file())?;
                    }
                    made.remark = format!("{}\npicture: {}", made.remark, file.display());
                }
                Ok(made)
            }
        }
    }
}

/// The rows, and the figures that have a bound.
fn with_rows(rows: &[Row]) -> Map<String, Value> {
    let mut object = table::summary(rows);
    object.insert("rows".to_owned(), table::json_of(rows).into());
    object
}

#[cfg(test)]
mod tests {
    use super::super::name_of;
    use super::*;

    #[test]
    fn experiments_are_named_as_in_the_paper() {
        let names: Vec<String> = chosen::<Experiment>(None).iter().map(name_of).collect();
        assert_eq!(names, ["table2", "table3", "figure3"]);
    }

    #[test]
    fn programs_keep_their_order_and_nodes_are_in_theirs() {
        assert_eq!(chosen_programs(&[Program::Lu, Program::Barnes]), [Program::Barnes, Program::Lu]);
        assert_eq!(chosen_programs(&[]).len(), 5);
        assert_eq!(chosen_nodes(&[4, 1, 2, 4]), [1, 2, 4]);
    }

    #[test]
    fn a_result_that_was_not_verified_is_an_error() {
        let mut rows = vec![measure::tests::example(Program::Fft, 2)];
        assert_eq!(refuse_unverified(&rows), Ok(exit::FINE));
        rows[0].verified = false;
        assert!(refuse_unverified(&rows).expect_err("it is wrong").sentence.starts_with("fft did not verify"));
    }
}
