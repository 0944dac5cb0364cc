//! Nodes with one decision broken: the explorer must notice, or a simulated cluster, or both where both can.
//!
//! Promises: a mutant runs on instances and seeds that the protocol itself passes. It must never call a mutant noticed
//! because a seed takes longer.

use super::{one_after_the_other, page_instances};
use crate::explore::{Options, Report, Verdict, explore};
use crate::pages::{Instance, Locks};
use crate::simulate::{Faulty, NodeFault, Real, Scenario, Seed, Verdict as Outcome, run};
use std::time::{Duration, Instant};
use trellis_cluster_protocol::coherence::Protocol;

/// The maximum number of seeds on which a mutant is tried.
pub const NODE_SEEDS_MAX: u64 = 2_000;

/// Tries a mutant in the explorer, if that can notice it, and on seeds until one notices it. The report's states are
/// those of the explorer and the steps of the protocols.
pub fn try_node(protocol: Protocol, fault: NodeFault, options: Options) -> Report {
    let instances = node_instances(protocol, fault);
    let explored = (!instances.is_empty()).then(|| {
        let options = Options { must_end: true, ..options };
        one_after_the_other(instances, |instance| explore(&mut instance.model_with(fault), options, &mut |_| {}))
    });
    match explored {
        Some(report) if report.passed() || !fault.is_simulated() => report,
        explored => {
            let mut report = simulate(protocol, fault);
            if let Some(explored) = explored {
                report.states += explored.states;
                report.transitions += explored.transitions;
                report.elapsed += explored.elapsed;
            }
            report
        }
    }
}

/// The instances on which the explorer notices a mutant, smallest first; none if it knows nothing of what is broken.
pub fn node_instances(protocol: Protocol, fault: NodeFault) -> Vec<Instance> {
    let of = |nodes, pages, operations| Instance {
        overtaken_max: Some(8),
        ..Instance::new(protocol, nodes, pages, operations)
    };
    match fault {
        NodeFault::HeldForEver | NodeFault::NoAlarms | NodeFault::AlarmsStay => page_instances(protocol),
        NodeFault::TimelessLocks => vec![Instance { locks: Locks::Timed, ..of(2, 1, 1) }],
        NodeFault::SendsToDeparted
        | NodeFault::DropsRequests
        | NodeFault::DropsInvalidations
        | NodeFault::LeavesUnanswered
        | NodeFault::LeavesWithRequests
        | NodeFault::LeavesWithoutFarewell
        | NodeFault::LeavesHolding
        | NodeFault::NamesNothing
        | NodeFault::TakesNothing => {
            let leaves = |instance| Instance { leaver: true, ..instance };
            let mut instances = vec![
                leaves(of(2, 1, 2)),
                leaves(Instance { prefetches: 1, ..of(2, 1, 1) }),
                leaves(of(3, 1, 1)),
                leaves(of(3, 1, 2)),
            ];
            if protocol.can_lock() {
                instances.push(leaves(Instance { locks: Locks::Kept, ..of(3, 1, 1) }));
            }
            instances
        }
        NodeFault::None
        | NodeFault::KeepsPieces
        | NodeFault::StaysInQueue
        | NodeFault::AbandonsNothing
        | NodeFault::LocksPart
        | NodeFault::UnlocksPart
        | NodeFault::WaitsForItself
        | NodeFault::AnyOrder
        | NodeFault::KeepsTokens
        | NodeFault::LeavesOutOfTurn
        | NodeFault::TakesEarly
        | NodeFault::ForgetsComers
        | NodeFault::AsksForFrozen
        | NodeFault::LocksFrozen
        | NodeFault::StaysFrozen
        | NodeFault::ChangesUnsettled
        | NodeFault::ChangesAway
        | NodeFault::GathersTogether => Vec::new(),
    }
}

/// Tries a mutant on seeds until one notices it.
fn simulate(protocol: Protocol, fault: NodeFault) -> Report {
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
