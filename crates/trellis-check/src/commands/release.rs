//! The commands `explore` and `swarm` for protocols with release consistency.
//!
//! Promises: the first line says what was explored or generated. It must never count a setup as explored that was cut
//! short.

use super::simulated::{Replayed, print_replay, run_seeds};
use crate::explore::Options;
use crate::release::explore::Orders;
use crate::release::scripts::{Program, Size, homes, setup};
use crate::release::{Fault, Setup, Troubles, swarm};
use crate::simulate::Seed;
use clap::{Args, ValueEnum, value_parser};
use std::ops::Range;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{Home, Manager};

/// The options of `explore` for protocols with release consistency.
#[derive(Args, Debug)]
pub(super) struct Release {
    /// With release consistency: what the threads do; by default all programs.
    #[arg(long, value_enum)]
    program: Vec<Program>,
    /// With release consistency: intervals of each node.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u8).range(1..=4))]
    intervals: u8,
    /// With release consistency: how stores are noticed; by default both ways.
    #[arg(long, value_enum)]
    noticing: Option<Noticing>,
    /// With release consistency: read the bytes of pages only when they arrive.
    #[arg(long)]
    late_bytes: bool,
    /// With release consistency: how often threads give up waiting for a publication or a change, all together.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u8).range(0..=8))]
    give_ups: u8,
    /// With release consistency: how often nodes object to a change, all together.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u8).range(0..=4))]
    objections: u8,
    /// With release consistency: let threads also give up where nobody knows then whether all nodes change, and end.
    #[arg(long)]
    may_disagree: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Noticing {
    Marks,
    Faults,
}

/// The options of `explore` that all protocols share.
pub(super) struct Shared {
    pub(super) protocol: Protocol,
    pub(super) nodes: u16,
    pub(super) pages: u32,
    /// `None` for all.
    pub(super) home: Option<Home>,
    pub(super) is_wide: bool,
    pub(super) late_faults: bool,
}

/// Every setup that the options select, with the name of its program.
pub(super) fn setups(chosen: &Release, shared: &Shared) -> Vec<(String, Setup)> {
    let programs: &[Program] = if chosen.program.is_empty() { &Program::ALL } else { &chosen.program };
    let homes = shared.home.map_or_else(|| homes().to_vec(), |home| vec![home]);
    let size = Size { nodes: shared.nodes, pages: shared.pages as u8, intervals: chosen.intervals };
    let mut all = Vec::new();
    for &program in programs {
        for &home in &homes {
            for noticing in [Noticing::Faults, Noticing::Marks] {
                if chosen.noticing.is_some_and(|only| only != noticing) {
                    continue;
                }
                let setup = Setup {
                    is_wide: shared.is_wide,
                    late_faults: shared.late_faults,
                    late_bytes: chosen.late_bytes,
                    troubles: Troubles { give_ups: chosen.give_ups, objections: chosen.objections },
                    may_disagree: chosen.may_disagree,
                    ..setup(shared.protocol, program, size, home, noticing == Noticing::Marks)
                };
                all.push((
                    format!("{} program={} intervals={}", setup.describe(), program.name(), size.intervals),
                    setup,
                ));
            }
        }
    }
    all
}

/// The manager with this number.
pub(super) fn manager(number: u16) -> Home {
    Home::Manager(Manager(NodeId(number)))
}

/// Explores all setups; returns whether all passed.
pub(super) fn explore(chosen: &Release, shared: &Shared, options: Options, json: bool) -> bool {
    super::explore::show_all(&setups(chosen, shared), |setup| Orders::new(setup.clone()), options, json)
}

/// Runs random clusters; returns whether all passed.
pub(super) fn run_swarm(protocol: Protocol, seeds: Range<u64>, json: bool) -> bool {
    run_seeds(&protocol.to_string(), seeds, ["operations", "steps"], json, |number| {
        let outcome = swarm::run(protocol, number, Fault::None, false);
        (outcome.complaint(), [outcome.operations, outcome.steps])
    })
}

/// Prints the last lines of the run of a seed, if its protocol has release consistency.
pub(super) fn run_replay(seed: Seed, lines: usize, json: bool) -> Option<bool> {
    let protocol = seed.protocol.filter(|protocol| protocol.is_release_consistent())?;
    let outcome = swarm::run(protocol, seed.number, Fault::None, true);
    let result = outcome.complaint().unwrap_or_else(|| "passed".to_string());
    let swarm::Outcome { cluster, steps, story, .. } = &outcome;
    print_replay(&Replayed { seed: &seed.to_string(), cluster, steps: *steps, story, result: &result }, lines, json);
    Some(outcome.problem.is_none())
}
