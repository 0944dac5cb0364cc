//! `trellis-check`: the command line of this crate alone, with the commands of `trellis check`.

use clap::Parser;
use std::process::ExitCode;
use trellis_check::commands::{Arguments, run};

/// Verifies protocols and tries to break them.
///
/// Example: trellis-check explore --nodes 3 --pages 2 --operations 2
#[derive(Parser)]
#[command(name = "trellis-check", verbatim_doc_comment)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    run(&CommandLine::parse().arguments, None)
}
