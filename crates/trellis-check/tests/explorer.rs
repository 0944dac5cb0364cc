//! Every protocol with every home, explored completely on clusters of moderate size.
//!
//! Larger ones: `cargo run -p trellis-check --release -- explore --protocol all --nodes 3 --pages 2 --operations 2`.

use trellis_check::ends::{EndFault, EndInstance};
use trellis_check::explore::{Model, Options, Report, Verdict, explore};
use trellis_check::heap::HeapFault;
use trellis_check::members::MemberFault;
use trellis_check::mutants::{heap_instances, member_instances};
use trellis_check::pages::{Instance, Locks, Requests};
use trellis_check::synchronisation::{Program, SyncInstance};
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{Home, Interleaved, Manager};

const MUST_END: Options = Options { states_max: u32::MAX as u64 - 1, must_end: true };

fn passes(name: &str, report: &Report) {
    println!("{name}: {} states, {:.0} states/s", report.states, report.states_per_second());
    match &report.verdict {
        Verdict::Passed => {}
        Verdict::Broken { what, trace } => panic!("{name}: {what}\n{}", trace.join("\n")),
        Verdict::Endless { trace } => panic!("{name}: threads can wait for ever\n{}", trace.join("\n")),
        Verdict::TooLarge => panic!("{name}: more states than the bound"),
    }
}

fn passes_model(name: &str, model: &mut impl Model, options: Options) {
    passes(name, &explore(model, options, &mut |_| {}));
}

fn explore_these(protocols: &[Protocol], options: Options, change: impl Fn(Protocol) -> Instance) {
    for &protocol in protocols {
        let instance = change(protocol);
        passes_model(&instance.describe(), &mut instance.model(), options);
    }
}

/// The protocols without layers.
fn bases() -> Vec<Protocol> {
    Protocol::all().into_iter().filter(|protocol| protocol.layers().next().is_none()).collect()
}

/// The protocols that can lock, and a migrating page within a lock.
fn locking() -> Vec<Protocol> {
    let mut all: Vec<Protocol> = Protocol::all().into_iter().filter(|protocol| protocol.can_lock()).collect();
    all.push("lock(migrate)".parse().expect("a protocol"));
    all
}

#[test]
fn three_nodes_load_and_store_on_one_page() {
    explore_these(&Protocol::all(), MUST_END, |p| {
        let instance = Instance::new(p, 3, 1, 2);
        Instance { overtaken_max: Some(instance.overtaken_bound()), ..instance }
    });
}

#[test]
fn four_nodes_load_and_store_on_one_page() {
    explore_these(&bases(), MUST_END, |p| {
        let instance = Instance::new(p, 4, 1, 1);
        Instance { overtaken_max: Some(instance.overtaken_bound()), ..instance }
    });
}

#[test]
fn three_nodes_load_and_store_on_two_pages() {
    explore_these(&Protocol::all(), Options::default(), |p| Instance {
        requests: Requests::Both,
        ..Instance::new(p, 3, 2, 1)
    });
}

#[test]
fn every_node_can_be_the_manager() {
    for manager in 1..3 {
        let home = Home::Manager(Manager(NodeId(manager)));
        explore_these(&bases(), Options::default(), |p| Instance { home, ..Instance::new(p, 3, 1, 2) });
    }
}

#[test]
fn pages_can_have_different_managers() {
    explore_these(&Protocol::all(), Options::default(), |p| Instance {
        home: Home::Interleaved(Interleaved),
        pages: vec![0, 512],
        requests: Requests::Wide,
        ..Instance::new(p, 2, 2, 1)
    });
}

#[test]
fn runs_of_pages_are_requested_and_announced() {
    explore_these(&bases(), Options::default(), |p| Instance {
        requests: Requests::Both,
        prefetches: 1,
        ..Instance::new(p, 2, 2, 1)
    });
}

#[test]
fn a_run_of_three_pages_is_cut_where_it_must_be() {
    explore_these(&bases(), Options::default(), |p| Instance { requests: Requests::Both, ..Instance::new(p, 2, 3, 1) });
}

#[test]
fn two_threads_of_a_node_share_its_pages() {
    explore_these(&Protocol::all(), MUST_END, |p| Instance {
        threads: 2,
        late_faults: true,
        ..Instance::new(p, 2, 1, 1)
    });
}

#[test]
fn faults_come_late_and_threads_are_declared_late() {
    explore_these(&Protocol::all(), MUST_END, |p| Instance {
        late_faults: true,
        time_outs: 1,
        eager: true,
        ..Instance::new(p, 2, 1, 2)
    });
}

