//! The receiving half of one connection: from bytes of a stream to frames in their places.
//!
//! Promises: the receiver sees a header only when it is complete and authentic. A body goes directly to the place that
//! the receiver named, except a first part that arrived together with the header. No frame is delivered before it is
//! complete and authentic. Nothing is allocated for a frame.
//!
//! It must never wait, send, or take the lock of the sending half.
//!
//! The buffer that headers are received into has room for a header and a page of 4 KiB, so that the answer to a fault
//! costs one system call and one copy of 4 KiB (0.03 µs per KiB), less than a second system call would. Beyond that,
//! bodies are received in place.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::sockets::{self, IoVec, Received};
use crate::links::descriptors::Descriptor;
use crate::links::roster::Harvest;
use crate::links::{Lost, Placement, Sink};
use crate::wrap::protection::{Opener, TAG_BYTES};
use crate::{BODY_BYTES_MAX, HEADER_BYTES, INLINE_BODY_BYTES_MAX};

/// The size of the buffer (see the module text). A larger one copies more of a stream of pages, and a smaller one needs
/// more system calls.
const STAGING_BYTES: usize = 16 << 10;
/// The shortest and the longest rest of a body for which the low-water mark is set.
const LOW_WATER_BYTES_MIN: usize = 64 << 10;
const LOW_WATER_BYTES_MAX: usize = 1 << 20;
/// Processor pauses before the rest of such a body is requested again: about a microsecond.
const PAUSES: u32 = 24;
/// Maximum system calls for one peer in one poll, so that a fast peer does not starve the others.
const RECEIVES_PER_POLL_MAX: usize = 8;

/// The receiving half. All access is under its lock.
pub(super) struct Input {
    peer: usize,
    connection: Option<Connection>,
    announced: bool,
    /// Why the peer is lost; the thread that detects it sets this. It is reported to the sink once.
    pub(super) loss: Option<Lost>,
    pub(super) loss_reported: bool,
}

struct Connection {
    socket: Arc<Descriptor>,
    opener: Opener,
    staging: Box<[u8; STAGING_BYTES]>,
    staged: usize,
    inline: Box<[u8; INLINE_BODY_BYTES_MAX]>,
    body: Option<Body>,
    /// The number of bytes that make the socket readable (SO_RCVLOWAT).
    low_water: usize,
    /// Whether the last receive call for the rest of a long body returned nothing.
    came_too_early: bool,
}

/// A body that is being received.
struct Body {
    header: [u8; HEADER_BYTES],
    pointer: *mut u8,
    bytes: usize,
    is_inline: bool,
    tag: [u8; TAG_BYTES],
    tag_bytes: usize,
    /// The number of received bytes of body and tag together.
    received: usize,
}

// SAFETY: the pointer is written only under the lock of the receiving half; the sink promised that nothing else uses
// these bytes until the frame is delivered.
unsafe impl Send for Body {}

impl Input {
    pub(super) fn new(peer: usize) -> Input {
        Input { peer, connection: None, announced: false, loss: None, loss_reported: false }
    }

    /// Receives frames from now on, because the connection is up.
    pub(super) fn start(&mut self, socket: Arc<Descriptor>, opener: Opener) {
        assert!(self.connection.is_none() && !self.loss_reported, "a peer connects once");
        self.connection = Some(Connection {
            socket,
            opener,
            staging: Box::new([0; STAGING_BYTES]),
            staged: 0,
            inline: Box::new([0; INLINE_BODY_BYTES_MAX]),
            body: None,
            low_water: 1,
            came_too_early: false,
        });
    }

    /// Ends receiving.
    pub(super) fn end(&mut self) -> Option<Arc<Descriptor>> {
        self.connection.take().map(|connection| connection.socket)
    }

    /// Tells the sink, once, that the peer is up.
    #[inline]
    pub(super) fn announce(&mut self, sink: &mut dyn Sink) {
        if !self.announced && self.connection.is_some() {
            self.announced = true;
            sink.connected(self.peer);
        }
    }

