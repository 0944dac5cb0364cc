//! Leases of remote memory: small clusters in every order, and random ones; broken rules are noticed.
//!
//! Larger: `cargo run -p trellis-check --release -- explore --protocol lease`, `… -- swarm --protocol lease`, `… --
//! mutants --protocol lease`.

use trellis_check::explore::{Options, Report, Verdict, explore};
use trellis_check::leases::explore::Orders;
use trellis_check::leases::faults::FAULTS;
use trellis_check::leases::{Fault, Setup, shapes, swarm};

/// Small clusters with more than some ten thousand states, which only the command explores.
const LEFT_TO_THE_COMMAND: [&str; 6] = ["expiry", "ended", "restart", "failover", "split-restart", "merge-silence"];

fn passes(setup: Setup) -> Report {
    let name = setup.describe();
    let report = explore(&mut Orders::new(setup), Options::default(), &mut |_| {});
    println!("{name}: {} states, {:.0} states/s", report.states, report.states_per_second());
    match &report.verdict {
        Verdict::Passed => report,
        Verdict::Broken { what, trace } => panic!("{name}: {what}\n{}", trace.join("\n")),
        Verdict::Endless { .. } | Verdict::TooLarge => panic!("{name}: {:?}", report.verdict),
    }
}

fn small(name: &str) -> Setup {
    shapes::small().into_iter().find(|setup| setup.name == name).expect("a small cluster")
}

#[test]
fn small_clusters_are_right_in_every_order() {
    let (mut explored, mut states) = (0, 0);
    for setup in shapes::small() {
        if !LEFT_TO_THE_COMMAND.contains(&setup.name.as_str()) {
            states += passes(setup).states;
            explored += 1;
        }
    }
    assert!(explored >= 10 && states > 50_000, "only {states} states of {explored} clusters");
}

#[test]
fn the_same_setup_gives_the_same_states() {
    let [one, other] = [(); 2].map(|()| passes(small("staged")));
    assert_eq!((one.states, one.transitions, one.depth), (other.states, other.transitions, other.depth));
}

#[test]
fn every_small_cluster_has_a_name_of_its_own() {
    let mut names: Vec<String> = shapes::all().into_iter().map(|setup| setup.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
}

#[test]
fn random_clusters_are_right() {
    let (mut commits, mut splits, mut merges) = (0, 0, 0);
    for seed in 0..200 {
        let outcome = swarm::run(seed, Fault::None, false);
        assert_eq!(outcome.complaint(), None);
        commits += outcome.commits;
        splits += outcome.parts.0;
        merges += outcome.parts.1;
    }
    assert!(commits > 1_000, "clusters in which hardly anything is committed ({commits}) say little");
    assert!(splits > 50 && merges > 15, "only {splits} parts were split off, and {merges} merged");
}

#[test]
fn a_seed_is_one_run() {
    let [one, other] = [0, 0].map(|_| swarm::run(11, Fault::None, true));
    assert_eq!((one.steps, &one.story), (other.steps, &other.story));
    assert!(one.story.len() > 10, "a story has lines");
    assert_ne!(swarm::run(12, Fault::None, true).story, one.story);
}

#[test]
fn a_complaint_names_its_seed() {
    let broken = (0..50).map(|seed| swarm::run(seed, Fault::GrantsOwned, false));
    let complaint = broken.filter_map(|outcome| outcome.complaint()).next().expect("some seed shows it");
    assert!(complaint.contains("trellis check replay 'lease:"), "{complaint}");
}

/// The bug of the paper's design: a client that receives a redirected update request gives its lease away.
#[test]
fn the_stolen_lease_is_told_as_a_story() {
    let setup = Setup { fault: Fault::Steals, ..small("steal") };
    let report = explore(&mut Orders::new(setup), Options::default(), &mut |_| {});
    let Verdict::Broken { what, trace } = report.verdict else { panic!("nobody noticed the thief") };
    assert!(what.contains("own page 0 at the same instant"), "{what}");
    assert!(trace.iter().any(|line| line.contains("where the switch sent it")), "{}", trace.join("\n"));
}

/// The command tries all mutants, each until it is noticed.
#[test]
fn most_mutants_are_noticed_by_a_few_random_clusters() {
    const SEEDS: u64 = 40;
    const NOTICED_MIN: usize = 20;
    let notices = |fault: Fault| (0..SEEDS).find(|&seed| swarm::run(seed, fault, false).problem.is_some());
    let noticed: Vec<(&str, u64)> =
        FAULTS.iter().filter_map(|broken| Some((broken.name, notices(broken.fault)?))).collect();
    println!("{} of {}: {noticed:?}", noticed.len(), FAULTS.len());
    assert!(noticed.len() >= NOTICED_MIN, "only {noticed:?}");
}

#[test]
fn small_clusters_notice_what_they_are_made_for() {
    let cases = [
        (Fault::Steals, "steal"),
        (Fault::AnswersCommitting, "redirect"),
        (Fault::ShowsUncommitted, "redirect"),
        (Fault::ForgetsReaders, "copies"),
        (Fault::RecallForgotten, "copies"),
        (Fault::ReaderCountsFromReceipt, "copy-expiry"),
        (Fault::HandsOverNoLeases, "move-owned"),
        (Fault::RepeatKeepsLease, "restart-repeat"),
        (Fault::SplitForgetsLeases, "split-owned"),
        (Fault::SplitForgetsStaged, "split-staged"),
        (Fault::MergeForgetsLeases, "merge-owned"),
        (Fault::MergeForgetsStaged, "merge-staged"),
        (Fault::MergeForgetsHomeLease, "merge-silence"),
    ];
    for (fault, name) in cases {
        let report = explore(&mut Orders::new(Setup { fault, ..small(name) }), Options::default(), &mut |_| {});
        assert!(matches!(report.verdict, Verdict::Broken { .. }), "{name} does not notice {fault:?}");
    }
}
