//! `trellis bench hosts`: how long `trellis run --hosts` takes until the program runs, beyond what ssh itself takes, and
//! until it ends when a host vanishes.
//!
//! Promises: the hosts are those of a lab with the system's ssh, and end with the benchmark. It times the command as a
//! user types it. The yardstick is one login to each host, all at once, from the same host.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::bench::figures::{Figures, p50};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::installed;

const EXAMPLES: &str = "\
Examples:
  trellis bench hosts
  trellis bench hosts --hosts 16 --tree --json";

/// Time the start of a program on several hosts by ssh; needs root and openssh-server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HostsArguments {
    /// Hosts, each with one node
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=64))]
    hosts: u8,
    /// Reach hosts from other hosts
    #[arg(long)]
    tree: bool,
    /// How often it runs
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A lab that ends with this value.
pub(super) struct Lab {
    name: String,
}

impl Lab {
    /// Makes one with `--ssh` or `--slurm`.
    pub(super) fn up(hosts: u8, servers: &str) -> Result<Lab, Failure> {
        let lab = Lab { name: format!("bench-{}", std::process::id()) };
        let output = lab.task("up")?.args(["--clients", &hosts.to_string(), "--servers", "0", servers]).output();
        let output = output.map_err(|error| Failure::new(exit::SYSTEM, format!("a lab cannot be made: {error}")))?;
        if output.status.success() {
            return Ok(lab);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Failure::new(exit::SYSTEM, said.trim().trim_start_matches("trellis: ").to_owned()))
    }

    /// A task of `trellis lab`.
    pub(super) fn task(&self, task: &str) -> Result<Command, Failure> {
        let mut command = Command::new(installed::command()?);
        command.args(["lab", task, "--lab", &self.name]).stdin(Stdio::null());
        Ok(command)
    }

    /// A script of the shell, on the first host.
    fn script(&self, script: &str) -> Result<Command, Failure> {
        let mut command = self.task("run")?;
        command.args(["c1", "--", "sh", "-c", script]).arg(installed::command()?);
        Ok(command)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Whatever it says, there is nothing more to do.
        let _ = self.task("down").map(|mut down| down.stdout(Stdio::null()).status());
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &HostsArguments) -> Ending {
    let lab = Lab::up(arguments.hosts, "--ssh")?;
    let names: Vec<String> = (1..=arguments.hosts).map(|host| format!("c{host}")).collect();
    let logins: String = names.iter().map(|name| format!("$TRELLIS_LAB_SSH {name} echo up & ")).collect();
    let logins = format!("{logins}wait");
    let tree = if arguments.tree { "--tree " } else { "" };
    let run = format!("exec \"$0\" run --ssh \"$TRELLIS_LAB_SSH\" {tree}--hosts {}", names.join(","));
    let start = format!("{run} echo up");
    let (mut lines, mut wholes, mut logged_in) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        logged_in.push(timed(lab.script(&logins)?, usize::from(arguments.hosts))?.1);
        let (line, whole) = timed(lab.script(&start)?, usize::from(arguments.hosts))?;
        lines.push(line);
        wholes.push(whole);
    }
    let vanished = vanished_seconds(&lab, &run, &names)?;
    let (login, line) = (p50(logged_in), p50(lines));
    let mut figures = Figures::new("hosts");
    figures.add("login_ms_p50", login, "one login to each host, all at once (ms, median)");
    figures.add("first_line_ms_p50", line, "first line of the program (ms, median)");
    figures.add("beyond_login_ms", line - login, "the same, beyond the logins (ms)");
    figures.add("run_ms_p50", p50(wholes), "the whole run (ms, median)");
    figures.add(
        "vanished_s",
        vanished,
        "from the loss of a host to the end with its name; the limit of silence is 10 s (s)",
    );
    figures.add_value("hosts", arguments.hosts, "hosts");
    figures.print(arguments.json)
}

/// How long a run goes on after the last host was cut off. It must end with the name of that host.
fn vanished_seconds(lab: &Lab, run: &str, names: &[String]) -> Result<f64, Failure> {
    let failed = |why: String| Failure::new(exit::CLUSTER, format!("a host of the lab was cut off: {why}"));
    let mut command = lab.script(&format!("{run} sh -c 'echo up; exec sleep 600'"))?;
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| failed(error.to_string()))?;
    let mut output = BufReader::new(child.stdout.take().expect("it was asked for"));
    for _ in names {
        output.read_line(&mut String::new()).map_err(|error| failed(error.to_string()))?;
    }
    let (last, others) = names.split_last().ok_or_else(|| failed("there is none".to_owned()))?;
    let cut = lab.task("partition")?.args([&others.join(","), last]).status();
    let begin = Instant::now();
    if !cut.is_ok_and(|status| status.success()) {
        return Err(failed("the lab refused that".to_owned()));
    }
    let ended = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    let time = begin.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&ended.stderr);
    let is_named = said.lines().last().is_some_and(|line| line.contains(&format!(" on {last})")));
    if is_named { Ok(time) } else { Err(failed(format!("the run ended with {}, and said {said:?}", ended.status))) }
}

/// The milliseconds until the first line, and until the end. A command that does not print this many lines has failed.
fn timed(mut command: Command, lines: usize) -> Result<(f64, f64), Failure> {
    let failed = |why: String| Failure::new(exit::CLUSTER, format!("a command in the lab failed: {why}"));
    let begin = Instant::now();
    let milliseconds = || begin.elapsed().as_secs_f64() * 1e3;
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| failed(error.to_string()))?;
    let mut output = BufReader::new(child.stdout.take().expect("it was asked for"));
    let (mut text, mut first) = (String::new(), None);
    while output.read_line(&mut text).map_err(|error| failed(error.to_string()))? > 0 {
        first.get_or_insert_with(milliseconds);
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    let whole = milliseconds();
    match first {
        Some(first) if status.success() && text.lines().count() == lines => Ok((first, whole)),
        _ => Err(failed(format!("it ended with {status} and printed {text:?}"))),
    }
}
