//! Nodes with one decision broken: a simulated cluster must notice.
//!
//! Promises: a mutant runs on seeds that the protocol itself passes. It must never call a mutant noticed because a
//! seed takes longer.

use crate::explore::{Report, Verdict};
use crate::simulate::{Faulty, NodeFault, Real, Scenario, Seed, Verdict as Outcome, run};
use std::time::{Duration, Instant};
use trellis_cluster_protocol::coherence::Protocol;

/// The maximum number of seeds on which a mutant is tried.
pub const NODE_SEEDS_MAX: u64 = 2_000;

/// Tries a mutant on seeds until one notices it. The report's states are the steps of the protocols.
pub fn try_node(protocol: Protocol, fault: NodeFault) -> Report {
    let began = Instant::now();
    let mut sum = Report { verdict: Verdict::Passed, states: 0, transitions: 0, depth: 0, elapsed: Duration::ZERO };
    for number in 1..=NODE_SEEDS_MAX {
        let scenario = Scenario::from_seed(Seed { protocol: Some(protocol), number });
        let outcome = run(scenario.clone(), &Faulty(fault));
        sum.states += outcome.tally.steps;
        if let Outcome::Broken(what) = outcome.verdict {
            assert!(run(scenario, &Real).passed(), "{protocol}:{number} fails without a mutation, too: {what}");
            sum.verdict = Verdict::Broken { what, trace: Vec::new() };
            break;
        }
    }
    Report { elapsed: began.elapsed(), ..sum }
}
