//! Answers: the request's addresses exchanged, a header with a status, and what belongs to both.
//!
//! | status, command | behind the header |
//! |---|---|
//! | OK: READ | the bytes |
//! | OK: FETCH_ADD, COMPARE_SWAP; MISMATCH | 8 B: what was there before |
//! | OK: CREATE, CREATE_WRITE, INQUIRE | 16 B: pointer to the first byte, 8 B: how many there are |
//! | OK: UPDATE, CLONE | 8 B: the term in nanoseconds; the bytes of the page |
//! | OK: RENEW | 8 B: the term in nanoseconds |
//! | OK: HELLO | 8 B: quota in bytes, 8 B: how much of it is used, 4 B: window, 4 B: silence in milliseconds |
//! | OK: PING | 16 B: pointer to the host that answers, 8 B: free bytes, 8 B: bytes of its memory |
//! | OK to one of several datagrams, and not the last answer | 4 B: its position, 4 B: how many bytes came so far |
//! | MOVED | 16 B: where to ask |
//! | else | |
//!
//! An answer to one of several datagrams has the flag *several*; the one that says that all is done has *last* too. OK to
//! a COMMIT that gave the lease back has *release*: who listens need not have seen the question.
//! Like requests, answers name the bytes of memory by how many they are, and never hold them.

use super::request::{Refused, Rules, Small};
use super::tag;
use super::{DATA_BYTES_MAX, HEADER_BYTES, Header, Malformed, Status, TagKind};
use crate::Nanoseconds;
use crate::wire::address::{Address, Destination, Pointer, Source};
use crate::wire::command::Command;

/// An answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    /// The client that asked.
    pub to: Source,
    /// The destination of the request, as it was; it need not have been one.
    pub from: Address,
    /// How it ended.
    pub status: Status,
    /// What protects it.
    pub tag_kind: TagKind,
    /// The request came in several datagrams.
    pub is_several: bool,
    /// All of that request is done.
    pub is_last: bool,
    /// COMMIT: done, and the lease was given back with it.
    pub is_release: bool,
    /// Of a lease, or of a session.
    pub epoch: u64,
    /// What belongs to command and status.
    pub body: Body,
}

/// What belongs to command and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Nothing.
    Nothing,
    /// This many bytes of memory.
    Bytes(u32),
    /// The previous value of 8 bytes.
    Value(u64),
    /// An object.
    Object {
        /// To its first byte.
        pointer: Pointer,
        /// Its size.
        bytes: u64,
    },
    /// A lease.
    Leased {
        /// The term, counted from the request.
        term: Nanoseconds,
        /// This many bytes of memory: the page. 0 to RENEW.
        bytes: u32,
    },
    /// A session is open; its epoch is in the header.
    Welcome {
        /// The quota of the host at this server.
        quota_bytes: u64,
        /// How much of it is used.
        used_bytes: u64,
        /// The window for requests that are carried out once: one with id *n* may be sent when all up to *n* - window are
        /// answered.
        window: u32,
        /// The session ends after the client has been silent for this long.
        silence_ms: u32,
    },
    /// A server is there.
    Present {
        /// The server.
        host: Pointer,
        /// How much of its memory is free.
        free_bytes: u64,
        /// How much memory there is.
        memory_bytes: u64,
    },
    /// Another host has it.
    Moved(Address),
    /// These bytes came, and others are missing.
    Taken {
        /// Theirs.
        position: u32,
        /// The number of bytes received so far.
        received: u32,
    },
}

impl Body {
    /// How many bytes of memory belong to it.
    pub const fn data_bytes(self) -> u32 {
        match self {
            Body::Bytes(bytes) | Body::Leased { bytes, .. } => bytes,
            _ => 0,
        }
    }

    /// Where in the UDP payload they begin.
    pub const fn data_at(self) -> usize {
        match self {
            Body::Leased { .. } => HEADER_BYTES + 8,
            _ => HEADER_BYTES,
        }
    }

    fn small(self) -> Small {
        let mut small = Small::default();
        match self {
            Body::Nothing | Body::Bytes(_) => {}
            Body::Value(value) => small.put(&value.to_le_bytes()),
            Body::Object { pointer, bytes } => {
                small.put(&pointer.encode().0);
                small.put(&bytes.to_le_bytes());
            }
            Body::Leased { term, .. } => small.put(&term.to_le_bytes()),
            Body::Welcome { quota_bytes, used_bytes, window, silence_ms } => {
                small.put(&quota_bytes.to_le_bytes());
                small.put(&used_bytes.to_le_bytes());
                small.put(&window.to_le_bytes());
                small.put(&silence_ms.to_le_bytes());
            }
            Body::Present { host, free_bytes, memory_bytes } => {
                small.put(&host.encode().0);
                small.put(&free_bytes.to_le_bytes());
                small.put(&memory_bytes.to_le_bytes());
            }
            Body::Moved(address) => small.put(&address.0),
            Body::Taken { position, received } => {
                small.put(&position.to_le_bytes());
                small.put(&received.to_le_bytes());
            }
        }
        small
    }

