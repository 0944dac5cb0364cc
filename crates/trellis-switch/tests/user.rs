//! Tests the switch `user`, with and without privileges over the machine, and its intentional faults.

mod conformance;

use std::collections::BTreeSet;

use conformance::{Context, PORT, READ, WRITE};
use trellis_switch::{Classes, Faults, Group, Prefix, Route};

#[test]
fn user_is_a_switch() {
    if conformance::is_possible("user_is_a_switch") {
        conformance::run("user");
    }
}

#[test]
fn user_is_a_switch_without_rights_over_the_machine() {
    conformance::without_rights("user_is_a_switch_without_rights_over_the_machine", || conformance::run("user"));
}

/// A lab whose switch has these faults.
fn with_faults(case: &str, faults: &str) -> Context {
    let context = Context::new("user", case);
    println!("again with the faults {faults}");
    context.switch().set_faults(&faults.parse::<Faults>().unwrap()).unwrap();
    context
}

/// Sends numbered datagrams from one client to one server, and returns what arrived; each that is not lost arrives this
/// often.
fn arrivals(context: &mut Context, count: u64, times: u64) -> Vec<u64> {
    let socket = context.host("c1").socket(context.request("c1", 1), 0).unwrap();
    let pointer = context.pointer("s1", WRITE, 1);
    let before = context.counters("c1").packets_in();
    for number in 0..count {
        socket.send_to(&number.to_le_bytes(), (pointer, PORT)).unwrap();
    }
    context.wait_until("all are taken in", |context| context.counters("c1").packets_in() == before + count);
    let lost = context.counters("c1").dropped;
    let number = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
    let arrived = (0..(count - lost) * times).map(|_| number(context.receive("s1").0)).collect();
    context.switch().set_faults(&Faults::default()).unwrap();
    context.nothing_came("c1", "s1");
    arrived
}

#[test]
fn the_same_seed_loses_the_same() {
    if !conformance::is_possible("the_same_seed_loses_the_same") {
        return;
    }
    let lost = |seed: u64| arrivals(&mut with_faults("loses", &format!("drop=30%,seed={seed}")), 200, 1);
    let first = lost(7);
    assert!(first.is_sorted() && (100..180).contains(&first.len()), "{first:?}");
    assert_eq!(first, lost(7));
    assert_ne!(first, lost(8));
}

#[test]
fn packets_are_repeated() {
    if !conformance::is_possible("packets_are_repeated") {
        return;
    }
    let arrived = arrivals(&mut with_faults("repeats", "duplicate=100%,seed=1"), 100, 2);
    assert_eq!(arrived, (0..200).map(|index| index / 2).collect::<Vec<u64>>());
}

#[test]
fn packets_are_overtaken_and_none_is_lost() {
    if !conformance::is_possible("packets_are_overtaken_and_none_is_lost") {
        return;
    }
    let arrived = arrivals(&mut with_faults("overtakes", "reorder=20%,seed=3"), 200, 1);
    assert!(!arrived.is_sorted());
    assert_eq!(arrived.iter().collect::<BTreeSet<_>>().len(), 200);
    assert_eq!(arrived.len(), 200);
}

#[test]
fn packets_are_delayed_and_none_is_lost() {
    if !conformance::is_possible("packets_are_delayed_and_none_is_lost") {
        return;
    }
    let arrived = arrivals(&mut with_faults("delays", "delay=2ms,jitter=5ms,seed=3"), 200, 1);
    assert_eq!(arrived.len(), 200);
    assert!(!arrived.is_sorted(), "with this jitter some overtake others");
}

#[test]
fn copies_share_the_impairment_of_the_packet() {
    if !conformance::is_possible("copies_share_the_impairment_of_the_packet") {
        return;
    }
    let mut context = with_faults("copies", "duplicate=100%,seed=1");
    let group =
        Group { prefix: context.host("s1").plan().prefix, classes: Classes::CHANGING, ports: vec![context.port("s2")] };
    context.switch().set_group(&group).unwrap();
    context.goes("c1", context.pointer("s1", WRITE, 1), "s1");
    let again = context.receive("s1");
    assert_eq!((context.receive("s2"), context.receive("s2")), (again.clone(), again));
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
}

#[test]
fn a_host_gets_another_route_where_no_longer_prefix_has_room() {
    if !conformance::is_possible("a_host_gets_another_route_where_no_longer_prefix_has_room") {
        return;
    }
    let context = Context::new("user", "full");
    let (switch, cluster) = (context.switch(), context.lab.cluster());
    let route = Route { port: context.port("s2"), is_memory: true };
    let longer = |number: u32| Prefix::new(cluster.address(0x2000 + (number >> 8) as u16, number as u8, 0, 0), 56);
    let full = (0..=65_536).find(|&number| switch.set_prefix(longer(number).unwrap(), route).is_err());
    assert_eq!(full, Some(65_536));
    switch.set_prefix(longer(9).unwrap(), Route { port: context.port("s3"), ..route }).unwrap();
    switch.set_prefix(Prefix::host(cluster, 0x2000), route).unwrap();
    assert!(switch.drop_prefix(longer(9).unwrap()).unwrap());
    switch.set_prefix(longer(65_536).unwrap(), route).unwrap();
}

#[test]
fn a_run_gets_another_port_where_no_other_has_room() {
    if conformance::is_possible("a_run_gets_another_port_where_no_other_has_room") {
        conformance::fills_with_runs("user");
    }
}
