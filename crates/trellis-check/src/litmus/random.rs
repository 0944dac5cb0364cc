//! Random numbers for schedules: small, fast and the same on every machine.
//!
//! Promises: one seed gives one sequence, for ever; streams that were drawn for different purposes
//! do not depend on each other. It must never be used for secrets.

use crate::random::{GOLDEN, SplitMix64, mixed};

/// Numbers of 32 bits, which is enough for choices.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    /// A sequence of its own for one purpose of a seed.
    pub fn for_purpose(seed: u64, purpose: u64) -> Random {
        Random(SplitMix64::for_purpose(seed, purpose))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`, which is not zero. (Biased by less than `bound` in 2^32.)
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        ((self.draw() >> 32).wrapping_mul(u64::from(bound)) >> 32) as u32
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }
}

/// The seed of run number `index` of a series; the first run has the seed of the series, so that one
/// run of a series can be asked for by its own seed.
pub fn seed_of_run(series: u64, index: u64) -> u64 {
    if index == 0 { series } else { mixed(series ^ mixed(index.wrapping_mul(GOLDEN))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_below_their_bound() {
        let (mut one, mut other) = (Random::new(7), Random::new(7));
        for bound in 1..1000 {
            let number = one.below(bound);
            assert!(number < bound);
            assert_eq!(number, other.below(bound));
        }
        assert_ne!(Random::for_purpose(7, 1).draw(), Random::for_purpose(7, 2).draw());
    }

    #[test]
    fn the_first_run_of_a_series_has_its_seed() {
        assert_eq!(seed_of_run(42, 0), 42);
        let mut seeds: Vec<u64> = (0..10_000).map(|index| seed_of_run(42, index)).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 10_000);
    }
}
