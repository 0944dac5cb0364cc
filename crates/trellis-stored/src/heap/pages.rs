//! The free pages, and what is known of their contents.
//!
//! Promises: no page is allocated twice. Returned pages are merged with their free neighbours. The smallest range that
//! suffices is taken, and among these the one at the lowest address. A page counts as clean only if it was never
//! allocated, or reads as zero since it was released.

use std::collections::BTreeSet;
use std::ops::Range;

use super::intervals::Intervals;

/// How many free pages may keep their content; beyond this number, all are released.
pub(super) const WARM_PAGES_MAX: u64 = 1024;

#[derive(Debug, Default)]
pub(super) struct Pages {
    /// The number of the heap's first page, so that alignment refers to addresses.
    base_pages: u64,
    free: Intervals,
    /// The same ranges, by size.
    by_size: BTreeSet<(u32, u32)>,
    /// Free pages that may not be zero.
    dirty: Intervals,
    /// Those of them whose content was not released yet.
    warm: Intervals,
}

impl Pages {
    pub(super) fn new(base_pages: u64) -> Pages {
        Pages { base_pages, ..Pages::default() }
    }

    pub(super) fn free_pages(&self) -> u64 {
        self.free.total()
    }

    pub(super) fn warm_pages(&self) -> u64 {
        self.warm.total()
    }

    #[cfg(test)]
    fn longest(&self) -> u32 {
        self.by_size.last().map_or(0, |&(pages, _)| pages)
    }

    pub(super) fn free_runs(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.free.iter()
    }

    /// Adds pages.
    pub(super) fn insert(&mut self, pages: Range<u32>, is_clean: bool) {
        if pages.is_empty() {
            return;
        }
        if !is_clean {
            self.dirty.insert(pages.clone());
        }
        self.join(pages);
    }

    /// Takes contiguous pages, the first at a multiple of `align_pages`; returns them and the clean ones among them.
    pub(super) fn take(&mut self, pages: u32, align_pages: u32) -> Option<(Range<u32>, Vec<Range<u32>>)> {
        debug_assert!(pages > 0 && align_pages.is_power_of_two());
        let (base, align) = (self.base_pages, u64::from(align_pages));
        let first = self.by_size.range((pages, 0)..).find_map(|&(run_pages, first)| {
            let aligned = (base + u64::from(first)).next_multiple_of(align) - base;
            (aligned + u64::from(pages) <= u64::from(first) + u64::from(run_pages)).then_some(aligned as u32)
        })?;
        Some((first..first + pages, self.cut(first..first + pages)))
    }

    /// Takes exactly these pages, if they are free, and returns the clean ones.
    pub(super) fn take_exactly(&mut self, pages: Range<u32>) -> Option<Vec<Range<u32>>> {
        let run = self.free.run_of(pages.start)?;
        (run.end >= pages.end).then(|| self.cut(pages))
    }

    /// Returns pages with whatever content they have.
    pub(super) fn give_back(&mut self, pages: Range<u32>) {
        self.dirty.insert(pages.clone());
        self.warm.insert(pages.clone());
        self.join(pages);
    }

    /// Removes every warm page, to be released and returned with [`Pages::insert`].
    pub(super) fn take_warm(&mut self) -> Vec<Range<u32>> {
        let warm: Vec<_> = self.warm.iter().collect();
        for run in &warm {
            self.cut(run.clone());
        }
        warm
    }

    fn join(&mut self, pages: Range<u32>) {
        debug_assert!(self.free.within(pages.clone()).is_empty(), "pages {pages:?} are free already");
        if let Some(before) = pages.start.checked_sub(1).and_then(|page| self.free.run_of(page)) {
            self.by_size.remove(&(before.end - before.start, before.start));
        }
        if let Some(after) = self.free.run_of(pages.end) {
            self.by_size.remove(&(after.end - after.start, after.start));
        }
        let run = self.free.insert(pages);
        self.by_size.insert((run.end - run.start, run.start));
    }

    fn cut(&mut self, pages: Range<u32>) -> Vec<Range<u32>> {
        let run = self.free.run_of(pages.start).expect("pages that are taken are free");
        assert!(pages.end <= run.end, "pages that are taken are free");
        self.by_size.remove(&(run.end - run.start, run.start));
        self.free.remove(pages.clone());
        for rest in [run.start..pages.start, pages.end..run.end] {
            if !rest.is_empty() {
                self.by_size.insert((rest.end - rest.start, rest.start));
            }
        }
        let clean = self.dirty.gaps(pages.clone());
        self.dirty.remove(pages.clone());
        self.warm.remove(pages);
        clean
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of runs may have one")]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_run_is_taken_and_runs_join() {
        let mut pages = Pages::new(0);
        pages.insert(0..100, true);
        let (a, clean) = pages.take(10, 1).unwrap();
        assert_eq!((a.clone(), clean), (0..10, vec![0..10]));
        let (b, _) = pages.take(20, 1).unwrap();
        let (c, _) = pages.take(5, 1).unwrap();
        assert_eq!((b.clone(), c.clone()), (10..30, 30..35));
        pages.give_back(b);
        assert_eq!((pages.free_pages(), pages.longest(), pages.warm_pages()), (85, 65, 20));
        let (again, clean) = pages.take(20, 1).unwrap();
        assert_eq!((again.clone(), clean), (10..30, vec![]), "the smallest that suffices, and it was used");
        pages.give_back(a);
        pages.give_back(c);
        pages.give_back(again);
        assert_eq!(pages.free_runs().collect::<Vec<_>>(), vec![0..100]);
        let (all, clean) = pages.take(100, 1).unwrap();
        assert_eq!((all, clean), (0..100, vec![35..100]));
        assert!(pages.take(1, 1).is_none());
    }

    #[test]
    fn released_pages_are_clean_where_they_read_as_zero() {
        let mut pages = Pages::new(0);
        pages.insert(0..64, true);
        let (a, _) = pages.take(64, 1).unwrap();
        pages.give_back(a);
        let warm = pages.take_warm();
        assert_eq!((warm.clone(), pages.free_pages()), (vec![0..64], 0));
        pages.insert(0..32, true);
        pages.insert(32..64, false);
        assert_eq!((pages.warm_pages(), pages.longest()), (0, 64));
        assert_eq!(pages.take_exactly(0..64), Some(vec![0..32]));
        assert_eq!(pages.take_exactly(0..1), None);
    }

    #[test]
    fn alignment_is_that_of_the_address() {
        let mut pages = Pages::new(3);
        pages.insert(0..64, true);
        let (run, _) = pages.take(2, 16).unwrap();
        assert_eq!(run, 13..15);
        assert!(pages.take(50, 64).is_none());
        assert_eq!(pages.free_pages(), 62);
    }
}
