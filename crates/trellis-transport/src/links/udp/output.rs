//! The sending half of one peer: frames until they have arrived, and the datagrams that carry them.
//!
//! Promised: a frame goes at once, in one datagram if it fits, with one system call and without an allocation; a pinned
//! body leaves from where it lies where the link is plain; what waits for acknowledgement holds at most
//! [`QUEUE_BYTES_MAX`] bytes.
//!
//! Never done here: waiting, calling back, touching the receiving half.
//!
//! A pinned body that was acknowledged is never read again. One whose acknowledgement was lost may be read and sent
//! after the receiver went on and the supplier changed the page: the receiver knows the fragment's number and drops it
//! unread. So that a protected datagram is whole even then, its bytes are copied before they are protected.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::datagram::{Content, HEAD_BYTES_MAX, OVERHEAD_BYTES, Writer};
use super::delivery::{Acknowledgement, Arrival, Fragment, Inconsistent, Nanoseconds, Plan, Sender};
use super::sockets::{self, Outcome, Wire};
use crate::links::tcp::sockets::Part;
use crate::links::{Lost, Payload, SendError};
use crate::{HEADER_BYTES, QUEUE_BYTES_MAX, QUEUED_FRAME_BYTES};

/// Datagrams of one flush at most, so that a poll stays short.
const DATAGRAMS_PER_FLUSH_MAX: usize = 64;
/// Buffers of copied bodies kept for the next ones.
const SPARE_BUFFERS_MAX: usize = 32;
const SPARE_BUFFER_BYTES_MAX: usize = 64 << 10;
/// How often the kernel must say that nobody listens, without a word from the peer in between, until it is believed:
/// anybody who knows the ports can make it say so once. In between the peer is asked.
const REFUSALS_MAX: u32 = 4;
const REFUSAL_APART_NS: Nanoseconds = 10_000_000;
/// Probes without an answer, one each half second, until a silent peer is given up. The layer above, which knows what it
/// waits for, is quicker.
const PROBES_UNANSWERED_MAX: u32 = 120;
/// Time-outs in a row until it is doubted that the path takes packets of this size.
const DOUBTFUL_TIMEOUTS: u32 = 4;

/// What left, beside frames.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) datagrams: u64,
    pub(super) acknowledgements: u64,
}

/// The sending half. Everything happens under its lock.
pub(super) struct Output {
    peer: usize,
    connection: Option<Connection>,
    lost: Option<Lost>,
    sender: Sender<Frame>,
    held_bytes: usize,
    /// Where a protected datagram is put together.
    scratch: Vec<u8>,
    spare: Vec<Vec<u8>>,
    /// The socket took no more.
    full: bool,
    refusals: u32,
    refused_at: Nanoseconds,
    /// The peer is gone; whoever polls reports it.
    pub(super) doom: Option<Lost>,
    counts: Counts,
}

struct Connection {
    wire: Arc<Wire>,
    writer: Writer,
    address: SocketAddr,
    doubtful: bool,
}

struct Frame {
    header: [u8; HEADER_BYTES],
    body: Body,
}

enum Body {
    Nothing,
    Copied(Vec<u8>),
    Pinned(*const u8),
}

// SAFETY: the pointers are read only by the system call that sends them and the copy before it, from any thread; the
// caller of `send` promised that they stay readable until the peer has the frame.
unsafe impl Send for Output {}

impl Frame {
    fn held_bytes(&self) -> usize {
        QUEUED_FRAME_BYTES
            + match &self.body {
                Body::Copied(bytes) => bytes.len(),
                Body::Nothing | Body::Pinned(_) => 0,
            }
    }

    /// The bytes of a fragment, where they lie.
    fn part(&self, fragment: &Fragment) -> Part {
        let range = fragment.range();
        match &self.body {
            Body::Nothing => Part::EMPTY,
            Body::Copied(bytes) => Part::of(&bytes[range]),
            Body::Pinned(pointer) => Part::read(pointer.wrapping_add(range.start), range.len()),
        }
    }
}

impl Output {
    pub(super) fn new(peer: usize) -> Output {
        Output {
            peer,
            connection: None,
            lost: None,
            // Nothing is cut before the path is known.
            sender: Sender::new(0, 1, OVERHEAD_BYTES),
            held_bytes: 0,
            scratch: Vec::new(),
            spare: Vec::new(),
            full: false,
            refusals: 0,
            refused_at: 0,
            doom: None,
            counts: Counts::default(),
        }
    }

