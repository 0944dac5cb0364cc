//! Leases with one rule broken: the random clusters or the explorer must notice.
//!
//! Promises: a mutant is tried on the same clusters as the protocol itself: a few random ones, the beginning of every
//! small one in every order, more random ones, the small ones completely, and the remaining random ones. It must never
//! call a mutant noticed that only ran out of states.

use crate::explore::{Options, Report, Verdict, explore};
use crate::leases::explore::Orders;
use crate::leases::faults::Fault;
use crate::leases::{Setup, shapes, swarm};
use std::time::{Duration, Instant};

/// The maximum number of random clusters on which a mutant is tried.
pub const LEASE_SEEDS_MAX: u64 = 20_000;

/// The end of the seeds that are tried first.
const SEEDS_FIRST: u64 = 100;

/// Random clusters that noticed a mutant which few others notice. They only save time: where they do not notice one any
/// more, the others are tried.
const SEEDS_RARE: [u64; 5] = [2_494, 3_437, 4_601, 5_037, 6_020];

/// The end of the seeds that are tried before the small clusters are explored completely.
const SEEDS_SECOND: u64 = 2_000;

/// The maximum number of states of one small cluster in the first exploration.
const STATES_FIRST: u64 = 60_000;

/// Tries a mutant until a checker notices it.
pub fn try_leases(fault: Fault, options: Options) -> Report {
    let began = Instant::now();
    let mut sum = Report { verdict: Verdict::Passed, states: 0, transitions: 0, depth: 0, elapsed: Duration::ZERO };
    let first = Options { states_max: STATES_FIRST.min(options.states_max), ..options };
    let verdict = by_seeds(fault, 0..SEEDS_FIRST, &mut sum)
        .or_else(|| explored(fault, first, &mut sum))
        .or_else(|| by_seeds(fault, SEEDS_RARE, &mut sum))
        .or_else(|| by_seeds(fault, SEEDS_FIRST..SEEDS_SECOND, &mut sum))
        .or_else(|| explored(fault, options, &mut sum))
        .or_else(|| by_seeds(fault, SEEDS_SECOND..LEASE_SEEDS_MAX, &mut sum));
    Report { verdict: verdict.unwrap_or(Verdict::Passed), elapsed: began.elapsed(), ..sum }
}

/// Tries the random clusters of `seeds`.
fn by_seeds(fault: Fault, seeds: impl IntoIterator<Item = u64>, sum: &mut Report) -> Option<Verdict> {
    for seed in seeds {
        let outcome = swarm::run(seed, fault, false);
        sum.states += outcome.steps;
        if let Some(what) = outcome.problem {
            return Some(Verdict::Broken { what, trace: Vec::new() });
        }
    }
    None
}

/// Explores the small clusters.
fn explored(fault: Fault, options: Options, sum: &mut Report) -> Option<Verdict> {
    for setup in shapes::small() {
        let report = explore(&mut Orders::new(Setup { fault, ..setup }), options, &mut |_| {});
        sum.states += report.states;
        sum.transitions += report.transitions;
        if matches!(report.verdict, Verdict::Broken { .. }) {
            return Some(report.verdict);
        }
    }
    None
}
