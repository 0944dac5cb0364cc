//! The link `tcp`: one connection per pair of nodes.
//!
//! Promises: the contract of [`crate::links`]. Every node listens. In each pair, the node with the higher number dials
//! repeatedly until the connection is up or the link is closed. Pairs come up independently: a node that never starts
//! delays no other.
//!
//! It must never reconnect after a loss (the layer above decides what a lost node means), answer an unauthenticated
//! peer, or keep a socket open in a forked child.
//!
//! # Locks
//!
//! Each peer has a receiving half and a sending half, each with its own lock. A holder of a receiving half may take
//! sending halves, one at a time; a holder of a sending half takes no other lock. `poll` only tries the receiving
//! half; callbacks run under it and may send to any peer.
//!
//! # Modules
//!
//! `acceptor` (a thread: accepts, dials, performs handshakes), `handshake` (one handshake, step by step), `input` and
//! `output` (the two halves of a connection), `question` (questions of processes that are not nodes yet), `sockets`
//! (system calls).

pub(in crate::links) mod acceptor;
pub(crate) mod handshake;
mod input;
mod output;
mod peers;
pub mod question;
pub(in crate::links) mod sockets;

use std::net::TcpListener;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::{fmt, io};

use thiserror::Error;

use self::acceptor::Acceptor;
use self::peers::Peers;
use crate::links::acceptor_thread::AcceptorThread;
use crate::links::descriptors::Descriptor;
use crate::links::{Choice, Link, LinkStatistics, Lost, Payload, SendError, Sink};
use crate::wrap::secure::Security;
use crate::{HEADER_BYTES, HELLO_BYTES_MAX};

/// Whether a peer is admitted, by its number and its hello; an error is the reason for refusal.
pub type Admit = Box<dyn Fn(usize, &[u8]) -> Result<(), String> + Send + Sync>;
/// Answers a question of a process that knows the secret and is not a node; an error is the sentence that refuses it.
/// The flag says whether the question was certainly meant for this node. Only such a question may change anything,
/// because any other may be a recording of what another node was asked.
pub type Answer = Box<dyn Fn(bool, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;
/// Gets a sentence about a peer that knows the secret and was refused nevertheless.
pub type OnRefused = Box<dyn Fn(String) + Send + Sync>;

/// The options of one node's tcp link.
pub struct TcpOptions {
    /// This node's number.
    pub node: usize,
    /// `host:port` of every node, by number. The text is empty for nodes that may join later and whose address is not
    /// known yet, and for those that left: they are not dialled.
    pub addresses: Vec<String>,
    /// A listening socket created elsewhere; otherwise this node's own address is bound.
    pub listener: Option<TcpListener>,
    /// The secret of the cluster.
    pub secret: [u8; 32],
    /// How frames are protected; the same on every node.
    pub security: Security,
    /// The hello that every peer gets, encrypted, before it is connected: at most [`HELLO_BYTES_MAX`] bytes.
    pub hello: Vec<u8>,
    /// Judges the hello of a peer. It is called on the link's own thread, and must not close the link.
    pub admit: Admit,
    /// Gets sentences about peers that this node refused, or that refused it. It is called on the link's own thread.
    pub refused: OnRefused,
}

impl fmt::Debug for TcpOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not appear in a log.
        formatter
            .debug_struct("TcpOptions")
            .field("node", &self.node)
            .field("addresses", &self.addresses)
            .field("security", &self.security)
            .finish_non_exhaustive()
    }
}

/// Why a link could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The node's number is not in the list.
    #[error("node {node} has no address: the list has {nodes}, for nodes 0 to {}; give each node one", nodes.saturating_sub(1))]
    NoAddress {
        /// The node's number.
        node: usize,
        /// The number of addresses.
        nodes: usize,
    },
    /// The hello is too long.
    #[error("the hello has {bytes} bytes and at most {HELLO_BYTES_MAX} are carried; shorten it")]
    HelloTooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The node's own address cannot be listened on.
    #[error(
        "node {node} cannot listen on {address}: {source}; another process has it, or it is not an \
         address of this machine"
    )]
    Listen {
        /// The node's number.
        node: usize,
        /// Its address.
        address: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The given socket is not listening.
    #[error("the socket handed over to node {node} does not listen; bind it and listen first")]
    NotListening {
        /// The node's number.
        node: usize,
    },
    /// The operating system provides no descriptor or thread.
    #[error("the link of node {node} cannot be made: {source}; see `ulimit -n` and `ulimit -u`")]
    System {
        /// The node's number.
        node: usize,
        /// The operating system's reason.
        source: io::Error,
    },
}

