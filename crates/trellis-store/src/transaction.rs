//! Carries out a whole call on values that a store supplies one by one, and computes what to write.
//!
//! For stores that have transactions: they read the requested values inside the transaction, write the result, and
//! commit. Promises exactly the semantics of [`crate::Store::apply`]. It must never write.

use std::collections::BTreeMap;

use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Change, Entry, Guard, Operation, Outcome, Refused};
use crate::steps;

/// The content of a store at one moment.
pub(crate) trait Snapshot {
    /// The value of a key.
    fn value(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError>;

    /// The oldest kept and the newest sequence number of a log: `last + 1` and `last` if no entry is kept, `(1, 0)` for a
    /// log that does not exist.
    fn bounds(&mut self, log: &Key) -> Result<(u64, u64), StoreError>;

    /// The kept entries of a log whose sequence numbers are in this range.
    fn entries(&mut self, log: &Key, numbers: std::ops::RangeInclusive<u64>) -> Result<Vec<Entry>, StoreError>;
}

/// The changes of a call. Empty for a call that was refused or that only reads.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// New values; `None` for a deleted one.
    pub(crate) values: BTreeMap<Key, Option<Vec<u8>>>,
    /// Changes of logs.
    pub(crate) logs: BTreeMap<Key, LogChange>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.logs.is_empty()
    }
}

/// The change of a log: entries up to `forgotten` are deleted, the new entries are added, and then `first` and `last`
/// hold. A log whose `last` is 0 no longer exists.
#[derive(Clone, Debug)]
pub(crate) struct LogChange {
    /// The oldest kept sequence number before.
    pub(crate) first_before: u64,
    /// The newest sequence number before.
    pub(crate) last_before: u64,
    /// The oldest kept sequence number after.
    pub(crate) first: u64,
    /// The newest sequence number after.
    pub(crate) last: u64,
    /// Entries that the call adds and that are still kept at its end.
    pub(crate) appended: Vec<Entry>,
    /// Whether no earlier entry is kept.
    pub(crate) emptied: bool,
}

/// Carries out a call on a snapshot.
pub(crate) fn run(
    snapshot: &mut dyn Snapshot,
    operations: &[Operation],
    guard: Option<&Guard>,
) -> Result<(Applied, Changes), StoreError> {
    if let Some(guard) = guard {
        let found = snapshot.value(&guard.key)?;
        if !steps::holds(&guard.expect, found.as_deref()) {
            return Ok((Applied::Fenced { found }, Changes::default()));
        }
    }
    let mut transaction = Transaction { snapshot, read: BTreeMap::new(), changes: Changes::default() };
    let mut outcomes = Vec::with_capacity(operations.len());
    for (step, operation) in operations.iter().enumerate() {
        match transaction.step(operation)? {
            Ok(outcome) => outcomes.push(outcome),
            Err(found) => {
                let outcomes = transaction.reads(operations)?;
                return Ok((Applied::Refused(Refused { step, found }, outcomes), Changes::default()));
            }
        }
    }
    Ok((Applied::Done(outcomes), transaction.changes))
}

struct Transaction<'a> {
    snapshot: &'a mut dyn Snapshot,
    /// Values that were read, so that none is read twice.
    read: BTreeMap<Key, Option<Vec<u8>>>,
    changes: Changes,
}

/// An outcome, or the value that made the step refuse.
type Step = Result<Outcome, Option<Vec<u8>>>;

