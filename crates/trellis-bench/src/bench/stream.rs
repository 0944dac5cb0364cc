//! `trellis bench stream`: reads, from one end to the other, memory that another node wrote.
//!
//! The yardstick is the same number of bytes through a plain TCP connection between the same two processes.

use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::cluster::{ClusterPlan, Common, number_of};
use crate::bench::figures::Figures;
use crate::bench::node::{Found, Member, Task};
use crate::bench::raw_link;
use trellis_base::statistics::quantile;
use trellis_command::exit::{Ending, Failure};

const EXAMPLE: &str = "\
Examples:
  trellis bench stream
  trellis bench stream --mebibytes 64 --rounds 9 --json";

/// Read sequentially what another node wrote, compared with a plain connection
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct StreamArguments {
    /// Nodes; those after the second only wait
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) nodes: u8,
    /// Size of the region in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) mebibytes: u32,
    /// How often the region is written and read
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StreamTask {
    pub(crate) bytes: usize,
    pub(crate) rounds: usize,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &StreamArguments) -> Ending {
    let bytes = (arguments.mebibytes as usize) << 20;
    let nodes = usize::from(arguments.nodes);
    let task = Task::Stream(StreamTask { bytes, rounds: arguments.rounds as usize });
    let common = &arguments.common;
    let settings = vec![("region_bytes", bytes.to_string())];
    let found =
        ClusterPlan { nodes, common, settings, task: &task, with_connection: true }.run::<Value>()?.swap_remove(1);
    let value = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    let mut figures = Figures::new("stream");
    figures.add("read_gb_per_s_p50", value("read_gb_per_s_p50"), "sequential read of the region (GB/s, median)");
    figures.add(
        "raw_tcp_gb_per_s_p50",
        value("raw_tcp_gb_per_s_p50"),
        "plain TCP, from memory of that size into memory of that size (GB/s, median)",
    );
    figures.add(
        "raw_tcp_in_cache_gb_per_s_p50",
        value("raw_tcp_in_cache_gb_per_s_p50"),
        "plain TCP, one buffer of 256 KiB sent and received again and again (GB/s, median)",
    );
    figures.add("read_over_raw_tcp", value("read_gb_per_s_p50") / value("raw_tcp_gb_per_s_p50"), "read / plain TCP");
    figures.add("faults_per_round", value("faults_per_round"), "faults per round");
    figures.add_value("region_bytes", bytes, "region (B)");
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.add_value("catch", found["catch"].clone(), "catcher");
    figures.print(common.json)
}

/// The rate at which node 1 reads so many bytes that node 0 wrote.
pub(crate) fn read_gb_per_s(bytes: usize, rounds: usize, common: &Common) -> Result<f64, Failure> {
    let task = Task::Stream(StreamTask { bytes, rounds });
    let settings = vec![("region_bytes", bytes.to_string())];
    let found = ClusterPlan { nodes: 2, common, settings, task: &task, with_connection: false }.run::<Value>()?;
    number_of(&found[1], "read_gb_per_s_p50")
}

/// Runs a node's part.
pub(crate) fn node(task: &StreamTask, member: &mut Member) -> Found {
    let node = member.cluster.node();
    let mut raw = Vec::new();
    let mut raw_in_cache = Vec::new();
    let mut read = Vec::new();
    let mut faults = 0;
    for round in 0..task.rounds {
        if let Some(stream) = &mut member.connection {
            raw.extend(raw_link::bulk_gb_per_s(stream, node, task.bytes, task.bytes)?);
            raw_in_cache.extend(raw_link::bulk_gb_per_s(stream, node, task.bytes, 256 << 10)?);
        }
        let words = task.bytes / 8;
        if node == 0 {
            // SAFETY: the whole region; between these barriers only node 0 uses it.
            unsafe { member.cluster.region().slice_mut::<u64>(0, words) }.fill(round as u64 + 1);
        }
        member.cluster.barrier(1)?;
        if node == 1 {
            let before = member.cluster.counters();
            let start = Instant::now();
            // SAFETY: as above, and node 1 only reads.
            let sum: u64 = unsafe { member.cluster.region().slice::<u64>(0, words) }.iter().sum();
            read.push(task.bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
            faults += member.cluster.counters().since(&before).read_faults;
            if sum != (round as u64 + 1) * words as u64 {
                return Err(format!("round {round} read the sum {sum}, which is not what node 0 wrote").into());
            }
        }
        member.cluster.barrier(2)?;
    }
    Ok(json!({
        "read_gb_per_s_p50": quantile(&mut read, 0.5),
        "raw_tcp_gb_per_s_p50": quantile(&mut raw, 0.5),
        "raw_tcp_in_cache_gb_per_s_p50": quantile(&mut raw_in_cache, 0.5),
        "faults_per_round": faults as f64 / task.rounds as f64,
        "catch": member.cluster.region().catcher(),
    }))
}
