//! Nodes with one decision broken: some simulated cluster must notice.
//!
//! Promises: a mutant runs on the seeds that the protocol itself passes. It must never call a mutant noticed because of a
//! seed that needs longer.

use crate::explore::{Report, Verdict};
use crate::simulate::{Faulty, NodeFault, Scenario, Seed, Verdict as Outcome, run};
use std::time::{Duration, Instant};
use trellis_cluster_protocol::coherence::Protocol;

/// Most seeds that a mutant is tried on.
pub const NODE_SEEDS_MAX: u64 = 2_000;

/// Tries a mutant on seeds, until one notices it. Its states are the steps of the protocols.
pub fn try_node(protocol: Protocol, fault: NodeFault) -> Report {
    let began = Instant::now();
    let mut sum = Report { verdict: Verdict::Passed, states: 0, transitions: 0, depth: 0, elapsed: Duration::ZERO };
    for number in 1..=NODE_SEEDS_MAX {
        let outcome = run(Scenario::from_seed(Seed { protocol: Some(protocol), number }), &Faulty(fault));
        sum.states += outcome.tally.steps;
        if let Outcome::Broken(what) = outcome.verdict {
            sum.verdict = Verdict::Broken { what, trace: Vec::new() };
            break;
        }
    }
    Report { elapsed: began.elapsed(), ..sum }
}
