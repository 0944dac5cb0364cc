//! The receiving half of one peer: from datagrams to frames in their places.
//!
//! Promises: only what is authentic and new is shown to the receiver or written anywhere. A fragment is copied to the
//! place that the receiver named when its frame began. A frame is delivered once, when it is complete. Nothing is
//! allocated for a frame that arrives in one datagram.
//!
//! It must never wait, send, or take the lock of the sending half.
//!
//! A datagram is received into a buffer and copied to its place from there. It cannot be received in place: its place,
//! and whether it may be written at all, is known only after it was opened.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::datagram::{Content, Reader};
use super::delivery::{Acknowledgement, Arrival, Fragment, Inconsistent, Receiver};
use super::multicast_datagram as multicast;
use super::sockets::{self, DATAGRAM_BYTES_MAX, Wire};
use crate::links::descriptors::Descriptor;
use crate::links::roster::Harvest;
use crate::links::tcp::sockets::{Received, receive};
use crate::links::{Lost, Placement, Sink};
use crate::{BODY_BYTES_MAX, HEADER_BYTES, INLINE_BODY_BYTES_MAX};

/// Bytes of a third message of the handshake on the wire.
pub(super) const CONFIRMATION_DATAGRAM_BYTES: usize = 24;
/// The first bytes of handshake messages.
pub(super) const HANDSHAKE_MAGIC: [u8; 7] = *b"trellis";

/// The receiving half. All access is under its lock.
pub(super) struct Input {
    peer: usize,
    connection: Option<Connection>,
    announced: bool,
    /// Why the peer is lost; the thread that detects it sets this. It is reported to the sink once.
    pub(super) loss: Option<Lost>,
    pub(super) loss_reported: bool,
}

/// The result of one receive call.
pub(super) enum Step {
    Nothing,
    /// The kernel reported that nothing listens at the peer's address.
    NobodyThere,
    Failed(Lost),
    /// The datagram was dropped: it is not from the peer, was changed, or was received before.
    Foreign,
    /// A late or repeated message of the handshake was dropped.
    Handshake,
    /// The peer repeats the last message of the handshake: it has not heard from this node yet.
    Confirmation,
    Datagram(Content, Range<usize>),
}

/// The result of one receive call for the peer's multicasts.
pub(super) enum Overheard {
    Nothing,
    /// The datagram was dropped: it is not one of the peer's multicasts, was changed, or was received before.
    Foreign,
    Datagram(multicast::MulticastContent, Range<usize>),
}

struct Connection {
    wire: Arc<Wire>,
    reader: Reader,
    receiver: Receiver<Place>,
    room_bytes: u32,
    staging: Box<[u8; DATAGRAM_BYTES_MAX]>,
    /// The message that established this connection, if the peer dialled.
    confirmation: Option<[u8; CONFIRMATION_DATAGRAM_BYTES]>,
    /// The socket for the peer's multicasts.
    multicast: Option<(Descriptor, multicast::Reader)>,
    /// Buffers of inline bodies that arrive in several datagrams.
    spare: Vec<Box<[u8; INLINE_BODY_BYTES_MAX]>>,
}

/// The place of a frame that arrives in several datagrams.
struct Place {
    header: [u8; HEADER_BYTES],
    pointer: *mut u8,
    bytes: usize,
    inline: Option<Box<[u8; INLINE_BODY_BYTES_MAX]>>,
}

// SAFETY: the pointer is written only under the lock of the receiving half; the sink promised that nothing else uses
// these bytes until the frame is delivered.
unsafe impl Send for Place {}

impl Input {
    pub(super) fn new(peer: usize) -> Input {
        Input { peer, connection: None, announced: false, loss: None, loss_reported: false }
    }

    /// Receives frames from now on, because the connection is up.
    pub(super) fn start(
        &mut self,
        wire: Arc<Wire>,
        reader: Reader,
        confirmation: Option<[u8; CONFIRMATION_DATAGRAM_BYTES]>,
    ) {
        assert!(self.connection.is_none() && !self.loss_reported, "a peer connects once");
        let room_bytes = sockets::room_bytes(&wire.socket);
        let staging = vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice().try_into().expect("as long as was asked for");
        let (receiver, spare) = (Receiver::default(), Vec::new());
        let multicast = None;
        self.connection =
            Some(Connection { wire, reader, receiver, room_bytes, staging, confirmation, multicast, spare });
    }

