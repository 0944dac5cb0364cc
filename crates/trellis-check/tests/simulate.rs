//! The simulator: correct seeds pass, broken protocols fail, and numbers do not depend on the build.
//!
//! A failure prints the seed and the command that runs it again.

use trellis_check::mutants::{Fault, Mutant};
use trellis_check::scale::{DelayStudy, Options, Workload, delay_study, scale};
use trellis_check::simulate::{
    Faults, Instead, Layout, Manners, Outcome, Pattern, Real, Scenario, Seed, Tally, Verdict, Wires, replay, run,
    simulate, swarm, traced,
};
use trellis_cluster_protocol::coherence::choices::Threshold;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol, Running};
use trellis_cluster_protocol::{Nanoseconds, NodeId};

const SEEDS: u64 = 30;

fn seed(protocol: Protocol, number: u64) -> Seed {
    Seed { protocol: Some(protocol), number }
}

#[test]
fn every_protocol_passes_its_seeds() {
    for protocol in Protocol::all() {
        let sum = swarm(protocol, 1, SEEDS, &mut |_| {});
        let complaints: Vec<String> = sum.failures.iter().filter_map(Outcome::complaint).collect();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
        assert_eq!(sum.runs, SEEDS);
        assert!(sum.operations > 100 * SEEDS, "{protocol}: {} operations are no test", sum.operations);
    }
}

#[test]
fn a_seed_gives_the_same_run_whoever_watches() {
    for number in 1..40 {
        let first = simulate(Seed { protocol: None, number });
        let again = simulate(Seed { protocol: None, number });
        let (watched, lines) = replay(Seed { protocol: None, number }, 50);
        assert_eq!((first.trace_hash, first.tally), (again.trace_hash, again.tally));
        assert_eq!((first.trace_hash, first.tally), (watched.trace_hash, watched.tally));
        assert!(!lines.is_empty() && lines.len() <= 52, "{} lines", lines.len());
        // The seed printed with a failure is complete.
        let printed: Seed = first.scenario.seed.to_string().parse().unwrap();
        assert_eq!(simulate(printed).trace_hash, first.trace_hash);
    }
    let different = |number| simulate(seed(Protocol::IVY, number)).trace_hash;
    assert_ne!(different(1), different(2));
}

/// Debug and release builds run this test, and both must find this number. It changes only when the locks' protocol or
/// the simulator changes.
#[test]
fn a_run_has_the_same_hash_in_every_build() {
    let mut scenario = rough(Protocol::IVY, 5, Pattern::OneLock);
    scenario.operations = 50;
    let outcome = run(scenario, &Real);
    assert_eq!(outcome.verdict, Verdict::Passed);
    assert_eq!(outcome.trace_hash, HASH_OF_FIVE_NODES_AND_ONE_LOCK);
}

const HASH_OF_FIVE_NODES_AND_ONE_LOCK: u64 = 0x13BB_4EFD_5C6D_35C4;

#[test]
fn seeds_bring_every_fault_and_every_pattern_on_and_off() {
    let scenarios: Vec<Scenario> =
        (0..2000).map(|number| Scenario::from_seed(seed(Protocol::DYNAMIC, number))).collect();
    let faults: [fn(&Faults) -> bool; 9] = [
        |f| f.drop,
        |f| f.duplicate,
        |f| f.delay,
        |f| f.reorder,
        |f| f.partition,
        |f| f.crash,
        |f| f.pause,
        |f| f.join,
        |f| f.leave,
    ];
    for is_on in faults {
        let on = scenarios.iter().filter(|scenario| is_on(&scenario.faults)).count();
        assert!(on > 80 && on < 1500, "on in {on} of 2000 seeds");
    }
    for pattern in [Pattern::Uniform, Pattern::Stream, Pattern::Sections, Pattern::Phases, Pattern::Changes] {
        assert!(scenarios.iter().any(|scenario| scenario.pattern == pattern), "{pattern:?}");
    }
    assert!(
        scenarios.iter().filter(|scenario| scenario.is_fair()).count() > 200,
        "too few in which waiting is bounded"
    );
    let locks: Protocol = "lock(ivy)".parse().unwrap();
    let locking = (0..200).map(|number| Scenario::from_seed(seed(locks, number)).pattern);
    assert!(locking.filter(|&pattern| pattern == Pattern::RangeLocks).count() > 20);
}

#[test]
fn words_that_are_no_seed_are_refused() {
    assert_eq!("ivy:12".parse(), Ok(seed(Protocol::IVY, 12)));
    assert_eq!("7".parse(), Ok(Seed { protocol: None, number: 7 }));
    for text in ["", "ivy", "ivy:", "ivi:3", "ivy:-1", ":4"] {
        assert!(text.parse::<Seed>().is_err(), "{text}");
    }
}

