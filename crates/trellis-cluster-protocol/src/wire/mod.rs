//! The wire format: a fixed header of 32 bytes, little-endian, before every body.
//!
//! | offset | bytes | field | |
//! |---|---|---|---|
//! | 0 | 2 | magic | `0x5254` (`TR`) |
//! | 2 | 1 | version | [`VERSION`] |
//! | 3 | 1 | kind | see [`kind`] |
//! | 4 | 4 | epoch | of the cluster; a frame of another epoch is refused |
//! | 8 | 8 | object | first page of a range or a set; lock, barrier, word, object; a byte of the region |
//! | 16 | 4 | count | pages of the range; generation of the barrier; number of the waiting call; messages that named ranges |
//! | 20 | 4 | detail | place of the demanded page in the range; operation, demand, outcome, kind; pages of the heap |
//! | 24 | 4 | sequence | number of a grant; nodes that passed a request on; or how many bytes are attached |
//! | 28 | 2 | node | requester, next holder, owner, who stored, home |
//! | 30 | 1 | flags | bit 0 write, bits 1-2 content (0 kept, 1 zero, 2 bytes), bit 3 announced |
//! | 31 | 1 | reserved | zero |
//!
//! Kinds 1 to 9 belong to any protocol of pages, 10 to 15, 48 and 49 to `hlrc`, 16 to 31 to synchronisation, 32 to 47 to
//! membership, and 64 to 69 to the shared heap. Some kinds use a field for something else; the modules below encode the
//! fields of each kind. If a message of `hlrc` names a set, the upper half of `object` holds a number. The halves of a
//! stamp are in `count` and `detail` (diffed), or in `sequence` and above the page (copy). In the heap, bit 0 of the flags
//! means fresh or routed.
//!
//! The body of a grant or a copy with bytes consists of the pages of the range. Other bodies are small. A forward has 4
//! bytes, the number `after`. In `hlrc`, a diff has 24, an update and its answer have 16, and the answer to a diff has 32.
//! A request on a word has 16 bytes, its two operands; the reply has 8, the previous value. A demand, its answer, its
//! undoing, an inquiry and its answer have 8; so do messages of a barrier whose `detail` is not zero: a value. No other
//! message has a small body.
//!
//! Bytes may be *attached* after the small body: diffs to a diff and an update, a page to a message that carries one, and
//! the sender's notices to any message of synchronisation or of the heap. Their length is in `sequence`, which has no other
//! meaning there; it is at most [`attached_bytes_max`]. Their content is not checked here.
//!
//! Promises: every number is checked against the cluster before it is used. [`decode`] is total and must never panic,
//! whatever the bytes. It must never allocate.

mod coherence;
mod heap;
mod membership;
mod sync;

use core::fmt;

use crate::coherence::Content;
use crate::coherence::hlrc::intervals::KNOWLEDGE_BYTES_MAX;
use crate::page::{NodeId, PageIndex, PageRange, PageSet};

/// The version of this format. Nodes of different versions do not communicate.
pub const VERSION: u8 = 5;
/// The length of every header.
pub const HEADER_BYTES: usize = 32;
/// The largest length of a body, without page bytes and attached bytes.
pub const SMALL_BODY_BYTES_MAX: usize = 32;
/// The largest number of bytes that the diff of a page may have, including the length in front.
pub const fn diff_bytes_max(page_bytes: usize) -> usize {
    page_bytes + page_bytes / 8 + 64
}

const MAGIC: [u8; 2] = *b"TR";

