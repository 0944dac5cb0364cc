//! Records of small runs, and what is advised after each.

use super::*;
use crate::{Chosen, Phase, VERSION};

const PAGE_BYTES: usize = 4096;

/// A node's record of a run of a second.
fn record(node: usize, faults: Vec<FaultRecord>) -> Record {
    let count = |kind| faults.iter().filter(|fault| fault.kind == kind).count() as u64;
    let counters = Counters {
        read_faults: count(FaultKind::Read),
        write_faults: count(FaultKind::Write),
        upgrade_faults: count(FaultKind::Upgrade),
        local_faults: count(FaultKind::Local),
        program_ns: 1_000_000_000,
        program_threads: 1,
        ..Counters::default()
    };
    Record {
        version: VERSION,
        node,
        nodes: 2,
        program: "program".to_owned(),
        page_bytes: PAGE_BYTES,
        region_bytes: 1 << 20,
        catch: "signal".to_owned(),
        link: "auto".to_owned(),
        ways: Vec::new(),
        coherence: "ivy".to_owned(),
        home: "first-touch".to_owned(),
        reserve: "lazy".to_owned(),
        security: "plain".to_owned(),
        seconds: 1.0,
        counters,
        phases: Vec::new(),
        areas: Vec::new(),
        choices: Vec::new(),
        faults_dropped: 0,
        faults,
    }
}

/// A fault that took 10 ms.
fn fault(time_us: u64, page: u64, offset: u32, kind: FaultKind) -> FaultRecord {
    FaultRecord { time_us, page, offset: Some(offset), kind, wait_us_x10: 100_000, thread: 0 }
}

/// `count` faults of one kind at one place.
fn repeated(count: u64, page: u64, offset: u32, kind: FaultKind) -> Vec<FaultRecord> {
    (0..count).map(|time| fault(time * 20_000, page, offset, kind)).collect()
}

fn only(records: &[Record]) -> Advice {
    let advice = advise(records, None).unwrap();
    assert_eq!(advice.len(), 1, "{advice:?}");
    advice[0].clone()
}

#[test]
fn nodes_at_different_ends_of_a_page_share_it_falsely() {
    let records = [record(0, repeated(5, 3, 0, FaultKind::Write)), record(1, repeated(5, 3, 2048, FaultKind::Write))];
    let advice = only(&records);
    assert!(advice.sentence.starts_with("false sharing, 10 faults: nodes 0 and 1 "), "{}", advice.sentence);
    assert!(advice.sentence.contains("bytes 0x3000 to 0x3fff of the region"), "{}", advice.sentence);
    assert!(advice.sentence.contains("coherence = hlrc"), "{}", advice.sentence);
    assert!((advice.share - 0.05).abs() < 1e-9 && (advice.lost_seconds - 0.1).abs() < 1e-9, "{advice:?}");

    let area = |first, bytes, name: &str| Area { first, bytes, name: name.to_owned() };
    let mut named = records.clone();
    named[1].areas = vec![area(0x2ff8, 0x10, "edge"), area(0x3100, 0xe00, "sums"), area(0x4000, 8, "next")];
    let sentence = only(&named).sentence;
    assert!(sentence.contains("bytes 0x3000 to 0x3fff of the region (sums, edge);"), "{sentence}");

    let mut there = records;
    there.iter_mut().for_each(|record| record.coherence = "hlrc(adaptive)".to_owned());
    assert!(!only(&there).sentence.contains("coherence ="), "what the run has is not advised");
}

#[test]
fn nodes_at_the_same_bytes_share_them() {
    let records = [record(0, repeated(5, 3, 64, FaultKind::Write)), record(1, repeated(5, 3, 64, FaultKind::Write))];
    assert!(only(&records).sentence.starts_with("the same bytes in turn, 10 faults"), "{:?}", only(&records));
    // Where a fault does not say what was touched, nothing is said about parts.
    let mut vague = records;
    vague[0].faults[0].offset = None;
    vague[1].faults.iter_mut().for_each(|fault| fault.offset = Some(2048));
    assert!(only(&vague).sentence.starts_with("pages that nodes take from each other"), "{:?}", only(&vague));
    // Memory servers know one protocol only.
    vague.iter_mut().for_each(|record| (record.coherence, record.catch) = ("lease".to_owned(), "handler".to_owned()));
    vague[0].counters.handler_ns = 500_000_000;
    assert!(!only(&vague).sentence.contains(" = "), "{:?}", only(&vague));
}

