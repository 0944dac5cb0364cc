//! The window of one host: how many questions to it may be in flight, and when an unanswered one is sent again.
//!
//! Promises: at least one may be in flight, and at most [`QUESTIONS_MAX`]. The first repetition comes after four times
//! the answer time, and never earlier than the given minimum; each further one after twice the time, up to a bound.
//! The window grows by one for each windowful of answers and is halved by a loss, once for each round (additive
//! increase and multiplicative decrease, RFC 5681). Only a question that was sent once is a sample of the answer time.
//! After an answer to a question that was sent more often, which is no sample, the first repetition of the next
//! question comes later, until there is a sample (Karn's algorithm, RFC 6298 section 5): a host that has become slow is
//! not asked ever more often. Silence says nothing about the answer time.

use std::time::Duration;

use super::AnswerTime;

/// The maximum number of questions in flight to one host.
const QUESTIONS_MAX: f32 = 64.0;
/// The initial window.
const QUESTIONS_FIRST: f32 = 16.0;
const DOUBLINGS_MAX: u32 = 16;

pub(super) struct Window {
    answer_time: AnswerTime,
    /// The number of times that the time has doubled because of answers that are no samples.
    doublings: u32,
    size: f32,
    pub(super) under_way: usize,
    /// Questions from this number on belong to a round that was not halved yet.
    round: u64,
}

impl Window {
    pub(super) fn new() -> Window {
        Window { answer_time: AnswerTime::default(), doublings: 0, size: QUESTIONS_FIRST, under_way: 0, round: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.under_way < self.size as usize
    }

    /// A question that was sent `sent` times was answered, `after` this time if that is known.
    pub(super) fn answered(&mut self, sent: u32, after: Option<Duration>) {
        self.under_way -= 1;
        self.size = (self.size + 1.0 / self.size).min(QUESTIONS_MAX);
        match after {
            Some(after) => {
                self.answer_time.sample(after);
                self.doublings = 0;
            }
            // The answer may be one to the first time.
            None if sent > 1 => self.doublings = ((sent - 1).max(self.doublings) + 1).min(DOUBLINGS_MAX),
            None => {}
        }
    }

    /// A question, by its number, got no answer in time; `next` is the next number to be sent.
    pub(super) fn lost(&mut self, number: u64, next: u64) {
        if number >= self.round {
            self.size = (self.size / 2.0).max(1.0);
            self.round = next;
        }
    }

    /// The time after which a question is sent again if nothing was lost before.
    pub(super) fn usual(&self, least: Duration, most: Duration) -> Duration {
        self.answer_time.timeout(least, most).unwrap_or(least * 4)
    }

    /// The time after which a question that was sent `sent` times is sent again.
    pub(super) fn again_after(&self, sent: u32, least: Duration, most: Duration) -> Duration {
        self.usual(least, most).saturating_mul(1 << (sent - 1).max(self.doublings).min(DOUBLINGS_MAX)).min(most)
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
            window.answered(1, Some(Duration::from_micros(20)));
        }
        assert_eq!(window.again_after(1, LEAST, MOST), LEAST, "four times 20 us is less than the least");
        assert_eq!(window.again_after(2, LEAST, MOST), LEAST * 2);
        for _ in 0..100 {
            window.under_way += 1;
            window.answered(1, Some(Duration::from_millis(10)));
        }
        let first = window.again_after(1, LEAST, MOST);
        assert!(first > Duration::from_millis(39) && first < Duration::from_millis(45), "{first:?}");
        assert_eq!(window.again_after(40, LEAST, MOST), MOST);
        window.under_way += 1;
        window.answered(2, None);
        assert_eq!(window.usual(LEAST, MOST), first, "nobody knows which of two an answer belongs to");
    }

    #[test]
    fn a_host_that_becomes_slow_is_not_asked_ever_more_often() {
        let mut window = Window::new();
        window.under_way = 10;
        window.answered(1, Some(Duration::from_micros(20)));
        // From now on, an answer takes 100 ms, so each question is sent more than once at first.
        let mut repetitions = 0;
        for number in 1..10 {
            let (mut waited, mut sent) = (Duration::ZERO, 1);
            loop {
                waited += window.again_after(sent, LEAST, MOST);
                if waited >= Duration::from_millis(100) {
                    break;
                }
                window.lost(number, number + 1);
                (sent, repetitions) = (sent + 1, repetitions + 1);
            }
            window.answered(sent, (sent == 1).then_some(Duration::from_millis(100)));
        }
        assert!(repetitions < 10, "{repetitions}");
        assert!(window.again_after(1, LEAST, MOST) > Duration::from_millis(100), "that is known now");
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
            window.answered(2, None);
        }
        assert_eq!(window.size, QUESTIONS_MAX);
    }
}
