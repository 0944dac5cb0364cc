//! Why a call about remote memory failed: the fact, the place, and what to do.

use std::io;

use trellis_protocol::wire::address::Pointer;
use trellis_protocol::wire::command::Command;
use trellis_protocol::wire::datagram::Status;
use trellis_transport::links::ipv6::NoAnswer;

/// See the variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The socket cannot be had.
    #[error("no socket for UDP port {port} over IPv6: {error}; look whether another server has it and IPv6 is on")]
    Socket {
        /// The port.
        port: u16,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The memory cannot be had.
    #[error("{bytes} bytes of memory cannot be had: {error}; ask for less")]
    Memory {
        /// How much.
        bytes: u64,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A setting that cannot be.
    #[error("{0}")]
    Setting(String),
    /// A host did not answer in time, or cannot be reached.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// A host refused.
    #[error("{command} of {pointer} was refused: {status}")]
    Refused {
        /// What was asked.
        command: Command,
        /// About what.
        pointer: Pointer,
        /// Why.
        status: Status,
    },
    /// The range is not one of a server's memory.
    #[error("{bytes} bytes from {pointer} on are more than an address can name; look at the pointer and the length")]
    Range {
        /// The first byte.
        pointer: Pointer,
        /// How many.
        bytes: u64,
    },
    /// The socket of a server failed.
    #[error("the server's socket failed: {0}; start it again")]
    Failed(#[source] io::Error),
    /// No random bits.
    #[error("no random number can be drawn from getrandom ({0}); see random(4)")]
    Random(#[source] io::Error),
}
