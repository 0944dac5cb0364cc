//! `trellis reproduce`: a paper's tables and figures, with its numbers beside ours.
//!
//! A number of the paper is shown only if the paper prints it; what the paper shows as a plot without numbers is
//! called a plot.

pub(crate) mod bluebridge;
mod choices;
mod figures;
mod kv;
mod tables;
mod vismi;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value};
use trellis_command::terminal::say;

use crate::bench::cluster::Common;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::run::existing_directory;
use trellis_command::svg::Picture;
use trellis_command::terminal::Progress;

/// Papers whose results can be reproduced.
#[derive(Debug, Subcommand)]
pub(crate) enum Paper {
    Libivy(LibivyArguments),
    Choices(choices::ChoicesArguments),
    Vismi(vismi::VismiArguments),
    Kv(kv::KvArguments),
    Bluebridge(bluebridge::BluebridgeArguments),
}

const EXAMPLES: &str = "\
Examples:
  trellis reproduce libivy                          everything; pictures go to trellis-reproduce/
  trellis reproduce libivy table4
  trellis reproduce libivy figure6 --runs 9 --directory pictures --json

The paper ran on separate EC2 machines (Xeon E5-2676, one core each); here all nodes are on this machine.";

/// libivy: Distributed Shared Virtual Memory (Mahar, 2021)
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LibivyArguments {
    /// Which table or figure; all of them when none is named
    #[arg(value_enum)]
    experiment: Option<Experiment>,
    /// Runs of each configuration; the median is shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Where the pictures are written
    #[arg(long, value_name = "DIRECTORY", default_value = "trellis-reproduce")]
    directory: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// A table or figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Experiment {
    /// Local page fault latency
    Table3,
    /// Remote page fault latency
    Table4,
    /// Time for 1 to 8 nodes to count to 50 in turns
    Figure4,
    /// Which node touches which memory, psort and pdot
    Figure5,
    /// psort of 262144 elements on 1 to 6 nodes
    Figure6,
    /// pdot of 32768 elements on 1 to 6 nodes
    Figure7,
}

/// The result of an experiment.
pub(super) struct Reproduced {
    title: &'static str,
    /// Column heads, then rows.
    table: Vec<Vec<String>>,
    remark: String,
    json: Value,
    pictures: Vec<(String, Picture)>,
}

/// The settings of an experiment.
pub(super) struct Settings<'a> {
    runs: usize,
    common: &'a Common,
    progress: &'a mut Progress,
}

/// Runs the `reproduce` subcommand.
pub(crate) fn run(paper: &Paper) -> Ending {
    match paper {
        Paper::Libivy(arguments) => libivy(arguments),
        Paper::Choices(arguments) => choices::run(arguments),
        Paper::Vismi(arguments) => vismi::run(arguments),
        Paper::Kv(arguments) => kv::run(arguments),
        Paper::Bluebridge(arguments) => bluebridge::run(arguments),
    }
}

fn libivy(arguments: &LibivyArguments) -> Ending {
    let experiments = chosen(arguments.experiment);
    let progress = &mut Progress::default();
    let mut settings = Settings { runs: arguments.runs as usize, common: &arguments.common, progress };
    let run = |experiment: &Experiment, settings: &mut Settings| experiment.run(settings);
    show(&experiments, &arguments.directory, &mut settings, run, |_| Map::new())
}

/// The experiment that was named, or all of them.
fn chosen<E: ValueEnum>(named: Option<E>) -> Vec<E> {
    match named {
        Some(experiment) => vec![experiment],
        None => E::value_variants().to_vec(),
    }
}

/// Runs experiments one after the other. Prints each as soon as it is done, or, if JSON is wanted, one object at the
/// end: the JSON of each by its name, and what `more` makes of all of them.
fn show<E: ValueEnum>(
    experiments: &[E],
    directory: &Path,
    settings: &mut Settings,
    mut run: impl FnMut(&E, &mut Settings) -> Result<Reproduced, Failure>,
    more: impl FnOnce(&Map<String, Value>) -> Map<String, Value>,
) -> Ending {
    let mut all = Map::new();
    for experiment in experiments {
        let result = run(experiment, settings)?;
        settings.progress.clear();
        let written = write_pictures(directory, result.pictures)?;
        if settings.common.json {
            let mut json = result.json;
            json["pictures"] = written.into();
            all.insert(name_of(experiment), json);
        } else {
            print_result(result.title, &result.table, &result.remark, &written);
        }
    }
    if settings.common.json {
        all.extend(more(&all));
        say!("{}", serde_json::to_string_pretty(&all).map_err(exit::not_json)?);
    }
    Ok(exit::FINE)
}

/// The experiment's word on the command line.
fn name_of<E: ValueEnum>(experiment: &E) -> String {
    experiment.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Experiment {
    fn run(self, settings: &mut Settings) -> Result<Reproduced, Failure> {
        match self {
            Experiment::Table3 => tables::table3(settings),
            Experiment::Table4 => tables::table4(settings),
            Experiment::Figure4 => figures::figure4(settings),
            Experiment::Figure5 => figures::figure5(settings),
            Experiment::Figure6 => figures::figure6(settings),
            Experiment::Figure7 => figures::figure7(settings),
        }
    }
}

fn write_pictures(directory: &Path, pictures: Vec<(String, Picture)>) -> Result<Vec<String>, Failure> {
    let mut written = Vec::new();
    for (name, picture) in pictures {
        existing_directory(directory)?;
        let file = directory.join(name);
        trellis_command::files::write(&file, picture.into_file())?;
        written.push(file.display().to_string());
    }
    Ok(written)
}

fn print_result(title: &str, table: &[Vec<String>], remark: &str, pictures: &[String]) {
    say!("{title}\n");
    say!("{}", aligned(table).trim_end());
    say!("\n{remark}");
    for picture in pictures {
        say!("picture: {picture}");
    }
    say!("");
}

/// Formats columns under their heads: the first to the left, the others to the right.
pub(crate) fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let wide: Vec<usize> = (0..columns)
        .map(|column| {
            table.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in table {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(
                |(column, cell)| {
                    if column == 0 { format!("{cell:<0$}", wide[0]) } else { format!("{cell:>0$}", wide[column]) }
                },
            )
            .collect();
        out.push_str(&format!("  {}\n", cells.join("   ").trim_end()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        assert_eq!(aligned(&[row(&["fault", "µs"]), row(&["read", "12.5"])]), "  fault     µs\n  read    12.5\n");
    }

    #[test]
    fn experiments_are_named_as_in_the_paper() {
        let names: Vec<String> = chosen::<Experiment>(None).iter().map(name_of).collect();
        assert_eq!(names, ["table3", "table4", "figure4", "figure5", "figure6", "figure7"]);
    }
}
