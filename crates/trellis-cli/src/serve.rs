//! `trellis serve`: a memory server.

use std::io::Write;

use clap::Args;
use trellis::remote::{HostPrefix, PORT, RemoteError, Server, ServerOptions, Stop};
use trellis_protocol::wire::datagram::TagKind;

use crate::exit::{self, Ending, Failure};
use crate::size::size;

const EXAMPLES: &str = "\
Examples:
  trellis serve --memory 8GiB --prefix fd12:3456:7::/48
  trellis serve --memory 512MiB --quota 64MiB --prefix fd12:3456:7::/48
  trellis lab run s1 -- trellis serve --memory 64MiB --prefix fd00:1:1001::/48    in a host of `trellis lab`

The prefix is fd, a cluster of 24 bits, a host of 16 bits (1 to fffe) and /48; all hosts have the same cluster and each its own
number. Prints one line when clients may come, and serves until it gets SIGINT or SIGTERM. The memory lives as long as the
process.

A host reaches all others through one next hop, and takes everything that arrives for the cluster as its own, whatever the
address; for a network device eth0 and a switch or router at fe80::1:
  ip -6 route add fd12:3456::/32 via fe80::1 dev eth0
  ip -6 route add local fd12:3456::/32 dev lo table 100
  ip -6 rule add pref 5 iif eth0 lookup 100
`trellis lab` does that for its hosts. On this machine alone: ip -6 route add local fd12:3456::/32 dev lo

Nobody is asked who he is: give the port to hosts that you trust, behind a switch that lets no host use another's addresses.

Exit codes: 2 wrong command line; 71 the memory or the port cannot be had; 78 a size or a prefix is refused.";

/// Give memory to other machines: a server of objects that are named by IPv6 addresses
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    /// How much memory, for example 8GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: u64,
    /// The addresses of this host, for example fd12:3456:7::/48
    #[arg(long, value_name = "PREFIX", env = "TRELLIS_PREFIX", value_parser = prefix)]
    prefix: HostPrefix,
    /// How much of it one client's host may have [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    quota: Option<u64>,
    /// UDP port
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
}

fn prefix(text: &str) -> Result<HostPrefix, String> {
    text.parse().map_err(|why: trellis_protocol::wire::address::NotAnAddress| why.to_string())
}

/// The `serve` subcommand.
pub(crate) fn serve(arguments: &ServeArguments) -> Ending {
    let ServeArguments { memory, prefix, quota, port } = *arguments;
    let options = ServerOptions { prefix, memory_bytes: memory, quota_bytes: quota, port, least: TagKind::Checksum };
    let mut server = Server::open(options).map_err(failure)?;
    let mut output = std::io::stdout();
    // Who does not read that is served all the same.
    let _ = writeln!(output, "serving {memory} bytes as {prefix} at port {port}").and_then(|()| output.flush());
    server.serve(&Stop::default()).map_err(failure)?;
    Ok(exit::FINE)
}

fn failure(error: RemoteError) -> Failure {
    let code = match error {
        RemoteError::Setting(_) => exit::CONFIGURATION,
        _ => exit::SYSTEM,
    };
    Failure::new(code, error.to_string())
}