/// Values of the header's `kind`.
#[allow(missing_docs)]
pub mod kind {
    pub const REQUEST: u8 = 1;
    pub const FORWARD: u8 = 2;
    pub const GRANT: u8 = 3;
    pub const CONFIRM: u8 = 4;
    pub const INVALIDATE: u8 = 5;
    pub const INVALIDATED: u8 = 6;
    pub const REDIRECT: u8 = 7;
    pub const RETRY: u8 = 8;
    pub const AGAIN: u8 = 9;
    pub const COPY: u8 = 10;
    pub const DIFF: u8 = 11;
    pub const DIFFED: u8 = 12;
    pub const UPDATE: u8 = 13;
    pub const UPDATED: u8 = 14;
    pub const PLACE: u8 = 15;
    pub const PLACED: u8 = 48;
    pub const PIGGYBACKED: u8 = 49;
    pub const LOCK_REQUEST: u8 = 16;
    pub const LOCK_FORWARD: u8 = 17;
    pub const LOCK_TOKEN: u8 = 18;
    pub const BARRIER_ARRIVE: u8 = 19;
    pub const BARRIER_RELEASE: u8 = 20;
    pub const ATOMIC_REQUEST: u8 = 21;
    pub const ATOMIC_REPLY: u8 = 22;
    pub const LOCK_RETURN: u8 = 23;
    pub const OBJECT_REQUEST: u8 = 24;
    pub const OBJECT_REPLY: u8 = 25;
    pub const OBJECT_ABANDON: u8 = 26;
    pub const OBJECT_UNDO: u8 = 27;
    pub const LOCK_BUSY: u8 = 28;
    pub const INQUIRY: u8 = 29;
    pub const STANDING: u8 = 30;
    pub const ALIVE: u8 = 32;
    pub const LEAVE: u8 = 33;
    pub const FAIL: u8 = 34;
    pub const JOIN: u8 = 35;
    pub const WELCOME: u8 = 36;
    pub const JOINED: u8 = 37;
    pub const DEPART: u8 = 38;
    pub const TURN: u8 = 39;
    pub const BEHIND: u8 = 40;
    pub const HANDED: u8 = 41;
    pub const TAKEN: u8 = 42;
    pub const GOING: u8 = 43;
    pub const FAREWELL: u8 = 44;
    pub const PRESENT: u8 = 45;
    pub const HEAP_REQUEST: u8 = 64;
    pub const HEAP_GRANT: u8 = 65;
    pub const HEAP_NO_ROOM: u8 = 66;
    pub const HEAP_RETURN: u8 = 67;
    pub const HEAP_ASK: u8 = 68;
    pub const HEAP_REPLY: u8 = 69;
}

/// All messages between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// About pages.
    Coherence(crate::coherence::Message),
    /// About locks, barriers and words.
    Sync(crate::sync::Message),
    /// About the nodes themselves.
    Membership(crate::membership::Message),
    /// About the shared heap.
    Heap(crate::heap::Message),
}

impl Message {
    /// Whether the message may release something to its receiver, so that the sender's notices travel with it
    /// ([`crate::node::Knowledge`]).
    pub fn releases(&self) -> bool {
        match self {
            Message::Sync(message) => message.releases(),
            Message::Heap(message) => message.releases(),
            Message::Coherence(_) | Message::Membership(_) => false,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Coherence(message) => message.fmt(f),
            Message::Sync(message) => message.fmt(f),
            Message::Membership(message) => write!(f, "{message:?}"),
            Message::Heap(message) => write!(f, "{message:?}"),
        }
    }
}

/// The limits against which received numbers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pages of the region.
    pub pages: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Of the cluster.
    pub epoch: u32,
}

/// Why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The first two bytes are not the magic number.
    Magic,
    /// The frame has another version of this format.
    Version(u8),
    /// A kind that this version does not have.
    Kind(u8),
    /// A frame of another epoch.
    Epoch(u32),
    /// A page past the end of the region, or a range that is empty or crosses a chunk.
    Pages,
    /// A node past the end of the cluster.
    Node(u16),
    /// Flags, an operation or a reserved byte with an undefined value.
    Field,
    /// The length of the small body is not the one of its kind.
    Body,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Malformed::Magic => write!(f, "it does not begin with the mark of a Trellis frame"),
            Malformed::Version(version) => {
                write!(f, "it is of wire version {version}, this node speaks {VERSION}")
            }
            Malformed::Kind(kind) => write!(f, "its kind {kind} does not exist"),
            Malformed::Epoch(epoch) => write!(f, "it is of epoch {epoch}"),
            Malformed::Pages => write!(f, "its pages are not a run inside the region"),
            Malformed::Node(node) => write!(f, "it names node {node}, which does not exist"),
            Malformed::Field => write!(f, "a field has a value that means nothing"),
            Malformed::Body => write!(f, "its body has a wrong length"),
        }
    }
}

impl core::error::Error for Malformed {}

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// Nothing.
    Nothing,
    /// This many bytes that belong to the message; at most [`SMALL_BODY_BYTES_MAX`].
    Small(usize),
    /// This many bytes: those of the message and those attached to it ([`attached`]). At most [`attached_bytes_max`] more
    /// than those of the message.
    Attached(usize),
    /// The bytes of these pages.
    Pages(PageRange),
}

/// A header and a small body, ready to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The header.
    pub header: [u8; HEADER_BYTES],
    body: [u8; SMALL_BODY_BYTES_MAX],
    body_bytes: u8,
}

impl Encoded {
    /// The small body; the sender adds page bytes.
    pub fn body(&self) -> &[u8] {
        &self.body[..usize::from(self.body_bytes)]
    }
}

/// Encodes `message` for a cluster of epoch `epoch`.
pub fn encode(message: &Message, epoch: u32) -> Encoded {
    encode_with(message, epoch, 0)
}