    /// Receives what has arrived, within the bounds of one poll.
    #[inline]
    pub(super) fn receive(&mut self, sink: &mut dyn Sink) -> Harvest {
        let mut harvest = Harvest::default();
        let Some(connection) = &mut self.connection else { return harvest };
        connection.let_the_sender_in();
        for _ in 0..RECEIVES_PER_POLL_MAX {
            let (received, wanted) = connection.receive_once();
            match received {
                Received::Bytes(count) => {
                    harvest.came = true;
                    if let Err(lost) = connection.accept(self.peer, count, sink, &mut harvest) {
                        harvest.lost = Some(lost);
                        break;
                    }
                    // Less arrived than there was room for, so the socket is empty. A call to confirm it would cost a
                    // tenth of a round trip.
                    if count < wanted {
                        break;
                    }
                }
                Received::Nothing => break,
                Received::End => {
                    harvest.lost = Some(connection.ended());
                    break;
                }
                Received::Failed(error) => {
                    harvest.lost = Some(Lost::Broken { why: error.to_string() });
                    break;
                }
            }
        }
        connection.came_too_early = !harvest.came && connection.low_water > 1;
        connection.set_low_water();
        harvest
    }

    /// Discards what arrives while this node is leaving; false if the connection is broken.
    pub(super) fn discard(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        connection.body = None;
        for _ in 0..RECEIVES_PER_POLL_MAX * 8 {
            match sockets::receive(&connection.socket, &mut connection.staging[..]) {
                Received::Bytes(_) => {}
                Received::Nothing | Received::End => return true,
                Received::Failed(_) => return false,
            }
        }
        true
    }
}