    /// The connection is up: from now on datagrams can leave. The first says that this node is here.
    pub(super) fn start(&mut self, now: Nanoseconds, wire: Arc<Wire>, writer: Writer, address: SocketAddr) {
        assert!(self.connection.is_none(), "a peer connects once");
        let socket = wire.socket.raw();
        let room_bytes = sockets::room_bytes(socket);
        self.sender.set_fragment_bytes(fragment_bytes(socket, &address));
        self.sender.start(now);
        self.sender.owe(now, Acknowledgement { room_bytes, ..Acknowledgement::default() }, true);
        self.scratch.reserve(HEAD_BYTES_MAX + (64 << 10));
        self.connection = Some(Connection { wire, writer, address, doubtful: false });
        self.flush(now);
    }

    /// The peer is gone: nothing leaves any more, and what waited is forgotten.
    pub(super) fn end(&mut self, why: Lost) {
        self.lost.get_or_insert(why);
        self.connection = None;
        self.sender.abandon(drop);
        self.scratch = Vec::new();
        self.spare = Vec::new();
        self.held_bytes = 0;
    }

    /// The socket, while the connection is up.
    pub(super) fn socket(&self) -> Option<RawFd> {
        self.connection.as_ref().map(|connection| connection.wire.socket.raw())
    }

    pub(super) fn wire(&self) -> Option<Arc<Wire>> {
        self.connection.as_ref().map(|connection| Arc::clone(&connection.wire))
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// What left, and how much of it again.
    pub(super) fn counts(&self) -> (Counts, u64) {
        (self.counts, self.sender.resent)
    }

    /// Whether the socket took no more and room is waited for.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    #[inline]
    pub(super) fn due(&self) -> Nanoseconds {
        self.sender.due()
    }

    #[inline]
    pub(super) fn has_work(&self, now: Nanoseconds) -> bool {
        self.sender.has_work(now)
    }

    /// Whether all frames have arrived, and how many fragments have.
    pub(super) fn progress(&self) -> (bool, u64) {
        (self.sender.is_idle(), self.sender.arrived())
    }

    /// Takes a frame, and sends it if that may be now.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: impl FnOnce() -> Nanoseconds,
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
    ) -> Result<(), SendError> {
        if let Some(why) = &self.lost {
            return Err(SendError::Lost { peer: self.peer, why: why.clone() });
        }
        let bytes = payload.bytes();
        let copied = if matches!(payload, Payload::Copy(_)) { bytes } else { 0 };
        if self.held_bytes + QUEUED_FRAME_BYTES + copied > QUEUE_BYTES_MAX {
            return Err(SendError::QueueFull { peer: self.peer, queued_bytes: self.held_bytes });
        }
        self.held_bytes += QUEUED_FRAME_BYTES + copied;
        let body = match payload {
            _ if bytes == 0 => Body::Nothing,
            Payload::Copy(bytes) => Body::Copied(self.buffer_with(bytes)),
            Payload::Pinned(pointer, _) => Body::Pinned(pointer),
            Payload::Nothing => Body::Nothing,
        };
        self.sender.submit(Frame { header: *header, body }, bytes as u32);
        if self.connection.is_some() && !self.full {
            self.flush(now());
        }
        Ok(())
    }

    /// Sends what may go now.
    #[inline]
    pub(super) fn flush(&mut self, now: Nanoseconds) {
        self.full = false;
        for _ in 0..DATAGRAMS_PER_FLUSH_MAX {
            let Some(plan) = self.sender.next(now) else { return };
            match self.carry_out(plan, now) {
                Outcome::Full => {
                    self.full = true;
                    return;
                }
                Outcome::NobodyThere => {
                    // What the kernel said is about an earlier datagram, and this one did not go.
                    self.nobody_there(now);
                    self.carry_out(plan, now);
                }
                Outcome::Gone | Outcome::Dropped => {}
            }
            self.sender.sent(plan, now);
            self.counts.datagrams += 1;
            self.counts.acknowledgements += u64::from(plan == Plan::Acknowledge);
        }
    }

