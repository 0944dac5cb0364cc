//! `trellis reproduce vismi` and the execution-time breakdown, driven from outside: real nodes, and every field that
//! the reference promises.
//!
//! Sizes are small: the output and the largest share are checked, never the speed.

mod support;

use std::process::Stdio;

use serde_json::Value;
use support::{catcher_works, number, start_command, start_nodes};
use trellis_testing::{Folder, are_installed, skip};

const SHARES: [&str; 6] = ["computation", "page_fetch", "lock", "barrier", "handler", "overhead"];

/// Not a test: the role of this executable when the command starts it as a node.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}

/// Whether the programs can be built and run here; a test that needs them prints that it was skipped and why.
fn works(test: &str) -> bool {
    let library = std::path::Path::new(env!("CARGO_BIN_EXE_trellis")).with_file_name("libtrellis_c.so");
    if !library.is_file() {
        skip(test, "libtrellis_c.so is not built (cargo build -p trellis-c)");
    }
    library.is_file() && are_installed(test, &["m4", "cc"]) && catcher_works(test, "signal")
}

#[track_caller]
fn assert_shares(found: &Value) {
    let shares: Vec<f64> = SHARES.iter().map(|share| number(found, share)).collect();
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{found}");
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{found}");
}

#[test]
fn every_program_is_verified_and_its_time_is_broken_down() {
    if !works("every_program_is_verified_and_its_time_is_broken_down") {
        return;
    }
    let folder = Folder::new();
    let picture = folder.file("breakdown.svg");
    let picture_name = picture.to_string_lossy().into_owned();
    let options = ["reproduce", "vismi", "--quick", "--runs", "1", "--json", "--svg", &picture_name];
    let run = start_command(&options).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let found: Value = serde_json::from_str(&run.stdout).expect("one JSON object");
    let rows = found["rows"].as_array().expect("rows");
    let names: Vec<(&str, u64)> =
        rows.iter().filter_map(|row| Some((row["program"].as_str()?, row["nodes"].as_u64()?))).collect();
    let programs = ["barnes", "fft", "lu", "radix", "ocean"];
    let expected: Vec<(&str, u64)> = programs.iter().flat_map(|name| [1, 2, 4].map(|nodes| (*name, nodes))).collect();
    assert_eq!(names, expected);
    for row in rows {
        assert_eq!(row["verified"], true, "{row}");
        for field in ["seconds", "sequential_seconds", "efficiency", "speedup"] {
            assert!(number(row, field) > 0.0, "{row}");
        }
        assert_shares(row);
        let each = row["each_node"].as_array().expect("a breakdown for each node");
        assert_eq!(each.len() as u64, row["nodes"].as_u64().expect("a number"));
        each.iter().for_each(assert_shares);
        // A share that must be zero on one node: nothing is fetched there.
        assert!(row["nodes"] != 1 || number(row, "page_fetch") == 0.0, "{row}");
    }
    for name in programs {
        assert!(number(&found, &format!("{name}_efficiency")) > 0.0);
        assert!(!found[format!("{name}_ratio")].is_null() || std::thread::available_parallelism().unwrap().get() < 2);
    }
    assert_eq!(found["table3"]["paper"][2]["vismi_efficiency"], 0.975);
    let picture = std::fs::read_to_string(&picture).expect("the picture");
    // Whichever share it is: small ones are not drawn.
    assert!(picture.contains("radix, node 3 of 4, "), "{picture}");
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
    let away = support::node::AWAY.as_nanos() as f64;
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
        assert_waited(&waiting, "fault_wait_ns");
        let rest = number(&waiting, "program_ns") - number(&waiting, "fault_wait_ns");
        assert!(number(&waiting, "handler_ns") <= rest, "{catcher}: {waiting}");
    }
}

#[test]
fn one_program_and_one_table_can_be_asked_for() {
    if !works("one_program_and_one_table_can_be_asked_for") {
        return;
    }
    let options = ["reproduce", "vismi", "table3", "--program", "fft", "--nodes", "2", "--quick", "--runs", "1"];
    let run = start_command(&options).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("NEWGENDSM") && run.stdout.contains("0.725"), "{run:?}");
    assert!(
        !run.stdout.contains("\n  lu ") && run.stdout.contains("\n  fft ") && !run.stdout.contains("Figure 3"),
        "{run:?}"
    );
}

#[test]
fn a_compiler_that_is_not_there_is_named() {
    if !works("a_compiler_that_is_not_there_is_named") {
        return;
    }
    let mut command = support::command(&["reproduce", "vismi", "table2", "--program", "lu", "--quick", "--runs", "1"]);
    let output = command.env("CC", "no-such-compiler").stdin(Stdio::null()).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no-such-compiler") && said.contains("name it in CC"), "{said}");
}
