//! The object table of a range in the form of pages, by which a home sends its objects to its backups, and from which an
//! heir restores them.
//!
//! # Layout
//!
//! The *P* pages of a range that clients can name are followed by its *table pages*, [`table_pages`] of them. They are
//! staged, stored by backups and applied like a commit ([`crate::lease`]), and no client has a lease of one. Each has a
//! record for each of 128 pages of the range:
//!
//! | offset | bytes | field | |
//! |---|---|---|---|
//! | 0 | 8 | entry | of the page table ([`PageEntry`]), little-endian, without the bit *guarded* |
//! | 8 | 8 | since | an epoch; what the page held before it is of an object that is gone |
//! | 16 | 8 | pages | of the object, at its first page; 0 at others |
//! | 24 | 2 | maker | the host that made the object, at its first page; 0 at others |
//! | 26 | 6 | | zero |
//!
//! # Promises
//!
//! A page of a new object reads as zero wherever the table says that the object was made, whatever arrived before, later or
//! not at all: a backup zeroes a page whose version is older than `since` ([`TablePages::replace`]), and keeps one that is
//! not. An object with missing records must never be restored: either its pointer was never answered to a client, or a
//! client was already told that it is gone ([`TablePages::objects`]).

use super::pages::PageEntry;
use super::{MemoryServer, Object};
use crate::lease::Epoch;
use crate::wire::address::{Host, PAGE_BYTES};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a record.
const RECORD_BYTES: usize = 32;
/// The number of pages that a table page describes.
pub const RECORDS: u64 = PAGE_BYTES / RECORD_BYTES as u64;

/// The number of table pages of a range of this many pages.
pub const fn table_pages(pages: u64) -> u64 {
    pages.div_ceil(RECORDS)
}

/// The record of a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// Its entry of the page table, without [`PageEntry::GUARDED`].
    pub entry: PageEntry,
    /// What the page held before this epoch belongs to an object that is gone.
    pub since: Epoch,
    /// The number of pages of the object that begins here; 0 if none does.
    pub pages: u64,
    /// The host that made it.
    pub maker: Host,
}

/// No record has arrived.
const UNKNOWN: Record = Record {
    entry: PageEntry { generation: 0, valid_bytes: 0, flags: 0, laps: 0 },
    since: 0,
    pages: 0,
    maker: Host::ANYWHERE,
};

/// All table pages of a range. At its home they are as every backup has them, at a backup as they arrived last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePages {
    records: Vec<Record>,
}

/// A table page, or its next content.
pub type TablePage = Vec<Record>;

impl TablePages {
    /// The table pages of a range of this many pages, of which none has arrived.
    pub fn unknown(pages: u64) -> TablePages {
        TablePages { records: vec![UNKNOWN; pages as usize] }
    }

    /// The table pages of a server in its present state.
    pub fn of(server: &MemoryServer) -> TablePages {
        let pages = server.statistics();
        let pages = pages.pages_used + pages.pages_free;
        TablePages { records: (0..pages).map(|page| Record::of(server, page, 0)).collect() }
    }

    /// The table pages of a part that is split off: the pages of an object in it form an object of their own. Its maker
    /// is not included: only the range counts quotas.
    ///
    /// # Panics
    ///
    /// When there are not so many pages.
    #[must_use]
    pub fn part(&self, pages: Range<u64>) -> TablePages {
        TablePages::of_part(self.records[pages.start as usize..pages.end as usize].iter().copied())
    }

    /// The same, in the state when every backup has what the server has. Records that differ from the ones here get
    /// `since`.
    ///
    /// # Panics
    ///
    /// When there are not so many pages.
    #[must_use]
    pub fn part_to_be(&self, pages: Range<u64>, server: &MemoryServer, since: Epoch) -> TablePages {
        TablePages::of_part(pages.map(|page| {
            let known = self.record(page);
            let now = Record::of(server, page, known.since);
            if now == known { known } else { Record { since, ..now } }
        }))
    }

    fn of_part(split: impl Iterator<Item = Record>) -> TablePages {
        let mut records: Vec<Record> = Vec::new();
        let mut first = 0;
        for (at, known) in split.enumerate() {
            let PageEntry { generation, laps, valid_bytes, flags } = known.entry;
            let goes_on = records.last().is_some_and(|before: &Record| {
                let is_full = u64::from(before.entry.valid_bytes) == PAGE_BYTES;
                is_full
                    && flags & PageEntry::FIRST == 0
                    && (generation, laps) == (before.entry.generation, before.entry.laps)
            });
            let is_first = valid_bytes > 0 && !goes_on;
            let entry = PageEntry { flags: if is_first { PageEntry::FIRST } else { 0 }, ..known.entry };
            records.push(Record { entry, pages: 0, maker: Host::ANYWHERE, ..known });
            if is_first {
                first = at;
            }
            if valid_bytes > 0 {
                records[first].pages += 1;
            }
        }
        TablePages { records }
    }

    /// The number of pages that clients can name.
    pub fn pages(&self) -> u64 {
        self.records.len() as u64
    }

    /// The record of a page.
    pub fn record(&self, page: u64) -> Record {
        self.records[page as usize]
    }

    /// The table page that describes the page, counted from the first table page.
    pub const fn number_of(page: u64) -> u64 {
        page / RECORDS
    }