#[test]
fn nobody_tells_when_a_thread_runs_on() {
    explore_these(&Protocol::all(), MUST_END, |p| Instance { silent: true, ..Instance::new(p, 3, 1, 2) });
    explore_these(&Protocol::all(), MUST_END, |p| Instance {
        silent: true,
        late_faults: true,
        time_outs: 1,
        ..Instance::new(p, 2, 1, 2)
    });
}

#[test]
fn a_page_that_always_stays_for_a_while_is_given_in_the_end() {
    let fixed = ["delay(ivy, 500us)", "delay(dynamic(redirect), 500us)", "delay(migrate, 500us)"];
    let fixed = fixed.map(|name| name.parse().expect("a protocol"));
    explore_these(&fixed, MUST_END, |p| Instance::new(p, 3, 1, 2));
    // A node that leaves makes room for a store while a request waits.
    explore_these(&fixed, MUST_END, |p| Instance { leaver: true, ..Instance::new(p, 3, 1, 2) });
}

#[test]
fn locked_pages_stay_and_everybody_gets_a_turn() {
    explore_these(&locking(), MUST_END, |p| {
        let instance = Instance { locks: Locks::Kept, ..Instance::new(p, 3, 1, 1) };
        Instance { overtaken_max: Some(instance.overtaken_bound()), ..instance }
    });
}

#[test]
fn runs_of_pages_are_locked_without_waiting_in_a_circle() {
    explore_these(&locking(), MUST_END, |p| Instance {
        locks: Locks::Kept,
        requests: Requests::Both,
        spins: 1,
        ..Instance::new(p, 2, 2, 1)
    });
}

#[test]
fn locks_end_with_their_time() {
    explore_these(&locking(), MUST_END, |p| Instance { locks: Locks::Timed, ..Instance::new(p, 2, 1, 2) });
}

#[test]
fn two_threads_of_a_node_lock_a_page_in_turn_or_give_up() {
    for locks in [Locks::Kept, Locks::GivenUp] {
        explore_these(&locking(), MUST_END, |p| Instance { locks, threads: 2, ..Instance::new(p, 2, 1, 1) });
    }
}

#[test]
fn a_node_leaves_while_others_go_on() {
    explore_these(&bases(), MUST_END, |p| Instance { leaver: true, ..Instance::new(p, 3, 1, 2) });
    explore_these(&bases(), MUST_END, |p| Instance { leaver: true, ..Instance::new(p, 4, 1, 1) });
    explore_these(&bases(), MUST_END, |p| Instance {
        leaver: true,
        requests: Requests::Both,
        ..Instance::new(p, 3, 2, 1)
    });
}

#[test]
fn a_node_leaves_whose_pages_are_locked_and_delayed() {
    explore_these(&Protocol::all(), MUST_END, |p| Instance { leaver: true, ..Instance::new(p, 3, 1, 1) });
    explore_these(&locking(), MUST_END, |p| Instance { leaver: true, locks: Locks::Kept, ..Instance::new(p, 3, 1, 1) });
}

#[test]
fn the_protocol_of_pages_is_changed() {
    for (from, to) in bases().into_iter().flat_map(|from| bases().into_iter().map(move |to| (from, to))) {
        let instance = Instance { change: Some(to), ..Instance::new(from, 3, 1, 1) };
        passes_model(&instance.describe(), &mut instance.model_of_ranges(), MUST_END);
        let instance = Instance { change: Some(to), requests: Requests::Wide, ..Instance::new(from, 2, 2, 1) };
        passes_model(&instance.describe(), &mut instance.model_of_ranges(), MUST_END);
    }
}

#[test]
fn the_protocol_of_pages_is_changed_round_layers() {
    for from in Protocol::all() {
        for to in ["ivy", "delay(lock(dynamic(forward)))"] {
            let change = Some(to.parse().expect("a protocol"));
            let instance = Instance { change, ..Instance::new(from, 2, 1, 2) };
            passes_model(&instance.describe(), &mut instance.model_of_ranges(), MUST_END);
        }
    }
}

#[test]
fn the_same_instance_gives_the_same_states() {
    let run = || explore(&mut Instance::new(Protocol::IVY, 2, 2, 2).model(), Options::default(), &mut |_| {});
    let (first, second) = (run(), run());
    assert_eq!((first.states, first.transitions, first.depth), (second.states, second.transitions, second.depth));
    assert!(first.states > 5_000, "only {} states", first.states);
}

