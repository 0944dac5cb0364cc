//! The executable `trellis-bench`: the subcommands `bench`, `reproduce` and `check` of the command, and the processes that
//! they start. The command executes it.
//!
//! Promises: output, messages and exit codes are those of the command.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trellis_bench::{BenchArguments, CheckArguments, ReproduceArguments};
use trellis_command::ending;

#[derive(Debug, Parser)]
#[command(name = "trellis", bin_name = "trellis", version, max_term_width = 120)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(BenchArguments),
    Reproduce(ReproduceArguments),
    Check(CheckArguments),
    /// A node of `trellis bench`
    #[command(hide = true)]
    BenchNode {
        /// The task as JSON
        task: String,
    },
    /// The process in which a benchmark makes its labs
    #[command(hide = true)]
    BenchInside {
        /// The task as JSON
        task: String,
    },
}

fn main() -> ExitCode {
    ending::take_file_limits_as_errors();
    ending::status(match CommandLine::parse().command {
        Command::Bench(arguments) => trellis_bench::bench(&arguments),
        Command::Reproduce(arguments) => trellis_bench::reproduce(&arguments),
        // It decides its exit status itself.
        Command::Check(arguments) => return trellis_bench::check(&arguments),
        Command::BenchNode { task } => trellis_bench::run_node(&task),
        Command::BenchInside { task } => trellis_bench::run_inside(&task),
    })
}
