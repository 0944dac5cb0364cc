//! The sending half of one peer: frames until they have arrived, and the datagrams that carry them.
//!
//! Promises: a frame leaves at once, in one datagram if it fits, with one system call and without an allocation. A
//! pinned body is sent without a copy if the link is plain. What waits for acknowledgement holds at most
//! [`QUEUE_BYTES_MAX`] bytes.
//!
//! It must never wait, call back, or touch the receiving half.
//!
//! A pinned body that was acknowledged is never read again. If its acknowledgement was lost, it may be read and sent
//! after the receiver continued and the supplier changed the page: the receiver knows the fragment's number and drops
//! it unread. The bytes of a protected datagram are copied before they are protected, so that it is consistent even
//! then.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use super::datagram::{Content, HEAD_BYTES_MAX, Introduction, OVERHEAD_BYTES, Writer};
use super::delivery::{Acknowledgement, Arrival, Fragment, Inconsistent, Nanoseconds, Plan, Sender};
use super::multicast_datagram as multicast;
use super::sockets::{self, Outcome, Wire};
use crate::links::descriptors::Descriptor;
use crate::links::tcp::sockets::IoVec;
use crate::links::{Lost, Payload, SendError};
use crate::{HEADER_BYTES, QUEUE_BYTES_MAX, QUEUED_FRAME_BYTES};

/// Maximum datagrams of one flush, so that a poll stays short.
const DATAGRAMS_PER_FLUSH_MAX: usize = 64;
/// The maximum number of buffers of copied bodies that are kept for reuse.
const SPARE_BUFFERS_MAX: usize = 32;
const SPARE_BUFFER_BYTES_MAX: usize = 64 << 10;
/// How many times the kernel must report that nothing listens, without a datagram from the peer in between, before this
/// node gives the peer up: anyone who knows the ports can cause one such report. The peer is probed in between.
const REFUSALS_MAX: u32 = 4;
const REFUSAL_APART_NS: Nanoseconds = 10_000_000;
/// The maximum number of unanswered probes, one each half second, until a silent peer is given up. The layer above,
/// which knows what it waits for, is quicker.
const PROBES_UNANSWERED_MAX: u32 = 120;
/// The number of time-outs in a row after which the path is suspected not to take packets of this size.
const DOUBTFUL_TIMEOUTS: u32 = 4;

/// Counters of what was sent, besides frames.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) datagrams: u64,
    pub(super) acknowledgements: u64,
    /// The number of datagrams that reported missing fragments.
    pub(super) negative: u64,
}

/// The sending half. All access is under its lock.
pub(super) struct Output {
    peer: usize,
    connection: Option<Connection>,
    lost: Option<Lost>,
    sender: Sender<Frame>,
    held_bytes: usize,
    /// The buffer in which a protected datagram is assembled.
    scratch: Vec<u8>,
    spare: Vec<Vec<u8>>,
    /// Whether the socket was full.
    full: bool,
    refusals: u32,
    refused_at: Nanoseconds,
    /// Why the peer is lost; the next poll reports it.
    pub(super) doom: Option<Lost>,
    /// Whether this node receives the peer's multicasts; it tells the peer so.
    hears: bool,
    /// Whether others waited in vain for room at this peer.
    is_sluggish: bool,
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
    /// The same bytes for several peers.
    Common(Arc<[u8]>),
    Pinned(*const u8),
}

/// A frame for several peers at once.
pub(super) struct Common {
    header: [u8; HEADER_BYTES],
    body: Body,
    bytes: usize,
}

