//! What people hear of a node that lives and makes no progress: who waits for whom, and the end of a wait, also of a thread that the
//! kernel blocks at a page.

mod support;

use support::{signal, start_nodes, wait_until};

/// Longer than it takes until a wait is reported would be a failure of the test's own watchdog, so nothing here is timed.
#[test]
fn who_waits_for_long_is_reported_with_who_is_in_the_way() {
    let run = start_nodes(3, "barrier", &[]);
    for node in [1, 2] {
        let begins = format!("[{node}] trellis: node {node}: waiting in barrier ");
        wait_until("the report of a node that waits", || {
            let said = run.standard_error();
            said.lines().any(|line| line.starts_with(&begins) && line.contains("waiting for node 0"))
        });
    }
    signal(run.pid(), libc::SIGTERM);
    let ended = run.finish();
    assert!(!ended.stderr.contains("node 0: waiting"), "who computes does not wait: {}", ended.stderr);
}

#[test]
fn a_page_that_its_holder_keeps_ends_the_run_with_who_has_it() {
    for catcher in ["catch=signal", "catch=handler", "catch=mprotect"] {
        let settings = ["--set", catcher, "--set", "wait_seconds_max=2", "--set", "coherence=lock(dynamic)"];
        let ended = start_nodes(2, "keep for ever", &settings).finish();
        assert_eq!(ended.code, Some(70), "{catcher}: {ended:?}");
        let said = &ended.stderr;
        assert!(said.contains("page 0 did not come within 2 s; it is locked at node 0"), "{catcher}: {said}");
    }
}

/// Not a test of its own: what runs inside the processes that the tests above start.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
