//! `trellis bench consistency`: what release consistency saves and costs, each compared with its own yardstick.
//!
//! The parts run one after the other, each on a cluster of two nodes; diffs are made by this process. Barriers and
//! locks order the loads and stores. Loaded values are checked, so a wrong protocol gives no figure.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trellis_base::Random;
use trellis_memory::diff;

use crate::bench::cluster::{ClusterPlan, Common, number_of};
use crate::bench::figures::{Figures, p50};
use crate::bench::node::{Found, Member, Task, shuffled};
use crate::bench::raw_link;
use crate::bench::threads::PollingBarrier;
use trellis_command::exit::{self, Ending, Failure};

const EXAMPLE: &str = "Example:\n  trellis bench consistency --json";

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Pages in which two nodes store to alternate words.
const FALSELY_SHARED_PAGES: usize = 1000;
/// Words from the first to the last of them.
const FALSELY_SHARED_WORDS: usize = FALSELY_SHARED_PAGES * PAGE_WORDS;
/// Pages of the sparse publication: 16 MiB.
const SPARSE_PAGES: usize = 4096;
/// Pages that are cached while nothing is stored.
const CACHED_PAGES: usize = 16_384;
/// Pages that one node stores to and the other loads, in every round.
const READ_PAGES: usize = 256;
/// Pages in a round of diffs: together with their twins they fit into the second-level cache.
const DIFFED_PAGES: usize = 32;
/// The number of changed bytes of such a page: one in a hundred.
const CHANGED_BYTES: usize = PAGE_BYTES / 100;
/// The number of sets of that many pages. The sets are used in turn, so that the stores to one are first stores
/// again.
const FRESH_SETS: usize = 4;
/// How long a home computes without calling Trellis.
const COMPUTES: Duration = Duration::from_millis(500);

