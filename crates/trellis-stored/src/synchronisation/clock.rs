//! Time, as waits and leases see it. A clock may be one that a test moves; nothing here reads another.

use std::time::Instant;

/// Tells the time. Deadlines that a [`trellis_store::Store`] gets are this clock's.
pub trait Clock: Send + Sync {
    /// Now; never earlier than what was told before.
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
