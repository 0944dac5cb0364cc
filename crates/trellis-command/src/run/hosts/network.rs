//! Where the nodes of a host listen, and whether nodes of other hosts are reached there.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use trellis::config::Ports;
use trellis_base::{Deadline, Limit};

use crate::exit::{self, Failure};

/// How long connections to nodes of other hosts may take.
pub(crate) const REACH: Deadline = Deadline {
    who: "`trellis run --hosts`",
    waits_for: "connections from each host to the others, before the nodes are started",
    limit: Limit::seconds(5),
    then: "exit status 71; the sentence names both hosts and the port",
    tested: "crates/trellis-cli/tests/hosts.rs a_firewall_between_two_hosts_is_named",
};

/// The address of this host in the network that the user named.
pub(super) fn address_in(network: &str) -> Result<IpAddr, Failure> {
    let found = trellis::transport::Interface::in_network(network);
    found
        .map(|interface| interface.address)
        .map_err(|why| Failure::new(exit::CONFIGURATION, format!("--network {network}: {why}")))
}

/// The address `host:port` of a socket by which others reach it who know its host as `name`.
pub(super) fn advertised(name: &str, bound: &str) -> String {
    let port = bound.rsplit_once(':').map_or("", |(_, port)| port);
    if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") }
}

/// The first address of a `host:port`.
pub(super) fn resolved(address: &str) -> std::io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| std::io::Error::other("the name has no address"))
}

/// Makes sockets for so many nodes at an address of this host; returns their addresses, too.
pub(in crate::run) fn listen(
    nodes: usize,
    address: IpAddr,
    has_datagrams: bool,
    ports: Ports,
) -> Result<(Vec<OwnedFd>, Vec<String>), Failure> {
    let bind = || -> std::io::Result<(OwnedFd, String)> {
        if has_datagrams {
            let socket = ports.bind(|port| UdpSocket::bind((address, port)))?;
            let address = socket.local_addr()?;
            return Ok((socket.into(), address.to_string()));
        }
        let listener = ports.bind(|port| TcpListener::bind((address, port)))?;
        let address = listener.local_addr()?;
        Ok((listener.into(), address.to_string()))
    };
    let bound: std::io::Result<Vec<_>> = (0..nodes).map(|_| bind()).collect();
    let refused = |error: std::io::Error| {
        let sentence = match error.kind() {
            std::io::ErrorKind::AddrInUse if ports != Ports::default() => {
                format!("ports: {ports}: too few are free at {address} for {nodes} nodes; give more ports")
            }
            _ => format!("cannot listen on {address}: {error}; see `trellis doctor` for the limits of this machine"),
        };
        Failure::new(exit::SYSTEM, sentence)
    };
    Ok(bound.map_err(refused)?.into_iter().unzip())
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
    let address = resolved(address)?;
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
    fn a_socket_is_advertised_with_its_port() {
        assert_eq!(advertised("a.example.org", "[::]:7000"), "a.example.org:7000");
        assert_eq!(advertised("fd00::1", "0.0.0.0:7000"), "[fd00::1]:7000");
    }

    #[test]
    fn who_listens_is_reached_and_who_does_not_is_named() {
        let (sockets, addresses) =
            listen(1, "127.0.0.1".parse().expect("an address"), false, Ports::default()).expect("a port is free");
        let closed =
            listen(1, "127.0.0.1".parse().expect("an address"), false, Ports::default()).expect("a port is free").1;
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
