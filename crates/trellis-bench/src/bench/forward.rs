//! `trellis bench forward`: messages and time of a read fault when the reader's guess of the owner is right, when the
//! owner is one hop away from it, and once more after that.
//!
//! Promises: messages are counted at all nodes, not derived. The messages of the barriers between the series are
//! measured separately and subtracted.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trellis_base::Random;

use crate::bench::cluster::{ClusterPlan, Common};
use crate::bench::events::{EMPTY_SERIES, empty_series, one_series, touch};
use crate::bench::figures::{Figures, p50};
use crate::bench::node::{Found, Member, Task, shuffled};
use trellis_command::exit::Ending;

const EXAMPLES: &str = "\
Examples:
  trellis bench forward
  trellis bench forward --set 'coherence=dynamic(redirect)' --json";

/// Measure a read fault whose page's owner is one hop away from the reader's guess
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ForwardArguments {
    /// Faults measured of each kind
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub(crate) samples: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ForwardTask {
    samples: usize,
}

const NODES: usize = 3;
const PAGE_BYTES: usize = 4096;

/// Runs the subcommand.
pub(crate) fn run(arguments: &ForwardArguments) -> Ending {
    let samples = arguments.samples as usize;
    let task = Task::Forward(ForwardTask { samples });
    let common = &arguments.common;
    let settings = vec![
        ("region_bytes", (2 * samples * PAGE_BYTES).max(64 << 10).to_string()),
        ("page_bytes", PAGE_BYTES.to_string()),
        ("prefetch_pages_max", "1".to_owned()),
        // Signs of life are messages, too.
        ("silence_seconds_max", "3600".to_owned()),
        ("coherence", "dynamic(forward)".to_owned()),
    ];
    let found = ClusterPlan { nodes: NODES, common, settings, task: &task, with_connection: false }.run::<Value>()?;
    let sum = |series: usize| found.iter().filter_map(|node| node["series"][series]["messages"].as_f64()).sum::<f64>();
    let barriers = p50((0..EMPTY_SERIES).map(sum));
    let messages = |series: usize| (sum(series) - barriers) / samples as f64;
    let us = |series: usize| found[1]["series"][series]["us_p50"].as_f64().unwrap_or(f64::NAN);
    let [known, off, after] = [0, 1, 2].map(|series| EMPTY_SERIES + series);
    let mut figures = Figures::new("forward");
    figures.add("known_messages", messages(known), "messages, owner as believed");
    figures.add("one_hop_messages", messages(off), "messages, owner one hop away");
    figures.add("one_hop_messages_more", messages(off) - messages(known), "messages more than with the owner known");
    figures.add("after_messages_more", messages(after) - messages(known), "the same at the next read of these pages");
    figures.add("known_us_p50", us(known), "read fault, owner as believed (µs, median)");
    figures.add("one_hop_us_p50", us(off), "read fault, owner one hop away (µs, median)");
    figures.add("after_us_p50", us(after), "read fault, the next of these pages (µs, median)");
    figures.add_value("coherence", found[0]["coherence"].clone(), "protocol");
    figures.add_value("samples", samples, "faults of each kind");
    figures.print(common.json)
}

/// Runs a node's part. Node 0 is the home, node 1 reads, and node 2 takes half of the pages from their home.
pub(crate) fn node(task: &ForwardTask, member: &Member) -> Found {
    let me = member.cluster.node();
    let prepare = |node: usize, pages: &[usize]| {
        if me == node {
            pages.iter().for_each(|page| touch(member, *page, true));
        }
        member.cluster.barrier(1)
    };
    let known = shuffled(&mut Random::new(1), 0, task.samples);
    let moved = shuffled(&mut Random::new(2), task.samples, task.samples);
    let mut series = empty_series(member)?;
    prepare(0, &known)?;
    prepare(0, &moved)?;
    prepare(2, &moved)?;
    series.push(one_series(member, &known, false, 1)?);
    series.push(one_series(member, &moved, false, 1)?);
    prepare(2, &moved)?;
    series.push(one_series(member, &moved, false, 1)?);
    Ok(json!({ "series": series, "coherence": member.cluster.config().coherence.to_string() }))
}