/// Runs some seeds of a broken protocol until one is noticed; returns the problem.
fn noticed<N: Coherence>(protocol: Protocol, start: impl Fn(Protocol, Geometry) -> N) -> Option<String> {
    let start = Instead(start);
    let scenarios = (1..200).map(|number| Scenario::from_seed(seed(protocol, number)));
    // A mutant copies its state at every step: the region must be small.
    let small = |scenario: &Scenario| scenario.layout.chunks == 1 && scenario.founders <= 8;
    scenarios.filter(|scenario| small(scenario) && !scenario.faults.leave).take(SEEDS as usize).find_map(|scenario| {
        let outcome = run(scenario, &start);
        match outcome.verdict {
            Verdict::Broken(what) => Some(what),
            Verdict::Passed => None,
        }
    })
}

#[test]
fn broken_protocols_are_noticed() {
    let mutant = |fault| {
        noticed(Protocol::IVY, move |protocol, geometry| Mutant::new(protocol.start(geometry), geometry, fault))
    };
    assert_eq!(mutant(Fault::None), None, "the wrapper alone breaks nothing");
    for fault in [
        Fault::KeepsCopy,
        Fault::NoDowngrade,
        Fault::NoRevoke,
        Fault::GrantsTooEarly,
        Fault::ForgetsReader,
        Fault::ZeroNotBytes,
        Fault::LosesQueued,
        Fault::NoWake,
        Fault::NoConfirm,
        Fault::WriteForRead,
        Fault::SendBeforeRevoke,
        Fault::NoUpgrade,
    ] {
        assert!(mutant(fault).is_some(), "{fault:?} was not noticed");
    }
}

/// A protocol that is unfair to one node, or ignores it.
#[derive(Clone)]
struct Unfair {
    inner: Running,
    /// Requests of node 1 wait until this number of others were served; not at all with 0, for ever with `None`.
    timeout: Option<u32>,
    parked: Vec<Input>,
    served: u32,
}

impl Coherence for Unfair {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        let is_of_one = matches!(input, Input::Message { from: NodeId(1), message: Message::Request { .. } });
        if is_of_one && self.timeout != Some(0) {
            return self.parked.push(input);
        }
        self.inner.step(now, input, effects);
        self.served += u32::from(matches!(input, Input::Message { message: Message::Request { .. }, .. }));
        if self.timeout.is_some_and(|timeout| self.served >= timeout && !self.parked.is_empty()) {
            self.served = 0;
            for input in std::mem::take(&mut self.parked) {
                self.inner.step(now, input, effects);
            }
        }
    }

    trellis_check::answers_as!(inner);
}

fn unfair(timeout: Option<u32>) -> Outcome {
    let mut scenario = rough(Protocol::IVY, 4, Pattern::Writers);
    scenario.operations = 2000;
    assert!(scenario.is_fair());
    let start = |protocol: Protocol, geometry| Unfair {
        inner: protocol.start(geometry),
        timeout,
        parked: Vec::new(),
        served: 0,
    };
    run(scenario, &Instead(start))
}

#[test]
fn a_node_that_is_overtaken_too_often_or_never_served_is_noticed() {
    let reason = |outcome: Outcome| match outcome.verdict {
        Verdict::Broken(what) => what,
        Verdict::Passed => "nothing".to_string(),
    };
    assert_eq!(unfair(Some(0)).verdict, Verdict::Passed);
    let overtaken = reason(unfair(Some(100)));
    assert!(overtaken.contains("others were served"), "{overtaken}");
    let deaf = reason(unfair(None));
    assert!(deaf.contains("wait for ever") || deaf.contains("others were served"), "{deaf}");
}

#[test]
fn a_failure_is_told_with_its_story() {
    let scenario = Scenario { faults: Faults::default(), ..rough(Protocol::IVY, 3, Pattern::Uniform) };
    let start = Instead(|protocol: Protocol, geometry| Mutant::new(protocol.start(geometry), geometry, Fault::NoWake));
    let (outcome, lines) = traced(scenario, &start, 40);
    assert!(!outcome.passed());
    let last = lines.last().unwrap();
    assert!(last.contains("for ever") && last.contains("trellis check replay 'ivy:"), "{last}");
    assert!(lines.iter().any(|line| line.contains("faults")), "{lines:?}");
}

