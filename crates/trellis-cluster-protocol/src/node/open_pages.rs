//! Pages that stay open to stores, on kernels that mark pages that are stored to.
//!
//! Protecting a page after each publication costs one mark of the kernel at its next store (0.9 µs on the reference
//! machine), and that mark only shows that the page was stored to again. So a page that was stored to before several
//! publications in a row stays open. Before the next publication it is compared with its twin; the comparison ends at the
//! first difference. Comparing a page that was not stored to costs as much as a mark (up to 0.8 µs if it has to be read
//! from memory), so such a page is soon protected again.
//!
//! Promises: a page that stays open is examined before every publication until it is protected again or taken away. A store
//! between the comparison and the protection is found by a second comparison. It must never leave a page open that has no
//! twin, and never read memory: its callers compare and protect.

use crate::coherence::Geometry;
use crate::page::{PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;

/// After this many publications in a row with stores to a page, the page stays open.
pub const STORED_IN_A_ROW: u8 = 3;
/// What is known about a page. For a protected page it is how many publications in a row the page was stored to; for an
/// open page, for how many more publications it may go without a store.
const COUNT: u8 = 3;
/// The page stays open.
const OPEN: u8 = 4;
/// The number of the publication with the last store, cut off to the bits that are left.
const PUBLICATION_SHIFT: u32 = 3;

/// The protocol's knowledge of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The next store to the page must be noticed by marks: the page is here, and the protocol does not already know of a
    /// store.
    pub(super) is_watched: bool,
    /// It has a twin.
    pub(super) has_twin: bool,
}

/// The open pages of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpenPages {
    stored_in_a_row: u8,
    /// One byte for each page. It is allocated when the first page is published.
    known: Vec<u8>,
    /// Pages that stay open, and some that no longer do.
    open: Vec<PageIndex>,
}

impl OpenPages {
    /// None yet. A page stays open after `stored_in_a_row` publications with stores to it. That is [`STORED_IN_A_ROW`], or
    /// less if a checker wants to see more open pages; at most 3.
    pub(super) fn new(stored_in_a_row: u8) -> OpenPages {
        debug_assert!((1..=COUNT).contains(&stored_in_a_row));
        OpenPages { stored_in_a_row, known: Vec::new(), open: Vec::new() }
    }

    /// Whether `page` stays open. If so, the kernel's marks say nothing about it.
    pub(super) fn is_open(&self, geometry: &Geometry, page: PageIndex) -> bool {
        self.known(geometry, page) & OPEN != 0
    }

    /// These pages were taken away or protected.
    pub(super) fn forget(&mut self, geometry: &Geometry, range: PageRange) {
        if !self.known.is_empty() {
            range.pages().for_each(|page| self.know(geometry, page, 0));
        }
    }

    /// Called after the pages of `range` were stored to and publication number `publication` has included those stores: the
    /// next store to each of them must be noticed. Calls `protect` with the ranges that must be protected for that. The
    /// other pages stay open.
    ///
    /// # Errors
    ///
    /// Those of `protect`.
    pub(super) fn published<E>(
        &mut self,
        geometry: &Geometry,
        range: PageRange,
        publication: u8,
        found: impl Fn(PageIndex) -> Found,
        mut protect: impl FnMut(PageRange) -> Result<(), E>,
    ) -> Result<(), E> {
        if !found(range.first()).is_watched {
            return protect(range);
        }
        let mut first = range.first().0;
        for page in range.pages() {
            if !found(page).has_twin {
                self.forget(geometry, PageRange::one(page));
            } else if self.stays_open(geometry, page, publication) {
                if let Some(run) = PageRange::new(PageIndex(first), page.0 - first) {
                    protect(run)?;
                }
                first = page.0 + 1;
            }
        }
        PageRange::new(PageIndex(first), range.end() - first).map_or(Ok(()), protect)
    }

