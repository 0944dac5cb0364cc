//! The clock of the udp link, and one timer for all its peers.
//!
//! Promises: the descriptor is readable from the requested time until [`Timer::begin`]. A request for a later time
//! than the current one costs no system call.
//!
//! It must never know what is due. The timer may expire when nothing is due: what postponed the work did not tell the
//! timer, so that a frame that is answered in time costs no system call.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::delivery::Nanoseconds;
use crate::links::descriptors::Descriptor;
use crate::links::roster::lock;

const NEVER: Nanoseconds = Nanoseconds::MAX;

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub(super) fn now() -> Nanoseconds {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
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
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers are passed.
        let descriptor = Descriptor::adopt(|| unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        Ok(Timer { descriptor, set: AtomicU64::new(NEVER), changes: Mutex::new(()) })
    }

    pub(super) fn raw(&self) -> RawFd {
        self.descriptor.raw()
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
        let value = libc::timespec {
            tv_sec: (at / 1_000_000_000) as libc::time_t,
            tv_nsec: (at % 1_000_000_000) as libc::c_long,
        };
        let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let moment = libc::itimerspec { it_interval: interval, it_value: value };
        // SAFETY: `moment` outlives the call.
        unsafe { libc::timerfd_settime(self.raw(), libc::TFD_TIMER_ABSTIME, &raw const moment, std::ptr::null_mut()) };
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
