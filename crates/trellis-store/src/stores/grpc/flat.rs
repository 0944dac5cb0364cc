//! The layout of values and logs in a store that has only ordered keys: one key for each value, one for the bounds of
//! each log, and one for each entry.
//!
//! It promises that all these keys are distinct, and that the entries of a log are adjacent and in order.

use std::collections::BTreeMap;

use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::stores::grpc::image::{Head, Image, Needs};
use crate::transaction::Changes;

const VALUE: u8 = b'v';
const HEAD: u8 = b'h';
const ENTRY: u8 = b'e';

/// The place of a value.
pub(in crate::stores) fn value(key: &Key) -> Vec<u8> {
    tagged(VALUE, key)
}

/// The place of a log's bounds.
pub(in crate::stores) fn head(log: &Key) -> Vec<u8> {
    tagged(HEAD, log)
}

/// The place of an entry of a log.
pub(in crate::stores) fn entry(log: &Key, sequence: u64) -> Vec<u8> {
    let mut bytes = tagged(ENTRY, log);
    bytes.extend_from_slice(&sequence.to_be_bytes());
    bytes
}

/// The sequence number of the entry at a place.
pub(in crate::stores) fn sequence(place: &[u8]) -> Option<u64> {
    place.last_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

fn tagged(tag: u8, key: &Key) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&key.encode());
    bytes
}

/// The key of the value or the log at a place.
pub(in crate::stores) fn key(place: &[u8]) -> Option<Key> {
    let (tag, key) = place.split_first()?;
    matches!(*tag, VALUE | HEAD).then(|| Key::decode(key)).flatten()
}

