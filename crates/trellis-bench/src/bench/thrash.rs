//! `trellis bench thrash`: nodes take turns to increment one counter, busy waiting in user code on the shared word
//! (Algorithm 2 of the libivy paper).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::cluster::{ClusterPlan, Common, numbers};
use crate::bench::figures::Figures;
use crate::bench::node::{Found, Member, Task};
use trellis_command::exit::{Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis bench thrash --nodes 2
  trellis bench thrash --nodes 16 --count 50 --json";

/// Let nodes take turns to increment one shared counter
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ThrashArguments {
    /// Nodes that take turns
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) nodes: u8,
    /// The counter's final value [default: 20000 with two nodes or fewer, else 50]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ThrashTask {
    count: u64,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &ThrashArguments) -> Ending {
    let count = arguments.count.unwrap_or(if arguments.nodes <= 2 { 20_000 } else { 50 });
    figures(usize::from(arguments.nodes), count, &arguments.common)?.print(arguments.common.json)
}

/// Measures everything that this benchmark reports.
pub(crate) fn figures(nodes: usize, count: u64, common: &Common) -> Result<Figures, Failure> {
    let task = Task::Thrash(ThrashTask { count });
    let settings = vec![("region_bytes", "64KiB".to_owned())];
    let plan = ClusterPlan { nodes, common, settings, task: &task, with_connection: false };
    let found = plan.run::<Value>()?;
    let seconds = numbers(&found, "seconds").fold(0.0, f64::max);
    let mut figures = Figures::new("thrash");
    figures.add("increments_per_second", count as f64 / seconds, "increments per second");
    figures.add("seconds", seconds, "time to the last increment (s)");
    figures.add_value("count", count, "increments");
    figures.add(
        "messages_per_increment",
        numbers(&found, "messages").sum::<f64>() / count as f64,
        "messages sent per increment, all nodes",
    );
    figures.add_value("nodes", nodes, "nodes");
    figures.add_value("catch", found[0]["catch"].clone(), "catcher");
    Ok(figures)
}

/// Runs a node's part.
pub(crate) fn node(task: &ThrashTask, member: &Member) -> Found {
    let (node, nodes) = (member.cluster.node() as u64, member.cluster.nodes() as u64);
    // SAFETY: the first word of the region, aligned, used by all nodes as an atomic only.
    let counter = unsafe { AtomicU64::from_ptr(member.cluster.region().base().cast()) };
    member.cluster.barrier(1)?;
    let before = member.cluster.counters();
    let start = Instant::now();
    loop {
        let value = counter.load(Ordering::Acquire);
        if value >= task.count {
            break;
        }
        if value % nodes == node {
            counter.store(value + 1, Ordering::Release);
        } else {
            std::hint::spin_loop();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let counted = member.cluster.counters().since(&before);
    member.cluster.barrier(2)?;
    Ok(json!({ "seconds": seconds, "messages": counted.messages_out, "catch": member.cluster.region().catcher() }))
}
