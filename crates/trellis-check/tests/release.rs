//! Release consistency: small clusters in every order, random ones, and litmus tests; broken rules are noticed.
//!
//! Larger: `cargo run -p trellis-check --release -- explore --protocol release --home all`, `… -- swarm --protocol
//! release`, `… -- litmus --simulated --protocol release`.

use trellis_check::explore::{Options, Report, Verdict, explore};
use trellis_check::litmus::LitmusOptions;
use trellis_check::mutants::{noticed, release_mutants_of, try_release};
use trellis_check::release::explore::Orders;
use trellis_check::release::scripts::{Program, Size, homes, setup, small};
use trellis_check::release::{Fault, Setup, Troubles, litmus, shapes, swarm};
use trellis_cluster_protocol::coherence::{Content, Message, Protocol};
use trellis_cluster_protocol::{PageIndex, PageRange};

const MUST_END: Options = Options { states_max: u32::MAX as u64 - 1, must_end: true };
const PER_PROTOCOL_MIN: usize = 25;

fn passes(setup: Setup, program: &str) -> Report {
    let name = format!("{} {program}", setup.describe());
    let report = explore(&mut Orders::new(setup), MUST_END, &mut |_| {});
    println!("{name}: {} states, {:.0} states/s", report.states, report.states_per_second());
    match &report.verdict {
        Verdict::Passed => report,
        Verdict::Broken { what, trace } => panic!("{name}: {what}\n{}", trace.join("\n")),
        Verdict::Endless { trace } => panic!("{name}: this goes on for ever\n{}", trace.join("\n")),
        Verdict::TooLarge => panic!("{name}: more states than the bound"),
    }
}

/// `cargo xtask ci` explores larger clusters, of millions of states, with an optimised build.
#[test]
fn small_clusters_are_right_in_every_order() {
    for protocol in Protocol::all_release_consistent() {
        small(protocol).into_iter().for_each(|setup| drop(passes(setup, "small")));
    }
}

#[test]
fn what_a_releases_to_b_and_b_to_c_is_seen_by_c() {
    for protocol in Protocol::all_release_consistent() {
        for home in homes() {
            for program in [Program::Chain, Program::Flags] {
                let size = Size { nodes: 3, pages: 1, intervals: 1 };
                passes(setup(protocol, program, size, home, true), program.name());
            }
        }
    }
}

#[test]
fn bytes_may_be_read_when_they_arrive() {
    for protocol in Protocol::all_release_consistent() {
        let size = Size { nodes: 2, pages: 1, intervals: 2 };
        for program in [Program::Locks, Program::Races, Program::AtHome] {
            for marks in [false, true] {
                let setup = setup(protocol, program, size, homes()[0], marks);
                passes(Setup { late_bytes: true, ..setup }, program.name());
            }
        }
    }
}

#[test]
fn a_change_is_made_by_all_or_by_none() {
    let protocol = Protocol::all_release_consistent()[0];
    for (program, intervals) in [(Program::Agree, 1), (Program::Differ, 2)] {
        let setup = setup(protocol, program, Size { nodes: 2, pages: 1, intervals }, homes()[0], false);
        let states = |give_ups, objections, may_disagree| {
            let troubles = Troubles { give_ups, objections };
            passes(Setup { troubles, may_disagree, ..setup.clone() }, program.name()).states
        };
        let (smooth, hindered, all) = (states(0, 0, false), states(1, 1, false), states(1, 1, true));
        assert!(
            smooth < hindered && hindered < all,
            "what goes wrong leads to more states: {smooth}, {hindered}, {all}"
        );
    }
}

#[test]
fn the_same_setup_gives_the_same_states() {
    let size = Size { nodes: 2, pages: 1, intervals: 2 };
    let protocol = Protocol::all_release_consistent()[1];
    let run = || passes(setup(protocol, Program::Barriers, size, homes()[0], false), "twice");
    let (first, second) = (run(), run());
    assert_eq!((first.states, first.transitions, first.depth), (second.states, second.transitions, second.depth));
    assert!(first.states > 500, "only {} states", first.states);
}

#[test]
fn random_clusters_are_right() {
    for protocol in Protocol::all_release_consistent() {
        for seed in 0..500 {
            let outcome = swarm::run(protocol, seed, Fault::None, false);
            assert_eq!(outcome.complaint(), None);
        }
    }
}

