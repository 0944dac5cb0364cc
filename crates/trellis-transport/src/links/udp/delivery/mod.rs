//! Delivery over datagrams that may be lost, doubled, delayed and reordered: the pure part of the udp link.
//!
//! Promised: every frame that is submitted arrives once and whole as long as some datagrams pass in both directions;
//! what is kept for that is bounded by [`WINDOW`]; the same calls with the same times give the same answers.
//!
//! Never done here: sockets, clocks, ciphers, random numbers, page bytes. Time is an argument, and bytes are whatever
//! the caller keeps for a frame (`T` at the sender, `R` at the receiver). A simulator uses it as it is.
//!
//! # How a frame travels
//!
//! A frame is cut into [`Fragment`]s, each of which goes in one datagram together with the header of its frame: the
//! receiver can place any of them, whichever comes first. Fragments of one direction are numbered 0, 1, 2, … for the
//! life of the connection; the number stays with a fragment when it is sent again, and by it the receiver knows what
//! it had before. (The number of the *datagram*, by which it is protected, is another one and is never used twice.)
//!
//! Every datagram says what its sender has received ([`Acknowledgement`]): requests and answers acknowledge each
//! other. A datagram with nothing but that goes only when nothing else went for [`ACKNOWLEDGE_NS`], when the other
//! side says that it waits for it, or when something is missing.
//!
//! # Recovery
//!
//! A fragment is sent again when three later transmissions were acknowledged (fewer where fewer
//! are under way), or when it was not for a time estimated
//! from round trips (RFC 6298: smoothed mean and deviation, no samples from fragments sent twice, doubled each time),
//! at least [`RESEND_NS_MIN`]. A resend that was not necessary changes nothing: the receiver drops what it had.
//!
//! # Not too much
//!
//! At most a congestion window of fragments is on its way (RFC 5681: slow start, then one more per round trip; halved
//! once per round trip with losses; two after a time-out), never more than the receiver has room for. Bursts longer
//! than [`BURST`] are spread over the round trip.
//!
//! # One datagram for several receivers
//!
//! A frame for several receivers may leave in one datagram for all of them ([`Sender::multicast`]). In each direction
//! its fragments have the numbers that they would have had, so that a receiver puts them where they belong whichever
//! way they came, and only the first transmission is common: what got lost is sent again to who misses it.
//!
//! It is reliable by negative acknowledgement. A receiver that got such a fragment owes no datagram for it: that it is
//! here is said by what goes anyway, at the latest after [`MULTICAST_ACKNOWLEDGE_NS`] or [`UNACKNOWLEDGED_MAX`] of
//! them, or when the sender asks. Who misses something says so at once: by a hole before a later number, or, where
//! nothing later comes, because the sender's [`Heartbeats`] tell how many fragments there were
//! ([`Receiver::told`], [`Acknowledgement::expected`]). Only a receiver that is silent for [`MULTICAST_RESEND_NS`] is
//! sent to again unasked.

mod multicast;
mod receiver;
mod sender;

pub use multicast::{Attempts, Heartbeats};
pub use receiver::{Arrival, Receiver};
pub use sender::{Inconsistent, Plan, Sender};

use std::ops::Range;

/// Nanoseconds of a monotonic clock that the caller chose; only differences are used.
pub type Nanoseconds = u64;

/// Fragments beyond the first one missing that a receiver takes, and so the most that are under way.
pub const WINDOW: u64 = 256;
/// How long an acknowledgement waits for a datagram that goes anyway. Well below the shortest time after which the
/// other side would send again.
pub const ACKNOWLEDGE_NS: Nanoseconds = 2_000_000;
/// Fragments that are left unacknowledged at most, whatever else goes.
pub const UNACKNOWLEDGED_MAX: u32 = 16;
/// The shortest and the longest time after which a fragment is sent again without a sign of its loss.
pub const RESEND_NS_MIN: Nanoseconds = 5_000_000;
/// See [`RESEND_NS_MIN`].
pub const RESEND_NS_MAX: Nanoseconds = 500_000_000;
/// Before anything was measured.
pub const RESEND_NS_FIRST: Nanoseconds = 20_000_000;
/// After so long without a word the other side is asked for one.
pub const PROBE_NS: Nanoseconds = 500_000_000;
/// Datagrams that are never held back for pacing.
pub const BURST: u64 = 16;
/// Congestion window at the start, in fragments.
pub const CONGESTION_WINDOW_FIRST: u64 = 10;
/// And the smallest.
pub const CONGESTION_WINDOW_MIN: u64 = 2;
/// How long the acknowledgement of a fragment that came by multicast waits for a datagram that goes anyway.
pub const MULTICAST_ACKNOWLEDGE_NS: Nanoseconds = 40_000_000;
/// A fragment that went by multicast is sent again after so long without a sign, or later if the path is slower.
pub const MULTICAST_RESEND_NS: Nanoseconds = 250_000_000;
/// From a multicast to the first word of how much there was; each further one waits four times as long.
pub const HEARTBEAT_NS_FIRST: Nanoseconds = 5_000_000;
/// And the longest wait.
pub const HEARTBEAT_NS_MAX: Nanoseconds = 320_000_000;
/// Room that a receiver is taken to have until it says so.
pub const ROOM_BYTES_FIRST: u32 = 128 << 10;

const WORDS: usize = WINDOW as usize / 64;

/// What one side has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The first fragment that is missing: all before it are here.
    pub cumulative: u64,
    /// Bit `i` says that fragment `cumulative + i` is here; bit 0 is clear.
    pub beyond: [u64; WORDS],
    /// Bytes that may be under way to this side, as [`cost`] counts them.
    pub room_bytes: u32,
    /// So many fragments from `cumulative` on are known to have been sent, and those of them that are not marked are
    /// missing; 0 when that is not known.
    pub expected: u32,
}

impl Acknowledgement {
    /// Whether something is missing while later things are here.
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

/// Where a stretch of a frame's body belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Its number in this direction of the connection.
    pub sequence: u64,
    /// Which fragment of its frame it is, from 0.
    pub index: u32,
    /// Bytes of the whole body.
    pub body_bytes: u32,
    /// Bytes of every fragment of this frame but the last.
    pub fragment_bytes: u32,
}

impl Fragment {
    /// The number of the first fragment of the same frame; `None` if there cannot be one.
    #[inline]
    pub fn frame(&self) -> Option<u64> {
        self.sequence.checked_sub(u64::from(self.index))
    }

    /// How many fragments the frame has; a frame without a body has one.
    #[inline]
    pub fn count(&self) -> u32 {
        if self.body_bytes <= self.fragment_bytes { 1 } else { self.body_bytes.div_ceil(self.fragment_bytes.max(1)) }
    }

    /// The bytes of the body that it brings; empty where the numbers make no sense.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        let (body, step) = (self.body_bytes as usize, self.fragment_bytes as usize);
        let start = (self.index as usize).saturating_mul(step).min(body);
        start..start.saturating_add(step).min(body)
    }
}

/// What a datagram with so many bytes of payload costs against the room of its receiver: sockets charge for their
/// own structures and round short buffers up to a power of two.
#[inline]
pub fn cost(bytes: usize) -> u32 {
    (bytes + bytes.min(8192) + 1024) as u32
}
