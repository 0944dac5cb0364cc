//! A store as far away as one likes.
//!
//! Promises that each call takes one round trip longer than it would: half of it passes before the store is asked, half
//! after it answered. A call that waits takes it once, on top of its waiting. A sleeping thread wakes too late by about as
//! much as a fast store takes: so the kernel is told not to wait for other timers, and the last moments of each half are
//! polled. Only moments: processes that share a core would wait for each other's polling.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Call, Wrapper};
use crate::error::StoreError;
use crate::store::Store;

/// By how much a sleep may be late where timers are not put together.
const LATE: Duration = Duration::from_micros(25);
/// How long the kernel may wait for other timers: 0 would mean its own choice.
const SLACK_NANOSECONDS: libc::c_ulong = 1;

/// A store with a round trip added to each call.
pub struct Delayed {
    store: Arc<dyn Store>,
    half: Duration,
}

impl Delayed {
    /// Adds `round_trip` to each call of a store.
    pub fn new(store: Arc<dyn Store>, round_trip: Duration) -> Arc<Delayed> {
        Arc::new(Delayed { store, half: round_trip / 2 })
    }
}

/// Waits accurately.
fn wait(time: Duration) {
    if time.is_zero() {
        return;
    }
    let end = Instant::now() + time;
    if let Some(sleep) = time.checked_sub(LATE) {
        sleep_exactly(sleep);
    }
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Sleeps without the kernel's leave to be late, which is the thread's own again afterwards.
fn sleep_exactly(time: Duration) {
    // SAFETY: reads a number of the calling thread.
    let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    // SAFETY: sets a number of the calling thread. When that is refused, the sleep may be late.
    let set = |slack: libc::c_ulong| unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack) };
    set(SLACK_NANOSECONDS);
    std::thread::sleep(time);
    if let Ok(before) = libc::c_ulong::try_from(before) {
        set(before);
    }
}

impl Wrapper for Delayed {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn pass<T>(&self, _call: Call<'_>, on: impl FnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, StoreError> {
        wait(self.half);
        let answer = on(&*self.store);
        wait(self.half);
        answer
    }
}
