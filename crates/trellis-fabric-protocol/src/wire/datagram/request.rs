//! Requests: what each command has behind its header.
//!
//! | command | place in the address | behind the header |
//! |---|---|---|
//! | READ | first byte | no header at all; or a header, and nothing or 4 B: how many bytes |
//! | WRITE, COMMIT | first byte | the bytes |
//! | FETCH_ADD | a multiple of 8 | 8 B: what is added |
//! | COMPARE_SWAP | a multiple of 8 | 8 B: what is expected, 8 B: what shall be there |
//! | CREATE | zero | 8 B: how many bytes |
//! | CREATE_WRITE | zero | the bytes |
//! | HELLO | zero | 8 B: a number that the process drew |
//! | PING | zero | |
//! | DELETE | first byte of the object | |
//! | INQUIRE | a byte of the object | |
//! | UPDATE, RENEW, RELEASE, CLONE, INVALIDATED | a byte of the page | |
//! | STORE, STORED, LEASES, TAKEN, REPORT, PLACED, LOCATE | zero | what [`super::control`] says |
//!
//! RECALL and INVALIDATE are no requests: see [`super::notice`].
//!
//! In one datagram of several the bytes come behind 4 B *total* and 4 B *position* ([`Extent`]); all have the same source
//! and the same destination.
//!
//! A request names the bytes that came with it by their place in the datagram: they never enter here.

use super::tag::{self, Tags};
use super::{
    CONTROL_BYTES_MAX, DATA_BYTES_MAX, HEADER_BYTES, Header, Malformed, SEVERAL_BYTES, Status, TagKind,
    WRITE_BYTES_MAX, is_answer,
};
use crate::wire::address::{Address, Arguments, Cluster, Destination, Source, layout};
use crate::wire::command::Command;

/// The rules of a host for arriving datagrams.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// Its own cluster; requests of others are not answered.
    pub cluster: Cluster,
    /// The weakest tag that it accepts. A READ without a header has none, and is accepted unless tags must be keyed.
    pub least: TagKind,
    /// Computes tags.
    pub tags: &'a dyn Tags,
}

/// A well-formed request: every field has a meaning. It may still be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The client that asks; the answer goes there.
    pub source: Source,
    /// The place; the answer comes from there.
    pub destination: Destination,
    /// The kind of its tag; the answer has one of the same kind.
    pub tag_kind: TagKind,
    /// To be carried out once: because of its command, or because its header says so.
    pub is_once: bool,
    /// COMMIT: the lease is given back too.
    pub is_release: bool,
    /// The epoch of a lease, or of a session; 0 without a header.
    pub epoch: u64,
    /// What belongs to the command.
    pub operation: Operation,
}

/// What belongs to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A read of this many bytes; never zero.
    Read {
        /// At most [`DATA_BYTES_MAX`].
        bytes: u32,
    },
    /// These bytes of the datagram are to be written: WRITE, COMMIT, CREATE_WRITE.
    Bytes(Extent),
    /// FETCH_ADD.
    FetchAdd {
        /// The number to add; it wraps around.
        addend: u64,
    },
    /// COMPARE_SWAP.
    CompareSwap {
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
    /// CREATE.
    Create {
        /// Size of the object.
        bytes: u64,
    },
    /// HELLO.
    Hello {
        /// A random number that the process chose at its start: it tells processes apart that chose the same incarnation.
        identity: u64,
    },
    /// A message between servers and controllers: [`super::ControlMessage::decode`] decodes it.
    Control {
        /// The number of bytes after the header; the sender adds them.
        bytes: u32,
    },
    /// The command and the address are enough.
    Plain,
}

/// Bytes that came with a datagram, and where they belong in the whole write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first, counted from the start of the UDP payload.
    pub at: u32,
    /// How many; never zero.
    pub bytes: u32,
    /// Where they belong, counted from the place in the address.
    pub position: u32,
    /// How many are written in all; at most [`WRITE_BYTES_MAX`].
    pub total: u32,
    /// They come in several datagrams, of which this is one.
    pub is_several: bool,
}

/// A datagram that is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: Malformed,
    /// The sender to answer, and the status; `None` if there is no answer.
    pub answer: Option<(Source, Status)>,
}