impl StartError {
    /// Checks the place and the hello of a node.
    pub(in crate::links) fn check(node: usize, nodes: usize, hello: &[u8]) -> Result<(), StartError> {
        if node >= nodes {
            return Err(StartError::NoAddress { node, nodes });
        }
        if hello.len() > HELLO_BYTES_MAX {
            return Err(StartError::HelloTooLong { bytes: hello.len() });
        }
        Ok(())
    }
}

/// The tcp link of one node.
pub struct Tcp {
    peers: Arc<Peers>,
    acceptor: AcceptorThread,
}

impl fmt::Debug for Tcp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tcp")
            .field("node", &self.peers.roster.node)
            .field("nodes", &self.peers.roster.count())
            .finish_non_exhaustive()
    }
}

impl Tcp {
    /// See [`Link::readiness`].
    pub(in crate::links) fn ready_descriptor(&self) -> &Descriptor {
        self.peers.roster.epoll.descriptor()
    }

    /// Starts to listen and to dial; returns at once, before any peer is connected.
    pub fn start(options: TcpOptions) -> Result<Tcp, StartError> {
        Tcp::start_and_answer(options, Box::new(|_, _| Err("this cluster admits no new nodes".to_owned())))
    }

    /// Starts like [`Tcp::start`], and answers questions ([`question`]). `answer` is called on the link's own thread
    /// and must not wait.
    pub fn start_and_answer(mut options: TcpOptions, answer: Answer) -> Result<Tcp, StartError> {
        let (node, nodes) = (options.node, options.addresses.len());
        StartError::check(node, nodes, &options.hello)?;
        let system = |source| StartError::System { node, source };
        let peers = Arc::new(Peers::new(node, nodes).map_err(system)?);
        // A single node has no peer: no socket, no thread.
        if nodes == 1 {
            return Ok(Tcp { peers, acceptor: AcceptorThread::new(None) });
        }
        let listener = listen(&mut options)?;
        let acceptor = Acceptor::new(Arc::clone(&peers), listener, options, answer);
        let thread = acceptor::spawn(acceptor).map_err(system)?;
        Ok(Tcp { peers, acceptor: AcceptorThread::new(Some(thread)) })
    }

    /// Ends the connection of a peer that another layer of this crate gave up; the sink is not told.
    pub(in crate::links) fn end_peer(&self, peer: usize, why: &Lost) {
        self.peers.end(peer, why);
    }

    /// Whether the peer's end of the connection is gone, found without receiving.
    pub(in crate::links) fn has_ended(&self, peer: usize) -> bool {
        self.peers.has_ended(peer)
    }
}

impl Link for Tcp {
    fn node(&self) -> usize {
        self.peers.roster.node
    }

    fn nodes(&self) -> usize {
        self.peers.roster.count()
    }

    #[inline]
    fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        self.peers.send(peer, header, payload)
    }

    #[inline]
    fn way(&self, _peer: usize) -> Choice {
        Choice::Tcp
    }

    fn poll(&self, sink: &mut dyn Sink) -> bool {
        self.peers.poll(sink)
    }

    fn readiness(&self) -> RawFd {
        self.ready_descriptor().raw()
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
        self.acceptor.close(&self.peers.roster, || self.peers.end_all());
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.close();
        self.acceptor.forget_if_forked(&self.peers.roster);
    }
}

fn listen(options: &mut TcpOptions) -> Result<Descriptor, StartError> {
    let node = options.node;
    let listener = match options.listener.take() {
        Some(listener) => listener,
        None => {
            let address = &options.addresses[node];
            TcpListener::bind(address.as_str()).map_err(|source| StartError::Listen {
                node,
                address: address.clone(),
                source,
            })?
        }
    };
    let system = |source| StartError::System { node, source };
    let descriptor = Descriptor::adopt(|| Ok(listener.into())).map_err(system)?;
    if !sockets::is_listening(&descriptor) {
        return Err(StartError::NotListening { node });
    }
    sockets::make_own(&descriptor).map_err(system)?;
    // The sockets that it accepts inherit these options.
    sockets::tune(&descriptor);
    Ok(descriptor)
}
