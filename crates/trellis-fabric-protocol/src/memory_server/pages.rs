//! A memory server's page table: eight bytes per page that decide whether an access is allowed.
//!
//! # Layout
//!
//! | offset | bytes | field | |
//! |---|---|---|---|
//! | 0 | 2 | generation | of the object that has the page, or of the next one that gets it; never 0 |
//! | 2 | 2 | valid bytes | 0 where no object is, less than a page only on an object's last one |
//! | 4 | 2 | flags | bit 0 first page of its object, bit 1 guarded; the others zero |
//! | 6 | 2 | laps | how often the generation wrapped around |
//!
//! An entry is in the byte order of the machine and aligned to eight bytes, so that it is read and written as a whole by
//! one load and one store: a program in the kernel that answers READ and WRITE shares the table, and must never see half an
//! entry. [`PageEntry::admits`] is what such a program has to compute. For a *guarded* page the lease server must be
//! asked first (because of a lease, a copy or a migration), so such a program leaves it to the server.
//!
//! Promises: an access inside one page is decided by one entry, and one to several pages by theirs; it never leaves the
//! object that it begins in. A pointer to a deleted object is refused until at least 65,535 more objects were made at this
//! server; after that a generation may come again.

use crate::wire::address::PAGE_BYTES;
use crate::wire::datagram::Status;
use alloc::vec;
use alloc::vec::Vec;

/// An entry of the page table. Its layout is shared: see the documentation of this module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C, align(8))]
pub struct PageEntry {
    /// The generation of the object that has the page, or of the next one that gets it; never 0.
    pub generation: u16,
    /// How many bytes of the page the object has; 0 if there is none.
    pub valid_bytes: u16,
    /// [`PageEntry::FIRST`] and [`PageEntry::GUARDED`].
    pub flags: u16,
    /// How often the generation wrapped around.
    pub laps: u16,
}

const _: () = {
    assert!(size_of::<PageEntry>() == 8 && align_of::<PageEntry>() == 8);
    assert!(core::mem::offset_of!(PageEntry, generation) == 0);
    assert!(core::mem::offset_of!(PageEntry, valid_bytes) == 2);
    assert!(core::mem::offset_of!(PageEntry, flags) == 4);
    assert!(core::mem::offset_of!(PageEntry, laps) == 6);
    assert!(PAGE_BYTES <= u16::MAX as u64);
};

impl PageEntry {
    /// The object begins with this page.
    pub const FIRST: u16 = 1;
    /// The lease server must be asked about this page.
    pub const GUARDED: u16 = 2;

    /// Whether `bytes` bytes from byte `at` of this page on may be accessed through a pointer of this generation. The page
    /// must be the one in which the access begins, or a later one, which must then not begin an object.
    pub const fn admits(self, generation: u16, at: u64, bytes: u64, is_begin: bool) -> Result<(), Status> {
        if self.generation != generation {
            Err(Status::Stale)
        } else if !is_begin && self.flags & PageEntry::FIRST != 0 || at + bytes > self.valid_bytes as u64 {
            Err(Status::Bounds)
        } else {
            Ok(())
        }
    }

    /// The generation, counted without wrapping around.
    const fn count(self) -> u32 {
        (self.laps as u32) << 16 | self.generation as u32
    }

    /// The entry after the object is deleted; pointers to the object of this entry are stale.
    pub(super) const fn without_object(self) -> PageEntry {
        if self.valid_bytes == 0 && self.generation != 0 && self.flags == 0 {
            return self;
        }
        PageEntry::empty(next(self.count()))
    }

    const fn empty(count: u32) -> PageEntry {
        PageEntry { generation: count as u16, valid_bytes: 0, flags: 0, laps: (count >> 16) as u16 }
    }
}

/// The one after `count` whose lower half, the generation, is not 0.
const fn next(count: u32) -> u32 {
    let next = count.wrapping_add(1);
    if next & 0xffff == 0 { next | 1 } else { next }
}

/// All entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PageTable {
    entries: Vec<PageEntry>,
}

impl PageTable {
    /// A table without objects. The generations begin at `generation`: a server that lost its memory chooses another one.
    pub(super) fn new(pages: u64, generation: u16) -> PageTable {
        PageTable { entries: vec![PageEntry::empty(u32::from(generation).max(1)); pages as usize] }
    }

