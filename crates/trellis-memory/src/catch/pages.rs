//! A set of pages, with one bit for each page of a region, which any thread reads and writes without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = u64::BITS as usize;

/// A set of pages. Changes are made page by page; a caller that needs several pages to change at once must ensure that
/// itself.
#[derive(Debug)]
pub struct PageSet {
    words: Box<[AtomicU64]>,
}

impl PageSet {
    /// An empty set for `pages` pages.
    pub fn new(pages: usize) -> PageSet {
        let words = Box::new_zeroed_slice(pages.div_ceil(WORD));
        // SAFETY: zero bytes are an atomic zero. Memory that comes as zeros is not touched here.
        PageSet { words: unsafe { words.assume_init() } }
    }

    /// Adds or removes the pages of `[first, end)`.
    ///
    /// # Panics
    /// When a page is not one for which the set was made.
    pub fn set(&self, first: usize, end: usize, inside: bool) {
        let mut at = first;
        while at < end {
            let until = end.min((at / WORD + 1) * WORD);
            let bits = bits(at % WORD, until - at);
            let word = &self.words[at / WORD];
            if inside {
                word.fetch_or(bits, Ordering::SeqCst);
            } else {
                word.fetch_and(!bits, Ordering::SeqCst);
            }
            at = until;
        }
    }

    /// Whether the page `first` is in the set, and the end of the run of pages of the same kind in `[first, end)`, which
    /// must not be empty.
    ///
    /// # Panics
    /// The same.
    pub fn run(&self, first: usize, end: usize) -> (bool, usize) {
        debug_assert!(first < end);
        let inside = self.words[first / WORD].load(Ordering::SeqCst) >> (first % WORD) & 1 == 1;
        let mut at = first;
        while at < end {
            let word = self.words[at / WORD].load(Ordering::SeqCst);
            let different = if inside { !word } else { word } >> (at % WORD);
            if different != 0 {
                return (inside, end.min(at + different.trailing_zeros() as usize));
            }
            at = (at / WORD + 1) * WORD;
        }
        (inside, end)
    }
}

fn bits(low: usize, count: usize) -> u64 {
    (u64::MAX >> (WORD - count)) << low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_pages_differ() {
        let set = PageSet::new(300);
        assert_eq!(set.run(0, 300), (false, 300));
        set.set(3, 200, true);
        set.set(130, 131, false);
        assert_eq!(set.run(0, 300), (false, 3));
        assert_eq!(set.run(3, 300), (true, 130));
        assert_eq!(set.run(3, 64), (true, 64));
        assert_eq!(set.run(130, 300), (false, 131));
        assert_eq!(set.run(131, 300), (true, 200));
        assert_eq!(set.run(200, 300), (false, 300));
        set.set(0, 300, true);
        assert_eq!(set.run(299, 300), (true, 300));
        set.set(64, 64, false);
        assert_eq!(set.run(0, 300), (true, 300), "an empty range changes nothing");
    }
}
