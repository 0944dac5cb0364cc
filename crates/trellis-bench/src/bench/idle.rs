//! `trellis bench idle` and `trellis bench memory`: what a cluster costs when it does nothing.

use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trellis_base::proc_bytes;

use crate::bench::cluster::{ClusterPlan, Common, numbers};
use crate::bench::figures::Figures;
use crate::bench::node::{Found, Member, Task, WorkError};
use trellis_command::exit::{Ending, Failure};

const IDLE_EXAMPLE: &str = "Example:\n  trellis bench idle --nodes 4 --seconds 10";
const MEMORY_EXAMPLE: &str = "\
Example:
  trellis bench memory --json

The region is reserved with `reserve = \"overcommit\"` and never touched.";

/// Measure the processor time of a cluster whose nodes all wait
#[derive(Debug, Args)]
#[command(after_help = IDLE_EXAMPLE)]
pub(crate) struct IdleArguments {
    /// Nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) nodes: u8,
    /// How long the nodes wait
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Measure the memory for a page that is never touched
#[derive(Debug, Args)]
#[command(after_help = MEMORY_EXAMPLE)]
pub(crate) struct MemoryArguments {
    /// Nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) nodes: u8,
    /// Size of the large region in GiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) gibibytes: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct IdleTask {
    seconds: f64,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MemoryTask {
    /// Bytes of the region that the last node writes after the first measurement.
    touched_bytes: usize,
}

/// Enough to make the rest of a process's memory negligible.
const TOUCHED_BYTES: usize = 64 << 20;

/// Runs the `idle` subcommand.
pub(crate) fn run(arguments: &IdleArguments) -> Ending {
    let nodes = usize::from(arguments.nodes);
    let task = Task::Idle(IdleTask { seconds: arguments.seconds.clamp(0.1, 3600.0) });
    let common = &arguments.common;
    let settings = vec![("region_bytes", "64KiB".to_owned())];
    let found = ClusterPlan { nodes, common, settings, task: &task, with_connection: false }.run::<Value>()?;
    let shares: Vec<f64> = numbers(&found, "cpu_share").collect();
    let mut figures = Figures::new("idle");
    figures.add("cpu_percent_max", shares.iter().copied().fold(0.0, f64::max) * 100.0, "busiest node (% of one core)");
    figures.add("cpu_percent_mean", shares.iter().sum::<f64>() / nodes as f64 * 100.0, "mean node (% of one core)");
    figures.add("seconds", arguments.seconds, "measured for (s)");
    figures.add_value("nodes", nodes, "nodes");
    figures.print(common.json)
}

/// Runs a node's part of `idle`: node 0's thread sleeps, and all others wait for it in a barrier.
pub(crate) fn node(task: &IdleTask, member: &Member) -> Found {
    member.cluster.barrier(1)?;
    // Polling after a barrier ends within this time.
    std::thread::sleep(Duration::from_millis(100));
    let (before, start) = (processor_seconds(), Instant::now());
    if member.cluster.node() == 0 {
        std::thread::sleep(Duration::from_secs_f64(task.seconds));
    }
    member.cluster.barrier(2)?;
    let share = (processor_seconds() - before) / start.elapsed().as_secs_f64();
    Ok(json!({ "cpu_share": share }))
}

/// User and system time of this process so far.
fn processor_seconds() -> f64 {
    // SAFETY: getrusage fills the structure it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Runs the `memory` subcommand.
pub(crate) fn memory(arguments: &MemoryArguments) -> Ending {
    let nodes = usize::from(arguments.nodes);
    let common = &arguments.common;
    let small_bytes = 64u64 << 10;
    let large_bytes = u64::from(arguments.gibibytes) << 30;
    let (small, _) = resident_bytes(nodes, small_bytes, 0, common)?;
    let (large, touched) = resident_bytes(nodes, large_bytes, TOUCHED_BYTES, common)?;
    let pages = (large_bytes - small_bytes) as f64 / 4096.0;
    let per_page = small.iter().zip(&large).map(|(small, large)| (large - small) / pages).fold(0.0, f64::max);
    let mut figures = Figures::new("memory");
    figures.add("bytes_per_untouched_page_max", per_page, "bookkeeping per page never touched, largest node (B)");
    figures.add(
        "memory_per_touched_byte",
        touched / TOUCHED_BYTES as f64,
        "memory taken per byte of the region that a node wrote (B)",
    );
    figures.add(
        "resident_mib_large_max",
        large.iter().copied().fold(0.0, f64::max) / 1048576.0,
        "resident with the large region, largest node (MiB)",
    );
    figures.add(
        "resident_mib_small_max",
        small.iter().copied().fold(0.0, f64::max) / 1048576.0,
        "resident with 64 KiB, largest node (MiB)",
    );
    figures.add_value("region_bytes", large_bytes, "large region (B)");
    figures.add_value("nodes", nodes, "nodes");
    figures.print(common.json)
}

/// The resident memory of each node, and what the last node needed for the bytes that it touched.
fn resident_bytes(
    nodes: usize,
    region_bytes: u64,
    touched_bytes: usize,
    common: &Common,
) -> Result<(Vec<f64>, f64), Failure> {
    let settings = vec![("region_bytes", region_bytes.to_string()), ("reserve", "overcommit".to_owned())];
    let task = Task::Memory(MemoryTask { touched_bytes });
    let found = ClusterPlan { nodes, common, settings, task: &task, with_connection: false }.run::<Value>()?;
    let value = |node: &Value, name: &str| node[name].as_f64().unwrap_or(f64::NAN);
    let touched = found.last().map_or(f64::NAN, |node| value(node, "touched_resident_bytes"));
    Ok((found.iter().map(|node| value(node, "resident_bytes")).collect(), touched))
}

/// Runs a node's part of `memory`.
pub(crate) fn memory_node(task: &MemoryTask, member: &Member) -> Found {
    member.cluster.barrier(1)?;
    let resident = own_resident_bytes()?;
    let before = proportional_bytes()?;
    member.cluster.barrier(2)?;
    if member.cluster.node() + 1 == member.cluster.nodes() {
        // SAFETY: between these barriers only the last node uses the region.
        unsafe { member.cluster.region().slice_mut::<u8>(0, task.touched_bytes) }.fill(1);
    }
    let touched = proportional_bytes()?.saturating_sub(before);
    member.cluster.barrier(3)?;
    Ok(json!({ "resident_bytes": resident, "touched_resident_bytes": touched }))
}

/// The memory of this process; a page that is mapped twice counts once (`Pss` of proc(5)).
fn proportional_bytes() -> Result<u64, WorkError> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    Ok(proc_bytes(&rollup, "Pss").ok_or("smaps_rollup has no Pss")?)
}

/// Resident memory and page tables: both grow with what a process keeps.
fn own_resident_bytes() -> Result<u64, WorkError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(["VmRSS", "VmPTE"].iter().filter_map(|field| proc_bytes(&status, field)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_time() {
        assert!(own_resident_bytes().expect("status") > 100_000);
        assert!(proportional_bytes().expect("smaps") > 100_000);
        assert!(processor_seconds() >= 0.0);
    }
}
