//! Small numbers for the threads of the process, so that each finds its own part of a heap.
//!
//! Promises: two threads that exist at the same time have different numbers, as long as there are no more than
//! [`THREADS_MAX`]; numbers of ended threads are reused, lowest first. It must never fail or allocate: a thread that is
//! ending, and has no number any more, shares number 0.

use std::sync::Mutex;

use super::{Held, lock};

/// The number of numbers. If there are more threads, the others share number 0.
const THREADS_MAX: usize = 4096;
const WORDS: usize = THREADS_MAX / 64;

/// A bit for each number in use.
static TAKEN: Mutex<[u64; WORDS]> = Mutex::new([0; WORDS]);

struct Number(Option<u32>);

impl Number {
    fn take() -> Number {
        let mut taken = lock(&TAKEN);
        let word = taken.iter().position(|&word| word != u64::MAX);
        Number(word.map(|word| {
            let bit = taken[word].trailing_ones();
            taken[word] |= 1 << bit;
            word as u32 * 64 + bit
        }))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            lock(&TAKEN)[number as usize / 64] &= !(1 << (number % 64));
        }
    }
}

thread_local! {
    static NUMBER: Number = Number::take();
}

/// The number of this thread.
pub(super) fn number() -> u32 {
    NUMBER.try_with(|number| number.0).ok().flatten().unwrap_or(0)
}

/// Keeps threads from beginning and ending, for the moment of a fork.
pub(super) fn hold() -> Held<'static> {
    Held::of([&TAKEN])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    #[test]
    fn threads_have_numbers_of_their_own() {
        let mine = number();
        let barrier = Barrier::new(70);
        let others: BTreeSet<u32> = std::thread::scope(|scope| {
            let each = || {
                barrier.wait();
                let number = number();
                barrier.wait();
                number
            };
            let threads: Vec<_> = (0..70).map(|_| scope.spawn(each)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(others.len() == 70 && !others.contains(&mine), "{mine} and {others:?}");
        assert!(others.iter().all(|&number| (number as usize) < THREADS_MAX));
        assert_eq!(number(), mine);
    }
}
