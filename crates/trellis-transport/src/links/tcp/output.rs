//! The sending half of one connection: what waits, what is being sent, and in which order.
//!
//! Promises: frames leave in the order in which they were taken, each once. A pinned body leaves without a copy,
//! unless the link is sealed. What waits holds at most [`QUEUE_BYTES_MAX`] bytes.
//!
//! It must never wait, call back, or touch the receiving half.
//!
//! A frame goes either directly to the socket (the common case: one `sendmsg` of header and body from their places) or
//! into `waiting`, unprotected. Only what is about to be written is protected and moved to `wire`: frames may be taken
//! before the keys of the connection exist, and a sealed page needs a second buffer only while it is being sent.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::sockets::{self, IoVec, Sent};
use crate::links::descriptors::Descriptor;
use crate::links::{Lost, Payload, SendError};
use crate::wrap::protection::{Sealer, TAG_BYTES, WIRE_HEADER_BYTES_MAX};
use crate::wrap::secure::Security;
use crate::{HEADER_BYTES, QUEUE_BYTES_MAX, QUEUED_FRAME_BYTES};

/// The maximum number of parts of one `sendmsg`.
const PARTS_MAX: usize = 48;
/// The maximum number of bytes that are protected ahead of the socket (a frame that was begun is finished).
const WIRE_BYTES_MAX: usize = 512 << 10;
/// The maximum number of bytes written in one flush, so that a poll stays short.
const FLUSH_BYTES_MAX: usize = 1 << 20;
/// The maximum number of buffers of copied bodies that are kept for reuse.
const SPARE_BUFFERS_MAX: usize = 32;
const SPARE_BUFFER_BYTES_MAX: usize = 64 << 10;

/// The sending half. All access is under its lock.
pub(super) struct Output {
    peer: usize,
    connection: Option<(Arc<Descriptor>, Sealer)>,
    lost: Option<Lost>,
    waiting: VecDeque<Frame>,
    wire: VecDeque<Segment>,
    /// The number of bytes of the first segment of `wire` that have left.
    wire_sent: usize,
    wire_bytes: usize,
    held_bytes: usize,
    /// The buffer in which a body is sealed; kept at the size of the largest.
    scratch: Vec<u8>,
    spare: Vec<Vec<u8>>,
}

/// A frame that waits, unprotected.
struct Frame {
    header: [u8; HEADER_BYTES],
    body: Body,
}

enum Body {
    Nothing,
    Copied(Vec<u8>),
    Pinned(*const u8, usize),
}

/// A run of bytes as they go over the wire.
enum Segment {
    /// A header with its tag, or a tag. `counted` is what the whole frame counted against the maximum; it is
    /// subtracted when the frame's last segment has left.
    Short {
        bytes: [u8; WIRE_HEADER_BYTES_MAX],
        length: usize,
        counted: usize,
    },
    Owned {
        bytes: Vec<u8>,
        counted: usize,
    },
    Pinned {
        pointer: *const u8,
        length: usize,
        counted: usize,
    },
}

// SAFETY: the pointers are read only by the system call that sends them, from any thread; the caller of `send`
// promised that they stay readable until then.
unsafe impl Send for Output {}

/// The state of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Empty,
    Waits,
}

