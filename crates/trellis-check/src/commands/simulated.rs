//! `swarm`, `replay` and `scale`: clusters in virtual time.
//!
//! Promises: a failure is printed with the command that shows it again. It must never print a figure that was not
//! simulated.

use super::explore::protocols;
use super::json_text;
use crate::scale::{self, ScaleRow, Workload, scale};
use crate::simulate::{Seed, Swarm as Sum, replay, swarm};
use clap::{Args, ValueEnum, value_parser};
use std::io::IsTerminal;
use trellis_protocol::coherence::Protocol;

#[derive(Args, Debug)]
pub(super) struct Swarm {
    /// Which protocol; `all` for each that the tests know.
    #[arg(long, default_value = "all")]
    protocol: String,
    /// Seeds of each protocol.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
}

#[derive(Args, Debug)]
pub(super) struct Replay {
    /// As a failure names it: a number, or a protocol and a number, for example `ivy:12345`.
    seed: Seed,
    /// How many of the last lines of its story are printed.
    #[arg(long, default_value_t = 200)]
    lines: usize,
}

#[derive(Args, Debug)]
pub(super) struct Scale {
    /// Which protocol; `all` for each that the tests know.
    #[arg(long, default_value = "all")]
    protocol: String,
    /// Numbers of nodes, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = scale::Options::default().nodes)]
    nodes: Vec<u16>,
    /// What the nodes do; everything unless told.
    #[arg(long, value_enum)]
    workload: Option<WorkloadName>,
    /// Operations of all nodes together.
    #[arg(long, default_value_t = scale::Options::default().operations, value_parser = value_parser!(u32).range(1..))]
    operations: u32,
    /// Stores among a hundred accesses.
    #[arg(long, default_value_t = scale::Options::default().write_percent, value_parser = value_parser!(u8).range(0..=100))]
    write_percent: u8,
    /// From node to node.
    #[arg(long, default_value_t = scale::Options::default().latency_ns)]
    latency_ns: u64,
    /// What a node can send.
    #[arg(long, default_value_t = scale::Options::default().bytes_per_second, value_parser = value_parser!(u64).range(1..))]
    bytes_per_second: u64,
    /// Decides the programs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum WorkloadName {
    Uniform,
    Hot,
    Barrier,
    Lock,
}

pub(super) fn run_swarm(chosen: &Swarm, json: bool) -> Result<bool, String> {
    let mut passed = true;
    for protocol in protocols(&chosen.protocol)? {
        let watched = std::io::stderr().is_terminal();
        let sum = swarm(protocol, chosen.first, chosen.seeds, &mut |sum| {
            if watched && sum.runs % 64 == 0 {
                eprint!("\r\x1b[K{protocol}: {} runs, {} failures ", sum.runs, sum.failures.len());
            }
        });
        if watched {
            eprint!("\r\x1b[K");
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
        println!(
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
        println!(
            "{protocol}: {} runs, {} failures, {} operations, {} steps, hash {:016x}",
            sum.runs,
            complaints.len(),
            sum.operations,
            sum.steps,
            sum.hash
        );
        complaints.iter().for_each(|complaint| println!("  {complaint}"));
    }
}

pub(super) fn run_replay(chosen: &Replay, json: bool) -> bool {
    let (outcome, lines) = replay(chosen.seed, chosen.lines);
    if json {
        let what = outcome.complaint().unwrap_or_else(|| "passed".to_string());
        println!(
            "{{\"seed\": {}, \"scenario\": {}, \"trace_hash\": \"{:016x}\", \"steps\": {}, \"result\": {}}}",
            json_text(&chosen.seed.to_string()),
            json_text(&outcome.scenario.describe()),
            outcome.trace_hash,
            outcome.tally.steps,
            json_text(&what)
        );
    } else {
        println!("{}", outcome.scenario.describe());
        lines.iter().for_each(|line| println!("  {line}"));
        let result = if outcome.passed() { "passed" } else { "failed" };
        println!("{result}; trace hash {:016x}, {} steps", outcome.trace_hash, outcome.tally.steps);
    }
    outcome.passed()
}

pub(super) fn run_scale(chosen: &Scale, json: bool) -> Result<bool, String> {
    let workload = chosen.workload.map(|name| match name {
        WorkloadName::Uniform => Workload::Uniform,
        WorkloadName::Hot => Workload::Hot,
        WorkloadName::Barrier => Workload::Barrier,
        WorkloadName::Lock => Workload::Lock,
    });
    let options = scale::Options {
        nodes: chosen.nodes.clone(),
        protocols: protocols(&chosen.protocol)?,
        workloads: workload.map_or_else(|| Workload::ALL.to_vec(), |workload| vec![workload]),
        operations: chosen.operations,
        write_percent: chosen.write_percent,
        latency_ns: chosen.latency_ns,
        bytes_per_second: chosen.bytes_per_second,
        seed: chosen.seed,
        ..scale::Options::default()
    };
    if !json {
        println!(
            "{:8} {:28} {:>5} {:>10} {:>10} {:>12} {:>10}",
            "workload", "protocol", "nodes", "operations", "messages/o", "bytes/o", "us/o"
        );
    }
    scale(&options, &mut |row| print_row(row, json)).map(|_| true)
}

fn print_row(row: &ScaleRow, json: bool) {
    let protocol = row.protocol.map(|protocol| protocol.to_string());
    if json {
        println!(
            "{{\"workload\": \"{}\", \"protocol\": {}, \"nodes\": {}, \"operations\": {}, \"messages_per_operation\": \
             {:.3}, \"bytes_per_operation\": {:.1}, \"simulated_microseconds_per_operation\": {:.3}, \"steps\": {}}}",
            row.workload,
            protocol.as_deref().map_or_else(|| "null".to_string(), json_text),
            row.nodes,
            row.operations,
            row.messages_per_operation,
            row.bytes_per_operation,
            row.simulated_microseconds_per_operation,
            row.steps
        );
    } else {
        println!(
            "{:8} {:28} {:>5} {:>10} {:>10.2} {:>12.0} {:>10.1}",
            row.workload.to_string(),
            protocol.as_deref().unwrap_or("-"),
            row.nodes,
            row.operations,
            row.messages_per_operation,
            row.bytes_per_operation,
            row.simulated_microseconds_per_operation
        );
    }
}
