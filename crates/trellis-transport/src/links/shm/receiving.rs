//! The receiving half of one pair: from slots of a ring to frames in their places.
//!
//! Promises: the receiver sees a frame once, with a header that the peer can no longer change. A body in the peer's
//! shared memory is copied directly from there to the place that the receiver named. Nothing is allocated for a frame.
//! Whatever the peer wrote, only the rings, its shared memory and the named places are accessed.
//!
//! It must never wait, wake a thread, or send.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::channel::Channel;
use super::ring::{Entry, Kind, Reader};
use crate::links::{Placement, Sink};
use crate::{BODY_BYTES_MAX, HEADER_BYTES, INLINE_BODY_BYTES_MAX};

/// Maximum slots, and bytes of bodies, for one peer in one poll, so that a fast peer does not starve the others.
const SLOTS_PER_POLL_MAX: usize = 64;
const BYTES_PER_POLL_MAX: usize = 1 << 20;

/// The receiving half. All access is under its lock.
pub(super) struct Receiving {
    peer: usize,
    /// Whether the sink was told that the peer is up.
    pub(super) announced: bool,
    /// Whether the sink was told that the peer is gone.
    pub(super) reported: bool,
    incoming: Option<Incoming>,
}

struct Incoming {
    channel: Arc<Channel>,
    reader: Reader,
    body: Option<Body>,
    inline: Box<[u8; INLINE_BODY_BYTES_MAX]>,
}

/// A body that is being received.
struct Body {
    header: [u8; HEADER_BYTES],
    pointer: *mut u8,
    bytes: usize,
    is_inline: bool,
    received: usize,
}

// SAFETY: the pointer is written only under the lock of the receiving half; the sink promised that nothing else uses
// these bytes until the frame is delivered.
unsafe impl Send for Body {}

/// The result of one [`Receiving::receive`].
#[derive(Debug, Default)]
pub(super) struct Harvest {
    /// Whether anything arrived.
    pub(super) came: bool,
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// The number of the next slot.
    pub(super) next: u64,
    /// Whether more may have arrived.
    pub(super) is_cut: bool,
    /// Whether more has arrived that must not be used, because its sender left.
    pub(super) is_abandoned: bool,
    /// The error in what arrived.
    pub(super) violation: Option<String>,
}

impl Receiving {
    pub(super) fn new(peer: usize) -> Receiving {
        Receiving { peer, announced: false, reported: false, incoming: None }
    }

    /// Receives through shared memory from now on.
    pub(super) fn take_ring(&mut self, channel: Arc<Channel>) {
        assert!(self.incoming.is_none(), "it is decided once how a pair's frames travel");
        let reader = Reader::new(channel.incoming);
        self.incoming = Some(Incoming { channel, reader, body: None, inline: Box::new([0; INLINE_BODY_BYTES_MAX]) });
    }

    /// Ends receiving.
    pub(super) fn end(&mut self) {
        self.incoming = None;
    }

    /// Whether the last frame has arrived only in part.
    pub(super) fn is_in_a_frame(&self) -> bool {
        self.incoming.as_ref().is_some_and(|incoming| incoming.body.is_some())
    }

    /// Takes what has arrived, within the bounds of one poll.
    #[inline]
    pub(super) fn receive(&mut self, sink: &mut dyn Sink) -> Harvest {
        let mut harvest = Harvest::default();
        let Some(incoming) = &mut self.incoming else { return harvest };
        let mut bytes = 0;
        for slots in 0.. {
            if slots == SLOTS_PER_POLL_MAX || bytes >= BYTES_PER_POLL_MAX {
                harvest.is_cut = true;
                break;
            }
            let taken = match incoming.reader.read() {
                Ok(None) => break,
                Ok(Some(_)) if incoming.channel.incoming.is_abandoned() => {
                    harvest.is_abandoned = true;
                    break;
                }
                Ok(Some(entry)) => {
                    harvest.came = true;
                    bytes += if entry.kind == Kind::Shared { entry.bytes } else { entry.here };
                    incoming.accept(self.peer, &entry, sink, &mut harvest)
                }
                Err(why) => Err(why.to_owned()),
            };
            if let Err(why) = taken {
                harvest.violation = Some(why);
                break;
            }
        }
        harvest.next = incoming.reader.next();
        harvest
    }
}

impl Incoming {
    fn accept(&mut self, peer: usize, entry: &Entry, sink: &mut dyn Sink, harvest: &mut Harvest) -> Result<(), String> {
        if entry.kind != Kind::More {
            if self.body.is_some() {
                return Err("it began a frame within a frame".to_owned());
            }
            self.body = Some(self.begin(peer, entry, sink)?);
        }
        let body = self.body.as_mut().ok_or("it went on with a frame that it had not begun")?;
        let place = body.pointer.wrapping_add(body.received);
        if entry.kind == Kind::Shared {
            let theirs = self.channel.theirs.as_ref().ok_or("it names memory that it did not share")?;
            let from = usize::try_from(entry.offset).ok();
            let from = from.filter(|from| from.checked_add(body.bytes).is_some_and(|end| end <= theirs.bytes()));
            let from = from.ok_or("it names bytes outside of the memory that it shared")?;
            // SAFETY: the range lies in the peer's memory, which is mapped readable as long as the channel lives. The
            // place is valid by the sink's promise, or is our own buffer. The two never overlap: no place lies in this
            // mapping.
            unsafe { place.copy_from_nonoverlapping(theirs.start().as_ptr().add(from), body.bytes) };
            body.received = body.bytes;
        } else {
            if entry.here > body.bytes - body.received {
                return Err("it wrote more bytes of a body than it said".to_owned());
            }
            if entry.here == 0 && body.bytes > body.received {
                return Err("it wrote a piece of a body without a byte".to_owned());
            }
            // SAFETY: `received + here` is at most `bytes`, which are writable by the sink's promise, or in our buffer.
            unsafe { self.reader.copy_to(place) };
            body.received += entry.here;
        }
        self.reader.release();
        if let Some(body) = self.body.take_if(|body| body.received == body.bytes) {
            harvest.frames += 1;
            harvest.bytes += (HEADER_BYTES + body.bytes) as u64;
            let shown: &[u8] = if body.is_inline { &self.inline[..body.bytes] } else { &[] };
            sink.deliver(peer, &body.header, shown);
        }
        Ok(())
    }

    /// Asks for the place of a frame's body. A stream cannot carry a body of another length than the receiver expects;
    /// a ring could, so here that is an error.
    fn begin(&mut self, peer: usize, entry: &Entry, sink: &mut dyn Sink) -> Result<Body, String> {
        let placement = sink.place(peer, &entry.header).map_err(|refused| refused.why.into_owned())?;
        let (pointer, bytes, is_inline) = match placement {
            Placement::Nothing => (self.inline.as_mut_ptr(), 0, false),
            Placement::Inline(bytes) if bytes <= INLINE_BODY_BYTES_MAX => (self.inline.as_mut_ptr(), bytes, true),
            Placement::At { pointer, bytes } if bytes <= BODY_BYTES_MAX => (pointer, bytes, false),
            Placement::Inline(bytes) | Placement::At { bytes, .. } => {
                return Err(format!("its body of {bytes} bytes is longer than any frame may be"));
            }
        };
        if entry.bytes != bytes {
            return Err(format!("its body has {} bytes and not {bytes}", entry.bytes));
        }
        Ok(Body { header: entry.header, pointer, bytes, is_inline, received: 0 })
    }
}
