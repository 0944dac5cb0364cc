//! The axis *link*: how messages travel between the nodes of a cluster.
//!
//! # The contract
//!
//! A link joins nodes `0..nodes`. Every implementation promises the following, and `tests/conformance.rs` checks it
//! for every choice:
//!
//! 1. **Once and whole.** Every frame from one node to another arrives once and whole. If [`Link::is_ordered`] is
//!    true, frames arrive in the order in which their `send` calls returned; otherwise a frame may overtake another.
//!    There is no order between different pairs.
//! 2. **Non-blocking.** `send` and `poll` never wait: not for a socket, not for a peer that has not started, not for
//!    another thread's callback. `close` waits for a bounded time.
//! 3. **Placement.** A body is written where [`Sink::place`] said, and nowhere else. `place` is called once per frame,
//!    with a header that is already authentic if the link authenticates. If the link is not ordered, several frames of
//!    one peer may be placed and not yet delivered.
//! 4. **Any thread.** All calls may be made from any thread at any time. Two threads that poll never receive from one
//!    peer at once; the second skips it. Callbacks run inside `poll`, with the receiving side of that one peer locked,
//!    and may call `send` to any peer, including that one.
//! 5. **Life cycle.** Frames sent before the peer is up wait. `connected` comes before the first `place`, and `lost`
//!    after the last `deliver`, each at most once per peer. A lost peer stays lost. A peer that never comes delays no
//!    other.
//! 6. **Bounds.** The frames that wait for one peer hold at most [`QUEUE_BYTES_MAX`] bytes; beyond that `send` returns
//!    the frame with an error.
//! 7. **Sleep.** [`Link::readiness`] is an epoll descriptor that may be nested in another. It is readable, level
//!    triggered, as long as a `poll` would do something. While a thread polls continuously ([`Link::set_polling`]) it
//!    may stay silent.
//! 8. **End.** `close` sends what waits, with a deadline. The peers receive all of it and then report the node lost.
//!
//! # Choices
//!
//! * [`tcp`]: between machines or processes; one connection per pair, with the security of
//!   [`crate::wrap::secure`].
//! * [`udp`]: the same over datagrams, not ordered.
//! * [`shm`]: shared memory between nodes of one host, and tcp to others; decided for each pair.
//! * `fabric`: over libfabric. The sender writes bodies into the receiver's memory, or the receiver reads them from the
//!   sender's. It exists only if the crate was built with the feature of that name.
//! * [`in_process`]: between threads, for tests of the layers above.
//!
//! A new choice is one file or folder here, one entry in [`Choice`], and one line in the conformance suite. In the
//! crate `trellis-cluster` it also needs an entry in `LinkKind`, its arm in `join::make_link`, and its rules in
//! `config::checks`.

mod acceptor_thread;
mod addresses;
pub(crate) mod admission;
pub(crate) mod descriptors;
#[cfg(feature = "fabric")]
pub mod fabric;
pub mod in_process;
pub mod ipv6;
mod roster;
pub mod shm;
pub mod tcp;
pub mod udp;
pub(crate) mod waits;

use std::borrow::Cow;
use std::fmt;
use std::os::fd::RawFd;
use std::str::FromStr;

use thiserror::Error;

use crate::{BODY_BYTES_MAX, HEADER_BYTES, QUEUE_BYTES_MAX};

/// The links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One TCP connection per pair of nodes.
    Tcp,
    /// Datagrams between nodes.
    Udp,
    /// Messages, one-sided reads and one-sided writes through libfabric.
    Fabric,
    /// Queues between threads of one process.
    InProcess,
    /// Rings in memory that two processes of one host share.
    Shm,
}

impl Choice {
    /// All choices, for messages and tests.
    pub const ALL: [Choice; 5] = [Choice::Tcp, Choice::Udp, Choice::Fabric, Choice::InProcess, Choice::Shm];
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Choice::Tcp => "tcp",
            Choice::Udp => "udp",
            Choice::Fabric => "fabric",
            Choice::InProcess => "in_process",
            Choice::Shm => "shm",
        })
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Choice::ALL.into_iter().find(|choice| choice.to_string() == text).ok_or_else(|| {
            let all: Vec<String> = Choice::ALL.iter().map(ToString::to_string).collect();
            format!("`{text}` is not a link; accepted: {}", all.join(", "))
        })
    }
}

