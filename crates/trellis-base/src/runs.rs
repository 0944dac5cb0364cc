//! Sets of numbers, kept as runs of adjacent ones: free pages, changed pages.
//!
//! Promises: adjacent runs are joined. A change takes logarithmic time for each run that it touches, and
//! [`FreeRuns::take`] finds the smallest run that is long enough in logarithmic time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::{Add, Range, Sub};

/// A number in a set.
pub trait Number: Copy + Ord + Default + Add<Output = Self> + Sub<Output = Self> + Into<u64> {}

impl Number for u32 {}
impl Number for u64 {}

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Runs<N> {
    /// One past the last number of each run, by its first number.
    ends: BTreeMap<N, N>,
    total: u64,
}

impl<N: Number> Runs<N> {
    /// How many numbers are in the set.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The runs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<N>> + '_ {
        self.ends.iter().map(|(&first, &end)| first..end)
    }

    /// The run that contains this number.
    pub fn run_of(&self, number: N) -> Option<Range<N>> {
        let (&first, &end) = self.ends.range(..=number).next_back()?;
        (number < end).then_some(first..end)
    }

    /// Adds numbers, some of which may be in the set already, and returns the run that now contains them.
    pub fn insert(&mut self, numbers: Range<N>) -> Range<N> {
        if numbers.is_empty() {
            return numbers;
        }
        let mut joined = numbers.clone();
        for run in self.touching(&numbers).collect::<Vec<_>>() {
            self.take_out(&run);
            joined = joined.start.min(run.start)..joined.end.max(run.end);
        }
        self.put_in(joined.clone());
        joined
    }

    /// Removes numbers, whether or not all of them are in the set.
    pub fn remove(&mut self, numbers: Range<N>) {
        for part in self.within(numbers) {
            let run = self.run_of(part.start).expect("a part is of a run");
            self.take_out(&run);
            self.put_in(run.start..part.start);
            self.put_in(part.end..run.end);
        }
    }

    /// The parts of a range that are in the set.
    pub fn within(&self, numbers: Range<N>) -> Vec<Range<N>> {
        let parts = self.touching(&numbers).map(|run| run.start.max(numbers.start)..run.end.min(numbers.end));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// The parts of a range that are not in the set.
    pub fn gaps(&self, numbers: Range<N>) -> Vec<Range<N>> {
        let (mut gaps, mut from) = (Vec::new(), numbers.start);
        for part in self.within(numbers.clone()) {
            gaps.push(from..part.start);
            from = part.end;
        }
        gaps.push(from..numbers.end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// The runs that have numbers of a range, or begin or end beside it.
    fn touching(&self, numbers: &Range<N>) -> impl Iterator<Item = Range<N>> + use<'_, N> {
        let start = numbers.start;
        let before = self.ends.range(..start).next_back().filter(move |(_, end)| **end >= start);
        let behind = self.ends.range(start..=numbers.end.max(start));
        before.into_iter().chain(behind).map(|(&first, &end)| first..end)
    }

    fn put_in(&mut self, run: Range<N>) {
        if !run.is_empty() {
            self.ends.insert(run.start, run.end);
            self.total += (run.end - run.start).into();
        }
    }

    fn take_out(&mut self, run: &Range<N>) {
        self.ends.remove(&run.start);
        self.total -= (run.end - run.start).into();
    }
}

/// A set of free numbers, from which adjacent ones are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FreeRuns<N> {
    runs: Runs<N>,
    /// The length and the first number of each run.
    by_length: BTreeSet<(N, N)>,
}

impl<N: Number> FreeRuns<N> {
    /// How many numbers are free.
    pub fn total(&self) -> u64 {
        self.runs.total()
    }

    /// The free numbers.
    pub fn runs(&self) -> &Runs<N> {
        &self.runs
    }

    /// The length of the longest run.
    pub fn longest(&self) -> N {
        self.by_length.last().map_or(N::default(), |&(length, _)| length)
    }

    /// Frees numbers, and joins them with their free neighbours.
    pub fn insert(&mut self, numbers: Range<N>) {
        if numbers.is_empty() {
            return;
        }
        for run in self.runs.touching(&numbers) {
            self.by_length.remove(&entry(&run));
        }
        let joined = self.runs.insert(numbers);
        self.by_length.insert(entry(&joined));
    }

    /// Takes what is free of these numbers.
    pub fn remove(&mut self, numbers: Range<N>) {
        let touched: Vec<Range<N>> = self.runs.touching(&numbers).collect();
        self.runs.remove(numbers);
        for run in touched {
            self.by_length.remove(&entry(&run));
            self.by_length.extend(self.runs.within(run).iter().map(entry));
        }
    }

    /// Takes `count` adjacent numbers from the smallest run in which `place` finds room for them, and returns the first.
    /// `place` gets a run of at least that length, and returns where in it they shall begin.
    pub fn take(&mut self, count: N, mut place: impl FnMut(Range<N>) -> Option<N>) -> Option<N> {
        let mut long_enough = self.by_length.range((count, N::default())..);
        let first = long_enough.find_map(|&(length, first)| place(first..first + length))?;
        self.remove(first..first + count);
        Some(first)
    }
}

fn entry<N: Number>(run: &Range<N>) -> (N, N) {
    (run.end - run.start, run.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn runs_join_split_and_are_counted_as_in_a_plain_set() {
        let (mut runs, mut free, mut plain) = (Runs::default(), FreeRuns::default(), [false; 64]);
        let mut random = Random::new(1);
        for step in 0..4000 {
            let (a, b, is_in) = (random.below(64) as u32, random.below(64) as u32, random.once_in(4));
            let numbers = a.min(b)..a.max(b) + 1;
            if is_in {
                runs.insert(numbers.clone());
                free.insert(numbers.clone());
            } else {
                runs.remove(numbers.clone());
                free.remove(numbers.clone());
            }
            numbers.clone().for_each(|number| plain[number as usize] = is_in);
            assert_eq!(runs.total(), plain.iter().filter(|&&is_in| is_in).count() as u64, "step {step}");
            for number in 0..64u32 {
                assert_eq!(runs.run_of(number).is_some(), plain[number as usize], "step {step}, number {number}");
            }
            let all: Vec<_> = runs.iter().collect();
            assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start), "neighbours are joined: {all:?}");
            let whole = runs.within(0..64).iter().chain(&runs.gaps(0..64)).map(|part| part.len()).sum::<usize>();
            assert_eq!(whole, 64, "parts and gaps are everything");
            assert_eq!(free.runs, runs, "step {step}");
            assert_eq!(free.by_length, all.iter().map(entry).collect(), "step {step}");
        }
    }

    #[test]
    fn the_smallest_run_with_room_is_taken() {
        let mut free = FreeRuns::<u64>::default();
        free.insert(5..5);
        assert_eq!((free.total(), free.longest()), (0, 0), "nothing was freed");
        for run in [0..10, 20..24, 30..33] {
            free.insert(run);
        }
        let start = |run: Range<u64>| Some(run.start);
        assert_eq!(free.take(3, start), Some(30));
        assert_eq!(free.take(3, |run| Some(run.end - 3)), Some(21));
        assert_eq!(free.take(2, |run| run.contains(&8).then_some(8)), Some(8), "the first that has the place");
        assert_eq!((free.take(9, start), free.longest(), free.total()), (None, 8, 9));
        free.insert(8..21);
        assert_eq!((free.longest(), free.total()), (21, 21), "it joins what is on both sides");
    }
}
