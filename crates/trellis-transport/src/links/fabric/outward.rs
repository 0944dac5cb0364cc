//! The sending half of a pair: frames that wait, frames that the peer has not confirmed, and how they leave.
//!
//! Promises: frames are numbered in the order in which they were taken and handed over in that order. No more are in
//! flight than the peer has room for. A frame is kept until the peer reports its delivery, so that a node that leaves
//! can send it over the tcp connection instead.
//!
//! It must never take a second peer's lock, or call the sink.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::device::{Registration, Source, Taken};
use super::packet::{Kind, PACKET_BODY_BYTES_MAX, Packet};
use super::peers::{HELLO_BIT, Shared};
use super::rdma_write::Written;
use super::rendezvous::Said;
use crate::links::roster::lock;
use crate::links::{Link, Lost, Payload, SendError, check_sendable};
use crate::{HEADER_BYTES, QUEUE_BYTES_MAX, QUEUED_FRAME_BYTES};

/// A longer body in the shared memory is not sent in its packet, but read by its receiver.
const SHARED_BODY_BYTES_SENT_MAX: usize = 1024;

/// The place of a body whose offset in the receiver's shared memory is not known.
pub(super) const NOWHERE: u64 = u64::MAX;

/// The state of this half.
#[derive(Default)]
enum Phase {
    /// The peer's address is not known, or the path to it is not open yet.
    #[default]
    Absent,
    Up,
    Lost(Lost),
}

/// The body of a kept frame.
enum Body {
    Nothing,
    Owned(Box<[u8]>),
    Pinned(*const u8, usize),
}

pub(super) struct Frame {
    pub(super) sequence: u64,
    pub(super) header: [u8; HEADER_BYTES],
    body: Body,
    /// The offset of the body in the receiver's shared memory; past any memory ([`NOWHERE`]) if that is not known.
    pub(super) place: u64,
    /// Whether the body was handed to the provider to be written there.
    pub(super) is_written: bool,
    /// The registration that lets the peer read a body that does not lie in the shared memory.
    pub(super) registration: Option<Registration>,
    /// The bytes that it counts against the maximum; 0 if none of the caller's memory is held any more.
    pub(super) held_bytes: usize,
}

// SAFETY: the pointer of a pinned body is readable from any thread, by the promise of `Payload::Pinned`.
unsafe impl Send for Frame {}

/// The sending half of a pair; see the module text.
#[derive(Default)]
pub(super) struct Outward {
    phase: Phase,
    next: u64,
    waiting: VecDeque<Frame>,
    sent: VecDeque<Frame>,
    pub(super) held_bytes: usize,
    hello_due: bool,
    /// The number of deliveries at this node that were reported to the peer.
    reported: u64,
    /// Whether deliveries must be reported to the peer even if nothing else is sent to it.
    word_due: bool,
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::Nothing => &[],
            Body::Owned(bytes) => bytes,
            // SAFETY: readable until the peer has it, by the promise of `Payload::Pinned`; kept no longer than that.
            Body::Pinned(pointer, bytes) => unsafe { std::slice::from_raw_parts(*pointer, *bytes) },
        }
    }
}

impl Frame {
    pub(super) fn bytes(&self) -> &[u8] {
        self.body.bytes()
    }

    /// Whether its body is sent in its packet.
    fn is_whole(&self, source: Option<Source>) -> bool {
        let most = if source.is_some() { SHARED_BODY_BYTES_SENT_MAX } else { PACKET_BODY_BYTES_MAX };
        self.body.bytes().len() <= most
    }
}

impl Outward {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(super) fn owe_hello(&mut self) {
        self.hello_due = true;
    }

    pub(super) fn start(&mut self) {
        if matches!(self.phase, Phase::Absent) {
            self.phase = Phase::Up;
        }
    }

    /// Whether an unconfirmed frame has a body that was handed to the provider to be written.
    pub(super) fn is_writing(&self) -> bool {
        self.sent.iter().chain(&self.waiting).any(|frame| frame.is_written)
    }

    /// Ends sending: frames and registrations are dropped.
    pub(super) fn end(&mut self, why: Lost) {
        if !matches!(self.phase, Phase::Lost(_)) {
            self.phase = Phase::Lost(why);
        }
        self.waiting.clear();
        self.sent.clear();
        self.held_bytes = 0;
        (self.hello_due, self.word_due) = (false, false);
    }

