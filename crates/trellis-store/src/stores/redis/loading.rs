//! A server that is still loading its data.
//!
//! Promises: a server that makes progress is distinguished from one that does not, and a person learns of the wait at
//! once and then periodically, once for all threads. It must never take longer than the store's deadline to look.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};

use super::Redis;
use super::connection::Connection;
use super::lane::{ask, say_hello};

/// A server that gets on with loading is waited for beyond the store's deadline.
pub(crate) const LOADING: Deadline = Deadline {
    who: "a client of Redis",
    waits_for: "a server that loads its data",
    limit: Limit::Other("as long as it gets on with that, and then for the deadline of the store"),
    then: "an error that says how to wait longer",
    tested: "crates/trellis-store/tests/redis_faults.rs a_server_that_gets_no_further_with_loading_is_an_error",
};
/// The interval between two reports of the wait.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// How far a server had loaded at the last look.
#[derive(Default)]
pub(super) struct Loading {
    loaded_bytes: u64,
}

impl Loading {
    /// Asks how far the server has loaded; returns whether that is further than before.
    pub(super) fn gets_on(&mut self, redis: &Redis) -> bool {
        let Some(facts) = facts(redis) else { return false };
        let fact = |name: &str| {
            let text = facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            text.unwrap_or_default().trim().to_owned()
        };
        tell(redis, &fact("loading_loaded_perc"), &fact("loading_eta_seconds"));
        let loaded_bytes = fact("loading_loaded_bytes").parse().unwrap_or(0);
        let gets_on = loaded_bytes > self.loaded_bytes;
        self.loaded_bytes = self.loaded_bytes.max(loaded_bytes);
        gets_on
    }
}

/// What the server reports of its loading; `None` if it reports nothing.
fn facts(redis: &Redis) -> Option<String> {
    let mut connection = Connection::open(&redis.address.place, redis.deadline).ok()?;
    say_hello(redis, &mut connection).ok()?;
    let said = ask(redis, &mut connection, &[b"INFO", b"persistence"]).ok()?.into_bytes()?;
    Some(String::from_utf8_lossy(&said).into_owned())
}

fn tell(redis: &Redis, percent: &str, seconds: &str) {
    let mut reported = redis.reported_loading.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.is_some_and(|reported| reported.elapsed() < REPORT_EVERY) {
        return;
    }
    *reported = Some(Instant::now());
    let store = &redis.address.shown;
    let left = if seconds.is_empty() { String::new() } else { format!(", about {seconds} s left") };
    trellis_output::lines::report(format_args!(
        "store {store} is not there yet: it loads what it kept ({percent} %{left}); waiting as long as it gets on with \
         that, and at most {} s while it does not",
        redis.deadline.as_secs()
    ));
}
