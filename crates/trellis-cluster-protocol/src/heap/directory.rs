//! The directory of the heap: which node has which pages. One node keeps it for all.
//!
//! Promises: no page is granted twice. Spans come from the end of the region downwards, unless that would waste pages.
//! Pages that come back are merged with their free neighbours. Finding room takes logarithmic time, unless an alignment of
//! more than a page was requested.

use super::{Geometry, Run, Zone};
use crate::page::NodeId;
use alloc::collections::BTreeMap;
use core::ops::Range;
use trellis_base::FreeRuns;

/// The largest number of spans at a time.
pub const SPANS_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Directory {
    geometry: Geometry,
    lower: FreePages,
    upper: FreePages,
    /// Granted spans: number of pages and owner by first page.
    granted: BTreeMap<u32, (u32, NodeId)>,
}

/// The pages of a zone that nobody has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FreePages {
    free: FreeRuns<u32>,
    /// Pages below this one were never granted: they are zero, as at the start.
    untouched_end: u32,
}

impl FreePages {
    fn new(pages: Range<u32>) -> FreePages {
        let mut free = FreeRuns::default();
        let untouched_end = pages.end;
        free.insert(pages);
        FreePages { free, untouched_end }
    }
}

impl Directory {
    pub(super) fn new(geometry: Geometry) -> Directory {
        let of = |zone| FreePages::new(geometry.zone(zone));
        Directory { geometry, lower: of(Zone::Lower), upper: of(Zone::Upper), granted: BTreeMap::new() }
    }

    fn zone(&mut self, zone: Zone) -> &mut FreePages {
        match zone {
            Zone::Lower => &mut self.lower,
            Zone::Upper => &mut self.upper,
        }
    }

    /// Grants `owner` this many consecutive pages of a zone, and returns whether none of them was granted before. The
    /// error is the length of the longest free range there, or [`u32::MAX`] if there are [`SPANS_MAX`] spans.
    pub(super) fn grant(
        &mut self,
        owner: NodeId,
        zone: Zone,
        pages: u32,
        align_pages: u32,
    ) -> Result<(Run, bool), u32> {
        debug_assert!(pages > 0 && align_pages.is_power_of_two());
        if self.granted.len() >= SPANS_MAX {
            return Err(u32::MAX);
        }
        // Alignments are those of addresses.
        let base = self.geometry.base_pages;
        let highest = |run: Range<u32>| {
            let first = run.end - pages;
            let past = ((base + u64::from(first)) % u64::from(align_pages)) as u32;
            (first - run.start >= past).then(|| first - past)
        };
        let from = self.zone(zone);
        let first = from.free.take(pages, highest).ok_or(from.free.longest())?;
        let is_fresh = first + pages <= from.untouched_end;
        from.untouched_end = from.untouched_end.min(first);
        self.granted.insert(first, (pages, owner));
        Ok((Run { first, pages }, is_fresh))
    }

    /// Takes a span back; false if `owner` does not have exactly this one.
    pub(super) fn take_back(&mut self, owner: NodeId, run: Run) -> bool {
        if self.granted.get(&run.first) != Some(&(run.pages, owner)) {
            return false;
        }
        self.granted.remove(&run.first);
        let zone = self.geometry.zone_of(run.first);
        self.zone(zone).free.insert(run.first..run.first + run.pages);
        true
    }

    /// The node that has this page.
    pub(super) fn owner_of(&self, page: u32) -> Option<NodeId> {
        let (&first, &(pages, owner)) = self.granted.range(..=page).next_back()?;
        (page - first < pages).then_some(owner)
    }

    pub(super) fn pages_free(&self) -> u64 {
        self.lower.free.total() + self.upper.free.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn directory(pages: Range<u32>, border_page: u32, base_pages: u64) -> Directory {
        Directory::new(Geometry {
            me: A,
            directory: A,
            first_page: pages.start,
            border_page,
            end_page: pages.end,
            page_bytes: 4096,
            base_pages,
        })
    }

    const LOWER: Zone = Zone::Lower;

    #[test]
    fn spans_come_from_the_end_and_join_when_they_come_back() {
        let mut directory = directory(10..100, 100, 0);
        let (first, fresh) = directory.grant(A, LOWER, 10, 1).unwrap();
        assert_eq!((first, fresh), (Run { first: 90, pages: 10 }, true));
        let (second, _) = directory.grant(B, LOWER, 20, 1).unwrap();
        assert_eq!(second, Run { first: 70, pages: 20 });
        assert_eq!(directory.grant(A, LOWER, 61, 1), Err(60));
        assert_eq!((directory.owner_of(89), directory.owner_of(90)), (Some(B), Some(A)));
        assert!(!directory.take_back(A, second), "it is not theirs");
        assert!(!directory.take_back(B, Run { first: 70, pages: 19 }), "it is not all of it");
        assert!(directory.take_back(A, first));
        assert!(!directory.take_back(A, first), "it is not theirs any more");
        assert_eq!(directory.owner_of(95), None);
        let (again, fresh) = directory.grant(B, LOWER, 4, 1).unwrap();
        assert_eq!((again, fresh), (Run { first: 96, pages: 4 }, false), "the smallest run, and used before");
        assert!(directory.take_back(B, again) && directory.take_back(B, second));
        assert_eq!(directory.grant(A, LOWER, 90, 1), Ok((Run { first: 10, pages: 90 }, false)), "all of it joined");
        assert_eq!(directory.grant(A, LOWER, 1, 1), Err(0));
    }

    #[test]
    fn alignment_is_that_of_the_address() {
        let mut directory = directory(0..64, 64, 3);
        let (run, _) = directory.grant(A, LOWER, 2, 16).unwrap();
        assert_eq!((run.first + 3) % 16, 0);
        assert_eq!(run.first, 61, "the highest place that fits");
        assert_eq!(directory.grant(A, LOWER, 50, 64), Err(61), "no place is aligned to that");
        assert_eq!(directory.pages_free(), 62);
    }

    #[test]
    fn zones_have_their_own_pages() {
        let mut directory = directory(0..64, 16, 0);
        let (upper, lower) = (directory.grant(A, Zone::Upper, 4, 1), directory.grant(A, LOWER, 4, 1));
        assert_eq!(upper, Ok((Run { first: 60, pages: 4 }, true)));
        assert_eq!(lower, Ok((Run { first: 12, pages: 4 }, true)), "fresh, although pages above were granted");
        assert_eq!(directory.grant(B, LOWER, 13, 1), Err(12));
        assert_eq!(directory.pages_free(), 56);
        assert!(
            directory.take_back(A, Run { first: 60, pages: 4 }) && directory.take_back(A, Run { first: 12, pages: 4 })
        );
        assert_eq!(directory.grant(B, LOWER, 16, 1), Ok((Run { first: 0, pages: 16 }, false)));
        assert_eq!(directory.grant(B, Zone::Upper, 48, 1), Ok((Run { first: 16, pages: 48 }, false)));
    }
}
