//! The command line: `trellis-check …`, and `trellis check …` with the same commands.
//!
//! Promises: exit status 0 when everything passed (for `mutants`: when each was noticed), 1 when something did not, 2
//! when the command makes no sense, 74 when a file cannot be written, with a sentence on standard error. With `--json`
//! there is one object per line on standard output and nothing else. It must never decide what a result means: the
//! modules that produce it do.

/// Shows progress on standard error. Errors are ignored: a closed terminal is no reason to stop the work.
macro_rules! progress {
    ($($argument:tt)*) => {{
        let _ = ::std::io::Write::write_fmt(&mut ::std::io::stderr(), ::std::format_args!($($argument)*));
    }};
}

mod explore;
mod history;
mod lease;
mod litmus;
mod mutants;
pub mod real;
mod release;
mod scale;
mod side_by_side;
mod simulated;
mod turns;

use crate::explore::Options;
use crate::litmus::json_text;
use clap::{Args, Subcommand};
use std::process::ExitCode;
use trellis_output::exit::{self, Failure};
use trellis_output::lines::whole_line;

/// The arguments of `trellis check`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print results as JSON, one object per line.
    #[arg(long, global = true)]
    json: bool,
}

/// The bound on the size of an exploration.
#[derive(Args, Clone, Copy, Debug)]
struct Bound {
    /// Give up an exploration beyond this number of states.
    #[arg(long, default_value_t = 200_000_000)]
    states_max: u64,
}

impl Bound {
    fn options(self) -> Options {
        Options { states_max: self.states_max, ..Options::default() }
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Visit every state that a small cluster with a coherence protocol can reach.
    Explore(explore::Explore),
    /// Visit every state of a small cluster with locks, barriers and atomic words.
    Sync(explore::Synchronise),
    /// Visit every state of a small cluster that nodes join and leave.
    Members(explore::ComeAndGo),
    /// Visit every state of a small cluster whose programs allocate and free blocks of the shared heap.
    Heap(explore::AllocateAndFree),
    /// Visit every state of a small cluster at the end of a program with threads at several nodes.
    Ends(Bound),
    /// Run litmus tests, in the simulator or on real processes.
    Litmus(litmus::Litmus),
    /// Check that one order of all loads and exchanges explains what real processes saw.
    History(history::HistoryArguments),
    /// Break the protocols in every known way and expect the explorer to notice.
    Mutants(mutants::Mutants),
    /// Simulate random clusters with faults, one for each seed.
    Swarm(simulated::Swarm),
    /// Simulate the cluster of one seed again and print what happens.
    Replay(simulated::Replay),
    /// Simulate clusters of 2 to 1,024 nodes; print and draw what operations cost.
    Scale(scale::Scale),
    /// Pass a page between two nodes without a cluster, for tools that count instructions.
    Turns(turns::Turns),
}

/// Runs one command. `host` does what this crate cannot do alone: it starts processes and draws.
pub fn run(arguments: &Arguments, host: Option<&mut dyn real::Host>) -> ExitCode {
    let json = arguments.json;
    let result = match &arguments.command {
        Command::Explore(chosen) => explore::run(chosen, json).map_err(refused),
        Command::Sync(chosen) => Ok(explore::run_sync(chosen, json)),
        Command::Members(chosen) => Ok(explore::run_members(chosen, json)),
        Command::Heap(chosen) => Ok(explore::run_heap(chosen, json)),
        Command::Ends(chosen) => Ok(explore::run_ends(*chosen, json)),
        Command::Litmus(chosen) => litmus::run(chosen, host, json).map_err(refused),
        Command::History(chosen) => history::run(chosen, host, json),
        Command::Mutants(chosen) => mutants::run(chosen, json).map_err(refused),
        Command::Swarm(chosen) => simulated::run_swarm(chosen, json).map_err(refused),
        Command::Replay(chosen) => simulated::run_replay(chosen, json).map_err(refused),
        Command::Scale(chosen) => scale::run(chosen, host, json),
        Command::Turns(chosen) => turns::run(chosen, json).map_err(refused),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            whole_line(format_args!("trellis check: {failure}"));
            ExitCode::from(failure.code)
        }
    }
}

/// A command that makes no sense.
fn refused(sentence: String) -> Failure {
    Failure::new(exit::USAGE, sentence)
}
