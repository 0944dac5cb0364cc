//! How often something that peers cause is reported.
//!
//! Promises: the reports of one cause are at most as many as its count has digits.

/// Whether the report of something that has happened `count` times is due: the first time, the tenth, the hundredth and so
/// on. A peer must not be able to fill the output of the process that reports what it does.
pub const fn is_worth_reporting(mut count: u64) -> bool {
    while count > 1 && count.is_multiple_of(10) {
        count /= 10;
    }
    count == 1
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn reports_become_rarer() {
        let due: Vec<u64> = (0..=100_000).filter(|&count| super::is_worth_reporting(count)).collect();
        assert_eq!(due, [1, 10, 100, 1_000, 10_000, 100_000]);
    }
}
