//! Why a call about remote memory failed: the fact, the place, and what to do.

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
    /// The range has moved, or its home starts again, and that lasted until the deadline.
    #[error(
        "{command} of {pointer} was not done within {:.3} s, though it was asked {sent} times; what was heard last of the range {}{}: \
         {status}; look which server is its home, and whether the switch takes requests there",
        waited.as_secs_f64(), range_of(pointer), there(pointer, *told)
    )]
    Unserved {
        /// What was asked.
        command: Command,
        /// About what.
        pointer: Pointer,
        /// What was heard last.
        status: Status,
        /// The host that was named then.
        told: Option<Host>,
        /// How often was asked.
        sent: u32,
        /// For how long.
        waited: Duration,
    },
    /// A change was sent under a lease, and the lease was over when an answer came.
    #[error(
        "nobody knows whether {command} of {pointer} was done: its lease ended before an answer came, and others have changed the \
         page since; read it, and decide"
    )]
    Unknown {
        /// What was asked.
        command: Command,
        /// About what.
        pointer: Pointer,
    },
    /// The range is not one of a server's memory.
    #[error("{bytes} bytes from {pointer} on are more than an address can name; look at the pointer and the length")]
    Range {
        /// The first byte.
        pointer: Pointer,
        /// How many.
        bytes: u64,
    },
    /// More than can be written in one step.
    #[error(
        "{bytes} bytes cannot be written in one step, but {WRITE_BYTES_MAX}; write them without `whole`, and let nobody read them \
         meanwhile"
    )]
    TooLong {
        /// How many.
        bytes: u64,
    },
    /// More than one page, where one step is one page: a COMMIT is of one, and backups keep nothing but commits.
    #[error(
        "{bytes} bytes at {pointer} are in several pages, and cannot be written in one step: other hosts keep copies of them, or are \
         home of some, and one step is one page there; put what belongs together into one page of {PAGE_BYTES} bytes, or write \
         it without `whole`"
    )]
    SeveralPages {
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

/// The range of a pointer: the memory of its host number, wherever that is.
fn range_of(pointer: &Pointer) -> HostPrefix {
    HostPrefix { cluster: pointer.cluster(), host: pointer.home() }
}

/// Where another host was named.
fn there(pointer: &Pointer, told: Option<Host>) -> String {
    told.map_or(String::new(), |host| format!(" (said to be at {})", HostPrefix { host, ..range_of(pointer) }))
}
