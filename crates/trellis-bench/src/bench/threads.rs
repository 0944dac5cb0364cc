//! A barrier for the threads that a benchmark compares with nodes. Threads poll in it, as nodes do.
//!
//! Promises: a thread that polls gives its core away now and then, so that the others come also where there are fewer
//! cores than threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Looks at the barrier before the core is given away.
const LOOKS: u32 = 1 << 14;

/// A barrier for a fixed number of threads.
pub(crate) struct PollingBarrier {
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
}

impl PollingBarrier {
    pub(crate) fn new(threads: usize) -> PollingBarrier {
        PollingBarrier { threads, arrived: AtomicUsize::new(0), round: AtomicUsize::new(0) }
    }

    /// Returns when all threads have come.
    pub(crate) fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round + 1, Ordering::Release);
            return;
        }
        let mut looks = 0;
        while self.round.load(Ordering::Acquire) == round {
            std::hint::spin_loop();
            looks += 1;
            if looks == LOOKS {
                looks = 0;
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_a_round_ahead() {
        const ROUNDS: usize = 500;
        let barrier = PollingBarrier::new(3);
        let rounds = [const { AtomicUsize::new(0) }; 3];
        std::thread::scope(|scope| {
            for own in 0..3 {
                let (barrier, rounds) = (&barrier, &rounds);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        rounds[own].store(round, Ordering::SeqCst);
                        barrier.wait();
                        assert!(rounds.iter().all(|other| other.load(Ordering::SeqCst) >= round));
                        barrier.wait();
                    }
                });
            }
        });
    }
}
