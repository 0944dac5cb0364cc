//! Reliable delivery over datagrams that may be lost, duplicated, delayed and reordered; pure code of the udp link.
//!
//! Promises: every frame that is submitted arrives once and whole as long as some datagrams pass in both directions.
//! [`WINDOW`] bounds what is kept for that. The same calls with the same times give the same results.
//!
//! It must never use sockets, clocks, ciphers, random numbers or page bytes. Time is an argument, and bytes are
//! whatever the caller keeps for a frame (`T` at the sender, `R` at the receiver). A simulator can use it unchanged.
//!
//! # How a frame travels
//!
//! A frame is split into [`Fragment`]s. Each is sent in one datagram together with the header of its frame, so the
//! receiver can place any of them, whichever arrives first. Fragments of one direction are numbered 0, 1, 2, … for the
//! life of the connection. A fragment keeps its number when it is sent again, and the receiver recognises duplicates
//! by it. (The number of the *datagram*, by which it is protected, is separate and never used twice.)
//!
//! Every datagram states what its sender has received ([`Acknowledgement`]): requests and answers acknowledge each
//! other. A datagram with only an acknowledgement is sent only if nothing else was sent for [`ACKNOWLEDGE_NS`], if the
//! other side reports that it waits for it, or if something is missing.
//!
//! # Recovery
//!
//! A fragment is sent again if three later transmissions were acknowledged (fewer if fewer are in flight), or if it
//! was not acknowledged within a time estimated from round trips (RFC 6298: smoothed mean and deviation, no samples
//! from fragments sent twice, doubled each time), at least [`RESEND_NS_MIN`]. An unnecessary resend is harmless: the
//! receiver drops duplicates.
//!
//! # Congestion control
//!
//! At most a congestion window of fragments is in flight (RFC 5681: slow start, then one more per round trip; halved
//! once per round trip with losses; two after a time-out), never more than the receiver has room for. Bursts longer
//! than [`BURST`] are spread over the round trip.
//!
//! # One datagram for several receivers
//!
//! A frame for several receivers may be sent in one datagram for all of them ([`Sender::multicast`]). In each
//! direction its fragments have the numbers that they would have had otherwise, so that a receiver places them
//! whichever way they arrived. Only the first transmission is common: what was lost is sent again to the receiver that
//! misses it.
//!
//! Multicasts are reliable by negative acknowledgement. A receiver of such a fragment owes no datagram for it: other
//! datagrams acknowledge it, at the latest after [`MULTICAST_ACKNOWLEDGE_NS`] or [`UNACKNOWLEDGED_MAX`] of them, or
//! when the sender asks. A receiver that misses something reports it at once. It learns of a loss by a gap before a
//! later number, or, if nothing later arrives, from the sender's [`Heartbeats`], which tell how many fragments there
//! were ([`Receiver::note_report`], [`Acknowledgement::expected`]). A fragment is sent again unasked only to a receiver that
//! is silent for [`MULTICAST_RESEND_NS`].

mod multicast;
mod receiver;
mod sender;

pub use multicast::{Attempts, Heartbeats};
pub use receiver::{Arrival, Receiver};
pub use sender::{Inconsistent, Plan, Sender};

use std::ops::Range;

/// Nanoseconds of a monotonic clock that the caller chose; only differences are meaningful.
pub type Nanoseconds = u64;

