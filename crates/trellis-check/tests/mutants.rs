//! Mutants are noticed, and the wrapper without a mutation passes.
//!
//! Here runs one mutant of each part that mutations change, to show that there is a way from the mutation to the report.
//! `trellis-check mutants` runs all of them on all protocols, once for every change (`cargo xtask ci`).

use trellis_check::explore::{Options, Verdict, explore};
use trellis_check::mutants::{
    Fault, Fits, Mutant, Mutation, Row, SyncFault, TABLE, markdown, mutants_of, node_instances, noticed,
    page_instances, protocols, sync_instances, try_mutant, try_pages,
};
use trellis_check::pages::Instance;
use trellis_check::simulate::NodeFault;
use trellis_check::synchronisation::Program;
use trellis_cluster_protocol::coherence::Protocol;

const PER_PROTOCOL_MIN: usize = 25;

/// The protocols that have the rule of `row`; at least one, except for rows of synchronisation.
fn having(row: &Row) -> Vec<Protocol> {
    protocols().into_iter().filter(|&protocol| row.fits.includes(protocol)).collect()
}

#[test]
fn a_mutant_of_each_part_is_noticed() {
    let mut parts = Vec::new();
    for row in TABLE {
        let part = std::mem::discriminant(&row.mutation);
        if parts.contains(&part) {
            continue;
        }
        parts.push(part);
        let protocol = having(row).first().copied().unwrap_or(Protocol::IVY);
        let report = try_mutant(row.mutation, protocol, Options::default());
        println!("{protocol}: {:24} {:>8} states: {:?}", row.name, report.states, noticed(&report));
        assert!(noticed(&report).is_some(), "nobody noticed {}", row.name);
    }
    assert_eq!(parts.len(), 6, "pages, synchronisation, ends, members, heap, nodes");
}

#[test]
fn every_protocol_has_its_mutants() {
    for protocol in protocols() {
        let count = mutants_of(protocol).len();
        assert!(count >= PER_PROTOCOL_MIN, "{protocol} has only {count} mutants");
    }
    for row in TABLE.iter().filter(|row| !matches!(row.fits, Fits::Synchronisation | Fits::Membership | Fits::Heap)) {
        assert!(!having(row).is_empty(), "no protocol has the rule of {}", row.name);
    }
}

#[test]
fn names_of_mutants_are_different() {
    for (index, row) in TABLE.iter().enumerate() {
        assert!(TABLE[..index].iter().all(|other| other.name != row.name), "{} is there twice", row.name);
    }
}

#[test]
fn the_published_list_is_the_table() {
    let published = include_str!("../../../docs/reference/mutants.md");
    assert_eq!(published, markdown(), "print it again: cargo run -p trellis-check -- mutants --markdown");
}

/// The real protocol passes where its mutants are tried, and the wrapper without a fault changes nothing.
#[test]
fn the_canary_passes_where_the_mutants_fail() {
    for protocol in protocols() {
        for instance in page_instances(protocol) {
            let options = Options { must_end: true, ..Options::default() };
            let real = explore(&mut instance.model(), options, &mut |_| {});
            assert!(real.passed(), "{}: {:?}", instance.describe(), real.verdict);
            if instance.nodes == 2 && instance.threads == 1 {
                let start = |geometry| Mutant::new(protocol.start(geometry), geometry, Fault::None);
                let wrapped = explore(&mut instance.model_of(start), options, &mut |_| {});
                assert!(wrapped.passed(), "{}: {:?}", instance.describe(), wrapped.verdict);
                assert_eq!(wrapped.states, real.states, "{}", instance.describe());
            }
        }
    }
}

#[test]
fn nodes_without_a_fault_pass_where_the_mutants_fail() {
    for protocol in protocols() {
        let faults = mutants_of(protocol).into_iter().filter_map(|row| match row.mutation {
            Mutation::Node(fault) => Some(fault),
            _ => None,
        });
        let mut instances: Vec<_> = faults.flat_map(|fault| node_instances(protocol, fault)).collect();
        instances.sort_by_key(Instance::describe);
        instances.dedup_by_key(|instance| instance.describe());
        // The others are those of the canary.
        for instance in instances.into_iter().filter(|instance| instance.leaver) {
            let options = Options { must_end: true, ..Options::default() };
            let real = explore(&mut instance.model_with(NodeFault::None), options, &mut |_| {});
            assert!(real.passed(), "{}: {:?}", instance.describe(), real.verdict);
        }
    }
}

#[test]
fn a_wrapper_of_synchronisation_without_a_fault_changes_nothing() {
    let programs = TABLE.iter().filter_map(|row| match row.mutation {
        Mutation::Sync(_, program) => Some(program),
        _ => None,
    });
    let mut programs: Vec<Program> = programs.collect();
    programs.dedup();
    for instance in programs.into_iter().flat_map(sync_instances) {
        let wrapped = explore(&mut instance.model_with(SyncFault::None), Options::default(), &mut |_| {});
        let real = explore(&mut instance.model(), Options::default(), &mut |_| {});
        assert!(wrapped.passed(), "{}: {:?}", instance.describe(), wrapped.verdict);
        assert_eq!(wrapped.states, real.states, "{}", instance.describe());
    }
}

#[test]
fn a_violation_is_told_as_a_story() {
    let Verdict::Broken { what, trace } = try_pages(Protocol::IVY, Fault::KeepsCopy, Options::default()).verdict else {
        panic!("keeps-copy was not noticed");
    };
    println!("{}\n=> {what}", trace.join("\n"));
    assert!(trace[0].contains("begins"), "a story begins with an access: {}", trace[0]);
    assert!(trace.iter().any(|line| line.contains("invalidate p0")));
    assert_eq!(trace.last().map(|line| line.trim_start().trim_start_matches("! ")), Some(what.as_str()));
}

#[test]
fn a_circle_is_told_as_a_story() {
    let report = try_pages(Protocol::DYNAMIC, Fault::WakesAtOnce, Options::default());
    let Verdict::Endless { trace } = report.verdict else {
        panic!("wakes-at-once was not noticed as a circle: {:?}", report.verdict);
    };
    let start = trace.iter().position(|line| line.contains("it repeats")).expect("a circle has a start");
    assert!(trace[start..].iter().any(|line| line.contains("looks again")), "{}", trace.join("\n"));
}
