//! `trellis bench speed`: the same work on two nodes with no option set, on two nodes with options chosen for the work, and
//! without Trellis, side by side.
//!
//! Promises: in each round the three are measured one after the other, and each figure is the median of the rounds. Nodes
//! verify their results, and so do threads that sort, multiply or smooth; a wrong result is an error and never a figure. It must never choose an option for the
//! column without options, the link included, except for the size of the region, and for faults that no page comes
//! unasked.

use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::cluster::{ClusterPlan, Common, number_of};
use crate::bench::figures::{Figures, p50};
use crate::bench::node::{Found, Member, Task};
use crate::bench::workloads::SortTask;
use crate::bench::{consistency, fault, jacobi, links, matmul, stream, synchronisation, workloads};
use trellis_command::chart::number;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::{self, Progress, say};

const EXAMPLES: &str = "\
Examples:
  trellis bench speed
  trellis bench speed --rounds 5 --json
  trellis bench speed --only jacobi --only read-256-mib";

/// Compare work on two nodes, without options and with the best ones, with two threads of one process
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SpeedArguments {
    /// How often each work is done in each way
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Measure only this work; may be repeated
    #[arg(long, value_name = "WORK", value_enum)]
    pub(crate) only: Vec<Work>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Faults of each kind in a measurement.
const FAULTS: usize = 3000;
/// Faults where only the local part is used.
const FEW_FAULTS: usize = 200;
const TURNS: u64 = 20_000;
const READ_BYTES: usize = 256 << 20;
const READ_ROUNDS: usize = 3;
const FALSE_SHARING_ROUNDS: usize = 20;

/// What is done. A work has one row or several, all measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    Faults,
    Turns,
    #[value(name = "read-256-mib")]
    Read,
    #[value(name = "matmul-512")]
    SmallProduct,
    #[value(name = "matmul-1024")]
    LargeProduct,
    #[value(name = "sort-262144")]
    SmallSort,
    #[value(name = "sort-4194304")]
    LargeSort,
    Jacobi,
    FalseSharing,
}

/// A figure of a work, in all columns.
pub(crate) struct Row {
    /// The names of the columns' figures, and of the two ratios.
    fields: [&'static str; 5],
    /// The name of the ratio to the best fixed protocol (`trellis bench auto`).
    pub(crate) auto_field: &'static str,
    pub(crate) words: &'static str,
    pub(crate) unit: &'static str,
    /// Whether more is better.
    is_rate: bool,
}

macro_rules! row {
    ($name:literal, $words:literal, $unit:literal, $is_rate:literal) => {
        Row {
            fields: [
                concat!($name, "_limit"),
                concat!($name, "_default"),
                concat!($name, "_best"),
                concat!($name, "_share_of_limit"),
                concat!($name, "_share_of_best"),
            ],
            auto_field: concat!($name, "_auto_share"),
            words: $words,
            unit: $unit,
            is_rate: $is_rate,
        }
    };
}

impl Work {
    /// The word on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(crate) fn rows(self) -> &'static [Row] {
        match self {
            Work::Faults => &[
                row!("read_fault_us", "remote read fault", "µs", false),
                row!("write_fault_us", "remote write fault", "µs", false),
                row!("upgrade_us", "store to a page that was read", "µs", false),
            ],
            Work::Turns => &[
                row!("turns_per_s", "increments in turn under a lock", "/s", true),
                row!("handovers_per_s", "hand-overs of a lock that both want", "/s", true),
            ],
            Work::Read => &[row!("read_gb_per_s", "reading 256 MiB in order", "GB/s", true)],
            Work::SmallProduct => &[row!("matmul_512_ms", "matrix product, 512 x 512", "ms", false)],
            Work::LargeProduct => &[row!("matmul_1024_ms", "matrix product, 1,024 x 1,024", "ms", false)],
            Work::SmallSort => &[row!("sort_262144_ms", "sorting 262,144 integers", "ms", false)],
            Work::LargeSort => &[row!("sort_4194304_ms", "sorting 4,194,304 integers", "ms", false)],
            Work::Jacobi => &[row!("jacobi_ms", "Jacobi, 2,000 x 2,000, 100 steps", "ms", false)],
            Work::FalseSharing => {
                &[row!("false_sharing_us", "stores to alternate words of 1,000 pages (a round)", "µs", false)]
            }
        }
    }