/// Where the body of a frame must be put.
#[derive(Clone, Copy, Debug)]
pub enum Placement {
    /// The frame has no body.
    Nothing,
    /// This number of bytes, at most [`crate::INLINE_BODY_BYTES_MAX`], goes into a buffer of the link; `deliver` gets
    /// them.
    Inline(usize),
    /// The bytes go directly to this address.
    ///
    /// The address must stay valid for writing, and nothing else may use these bytes, until the frame is delivered or
    /// the peer is lost. If a body turns out to be forged or incomplete, the bytes are undefined and the peer is lost.
    At {
        /// The first byte.
        pointer: *mut u8,
        /// The number of bytes.
        bytes: usize,
    },
}

/// The body of a frame that is sent.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// No body.
    Nothing,
    /// Bytes that the link copies if it cannot send them at once.
    Copy(&'a [u8]),
    /// Bytes at an address, sent without a copy and perhaps later.
    ///
    /// The caller promises that they stay readable until they are sent, and unchanged until the peer has them, however
    /// often they must be sent; at the latest until the link is closed or the peer is lost. (A link that resends may
    /// read them again after the peer has them. Their values do not matter then, but they must still be readable.)
    Pinned(*const u8, usize),
}

impl Payload<'_> {
    /// The length of the body in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Payload::Nothing => 0,
            Payload::Copy(bytes) => bytes.len(),
            Payload::Pinned(_, bytes) => *bytes,
        }
    }
}

/// A frame that the receiver rejects; the peer that sent it is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What is wrong with the frame.
    pub why: Cow<'static, str>,
}

impl From<&'static str> for Refused {
    fn from(why: &'static str) -> Self {
        Refused { why: Cow::Borrowed(why) }
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Refused { why: Cow::Owned(why) }
    }
}

/// The memory from which pinned bodies come and to which placed bodies go: the privileged view of a region.
/// [`Link::share`] makes it known to a link that can use it better than other memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory {
    /// The address of the first byte. The memory stays valid, readable and writable until the link is closed.
    pub pointer: *mut u8,
    /// The length in bytes.
    pub bytes: usize,
    /// The file that holds the memory, from its start, and that another process may map. The region owns the
    /// descriptor.
    pub file: RawFd,
}

/// The receiver of frames. Called from [`Link::poll`], by one thread at a time for each peer.
pub trait Sink {
    /// A frame begins: returns where its body goes. An error drops the frame and the peer.
    fn place(&mut self, peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused>;
    /// The frame has arrived, with its body where `place` said. `body` has the bytes of an inline body and is empty
    /// otherwise.
    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], body: &[u8]);
    /// The peer is up; called before its first frame.
    fn connected(&mut self, peer: usize);
    /// The peer is gone for good; nothing is received from it after this.
    fn lost(&mut self, peer: usize, why: &Lost);
}

/// Why a peer is gone. The text is one that can follow "node 3: ".
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Lost {
    /// It closed its end between two frames.
    #[error("it ended the connection (its process left or was killed)")]
    Ended,
    /// It closed its end within a frame.
    #[error("it ended the connection in the middle of a frame (its process was killed)")]
    Truncated,
    /// The operating system gave up the connection.
    #[error("the connection broke: {why}")]
    Broken {
        /// The operating system's error message.
        why: String,
    },
    /// A frame was changed in transit or is not the peer's.
    #[error("a frame failed authentication: it was changed on the way or was not sent by that node")]
    Forged,
    /// The receiver refused one of its frames.
    #[error("it sent a frame that is refused: {why}")]
    FrameRefused {
        /// What is wrong with the frame.
        why: String,
    },
    /// One of the two nodes refused the other.
    #[error("{why}")]
    NodeRefused {
        /// A sentence that says why and what to do.
        why: String,
    },
    /// This node closed its link.
    #[error("this node closed its link")]
    ClosedHere,
}

