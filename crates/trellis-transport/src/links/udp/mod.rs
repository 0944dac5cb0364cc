//! The link `udp`: datagrams between nodes, with reliable delivery by the nodes themselves.
//!
//! Promises: the contract of [`crate::links`] without order: a frame does not wait for an earlier one that was lost.
//! Every datagram after the handshake is protected individually, as [`Security`] says. In each pair, the node with the
//! higher number dials until the peer answers or the link is closed.
//!
//! It must never reconnect after a loss (the layer above decides what a lost node means), answer an unauthenticated
//! peer, or keep a socket open in a forked child.
//!
//! # Pinned bodies
//!
//! A [`Payload::Pinned`] is read until the peer has acknowledged it, not only until it was sent once.
//!
//! # Losing a peer
//!
//! There is no connection whose end the kernel would report. A peer that leaves announces it. A killed one is noticed
//! when its kernel reports four times that nothing listens there, with attempts in between to reach it; a probe is
//! sent at the latest half a second after its last datagram. A failed machine is noticed after a minute of silence.
//! (The layer above watches its peers too.)
//!
//! # Locks
//!
//! As in the tcp link: each peer has a receiving half and a sending half, each with its own lock. A holder of a
//! receiving half may take the sending half of the multicasts, then sending halves, one at a time. A holder of a
//! sending half takes no other lock but the timer's lock or the faulty network's. `poll` only tries the receiving
//! half; callbacks run under it and may send to any peer.
//!
//! # Modules
//!
//! `delivery` (what to send when, and what arrived: pure), `datagram` (bytes and protection), `acceptor` (a thread:
//! dials, answers, performs handshakes), `input` and `output` (the two halves of a peer), `peers` (all of them, polls
//! and the timer), `multicast`, `multicast_output` and `multicast_datagram` (one datagram for several peers),
//! `leaving` (the end), `probe` (tests multicasts), `sockets` and `timer` (system calls).

pub(crate) mod acceptor;
mod datagram;
pub mod delivery;
mod input;
mod leaving;
mod multicast;
mod multicast_datagram;
pub(crate) mod multicast_output;
mod output;
mod peers;
pub(crate) mod probe;
mod sockets;
mod timer;

use std::fmt;
use std::net::UdpSocket;
use std::os::fd::RawFd;
use std::sync::Arc;

use self::acceptor::Acceptor;
pub use self::multicast::Multicast;
use self::multicast::{Group, Setting};
use self::peers::Peers;
pub use self::probe::{Interface, try_multicast};
use crate::HEADER_BYTES;
use crate::links::acceptor_thread::AcceptorThread;
use crate::links::tcp::{Admit, OnRefused, StartError};
use crate::links::{Choice, Link, LinkStatistics, Payload, SendError, Sink};
use crate::wrap::faulty::Faults;
use crate::wrap::secure::Security;

/// The options of one node's udp link; as for tcp where the names are equal.
pub struct UdpOptions {
    /// This node's number.
    pub node: usize,
    /// `host:port` of every node, by number; one without an address is not dialled.
    pub addresses: Vec<String>,
    /// A bound socket created elsewhere; otherwise this node's own address is bound.
    pub socket: Option<UdpSocket>,
    /// The secret of the cluster.
    pub secret: [u8; 32],
    /// How datagrams are protected; the same on every node.
    pub security: Security,
    /// The hello that every peer gets, encrypted, before it is connected: at most [`HELLO_BYTES_MAX`](crate::HELLO_BYTES_MAX) bytes.
    pub hello: Vec<u8>,
    /// Judges the hello of a peer. It is called on the link's own thread, and must not close the link.
    pub admit: Admit,
    /// Gets sentences about peers that this node refused, or that refused it. It is called on the link's own thread.
    pub refused: OnRefused,
    /// A faulty network between this node and its peers, for tests and experiments.
    pub faults: Option<Faults>,
    /// Whether and where frames for several peers are sent in one datagram. Nodes may differ in this; a multicast
    /// reaches the nodes that listen.
    pub multicast: Multicast,
}

impl fmt::Debug for UdpOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not appear in a log.
        formatter
            .debug_struct("UdpOptions")
            .field("node", &self.node)
            .field("addresses", &self.addresses)
            .field("security", &self.security)
            .field("faults", &self.faults)
            .field("multicast", &self.multicast)
            .finish_non_exhaustive()
    }
}

/// The udp link of one node.
pub struct Udp {
    peers: Arc<Peers>,
    acceptor: AcceptorThread,
}

impl fmt::Debug for Udp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Udp")
            .field("node", &self.peers.roster.node)
            .field("nodes", &self.peers.roster.count())
            .finish_non_exhaustive()
    }
}

impl Udp {
    /// Starts to listen and to dial; returns at once, before any peer is connected.
    pub fn start(mut options: UdpOptions) -> Result<Udp, StartError> {
        let (node, nodes) = (options.node, options.addresses.len());
        StartError::check(node, nodes, &options.hello)?;
        let system = |source| StartError::System { node, source };
        let setting = Setting {
            multicast: options.multicast,
            secret: options.secret,
            security: options.security,
            faults: options.faults.clone(),
        };
        let peers = Arc::new(Peers::new(node, nodes, Group::new(nodes, setting)).map_err(system)?);
        // A single node has no peer: no socket, no thread.
        if nodes == 1 {
            return Ok(Udp { peers, acceptor: AcceptorThread::new(None) });
        }
        let socket = match options.socket.take() {
            Some(socket) => socket,
            None => {
                let address = &options.addresses[node];
                UdpSocket::bind(address.as_str()).map_err(|source| StartError::Listen {
                    node,
                    address: address.clone(),
                    source,
                })?
            }
        };
        let listening = sockets::adopt(socket).map_err(system)?;
        let acceptor = Acceptor::new(Arc::clone(&peers), listening, options);
        let thread = acceptor::spawn(acceptor).map_err(system)?;
        Ok(Udp { peers, acceptor: AcceptorThread::new(Some(thread)) })
    }
}

impl Link for Udp {
    fn node(&self) -> usize {
        self.peers.roster.node
    }

    fn nodes(&self) -> usize {
        self.peers.roster.count()
    }

    fn is_ordered(&self) -> bool {
        false
    }

    #[inline]
    fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        self.peers.send(peer, header, payload)
    }

    fn send_to_all(
        &self,
        peers: &[usize],
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
    ) -> Result<(), (usize, SendError)> {
        self.peers.send_to_all(peers, header, payload)
    }

    #[inline]
    fn way(&self, _peer: usize) -> Choice {
        Choice::Udp
    }

    fn poll(&self, sink: &mut dyn Sink) -> bool {
        self.peers.poll(sink)
    }

    fn readiness(&self) -> RawFd {
        self.peers.roster.epoll.raw()
    }

    fn is_connected(&self, peer: usize) -> bool {
        self.peers.roster.is_up(peer)
    }

    fn is_lost(&self, peer: usize) -> bool {
        self.peers.roster.is_lost(peer)
    }

    fn trouble(&self, peer: usize) -> Option<String> {
        self.peers.roster.trouble(peer)
    }

    fn statistics(&self) -> LinkStatistics {
        self.peers.statistics()
    }

    fn close(&self) {
        self.acceptor.close(&self.peers.roster, || leaving::leave_all(&self.peers));
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        self.close();
        self.acceptor.forget_if_forked(&self.peers.roster);
    }
}