    /// Called before a publication: appends to `stored` the open pages that were stored to. `differs` says whether a page
    /// differs from its twin now.
    ///
    /// # Errors
    ///
    /// Those of `protect`.
    pub(super) fn examine<E>(
        &mut self,
        geometry: &Geometry,
        found: impl Fn(PageIndex) -> Found,
        mut differs: impl FnMut(PageIndex) -> bool,
        mut protect: impl FnMut(PageIndex) -> Result<(), E>,
        stored: &mut Vec<PageIndex>,
    ) -> Result<(), E> {
        let mut open = core::mem::take(&mut self.open);
        let mut done = Ok(());
        open.retain(|&page| {
            if done.is_err() || !self.is_open(geometry, page) {
                return done.is_err();
            }
            let Found { is_watched, has_twin } = found(page);
            if !is_watched {
                self.forget(geometry, PageRange::one(page));
                return false;
            }
            if has_twin && differs(page) {
                stored.push(page);
                return true;
            }
            if has_twin && self.rests(geometry, page) {
                return true;
            }
            self.forget(geometry, PageRange::one(page));
            done = protect(page);
            // From here on the kernel marks stores. If there is a twin, it shows the stores before.
            if !has_twin || differs(page) {
                stored.push(page);
            }
            false
        });
        self.open = open;
        done
    }

    fn known(&self, geometry: &Geometry, page: PageIndex) -> u8 {
        self.known.get(geometry.slot(page)).copied().unwrap_or(0)
    }

    fn know(&mut self, geometry: &Geometry, page: PageIndex, known: u8) {
        self.known[geometry.slot(page)] = known;
    }

    /// Notes that `page`, which has a twin, is published. Returns whether it stays open.
    fn stays_open(&mut self, geometry: &Geometry, page: PageIndex, publication: u8) -> bool {
        if self.known.is_empty() {
            self.known = vec![0; geometry.slots()];
        }
        let known = self.known(geometry, page);
        let number = publication << PUBLICATION_SHIFT;
        if known & OPEN != 0 {
            self.know(geometry, page, number | OPEN | COUNT);
            return true;
        }
        let is_next = known & !(OPEN | COUNT) == publication.wrapping_sub(1) << PUBLICATION_SHIFT;
        let count = if is_next { (known & COUNT) + 1 } else { 1 };
        if count < self.stored_in_a_row {
            self.know(geometry, page, number | count);
            return false;
        }
        self.know(geometry, page, number | OPEN | COUNT);
        self.open.push(page);
        true
    }

