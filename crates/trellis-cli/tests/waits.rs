//! The reports about a node that lives and makes no progress: who waits for whom, and the end of a wait, also of a
//! thread that the kernel blocks at a page.

mod support;

use std::sync::Mutex;

use support::node::nodes_and_stopped;
use support::{signal, start_nodes, wait_until};
use trellis::waits::{Limit, Wait};

/// If the report of a wait took too long, the test's own watchdog would fail it, so nothing is timed here.
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
    // The launcher has it from the status of the node, which says nothing any more.
    signal(run.node_pid(1), libc::SIGKILL);
    let ended = run.finish();
    let cause = ended.stderr.lines().find(|line| line.contains("was killed by SIGKILL")).unwrap_or_default();
    assert!(cause.contains("while waiting in barrier") && cause.contains("waiting for node 0"), "{}", ended.stderr);
    // On a busy machine it may have waited for the others to start.
    assert!(!ended.stderr.contains("node 0: waiting in"), "who computes does not wait: {}", ended.stderr);
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

/// Kinds of waits that a stopped node does not cause. In the library, `cluster.rs` tests `Start`, and
/// `runtime/elastic.rs` tests `TakeOver`: a coordinator is in it only while another node has the page locked.
fn is_elsewhere(wait: Wait) -> bool {
    matches!(wait, Wait::Start | Wait::TakeOver(_))
}

/// A node is stopped, so it lives and does nothing; the waits for it end only by their limits.
#[test]
fn every_wait_ends_at_its_limit_and_names_who_is_in_the_way() {
    let mut all: Vec<(Wait, &str)> =
        Wait::ALL.into_iter().filter(|wait| !is_elsewhere(*wait)).map(|wait| (wait, "catch=auto")).collect();
    // With this catcher, the thread waits in the kernel.
    if support::catcher_works("every_wait_ends_at_its_limit_and_names_who_is_in_the_way", "handler") {
        let of_faults = all.iter().filter(|(wait, _)| matches!(wait, Wait::ReadFault(_) | Wait::WriteFault(_)));
        let in_kernel: Vec<_> = of_faults.map(|(wait, _)| (*wait, "catch=handler")).collect();
        assert_eq!(in_kernel.len(), 2);
        all.extend(in_kernel);
    }
    let (left, wrong) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((wait, catch)) = { left.lock().unwrap().pop() } {
                    if let Some(what) = waits_in_vain(wait, catch) {
                        wrong.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Describes a wrong ending; `None` if the wait ended as it should.
fn waits_in_vain(wait: Wait, catch: &str) -> Option<String> {
    let (nodes, stopped) = nodes_and_stopped(wait);
    let coherence = match wait {
        Wait::Publication | Wait::Placement(_) => "coherence=hlrc",
        Wait::LockRange(_) => "coherence=lock(dynamic)",
        _ => "coherence=dynamic",
    };
    let home = if matches!(wait, Wait::Placement(_)) { "home=first-touch" } else { "home=manager" };
    // Longer than anything else, unless it is what ends the wait.
    let silence = if wait.limit() == Limit::Members { "silence_seconds_max=7" } else { "silence_seconds_max=600" };
    let settings = ["wait_seconds_max=2", "fault_seconds_max=2", "region_bytes=64MiB", coherence, home, silence, catch];
    let options: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let ended = start_nodes(nodes, &format!("stuck {wait}"), &options).finish();
    let name = format!("node {stopped} ");
    let line = |begins: &str| ended.stderr.lines().any(|line| line.contains(begins) && line.contains(&name));
    let is_named = match wait {
        Wait::ReadFault(_) | Wait::WriteFault(_) => line("page 0 did not come within 2 s"),
        Wait::Inquiry => line("did not answer"),
        Wait::Leave => line("done, and serving until"),
        // The page of the wait is not chosen by the program.
        Wait::Placement(_) => line("choosing a home for page"),
        wait => line(wait.to_string().trim_end_matches(" 0")),
    };
    (ended.code != Some(70) || !is_named).then(|| format!("{wait}, {catch}: {ended:?}"))
}

/// Not a test of its own: what runs inside the processes that the tests above start.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
