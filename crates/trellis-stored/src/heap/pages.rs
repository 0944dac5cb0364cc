//! The free pages, and which of them may contain something.
//!
//! Promises: no page is allocated twice. Returned pages are merged with their free neighbours. The smallest range that
//! suffices is taken, and among these the one at the lowest address. A page counts as clean only if it was never
//! allocated, or reads as zero since it was released.

use std::ops::Range;

use trellis_base::{FreeRuns, Runs};

/// The maximum number of free pages that keep their content. Beyond this number, all are released.
pub(super) const WARM_PAGES_MAX: u64 = 1024;

#[derive(Debug, Default)]
pub(super) struct Pages {
    /// The number of the heap's first page, so that alignment refers to addresses.
    base_pages: u64,
    free: FreeRuns<u32>,
    /// Free pages that may not be zero.
    dirty: Runs<u32>,
    /// The dirty pages whose content was not released yet.
    warm: Runs<u32>,
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
        self.free.longest()
    }

    pub(super) fn free_runs(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.free.runs().iter()
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
        let first = self.free.take(pages, |run| {
            let aligned = (base + u64::from(run.start)).next_multiple_of(align) - base;
            (aligned + u64::from(pages) <= u64::from(run.end)).then_some(aligned as u32)
        })?;
        Some((first..first + pages, self.taken(first..first + pages)))
    }

    /// Takes exactly these pages, if they are free, and returns the clean ones.
    pub(super) fn take_exactly(&mut self, pages: Range<u32>) -> Option<Vec<Range<u32>>> {
        let run = self.free.runs().run_of(pages.start).filter(|run| run.end >= pages.end);
        run.map(|_| self.take_free(pages))
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
            self.take_free(run.clone());
        }
        warm
    }

    fn join(&mut self, pages: Range<u32>) {
        debug_assert!(self.free.runs().within(pages.clone()).is_empty(), "pages {pages:?} are free already");
        self.free.insert(pages);
    }

    /// Takes pages that are free.
    fn take_free(&mut self, pages: Range<u32>) -> Vec<Range<u32>> {
        self.free.remove(pages.clone());
        self.taken(pages)
    }

    /// Records that pages are free no longer, and returns the clean ones.
    fn taken(&mut self, pages: Range<u32>) -> Vec<Range<u32>> {
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
