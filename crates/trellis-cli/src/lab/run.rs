//! `trellis lab run`: runs a command in a host.
//!
//! The command has the standard streams of this command, and its status becomes that of this command. SIGTERM, SIGHUP,
//! SIGUSR1 and SIGUSR2 are passed on, and this command ends after the other one; interrupts reach the other one from the
//! terminal. If this command is killed, or the lab ends, the other one is killed.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use clap::Args;
use trellis_switch::lab::space;

use super::messages::{Description, HostDescription, InitProcess};
use super::{Which, failure, slurm};
use trellis_command::ending::PassedOn;
use trellis_command::exit::{self, Ending, Failure};

/// Run a command in a host
///
/// Its environment has the lab in TRELLIS_LAB, its host in TRELLIS_LAB_HOST, the host's addresses in TRELLIS_PREFIX
/// and TRELLIS_LAB_ADDRESS, a connection to the switch in TRELLIS_SWITCH, and in a lab with ssh the command that reaches
/// the other hosts in TRELLIS_LAB_SSH, and in one with Slurm its configuration in SLURM_CONF.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    #[command(flatten)]
    which: Which,
    /// The host: c1, s1 and so on
    host: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: &RunArguments) -> Ending {
    let (init, lab) = InitProcess::of(&arguments.which.name)?;
    let host = find(&lab, &arguments.host)?;
    let switch = init.switch()?;
    space::enter(init.process().pid(), host.descriptors, lab.rootless).map_err(|error| failure(&error))?;
    let program = &arguments.command[0];
    let mut command = Command::new(program);
    command.args(&arguments.command[1..]);
    command.env("TRELLIS_LAB", &lab.name).env("TRELLIS_LAB_HOST", &host.name);
    command.env("TRELLIS_PREFIX", &host.prefix).env("TRELLIS_LAB_ADDRESS", &host.address);
    if let Some((ssh, _)) = &lab.ssh {
        command.env("TRELLIS_LAB_SSH", ssh);
    }
    if let Some(configuration) = &lab.slurm {
        // An allocation around the lab is none in it.
        let others = std::env::vars_os().map(|(name, _)| name);
        others.filter(|name| name.to_string_lossy().starts_with("SLURM_")).for_each(|name| {
            command.env_remove(name);
        });
        command.env(slurm::VARIABLE, configuration);
    }
    let switch = space::hand_down(&mut command, switch);
    command.env("TRELLIS_SWITCH", switch);
    space::end_with_us(&mut command);
    let signals = PassedOn::block(&mut command);
    let mut child = command.spawn().map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE };
        Failure::new(code, format!("cannot run {} in host {}: {error}", program.to_string_lossy(), host.name))
    })?;
    space::ignore_interrupts();
    let unwaited = |error| Failure::new(exit::SYSTEM, format!("cannot wait for the command: {error}"));
    // As long as this process has not waited for it, the number stays that of the command.
    let process = space::Process::open(child.id() as i32).map_err(unwaited)?;
    let status = signals.wait(&mut child, |signal| {
        // A command that has ended needs no signal.
        let _ = process.signal(signal);
    });
    let status = status.map_err(unwaited)?;
    let signal = status.signal().map(|signal| 128 + signal);
    Ok(status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED))
}

/// The host with this name.
pub(super) fn find<'a>(lab: &'a Description, host: &str) -> Result<&'a HostDescription, Failure> {
    lab.hosts.iter().find(|one| one.name == host).ok_or_else(|| {
        let names: Vec<&str> = lab.hosts.iter().map(|one| one.name.as_str()).collect();
        Failure::new(exit::FAILED, format!("lab {}: there is no host {host}; there are {}", lab.name, names.join(", ")))
    })
}
