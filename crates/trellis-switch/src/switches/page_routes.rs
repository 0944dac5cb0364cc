//! The page ranges of one home, and the port of a page: that of the smallest page range that contains it.

use std::collections::{BTreeMap, HashMap};

use crate::address::PageRange;

/// The ports of page ranges. Costs nothing if there are none, and one look-up for each size that exists.
#[derive(Debug, Default)]
pub(super) struct PageRoutes {
    /// By the order of page ranges, then by first page; an order without page ranges is absent.
    ports: BTreeMap<u8, HashMap<u64, u16>>,
}

impl PageRoutes {
    pub(super) fn set(&mut self, range: PageRange, port: u16) {
        self.ports.entry(range.order()).or_default().insert(range.first(), port);
    }

    /// Returns whether it existed.
    pub(super) fn drop(&mut self, range: PageRange) -> bool {
        let Some(same) = self.ports.get_mut(&range.order()) else { return false };
        let was_there = same.remove(&range.first()).is_some();
        if same.is_empty() {
            self.ports.remove(&range.order());
        }
        was_there
    }

    /// The port that was set for exactly this page range.
    pub(super) fn port(&self, range: PageRange) -> Option<u16> {
        self.ports.get(&range.order())?.get(&range.first()).copied()
    }

    /// The port of a page.
    pub(super) fn port_of(&self, page: u64) -> Option<u16> {
        self.ports.iter().find_map(|(order, same)| same.get(&(page >> order << order)).copied())
    }

    /// The number of page ranges of an order.
    pub(super) fn of_order(&self, order: u8) -> usize {
        self.ports.get(&order).map_or(0, HashMap::len)
    }

    pub(super) fn len(&self) -> usize {
        self.ports.values().map(HashMap::len).sum()
    }

    /// All of them, in the order of their first pages; `home` is their home.
    pub(super) fn all(&self, home: u16) -> Vec<(PageRange, u16)> {
        let ranges =
            self.ports.iter().flat_map(|(&order, same)| same.iter().map(move |(&first, &port)| (order, first, port)));
        let mut all: Vec<(PageRange, u16)> =
            ranges.filter_map(|(order, first, port)| Some((PageRange::new(home, first, order).ok()?, port))).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_run_decides() {
        let range = |first, order| PageRange::new(7, first, order).unwrap();
        let mut ranges = PageRoutes::default();
        assert_eq!((ranges.port_of(5), ranges.len()), (None, 0));
        for (first, order, port) in [(0, 36, 1), (0, 3, 2), (4, 1, 3), (5, 0, 4), (8, 3, 5)] {
            ranges.set(range(first, order), port);
        }
        let port = |ranges: &PageRoutes, page| ranges.port_of(page).unwrap();
        assert_eq!([0, 3, 4, 5, 6, 7, 8, 16].map(|page| port(&ranges, page)), [2, 2, 3, 4, 2, 2, 5, 1]);
        assert_eq!(port(&ranges, (1 << 36) - 1), 1);
        assert!(ranges.drop(range(5, 0)) && !ranges.drop(range(5, 0)) && !ranges.drop(range(0, 2)));
        assert_eq!((port(&ranges, 5), ranges.of_order(3), ranges.of_order(0), ranges.len()), (3, 2, 0, 4));
        ranges.set(range(4, 1), 9);
        assert_eq!(
            ranges.all(7),
            [(range(0, 3), 2), (range(0, 36), 1), (range(4, 1), 9), (range(8, 3), 5)],
            "what was set for a range before is replaced"
        );
        assert_eq!((ranges.port(range(4, 1)), ranges.port(range(4, 0))), (Some(9), None));
    }
}