impl Common {
    pub(super) fn new(header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Common {
        let body = match payload {
            _ if payload.bytes() == 0 => Body::Nothing,
            Payload::Nothing => Body::Nothing,
            Payload::Copy(bytes) => Body::Common(bytes.into()),
            Payload::Pinned(pointer, _) => Body::Pinned(pointer),
        };
        Common { header: *header, body, bytes: payload.bytes() }
    }

    pub(super) fn header(&self) -> &[u8; HEADER_BYTES] {
        &self.header
    }

    /// The length of the body in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends one fragment to all nodes that `head` addresses, with one system call.
    pub(super) fn transmit(
        &self,
        now: Nanoseconds,
        wire: &Wire,
        fragment: &Fragment,
        writer: &multicast::Writer,
        head: &mut Vec<u8>,
    ) -> Outcome {
        let part = self.frame().part(fragment);
        if writer.is_plain() {
            let parts = [IoVec::of(head), part];
            // SAFETY: the head is a slice; the part is common bytes or readable by the promise of `Payload::Pinned`.
            return unsafe { wire.send(now, &parts[..1 + usize::from(part.bytes() > 0)]) };
        }
        // SAFETY: as above.
        unsafe { append(head, &part) };
        writer.protect(head);
        wire.send_bytes(now, head)
    }

    /// The same frame, for one of the peers.
    fn frame(&self) -> Frame {
        let body = match &self.body {
            Body::Common(bytes) => Body::Common(Arc::clone(bytes)),
            Body::Pinned(pointer) => Body::Pinned(*pointer),
            Body::Nothing | Body::Copied(_) => Body::Nothing,
        };
        Frame { header: self.header, body }
    }
}

// SAFETY: the pointers are read only by the system call that sends them and the copy before it, from any thread; the
// caller of `send` promised that they stay readable until the peer has the frame.
unsafe impl Send for Output {}

// SAFETY: as above; it is kept until the last of its peers has it or was given its own frame.
unsafe impl Send for Common {}

impl Frame {
    fn held_bytes(&self) -> usize {
        QUEUED_FRAME_BYTES
            + match &self.body {
                Body::Copied(bytes) => bytes.len(),
                // The bytes count for each of the peers, because they are held until the last of them has the frame.
                Body::Common(bytes) => bytes.len(),
                Body::Nothing | Body::Pinned(_) => 0,
            }
    }

    /// The bytes of a fragment, in place.
    fn part(&self, fragment: &Fragment) -> IoVec {
        let range = fragment.range();
        match &self.body {
            Body::Nothing => IoVec::EMPTY,
            Body::Copied(bytes) => IoVec::of(&bytes[range]),
            Body::Common(bytes) => IoVec::of(&bytes[range]),
            Body::Pinned(pointer) => IoVec::read(pointer.wrapping_add(range.start), range.len()),
        }
    }
}

impl Output {
    pub(super) fn new(peer: usize) -> Output {
        Output {
            peer,
            connection: None,
            lost: None,
            // Nothing is split before the path is known.
            sender: Sender::new(0, 1, OVERHEAD_BYTES),
            held_bytes: 0,
            scratch: Vec::new(),
            spare: Vec::new(),
            full: false,
            refusals: 0,
            refused_at: 0,
            doom: None,
            hears: false,
            is_sluggish: false,
            counts: Counts::default(),
        }
    }

    /// Sends datagrams from now on, because the connection is up. The first one announces this node.
    pub(super) fn start(&mut self, now: Nanoseconds, wire: Arc<Wire>, writer: Writer, address: SocketAddr) {
        assert!(self.connection.is_none(), "a peer connects once");
        let room_bytes = sockets::room_bytes(&wire.socket);
        self.sender.set_fragment_bytes(fragment_bytes(&wire.socket, &address));
        self.sender.start(now);
        self.sender.owe(now, Acknowledgement { room_bytes, ..Acknowledgement::default() }, true);
        self.scratch.reserve(HEAD_BYTES_MAX + (64 << 10));
        self.connection = Some(Connection { wire, writer, address, doubtful: false });
        self.flush(now);
    }

    /// Ends sending, because the peer is gone; what waited is dropped.
    pub(super) fn end(&mut self, why: Lost) {
        self.lost.get_or_insert(why);
        self.connection = None;
        self.sender.abandon(drop);
        self.scratch = Vec::new();
        self.spare = Vec::new();
        self.held_bytes = 0;
    }

    /// The socket, while the connection is up.
    pub(super) fn socket(&self) -> Option<&Descriptor> {
        self.connection.as_ref().map(|connection| &connection.wire.socket)
    }