/// Compare release consistency with its yardsticks: false sharing, sparse stores, empty barriers, faults at a busy
/// home
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
enum Section {
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
    part: Section,
    rounds: usize,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &ConsistencyArguments) -> Ending {
    let part = |part: Section, coherence: &str| measure(arguments, part, coherence);
    let mut figures = Figures::new("consistency");

    let ivy = part(Section::FalseSharing, "ivy")?("round_us");
    figures.add("false_sharing_ivy_us", ivy, "alternate words of 1,000 pages, a barrier: ivy (µs a round)");
    let mut least = f64::INFINITY;
    for (field, coherence) in [
        ("false_sharing_invalidate_us", "hlrc(invalidate)"),
        ("false_sharing_update_us", "hlrc(update)"),
        ("false_sharing_adaptive_us", "hlrc(adaptive)"),
    ] {
        let round = part(Section::FalseSharing, coherence)?("round_us");
        least = least.min(round);
        figures.add(field, round, format!("the same under {coherence}"));
    }
    figures.add("ivy_over_hlrc", ivy / least, "ivy / the fastest of these");

    let sparse = part(Section::Sparse, "hlrc(invalidate)")?;
    figures.add("sparse_mib_per_second", sparse("mib_per_second"), "16 MiB of another home, one byte in eight (MiB/s)");

    let diffs = |spread: Spread| diff_us(arguments.rounds as usize * 10, spread);
    figures.add("diff_us_p50", diffs(Spread::InOnePlace)?, "diff of a page, 1 % changed in one place (µs, median)");
    figures.add("diff_apart_us_p50", diffs(Spread::Apart)?, "the same, bytes that lie apart (µs, median)");

    let empty = part(Section::EmptyBarriers, "hlrc(invalidate)")?;
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

    let handed = part(Section::HandOver, "hlrc(invalidate)")?;
    figures.add(
        "handoff_us_p50",
        handed("handoff_us"),
        "from a release until the other node's waiting thread has loaded what the lock protects (µs, median)",
    );
    figures.add("handoff_over_link_rtt", handed("handoff_us") / handed("link_rtt_us"), "hand-over / link round trip");

    let busy = part(Section::BusyHome, "hlrc(invalidate)")?;
    figures.add("idle_home_read_us_p50", busy("idle_us"), "read fault, home idle (µs, median)");
    figures.add("busy_home_read_us_p50", busy("busy_us"), "read fault, home computes (µs, median)");
    figures.add("busy_over_idle_home", busy("busy_us") / busy("idle_us"), "home computes / home idle");

    let invalidate = part(Section::Readers, "hlrc(invalidate)")?;
    let update = part(Section::Readers, "hlrc(update)")?;
    let adaptive = part(Section::Readers, "hlrc(adaptive)")?;
    figures.add("invalidate_round_us", invalidate("round_us"), "256 pages stored, a barrier, loaded: invalidate (µs)");
    figures.add("update_round_us", update("round_us"), "the same: update (µs)");
    figures.add("adaptive_round_us", adaptive("round_us"), "the same: adaptive (µs)");
    figures.add("invalidate_over_update", invalidate("round_us") / update("round_us"), "invalidate / update");

    let stores = part(Section::FirstStores, "hlrc(invalidate)")?;
    figures.add("first_store_us", stores("store_us"), "first store to a fetched page in an interval (µs, mean)");
    figures.add("first_store_faults", stores("faults"), "trips to user space for these stores");
    figures.add(
        "repeated_store_us",
        stores("again_us"),
        "the same where these pages are stored to every time (µs, mean)",
    );
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

/// Runs one part; returns the numbers of node 1 by name, or those of node 0 where node 1 has none.
fn measure(
    arguments: &ConsistencyArguments,
    part: Section,
    coherence: &str,
) -> Result<impl Fn(&str) -> f64 + use<>, Failure> {
    let task = Task::Consistency(ConsistencyTask { part, rounds: arguments.rounds as usize });
    let home = if matches!(part, Section::FalseSharing) { "interleaved" } else { "manager" };
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

/// Where the changed bytes of a page are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    InOnePlace,
    Apart,
}

/// The changed bytes of a page in a round.
fn changed(spread: Spread) -> impl Iterator<Item = usize> {
    let (first, step) = match spread {
        Spread::InOnePlace => (1000, 1),
        Spread::Apart => (0, PAGE_BYTES / CHANGED_BYTES),
    };
    (0..CHANGED_BYTES).map(move |number| first + number * step)
}

#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

/// The time to find the changes of a page against its twin and to encode them: the median of the rounds.
fn diff_us(rounds: usize, spread: Spread) -> Result<f64, Failure> {
    let fresh = || vec![Page([0; PAGE_BYTES]); DIFFED_PAGES];
    let (mut pages, mut twins, mut copies) = (fresh(), fresh(), fresh());
    // With room for the longest diff, so that the allocator is not timed.
    let mut diffs: Vec<Vec<u8>> =
        (0..DIFFED_PAGES).map(|_| Vec::with_capacity(2 * diff::bytes_max(PAGE_BYTES))).collect();
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        for page in &mut pages {
            changed(spread).for_each(|at| page.0[at] = page.0[at].wrapping_add(1));
        }
        diffs.iter_mut().for_each(Vec::clear);
        let start = Instant::now();
        for ((page, twin), found) in pages.iter().zip(&mut twins).zip(&mut diffs) {
            // SAFETY: two pages of this size, which nobody else uses.
            unsafe { diff::encode(page.0.as_ptr(), twin.0.as_mut_ptr(), PAGE_BYTES, found) };
        }
        samples.push(us(start) / DIFFED_PAGES as f64);
        for (copy, found) in copies.iter_mut().zip(&diffs) {
            let wrong = |bad| Failure::new(exit::CLUSTER, format!("a diff of this process is refused: {bad}"));
            diff::check(found, PAGE_BYTES).map_err(wrong)?;
            // SAFETY: checked for a page of this size.
            unsafe { diff::apply(found, copy.0.as_mut_ptr()) };
        }
    }
    if pages.iter().zip(&copies).any(|(page, copy)| page.0 != copy.0) {
        return Err(Failure::new(exit::CLUSTER, "a page that got all diffs of another differs from it"));
    }
    Ok(p50(samples))
}