    /// The content that a table page would have now at the server; records that differ from the ones here get `since`.
    /// `None` if nothing differs.
    pub fn changed(&self, number: u64, server: &MemoryServer, since: Epoch) -> Option<TablePage> {
        let (first, last) = self.range(number);
        let mut is_changed = false;
        let renewed = (first..last).map(|page| {
            let known = self.record(page);
            let now = Record::of(server, page, known.since);
            is_changed |= now != known;
            if now == known { known } else { Record { since, ..now } }
        });
        let renewed = renewed.collect();
        is_changed.then_some(renewed)
    }

    /// Puts a table page in its place. Returns the pages that now belong to another object, and since which epoch.
    ///
    /// # Panics
    ///
    /// When it has other records than that page.
    pub fn replace(&mut self, number: u64, page: &[Record]) -> Vec<(u64, Epoch)> {
        let (first, last) = self.range(number);
        let known = &mut self.records[first as usize..last as usize];
        let mut changed = Vec::new();
        for (at, (known, now)) in known.iter().zip(page).enumerate() {
            if (known.entry, known.since) != (now.entry, now.since) {
                changed.push((first + at as u64, now.since));
            }
        }
        known.copy_from_slice(page);
        changed
    }

    /// The bytes of a table page as it is here.
    pub fn bytes(&self, number: u64) -> Vec<u8> {
        let (first, last) = self.range(number);
        bytes_of(&self.records[first as usize..last as usize])
    }

    /// Decodes the bytes of a table page; no bytes stand for all zero. `None` if they cannot be one.
    pub fn read(&self, number: u64, bytes: &[u8]) -> Option<TablePage> {
        let (first, last) = self.range(number);
        let count = (last - first) as usize;
        if bytes.is_empty() {
            return Some(vec![UNKNOWN; count]);
        }
        let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
        let is_whole = rest.is_empty() && records.len() as u64 == RECORDS;
        let is_empty = |record: &[u8; RECORD_BYTES]| *record == [0; RECORD_BYTES];
        if !is_whole || !records[count..].iter().all(is_empty) {
            return None;
        }
        records[..count].iter().map(Record::decode).collect()
    }

    /// The page table that these records describe, for [`MemoryServer::restored`], and the makers of objects by first page.
    /// Pages of an incomplete object are free.
    pub fn objects(&self) -> (Vec<PageEntry>, BTreeMap<u64, Host>) {
        let (mut entries, mut makers) = (Vec::with_capacity(self.records.len()), BTreeMap::new());
        while entries.len() < self.records.len() {
            let page = entries.len();
            let record = &self.records[page];
            match self.whole(page) {
                Some(object) => {
                    makers.insert(page as u64, record.maker);
                    entries.extend(object.iter().map(|record| record.entry));
                }
                None => entries.push(record.entry.without_object()),
            }
        }
        (entries, makers)
    }

    /// The records of the object that begins here, if it is whole.
    fn whole(&self, first: usize) -> Option<&[Record]> {
        let begin = &self.records[first];
        let end = first.checked_add(usize::try_from(begin.pages).ok()?)?;
        let object = self.records.get(first..end)?;
        let is_part = |(at, record): (usize, &Record)| {
            let flags = if at == 0 { PageEntry::FIRST } else { 0 };
            let PageEntry { generation, valid_bytes, laps, .. } = record.entry;
            let is_filled = u64::from(valid_bytes) == PAGE_BYTES
                || at + 1 == object.len() && valid_bytes > 0 && u64::from(valid_bytes) < PAGE_BYTES;
            let is_same = (generation, laps) == (begin.entry.generation, begin.entry.laps);
            record.entry.flags == flags && generation != 0 && is_filled && is_same
        };
        (!object.is_empty() && object.iter().enumerate().all(is_part)).then_some(object)
    }

    fn range(&self, number: u64) -> (u64, u64) {
        let first = number * RECORDS;
        assert!(first < self.pages(), "there are {} table pages, and {number} is none", table_pages(self.pages()));
        (first, self.pages().min(first + RECORDS))
    }
}

/// The bytes of a table page.
pub fn bytes_of(page: &[Record]) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES as usize];
    for (bytes, record) in bytes.as_chunks_mut::<RECORD_BYTES>().0.iter_mut().zip(page) {
        record.encode(bytes);
    }
    bytes
}

impl Record {
    fn of(server: &MemoryServer, page: u64, since: Epoch) -> Record {
        let Some(entry) = server.page(page) else { return UNKNOWN };
        let entry = PageEntry { flags: entry.flags & !PageEntry::GUARDED, ..entry };
        let object = server.object(page).filter(|object| object.first_page == page);
        let (pages, maker) = object.map_or((0, Host::ANYWHERE), |Object { pages, maker, .. }| (pages, maker));
        Record { entry, since, pages, maker }
    }

    fn encode(&self, bytes: &mut [u8; RECORD_BYTES]) {
        let PageEntry { generation, valid_bytes, flags, laps } = self.entry;
        for (at, field) in [(0, generation), (2, valid_bytes), (4, flags), (6, laps), (24, self.maker.0)] {
            bytes[at..at + 2].copy_from_slice(&field.to_le_bytes());
        }
        bytes[8..16].copy_from_slice(&self.since.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.pages.to_le_bytes());
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let eight = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let entry = PageEntry { generation: two(0), valid_bytes: two(2), flags: two(4), laps: two(6) };
        let record = Record { entry, since: eight(8), pages: eight(16), maker: Host(two(24)) };
        let is_known = bytes[26..] == [0; 6] && entry.flags & !PageEntry::FIRST == 0;
        is_known.then_some(record)
    }
}

#[cfg(test)]
mod tests;