    /// Ends receiving. Returns the sockets that must be removed from readiness.
    pub(super) fn end(&mut self) -> Option<(Arc<Wire>, Option<Descriptor>)> {
        self.connection.take().map(|connection| (connection.wire, connection.multicast.map(|(socket, _)| socket)))
    }

    /// This machine's address on the connection to the peer; `None` when this node listens to the peer's multicasts
    /// already.
    pub(super) fn may_listen(&self) -> Option<std::net::Ipv4Addr> {
        let connection = self.connection.as_ref().filter(|connection| connection.multicast.is_none())?;
        sockets::local_v4(&connection.wire.socket)
    }

    /// Receives the peer's multicasts from now on.
    pub(super) fn listen(&mut self, socket: Descriptor, reader: multicast::Reader) {
        if let Some(connection) = &mut self.connection {
            connection.multicast = Some((socket, reader));
        }
    }

    /// Receives one multicast and opens it.
    pub(super) fn overhear(&mut self) -> Overheard {
        let Some(Connection { multicast: Some((socket, reader)), staging, .. }) = &mut self.connection else {
            return Overheard::Nothing;
        };
        let count = match receive(socket, &mut staging[..]) {
            Received::Bytes(count) => count,
            Received::End => return Overheard::Foreign,
            // A broken membership looks like silence, which the sender notices.
            Received::Nothing | Received::Failed(_) => return Overheard::Nothing,
        };
        match reader.read(&mut staging[..count]) {
            Ok((heard, range)) => Overheard::Datagram(heard, range),
            Err(_) => Overheard::Foreign,
        }
    }

    /// The whole number of a fragment whose low half is known.
    pub(super) fn widen(&self, low: u32) -> u64 {
        self.connection.as_ref().map_or(0, |connection| connection.receiver.widen(low))
    }

    /// Notes the peer's report of how many fragments it sent in all.
    pub(super) fn note_report(&mut self, count: u64) -> Result<(), Inconsistent> {
        self.connection.as_mut().map_or(Ok(()), |connection| connection.receiver.note_report(count))
    }

    /// Tells the sink, once, that the peer is up.
    #[inline]
    pub(super) fn announce(&mut self, sink: &mut dyn Sink) {
        if !self.announced && self.connection.is_some() {
            self.announced = true;
            sink.connected(self.peer);
        }
    }

    /// Receives one datagram and opens it.
    #[inline]
    pub(super) fn receive(&mut self) -> Step {
        let Some(connection) = &mut self.connection else { return Step::Nothing };
        let count = match connection.wire.receive(&mut connection.staging[..]) {
            Received::Bytes(count) => count,
            Received::Nothing => return Step::Nothing,
            // An empty datagram.
            Received::End => return Step::Foreign,
            Received::Failed(error) if sockets::is_refusal(&error) => return Step::NobodyThere,
            Received::Failed(error) => return Step::Failed(Lost::Broken { why: error.to_string() }),
        };
        let datagram = &mut connection.staging[..count];
        if datagram.starts_with(&HANDSHAKE_MAGIC) {
            let known = connection.confirmation.is_some_and(|known| known == *datagram);
            return if known { Step::Confirmation } else { Step::Handshake };
        }
        match connection.reader.read(datagram) {
            Ok((content, range)) => Step::Datagram(content, range),
            Err(_) => Step::Foreign,
        }
    }

    /// Notes that a fragment arrived and returns its kind.
    #[inline]
    pub(super) fn accept(&mut self, fragment: &Fragment, bytes: usize) -> Arrival {
        let Some(connection) = &mut self.connection else { return Arrival::OutOfReach };
        connection.receiver.accept(fragment, bytes)
    }

    /// What has arrived by now.
    #[inline]
    pub(super) fn acknowledgement(&self) -> Acknowledgement {
        let Some(connection) = &self.connection else { return Acknowledgement::default() };
        connection.receiver.acknowledgement(connection.room_bytes)
    }

