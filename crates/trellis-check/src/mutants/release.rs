//! Release consistency with one rule broken: the random clusters or the explorer must notice.
//!
//! Promises: a mutant is tried on the same clusters as the protocol itself, random ones first because they take less
//! time. It must never call a mutant noticed that only ran out of states.

use crate::explore::{Options, Report, Verdict, explore};
use crate::release::explore::Orders;
use crate::release::faults::{Broken, FAULTS, Of};
use crate::release::{Setup, scripts, swarm};
use std::time::{Duration, Instant};
use trellis_cluster_protocol::coherence::Protocol;

/// The maximum number of random clusters on which a mutant is tried before the explorer.
pub const SEEDS_MAX: u64 = 30_000;

/// The mutants of `protocol`.
pub fn release_mutants_of(protocol: Protocol) -> Vec<Broken> {
    let name = protocol.to_string();
    let has = |of: Of| match of {
        Of::All | Of::Changed | Of::Conditions => true,
        Of::Updates => name != "hlrc(invalidate)",
        Of::Update => name == "hlrc(update)",
        Of::Drops => name != "hlrc(update)",
    };
    FAULTS.iter().copied().filter(|broken| protocol.is_release_consistent() && has(broken.of)).collect()
}

/// The protocols that have a rule, as text.
pub(super) fn words(of: Of) -> &'static str {
    match of {
        Of::All => "`hlrc`",
        Of::Update => "`hlrc(update)`",
        Of::Changed => "changes to and from `hlrc`",
        Of::Conditions => "waits for a condition under `hlrc`",
        Of::Updates => "`hlrc(update)`, `hlrc(adaptive)`",
        Of::Drops => "`hlrc(invalidate)`, `hlrc(adaptive)`",
    }
}

/// Tries a mutant on random clusters, then in every order on small ones, until one notices it. Random clusters, and most
/// small ones, wait for no condition.
pub fn try_release(protocol: Protocol, Broken { fault, of, .. }: Broken, options: Options) -> Report {
    let began = Instant::now();
    let mut sum = Report { verdict: Verdict::Passed, states: 0, transitions: 0, depth: 0, elapsed: Duration::ZERO };
    let (seeds, setups) = match of {
        Of::Conditions => (0, scripts::conditions(protocol)),
        _ => (SEEDS_MAX, [scripts::small(protocol), scripts::larger(protocol)].concat()),
    };
    for seed in 0..seeds {
        let outcome = swarm::run(protocol, seed, fault, false);
        sum.states += outcome.steps;
        if let Some(what) = outcome.problem {
            let verdict = Verdict::Broken { what, trace: Vec::new() };
            return Report { verdict, elapsed: began.elapsed(), ..sum };
        }
    }
    for setup in setups {
        let report =
            explore(&mut Orders::new(Setup { fault, ..setup }), Options { must_end: true, ..options }, &mut |_| {});
        sum.states += report.states;
        sum.transitions += report.transitions;
        if !report.passed() {
            return Report { verdict: report.verdict, elapsed: began.elapsed(), ..sum };
        }
    }
    Report { elapsed: began.elapsed(), ..sum }
}
