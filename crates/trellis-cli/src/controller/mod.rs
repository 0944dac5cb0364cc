//! `trellis controller`: assigns a memory server as home to each range.
//!
//! The decisions of the process are made by `trellis-controller`. This module has the command line, the output for
//! operators, and the search for the process of a host.

pub(crate) mod change;
mod run;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use trellis::remote::HostPrefix;
use trellis_controller::control::{Answer, Remote, Request, default_socket, sockets_here};
use trellis_controller::ranges::Status;
use trellis_fabric_protocol::lease::RangeNumber;
use trellis_fabric_protocol::wire::address::{Cluster, Host, NotAnAddress, PARTS_FROM};

use trellis_command::exit::{self, Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis controller run --prefix fd12:3456:c8::/48 \\
    --records embedded-durable:/var/lib/trellis/records
                                          one controller, whose records are a file
  trellis controller run --prefix fd12:3456:c9::/48 --records etcd://10.0.0.1:2379,10.0.0.2:2379
                                          one of several: one of them leads, the others wait
  trellis controller status               ranges: home, backups; servers: spare memory, load
  trellis controller move 7 8             move range 7 to host 8; clients continue meanwhile
  trellis controller move 7 8 --pages 0-63
                                          move 64 pages of range 7 to host 8; with
                                          `move 7 7 --pages 0-63` they return to their range
  trellis controller backups 7 --count 2  two copies of range 7; `backups 7 8 9` says where
  trellis controller drain 8              move everything away from host 8; wait until it is empty
  trellis controller reset 7              restart range 7, empty, after all of its copies were lost
  trellis controller rebalance --dry-run  what would be moved from the busiest server
  trellis controller events --follow      what happens, as it happens

A range or a host is a number (7, 0x1001) or a prefix (fd12:3456:7::/48). Servers name the hosts of controllers:
`trellis serve --controller 0xc8,0xc9`. Servers and controllers have the same --lease-term and --home-lease.

Exit codes: 0 fine; 1 the controller refuses, does not lead or is not there; 2 wrong command line; 71 refused by the operating \
system; 78 a configuration that cannot be.";

/// Assign ranges to memory servers and manage their copies
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ControllerArguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Run(run::RunArguments),
    Status(show::StatusArguments),
    Events(show::EventsArguments),
    Move(change::MoveArguments),
    Backups(change::BackupsArguments),
    Drain(change::DrainArguments),
    Reset(change::ResetArguments),
    Rebalance(change::RebalanceArguments),
}

/// Which controller is asked.
#[derive(Debug, Args)]
struct Which {
    /// The controller's socket
    #[arg(long, value_name = "SOCKET", env = "TRELLIS_CONTROLLER", conflicts_with = "controller")]
    control: Option<PathBuf>,
    /// The number of its host, in the cluster of --prefix; with neither, the only controller of this machine (and of
    /// this cluster)
    #[arg(long, value_name = "HOST", requires = "prefix")]
    controller: Option<Host>,
    /// The addresses of any host of the cluster
    #[arg(long, value_name = "PREFIX", env = "TRELLIS_PREFIX", value_parser = prefix)]
    prefix: Option<HostPrefix>,
}

impl Which {
    fn open(&self) -> Result<Remote, Failure> {
        Remote::open(&self.path()?).map_err(refused)
    }

    /// Like [`Which::open`], and checks that these are of its cluster.
    fn open_for(&self, named: impl IntoIterator<Item = Named>) -> Result<Remote, Failure> {
        let mut controller = self.open()?;
        let with_cluster: Vec<Named> = named.into_iter().filter(|named| named.cluster.is_some()).collect();
        if with_cluster.is_empty() {
            return Ok(controller);
        }
        let answer = controller.ask(&Request::Status).map_err(refused)?;
        let Answer::Status(Status { cluster, .. }) = answer else { return Err(other_version(answer)) };
        let cluster = Cluster::new(cluster).ok_or_else(|| other_version(answer))?;
        with_cluster.into_iter().try_for_each(|named| named.is_of(cluster)).map_err(refused)?;
        Ok(controller)
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.control {
            return Ok(path.clone());
        }
        if let (Some(host), Some(prefix)) = (self.controller, self.prefix) {
            return Ok(default_socket(HostPrefix { host, ..prefix }));
        }
        // With a prefix, only the controllers of its cluster.
        let mut sockets = sockets_here(self.prefix.map(|prefix| prefix.cluster));
        sockets.sort_unstable();
        match sockets.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(refused(
                "no controller runs on this machine; start one with `trellis controller run`, or give --control"
                    .to_owned(),
            )),
            many => {
                let names: Vec<String> = many.iter().map(|path| path.display().to_string()).collect();
                let names = names.join(", ");
                Err(refused(format!("several controllers run on this machine; give --control with one of {names}")))
            }
        }
    }

    fn done(&self, named: impl IntoIterator<Item = Named>, request: &Request) -> Ending {
        self.open_for(named)?.ask(request).map(|_| exit::FINE).map_err(refused)
    }
}

