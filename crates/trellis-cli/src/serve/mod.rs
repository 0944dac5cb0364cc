//! `trellis serve`: runs a memory server.

#[cfg(feature = "bpf")]
mod in_kernel;

use std::time::Duration;

use clap::{Args, ValueEnum};
use trellis::remote::{HostPrefix, PORT, RemoteError, Server, ServerMemory, ServerOptions, Stop};

use crate::controller::{Named, named};
use trellis_command::ending::say_ready;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::size::size;
use trellis_command::terminal::{announce, notice};
use trellis_command::time::time;

const EXAMPLES: &str = "\
Examples:
  trellis serve --memory 8GiB --prefix fd12:3456:7::/48
  trellis serve --memory 512MiB --quota 64MiB --prefix fd12:3456:7::/48
  trellis lab run s1 -- trellis serve --memory 64MiB --prefix fd00:1:1001::/48
  trellis serve --memory 8GiB --backup-memory 8GiB --controller 0xc8 --prefix fd12:3456:7::/48

The prefix is fd, a cluster of 24 bits, a host of 16 bits (1 to efff) and /48; all hosts have the same cluster and each its own \
number. The server prints one line when clients may come, and serves until it gets SIGINT or SIGTERM. The memory lives as long \
as the process.

A host reaches all others through one next hop, and takes everything that arrives for the cluster as its own, whatever the \
address; for a network device eth0 and a switch or router at fe80::1:
  ip -6 route add fd12:3456::/32 via fe80::1 dev eth0
  ip -6 route add local fd12:3456::/32 dev lo table 100
  ip -6 rule add pref 5 iif eth0 lookup 100
`trellis lab` does that for its hosts. On this machine alone: ip -6 route add local fd12:3456::/32 dev lo

The kernel answers READ, and WRITE that may be repeated, without waking this process, where that is possible: \
as root, on Linux 6.6, in a build with the cargo feature `bpf`; the line at the start says so, or why not. The kernel answers \
before the host's own packet filter sees the request. --in-kernel off leaves all to the process.

With --controller, `trellis controller` at that host says which server answers for which range of memory (the one that a host \
began with), and who keeps copies: a range survives the death of its server while a copy is complete, and moves while clients \
work. --backup-memory is what this server gives to ranges of others. What is changed in a range that has copies is changed under \
a lease; it is acknowledged when every copy has it. The server obeys the first of several controllers that answers, and asks \
the next one when that one is silent. A server that hears no controller for --home-lease answers nothing until it does. --lease-term and --home-lease \
must be the same at all servers and controllers. Each event of a range is reported on stderr, in one sentence. The kernel answers \
nothing then, because it does not know when this server may answer no more.

Requests are not authenticated: give the port to hosts that you trust, behind a switch that lets no host use another's addresses.

Exit codes: 2 wrong command line; 71 the memory or the port cannot be had, or with --in-kernel on the kernel's help; 78 a size \
or a prefix is refused.";

/// Give memory to other machines: serve objects that are named by IPv6 addresses
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    /// How much memory, for example 8GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: u64,
    /// The addresses of this host, for example fd12:3456:7::/48
    #[arg(long, value_name = "PREFIX", env = "TRELLIS_PREFIX", value_parser = prefix)]
    prefix: HostPrefix,
    /// How much of the memory each client's host may use [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    quota: Option<u64>,
    /// UDP port
    #[arg(long, value_name = "PORT", default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Whether the kernel answers READ and WRITE: if possible, always, or never
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = InKernel::Auto)]
    in_kernel: InKernel,
    /// The interface at which requests arrive, for the kernel [default: that of the route to the cluster]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The hosts of the controllers that assign ranges to servers, by number, for example 0xc8 or 0xc8,0xc9,0xca
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', value_parser = named)]
    controller: Vec<Named>,
    /// Additional memory for copies of other servers' ranges, for example 8GiB [default: none]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "controller")]
    backup_memory: Option<u64>,
    /// How long a lease of a page lasts unless it is renewed [default: 10s; 2s with a controller]
    #[arg(long, value_name = "TIME", value_parser = time)]
    lease_term: Option<Duration>,
    /// How long this server answers without a message from a controller
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "500ms", requires = "controller")]
    home_lease: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InKernel {
    Auto,
    On,
    Off,
}

