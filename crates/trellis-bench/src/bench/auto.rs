//! `trellis bench auto`: the works of `trellis bench speed` with `coherence = auto`, and with the fixed protocols that a user
//! could choose in its place: the same promise, and no option of their own.
//!
//! Promises: in each round all protocols are measured one after the other, and the figures are medians of the rounds. Only
//! the protocol differs: no other option is set.

use clap::{Args, ValueEnum as _};
use serde_json::json;

use crate::bench::figures::{Figures, p50};
use crate::bench::speed::{Work, without_options};
use trellis_command::chart::number;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::{self, Progress, say};

const EXAMPLES: &str = "\
Examples:
  trellis bench auto
  trellis bench auto --rounds 1 --only jacobi";

/// Compare coherence = auto with the best fixed protocol for each work
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AutoArguments {
    /// How often each work is done with each protocol
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Measure only this work; may be repeated
    #[arg(long, value_name = "WORK", value_enum)]
    pub(crate) only: Vec<Work>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The protocols that a user could choose instead.
const FIXED: [&str; 5] = ["ivy", "dynamic", "migrate", "delay(ivy)", "delay(dynamic)"];

/// Runs the subcommand.
pub(crate) fn run(arguments: &AutoArguments) -> Ending {
    let is_chosen = |work: &&Work| match arguments.only.is_empty() {
        // Single faults have no pattern to learn.
        true => **work != Work::Faults,
        false => arguments.only.contains(work),
    };
    let chosen: Vec<Work> = Work::value_variants().iter().filter(is_chosen).copied().collect();
    let mut figures = Figures::new("auto");
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let mut progress = Progress::default();
    for (number_of_work, work) in chosen.iter().copied().enumerate() {
        progress.step(&format!("measuring {} ({} of {})…", work.name(), number_of_work + 1, chosen.len()));
        for (row, medians) in work.rows().iter().zip(measure(work, arguments.rounds)?) {
            let [auto, fixed @ ..] = medians;
            let share = |other: f64| row.share(other, auto);
            let (best, value) = FIXED
                .into_iter()
                .zip(fixed)
                .min_by(|one, other| share(one.1).total_cmp(&share(other.1)))
                .expect("there are some");
            figures.add(row.auto_field, share(value), format!("{}: share of the best fixed protocol", row.words));
            lines.push(format!("{:<50}{:>10}  {best} {} {}", row.words, number(auto), number(value), row.unit));
            rows.push(json!({
                "words": row.words, "unit": row.unit, "auto": auto, "best": best,
                "fixed": FIXED.into_iter().zip(fixed).collect::<std::collections::BTreeMap<_, _>>(),
            }));
        }
    }
    figures.add_value("rounds", arguments.rounds, "rounds");
    if arguments.json {
        figures.add_value("rows", rows, "all rows");
        return figures.print(true);
    }
    terminal::clear_line();
    say!("{:<50}{:>10}  best fixed protocol", "two nodes, no other option", "auto");
    lines.iter().for_each(|line| say!("{line}"));
    figures.print(false)?;
    Ok(exit::FINE)
}

/// The medians of each row of a work: of `auto`, and of each fixed protocol.
fn measure(work: Work, rounds: u32) -> Result<Vec<[f64; 1 + FIXED.len()]>, Failure> {
    let mut found: Vec<[Vec<f64>; 1 + FIXED.len()]> = work.rows().iter().map(|_| Default::default()).collect();
    for _ in 0..rounds {
        for (column, protocol) in std::iter::once("auto").chain(FIXED).enumerate() {
            let values = work.on_nodes(&without_options().with("coherence", protocol))?;
            for (row, value) in found.iter_mut().zip(values) {
                row[column].push(value);
            }
        }
    }
    Ok(found.into_iter().map(|columns| columns.map(p50)).collect())
}
