//! The link `shm`: shared memory between nodes of one host, and tcp to all others.
//!
//! Promises: the contract of [`crate::links`]. Two nodes meet over tcp, with the cluster's secret. Before the first
//! frame they decide once how this pair's frames travel: through shared memory if both run on one host, under one
//! user, and can hand each other memory; otherwise over the connection ([`Manner::Prefer`]), or not at all
//! ([`Manner::Require`]). The connection stays open: its end reports the death of a process.
//!
//! While a thread polls continuously ([`Link::set_polling`]) and all peers are on this host, neither sending nor
//! receiving makes a system call. A body in the memory of [`Link::share`] is copied once: by the receiver, from there
//! to its place.
//!
//! It must never trust what a peer wrote into shared memory (it is checked where it is used). It does not encrypt
//! shared memory: the secret authenticates members, and only processes that could read the members' own memory can
//! read what they exchange there. So `sealed` and `signed` apply to the connection, and frames in memory need neither.
//!
//! # How a pair decides
//!
//! The node with the lower number sends over the new connection the host on which it runs, and a name and a token for
//! this one peer (its *invitation*). The other node, if it runs on the same host, creates the memory, connects to the
//! name, and hands over memory, wake-up descriptor and shared memory with the token (its *offer*). The first node maps
//! what it got and hands over its own. Then the second sends the decision over the connection (its *verdict*), with the
//! reason if it is tcp. Each of these messages is the first that its sender sends to that peer, and frames wait until
//! then. So no frame has to be ordered against one that took another path.
//!
//! # Wake-up
//!
//! A node that no thread polls marks each ring as *sleeping*. A writer into such a ring removes the mark and signals
//! the node's wake-up descriptor, an event descriptor that [`Link::readiness`] watches. Marking costs a store only if
//! it changes something, and is omitted while a thread polls continuously: otherwise every frame would cost its sender
//! a system call that wakes no one.
//!
//! # Locks
//!
//! As in `tcp`: a receiving and a sending half for each peer. A holder of a receiving half may take sending halves,
//! and the halves of the tcp link below. `poll` only tries a receiving half.
//!
//! # Modules
//!
//! `pairs` (which pairs are served, woken and lost), `negotiation` (invitations, offers, verdicts), `channel` (what two
//! nodes share), `ring` (one direction), `sending` and `receiving` (the two halves), `memory` and `sockets` (system
//! calls).

mod channel;
mod memory;
mod negotiation;
mod pairs;
mod receiving;
mod ring;
mod sending;
mod sockets;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use self::channel::Extent;
use self::negotiation::{ListeningSocket, Negotiation, host_of_this_boot};
use self::pairs::Pair;
use crate::HEADER_BYTES;
use crate::links::descriptors::{Epoll, Event};
use crate::links::roster::lock;
use crate::links::tcp::{Answer, StartError, Tcp, TcpOptions};
use crate::links::{Choice, Link, LinkStatistics, Payload, SendError, SharedMemory, Sink};

const EVENT_TOKEN: u64 = u64::MAX;
const TCP_TOKEN: u64 = u64::MAX - 1;
const LISTENER_TOKEN: u64 = u64::MAX - 2;

/// What happens to a pair that cannot share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It stays on tcp; [`Link::trouble`] says why.
    Prefer,
    /// The two nodes refuse each other.
    Require,
}

/// The options of one node's shm link.
#[derive(Debug)]
pub struct ShmOptions {
    /// What the connections need.
    pub tcp: TcpOptions,
    /// What happens to a pair that cannot share memory.
    pub manner: Manner,
    /// The identity of this host; by default that of its boot. For tests: two identities are two hosts.
    pub host: Option<[u8; 16]>,
}

/// The shm link of one node.
pub struct Shm {
    tcp: Tcp,
    manner: Manner,
    /// The identity of this host, or why it is not known.
    host: Result<[u8; 16], String>,
    /// Readable when a poll would do something.
    epoll: Epoll,
    /// This node's wake-up descriptor.
    event: Event,
    closed: AtomicBool,
    /// The memory of [`Link::share`], and its file.
    ours: Mutex<Option<(Extent, RawFd)>>,
    pairs: Vec<Pair>,
    /// The pairs with a ring, in the order of their arrival; the first `rings` are set.
    order: Vec<AtomicU32>,
    rings: AtomicUsize,
    /// Locked while a pair is added.
    growing: Mutex<()>,
    /// Peers that are up and do not use a ring (yet); while there are any, each poll serves their connections.
    asked_over_tcp: AtomicUsize,
    /// Pairs whose loss is known and not yet reported.
    unsettled: AtomicUsize,
    /// The number of threads that poll continuously.
    pollers: AtomicUsize,
    polls: AtomicU32,
    /// The listening socket for peers with a higher number, or why there is none.
    listening: Result<ListeningSocket, String>,
    negotiations: Mutex<Vec<Negotiation>>,
    /// Processes of this host that were refused: of another user, without the token, or beyond the maximum.
    unauthenticated: AtomicU64,
}