fn prefix(text: &str) -> Result<HostPrefix, String> {
    text.parse().map_err(|why: trellis_fabric_protocol::wire::address::NotAnAddress| why.to_string())
}

/// Runs the `serve` subcommand.
pub(crate) fn serve(arguments: &ServeArguments) -> Ending {
    let ServeArguments { memory, prefix, quota, port, .. } = *arguments;
    let plain = ServerOptions::new(prefix, memory);
    let is_placed = !arguments.controller.is_empty();
    let wrong = arguments.controller.iter().try_for_each(|host| host.is_of(prefix.cluster));
    wrong.map_err(|sentence| Failure::new(exit::CONFIGURATION, format!("--controller: {sentence}")))?;
    let term = if is_placed { Duration::from_secs(2) } else { plain.lease_term };
    let options = ServerOptions {
        quota_bytes: quota,
        port,
        controllers: arguments.controller.iter().map(|host| host.host()).collect(),
        backup_bytes: arguments.backup_memory.unwrap_or(0),
        home_lease: arguments.home_lease,
        lease_term: arguments.lease_term.unwrap_or(term),
        ..plain
    };
    let (mut server, who) = open(options, arguments)?;
    // Standard output is for readers that wait until clients can connect.
    server.on_event(|event| notice(format_args!("{event}")));
    announce(format_args!("serving {memory} bytes as {prefix} at port {port}, {who}"));
    say_ready();
    server.serve(&Stop::default()).map_err(failure)?;
    Ok(exit::FINE)
}

/// Opens the server; also returns a text about who answers.
fn open(options: ServerOptions, arguments: &ServeArguments) -> Result<(Server, String), Failure> {
    options.check().map_err(failure)?;
    let shared = match arguments.in_kernel {
        InKernel::Off if arguments.device.is_some() => {
            let why = "--device is for the kernel, which shall not answer; leave out --device or --in-kernel off";
            return Err(Failure::new(exit::CONFIGURATION, why.to_owned()));
        }
        InKernel::On if !options.controllers.is_empty() => {
            let why = "the kernel cannot answer for memory that a controller places, because it does not know when this server may \
                       answer no more; leave out --in-kernel or --controller";
            return Err(Failure::new(exit::CONFIGURATION, why.to_owned()));
        }
        InKernel::Auto if !options.controllers.is_empty() => Err("a controller assigns its ranges".to_owned()),
        InKernel::Off => Err("as told".to_owned()),
        InKernel::Auto | InKernel::On => in_kernel(&options, arguments.device.as_deref()),
    };
    match shared {
        Ok((memory, device)) => {
            let server = Server::with_memory(options, memory).map_err(failure)?;
            Ok((server, format!("READ and WRITE in the kernel at {device}")))
        }
        Err(sentence) if arguments.in_kernel == InKernel::On => Err(Failure::new(exit::SYSTEM, sentence)),
        Err(why) => Ok((Server::open(options).map_err(failure)?, format!("all by this process ({why})"))),
    }
}

#[cfg(feature = "bpf")]
fn in_kernel(options: &ServerOptions, device: Option<&str>) -> Result<(Box<dyn ServerMemory>, String), String> {
    let opened = in_kernel::open(options.prefix, options.memory_bytes, options.port, device);
    let memory = opened.map_err(|error| error.to_string())?;
    let device = memory.0.device().to_owned();
    Ok((Box::new(memory), device))
}

#[cfg(not(feature = "bpf"))]
fn in_kernel(_: &ServerOptions, _: Option<&str>) -> Result<(Box<dyn ServerMemory>, String), String> {
    let next = "`cargo xtask install --prefix PREFIX --features bpf` installs one that can";
    Err(format!("this build cannot answer in the kernel; {next}"))
}

fn failure(error: RemoteError) -> Failure {
    let code = match error {
        RemoteError::Setting(_) => exit::CONFIGURATION,
        _ => exit::SYSTEM,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_are_not_zero() {
        let of = |milliseconds| Ok(Duration::from_millis(milliseconds));
        assert_eq!((time("500ms"), time("2s"), time("1 s")), (of(500), of(2000), of(1000)));
        assert!(["5", "0s", "-1s", "1.5s", "much", "99999999999999999999s"].iter().all(|text| time(text).is_err()));
    }
}