#[test]
fn who_loads_what_others_store_still_shares_falsely() {
    // As at the edge of two parts of a grid whose rows share a page.
    let both = |own: u32, other: u32| {
        let kinds = [(own, FaultKind::Write), (other, FaultKind::Read)];
        (0..6).map(|time| fault(time * 20_000, 3, kinds[time as usize % 2].0, kinds[time as usize % 2].1)).collect()
    };
    let records = [record(0, both(0, 2048)), record(1, both(2048, 0))];
    assert!(only(&records).sentence.starts_with("false sharing, 12 faults"), "{:?}", only(&records));
}

#[test]
fn an_owner_that_stores_again_after_others_loaded_is_one_writer() {
    let records =
        [record(0, repeated(9, 3, 64, FaultKind::UpgradeOwner)), record(1, repeated(9, 3, 64, FaultKind::Read))];
    assert!(only(&records).sentence.starts_with("one node stores and others load"), "{:?}", only(&records));
}

#[test]
fn nodes_are_listed_as_people_would() {
    let nodes: [(&[usize], &str); 5] = [
        (&[2], "node 2"),
        (&[0, 1], "nodes 0 and 1"),
        (&[0, 2, 5], "nodes 0, 2 and 5"),
        (&[1, 2, 3, 4], "nodes 1 to 4"),
        (&[1, 2, 3, 9], "4 of the nodes 1 to 9"),
    ];
    nodes.into_iter().for_each(|(nodes, text)| assert_eq!(listed(nodes), text));
}

#[test]
fn a_load_before_each_store_asks_for_another_protocol() {
    let both = |first: u64| {
        let pair = |turn: u64| {
            let time = first + turn * 50_000;
            [fault(time, 9, 0, FaultKind::Read), fault(time + 20_000, 9, 0, FaultKind::Upgrade)]
        };
        (0..6).flat_map(pair).collect::<Vec<_>>()
    };
    let advice = only(&[record(0, both(0)), record(1, both(25_000))]);
    assert!(advice.sentence.contains("coherence = auto"), "{}", advice.sentence);
    assert!((advice.lost_seconds - 0.12).abs() < 1e-9, "only the second faults can be saved: {advice:?}");
    assert!(advice.sentence.starts_with("second faults, 12 faults of nodes 0 and 1: "), "{advice:?}");
}

#[test]
fn one_writer_with_readers_is_told_apart() {
    // Wherever the loads begin: what is loaded after the first byte causes no fault.
    for offset in [64, 2048] {
        let faults = [repeated(5, 3, 64, FaultKind::Write), repeated(5, 3, offset, FaultKind::Read)];
        let [one, other] = faults;
        let advice = only(&[record(0, one), record(1, other)]);
        assert!(advice.sentence.contains("hlrc(update)"), "{advice:?}");
    }
}

#[test]
fn a_walk_through_pages_asks_for_prefetch() {
    let walk = (0..8).map(|step| fault(step * 20_000, 16 * step, 0, FaultKind::Read)).collect();
    let advice = only(&[record(0, walk), record(1, Vec::new())]);
    assert!(advice.sentence.starts_with("page after page, 7 faults of node 0, "), "{}", advice.sentence);
    for windows in [129, 1025] {
        let steps = (0..8).map(|step| fault(step * 20_000, windows * step, 0, FaultKind::Write)).collect();
        let mut record = record(0, steps);
        assert!(only(&[record.clone()]).sentence.ends_with("reserve = full if their memory is fresh"));
        record.reserve = "full".to_owned();
        assert!(!only(&[record]).sentence.contains("reserve"), "what the run has is not advised");
    }
    let jumps = (0..8).map(|step| fault(step * 20_000, 1000 * step * step, 0, FaultKind::Read)).collect();
    assert_eq!(advise(&[record(0, jumps)], None), Ok(Vec::new()), "pages far apart are no walk");
}

