//! `trellis bench links`: a remote read fault over `shm` and over `udp`, compared with the same over `tcp`, in one
//! run.
//!
//! It runs the benchmark `fault` over each link in turn; ratios are of the medians of the rounds. The floor of `shm`
//! is set by this machine: a round trip between two polling cores through one cache line each way, and a local fault.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;

use crate::bench::cluster::Common;
use crate::bench::fault;
use crate::bench::figures::{Figures, p50};
use trellis_command::exit::{Ending, Failure};

const EXAMPLE: &str = "Example:\n  trellis bench links --rounds 5 --json";

/// Round trips between two cores in one batch, and the number of batches.
const TRIPS: u64 = 20_000;
const BATCHES: usize = 15;

/// Compare a read fault over shm and over udp with one over tcp
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct LinksArguments {
    /// Faults measured in each round
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(crate) samples: u32,
    /// How often each link is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Compare only tcp and fabric, with libfabric's provider of this name; in builds with the feature `fabric`
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) fabric: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &LinksArguments) -> Ending {
    if let Some(provider) = &arguments.fabric {
        return fabric(arguments, provider);
    }
    let (mut tcp, mut udp, mut shm) = (Vec::new(), Vec::new(), Vec::new());
    let (mut local_fault, mut downgrade) = (Vec::new(), Vec::new());
    let (mut round_trip, mut tcp_round_trip) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        let over_tcp = read(arguments, "tcp")?;
        tcp.push(over_tcp.read_us);
        tcp_round_trip.push(over_tcp.tcp_round_trip_us);
        local_fault.push(over_tcp.local_fault_us);
        downgrade.push(over_tcp.downgrade_us);
        udp.push(read(arguments, "udp")?.read_us);
        let over_shm = read(arguments, "shm")?;
        shm.push(over_shm.read_us);
        local_fault.push(over_shm.local_fault_us);
        downgrade.push(over_shm.downgrade_us);
        round_trip.push(memory_round_trip_us());
    }
    let (tcp, udp, shm) = (p50(tcp), p50(udp), p50(shm));
    let (round_trip, tcp_round_trip) = (p50(round_trip), p50(tcp_round_trip));
    let (local_fault, downgrade) = (p50(local_fault), p50(downgrade));
    let floor = round_trip + local_fault;
    let mut figures = Figures::new("links");
    figures.add("tcp_read_us_p50", tcp, "read fault over tcp (µs, median)");
    figures.add("udp_read_us_p50", udp, "read fault over udp (µs, median)");
    figures.add("udp_over_tcp", udp / tcp, "udp / tcp");
    figures.add("shm_read_us_p50", shm, "read fault over shm (µs, median)");
    figures.add("memory_round_trip_us_p50", round_trip, "round trip through shared memory, both polling (µs, median)");
    figures.add("shm_floor_us", floor, "floor = that round trip + local fault (µs)");
    figures.add("shm_over_floor", shm / floor, "read fault over shm / floor");
    figures.add("local_fault_us_p50", local_fault, "of each: the local fault (µs, median)");
    figures.add("downgrade_us_p50", downgrade, "of each: the owner's change to read access (µs, median)");
    figures.add(
        "tcp_round_trip_us_p50",
        tcp_round_trip,
        "of tcp: link round trip, 4160 B back, both polling (µs, median)",
    );
    let rest = |read: f64, link: f64| read - link - local_fault - downgrade;
    figures.add("tcp_rest_us", rest(tcp, tcp_round_trip), "of tcp: copies, protocol, threads that see a message (µs)");
    figures.add("shm_rest_us", rest(shm, round_trip), "of shm: copies, protocol, threads that see a message (µs)");
    figures.add_value("samples", arguments.samples, "faults in each round");
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

/// Compares the link `fabric` with `tcp`, in turns.
fn fabric(arguments: &LinksArguments, provider: &str) -> Ending {
    let (mut tcp, mut fabric) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        tcp.push(read(arguments, "tcp")?.read_us);
        let common = arguments.common.with("link", "fabric").with("fabric_provider", provider);
        fabric.push(read_over(arguments, &common)?.read_us);
    }
    let (tcp, fabric) = (p50(tcp), p50(fabric));
    let mut figures = Figures::new("links");
    figures.add("tcp_read_us_p50", tcp, "read fault over tcp (µs, median)");
    figures.add("fabric_read_us_p50", fabric, "read fault over fabric, 4 KiB by a one-sided read (µs, median)");
    figures.add("fabric_over_tcp", fabric / tcp, "fabric / tcp");
    figures.add_value("provider", provider, "provider of libfabric");
    figures.add_value("samples", arguments.samples, "faults in each round");
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

/// A remote read fault over a link, and what the same processes measured beside it; medians.
struct Read {
    read_us: f64,
    local_fault_us: f64,
    downgrade_us: f64,
    tcp_round_trip_us: f64,
}

fn read(arguments: &LinksArguments, link: &str) -> Result<Read, Failure> {
    read_over(arguments, &arguments.common.with("link", link))
}

fn read_over(arguments: &LinksArguments, common: &Common) -> Result<Read, Failure> {
    let found = fault::figures(2, arguments.samples as usize, common)?;
    let value = |name| found.get(name).unwrap_or(f64::NAN);
    Ok(Read {
        read_us: value("read_us_p50"),
        local_fault_us: value("local_fault_us_p50"),
        downgrade_us: value("downgrade_us_p50"),
        tcp_round_trip_us: value("link_rtt_us_p50"),
    })
}

/// A word in a cache line of its own.
#[repr(align(128))]
struct Apart(AtomicU64);

/// The round trip between two polling threads, one word each way.
pub(crate) fn memory_round_trip_us() -> f64 {
    let (there, back) = (Apart(AtomicU64::new(0)), Apart(AtomicU64::new(0)));
    let last = TRIPS * BATCHES as u64;
    let mut batches = Vec::with_capacity(BATCHES);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 1..=last {
                await_word(&there, trip);
                back.0.store(trip, Ordering::Release);
            }
        });
        for batch in 0..BATCHES as u64 {
            let start = Instant::now();
            for trip in batch * TRIPS + 1..=(batch + 1) * TRIPS {
                there.0.store(trip, Ordering::Release);
                await_word(&back, trip);
            }
            batches.push(start.elapsed().as_secs_f64() * 1e6 / TRIPS as f64);
        }
    });
    p50(batches)
}

fn await_word(word: &Apart, value: u64) {
    let mut looks = 0_u32;
    while word.0.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
        looks = looks.wrapping_add(1);
        // On a machine with one core, the other thread could otherwise not run.
        if looks.is_multiple_of(1 << 16) {
            std::thread::yield_now();
        }
    }
}