    /// An authentic datagram came. `arrival` is what its fragment is, `here` what this side has now.
    #[inline]
    pub(super) fn heard(
        &mut self,
        now: Nanoseconds,
        content: &Content,
        arrival: Option<Arrival>,
        here: Acknowledgement,
    ) -> Result<(), Inconsistent> {
        self.refusals = 0;
        self.sender.heard(now);
        let Output { sender, spare, held_bytes, .. } = self;
        sender.acknowledged(now, &content.acknowledgement, |frame| {
            *held_bytes -= frame.held_bytes();
            if let Body::Copied(bytes) = frame.body
                && spare.len() < SPARE_BUFFERS_MAX
                && bytes.capacity() <= SPARE_BUFFER_BYTES_MAX
            {
                spare.push(bytes);
            }
        })?;
        if content.prompt || arrival.is_some() {
            // Who sends what is here already did not hear of it.
            self.sender.owe(now, here, content.prompt || arrival == Some(Arrival::Duplicate));
        }
        Ok(())
    }

    /// The peer asks whether this node is there.
    pub(super) fn owe_word(&mut self, now: Nanoseconds, here: Acknowledgement) {
        self.sender.owe(now, here, true);
    }

    /// The kernel says that nobody listens at the peer's address.
    pub(super) fn nobody_there(&mut self, now: Nanoseconds) {
        if now.saturating_sub(self.refused_at) < REFUSAL_APART_NS / 2 {
            return;
        }
        self.refused_at = now;
        self.refusals += 1;
        self.sender.probe_by(now + REFUSAL_APART_NS);
        if self.refusals >= REFUSALS_MAX {
            self.doom.get_or_insert(Lost::Ended);
        }
    }

    /// Does what is due by the clock.
    pub(super) fn tick(&mut self, now: Nanoseconds) {
        self.sender.tick(now);
        if self.sender.probes_unanswered() >= PROBES_UNANSWERED_MAX {
            let why = format!("nothing came from it for {} s", PROBES_UNANSWERED_MAX / 2);
            self.doom.get_or_insert(Lost::Broken { why });
        }
        if self.sender.doublings() >= DOUBTFUL_TIMEOUTS
            && let Some(connection) = &mut self.connection
            && !std::mem::replace(&mut connection.doubtful, true)
        {
            let socket = connection.wire.socket.raw();
            sockets::let_routers_cut(socket, &connection.address);
            self.sender.set_fragment_bytes(fragment_bytes(socket, &connection.address));
        }
        self.flush(now);
    }

    /// Tells the peer that this node is leaving it.
    pub(super) fn say_bye(&mut self, now: Nanoseconds) {
        let Some(connection) = &mut self.connection else { return };
        let acknowledgement = *self.sender.acknowledgement();
        let bye = Some(self.sender.fragments());
        let head = connection.writer.head(&Content { prompt: false, acknowledgement, fragment: None, bye });
        self.scratch.clear();
        self.scratch.extend_from_slice(head.bytes());
        connection.writer.protect(&mut self.scratch);
        // If it gets lost the peer learns from its kernel or from the silence.
        connection.wire.send_bytes(now, &self.scratch);
        self.counts.datagrams += 1;
    }

    /// One system call.
    #[inline]
    fn carry_out(&mut self, plan: Plan, now: Nanoseconds) -> Outcome {
        let Some(connection) = &mut self.connection else { return Outcome::Dropped };
        let fragment = self.sender.fragment(plan);
        let content = Content {
            prompt: plan == Plan::Probe || (fragment.is_some() && self.sender.is_held_back()),
            acknowledgement: *self.sender.acknowledgement(),
            fragment: fragment.as_ref().map(|(fragment, frame)| (*fragment, frame.header)),
            bye: None,
        };
        let part = fragment.map_or(Part::EMPTY, |(fragment, frame)| frame.part(&fragment));
        let head = connection.writer.head(&content);
        if connection.writer.is_plain() {
            let parts = [Part::of(head.bytes()), part];
            let count = 1 + usize::from(part.bytes() > 0);
            // SAFETY: the head is local; the part is a copied body or readable by the promise of `Payload::Pinned`.
            return unsafe { connection.wire.send(now, &parts[..count]) };
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(head.bytes());
        self.scratch.reserve(part.bytes() + 16);
        // SAFETY: readable as above, and there is room. If the page changes under the copy (see the module text) then
        // nobody reads what was copied.
        unsafe {
            let place = self.scratch.as_mut_ptr().add(self.scratch.len());
            part.copy_to(place);
            self.scratch.set_len(self.scratch.len() + part.bytes());
        }
        connection.writer.protect(&mut self.scratch);
        connection.wire.send_bytes(now, &self.scratch)
    }

    fn buffer_with(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }
}

/// What one datagram carries of a body.
fn fragment_bytes(socket: RawFd, address: &SocketAddr) -> u32 {
    (sockets::datagram_bytes(socket, address) - OVERHEAD_BYTES) as u32
}
