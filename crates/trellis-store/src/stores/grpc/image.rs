//! What a call needs to read from a store, and what was read.
//!
//! A store that is reached over a network reads everything that a call needs at once, before
//! [`crate::transaction::run`] carries out the call here. It promises that the needs include everything that such a run
//! asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Change, Entry, Guard, Operation};
use crate::transaction::Snapshot;

/// The bounds of a log: the oldest kept and the newest sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores) struct Head {
    pub(in crate::stores) first: u64,
    pub(in crate::stores) last: u64,
}

impl Head {
    /// For a log that does not exist.
    pub(in crate::stores) const NONE: Head = Head { first: 1, last: 0 };

    /// The form in which a store keeps it.
    pub(in crate::stores) fn encode(self) -> Vec<u8> {
        [self.first.to_be_bytes(), self.last.to_be_bytes()].concat()
    }

    /// Decodes the result of [`Head::encode`].
    pub(in crate::stores) fn decode(bytes: &[u8]) -> Option<Head> {
        let (first, last) = bytes.split_at_checked(8)?;
        let head =
            Head { first: u64::from_be_bytes(first.try_into().ok()?), last: u64::from_be_bytes(last.try_into().ok()?) };
        (head.last > 0 && (1..=head.last + 1).contains(&head.first)).then_some(head)
    }
}

/// Entries to read: at most `count`, after sequence number `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::stores) struct Window {
    pub(in crate::stores) after: u64,
    pub(in crate::stores) count: u32,
}

impl Window {
    /// The sequence numbers of the window that are kept.
    pub(in crate::stores) fn numbers(self, head: Head) -> std::ops::Range<u64> {
        let from = self.after.saturating_add(1).max(head.first);
        let upto = from.saturating_add(u64::from(self.count)).min(head.last + 1);
        from..upto.max(from)
    }
}

/// What a call needs to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Needs {
    pub(in crate::stores) values: BTreeSet<Key>,
    pub(in crate::stores) logs: BTreeMap<Key, BTreeSet<Window>>,
}

impl Needs {
    /// The needs of a call.
    pub(in crate::stores) fn of(operations: &[Operation], guard: Option<&Guard>) -> Needs {
        let mut needs = Needs::default();
        let mut written = BTreeSet::new();
        let mut trimmed: BTreeMap<&Key, u64> = BTreeMap::new();
        needs.values.extend(guard.map(|guard| guard.key.clone()));
        for operation in operations {
            let key = operation.key();
            match operation {
                Operation::Change { change: Change::Put(_) | Change::Delete, .. } if key.kind() != Kind::Log => {
                    written.insert(key);
                }
                // A refused call returns the stored value, not the result of earlier steps.
                Operation::Get { .. } => drop(needs.values.insert(key.clone())),
                _ if key.kind() != Kind::Log => {
                    if !written.contains(key) {
                        needs.values.insert(key.clone());
                    }
                }
                Operation::Entries { after, count, .. } => {
                    let windows = needs.logs.entry(key.clone()).or_default();
                    let beyond = trimmed.get(key).map_or(*after, |upto| *after.max(upto));
                    windows.extend([*after, beyond].map(|after| Window { after, count: *count }));
                }
                _ => {
                    needs.logs.entry(key.clone()).or_default();
                    if let Operation::Trim { upto, .. } = operation {
                        let before = trimmed.entry(key).or_default();
                        *before = (*before).max(*upto);
                    }
                }
            }
        }
        needs
    }

    /// Whether the call's changes are unconditional.
    pub(in crate::stores) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.logs.is_empty()
    }
}

/// What was read, as of one moment.
#[derive(Debug, Default)]
pub(in crate::stores) struct Image {
    store: String,
    values: BTreeMap<Key, Option<Vec<u8>>>,
    heads: BTreeMap<Key, Head>,
    entries: BTreeMap<Key, BTreeMap<u64, Vec<u8>>>,
}

impl Image {
    /// An empty image.
    pub(in crate::stores) fn new(store: &str) -> Image {
        Image { store: store.to_owned(), ..Image::default() }
    }

    /// Adds a value that was read.
    pub(in crate::stores) fn value_is(&mut self, key: &Key, value: Option<Vec<u8>>) {
        self.values.insert(key.clone(), value);
    }

