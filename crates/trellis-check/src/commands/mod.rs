//! The command line: `trellis-check …`, and `trellis check …` with the same words.
//!
//! Promises: exit status 0 when everything passed (for `mutants`: when each was noticed), 1 when something did not, 2
//! when the command makes no sense, with a sentence on standard error. With `--json` there is one object per line on
//! standard output and nothing else. It must never decide what a result means: the modules that find it do.

mod explore;
mod history;
mod litmus;
mod mutants;
pub mod real;
mod simulated;

use crate::explore::Options;
use crate::litmus::json_text;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// What `trellis check` is told.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print results as JSON, one object per line.
    #[arg(long, global = true)]
    json: bool,
    /// Give up beyond so many states of an exploration.
    #[arg(long, global = true, default_value_t = 200_000_000)]
    states_max: u64,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Visit every state that a small cluster with a coherence protocol can reach.
    Explore(explore::Explore),
    /// The same for locks, barriers and atomic words.
    Sync(explore::Synchronise),
    /// Run litmus tests, in the simulator or on real processes.
    Litmus(litmus::Litmus),
    /// Check that one order of all loads and exchanges explains what real processes saw.
    History(history::HistoryArguments),
    /// Break the protocols in every known way and expect the explorer to notice.
    Mutants(mutants::Mutants),
    /// Simulate clusters with faults, one for each seed.
    Swarm(simulated::Swarm),
    /// Simulate the cluster of one seed again and tell what happens.
    Replay(simulated::Replay),
    /// Simulate clusters of 2 to 1,024 nodes and print what operations cost.
    Scale(simulated::Scale),
}

/// Carries out one command. Those that need processes get them from `real`.
pub fn run(arguments: &Arguments, real: Option<&mut dyn real::RealProcesses>) -> ExitCode {
    let options = Options { states_max: arguments.states_max, ..Options::default() };
    let result = match &arguments.command {
        Command::Explore(chosen) => explore::run(chosen, options, arguments.json),
        Command::Sync(chosen) => Ok(explore::run_sync(chosen, options, arguments.json)),
        Command::Litmus(chosen) => litmus::run(chosen, real, arguments.json),
        Command::History(chosen) => history::run(chosen, real, arguments.json),
        Command::Mutants(chosen) => mutants::run(chosen, options, arguments.json),
        Command::Swarm(chosen) => simulated::run_swarm(chosen, arguments.json),
        Command::Replay(chosen) => Ok(simulated::run_replay(chosen, arguments.json)),
        Command::Scale(chosen) => simulated::run_scale(chosen, arguments.json),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("trellis check: {sentence}");
            ExitCode::from(2)
        }
    }
}
