//! How long a host takes to answer, and how long to wait for an answer.

use std::time::Duration;

/// A smoothed answer time and its deviation (RFC 6298), in seconds; none before the first sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerTime(Option<(f64, f64)>);

impl AnswerTime {
    /// Notes the time of an answer. It must be known which request it answers.
    pub fn sample(&mut self, after: Duration) {
        let after = after.as_secs_f64();
        self.0 = Some(match self.0 {
            None => (after, after / 2.0),
            Some((takes, off)) => (takes + (after - takes) / 8.0, off + ((after - takes).abs() - off) / 4.0),
        });
    }

    /// How long to wait for the next answer: four times the usual time, or more if the time varies, between the two
    /// bounds. `None` before the first sample.
    pub fn timeout(&self, least: Duration, most: Duration) -> Option<Duration> {
        let (takes, off) = self.0?;
        Some(Duration::from_secs_f64((4.0 * takes).max(takes + 4.0 * off)).clamp(least, most))
    }
}
