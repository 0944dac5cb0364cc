//! *Shared memory through key-value stores* (Serapinas, 2018): its figures 2.1 to 2.6, 4.2 and 6.1 and its table 6.1.
//!
//! Promises: numbers under "paper" are printed in the paper. Stores are compared with the published YCSB. Remote
//! calls are counted by the program's own runtime and shown with every time.

mod bars;
mod bounds;
mod comparison;
mod figures;
mod instructions;
mod memory;
mod programs;
mod servers;
mod table;
mod two_processes;
mod ycsb;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::{Reproduced, Settings, chosen, show};
use crate::bench::cluster::Common;
use trellis_command::exit::{Ending, Failure};
use trellis_command::terminal::Progress;

use comparison::Comparison;
use servers::Chosen;

const EXAMPLES: &str = "\
Examples:
  trellis reproduce kv                              everything; pictures go to trellis-reproduce/
  trellis reproduce kv figure2.6 --stores embedded,redis --runs 5
  trellis reproduce kv figure2.1 --stores etcd://127.0.0.1:2379
  trellis reproduce kv --quick --json

Figures 2.1 to 2.6 need java and, the first time, mvn and a way to Maven Central; what is built \
stays in $XDG_CACHE_HOME/trellis. Table 6.1 and figures 4.2 and 6.1 need clang 19. Servers of Redis \
and etcd are started where they are installed; for those of Bigtable, Spanner and Datastore set \
BIGTABLE_EMULATOR_HOST, SPANNER_EMULATOR_HOST or DATASTORE_EMULATOR_HOST, or give the store's \
address.

Exit codes: 0 fine; 1 a result was wrong, or something cannot be built; 70 a store that was named \
cannot be opened; 74 a file or library is not there; 127 java, mvn or clang is not there.";

/// Shared memory through key-value stores (Serapinas, 2018)
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KvArguments {
    /// Which table or figure; all of them when none is named
    #[arg(value_enum)]
    experiment: Option<Experiment>,
    /// Runs of each configuration; the median is shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Fewer repetitions and shorter runs, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Stores by name or address [default: those that can be started; table 6.1: embedded and redis]
    #[arg(long, value_name = "STORE,…", value_delimiter = ',')]
    stores: Vec<Chosen>,
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
    /// Latency of inserts
    #[value(name = "figure2.1")]
    LoadLatency,
    /// Throughput of inserts
    #[value(name = "figure2.2")]
    LoadThroughput,
    /// Latency of writes
    #[value(name = "figure2.3")]
    UpdateLatency,
    /// Latency of reads
    #[value(name = "figure2.4")]
    ReadLatency,
    /// Latency of read-modify-writes
    #[value(name = "figure2.5")]
    ModifyLatency,
    /// Throughput of workloads A and F
    #[value(name = "figure2.6")]
    Throughput,
    /// Memory with 1 GiB allocated
    #[value(name = "figure4.2")]
    Memory,
    /// Time of each test, and its calls of the store
    #[value(name = "table6.1")]
    Time,
    /// Instructions of each function
    #[value(name = "figure6.1")]
    Instructions,
}

impl Experiment {
    /// The function that draws it, if it shows measurements of YCSB.
    fn of_stores(self) -> Option<fn(&Comparison) -> Reproduced> {
        match self {
            Experiment::LoadLatency => Some(figures::load_latency),
            Experiment::LoadThroughput => Some(figures::load_throughput),
            Experiment::UpdateLatency => Some(figures::update_latency),
            Experiment::ReadLatency => Some(figures::read_latency),
            Experiment::ModifyLatency => Some(figures::modify_latency),
            Experiment::Throughput => Some(figures::throughput),
            Experiment::Memory | Experiment::Time | Experiment::Instructions => None,
        }
    }
}

/// Runs `trellis reproduce kv`.
pub(super) fn run(arguments: &KvArguments) -> Ending {
    let experiments = chosen(arguments.experiment);
    let progress = &mut Progress::default();
    // This paper needs no cluster; only the printing is shared.
    let common = Common { json: arguments.json, ..Common::default() };
    let mut measured = Measurements { arguments, comparison: None };
    let mut settings = Settings { runs: arguments.runs as usize, common: &common, progress };
    let run = |experiment: &Experiment, settings: &mut Settings| measured.make(*experiment, settings.progress);
    show(&experiments, &arguments.directory, &mut settings, run, summary)
}

/// Measurements that several figures show are made once.
struct Measurements<'a> {
    arguments: &'a KvArguments,
    comparison: Option<Comparison>,
}

impl Measurements<'_> {
    fn make(&mut self, experiment: Experiment, progress: &mut Progress) -> Result<Reproduced, Failure> {
        let KvArguments { stores, runs, quick, .. } = self.arguments;
        if let Some(figure) = experiment.of_stores() {
            let request = comparison::Request { stores, runs: *runs as usize, quick: *quick };
            let measured = match &mut self.comparison {
                Some(measured) => measured,
                nothing => nothing.insert(comparison::measure(&request, progress)?),
            };
            return Ok(figure(measured));
        }
        match experiment {
            Experiment::Memory => memory::figure(progress),
            Experiment::Instructions => instructions::figure(progress),
            _ => table::table(&table::Request { stores, quick: *quick }, progress),
        }
    }
}

/// The figures that have a bound, and the rows of table 6.1.
fn summary(all: &Map<String, Value>) -> Map<String, Value> {
    let mut object = bounds::of(all);
    if let Some(rows) = all.get("table6.1").map(|table| table["rows"].clone()) {
        object.insert("rows".to_owned(), rows);
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::name_of;
    use super::*;

    #[test]
    fn experiments_are_named_as_in_the_paper() {
        let names: Vec<String> = chosen::<Experiment>(None).iter().map(name_of).collect();
        let expected = "figure2.1 figure2.2 figure2.3 figure2.4 figure2.5 figure2.6 figure4.2 table6.1 figure6.1";
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn rows_and_the_ratio_are_beside_the_experiments() {
        let all = json!({ "figure2.6": { "ycsb_a_throughput_ratio": 0.95 }, "table6.1": { "rows": [1] } });
        let all = summary(all.as_object().expect("an object"));
        assert_eq!((&all["ycsb_a_throughput_ratio"], &all["rows"]), (&json!(0.95), &json!([1])));
    }
}
