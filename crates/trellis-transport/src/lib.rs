//! Links between nodes: authenticated frames over tcp, over udp, in shared memory or in one process.
//!
//! This crate moves bytes and nothing else. A [`Link`] joins a fixed number of nodes. Each ordered pair of nodes is
//! one stream of frames: a header of [`HEADER_BYTES`] bytes, then a body of any size. The receiver chooses the place
//! of the body in memory when it has seen the header ([`Sink::place`]), so the bytes of a page go from the socket to
//! their destination without an intermediate copy.
//!
//! Promises: frames of a pair arrive once, whole and unchanged, and over tcp in the order they were sent; otherwise
//! the peer is reported lost. No peer without the secret of the cluster gets a byte of an answer. No call that moves a
//! frame ever blocks.
//!
//! It must never interpret a header, decide who may read a page, retry on behalf of a protocol, or raise SIGPIPE. Of
//! the workspace it depends only on `trellis-base`.

#![deny(unsafe_code)]

mod interfaces;
pub mod links;
mod random;
pub mod wrap;

pub use interfaces::{Interface, interfaces, is_in};
#[cfg(feature = "fabric")]
pub use links::fabric::{Fabric, FabricError, FabricOptions};
pub use links::in_process::{InProcess, mesh};
pub use links::shm::{Manner, Shm, ShmOptions};
pub use links::tcp::{StartError, Tcp, TcpOptions};
pub use links::udp::{Multicast, Udp, UdpOptions};
pub use links::{
    Choice, Link, LinkStatistics, Lost, Payload, PeerStatistics, Placement, Refused, SendError, SharedMemory, Sink,
};
pub use random::random;
pub use wrap::faulty::Faults;
pub use wrap::secure::Security;

use links::{tcp::handshake, udp, waits};
use trellis_base::Deadline;

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[
    handshake::UNAUTHENTICATED,
    handshake::CONFIRMATION,
    udp::acceptor::HANDSHAKE,
    udp::multicast_output::ROOM,
    waits::STALL,
    waits::CLOSE,
    waits::FABRIC_WRITES,
    waits::FABRIC_BROKEN,
    waits::FABRIC_READS,
    waits::NAME,
    udp::probe::RETURN,
];

/// Bytes of a frame's header. The transport carries them; the protocol defines their meaning.
pub const HEADER_BYTES: usize = 32;

/// The largest body that may be received into the link's own buffer ([`Placement::Inline`]).
pub const INLINE_BODY_BYTES_MAX: usize = 4096;

/// The largest body of one frame.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// The maximum memory that the frames waiting for one peer may hold, in bytes.
///
/// Copied bodies count in full. A pinned body waits by reference and counts, like every frame, with
/// [`QUEUED_FRAME_BYTES`]. A send that would exceed the limit returns [`SendError::QueueFull`], and the caller keeps
/// the frame.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;

/// What one waiting frame counts against [`QUEUE_BYTES_MAX`] besides its copied body.
pub const QUEUED_FRAME_BYTES: usize = 128;

/// The longest hello that a node may send to its peers ([`TcpOptions::hello`]).
pub const HELLO_BYTES_MAX: usize = 256;
