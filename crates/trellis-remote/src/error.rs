//! Why a call about remote memory failed: the fact, the place, and the next step.

use std::io;
use std::time::Duration;

use trellis_fabric_protocol::wire::address::{Host, HostPrefix, PAGE_BYTES, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Status, WRITE_BYTES_MAX};
use trellis_transport::links::ipv6::NoAnswer;

/// See the variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The socket could not be opened.
    #[error("no socket for UDP port {port} over IPv6: {error}; look whether another server has it and IPv6 is on")]
    Socket {
        /// The port.
        port: u16,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The memory could not be allocated.
    #[error("{bytes} bytes of memory cannot be had: {error}; ask for less")]
    Memory {
        /// The size.
        bytes: u64,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// An invalid setting.
    #[error("{0}")]
    Setting(String),
    /// A host did not answer in time, or cannot be reached.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// A host refused.
    #[error("{command} of {pointer} was refused: {status}")]
    Refused {
        /// The request.
        command: Command,
        /// Its pointer.
        pointer: Pointer,
        /// The reason.
        status: Status,
    },
    /// The range has moved, or its home is restarting, and that lasted until the deadline.
    #[error(
        "{command} of {pointer} was not done within {:.3} s, though it was asked {sent} times; what was heard last of the range {}{}: \
         {status}; look which server is its home, and whether the switch takes requests there",
        waited.as_secs_f64(), range_of(pointer), there(pointer, *moved_to)
    )]
    Unserved {
        /// The request.
        command: Command,
        /// Its pointer.
        pointer: Pointer,
        /// The last status received.
        status: Status,
        /// The host that it named.
        moved_to: Option<Host>,
        /// How often the request was sent.
        sent: u32,
        /// How long the call waited.
        waited: Duration,
    },
    /// A change was sent under a lease, and the lease had ended when an answer came.
    #[error(
        "nobody knows whether {command} of {pointer} was done: its lease ended before an answer came, and others have changed the \
         page since; read it, and decide"
    )]
    Unknown {
        /// The request.
        command: Command,
        /// Its pointer.
        pointer: Pointer,
    },
    /// The range is not within one server's memory.
    #[error("{bytes} bytes from {pointer} on are more than an address can name; look at the pointer and the length")]
    Range {
        /// The first byte.
        pointer: Pointer,
        /// Its length.
        bytes: u64,
    },
    /// More bytes than one atomic write can have.
    #[error(
        "{bytes} bytes cannot be written in one step, but {WRITE_BYTES_MAX}; write them without `whole`, and let nobody read them \
         meanwhile"
    )]
    TooLong {
        /// The number of bytes.
        bytes: u64,
    },
    /// More than one page, where an atomic write is limited to one page: a COMMIT is of one page, and backups store only
    /// commits.
    #[error(
        "{bytes} bytes at {pointer} are in several pages, and cannot be written in one step: other hosts keep copies of them, or are \
         home of some, and one step is one page there; put what belongs together into one page of {PAGE_BYTES} bytes, or write \
         it without `whole`"
    )]
    SeveralPages {
        /// The first byte.
        pointer: Pointer,
        /// The number of bytes.
        bytes: u64,
    },
    /// A server's socket failed.
    #[error("the server's socket failed: {0}; start it again")]
    Failed(#[source] io::Error),
    /// No random bits are available.
    #[error("no random number can be drawn from getrandom ({0}); see random(4)")]
    Random(#[source] io::Error),
}

impl RemoteError {
    /// The host that did not answer or refused.
    pub fn host(&self) -> Option<Host> {
        match self {
            RemoteError::NoAnswer(why) => Some(Host(u16::from_be_bytes([why.to[4], why.to[5]]))),
            RemoteError::Refused { pointer, .. }
            | RemoteError::Unserved { pointer, .. }
            | RemoteError::Unknown { pointer, .. } => Some(pointer.home()),
            _ => None,
        }
    }
}

/// The range of a pointer: the memory of its host number, wherever its home is.
fn range_of(pointer: &Pointer) -> HostPrefix {
    HostPrefix { cluster: pointer.cluster(), host: pointer.home() }
}

/// A phrase that names the other host.
fn there(pointer: &Pointer, moved_to: Option<Host>) -> String {
    moved_to.map_or(String::new(), |host| format!(" (said to be at {})", HostPrefix { host, ..range_of(pointer) }))
}