    /// Whether all of the `count` fragments arrived that a peer sent before it left.
    pub(super) fn has_all(&self, count: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.receiver.has_all(count))
    }

    /// Puts a fragment in its place, and delivers its frame if that completed it; returns whether it did.
    #[inline]
    pub(super) fn take(
        &mut self,
        fragment: &Fragment,
        header: &[u8; HEADER_BYTES],
        arrival: Arrival,
        range: Range<usize>,
        sink: &mut dyn Sink,
        harvest: &mut Harvest,
    ) -> Result<bool, Lost> {
        let peer = self.peer;
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let refuse = |why: &str| Err(Lost::FrameRefused { why: why.to_owned() });
        match arrival {
            Arrival::Duplicate | Arrival::OutOfReach => Ok(false),
            Arrival::Inconsistent => {
                harvest.refused = true;
                refuse("its fragments contradict each other")
            }
            Arrival::Whole => {
                let placement = place(peer, header, fragment.body_bytes as usize, sink, harvest)?;
                let body = &connection.staging[range];
                let shown = match placement {
                    Placement::At { pointer, .. } => {
                        // SAFETY: the sink said that so many bytes may be written there, and nothing else uses them.
                        unsafe { pointer.copy_from_nonoverlapping(body.as_ptr(), body.len()) };
                        &[]
                    }
                    Placement::Inline(_) | Placement::Nothing => body,
                };
                harvest.count(body.len());
                sink.deliver(peer, header, shown);
                Ok(true)
            }
            Arrival::First => {
                let placement = place(peer, header, fragment.body_bytes as usize, sink, harvest)?;
                let place = connection.make_place(header, placement, fragment.body_bytes as usize);
                place.put(fragment, &connection.staging[range]);
                connection.receiver.open(fragment, place);
                harvest.came = true;
                Ok(false)
            }
            Arrival::Later { slot } => {
                let Connection { receiver, staging, .. } = connection;
                let place = receiver.place(slot);
                if place.header != *header {
                    harvest.refused = true;
                    return refuse("its fragments contradict each other");
                }
                place.put(fragment, &staging[range]);
                harvest.came = true;
                let Some(place) = receiver.finish(slot) else { return Ok(false) };
                harvest.count(place.bytes);
                let shown = place.inline.as_ref().map_or(&[][..], |inline| &inline[..place.bytes]);
                sink.deliver(peer, &place.header, shown);
                connection.spare.extend(place.inline);
                Ok(true)
            }
        }
    }
}

impl Connection {
    fn make_place(&mut self, header: &[u8; HEADER_BYTES], placement: Placement, bytes: usize) -> Place {
        let mut inline = None;
        let pointer = match placement {
            Placement::At { pointer, .. } => pointer,
            Placement::Inline(_) | Placement::Nothing => {
                let spare = self.spare.pop().unwrap_or_else(|| Box::new([0; INLINE_BODY_BYTES_MAX]));
                inline.insert(spare).as_mut_ptr()
            }
        };
        Place { header: *header, pointer, bytes, inline }
    }
}

impl Place {
    fn put(&self, fragment: &Fragment, bytes: &[u8]) {
        let range = fragment.range();
        assert!(range.end <= self.bytes && range.len() == bytes.len(), "checked when the fragment was accepted");
        // SAFETY: within the bytes that the sink gave, or the buffer of this connection, which is as long; nothing else
        // uses them.
        unsafe { self.pointer.add(range.start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Asks for the place of the body, and checks that it fits there exactly.
#[inline]
fn place(
    peer: usize,
    header: &[u8; HEADER_BYTES],
    body_bytes: usize,
    sink: &mut dyn Sink,
    harvest: &mut Harvest,
) -> Result<Placement, Lost> {
    let placement = sink.place(peer, header).map_err(|refused| {
        harvest.refused = true;
        Lost::FrameRefused { why: refused.why.into_owned() }
    })?;
    let (bytes, bytes_max) = match placement {
        Placement::Nothing => (0, 0),
        Placement::Inline(bytes) => (bytes, INLINE_BODY_BYTES_MAX),
        Placement::At { bytes, .. } => (bytes, BODY_BYTES_MAX),
    };
    if bytes > bytes_max {
        harvest.refused = true;
        return Err(Lost::FrameRefused { why: format!("its body of {bytes} bytes is longer than any frame may be") });
    }
    if bytes != body_bytes {
        harvest.refused = true;
        return Err(Lost::FrameRefused { why: format!("its body has {body_bytes} bytes and its header says {bytes}") });
    }
    Ok(placement)
}
