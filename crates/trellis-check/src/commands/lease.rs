//! The commands `explore`, `swarm`, `replay` and `mutants` for leases.
//!
//! Promises: the first line says what was explored or generated. It must never count a setup as explored that was cut
//! short.

use super::simulated::{Replayed, print_replay, run_seeds};
use crate::explore::Options;
use crate::leases::explore::Orders;
use crate::leases::{Fault, shapes, swarm};
use clap::Args;
use std::ops::Range;

/// The name of leases of remote memory in `--protocol`.
pub(super) const LEASE: &str = "lease";

/// The options of `explore` for leases.
#[derive(Args, Debug)]
pub(super) struct Lease {
    /// With `--protocol lease`: only the cluster with this name; by default all.
    #[arg(long)]
    cluster: Option<String>,
    /// With `--protocol lease`: only the clusters with thousands of states.
    #[arg(long)]
    small: bool,
}

/// Explores the clusters; returns whether all passed.
pub(super) fn explore(chosen: &Lease, options: Options, json: bool) -> Result<bool, String> {
    let mut setups = if chosen.small { shapes::small() } else { shapes::all() };
    if let Some(name) = &chosen.cluster {
        setups.retain(|setup| setup.name == *name);
    }
    if setups.is_empty() {
        let names: Vec<String> = shapes::all().into_iter().map(|setup| setup.name).collect();
        return Err(format!("--cluster: there is none of that name; there are {}", names.join(", ")));
    }
    let setups: Vec<_> = setups.into_iter().map(|setup| (setup.describe(), setup)).collect();
    Ok(super::explore::show_all(&setups, |setup| Orders::new(setup.clone()), options, json))
}

/// Runs random clusters; returns whether all passed.
pub(super) fn run_swarm(seeds: Range<u64>, json: bool) -> bool {
    let counted = ["operations", "commits", "splits", "merges", "steps"];
    run_seeds(LEASE, seeds, counted, json, |number| {
        let outcome = swarm::run(number, Fault::None, false);
        let swarm::Outcome { operations, commits, parts: (splits, merges), steps, .. } = outcome;
        (outcome.complaint(), [operations, commits, splits, merges, steps])
    })
}

/// Prints the last lines of the run of a seed, if it is a seed of leases: `lease:7`.
pub(super) fn run_replay(seed: &str, lines: usize, json: bool) -> Option<Result<bool, String>> {
    let number = seed.strip_prefix(LEASE)?.strip_prefix(':')?;
    let Ok(number) = number.parse() else { return Some(Err(format!("{seed}: `{number}` is not a number"))) };
    let outcome = swarm::run(number, Fault::None, true);
    let result = outcome.complaint().unwrap_or_else(|| "passed".to_string());
    let swarm::Outcome { cluster, steps, story, .. } = &outcome;
    print_replay(&Replayed { seed, cluster, steps: *steps, story, result: &result }, lines, json);
    Some(Ok(outcome.problem.is_none()))
}
