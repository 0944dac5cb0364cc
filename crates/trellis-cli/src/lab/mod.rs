//! `trellis lab`: hosts that are namespaces of this machine, joined by a switch.
//!
//! A lab lives as long as its *init process*, the first of its process namespace (pid_namespaces(7)). Nothing of a lab
//! is in the file system: the init process is found by a socket whose name exists as long as it lives. When it ends,
//! however that happens, the kernel ends everything that runs in the lab and removes its networks. So `down` only ends
//! the init process, and a crash leaves nothing behind.

pub(crate) mod hosts;
pub(crate) mod init;
pub(crate) mod messages;
mod run;
pub(crate) mod slurm;
pub(crate) mod ssh;
pub(crate) mod up;

use clap::{Args, Subcommand};
use trellis_switch::SwitchError;
use trellis_switch::control::At;

use messages::InitProcess;
use trellis_command::exit::{self, Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis lab up --clients 3 --servers 3  six hosts c1 to c3 and s1 to s3, joined by a switch
  trellis lab up --rootless --switch user --faults drop=1%,delay=200us,seed=7
                                          without rights over the machine, on a bad network
  trellis lab run c1 -- ping -c 1 -I fd00:1:1::1 fd00:1:1001::1
                                          a command in a host; `status` lists the addresses
  trellis lab up --clients 4 --servers 0 --ssh
                                          hosts with ssh, for `trellis run --hosts`
  trellis lab run c1 -- sh -c '$TRELLIS_LAB_SSH c2 hostname'
                                          the command that reaches them
  trellis lab up --clients 3 --servers 0 --slurm
                                          hosts of a Slurm, for `srun` and allocations
  trellis lab run c1 -- srun -N 3 -n 6 ./program
                                          a program that its tasks join without a launcher
  trellis lab status --json               hosts, addresses, processes, counters
  trellis lab partition c1,s1 c2          c1 and s1 see each other, c2 nobody, the rest each other
  trellis lab partition --heal            everybody reaches everybody
  trellis lab faults drop=10%             lose a tenth of all packets from now on
  trellis lab restart                     end the switch and start it again; it has forgotten all
  trellis lab kill s1                     end everything that runs in s1
  trellis lab down                        end all of it; nothing is left

Several labs at once have names: --lab, or TRELLIS_LAB.

Exit codes: 0 fine; 1 there is no such lab or host; 2 wrong command line; 71 refused by the operating system; 78 a lab \
that cannot be; 126 and 127 the command cannot be executed or found; `run` ends with the status of its command, or 128 + \
its signal.";

/// Make hosts and a switch on this machine from namespaces
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Up(up::UpArguments),
    Run(run::RunArguments),
    Status(hosts::StatusArguments),
    Kill(hosts::KillArguments),
    Partition(hosts::PartitionArguments),
    Faults(hosts::FaultsArguments),
    Restart(hosts::RestartArguments),
    Ls(hosts::ListArguments),
    Down(hosts::DownArguments),
}

/// Which lab is meant.
#[derive(Debug, Args)]
struct Which {
    /// Name of the lab
    #[arg(long = "lab", value_name = "NAME", env = "TRELLIS_LAB", default_value = "lab")]
    name: String,
}

/// Runs the `lab` subcommand.
pub(crate) fn lab(arguments: &LabArguments) -> Ending {
    match &arguments.task {
        Task::Up(arguments) => up::up(arguments),
        Task::Run(arguments) => run::run(arguments),
        Task::Status(arguments) => hosts::status(arguments),
        Task::Kill(arguments) => hosts::kill(arguments),
        Task::Partition(arguments) => hosts::partition(arguments),
        Task::Faults(arguments) => hosts::faults(arguments),
        Task::Restart(arguments) => hosts::restart(arguments),
        Task::Ls(_) => hosts::list(),
        Task::Down(arguments) => hosts::down(arguments),
    }
}

/// Opens a connection to the switch of a lab.
pub(crate) fn switch_of(name: &str) -> Result<At, Failure> {
    InitProcess::of(name)?.0.switch().map(|stream| At::Given(stream.into()))
}

/// An error of the switch or the lab, with the exit code that fits.
fn failure(error: &SwitchError) -> Failure {
    let code = match error {
        SwitchError::System { .. } => exit::SYSTEM,
        _ => exit::CONFIGURATION,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use trellis_fabric_protocol::wire::{address, command, datagram};
    use trellis_switch::layout as known;

    /// The switch has its own copy of a part of the protocol's layout, so that it depends on no other crate of ours.
    #[test]
    fn the_switch_knows_the_layout_of_the_protocol() {
        use address::layout as a;
        assert_eq!(known::ADDRESS_BYTES, a::ADDRESS_BYTES);
        assert_eq!(known::ADDRESS_HOME_AT, a::HOST_AT);
        assert_eq!(known::ADDRESS_COMMAND_AT, a::COMMAND_AT);
        assert_eq!(known::ADDRESS_ARGUMENTS_AT, a::ARGUMENTS_AT);
        assert_eq!(known::ADDRESS_GENERATION_AT, a::GENERATION_AT);
        assert_eq!(known::ADDRESS_OFFSET_AT, a::OFFSET_AT);
        assert_eq!(known::OFFSET_BITS as usize, 8 * a::OFFSET_BYTES);
        assert_eq!(known::PAGE_SHIFT, a::PAGE_SHIFT);
        assert_eq!(u16::from(known::INCARNATION) << 8, a::INCARNATION_BIT);
        assert_eq!(known::ARGUMENT_DIRECT, address::Arguments::DIRECT.byte());
        let cluster = trellis_switch::Cluster::new(0x12_3456);
        assert_eq!(cluster.scope()[a::SCOPE_AT], a::SCOPE);
        use datagram::layout as d;
        assert_eq!((known::HEADER_BYTES, known::HEADER_VERSION), (datagram::HEADER_BYTES, datagram::VERSION));
        assert_eq!((known::HEADER_STATUS_AT, known::HEADER_FLAGS_AT), (d::STATUS_AT, d::FLAGS_AT));
        assert_eq!((known::HEADER_REQUEST_AT, known::HEADER_EPOCH_AT), (d::REQUEST_AT, d::EPOCH_AT));
        assert_eq!((known::FLAG_ANSWER, known::FLAG_RELEASE), (d::FLAG_ANSWER, d::FLAG_RELEASE));
        assert_eq!(known::STATUS_OK, datagram::Status::Ok as u8);
    }

    #[test]
    fn the_switch_knows_the_commands_of_the_protocol() {
        use command::{Class, Command};
        assert_eq!(known::COMMAND_COMMIT, Command::Commit.byte());
        assert_eq!(known::COMMAND_UPDATE, Command::Update.byte());
        assert_eq!(known::COMMAND_RENEW, Command::Renew.byte());
        assert_eq!(known::COMMAND_RELEASE, Command::Release.byte());
        assert_eq!(known::CLASS_READING, Class::Reading.nibble());
        assert_eq!(known::CLASS_CHANGING, Class::Changing.nibble());
        assert_eq!(known::CLASS_LEASES, Class::Leases.nibble());
    }
}
