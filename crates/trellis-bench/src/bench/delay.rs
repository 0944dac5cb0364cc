//! `trellis bench delay`: two nodes write one page continuously, with the layer `delay` and without it, in one run.
//!
//! The measure is the number of stores that a node completes for each transfer of the page (Sane, MacGregor and
//! Campbell 1990, §4.4: the ratio of useful time to page transport time).

use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::cluster::{ClusterPlan, Common, numbers};
use crate::bench::figures::{Figures, p50};
use crate::bench::node::{Found, Member, Task};
use trellis_command::exit::{Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis bench delay
  trellis bench delay --threshold 500 --json";

/// Let two nodes write one page continuously, with the layer delay and without it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DelayArguments {
    /// Nodes that write
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) nodes: u8,
    /// How long they write, in each way and round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=600_000))]
    pub(crate) milliseconds: u32,
    /// A fixed threshold instead of the one derived from the page's activity
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) threshold: Option<u32>,
    /// How often each way is measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DelayTask {
    milliseconds: u64,
}

/// The result of one run.
struct Written {
    /// Stores for each page transfer.
    per_page: f64,
    /// Stores of all nodes in a second.
    per_second: f64,
    /// The slowest node's share of the stores, times the number of nodes: 1 is fair.
    fairness: f64,
}

/// Stores between two readings of the clock.
const BATCH: u64 = 64;

/// Runs the subcommand.
pub(crate) fn run(arguments: &DelayArguments) -> Ending {
    let delayed = match arguments.threshold {
        None => "delay(dynamic(forward))".to_owned(),
        Some(microseconds) => format!("delay(dynamic(forward), {microseconds}us)"),
    };
    let (mut plain, mut delay) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        plain.push(written(arguments, "dynamic(forward)")?);
        delay.push(written(arguments, &delayed)?);
    }
    let median = |rounds: &[Written], of: fn(&Written) -> f64| p50(rounds.iter().map(of));
    let per_page = |rounds: &[Written]| median(rounds, |one| one.per_page);
    let mut figures = Figures::new("delay");
    figures.add("plain_writes_per_page", per_page(&plain), "stores for each page that travelled, without delay");
    figures.add("delay_writes_per_page", per_page(&delay), "stores for each page that travelled, with delay");
    figures.add("delay_over_plain", per_page(&delay) / per_page(&plain), "with / without");
    figures.add("plain_writes_per_second", median(&plain, |one| one.per_second), "stores per second, without delay");
    figures.add("delay_writes_per_second", median(&delay, |one| one.per_second), "stores per second, with delay");
    figures.add("plain_fairness", median(&plain, |one| one.fairness), "slowest node's share of the stores, without");
    figures.add("delay_fairness", median(&delay, |one| one.fairness), "slowest node's share of the stores, with");
    figures.add_value("coherence", delayed, "protocol with delay");
    figures.add_value("nodes", arguments.nodes, "nodes");
    figures.add_value("milliseconds", arguments.milliseconds, "length of each measurement (ms)");
    figures.print(arguments.common.json)
}

fn written(arguments: &DelayArguments, protocol: &str) -> Result<Written, Failure> {
    let nodes = usize::from(arguments.nodes);
    let task = Task::Delay(DelayTask { milliseconds: u64::from(arguments.milliseconds) });
    let settings = vec![("region_bytes", "64KiB".to_owned()), ("coherence", protocol.to_owned())];
    let common = &arguments.common;
    let found = ClusterPlan { nodes, common, settings, task: &task, with_connection: false }.run::<Value>()?;
    let writes = || numbers(&found, "writes");
    let pages: f64 = numbers(&found, "pages_in").sum();
    let all: f64 = writes().sum();
    Ok(Written {
        // If the page was never transferred, all stores count as one transfer's.
        per_page: all / pages.max(1.0),
        per_second: all * 1e3 / f64::from(arguments.milliseconds),
        fairness: writes().fold(f64::INFINITY, f64::min) * nodes as f64 / all,
    })
}

/// Runs a node's part: it stores consecutive numbers to its own word of the page.
pub(crate) fn node(task: &DelayTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let place = cluster.region().base().wrapping_add(cluster.node() * size_of::<u64>()).cast::<u64>();
    cluster.barrier(1)?;
    let before = cluster.counters();
    let end = Instant::now() + Duration::from_millis(task.milliseconds);
    let mut writes = 0u64;
    while Instant::now() < end {
        for _ in 0..BATCH {
            writes += 1;
            // SAFETY: this node's own word, inside the region and aligned.
            unsafe { place.write_volatile(writes) };
        }
    }
    let counted = cluster.counters().since(&before);
    cluster.barrier(2)?;
    // SAFETY: as above.
    let kept = unsafe { place.read_volatile() };
    if kept != writes {
        return Err(format!("the last of {writes} stores is lost: the word holds {kept}").into());
    }
    cluster.barrier(3)?;
    Ok(json!({ "writes": writes, "pages_in": counted.pages_in }))
}
