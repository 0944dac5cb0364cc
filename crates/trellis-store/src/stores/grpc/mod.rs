//! What the stores behind gRPC share: connections, what went wrong on them, and what a call does to what was read.
//!
//! Promises that any number of threads may call at once, each over a connection of its own ([`lanes`]); that a request
//! that never left is told apart from one whose answer was lost ([`failure`]); and that every such store agrees on what a
//! call means ([`image`]). It must never send a change twice by itself: only the store knows whether that is safe.

pub(super) mod failure;
pub(super) mod flat;
pub(super) mod image;
pub(super) mod lanes;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use failure::Failure;

tokio::task_local! {
    /// The deadline of the store that is called. A call and everything that it asks for are one task.
    pub(super) static DEADLINE: Duration;
}

/// How long a call may take in all, with everything that is tried again.
pub(super) fn call_max() -> Duration {
    DEADLINE.try_with(|deadline| *deadline).unwrap_or(crate::stores::DEADLINE)
}

/// How long a call goes on while nobody can be reached: longer than a store takes to start again.
fn reach_max() -> Duration {
    call_max() * 2 / 5
}

/// How long one request may take.
pub(super) fn request_max() -> Duration {
    call_max() / 2
}

/// How long connecting may take.
pub(super) const CONNECT_MILLISECONDS_MAX: u64 = 3_000;
/// The longest answer that is taken.
pub(super) const ANSWER_BYTES_MAX: usize = 256 << 20;

/// The least and the most time between two attempts.
const PAUSE_MICROSECONDS: (u64, u64) = (200, 100_000);

/// How long a call is still worth trying, and how long to wait before the next attempt.
pub(super) struct Patience {
    begin: Instant,
    pause_microseconds: u64,
}

impl Patience {
    /// For one call, from now on.
    pub(super) fn new() -> Patience {
        Patience { begin: Instant::now(), pause_microseconds: PAUSE_MICROSECONDS.0 }
    }

    /// Whether the time of the call is over.
    pub(super) fn is_over(&self) -> bool {
        self.begin.elapsed() >= call_max()
    }

    /// Waits before the next attempt, twice as long as before and never exactly as long as others do; tells whether there
    /// is time for it.
    pub(super) async fn pause(&mut self) -> bool {
        self.pause_within(call_max()).await
    }

    /// The same, where an attempt failed for a reason that may pass.
    pub(super) async fn pause_after(&mut self, failure: &Failure) -> bool {
        match failure {
            Failure::Answered(..) => false,
            Failure::NotSent(_) => self.pause_within(reach_max()).await,
            Failure::Lost(_) | Failure::Late => self.pause().await,
        }
    }

    async fn pause_within(&mut self, at_most: Duration) -> bool {
        let pause = Duration::from_micros(self.pause_microseconds / 2 + random() % self.pause_microseconds);
        if self.begin.elapsed() + pause >= at_most {
            return false;
        }
        tokio::time::sleep(pause).await;
        self.pause_microseconds = (self.pause_microseconds * 2).min(PAUSE_MICROSECONDS.1);
        true
    }
}

/// A number that no other process has, for what must be told apart.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
