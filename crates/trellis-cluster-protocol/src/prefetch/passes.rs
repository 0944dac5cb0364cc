//! Runs of pages that are touched again and again, such as the edge of a neighbour's part in each step of a stencil.
//!
//! Promises: a run that streams have found twice is asked for as a whole when its first page faults again. Nothing is
//! asked for beyond its last fault, apart from an eighth of a run that is still being learned, or that is longer than a
//! window. Whether a page that was asked for was also touched is not known, so a run is learned again, often at first
//! and later every [`RELEARN_EVERY`] times, half of what is left of it at a time, and one that has become shorter is
//! asked for as what it is after a few times. A run longer than a window is asked for by a stream, which is told where
//! the run ended before. Allocates nothing.

use core::ops::Range;

use crate::page::CHUNK_PAGES;

/// Runs that are remembered, up to a window and longer; a new one replaces the one of its kind that was idle longest.
const SHORT_PASSES: usize = 32;
const LONG_PASSES: usize = 16;
/// Two neighbours may be chance.
const PAGES_MIN: u32 = 3;
/// Once may be the program's beginning.
const FOUND_MIN: u32 = 2;
const RELEARN_EVERY: u32 = 16;
/// A fault behind the end of a run belongs to it only if fewer others than this came since its last one.
const RECENT: u32 = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Passes {
    short: [Pass; SHORT_PASSES],
    long: [Pass; LONG_PASSES],
    /// The page of the fault before, and whether that was a store.
    before: Option<(u32, bool)>,
}

/// The pages `first..end`; none if that is empty.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    first: u32,
    end: u32,
    /// The page of the last fault.
    last: u32,
    /// Where it ended before it was learned again; otherwise at most `end`.
    old_end: u32,
    /// The faults are stores.
    stores: bool,
    /// Stores to the same pages follow the loads: the right to write is asked for at once.
    write: bool,
    /// How often streams found it.
    found: u32,
    /// How often it was asked for.
    times: u32,
    used: u32,
}

/// The pages that are wanted after a fault: from its own page to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub(super) end: u32,
    pub(super) write: bool,
    /// The pages are more than one window.
    pub(super) is_long: bool,
}

impl Passes {
    /// Notes a fault; `None` if its page is not of a known run. `now` counts the faults.
    pub(super) fn fault(&mut self, page: u32, store: bool, now: u32, window_max: u32) -> Option<Wanted> {
        let before = self.before.replace((page, store));
        let is_known = |pass: &&mut Pass| pass.stores == store && pass.meets(page, now, window_max);
        if let Some(pass) = self.short.iter_mut().chain(&mut self.long).find(is_known) {
            let wanted = pass.follow(page, now, window_max);
            let may_grow = pass.end - pass.first < window_max;
            if may_grow && page == pass.first && page > 0 && before == Some((page - 1, store)) {
                // It begins a page earlier than was seen the first time.
                pass.first = page - 1;
            }
            return wanted;
        }
        if store {
            let loads = |pass: &&mut Pass| pass.end > pass.first && !pass.stores && pass.last == page;
            self.short.iter_mut().chain(&mut self.long).filter(loads).for_each(|pass| pass.write = true);
        }
        None
    }

    /// Faults of one kind went through the pages `first..end`, one after the other; `write` as it was asked for. To be
    /// told at each of these faults.
    pub(super) fn learn(&mut self, pages: Range<u32>, stores: bool, write: bool, now: u32, window_max: u32) {
        let Range { start: first, end } = pages;
        if end - first < PAGES_MIN {
            return;
        }
        let is_it = |pass: &&mut Pass| pass.end > 0 && pass.first == first && pass.stores == stores;
        let known = self.short.iter_mut().chain(&mut self.long).find(is_it).map(core::mem::take).unwrap_or_default();
        let found = known.found + u32::from(end - first == PAGES_MIN);
        let pass =
            Pass { first, end, last: end - 1, old_end: end, stores, write, found, times: known.times, used: now };
        let table: &mut [Pass] = if pass.is_long(window_max) { &mut self.long } else { &mut self.short };
        let idle = |pass: &&mut Pass| if pass.end == 0 { u32::MAX } else { now.wrapping_sub(pass.used) };
        *table.iter_mut().max_by_key(idle).expect("there are passes") = pass;
    }
}

