//! What the gRPC stores share: the store itself, connections, failures, and the evaluation of a call on what was read.
//!
//! Promises: any number of threads may call at once, each over a connection of its own ([`lanes`]). A request that was
//! never sent is distinguished from one whose answer was lost ([`failure`]). All these stores agree on the meaning of a
//! call ([`image`]). It must never repeat a change by itself: only the store knows whether that is safe.

pub(super) mod failure;
pub(super) mod flat;
pub(super) mod image;
pub(super) mod lanes;
pub(super) mod served;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use failure::Failure;

tokio::task_local! {
    /// The deadline of the store that is called. A call and all its requests are one task.
    pub(super) static DEADLINE: Duration;
}

/// The maximum duration of a call, including all its retries.
pub(super) fn call_max() -> Duration {
    DEADLINE.try_with(|deadline| *deadline).unwrap_or(crate::stores::DEADLINE.time())
}

/// How long a call is retried while the store cannot be reached: longer than a store takes to restart.
fn reach_max() -> Duration {
    call_max() * 2 / 5
}

/// The maximum duration of one request.
pub(super) fn request_max() -> Duration {
    call_max() / 2
}

/// The maximum length of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 256 << 20;

/// The minimum and maximum pause between two attempts.
const PAUSE_MICROSECONDS: (u64, u64) = (200, 100_000);

/// The time limit of a call, and the pause before its next attempt.
pub(super) struct Timeout {
    begin: Instant,
    pause_microseconds: u64,
}

impl Timeout {
    /// For one call, starting now.
    pub(super) fn new() -> Timeout {
        Timeout { begin: Instant::now(), pause_microseconds: PAUSE_MICROSECONDS.0 }
    }

    /// Whether the call's time is over.
    pub(super) fn is_over(&self) -> bool {
        self.begin.elapsed() >= call_max()
    }

    /// Waits before the next attempt, for a random time whose bound doubles; returns whether time is left.
    pub(super) async fn pause(&mut self) -> bool {
        self.pause_within(call_max()).await
    }

    /// Like [`Timeout::pause`], but only after a failure that may be temporary.
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

/// A random number, for values that must be unique among all processes.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
