//! Sets of page numbers, stored as ranges.
//!
//! Promises: adjacent ranges are merged; every change takes logarithmic time for each range that it touches.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of page numbers.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    /// One past the last page of each range, by its first page.
    runs: BTreeMap<u32, u32>,
    total: u64,
}

impl Intervals {
    /// The number of pages in the set.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The ranges, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.runs.iter().map(|(&first, &end)| first..end)
    }

    /// The range that contains this page.
    pub(super) fn run_of(&self, page: u32) -> Option<Range<u32>> {
        let (&first, &end) = self.runs.range(..=page).next_back()?;
        (page < end).then_some(first..end)
    }

    /// Adds pages, some of which may be in the set already, and returns the range that now contains them.
    pub(super) fn insert(&mut self, pages: Range<u32>) -> Range<u32> {
        let mut joined = pages;
        if let Some((&first, &end)) = self.runs.range(..joined.start).next_back()
            && end >= joined.start
        {
            joined = first..end.max(joined.end);
        }
        while let Some((&first, &end)) = self.runs.range(joined.start..=joined.end).next() {
            self.runs.remove(&first);
            self.total -= u64::from(end - first);
            joined.end = joined.end.max(end);
        }
        if let Some(before) = self.runs.insert(joined.start, joined.end) {
            self.total -= u64::from(before - joined.start);
        }
        self.total += u64::from(joined.end - joined.start);
        joined
    }

    /// Removes pages, whether or not all of them are in the set.
    pub(super) fn remove(&mut self, pages: Range<u32>) {
        for part in self.within(pages) {
            let run = self.run_of(part.start).expect("a part is of a run");
            self.runs.remove(&run.start);
            if run.start < part.start {
                self.runs.insert(run.start, part.start);
            }
            if part.end < run.end {
                self.runs.insert(part.end, run.end);
            }
            self.total -= u64::from(part.end - part.start);
        }
    }

    /// The parts of a range that are in the set.
    pub(super) fn within(&self, pages: Range<u32>) -> Vec<Range<u32>> {
        let before = self.run_of(pages.start).map(|run| run.start);
        let from = before.unwrap_or(pages.start);
        self.runs
            .range(from..pages.end.max(from))
            .map(|(&first, &end)| first.max(pages.start)..end.min(pages.end))
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// The parts of a range that are not in the set.
    pub(super) fn gaps(&self, pages: Range<u32>) -> Vec<Range<u32>> {
        let (mut gaps, mut from) = (Vec::new(), pages.start);
        for part in self.within(pages.clone()) {
            if from < part.start {
                gaps.push(from..part.start);
            }
            from = part.end;
        }
        if from < pages.end {
            gaps.push(from..pages.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use trellis_base::Random;

    use super::*;

    #[test]
    fn runs_join_split_and_are_counted_as_in_a_plain_set() {
        let (mut intervals, mut plain) = (Intervals::default(), [false; 64]);
        let mut random = Random::new(1);
        for step in 0..4000 {
            let (a, b, is_in) = (random.below(64) as u32, random.below(64) as u32, random.once_in(4));
            let pages = a.min(b)..a.max(b) + 1;
            if is_in {
                intervals.insert(pages.clone());
            } else {
                intervals.remove(pages.clone());
            }
            pages.clone().for_each(|page| plain[page as usize] = is_in);
            assert_eq!(intervals.total(), plain.iter().filter(|&&is_in| is_in).count() as u64, "step {step}");
            for page in 0..64u32 {
                assert_eq!(intervals.run_of(page).is_some(), plain[page as usize], "step {step}, page {page}");
            }
            let runs: Vec<_> = intervals.iter().collect();
            assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "neighbours are joined: {runs:?}");
            let whole =
                intervals.within(0..64).iter().chain(&intervals.gaps(0..64)).map(|part| part.len()).sum::<usize>();
            assert_eq!(whole, 64, "parts and gaps are everything");
        }
    }
}
