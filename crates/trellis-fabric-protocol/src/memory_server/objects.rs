//! The objects of a memory server: ranges of whole pages, with an exact size.
//!
//! Promises: no page belongs to two objects. An object gets the smallest free range that suffices, the first of them, at
//! its lower end. Pages that are freed merge with their free neighbours, so after all objects are gone there is one range
//! of all pages. Pages that are elsewhere ([`Objects::lend`]) are given to no object. Finding a range takes logarithmic
//! time. It must never look at a byte of memory. Everything except the maker of an object is in the page table, so that the
//! objects can be restored from it.

use super::pages::{PageEntry, PageTable};
use super::sessions::Client;
use crate::wire::address::{Host, PAGE_BYTES};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use trellis_base::FreeRuns;

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// Its first page.
    pub first_page: u64,
    /// How many pages it has.
    pub pages: u64,
    /// Its size.
    pub bytes: u64,
    /// Of its pointers.
    pub generation: u16,
    /// The host that made it; the object counts against its quota.
    pub maker: Host,
    /// The session that it is deleted with, and the epoch of that session, if any.
    pub session: Option<(Client, u64)>,
}

impl Object {
    /// Its first byte.
    pub const fn offset(&self) -> u64 {
        self.first_page * PAGE_BYTES
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Objects {
    pub(super) table: PageTable,
    free: FreeRuns<u64>,
    /// By first page.
    live: BTreeMap<u64, Object>,
    objects_max: usize,
    /// Ranges that are elsewhere: number of pages by first page. Those of them that are free are not in `free`.
    lent: BTreeMap<u64, u64>,
}

impl Objects {
    /// No objects yet, in this many pages.
    pub(super) fn new(pages: u64, generation: u16, objects_max: usize) -> Objects {
        let mut objects = Objects {
            table: PageTable::new(pages, generation),
            free: FreeRuns::default(),
            live: BTreeMap::new(),
            objects_max,
            lent: BTreeMap::new(),
        };
        objects.free.insert(0..pages);
        objects
    }

    /// The objects that a page table describes. The error is a page whose entry no server wrote.
    pub(super) fn restored(
        entries: Vec<PageEntry>,
        objects_max: usize,
        mut maker: impl FnMut(u64) -> Host,
    ) -> Result<Objects, u64> {
        let table = PageTable::restored(entries)?;
        let mut objects = Objects { objects_max, ..Objects::new(0, 1, 0) };
        let (mut page, mut free_from) = (0, 0);
        while let Some(entry) = table.entry(page) {
            if entry.valid_bytes == 0 {
                page += 1;
                continue;
            }
            objects.free.insert(free_from..page);
            let (pages, bytes) = table.object_from(page)?;
            let generation = entry.generation;
            objects
                .live
                .insert(page, Object { first_page: page, pages, bytes, generation, maker: maker(page), session: None });
            page += pages;
            free_from = page;
        }
        objects.free.insert(free_from..page);
        objects.table = table;
        Ok(objects)
    }

    /// All objects, in the order of their places.
    pub(super) fn all(&self) -> impl Iterator<Item = &Object> {
        self.live.values()
    }

    /// Makes an object of this many bytes, at least one; `None` if no range suffices or there are too many objects.
    pub(super) fn create(&mut self, bytes: u64, maker: Host, session: Option<(Client, u64)>) -> Option<Object> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        debug_assert!(pages > 0);
        if self.live.len() >= self.objects_max {
            return None;
        }
        let first_page = self.free.take(pages, |run| Some(run.start))?;
        let generation = self.table.give(first_page, pages, bytes);
        let object = Object { first_page, pages, bytes, generation, maker, session };
        self.live.insert(first_page, object);
        Some(object)
    }

    /// Ends the object that begins at this page.
    pub(super) fn delete(&mut self, first_page: u64) -> Option<Object> {
        let object = self.live.remove(&first_page)?;
        debug_assert!(self.lent_in(first_page, object.pages).is_none(), "its pages are here");
        self.table.take(first_page, object.pages);
        self.free.insert(first_page..first_page + object.pages);
        Some(object)
    }

    /// These pages are elsewhere: no object is made in them until they are back. None of them is elsewhere already.
    pub(super) fn lend(&mut self, first: u64, pages: u64) {
        debug_assert!(self.lent_in(first, pages).is_none(), "they are at one place at a time");
        self.free.remove(first..first + pages);
        self.lent.insert(first, pages);
    }

    /// Notes that these pages are back.
    pub(super) fn take_back(&mut self, first: u64, pages: u64) {
        if self.lent.remove(&first) != Some(pages) {
            return debug_assert!(false, "they were lent as one");
        }
        let mut page = first;
        while page < first + pages {
            let Some(entry) = self.table.entry(page) else { break };
            if entry.valid_bytes == 0 {
                self.free.insert(page..page + 1);
            }
            page += 1;
        }
    }

    /// The first page of these that is elsewhere.
    pub(super) fn lent_in(&self, first: u64, pages: u64) -> Option<u64> {
        let before = self.lent.range(..=first).next_back().filter(|(start, length)| *start + *length > first);
        let after = self.lent.range(first..first + pages).next();
        before.map(|_| first).or(after.map(|(start, _)| *start))
    }

    /// The object that has this page.
    pub(super) fn at(&self, page: u64) -> Option<&Object> {
        let (_, object) = self.live.range(..=page).next_back()?;
        (page - object.first_page < object.pages).then_some(object)
    }

    pub(super) fn count(&self) -> usize {
        self.live.len()
    }

    pub(super) fn pages_free(&self) -> u64 {
        self.free.total()
    }

    /// The longest object that could be made, in pages.
    pub(super) fn longest_run(&self) -> u64 {
        self.free.longest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKER: Host = Host(3);

    fn create(objects: &mut Objects, bytes: u64) -> Option<(u64, u64)> {
        objects.create(bytes, MAKER, None).map(|object| (object.first_page, object.pages))
    }

    #[test]
    fn the_smallest_run_that_suffices_is_taken_and_neighbours_join() {
        let mut objects = Objects::new(100, 1, usize::MAX);
        assert_eq!(create(&mut objects, 10 * PAGE_BYTES), Some((0, 10)));
        assert_eq!(create(&mut objects, PAGE_BYTES + 1), Some((10, 2)));
        assert_eq!(create(&mut objects, 20 * PAGE_BYTES), Some((12, 20)));
        assert_eq!(create(&mut objects, 1), Some((32, 1)));
        assert_eq!(objects.delete(0).map(|object| object.pages), Some(10));
        assert_eq!(create(&mut objects, 3 * PAGE_BYTES), Some((0, 3)), "not from the 67 at the end");
        assert_eq!(objects.delete(12).map(|object| object.bytes), Some(20 * PAGE_BYTES));
        assert_eq!(create(&mut objects, 8 * PAGE_BYTES), Some((12, 8)));
        assert_eq!(create(&mut objects, 7 * PAGE_BYTES), Some((3, 7)), "exactly what was left there");
        assert_eq!(create(&mut objects, 68 * PAGE_BYTES), None);
        assert_eq!((objects.count(), objects.pages_free(), objects.longest_run()), (5, 79, 67));
        for first in [10, 0, 32, 12, 3] {
            assert!(objects.delete(first).is_some());
            assert_eq!(objects.delete(first), None, "only once");
        }
        assert_eq!((objects.count(), objects.pages_free(), objects.longest_run()), (0, 100, 100));
        assert_eq!(objects.free.runs().iter().count(), 1);
    }

    #[test]
    fn a_page_is_found_in_its_object() {
        let mut objects = Objects::new(10, 7, usize::MAX);
        create(&mut objects, 3 * PAGE_BYTES);
        create(&mut objects, 2 * PAGE_BYTES);
        let of = |objects: &Objects, page| objects.at(page).map(|object| object.first_page);
        assert_eq!(
            [0, 2, 3, 4, 5, 99].map(|page| of(&objects, page)),
            [Some(0), Some(0), Some(3), Some(3), None, None]
        );
        objects.delete(0);
        assert_eq!([0, 2, 3].map(|page| of(&objects, page)), [None, None, Some(3)]);
        assert_eq!(objects.at(4).map(|object| (object.offset(), object.generation)), Some((3 * PAGE_BYTES, 7)));
    }

    #[test]
    fn what_is_lent_is_given_to_nobody() {
        let mut objects = Objects::new(100, 1, usize::MAX);
        assert_eq!(create(&mut objects, 10 * PAGE_BYTES), Some((0, 10)));
        assert_eq!(create(&mut objects, 10 * PAGE_BYTES), Some((10, 10)));
        objects.lend(5, 10);
        objects.lend(40, 20);
        assert_eq!((objects.pages_free(), objects.longest_run()), (60, 40));
        assert_eq!(create(&mut objects, 40 * PAGE_BYTES), Some((60, 40)), "behind them");
        assert_eq!(create(&mut objects, 21 * PAGE_BYTES), None);
        assert_eq!(create(&mut objects, 20 * PAGE_BYTES), Some((20, 20)), "before them");
        assert_eq!(create(&mut objects, 1), None);
        let lent = [(0, 5), (0, 6), (14, 1), (15, 25), (15, 26), (59, 1), (60, 40), (3, 97)];
        let expected = [None, Some(5), Some(14), None, Some(40), Some(59), None, Some(5)];
        assert_eq!(lent.map(|(first, pages)| objects.lent_in(first, pages)), expected);
        objects.take_back(40, 20);
        objects.take_back(5, 10);
        assert_eq!((objects.pages_free(), objects.longest_run(), objects.lent_in(0, 100)), (20, 20, None));
        assert_eq!(create(&mut objects, 20 * PAGE_BYTES), Some((40, 20)));
        for first in [0, 10, 20, 40, 60] {
            assert!(objects.delete(first).is_some());
        }
        assert_eq!((objects.pages_free(), objects.longest_run(), objects.free.runs().iter().count()), (100, 100, 1));
    }

    #[test]
    fn there_are_no_more_objects_than_allowed() {
        let mut objects = Objects::new(10, 1, 2);
        assert!(create(&mut objects, 1).is_some() && create(&mut objects, 1).is_some());
        assert_eq!(create(&mut objects, 1), None);
        objects.delete(0);
        assert_eq!(create(&mut objects, 1), Some((0, 1)));
    }
}
