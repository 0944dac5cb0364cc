//! The sending half of one pair: frames wait here until it is decided how they travel, and while the ring is full.
//!
//! Promises: frames leave in the order in which they were taken, each once. A body in this node's shared memory is not
//! copied here. What waits holds at most [`QUEUE_BYTES_MAX`] bytes.
//!
//! It must never wait, call back, or make a system call.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::channel::{Channel, Extent};
use super::ring::{Entry, Implausible, Kind, PIECE_BYTES, Writer};
use crate::links::{Lost, Payload, SendError};
use crate::{HEADER_BYTES, QUEUE_BYTES_MAX, QUEUED_FRAME_BYTES};

/// A shorter body in shared memory is copied through the ring as well: that costs less than the first access to a page
/// in another process.
const SHARED_BYTES_MIN: usize = 512;
/// The maximum written in one flush, so that a poll stays short.
const FLUSH_BYTES_MAX: usize = 1 << 20;

/// The sending half. All access is under its lock.
pub(super) struct Sending {
    peer: usize,
    way: Way,
    lost: Option<Lost>,
    waiting: VecDeque<Frame>,
    held_bytes: usize,
}

enum Way {
    /// The way is not known yet; frames wait.
    Undecided,
    /// Frames travel over the connection, without this half.
    Tcp,
    /// Frames travel through shared memory.
    Ring(Arc<Channel>, Writer),
}

/// A frame that waits.
pub(super) struct Frame {
    header: [u8; HEADER_BYTES],
    body: Body,
    /// Whether its first slot is written, and how many bytes of its body are.
    begun: bool,
    sent: usize,
}

enum Body {
    Copied(Vec<u8>),
    Pinned(*const u8, usize),
}

// SAFETY: the pointer is read only under the lock of the sending half, from any thread; the caller of `send` promised
// that it stays readable until then.
unsafe impl Send for Frame {}

/// The result of taking a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The frame is in the ring.
    Left,
    /// The frame waits; a part of it may be in the ring.
    Waits,
    /// The frame was not taken, because the pair stays on tcp.
    UseTcp,
}

/// Why a frame was not taken.
pub(super) enum NotTaken {
    Refused(SendError),
    /// The peer's counts are invalid.
    Implausible,
}

