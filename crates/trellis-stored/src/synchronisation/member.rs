//! A process as other processes of its region see it: its record in the store.
//!
//! A record says that the process is alive and identifies it, and counts *heartbeats*, which the process gives every
//! third of its lease while it holds something that another process could wait for. A process that has seen a record
//! without a new heartbeat for one lease, by its own clock, may *replace* the member: in one call, it marks the record
//! and takes back what the member held. Every change that a process makes in the region is guarded by its record, so
//! that no change of a replaced process takes effect.
//!
//! Promises: no two members of a region ever have the same number; clocks of different machines are never compared. It
//! must never keep state in this process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trellis_base::{Deadline, Limit};
use trellis_store::{Applied, Change, Expect, Guard, Key, Kind, Operation, Store, StoreError};

use super::{record, slots};
use crate::end;

/// How long a process may give no heartbeat before others may replace it.
pub const LEASE: Deadline = Deadline {
    who: "a process with synchronisation in a store",
    waits_for: "a heartbeat of another process",
    limit: Limit::Setting("TRELLIS_STORE_LEASE_MS", Duration::from_secs(10)),
    then: "it is replaced, and its locks are given on",
    tested: "crates/trellis-stored/src/synchronisation/tests/locks.rs a_process_that_ends_at_any_call_is_replaced",
};

/// The minimum lease. With a shorter one, a process that merely waits for a processor would be replaced.
pub const LEASE_MIN: Duration = Duration::from_millis(10);

/// 1 while the process may change the region; 2 after it was replaced.
const STATE: u32 = 0;
const HEARTBEATS: u32 = 8;
const REPLACED_BY: u32 = 16;
const LEASE_MILLISECONDS: u32 = 24;
const PROCESS: u32 = 32;
const SINCE_MILLISECONDS: u32 = 40;
const HOST: u32 = 48;

const ALIVE: u64 = 1;
const REPLACED: u64 = 2;

/// Host names have at most 64 bytes on Linux.
const HOST_BYTES_MAX: usize = 64;

/// The key of a member's record.
pub const fn key(region: u32, number: u64) -> Key {
    Key::new(region, Kind::Member, number)
}

/// The guard of every change that a member makes: that it was not replaced.
pub fn guard(region: u32, number: u64) -> Guard {
    Guard { key: key(region, number), expect: Expect::Range { offset: STATE, bytes: ALIVE.to_le_bytes().to_vec() } }
}

/// A step that changes nothing, and refuses its call if a member was replaced: for calls that have another guard.
pub(crate) fn lives(region: u32, number: u64) -> Operation {
    record::swap(&key(region, number), STATE, &[ALIVE], &[ALIVE])
}

/// Makes this process a member of a region, with two calls. Returns its number, from 1.
///
/// # Errors
///
/// The errors of the store.
pub fn join(store: &dyn Store, region: u32, lease: Duration) -> Result<u64, StoreError> {
    let next = Operation::Add { key: key(region, 0), offset: 0, width: 8, delta: 1, bounds: None };
    let number = match store.apply(&[next], None)? {
        Applied::Done(outcomes) => record::before(&outcomes, 0) as u64 + 1,
        other => return Err(strange(store, &format!("a member's number was answered with {other:?}"))),
    };
    let change = Change::Put(new_record(lease));
    let write = Operation::CompareAndSwap { key: key(region, number), expect: Expect::Absent, change };
    match store.apply(&[write], None)? {
        Applied::Done(_) => Ok(number),
        _ => Err(strange(
            store,
            &format!("member {number} of region {region} is there already, though its number is new"),
        )),
    }
}

/// The step that records the owner of a region that no other process can open, so that none removes it meanwhile.
pub(crate) fn only(region: u32, number: u64, lease: Duration) -> Operation {
    Operation::Change { key: key(region, number), change: Change::Put(new_record(lease)) }
}

/// Ends a membership: removes the record, and what the member held together with others. A lock that it still held
/// becomes free for those that wait. This takes two calls.
///
/// # Errors
///
/// The errors of the store.
pub fn leave(store: &dyn Store, region: u32, number: u64) -> Result<(), StoreError> {
    let mut steps = take_back(store, region, number)?;
    steps.push(Operation::Change { key: key(region, number), change: Change::Delete });
    // A member that was replaced leaves its record, so that its number tells why.
    store.apply(&steps, Some(&guard(region, number))).map(drop)
}

