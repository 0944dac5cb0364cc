//! `trellis switch`: joins hosts, and takes commands from others.
//!
//! The state of a switch is soft: it is lost when the switch ends, and its source (`trellis controller`, an operator)
//! sends it again.

mod change;
#[cfg(feature = "openflow")]
mod external;
mod run;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use trellis_switch::SwitchError;
use trellis_switch::control::{At, Remote};

use crate::lab;
use trellis_command::exit::{self, Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis switch run --cluster fd12:3456::/32 --hosts rack.txt
                                          join the hosts that the file lists
  trellis switch status                   who is plugged in, and what became of their packets
  trellis switch pages --top 20           the pages that were asked for most in the last second
  trellis switch events                   leases, as they come and go
  trellis switch route fd12:3456:7::/48 4 --memory
                                          what host 7 answered for is at port 4 now
  trellis switch route fd12:3456:7::/48 5 --pages 64-127
                                          64 of its pages are at port 5; without a port no more
  trellis switch redirect fd12:3456:7:100::3000 2 --for 500
                                          one page is at port 2 for half a second
  trellis switch allow rules.txt          let only what the rules allow pass; --all lifts that
  trellis switch status --lab rack        the same for the switch of a lab

Exit codes: 0 fine; 1 the switch refuses or is not there; 2 wrong command line; 71 refused by the operating system; 74 a \
file cannot be read; 78 a switch that cannot be.";

/// Connect hosts and route requests to memory
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SwitchArguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Run(run::RunArguments),
    Status(show::StatusArguments),
    Pages(show::PagesArguments),
    Events(show::EventsArguments),
    Route(change::RouteArguments),
    Redirect(change::RedirectArguments),
    Copy(change::CopyArguments),
    Allow(change::AllowArguments),
    Lease(change::LeaseArguments),
    Faults(change::FaultsArguments),
}

/// Which switch is meant.
#[derive(Debug, Args)]
struct Which {
    /// The switch's socket
    #[arg(long, value_name = "SOCKET", env = "TRELLIS_SWITCH", default_value_os_t = default_socket())]
    control: PathBuf,
    /// The switch of this lab instead
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
}

impl Which {
    fn open(&self) -> Result<Remote, Failure> {
        let at = match &self.lab {
            Some(name) => lab::switch_of(name)?,
            None => At::parse(&self.control.to_string_lossy())
                .map_err(|sentence| Failure::new(exit::CONFIGURATION, sentence))?,
        };
        Remote::open(at).map_err(|error| failure(&error))
    }
}

/// The default socket of a switch: in the runtime directory of the machine or of the user.
fn default_socket() -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from("/run"), PathBuf::from);
    folder.join("trellis-switch.sock")
}

/// Runs the `switch` subcommand.
pub(crate) fn switch(arguments: &SwitchArguments) -> Ending {
    match &arguments.task {
        Task::Run(arguments) => run::run(arguments),
        Task::Status(arguments) => show::status(arguments),
        Task::Pages(arguments) => show::pages(arguments),
        Task::Events(arguments) => show::events(arguments),
        Task::Route(arguments) => change::route(arguments),
        Task::Redirect(arguments) => change::redirect(arguments),
        Task::Copy(arguments) => change::copy(arguments),
        Task::Allow(arguments) => change::allow(arguments),
        Task::Lease(arguments) => change::lease(arguments),
        Task::Faults(arguments) => change::faults(arguments),
    }
}

/// An error of the switch, with the exit code that fits.
fn failure(error: &SwitchError) -> Failure {
    let code = match error {
        SwitchError::System { .. } => exit::SYSTEM,
        SwitchError::Unknown { .. } | SwitchError::NotBuilt { .. } => exit::CONFIGURATION,
        _ => exit::FAILED,
    };
    Failure::new(code, error.to_string())
}
