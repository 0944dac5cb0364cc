//! Whether other threads want the cores on which this node's threads wait.
//!
//! Promises: the answer follows from how long yields took, and from how long threads had no core. Contention is assumed for
//! a bounded time, and sharing until yields show that it is over. It must never read a clock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A yield that took this long gave the core to another thread, perhaps to one that answers. Waiting threads then yield
/// at once, until so many yields in a row gave the core to nobody.
const SHARED_NS_MIN: u64 = 2_000;
const YIELDS_ALONE: u32 = 16;
/// A yield that took this long was another thread's whole turn on the core: what threads of this cluster do for each
/// other takes a tenth of this time.
pub(super) const TURN_NS_MIN: u64 = 200_000;
/// How long contention is assumed to last, at first and at most. The time grows while contention lasts, because finding
/// that it is over may cost a turn.
const CONTENDED_NS_FIRST: u64 = 10_000_000;
const CONTENDED_NS_LONGEST: u64 = 40_000_000;

/// Whether other threads want the cores on which waiting threads poll. Polling then takes a core from a thread that
/// works, perhaps from the one that would answer. A thread that yields runs again only after all others had a whole
/// turn of milliseconds, but a thread that sleeps runs as soon as it is woken.
#[derive(Default)]
pub(super) struct Contention {
    /// Until when contention is assumed, and for how long it was assumed last.
    until: AtomicU64,
    period: AtomicU64,
}

impl Contention {
    /// A thread ran again only after another thread's turn.
    pub(super) fn note(&self, now: u64) {
        let (until, period) = (self.until.load(Ordering::Relaxed), self.period.load(Ordering::Relaxed));
        if now < until {
            // Another thread has met the same turn.
            return;
        }
        let is_lasting = now < until.saturating_add(period);
        let next = if is_lasting { (period * 2).min(CONTENDED_NS_LONGEST) } else { CONTENDED_NS_FIRST };
        self.period.store(next, Ordering::Relaxed);
        self.until.store(now + next, Ordering::Relaxed);
    }

    pub(super) fn is_there(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }
}

/// Whether waiting threads share their core with threads that run for a short time. The kernel places nodes that wake each
/// other on one core while a neighbour computes on the other one. The answer then comes only when the waiting thread
/// yields.
#[derive(Default)]
pub(super) struct Sharing {
    /// How many more yields may give the core to nobody before the threads are taken to be alone.
    left: AtomicU32,
}

impl Sharing {
    /// A yield took this long. Another thread's whole turn is contention, and no sharing.
    pub(super) fn note(&self, took_ns: u64) {
        let left = self.left.load(Ordering::Relaxed);
        let next = match took_ns {
            ..SHARED_NS_MIN => left.saturating_sub(1),
            SHARED_NS_MIN..=TURN_NS_MIN => YIELDS_ALONE,
            _ => 0,
        };
        if next != left {
            self.left.store(next, Ordering::Relaxed);
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_shared_until_enough_yields_gave_it_to_nobody() {
        let sharing = Sharing::default();
        sharing.note(SHARED_NS_MIN - 1);
        assert!(!sharing.is_there());
        sharing.note(SHARED_NS_MIN);
        for _ in 1..YIELDS_ALONE {
            sharing.note(0);
            assert!(sharing.is_there());
        }
        sharing.note(SHARED_NS_MIN);
        (0..YIELDS_ALONE).for_each(|_| sharing.note(0));
        assert!(!sharing.is_there());
        sharing.note(SHARED_NS_MIN);
        sharing.note(TURN_NS_MIN + 1);
        assert!(!sharing.is_there(), "the next wait must not give a whole turn away at once");
    }
}