/// Gives a heartbeat. Returns false if the member was replaced.
///
/// # Errors
///
/// As the store's.
pub fn heartbeat(store: &dyn Store, region: u32, number: u64) -> Result<bool, StoreError> {
    let step = Operation::Add { key: key(region, number), offset: HEARTBEATS, width: 8, delta: 1, bounds: None };
    Ok(matches!(store.apply(&[step], Some(&guard(region, number)))?, Applied::Done(_)))
}

/// The content of a member's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// The member's number.
    pub number: u64,
    /// Whether it may change the region: its record exists, and it was not replaced.
    pub is_alive: bool,
    /// The number of its heartbeats.
    pub heartbeat: u64,
    /// The member that replaced it; 0 if none did.
    pub replaced_by: u64,
    /// How long it may give no heartbeat while it holds something.
    pub lease: Duration,
    /// Its process number.
    pub process: u32,
    /// Its host name; empty if there is no record.
    pub host: String,
    /// A text that distinguishes it from every other process of its machine; `has_ended` compares it.
    pub identity: String,
    /// When it became a member, by its own clock, in milliseconds since 1970.
    pub since_milliseconds: u64,
}

impl MemberRecord {
    /// Decodes the record of a member; a member without one has left.
    pub fn read(number: u64, record: Option<&[u8]>) -> MemberRecord {
        let bytes = record.unwrap_or_default();
        let names = String::from_utf8_lossy(bytes.get(HOST as usize..).unwrap_or_default());
        let (host, identity) = names.split_once('\0').unwrap_or((&names, ""));
        MemberRecord {
            number,
            is_alive: record::word(bytes, STATE) == ALIVE,
            heartbeat: record::word(bytes, HEARTBEATS),
            replaced_by: record::word(bytes, REPLACED_BY),
            lease: Duration::from_millis(record::word(bytes, LEASE_MILLISECONDS)),
            process: record::word(bytes, PROCESS) as u32,
            host: host.to_owned(),
            identity: identity.to_owned(),
            since_milliseconds: record::word(bytes, SINCE_MILLISECONDS),
        }
    }

    /// A description of the member for a message.
    pub fn describe(&self) -> String {
        if self.host.is_empty() {
            return format!("member {}, which has left", self.number);
        }
        format!("process {} on {} (member {})", self.process, self.host, self.number)
    }
}

/// The step that replaces a living member; refused if it gave a heartbeat meanwhile.
pub(crate) fn replace(region: u32, record: &MemberRecord, by: u64) -> Operation {
    record::swap(&key(region, record.number), STATE, &[ALIVE, record.heartbeat], &[REPLACED, record.heartbeat, by])
}

/// Returns the steps that take back what a member holds together with others, for one call with [`replace`]. This takes
/// one call.
pub(crate) fn take_back(store: &dyn Store, region: u32, number: u64) -> Result<Vec<Operation>, StoreError> {
    let mut steps = slots::clear_all(store, region, number)?;
    if !steps.is_empty() {
        steps.push(Operation::Change { key: record::holds_key(region, number), change: Change::Delete });
    }
    Ok(steps)
}

/// The members with these numbers. This takes one call, or none if there are no numbers.
pub(crate) fn records(store: &dyn Store, region: u32, numbers: &[u64]) -> Result<Vec<MemberRecord>, StoreError> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<Key> = numbers.iter().map(|number| key(region, *number)).collect();
    let records = store.get_many(&keys)?;
    Ok(numbers.iter().zip(&records).map(|(number, record)| MemberRecord::read(*number, record.as_deref())).collect())
}

/// Every living member. This takes two calls, and more if there are thousands.
pub(super) fn living(store: &dyn Store, region: u32) -> Result<Vec<MemberRecord>, StoreError> {
    let numbers = record::numbers(store, region, Kind::Member, 1, u64::MAX)?;
    Ok(records(store, region, &numbers)?.into_iter().filter(|record| record.is_alive).collect())
}

fn new_record(lease: Duration) -> Vec<u8> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let lease = lease.max(LEASE_MIN).as_millis() as u64;
    let mut bytes = record::words(&[ALIVE, 0, 0, lease, u64::from(std::process::id()), since]);
    bytes.extend_from_slice(host().as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(end::identity().as_bytes());
    bytes
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(|letter| letter.is_ascii_graphic()).take(HOST_BYTES_MAX).collect();
    if name.is_empty() { "a machine without a name".to_owned() } else { name }
}

fn strange(store: &dyn Store, what: &str) -> StoreError {
    StoreError::Protocol { store: store.name().to_owned(), reason: what.to_owned() }
}

const _: () =
    assert!(HOST == SINCE_MILLISECONDS + 8 && PROCESS == LEASE_MILLISECONDS + 8 && REPLACED_BY == HEARTBEATS + 8);