/// Why a frame was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// There is no such node.
    #[error("there is no node {peer}: the cluster has nodes 0 to {}; check the node number", nodes - 1)]
    NoSuchNode {
        /// The number that was given.
        peer: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// A node does not send to itself over a link.
    #[error("node {node} cannot send to itself over a link; handle the message where it is made")]
    ToSelf {
        /// This node.
        node: usize,
    },
    /// The peer is gone.
    #[error("node {peer} is lost: {why}")]
    Lost {
        /// The peer's number.
        peer: usize,
        /// Why.
        why: Lost,
    },
    /// Too much waits for this peer already. The caller should poll, and then try again.
    #[error(
        "{queued_bytes} bytes wait for node {peer} and at most {QUEUE_BYTES_MAX} may; poll the link \
         and send again"
    )]
    QueueFull {
        /// The peer's number.
        peer: usize,
        /// The number of bytes that wait.
        queued_bytes: usize,
    },
    /// The body is longer than any frame may be.
    #[error("a body of {bytes} bytes is too long: at most {BODY_BYTES_MAX}; send it in pieces")]
    TooLong {
        /// The length of the body in bytes.
        bytes: usize,
    },
    /// The link is closed, or this is a forked child, which has no link.
    #[error("this link is closed (a forked child has none); use the process that joined")]
    Closed,
}

/// Checks what every link refuses in any state: a peer that does not exist, and a body that is too long.
#[inline]
pub(crate) fn check_sendable(node: usize, nodes: usize, peer: usize, bytes: usize) -> Result<(), SendError> {
    if peer >= nodes {
        return Err(SendError::NoSuchNode { peer, nodes });
    }
    if peer == node {
        return Err(SendError::ToSelf { node });
    }
    if bytes > BODY_BYTES_MAX {
        return Err(SendError::TooLong { bytes });
    }
    Ok(())
}

/// The counters of a link since it was made. Bytes count headers and bodies, not tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Frames received whole.
    pub frames_in: u64,
    /// Frames taken by `send`.
    pub frames_out: u64,
    /// Bytes of the frames received.
    pub bytes_in: u64,
    /// Bytes of the frames taken.
    pub bytes_out: u64,
    /// Connections that never authenticated: wrong secret, other protocol, replay, time-out.
    pub unauthenticated_refused: u64,
    /// Peers that know the secret and were refused nevertheless (other version or configuration).
    pub nodes_refused: u64,
    /// Frames that failed authentication or that the receiver refused.
    pub frames_refused: u64,
    /// Datagrams received and found authentic. A link that leaves the segmentation to the kernel counts each frame as
    /// one packet.
    pub packets_in: u64,
    /// Datagrams sent, including those sent again; or frames, as for `packets_in`.
    pub packets_out: u64,
    /// Fragments that were sent again.
    pub packets_resent: u64,
    /// Datagrams sent that carried nothing but an acknowledgement.
    pub packets_acknowledging: u64,
    /// Datagrams received whose fragment had been received before.
    pub packets_duplicate: u64,
    /// Datagrams received that were forged, changed, replayed or truncated.
    pub packets_refused: u64,
    /// Datagrams among `packets_out` that went to several peers at once.
    pub multicast_out: u64,
    /// Datagrams among `packets_in` that a peer sent to several nodes at once, whether or not to this one.
    pub multicast_in: u64,
    /// Datagrams sent that reported missing fragments.
    pub multicast_negative: u64,
    /// Fragments among `packets_resent` that had been sent by multicast before.
    pub multicast_repaired: u64,
    /// Parts of bodies that this node read from a peer's memory with a one-sided read.
    pub one_sided_reads: u64,
    /// Bodies that this node wrote into a peer's memory with a one-sided write.
    pub one_sided_writes: u64,
    /// Peers that receive the multicasts of this node now.
    pub multicast_peers: u64,
    /// The counters of each peer, by node number. The entry of this node stays empty.
    pub peers: Vec<PeerStatistics>,
}

