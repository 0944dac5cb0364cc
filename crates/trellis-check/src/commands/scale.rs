//! The command `scale`: the cost of operations on clusters of different sizes, as a table, a chart and a picture.
//!
//! Promises: a file that cannot be written is noticed before anything is simulated. It must never print or draw a
//! figure that was not simulated.

use super::explore::protocols;
use super::real::Host;
use super::{json_text, refused};
use crate::scale::{self, ScaleRow, Workload, chart, scale};
use clap::{Args, ValueEnum, value_parser};
use std::io::IsTerminal;
use std::path::PathBuf;
use trellis_output::exit::Failure;
use trellis_output::files;
use trellis_output::lines::say;

#[derive(Args, Debug)]
pub(super) struct Scale {
    /// The protocol; `all` for each that the tests cover.
    #[arg(long, default_value = "all")]
    protocol: String,
    /// Numbers of nodes, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16,32,64,128,256,512,1024")]
    nodes: Vec<u16>,
    /// What the nodes do; by default all workloads.
    #[arg(long, value_enum)]
    workload: Option<WorkloadName>,
    /// Operations of all nodes together.
    #[arg(long, default_value_t = scale::Options::default().operations, value_parser = value_parser!(u32).range(1..))]
    operations: u32,
    /// Stores among a hundred accesses.
    #[arg(long, default_value_t = scale::Options::default().write_percent, value_parser = value_parser!(u8).range(0..=100))]
    write_percent: u8,
    /// Latency from node to node.
    #[arg(long, default_value_t = scale::Options::default().latency_ns)]
    latency_ns: u64,
    /// Bytes per second that a node can send.
    #[arg(long, default_value_t = scale::Options::default().bytes_per_second, value_parser = value_parser!(u64).range(1..))]
    bytes_per_second: u64,
    /// Selects the programs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also draw the results as an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw the results in characters below the table, even if standard output is not a terminal.
    #[arg(long)]
    chart: bool,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum WorkloadName {
    Uniform,
    Hot,
    Barrier,
    Lock,
}

/// Simulates all sizes; prints each row when it is ready, and draws at the end.
pub(super) fn run(chosen: &Scale, host: Option<&mut dyn Host>, json: bool) -> Result<bool, Failure> {
    if json && chosen.chart {
        let sentence = "--chart: with --json there are objects and nothing else; choose one of them";
        return Err(refused(sentence.into()));
    }
    let options = options(chosen).map_err(refused)?;
    options.check().map_err(refused)?;
    let drawing = match (&chosen.svg, host) {
        (None, _) => None,
        (Some(file), Some(host)) => {
            files::expect_writable(file)?;
            Some((file, host))
        }
        (Some(_), None) => {
            let sentence = "this command draws no files; use `trellis check scale --svg`, or --chart";
            return Err(refused(sentence.into()));
        }
    };
    if !json {
        say!(
            "{:8} {:34} {:>5} {:>10} {:>10} {:>12} {:>10}",
            "workload",
            "protocol",
            "nodes",
            "operations",
            "messages/o",
            "bytes/o",
            "us/o"
        );
    }
    let rows = scale(&options, &mut |row| print_row(row, json)).map_err(refused)?;
    if !json && (chosen.chart || std::io::stdout().is_terminal()) {
        chart::lines(&rows).iter().for_each(|line| say!("{line}"));
    }
    if let Some((file, host)) = drawing {
        files::write(file, host.picture_of(&rows))?;
    }
    Ok(true)
}

fn options(chosen: &Scale) -> Result<scale::Options, String> {
    let workload = chosen.workload.map(|name| match name {
        WorkloadName::Uniform => Workload::Uniform,
        WorkloadName::Hot => Workload::Hot,
        WorkloadName::Barrier => Workload::Barrier,
        WorkloadName::Lock => Workload::Lock,
    });
    Ok(scale::Options {
        nodes: chosen.nodes.clone(),
        protocols: protocols(&chosen.protocol)?,
        workloads: workload.map_or_else(|| Workload::ALL.to_vec(), |workload| vec![workload]),
        operations: chosen.operations,
        write_percent: chosen.write_percent,
        latency_ns: chosen.latency_ns,
        bytes_per_second: chosen.bytes_per_second,
        seed: chosen.seed,
        ..scale::Options::default()
    })
}

fn print_row(row: &ScaleRow, json: bool) {
    let protocol = row.protocol.map(|protocol| protocol.to_string());
    if json {
        say!(
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
        say!(
            "{:8} {:34} {:>5} {:>10} {:>10.2} {:>12.0} {:>10.1}",
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