    /// Notes that `delivered` frames are delivered here, and whether that must be reported even if nothing else is
    /// sent.
    pub(super) fn note_delivered(&mut self, delivered: u64, window: u64, at_once: bool) {
        let unreported = delivered.saturating_sub(self.reported);
        self.word_due |= unreported > 0 && (at_once || unreported * 2 >= window);
    }

    /// Drops the frames that were delivered at the peer.
    pub(super) fn acknowledged(&mut self, delivered: u64) {
        while let Some(frame) = self.sent.pop_front_if(|frame| frame.sequence < delivered) {
            self.held_bytes -= frame.held_bytes;
        }
    }
}

impl Shared {
    pub(super) fn send(
        &self,
        index: usize,
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
        place: u64,
    ) -> Result<(), SendError> {
        let bytes = payload.bytes();
        check_sendable(self.node, self.peers.len(), index, bytes)?;
        if self.closed.load(Ordering::Relaxed) || self.is_forked() {
            return Err(SendError::Closed);
        }
        let peer = &self.peers[index];
        let mut outward = lock(&peer.outward);
        if let Phase::Lost(why) = &outward.phase {
            return Err(match why {
                Lost::ClosedHere => SendError::Closed,
                why => SendError::Lost { peer: index, why: why.clone() },
            });
        }
        let copied = if matches!(payload, Payload::Copy(_)) { bytes } else { 0 };
        let cost = QUEUED_FRAME_BYTES + copied;
        if outward.held_bytes + cost > QUEUE_BYTES_MAX {
            return Err(SendError::QueueFull { peer: index, queued_bytes: outward.held_bytes });
        }
        let body = match payload {
            Payload::Copy(bytes) if !bytes.is_empty() => Body::Owned(bytes.into()),
            Payload::Pinned(pointer, bytes) if bytes > 0 => Body::Pinned(pointer, bytes),
            _ => Body::Nothing,
        };
        let sequence = outward.next;
        outward.next += 1;
        outward.held_bytes += cost;
        outward.waiting.push_back(Frame {
            sequence,
            header: *header,
            body,
            place,
            is_written: false,
            registration: None,
            held_bytes: cost,
        });
        peer.traffic.sent(bytes);
        self.pump(index, &mut outward);
        Ok(())
    }

    /// Handles a report of deliveries by the peer; sends what waited for that.
    pub(super) fn acknowledged(&self, index: usize, delivered: u64) {
        let mut outward = lock(&self.peers[index].outward);
        outward.acknowledged(delivered);
        self.pump(index, &mut outward);
    }

    /// Hands the frames over that may leave.
    pub(super) fn pump(&self, index: usize, outward: &mut Outward) {
        if self.peers[index].is_broken.load(Ordering::Acquire) {
            return;
        }
        if outward.hello_due && self.put(index, outward, Kind::Hello, None) {
            outward.hello_due = false;
        }
        if !matches!(outward.phase, Phase::Up) {
            return;
        }
        let window = self.peers[index].there.get().map_or(0, |there| there.hello.window);
        while (outward.sent.len() as u64) < window
            && let Some(frame) = outward.waiting.pop_front()
        {
            match self.put_frame(index, outward, frame) {
                Ok(frame) => outward.sent.push_back(frame),
                Err(frame) => return outward.waiting.push_front(frame),
            }
        }
        if outward.word_due {
            self.put(index, outward, Kind::Word, None);
        }
    }