/// The counters of one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerStatistics {
    /// Frames received whole.
    pub frames_in: u64,
    /// Frames taken by `send`.
    pub frames_out: u64,
    /// Bytes of the frames received.
    pub bytes_in: u64,
    /// Bytes of the frames taken.
    pub bytes_out: u64,
    /// Memory held by frames that wait, as counted against [`QUEUE_BYTES_MAX`].
    pub queued_bytes: u64,
}

/// A way for messages to travel; the module text is its contract.
pub trait Link: Send + Sync {
    /// This node's number.
    fn node(&self) -> usize;

    /// The number of nodes.
    fn nodes(&self) -> usize;

    /// Whether the frames of each pair arrive in the order in which they were sent.
    fn is_ordered(&self) -> bool {
        true
    }

    /// Sends one frame, or keeps it until the peer is up and its socket has room. Never blocks.
    ///
    /// [`Payload::Pinned`] states what its bytes must be until then.
    fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError>;

    /// Sends one frame as [`Link::send`] does, and states where it will be put: the receiver's sink places its body at
    /// the byte `place` of the memory that was given to [`Link::share`] there. A link that supports it writes the body
    /// there by itself, before the receiver learns of the frame.
    ///
    /// The caller promises, for the receiver, that nothing uses these bytes there from now until the frame is
    /// delivered, whatever else comes first; and that if this node is lost before, nothing uses them until the link
    /// there is closed.
    ///
    /// # Errors
    ///
    /// The errors of [`Link::send`].
    fn send_placed(
        &self,
        peer: usize,
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
        place: usize,
    ) -> Result<(), SendError> {
        let _ = place;
        self.send(peer, header, payload)
    }

    /// Sends one frame to several peers, as [`Link::send`] to each does: by one multicast if the link supports it.
    ///
    /// # Errors
    ///
    /// The first peer to which the frame could not be sent, and why. The others get it nevertheless.
    fn send_to_all(
        &self,
        peers: &[usize],
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
    ) -> Result<(), (usize, SendError)> {
        let mut result = Ok(());
        for &peer in peers {
            if let Err(error) = self.send(peer, header, payload) {
                result = result.and(Err((peer, error)));
            }
        }
        result
    }

    /// Tells the link which memory bodies will come from and go to, so that it can register it once with its peers or
    /// its hardware. It is called at most once, before the first frame with such a body. A link without a use for the
    /// memory does nothing.
    ///
    /// # Errors
    ///
    /// A sentence, if the link needs the memory and the system refuses.
    fn share(&self, memory: SharedMemory) -> Result<(), String> {
        let _ = memory;
        Ok(())
    }

    /// How frames travel to `peer`, as a [`Choice`]; informative if the link itself chose.
    fn way(&self, peer: usize) -> Choice;

    /// Receives what has arrived and sends what waits. Returns whether anything arrived, even if only a part of a
    /// frame. It never blocks, and does a bounded amount of work.
    fn poll(&self, sink: &mut dyn Sink) -> bool;

    /// An epoll descriptor that is readable while a `poll` would do something. It belongs to the link: nest it or wait
    /// on it, but do not close it.
    fn readiness(&self) -> RawFd;

    /// A thread calls this with `true` when it begins to poll continuously, and with `false` when it ends. While any
    /// thread polls, [`Link::readiness`] need not report arrivals, which saves peers the system calls that would wake
    /// this node. When the last thread ends, readiness reports everything that arrived meanwhile.
    ///
    /// Returns whether readiness stays silent meanwhile; if not, a thread that sleeps on it is woken by frames as
    /// before.
    fn set_polling(&self, polling: bool) -> bool {
        let _ = polling;
        false
    }

    /// Whether the peer is up.
    fn is_connected(&self, peer: usize) -> bool;

    /// Whether the peer is gone for good.
    fn is_lost(&self, peer: usize) -> bool;

    /// Why a peer is not up yet, if the link knows a reason beyond waiting.
    fn trouble(&self, peer: usize) -> Option<String> {
        let _ = peer;
        None
    }

    /// The counters so far.
    fn statistics(&self) -> LinkStatistics;

    /// Sends what waits, then ends every connection and joins the link's threads. It gives up after a second without
    /// progress, or ten in all. Nothing is received after it has begun. A callback must not call it.
    fn close(&self);
}