impl Output {
    pub(super) fn new(peer: usize) -> Output {
        Output {
            peer,
            connection: None,
            lost: None,
            waiting: VecDeque::new(),
            wire: VecDeque::new(),
            wire_sent: 0,
            wire_bytes: 0,
            held_bytes: 0,
            scratch: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Sends frames from now on, because the connection is up.
    pub(super) fn start(&mut self, socket: Arc<Descriptor>, sealer: Sealer) {
        assert!(self.connection.is_none() && self.wire.is_empty(), "a peer connects once");
        self.connection = Some((socket, sealer));
    }

    /// Ends sending, because the peer is gone; what waited is dropped.
    pub(super) fn end(&mut self, why: Lost) {
        self.lost.get_or_insert(why);
        self.connection = None;
        self.waiting = VecDeque::new();
        self.wire = VecDeque::new();
        self.scratch = Vec::new();
        self.spare = Vec::new();
        (self.wire_sent, self.wire_bytes, self.held_bytes) = (0, 0, 0);
    }

    /// The socket, while the connection is up.
    pub(super) fn socket(&self) -> Option<&Arc<Descriptor>> {
        self.connection.as_ref().map(|(socket, _)| socket)
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Bytes of bodies and of protected frames that have not left; a measure of progress.
    pub(super) fn unsent_bytes(&self) -> usize {
        let waiting = self.waiting.iter().map(|frame| match &frame.body {
            Body::Nothing => 0,
            Body::Copied(bytes) => bytes.len(),
            Body::Pinned(_, bytes) => *bytes,
        });
        waiting.sum::<usize>() + self.wire_bytes - self.wire_sent
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.wire.is_empty()
    }

    /// Takes a frame: into the socket, or into the queue.
    #[inline]
    pub(super) fn send(&mut self, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<Queue, SendError> {
        if let Some(why) = &self.lost {
            return Err(SendError::Lost { peer: self.peer, why: why.clone() });
        }
        if self.is_idle() && self.connection.is_some() {
            return self.send_now(header, payload);
        }
        let body = match payload {
            Payload::Copy(bytes) if !bytes.is_empty() => {
                self.reserve(QUEUED_FRAME_BYTES + bytes.len())?;
                Body::Copied(self.buffer_with(bytes))
            }
            Payload::Pinned(pointer, bytes) if bytes > 0 => {
                self.reserve(QUEUED_FRAME_BYTES)?;
                Body::Pinned(pointer, bytes)
            }
            _ => {
                self.reserve(QUEUED_FRAME_BYTES)?;
                Body::Nothing
            }
        };
        self.waiting.push_back(Frame { header: *header, body });
        Ok(Queue::Waits)
    }

    /// Writes the waiting frames, as far as the socket takes them.
    pub(super) fn flush(&mut self) -> Queue {
        let mut written = 0;
        while written < FLUSH_BYTES_MAX {
            self.protect_some();
            let Some((socket, _)) = &self.connection else { break };
            if self.wire.is_empty() {
                break;
            }
            let (parts, count) = self.parts();
            let wanted: usize = parts[..count].iter().map(IoVec::bytes).sum();
            // SAFETY: owned segments are readable; pinned ones are by the promise of `Payload::Pinned`.
            match unsafe { sockets::send_parts(socket.raw(), &parts[..count]) } {
                Sent::Bytes(sent) => {
                    self.left(sent);
                    written += sent;
                    if sent < wanted {
                        break;
                    }
                }
                Sent::Failed(error) => {
                    self.end(Lost::Broken { why: error.to_string() });
                    break;
                }
            }
        }
        if self.is_idle() { Queue::Empty } else { Queue::Waits }
    }

    /// Sends a frame in the common case: nothing waits, so header and body go to the socket from their places.
    #[inline]
    fn send_now(&mut self, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<Queue, SendError> {
        let (socket, sealer) = self.connection.as_mut().expect("checked by the caller");
        let socket = socket.raw();
        let mut wire_header = [0; WIRE_HEADER_BYTES_MAX];
        let header_bytes = sealer.header(header, &mut wire_header);
        let (pointer, body_bytes) = match payload {
            Payload::Nothing => (std::ptr::null(), 0),
            Payload::Copy(bytes) => (bytes.as_ptr(), bytes.len()),
            Payload::Pinned(pointer, bytes) => (pointer, bytes),
        };
        let mut parts = [IoVec::of(&wire_header[..header_bytes]), IoVec::EMPTY, IoVec::EMPTY];
        let mut tag = [0; TAG_BYTES];
        let mut count = 1;
        let mut total = header_bytes + body_bytes;
        if body_bytes > 0 {
            // SAFETY: a copied body is a slice; a pinned one is readable by its sender's promise.
            let body = unsafe { std::slice::from_raw_parts(pointer, body_bytes) };
            count = 2;
            match sealer.security() {
                Security::Plain => parts[1] = IoVec::of(body),
                Security::Signed => {
                    tag = sealer.sign_body(body);
                    parts[1] = IoVec::of(body);
                    parts[2] = IoVec::of(&tag);
                    (count, total) = (3, total + TAG_BYTES);
                }
                Security::Sealed => {
                    seal_into(sealer, body, &mut self.scratch);
                    parts[1] = IoVec::of(&self.scratch);
                    total += TAG_BYTES;
                }
            }
        }
        // SAFETY: the parts are a local header, a readable body and a local tag.
        match unsafe { sockets::send_parts(socket, &parts[..count]) } {
            Sent::Bytes(sent) if sent == total => Ok(Queue::Empty),
            Sent::Bytes(sent) => {
                self.keep_rest(&wire_header[..header_bytes], payload, tag, sent);
                Ok(Queue::Waits)
            }
            Sent::Failed(error) => {
                let why = Lost::Broken { why: error.to_string() };
                self.end(why.clone());
                Err(SendError::Lost { peer: self.peer, why })
            }
        }
    }

    /// Keeps the rest of a frame that `send_now` protected and of which the socket took only `sent` bytes.
    fn keep_rest(&mut self, header: &[u8], payload: Payload<'_>, tag: [u8; TAG_BYTES], sent: usize) {
        let security = self.security();
        let mut cost = QUEUED_FRAME_BYTES;
        let body = match payload {
            _ if payload.bytes() == 0 => None,
            _ if security == Security::Sealed => {
                cost += payload.bytes();
                Some(Segment::Owned { bytes: std::mem::take(&mut self.scratch), counted: 0 })
            }
            Payload::Pinned(pointer, length) => Some(Segment::Pinned { pointer, length, counted: 0 }),
            Payload::Copy(bytes) => {
                cost += bytes.len();
                Some(Segment::Owned { bytes: self.buffer_with(bytes), counted: 0 })
            }
            Payload::Nothing => None,
        };
        self.held_bytes += cost;
        self.push_frame(header, body, (security == Security::Signed).then_some(tag), cost);
        self.left(sent);
    }

    fn security(&self) -> Security {
        self.connection.as_ref().map_or(Security::Plain, |(_, sealer)| sealer.security())
    }

    /// Appends a protected frame to the wire; its cost is stored in its last segment.
    fn push_frame(&mut self, header: &[u8], body: Option<Segment>, tag: Option<[u8; TAG_BYTES]>, cost: usize) {
        let before = self.wire.len();
        self.push(Segment::short(header));
        if let Some(body) = body {
            self.push(body);
            if let Some(tag) = tag {
                self.push(Segment::short(&tag));
            }
        }
        assert!(self.wire.len() > before);
        let last = self.wire.back_mut().expect("just pushed");
        *last.counted() = cost;
    }

    fn push(&mut self, segment: Segment) {
        self.wire_bytes += segment.part().bytes();
        self.wire.push_back(segment);
    }

    /// Moves frames from the queue to the wire until there is enough for a few system calls.
    fn protect_some(&mut self) {
        while self.wire_bytes < WIRE_BYTES_MAX {
            let Some((_, sealer)) = self.connection.as_mut() else { return };
            let Some(frame) = self.waiting.pop_front() else { return };
            let mut header = [0; WIRE_HEADER_BYTES_MAX];
            let header_bytes = sealer.header(&frame.header, &mut header);
            let cost = QUEUED_FRAME_BYTES
                + match &frame.body {
                    Body::Copied(bytes) => bytes.len(),
                    Body::Nothing | Body::Pinned(..) => 0,
                };
            let mut tag = None;
            let body = match (frame.body, sealer.security()) {
                (Body::Nothing, _) => None,
                (Body::Copied(bytes), Security::Plain) => Some(Segment::Owned { bytes, counted: 0 }),
                (Body::Copied(bytes), Security::Signed) => {
                    tag = Some(sealer.sign_body(&bytes));
                    Some(Segment::Owned { bytes, counted: 0 })
                }
                (Body::Copied(mut bytes), Security::Sealed) => {
                    let sealed = sealer.seal_body(&mut bytes);
                    bytes.extend_from_slice(&sealed);
                    Some(Segment::Owned { bytes, counted: 0 })
                }
                (Body::Pinned(pointer, length), security) => {
                    // SAFETY: readable until sent by the promise of `Payload::Pinned`.
                    let pinned = unsafe { std::slice::from_raw_parts(pointer, length) };
                    if security == Security::Sealed {
                        let mut bytes = std::mem::take(&mut self.scratch);
                        seal_into(sealer, pinned, &mut bytes);
                        Some(Segment::Owned { bytes, counted: 0 })
                    } else {
                        tag = (security == Security::Signed).then(|| sealer.sign_body(pinned));
                        Some(Segment::Pinned { pointer, length, counted: 0 })
                    }
                }
            };
            self.push_frame(&header[..header_bytes], body, tag, cost);
        }
    }

    /// The first segments of the wire, ready for one system call.
    fn parts(&self) -> ([IoVec; PARTS_MAX], usize) {
        let mut parts = [IoVec::EMPTY; PARTS_MAX];
        let mut count = 0;
        for (part, segment) in parts.iter_mut().zip(&self.wire) {
            *part = if count == 0 { segment.part_after(self.wire_sent) } else { segment.part() };
            count += 1;
        }
        (parts, count)
    }

    /// Removes so many sent bytes from the wire.
    fn left(&mut self, mut sent: usize) {
        assert!(sent <= self.wire_bytes - self.wire_sent, "the socket took more than was there");
        while let Some(first) = self.wire.front_mut() {
            let rest = first.part().bytes() - self.wire_sent;
            if sent < rest {
                self.wire_sent += sent;
                return;
            }
            sent -= rest;
            self.held_bytes -= *first.counted();
            self.wire_bytes -= first.part().bytes();
            self.wire_sent = 0;
            let gone = self.wire.pop_front();
            if let Some(Segment::Owned { bytes, .. }) = gone {
                self.keep_buffer(bytes);
            }
        }
        assert_eq!((sent, self.wire_bytes), (0, 0));
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), SendError> {
        if self.held_bytes + bytes > QUEUE_BYTES_MAX {
            let queued_bytes = self.held_bytes;
            return Err(SendError::QueueFull { peer: self.peer, queued_bytes });
        }
        self.held_bytes += bytes;
        Ok(())
    }

    fn buffer_with(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.reserve(bytes.len() + TAG_BYTES);
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Keeps the largest buffer as scratch, and small ones for the next copies.
    fn keep_buffer(&mut self, bytes: Vec<u8>) {
        if bytes.capacity() > self.scratch.capacity() && self.security() == Security::Sealed {
            self.scratch = bytes;
        } else if bytes.capacity() <= SPARE_BUFFER_BYTES_MAX && self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(bytes);
        }
    }
}

impl Segment {
    fn short(source: &[u8]) -> Segment {
        let mut bytes = [0; WIRE_HEADER_BYTES_MAX];
        bytes[..source.len()].copy_from_slice(source);
        Segment::Short { bytes, length: source.len(), counted: 0 }
    }

    fn part(&self) -> IoVec {
        self.part_after(0)
    }

    fn part_after(&self, sent: usize) -> IoVec {
        match self {
            Segment::Short { bytes, length, .. } => IoVec::of(&bytes[sent..*length]),
            Segment::Owned { bytes, .. } => IoVec::of(&bytes[sent..]),
            Segment::Pinned { pointer, length, .. } => {
                assert!(sent <= *length);
                IoVec::read(pointer.wrapping_add(sent), *length - sent)
            }
        }
    }

    fn counted(&mut self) -> &mut usize {
        match self {
            Segment::Short { counted, .. } | Segment::Owned { counted, .. } | Segment::Pinned { counted, .. } => {
                counted
            }
        }
    }
}

/// Writes the encrypted body and its tag into `buffer`.
fn seal_into(sealer: &mut Sealer, body: &[u8], buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.reserve(body.len() + TAG_BYTES);
    buffer.extend_from_slice(body);
    let tag = sealer.seal_body(buffer);
    buffer.extend_from_slice(&tag);
}
