//! The random numbers of a simulation.
//!
//! Promises: one seed gives one sequence, on every machine and for ever; two purposes of one seed have sequences of
//! their own, so that a thread's program does not change when the network draws once more. It must never be used for
//! secrets.

pub(super) use crate::random::mixed;

use crate::random::SplitMix64;

/// Numbers of 64 bits, because times are.
#[derive(Clone, Debug)]
pub(super) struct Random(SplitMix64);

impl Random {
    /// The sequence of one purpose of a seed.
    pub(super) fn new(seed: u64, purpose: u64) -> Random {
        Random(SplitMix64::for_purpose(seed, purpose))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`; zero if `bound` is.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number of `low..=high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `times`.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// True so often in a hundred.
    pub(super) fn percent(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// One of `choices`, which is not empty.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn numbers_stay_in_their_bounds_and_purposes_differ() {
        let mut random = Random::new(7, 1);
        assert!((1..2000).all(|bound| random.below(bound) < bound));
        assert!((0..2000).all(|low| (low..=low + 3).contains(&random.between(low, low + 3))));
        assert_ne!(Random::new(7, 1).next(), Random::new(7, 2).next());
        assert_eq!(Random::new(7, 1).next(), Random::new(7, 1).next());
    }
}