/// The number of fragments, from the first missing one on, that a receiver takes. So it is the maximum in flight.
pub const WINDOW: u64 = 256;
/// How long an acknowledgement waits to be piggybacked: much less than the shortest time after which the other side
/// would send again.
pub const ACKNOWLEDGE_NS: Nanoseconds = 2_000_000;
/// The maximum number of fragments left unacknowledged, whatever else is sent.
pub const UNACKNOWLEDGED_MAX: u32 = 16;
/// The shortest time after which a fragment is sent again without a sign of its loss.
pub const RESEND_NS_MIN: Nanoseconds = 5_000_000;
/// The longest such time; see [`RESEND_NS_MIN`].
pub const RESEND_NS_MAX: Nanoseconds = 500_000_000;
/// The same time before anything was measured.
pub const RESEND_NS_FIRST: Nanoseconds = 20_000_000;
/// The silence after which the other side is asked for a sign of life.
pub const PROBE_NS: Nanoseconds = 500_000_000;
/// The maximum number of datagrams in flight that are not paced.
pub const BURST: u64 = 16;
/// Congestion window at the start, in fragments.
pub const CONGESTION_WINDOW_FIRST: u64 = 10;
/// The smallest congestion window, in fragments.
pub const CONGESTION_WINDOW_MIN: u64 = 2;
/// How long the acknowledgement of a fragment that arrived by multicast waits to be piggybacked.
pub const MULTICAST_ACKNOWLEDGE_NS: Nanoseconds = 40_000_000;
/// The time without a sign after which a fragment that was sent by multicast is sent again, or later if the path is
/// slower.
pub const MULTICAST_RESEND_NS: Nanoseconds = 250_000_000;
/// The time from a multicast to the first heartbeat; each further one waits four times as long.
pub const HEARTBEAT_NS_FIRST: Nanoseconds = 5_000_000;
/// The longest wait for a heartbeat.
pub const HEARTBEAT_NS_MAX: Nanoseconds = 320_000_000;
/// The room that a receiver is assumed to have until it reports it.
pub const ROOM_BYTES_FIRST: u32 = 128 << 10;

const WORDS: usize = WINDOW as usize / 64;

/// What one side has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The first fragment that is missing: all before it have arrived.
    pub cumulative: u64,
    /// Bit `i` is set if fragment `cumulative + i` has arrived; bit 0 is clear.
    pub beyond: [u64; WORDS],
    /// Bytes that may be in flight to this side, as [`cost`] counts them.
    pub room_bytes: u32,
    /// The number of fragments from `cumulative` on that are known to have been sent; 0 if that is not known. Fragments
    /// that are not marked are missing.
    pub expected: u32,
}

impl Acknowledgement {
    /// Whether something is missing while later fragments have arrived.
    #[inline]
    pub fn has_gap(&self) -> bool {
        self.beyond != [0; WORDS]
    }

    /// Whether something is known to be missing.
    #[inline]
    pub fn is_negative(&self) -> bool {
        self.expected > 0 || self.has_gap()
    }
}

/// The place of a part of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Its number in this direction of the connection.
    pub sequence: u64,
    /// Which fragment of its frame it is, from 0.
    pub index: u32,
    /// The length of the whole body in bytes.
    pub body_bytes: u32,
    /// The length of every fragment of this frame except the last, in bytes.
    pub fragment_bytes: u32,
}

impl Fragment {
    /// The number of the first fragment of the same frame; `None` if there cannot be one.
    #[inline]
    pub fn frame(&self) -> Option<u64> {
        self.sequence.checked_sub(u64::from(self.index))
    }

    /// The number of fragments of the frame. A frame without a body has one.
    #[inline]
    pub fn count(&self) -> u32 {
        if self.body_bytes <= self.fragment_bytes { 1 } else { self.body_bytes.div_ceil(self.fragment_bytes.max(1)) }
    }

    /// The bytes of the body that it carries; empty if the numbers are inconsistent.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        let (body, step) = (self.body_bytes as usize, self.fragment_bytes as usize);
        let start = (self.index as usize).saturating_mul(step).min(body);
        start..start.saturating_add(step).min(body)
    }
}

/// What a datagram with `bytes` bytes of payload counts against the room of its receiver. Sockets account for their own
/// structures and round short buffers up to a power of two.
#[inline]
pub fn cost(bytes: usize) -> u32 {
    (bytes + bytes.min(8192) + 1024) as u32
}