/// Like [`encode`], with this many bytes to be attached after the small body: diffs to a message about them
/// ([`crate::coherence::Message::diffs`]), a page to one that carries it ([`crate::coherence::Message::piggybacked`]), notices
/// ([`crate::coherence::hlrc::intervals`]) to one about synchronisation or the heap. No other message carries attached
/// bytes.
pub fn encode_with(message: &Message, epoch: u32, attached_bytes: u32) -> Encoded {
    let mut fields = Fields { epoch, ..Fields::default() };
    match message {
        Message::Coherence(message) => fields.put_coherence(message),
        Message::Sync(message) => fields.put_sync(message),
        Message::Membership(message) => fields.put_membership(message),
        Message::Heap(message) => fields.put_heap(message),
    }
    if attached_bytes > 0 {
        debug_assert!(carries(fields.kind) && fields.sequence == 0);
        fields.sequence = attached_bytes;
    }
    fields.encode()
}

/// Returns which body follows `header`. Refuses a header that no correct peer sends.
pub fn body_of(header: &[u8; HEADER_BYTES], limits: &Limits) -> Result<BodyKind, Malformed> {
    let fields = Fields::decode(header, limits)?;
    let small = small_body_of(&fields, limits)?;
    if fields.kind == kind::PIGGYBACKED && fields.sequence != limits.page_bytes {
        return Err(Malformed::Body);
    }
    if !carries(fields.kind) || fields.sequence == 0 {
        return Ok(small);
    }
    if fields.sequence as usize > attached_bytes_max(fields.kind, limits.page_bytes) {
        return Err(Malformed::Body);
    }
    Ok(BodyKind::Attached(fields.sequence as usize + if let BodyKind::Small(bytes) = small { bytes } else { 0 }))
}

/// Whether bytes can be attached to a message of this kind. If so, their number is in the field `sequence`.
fn carries(kind: u8) -> bool {
    matches!(
        kind,
        kind::DIFF
            | kind::UPDATE
            | kind::PIGGYBACKED
            | kind::LOCK_REQUEST..=kind::STANDING
            | kind::HEAP_REQUEST..=kind::HEAP_REPLY
    )
}

/// The largest number of bytes that may be attached to a message of this kind.
pub fn attached_bytes_max(kind: u8, page_bytes: u32) -> usize {
    match kind {
        kind::PIGGYBACKED => page_bytes as usize,
        kind::DIFF | kind::UPDATE => PageSet::WINDOW_PAGES as usize * diff_bytes_max(page_bytes as usize),
        _ => KNOWLEDGE_BYTES_MAX,
    }
}

/// The bytes attached to a message that [`decode`] has read.
pub fn attached<'a>(header: &[u8; HEADER_BYTES], body: &'a [u8]) -> &'a [u8] {
    let bytes = u32::from_le_bytes([24, 25, 26, 27].map(|at| header[at])) as usize;
    if carries(header[3]) && bytes <= body.len() { &body[body.len() - bytes..] } else { &[] }
}

fn small_body_of(fields: &Fields, limits: &Limits) -> Result<BodyKind, Malformed> {
    Ok(match fields.kind {
        kind::GRANT | kind::COPY if fields.content()? == Content::Bytes => BodyKind::Pages(fields.first_run(limits)?),
        kind::DIFF => BodyKind::Small(24),
        kind::UPDATE | kind::UPDATED => BodyKind::Small(16),
        kind::DIFFED => BodyKind::Small(32),
        kind::PLACED | kind::PIGGYBACKED => BodyKind::Nothing,
        kind::FORWARD => BodyKind::Small(4),
        kind::ATOMIC_REQUEST => BodyKind::Small(16),
        kind::BARRIER_ARRIVE | kind::BARRIER_RELEASE if fields.detail != 0 => BodyKind::Small(8),
        kind::OBJECT_ABANDON | kind::LOCK_BUSY => BodyKind::Nothing,
        kind::ATOMIC_REPLY | kind::OBJECT_REQUEST..=kind::STANDING => BodyKind::Small(8),
        kind::REQUEST..=kind::PLACE | kind::LOCK_REQUEST..=kind::LOCK_RETURN | kind::ALIVE..=kind::PRESENT => {
            BodyKind::Nothing
        }
        kind::HEAP_REQUEST..=kind::HEAP_REPLY => BodyKind::Nothing,
        other => return Err(Malformed::Kind(other)),
    })
}