impl Connection {
    /// Pauses if the last call came too early: repeated calls take the socket's lock from the sender that fills it.
    #[inline]
    fn let_the_sender_in(&self) {
        if self.came_too_early {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
    }

    /// While the rest of a long body is arriving, fewer bytes than that do not wake a thread that sleeps on the
    /// socket: a wake-up for every segment costs more than the segments do.
    #[inline]
    fn set_low_water(&mut self) {
        let rest = self.body.as_ref().map_or(0, Body::rest);
        let wanted = if rest >= LOW_WATER_BYTES_MIN { rest.min(LOW_WATER_BYTES_MAX) } else { 1 };
        if wanted != self.low_water && sockets::set_low_water(&self.socket, wanted) {
            self.low_water = wanted;
        }
    }

    /// Makes one system call, which receives into the buffer, or into the rest of a body, its tag, and the buffer.
    #[inline]
    fn receive_once(&mut self) -> (Received, usize) {
        let Some(body) = &mut self.body else {
            let room = &mut self.staging[self.staged..];
            let wanted = room.len();
            return (sockets::receive(&self.socket, room), wanted);
        };
        assert_eq!(self.staged, 0, "what is staged belongs to the body first");
        let body_rest = body.bytes.saturating_sub(body.received);
        let tag_from = body.received.saturating_sub(body.bytes);
        let mut parts = [
            IoVec::write(body.pointer.wrapping_add(body.bytes - body_rest), body_rest),
            IoVec::write(body.tag[tag_from..].as_mut_ptr(), body.tag_bytes - tag_from),
            IoVec::write(self.staging.as_mut_ptr(), STAGING_BYTES),
        ];
        let wanted = parts.iter().map(IoVec::bytes).sum();
        // SAFETY: the body is writable by the sink's promise, or is our inline buffer; tag and staging are ours; the
        // two subtractions above keep the bounds.
        (unsafe { sockets::receive_parts(self.socket.raw(), &mut parts) }, wanted)
    }

    /// Handles `count` received bytes: completes the body they belong to, then all whole frames staged.
    fn accept(
        &mut self,
        peer: usize,
        mut count: usize,
        sink: &mut dyn Sink,
        harvest: &mut Harvest,
    ) -> Result<(), Lost> {
        if let Some(body) = &mut self.body {
            let taken = count.min(body.rest());
            body.received += taken;
            count -= taken;
            if body.rest() > 0 {
                return Ok(());
            }
        }
        self.staged += count;
        let mut at = 0;
        loop {
            if self.body.is_some() {
                at += self.fill_body(at);
                if !self.finish_body(peer, sink, harvest)? {
                    break;
                }
            }
            let header_end = at + self.opener.wire_header_bytes();
            if header_end > self.staged {
                break;
            }
            let Ok(header) = self.opener.header(&self.staging[at..header_end]) else {
                harvest.refused = true;
                return Err(Lost::Forged);
            };
            at = header_end;
            at += self.begin_frame(peer, header, at, sink, harvest)?;
        }
        self.staging.copy_within(at..self.staged, 0);
        self.staged -= at;
        Ok(())
    }

    /// Asks for the place of the body. A frame without a body, or with an inline body that is staged completely, is
    /// delivered at once. Returns the number of staged bytes used.
    fn begin_frame(
        &mut self,
        peer: usize,
        header: [u8; HEADER_BYTES],
        at: usize,
        sink: &mut dyn Sink,
        harvest: &mut Harvest,
    ) -> Result<usize, Lost> {
        let placement = sink.place(peer, &header).map_err(|refused| {
            harvest.refused = true;
            Lost::FrameRefused { why: refused.why.into_owned() }
        })?;
        let (pointer, bytes, is_inline) = match placement {
            Placement::Nothing | Placement::Inline(0) | Placement::At { bytes: 0, .. } => {
                harvest.count(0);
                sink.deliver(peer, &header, &[]);
                return Ok(0);
            }
            Placement::Inline(bytes) if bytes <= INLINE_BODY_BYTES_MAX => {
                if let Some(used) = self.deliver_staged(peer, &header, at, bytes, sink, harvest)? {
                    return Ok(used);
                }
                (self.inline.as_mut_ptr(), bytes, true)
            }
            Placement::At { pointer, bytes } if bytes <= BODY_BYTES_MAX => (pointer, bytes, false),
            Placement::Inline(bytes) | Placement::At { bytes, .. } => {
                harvest.refused = true;
                let why = format!("its body of {bytes} bytes is longer than any frame may be");
                return Err(Lost::FrameRefused { why });
            }
        };
        let tag_bytes = self.opener.body_tag_bytes();
        let tag = [0; TAG_BYTES];
        self.body = Some(Body { header, pointer, bytes, is_inline, tag, tag_bytes, received: 0 });
        Ok(0)
    }

    /// Delivers an inline body from the buffer it was received into, if it is complete.
    fn deliver_staged(
        &mut self,
        peer: usize,
        header: &[u8; HEADER_BYTES],
        at: usize,
        bytes: usize,
        sink: &mut dyn Sink,
        harvest: &mut Harvest,
    ) -> Result<Option<usize>, Lost> {
        let tag_bytes = self.opener.body_tag_bytes();
        if self.staged - at < bytes + tag_bytes {
            return Ok(None);
        }
        let (body, rest) = self.staging[at..self.staged].split_at_mut(bytes);
        let mut tag = [0; TAG_BYTES];
        tag[..tag_bytes].copy_from_slice(&rest[..tag_bytes]);
        if self.opener.body(body, &tag).is_err() {
            harvest.refused = true;
            return Err(Lost::Forged);
        }
        harvest.count(bytes);
        sink.deliver(peer, header, body);
        Ok(Some(bytes + tag_bytes))
    }

    /// Moves staged bytes from `at` on to the body and its tag; returns their number.
    fn fill_body(&mut self, at: usize) -> usize {
        let body = self.body.as_mut().expect("checked by the caller");
        let staged = &self.staging[at..self.staged];
        let for_body = body.bytes.saturating_sub(body.received).min(staged.len());
        if for_body > 0 {
            // SAFETY: the target has `bytes` writable bytes, of which `received` are used, and it is not the staging
            // buffer: it is the inline buffer, or memory of the sink.
            unsafe {
                body.pointer.add(body.received).copy_from_nonoverlapping(staged.as_ptr(), for_body);
            }
            body.received += for_body;
        }
        if body.received < body.bytes {
            return for_body;
        }
        let tag_from = body.received - body.bytes;
        let for_tag = (body.tag_bytes - tag_from).min(staged.len() - for_body);
        body.tag[tag_from..tag_from + for_tag].copy_from_slice(&staged[for_body..for_body + for_tag]);
        body.received += for_tag;
        for_body + for_tag
    }

    /// Checks and delivers the body if it is complete; false if not.
    fn finish_body(&mut self, peer: usize, sink: &mut dyn Sink, harvest: &mut Harvest) -> Result<bool, Lost> {
        let Some(body) = self.body.take_if(|body| body.rest() == 0) else { return Ok(false) };
        // SAFETY: all `bytes` bytes were just written, and nothing else uses them yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(body.pointer, body.bytes) };
        if self.opener.body(bytes, &body.tag).is_err() {
            harvest.refused = true;
            return Err(Lost::Forged);
        }
        harvest.count(body.bytes);
        let shown: &[u8] = if body.is_inline { bytes } else { &[] };
        sink.deliver(peer, &body.header, shown);
        Ok(true)
    }

    fn ended(&self) -> Lost {
        if self.body.is_some() || self.staged > 0 { Lost::Truncated } else { Lost::Ended }
    }
}

impl Body {
    fn rest(&self) -> usize {
        self.bytes + self.tag_bytes - self.received
    }
}
