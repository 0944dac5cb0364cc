//! The receiving side of the link `fabric`: completions, packets, bodies read from the peer, and tcp messages.
//!
//! Promises: frames of a peer are placed and delivered in the order of their numbers, each once, whichever way it
//! arrived. A body is read directly to where the sink placed it. A peer is reported lost only after no read writes any
//! more.
//!
//! It must never wait. One thread at a time is here (it holds [`Receive`]); it takes sending halves, one at a time.

#![allow(unsafe_code)]

mod connections;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::device::{COMPLETIONS_MAX, Completion, Registration, Source, Taken, Use};
use super::packet::{Kind, Packet};
use super::peers::Shared;
use super::rdma_write::{failure, read_word};
use super::rendezvous::Said;
use crate::links::roster::lock;
use crate::links::waits::{FABRIC_BROKEN, FABRIC_READS};
use crate::links::{Link, Lost, Payload, Placement, Sink};
use crate::{BODY_BYTES_MAX, HEADER_BYTES, INLINE_BODY_BYTES_MAX};

/// The maximum number of batches of completions in one poll, so that a poll ends.
const BATCHES_MAX: usize = 8;
/// The number of polls between two that serve the tcp connections while completions arrive. While none arrive, the
/// connections are served more often.
const POLLS_BUSY: u32 = 64;
const POLLS_IDLE: u32 = 8;
/// The maximum number of parts of one body that are read concurrently.
const READS_OF_BODY_MAX: usize = 4;

/// The state that only the polling thread accesses.
pub(super) struct Receive {
    inwards: Vec<Inward>,
    /// Receiving slots that are not posted to the provider.
    unposted: Vec<u32>,
    /// Peers whose frames arrived in this poll.
    touched: Vec<usize>,
    polls: u32,
    /// Whether the provider's descriptor reports what arrives from now on.
    armed: bool,
    /// The peer whose callback runs.
    inside: Option<usize>,
    leaving: usize,
}

/// The receiving half of a pair.
#[derive(Default)]
struct Inward {
    expected: u64,
    early: BTreeMap<u64, Early>,
    /// The low 16 bits of the numbers of frames whose bodies were written here and that were not delivered yet.
    landed: Vec<u16>,
    reading: Option<Reading>,
    room: Option<Box<[u8; INLINE_BODY_BYTES_MAX]>>,
    hello_in: bool,
    hello_sent: bool,
    announced: bool,
    acknowledged: u64,
    wake_up_due: bool,
    word_due: bool,
    /// A frame that arrives over the tcp connection, until its body has arrived.
    detour: Option<(u64, [u8; HEADER_BYTES], Vec<u8>)>,
    /// Since when, and why, the peer is leaving. It is lost when nothing is read from it any more.
    leaving: Option<(u64, Lost)>,
    is_lost: bool,
}

/// A frame that arrived before its turn.
struct Early {
    header: [u8; HEADER_BYTES],
    content: Content,
}

enum Content {
    Here(Vec<u8>),
    Offered { bytes: u64, source: Source, wants_word: bool },
    Written { bytes: u64, place: u64 },
}

/// The frame whose body is being read.
struct Reading {
    header: [u8; HEADER_BYTES],
    pointer: *mut u8,
    bytes: usize,
    is_inline: bool,
    source: Source,
    wants_word: bool,
    asked: usize,
    under_way: usize,
    failed: bool,
    registration: Option<Registration>,
    /// The same body, from a peer that leaves.
    detour: Option<Vec<u8>>,
}

// SAFETY: the pointer is the sink's placement, which may be written from any thread that polls.
unsafe impl Send for Reading {}

impl Receive {
    pub(super) fn new(nodes: usize, receives: u32) -> Receive {
        Receive {
            inwards: (0..nodes).map(|_| Inward::default()).collect(),
            unposted: (0..receives).collect(),
            touched: Vec::new(),
            polls: 0,
            armed: false,
            inside: None,
            leaving: 0,
        }
    }

    fn reads(&self) -> bool {
        self.inwards.iter().any(|inward| inward.reading.is_some())
    }
}

impl Shared {
    /// Ends every pair and the device: after this nothing reads or writes the memory of this node.
    pub(super) fn end(&self, receive: &mut Receive) {
        for peer in &self.peers {
            peer.stage.lose();
            lock(&peer.outward).end(Lost::ClosedHere);
        }
        // SAFETY: the caller holds the receiving side, and no sending half uses the device after its end.
        unsafe { self.device.stop() };
        for inward in &mut receive.inwards {
            (inward.reading, inward.is_lost) = (None, true);
            inward.early.clear();
        }
    }
}

