//! The clocks of [`super`]'s multicasts: when the sender reports its fragment count, and when it seeks receivers.
//!
//! Promises: [`Heartbeats::due`] and [`Attempts::due`] tell what is due, and nothing is due forever: heartbeats end
//! when everything has arrived, attempts after a number of them.
//!
//! It must never know who the receivers are.

use super::{HEARTBEAT_NS_FIRST, HEARTBEAT_NS_MAX, Nanoseconds};

/// The number of times that a receiver is introduced to the multicasts of a sender before it is treated as one that
/// receives none.
const ATTEMPTS_MAX: u32 = 16;
/// The pause between two attempts: the first, and the maximum.
const ATTEMPT_NS_MIN: Nanoseconds = 5_000_000;
const ATTEMPT_NS_MAX: Nanoseconds = 1_000_000_000;
const NEVER: Nanoseconds = Nanoseconds::MAX;

/// When receivers are told how many fragments there were, so that the loss of the last ones is noticed.
#[derive(Debug)]
pub struct Heartbeats {
    due: Nanoseconds,
    interval_ns: Nanoseconds,
}

impl Default for Heartbeats {
    fn default() -> Self {
        Heartbeats { due: NEVER, interval_ns: HEARTBEAT_NS_FIRST }
    }
}

impl Heartbeats {
    /// Notes that a frame was sent by multicast.
    pub fn sent(&mut self, now: Nanoseconds) {
        // During a stream of multicasts no heartbeat is needed.
        self.interval_ns = HEARTBEAT_NS_FIRST;
        self.due = now + self.interval_ns;
    }

    /// When the next heartbeat is due.
    pub fn due(&self) -> Nanoseconds {
        self.due
    }

    /// Notes a heartbeat; `wanted` is whether some receiver is not known to have everything.
    pub fn update(&mut self, now: Nanoseconds, wanted: bool) {
        self.interval_ns = (4 * self.interval_ns).min(HEARTBEAT_NS_MAX);
        self.due = if wanted { now + self.interval_ns } else { NEVER };
    }
}

/// When one receiver is introduced to a sender's multicasts, and asked whether it hears them.
#[derive(Clone, Debug)]
pub struct Attempts {
    made: u32,
    due: Nanoseconds,
}

impl Default for Attempts {
    fn default() -> Self {
        Attempts { made: 0, due: NEVER }
    }
}

impl Attempts {
    /// Begins the attempts, because the receiver is up.
    pub fn start(&mut self, now: Nanoseconds) {
        *self = Attempts { made: 0, due: now };
    }

    /// When the next attempt is due.
    pub fn due(&self) -> Nanoseconds {
        self.due
    }

    /// Notes an attempt; returns whether it is the first one, which no receiver can have heard of yet.
    pub fn make(&mut self, now: Nanoseconds) -> bool {
        let wait_ns = (ATTEMPT_NS_MIN << self.made).min(ATTEMPT_NS_MAX);
        self.made += 1;
        self.due = if self.made < ATTEMPTS_MAX { now + wait_ns } else { NEVER };
        self.made == 1
    }

    /// Ends the attempts: the receiver receives multicasts, or is gone.
    pub fn end(&mut self) {
        self.due = NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_come_rarer_and_end_when_all_is_there() {
        let mut heartbeats = Heartbeats::default();
        assert_eq!(heartbeats.due(), NEVER);
        heartbeats.sent(100);
        let mut waits = Vec::new();
        for _ in 0..5 {
            let now = heartbeats.due();
            heartbeats.update(now, true);
            waits.push(heartbeats.due() - now);
        }
        assert_eq!(waits, [20_000_000, 80_000_000, 320_000_000, 320_000_000, 320_000_000]);
        heartbeats.sent(7);
        assert_eq!(heartbeats.due(), 7 + HEARTBEAT_NS_FIRST);
        heartbeats.update(heartbeats.due(), false);
        assert_eq!(heartbeats.due(), NEVER);
    }

    #[test]
    fn attempts_come_rarer_and_are_given_up() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.due(), NEVER);
        attempts.start(50);
        let (mut made, mut waited) = (0, 0);
        while attempts.due() != NEVER {
            let now = attempts.due();
            assert_eq!(attempts.make(now), made == 0);
            made += 1;
            if attempts.due() != NEVER {
                assert!(attempts.due() - now >= waited);
                waited = attempts.due() - now;
            }
        }
        assert_eq!((made, waited), (ATTEMPTS_MAX, ATTEMPT_NS_MAX));
    }
}