impl Request {
    /// Decodes a datagram from `source` to `destination`.
    pub fn decode(
        source: Address,
        destination: Address,
        payload: &[u8],
        rules: &Rules<'_>,
    ) -> Result<Request, Refused> {
        let nobody = |why| Refused { why, answer: None };
        // This comes first: an answer is never answered.
        if is_answer(payload) {
            return Err(nobody(Malformed::Answer));
        }
        let from = Source::decode(source).map_err(|why| nobody(Malformed::Source(why)))?;
        if from.cluster != rules.cluster {
            return Err(nobody(Malformed::Cluster(from.cluster.number())));
        }
        let is_silent = destination.0[layout::ARGUMENTS_AT] & Arguments::NO_REPLY.byte() != 0;
        Request::from_known(from, destination, payload, rules)
            .map_err(|why| Refused { why, answer: why.status().filter(|_| !is_silent).map(|status| (from, status)) })
    }

    fn from_known(from: Source, to: Address, payload: &[u8], rules: &Rules<'_>) -> Result<Request, Malformed> {
        let destination = Destination::decode(to).map_err(Malformed::Destination)?;
        let cluster = destination.pointer.cluster();
        if cluster != rules.cluster {
            return Err(Malformed::Cluster(cluster.number()));
        }
        let Destination { pointer, command, arguments } = destination;
        if command.is_notice() {
            return Err(Malformed::Notice(command));
        }
        if payload.is_empty() && command == Command::Read {
            if rules.least == TagKind::Keyed {
                return Err(Malformed::TagKind(rules.least));
            }
            let operation = Operation::Read { bytes: arguments.bytes() };
            let tag_kind = TagKind::Checksum;
            return Ok(Request {
                source: from,
                destination,
                tag_kind,
                is_once: false,
                is_release: false,
                epoch: 0,
                operation,
            });
        }
        let header = Header::decode(payload)?;
        let raw = payload.first_chunk().ok_or(Malformed::Short(payload.len()))?;
        tag::check(raw, from.encode(), to, &payload[HEADER_BYTES..], rules.least, rules.tags)?;
        header.check_for(command, from.request)?;
        let operation = Operation::decode(&header, &destination, &payload[HEADER_BYTES..])?;
        let is_at_zero = pointer.offset() == 0 && pointer.generation() == 0;
        let is_new = matches!(command, Command::Create | Command::CreateWrite);
        let wants_zero = is_new || matches!(command, Command::Hello | Command::Ping) || command.is_control();
        let wants_eight = matches!(command, Command::FetchAdd | Command::CompareSwap);
        if wants_zero && !is_at_zero || wants_eight && pointer.offset() % 8 != 0 {
            return Err(Malformed::Place(command));
        }
        let is_once = command.is_once() || header.is_once;
        let Header { tag_kind, is_release, epoch, .. } = header;
        Ok(Request { source: from, destination, tag_kind, is_once, is_release, epoch, operation })
    }

    /// Its command.
    pub const fn command(&self) -> Command {
        self.destination.command
    }

    /// The header and what stands between it and the bytes. The sender adds those bytes; the tag ([`super::seal`]) is
    /// computed last.
    pub fn encode(&self) -> ([u8; HEADER_BYTES], Small) {
        let mut small = Small::default();
        let mut data = 0;
        let (mut is_last, mut is_several) = (false, false);
        match self.operation {
            Operation::Read { bytes } => {
                if self.destination.arguments.bytes() != bytes {
                    small.put(&bytes.to_le_bytes());
                }
            }
            Operation::Bytes(extent) => {
                data = extent.bytes;
                is_several = extent.is_several;
                is_last = is_several && extent.position + extent.bytes == extent.total;
                if is_several {
                    small.put(&extent.total.to_le_bytes());
                    small.put(&extent.position.to_le_bytes());
                }
            }
            Operation::FetchAdd { addend } => small.put(&addend.to_le_bytes()),
            Operation::CompareSwap { expected, new } => {
                small.put(&expected.to_le_bytes());
                small.put(&new.to_le_bytes());
            }
            Operation::Create { bytes } => small.put(&bytes.to_le_bytes()),
            Operation::Hello { identity } => small.put(&identity.to_le_bytes()),
            Operation::Control { bytes } => data = bytes,
            Operation::Plain => {}
        }
        let header = Header {
            status: Status::Ok,
            tag_kind: self.tag_kind,
            is_last,
            is_several,
            is_once: self.is_once && !self.command().is_once(),
            is_answer: false,
            is_release: self.is_release,
            length: small.bytes().len() as u32 + data,
            request: self.source.request,
            epoch: self.epoch,
            tag: 0,
        };
        (header.encode(), small)
    }
}