/// Runs a node's part.
pub(crate) fn node(task: &ConsistencyTask, member: &mut Member) -> Found {
    let node = member.cluster.node();
    let link = match &mut member.connection {
        Some(stream) => raw_link::round_trip_us_p50(stream, node, 2000)?,
        None => None,
    };
    let mut found = match task.part {
        Section::FalseSharing => false_sharing(task.rounds, member),
        Section::Sparse => sparse(task.rounds, member),
        Section::EmptyBarriers => empty_barriers(task.rounds, member),
        Section::HandOver => hand_over(task.rounds, member),
        Section::BusyHome => busy_home(task.rounds, member),
        Section::Readers => readers(task.rounds, member),
        Section::FirstStores => first_stores(task.rounds, member),
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

/// A word of the region, which barriers or locks keep others from storing to.
pub(crate) fn load(member: &Member, index: usize) -> u64 {
    // SAFETY: inside the region and aligned; barriers and locks order the accesses of the nodes.
    unsafe { word(member, index).read_volatile() }
}

/// Stores to a word of the region that barriers or locks keep others from using.
pub(crate) fn store(member: &Member, index: usize, value: u64) {
    // SAFETY: as above.
    unsafe { word(member, index).write_volatile(value) }
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Node `node` of two stores to its words, every second one of the first words of each page.
///
/// # Safety
/// There are [`FALSELY_SHARED_WORDS`] words, and nobody else uses those of this node now.
unsafe fn store_alternately(words: *mut u64, node: usize, round: u64) {
    for page in 0..FALSELY_SHARED_PAGES {
        for place in (node..64).step_by(2) {
            // SAFETY: the caller's promise.
            unsafe { words.add(page * PAGE_WORDS + place).write_volatile(round + place as u64) };
        }
    }
}

/// The round of false sharing with these settings and no others.
pub(crate) fn false_sharing_us(rounds: usize, common: &Common) -> Result<f64, Failure> {
    let task = Task::Consistency(ConsistencyTask { part: Section::FalseSharing, rounds });
    let settings = vec![("region_bytes", (FALSELY_SHARED_WORDS * 8).next_multiple_of(64 << 10).to_string())];
    let found = ClusterPlan { nodes: 2, common, settings, task: &task, with_connection: false }.run::<Value>()?;
    number_of(&found[1], "round_us")
}

/// The round of false sharing by two threads of one process.
pub(crate) fn false_sharing_of_threads(rounds: usize) -> f64 {
    let mut memory = vec![0u64; FALSELY_SHARED_WORDS];
    let words = AtomicPtr::new(memory.as_mut_ptr());
    let barrier = PollingBarrier::new(2);
    let work = |node: usize| {
        let words = words.load(Ordering::Relaxed);
        let samples = (0..rounds as u64).map(|round| {
            barrier.wait();
            let start = Instant::now();
            // SAFETY: there are as many words; the other thread stores to the other ones.
            unsafe { store_alternately(words, node, round) };
            barrier.wait();
            start.elapsed().as_secs_f64() * 1e6
        });
        p50(samples.collect::<Vec<_>>())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        work(0)
    })
}

fn false_sharing(rounds: usize, member: &Member) -> Found {
    let node = member.cluster.node();
    assert!(FALSELY_SHARED_WORDS * 8 <= member.cluster.region().bytes());
    let mut samples = Vec::new();
    for round in 0..rounds as u64 {
        member.cluster.barrier(1)?;
        let start = Instant::now();
        // SAFETY: the region is large enough; the other node stores to the other words.
        unsafe { store_alternately(word(member, 0), node, round) };
        member.cluster.barrier(2)?;
        samples.push(us(start));
        let other = (round as usize * 7 % FALSELY_SHARED_PAGES) * PAGE_WORDS + (1 - node);
        if load(member, other) != round + (1 - node) as u64 {
            return Err(format!("word {other} is wrong in round {round}").into());
        }
    }
    Ok(json!({ "round_us": p50(samples) }))
}

/// The value that is stored to the lowest byte of a word; it differs from that of the round before.
fn sparse_byte(round: usize, index: usize) -> u8 {
    (round + index + 1) as u8
}

fn sparse(rounds: usize, member: &Member) -> Found {
    let mut samples = Vec::new();
    for round in 0..rounds.min(20) {
        if member.cluster.node() == 1 {
            // The pages are already here: only the stores are measured.
            (0..SPARSE_PAGES).for_each(|page| _ = load(member, page * PAGE_WORDS));
        }
        member.cluster.barrier(1)?;
        let start = Instant::now();
        if member.cluster.node() == 1 {
            for index in 0..SPARSE_PAGES * PAGE_WORDS {
                // SAFETY: inside the region; only this node stores between these barriers.
                unsafe { word(member, index).cast::<u8>().write_volatile(sparse_byte(round, index)) };
            }
        }
        member.cluster.barrier(2)?;
        samples.push(us(start));
        if member.cluster.node() == 0 {
            for index in (0..SPARSE_PAGES * PAGE_WORDS).step_by(509) {
                if load(member, index) as u8 != sparse_byte(round, index) {
                    return Err(format!("byte {} is wrong in round {round}", index * 8).into());
                }
            }
        }
    }
    let mib = (SPARSE_PAGES * PAGE_BYTES) as f64 / f64::from(1 << 20);
    Ok(json!({ "mib_per_second": mib / (p50(samples) / 1e6) }))
}

fn empty_barriers(rounds: usize, member: &Member) -> Found {
    let measure = || -> Result<f64, trellis::WaitError> {
        let mut samples = Vec::new();
        for _ in 0..rounds * 100 {
            let start = Instant::now();
            member.cluster.barrier(1)?;
            samples.push(us(start));
        }
        Ok(p50(samples))
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
        let guard = if round % 2 == node { Some(member.cluster.mutex(2).lock()?) } else { None };
        member.cluster.barrier(1)?;
        if let Some(guard) = guard {
            // Long enough for the other node to send its request and to wait.
            let since = Instant::now();
            while us(since) < 30.0 {
                std::hint::spin_loop();
            }
            // The protected data is at node 0.
            store(member, 0, load(member, 0) + 1);
            released.push(trellis::launch::monotonic_ns());
            drop(guard);
        } else {
            let guard = member.cluster.mutex(2).lock()?;
            let count = load(member, 0);
            taken.push(trellis::launch::monotonic_ns());
            drop(guard);
            if count != round as u64 + 1 {
                return Err("what the other node stored under the lock is not there".into());
            }
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
    Ok(json!({ "handoff_us": p50(samples) }))
}

fn busy_home(rounds: usize, member: &Member) -> Found {
    let faults = || {
        let order = shuffled(&mut Random::new(5), 0, SPARSE_PAGES);
        let mut samples = Vec::new();
        let first = order.into_iter().take(rounds * 40);
        for page in first {
            let start = Instant::now();
            _ = load(member, page * PAGE_WORDS);
            samples.push(us(start));
        }
        p50(samples)
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
    // An adaptive protocol learns in the first rounds.
    Ok(json!({ "round_us": p50(samples.split_off(samples.len() / 4)) }))
}

fn first_stores(rounds: usize, member: &Member) -> Found {
    let (mut first, mut again) = (Vec::new(), Vec::new());
    let mut faults = 0;
    for round in 0..rounds {
        // Pages without recent stores, and pages that are stored to in every round.
        let fresh = FALSELY_SHARED_PAGES * (1 + round % FRESH_SETS);
        for (pages, samples) in [(fresh, &mut first), (0, &mut again)] {
            if member.cluster.node() == 1 {
                let all = pages..pages + FALSELY_SHARED_PAGES;
                all.clone().for_each(|page| _ = load(member, page * PAGE_WORDS));
                let before = member.cluster.counters();
                let start = Instant::now();
                all.for_each(|page| store(member, page * PAGE_WORDS, round as u64 + 1));
                samples.push(us(start) / FALSELY_SHARED_PAGES as f64);
                let since = member.cluster.counters().since(&before);
                faults += since.write_faults + since.upgrade_faults + since.upgrade_owner_faults + since.local_faults;
            }
        }
        member.cluster.barrier(1)?;
    }
    if first.is_empty() {
        return Ok(json!({}));
    }
    Ok(json!({ "store_us": p50(first), "again_us": p50(again), "faults": faults }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_in_a_hundred_changes_in_one_place_or_all_over_the_page() {
        for spread in [Spread::InOnePlace, Spread::Apart] {
            let places: Vec<usize> = changed(spread).collect();
            assert_eq!(places.len(), 40, "{spread:?}");
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]) && places[39] < PAGE_BYTES, "{places:?}");
        }
        let far = |spread| changed(spread).last().unwrap() - changed(spread).next().unwrap();
        assert_eq!(far(Spread::InOnePlace), 39);
        assert!(far(Spread::Apart) > PAGE_BYTES * 9 / 10);
    }

    #[test]
    fn diffs_are_timed_and_make_the_copies_equal() {
        for spread in [Spread::InOnePlace, Spread::Apart] {
            assert!(diff_us(300, spread).unwrap() > 0.0, "{spread:?}");
        }
    }
}
