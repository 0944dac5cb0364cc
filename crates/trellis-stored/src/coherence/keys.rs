//! The keys of a region that coherence uses.
//!
//! Promises: no other code uses these numbers. They are part of the format of regions in stores and must never change
//! their meaning.

use trellis_store::{Change, Expect, Key, Kind, Operation};

/// The number of the pending release among keys of the kind `Header`; 0 is the header itself.
const PENDING: u64 = 1;
/// The number of bits of a redo record's number that count the redo records of one member.
const RECORD_BITS: u32 = 40;
/// The region's log.
pub(crate) fn log(region: u32) -> Key {
    Key::new(region, Kind::Log, 0)
}

/// The release that was committed but is not in the pages yet.
pub(crate) fn pending(region: u32) -> Key {
    Key::new(region, Kind::Header, PENDING)
}

/// A staged redo record.
pub(crate) fn redo_record(region: u32, number: u64) -> Key {
    Key::new(region, Kind::Staged, number)
}

/// The number of a member's redo record.
pub(crate) fn redo_record_number(member: u64, count: u64) -> u64 {
    member << RECORD_BITS | count & ((1 << RECORD_BITS) - 1)
}

/// The member to which a redo record belongs.
pub(crate) fn member_of_redo_record(number: u64) -> u64 {
    number >> RECORD_BITS
}

/// A step that refuses the call while a release is pending, and changes nothing.
pub(crate) fn nothing_pending(region: u32) -> Operation {
    Operation::CompareAndSwap { key: pending(region), expect: Expect::Absent, change: Change::Delete }
}
