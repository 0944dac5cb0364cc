//! The length of waits on a network without faults: with every protocol no thread is overtaken without end, and
//! `delay` keeps its documented promises.

mod timed;

use timed::{LATENCY, Program, Timed};
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::delay::STAY_PER_TRANSFER_MAX;
use trellis_cluster_protocol::{PageIndex, PageRange};

const SECOND: u64 = 1_000_000_000;

/// While one thread waits, other nodes receive its page at most this often for each thread of theirs.
const OVERTAKEN_PER_THREAD_MAX: u64 = 4;

#[test]
fn nobody_is_overtaken_without_end() {
    for protocol in Protocol::all() {
        for nodes in [2, 5] {
            let page = 0;
            let mut programs = Vec::new();
            for node in 0..nodes {
                programs.push((node, Program::Store { page }));
                programs.push((node, Program::Load { page }));
                if protocol.can_lock() {
                    let range = PageRange::new(PageIndex(0), 1 + u32::from(node % 3)).expect("a run");
                    programs.push((node, Program::Lock { range, keeps: 5_000, pauses: 1_000 * u64::from(node) }));
                    programs.push((
                        node,
                        Program::Lock { range: PageRange::one(PageIndex(0)), keeps: 1_000, pauses: 1_000 },
                    ));
                }
            }
            let mut timed = Timed::new(&protocol.to_string(), nodes, &programs);
            timed.pause = 5_000;
            timed.run(SECOND / 5);
            let bound = OVERTAKEN_PER_THREAD_MAX * programs.len() as u64;
            for thread in &timed.threads {
                println!("{protocol} {nodes} {thread:?}");
                assert!(thread.done > 3, "{protocol}, {nodes} nodes: {thread:?} hardly goes on");
                assert!(thread.overtaken_max <= bound, "{protocol}, {nodes} nodes: {thread:?} is overtaken");
            }
        }
    }
}

/// Runs the program for so many nanoseconds: stores or turns, and how often the page moved.
fn measured(protocol: &str, nodes: u16, program: Program, time: u64) -> Timed {
    let programs: Vec<(u16, Program)> = (0..nodes).map(|node| (node, program)).collect();
    let mut timed = Timed::new(protocol, nodes, &programs);
    timed.run(time);
    timed
}

#[test]
fn two_writers_store_hundred_times_as_often_between_two_transfers() {
    for base in ["ivy", "dynamic(forward)", "dynamic(redirect)", "migrate"] {
        let per_transfer = |protocol: &str| {
            let run = measured(protocol, 2, Program::Store { page: 0 }, SECOND / 10);
            run.threads.iter().map(|thread| thread.done).sum::<u64>() / run.transfers(0)
        };
        let (without, with) = (per_transfer(base), per_transfer(&format!("delay({base})")));
        println!("{base}: {without} stores per transfer, {with} with delay");
        assert!(with >= 100 * without.max(1), "{base}: {without} stores per transfer, {with} with delay");
    }
}

#[test]
fn a_flag_that_is_loaded_until_it_changes_is_handed_on_as_fast_as_without_delay() {
    for base in ["ivy", "dynamic(forward)", "dynamic(redirect)"] {
        for nodes in [2, 4] {
            let turns = |protocol: &str| measured(protocol, nodes, Program::Flag { page: 0 }, SECOND / 10).turns;
            let (without, with) = (turns(base), turns(&format!("delay({base})")));
            println!("{base}, {nodes} nodes: {without} turns, {with} with delay");
            assert!(with * 10 >= without * 9, "{base}, {nodes} nodes: {without} turns, {with} with delay");
        }
    }
}

#[test]
fn the_worst_case_is_slower_by_no_more_than_the_bound() {
    for base in ["ivy", "dynamic(forward)", "dynamic(redirect)", "migrate"] {
        for nodes in [2, 4, 8] {
            let turns = |protocol: &str| measured(protocol, nodes, Program::Exchange { page: 0 }, SECOND / 10).turns;
            let (without, with) = (turns(base), turns(&format!("delay({base})")));
            println!("{base}, {nodes} nodes: {without} turns, {with} with delay");
            // A fault takes at most four messages until its grant; a page that is waited for arrives with one.
            let bound = (1 + 4 * STAY_PER_TRANSFER_MAX) * (with + 1);
            assert!(without <= bound, "{base}, {nodes} nodes: {without} turns, {with} with delay");
        }
    }
}

#[test]
fn a_request_waits_for_the_stays_before_it_and_no_longer() {
    for base in ["ivy", "dynamic(forward)", "migrate"] {
        for nodes in [2, 4, 8] {
            let waited = |protocol: &str| {
                let run = measured(protocol, nodes, Program::Store { page: 0 }, SECOND / 10);
                run.threads.iter().map(|thread| (thread.waited_max, thread.overtaken_max)).max().expect("threads")
            };
            let (without, _) = waited(base);
            let (with, overtaken) = waited(&format!("delay({base})"));
            // The time from fault to grant here, if no node delays the page.
            let transfer = 4 * LATENCY;
            let bound = without + (overtaken + 1) * STAY_PER_TRANSFER_MAX * transfer;
            println!("{base}, {nodes} nodes: {without} ns at most, {with} with delay, of {bound}");
            assert!(with <= bound, "{base}, {nodes} nodes: {without} ns at most, {with} with delay, not {bound}");
        }
    }
}
