//! The memory server of a run whose region is at memory servers, if none is named: a thread of the launcher.
//!
//! Requests go to the server's addresses, so the machine must accept them as its own. If it does not (most machines
//! do not), the run gets a network of its own that does. That needs no rights, but the program sees no other network.
//!
//! Promises: nothing is changed outside of the run, and the server ends with the launcher. It must move the launcher
//! before it opens a socket, and start the thread after the guard was forked.

use std::net::{SocketAddrV6, UdpSocket};
use std::thread::JoinHandle;

use trellis::config::Config;
use trellis::remote::{Host, HostPrefix, Pointer, Server, ServerOptions, Stop};
use trellis_fabric_protocol::wire::address::Cluster;

use crate::exit::{self, Failure};

/// The server's number among the hosts; nodes count from 1.
const SERVER: Host = Host(0x1000);
const PAGE_BYTES: u64 = 4096;

/// The place of the run's own memory server, and the size of its memory.
pub(super) struct Place {
    cluster: Cluster,
    bytes: u64,
    /// Whether the launcher has moved into a network of its own.
    has_moved: bool,
}

impl Place {
    /// A place, if the configuration needs one and names none.
    pub(super) fn for_run(read: &Config, nodes: usize) -> Result<Option<Place>, Failure> {
        if !read.is_leased() {
            return Ok(None);
        }
        if let Some(server) = read.memory_servers.first() {
            // Reported once, and not by every node.
            let sentence = format!(
                "the memory server {server} is named, but not which addresses this host has in its network; add --set \
                 prefix=PREFIX, or set TRELLIS_PREFIX"
            );
            return read.prefix.map(|_| None).ok_or_else(|| Failure::new(exit::CONFIGURATION, sentence));
        }
        let cluster = match read.prefix {
            Some(prefix) => prefix.cluster,
            None => random_number()?,
        };
        let bytes = (read.region_bytes as u64).next_multiple_of(PAGE_BYTES);
        let mut place = Place { cluster, bytes, has_moved: false };
        let hosts = (0..nodes).map(|node| place.of_node(node).host).chain([SERVER]);
        if !hosts.into_iter().all(|host| is_ours(cluster, host)) {
            place.enter_own_network()?;
        }
        Ok(Some(place))
    }

    fn enter_own_network(&mut self) -> Result<(), Failure> {
        let own = trellis_switch::Cluster::new(self.cluster.number());
        let everything = own.everything();
        trellis_switch::lab::alone(own).map_err(|error| {
            let host = self.prefix(Host(1));
            Failure::new(
                exit::SYSTEM,
                format!(
                    "no memory server can be started for this run alone: {error}. Name one with --memory-server; or say, as \
                     root, `ip -6 route add local {everything} dev lo` and give `--set prefix={host}`"
                ),
            )
        })?;
        self.has_moved = true;
        Ok(())
    }

    fn prefix(&self, host: Host) -> HostPrefix {
        HostPrefix { cluster: self.cluster, host }
    }

    /// Whether the launcher has moved into a network of its own.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// The addresses of a node: each node is a host of its own.
    pub(super) fn of_node(&self, node: usize) -> HostPrefix {
        self.prefix(Host(node as u16 + 1))
    }

    /// The addresses of the server.
    pub(super) fn of_server(&self) -> HostPrefix {
        self.prefix(SERVER)
    }

    /// Starts the server.
    pub(super) fn serve(&self) -> Result<Running, Failure> {
        let options = ServerOptions::new(self.of_server(), self.bytes);
        let mut server = Server::open(options).map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::Builder::new().name("trellis-memory".to_owned()).spawn(move || {
            if let Err(error) = server.serve(&stops) {
                // The nodes will report which host does not answer.
                trellis_output::lines::report(format_args!("{error}"));
            }
        });
        let thread = thread.map_err(|_| Failure::system("start a thread for the memory server"))?;
        Ok(Running { stop, thread: Some(thread) })
    }
}

/// The running server; it ends with this value.
pub(super) struct Running {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of it was printed.
            // Ends within the turn of the server, which sees that it is stopped.
            let _ = thread.join();
        }
    }
}

/// A random cluster number that nobody else is likely to use.
fn random_number() -> Result<Cluster, Failure> {
    let bytes = super::child::fresh_secret()?;
    let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
    Ok(Cluster::new(number).expect("24 bits"))
}

/// Whether this machine accepts a host's addresses as its own.
fn is_ours(cluster: Cluster, host: Host) -> bool {
    let address = Pointer::to_host(cluster, host).encode().0;
    UdpSocket::bind(SocketAddrV6::new(address.into(), 0, 0, 0)).is_ok()
}
