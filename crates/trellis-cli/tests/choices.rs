//! The programs and tables of *Distributed Virtual Memory Consistency Protocols* (Sane, MacGregor and Campbell,
//! 1990), driven from outside: real nodes, and JSON with every field that the reference promises.
//!
//! Sizes are small: the output is checked, never the speed.

mod support;

use serde_json::Value;
use support::{catcher_works, json_of, number, start_command};
use trellis_testing::Folder;

/// Whether the catcher of the benchmarks works here.
fn works(test: &str) -> bool {
    catcher_works(test, "signal")
}

fn bench(arguments: &[&str]) -> Value {
    let found = json_of(&start_command(&[&["bench"], arguments, &["--json"]].concat()).finish());
    assert_eq!(found["benchmark"], arguments[0]);
    found
}

#[test]
fn a_product_is_right_with_each_order_and_protocol() {
    if !works("a_product_is_right_with_each_order_and_protocol") {
        return;
    }
    let lock = "coherence=lock(dynamic(forward))";
    for more in [&["--order", "kij"][..], &["--lock", "--set", lock], &["--lock", "--order", "kij", "--set", lock]] {
        let found = bench(&[&["matmul", "--size", "70", "--rounds", "1", "--nodes", "3"], more].concat());
        for field in ["seconds_1_node_p50", "seconds_p50", "speedup", "pages_in", "messages"] {
            assert!(number(&found, field) > 0.0, "{found}");
        }
    }
}

#[test]
fn locking_rows_without_a_lock_layer_is_refused_by_name() {
    if !works("locking_rows_without_a_lock_layer_is_refused_by_name") {
        return;
    }
    let run = start_command(&["bench", "matmul", "--size", "8", "--lock", "--set", "coherence=ivy"]).finish();
    assert_ne!(run.code, Some(0), "{run:?}");
    assert!(run.stderr.contains("lock(ivy)"), "{run:?}");
}

/// Packets of an item with Lock: a request, perhaps its retry, and the page as three packets, for each of the two
/// (§5.2, table 2). The first item finds the page at its home. The answer to the barrier before the first of twenty
/// items may be counted with them.
const LOCK_PACKETS_MAX: f64 = 10.0 + 1.0 / 20.0;

#[test]
fn locked_pages_need_the_papers_packets_and_no_more() {
    if !works("locked_pages_need_the_papers_packets_and_no_more") {
        return;
    }
    let found = bench(&["producer-consumer", "--items", "20", "--rounds", "1"]);
    assert!(number(&found, "lock_packets") <= LOCK_PACKETS_MAX, "{found}");
    assert!(number(&found, "lock_packets") < number(&found, "test_and_set_packets"), "{found}");
    for field in ["lock_us_p50", "test_and_set_us_p50", "lock_over_test_and_set", "lock_over_test_and_set_packets"] {
        assert!(number(&found, field) > 0.0, "{found}");
    }
    let spun = bench(&["producer-consumer", "--items", "20", "--rounds", "1", "--pages", "2", "--spin", "50"]);
    assert!(number(&spun, "lock_us_p50") > 0.0, "{spun}");
}

#[test]
fn events_have_the_messages_of_their_formulas() {
    if !works("events_have_the_messages_of_their_formulas") {
        return;
    }
    let found = bench(&["events", "--samples", "200", "--nodes", "3"]);
    let events = found["events"].as_array().expect("a list");
    assert_eq!(events.len(), 9, "{found}");
    for event in events {
        // The messages of the barriers around a series are subtracted, but not exactly.
        assert!((number(event, "messages") - number(event, "messages_predicted")).abs() < 0.1, "{event}");
        assert!(number(event, "us_p50") > 0.0 && event["us_predicted"].is_number(), "{event}");
    }
    for field in ["message_us", "page_us", "fixed_us", "holder_us", "explained"] {
        assert!(found["model"][field].is_number(), "{found}");
    }
}

