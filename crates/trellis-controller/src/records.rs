//! The records: the home of each range, the drained servers, and the leader. They can be in any store of
//! `trellis-store`.
//!
//! Promises: a record is written completely, guarded by the leader's name: the store refuses what a controller writes
//! that no longer leads. Related records are written at once: a range and the part that was split from it. It must
//! never guess: a record that cannot be read is an error that names it.
//!
//! A part (a subrange with a home of its own) has a record like a range. It exists as long as its range names it: from
//! the write that first names it to the write that no longer does, whatever its own record says. Its own record
//! remains, and shows the last incarnation in which its number was used.
//!
//! | key of the region `0xc0000000` + cluster | value |
//! |---|---|
//! | synchronisation 0 | the leader: see [`crate::leadership`] |
//! | directory, number of the range | JSON of [`RangeRecord`] |
//! | member, number of the host | JSON of [`ServerRecord`] |

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trellis_fabric_protocol::lease::parts::{Part, Within};
use trellis_fabric_protocol::lease::{Host, RangeNumber, controller};
use trellis_store::{Applied, Change, Expect, Guard, Key, Kind, Operation, Outcome, Store, StoreError};

use crate::leadership::{Action, Fact, NAME_BYTES};

/// Regions of a store have lower numbers.
const REGION: u32 = 0xc000_0000;
/// How many records are read at once.
const AT_ONCE: usize = 256;
/// The version of the records' format.
const VERSION: u8 = 4;

/// The record of a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRecord {
    /// The version of the format.
    pub version: u8,
    /// The number of pages that clients can name.
    pub pages: u64,
    /// The backups that an operator wants, if not the default.
    pub directive: Option<Directive>,
    /// [`controller::Record::incarnation`].
    pub incarnation: u16,
    /// [`controller::Record::home`].
    pub home: Host,
    /// [`controller::Record::boot_id`].
    pub boot_id: Option<u16>,
    /// [`controller::Record::backups`].
    pub backups: Vec<Host>,
    /// [`controller::Record::complete`].
    pub complete: Vec<Host>,
    /// [`controller::Record::moving`].
    pub moving: Option<Host>,
    /// [`controller::Record::begins_empty`].
    pub begins_empty: bool,
    /// [`controller::Record::parts`].
    pub parts: Vec<PartRecord>,
    /// For a part: the range and the pages from which it was split.
    pub within: Option<WithinRecord>,
    /// The destination that was requested for it, until it is there.
    pub goal: Option<Goal>,
    /// Moves of some of its pages that were requested, until these are split off.
    pub splits: Vec<SplitRecord>,
}

/// The requested destination of a range or part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// This host.
    Host(Host),
    /// For a part: the home of its range, to be merged there.
    Merge,
}

/// Pages that are to be split off and to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// The first of them.
    pub first: u64,
    /// Their number.
    pub pages: u64,
    /// The destination.
    pub to: Host,
}

/// A [`Part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    /// [`Part::number`].
    pub number: RangeNumber,
    /// [`Part::first`].
    pub first: u64,
    /// [`Part::pages`].
    pub pages: u64,
    /// [`Part::since`].
    pub since: u16,
}

/// A [`Within`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithinRecord {
    /// [`Within::range`].
    pub range: RangeNumber,
    /// [`Within::first`].
    pub first: u64,
    /// [`Within::since`].
    pub since: u16,
}

/// The backups that an operator wants for a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Directive {
    /// This number of backups.
    Count(u16),
    /// These hosts.
    Hosts(Vec<Host>),
}

/// What is recorded of a server besides its own reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Whether everything has to move away from it.
    pub is_drained: bool,
}

