//! Every protocol with every home, explored to the last state on clusters of moderate size.
//!
//! Larger ones: `cargo run -p trellis-check --release -- explore --nodes 3 --pages 2 --operations 2 --wishes wide`.

use trellis_check::explore::{Options, Report, Verdict, explore};
use trellis_check::pages::{Instance, Wishes};
use trellis_check::synchronisation::{Program, SyncInstance};
use trellis_protocol::NodeId;
use trellis_protocol::coherence::Protocol;
use trellis_protocol::homes::{Home, Interleaved, Manager};

fn passes(name: &str, report: &Report) {
    println!("{name}: {} states, {:.0} states/s", report.states, report.states_per_second());
    if let Verdict::Broken { what, trace } = &report.verdict {
        panic!("{name}: {what}\n{}", trace.join("\n"));
    }
    assert_eq!(report.verdict, Verdict::Passed, "{name}");
}

fn explore_all(options: Options, change: impl Fn(Protocol) -> Instance) {
    for protocol in Protocol::ALL {
        let instance = change(protocol);
        passes(&instance.describe(), &explore(&mut instance.model(), options, &mut |_| {}));
    }
}

#[test]
fn three_nodes_load_and_store_on_one_page() {
    explore_all(Options { must_end: true, ..Options::default() }, |p| Instance::new(p, 3, 1, 2));
}

#[test]
fn three_nodes_load_and_store_on_two_pages() {
    explore_all(Options::default(), |p| Instance { wishes: Wishes::Both, ..Instance::new(p, 3, 2, 1) });
}

#[test]
fn three_nodes_do_two_operations_each_on_two_pages() {
    explore_all(Options::default(), |p| Instance::new(p, 3, 2, 2));
}

#[test]
fn every_node_can_be_the_manager() {
    for manager in 0..3 {
        let home = Home::Manager(Manager(NodeId(manager)));
        explore_all(Options::default(), |p| Instance { home, ..Instance::new(p, 3, 1, 2) });
    }
}

#[test]
fn pages_can_have_different_managers() {
    explore_all(Options::default(), |p| Instance {
        home: Home::Interleaved(Interleaved),
        pages: vec![0, 512],
        wishes: Wishes::Wide,
        ..Instance::new(p, 2, 2, 1)
    });
}

#[test]
fn runs_of_pages_are_wished_for_and_announced() {
    explore_all(Options::default(), |p| Instance { wishes: Wishes::Both, prefetches: 1, ..Instance::new(p, 2, 2, 1) });
}

#[test]
fn a_run_of_three_pages_is_cut_where_it_must_be() {
    explore_all(Options::default(), |p| Instance { wishes: Wishes::Both, ..Instance::new(p, 2, 3, 2) });
}

#[test]
fn two_threads_of_a_node_share_its_pages() {
    explore_all(Options { must_end: true, ..Options::default() }, |p| Instance {
        threads: 2,
        late_faults: true,
        ..Instance::new(p, 2, 1, 1)
    });
}

#[test]
fn faults_come_late_and_threads_are_declared_late() {
    explore_all(Options { must_end: true, ..Options::default() }, |p| Instance {
        late_faults: true,
        impatience: 1,
        eager: true,
        ..Instance::new(p, 2, 1, 2)
    });
}

#[test]
fn the_same_instance_gives_the_same_states() {
    let run = || explore(&mut Instance::new(Protocol::Ivy, 2, 2, 2).model(), Options::default(), &mut |_| {});
    let (first, second) = (run(), run());
    assert_eq!((first.states, first.transitions, first.depth), (second.states, second.transitions, second.depth));
    assert!(first.states > 10_000, "only {} states", first.states);
}

fn sync(program: Program, nodes: u16, threads: u8, rounds: u8, objects: u8) {
    let instance = SyncInstance { program, nodes, threads, rounds, objects };
    let options = Options { must_end: true, ..Options::default() };
    passes(&instance.describe(), &explore(&mut instance.model(), options, &mut |_| {}));
}

#[test]
fn locks_exclude_and_are_fair() {
    sync(Program::Locks, 3, 1, 2, 1);
    sync(Program::Locks, 3, 2, 1, 1);
    sync(Program::Locks, 2, 1, 2, 2);
}

#[test]
fn a_lock_that_nobody_waits_for_any_more_is_handed_on() {
    sync(Program::ImpatientLocks, 3, 1, 2, 1);
}

#[test]
fn barriers_hold_everybody_back() {
    sync(Program::Barrier, 3, 1, 3, 1);
    sync(Program::Barrier, 6, 1, 2, 1);
}

#[test]
fn additions_are_linearizable() {
    sync(Program::Words, 3, 1, 2, 1);
    sync(Program::Words, 2, 2, 1, 2);
}