impl Pass {
    fn meets(&self, page: u32, now: u32, window_max: u32) -> bool {
        let is_recent = now.wrapping_sub(self.used) <= RECENT && !self.is_long(window_max);
        let goes_on = page == self.end || (self.first..self.end).contains(&page) && page.is_multiple_of(CHUNK_PAGES);
        self.found >= FOUND_MIN && (page == self.first || is_recent && goes_on)
    }

    fn is_long(&self, window_max: u32) -> bool {
        self.end - self.first > window_max
    }

    fn follow(&mut self, page: u32, now: u32, window_max: u32) -> Option<Wanted> {
        let is_long = self.is_long(window_max);
        if page == self.first {
            if self.end - self.first < PAGES_MIN {
                // It was learned again and is none any more.
                *self = Pass::default();
                return None;
            }
            self.times += 1;
            if self.times.is_multiple_of(RELEARN_EVERY) || self.times.is_power_of_two() && self.times > 1 {
                if is_long {
                    // A stream finds it once more.
                    self.found = FOUND_MIN - 1;
                    return None;
                }
                // Whether stores follow is known after the first page.
                let pages = if self.write { 1 } else { (self.end - page).div_ceil(2) };
                (self.old_end, self.end, self.write) = (self.end, page + pages, false);
            }
        } else if page == self.end {
            self.end = page + self.old_end.saturating_sub(page).div_ceil(2).max((page - self.first) / 8).max(1);
            if self.is_long(window_max) {
                // A stream asks for the rest.
                self.used = now;
                return None;
            }
        }
        (self.used, self.last) = (now, page);
        Some(Wanted { end: self.end, write: self.stores || self.write, is_long })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Streams;
    use crate::page::PageIndex;
    use alloc::vec;
    use alloc::vec::Vec;

    /// Faults, and pages that were asked for, in each of so many steps: in each one all pages have been taken away
    /// before, and the runs are touched in order.
    fn steps(streams: &mut Streams, runs: &[(core::ops::Range<u32>, bool)], count: usize) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        for _ in 0..count {
            let (mut faults, mut pages) = (0, 0);
            for (run, store) in runs {
                let mut held = vec![false; 40_000];
                for page in run.clone() {
                    if held[page as usize] {
                        continue;
                    }
                    let request = streams.fault(PageIndex(page), *store);
                    assert!(request.range.contains(PageIndex(page)) && request.write >= *store);
                    faults += 1;
                    for range in request.ahead.into_iter().flatten().chain([request.range]) {
                        pages += range.count();
                        range.pages().for_each(|page| held[page.0 as usize] = true);
                    }
                }
            }
            found.push((faults, pages));
        }
        found
    }

    #[test]
    fn the_edge_of_a_neighbour_comes_as_a_whole_and_alone() {
        let mut streams = Streams::new(2048, 128);
        let edges = [(100..105, false), (105..110, true), (800..805, false), (805..810, true)];
        let found = steps(&mut streams, &edges, 100);
        assert_eq!(found[20], (4, 20), "one fault for each edge: {found:?}");
        let pages: u32 = found.iter().map(|(_, pages)| pages).sum();
        let faults: u32 = found.iter().map(|(faults, _)| faults).sum();
        assert!(pages * 10 <= 20 * 100 * 11, "{pages} pages asked for, 2000 needed");
        assert!(faults <= 700, "{faults} faults, 2000 pages needed");
    }

    #[test]
    fn a_run_that_became_shorter_is_asked_for_as_what_it_is() {
        let mut streams = Streams::new(2048, 128);
        steps(&mut streams, &[(100..120, false)], 5);
        let found = steps(&mut streams, &[(100..104, false)], 40);
        assert_eq!(found[39], (1, 4), "{found:?}");
        let found = steps(&mut streams, &[(100..101, false)], 40);
        assert_eq!(found[39], (1, 1), "{found:?}");
    }

    #[test]
    fn learning_again_takes_few_faults() {
        for store in [false, true] {
            let mut streams = Streams::new(2048, 128);
            let found = steps(&mut streams, &[(100..132, store)], 40);
            let faults: u32 = found.iter().map(|(faults, _)| faults).sum();
            assert!(found.iter().all(|(_, pages)| *pages <= 32 + 4), "{found:?}");
            assert!(faults <= 40 + 2 * 12 + 7 * 5, "{faults} faults in 40 passes: {found:?}");
        }
    }