#[test]
fn a_lost_node_ends_the_cluster_for_all_and_for_nobody_by_mistake() {
    let with = |is_wanted: fn(&Faults) -> bool| {
        (0..4000)
            .map(|number| seed(Protocol::DYNAMIC, number))
            .filter(move |&seed| is_wanted(&Scenario::from_seed(seed).faults))
    };
    let mut failed_waits = 0;
    for seed in with(|faults| faults.crash).take(40) {
        let outcome = simulate(seed);
        assert!(outcome.passed(), "{:?}", outcome.complaint());
        failed_waits += outcome.tally.failed_waits;
    }
    assert!(failed_waits > 20, "only {failed_waits} waits ended with an error");
    for seed in with(|faults| faults.pause && faults.partition && !faults.crash).take(20) {
        let outcome = simulate(seed);
        assert!(outcome.passed(), "{:?}", outcome.complaint());
        assert_eq!(outcome.tally.failed_waits, 0);
    }
}

#[test]
fn lost_datagrams_are_sent_again() {
    let lossy = (0..400).map(|number| seed(Protocol::IVY, number));
    let lossy = lossy.filter(|&seed| Scenario::from_seed(seed).faults.drop).take(15);
    let resent: u64 = lossy
        .map(|seed| {
            let outcome = simulate(seed);
            assert!(outcome.passed(), "{:?}", outcome.complaint());
            outcome.tally.resent
        })
        .sum();
    assert!(resent > 100, "{resent}");
}

#[test]
fn blocks_are_allocated_and_freed_at_any_node() {
    let scenario = Scenario { operations: 10_000, threads: 2, ..rough(Protocol::IVY, 4, Pattern::Blocks) };
    let outcome = run(scenario, &Real);
    assert!(outcome.passed(), "{:?}", outcome.complaint());
    let Tally { calls, given_up, messages, .. } = outcome.tally;
    assert!(calls > 50_000 && given_up > 1_000 && messages > 10_000, "{:?}", outcome.tally);
}

#[test]
fn costs_grow_as_they_must() {
    let options = Options {
        nodes: vec![2, 16, 1024],
        protocols: vec![Protocol::IVY, Protocol::DYNAMIC],
        workloads: vec![Workload::Uniform, Workload::Barrier, Workload::Lock],
        ..Options::default()
    };
    let rows = scale(&options, &mut |_| {}).unwrap();
    assert_eq!(rows.len(), 2 * 3 + 3 + 3);
    for row in &rows {
        match row.workload {
            Workload::Barrier => {
                // Each node but the root reports once that all nodes below it have arrived, and is told once.
                assert_eq!(row.messages_per_operation, 2.0 * f64::from(row.nodes - 1));
            }
            Workload::Lock => assert!(row.messages_per_operation <= 3.0, "{row:?}"),
            _ => assert!(row.messages_per_operation > 0.0 && row.operations >= 10_000, "{row:?}"),
        }
    }
    let slower = Options { latency_ns: 250_000, nodes: vec![16], ..options.clone() };
    let slower = scale(&slower, &mut |_| {}).unwrap();
    let time = |rows: &[trellis_check::scale::ScaleRow]| {
        let row = rows.iter().find(|row| row.nodes == 16 && row.protocol == Some(Protocol::IVY)).unwrap();
        row.simulated_microseconds_per_operation
    };
    assert!(time(&slower) > 4.0 * time(&rows), "{} and {}", time(&slower), time(&rows));
    assert!(scale(&Options { nodes: vec![1], ..options }, &mut |_| {}).is_err());
}

#[test]
fn a_fixed_threshold_that_is_good_for_writers_is_bad_for_nodes_that_pass_a_page_on() {
    let study = DelayStudy { nodes: vec![2], fixed_microseconds: vec![5_000], ..DelayStudy::default() };
    let rows = delay_study(&study).unwrap();
    let [plain, fixed, adaptive] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(fixed.threshold, Some(Threshold::Fixed(5_000)));
    assert!(fixed.stores_per_transfer >= adaptive.stores_per_transfer && fixed.turn_slowdown > 10.0, "{fixed:?}");
    assert!(adaptive.stores_per_transfer >= 100.0 * plain.stores_per_transfer, "{adaptive:?} and {plain:?}");
}

/// A cluster in which messages overtake each other, without other faults.
fn rough(protocol: Protocol, nodes: u16, pattern: Pattern) -> Scenario {
    let calm = Scenario::calm(protocol, nodes, pattern);
    Scenario {
        manners: Manners { late_faults: true, eager: true, wide: true, guesses: true, ..calm.manners },
        wires: Wires { spread_ns: 10_000, jitter_ns: 5_000, ..calm.wires },
        faults: Faults { reorder: true, ..Faults::default() },
        layout: Layout { chunks: 1, pages_of_chunk: 4 },
        ..calm
    }
}
