//! The place of a page of a space: which object, and where in it.
//!
//! Promises: neighbouring pages are distributed over the servers in turn, in groups that are large enough for a server to
//! get contiguous ranges, so that a sequential read is served by all servers at once. Each page has one place. Pure; must
//! never access a server.

use super::super::Host;
use super::PAGE_BYTES;

/// The number of neighbouring pages that go to one server before the next.
pub(super) const RUN_PAGES: u64 = 64;

/// A place: the number of an object, and a page in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) object: u64,
    pub(super) page: u64,
}

/// The servers, and the size of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    homes: Vec<Host>,
    object_pages: u64,
}

impl Placement {
    /// `object_bytes` is a multiple of a group; there is at least one home, which may be *anywhere*.
    pub(super) fn new(homes: Vec<Host>, object_bytes: u64) -> Placement {
        let object_pages = object_bytes / PAGE_BYTES as u64;
        assert!(!homes.is_empty() && object_pages > 0 && object_pages.is_multiple_of(RUN_PAGES), "checked before");
        Placement { homes, object_pages }
    }

    pub(super) fn object_pages(&self) -> u64 {
        self.object_pages
    }

    pub(super) fn of(&self, page: u64) -> Place {
        let homes = self.homes.len() as u64;
        let (run, in_run) = (page / RUN_PAGES, page % RUN_PAGES);
        let (home, of_home) = (run % homes, run / homes);
        let runs = self.object_pages / RUN_PAGES;
        Place { object: of_home / runs * homes + home, page: of_home % runs * RUN_PAGES + in_run }
    }

    /// The page that is at a place.
    pub(super) fn at(&self, place: Place) -> u64 {
        let homes = self.homes.len() as u64;
        let runs = self.object_pages / RUN_PAGES;
        let of_home = place.object / homes * runs + place.page / RUN_PAGES;
        (of_home * homes + place.object % homes) * RUN_PAGES + place.page % RUN_PAGES
    }

    /// The servers at which an object may be, the intended one first.
    pub(super) fn homes_of(&self, object: u64) -> impl Iterator<Item = Host> + '_ {
        let first = (object % self.homes.len() as u64) as usize;
        self.homes[first..].iter().chain(&self.homes[..first]).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_page_has_a_place_of_its_own() {
        for homes in 1..5u16 {
            let placement = Placement::new((1..=homes).map(Host).collect(), 2 * RUN_PAGES * PAGE_BYTES as u64);
            let mut places = HashSet::new();
            for page in (0..4_000).chain((1 << 40)..(1 << 40) + 1_000) {
                let place = placement.of(page);
                assert!(place.page < placement.object_pages());
                assert!(places.insert((place.object, place.page)), "{homes} servers: page {page} is not alone");
                assert_eq!(placement.at(place), page);
            }
        }
    }

    #[test]
    fn neighbours_go_to_all_servers_in_turn() {
        let placement = Placement::new([5, 6, 7].map(Host).to_vec(), 4 * RUN_PAGES * PAGE_BYTES as u64);
        let home = |page| placement.homes_of(placement.of(page).object).next();
        let runs: Vec<_> = (0..7).map(|run| home(run * RUN_PAGES).expect("there is one").0).collect();
        assert_eq!(runs, [5, 6, 7, 5, 6, 7, 5]);
        assert!((0..RUN_PAGES).all(|page| home(page) == home(0)), "a run stays together");
        assert_eq!(placement.homes_of(1).collect::<Vec<_>>(), [6, 7, 5].map(Host));
    }
}
