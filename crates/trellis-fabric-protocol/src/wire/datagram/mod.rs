//! The UDP payload of a datagram about remote memory: a header of 32 bytes, little-endian, and bytes.
//!
//! | offset | bytes | field | |
//! |---|---|---|---|
//! | 0 | 1 | version | [`VERSION`] |
//! | 1 | 1 | status | 0 in requests |
//! | 2 | 2 | flags | bits 0-1 kind of the tag, 2 last, 3 several, 4 once, 5 answer, 6 release; the others zero |
//! | 4 | 4 | length | of what follows the header |
//! | 8 | 8 | request | the request id, as in the address of the client |
//! | 16 | 8 | epoch | of a lease, or of a client's session at a server |
//! | 24 | 8 | tag | over source, destination, this header with zeros here, and what follows ([`tag`]) |
//!
//! A READ needs no header: its address is enough. Every other request and every answer begins with one. The bytes after the
//! header are described in [`request`] for each command, in [`answer`] for answers, in [`notice`] for what a home sends
//! unasked, and in [`control`] for messages between servers and controllers.
//!
//! Promises: decoding is total. Any bytes give a value or a [`Malformed`]; it must never panic or allocate. A datagram that
//! is an answer is never answered, whatever else is wrong with it, and neither is one whose sender cannot be determined:
//! two hosts never keep each other busy, and an unauthenticated peer gets no byte.

pub mod answer;
pub mod control;
pub mod notice;
pub mod request;
pub mod tag;

pub use answer::{Body, Reply};
pub use control::{ControlMessage, Whole};
pub use notice::Notice;
pub use request::{Extent, Operation, Refused, Request, Rules};
pub use tag::{Checksums, Crc32c, Tags, seal};

use super::address::NotAnAddress;
use super::command::Command;
use core::fmt;

/// The version of this format.
pub const VERSION: u8 = 1;
/// Length of the header.
pub const HEADER_BYTES: usize = 32;
/// The most bytes of memory that one datagram carries.
pub const DATA_BYTES_MAX: u32 = 1 << 15;
/// The most bytes of memory that one request writes, in however many datagrams.
pub const WRITE_BYTES_MAX: u32 = 1 << 16;
/// The most bytes after the header of a message between servers and controllers.
pub const CONTROL_BYTES_MAX: usize = DATA_BYTES_MAX as usize;
/// The length of what stands before the bytes of each datagram of several: where the bytes belong, and how many there are
/// in all.
pub const SEVERAL_BYTES: usize = 8;

/// The offsets of the fields. A header for C asserts that it has the same.
#[allow(missing_docs)]
pub mod layout {
    pub const VERSION_AT: usize = 0;
    pub const STATUS_AT: usize = 1;
    pub const FLAGS_AT: usize = 2;
    pub const LENGTH_AT: usize = 4;
    pub const REQUEST_AT: usize = 8;
    pub const EPOCH_AT: usize = 16;
    pub const TAG_AT: usize = 24;
    pub const TAG_KIND_MASK: u16 = 0b11;
    pub const FLAG_LAST: u16 = 1 << 2;
    pub const FLAG_SEVERAL: u16 = 1 << 3;
    pub const FLAG_ONCE: u16 = 1 << 4;
    pub const FLAG_ANSWER: u16 = 1 << 5;
    pub const FLAG_RELEASE: u16 = 1 << 6;
}

use layout::*;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// It was done.
    Ok = 0,
    /// Ask there: the address follows the header.
    Moved = 1,
    /// The object is gone: another generation is there.
    Stale = 2,
    /// There is no object, or it ends before the access does.
    Bounds = 3,
    /// Too late: the epoch is over.
    Fenced = 4,
    /// Leased, or no room to wait: try again.
    Busy = 5,
    /// The server has no page range of that length.
    NoMemory = 6,
    /// The client has used up its quota.
    Quota = 7,
    /// The tag is not what it should be.
    BadTag = 8,
    /// There is no such command here.
    UnknownCommand = 9,
    /// A field or a length is invalid.
    Malformed = 10,
    /// The client may not do that.
    Denied = 11,
    /// The server waits until every lease of its previous boot is over.
    Restarting = 12,
    /// The 8 bytes were not as expected; their value follows.
    Mismatch = 13,
    /// Only the holder of a lease of the page may do that.
    Lease = 14,
    /// The bytes are at several places: the border of a part is between them.
    Parts = 15,
    /// The range is unserved: its home does not answer its controller, and no other server has all of it.
    Unserved = 16,
}

/// How many statuses there are.
pub const STATUSES: usize = Status::ALL.len();

impl Status {
    /// Every status, in the order of their bytes.
    pub const ALL: [Status; 17] = [
        Status::Ok,
        Status::Moved,
        Status::Stale,
        Status::Bounds,
        Status::Fenced,
        Status::Busy,
        Status::NoMemory,
        Status::Quota,
        Status::BadTag,
        Status::UnknownCommand,
        Status::Malformed,
        Status::Denied,
        Status::Restarting,
        Status::Mismatch,
        Status::Lease,
        Status::Parts,
        Status::Unserved,
    ];

