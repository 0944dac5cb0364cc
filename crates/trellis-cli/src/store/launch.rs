//! `trellis store run`: starts a program whose heap is in a store.
//!
//! A program that `trellis cc` compiled knows its mode by itself. Any other one runs in page mode: a library that is
//! loaded first replaces `malloc`. The program replaces this process, so signals, standard input and the exit status
//! are its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use trellis::stored::StoredError;
use trellis::stored::settings::Settings;
use trellis::stored::stores;

use super::{Which, program};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::installed::{preloaded, preloaded_libraries};

const EXAMPLES: &str = "\
Examples:
  trellis store run --store redis://127.0.0.1:6379 --cache 256MiB ./wordcount text
  trellis store run --store embedded-durable:/var/tmp/heap --cache 1GiB --statistics ./program
  trellis store run --store redis://127.0.0.1:6379 --region queue ./consumer     shared with others
  trellis store run --store memory-server:fd12:3456:7::/48 --cache 256MiB ./sort

The heap of the program lies in the store, and at most --cache bytes of it in memory. Its threads, \
files and system calls work as ever; a child after fork that touches the heap ends with a sentence. \
So shells and scripts are refused before they start, and programs that are linked statically, whose \
heap would stay where it is.

Exit codes: the program's; 70 the store cannot be opened or is gone; 74 the library that is loaded \
first is not there; 78 the address, the region or a size is refused; 126 the program cannot be \
executed, or its heap cannot lie in a store; 127 the program cannot be found.";

/// Start a program with its heap in a store
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    which: Which,
    /// Name of the region; without one, the program gets its own, which is removed when it ends
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// The most local memory for pages, for example 256MiB
    #[arg(long, value_name = "BYTES")]
    cache: Option<String>,
    /// Add a round trip of this many microseconds to each call, for experiments
    #[arg(long, value_name = "MICROSECONDS")]
    delay_us: Option<u64>,
    /// Print the number of calls when the program ends
    #[arg(long)]
    statistics: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Replaces this process by the program.
pub(super) fn run(arguments: &RunArguments) -> Ending {
    program::check(&arguments.program[0])?;
    let libraries = preloaded_libraries()?;
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]);
    let given = given(arguments);
    check(&given)?;
    command.envs(given.into_iter().filter_map(|given| Some((given.variable, given.value?))));
    command.env("LD_PRELOAD", preloaded(&libraries, std::env::var_os("LD_PRELOAD")));
    // The program keeps this process's number, and no child of it has it.
    command.env(trellis::stored::launched::PROCESS, std::process::id().to_string());
    let error = command.exec();
    let program = arguments.program[0].to_string_lossy();
    Err(match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(exit::NOT_FOUND, format!("{program} was not found; give its path, or put it into PATH"))
        }
        _ => Failure::new(exit::NOT_EXECUTABLE, format!("{program} cannot be executed: {error}")),
    })
}

/// The variable by which the program gets an option.
struct Given {
    option: &'static str,
    variable: &'static str,
    value: Option<String>,
}

fn given(arguments: &RunArguments) -> [Given; 5] {
    let of = |option, variable, value| Given { option, variable, value };
    [
        of("--store", "TRELLIS_STORE", Some(arguments.which.store.clone())),
        of("--region", "TRELLIS_STORE_REGION", arguments.region.clone()),
        of("--cache", "TRELLIS_STORE_CACHE_BYTES_MAX", arguments.cache.clone()),
        of("--delay-us", "TRELLIS_STORE_DELAY_US", arguments.delay_us.map(|delay| delay.to_string())),
        of("--statistics", "TRELLIS_STORE_STATISTICS", arguments.statistics.then(|| "1".to_owned())),
    ]
}

/// Refuses here what the program would refuse when it starts, under the name by which it was given.
fn check(given: &[Given]) -> Result<(), Failure> {
    let of = |name: &str| given.iter().find(|given| given.variable == name && given.value.is_some());
    let lookup = |name: &str| match of(name) {
        Some(given) => given.value.clone(),
        None => std::env::var(name).ok(),
    };
    let sentence = |error: StoredError| match error {
        StoredError::Setting { name, value, reason, accepted } if of(name).is_some() => {
            let option = of(name).map_or(name, |given| given.option);
            format!("{option} {value} is not possible: {reason}; accepted: {accepted}")
        }
        error => error.to_string(),
    };
    let checked = Settings::from_lookup(lookup).and_then(|settings| stores::check(&settings));
    checked.map_err(|error| Failure::new(exit::CONFIGURATION, sentence(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_named_as_it_was_given() {
        let refused = |option, variable, value: &str| {
            let given = [Given { option, variable, value: Some(value.to_owned()) }];
            check(&given).expect_err("it makes no sense")
        };
        let cache = refused("--cache", "TRELLIS_STORE_CACHE_BYTES_MAX", "10x");
        let begins = "--cache 10x is not possible: it is not a number of bytes; accepted: ";
        assert!(cache.code == exit::CONFIGURATION && cache.sentence.starts_with(begins), "{cache}");
        let region = refused("--region", "TRELLIS_STORE_REGION", "#5");
        assert!(region.sentence.starts_with("--region #5 is not possible: "), "{region}");
        assert!(!region.sentence.contains("TRELLIS_STORE"), "{region}");
    }
}
