//! The limits of waits, as values that the code uses and that the documentation lists.
//!
//! Promises: a value says who waits, for whom, for how long and what follows, and names the test that reaches the limit.

use core::fmt;
use core::time::Duration;

/// A wait with its limit: a row of the table in `docs/reference/waits.md`.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// Who waits.
    pub who: &'static str,
    /// For whom, and for what.
    pub waits_for: &'static str,
    /// How long at most.
    pub limit: Limit,
    /// The consequence when the limit has passed.
    pub then: &'static str,
    /// The test that reaches the limit, as `crates/…/file.rs name`, or why there is none.
    pub tested: &'static str,
}

/// How long a wait lasts at most.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// This long.
    Time(Duration),
    /// As long as an option says; this long by default.
    Setting(&'static str, Duration),
    /// Until something else ends it.
    Other(&'static str),
}

impl Limit {
    /// So many seconds.
    pub const fn seconds(count: u64) -> Limit {
        Limit::Time(Duration::from_secs(count))
    }

    /// So many milliseconds.
    pub const fn milliseconds(count: u64) -> Limit {
        Limit::Time(Duration::from_millis(count))
    }
}

impl Deadline {
    /// The limit, or its default.
    ///
    /// # Panics
    ///
    /// If something other than time ends the wait.
    pub const fn time(&self) -> Duration {
        match self.limit {
            Limit::Time(time) | Limit::Setting(_, time) => time,
            Limit::Other(_) => panic!("something other than time ends this wait"),
        }
    }

    /// [`Deadline::time`] in milliseconds.
    pub const fn milliseconds(&self) -> u64 {
        self.time().as_millis() as u64
    }

    /// [`Deadline::time`] in nanoseconds.
    pub const fn nanoseconds(&self) -> u64 {
        self.time().as_nanos() as u64
    }
}

impl fmt::Display for Deadline {
    /// A row of the table.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "| {} | {} | {} | {} |", self.who, self.waits_for, self.limit, self.then)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Time(time) => write_time(formatter, *time),
            Limit::Setting(name, time) => {
                write!(formatter, "`{name}`, ")?;
                write_time(formatter, *time)?;
                formatter.write_str(" by default")
            }
            Limit::Other(text) => formatter.write_str(text),
        }
    }
}

fn write_time(formatter: &mut fmt::Formatter<'_>, time: Duration) -> fmt::Result {
    match (time.as_secs(), time.subsec_millis()) {
        (seconds, 0) if seconds > 0 && seconds.is_multiple_of(3_600) => write!(formatter, "{} h", seconds / 3_600),
        (seconds, 0) => write!(formatter, "{seconds} s"),
        _ => write!(formatter, "{} ms", time.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_wait_is_a_row_with_its_limit_in_words() {
        let wait = Deadline {
            who: "a client",
            waits_for: "the answer",
            limit: Limit::seconds(3),
            then: "an error",
            tested: "this is an example",
        };
        assert_eq!(wait.to_string(), "| a client | the answer | 3 s | an error |");
        assert_eq!((wait.milliseconds(), wait.nanoseconds()), (3_000, 3_000_000_000));
        for (limit, words) in [
            (Limit::milliseconds(1_500), "1500 ms"),
            (Limit::seconds(90), "90 s"),
            (Limit::seconds(7_200), "2 h"),
            (Limit::Setting("--timeout", Duration::from_secs(60)), "`--timeout`, 60 s by default"),
            (Limit::Other("until it ends"), "until it ends"),
        ] {
            assert_eq!(limit.to_string(), words);
        }
        let by_default = Deadline { limit: Limit::Setting("--timeout", Duration::from_millis(5)), ..wait };
        assert_eq!(by_default.time(), Duration::from_millis(5));
    }

    #[test]
    #[should_panic(expected = "something other than time")]
    fn what_something_else_ends_has_no_time() {
        let wait = Deadline { who: "", waits_for: "", limit: Limit::Other("it"), then: "", tested: "" };
        let _ = wait.time();
    }
}