    /// A table as a server wrote it. The error is a page whose entry no server wrote.
    pub(super) fn restored(entries: Vec<PageEntry>) -> Result<PageTable, u64> {
        let is_known = |entry: &PageEntry| {
            let flags = if entry.valid_bytes == 0 { 0 } else { PageEntry::FIRST | PageEntry::GUARDED };
            entry.generation != 0 && u64::from(entry.valid_bytes) <= PAGE_BYTES && entry.flags & !flags == 0
        };
        match entries.iter().position(|entry| !is_known(entry)) {
            Some(page) => Err(page as u64),
            None => Ok(PageTable { entries }),
        }
    }

    /// How many pages and bytes the object has that begins here. The error is a page that belongs to no object.
    pub(super) fn object_from(&self, first: u64) -> Result<(u64, u64), u64> {
        let rest = &self.entries[first as usize..];
        let begin = rest.first().filter(|entry| entry.flags & PageEntry::FIRST != 0).ok_or(first)?;
        let goes_on = |entry: &&PageEntry| entry.valid_bytes > 0 && entry.flags & PageEntry::FIRST == 0;
        let pages = 1 + rest[1..].iter().take_while(goes_on).count();
        let is_part = |(index, entry): (usize, &PageEntry)| {
            entry.count() == begin.count() && (index + 1 == pages || u64::from(entry.valid_bytes) == PAGE_BYTES)
        };
        match rest[..pages].iter().enumerate().position(|it| !is_part(it)) {
            Some(index) => Err(first + index as u64),
            None => Ok((pages as u64, rest[..pages].iter().map(|entry| u64::from(entry.valid_bytes)).sum())),
        }
    }

