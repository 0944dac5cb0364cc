//! `trellis reproduce vismi`, driven from outside: real nodes, and every field that the reference promises.
//!
//! Sizes are small: the output is checked, never the speed.

mod support;

use std::process::Stdio;

use serde_json::Value;
use support::{catcher_works, number, start_command};
use trellis_testing::{Folder, Need, are_installed, skip};

const SHARES: [&str; 6] = ["computation", "page_fetch", "lock", "barrier", "handler", "overhead"];

/// Whether the programs can be built and run here; a test that needs them prints that it was skipped and why.
fn works(test: &str) -> bool {
    let library = std::path::Path::new(env!("CARGO_BIN_EXE_trellis")).with_file_name("libtrellis_c.so");
    if !library.is_file() {
        skip(test, Need::Part, "libtrellis_c.so is not built (cargo build -p trellis-c)");
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
