//! The window of one host: how many questions to it may be in flight, and when an unanswered one is sent again.
//!
//! Promises: at least one may be in flight, and at most [`QUESTIONS_MAX`]. The first repetition comes after four times
//! the answer time, and never earlier than the given minimum; each further one after twice the time, up to a bound.
//! The window grows by one for each windowful of answers and is halved by a loss, once for each round (additive
//! increase and multiplicative decrease, RFC 5681). Only a question that was sent once is a sample of the answer time
//! (Karn's rule).

use std::time::Duration;

/// The maximum number of questions in flight to one host.
const QUESTIONS_MAX: f32 = 64.0;
/// The initial number.
const QUESTIONS_FIRST: f32 = 16.0;

pub(super) struct Window {
    /// Smoothed answer time and its deviation (RFC 6298), in seconds; none before the first answer.
    takes: Option<(f64, f64)>,
    size: f32,
    pub(super) under_way: usize,
    /// Questions from this number on belong to a round that was not halved yet.
    round: u64,
}

impl Window {
    pub(super) fn new() -> Window {
        Window { takes: None, size: QUESTIONS_FIRST, under_way: 0, round: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.under_way < self.size as usize
    }

    /// A question was answered: after this time if it was sent once, `None` if it was sent more often.
    pub(super) fn answered(&mut self, after: Option<Duration>) {
        self.under_way -= 1;
        self.size = (self.size + 1.0 / self.size).min(QUESTIONS_MAX);
        let Some(after) = after.map(|after| after.as_secs_f64()) else { return };
        self.takes = Some(match self.takes {
            None => (after, after / 2.0),
            Some((takes, off)) => (takes + (after - takes) / 8.0, off + ((after - takes).abs() - off) / 4.0),
        });
    }

    /// A question, by its number, got no answer in time; `next` is the next number to be sent.
    pub(super) fn lost(&mut self, number: u64, next: u64) {
        if number >= self.round {
            self.size = (self.size / 2.0).max(1.0);
            self.round = next;
        }
    }

    /// The time after which a question that was sent so often is sent again.
    pub(super) fn again_after(&self, sent: u32, least: Duration, most: Duration) -> Duration {
        let first = self.takes.map_or(least * 4, |(takes, off)| {
            Duration::from_secs_f64((4.0 * takes).max(takes + 4.0 * off)).clamp(least, most)
        });
        first.saturating_mul(1 << (sent - 1).min(16)).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(1);
    const MOST: Duration = Duration::from_millis(250);

    #[test]
    fn repetitions_are_late_and_later() {
        let mut window = Window::new();
        assert_eq!(window.again_after(1, LEAST, MOST), LEAST * 4, "nothing is known yet");
        for _ in 0..100 {
            window.under_way += 1;
            window.answered(Some(Duration::from_micros(20)));
        }
        assert_eq!(window.again_after(1, LEAST, MOST), LEAST, "four times 20 us is less than the least");
        assert_eq!(window.again_after(2, LEAST, MOST), LEAST * 2);
        for _ in 0..100 {
            window.under_way += 1;
            window.answered(Some(Duration::from_millis(10)));
        }
        let first = window.again_after(1, LEAST, MOST);
        assert!(first > Duration::from_millis(39) && first < Duration::from_millis(45), "{first:?}");
        assert_eq!(window.again_after(40, LEAST, MOST), MOST);
        window.under_way += 1;
        window.answered(None);
        assert_eq!(window.again_after(1, LEAST, MOST), first, "nobody knows which of two an answer belongs to");
    }

    #[test]
    fn a_round_of_losses_halves_once() {
        let mut window = Window::new();
        (10..26).for_each(|number| window.lost(number, 26));
        assert_eq!(window.size, QUESTIONS_FIRST / 2.0);
        window.lost(26, 30);
        assert_eq!(window.size, QUESTIONS_FIRST / 4.0);
        (0..10).for_each(|round| window.lost(100 + round, 101 + round));
        assert_eq!(window.size, 1.0);
        assert!(window.has_room());
        for _ in 0..10_000 {
            window.under_way += 1;
            window.answered(None);
        }
        assert_eq!(window.size, QUESTIONS_MAX);
    }
}
