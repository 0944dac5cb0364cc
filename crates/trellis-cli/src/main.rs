//! The `trellis` command: starts clusters, inspects the machine, measures, and draws.
//!
//! Results go to standard output, everything else to standard error. A failure is one sentence that begins with
//! `trellis:` and an exit code that `--help` explains.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[cfg(feature = "full")]
mod compile;
#[cfg(feature = "full")]
mod controller;
mod doctor;
#[cfg(feature = "full")]
mod full;
#[cfg(feature = "full")]
mod lab;
mod leave;
#[cfg(feature = "full")]
mod manual;
#[cfg(feature = "full")]
mod pages;
#[cfg(feature = "full")]
mod serve;
#[cfg(feature = "full")]
mod store;
#[cfg(feature = "full")]
mod switch;
#[cfg(all(test, feature = "full"))]
mod waits;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::{Arg, CommandFactory, Parser, Subcommand};
#[cfg(not(feature = "full"))]
use trellis_command::exit;
use trellis_command::{ending, report, run, terminal};

const AFTER_HELP: &str = "\
Examples:
  trellis run -n 4 ./program arguments    start four nodes on this host
  trellis run --join 127.0.0.1:4711 --secret-file FILE ./program    take part in one that runs
  trellis leave                           list the processes that joined one, or ask some to leave
  trellis doctor                          say what this machine offers and what would make it faster
  trellis bench fault --nodes 2           measure remote faults beside the floor of this machine
  trellis reproduce libivy table4         the paper's numbers beside ours
  trellis report record                   one HTML page from the records of a run
  trellis check litmus --protocol ivy     litmus tests on real processes
  trellis store run --store redis://127.0.0.1:6379 ./program          its heap lies in a store
  trellis cc --mode line -O2 program.c    the same, compiled
  trellis serve --memory 8GiB --prefix fd12:3456:7::/48               give memory to others
  trellis controller status               which server is home of which memory, and who keeps copies
  trellis lab up --clients 3 --servers 3  hosts and a switch on this machine, to try networks with

Exit codes: 0 fine; 1 the answer is no; 2 wrong command line; 70 cluster failure; 71 refused by the operating system; \
74 a file cannot be read or written; 78 configuration refused; 124 the time of `--timeout` is over; 126 and 127 the program \
cannot be executed or found; \
`run` ends with the status of the node that failed, or 128 + its signal.";

/// Shared memory across processes and machines
#[derive(Debug, Parser)]
#[command(name = "trellis", version, max_term_width = 120, after_help = AFTER_HELP)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArguments>),
    Threads(Box<run::ThreadsArguments>),
    Leave(leave::LeaveArguments),
    Doctor(doctor::DoctorArguments),
    Report(report::ReportArguments),
    #[cfg(feature = "full")]
    #[command(flatten)]
    Full(full::Command),
    /// What this build leaves out
    #[cfg(not(feature = "full"))]
    #[command(
        name = "bench",
        aliases = ["reproduce", "check", "store", "cc", "c++", "serve", "controller", "switch", "lab", "completions"],
        hide = true,
        disable_help_flag = true
    )]
    LeftOut {
        /// The arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    #[command(hide = true)]
    Agent(run::hosts::AgentArguments),
}

/// Parses the command line. Help is a result like any other: if it cannot be written, the error is reported.
fn parsed() -> CommandLine {
    CommandLine::try_parse_from(as_ours(std::env::args_os())).unwrap_or_else(|answer| match answer.print() {
        Err(error) if !answer.use_stderr() => terminal::end_unwritten(&error),
        _ => std::process::exit(answer.exit_code()),
    })
}

