//! The clock of redirects: the kernel's monotonic clock, in ticks of 65,536 ns.
//!
//! The term of a redirect begins when the switch is told. It must never use another machine's clock.

use std::time::{Duration, Instant};

use crate::layout;
use crate::sys;

/// The current tick.
pub(crate) fn ticks_now() -> u64 {
    sys::monotonic_ns() >> layout::TICK_SHIFT
}

/// A duration in ticks; at least one, so that a requested term is never empty.
pub(crate) fn ticks(time: Duration) -> u64 {
    let ticks = time.as_nanos() >> layout::TICK_SHIFT;
    u64::try_from(ticks).unwrap_or(u64::MAX).clamp(1, layout::TICKS_FOREVER / 2)
}

/// The tick at which a redirect ends.
pub(crate) fn ticks_until(until: Option<Instant>) -> u64 {
    match until {
        None => layout::TICKS_FOREVER,
        Some(until) => match until.checked_duration_since(Instant::now()) {
            Some(left) => ticks_now() + ticks(left),
            None => 0,
        },
    }
}

/// The time of a tick; `None` for the tick that never comes.
pub(crate) fn instant_of(tick: u64) -> Option<Instant> {
    if tick == layout::TICKS_FOREVER {
        return None;
    }
    let now = Instant::now();
    let ahead = Duration::from_nanos(tick.saturating_sub(ticks_now()) << layout::TICK_SHIFT);
    Some(now.checked_add(ahead).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_way_through_ticks() {
        let until = Instant::now() + Duration::from_secs(3600);
        let back = instant_of(ticks_until(Some(until))).unwrap();
        let apart = if back > until { back - until } else { until - back };
        // The clock is read twice in between, so the bound is one that no machine reaches.
        assert!(apart < Duration::from_secs(1800), "{apart:?}");
        assert_eq!(instant_of(ticks_until(None)), None);
        assert_eq!(ticks_until(Instant::now().checked_sub(Duration::from_nanos(1))), 0);
    }

    #[test]
    fn no_term_is_nothing_and_none_is_for_ever() {
        assert_eq!(ticks(Duration::ZERO), 1);
        assert_eq!(ticks(Duration::from_nanos(3 << layout::TICK_SHIFT)), 3);
        assert!(ticks(Duration::MAX) < layout::TICKS_FOREVER);
    }
}
