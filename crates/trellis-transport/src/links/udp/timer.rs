//! The clock of the udp link, and one timer for all its peers.
//!
//! Promises: the descriptor is readable from the requested time until [`Timer::begin`]. A request for a later time
//! than the current one costs no system call.
//!
//! It must never know what is due. The timer may expire when nothing is due: what postponed the work did not tell the
//! timer, so that a frame that is answered in time costs no system call.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::delivery::Nanoseconds;
use crate::links::descriptors::Descriptor;
use crate::links::roster::lock;

const NEVER: Nanoseconds = Nanoseconds::MAX;

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub(super) fn now() -> Nanoseconds {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// See the module text.
pub(super) struct Timer {
    descriptor: Descriptor,
    /// The time at which it expires.
    set: AtomicU64,
    changes: Mutex<()>,
}

impl Timer {
    pub(super) fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let descriptor = Descriptor::adopt(|| rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags))?;
        Ok(Timer { descriptor, set: AtomicU64::new(NEVER), changes: Mutex::new(()) })
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Whether its time has come.
    #[inline]
    pub(super) fn is_due(&self, now: Nanoseconds) -> bool {
        self.set.load(Ordering::Acquire) <= now
    }

    /// Makes it expire at `due` at the latest.
    #[inline]
    pub(super) fn set_by(&self, due: Nanoseconds) {
        if due < self.set.load(Ordering::Acquire) {
            self.set_earlier(due);
        }
    }

    /// Clears the timer if its time has come. The caller that clears it serves all peers and sets it again; requests
    /// made meanwhile are not lost.
    pub(super) fn begin(&self, now: Nanoseconds) -> bool {
        let _guard = lock(&self.changes);
        if !self.is_due(now) {
            return false;
        }
        self.set.store(NEVER, Ordering::Release);
        self.arm(0);
        true
    }

    #[cold]
    fn set_earlier(&self, due: Nanoseconds) {
        let _guard = lock(&self.changes);
        if due < self.set.load(Ordering::Acquire) {
            self.set.store(due, Ordering::Release);
            self.arm(due.max(1));
        }
    }

    /// Sets the system's timer; zero switches it off and clears its expiry.
    fn arm(&self, at: Nanoseconds) {
        let value = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let moment = Itimerspec { it_interval: Timespec::default(), it_value: value };
        if let Ok(own) = self.descriptor.borrowed() {
            // A descriptor of this kind takes every time.
            let _ = rustix::time::timerfd_settime(own, TimerfdTimerFlags::ABSTIME, &moment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_moment_counts_and_clearing_it_is_for_one_caller() {
        let timer = Timer::new().unwrap();
        let start = now();
        timer.set_by(start + 50);
        timer.set_by(start + 90);
        assert!(!timer.is_due(start + 49) && timer.is_due(start + 50));
        assert!(!timer.begin(start + 49));
        assert!(timer.begin(start + 50));
        assert!(!timer.begin(start + 50), "it was cleared");
        timer.set_by(start + 90);
        assert!(timer.is_due(start + 90));
    }
}
