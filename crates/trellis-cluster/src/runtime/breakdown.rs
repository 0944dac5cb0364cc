//! Parts of the breakdown of time that the rest of the runtime cannot measure: how long the program ran, how many
//! threads it has, and how much time the service thread takes from it.
//!
//! Promises: the time of the service thread while a thread of the program waits for Trellis belongs to that wait, and
//! is not counted again. The cost is one reading of a clock and one of the thread's time for each wake-up of the
//! service thread, and a few atomic operations for each wait. It must never count more time than there was, in the
//! whole run or in a phase. If a thread enters and leaves several times while the service thread is busy, or if a phase
//! begins meanwhile, it counts less, because only the last time is known.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Node;
use trellis_record::thread_time_ns;
use trellis_record::{Counters, LiveCounters};

/// The next number of a node of this process, from 1. A thread uses the number to know whether its node has counted it.
static NODES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of the node at which this thread was counted last.
    static COUNTED_AT: Cell<u64> = const { Cell::new(0) };
}

/// A thread that is never counted.
const NEVER: u64 = u64::MAX;

pub(crate) struct Breakdown {
    number: u64,
    began: AtomicU64,
    /// When the present phase began; the first one begins with the program.
    phase_began: AtomicU64,
    has_ended: AtomicBool,
    /// The number of threads of the program that are inside Trellis.
    inside: AtomicU32,
    /// When `inside` last rose from 0, and when it last fell to 0.
    since: AtomicU64,
    until: AtomicU64,
}

impl Default for Breakdown {
    fn default() -> Breakdown {
        Breakdown {
            number: NODES.fetch_add(1, Ordering::Relaxed),
            began: AtomicU64::new(0),
            phase_began: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            inside: AtomicU32::new(0),
            since: AtomicU64::new(0),
            until: AtomicU64::new(0),
        }
    }
}

impl Breakdown {
    /// The program begins.
    pub(crate) fn begin(&self, now: u64) {
        self.began.store(now, Ordering::Relaxed);
        self.begin_phase(now);
    }

    /// A part of the run that the program names begins.
    pub(crate) fn begin_phase(&self, now: u64) {
        self.phase_began.store(now, Ordering::Relaxed);
    }

    /// The program is done: no time from now on counts as its time.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// How many threads of the program are inside Trellis.
    pub(super) fn inside(&self) -> usize {
        self.inside.load(Ordering::Relaxed) as usize
    }

    /// How much of the time from `woke` to `slept` is in the present phase with no thread of the program inside
    /// Trellis, as far as that is known. In nanoseconds.
    fn outside(&self, woke: u64, slept: u64) -> u64 {
        let woke = woke.max(self.phase_began.load(Ordering::Relaxed));
        let (since, until) = (self.since.load(Ordering::Relaxed), self.until.load(Ordering::Relaxed));
        if self.inside.load(Ordering::Relaxed) > 0 {
            return since.saturating_sub(woke.max(until));
        }
        if until <= woke {
            return slept.saturating_sub(woke);
        }
        slept.saturating_sub(until) + since.saturating_sub(woke)
    }
}

/// The calling thread is none of the program's: it is not counted, and neither is what it waits for. Called before it calls
/// anything else.
pub(crate) fn leave_uncounted() {
    COUNTED_AT.set(NEVER);
}

/// Whether the calling thread is one of the program.
pub(super) fn is_counted() -> bool {
    COUNTED_AT.get() != NEVER
}

/// A thread of the program is inside Trellis as long as this lives.
pub(super) struct Inside<'a>(&'a Node);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave_inside();
    }
}

impl Node {
    /// A thread of the program enters Trellis at `since`. A caller that counts the wait passes the time at which the
    /// wait began, because the service thread may run between that reading of the clock and this call.
    pub(super) fn inside(&self, since: u64) -> Inside<'_> {
        self.enter(since);
        Inside(self)
    }

    pub(super) fn enter(&self, since: u64) {
        if !is_counted() {
            return;
        }
        if self.breakdown.inside.fetch_add(1, Ordering::Relaxed) == 0 {
            self.breakdown.since.store(since, Ordering::Relaxed);
        }
    }

    pub(super) fn leave_inside(&self) {
        if !is_counted() {
            return;
        }
        if self.breakdown.inside.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.breakdown.until.store(self.recent(), Ordering::Relaxed);
        }
    }

    /// Counts what a thread of the program waited for an object of synchronisation.
    pub(super) fn count_lock_wait(&self, waited_ns: u64) {
        if is_counted() {
            LiveCounters::add(&self.counters().lock_wait_ns, waited_ns);
        }
    }

    /// Counts what the service thread did between `woke` and `slept`. `ran_before` is what this returned the last time.
    pub(super) fn note_handled(&self, woke: u64, slept: u64, ran_before: u64) -> u64 {
        let ran = thread_time_ns();
        // The thread did not run all this time: another thread may have had the core.
        let handled = (ran - ran_before).min(self.breakdown.outside(woke, slept));
        if !self.breakdown.has_ended.load(Ordering::Relaxed) {
            LiveCounters::add(&self.counters().handler_ns, handled);
        }
        ran
    }

    /// Counts the thread that calls, unless it was counted before.
    pub(super) fn note_thread(&self) {
        let number = self.breakdown.number;
        if !is_counted() {
            return;
        }
        if COUNTED_AT.replace(number) != number {
            LiveCounters::add(&self.counters().program_threads, 1);
        }
    }

    /// The counters at this moment, or at the end of the program.
    pub(crate) fn count(&self) -> Counters {
        let counters = self.counters();
        if !self.breakdown.has_ended.load(Ordering::Relaxed) {
            let since = self.breakdown.began.load(Ordering::Relaxed);
            counters.program_ns.store(self.now().saturating_sub(since), Ordering::Relaxed);
        }
        counters.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(inside: u32, since: u64, until: u64) -> Breakdown {
        Breakdown {
            inside: AtomicU32::new(inside),
            since: AtomicU64::new(since),
            until: AtomicU64::new(until),
            ..Breakdown::default()
        }
    }

    #[test]
    fn only_the_time_without_a_thread_inside_counts() {
        // No thread entered, or it left before.
        assert_eq!(after(0, 0, 0).outside(100, 150), 50);
        assert_eq!(after(0, 20, 90).outside(100, 150), 50);
        // A thread was inside all the time.
        assert_eq!(after(1, 90, 40).outside(100, 150), 0);
        // A thread entered meanwhile; left meanwhile; did both.
        assert_eq!(after(1, 130, 40).outside(100, 150), 30);
        assert_eq!(after(0, 90, 120).outside(100, 150), 30);
        assert_eq!(after(0, 110, 120).outside(100, 150), 40);
        // A thread left and entered again: what was before is not known.
        assert_eq!(after(1, 140, 120).outside(100, 150), 20);
        // The phase began meanwhile, or after that time.
        let of_phase = |phase_began| Breakdown { phase_began: AtomicU64::new(phase_began), ..after(1, 130, 40) };
        assert_eq!(of_phase(110).outside(100, 150), 20);
        assert_eq!(of_phase(140).outside(100, 150), 0);
        let alone = Breakdown { phase_began: AtomicU64::new(145), ..after(0, 0, 0) };
        assert_eq!((alone.outside(100, 150), alone.outside(100, 140)), (5, 0));
    }
}