impl RangeRecord {
    /// The record of a range that is not a part, from its state machine.
    pub fn new(record: &controller::Record, pages: u64, directive: Option<Directive>) -> RangeRecord {
        let controller::Record { incarnation, home, boot_id, backups, complete, moving, begins_empty, parts } =
            record.clone();
        let part = |Part { number, first, pages, since }| PartRecord { number, first, pages, since };
        let parts = parts.into_iter().map(part).collect();
        let (version, within, goal, splits) = (VERSION, None, None, Vec::new());
        RangeRecord {
            version,
            pages,
            directive,
            incarnation,
            home,
            boot_id,
            backups,
            complete,
            moving,
            begins_empty,
            parts,
            within,
            goal,
            splits,
        }
    }

    /// Turns it into the record of a part.
    #[must_use]
    pub fn part_of(self, Within { range, first, since }: Within) -> RangeRecord {
        RangeRecord { within: Some(WithinRecord { range, first, since }), ..self }
    }

    /// The record for the range's state machine.
    pub fn of_machine(&self) -> controller::Record {
        let RangeRecord { incarnation, home, boot_id, backups, complete, moving, begins_empty, parts, .. } =
            self.clone();
        let part = |PartRecord { number, first, pages, since }| Part { number, first, pages, since };
        let parts = parts.into_iter().map(part).collect();
        controller::Record { incarnation, home, boot_id, backups, complete, moving, begins_empty, parts }
    }
}

impl SplitRecord {
    /// The number after the last page.
    pub fn end(&self) -> u64 {
        self.first + self.pages
    }

    /// Whether it has a page from `first` to before `end`.
    pub fn overlaps(&self, first: u64, end: u64) -> bool {
        self.first < end && first < self.end()
    }
}

/// A record to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The record of a range.
    Range(RangeNumber, RangeRecord),
    /// The record of a server.
    Server(Host, ServerRecord),
}

/// All records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Ranges by number.
    pub ranges: Vec<(RangeNumber, RangeRecord)>,
    /// Servers by host number.
    pub servers: Vec<(Host, ServerRecord)>,
}

/// Why records could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The store's error.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Another controller leads.
    #[error("store {store}: another controller leads, and this one wrote nothing")]
    Fenced {
        /// The store.
        store: String,
    },
    /// A record cannot be decoded.
    #[error("store {store}: the record of {what} cannot be read: {why}; is it of another version?")]
    Unreadable {
        /// The store.
        store: String,
        /// The range or server of the record.
        what: String,
        /// The reason.
        why: String,
    },
}

/// The region of a cluster's records.
pub fn region(cluster: u32) -> u32 {
    REGION | cluster
}

fn leader_key(region: u32) -> Key {
    Key::new(region, Kind::Synchronisation, 0)
}

/// Carries out a deed of the leadership in the store; returns the resulting fact, and the store's error.
pub fn carry_out(store: &dyn Store, region: u32, action: &Action) -> (Fact, Option<StoreError>) {
    let key = leader_key(region);
    let done = match action {
        Action::Read => {
            store.get_many(std::slice::from_ref(&key)).map(|mut found| Fact::Found(found.pop().unwrap_or_default()))
        }
        Action::Swap { expect, value } => {
            let expect = expect.clone().map_or(Expect::Absent, Expect::Value);
            let change = value.clone().map_or(Change::Delete, Change::Put);
            let swap = Operation::CompareAndSwap { key, expect, change };
            store.apply(&[swap], None).map(|applied| match applied {
                Applied::Done(_) => Fact::Swapped,
                Applied::Refused(refused, _) => Fact::Found(refused.found),
                Applied::Fenced { found } => Fact::Found(found),
            })
        }
    };
    done.map_or_else(|error| (Fact::Unknown, Some(error)), |fact| (fact, None))
}

