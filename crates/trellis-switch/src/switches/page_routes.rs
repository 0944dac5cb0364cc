//! The page ranges of one home, and the port of a page: that of the smallest page range that contains it.

use std::collections::{BTreeMap, HashMap};

use crate::address::PageRun;

/// The ports of page ranges. Costs nothing if there are none, and one look-up for each size that exists.
#[derive(Debug, Default)]
pub(super) struct PageRoutes {
    /// By the order of page ranges, then by first page; an order without page ranges is absent.
    ports: BTreeMap<u8, HashMap<u64, u16>>,
}

impl PageRoutes {
    pub(super) fn set(&mut self, run: PageRun, port: u16) {
        self.ports.entry(run.order()).or_default().insert(run.first(), port);
    }

    /// Returns whether it existed.
    pub(super) fn drop(&mut self, run: PageRun) -> bool {
        let Some(same) = self.ports.get_mut(&run.order()) else { return false };
        let was_there = same.remove(&run.first()).is_some();
        if same.is_empty() {
            self.ports.remove(&run.order());
        }
        was_there
    }

    /// The port that was set for exactly this page range.
    pub(super) fn port(&self, run: PageRun) -> Option<u16> {
        self.ports.get(&run.order())?.get(&run.first()).copied()
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
    pub(super) fn all(&self, home: u16) -> Vec<(PageRun, u16)> {
        let runs =
            self.ports.iter().flat_map(|(&order, same)| same.iter().map(move |(&first, &port)| (order, first, port)));
        let mut all: Vec<(PageRun, u16)> =
            runs.filter_map(|(order, first, port)| Some((PageRun::new(home, first, order).ok()?, port))).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_run_decides() {
        let run = |first, order| PageRun::new(7, first, order).unwrap();
        let mut runs = PageRoutes::default();
        assert_eq!((runs.port_of(5), runs.len()), (None, 0));
        for (first, order, port) in [(0, 36, 1), (0, 3, 2), (4, 1, 3), (5, 0, 4), (8, 3, 5)] {
            runs.set(run(first, order), port);
        }
        let port = |runs: &PageRoutes, page| runs.port_of(page).unwrap();
        assert_eq!([0, 3, 4, 5, 6, 7, 8, 16].map(|page| port(&runs, page)), [2, 2, 3, 4, 2, 2, 5, 1]);
        assert_eq!(port(&runs, (1 << 36) - 1), 1);
        assert!(runs.drop(run(5, 0)) && !runs.drop(run(5, 0)) && !runs.drop(run(0, 2)));
        assert_eq!((port(&runs, 5), runs.of_order(3), runs.of_order(0), runs.len()), (3, 2, 0, 4));
        runs.set(run(4, 1), 9);
        assert_eq!(
            runs.all(7),
            [(run(0, 3), 2), (run(0, 36), 1), (run(4, 1), 9), (run(8, 3), 5)],
            "what was set for a run before is replaced"
        );
        assert_eq!((runs.port(run(4, 1)), runs.port(run(4, 0))), (Some(9), None));
    }
}
