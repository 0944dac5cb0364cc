//! A store with an added delay, as if it were farther away.
//!
//! Promises: each call takes one round trip longer than without the delay; half of it passes before the inner call and
//! half after it. A call that waits is delayed once, in addition to its waiting. An ordinary sleep wakes too late by
//! about as much as a fast store takes. The thread's timer slack is therefore set to its minimum, and the last
//! microseconds of each half are polled. The polling is kept short because processes that share a core would wait for
//! each other's polling.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Call, Wrapper};
use crate::error::StoreError;
use crate::store::Store;

/// How late a sleep may wake with the minimum timer slack.
const LATE: Duration = Duration::from_micros(25);
/// The timer slack during a sleep; 0 would select the kernel's default.
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

/// Sleeps with the minimum timer slack, and restores the thread's own slack afterwards.
fn sleep_exactly(time: Duration) {
    // SAFETY: reads a number of the calling thread.
    let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    // SAFETY: sets a number of the calling thread. If the kernel refuses, the sleep may wake late.
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
