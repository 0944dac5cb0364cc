//! The length of waits on a network without faults: with every protocol no thread is overtaken without end, and
//! `delay` keeps its documented promises.

use trellis_check::scale::{DelayRow, DelayStudy, delay_study};
use trellis_check::simulate::{Layout, Pattern, Real, Scenario, Verdict, run};
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::Threshold;
use trellis_cluster_protocol::coherence::delay::STAY_PER_TRANSFER_MAX;

#[test]
fn nobody_is_overtaken_without_end() {
    for protocol in Protocol::all() {
        for (nodes, pattern) in
            [2, 5].into_iter().flat_map(|nodes| [(nodes, Pattern::Hot), (nodes, Pattern::RangeLocks)])
        {
            let threads = 4;
            let calm = Scenario::calm(protocol, nodes, pattern);
            let layout = Layout { chunks: 1, pages_of_chunk: 3 };
            let scenario = Scenario { layout, threads, operations: 200, ..calm };
            let outcome = run(scenario, &Real);
            assert_eq!(outcome.verdict, Verdict::Passed, "{protocol}, {nodes} nodes, {pattern:?}");
            // While one thread waits, its page goes to every other thread once at most.
            let (overtaken, bound) = (outcome.tally.overtaken_max, u32::from(nodes) * u32::from(threads));
            println!("{protocol}, {nodes} nodes, {pattern:?}: overtaken {overtaken} times, at most {bound} may");
            assert!(overtaken <= bound, "{protocol}, {nodes} nodes, {pattern:?}: overtaken {overtaken} times");
        }
    }
}

/// Calls `check` for each base protocol and number of nodes, with the rows without the layer and with its own
/// threshold.
fn with_and_without_delay(bases: &[&str], nodes: &[u16], check: impl Fn(&DelayStudy, &DelayRow, &DelayRow)) {
    for base in bases {
        let base = base.parse().expect("a protocol");
        let study = DelayStudy { base, nodes: nodes.to_vec(), fixed_microseconds: Vec::new(), ..DelayStudy::default() };
        let rows = delay_study(&study).expect("no rule is broken");
        for rows in rows.chunks(2) {
            let [without, with] = rows else { panic!("{rows:?}") };
            assert_eq!([without.threshold, with.threshold], [None, Some(Threshold::Adaptive)]);
            println!("{base}: {without:?} and {with:?}");
            check(&study, without, with);
        }
    }
}

const COPIES: [&str; 3] = ["ivy", "dynamic(forward)", "dynamic(redirect)"];
const ALL: [&str; 4] = ["ivy", "dynamic(forward)", "dynamic(redirect)", "migrate"];

#[test]
fn two_writers_store_hundred_times_as_often_between_two_transfers() {
    let is_times = |study: &DelayStudy, without: &DelayRow, with: &DelayRow, least: f64| {
        let times = with.stores_per_transfer / without.stores_per_transfer;
        assert!(times >= least, "{}: {times} times as often", study.base);
    };
    with_and_without_delay(&COPIES, &[2], |study, without, with| is_times(study, without, with, 100.0));
    // The manager passes requests on, so a page stays longer without the layer, too.
    with_and_without_delay(&["migrate"], &[2], |study, without, with| is_times(study, without, with, 50.0));
}

#[test]
fn a_flag_that_is_loaded_until_it_changes_is_handed_on_as_fast_as_without_delay() {
    with_and_without_delay(&COPIES, &[2, 4], |study, _, with| {
        assert!(with.turn_slowdown < 1.1, "{}: {with:?}", study.base)
    });
}

#[test]
fn the_worst_case_is_slower_by_no_more_than_the_bound() {
    with_and_without_delay(&ALL, &[2, 4, 8], |study, _, with| {
        let bound = (1 + STAY_PER_TRANSFER_MAX) as f64;
        assert!(with.exchange_slowdown <= bound, "{}: {with:?}", study.base);
    });
}

#[test]
fn a_request_waits_for_the_stays_before_it_and_no_longer() {
    with_and_without_delay(&ALL, &[2, 4, 8], |study, without, with| {
        // The time from fault to grant here, if no node delays the page.
        let transfer_microseconds = 4.0 * study.latency_ns as f64 / 1e3;
        let stays = (u64::from(with.overtaken_max) + 1) * STAY_PER_TRANSFER_MAX;
        let bound = without.longest_wait_microseconds + stays as f64 * transfer_microseconds;
        assert!(with.longest_wait_microseconds <= bound, "{}: {with:?}, and {without:?}", study.base);
    });
}