    /// Adds the bounds of a log that were read; `None` if there is no such log.
    pub(in crate::stores) fn head_is(&mut self, log: &Key, head: Option<&[u8]>) -> Result<Head, StoreError> {
        let head = match head {
            None => Head::NONE,
            Some(bytes) => Head::decode(bytes).ok_or_else(|| self.nonsense(format!("{log:?} has no proper bounds")))?,
        };
        self.heads.insert(log.clone(), head);
        Ok(head)
    }

    /// Adds an entry that was read.
    pub(in crate::stores) fn entry_is(&mut self, log: &Key, sequence: u64, bytes: Vec<u8>) {
        self.entries.entry(log.clone()).or_default().insert(sequence, bytes);
    }

    fn nonsense(&self, reason: String) -> StoreError {
        StoreError::Protocol { store: self.store.clone(), reason }
    }
}

impl Snapshot for Image {
    fn value(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.values.get(key).cloned().ok_or_else(|| self.nonsense(format!("{key:?} was not read")))
    }

    fn bounds(&mut self, log: &Key) -> Result<(u64, u64), StoreError> {
        let head = self.heads.get(log).ok_or_else(|| self.nonsense(format!("{log:?} was not read")))?;
        Ok((head.first, head.last))
    }

    fn entries(&mut self, log: &Key, numbers: RangeInclusive<u64>) -> Result<Vec<Entry>, StoreError> {
        let entries = self.entries.get(log);
        numbers
            .map(|sequence| {
                let bytes = entries.and_then(|entries| entries.get(&sequence)).cloned();
                let bytes = bytes.ok_or_else(|| self.nonsense(format!("entry {sequence} of {log:?} is missing")))?;
                Ok(Entry { sequence, bytes })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Applied, Expect, Outcome};
    use crate::transaction;

    const LOG: Key = Key::new(1, Kind::Log, 1);

    fn put(key: &Key) -> Operation {
        Operation::Change { key: key.clone(), change: Change::Put(vec![1]) }
    }

    #[test]
    fn what_is_written_whole_is_not_read() {
        let (one, two) = (Key::page(1, 1), Key::page(1, 2));
        let part = Change::PutRange { offset: 0, bytes: vec![1] };
        assert!(Needs::of(&[put(&one), Operation::Change { key: one.clone(), change: part.clone() }], None).is_empty());
        let needs = Needs::of(&[Operation::Change { key: one.clone(), change: part }, put(&two)], None);
        assert_eq!(needs.values, BTreeSet::from([one.clone()]));
        let guard = Guard { key: two.clone(), expect: Expect::Absent };
        assert_eq!(Needs::of(&[put(&one)], Some(&guard)).values, BTreeSet::from([two]));
        assert_eq!(Needs::of(&[put(&one), Operation::Get { key: one.clone(), range: None }], None).values.len(), 1);
    }

    #[test]
    fn entries_behind_a_trim_of_the_same_call_are_read() {
        let call = [Operation::Trim { log: LOG, upto: 3 }, Operation::Entries { log: LOG, after: 0, count: 2 }];
        let needs = Needs::of(&call, None);
        let windows: Vec<_> = needs.logs[&LOG].iter().map(|window| window.after).collect();
        assert_eq!(windows, [0, 3]);
        let mut image = Image::new("x");
        let head = image.head_is(&LOG, Some(&Head { first: 2, last: 6 }.encode())).unwrap();
        for window in &needs.logs[&LOG] {
            window.numbers(head).for_each(|number| image.entry_is(&LOG, number, vec![number as u8]));
        }
        let (applied, changes) = transaction::run(&mut image, &call, None).unwrap();
        let Applied::Done(outcomes) = applied else { panic!("{applied:?}") };
        let entries = [4, 5].map(|sequence| Entry { sequence, bytes: vec![sequence as u8] }).to_vec();
        assert_eq!(outcomes[1], Outcome::Entries { last: 6, first: 4, entries });
        assert_eq!(changes.logs[&LOG].first, 4);
    }

    #[test]
    fn bounds_of_a_log_survive_being_encoded() {
        for head in [Head { first: 1, last: 1 }, Head { first: 8, last: 7 }] {
            assert_eq!(Head::decode(&head.encode()), Some(head));
        }
        for wrong in [Head { first: 0, last: 3 }, Head { first: 5, last: 3 }, Head::NONE] {
            assert_eq!(Head::decode(&wrong.encode()), None);
        }
        assert_eq!(Head::decode(b"short"), None);
    }
}
