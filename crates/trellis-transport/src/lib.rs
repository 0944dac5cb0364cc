//! Links between nodes: authenticated frames over tcp, over udp, in shared memory or in one process.
//!
//! This crate moves bytes and nothing else. A [`Link`] joins a fixed number of nodes; each ordered
//! pair of nodes is one stream of frames: a header of [`HEADER_BYTES`] bytes, then a body of any
//! size whose place in memory the receiver chooses when it has seen the header ([`Sink::place`]).
//! So the bytes of a page go from the socket to where they live, without a stop between.
//!
//! Promised: frames of a pair arrive once, whole and unchanged, over tcp in the order they were sent, or the
//! peer is reported lost; nobody without the secret of the cluster gets a byte of an answer; no call
//! on the way of a frame ever blocks.
//!
//! Never done here: interpreting a header, deciding who may read a page, retrying on behalf of a
//! protocol, raising SIGPIPE. The crate knows no other crate of the workspace.

#![deny(unsafe_code)]

pub mod links;
mod random;
pub mod wrap;

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

/// Bytes of a frame's header. The transport carries them; what they mean is the protocol's affair.
pub const HEADER_BYTES: usize = 32;

/// The largest body that may be received into the link's own buffer ([`Placement::Inline`]).
pub const INLINE_BODY_BYTES_MAX: usize = 4096;

/// The largest body of one frame.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// The most memory that the frames waiting for one peer may hold, in bytes.
///
/// Copied bodies count in full; a pinned body waits by reference and counts, like every frame, with
/// [`QUEUED_FRAME_BYTES`]. A send that would exceed it returns [`SendError::QueueFull`] and the
/// caller keeps the frame.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;

/// What one waiting frame costs against [`QUEUE_BYTES_MAX`] beside its copied body.
pub const QUEUED_FRAME_BYTES: usize = 128;

/// The longest greeting a node may hand to its peers ([`TcpOptions::hello`]).
pub const HELLO_BYTES_MAX: usize = 256;