/// Decodes a header and its small body (empty if page bytes follow).
pub fn decode(header: &[u8; HEADER_BYTES], body: &[u8], limits: &Limits) -> Result<Message, Malformed> {
    let mut fields = Fields::decode(header, limits)?;
    let body = &body[..body.len() - attached(header, body).len()];
    if carries(fields.kind) {
        fields.sequence = 0;
    }
    match fields.kind {
        kind::REQUEST..=kind::PLACE | kind::PLACED | kind::PIGGYBACKED => {
            fields.coherence(body, limits).map(Message::Coherence)
        }
        kind::LOCK_REQUEST..=kind::STANDING => fields.sync(body, limits).map(Message::Sync),
        kind::ALIVE..=kind::PRESENT => fields.membership(limits).map(Message::Membership),
        kind::HEAP_REQUEST..=kind::HEAP_REPLY => fields.heap(limits).map(Message::Heap),
        other => Err(Malformed::Kind(other)),
    }
}

#[derive(Clone, Copy, Default)]
struct Fields {
    kind: u8,
    epoch: u32,
    object: u64,
    count: u32,
    detail: u32,
    sequence: u32,
    node: u16,
    flags: u8,
    body: [u8; SMALL_BODY_BYTES_MAX],
    body_bytes: u8,
}

impl Fields {
    fn encode(&self) -> Encoded {
        let mut header = [0; HEADER_BYTES];
        header[0..2].copy_from_slice(&MAGIC);
        header[2] = VERSION;
        header[3] = self.kind;
        header[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        header[8..16].copy_from_slice(&self.object.to_le_bytes());
        header[16..20].copy_from_slice(&self.count.to_le_bytes());
        header[20..24].copy_from_slice(&self.detail.to_le_bytes());
        header[24..28].copy_from_slice(&self.sequence.to_le_bytes());
        header[28..30].copy_from_slice(&self.node.to_le_bytes());
        header[30] = self.flags;
        Encoded { header, body: self.body, body_bytes: self.body_bytes }
    }

    fn decode(header: &[u8; HEADER_BYTES], limits: &Limits) -> Result<Fields, Malformed> {
        let four = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        if header[0..2] != MAGIC {
            return Err(Malformed::Magic);
        }
        if header[2] != VERSION {
            return Err(Malformed::Version(header[2]));
        }
        let fields = Fields {
            kind: header[3],
            epoch: four(4),
            object: u64::from(four(8)) | u64::from(four(12)) << 32,
            count: four(16),
            detail: four(20),
            sequence: four(24),
            node: u16::from_le_bytes([header[28], header[29]]),
            flags: header[30],
            ..Fields::default()
        };
        if fields.epoch != limits.epoch {
            return Err(Malformed::Epoch(fields.epoch));
        }
        if header[31] != 0 || fields.flags & !0b1111 != 0 {
            return Err(Malformed::Field);
        }
        Ok(fields)
    }

    fn put_run(&mut self, demand: PageIndex, range: PageRange) {
        self.object = u64::from(range.first().0);
        self.count = range.count();
        self.detail = demand.0 - range.first().0;
    }

    fn put_object(&mut self, kind: u8, id: u64, count: u32) {
        self.kind = kind;
        self.object = id;
        self.count = count;
    }

    fn put_body(&mut self, bytes: &[u8]) {
        self.body[..bytes.len()].copy_from_slice(bytes);
        self.body_bytes = bytes.len() as u8;
    }

    fn run(&self, limits: &Limits) -> Result<PageRange, Malformed> {
        let first = u32::try_from(self.object).map_err(|_| Malformed::Pages)?;
        let range = PageRange::new(PageIndex(first), self.count).ok_or(Malformed::Pages)?;
        if range.end() > limits.pages { Err(Malformed::Pages) } else { Ok(range) }
    }

    /// The page range of a message whose `object` has another number in its upper half.
    fn first_run(&self, limits: &Limits) -> Result<PageRange, Malformed> {
        let object = if self.kind == kind::COPY { self.object & u64::from(u32::MAX) } else { self.object };
        Fields { object, ..*self }.run(limits)
    }

    fn put_set(&mut self, pages: PageSet, number: u32) {
        self.object = u64::from(pages.first().0) | u64::from(number) << 32;
    }

    /// The set whose window `object` names and whose bits are `mask`, and the number.
    fn set(&self, mask: u64, limits: &Limits) -> Result<(PageSet, u32), Malformed> {
        let set = PageSet::new(PageIndex(self.object as u32), mask).ok_or(Malformed::Pages)?;
        if set.last().0 < limits.pages { Ok((set, (self.object >> 32) as u32)) } else { Err(Malformed::Pages) }
    }

    fn content(&self) -> Result<Content, Malformed> {
        match self.flags >> 1 & 0b11 {
            0 => Ok(Content::Kept),
            1 => Ok(Content::Zero),
            2 => Ok(Content::Bytes),
            _ => Err(Malformed::Field),
        }
    }

    fn member(&self, limits: &Limits) -> Result<NodeId, Malformed> {
        if self.node < limits.nodes { Ok(NodeId(self.node)) } else { Err(Malformed::Node(self.node)) }
    }
}

#[cfg(test)]
mod tests;