/// Writes records, all of them or none, while `name` leads.
///
/// # Errors
///
/// [`RecordError::Fenced`] if another controller leads; after [`RecordError::Store`] it may have taken effect or not.
pub fn write(store: &dyn Store, region: u32, name: &[u8; NAME_BYTES], writes: &[Write]) -> Result<(), RecordError> {
    let guard = Guard { key: leader_key(region), expect: Expect::Range { offset: 0, bytes: name.to_vec() } };
    let put = |write: &Write| {
        let (key, bytes) = match write {
            Write::Range(range, record) => (Key::new(region, Kind::Directory, u64::from(range.0)), text(record)),
            Write::Server(host, record) => (Key::new(region, Kind::Member, u64::from(host.0)), text(record)),
        };
        Operation::Change { key, change: Change::Put(bytes) }
    };
    let operations: Vec<Operation> = writes.iter().map(put).collect();
    match store.apply(&operations, Some(&guard))? {
        Applied::Done(_) => Ok(()),
        Applied::Fenced { .. } => Err(RecordError::Fenced { store: store.name().to_owned() }),
        Applied::Refused(..) => Err(RecordError::Store(StoreError::Protocol {
            store: store.name().to_owned(),
            reason: "it refused what has no condition".to_owned(),
        })),
    }
}

fn text<T: Serialize>(record: &T) -> Vec<u8> {
    // Numbers, lists and names can always be encoded.
    serde_json::to_vec(record).unwrap_or_default()
}

/// Reads all records.
///
/// # Errors
///
/// The store's, and [`RecordError::Unreadable`].
pub fn load(store: &dyn Store, region: u32) -> Result<Records, RecordError> {
    let ranges = load_kind(store, region, Kind::Directory, "range", range_of)?;
    let ranges: Vec<_> = ranges.into_iter().map(|(number, record)| (RangeNumber(number), record)).collect();
    if let Some((range, why)) = lost_part(&ranges) {
        let what = format!("range {range:#x}");
        return Err(RecordError::Unreadable { store: store.name().to_owned(), what, why });
    }
    let server_of = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|error| error.to_string());
    let servers = load_kind(store, region, Kind::Member, "server", server_of)?;
    Ok(Records { ranges, servers: servers.into_iter().map(|(number, record)| (Host(number), record)).collect() })
}

/// The version is decoded first: another version may have other fields.
fn range_of(bytes: &[u8]) -> Result<RangeRecord, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u8,
    }
    let of = |error: serde_json::Error| error.to_string();
    match serde_json::from_slice::<Head>(bytes).map_err(of)?.version {
        VERSION => serde_json::from_slice(bytes).map_err(of),
        version => Err(format!("it has version {version}, and this controller reads {VERSION}")),
    }
}

/// A range one of whose parts has no record, and a message.
fn lost_part(ranges: &[(RangeNumber, RangeRecord)]) -> Option<(RangeNumber, String)> {
    let records: BTreeMap<RangeNumber, &RangeRecord> = ranges.iter().map(|(range, record)| (*range, record)).collect();
    ranges.iter().find_map(|(range, record)| {
        let is_there = |part: &&PartRecord| {
            let within = Some(WithinRecord { range: *range, first: part.first, since: part.since });
            let is_its = |found: &&RangeRecord| found.within == within && found.pages == part.pages;
            part.number.is_part() && records.get(&part.number).is_some_and(is_its)
        };
        let lost = record.parts.iter().find(|part| !is_there(part))?;
        Some((*range, format!("its part {:#x} has no record", lost.number)))
    })
}