fn refused(sentence: String) -> Failure {
    Failure::new(exit::FAILED, sentence)
}

fn other_version(_: Answer) -> Failure {
    refused("the controller answers something else; it is of another version: start it again".to_owned())
}

fn prefix(text: &str) -> Result<HostPrefix, String> {
    text.parse().map_err(|why: NotAnAddress| why.to_string())
}

/// A host or a range, as given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    number: u16,
    /// Set if it was given as a prefix.
    cluster: Option<Cluster>,
}

impl Named {
    pub(crate) fn host(self) -> Host {
        Host(self.number)
    }

    fn range(self) -> RangeNumber {
        RangeNumber(self.number)
    }

    /// An error if it belongs to another cluster.
    pub(crate) fn is_of(self, cluster: Cluster) -> Result<(), String> {
        let Named { number, cluster: of } = self;
        match of.filter(|of| *of != cluster) {
            None => Ok(()),
            Some(of) => {
                let [given, own] = [of, cluster].map(|cluster| HostPrefix { cluster, host: Host(number) });
                Err(format!("{given} is of another cluster; the host with this number is {own} here"))
            }
        }
    }
}

/// Parses a host or a range: a number, or a prefix.
pub(crate) fn named(text: &str) -> Result<Named, String> {
    if text.contains(':') {
        return prefix(text).map(|prefix| Named { number: prefix.host.0, cluster: Some(prefix.cluster) });
    }
    let host: Host = text.parse().map_err(|why: NotAnAddress| format!("`{text}`: {why}"))?;
    Ok(Named { number: host.0, cluster: None })
}

/// Parses a host: a number that no part of a range has.
fn host(text: &str) -> Result<Named, String> {
    let is_host = |named: &Named| named.number < PARTS_FROM;
    named(text).and_then(|named| {
        Some(named).filter(is_host).ok_or_else(|| {
            format!(
                "`{text}` is not a host: numbers from {PARTS_FROM:#x} on name parts of ranges; give the number of a server"
            )
        })
    })
}

/// Runs the `controller` subcommand.
pub(crate) fn controller(arguments: &ControllerArguments) -> Ending {
    match &arguments.task {
        Task::Run(arguments) => run::run(arguments),
        Task::Status(arguments) => show::status(arguments),
        Task::Events(arguments) => show::events(arguments),
        Task::Move(arguments) => change::move_range(arguments),
        Task::Backups(arguments) => change::backups(arguments),
        Task::Drain(arguments) => change::drain(arguments),
        Task::Reset(arguments) => change::reset(arguments),
        Task::Rebalance(arguments) => change::rebalance(arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbers_or_prefixes() {
        let cluster = Cluster::new(0x12_3456).expect("a cluster");
        let read = ["7", "0x1001", "fd12:3456:1001::/48"].map(|text| named(text).expect("it is one"));
        assert_eq!(read.map(|named| named.number), [7, 0x1001, 0x1001]);
        assert_eq!(read.map(|named| named.is_of(cluster)), [Ok(()), Ok(()), Ok(())]);
        let other = Cluster::new(7).expect("a cluster");
        let sentence = "fd12:3456:1001::/48 is of another cluster; the host with this number is fd00:7:1001::/48 here";
        assert_eq!(read.map(|named| named.is_of(other)), [Ok(()), Ok(()), Err(sentence.to_owned())]);
        for wrong in ["0", "0xffff", "0x", "seven", "200", "0x+7", "0x10000", "fd12:3456:7::/64", "2001:db8::/48"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
        let read = [named("0xf000"), host("0xefff")].map(|named| named.expect("it is one").number);
        assert_eq!(read, [0xf000, 0xefff]);
        assert!(host("0xf000").is_err_and(|sentence| sentence.contains("name parts of ranges")));
    }
}
