//! `trellis reproduce kv`, driven from outside: the published YCSB against real servers, and compiled programs.
//!
//! Sizes are small: the output and the numbers of calls and instructions are checked, never the speed. A test whose
//! tools are not installed is skipped with the reason.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use trellis_testing::{Folder, Need, are_installed, skip};

/// Without a watchdog: the first run builds YCSB.
fn reproduce(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["reproduce", "kv"]).args(arguments).stdin(Stdio::null());
    command.output().expect("the command can be started")
}

/// The object of a run; if the compiler or Maven lacks something here, the test is skipped.
#[track_caller]
fn object(test: &str, output: &Output) -> Option<Value> {
    let complaint = String::from_utf8_lossy(&output.stderr);
    let lacks = ["a way to Maven Central", "build them with", "build it with", "is not beside", "is neither beside"];
    if !output.status.success() && lacks.iter().any(|lack| complaint.contains(lack)) {
        skip(test, Need::Part, complaint);
        return None;
    }
    assert!(output.status.success(), "{}: {complaint}", output.status);
    Some(serde_json::from_slice(&output.stdout).expect("one JSON object"))
}

#[test]
fn stores_are_compared_with_ycsb() {
    let test = "stores_are_compared_with_ycsb";
    if !are_installed(test, &["java", "mvn", "redis-server"]) {
        return;
    }
    let folder = Folder::new();
    let options =
        ["--stores", "embedded,redis", "--quick", "--runs", "1", "--json", "--directory", &folder.to_string()];
    let Some(found) = object(test, &reproduce(&[&["figure2.6"], &options[..]].concat())) else { return };
    assert!(found["ycsb_a_throughput_ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{found}");
    let rows = found["figure2.6"]["rows"].as_array().expect("rows");
    let names: Vec<[&str; 2]> =
        rows.iter().filter_map(|row| Some([row["store"].as_str()?, row["workload"].as_str()?])).collect();
    // Each is there twice: the paper's thousand operations, and a long run.
    let expected = [["embedded", "A"], ["embedded", "F"], ["redis", "A"], ["redis", "F"]].map(|row| [row, row]);
    assert_eq!(names, expected.concat());
    assert!(rows.iter().all(|row| row["operations_per_second"].as_f64().is_some_and(|number| number > 0.0)), "{found}");
    let picture = found["figure2.6"]["pictures"][0].as_str().expect("a picture");
    assert!(std::fs::read_to_string(picture).expect("it was written").contains("redis, A, long run"));
}

#[test]
fn instructions_grow_less_than_in_the_paper() {
    let test = "instructions_grow_less_than_in_the_paper";
    if !are_installed(test, &["clang++-19"]) {
        return;
    }
    let folder = Folder::new();
    let output = reproduce(&["figure6.1", "--json", "--directory", &folder.to_string()]);
    let Some(found) = object(test, &output) else { return };
    let growth = |mode: &str| found["figure6.1"]["growth"][mode].as_f64().expect("a number");
    assert!(growth("full") <= 0.10 && growth("heap") <= 0.15, "{found}");
    let total = found["figure6.1"]["rows"].as_array().and_then(|rows| rows.last()).expect("the total");
    assert!(total["function"] == "total" && total["line"].as_u64() > total["original"].as_u64(), "{total}");
}

#[test]
fn every_mode_makes_the_calls_that_it_should() {
    let test = "every_mode_makes_the_calls_that_it_should";
    if !are_installed(test, &["clang++-19"]) {
        return;
    }
    let folder = Folder::new();
    let options = ["table6.1", "--stores", "embedded", "--quick", "--json", "--directory", &folder.to_string()];
    let Some(found) = object(test, &reproduce(&options)) else { return };
    let rows = found["rows"].as_array().expect("rows");
    let calls = |test: &str, mode: &str| {
        let row = rows.iter().find(|row| row["test"] == test && row["mode"] == mode);
        let row = row.unwrap_or_else(|| panic!("{test} in mode {mode} is missing in {found}"));
        assert!(row["microseconds"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        row["calls"].as_u64().unwrap_or_else(|| panic!("{row}"))
    };
    for test in ["stack", "heap", "producer_consumer"] {
        assert_eq!(calls(test, "original"), 0);
        assert!(calls(test, "full") >= 300, "{test}: every access is a call");
        for mode in ["line", "page"] {
            assert!(calls(test, mode) <= 1, "{test} in mode {mode}");
        }
    }
    assert_eq!(calls("stack", "heap"), 0, "nothing of it is on the heap");
    assert_eq!(calls("heap", "heap"), 100, "100 bytes are written");
    assert_eq!(calls("producer_consumer", "heap"), 100, "50 numbers are written and read");
}

#[test]
fn memory_of_the_stores_heap_is_not_the_machines() {
    let test = "memory_of_the_stores_heap_is_not_the_machines";
    if !are_installed(test, &["clang-19"]) {
        return;
    }
    let folder = Folder::new();
    let output = reproduce(&["figure4.2", "--json", "--directory", &folder.to_string()]);
    let Some(found) = object(test, &output) else { return };
    let rows = found["figure4.2"]["rows"].as_array().expect("rows");
    let data = |run: &str| {
        let row = rows.iter().find(|row| row["run"] == run).unwrap_or_else(|| panic!("{run} is missing in {found}"));
        row["usage"]["data_kib"].as_u64().expect("a number")
    };
    assert!(data("original, default malloc") > 1 << 20, "a gibibyte is in its data segment");
    for heap in ["heap, first-fit", "heap, bump", "heap, scalable"] {
        assert!(data(heap) < data("heap, nothing") + (1 << 18), "{heap}: {found}");
    }
}

#[test]
fn what_is_missing_is_named_with_its_package() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["reproduce", "kv"]).args(arguments).env("PATH", "/nowhere").stdin(Stdio::null());
        let output = command.output().expect("the command can be started");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned())
    };
    let sentence = "trellis: java is not installed; `apt-get install default-jdk-headless` brings it";
    assert_eq!(run(&["figure2.1"]), (Some(127), sentence.to_owned()));
    let sentence = "trellis: redis-server is not installed; `apt-get install redis-server` brings it";
    assert_eq!(run(&["table6.1", "--stores", "redis"]), (Some(127), sentence.to_owned()));
    let (code, complaint) = run(&["table6.1", "--stores", "redis://127.0.0.1:1"]);
    assert!(code == Some(70) && complaint.contains("store redis://127.0.0.1:1"), "{code:?} {complaint}");
    let (code, complaint) = run(&["figure2.1", "--stores", "mongodb"]);
    assert!(code == Some(2) && complaint.contains("accepted: embedded, redis, embedded-durable, etcd"), "{complaint}");
}