impl Transaction<'_> {
    fn step(&mut self, operation: &Operation) -> Result<Step, StoreError> {
        Ok(Ok(match operation {
            Operation::Get { key, range } => {
                Outcome::Value(self.value(key)?.map(|value| steps::part(value, *range).to_vec()))
            }
            Operation::Change { key, change: Change::Delete } if key.kind() == Kind::Log => {
                let log = self.log(key)?;
                *log = LogChange { first: 1, last: 0, appended: Vec::new(), emptied: true, ..log.clone() };
                Outcome::Changed
            }
            Operation::Change { key, change } => {
                self.change(key, change)?;
                Outcome::Changed
            }
            Operation::CompareAndSwap { key, expect, change } => {
                let value = self.value(key)?;
                if !steps::holds(expect, value.map(Vec::as_slice)) {
                    return Ok(Err(value.cloned()));
                }
                self.change(key, change)?;
                Outcome::Changed
            }
            Operation::Add { key, offset, width, delta, bounds } => {
                let value = self.value(key)?;
                let Some(sum) = steps::add(value.map(Vec::as_slice), *offset, *width, *delta, *bounds) else {
                    return Ok(Err(value.cloned()));
                };
                let bytes = sum.bytes[..*width as usize].to_vec();
                self.change(key, &Change::PutRange { offset: *offset, bytes })?;
                Outcome::Added(sum.before)
            }
            Operation::Append { log, bytes } => {
                let log = self.log(log)?;
                log.last += 1;
                log.appended.push(Entry { sequence: log.last, bytes: bytes.clone() });
                Outcome::Appended(log.last)
            }
            Operation::Trim { log, upto } => {
                let log = self.log(log)?;
                log.first = log.first.max(upto.saturating_add(1).min(log.last + 1));
                log.appended.retain(|entry| entry.sequence >= log.first);
                log.emptied |= log.first > log.last_before;
                Outcome::Trimmed
            }
            Operation::Entries { log, after, count } => self.entries(log, *after, *count)?,
        }))
    }

    /// What the steps that only read find in the unchanged store.
    fn reads(&mut self, operations: &[Operation]) -> Result<Vec<Outcome>, StoreError> {
        self.changes = Changes::default();
        let mut outcomes = Vec::with_capacity(operations.len());
        for operation in operations {
            let step = if operation.only_reads() { self.step(operation)? } else { Ok(Outcome::Skipped) };
            outcomes.push(step.unwrap_or(Outcome::Skipped));
        }
        Ok(outcomes)
    }

    fn value(&mut self, key: &Key) -> Result<Option<&Vec<u8>>, StoreError> {
        if let Some(changed) = self.changes.values.get(key) {
            return Ok(changed.as_ref());
        }
        if !self.read.contains_key(key) {
            let value = self.snapshot.value(key)?;
            self.read.insert(key.clone(), value);
        }
        Ok(self.read.get(key).and_then(Option::as_ref))
    }

    fn change(&mut self, key: &Key, change: &Change) -> Result<(), StoreError> {
        let value = match (change, self.changes.values.remove(key)) {
            (_, Some(changed)) => changed,
            (Change::PutRange { .. }, None) => self.value(key)?.cloned(),
            _ => None,
        };
        self.changes.values.insert(key.clone(), steps::change(value, change));
        Ok(())
    }

    fn log(&mut self, key: &Key) -> Result<&mut LogChange, StoreError> {
        if !self.changes.logs.contains_key(key) {
            let (first, last) = self.snapshot.bounds(key)?;
            let change =
                LogChange { first_before: first, last_before: last, first, last, appended: Vec::new(), emptied: false };
            self.changes.logs.insert(key.clone(), change);
        }
        Ok(self.changes.logs.get_mut(key).expect("just made sure"))
    }

    fn entries(&mut self, key: &Key, after: u64, count: u32) -> Result<Outcome, StoreError> {
        let log = match self.changes.logs.get(key) {
            Some(log) => log.clone(),
            None => {
                let (first, last) = self.snapshot.bounds(key)?;
                LogChange {
                    first_before: first,
                    last_before: last,
                    first,
                    last,
                    appended: Vec::new(),
                    emptied: first > last,
                }
            }
        };
        let from = after.saturating_add(1).max(log.first);
        let upto = from.saturating_add(u64::from(count)).min(log.last + 1);
        let stored = upto.min(log.last_before + 1);
        let mut entries = match !log.emptied && from < stored {
            true => self.snapshot.entries(key, from..=stored - 1)?,
            false => Vec::new(),
        };
        entries.extend(log.appended.iter().filter(|entry| (from..upto).contains(&entry.sequence)).cloned());
        Ok(Outcome::Entries { last: log.last, first: log.first, entries })
    }
}