impl Header {
    /// The fields of a request, besides length and tag.
    fn check_for(&self, command: Command, request: u64) -> Result<(), Malformed> {
        if self.status != Status::Ok {
            return Err(Malformed::Status(self.status as u8));
        }
        if self.request != request {
            return Err(Malformed::RequestId);
        }
        let is_wrong = self.is_several && !command.may_be_several()
            || self.is_last && !self.is_several
            || self.is_once && command != Command::Write
            || self.is_release && command != Command::Commit;
        if is_wrong { Err(Malformed::Flags) } else { Ok(()) }
    }
}

impl Operation {
    fn decode(header: &Header, destination: &Destination, body: &[u8]) -> Result<Operation, Malformed> {
        let command = destination.command;
        let wrong = Malformed::Body(command);
        let eight = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| body[at + byte]));
        Ok(match (command, body.len()) {
            (Command::Read, 0) => Operation::Read { bytes: destination.arguments.bytes() },
            (Command::Read, 4) => {
                let bytes = u32::from_le_bytes([body[0], body[1], body[2], body[3]]);
                if bytes == 0 || bytes > DATA_BYTES_MAX {
                    return Err(wrong);
                }
                Operation::Read { bytes }
            }
            (Command::Write | Command::Commit | Command::CreateWrite, _) => {
                Operation::Bytes(Extent::decode(header, body, command)?)
            }
            (Command::FetchAdd, 8) => Operation::FetchAdd { addend: eight(0) },
            (Command::CompareSwap, 16) => Operation::CompareSwap { expected: eight(0), new: eight(8) },
            (Command::Create, 8) => Operation::Create { bytes: eight(0) },
            (Command::Hello, 8) => Operation::Hello { identity: eight(0) },
            (
                Command::Delete
                | Command::Inquire
                | Command::Update
                | Command::Renew
                | Command::Release
                | Command::Ping
                | Command::Clone
                | Command::Invalidated,
                0,
            ) => Operation::Plain,
            (_, bytes) if command.is_control() && bytes <= CONTROL_BYTES_MAX => {
                Operation::Control { bytes: bytes as u32 }
            }
            _ => return Err(wrong),
        })
    }
}

impl Extent {
    /// The whole write, in one datagram.
    pub const fn whole(bytes: u32) -> Extent {
        Extent { at: HEADER_BYTES as u32, bytes, position: 0, total: bytes, is_several: false }
    }

    /// One datagram of several.
    pub const fn part(position: u32, bytes: u32, total: u32) -> Extent {
        Extent { at: (HEADER_BYTES + SEVERAL_BYTES) as u32, bytes, position, total, is_several: true }
    }

    fn decode(header: &Header, body: &[u8], command: Command) -> Result<Extent, Malformed> {
        let extent = if header.is_several {
            let (front, bytes) = body.split_at_checked(SEVERAL_BYTES).ok_or(Malformed::Body(command))?;
            let four = |at: usize| u32::from_le_bytes(core::array::from_fn(|byte| front[at + byte]));
            Extent::part(four(4), bytes.len() as u32, four(0))
        } else {
            Extent::whole(body.len() as u32)
        };
        if extent.bytes == 0 || extent.bytes > DATA_BYTES_MAX {
            return Err(Malformed::Body(command));
        }
        // A write in several datagrams that has only one would be a second form of the same request.
        let end = extent.position.checked_add(extent.bytes).ok_or(Malformed::Extent)?;
        let is_place = end <= extent.total && extent.total <= WRITE_BYTES_MAX;
        let is_one = extent.is_several && extent.bytes == extent.total;
        let is_end = header.is_several && end == extent.total;
        if !is_place || is_one || header.is_last != is_end { Err(Malformed::Extent) } else { Ok(extent) }
    }
}

/// What stands between a header and the bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Small {
    bytes: [u8; Small::BYTES_MAX],
    used: usize,
}

impl Small {
    /// The most.
    pub const BYTES_MAX: usize = 32;

    /// Them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}