impl fmt::Debug for Shm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Shm")
            .field("node", &self.node())
            .field("nodes", &self.nodes())
            .field("manner", &self.manner)
            .finish_non_exhaustive()
    }
}

impl Shm {
    /// Starts to listen and to dial; returns at once, before any peer is connected.
    pub fn start(options: ShmOptions) -> Result<Shm, StartError> {
        Shm::start_and_answer(options, Box::new(|_, _| Err("this cluster admits no new nodes".to_owned())))
    }

    /// Starts like [`Shm::start`], and answers questions as [`Tcp::start_and_answer`] does.
    pub fn start_and_answer(options: ShmOptions, answer: Answer) -> Result<Shm, StartError> {
        let ShmOptions { tcp, manner, host } = options;
        let (node, nodes) = (tcp.node, tcp.addresses.len());
        let system = |source| StartError::System { node, source };
        let (epoll, event) = (Epoll::new().map_err(system)?, Event::new().map_err(system)?);
        let listening = ListeningSocket::open()
            .map_err(|error| format!("node {node} cannot listen for others of its host: {error}"));
        let tcp = Tcp::start_and_answer(tcp, answer)?;
        epoll.add(event.descriptor(), false, EVENT_TOKEN).map_err(system)?;
        epoll.add(tcp.ready_descriptor(), false, TCP_TOKEN).map_err(system)?;
        if let Ok(listening) = &listening {
            epoll.add(&listening.listener, false, LISTENER_TOKEN).map_err(system)?;
        }
        Ok(Shm {
            tcp,
            manner,
            host: host.map_or_else(host_of_this_boot, Ok),
            epoll,
            event,
            closed: AtomicBool::new(false),
            ours: Mutex::new(None),
            pairs: (0..nodes).map(Pair::new).collect(),
            order: (0..nodes).map(|_| AtomicU32::new(0)).collect(),
            rings: AtomicUsize::new(0),
            growing: Mutex::new(()),
            asked_over_tcp: AtomicUsize::new(0),
            unsettled: AtomicUsize::new(0),
            pollers: AtomicUsize::new(0),
            polls: AtomicU32::new(0),
            listening,
            negotiations: Mutex::new(Vec::new()),
            unauthenticated: AtomicU64::new(0),
        })
    }
}

/// Whether two processes of this host could share memory through this link, and the reason if not: for messages. It
/// tries with two ends in this process.
pub fn probe() -> Result<(), String> {
    host_of_this_boot()?;
    negotiation::probe()
}

impl Link for Shm {
    fn node(&self) -> usize {
        self.tcp.node()
    }

    fn nodes(&self) -> usize {
        self.tcp.nodes()
    }

    #[inline]
    fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        self.send_one(peer, header, payload)
    }

    fn share(&self, memory: SharedMemory) -> Result<(), String> {
        let extent = Extent { start: memory.pointer.addr(), bytes: memory.bytes };
        *lock(&self.ours) = Some((extent, memory.file));
        Ok(())
    }

    fn way(&self, peer: usize) -> Choice {
        self.way_of(peer)
    }

    #[inline]
    fn poll(&self, sink: &mut dyn Sink) -> bool {
        self.poll_all(sink)
    }

    fn readiness(&self) -> RawFd {
        self.epoll.raw()
    }

    fn set_polling(&self, polling: bool) -> bool {
        self.set_pollers(polling)
    }

    fn is_connected(&self, peer: usize) -> bool {
        self.is_decided(peer) && self.tcp.is_connected(peer)
    }

    fn is_lost(&self, peer: usize) -> bool {
        self.pairs.get(peer).is_some_and(Pair::is_lost)
    }

    fn trouble(&self, peer: usize) -> Option<String> {
        self.tcp.trouble(peer).or_else(|| lock(&self.pairs.get(peer)?.note).clone())
    }

    fn statistics(&self) -> LinkStatistics {
        self.count_all()
    }

    fn close(&self) {
        // A forked child shares neither memory nor sockets with the process that started the link.
        if self.is_forked() || self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.leave_all();
        self.tcp.close();
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.close();
    }
}
