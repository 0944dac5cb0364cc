//! Which keys of a region coherence uses.
//!
//! Promises: the numbers here are used by nobody else; they are part of what regions in stores look like and must never
//! change their meaning.

use trellis_store::{Change, Expect, Key, Kind, Operation};

/// The number, among keys of the kind `Header`, of what is pending. 0 is the header itself.
const PENDING: u64 = 1;
/// How many bits of a chunk's number count the chunks of one member.
const CHUNK_BITS: u32 = 40;
/// The region's log.
pub(crate) fn log(region: u32) -> Key {
    Key::new(region, Kind::Log, 0)
}

/// What was committed and is not in the pages yet.
pub(crate) fn pending(region: u32) -> Key {
    Key::new(region, Kind::Header, PENDING)
}

/// A staged chunk.
pub(crate) fn chunk(region: u32, number: u64) -> Key {
    Key::new(region, Kind::Staged, number)
}

/// The number of a member's chunk.
pub(crate) fn chunk_number(member: u64, count: u64) -> u64 {
    member << CHUNK_BITS | count & ((1 << CHUNK_BITS) - 1)
}

/// Whose chunk has this number.
pub(crate) fn member_of_chunk(number: u64) -> u64 {
    number >> CHUNK_BITS
}

/// Refuses the call while something is pending, and changes nothing.
pub(crate) fn nothing_pending(region: u32) -> Operation {
    Operation::CompareAndSwap { key: pending(region), expect: Expect::Absent, change: Change::Delete }
}
