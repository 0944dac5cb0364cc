//! `trellis bench lock` and `trellis bench barrier`: the cost of synchronisation without any shared page.

use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trellis::launch::monotonic_ns;

use crate::bench::cluster::{ClusterPlan, Common, numbers};
use crate::bench::figures::Figures;
use crate::bench::node::{Found, Member, Task, WorkError};
use crate::bench::raw_link;
use trellis_base::statistics::quantile;
use trellis_command::exit::{Ending, Failure};

const LOCK_EXAMPLE: &str = "Example:\n  trellis bench lock --nodes 2 --json";
const BARRIER_EXAMPLE: &str = "Example:\n  trellis bench barrier --nodes 4 --samples 10000";

/// Measure taking a lock again, and handing it to another node
#[derive(Debug, Args)]
#[command(after_help = LOCK_EXAMPLE)]
pub(crate) struct LockArguments {
    /// Nodes; the first two hand the lock to each other
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) nodes: u8,
    /// Hand-offs to measure; a hundred times as many re-acquisitions
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) samples: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Measure how long a barrier takes
#[derive(Debug, Args)]
#[command(after_help = BARRIER_EXAMPLE)]
pub(crate) struct BarrierArguments {
    /// Nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) nodes: u8,
    /// Barriers measured
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(crate) samples: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LockTask {
    samples: usize,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BarrierTask {
    samples: usize,
}

/// How long a holder keeps the lock while the other queues: longer than a round trip, shorter than polling lasts.
const HOLD_TIME: Duration = Duration::from_micros(30);

/// Runs the `lock` subcommand.
pub(crate) fn lock(arguments: &LockArguments) -> Ending {
    let nodes = usize::from(arguments.nodes);
    let task = Task::Lock(LockTask { samples: arguments.samples as usize });
    let settings = vec![("region_bytes", "64KiB".to_owned())];
    let measure = |common: &Common| {
        let settings = settings.clone();
        ClusterPlan { nodes, common, settings, task: &task, with_connection: false }.run::<Value>()
    };
    let common = &arguments.common;
    let quiet = (common.neighbours > 0).then(|| measure(&common.without_neighbours())).transpose()?;
    let found = measure(common)?;
    let mut hand_offs = hand_offs_us(&found[0], &found[1]);
    let value = |name: &str| found[1][name].as_f64().unwrap_or(f64::NAN);
    let mut figures = Figures::new("lock");
    figures.add(
        "reacquire_ns_mean",
        value("reacquire_ns_mean"),
        "taken again by its last holder, and released (ns, mean)",
    );
    figures.add("reacquire_messages", value("reacquire_messages"), "messages of all these re-acquisitions");
    figures.add(
        "handoff_us_p50",
        quantile(&mut hand_offs, 0.5),
        "from a release to the other node's waiting thread (µs, median)",
    );
    figures.add(
        "handoff_us_p99",
        quantile(&mut hand_offs, 0.99),
        "from a release to the other node's waiting thread (µs, 99 %)",
    );
    if let Some(quiet) = quiet {
        let quiet = quantile(&mut hand_offs_us(&quiet[0], &quiet[1]), 0.5);
        figures.add("quiet_handoff_us_p50", quiet, "the same without neighbours (µs, median)");
        figures.add("handoff_over_quiet", quantile(&mut hand_offs, 0.5) / quiet, "with neighbours / without");
    }
    let both = |name: &str| numbers(&found[..2], name).sum::<f64>();
    figures.add(
        "contended_handoffs_per_s",
        both("contended_handoffs") / CONTENDED_TIME.as_secs_f64(),
        "hand-offs while two nodes take it again and again (per second)",
    );
    figures.add(
        "contended_acquisitions_per_handoff",
        both("contended_acquisitions") / both("contended_handoffs"),
        "how often a node then takes it before the other one gets it (mean)",
    );
    figures.add_value("nodes", nodes, "nodes");
    figures.add_value("samples", hand_offs.len(), "hand-offs");
    figures.print(common.json)
}

/// Each round's release on one node matched with the acquisition on the other.
fn hand_offs_us(one: &Value, other: &Value) -> Vec<f64> {
    let times = |node: &Value| -> Vec<u64> {
        node["times_ns"].as_array().map(|list| list.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
    };
    let mut samples = Vec::new();
    for (round, (first, second)) in times(one).into_iter().zip(times(other)).enumerate() {
        let (released, taken) = if round % 2 == 0 { (first, second) } else { (second, first) };
        samples.push(taken.saturating_sub(released) as f64 / 1000.0);
    }
    samples
}

/// Runs a node's part of `lock`.
pub(crate) fn lock_node(task: &LockTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let node = cluster.node();
    let mut found = json!({});
    if node == 1 {
        let rounds = task.samples * 100;
        drop(cluster.mutex(1).lock()?);
        let before = cluster.counters();
        let start = Instant::now();
        for _ in 0..rounds {
            drop(cluster.mutex(1).lock()?);
        }
        found["reacquire_ns_mean"] = (start.elapsed().as_secs_f64() * 1e9 / rounds as f64).into();
        found["reacquire_messages"] = cluster.counters().since(&before).messages_out.into();
    }
    let mut times = Vec::with_capacity(task.samples);
    for round in 0..task.samples {
        let holds = round % 2 == node;
        let guard = if holds { Some(cluster.mutex(2).lock()?) } else { None };
        cluster.barrier(1)?;
        if let Some(guard) = guard {
            let since = Instant::now();
            while since.elapsed() < HOLD_TIME {
                std::hint::spin_loop();
            }
            times.push(monotonic_ns());
            drop(guard);
        } else if node < 2 {
            let guard = cluster.mutex(2).lock()?;
            times.push(monotonic_ns());
            drop(guard);
        }
        cluster.barrier(2)?;
    }
    found["times_ns"] = times.into();
    if node < 2 {
        contend(member, &mut found)?;
    }
    cluster.barrier(3)?;
    Ok(found)
}

/// How long two nodes contend.
pub(crate) const CONTENDED_TIME: Duration = Duration::from_millis(500);

/// Takes the lock again and again while the other node does so, too.
pub(crate) fn contend(member: &Member, found: &mut Value) -> Result<(), WorkError> {
    let cluster = &member.cluster;
    cluster.barrier_of(4, 2).wait()?;
    let (mut acquisitions, mut handoffs) = (0u64, 0u64);
    let (start, mut before) = (Instant::now(), cluster.counters().lock_acquires_local);
    while start.elapsed() < CONTENDED_TIME {
        drop(cluster.mutex(3).lock()?);
        acquisitions += 1;
        // One that was not there already came from the other node.
        let local = cluster.counters().lock_acquires_local;
        handoffs += u64::from(local == before);
        before = local;
    }
    found["contended_acquisitions"] = acquisitions.into();
    found["contended_handoffs"] = handoffs.into();
    Ok(())
}

/// Runs the `barrier` subcommand.
pub(crate) fn barrier(arguments: &BarrierArguments) -> Ending {
    let nodes = usize::from(arguments.nodes);
    let task = Task::Barrier(BarrierTask { samples: arguments.samples as usize });
    let settings = vec![("region_bytes", "64KiB".to_owned())];
    let measure = |common: &Common| -> Result<Value, Failure> {
        let settings = settings.clone();
        Ok(ClusterPlan { nodes, common, settings, task: &task, with_connection: true }.run::<Value>()?.swap_remove(1))
    };
    let common = &arguments.common;
    let quiet = (common.neighbours > 0).then(|| measure(&common.without_neighbours())).transpose()?;
    let found = measure(common)?;
    let value = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    let mut figures = Figures::new("barrier");
    figures.add("barrier_us_p50", value("barrier_us_p50"), "barrier (µs, median)");
    figures.add("barrier_us_p99", value("barrier_us_p99"), "barrier (µs, 99 %)");
    figures.add("barrier_us_mean", value("barrier_us_mean"), "barrier (µs, mean)");
    if let Some(quiet) = quiet {
        let quiet = quiet["barrier_us_p50"].as_f64().unwrap_or(f64::NAN);
        figures.add("quiet_barrier_us_p50", quiet, "the same without neighbours (µs, median)");
        figures.add("barrier_over_quiet", value("barrier_us_p50") / quiet, "with neighbours / without");
    }
    figures.add(
        "link_rtt_us_p50",
        value("link_rtt_us_p50"),
        "link round trip, 32 B out and 4160 B back, both polling (µs, median)",
    );
    figures.add(
        "barrier_over_link_rtt",
        value("barrier_us_p50") / value("link_rtt_us_p50"),
        "barrier / link round trip",
    );
    figures.add_value("nodes", nodes, "nodes");
    figures.add_value("samples", arguments.samples, "samples");
    figures.print(common.json)
}

/// Runs a node's part of `barrier`.
pub(crate) fn barrier_node(task: &BarrierTask, member: &mut Member) -> Found {
    let node = member.cluster.node();
    let link = match &mut member.connection {
        Some(stream) => raw_link::round_trip_us_p50(stream, node, 2000)?,
        None => None,
    };
    let mut samples = Vec::with_capacity(task.samples);
    for _ in 0..task.samples {
        let start = Instant::now();
        member.cluster.barrier(1)?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let mut counted = samples.split_off(samples.len() / 10);
    Ok(json!({
        "link_rtt_us_p50": link,
        "barrier_us_p50": quantile(&mut counted, 0.5),
        "barrier_us_p99": quantile(&mut counted, 0.99),
        "barrier_us_mean": counted.iter().sum::<f64>() / counted.len() as f64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roles_of_a_hand_off_alternate() {
        let one = json!({ "times_ns": [1000, 9000] });
        let other = json!({ "times_ns": [3000, 4000] });
        assert_eq!(hand_offs_us(&one, &other), [2.0, 5.0]);
    }
}