    /// Notes that `page` was not stored to. Returns whether it stays open nevertheless.
    fn rests(&mut self, geometry: &Geometry, page: PageIndex) -> bool {
        let known = self.known(geometry, page);
        debug_assert!(known & OPEN != 0);
        let stays = known & COUNT > 1;
        self.know(geometry, page, if stays { known - 1 } else { 0 });
        stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::{Home, Interleaved};
    use crate::page::NodeId;

    const PAGE: PageIndex = PageIndex(7);
    const FOUND: Found = Found { is_watched: true, has_twin: true };

    const GEOMETRY: Geometry = Geometry {
        me: NodeId(0),
        nodes: 2,
        founders: 2,
        pages: 100,
        shard: 0,
        shards: 1,
        home: Home::Interleaved(Interleaved),
        marks: true,
    };

    fn open_pages() -> OpenPages {
        OpenPages::new(STORED_IN_A_ROW)
    }

    /// Whether the page stays open after this publication.
    fn publish(pages: &mut OpenPages, publication: u8) -> bool {
        let mut protected = false;
        let protect = |_| {
            protected = true;
            Ok::<(), ()>(())
        };
        pages.published(&GEOMETRY, PageRange::one(PAGE), publication, |_| FOUND, protect).unwrap();
        !protected
    }

    /// What the page does before a publication: the answers of the comparisons, one after the other.
    fn examine(pages: &mut OpenPages, has_twin: bool, answers: &[bool]) -> (Vec<PageIndex>, bool) {
        let mut answers = answers.iter();
        let (mut stored, mut protected) = (Vec::new(), false);
        let protect = |page| {
            assert_eq!(page, PAGE);
            protected = true;
            Ok::<(), ()>(())
        };
        let found = |_| Found { has_twin, ..FOUND };
        pages.examine(&GEOMETRY, found, |_| *answers.next().expect("a comparison"), protect, &mut stored).unwrap();
        assert_eq!(answers.next(), None, "comparisons that were not made");
        (stored, protected)
    }

    #[test]
    fn a_page_stays_open_from_the_third_publication_in_a_row_on() {
        let mut pages = open_pages();
        assert!(!publish(&mut pages, 10) && !publish(&mut pages, 11));
        assert!(!pages.is_open(&GEOMETRY, PAGE));
        assert!(publish(&mut pages, 12) && pages.is_open(&GEOMETRY, PAGE));
        assert!(publish(&mut pages, 20), "it is compared, whatever came between");
        assert_eq!(pages.open, [PAGE]);
    }

    #[test]
    fn publications_that_do_not_follow_one_another_do_not_count() {
        let mut pages = open_pages();
        for publication in (0..60).step_by(2) {
            assert!(!publish(&mut pages, publication), "{publication}");
        }
    }

    #[test]
    fn a_page_that_is_not_stored_to_is_protected_again() {
        let mut pages = open_pages();
        assert!((1..=3).any(|publication| publish(&mut pages, publication)));
        for _ in 0..2 {
            assert_eq!(examine(&mut pages, true, &[false]), (vec![], false));
        }
        assert_eq!(examine(&mut pages, true, &[true]), (vec![PAGE], false));
        assert!(publish(&mut pages, 6), "a store begins a new count");
        for _ in 0..2 {
            assert_eq!(examine(&mut pages, true, &[false]), (vec![], false));
        }
        assert_eq!(examine(&mut pages, true, &[false, false]), (vec![], true));
        assert!(!pages.is_open(&GEOMETRY, PAGE) && !publish(&mut pages, 7));
    }

    #[test]
    fn a_store_before_the_protection_is_found() {
        let mut pages = open_pages();
        assert!((1..=3).any(|publication| publish(&mut pages, publication)));
        examine(&mut pages, true, &[false]);
        examine(&mut pages, true, &[false]);
        assert_eq!(examine(&mut pages, true, &[false, true]), (vec![PAGE], true));
        assert_eq!(examine(&mut pages, true, &[]), (vec![], false), "it is not open any more");
    }

    #[test]
    fn a_page_without_a_twin_is_protected_and_counts_as_stored_to() {
        let mut pages = open_pages();
        assert!((1..=3).any(|publication| publish(&mut pages, publication)));
        assert_eq!(examine(&mut pages, false, &[]), (vec![PAGE], true));
        assert!(!pages.is_open(&GEOMETRY, PAGE));
    }

    #[test]
    fn only_the_pages_between_open_ones_are_protected() {
        let mut pages = open_pages();
        assert!((1..=3).any(|publication| publish(&mut pages, publication)));
        let mut protected = Vec::new();
        let protect = |run| {
            protected.push(run);
            Ok::<(), ()>(())
        };
        let range = PageRange::new(PageIndex(5), 5).unwrap();
        let found = |page: PageIndex| Found { has_twin: page.0 != 9, ..FOUND };
        assert_eq!(pages.published(&GEOMETRY, range, 4, found, protect), Ok(()));
        assert_eq!(protected, [PageRange::new(PageIndex(5), 2).unwrap(), PageRange::new(PageIndex(8), 2).unwrap()]);
    }

    #[test]
    fn what_is_taken_away_is_forgotten() {
        let mut pages = open_pages();
        pages.forget(&GEOMETRY, PageRange::one(PAGE));
        assert!((1..=3).any(|publication| publish(&mut pages, publication)));
        pages.forget(&GEOMETRY, PageRange::new(PageIndex(0), 8).unwrap());
        assert!(!pages.is_open(&GEOMETRY, PAGE) && !pages.is_open(&GEOMETRY, PageIndex(99)));
        assert_eq!(examine(&mut pages, true, &[]), (vec![], false));
    }
}