    pub(super) fn pages(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn entry(&self, page: u64) -> Option<PageEntry> {
        self.entries.get(usize::try_from(page).ok()?).copied()
    }

    /// Whether `bytes` bytes, at least one, from `offset` on may be accessed through a pointer of this generation.
    pub(super) fn check(&self, generation: u16, offset: u64, bytes: u64) -> Result<(), Status> {
        debug_assert!(bytes > 0);
        let end = offset.checked_add(bytes).ok_or(Status::Bounds)?;
        let mut from = offset;
        while from < end {
            let entry = self.entry(from / PAGE_BYTES).ok_or(Status::Bounds)?;
            let until = end.min((from / PAGE_BYTES + 1) * PAGE_BYTES);
            match entry.admits(generation, from % PAGE_BYTES, until - from, from == offset) {
                // After its end there is another object or none: the pointer itself is not stale.
                Err(_) if from != offset => return Err(Status::Bounds),
                other => other?,
            }
            from = until;
        }
        Ok(())
    }

    /// Gives the pages to an object of this many bytes. Returns its generation: one that none of them had.
    pub(super) fn give(&mut self, first: u64, pages: u64, bytes: u64) -> u16 {
        debug_assert!(bytes.div_ceil(PAGE_BYTES) == pages && pages > 0);
        let entries = &mut self.entries[first as usize..(first + pages) as usize];
        let count = entries.iter().map(|entry| entry.count()).max().unwrap_or(1);
        let mut left = bytes;
        for (index, entry) in entries.iter_mut().enumerate() {
            debug_assert_eq!(entry.valid_bytes, 0, "nobody has it");
            let valid_bytes = left.min(PAGE_BYTES) as u16;
            let flags = if index == 0 { PageEntry::FIRST } else { 0 };
            *entry = PageEntry { valid_bytes, flags, ..PageEntry::empty(count) };
            left -= u64::from(valid_bytes);
        }
        count as u16
    }

    /// Takes them back: pointers to the object are stale from now on.
    pub(super) fn take(&mut self, first: u64, pages: u64) {
        for entry in &mut self.entries[first as usize..(first + pages) as usize] {
            *entry = PageEntry::empty(next(entry.count()));
        }
    }

    /// Sets whether these pages are guarded; pages without an object are not.
    pub(super) fn guard(&mut self, first: u64, pages: u64, is_guarded: bool) {
        let end = first.saturating_add(pages).min(self.pages());
        for page in first.min(end)..end {
            let entry = &mut self.entries[page as usize];
            let is_guarded = is_guarded && entry.valid_bytes > 0;
            entry.flags = entry.flags & !PageEntry::GUARDED | if is_guarded { PageEntry::GUARDED } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_its_exact_size() {
        let mut table = PageTable::new(8, 5);
        let generation = table.give(2, 3, 2 * PAGE_BYTES + 7);
        assert_eq!(generation, 5);
        let start = 2 * PAGE_BYTES;
        let end = start + 2 * PAGE_BYTES + 7;
        assert_eq!(table.check(5, start, end - start), Ok(()));
        assert_eq!(table.check(5, start, end - start + 1), Err(Status::Bounds));
        assert_eq!(table.check(5, end - 1, 1), Ok(()));
        assert_eq!(table.check(5, end, 1), Err(Status::Bounds), "inside its last page");
        assert_eq!(table.check(5, start - 1, 1), Err(Status::Bounds), "no object is there");
        assert_eq!(table.check(4, start, 1), Err(Status::Stale));
        assert_eq!(table.check(5, 8 * PAGE_BYTES, 1), Err(Status::Bounds), "past the memory");
        assert_eq!(table.check(5, u64::MAX, 2), Err(Status::Bounds));
    }

    #[test]
    fn an_access_never_leaves_the_object_that_it_begins_in() {
        let mut table = PageTable::new(4, 1);
        assert_eq!(table.give(0, 2, 2 * PAGE_BYTES), table.give(2, 2, 2 * PAGE_BYTES), "the same generation beside it");
        assert_eq!(table.check(1, PAGE_BYTES, PAGE_BYTES), Ok(()));
        assert_eq!(table.check(1, PAGE_BYTES, PAGE_BYTES + 1), Err(Status::Bounds));
        assert_eq!(table.check(1, 2 * PAGE_BYTES, 1), Ok(()), "it may begin in the other one");
        table.take(2, 2);
        assert_eq!(table.check(1, PAGE_BYTES, PAGE_BYTES + 1), Err(Status::Bounds), "the pointer is not stale");
        assert_eq!(table.check(1, 2 * PAGE_BYTES, 1), Err(Status::Stale));
    }

    #[test]
    fn no_page_of_an_object_had_its_generation_before() {
        let mut table = PageTable::new(3, 0xfffe);
        for _ in 0..3 {
            let generation = table.give(0, 1, 1);
            assert_ne!(generation, 0);
            table.take(0, 1);
        }
        assert_eq!((table.entries[0].generation, table.entries[0].laps), (2, 1), "65534, 65535, 1, and then 2");
        assert_eq!(table.give(0, 3, 3 * PAGE_BYTES), 2, "later than what any of its pages had");
        assert!(table.entries.iter().all(|entry| (entry.generation, entry.laps) == (2, 1)));
        assert_eq!(PageTable::new(1, 0).give(0, 1, 1), 1, "0 is no generation");
    }

    #[test]
    fn a_table_that_no_server_wrote_is_refused() {
        let mut table = PageTable::new(6, 3);
        table.give(1, 3, 2 * PAGE_BYTES + 5);
        table.give(4, 1, 1);
        let entries = table.entries.clone();
        assert_eq!(PageTable::restored(entries.clone()), Ok(table.clone()));
        assert_eq!((table.object_from(1), table.object_from(4)), (Ok((3, 2 * PAGE_BYTES + 5)), Ok((1, 1))));
        assert_eq!(table.object_from(2), Err(2), "it does not begin here");
        let with = |page: usize, change: &dyn Fn(&mut PageEntry)| {
            let mut entries = entries.clone();
            change(&mut entries[page]);
            PageTable::restored(entries).and_then(|table| table.object_from(1))
        };
        assert_eq!(with(5, &|entry| entry.generation = 0), Err(5));
        assert_eq!(with(4, &|entry| entry.valid_bytes = 4097), Err(4));
        assert_eq!(with(3, &|entry| entry.flags = 4), Err(3), "a flag that does not exist");
        assert_eq!(with(0, &|entry| entry.flags = PageEntry::FIRST), Err(0), "no object is there");
        assert_eq!(with(2, &|entry| entry.valid_bytes = 4095), Err(2), "a hole in an object");
        assert_eq!(with(3, &|entry| entry.laps = 1), Err(3), "of another object");
        assert_eq!(with(4, &|entry| entry.flags = 0), Err(3), "then it would be one object with a hole");
    }

    #[test]
    fn only_pages_of_objects_are_guarded() {
        let mut table = PageTable::new(3, 1);
        table.give(1, 1, 10);
        table.guard(0, u64::MAX, true);
        let guarded = |table: &PageTable| [0, 1, 2].map(|page| table.entries[page].flags & PageEntry::GUARDED != 0);
        assert_eq!(guarded(&table), [false, true, false]);
        assert_eq!(table.entries[1].flags, PageEntry::FIRST | PageEntry::GUARDED);
        table.guard(1, 1, false);
        assert_eq!(guarded(&table), [false; 3]);
        table.guard(1, 1, true);
        table.take(1, 1);
        assert_eq!(guarded(&table), [false; 3], "with the object it ends");
        table.guard(7, 9, true);
    }
}