impl From<Implausible> for NotTaken {
    fn from(_: Implausible) -> Self {
        NotTaken::Implausible
    }
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flushed {
    /// Whether something went into the ring.
    pub(super) moved: bool,
    /// Whether something still waits.
    pub(super) waits: bool,
    /// Whether something waits for another reason than a full ring.
    pub(super) has_room: bool,
}

impl Sending {
    pub(super) fn new(peer: usize) -> Sending {
        Sending { peer, way: Way::Undecided, lost: None, waiting: VecDeque::new(), held_bytes: 0 }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Sends through shared memory from now on.
    pub(super) fn take_ring(&mut self, channel: Arc<Channel>) {
        assert!(matches!(self.way, Way::Undecided), "it is decided once how a pair's frames travel");
        let writer = Writer::new(channel.outgoing);
        self.way = Way::Ring(channel, writer);
    }

    /// Lets frames travel over tcp from now on: gives the waiting ones to `each`, in order.
    pub(super) fn take_tcp(&mut self, mut each: impl FnMut(&[u8; HEADER_BYTES], Payload<'_>)) {
        assert!(matches!(self.way, Way::Undecided), "it is decided once how a pair's frames travel");
        self.way = Way::Tcp;
        self.held_bytes = 0;
        for frame in std::mem::take(&mut self.waiting) {
            match &frame.body {
                Body::Copied(bytes) if bytes.is_empty() => each(&frame.header, Payload::Nothing),
                Body::Copied(bytes) => each(&frame.header, Payload::Copy(bytes)),
                Body::Pinned(pointer, bytes) => each(&frame.header, Payload::Pinned(*pointer, *bytes)),
            }
        }
    }

    /// Ends sending, because the peer is gone; what waited is dropped.
    pub(super) fn end(&mut self, why: Lost) {
        self.lost.get_or_insert(why);
        self.forget();
    }

    fn forget(&mut self) {
        self.waiting = VecDeque::new();
        self.held_bytes = 0;
    }

    /// Whether the peer has everything that was taken, or never will.
    pub(super) fn is_done(&self) -> bool {
        match &self.way {
            _ if self.lost.is_some() => true,
            Way::Ring(channel, writer) => {
                channel.outgoing.is_gone() || self.waiting.is_empty() && writer.untaken() == 0
            }
            Way::Undecided | Way::Tcp => true,
        }
    }

    /// A measure of progress: what waits, and what is written and not taken.
    pub(super) fn left_to_do(&self) -> usize {
        let untaken = if let Way::Ring(_, writer) = &self.way { writer.untaken() as usize } else { 0 };
        self.waiting.iter().map(|frame| frame.bytes() - frame.sent + 1).sum::<usize>() + untaken
    }

    /// Takes a frame: into the ring, or into the queue.
    #[inline]
    pub(super) fn send(&mut self, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<Taken, NotTaken> {
        if let Some(why) = &self.lost {
            return Err(NotTaken::Refused(SendError::Lost { peer: self.peer, why: why.clone() }));
        }
        match &mut self.way {
            Way::Tcp => return Ok(Taken::UseTcp),
            Way::Ring(channel, writer) if self.waiting.is_empty() => {
                let (pointer, bytes, is_pinned) = match payload {
                    Payload::Nothing => (std::ptr::null(), 0, false),
                    Payload::Copy(bytes) => (bytes.as_ptr(), bytes.len(), false),
                    Payload::Pinned(pointer, bytes) => (pointer, bytes, true),
                };
                let offset = if is_pinned { offset(channel.ours, pointer, bytes) } else { None };
                if writer.has_room(slots(bytes, offset), if offset.is_some() { 0 } else { bytes })? {
                    let mut sent = 0;
                    // SAFETY: a copied body is a slice, a pinned one is readable by its sender's promise.
                    let done = unsafe { put(writer, header, pointer, bytes, offset, &mut false, &mut sent) }?;
                    assert!(done, "there was room for all of it");
                    return Ok(Taken::Left);
                }
            }
            Way::Undecided | Way::Ring(..) => {}
        }
        self.keep(header, payload)?;
        Ok(Taken::Waits)
    }

    /// Queues a frame that cannot leave now.
    fn keep(&mut self, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), NotTaken> {
        let body = match payload {
            Payload::Nothing => Body::Copied(Vec::new()),
            Payload::Pinned(pointer, bytes) if bytes > 0 => Body::Pinned(pointer, bytes),
            Payload::Pinned(..) => Body::Copied(Vec::new()),
            Payload::Copy(bytes) => Body::Copied(bytes.to_vec()),
        };
        let frame = Frame { header: *header, body, begun: false, sent: 0 };
        if self.held_bytes + frame.cost() > QUEUE_BYTES_MAX {
            let queued_bytes = self.held_bytes;
            return Err(NotTaken::Refused(SendError::QueueFull { peer: self.peer, queued_bytes }));
        }
        self.held_bytes += frame.cost();
        self.waiting.push_back(frame);
        Ok(())
    }

    /// Writes what waits, as far as there is room; otherwise asks the peer for a wake-up.
    pub(super) fn flush(&mut self) -> Result<Flushed, Implausible> {
        let Way::Ring(channel, writer) = &mut self.way else { return Ok(Flushed::default()) };
        if channel.outgoing.is_gone() {
            self.forget();
            return Ok(Flushed::default());
        }
        let (mut moved_bytes, mut moved, mut asked) = (0, false, false);
        while let Some(frame) = self.waiting.front_mut() {
            if moved_bytes >= FLUSH_BYTES_MAX {
                return Ok(Flushed { moved, waits: true, has_room: true });
            }
            let before = (frame.begun, frame.sent);
            let done = frame.put(channel.ours, writer)?;
            moved_bytes += frame.sent - before.1;
            moved |= (frame.begun, frame.sent) != before;
            if done {
                let cost = frame.cost();
                self.held_bytes -= cost;
                self.waiting.pop_front();
            } else if asked {
                return Ok(Flushed { moved, waits: true, has_room: false });
            } else {
                // The peer may have made room just before it could see the request: check once more.
                writer.ring().wait_for_room();
                asked = true;
            }
        }
        Ok(Flushed { moved, waits: false, has_room: true })
    }

    /// The channel, if frames travel through one.
    pub(super) fn channel(&self) -> Option<&Arc<Channel>> {
        match &self.way {
            Way::Ring(channel, _) => Some(channel),
            Way::Undecided | Way::Tcp => None,
        }
    }
}

impl Frame {
    fn bytes(&self) -> usize {
        match &self.body {
            Body::Copied(bytes) => bytes.len(),
            Body::Pinned(_, bytes) => *bytes,
        }
    }

    fn cost(&self) -> usize {
        match &self.body {
            Body::Copied(bytes) => QUEUED_FRAME_BYTES + bytes.len(),
            Body::Pinned(..) => QUEUED_FRAME_BYTES,
        }
    }

    fn put(&mut self, ours: Option<Extent>, writer: &mut Writer) -> Result<bool, Implausible> {
        let (pointer, bytes, offset) = match &self.body {
            Body::Copied(bytes) => (bytes.as_ptr(), bytes.len(), None),
            Body::Pinned(pointer, bytes) => (*pointer, *bytes, offset(ours, *pointer, *bytes)),
        };
        // SAFETY: a copied body belongs to the frame, and a pinned one is readable by its sender's promise.
        unsafe { put(writer, &self.header, pointer, bytes, offset, &mut self.begun, &mut self.sent) }
    }
}

/// The offset of a pinned body in the shared memory that the peer has mapped; `None` if it lies elsewhere or is short.
#[inline]
fn offset(ours: Option<Extent>, pointer: *const u8, bytes: usize) -> Option<u64> {
    let ours = ours?;
    let offset = pointer.addr().checked_sub(ours.start)?;
    let lies_inside = offset.checked_add(bytes).is_some_and(|end| end <= ours.bytes);
    (lies_inside && bytes >= SHARED_BYTES_MIN).then_some(offset as u64)
}

#[inline]
fn slots(bytes: usize, offset: Option<u64>) -> u64 {
    if offset.is_some() { 1 } else { bytes.div_ceil(PIECE_BYTES).max(1) as u64 }
}

/// Writes as much of a frame as there is room for; returns whether all of it is written.
///
/// # Safety
///
/// `pointer` is readable for `bytes` bytes.
#[inline]
unsafe fn put(
    writer: &mut Writer,
    header: &[u8; HEADER_BYTES],
    pointer: *const u8,
    bytes: usize,
    offset: Option<u64>,
    begun: &mut bool,
    sent: &mut usize,
) -> Result<bool, Implausible> {
    loop {
        let (kind, here) = match offset {
            Some(_) => (Kind::Shared, 0),
            None => (if *begun { Kind::More } else { Kind::Frame }, (bytes - *sent).min(PIECE_BYTES)),
        };
        if !writer.has_room(1, here)? {
            return Ok(false);
        }
        let entry = Entry { kind, header: *header, bytes, here, offset: offset.unwrap_or(0) };
        // SAFETY: `sent + here` is at most `bytes`, which are readable by the caller's promise.
        unsafe { writer.write(&entry, pointer.wrapping_add(*sent)) };
        *begun = true;
        *sent += here;
        if offset.is_some() || *sent == bytes {
            return Ok(true);
        }
    }
}
