//! The clock of waits and leases. A test can replace it; nothing here reads another clock.

use std::time::Instant;

/// A source of time. Deadlines that are passed to a [`trellis_store::Store`] are on this clock.
pub trait Clock: Send + Sync {
    /// The current time; never earlier than an earlier result.
    fn now(&self) -> Instant;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}