#[test]
fn instances_that_differ_are_described_differently() {
    let plain = Instance::new(Protocol::IVY, 2, 1, 1);
    let locked = || Instance::new("lock(ivy)".parse().expect("a protocol"), 2, 1, 1);
    let different = [
        Instance { requests: Requests::Wide, ..plain.clone() },
        Instance { prefetches: 1, ..plain.clone() },
        Instance { late_faults: true, ..plain.clone() },
        Instance { silent: true, ..plain.clone() },
        Instance { time_outs: 1, ..plain.clone() },
        Instance { eager: true, ..plain.clone() },
        Instance { leaver: true, ..plain.clone() },
        Instance { change: Some(Protocol::DYNAMIC), ..plain.clone() },
        Instance { overtaken_max: Some(3), ..plain.clone() },
        plain,
        locked(),
        Instance { spins: 1, ..locked() },
        Instance { locks: Locks::Kept, ..locked() },
        Instance { locks: Locks::Timed, ..locked() },
        Instance { locks: Locks::GivenUp, ..locked() },
    ];
    let mut names: Vec<String> = different.iter().map(Instance::describe).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), different.len(), "{names:?}");
}

#[test]
fn nodes_join_and_leave() {
    for instance in member_instances(MemberFault::None) {
        passes_model(&instance.describe(), &mut instance.model(), MUST_END);
    }
}

#[test]
fn programs_with_threads_at_several_nodes_end() {
    for instance in EndInstance::all(EndFault::None) {
        passes_model(&instance.describe(), &mut instance.model(), MUST_END);
    }
}

#[test]
fn blocks_are_allocated_and_freed() {
    for instance in heap_instances(HeapFault::None) {
        passes_model(&instance.describe(), &mut instance.model(), MUST_END);
    }
}

fn sync(program: Program, nodes: u16, threads: u8, rounds: u8, objects: u8) {
    let instance = SyncInstance { program, nodes, threads, rounds, objects, time_outs: 0 };
    passes_model(&instance.describe(), &mut instance.model(), MUST_END);
}

#[test]
fn locks_exclude_and_are_fair() {
    sync(Program::Locks, 3, 1, 2, 1);
    sync(Program::Locks, 3, 2, 1, 1);
    sync(Program::Locks, 2, 1, 2, 2);
}

#[test]
fn a_lock_that_nobody_waits_for_any_more_is_handed_on() {
    sync(Program::AbandonedLocks, 3, 1, 2, 1);
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

fn with_time_outs(program: Program, nodes: u16, threads: u8, rounds: u8, time_outs: u8) {
    let instance = SyncInstance { program, nodes, threads, rounds, objects: 1, time_outs };
    passes_model(&instance.describe(), &mut instance.model(), MUST_END);
}

#[test]
fn who_tries_a_lock_is_told_and_keeps_nobody_waiting() {
    sync(Program::TriedLocks, 3, 1, 2, 1);
    sync(Program::TriedLocks, 2, 2, 1, 1);
    with_time_outs(Program::TriedLocks, 3, 1, 1, 2);
}

#[test]
fn barriers_bring_what_everybody_brought() {
    sync(Program::Reduce, 3, 1, 3, 1);
    sync(Program::Reduce, 6, 1, 1, 1);
}

#[test]
fn who_gave_up_in_a_barrier_has_come() {
    with_time_outs(Program::Barrier, 3, 1, 2, 2);
    with_time_outs(Program::Reduce, 3, 1, 2, 2);
    with_time_outs(Program::CountingBarrier, 3, 1, 2, 2);
    with_time_outs(Program::CountingBarrier, 2, 2, 1, 2);
}

#[test]
fn writers_are_alone_and_readers_together() {
    sync(Program::ReadWriteLocks, 3, 1, 1, 1);
    sync(Program::ReadWriteLocks, 2, 1, 2, 1);
    sync(Program::ReadWriteLocks, 2, 1, 1, 2);
    with_time_outs(Program::ReadWriteLocks, 3, 1, 1, 2);
}

#[test]
fn semaphores_let_in_as_many_as_were_posted() {
    sync(Program::Semaphores, 3, 1, 2, 1);
    with_time_outs(Program::Semaphores, 3, 1, 1, 2);
}

#[test]
fn events_wake_everybody_and_only_when_set() {
    sync(Program::Events, 3, 1, 2, 1);
    with_time_outs(Program::Events, 3, 1, 2, 2);
}

#[test]
fn what_is_done_once_is_done_once() {
    sync(Program::Onces, 3, 1, 2, 1);
    with_time_outs(Program::Onces, 3, 1, 2, 2);
}

#[test]
fn conditions_lose_no_signal_and_wake_nobody_without_one() {
    sync(Program::Conditions, 3, 1, 2, 1);
    with_time_outs(Program::Conditions, 3, 1, 2, 1);
    with_time_outs(Program::Conditions, 4, 1, 1, 2);
}

#[test]
fn counting_barriers_hold_everybody_back() {
    sync(Program::CountingBarrier, 3, 1, 3, 1);
    sync(Program::CountingBarrier, 2, 2, 2, 1);
}
