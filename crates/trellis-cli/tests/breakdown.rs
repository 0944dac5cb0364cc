//! The execution-time breakdown of real nodes, from outside: who waits for what sees it there.

mod support;

use std::time::Duration;

use serde_json::Value;
use support::{catcher_works, number, start_command, start_nodes};
use trellis_testing::Folder;

const SHARES: [&str; 6] = ["computation", "page_fetch", "lock", "barrier", "handler", "overhead"];

/// Not a test: the role of this executable when the command starts it as a node.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}

/// The catchers that work here; with each, a fault is waited for in another place.
fn catchers(test: &str) -> Vec<&'static str> {
    ["signal", "handler", "mprotect"].into_iter().filter(|catcher| catcher_works(test, catcher)).collect()
}

/// The counters of a node in the phase "waiting", from `trellis report --json`.
fn waiting_of(role: &str, catcher: &str, node: usize) -> Value {
    let folder = Folder::new();
    let record = folder.file("record").to_string_lossy().into_owned();
    let catch = format!("catch={catcher}");
    let set = ["--set", &catch, "--set", "coherence=lock(dynamic)"];
    let run = start_nodes(2, role, &[&["--record", &record, "--stats"], &set[..]].concat()).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stderr.contains("Computation") && run.stderr.contains("Page Fetch"), "{run:?}");
    let report = start_command(&["report", "--json", &record]).finish();
    let found: Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert!(catcher == "auto" || found["catch"] == catcher, "{catcher}: {found}");
    let whole = &found["node"][node]["breakdown_seconds"];
    SHARES.iter().for_each(|share| assert!(number(whole, share) >= 0.0, "{found}"));
    let phases = found["node"][node]["phases"].as_array().expect("phases");
    phases.iter().find(|phase| phase["name"] == "waiting").expect("the phase")["counters"].clone()
}

/// Checks that a node waited at least as long as the other one was away.
#[track_caller]
fn assert_waited(counters: &Value, part: &str) {
    assert_waited_at_least(support::node::AWAY, counters, part);
}

#[track_caller]
fn assert_waited_at_least(least: Duration, counters: &Value, part: &str) {
    let away = least.as_nanos() as f64;
    let (waited, time) = (number(counters, part), number(counters, "program_ns"));
    assert!((away..=time).contains(&waited), "{part} is the time of the wait in {counters}");
}

#[test]
fn who_waits_in_a_barrier_sees_it_in_the_breakdown() {
    for catcher in catchers("who_waits_in_a_barrier_sees_it_in_the_breakdown") {
        assert_waited(&waiting_of("late", catcher, 1), "barrier_wait_ns");
    }
    let late = waiting_of("late", "auto", 0);
    let not_in_barrier = number(&late, "program_ns") - number(&late, "barrier_wait_ns");
    assert!(not_in_barrier >= support::node::AWAY.as_nanos() as f64, "who is waited for does not wait: {late}");
}

#[test]
fn who_waits_for_a_lock_sees_it_in_the_breakdown() {
    for catcher in catchers("who_waits_for_a_lock_sees_it_in_the_breakdown") {
        assert_waited(&waiting_of("hold", catcher, 1), "lock_wait_ns");
    }
}

/// With `handler`, the thread that faulted waits in the kernel, and the service thread waits for it: this counts
/// once, as waiting.
#[test]
fn who_waits_for_a_page_sees_it_in_the_breakdown() {
    for catcher in catchers("who_waits_for_a_page_sees_it_in_the_breakdown") {
        let waiting = waiting_of("keep", catcher, 1);
        // The kernel does not say when a thread faulted: with `handler` its wait counts from when the service thread
        // reads the fault, which on a loaded machine is later.
        let least = if catcher == "handler" { support::node::AWAY / 2 } else { support::node::AWAY };
        assert_waited_at_least(least, &waiting, "fault_wait_ns");
        let rest = number(&waiting, "program_ns") - number(&waiting, "fault_wait_ns");
        assert!(number(&waiting, "handler_ns") <= rest, "{catcher}: {waiting}");
    }
}