    pub(super) fn wire(&self) -> Option<Arc<Wire>> {
        self.connection.as_ref().map(|connection| Arc::clone(&connection.wire))
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The counters, the number of fragments that were sent again, and the number of those that had been sent by
    /// multicast.
    pub(super) fn counts(&self) -> (Counts, u64, u64) {
        (self.counts, self.sender.resent, self.sender.repaired)
    }

    /// The longest datagram on the path to this peer; `None` without a connection.
    pub(super) fn datagram_bytes(&self) -> Option<usize> {
        let connection = self.connection.as_ref()?;
        Some(sockets::datagram_bytes(&connection.wire.socket, &connection.address))
    }

    /// The number of fragments sent, if the peer is not known to have all that were sent by multicast.
    pub(super) fn waits_for_multicast(&self) -> Option<u64> {
        self.sender.waits_for_multicast().then(|| self.sender.fragments())
    }

    pub(super) fn fragments(&self) -> u64 {
        self.sender.fragments()
    }

    /// Multicasts in a row that did not reach the peer.
    #[inline]
    pub(super) fn misses(&self) -> u32 {
        self.sender.misses()
    }

    /// Asks the peer for an acknowledgement at once, if anything waits for it.
    pub(super) fn hurry(&mut self, now: Nanoseconds) {
        if self.sender.waits_for_multicast() {
            self.sender.probe_by(now);
            self.sender.tick(now);
        }
    }

    /// Whether the socket was full and room is awaited.
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

    /// Takes a frame, and sends it if that is allowed now.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: impl FnOnce() -> Nanoseconds,
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
    ) -> Result<(), SendError> {
        let bytes = payload.bytes();
        self.hold(QUEUED_FRAME_BYTES + if matches!(payload, Payload::Copy(_)) { bytes } else { 0 })?;
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

    /// Takes a frame for several peers. True if it waits for [`Self::begin`]; otherwise it goes to this peer
    /// separately, because others waited in vain for this peer and it still has no room.
    pub(super) fn line_up(&mut self, now: Nanoseconds, common: &Common) -> Result<bool, SendError> {
        self.hold(common.frame().held_bytes())?;
        self.is_sluggish &= self.sender.room() == 0;
        let waits = self.connection.is_some() && !self.full && !self.is_sluggish;
        if !waits {
            self.submit_held(now, common);
        }
        Ok(waits)
    }

    /// Whether a frame that lined up can begin, or never will.
    pub(super) fn may_begin(&self) -> bool {
        self.lost.is_some() || self.connection.is_none() || self.sender.may_multicast()
    }

    /// Begins a frame that lined up; returns the number of its first fragment, or `None` if the frame is sent
    /// separately.
    pub(super) fn begin(&mut self, now: Nanoseconds, common: &Common, fragment_bytes: u32) -> Option<u64> {
        if self.lost.is_some() {
            return None;
        }
        if self.connection.is_none() || !self.sender.may_multicast() {
            self.submit_held(now, common);
            return None;
        }
        Some(self.sender.multicast(common.frame(), common.bytes as u32, fragment_bytes))
    }

    /// The number of fragments that may be sent by multicast now.
    pub(super) fn room(&self) -> u64 {
        if self.lost.is_some() { 0 } else { self.sender.room() }
    }

    /// Notes that up to `count` more fragments of the frame are sent by multicast; returns how many.
    pub(super) fn depart(&mut self, now: Nanoseconds, count: u64) -> u64 {
        if self.lost.is_some() { 0 } else { self.sender.depart_by_multicast(now, count) }
    }

    /// Whether the peer still has no room, although others have waited for it.
    pub(super) fn is_timed_out(&mut self) -> bool {
        self.is_sluggish = self.room() == 0;
        self.is_sluggish
    }

    /// Sends the rest of the frame, and what waited behind it, to this peer separately.
    pub(super) fn release(&mut self, now: Nanoseconds) {
        if self.lost.is_none() {
            self.sender.release();
            self.flush_open(now);
        }
    }

    /// Sends a frame that lined up and has not begun to this peer separately.
    pub(super) fn submit_held(&mut self, now: Nanoseconds, common: &Common) {
        if self.lost.is_none() {
            self.sender.submit(common.frame(), common.bytes as u32);
            self.flush_open(now);
        }
    }

    #[inline]
    fn flush_open(&mut self, now: Nanoseconds) {
        if self.connection.is_some() && !self.full {
            self.flush(now);
        }
    }

    /// Counts a frame against the maximum that may wait.
    #[inline]
    fn hold(&mut self, bytes: usize) -> Result<(), SendError> {
        if let Some(why) = &self.lost {
            return Err(SendError::Lost { peer: self.peer, why: why.clone() });
        }
        if self.held_bytes + bytes > QUEUE_BYTES_MAX {
            return Err(SendError::QueueFull { peer: self.peer, queued_bytes: self.held_bytes });
        }
        self.held_bytes += bytes;
        Ok(())
    }

    /// Whether the peer must acknowledge what it has, so that more can be sent.
    pub(super) fn is_held_back(&self) -> bool {
        self.sender.is_half_full()
    }

    /// Sends what may be sent now.
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
                    // The kernel's report is about an earlier datagram, and this one was not sent.
                    self.nobody_there(now);
                    self.carry_out(plan, now);
                }
                Outcome::Gone | Outcome::Dropped => {}
            }
            self.counts.negative += u64::from(self.sender.acknowledgement().is_negative());
            self.sender.sent(plan, now);
            self.counts.datagrams += 1;
            self.counts.acknowledgements += u64::from(plan == Plan::Acknowledge);
        }
    }

    /// Handles an authentic datagram. `arrival` is the kind of its fragment, and `here` says what this side has now.
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
            // A peer that sends what is here already did not get the acknowledgement.
            self.sender.owe(now, here, content.prompt || arrival == Some(Arrival::Duplicate));
        }
        Ok(())
    }

    /// Handles an authentic multicast of the peer; `arrival` and `here` as in [`Self::heard`].
    pub(super) fn heard_multicast(
        &mut self,
        now: Nanoseconds,
        prompt: bool,
        arrival: Option<Arrival>,
        here: Acknowledgement,
    ) {
        self.refusals = 0;
        self.sender.heard(now);
        let first = !std::mem::replace(&mut self.hears, true);
        let wanted = prompt || first || arrival == Some(Arrival::Duplicate);
        if wanted || arrival.is_some() || here.is_negative() {
            self.sender.owe_for_multicast(now, here, wanted);
        }
    }

    /// Notes that the peer asks for a sign of life.
    pub(super) fn owe_word(&mut self, now: Nanoseconds, here: Acknowledgement) {
        self.sender.owe(now, here, true);
    }

    /// Handles the kernel's report that nothing listens at the peer's address.
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

    /// Does what is due.
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
            let socket = &connection.wire.socket;
            sockets::let_routers_cut(socket, &connection.address);
            self.sender.set_fragment_bytes(fragment_bytes(socket, &connection.address));
        }
        self.flush(now);
    }

    /// Tells the peer that this node is leaving. If that gets lost, the peer learns it from its kernel or from the
    /// silence.
    pub(super) fn say_bye(&mut self, now: Nanoseconds) {
        self.say(now, Some(self.sender.fragments()), None);
    }

    /// Tells the peer where this node's multicasts go. If that gets lost, the peer is told again.
    pub(super) fn introduce(&mut self, now: Nanoseconds, introduction: &Introduction) {
        self.say(now, None, Some(*introduction));
    }

    fn say(&mut self, now: Nanoseconds, bye: Option<u64>, introduction: Option<Introduction>) {
        let Some(connection) = &mut self.connection else { return };
        let acknowledgement = *self.sender.acknowledgement();
        let (prompt, fragment, heard) = (false, None, self.hears);
        let content = Content { prompt, acknowledgement, fragment, bye, heard, introduction };
        let head = connection.writer.head(&content);
        self.scratch.clear();
        self.scratch.extend_from_slice(head.bytes());
        connection.writer.protect(&mut self.scratch);
        connection.wire.send_bytes(now, &self.scratch);
        self.counts.datagrams += 1;
    }

    /// Carries out a plan with one system call.
    #[inline]
    fn carry_out(&mut self, plan: Plan, now: Nanoseconds) -> Outcome {
        let Some(connection) = &mut self.connection else { return Outcome::Dropped };
        let fragment = self.sender.fragment(plan);
        let content = Content {
            prompt: plan == Plan::Probe || (fragment.is_some() && self.sender.is_held_back()),
            acknowledgement: *self.sender.acknowledgement(),
            fragment: fragment.as_ref().map(|(fragment, frame)| (*fragment, frame.header)),
            bye: None,
            heard: self.hears,
            introduction: None,
        };
        let part = fragment.map_or(IoVec::EMPTY, |(fragment, frame)| frame.part(&fragment));
        let head = connection.writer.head(&content);
        if connection.writer.is_plain() {
            let parts = [IoVec::of(head.bytes()), part];
            let count = 1 + usize::from(part.bytes() > 0);
            // SAFETY: the head is local; the part is a copied body or readable by the promise of `Payload::Pinned`.
            return unsafe { connection.wire.send(now, &parts[..count]) };
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(head.bytes());
        // SAFETY: readable as above.
        unsafe { append(&mut self.scratch, &part) };
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

/// Appends bytes to a datagram, with room for a tag. If the page changes during the copy (see the module text), the
/// copy is never read.
///
/// # Safety
///
/// The part must be readable.
unsafe fn append(datagram: &mut Vec<u8>, part: &IoVec) {
    datagram.reserve(part.bytes() + 16);
    // SAFETY: the caller's promise, and there is room.
    unsafe {
        part.copy_to(datagram.as_mut_ptr().add(datagram.len()));
        datagram.set_len(datagram.len() + part.bytes());
    }
}

/// The number of body bytes in one datagram.
fn fragment_bytes(socket: &Descriptor, address: &SocketAddr) -> u32 {
    (sockets::datagram_bytes(socket, address) - OVERHEAD_BYTES) as u32
}