    /// Options chosen for this work.
    fn best(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Work::Turns => &[("pin", "core")],
            Work::Faults | Work::Read | Work::SmallProduct | Work::LargeProduct | Work::Jacobi => {
                &[("reserve", "full")]
            }
            Work::SmallSort | Work::LargeSort => &[("pin", "core"), ("reserve", "full")],
            Work::FalseSharing => {
                &[("pin", "core"), ("reserve", "full"), ("coherence", "hlrc(update)"), ("home", "interleaved")]
            }
        }
    }

    /// One measurement on two nodes: a number for each row.
    pub(crate) fn on_nodes(self, common: &Common) -> Result<Vec<f64>, Failure> {
        let milliseconds = |seconds: f64| vec![seconds * 1e3];
        Ok(match self {
            Work::Faults => {
                let found = fault::figures(2, FAULTS, common)?;
                let value = |name| found.get(name).ok_or_else(|| no_figure(name));
                vec![value("read_us_p50")?, value("write_us_p50")?, value("upgrade_us_p50")?]
            }
            Work::Turns => {
                let found = run_on_two(&Task::Turns(TurnsTask { turns: TURNS }), 64 << 10, common)?;
                let both = |name| Ok([number_of(&found[0], name)?, number_of(&found[1], name)?]);
                let ([turns, others], handovers) = (both("turns_per_s")?, both("handovers_per_s")?);
                vec![turns.min(others), handovers.iter().sum()]
            }
            Work::Read => vec![stream::read_gb_per_s(READ_BYTES, READ_ROUNDS, common)?],
            Work::SmallProduct => milliseconds(product(512, common)?),
            Work::LargeProduct => milliseconds(product(1024, common)?),
            Work::SmallSort => milliseconds(sort(262_144, common)?),
            Work::LargeSort => milliseconds(sort(4_194_304, common)?),
            Work::Jacobi => milliseconds(jacobi::on_nodes(jacobi::JacobiTask::WHOLE, 2, common, jacobi_checksum())?.0),
            Work::FalseSharing => vec![consistency::false_sharing_us(FALSE_SHARING_ROUNDS, common)?],
        })
    }

    /// One measurement without Trellis: a number for each row, or NaN where nothing compares.
    fn limit(self) -> Result<Vec<f64>, Failure> {
        let milliseconds = |seconds: f64| vec![seconds * 1e3];
        Ok(match self {
            Work::Faults => {
                let found = fault::figures(2, FEW_FAULTS, &without_options())?;
                let local = found.get("local_fault_us_p50").ok_or_else(|| no_figure("local_fault_us_p50"))?;
                vec![links::memory_round_trip_us() + local; 3]
            }
            Work::Turns => vec![turns_of_threads(TURNS), f64::NAN],
            Work::Read => vec![copied_gb_per_s(READ_BYTES)],
            Work::SmallProduct => milliseconds(matmul::with_threads(512, 2)?),
            Work::LargeProduct => milliseconds(matmul::with_threads(1024, 2)?),
            Work::SmallSort => milliseconds(workloads::sort_with_threads(262_144, 2)?),
            Work::LargeSort => milliseconds(workloads::sort_with_threads(4_194_304, 2)?),
            Work::Jacobi => {
                let (seconds, checksum) = jacobi::with_threads(jacobi::JacobiTask::WHOLE, 2);
                if checksum != jacobi_checksum() {
                    return Err(Failure::new(
                        exit::CLUSTER,
                        "the grid of two threads is not what one thread makes of it",
                    ));
                }
                milliseconds(seconds)
            }
            Work::FalseSharing => vec![consistency::false_sharing_of_threads(FALSE_SHARING_ROUNDS)],
        })
    }
}

/// The settings of a user who sets nothing. Other benchmarks choose a known link.
pub(crate) fn without_options() -> Common {
    Common::default().with("link", "auto")
}