    /// The status of this byte, if there is one.
    pub fn from_byte(byte: u8) -> Option<Status> {
        Status::ALL.get(usize::from(byte)).copied()
    }

    /// Whether the answering server is not home, or not yet: nothing was done, and the same request is sent again, perhaps
    /// elsewhere.
    pub const fn is_of_no_home(self) -> bool {
        matches!(self, Status::Moved | Status::Restarting | Status::Unserved)
    }

    /// A sentence for people, without the place, which only the caller knows.
    pub const fn sentence(self) -> &'static str {
        match self {
            Status::Ok => "it was done",
            Status::Moved => {
                "another host has the page now; ask there, and where none answers, ask `trellis controller status` for it"
            }
            Status::Stale => {
                "the object is gone: it was deleted, or its server was started again or reset without it; its memory may hold another one, so drop the pointer"
            }
            Status::Bounds => "there is no object at that place, or it ends before the last byte asked for",
            Status::Fenced => "it came too late, the lease or the session is over; begin again",
            Status::Busy => "somebody else has a lease of the page, or the server has no room; try again later",
            Status::NoMemory => "the server has no free run of pages that long; ask another one or for less",
            Status::Quota => "this host has as much memory of the server as it may have; delete something first",
            Status::BadTag => "the tag does not fit the datagram; it was damaged, or the key is another one",
            Status::UnknownCommand => "the server does not know the command; it may be of another version",
            Status::Malformed => "the datagram has a field or a length that means nothing; compare the versions",
            Status::Denied => "this host may not do that; look at the access list and at its incarnation",
            Status::Restarting => "the server waits for leases from before its start to end; try again later",
            Status::Mismatch => "the eight bytes were not as expected",
            Status::Lease => "other hosts keep copies of the page; take a lease of it, change it and commit",
            Status::Parts => "its pages are at several places; ask for each page by itself",
            Status::Unserved => {
                "its home is gone or has lost what it held, and no other server has all of it; start that server again if it kept \
                 its memory, or let `trellis controller reset` make it begin empty"
            }
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

/// What protects a datagram; the order is that of strength.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum TagKind {
    /// Nothing besides the checksum of UDP.
    None = 0,
    /// CRC32C.
    Checksum = 1,
    /// 64 bits under a key of the client.
    Keyed = 2,
}

impl TagKind {
    fn of_flags(flags: u16) -> Option<TagKind> {
        [TagKind::None, TagKind::Checksum, TagKind::Keyed].get(usize::from(flags & TAG_KIND_MASK)).copied()
    }

    fn of_header(header: &[u8; HEADER_BYTES]) -> Option<TagKind> {
        TagKind::of_flags(u16::from_le_bytes([header[FLAGS_AT], header[FLAGS_AT + 1]]))
    }
}

/// The header, field by field; what a field means depends on the command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// Of an answer; [`Status::Ok`] in a request.
    pub status: Status,
    /// What protects this datagram.
    pub tag_kind: TagKind,
    /// In a request: these are the last bytes to write. In an answer to one of several: all of it is done.
    pub is_last: bool,
    /// The request comes in several datagrams; see [`Extent`].
    pub is_several: bool,
    /// Carry it out once, however often it arrives.
    pub is_once: bool,
    /// It is an answer.
    pub is_answer: bool,
    /// With COMMIT, and its answer: the lease is given back too.
    pub is_release: bool,
    /// Bytes that follow the header.
    pub length: u32,
    /// The request id.
    pub request: u64,
    /// Of a lease, or of a session.
    pub epoch: u64,
    /// See [`tag`].
    pub tag: u64,
}

impl Header {
    /// The encoded header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut flags = self.tag_kind as u16;
        for (is_set, flag) in [
            (self.is_last, FLAG_LAST),
            (self.is_several, FLAG_SEVERAL),
            (self.is_once, FLAG_ONCE),
            (self.is_answer, FLAG_ANSWER),
            (self.is_release, FLAG_RELEASE),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes[VERSION_AT] = VERSION;
        bytes[STATUS_AT] = self.status as u8;
        bytes[FLAGS_AT..LENGTH_AT].copy_from_slice(&flags.to_le_bytes());
        bytes[LENGTH_AT..REQUEST_AT].copy_from_slice(&self.length.to_le_bytes());
        bytes[REQUEST_AT..EPOCH_AT].copy_from_slice(&self.request.to_le_bytes());
        bytes[EPOCH_AT..TAG_AT].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[TAG_AT..].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    /// The header in front of a payload, whose length must be what the header says.
    pub fn decode(payload: &[u8]) -> Result<Header, Malformed> {
        let header: &[u8; HEADER_BYTES] = payload.first_chunk().ok_or(Malformed::Short(payload.len()))?;
        if header[VERSION_AT] != VERSION {
            return Err(Malformed::Version(header[VERSION_AT]));
        }
        let eight = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| header[at + byte]));
        let flags = u16::from_le_bytes([header[FLAGS_AT], header[FLAGS_AT + 1]]);
        let known = TAG_KIND_MASK | FLAG_LAST | FLAG_SEVERAL | FLAG_ONCE | FLAG_ANSWER | FLAG_RELEASE;
        if flags & !known != 0 {
            return Err(Malformed::Flags);
        }
        let length = u32::from_le_bytes(core::array::from_fn(|byte| header[LENGTH_AT + byte]));
        let came = payload.len() - HEADER_BYTES;
        if length as usize != came {
            return Err(Malformed::Length { said: length, came });
        }
        Ok(Header {
            status: Status::from_byte(header[STATUS_AT]).ok_or(Malformed::Status(header[STATUS_AT]))?,
            tag_kind: TagKind::of_flags(flags).ok_or(Malformed::Flags)?,
            is_last: flags & FLAG_LAST != 0,
            is_several: flags & FLAG_SEVERAL != 0,
            is_once: flags & FLAG_ONCE != 0,
            is_answer: flags & FLAG_ANSWER != 0,
            is_release: flags & FLAG_RELEASE != 0,
            length,
            request: eight(REQUEST_AT),
            epoch: eight(EPOCH_AT),
            tag: eight(TAG_AT),
        })
    }
}