    #[test]
    fn what_the_program_did_once_is_not_asked_for_again() {
        let mut streams = Streams::new(2048, 128);
        steps(&mut streams, &[(0..100, true)], 1);
        assert!(steps(&mut streams, &[(0..1, true)], 20).iter().all(|found| *found == (1, 1)));
    }

    #[test]
    fn a_run_across_two_chunks_is_asked_for_in_parts() {
        let mut streams = Streams::new(2048, 128);
        assert_eq!(steps(&mut streams, &[(508..517, false)], 11)[10], (2, 9));
    }

    #[test]
    fn a_long_run_is_asked_for_by_the_window_once_it_is_known() {
        for store in [false, true] {
            let mut streams = Streams::new(2048, 64);
            let found = steps(&mut streams, &[(300..556, store)], 40);
            assert!(found.iter().all(|(faults, pages)| *faults <= 24 && *pages <= 256 + 256 / 4 + 8), "{found:?}");
            assert!(found[20].0 <= 6 && found[20].1 <= 256 + 256 / 8, "{found:?}");
            let faults: u32 = found.iter().map(|(faults, _)| faults).sum();
            assert!(faults <= 40 * 9, "{found:?}");
        }
    }

    #[test]
    fn a_long_run_that_became_shorter_is_asked_for_as_what_it_is() {
        for store in [false, true] {
            for long_steps in 4..8 {
                for pages in [3, 40, 100] {
                    let mut streams = Streams::new(2048, 64);
                    steps(&mut streams, &[(300..700, store)], long_steps);
                    let found = steps(&mut streams, &[(300..300 + pages, store)], 40);
                    let enough = pages + (pages / 4).max(3);
                    assert!(found[39].1 <= enough, "{pages} pages, stores: {store}, {long_steps}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn a_run_a_little_longer_than_a_window_is_learned() {
        for pages in [60, 65, 70, 78, 90] {
            let mut streams = Streams::new(2048, 64);
            let found = steps(&mut streams, &[(300..300 + pages, false)], 60);
            let faults: u32 = found[20..].iter().map(|(faults, _)| faults).sum();
            assert!(faults <= 40 * 5, "{pages} pages: {found:?}");
        }
    }

    #[test]
    fn long_runs_do_not_replace_short_ones() {
        let mut streams = Streams::new(40_000, 64);
        let edges = (0..12).map(|edge| (edge * 20..edge * 20 + 5, false));
        let long = (0..24).map(|run| (1_000 + run * 1_000..1_000 + run * 1_000 + 200, false));
        let runs: Vec<_> = edges.clone().chain(long).collect();
        let found = steps(&mut streams, &runs, 30);
        let of_edges = steps(&mut streams, &edges.collect::<Vec<_>>(), 1);
        assert!(of_edges[0].0 <= 24, "{of_edges:?} after {found:?}");
    }

    #[test]
    fn little_is_asked_for_beyond_the_end_with_any_window() {
        for window in 2..40 {
            for pages in [9, 12, 30, 100, 128] {
                let mut streams = Streams::new(2048, window);
                let found = steps(&mut streams, &[(300..300 + pages, false)], 60);
                assert!(found[50].1 <= pages + (pages / 8).max(3), "{window}, {pages}: {found:?}");
            }
        }
    }

    #[test]
    fn pages_that_are_stored_to_behind_their_loads_are_asked_for_to_write() {
        let mut streams = Streams::new(2048, 128);
        let mut faults = Vec::new();
        for _ in 0..40 {
            // Whether the pages are here, to read or to write.
            let (mut held, mut count) = ([0; 200], 0);
            for page in 100..106 {
                for needed in [1, 2] {
                    if held[page] < needed {
                        let request = streams.fault(PageIndex(page as u32), needed == 2);
                        request.range.pages().for_each(|page| held[page.0 as usize] = 1 + usize::from(request.write));
                        count += 1;
                    }
                }
            }
            faults.push(count);
        }
        assert_eq!(faults[39], 1, "{faults:?}");
        assert!(faults.iter().sum::<u32>() <= 80, "{faults:?}");
    }
}