#[test]
fn what_costs_little_is_not_worth_a_word() {
    let records = [record(0, repeated(1, 3, 0, FaultKind::Write)), record(1, repeated(1, 3, 2048, FaultKind::Write))];
    assert_eq!(advise(&records, None), Ok(Vec::new()));
}

#[test]
fn the_three_most_expensive_are_named_in_order() {
    let mut one = record(0, repeated(5, 3, 0, FaultKind::Write));
    one.counters.lock_acquires = 10;
    one.counters.lock_wait_ns = 300_000_000;
    one.counters.handler_ns = 200_000_000;
    one.catch = "handler".to_owned();
    let mut other = record(1, repeated(5, 3, 2048, FaultKind::Write));
    other.counters.barriers = 10;
    other.counters.barrier_wait_ns = 400_000_000;
    let begins: Vec<String> = advise(&[one, other], None).unwrap().into_iter().map(|advice| advice.sentence).collect();
    assert_eq!(begins.len(), ADVICE_MAX);
    for (sentence, part) in begins.iter().zip(["in barriers for node 0", "locks, 10 taken", "catch = signal"]) {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
}

#[test]
fn barriers_in_which_all_wait_alike_blame_nobody() {
    let waits = |node| {
        let mut record = record(node, Vec::new());
        (record.counters.barriers, record.counters.barrier_wait_ns) = (100, 200_000_000);
        record
    };
    let advice = only(&[waits(0), waits(1)]);
    assert!(advice.sentence.starts_with("100 barriers, in which all nodes wait alike, 2000 us each"), "{advice:?}");
}

#[test]
fn only_the_named_phase_counts() {
    let phase = |name: &str, start_us, end_us| {
        let counters = Counters { program_ns: (end_us - start_us) * 1000, ..Counters::default() };
        Phase { name: name.to_owned(), start_us, end_us, counters }
    };
    let mut records =
        [record(0, repeated(10, 3, 0, FaultKind::Write)), record(1, repeated(10, 3, 2048, FaultKind::Write))];
    for record in &mut records {
        record.phases = vec![phase("fill", 0, 100_000), phase("solve", 100_000, 1_000_000)];
    }
    let advice = advise(&records, Some("solve")).unwrap();
    assert!(advice[0].sentence.starts_with("false sharing, 10 faults"), "{advice:?}");
    assert!((advice[0].share - 0.1 / 1.8).abs() < 1e-9, "{advice:?}");
    assert_eq!(counters(&records, Some("fill")).unwrap()[&0].program_ns, 100_000_000);
    // A node that did not enter the phase is left out.
    records[1].phases.retain(|phase| phase.name != "fill");
    assert_eq!(counters(&records, Some("fill")).unwrap().len(), 1);
    let unknown = advise(&records, Some("sort")).unwrap_err();
    assert_eq!(unknown, "no phase is named sort; the program names fill, solve");
    let none = advise(&[record(0, Vec::new())], Some("sort")).unwrap_err();
    assert!(none.contains("the program names none"), "{none}");
}

#[test]
fn what_a_protocol_chose_is_counted_and_placed() {
    let chosen = |choice, first, pages, times| Chosen { choice, first, pages, times };
    let with = |node, choices| Record { choices, ..record(node, Vec::new()) };
    let records = [
        with(0, vec![chosen(Choice::MovesWithLoad, 4, 2, 7), chosen(Choice::Stays, 9, 1, 1)]),
        with(1, vec![chosen(Choice::MovesWithLoad, 5, 2, 3)]),
    ];
    let place = "bytes 0x4000 to 0x6fff of the region".to_owned();
    assert_eq!(super::chosen(&records, Choice::MovesWithLoad), Some((10, place)));
    assert_eq!(super::chosen(&records[1..], Choice::Stays), None);
}
