//! Reproducible random numbers.
//!
//! Promises: one seed gives one sequence, on every machine and forever. Two purposes of one seed have separate
//! sequences, so a thread's program does not change when the network draws one more number. It must never be used for
//! secrets.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*, 2014): one multiplication
/// chain, and no warm-up.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The sequence of one purpose of a seed.
    pub const fn for_purpose(seed: u64, purpose: u64) -> Random {
        Random(mixed(seed ^ mixed(purpose.wrapping_add(GOLDEN))))
    }

    /// The next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mixed(self.0)
    }

    /// A number below `bound`; zero if `bound` is zero. (Biased by less than `bound` in 2^64.)
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// An index of something that has `length` elements; zero if it has none.
    #[inline]
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number of `low..=high`; `high` must not be below `low`, nor 2^64 - 1 above it.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with probability 1 in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// One of `choices`.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}

/// A well mixed number that depends only on `value`.
#[inline]
pub const fn mixed(mut value: u64) -> u64 {
    value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// The seed of run number `index` of a series. The first run has the seed of the series, so that any run can be
/// repeated by its own seed.
pub const fn seed_of_run(series: u64, index: u64) -> u64 {
    if index == 0 { series } else { mixed(series ^ mixed(index.wrapping_mul(GOLDEN))) }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_sequence_is_that_of_the_literature() {
        let mut numbers = Random::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!([(); 5].map(|()| numbers.draw()), expected);
    }

    #[test]
    fn purposes_of_a_seed_have_sequences_of_their_own() {
        let first = |seed, purpose| Random::for_purpose(seed, purpose).draw();
        assert_eq!(first(7, 1), first(7, 1));
        assert_ne!(first(7, 1), first(7, 2));
        assert_ne!(first(7, 1), first(8, 1));
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut random = Random::for_purpose(7, 1);
        assert!((1..2000).all(|bound| random.below(bound) < bound));
        assert!((0..2000).all(|low| (low..=low + 3).contains(&random.between(low, low + 3))));
        assert_eq!((random.below(0), random.index(0)), (0, 0));
        assert!((0..100).all(|_| [3, 5].contains(&random.one_of(&[3, 5]))));
        assert!((0..100).all(|_| random.percent(100) && !random.percent(0)));
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
