//! Where the nodes of a host listen, and whether nodes of other hosts are reached there.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use trellis_base::{Deadline, Limit};

use super::super::bind_all;
use crate::exit::{self, Failure};

/// How long connections to nodes of other hosts may take.
pub(crate) const REACH: Deadline = Deadline {
    who: "`trellis run --hosts`",
    waits_for: "connections from each host to the others, before the nodes are started",
    limit: Limit::seconds(5),
    then: "exit status 71; the sentence names both hosts and the port",
    tested: "crates/trellis-cli/tests/hosts.rs a_firewall_between_two_hosts_is_named",
};

/// The address of this host in a network.
///
/// `network` is a prefix such as `10.1.0.0/16`, or the name of an interface.
pub(super) fn address_in(network: &str) -> Result<IpAddr, Failure> {
    let all = trellis::transport::interfaces()
        .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot list the interfaces: {error}")))?;
    let is_wanted = |(name, address): &&(String, IpAddr)| match prefix(network) {
        Some((prefix, bits)) => contains(prefix, bits, *address),
        None => name == network,
    };
    // The kernel lists the addresses of an interface with IPv4 first.
    let found = all.iter().find(is_wanted).map(|(_, address)| *address);
    found.ok_or_else(|| {
        let here: Vec<String> = all.iter().map(|(name, address)| format!("{name} {address}")).collect();
        Failure::new(
            exit::CONFIGURATION,
            format!("no address is in --network {network}; there are {}", here.join(", ")),
        )
    })
}

fn prefix(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = text.split_once('/')?;
    Some((address.parse().ok()?, bits.parse().ok()?))
}

fn contains(prefix: IpAddr, bits: u32, address: IpAddr) -> bool {
    // Shifting by the whole width gives nothing, and then every address fits.
    match (prefix, address) {
        (IpAddr::V4(prefix), IpAddr::V4(address)) => {
            (prefix.to_bits() ^ address.to_bits()).checked_shr(32u32.saturating_sub(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(prefix), IpAddr::V6(address)) => {
            (prefix.to_bits() ^ address.to_bits()).checked_shr(128u32.saturating_sub(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// Makes sockets for so many nodes at an address of this host.
pub(super) fn listen(
    nodes: usize,
    address: IpAddr,
    has_datagrams: bool,
) -> Result<(Vec<OwnedFd>, Vec<String>), Failure> {
    bind_all(nodes, address, has_datagrams)
}

/// Tries to connect to nodes of other hosts, all at once; returns those that were not reached, each with the reason.
pub(super) fn unreachable(nodes: &[(usize, String)]) -> Vec<(usize, String)> {
    let until = Instant::now() + REACH.time();
    let begun: Vec<(usize, Result<OwnedFd, String>)> =
        nodes.iter().map(|(node, address)| (*node, begin(address).map_err(|error| error.to_string()))).collect();
    let mut failed = Vec::new();
    for (node, socket) in begun {
        // The others make progress meanwhile.
        let reached = socket.and_then(|socket| reached(&socket, until));
        failed.extend(reached.err().map(|why| (node, why)));
    }
    failed
}

fn begin(address: &str) -> std::io::Result<OwnedFd> {
    let address: SocketAddr = address.parse().map_err(std::io::Error::other)?;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn reached(socket: &OwnedFd, until: Instant) -> Result<(), String> {
    // The end of standard input is the end of the launcher, for whom nobody need be reached.
    let launcher = PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty());
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT), launcher];
    loop {
        match poll(&mut polled, timespec_until(Some(until)).as_ref()) {
            Ok(0) => return Err(format!("no answer within {} s", REACH.time().as_secs())),
            Ok(_) if polled[0].revents().is_empty() => return Err("the launcher is gone".to_owned()),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let error = rustix::net::sockopt::socket_error(socket).map_err(|error| error.to_string())?;
    error.map_err(|error| std::io::Error::from(error).to_string())
}

/// Takes the connections that other hosts made to see whether they reach this one, so that no node meets them.
pub(super) fn forget_visitors(sockets: Vec<OwnedFd>) -> std::io::Result<Vec<OwnedFd>> {
    let quiet = |socket: OwnedFd| {
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        while listener.accept().is_ok() {}
        listener.set_nonblocking(false)?;
        Ok(OwnedFd::from(listener))
    };
    sockets.into_iter().map(quiet).collect()
}

/// The time until then, for a wait.
pub(super) fn timespec_until(until: Option<Instant>) -> Option<Timespec> {
    let left = until?.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_prefixes_or_interfaces() {
        assert!(address_in("127.0.0.0/8").is_ok_and(|address| address.is_loopback()));
        assert!(address_in("lo").is_ok_and(|address| address.is_loopback()));
        let missing = address_in("203.0.113.0/24").unwrap_err();
        assert!(
            missing.sentence.starts_with("no address is in --network 203.0.113.0/24; there are lo 127"),
            "{missing}"
        );
    }

    #[test]
    fn a_prefix_contains_what_begins_with_it() {
        let contains = |prefix: &str, bits, address: &str| {
            contains(prefix.parse().expect("an address"), bits, address.parse().expect("an address"))
        };
        assert!(contains("10.77.0.0", 24, "10.77.0.9") && !contains("10.77.0.0", 24, "10.77.1.9"));
        assert!(contains("fd00:1::", 32, "fd00:1:2::3") && !contains("fd00:1::", 32, "fd00:2::3"));
        assert!(contains("0.0.0.0", 0, "10.1.1.1") && !contains("0.0.0.0", 0, "fd00::1"));
    }

    #[test]
    fn who_listens_is_reached_and_who_does_not_is_named() {
        let (sockets, addresses) = listen(1, "127.0.0.1".parse().expect("an address"), false).expect("a port is free");
        let closed = listen(1, "127.0.0.1".parse().expect("an address"), false).expect("a port is free").1;
        let nodes = [(3, addresses[0].clone()), (4, closed[0].clone())];
        let failed = unreachable(&nodes);
        assert_eq!(failed.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [4]);
        assert!(failed[0].1.contains("refused"), "{failed:?}");
        let sockets = forget_visitors(sockets).expect("it listens");
        let listener = TcpListener::from(sockets.into_iter().next().expect("there is one"));
        listener.set_nonblocking(true).expect("it is open");
        assert!(listener.accept().is_err(), "the visitor was taken");
    }
}