fn load_kind<T>(
    store: &dyn Store,
    region: u32,
    kind: Kind,
    word: &str,
    read: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Vec<(u16, T)>, RecordError> {
    let mut records = Vec::new();
    let mut from = 0;
    loop {
        let numbers = store.numbers(region, kind, from, AT_ONCE)?;
        let Some(last) = numbers.last() else { return Ok(records) };
        from = last + 1;
        let reads: Vec<Operation> =
            numbers.iter().map(|number| Operation::Get { key: Key::new(region, kind, *number), range: None }).collect();
        let (Applied::Done(found) | Applied::Refused(_, found)) = store.apply(&reads, None)? else { continue };
        for (number, outcome) in numbers.iter().zip(found) {
            let Outcome::Value(Some(bytes)) = outcome else { continue };
            let unreadable = |why: String| RecordError::Unreadable {
                store: store.name().to_owned(),
                what: format!("{word} {number:#x}"),
                why,
            };
            let number = u16::try_from(*number).map_err(|_| unreadable("no host has this number".to_owned()))?;
            records.push((number, read(&bytes).map_err(unreadable)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: [u8; NAME_BYTES] = *b"0123456789abcdef";

    fn record(incarnation: u16, directive: Option<Directive>) -> RangeRecord {
        let mut record = controller::Record::first(Host(7));
        record.incarnation = incarnation;
        (record.backups, record.complete) = (vec![Host(8), Host(9)], vec![Host(9)]);
        RangeRecord::new(&record, 5, directive)
    }

    #[test]
    fn records_survive_and_are_written_by_who_leads() {
        let store = trellis_store::open("embedded:").expect("a store");
        let region = region(0x12_3456);
        let write_one = |write_this: Write| write(&*store, region, &NAME, &[write_this]);
        let one = Write::Range(RangeNumber(7), record(3, Some(Directive::Hosts(vec![Host(8)]))));
        assert!(matches!(write_one(one.clone()), Err(RecordError::Fenced { .. })), "nobody leads");
        let value = [&NAME[..], &[0; 8]].concat();
        let swap = Action::Swap { expect: None, value: Some(value.clone()) };
        assert_eq!(carry_out(&*store, region, &swap).0, Fact::Swapped);
        assert_eq!(carry_out(&*store, region, &swap).0, Fact::Found(Some(value.clone())));
        assert_eq!(carry_out(&*store, region, &Action::Read).0, Fact::Found(Some(value.clone())));
        write_one(one.clone()).expect("written");
        write_one(Write::Range(RangeNumber(0x1001), record(1, None))).expect("written");
        write_one(Write::Range(RangeNumber(7), record(4, Some(Directive::Count(2))))).expect("written");
        write_one(Write::Server(Host(8), ServerRecord { is_drained: true })).expect("written");
        let records = load(&*store, region).expect("readable");
        assert_eq!(
            records.ranges,
            [(RangeNumber(7), record(4, Some(Directive::Count(2)))), (RangeNumber(0x1001), record(1, None))]
        );
        assert_eq!(records.servers, [(Host(8), ServerRecord { is_drained: true })]);
        assert_eq!(records.ranges[0].1.of_machine().backups, [Host(8), Host(9)]);
        assert!(load(&*store, super::region(7)).expect("readable").ranges.is_empty(), "another cluster's are others");
        let leave = Action::Swap { expect: Some(value), value: None };
        assert_eq!(carry_out(&*store, region, &leave).0, Fact::Swapped);
        assert_eq!(carry_out(&*store, region, &Action::Read).0, Fact::Found(None));
        assert!(matches!(write_one(one), Err(RecordError::Fenced { .. })), "what it sent before comes too late");
    }

    #[test]
    fn what_is_no_record_is_named() {
        let store = trellis_store::open("embedded:").expect("a store");
        let put = |bytes: &[u8]| {
            let change = Change::Put(bytes.to_vec());
            let key = Key::new(region(1), Kind::Directory, 0x1001);
            store.apply(&[Operation::Change { key, change }], None).expect("stored");
            load(&*store, region(1)).expect_err("no record").to_string()
        };
        assert!(put(b"nothing").contains("the record of range 0x1001 cannot be read"));
        let later = RangeRecord { version: 9, ..record(1, None) };
        assert!(put(&text(&later)).contains("it has version 9, and this controller reads 4"));
        assert!(put(b"{\"version\":1,\"pages\":5}").contains("it has version 1"), "whatever else it has");
        let mut of_parts = record(1, None);
        of_parts.parts = vec![PartRecord { number: RangeNumber(0xf000), first: 2, pages: 3, since: 1 }];
        assert!(put(&text(&of_parts)).contains("its part 0xf000 has no record"));
    }
}
