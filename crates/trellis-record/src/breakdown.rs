//! The execution-time breakdown of a program: the six shares of its threads' time.
//!
//! Promises: the six parts are disjoint and add up to the time of the program's threads. Computation is what remains
//! after everything that Trellis measures is subtracted. It therefore includes what Trellis cannot see: a fault's way
//! into the kernel and back, caches that must be refilled, and other processes on the same core.

use serde::{Deserialize, Serialize};

use super::Counters;

/// The maximum number of clock readings in a call: publishing, waiting and refreshing, at both ends.
const READINGS_OF_A_CALL: f64 = 6.0;

/// The time of the program's threads in seconds, by its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// The program itself.
    pub computation: f64,
    /// Waiting for pages that other nodes have.
    pub page_fetch: f64,
    /// Waiting for locks, words, semaphores, events and conditions.
    pub lock: f64,
    /// Waiting in barriers.
    pub barrier: f64,
    /// The service thread's time while the program computed. It counts as taken from the program, as it is when both
    /// share a core (`pin = core`).
    pub handler: f64,
    /// Other work of the protocol: twins, diffs and the homes' answers to them, invalidations, the shared heap.
    pub overhead: f64,
}

impl Breakdown {
    /// The parts as the literature names them, in its order.
    pub const WORDS: [&'static str; 6] = ["Computation", "Page Fetch", "Lock", "Barrier", "Handler", "Overhead"];
    /// The names of the parts in JSON.
    pub const NAMES: [&'static str; 6] = ["computation", "page_fetch", "lock", "barrier", "handler", "overhead"];

    /// The breakdown that these counters give. If threads that never synchronised have waited, the parts may exceed the
    /// `program_ns` of the counted threads; then nothing remains for computation.
    pub fn of(counters: &Counters) -> Breakdown {
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        let mut breakdown = Breakdown {
            computation: 0.0,
            page_fetch: seconds(counters.fault_wait_ns),
            lock: seconds(counters.lock_wait_ns),
            barrier: seconds(counters.barrier_wait_ns),
            handler: seconds(counters.handler_ns),
            overhead: seconds(counters.overhead_ns),
        };
        let whole = seconds(counters.program_ns) * counters.program_threads.max(1) as f64;
        breakdown.computation = (whole - breakdown.total()).max(0.0);
        breakdown
    }

    /// The parts, in the order of [`Breakdown::WORDS`].
    pub fn parts(&self) -> [f64; 6] {
        [self.computation, self.page_fetch, self.lock, self.barrier, self.handler, self.overhead]
    }

    /// The sum of all parts.
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }

    /// An upper bound of the time that these measurements took, from the present speed of this machine's clocks.
    ///
    /// It counts the clock readings around every fault, barrier, lock and word, and those of the service thread as if it
    /// had slept before every message. Most of them would exist without a breakdown.
    pub fn seconds_to_measure(counters: &Counters) -> f64 {
        let faults = counters.read_faults
            + counters.write_faults
            + counters.upgrade_faults
            + counters.upgrade_owner_faults
            + counters.local_faults;
        let calls = faults + counters.barriers + counters.lock_acquires + counters.atomics;
        let (clock, thread_clock) = crate::clocks::clock_costs_ns();
        (calls as f64 * READINGS_OF_A_CALL * clock + counters.messages_in as f64 * (2.0 * clock + thread_clock)) / 1e9
    }

    /// The share of each part, 0 to 1. If the total is zero, computation has the whole share.
    pub fn shares(&self) -> [f64; 6] {
        let total = self.total();
        if total <= 0.0 {
            return [1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        }
        self.parts().map(|part| part / total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> Counters {
        Counters {
            fault_wait_ns: 1_000_000_000,
            lock_wait_ns: 2_000_000_000,
            barrier_wait_ns: 3_000_000_000,
            handler_ns: 500_000_000,
            overhead_ns: 250_000_000,
            program_ns: 10_000_000_000,
            program_threads: 1,
            ..Counters::default()
        }
    }

    #[test]
    fn computation_is_what_is_left() {
        let breakdown = Breakdown::of(&counters());
        assert_eq!(breakdown.parts(), [3.25, 1.0, 2.0, 3.0, 0.5, 0.25]);
        assert_eq!(breakdown.total(), 10.0);
        assert_eq!(breakdown.shares()[3], 0.3);
        let two = Breakdown::of(&Counters { program_threads: 2, ..counters() });
        assert_eq!((two.computation, two.total()), (13.25, 20.0));
    }

    #[test]
    fn measuring_costs_more_the_more_happened() {
        let busy = Counters { messages_in: 1_000_000, barriers: 1_000_000, ..counters() };
        let cost = Breakdown::seconds_to_measure(&busy);
        assert!(cost.is_finite() && cost > 0.0, "{cost}");
        assert_eq!(Breakdown::seconds_to_measure(&counters()), 0.0);
    }

    #[test]
    fn shares_are_of_what_was_measured_where_that_is_more() {
        let breakdown = Breakdown::of(&Counters { program_ns: 5_000_000_000, ..counters() });
        assert_eq!(breakdown.computation, 0.0);
        assert!((breakdown.shares().iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(Breakdown::of(&Counters::default()).shares(), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