#[test]
fn a_seed_is_one_run() {
    let protocol = Protocol::all_release_consistent()[0];
    let [one, other] = [0, 0].map(|_| swarm::run(protocol, 11, Fault::None, true));
    assert_eq!((one.steps, &one.story), (other.steps, &other.story));
    assert!(one.story.len() > 10, "a story has lines");
    assert_ne!(swarm::run(protocol, 12, Fault::None, true).story, one.story);
}

#[test]
fn a_mutant_of_each_protocol_is_noticed() {
    let protocols = Protocol::all_release_consistent();
    for (turn, &protocol) in protocols.iter().enumerate() {
        let all = release_mutants_of(protocol);
        assert!(all.len() >= PER_PROTOCOL_MIN, "{protocol} has only {} mutants", all.len());
        // A different one of each protocol; the command tries all on all.
        let report = try_release(protocol, all[turn], Options::default());
        println!("{protocol}: {:26} {:>8} states: {:?}", all[turn].name, report.states, noticed(&report));
        assert!(noticed(&report).is_some(), "nobody noticed {}", all[turn].name);
    }
}

fn litmus_of(names: &[&str], runs: u64) -> LitmusOptions {
    let mut options = LitmusOptions::new(Protocol::all_release_consistent(), runs);
    options.programs = shapes::shapes();
    if !names.is_empty() {
        options.programs.retain(|program| names.contains(&program.name.as_str()));
    }
    options
}

#[test]
fn no_litmus_test_shows_what_is_forbidden() {
    let report = litmus::simulate(&litmus_of(&[], 60_000), &mut |_| {}).expect("the tests are small");
    assert!(report.passed() && report.completed == 60_000, "{}", report.to_json(false));
    let seen: usize = report.shapes.iter().map(|shape| shape.outcomes_seen()).sum();
    let allowed: usize = report.shapes.iter().map(|shape| shape.seen.len()).sum();
    println!("{seen} of {allowed} allowed outcomes seen");
    assert!(seen * 2 > allowed, "schedules that show only {seen} of {allowed} outcomes try too little");
}

#[test]
fn litmus_tests_notice_what_is_broken() {
    let cases = [
        (Fault::NothingApplied, "MP+flags"),
        (Fault::NothingNoted, "HANDED-ON+locks"),
        (Fault::OwnOnly, "HANDED-ON+flags"),
        (Fault::ForgetsDiff, "SB+barrier"),
        (Fault::NoTwin, "NEIGHBOURS+barrier"),
    ];
    for (fault, name) in cases {
        let options = litmus_of(&[name], 4_000);
        let broken = litmus::simulate_broken(&options, fault, &mut |_| {}).expect("the test is small");
        assert!(!broken.passed(), "{name} does not notice {fault:?}");
        let real = litmus::simulate(&options, &mut |_| {}).expect("the test is small");
        assert!(real.passed(), "{name}: {}", real.to_json(false));
    }
}

#[test]
fn a_failing_run_can_be_told() {
    let lines = litmus::tell(&litmus_of(&["MP+flags"], 3)).expect("the test is small");
    assert!(lines.iter().any(|line| line.contains("goes on")), "{}", lines.join("\n"));
    assert!(lines.last().is_some_and(|line| line.starts_with("=> allowed")), "{:?}", lines.last());
}

#[test]
fn the_models_are_not_mixed() {
    let mut options = litmus_of(&["MP"], 8);
    options.protocols = vec![Protocol::IVY];
    let refused = litmus::simulate(&options, &mut |_| {}).expect_err("ivy keeps sequential consistency");
    assert!(refused.starts_with("ivy keeps sequential consistency"), "{refused}");
    let mut options = litmus_of(&["MP+flags"], 8);
    options.protocols = vec![Protocol::IVY];
    let refused = trellis_check::litmus::simulate::simulate(&options, &mut |_| {}).expect_err("it calls the library");
    assert!(refused.starts_with("MP+flags: locks, barriers and flags"), "{refused}");
}

#[test]
fn a_copy_of_untouched_pages_brings_no_bytes() {
    let (demand, range) = (PageIndex(0), PageRange::one(PageIndex(0)));
    let message = Message::Copy { demand, range, content: Content::Zero, stamp: 0, home: false };
    assert_eq!(message.bytes(), None);
}
