//! `trellis bench consistency`: what release consistency saves, and what it costs, each beside its own yardstick.
//!
//! Every part is a cluster of two nodes of its own, one after the other in one run. Loads and stores are ordered by
//! barriers and locks; what is loaded is checked, so a wrong protocol gives no figure.

use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::cluster::{ClusterPlan, Common};
use crate::bench::figures::{Figures, quantile};
use crate::bench::node::{Found, Member, Random, Task};
use crate::bench::raw_link;
use crate::exit::{Ending, Failure};

const EXAMPLE: &str = "Example:\n  trellis bench consistency --json";

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Pages that two nodes store to in turns of words.
const FALSELY_SHARED_PAGES: usize = 1000;
/// Pages of the sparse publication: 16 MiB.
const SPARSE_PAGES: usize = 4096;
/// Pages that are cached while nothing is stored.
const CACHED_PAGES: usize = 16_384;
/// Pages that one node stores to and the other loads, every round.
const READ_PAGES: usize = 256;
/// How long a home computes without a call of Trellis.
const COMPUTES: Duration = Duration::from_millis(500);

/// False sharing, sparse stores, empty barriers, faults at a busy home: release consistency beside its yardsticks
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct ConsistencyArguments {
    /// Rounds of each part
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// One part of the benchmark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Part {
    FalseSharing,
    Sparse,
    EmptyBarriers,
    HandOver,
    BusyHome,
    Readers,
    FirstStores,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ConsistencyTask {
    part: Part,
    rounds: usize,
}

/// The subcommand.
pub(crate) fn run(arguments: &ConsistencyArguments) -> Ending {
    let part = |part: Part, coherence: &str| measure(arguments, part, coherence);
    let mut figures = Figures::new("consistency");

    let ivy = part(Part::FalseSharing, "ivy")?;
    let hlrc = part(Part::FalseSharing, "hlrc(invalidate)")?;
    figures.add("false_sharing_ivy_us", ivy("round_us"), "alternate words of 1,000 pages, a barrier: ivy (µs a round)");
    figures.add("false_sharing_hlrc_us", hlrc("round_us"), "the same under hlrc(invalidate)");
    figures.add("ivy_over_hlrc", ivy("round_us") / hlrc("round_us"), "ivy / hlrc");

    let sparse = part(Part::Sparse, "hlrc(invalidate)")?;
    figures.add("sparse_mib_per_second", sparse("mib_per_second"), "16 MiB of another home, one byte in eight (MiB/s)");

    let empty = part(Part::EmptyBarriers, "hlrc(invalidate)")?;
    figures.add("link_rtt_us_p50", empty("link_rtt_us"), "link round trip, 32 B out and 4160 B back (µs, median)");
    figures.add("empty_barrier_us_p50", empty("barrier_us"), "barrier with nothing stored (µs, median)");
    figures.add(
        "barrier_over_link_rtt",
        empty("barrier_us") / empty("link_rtt_us"),
        "barrier with nothing stored / link round trip",
    );
    figures.add(
        "cached_barrier_us_more",
        empty("cached_barrier_us") - empty("barrier_us"),
        "the same with 16,384 pages cached: more (µs)",
    );

    let handed = part(Part::HandOver, "hlrc(invalidate)")?;
    figures.add(
        "handoff_us_p50",
        handed("handoff_us"),
        "from a release to the other node's waiting thread (µs, median)",
    );
    figures.add("handoff_over_link_rtt", handed("handoff_us") / handed("link_rtt_us"), "hand-over / link round trip");

    let busy = part(Part::BusyHome, "hlrc(invalidate)")?;
    figures.add("idle_home_read_us_p50", busy("idle_us"), "read fault, home idle (µs, median)");
    figures.add("busy_home_read_us_p50", busy("busy_us"), "read fault, home computes (µs, median)");
    figures.add("busy_over_idle_home", busy("busy_us") / busy("idle_us"), "home computes / home idle");

    let invalidate = part(Part::Readers, "hlrc(invalidate)")?;
    let update = part(Part::Readers, "hlrc(update)")?;
    let adaptive = part(Part::Readers, "hlrc(adaptive)")?;
    figures.add("invalidate_round_us", invalidate("round_us"), "256 pages stored, a barrier, loaded: invalidate (µs)");
    figures.add("update_round_us", update("round_us"), "the same: update (µs)");
    figures.add("adaptive_round_us", adaptive("round_us"), "the same: adaptive (µs)");
    figures.add("invalidate_over_update", invalidate("round_us") / update("round_us"), "invalidate / update");

    let stores = part(Part::FirstStores, "hlrc(invalidate)")?;
    figures.add("first_store_us", stores("store_us"), "first store to a fetched page in an interval (µs, mean)");
    figures.add("first_store_faults", stores("faults"), "trips to user space for these stores");
    figures.tell("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

/// Runs one part; the numbers that its nodes found, by name: node 1's, or else node 0's.
fn measure(
    arguments: &ConsistencyArguments,
    part: Part,
    coherence: &str,
) -> Result<impl Fn(&str) -> f64 + use<>, Failure> {
    let task = Task::Consistency(ConsistencyTask { part, rounds: arguments.rounds as usize });
    let home = if matches!(part, Part::FalseSharing) { "interleaved" } else { "manager" };
    let settings = vec![
        ("region_bytes", "128MiB".to_owned()),
        ("reserve", "overcommit".to_owned()),
        ("coherence", coherence.to_owned()),
        ("home", home.to_owned()),
        ("pin", "core".to_owned()),
    ];
    let plan = ClusterPlan { nodes: 2, common: &arguments.common, settings, task: &task, with_connection: true };
    let found = plan.run::<Value>()?;
    Ok(move |name: &str| found.iter().rev().find_map(|node| node[name].as_f64()).unwrap_or(f64::NAN))
}

/// What each node does.
pub(crate) fn node(task: &ConsistencyTask, member: &mut Member) -> Found {
    let node = member.cluster.node();
    let link = match &mut member.connection {
        Some(stream) => raw_link::round_trip_us_p50(stream, node, 2000)?,
        None => None,
    };
    let mut found = match task.part {
        Part::FalseSharing => false_sharing(task.rounds, member),
        Part::Sparse => sparse(task.rounds, member),
        Part::EmptyBarriers => empty_barriers(task.rounds, member),
        Part::HandOver => hand_over(task.rounds, member),
        Part::BusyHome => busy_home(task.rounds, member),
        Part::Readers => readers(task.rounds, member),
        Part::FirstStores => first_stores(task.rounds, member),
    }?;
    if let Some(link) = link {
        found["link_rtt_us"] = link.into();
    }
    Ok(found)
}

fn word(member: &Member, index: usize) -> *mut u64 {
    assert!(index * 8 < member.cluster.region().bytes());
    member.cluster.region().base().cast::<u64>().wrapping_add(index)
}

fn load(member: &Member, index: usize) -> u64 {
    // SAFETY: inside the region and aligned; barriers and locks order the accesses of the nodes.
    unsafe { word(member, index).read_volatile() }
}

fn store(member: &Member, index: usize, value: u64) {
    // SAFETY: as above.
    unsafe { word(member, index).write_volatile(value) }
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn median_of(mut samples: Vec<f64>) -> f64 {
    quantile(&mut samples, 0.5)
}

fn false_sharing(rounds: usize, member: &Member) -> Found {
    let node = member.cluster.node();
    let mut samples = Vec::new();
    for round in 0..rounds as u64 {
        member.cluster.barrier(1)?;
        let start = Instant::now();
        for page in 0..FALSELY_SHARED_PAGES {
            for place in (node..64).step_by(2) {
                store(member, page * PAGE_WORDS + place, round + place as u64);
            }
        }
        member.cluster.barrier(2)?;
        samples.push(us(start));
        let other = (round as usize * 7 % FALSELY_SHARED_PAGES) * PAGE_WORDS + (1 - node);
        if load(member, other) != round + (1 - node) as u64 {
            return Err(format!("word {other} is wrong in round {round}").into());
        }
    }
    Ok(json!({ "round_us": median_of(samples) }))
}

fn sparse(rounds: usize, member: &Member) -> Found {
    let mut samples = Vec::new();
    for round in 0..rounds.min(20) {
        if member.cluster.node() == 1 {
            // The pages are here: what is measured is what the stores cost.
            (0..SPARSE_PAGES).for_each(|page| _ = load(member, page * PAGE_WORDS));
        }
        member.cluster.barrier(1)?;
        let start = Instant::now();
        if member.cluster.node() == 1 {
            for index in 0..SPARSE_PAGES * PAGE_WORDS {
                // SAFETY: inside the region; only this node stores between these barriers.
                unsafe { word(member, index).cast::<u8>().write_volatile(round as u8 + index as u8 + 1) };
            }
        }
        member.cluster.barrier(2)?;
        samples.push(us(start));
        if member.cluster.node() == 0 {
            for index in (0..SPARSE_PAGES * PAGE_WORDS).step_by(509) {
                if load(member, index) as u8 != (round as u8).wrapping_add(index as u8).wrapping_add(1) {
                    return Err(format!("byte {} is wrong in round {round}", index * 8).into());
                }
            }
        }
    }
    let mib = (SPARSE_PAGES * PAGE_BYTES) as f64 / f64::from(1 << 20);
    Ok(json!({ "mib_per_second": mib / (median_of(samples) / 1e6) }))
}

fn empty_barriers(rounds: usize, member: &Member) -> Found {
    let measure = || -> Result<f64, trellis::WaitError> {
        let mut samples = Vec::new();
        for _ in 0..rounds * 100 {
            let start = Instant::now();
            member.cluster.barrier(1)?;
            samples.push(us(start));
        }
        Ok(median_of(samples))
    };
    let empty = measure()?;
    if member.cluster.node() == 1 {
        member.cluster.prefetch(0, CACHED_PAGES * PAGE_BYTES, false)?;
        (0..CACHED_PAGES).for_each(|page| _ = load(member, page * PAGE_WORDS));
    }
    member.cluster.barrier(2)?;
    let cached = measure()?;
    Ok(json!({ "barrier_us": empty, "cached_barrier_us": cached }))
}

fn hand_over(rounds: usize, member: &Member) -> Found {
    let node = member.cluster.node();
    let (mut released, mut taken) = (Vec::new(), Vec::new());
    for round in 0..rounds * 20 {
        let guard = if round % 2 == node { Some(member.cluster.lock(2)?) } else { None };
        member.cluster.barrier(1)?;
        if let Some(guard) = guard {
            // Long enough for the other node to ask and to wait.
            let since = Instant::now();
            while us(since) < 30.0 {
                std::hint::spin_loop();
            }
            // What is protected lies at node 0.
            store(member, 0, load(member, 0) + 1);
            released.push(trellis::launch::monotonic_ns());
            drop(guard);
        } else {
            let guard = member.cluster.lock(2)?;
            taken.push(trellis::launch::monotonic_ns());
            drop(guard);
        }
        member.cluster.barrier(2)?;
    }
    if load(member, 0) != (rounds * 20) as u64 {
        return Err("the counter under the lock is wrong".into());
    }
    // Each node sends its times to the other through the region, a page apart.
    let times = if node == 0 { &released } else { &taken };
    for (index, time) in times.iter().enumerate() {
        store(member, PAGE_WORDS * (1 + node * 64) + index, *time);
    }
    member.cluster.barrier(3)?;
    let samples: Vec<f64> = (0..times.len())
        .map(|index| {
            let released = load(member, PAGE_WORDS + index);
            let taken = load(member, PAGE_WORDS * 65 + index);
            taken.saturating_sub(released) as f64 / 1000.0
        })
        .collect();
    Ok(json!({ "handoff_us": median_of(samples) }))
}

fn busy_home(rounds: usize, member: &Member) -> Found {
    let faults = || {
        let order = Random::new(5).shuffled(0, SPARSE_PAGES);
        let mut samples = Vec::new();
        let first = order.into_iter().take(rounds * 40);
        for page in first {
            let start = Instant::now();
            _ = load(member, page * PAGE_WORDS);
            samples.push(us(start));
        }
        median_of(samples)
    };
    let fill = |value: u64| (0..SPARSE_PAGES).for_each(|page| store(member, page * PAGE_WORDS, value));
    let is_home = member.cluster.node() == 0;
    let (mut idle, mut busy) = (f64::NAN, f64::NAN);
    for computes in [false, true] {
        if is_home {
            fill(u64::from(computes) + 1);
        }
        member.cluster.barrier(1)?;
        if is_home && computes {
            let since = Instant::now();
            while since.elapsed() < COMPUTES {
                std::hint::black_box((0..1000u64).fold(0u64, |sum, n| sum.wrapping_mul(3).wrapping_add(n)));
            }
        } else if !is_home && computes {
            busy = faults();
        } else if !is_home {
            idle = faults();
        }
        member.cluster.barrier(2)?;
    }
    Ok(if is_home { json!({}) } else { json!({ "idle_us": idle, "busy_us": busy }) })
}

fn readers(rounds: usize, member: &Member) -> Found {
    let mut samples = Vec::new();
    for round in 0..rounds as u64 * 4 {
        let start = Instant::now();
        if member.cluster.node() == 0 {
            for page in 0..READ_PAGES {
                (0..4).for_each(|place| store(member, page * PAGE_WORDS + place * 100, round + page as u64));
            }
        }
        member.cluster.barrier(1)?;
        if member.cluster.node() == 1 {
            for page in 0..READ_PAGES {
                if load(member, page * PAGE_WORDS + 300) != round + page as u64 {
                    return Err(format!("page {page} is wrong in round {round}").into());
                }
            }
        }
        member.cluster.barrier(2)?;
        samples.push(us(start));
    }
    // The first rounds are those in which an adaptive protocol learns.
    Ok(json!({ "round_us": median_of(samples.split_off(samples.len() / 4)) }))
}

fn first_stores(rounds: usize, member: &Member) -> Found {
    let mut samples = Vec::new();
    let mut faults = 0;
    for round in 0..rounds as u64 {
        if member.cluster.node() == 1 {
            (0..FALSELY_SHARED_PAGES).for_each(|page| _ = load(member, page * PAGE_WORDS));
            let before = member.cluster.counters();
            let start = Instant::now();
            (0..FALSELY_SHARED_PAGES).for_each(|page| store(member, page * PAGE_WORDS, round));
            samples.push(us(start) / FALSELY_SHARED_PAGES as f64);
            let since = member.cluster.counters().since(&before);
            faults += since.write_faults + since.upgrade_faults + since.upgrade_owner_faults + since.local_faults;
        }
        member.cluster.barrier(1)?;
    }
    Ok(if samples.is_empty() { json!({}) } else { json!({ "store_us": median_of(samples), "faults": faults }) })
}
