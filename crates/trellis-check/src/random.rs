//! The one generator of random numbers of this crate; the simulator and the explorer's kin draw from it in their own words.
//!
//! Promises: one seed gives one sequence, on every machine and for ever; two purposes of one seed have sequences of their
//! own. It must never be used for secrets.

pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64 (Steele, Lea and Flood 2014): one multiplication chain, no state to warm up.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of `seed`.
    pub(crate) fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The sequence of one purpose of a seed.
    pub(crate) fn for_purpose(seed: u64, purpose: u64) -> SplitMix64 {
        SplitMix64(mixed(seed ^ mixed(purpose.wrapping_add(GOLDEN))))
    }

    #[inline]
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mixed(self.0)
    }
}

/// A well mixed number that depends on nothing but `value`.
#[inline]
pub(crate) fn mixed(mut value: u64) -> u64 {
    value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn the_sequence_is_that_of_the_literature() {
        let mut numbers = SplitMix64::new(1_234_567);
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
        let first = |seed, purpose| SplitMix64::for_purpose(seed, purpose).draw();
        assert_eq!(first(7, 1), first(7, 1));
        assert_ne!(first(7, 1), first(7, 2));
        assert_ne!(first(7, 1), first(8, 1));
    }
}
