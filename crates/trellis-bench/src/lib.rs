//! What the `trellis` command measures: benchmarks, the tables and figures of papers, and checks on real processes.
//!
//! Promises: every figure comes from a run of real processes, links and files on this machine, or says that it is from a
//! paper. A benchmark starts its nodes with its own executable, `trellis-bench`, whose hidden subcommands call [`run_node`]
//! and [`run_inside`]. It also needs the command beside it.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod check;
mod reproduce;

use clap::Args;
use trellis_command::exit::Ending;

pub use bench::node::run as run_node;
pub use bench::switch::inside::run as run_inside;
pub use check::{CheckArguments, check};

/// Measure this machine
#[derive(Debug, Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    benchmark: bench::Benchmark,
}

/// Runs the `bench` subcommand.
pub fn bench(arguments: &BenchArguments) -> Ending {
    bench::run(&arguments.benchmark)
}

/// Repeat the tables and figures of a paper, with its numbers beside ours
#[derive(Debug, Args)]
pub struct ReproduceArguments {
    #[command(subcommand)]
    paper: reproduce::Paper,
}

/// Runs the `reproduce` subcommand.
pub fn reproduce(arguments: &ReproduceArguments) -> Ending {
    reproduce::run(&arguments.paper)
}
