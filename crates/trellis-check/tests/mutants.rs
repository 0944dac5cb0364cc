//! Every mutant is noticed; the wrapper without a mutation is not complained about.

use trellis_check::explore::{Options, Verdict, explore};
use trellis_check::mutants::{
    Fault, Mutant, SyncFault, SyncMutant, TABLE, noticed, page_instances, sync_instance, try_mutant,
};
use trellis_check::synchronisation::Program;
use trellis_protocol::coherence::Protocol;

#[test]
fn every_mutant_is_noticed() {
    let mut missed = Vec::new();
    for row in TABLE {
        let report = try_mutant(&row, Options::default());
        println!("{:20} {:>8} states: {:?}", row.name, report.states, noticed(&report));
        if noticed(&report).is_none() {
            missed.push(row.name);
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}

#[test]
fn names_of_mutants_are_different() {
    for (index, row) in TABLE.iter().enumerate() {
        assert!(TABLE[..index].iter().all(|other| other.name != row.name), "{} is there twice", row.name);
    }
}

#[test]
fn the_canary_passes_where_the_mutants_fail() {
    for protocol in Protocol::ALL {
        for instance in page_instances(protocol) {
            let start = |geometry| Mutant::new(protocol.start(geometry), geometry, Fault::None);
            let wrapped = explore(&mut instance.model_of(start), Options::default(), &mut |_| {});
            let real = explore(&mut instance.model(), Options::default(), &mut |_| {});
            assert!(wrapped.passed() && real.passed(), "{}: {:?}", instance.describe(), wrapped.verdict);
            assert_eq!(wrapped.states, real.states, "{}", instance.describe());
        }
    }
    for program in [Program::Locks, Program::Barrier, Program::Words] {
        let start = |me, nodes| SyncMutant::new(me, nodes, SyncFault::None);
        let report = explore(&mut sync_instance(program).model_of(start), Options::default(), &mut |_| {});
        assert!(report.passed(), "{program:?}: {:?}", report.verdict);
    }
}

#[test]
fn a_violation_is_told_as_a_story() {
    let row = TABLE.iter().find(|row| row.name == "keeps-copy").expect("it is in the table");
    let Verdict::Broken { what, trace } = try_mutant(row, Options::default()).verdict else {
        panic!("{} was not noticed", row.name);
    };
    println!("{}\n=> {what}", trace.join("\n"));
    assert!(trace[0].contains("begins"), "a story begins with an access: {}", trace[0]);
    assert!(trace.iter().any(|line| line.contains("invalidate page 0")));
    assert_eq!(trace.last().map(|line| line.trim_start().trim_start_matches("! ")), Some(what.as_str()));
}