#[test]
fn an_owner_one_hop_away_costs_one_message_once() {
    if !works("an_owner_one_hop_away_costs_one_message_once") {
        return;
    }
    for (protocol, more) in [("dynamic(forward)", 1.0), ("dynamic(redirect)", 2.0)] {
        let found = bench(&["forward", "--samples", "200", "--set", &format!("coherence={protocol}")]);
        assert_eq!(found["coherence"], protocol);
        assert!((number(&found, "known_messages") - 2.0).abs() < 0.1, "{found}");
        assert!((number(&found, "one_hop_messages_more") - more).abs() < 0.1, "{found}");
        assert!(number(&found, "after_messages_more").abs() < 0.1, "{found}");
    }
}

#[test]
fn bench_delay_loses_no_store() {
    if !works("bench_delay_loses_no_store") {
        return;
    }
    let found = bench(&["delay", "--milliseconds", "50", "--threshold", "300"]);
    assert_eq!(found["coherence"], "delay(dynamic(forward), 300us)");
    for field in ["plain_writes_per_page", "delay_writes_per_page", "delay_over_plain", "delay_fairness"] {
        assert!(number(&found, field) > 0.0, "{found}");
    }
}

#[test]
fn bench_links_compares_all() {
    if !works("bench_links_compares_all") {
        return;
    }
    let found = bench(&["links", "--samples", "100", "--rounds", "1"]);
    assert!(number(&found, "udp_over_tcp") > 0.0, "{found}");
    assert!(number(&found, "shm_over_floor") > 0.0, "{found}");
}

#[test]
fn table1_has_a_row_for_every_combination() {
    if !works("table1_has_a_row_for_every_combination") {
        return;
    }
    let run = start_command(&["reproduce", "choices", "table1", "--sizes", "32", "--runs", "1", "--json"]).finish();
    let found = json_of(&run);
    let rows = found["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 3 * 2, "{found}");
    for row in rows {
        assert_eq!((&row["size"], &row["experiment"]), (&32.into(), &"table1".into()));
        assert!(["ijk", "kij"].contains(&row["order"].as_str().expect("text")), "{row}");
        assert!(row["protocol"].is_string() && number(row, "nodes") >= 1.0, "{row}");
        assert!(number(row, "seconds") > 0.0 && number(row, "speedup") > 0.0, "{row}");
    }
    assert!(rows.iter().any(|row| row["nodes"] == 2 && row["protocol"] == "lock(dynamic(forward))"), "{found}");
}

#[test]
fn tables_2_and_3_and_the_figure_are_made() {
    if !works("tables_2_and_3_and_the_figure_are_made") {
        return;
    }
    let folder = Folder::new();
    let directory = folder.file("pictures");
    let common = ["--runs", "1", "--directory", directory.to_str().expect("text"), "--json"];
    let make = |words: &[&str]| json_of(&start_command(&[&["reproduce", "choices"], words, &common].concat()).finish());
    let two = make(&["table2", "--pages-max", "1", "--items", "20"]);
    assert_eq!(two["rows"].as_array().map(Vec::len), Some(2), "{two}");
    assert_eq!((&two["rows"][1]["with"], &two["rows"][1]["paper_packets"]), (&"lock".into(), &10.0.into()));
    assert!(number(&two["rows"][1], "packets_per_item") <= LOCK_PACKETS_MAX, "{two}");
    let three = make(&["table3", "--samples", "20"]);
    assert_eq!(three["rows"][0]["paper_ms"], 39.9, "{three}");
    let one = make(&["figure1"]);
    assert_eq!(one["rows"].as_array().map(Vec::len), Some(2 * 3 * 4), "{one}");
    let pictures = one["figure1"]["pictures"].as_array().expect("pictures");
    assert_eq!(pictures.len(), 2);
    for picture in pictures {
        let text = std::fs::read_to_string(picture.as_str().expect("text")).expect("the picture was written");
        assert!(text.contains("locking ijk"), "{picture}");
    }
}
