//! The tables of the file.
//!
//! | table | key | value |
//! |---|---|---|
//! | `values` | kind u8, region u32, number u64, name | the value, or its first 4,032 bytes |
//! | `tails` | the same | the rest of a value of 4,033 to 4,096 bytes |
//! | `logs` | region u32, number u64 | oldest kept number, newest number |
//! | `entries` | region u32, number u64, sequence u64 | the entry |
//!
//! All numbers in keys are big-endian, so that keys sort in the order of the numbers.
//!
//! A page of the file holds 4,096 bytes including the keys. A whole page of a region would therefore need two of them,
//! half empty, and twice the disk time. Without its tail it needs one, and the tail adds 64 bytes.

use std::ops::RangeInclusive;

use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableTable, StorageError, Table, TableDefinition, TableError,
    TableHandle, WriteTransaction,
};

use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::Entry;
use crate::transaction::{Changes, LogChange, Snapshot};

pub(super) const VALUES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("values");
pub(super) const TAILS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("tails");
pub(super) const LOGS: TableDefinition<&[u8], (u64, u64)> = TableDefinition::new("logs");
pub(super) const ENTRIES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");
/// The names of the tables in the file.
pub(super) const NAMES: [&str; 4] = ["values", "tails", "logs", "entries"];

/// How much of a whole page of a region fits into one page of the file together with its key.
pub(super) const HEAD_BYTES: usize = 4032;
/// Longer values need several pages of the file anyway.
const WITH_TAIL_BYTES_MAX: usize = 4096;

/// Region and number of a log.
const LOG_KEY_BYTES: usize = 12;

fn value_key(key: &Key) -> Vec<u8> {
    [&of_kind(key.region(), key.kind())[..], &key.number().to_be_bytes(), key.name().unwrap_or_default()].concat()
}

fn of_kind(region: u32, kind: Kind) -> Vec<u8> {
    [&[kind as u8][..], &region.to_be_bytes()].concat()
}

fn log_key(log: &Key) -> Vec<u8> {
    [&log.region().to_be_bytes()[..], &log.number().to_be_bytes()].concat()
}

fn entry_key(log: &Key, sequence: u64) -> Vec<u8> {
    [&log_key(log)[..], &sequence.to_be_bytes()].concat()
}

