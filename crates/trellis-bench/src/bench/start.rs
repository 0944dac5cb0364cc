//! `trellis bench start`: how long a run takes whose program does nothing but join and leave.
//!
//! Promises: what is timed is the command as a user types it, from its start until it has ended. The yardstick is the
//! same number of processes of the same program, started at once and without a launcher, that end without joining.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::bench::cluster::{Common, JOINER, own_program};
use crate::bench::figures::{Figures, p50};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::installed;

const EXAMPLES: &str = "\
Examples:
  trellis bench start
  trellis bench start --nodes 4 --set link=tcp --json";

/// Time a run whose program only joins and leaves
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StartArguments {
    /// Nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) nodes: u8,
    /// How often it runs
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &StartArguments) -> Ending {
    let (program, common) = (own_program()?, &arguments.common);
    let settings =
        [("catch", &common.catcher), ("security", &common.security)].map(|(key, value)| format!("{key}={value}"));
    let settings: Vec<String> =
        settings.into_iter().chain(common.set.iter().map(|(key, value)| format!("{key}={value}"))).collect();
    let mut run = Command::new(installed::command()?);
    run.args(["run", "-n", &arguments.nodes.to_string()]);
    run.args(settings.iter().flat_map(|setting| ["--set", setting]))
        .arg("--")
        .arg(&program)
        .args(["bench-node", JOINER]);
    let mut alone = Command::new(&program);
    alone.arg("--version");
    let (mut runs, mut processes) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        runs.push(milliseconds(&mut run, 1)?);
        processes.push(milliseconds(&mut alone, arguments.nodes)?);
    }
    let mut figures = Figures::new("start");
    figures.add("run_ms_p50", p50(runs), "run of a program that joins and leaves (ms, median)");
    figures.add("processes_ms_p50", p50(processes), "as many processes that only start (ms, median)");
    figures.add_value("nodes", arguments.nodes, "nodes");
    figures.print(common.json)
}

/// How long it takes until this many processes of a command, started at once, have ended well.
fn milliseconds(command: &mut Command, count: u8) -> Result<f64, Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let shown = format!("{command:?}");
    let failed = |what: &str| Failure::new(exit::CLUSTER, format!("`{shown}` {what}"));
    let begin = Instant::now();
    let started: Result<Vec<Child>, Failure> = (0..count)
        .map(|_| {
            command.spawn().map_err(|error| Failure::new(exit::SYSTEM, format!("a process cannot be started: {error}")))
        })
        .collect();
    for mut child in started? {
        match child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(failed(&format!("ended with {status}; its own message says why"))),
            Err(error) => return Err(failed(&format!("cannot be waited for: {error}"))),
        }
    }
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}