/// `trellis run -np 4` is what users of mpirun(1) type. Behind the program the word belongs to the program.
fn as_ours(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    if arguments.get(1).is_none_or(|command| command != "run") {
        return arguments;
    }
    let all = CommandLine::command();
    let run = all.find_subcommand("run").expect("it is a command");
    let mut place = 2;
    while let Some(argument) = arguments.get_mut(place).filter(|argument| argument.as_bytes().starts_with(b"-")) {
        if *argument == "-np" {
            *argument = "-n".into();
            break;
        }
        if *argument == "--" {
            break;
        }
        let is_this = |option: &&Arg| {
            option.get_long().is_some_and(|name| *argument == *format!("--{name}"))
                || option.get_short().is_some_and(|name| *argument == *format!("-{name}"))
        };
        let has_value = run.get_arguments().find(is_this).is_some_and(|option| option.get_action().takes_values());
        place += if has_value { 2 } else { 1 };
    }
    arguments
}

fn main() -> ExitCode {
    ending::take_file_limits_as_errors();
    ending::status(match parsed().command {
        Command::Run(arguments) => run::run(*arguments),
        Command::Threads(arguments) => run::threads(*arguments),
        Command::Leave(arguments) => leave::leave(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Agent(arguments) => run::hosts::agent(&arguments),
        #[cfg(feature = "full")]
        Command::Full(command) => full::run(command, CommandLine::command()),
        #[cfg(not(feature = "full"))]
        Command::LeftOut { .. } => Err(exit::Failure::new(
            exit::USAGE,
            "this build has run, threads, leave, doctor and report; `cargo xtask install` builds a command that has the \
             others",
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_nodes_may_be_written_as_for_mpirun() {
        let ours = |line: &[&str]| as_ours(line.iter().map(OsString::from));
        assert_eq!(
            ours(&["trellis", "run", "-np", "4", "./program", "-np"]),
            ["trellis", "run", "-n", "4", "./program", "-np"]
        );
        assert_eq!(
            ours(&["trellis", "run", "--hosts", "a,b", "-q", "--set", "region_bytes=1GiB", "-np", "4", "./program"])
                [7..],
            ["-n", "4", "./program"]
        );
        for of_program in [&["lab", "-np"][..], &["run", "./program", "-np"], &["run", "--", "./program", "-np"]] {
            let line = [&["trellis"], of_program].concat();
            assert_eq!(ours(&line), line);
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    /// The width of help where the terminal's width is unknown.
    const HELP_COLUMNS: usize = 100;

    /// Paragraphs are one line each, which the terminal wraps; indented text fits.
    fn broken_lines(command: &clap::Command, path: &str, broken: &mut Vec<String>) {
        let help = command.get_after_help().map_or(String::new(), |help| help.to_string());
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        let lines: Vec<&str> = help.lines().collect();
        let torn = lines.windows(2).filter(|pair| is_prose(pair[0]) && is_prose(pair[1])).map(|pair| pair[1]);
        let long = lines.iter().filter(|line| line.starts_with(' ') && line.chars().count() > HELP_COLUMNS);
        broken.extend(torn.chain(long.copied()).map(|line| format!("{path}: {line}")));
        for inner in command.get_subcommands() {
            broken_lines(inner, &format!("{path} {}", inner.get_name()), broken);
        }
    }

    #[test]
    fn help_breaks_where_the_terminal_does() {
        let mut broken = Vec::new();
        broken_lines(&CommandLine::command(), "trellis", &mut broken);
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn a_program_needs_no_dashes_and_keeps_its_own_flags() {
        for line in [
            &["trellis", "run", "-n", "2", "./program", "-x", "--json"][..],
            &["trellis", "run", "-n", "2", "--", "./program", "-x", "--json"],
        ] {
            let parsed = CommandLine::try_parse_from(line).expect("parses");
            let text = format!("{parsed:?}");
            assert!(text.contains(r#"program: ["./program", "-x", "--json"]"#), "{text}");
        }
        assert!(CommandLine::try_parse_from(["trellis", "run", "-n", "2"]).is_err());
        assert!(CommandLine::try_parse_from(["trellis", "run", "--unknown", "./program"]).is_err());
    }
}