/// The same with options.
fn with_options(options: &[(&str, &str)]) -> Common {
    options.iter().fold(without_options(), |common, (key, value)| common.with(key, value))
}

/// The medians of a row.
struct Columns {
    limit: f64,
    default: f64,
    best: f64,
}

impl Row {
    /// How much of `other` the default reaches: 1 is all of it.
    pub(crate) fn share(&self, other: f64, default: f64) -> f64 {
        if self.is_rate { default / other } else { other / default }
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &SpeedArguments) -> Ending {
    let is_chosen = |work: &&Work| arguments.only.is_empty() || arguments.only.contains(work);
    let chosen: Vec<Work> = Work::value_variants().iter().filter(is_chosen).copied().collect();
    let mut figures = Figures::new("speed");
    let (mut table, mut rows) = (Vec::new(), Vec::new());
    let mut progress = Progress::default();
    for (number, work) in chosen.iter().copied().enumerate() {
        progress.step(&format!("measuring {} ({} of {})…", work.name(), number + 1, chosen.len()));
        for (row, columns) in work.rows().iter().zip(measure(work, arguments.rounds)?) {
            let Columns { limit, default, best } = columns;
            let [limit_name, default_name, best_name, of_limit, of_best] = row.fields;
            let words = |column: &str| format!("{}, {column} ({}, median)", row.words, row.unit);
            figures.add(limit_name, limit, words("without Trellis"));
            figures.add(default_name, default, words("two nodes, no option"));
            figures.add(best_name, best, words("two nodes, best options"));
            figures.add(of_limit, row.share(limit, default), format!("{}: share of the limit", row.words));
            figures.add(of_best, row.share(best, default), format!("{}: share of the best options", row.words));
            rows.push(json!({
                "words": row.words, "unit": row.unit, "limit": limit, "default": default, "best": best,
            }));
            table.push([format!("{} ({})", row.words, row.unit), shown(default), shown(best), shown(limit)]);
        }
    }
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.add_value("rows", rows, "all rows");
    if arguments.json {
        return figures.print(true);
    }
    terminal::clear_line();
    say!("{}", drawn(&table).trim_end());
    Ok(exit::FINE)
}

/// All rows of a work.
fn measure(work: Work, rounds: u32) -> Result<Vec<Columns>, Failure> {
    let (default, best) = (without_options(), with_options(work.best()));
    let mut found: Vec<[Vec<f64>; 3]> = work.rows().iter().map(|_| Default::default()).collect();
    for _ in 0..rounds {
        for (column, values) in [work.limit()?, work.on_nodes(&default)?, work.on_nodes(&best)?].into_iter().enumerate()
        {
            for (row, value) in found.iter_mut().zip(values) {
                row[column].push(value);
            }
        }
    }
    let columns =
        |[limit, default, best]: [Vec<f64>; 3]| Columns { limit: p50(limit), default: p50(default), best: p50(best) };
    Ok(found.into_iter().map(columns).collect())
}

fn shown(value: f64) -> String {
    if value.is_finite() { number(value) } else { "-".to_owned() }
}

fn drawn(rows: &[[String; 4]]) -> String {
    let heads = ["two nodes", "no option", "best options", "limit"].map(str::to_owned);
    let all = || std::iter::once(&heads).chain(rows);
    let widths: [usize; 4] =
        std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; 4]| {
        let [work, default, best, limit] = row;
        let [w, d, b, l] = widths;
        format!("{work:<w$}  {default:>d$}  {best:>b$}  {limit:>l$}\n")
    };
    all().map(line).collect()
}

/// A node's task: increments in turn under a lock, then as many hand-overs as both can get.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TurnsTask {
    turns: u64,
}

/// Starts two nodes with a region of so many bytes.
fn run_on_two(task: &Task, region_bytes: usize, common: &Common) -> Result<Vec<Value>, Failure> {
    let settings = vec![("region_bytes", region_bytes.max(64 << 10).next_multiple_of(64 << 10).to_string())];
    ClusterPlan { nodes: 2, common, settings, task, with_connection: false }.run()
}

