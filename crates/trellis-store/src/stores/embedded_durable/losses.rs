//! Copies a damaged store into a new one, without the data that is meaningless after the loss.
//!
//! Promises: a value that has lost a part is left out as a whole, a log begins after its last gap, and every entry
//! belongs to a log. A reader of the new store thus gets a value as it was written, or none. It must never invent data.

use std::io;
use std::ops::Bound;

use redb::{Database, ReadableTable, StorageError, Table as RedbTable};

use super::format::{Between, Image, Place, Table, Visitor};
use super::rescue::{OnProgress, Progress};
use super::tables::{self, ENTRIES, HEAD_BYTES, LOGS, TAILS, VALUES};

/// The number of bytes that are committed together.
const TOGETHER_BYTES: usize = 8 << 20;

type Bytes = &'static [u8];

/// Copies the readable part of a table, and returns the key intervals that could not be read.
pub(super) fn copy(image: &Image, table: &Table, to: &Database, on_progress: OnProgress) -> io::Result<Vec<Between>> {
    let mut copier = Copier {
        table: &table.name,
        to,
        pairs: Vec::new(),
        pending_bytes: 0,
        lost: Vec::new(),
        done_bytes: 0,
        of_bytes: image.bytes(),
        on_progress,
    };
    image.read(table, &mut copier)?;
    copier.write()?;
    Ok(copier.lost)
}

struct Copier<'a, 'b> {
    table: &'a str,
    to: &'a Database,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    pending_bytes: usize,
    lost: Vec<Between>,
    done_bytes: u64,
    of_bytes: u64,
    on_progress: &'a mut (dyn FnMut(Progress) + 'b),
}

impl Copier<'_, '_> {
    fn write(&mut self) -> io::Result<()> {
        self.pending_bytes = 0;
        tables::put(self.to, self.table, &std::mem::take(&mut self.pairs)).map_err(io::Error::other)
    }
}

impl Visitor for Copier<'_, '_> {
    fn page(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        (self.on_progress)(Progress {
            step: "writing the new store",
            done_bytes: self.done_bytes,
            of_bytes: self.of_bytes,
        });
    }

    fn mended(&mut self, _place: Place) {}

    fn lost(&mut self, _place: Place, between: Between) {
        self.lost.push(between);
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.pairs.push((key.to_vec(), value.to_vec()));
        self.pending_bytes += key.len() + value.len();
        if self.pending_bytes >= TOGETHER_BYTES { self.write() } else { Ok(()) }
    }
}

/// Leaves out data that is meaningless without what was lost, and returns a description of it and the number of pairs.
pub(super) fn settle(
    store: &Database,
    lost: &[(&str, Between)],
    dropped: &mut dyn FnMut(String, u64),
) -> Result<(), redb::Error> {
    let transaction = store.begin_write()?;
    {
        let mut values = transaction.open_table(VALUES)?;
        let mut tails = transaction.open_table(TAILS)?;
        let mut logs = transaction.open_table(LOGS)?;
        let mut entries = transaction.open_table(ENTRIES)?;
        for (table, between) in lost {
            match *table {
                "tails" => leave_values_out(&mut values, &tails, between, dropped)?,
                "values" => leave_tails_out(&values, &mut tails, between)?,
                "logs" => leave_entries_out(&logs, &mut entries, between, dropped)?,
                _ => shorten_logs(&mut logs, &mut entries, between, dropped)?,
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Leaves out values whose tails may be among the lost data.
fn leave_values_out(
    values: &mut RedbTable<Bytes, Bytes>,
    tails: &RedbTable<Bytes, Bytes>,
    between: &Between,
    dropped: &mut dyn FnMut(String, u64),
) -> Result<(), StorageError> {
    let mut without = Vec::new();
    for pair in values.range::<&[u8]>(bounds(between))? {
        let (key, value) = pair?;
        if value.value().len() == HEAD_BYTES && tails.get(key.value())?.is_none() {
            without.push(key.value().to_vec());
        }
    }
    for key in without {
        values.remove(key.as_slice())?;
        dropped(format!("{} is left out: its end may be lost", tables::described("values", &key)), 1);
    }
    Ok(())
}

/// Leaves out tails of lost values: they would be taken for tails of later values.
fn leave_tails_out(
    values: &RedbTable<Bytes, Bytes>,
    tails: &mut RedbTable<Bytes, Bytes>,
    between: &Between,
) -> Result<(), StorageError> {
    let mut without = Vec::new();
    for pair in tails.range::<&[u8]>(bounds(between))? {
        let key = pair?.0.value().to_vec();
        if values.get(key.as_slice())?.is_none() {
            without.push(key);
        }
    }
    without.iter().try_for_each(|key| tails.remove(key.as_slice()).map(drop))
}

/// Leaves out entries of lost logs: a new log of the same number would contain them.
fn leave_entries_out(
    logs: &RedbTable<Bytes, (u64, u64)>,
    entries: &mut RedbTable<Bytes, Bytes>,
    (from, to): &Between,
    dropped: &mut dyn FnMut(String, u64),
) -> Result<(), StorageError> {
    let to = to.as_ref().map(|to| [&to[..], &[0xff; 16]].concat());
    let mut without = Vec::new();
    for pair in entries.range::<&[u8]>(bounds(&(from.clone(), to)))? {
        let key = pair?.0.value().to_vec();
        if logs.get(tables::log_of_entry(&key))?.is_none() {
            without.push(key);
        }
    }
    for key in without {
        entries.remove(key.as_slice())?;
        dropped(format!("{} is left out: its log is lost", tables::described("entries", &key)), 1);
    }
    Ok(())
}

/// Makes logs that have lost entries begin after their last gap. A reader that is further behind learns this from the
/// log's own bounds.
fn shorten_logs(
    logs: &mut RedbTable<Bytes, (u64, u64)>,
    entries: &mut RedbTable<Bytes, Bytes>,
    (from, to): &Between,
    dropped: &mut dyn FnMut(String, u64),
) -> Result<(), StorageError> {
    // A log whose first entries precede the first lost one is also affected.
    let log = |key: &Vec<u8>| tables::log_of_entry(key).to_vec();
    let (from, to) = (from.as_ref().map(log), to.as_ref().map(log));
    let start = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
    let mut shorter = Vec::new();
    for pair in logs.range::<&[u8]>((start, Bound::Unbounded))? {
        let (key, (first, last)) = pair.map(|(key, bounds)| (key.value().to_vec(), bounds.value()))?;
        if to.as_ref().is_some_and(|to| key > *to) {
            break;
        }
        let is_there = |sequence: u64| -> Result<bool, StorageError> {
            let entry = [&key[..], &sequence.to_be_bytes()].concat();
            entries.get(entry.as_slice()).map(|entry| entry.is_some())
        };
        let mut begins = last + 1;
        while begins > first && is_there(begins - 1)? {
            begins -= 1;
        }
        if begins > first {
            shorter.push((key, first, begins, last));
        }
    }
    for (key, first, begins, last) in shorter {
        let mut left_out = 0;
        for sequence in first..begins {
            let entry = [&key[..], &sequence.to_be_bytes()].concat();
            left_out += u64::from(entries.remove(entry.as_slice())?.is_some());
        }
        logs.insert(key.as_slice(), (begins, last))?;
        let log = tables::described("logs", &key);
        dropped(format!("{log} is left out up to entry {}: some of these are lost", begins - 1), left_out);
    }
    Ok(())
}

fn bounds((from, to): &Between) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (from.as_deref().map_or(Bound::Unbounded, Bound::Excluded), to.as_deref().map_or(Bound::Unbounded, Bound::Included))
}