/// Puts pairs into a table unchanged, as they were read from another file.
pub(super) fn put(store: &Database, table: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), redb::Error> {
    let transaction = store.begin_write()?;
    if table == "logs" {
        let mut logs = transaction.open_table(LOGS)?;
        for (key, value) in pairs {
            let (first, last) = value.split_at(value.len() / 2);
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
            logs.insert(key.as_slice(), (number(first), number(last)))?;
        }
    } else if let Some(definition) = [VALUES, TAILS, ENTRIES].into_iter().find(|known| known.name() == table) {
        let mut table = transaction.open_table(definition)?;
        for (key, value) in pairs {
            table.insert(key.as_slice(), value.as_slice())?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// The key of the log that an entry belongs to.
pub(super) fn log_of_entry(key: &[u8]) -> &[u8] {
    &key[..key.len().min(LOG_KEY_BYTES)]
}

/// A description of a key of a table. A key that separates two pages of the file may be truncated.
pub(super) fn described(table: &str, key: &[u8]) -> String {
    let number = |at: usize, length: usize| {
        (at..at + length).fold(0, |number: u64, at| number << 8 | u64::from(key.get(at).copied().unwrap_or(0)))
    };
    match table {
        "logs" => format!("log {} of region {}", number(4, 8), number(0, 4)),
        "entries" => format!("entry {} of log {} of region {}", number(12, 8), number(4, 8), number(0, 4)),
        _ => {
            let kind = Kind::from_number(key.first().copied().unwrap_or(0));
            let (region, number) = (number(1, 4), number(5, 8));
            match kind {
                Some(Kind::Memory) => format!("page {number} of region {region}"),
                Some(Kind::Named) => {
                    let name = String::from_utf8_lossy(key.get(13..).unwrap_or_default());
                    format!("the key `{}` of region {region}", name.escape_debug())
                }
                Some(kind) => format!("{kind:?} {number} of region {region}"),
                None => "a key of no known kind".to_owned(),
            }
        }
    }
}

/// A description of what lies between two keys of a table.
pub(super) fn between(table: &str, (from, to): &(Option<Vec<u8>>, Option<Vec<u8>>)) -> String {
    let what = match table {
        "tails" => "the ends of values",
        table => table,
    };
    let key = |key: &Vec<u8>| described(table, key);
    match (from.as_ref().map(key), to.as_ref().map(key)) {
        (None, None) => format!("it has all {what}"),
        (Some(from), None) => format!("it has the {what} after {from}"),
        (None, Some(to)) => format!("it has the {what} up to {to}"),
        (Some(from), Some(to)) => format!("it has the {what} after {from}, up to {to}"),
    }
}

/// All tables, as of one moment.
pub(super) struct Read {
    store: String,
    values: ReadOnlyTable<&'static [u8], &'static [u8]>,
    tails: ReadOnlyTable<&'static [u8], &'static [u8]>,
    logs: ReadOnlyTable<&'static [u8], (u64, u64)>,
    entries: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl Read {
    pub(super) fn new(transaction: ReadTransaction, store: &str) -> Result<Read, StoreError> {
        let failed = |error: TableError| failed(store, &error);
        Ok(Read {
            store: store.to_owned(),
            values: transaction.open_table(VALUES).map_err(failed)?,
            tails: transaction.open_table(TAILS).map_err(failed)?,
            logs: transaction.open_table(LOGS).map_err(failed)?,
            entries: transaction.open_table(ENTRIES).map_err(failed)?,
        })
    }

    pub(super) fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        let failed = |error: StorageError| failed(&self.store, &error);
        let number = |bytes: &[u8]| bytes.last_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        let mut numbers = Vec::new();
        if kind == Kind::Log {
            let key = |number| log_key(&Key::new(region, kind, number));
            let range = self.logs.range::<&[u8]>(key(from).as_slice()..=key(u64::MAX).as_slice()).map_err(failed)?;
            for item in range.take(count) {
                numbers.push(number(item.map_err(failed)?.0.value()));
            }
            return Ok(numbers);
        }
        let key = |number| value_key(&Key::new(region, kind, number));
        let range = self.values.range::<&[u8]>(key(from).as_slice()..=key(u64::MAX).as_slice()).map_err(failed)?;
        for item in range.take(count) {
            numbers.push(number(item.map_err(failed)?.0.value()));
        }
        Ok(numbers)
    }

    pub(super) fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let failed = |error: StorageError| failed(&self.store, &error);
        let from = value_key(&Key::named(region, after.unwrap_or_default()));
        let prefix = from.len() - after.unwrap_or_default().len();
        let mut names = Vec::new();
        for item in self.values.range::<&[u8]>(from.as_slice()..).map_err(failed)? {
            let item = item.map_err(failed)?;
            let key = item.0.value();
            if names.len() == count || !key.starts_with(&from[..prefix]) {
                break;
            }
            if after.is_none_or(|after| &key[prefix..] > after) {
                names.push(key[prefix..].to_vec());
            }
        }
        Ok(names)
    }
}

impl Snapshot for Read {
    fn value(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        value(&self.values, &self.tails, key).map_err(|error| failed(&self.store, &error))
    }

    fn bounds(&mut self, log: &Key) -> Result<(u64, u64), StoreError> {
        bounds(&self.logs, log).map_err(|error| failed(&self.store, &error))
    }

    fn entries(&mut self, log: &Key, numbers: RangeInclusive<u64>) -> Result<Vec<Entry>, StoreError> {
        entries(&self.entries, log, numbers).map_err(|error| failed(&self.store, &error))
    }
}

/// All tables, while they are changed.
pub(super) struct Write<'a> {
    values: Table<'a, &'static [u8], &'static [u8]>,
    tails: Table<'a, &'static [u8], &'static [u8]>,
    logs: Table<'a, &'static [u8], (u64, u64)>,
    entries: Table<'a, &'static [u8], &'static [u8]>,
}

impl<'a> Write<'a> {
    pub(super) fn new(transaction: &'a WriteTransaction) -> Result<Write<'a>, TableError> {
        Ok(Write {
            values: transaction.open_table(VALUES)?,
            tails: transaction.open_table(TAILS)?,
            logs: transaction.open_table(LOGS)?,
            entries: transaction.open_table(ENTRIES)?,
        })
    }

    /// The current content, including this transaction's own writes.
    pub(super) fn snapshot<'b>(&'b self, store: &'b str) -> Uncommitted<'a, 'b> {
        Uncommitted { tables: self, store }
    }

    /// Writes the changes of a call.
    pub(super) fn write(&mut self, changes: &Changes) -> Result<(), StorageError> {
        for (key, value) in &changes.values {
            self.write_value(&value_key(key), value.as_deref())?;
        }
        for (log, change) in &changes.logs {
            self.write_log(log, change)?;
        }
        Ok(())
    }

    fn write_value(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), StorageError> {
        let (head, tail) = match value {
            Some(value) if (HEAD_BYTES + 1..=WITH_TAIL_BYTES_MAX).contains(&value.len()) => {
                let (head, tail) = value.split_at(HEAD_BYTES);
                (Some(head), Some(tail))
            }
            value => (value, None),
        };
        let before = match head {
            Some(head) => self.values.insert(key, head)?,
            None => self.values.remove(key)?,
        };
        // Only a value of this length can have a tail.
        let had_tail = before.is_some_and(|before| before.value().len() == HEAD_BYTES);
        match tail {
            Some(tail) => drop(self.tails.insert(key, tail)?),
            None if had_tail => drop(self.tails.remove(key)?),
            None => {}
        }
        Ok(())
    }

    fn write_log(&mut self, log: &Key, change: &LogChange) -> Result<(), StorageError> {
        let gone_before = if change.emptied { change.last_before + 1 } else { change.first };
        for sequence in change.first_before..gone_before {
            self.entries.remove(entry_key(log, sequence).as_slice())?;
        }
        for entry in &change.appended {
            self.entries.insert(entry_key(log, entry.sequence).as_slice(), entry.bytes.as_slice())?;
        }
        let key = log_key(log);
        if change.last == 0 {
            self.logs.remove(key.as_slice())?;
        } else {
            self.logs.insert(key.as_slice(), (change.first, change.last))?;
        }
        Ok(())
    }
}

/// The content that an uncommitted transaction sees.
pub(super) struct Uncommitted<'a, 'b> {
    tables: &'b Write<'a>,
    store: &'b str,
}

impl Snapshot for Uncommitted<'_, '_> {
    fn value(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        value(&self.tables.values, &self.tables.tails, key).map_err(|error| failed(self.store, &error))
    }

    fn bounds(&mut self, log: &Key) -> Result<(u64, u64), StoreError> {
        bounds(&self.tables.logs, log).map_err(|error| failed(self.store, &error))
    }

    fn entries(&mut self, log: &Key, numbers: RangeInclusive<u64>) -> Result<Vec<Entry>, StoreError> {
        entries(&self.tables.entries, log, numbers).map_err(|error| failed(self.store, &error))
    }
}

type Bytes = &'static [u8];

fn value(
    values: &impl ReadableTable<Bytes, Bytes>,
    tails: &impl ReadableTable<Bytes, Bytes>,
    key: &Key,
) -> Result<Option<Vec<u8>>, StorageError> {
    let key = value_key(key);
    let Some(head) = values.get(key.as_slice())? else { return Ok(None) };
    let head = head.value();
    if head.len() != HEAD_BYTES {
        return Ok(Some(head.to_vec()));
    }
    let mut value = Vec::with_capacity(WITH_TAIL_BYTES_MAX);
    value.extend_from_slice(head);
    if let Some(tail) = tails.get(key.as_slice())? {
        value.extend_from_slice(tail.value());
    }
    Ok(Some(value))
}

fn bounds(logs: &impl ReadableTable<Bytes, (u64, u64)>, log: &Key) -> Result<(u64, u64), StorageError> {
    Ok(logs.get(log_key(log).as_slice())?.map_or((1, 0), |bounds| bounds.value()))
}

fn entries(
    entries: &impl ReadableTable<Bytes, Bytes>,
    log: &Key,
    numbers: RangeInclusive<u64>,
) -> Result<Vec<Entry>, StorageError> {
    let (from, to) = (entry_key(log, *numbers.start()), entry_key(log, *numbers.end()));
    let mut found = Vec::new();
    for item in entries.range::<&[u8]>(from.as_slice()..=to.as_slice())? {
        let item = item?;
        let sequence = item.0.value().last_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        found.push(Entry { sequence, bytes: item.1.value().to_vec() });
    }
    Ok(found)
}

fn failed(store: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Protocol { store: store.to_owned(), reason: format!("its file fails: {error}") }
}