/// One poll: the link, its receiving side, and the sink.
pub(super) struct Poll<'a> {
    pub(super) shared: &'a Shared,
    pub(super) receive: &'a mut Receive,
    pub(super) sink: &'a mut dyn Sink,
}

impl Poll<'_> {
    /// See [`Link::poll`].
    pub(super) fn run(&mut self) -> bool {
        self.shared.hear_nudge();
        if let Some(index) = self.receive.inside.take() {
            let why = "a callback panicked in the middle of a frame".to_owned();
            self.leave(index, Lost::Broken { why });
        }
        let mut came = self.take_completions();
        self.receive.polls = self.receive.polls.wrapping_add(1);
        if self.receive.polls.is_multiple_of(if came { POLLS_BUSY } else { POLLS_IDLE }) {
            came |= self.rendezvous();
        }
        self.retry();
        self.tell();
        if !came {
            self.prepare_to_sleep();
        }
        came
    }

    fn inward(&mut self, index: usize) -> &mut Inward {
        &mut self.receive.inwards[index]
    }

    fn take_completions(&mut self) -> bool {
        let mut came = false;
        let mut completions = [Completion::default(); COMPLETIONS_MAX];
        for _ in 0..BATCHES_MAX {
            let count = match self.shared.device.poll(&mut completions) {
                Ok(count) => count,
                Err(why) => {
                    for index in (0..self.shared.peers.len()).filter(|&index| index != self.shared.node) {
                        self.shared.note_broken(index, why.clone());
                    }
                    0
                }
            };
            if count == 0 {
                break;
            }
            self.receive.armed = false;
            for completion in &completions[..count] {
                came |= self.complete(completion);
            }
        }
        came
    }

    /// Handles the completion of one operation; returns whether it brought something.
    fn complete(&mut self, completion: &Completion) -> bool {
        let (shared, slot) = (self.shared, completion.slot);
        let why = failure(completion);
        match shared.device.use_of(slot) {
            Some(Use::Receive) => {
                if why.is_none() {
                    let bytes = (completion.bytes as usize).min(super::packet::PACKET_BYTES);
                    // SAFETY: the provider returned the slot, and it is posted again only below.
                    let packet = unsafe { shared.device.packet(slot) };
                    self.packet(&packet[..bytes]);
                }
                self.post(slot);
                why.is_none()
            }
            Some(Use::Send) => {
                let (index, is_hello) = shared.owned_by(slot);
                shared.device.give(slot);
                match why {
                    Some(why) => shared.note_broken(index, why),
                    None if is_hello => {
                        self.inward(index).hello_sent = true;
                        self.announce_if_open(index);
                    }
                    None => {}
                }
                false
            }
            Some(Use::Read) => {
                let (index, _) = shared.owned_by(slot);
                shared.device.give(slot);
                shared.peers[index].reads.fetch_sub(1, Ordering::AcqRel);
                self.part_read(index, why);
                true
            }
            Some(Use::Write) => {
                shared.written(slot, why);
                false
            }
            Some(Use::Landed) => {
                self.landed(completion.word);
                true
            }
            None => false,
        }
    }

    fn post(&mut self, slot: u32) {
        if self.shared.device.post(slot) != Ok(Taken::Yes) {
            self.receive.unposted.push(slot);
            self.shared.stall();
        }
    }

    fn packet(&mut self, bytes: &[u8]) {
        let shared = self.shared;
        let refused = || shared.packets_refused.fetch_add(1, Ordering::Relaxed);
        let Some((packet, body)) = Packet::read(bytes) else {
            refused();
            return;
        };
        let index = usize::from(packet.from);
        let Some(peer) = shared.peers.get(index).filter(|peer| peer.cookie == packet.cookie && index != shared.node)
        else {
            // The sender is not a node that got its cookie over the authenticated connection.
            refused();
            return;
        };
        shared.packets_in.fetch_add(1, Ordering::Relaxed);
        peer.seen.fetch_add(1, Ordering::AcqRel);
        peer.has_seen(packet.seen);
        if self.inward(index).is_lost {
            return;
        }
        if packet.delivered > self.inward(index).acknowledged {
            self.inward(index).acknowledged = packet.delivered;
            shared.acknowledged(index, packet.delivered);
        }
        match packet.kind {
            Kind::Hello => {
                self.inward(index).hello_in = true;
                self.announce_if_open(index);
            }
            Kind::Word => {}
            Kind::Frame { sequence, header } => {
                if self.is_next(index, sequence) {
                    self.frame_here(index, &header, body);
                    self.go_on(index);
                } else {
                    self.keep(index, sequence, Early { header, content: Content::Here(body.to_vec()) });
                }
            }
            Kind::Offer { sequence, header, bytes, source, wants_word } => {
                self.keep(index, sequence, Early { header, content: Content::Offered { bytes, source, wants_word } });
                self.go_on(index);
            }
            Kind::Written { sequence, header, bytes, place } => {
                self.keep(index, sequence, Early { header, content: Content::Written { bytes, place } });
                self.go_on(index);
            }
        }
    }

    /// Handles a body that was written here; the packet of its frame may have arrived or not.
    fn landed(&mut self, word: u64) {
        let (index, number) = read_word(word);
        let window = self.shared.window;
        let Some(inward) = self.receive.inwards.get_mut(index).filter(|_| index != self.shared.node) else { return };
        // A frame that arrived another way meanwhile is behind, and its body is ignored.
        let ahead = number.wrapping_sub(inward.expected as u16);
        if !inward.is_lost && u64::from(ahead) < window && !inward.landed.contains(&number) {
            inward.landed.push(number);
            self.go_on(index);
        }
    }

    /// Whether this frame can be delivered now.
    fn is_next(&self, index: usize, sequence: u64) -> bool {
        let inward = &self.receive.inwards[index];
        inward.announced && !inward.is_lost && inward.reading.is_none() && sequence == inward.expected
    }

    /// Keeps a frame whose turn comes later. A duplicate is ignored.
    fn keep(&mut self, index: usize, sequence: u64, early: Early) {
        let window = self.shared.window;
        let inward = self.inward(index);
        if sequence >= inward.expected.saturating_add(window) {
            let why = "it sends more frames than it was given room for".to_owned();
            return self.leave(index, Lost::Broken { why });
        }
        let is_being_read = inward.reading.is_some() && sequence == inward.expected;
        if sequence >= inward.expected && !is_being_read {
            inward.early.entry(sequence).or_insert(early);
        }
    }

    /// Delivers frames whose turn has come.
    fn go_on(&mut self, index: usize) {
        loop {
            let inward = self.inward(index);
            if !inward.announced || inward.is_lost || inward.reading.is_some() {
                return;
            }
            let expected = inward.expected;
            let Some(early) = inward.early.get(&expected) else { return };
            let number = inward.landed.iter().position(|&number| number == expected as u16);
            if number.is_none() && matches!(early.content, Content::Written { .. }) {
                return;
            }
            number.map(|number| inward.landed.swap_remove(number));
            let Some(early) = inward.early.remove(&expected) else { return };
            match early.content {
                Content::Written { bytes, place } => self.frame_written(index, &early.header, bytes, place),
                Content::Here(body) => self.frame_here(index, &early.header, &body),
                Content::Offered { bytes, source, wants_word } => {
                    self.frame_offered(index, early.header, bytes, source, wants_word);
                }
            }
        }
    }

    /// Asks the sink for the place of a frame's body; `None` if the frame was refused.
    fn place(&mut self, index: usize, header: &[u8; HEADER_BYTES], bytes: u64) -> Option<Placement> {
        self.receive.inside = Some(index);
        let placed = self.sink.place(index, header);
        self.receive.inside = None;
        let (placement, expected) = match placed {
            Ok(placement @ Placement::Nothing) => (placement, 0),
            Ok(placement @ Placement::Inline(bytes)) if bytes <= INLINE_BODY_BYTES_MAX => (placement, bytes),
            Ok(placement @ Placement::At { bytes, .. }) if bytes <= BODY_BYTES_MAX => (placement, bytes),
            Ok(Placement::Inline(bytes) | Placement::At { bytes, .. }) => {
                self.refuse(index, format!("its body of {bytes} bytes is longer than any frame may be"));
                return None;
            }
            Err(refused) => {
                self.refuse(index, refused.why.into_owned());
                return None;
            }
        };
        if expected as u64 != bytes {
            self.refuse(index, format!("its body has {bytes} bytes and not {expected}"));
            return None;
        }
        Some(placement)
    }

    fn frame_here(&mut self, index: usize, header: &[u8; HEADER_BYTES], body: &[u8]) {
        match self.place(index, header, body.len() as u64) {
            Some(Placement::At { pointer, bytes }) => {
                if bytes > 0 {
                    // SAFETY: writable for `bytes` bytes by the sink's promise, and the body has as many; it lies in a
                    // packet or a copy of one, which is never a placement.
                    unsafe { pointer.copy_from_nonoverlapping(body.as_ptr(), bytes) };
                }
                self.deliver(index, header, &[], body.len());
            }
            Some(_) => self.deliver(index, header, body, body.len()),
            None => {}
        }
    }

    /// Delivers a frame whose body its sender wrote; the sink decides whether it lies in the right place.
    fn frame_written(&mut self, index: usize, header: &[u8; HEADER_BYTES], bytes: u64, place: u64) {
        let Some(placement) = self.place(index, header, bytes) else { return };
        let written = self.shared.device.at(place, bytes as usize);
        match placement {
            Placement::At { pointer, bytes } if written == Some(pointer) => self.deliver(index, header, &[], bytes),
            _ => self.refuse(index, "its body was written to another place than the one where it belongs".to_owned()),
        }
    }

    fn frame_offered(
        &mut self,
        index: usize,
        header: [u8; HEADER_BYTES],
        bytes: u64,
        source: Source,
        wants_word: bool,
    ) {
        let Some(placement) = self.place(index, &header, bytes) else { return };
        let inward = self.inward(index);
        let (pointer, is_inline) = match placement {
            Placement::At { pointer, .. } => (pointer, false),
            _ => {
                let room = inward.room.get_or_insert_with(|| Box::new([0; INLINE_BODY_BYTES_MAX]));
                (room.as_mut_ptr(), true)
            }
        };
        let bytes = bytes as usize;
        // SAFETY: the placement stays writable until the frame is delivered or the peer lost, which is not before the
        // read is over; the inline buffer lives as long as the peer.
        let registration = match unsafe { self.shared.device.prepare(pointer, bytes) } {
            Ok(registration) => registration,
            Err(why) => return self.leave(index, Lost::Broken { why }),
        };
        self.inward(index).reading = Some(Reading {
            header,
            pointer,
            bytes,
            is_inline,
            source,
            wants_word,
            asked: 0,
            under_way: 0,
            failed: false,
            registration,
            detour: None,
        });
        self.read_on(index);
    }

    /// Requests the missing parts of the body that is being read.
    fn read_on(&mut self, index: usize) {
        let shared = self.shared;
        let Some(there) = shared.peers[index].there.get() else { return };
        let Some(reading) = &mut self.receive.inwards[index].reading else { return };
        while reading.asked < reading.bytes && reading.under_way < READS_OF_BODY_MAX && !reading.failed {
            let Some(slot) = shared.device.take_read() else { return shared.stall() };
            shared.own(slot, index as u32);
            let start = if shared.peers[index].is_broken.load(Ordering::Acquire) { None } else { Some(reading.asked) };
            let taken = match start {
                None => Err("the fabric does not reach it any more".to_owned()),
                Some(start) => {
                    let from = Source { address: reading.source.address + start as u64, key: reading.source.key };
                    let rest = (reading.pointer.wrapping_add(start), reading.bytes - start);
                    shared.peers[index].reads.fetch_add(1, Ordering::AcqRel);
                    // SAFETY: inside the placement, which nothing else uses before the frame is delivered.
                    unsafe { shared.device.read(slot, rest, reading.registration.as_ref(), there.number, from) }
                }
            };
            match taken {
                Ok(bytes) if bytes > 0 => {
                    reading.asked += bytes;
                    reading.under_way += 1;
                    shared.one_sided_reads.fetch_add(1, Ordering::Relaxed);
                }
                other => {
                    shared.device.give(slot);
                    if start.is_some() {
                        shared.peers[index].reads.fetch_sub(1, Ordering::AcqRel);
                    }
                    match other {
                        Ok(_) => shared.stall(),
                        Err(why) => {
                            reading.failed = true;
                            shared.note_broken(index, why);
                        }
                    }
                    break;
                }
            }
        }
        if shared.device.wait_descriptor().is_none() {
            shared.progress_thread.wake();
        }
        self.end_reading(index);
    }

    fn part_read(&mut self, index: usize, error: Option<String>) {
        let Some(reading) = &mut self.receive.inwards[index].reading else { return };
        reading.under_way -= 1;
        if let Some(why) = error {
            reading.failed = true;
            self.shared.note_broken(index, why);
        }
        self.read_on(index);
    }

    /// Delivers the frame whose body was read, if the read is complete.
    fn end_reading(&mut self, index: usize) {
        let inward = self.inward(index);
        let Some(reading) = &inward.reading else { return };
        let is_read = reading.asked == reading.bytes && !reading.failed;
        let detour = if reading.failed { reading.detour.as_ref() } else { None };
        if reading.under_way > 0 || !(is_read || detour.is_some()) {
            return;
        }
        if let Some(body) = detour.filter(|body| body.len() == reading.bytes) {
            // SAFETY: the placement is writable for as many bytes, and no read writes there any more.
            unsafe { reading.pointer.copy_from_nonoverlapping(body.as_ptr(), reading.bytes) };
        }
        let reading = inward.reading.take().expect("looked at just now");
        drop(reading.registration);
        inward.word_due |= reading.wants_word;
        let room = inward.room.take();
        let shown = match &room {
            Some(room) if reading.is_inline => &room[..reading.bytes],
            _ => &[][..],
        };
        self.deliver(index, &reading.header, shown, reading.bytes);
        self.inward(index).room = room;
        self.go_on(index);
    }

    fn deliver(&mut self, index: usize, header: &[u8; HEADER_BYTES], shown: &[u8], bytes: usize) {
        let peer = &self.shared.peers[index];
        let inward = self.inward(index);
        inward.expected += 1;
        peer.delivered.store(inward.expected, Ordering::Release);
        peer.traffic.received(bytes);
        if !self.receive.touched.contains(&index) {
            self.receive.touched.push(index);
        }
        self.receive.inside = Some(index);
        self.sink.deliver(index, header, shown);
        self.receive.inside = None;
    }

    /// Tells peers of deliveries that no other packet reported.
    fn tell(&mut self) {
        while let Some(index) = self.receive.touched.pop() {
            let at_once = std::mem::take(&mut self.inward(index).word_due);
            let delivered = self.receive.inwards[index].expected;
            let mut outward = lock(&self.shared.peers[index].outward);
            outward.note_delivered(delivered, self.shared.window, at_once);
            self.shared.pump(index, &mut outward);
        }
    }

    /// Announces a peer if the path to it is open: its hello has arrived, and the send of this node's has completed.
    fn announce_if_open(&mut self, index: usize) {
        let inward = self.inward(index);
        if inward.hello_in && inward.hello_sent {
            self.announce(index);
        }
    }

    fn announce(&mut self, index: usize) {
        let shared = self.shared;
        let inward = self.inward(index);
        if inward.announced || inward.is_lost {
            return;
        }
        inward.announced = true;
        shared.peers[index].stage.come_up();
        self.receive.inside = Some(index);
        self.sink.connected(index);
        self.receive.inside = None;
        let mut outward = lock(&shared.peers[index].outward);
        outward.start();
        shared.pump(index, &mut outward);
        drop(outward);
        self.go_on(index);
    }

    /// Retries what must be tried again.
    fn retry(&mut self) {
        let shared = self.shared;
        let is_first = !self.receive.unposted.is_empty();
        if is_first || shared.stalled.load(Ordering::Relaxed) {
            shared.stalled.store(false, Ordering::Release);
            for slot in std::mem::take(&mut self.receive.unposted) {
                self.post(slot);
            }
            for index in (0..shared.peers.len()).filter(|&index| index != shared.node) {
                shared.pump(index, &mut lock(&shared.peers[index].outward));
                if self.receive.inwards[index].reading.is_some() {
                    self.read_on(index);
                }
            }
        }
    }

    /// Serves the tcp connections: hellos, wake-ups, frames of peers that leave, ends.
    fn rendezvous(&mut self) -> bool {
        let shared = self.shared;
        let mut came = shared.tcp.poll(self);
        let mut open = false;
        for index in (0..shared.peers.len()).filter(|&index| index != shared.node) {
            if std::mem::take(&mut self.inward(index).wake_up_due) {
                // A peer that wakes this node wants to know what was seen after that.
                came |= self.take_completions();
                let seen = shared.peers[index].seen.load(Ordering::Acquire);
                let said = Said::Seen { packets: seen, delivered: self.receive.inwards[index].expected };
                let _ = shared.tcp.send(index, &said.write(), Payload::Nothing);
            }
            self.look_at_broken(index);
            if self.receive.inwards[index].leaving.is_some() {
                self.bury(index);
            }
            let inward = &self.receive.inwards[index];
            let is_hello_due = !inward.announced && shared.peers[index].there.get().is_some();
            let is_broken = shared.peers[index].is_broken.load(Ordering::Acquire);
            open |= !inward.is_lost && (is_hello_due || is_broken || inward.leaving.is_some());
        }
        open |= shared.stalled.load(Ordering::Acquire);
        shared.restless.store(open, Ordering::Release);
        came
    }

    /// Ends a pair whose fabric stays broken while the tcp connection is up.
    fn look_at_broken(&mut self, index: usize) {
        let peer = &self.shared.peers[index];
        if !peer.is_broken.load(Ordering::Acquire) || self.receive.inwards[index].leaving.is_some() {
            return;
        }
        let broken = lock(&peer.broken).clone();
        if let Some((since, why)) = broken
            && self.shared.now().saturating_sub(since) >= FABRIC_BROKEN.nanoseconds()
        {
            self.leave(index, Lost::Broken { why: format!("libfabric ({}): {why}", self.shared.device.provider()) });
        }
    }

    /// Marks this peer to be lost as soon as no read from it is in flight.
    fn leave(&mut self, index: usize, why: Lost) {
        let now = self.shared.now();
        let inward = self.inward(index);
        if inward.is_lost || inward.leaving.is_some() {
            return;
        }
        inward.leaving = Some((now, why));
        self.receive.leaving += 1;
        self.shared.disquiet();
    }

    /// Reports a leaving peer lost, after the last frame of it that has arrived.
    fn bury(&mut self, index: usize) {
        if let Some(reading) = &mut self.inward(index).reading {
            // A body that the peer has not sent another way will no longer arrive.
            reading.failed |= reading.under_way == 0;
        }
        self.end_reading(index);
        self.go_on(index);
        let now = self.shared.now();
        let inward = self.inward(index);
        let Some((since, why)) = inward.leaving.clone() else { return };
        if let Some(reading) = &inward.reading {
            if reading.under_way > 0 && now.saturating_sub(since) < FABRIC_READS.nanoseconds() {
                return;
            }
            if reading.under_way > 0 {
                return self.end_device();
            }
        }
        self.lose(index, why);
    }

    /// Ends the endpoint because the provider does not return reads: without it nothing can be written where the sink
    /// no longer expects it.
    fn end_device(&mut self) {
        let why = Lost::Broken { why: "libfabric did not give back a read from a node that is gone".to_owned() };
        for peer in &self.shared.peers {
            lock(&peer.outward).end(why.clone());
        }
        // SAFETY: this thread holds the receiving side, and no sending half uses the device after its end.
        unsafe { self.shared.device.stop() };
        for index in (0..self.shared.peers.len()).filter(|&index| index != self.shared.node) {
            self.inward(index).reading = None;
            self.lose(index, why.clone());
        }
    }

    fn refuse(&mut self, index: usize, why: String) {
        self.shared.peers[index].traffic.refused();
        self.lose(index, Lost::FrameRefused { why });
    }

    /// Ends a pair on this side. Nothing is being read from the peer.
    fn lose(&mut self, index: usize, why: Lost) {
        let shared = self.shared;
        let inward = self.inward(index);
        if std::mem::replace(&mut inward.is_lost, true) {
            return;
        }
        inward.early.clear();
        inward.landed.clear();
        (inward.reading, inward.detour) = (None, None);
        if inward.leaving.take().is_some() {
            self.receive.leaving -= 1;
        }
        shared.peers[index].stage.lose();
        lock(&shared.peers[index].outward).end(why.clone());
        // The peer must know it, although the tcp connection stays until one of the two closes its link.
        let _ = shared.tcp.send(index, &Said::Dropped.write(), Payload::Nothing);
        self.sink.lost(index, &why);
    }

    /// Arms the provider's descriptor after a poll that found nothing, or makes some thread poll again.
    fn prepare_to_sleep(&mut self) {
        let device = &self.shared.device;
        if device.wait_descriptor().is_none() {
            if self.receive.reads() || self.shared.is_writing() {
                self.shared.nudge();
            }
            return;
        }
        if self.receive.armed && !self.receive.polls.is_multiple_of(POLLS_IDLE) {
            return;
        }
        self.receive.armed = device.may_sleep();
        if !self.receive.armed {
            self.shared.nudge();
        }
    }
}
