//! Tests the switch `bpf`.

#![cfg(feature = "bpf")]

mod conformance;

use trellis_switch::switches;

#[test]
fn bpf_is_a_switch() {
    if conformance::is_possible("bpf_is_a_switch") {
        conformance::run("bpf");
    }
}

#[test]
fn bpf_is_a_switch_before_frames_are_packets() {
    if conformance::is_possible("bpf_is_a_switch_before_frames_are_packets") {
        conformance::run("bpf at xdp");
    }
}

#[test]
fn the_program_is_gone_with_the_switch() {
    if !conformance::is_possible("the_program_is_gone_with_the_switch") {
        return;
    }
    assert!(switches::kind("bpf").unwrap().is_built);
    let mut context = conformance::Context::new("bpf", "gone");
    context.goes("c1", context.pointer("s1", conformance::READ, 1), "s1");
    drop(context);
    // A second one at the same names must find nothing of the first.
    let mut context = conformance::Context::new("bpf", "gone");
    context.goes("c1", context.pointer("s1", conformance::READ, 1), "s1");
    assert_eq!(context.counters("c1").delivered, 1);
}

#[test]
fn a_run_gets_another_port_where_no_other_has_room() {
    if conformance::is_possible("a_run_gets_another_port_where_no_other_has_room") {
        conformance::fills_with_runs("bpf");
    }
}