    fn decode(header: &Header, command: Command, bytes: &[u8]) -> Option<Body> {
        match header.status {
            Status::Ok if header.is_several && !header.is_last => {
                (bytes.len() == 8).then(|| Body::Taken { position: four(bytes, 0), received: four(bytes, 4) })
            }
            Status::Ok => Body::of_done(command, bytes),
            Status::Moved => <[u8; 16]>::try_from(bytes).ok().map(|address| Body::Moved(Address(address))),
            Status::Mismatch => {
                (bytes.len() == 8 && command == Command::CompareSwap).then(|| Body::Value(eight(bytes, 0)))
            }
            _ => bytes.is_empty().then_some(Body::Nothing),
        }
    }

    fn of_done(command: Command, bytes: &[u8]) -> Option<Body> {
        let length = bytes.len() as u32;
        let pointer = |bytes: &[u8]| Pointer::decode(Address(*bytes.first_chunk()?)).ok();
        match (command, bytes.len()) {
            (Command::Read, 1..) => (length <= DATA_BYTES_MAX).then_some(Body::Bytes(length)),
            (Command::FetchAdd | Command::CompareSwap, 8) => Some(Body::Value(eight(bytes, 0))),
            (Command::Create | Command::CreateWrite | Command::Inquire, 24) => {
                Some(Body::Object { pointer: pointer(bytes)?, bytes: eight(bytes, 16) })
            }
            (Command::Update | Command::Clone, 8..) => {
                let length = length - 8;
                (length <= DATA_BYTES_MAX).then(|| Body::Leased { term: eight(bytes, 0), bytes: length })
            }
            (Command::Renew, 8) => Some(Body::Leased { term: eight(bytes, 0), bytes: 0 }),
            (Command::Hello, 24) => Some(Body::Welcome {
                quota_bytes: eight(bytes, 0),
                used_bytes: eight(bytes, 8),
                window: four(bytes, 16),
                silence_ms: four(bytes, 20),
            }),
            (Command::Ping, 32) => Some(Body::Present {
                host: pointer(bytes)?,
                free_bytes: eight(bytes, 16),
                memory_bytes: eight(bytes, 24),
            }),
            (Command::Write | Command::Commit | Command::Delete | Command::Release, 0) => Some(Body::Nothing),
            _ => None,
        }
    }
}

impl Reply {
    /// The header and what stands between it and the bytes of memory. The sender adds those bytes; the tag
    /// ([`super::seal`]) is computed last.
    pub fn encode(&self) -> ([u8; HEADER_BYTES], Small) {
        let small = self.body.small();
        let header = Header {
            status: self.status,
            tag_kind: self.tag_kind,
            is_last: self.is_last,
            is_several: self.is_several,
            is_once: false,
            is_answer: true,
            is_release: self.is_release,
            length: small.bytes().len() as u32 + self.body.data_bytes(),
            request: self.to.request,
            epoch: self.epoch,
            tag: 0,
        };
        (header.encode(), small)
    }

    /// Decodes a datagram from `source`, the destination of a request, to `destination`, its source. Does not check whether
    /// a request waits for it. The bytes of memory begin at [`Body::data_at`].
    pub fn decode(
        source: Address,
        destination: Address,
        payload: &[u8],
        rules: &Rules<'_>,
    ) -> Result<Reply, Malformed> {
        let to = Source::decode(destination).map_err(Malformed::Source)?;
        let from = Destination::decode(source).map_err(Malformed::Destination)?;
        if let Some(other) = [to.cluster, from.pointer.cluster()].into_iter().find(|it| *it != rules.cluster) {
            return Err(Malformed::Cluster(other.number()));
        }
        let header = Header::decode(payload)?;
        if !header.is_answer {
            return Err(Malformed::Request);
        }
        let raw = payload.first_chunk().ok_or(Malformed::Short(payload.len()))?;
        tag::check(raw, source, destination, &payload[HEADER_BYTES..], rules.least, rules.tags)?;
        if header.request != to.request {
            return Err(Malformed::RequestId);
        }
        let command = from.command;
        let may_release = command == Command::Commit && header.status == Status::Ok;
        let is_of_request = header.is_once || header.is_release && !may_release;
        if is_of_request || header.is_several && !command.may_be_several() || header.is_last && !header.is_several {
            return Err(Malformed::Flags);
        }
        let body = Body::decode(&header, command, &payload[HEADER_BYTES..]).ok_or(Malformed::Body(command))?;
        let Header { status, tag_kind, is_several, is_last, is_release, epoch, .. } = header;
        Ok(Reply { to, from: source, status, tag_kind, is_several, is_last, is_release, epoch, body })
    }
}

impl Refused {
    /// The answer to the sender of the datagram to `destination`, if any.
    pub fn reply(&self, destination: Address) -> Option<Reply> {
        let (to, status) = self.answer?;
        let (is_several, is_last, is_release) = (false, false, false);
        let (epoch, tag_kind, body) = (0, TagKind::Checksum, Body::Nothing);
        Some(Reply { to, from: destination, status, tag_kind, is_several, is_last, is_release, epoch, body })
    }
}

fn eight(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]))
}

fn four(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]))
}
