//! `trellis bench fault`: the time of a remote fault, compared with the floor that this machine sets.
//!
//! The floor is the link's polling round trip plus a local fault resolved in the faulting thread; the same processes
//! measure both in the same run. Every page is touched once, in random order, with prefetch off.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{Read, Write};
use trellis_base::Random;
use trellis_memory::Catcher;

use crate::bench::cluster::{ClusterPlan, Common};
use crate::bench::figures::Figures;
use crate::bench::local_fault::{downgrade_us, read_fault_us};
use crate::bench::node::{Found, Member, Task, WorkError, shuffled};
use crate::bench::raw_link;
use trellis_base::statistics::quantile;
use trellis_command::exit::{Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis bench fault --nodes 2
  trellis bench fault --catch handler --samples 5000 --json

Node 0 owns the pages, node 1 touches them. `busy` faults are those made while node 0 computes and never calls Trellis.";

/// Measure how long a remote fault takes, compared with the floor of this machine
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FaultArguments {
    /// Nodes; those after the second only wait
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) nodes: u8,
    /// Faults measured of each kind
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(crate) samples: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FaultTask {
    samples: usize,
    busy_samples: usize,
}

/// Faults at the start of each series that are not counted.
const WARM_UP: usize = 64;
const PAGE_BYTES: usize = 4096;
/// The most busy faults measured: each may wait for the scheduler.
const BUSY_SAMPLES_MAX: usize = 1000;

/// Runs the subcommand.
pub(crate) fn run(arguments: &FaultArguments) -> Ending {
    figures(usize::from(arguments.nodes), arguments.samples as usize, &arguments.common)?.print(arguments.common.json)
}

/// Measures everything that this benchmark reports.
pub(crate) fn figures(nodes: usize, samples: usize, common: &Common) -> Result<Figures, Failure> {
    let task = FaultTask { samples, busy_samples: samples.min(BUSY_SAMPLES_MAX) };
    let pages = task.pages().next_power_of_two().max(64);
    let wrapped = Task::Fault(task);
    let settings = vec![
        ("region_bytes", (pages * PAGE_BYTES).to_string()),
        ("page_bytes", PAGE_BYTES.to_string()),
        ("prefetch_pages_max", "1".to_owned()),
    ];
    let plan = ClusterPlan { nodes, common, settings, task: &wrapped, with_connection: true };
    let found = plan.run::<Value>()?.swap_remove(1);
    let mut figures = Figures::new("fault");
    let value = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    let floor = value("link_rtt_us_p50") + value("local_fault_us_p50");
    figures.add(
        "link_rtt_us_p50",
        value("link_rtt_us_p50"),
        "link round trip, 32 B out and 4160 B back, both polling (µs, median)",
    );
    figures.add(
        "local_fault_us_p50",
        value("local_fault_us_p50"),
        "local fault resolved in the faulting thread (µs, median)",
    );
    figures.add("floor_us", floor, "floor = round trip + local fault (µs)");
    for (name, label) in SERIES {
        figures.add(name, value(name), label);
    }
    figures.add("read_over_floor", value("read_us_p50") / floor, "read fault / floor");
    figures.add("write_over_floor", value("write_us_p50") / floor, "write fault / floor");
    figures.add("upgrade_over_floor", value("upgrade_us_p50") / floor, "upgrade / floor");
    figures.add(
        "downgrade_us_p50",
        value("downgrade_us_p50"),
        "of a read fault: its owner's change to read access (µs, median)",
    );
    if found["link"] == "tcp" {
        // The round trip above is one over TCP.
        let rest = value("read_us_p50") - floor - value("downgrade_us_p50");
        figures.add("rest_us", rest, "of a read fault: copies, the protocol, threads that see a message (µs)");
    }
    figures.add("messages_per_read", value("messages_per_read"), "messages per read fault, both ways");
    for (name, label) in [("catch", "catcher"), ("link", "link"), ("security", "security")] {
        figures.add_value(name, found[name].clone(), label);
    }
    figures.add_value("nodes", nodes, "nodes");
    figures.add_value("samples", samples, "samples of each kind");
    Ok(figures)
}

const SERIES: [(&str, &str); 9] = [
    ("read_us_p50", "read fault (µs, median)"),
    ("read_us_p99", "read fault (µs, 99 %)"),
    ("write_us_p50", "write fault, page not held (µs, median)"),
    ("write_us_p99", "write fault, page not held (µs, 99 %)"),
    ("upgrade_us_p50", "upgrade of a read copy (µs, median)"),
    ("upgrade_us_p99", "upgrade of a read copy (µs, 99 %)"),
    ("busy_read_us_p50", "read fault while the peer computes (µs, median)"),
    ("busy_read_us_p99", "read fault while the peer computes (µs, 99 %)"),
    ("busy_read_us_max", "read fault while the peer computes (µs, longest)"),
];

impl FaultTask {
    fn series(&self) -> usize {
        self.samples + WARM_UP
    }

    /// One set of pages for reads and upgrades, one for writes, and one for busy reads.
    fn pages(&self) -> usize {
        2 * self.series() + self.busy_samples + WARM_UP
    }
}

/// Runs a node's part.
pub(crate) fn node(task: &FaultTask, member: &mut Member) -> Found {
    match member.cluster.node() {
        0 => owner(task, member),
        1 => toucher(task, member),
        _ => bystander(member),
    }
}

fn owner(task: &FaultTask, member: &mut Member) -> Found {
    for page in 0..task.pages() {
        // SAFETY: inside the region; nobody else touches it before the barrier.
        unsafe { place(member, page).write_volatile(page as u64 + 1) };
    }
    raw_link::round_trip_us_p50(member.connection()?, 0, 2000)?;
    member.cluster.barrier(1)?;
    // It is idle in a wait while node 1 faults.
    member.cluster.barrier(2)?;
    compute_until_stopped(member)?;
    member.cluster.barrier(3)?;
    Ok(Value::Null)
}

/// Keeps one thread computing, without calls of Trellis, until the other node reports on the plain connection that it
/// is done.
fn compute_until_stopped(member: &mut Member) -> Result<(), WorkError> {
    let over = AtomicBool::new(false);
    let connection = member.connection()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1u64;
            while !over.load(Ordering::Relaxed) {
                state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        });
        let mut word = [0u8; 1];
        let answered = connection.write_all(&[1]).and_then(|()| connection.read_exact(&mut word));
        over.store(true, Ordering::Relaxed);
        answered
    })?;
    Ok(())
}