/// Whether a payload claims to be an answer; valid for any version of this format.
pub fn is_answer(payload: &[u8]) -> bool {
    payload.get(FLAGS_AT).is_some_and(|flags| u16::from(*flags) & FLAG_ANSWER != 0)
}

/// Why a datagram was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Its source is no client's address.
    Source(NotAnAddress),
    /// Its destination is no request.
    Destination(NotAnAddress),
    /// It is of another cluster.
    Cluster(u32),
    /// An answer, where a request was expected.
    Answer,
    /// A request, where an answer was expected.
    Request,
    /// A notice, which only a home sends to a client; or, where a notice was expected, something else.
    Notice(Command),
    /// Less than a header.
    Short(usize),
    /// Another version of this format.
    Version(u8),
    /// A status that does not exist, or one in a request.
    Status(u8),
    /// Flags that are undefined, or undefined for this command.
    Flags,
    /// The header says another length than arrived.
    Length {
        /// The length by the header.
        said: u32,
        /// The bytes after the header.
        came: usize,
    },
    /// The request id is not that of the address.
    RequestId,
    /// Its tag is weaker than this.
    TagKind(TagKind),
    /// Its tag is wrong.
    Tag,
    /// Its tag is keyed, and there is no key.
    NoKey,
    /// The length of what follows the header does not fit the command.
    Body(Command),
    /// The position of these bytes among those of several datagrams is invalid.
    Extent,
    /// The place does not fit the command: it is not zero, or not a multiple of eight.
    Place(Command),
}

impl Malformed {
    /// The status that the sender gets; `None` if it gets no answer, because it is unknown or sent an answer.
    pub const fn status(self) -> Option<Status> {
        match self {
            Malformed::Source(_) | Malformed::Cluster(_) | Malformed::Answer => None,
            Malformed::Destination(NotAnAddress::Command(_)) | Malformed::Notice(_) => Some(Status::UnknownCommand),
            Malformed::TagKind(_) | Malformed::Tag | Malformed::NoKey => Some(Status::BadTag),
            _ => Some(Status::Malformed),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Source(why) => write!(f, "its source is no client's: {why}"),
            Malformed::Destination(why) => write!(f, "its destination is no request: {why}"),
            Malformed::Cluster(number) => write!(f, "it is of cluster {number:06x}, which is another one"),
            Malformed::Answer => write!(f, "it is an answer, and nothing was asked here"),
            Malformed::Request => write!(f, "it is a request, where an answer was expected"),
            Malformed::Notice(command) => write!(f, "{command} is not said in this direction"),
            Malformed::Short(came) => write!(f, "its {came} bytes are less than the {HEADER_BYTES} of a header"),
            Malformed::Version(version) => {
                write!(f, "it is of datagram version {version}, and this host speaks {VERSION}")
            }
            Malformed::Status(status) => write!(f, "it has the status {status}, which it cannot have"),
            Malformed::Flags => write!(f, "it has flags that mean nothing for its command"),
            Malformed::Length { said, came } => {
                write!(f, "{came} bytes follow its header, which says {said}; it was cut off or something was added")
            }
            Malformed::RequestId => write!(f, "its header has another request id than the address of its sender"),
            Malformed::TagKind(least) => {
                write!(f, "its tag is weaker than this host accepts, which is {}", least.name())
            }
            Malformed::Tag => write!(f, "its tag is wrong; it was damaged, or its sender has another key"),
            Malformed::NoKey => write!(f, "its tag is keyed, and this host has no key for its sender"),
            Malformed::Body(command) => {
                write!(f, "what follows the header has a length that {command} does not have")
            }
            Malformed::Extent => write!(f, "its bytes have no place among those of the other datagrams"),
            Malformed::Place(command) => write!(f, "its address has a place that {command} cannot be about"),
        }
    }
}

impl core::error::Error for Malformed {}

impl TagKind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            TagKind::None => "none",
            TagKind::Checksum => "a checksum",
            TagKind::Keyed => "a keyed tag",
        }
    }
}

#[cfg(test)]
mod tests;