/// The ranges (start included, end excluded) of the values or logs of one kind in a region with numbers from `from` on:
/// one range for each value of the spreading byte.
pub(in crate::stores) fn ranges(region: u32, kind: Kind, from: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let tag = if kind == Kind::Log { HEAD } else { VALUE };
    let spreads = if kind.is_control() { 0..=0 } else { 0..=u8::MAX };
    let place = |spread, number: u64| {
        let mut bytes = vec![tag, kind as u8, spread];
        bytes.extend_from_slice(&region.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes
    };
    spreads
        .map(|spread| {
            // The end is after the largest number, with any name after it.
            let mut end = place(spread, u64::MAX);
            end.resize(end.len() + 1, 0xff);
            (place(spread, from), end)
        })
        .collect()
}

/// Contents by place.
pub(in crate::stores) type Found = BTreeMap<Vec<u8>, Vec<u8>>;

/// The places of everything that a call needs, except entries of logs.
pub(in crate::stores) fn places(needs: &Needs) -> Vec<Vec<u8>> {
    needs.values.iter().map(value).chain(needs.logs.keys().map(head)).collect()
}

/// The image for a call from what was found, and the places of entries that it needs too, as the bounds of their logs
/// show.
pub(in crate::stores) fn image(store: &str, needs: &Needs, found: &Found) -> Result<(Image, Vec<Vec<u8>>), StoreError> {
    let mut image = Image::new(store);
    let mut missing = std::collections::BTreeSet::new();
    for key in &needs.values {
        image.value_is(key, found.get(&value(key)).cloned());
    }
    for (log, windows) in &needs.logs {
        let bounds = image.head_is(log, found.get(&head(log)).map(Vec::as_slice))?;
        for sequence in windows.iter().flat_map(|window| window.numbers(bounds)) {
            let place = entry(log, sequence);
            match found.get(&place) {
                Some(bytes) => image.entry_is(log, sequence, bytes.clone()),
                None => drop(missing.insert(place)),
            }
        }
    }
    Ok((image, missing.into_iter().collect()))
}

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Write {
    /// Store these bytes at a place.
    Put(Vec<u8>, Vec<u8>),
    /// Delete what is at a place.
    Delete(Vec<u8>),
    /// Delete the entries of a log from one sequence number to another, both included.
    Forget(Key, u64, u64),
}

/// The writes of a call.
pub(in crate::stores) fn writes(changes: Changes) -> Vec<Write> {
    let mut writes = Vec::with_capacity(changes.values.len() + 3 * changes.logs.len());
    for (key, now) in changes.values {
        let place = value(&key);
        writes.push(match now {
            Some(bytes) => Write::Put(place, bytes),
            None => Write::Delete(place),
        });
    }
    for (log, change) in changes.logs {
        let kept_from = if change.emptied { change.last_before + 1 } else { change.first };
        if kept_from > change.first_before {
            let (from, upto) = (change.first_before, kept_from.min(change.last_before + 1) - 1);
            // A log that was deleted and begun again reuses sequence numbers. New entries overwrite old ones: etcd
            // refuses to delete and put the same key in one transaction.
            let comes = change.appended.first().zip(change.appended.last());
            let (first, last) = comes.map_or((upto + 1, upto), |(first, last)| (first.sequence, last.sequence));
            let parts = [(from, upto.min(first.saturating_sub(1))), (from.max(last.saturating_add(1)), upto)];
            let is_apart = first > upto || last < from;
            let parts = if is_apart { &[(from, upto)][..] } else { &parts[..] };
            writes.extend(parts.iter().filter(|(a, b)| a <= b).map(|(a, b)| Write::Forget(log.clone(), *a, *b)));
        }
        let appended = change.appended.into_iter();
        writes.extend(appended.map(|new| Write::Put(entry(&log, new.sequence), new.bytes)));
        let (before, now) = ((change.first_before, change.last_before), (change.first, change.last));
        if change.last == 0 && change.last_before > 0 {
            writes.push(Write::Delete(head(&log)));
        } else if before != now {
            writes.push(Write::Put(head(&log), Head { first: change.first, last: change.last }.encode()));
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Entry;
    use crate::transaction::LogChange;

    #[test]
    fn every_key_of_a_kind_lies_in_one_of_its_ranges() {
        for kind in [Kind::Memory, Kind::Header, Kind::Named] {
            let ranges = ranges(7, kind, 0);
            for number in [0, 1, 77, u64::MAX] {
                let key = if kind == Kind::Named { Key::named(7, b"\xff\xff") } else { Key::new(7, kind, number) };
                let place = value(&key);
                assert_eq!(ranges.iter().filter(|(from, to)| (from..to).contains(&&place)).count(), 1);
                assert_eq!(super::key(&place), Some(key));
            }
            assert!(!ranges.iter().any(|(from, to)| (from..to).contains(&&value(&Key::new(8, Kind::Memory, 1)))));
        }
    }

    #[test]
    fn a_log_that_is_deleted_and_begun_again_leaves_nothing_behind() {
        let log = Key::new(1, Kind::Log, 1);
        let change = LogChange {
            first_before: 3,
            last_before: 5,
            first: 1,
            last: 1,
            appended: vec![Entry { sequence: 1, bytes: b"new".to_vec() }],
            emptied: true,
        };
        let changes = Changes { values: BTreeMap::new(), logs: BTreeMap::from([(log.clone(), change)]) };
        assert_eq!(
            writes(changes),
            [
                Write::Forget(log.clone(), 3, 5),
                Write::Put(entry(&log, 1), b"new".to_vec()),
                Write::Put(head(&log), Head { first: 1, last: 1 }.encode()),
            ]
        );
    }

    #[test]
    fn what_comes_under_a_number_of_before_is_not_forgotten_in_the_same_call() {
        let log = Key::new(1, Kind::Log, 1);
        let forgotten = |before: (u64, u64), comes: std::ops::RangeInclusive<u64>| -> Vec<(u64, u64)> {
            let (first, last) = (*comes.start(), *comes.end());
            let appended = comes.map(|sequence| Entry { sequence, bytes: Vec::new() }).collect();
            let (first_before, last_before) = before;
            let change = LogChange { first_before, last_before, first, last, appended, emptied: true };
            let changes = Changes { values: BTreeMap::new(), logs: BTreeMap::from([(log.clone(), change)]) };
            let forgotten = writes(changes).into_iter().filter_map(|write| match write {
                Write::Forget(_, from, upto) => Some((from, upto)),
                Write::Put(..) | Write::Delete(_) => None,
            });
            forgotten.collect()
        };
        assert_eq!(forgotten((1, 5), 1..=2), [(3, 5)]);
        assert_eq!(forgotten((1, 5), 2..=3), [(1, 1), (4, 5)], "begun again and trimmed");
        assert_eq!(forgotten((1, 2), 1..=4), [], "over all of it");
        assert_eq!(forgotten((2, 5), 1..=3), [(4, 5)]);
        assert_eq!(forgotten((4, 5), 1..=2), [(4, 5)], "apart");
    }
}