    /// Hands over one frame; returns it as an error if that failed.
    fn put_frame(&self, index: usize, outward: &mut Outward, mut frame: Frame) -> Result<Frame, Frame> {
        let (sequence, header) = (frame.sequence, frame.header);
        let source = match frame.body {
            Body::Pinned(pointer, bytes) => self.device.source(pointer, bytes),
            _ => None,
        };
        if frame.is_whole(source) && !frame.is_written {
            return match self.put(index, outward, Kind::Frame { sequence, header }, Some(&frame)) {
                true => {
                    // The provider has a copy; what is kept is bounded by the window.
                    outward.held_bytes -= std::mem::take(&mut frame.held_bytes);
                    Ok(frame)
                }
                false => Err(frame),
            };
        }
        match self.write_body(index, outward, &mut frame, source.is_some()) {
            Written::Yes => return Ok(frame),
            Written::Again => return Err(frame),
            Written::OtherWay => {}
        }
        let bytes = frame.body.bytes().len() as u64;
        let wants_word = source.is_none();
        let source = match source {
            Some(source) => source,
            None => {
                let body = frame.body.bytes();
                // SAFETY: the registration is dropped with the frame, and its body is readable as long.
                match unsafe { self.device.offer(body.as_ptr(), body.len()) } {
                    Ok((source, registration)) => {
                        frame.registration = Some(registration);
                        source
                    }
                    Err(why) => {
                        self.note_broken(index, why);
                        return Err(frame);
                    }
                }
            }
        };
        if !self.put(index, outward, Kind::Offer { sequence, header, bytes, source, wants_word }, None) {
            frame.registration = None;
            return Err(frame);
        }
        if !wants_word {
            outward.held_bytes -= std::mem::take(&mut frame.held_bytes);
        }
        Ok(frame)
    }

    /// Hands one packet to the provider, with the body of `frame`; returns whether it was taken.
    pub(super) fn put(&self, index: usize, outward: &mut Outward, kind: Kind, frame: Option<&Frame>) -> bool {
        let peer = &self.peers[index];
        let Some(there) = peer.there.get() else { return false };
        let Some(slot) = self.device.take_send() else {
            self.stall();
            return false;
        };
        let delivered = peer.delivered.load(Ordering::Acquire);
        let seen = peer.seen.load(Ordering::Acquire);
        let packet = Packet { cookie: there.hello.cookie, from: self.node as u16, delivered, seen, kind };
        let body = frame.map_or(&[][..], |frame| frame.body.bytes());
        // SAFETY: the slot was taken from the free list, so only this call uses it.
        let bytes = packet.write(body, unsafe { self.device.packet(slot) });
        self.own(slot, index as u32 | if kind == Kind::Hello { HELLO_BIT } else { 0 });
        let sent = peer.packets_sent.fetch_add(1, Ordering::AcqRel);
        match self.device.send(slot, bytes, there.number) {
            Ok(Taken::Yes) => {}
            Ok(Taken::Again) => {
                peer.packets_sent.store(sent, Ordering::Release);
                self.device.give(slot);
                self.stall();
                return false;
            }
            Err(why) => {
                peer.packets_sent.store(sent, Ordering::Release);
                self.device.give(slot);
                self.note_broken(index, why);
                return false;
            }
        }
        (outward.reported, outward.word_due) = (delivered, false);
        self.packets_out.fetch_add(1, Ordering::Relaxed);
        if self.device.wait_descriptor().is_none() {
            let _ = peer.unseen_since.compare_exchange(0, self.now(), Ordering::AcqRel, Ordering::Relaxed);
            self.progress_thread.wake();
        }
        true
    }

    /// Sends what the peer has not confirmed over the tcp connection, in order, because this node leaves. The frames
    /// stay, since they are sent without a copy, until [`Outward::end`].
    pub(super) fn detour(&self, index: usize) {
        let mut outward = lock(&self.peers[index].outward);
        let outward = &mut *outward;
        if matches!(outward.phase, Phase::Lost(_)) {
            return;
        }
        for frame in outward.sent.iter().chain(&outward.waiting) {
            if frame.is_written {
                // The peer did not report its delivery in time. So the write may still arrive, over what would be
                // stored after this body came the other way.
                break;
            }
            let body = frame.body.bytes();
            let first = Said::Detour { sequence: frame.sequence, bytes: body.len() };
            let mut sent = self.tcp.send(index, &first.write(), Payload::Copy(&frame.header));
            if !body.is_empty() {
                let second = Said::DetourBody(body.len()).write();
                sent = sent.and_then(|()| self.tcp.send(index, &second, Payload::Pinned(body.as_ptr(), body.len())));
            }
            if sent.is_err() {
                // The connection is lost, and with it the receiver of the rest.
                break;
            }
        }
        // No frame is taken from now on: one behind those would be lost.
        outward.phase = Phase::Lost(Lost::ClosedHere);
    }
}