/// Runs a node's part of the turns.
pub(crate) fn turns_node(task: &TurnsTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let node = cluster.node() as u64;
    cluster.barrier(1)?;
    let start = Instant::now();
    loop {
        let guard = cluster.mutex(1).lock()?;
        let value = consistency::load(member, 0);
        if value < task.turns && value % 2 == node {
            consistency::store(member, 0, value + 1);
        }
        drop(guard);
        if value >= task.turns {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    cluster.barrier(2)?;
    let mut found = json!({});
    synchronisation::contend(member, &mut found)?;
    let handovers = found["contended_handoffs"].as_u64().unwrap_or(0) as f64;
    cluster.barrier(3)?;
    Ok(json!({
        "turns_per_s": task.turns as f64 / seconds,
        "handovers_per_s": handovers / synchronisation::CONTENDED_TIME.as_secs_f64(),
    }))
}

/// The same turns by two threads.
fn turns_of_threads(turns: u64) -> f64 {
    let counter = Mutex::new(0u64);
    let work = |thread: u64| {
        loop {
            let mut value = counter.lock().expect("nobody panics");
            if *value >= turns {
                break;
            }
            if *value % 2 == thread {
                *value += 1;
            }
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        work(0);
    });
    turns as f64 / start.elapsed().as_secs_f64()
}

/// How fast a thread copies what another one has written, both memories made before.
fn copied_gb_per_s(bytes: usize) -> f64 {
    let mut to = vec![1u8; bytes];
    let samples = (0..READ_ROUNDS).map(|round| {
        let from = std::thread::spawn(move || vec![round as u8 + 2; bytes]).join().expect("it only fills memory");
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        let seconds = start.elapsed().as_secs_f64();
        std::hint::black_box(&to);
        bytes as f64 / seconds / 1e9
    });
    p50(samples.collect::<Vec<_>>())
}

/// The time on two nodes.
fn product(size: usize, common: &Common) -> Result<f64, Failure> {
    let task = matmul::MatmulTask { size, order: matmul::Order::Ijk, lock: false, threads: 1 };
    Ok(matmul::product(2, &task, &[], common)?.seconds)
}

/// The checksum of the grid that one thread computes.
fn jacobi_checksum() -> u64 {
    static CHECKSUM: OnceLock<u64> = OnceLock::new();
    *CHECKSUM.get_or_init(|| jacobi::with_threads(jacobi::JacobiTask::WHOLE, 1).1)
}

fn no_figure(name: &str) -> Failure {
    Failure::new(exit::CLUSTER, format!("the benchmark measured no {name}"))
}

fn sort(elements: usize, common: &Common) -> Result<f64, Failure> {
    let task = SortTask { elements, prefetch: false };
    let bytes = task.region_bytes();
    let found = run_on_two(&Task::Sort(task), bytes, common)?;
    number_of(&found[0], "whole_seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_where_nothing_is_lost() {
        let time = &Work::Jacobi.rows()[0];
        let rate = &Work::Read.rows()[0];
        assert_eq!((time.share(50.0, 100.0), rate.share(4.0, 2.0)), (0.5, 0.5));
    }

    #[test]
    fn no_field_is_there_twice() {
        let mut fields: Vec<&str> =
            Work::value_variants().iter().flat_map(|work| work.rows()).flat_map(|row| row.fields).collect();
        let all = fields.len();
        fields.sort_unstable();
        fields.dedup();
        assert_eq!(fields.len(), all);
    }

    #[test]
    fn a_table_has_its_heads_and_a_dash_for_what_is_missing() {
        let text = drawn(&[["work (µs)".to_owned(), shown(1.5), shown(2.0), shown(f64::NAN)]]);
        assert_eq!(text, "two nodes  no option  best options  limit\nwork (µs)        1.5             2      -\n");
    }

    #[test]
    fn threads_do_the_same_works() {
        assert!(
            turns_of_threads(100) > 0.0
                && consistency::false_sharing_of_threads(3) > 0.0
                && copied_gb_per_s(1 << 20) > 0.0
        );
        assert!(workloads::sort_with_threads(1000, 2).is_ok_and(|seconds| seconds > 0.0));
    }
}