fn toucher(task: &FaultTask, member: &mut Member) -> Found {
    let catcher = member.cluster.region().catcher();
    // The floor is about the faulting thread: a catcher that hands the fault to another thread is compared with
    // `signal`.
    let local = match catcher.parse::<Catcher>() {
        Ok(Catcher::Mprotect) => Catcher::Mprotect,
        _ => Catcher::Signal,
    };
    let mut local_fault = read_fault_us(local, 2000)?;
    let mut downgrade = downgrade_us(local, 2000)?;
    let link = raw_link::round_trip_us_p50(member.connection()?, 1, 2000)?;
    let mut random = Random::new(1);
    let reads = shuffled(&mut random, 0, task.series());
    let upgrades = shuffled(&mut random, 0, task.series());
    let writes = shuffled(&mut random, task.series(), task.series());
    let busy = shuffled(&mut random, 2 * task.series(), task.busy_samples + WARM_UP);
    member.cluster.barrier(1)?;
    let before = member.cluster.counters();
    let mut read = time_each(member, &reads, read_page)?;
    let counted = member.cluster.counters().since(&before);
    let mut upgrade = time_each(member, &upgrades, write_page)?;
    let mut write = time_each(member, &writes, write_page)?;
    member.cluster.barrier(2)?;
    let mut word = [0u8; 1];
    member.connection()?.read_exact(&mut word)?;
    let mut busy = time_each(member, &busy, read_page)?;
    member.connection()?.write_all(&[1])?;
    member.cluster.barrier(3)?;
    Ok(json!({
        "link_rtt_us_p50": link,
        "local_fault_us_p50": quantile(&mut local_fault, 0.5),
        "downgrade_us_p50": quantile(&mut downgrade, 0.5),
        "read_us_p50": quantile(&mut read, 0.5), "read_us_p99": quantile(&mut read, 0.99),
        "upgrade_us_p50": quantile(&mut upgrade, 0.5), "upgrade_us_p99": quantile(&mut upgrade, 0.99),
        "write_us_p50": quantile(&mut write, 0.5), "write_us_p99": quantile(&mut write, 0.99),
        "busy_read_us_p50": quantile(&mut busy, 0.5), "busy_read_us_p99": quantile(&mut busy, 0.99),
        "busy_read_us_max": quantile(&mut busy, 1.0),
        "messages_per_read": (counted.messages_in + counted.messages_out) as f64 / reads.len() as f64,
        "catch": catcher,
        "link": member.cluster.config().link.to_string(),
        "security": member.cluster.config().security_in_use().to_string(),
    }))
}

fn bystander(member: &mut Member) -> Found {
    for barrier in 1..=3 {
        member.cluster.barrier(barrier)?;
    }
    Ok(Value::Null)
}

/// Touches each page once and returns each time, without the first ones.
fn time_each(member: &Member, pages: &[usize], touch: fn(*mut u64, u64) -> u64) -> Result<Vec<f64>, WorkError> {
    let mut samples = Vec::with_capacity(pages.len());
    for page in pages {
        let place = place(member, *page);
        let start = Instant::now();
        let found = touch(place, *page as u64 + 1);
        samples.push(start.elapsed().as_secs_f64() * 1e6);
        if found != *page as u64 + 1 {
            return Err(format!("page {page} holds {found} where its owner wrote {}", page + 1).into());
        }
    }
    Ok(samples.split_off(WARM_UP))
}

fn read_page(place: *mut u64, _expected: u64) -> u64 {
    // SAFETY: the callers pass places inside the region; nobody writes this page at the same time.
    unsafe { place.read_volatile() }
}

fn write_page(place: *mut u64, expected: u64) -> u64 {
    // The second word, so that the first can still be checked.
    // SAFETY: as above, and the place is the first of 512 words of a page.
    unsafe {
        place.add(1).write_volatile(expected);
        place.read_volatile()
    }
}

/// The first word of a page.
fn place(member: &Member, page: usize) -> *mut u64 {
    assert!((page + 1) * PAGE_BYTES <= member.cluster.region().bytes());
    member.cluster.region().base().wrapping_add(page * PAGE_BYTES).cast()
}
