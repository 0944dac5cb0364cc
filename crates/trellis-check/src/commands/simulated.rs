//! The commands `swarm` and `replay`: random clusters in virtual time.
//!
//! Promises: a failure is printed with the command that reproduces it. It must never print a figure that was not
//! simulated.

use super::explore::protocols;
use super::{json_text, lease, release};
use crate::simulate::{FAILURES_MAX, Seed, Swarm as Sum, replay, swarm};
use clap::{Args, value_parser};
use std::io::IsTerminal;
use std::ops::Range;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_output::lines::say;

#[derive(Args, Debug)]
pub(super) struct Swarm {
    /// The protocol; `all` for each that the tests cover; `lease` for leases of remote memory.
    #[arg(long, default_value = "all")]
    protocol: String,
    /// Number of seeds for each protocol.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
}

#[derive(Args, Debug)]
pub(super) struct Replay {
    /// The seed as a failure names it: a number, or a protocol and a number, for example `ivy:12345`.
    seed: String,
    /// Number of last lines of the trace to print.
    #[arg(long, default_value_t = 200)]
    lines: usize,
}

pub(super) fn run_swarm(chosen: &Swarm, json: bool) -> Result<bool, String> {
    let seeds = chosen.first..chosen.first + chosen.seeds;
    if chosen.protocol == lease::LEASE {
        return Ok(lease::run_swarm(seeds, json));
    }
    let mut passed = true;
    for protocol in protocols(&chosen.protocol)? {
        if protocol.is_release_consistent() {
            passed &= release::run_swarm(protocol, seeds.clone(), json);
            continue;
        }
        let watched = std::io::stderr().is_terminal();
        let sum = swarm(protocol, chosen.first, chosen.seeds, &mut |sum| {
            if watched && sum.runs % 64 == 0 {
                progress!("\r\x1b[K{protocol}: {} runs, {} failures ", sum.runs, sum.failures.len());
            }
        });
        if watched {
            progress!("\r\x1b[K");
        }
        passed &= sum.failures.is_empty();
        print_swarm(protocol, &sum, json);
    }
    Ok(passed)
}

fn print_swarm(protocol: Protocol, sum: &Sum, json: bool) {
    let complaints: Vec<String> = sum.failures.iter().filter_map(|outcome| outcome.complaint()).collect();
    if json {
        let complaints: Vec<String> = complaints.iter().map(|complaint| json_text(complaint)).collect();
        say!(
            "{{\"protocol\": {}, \"runs\": {}, \"failures\": [{}], \"steps\": {}, \"operations\": {}, \
             \"overtaken_max\": {}, \"hash\": \"{:016x}\"}}",
            json_text(&protocol.to_string()),
            sum.runs,
            complaints.join(", "),
            sum.steps,
            sum.operations,
            sum.overtaken_max,
            sum.hash
        );
    } else {
        say!(
            "{protocol}: {} runs, {} failures, {} operations, {} steps, hash {:016x}",
            sum.runs,
            complaints.len(),
            sum.operations,
            sum.steps,
            sum.hash
        );
        complaints.iter().for_each(|complaint| say!("  {complaint}"));
    }
}

/// Runs the clusters of these seeds, until too many have failed, and prints what came of them; returns whether all
/// passed. `run` returns the complaint about a seed, if there is one, and what is counted of it.
pub(super) fn run_seeds<const N: usize>(
    name: &str,
    seeds: Range<u64>,
    counted: [&str; N],
    json: bool,
    mut run: impl FnMut(u64) -> (Option<String>, [u64; N]),
) -> bool {
    let watched = std::io::stderr().is_terminal();
    let (mut runs, mut sums, mut complaints) = (0, [0; N], Vec::new());
    for number in seeds {
        let (complaint, counts) = run(number);
        runs += 1;
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        complaints.extend(complaint);
        if watched && runs % 64 == 0 {
            progress!("\r\x1b[K{name}: {runs} runs, {} failures ", complaints.len());
        }
        if complaints.len() == FAILURES_MAX {
            break;
        }
    }
    if watched {
        progress!("\r\x1b[K");
    }
    let sums = counted.into_iter().zip(sums);
    if json {
        let complaints: Vec<String> = complaints.iter().map(|complaint| json_text(complaint)).collect();
        let sums: String = sums.map(|(what, sum)| format!(", \"{what}\": {sum}")).collect();
        let (name, failures) = (json_text(name), complaints.join(", "));
        say!("{{\"protocol\": {name}, \"runs\": {runs}, \"failures\": [{failures}]{sums}}}");
    } else {
        let sums: String = sums.map(|(what, sum)| format!(", {sum} {what}")).collect();
        say!("{name}: {runs} runs, {} failures{sums}", complaints.len());
        complaints.iter().for_each(|complaint| say!("  {complaint}"));
    }
    complaints.is_empty()
}

pub(super) fn run_replay(chosen: &Replay, json: bool) -> Result<bool, String> {
    if let Some(result) = lease::run_replay(&chosen.seed, chosen.lines, json) {
        return result;
    }
    let seed: Seed = chosen.seed.parse()?;
    if let Some(passed) = release::run_replay(seed, chosen.lines, json) {
        return Ok(passed);
    }
    let (outcome, lines) = replay(seed, chosen.lines);
    if json {
        let what = outcome.complaint().unwrap_or_else(|| "passed".to_string());
        say!(
            "{{\"seed\": {}, \"scenario\": {}, \"trace_hash\": \"{:016x}\", \"steps\": {}, \"result\": {}}}",
            json_text(&seed.to_string()),
            json_text(&outcome.scenario.describe()),
            outcome.trace_hash,
            outcome.tally.steps,
            json_text(&what)
        );
    } else {
        say!("{}", outcome.scenario.describe());
        lines.iter().for_each(|line| say!("  {line}"));
        let result = if outcome.passed() { "passed" } else { "failed" };
        say!("{result}; trace hash {:016x}, {} steps", outcome.trace_hash, outcome.tally.steps);
    }
    Ok(outcome.passed())
}

/// The run of a seed.
pub(super) struct Replayed<'a> {
    pub(super) seed: &'a str,
    pub(super) cluster: &'a str,
    pub(super) steps: u64,
    pub(super) story: &'a [String],
    pub(super) result: &'a str,
}

/// Prints the last lines of a run, and how it ended.
pub(super) fn print_replay(replayed: &Replayed<'_>, lines: usize, json: bool) {
    let Replayed { seed, cluster, steps, story, result } = replayed;
    if json {
        let (seed, scenario, result) = (json_text(seed), json_text(cluster), json_text(result));
        say!("{{\"seed\": {seed}, \"scenario\": {scenario}, \"steps\": {steps}, \"result\": {result}}}");
        return;
    }
    say!("{seed}: {cluster}");
    let before = story.len().saturating_sub(lines);
    if before > 0 {
        say!("  … {before} lines before");
    }
    story[before..].iter().for_each(|line| say!("  {line}"));
    say!("{result}; {steps} steps");
}
