//! Reads from the environment which store, which region and how much memory to use.
//!
//! Promises: an invalid variable is refused with a message that gives its name, its value and the accepted form. A
//! variable that is not set has the default that is defined here. It must never open anything.

use std::time::Duration;

use super::error::StoredError;
use super::layout::{PAGE_BYTES, REGION_SPAN};
use super::synchronisation::{WAIT_MAX, member, session};

/// The environment variables and their purposes.
pub const VARIABLES: [(&str, &str); 9] = [
    (STORE, "the store's address; without, memory of this process"),
    (REGION, "the region's name; without, one of this process alone, which is removed at its end"),
    (REGION_BYTES, "how large a new region is; without, 64 GiB"),
    (CACHE_BYTES_MAX, "how much memory copies of pages may take; without, 256 MiB"),
    (DELAY_US, "a round trip in microseconds that is added to every call, for experiments"),
    (LEASE_MS, "how long a process of a shared region may show no sign of life, in milliseconds; without, 10000"),
    (WAIT_SECONDS_MAX, "how long a wait for a lock and its like may take that was given no time; without, 3600"),
    (STATISTICS, "1 writes the calls of the store, by kind, to standard error at the end"),
    (HEAP, "how the heap finds blocks: scalable, first-fit or bump"),
];

const STORE: &str = "TRELLIS_STORE";
const REGION: &str = "TRELLIS_STORE_REGION";
const REGION_BYTES: &str = "TRELLIS_STORE_REGION_BYTES";
const CACHE_BYTES_MAX: &str = "TRELLIS_STORE_CACHE_BYTES_MAX";
const DELAY_US: &str = "TRELLIS_STORE_DELAY_US";
const LEASE_MS: &str = "TRELLIS_STORE_LEASE_MS";
const WAIT_SECONDS_MAX: &str = "TRELLIS_STORE_WAIT_SECONDS_MAX";
const STATISTICS: &str = "TRELLIS_STORE_STATISTICS";
const HEAP: &str = "TRELLIS_STORE_HEAP";

/// The minimum size of a region and of a cache.
pub const BYTES_MIN: usize = 1 << 20;
/// The maximum length of a region's name.
pub const NAME_BYTES_MAX: usize = 255;
const SIZES: &str = "a number of bytes, or a number with KiB, MiB, GiB or TiB, such as 256MiB";

/// A process's requirements for a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The store's address; see [`trellis_store::open`] and [`super::stores`].
    pub store: String,
    /// The region's name; `None` for a private region.
    pub region: Option<String>,
    /// The size with which the region is created.
    pub region_bytes: usize,
    /// The maximum memory for copies of pages and their twins.
    pub cache_bytes_max: usize,
    /// A delay that is added to every call.
    pub delay: Duration,
    /// The lease of this process; see [`super::coherence::log::Identity`].
    pub lease: Duration,
    /// The limit of waits; see [`super::synchronisation::Options::wait_max`].
    pub wait_max: Duration,
    /// Whether the counts of calls are printed at the end.
    pub statistics: bool,
    /// The heap's kind, as text; empty for the default.
    pub heap: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            store: "embedded:".to_owned(),
            region: None,
            region_bytes: 64 << 30,
            cache_bytes_max: 256 << 20,
            delay: Duration::ZERO,
            lease: member::LEASE.time(),
            wait_max: session::WAIT.time(),
            statistics: false,
            heap: String::new(),
        }
    }
}

impl Settings {
    /// The settings from the environment of this process.
    ///
    /// # Errors
    ///
    /// [`StoredError::Setting`] for the first invalid variable.
    pub fn from_environment() -> Result<Settings, StoredError> {
        Settings::from_lookup(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Like [`Settings::from_environment`], with any function that looks up variables.
    ///
    /// # Errors
    ///
    /// As [`Settings::from_environment`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, StoredError> {
        // An empty variable counts as not set, as shells create them.
        let lookup = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let mut settings = Settings::default();
        if let Some(store) = lookup(STORE) {
            settings.store = store;
        }
        if let Some(name) = lookup(REGION) {
            check_name(&name).map_err(|reason| {
                refused(REGION, &name, reason, "up to 255 bytes of printed characters, not `#` first")
            })?;
            settings.region = Some(name);
        }
        if let Some(text) = lookup(REGION_BYTES) {
            settings.region_bytes = size(REGION_BYTES, &text, BYTES_MIN, REGION_SPAN)?;
        }
        if let Some(text) = lookup(CACHE_BYTES_MAX) {
            settings.cache_bytes_max = size(CACHE_BYTES_MAX, &text, BYTES_MIN, REGION_SPAN)?;
        }
        if let Some(text) = lookup(DELAY_US) {
            settings.delay = Duration::from_micros(number(DELAY_US, &text, 0, 60_000_000, "0 to 60000000")?);
        }
        if let Some(text) = lookup(LEASE_MS) {
            settings.lease = Duration::from_millis(number(LEASE_MS, &text, 10, 3_600_000, "10 to 3600000")?);
        }
        if let Some(text) = lookup(WAIT_SECONDS_MAX) {
            let most = WAIT_MAX.as_secs();
            settings.wait_max = Duration::from_secs(number(WAIT_SECONDS_MAX, &text, 1, most, "1 to 2592000")?);
        }
        if let Some(text) = lookup(STATISTICS) {
            settings.statistics = number(STATISTICS, &text, 0, 1, "0 or 1")? == 1;
        }
        if let Some(text) = lookup(HEAP) {
            settings.heap = text;
        }
        Ok(settings)
    }
}

/// Checks the name of a region; the error says why it is not allowed.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("a name of {} bytes is too long", name.len()));
    }
    match name.chars().find(|letter| letter.is_control()) {
        Some(letter) => Err(format!("{letter:?} cannot be in a name")),
        None if name.is_empty() => Err("a name has at least one character".to_owned()),
        // Tools use this form for a region without a name.
        None if name.starts_with('#') => Err("`#` begins the number of a region without a name".to_owned()),
        None => Ok(()),
    }
}

fn refused(name: &'static str, value: &str, reason: String, accepted: &'static str) -> StoredError {
    StoredError::Setting { name, value: value.to_owned(), reason, accepted }
}

fn number(name: &'static str, text: &str, least: u64, most: u64, accepted: &'static str) -> Result<u64, StoredError> {
    let number: u64 =
        text.trim().parse().map_err(|_| refused(name, text, "it is not a number".to_owned(), accepted))?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(refused(name, text, "it is out of range".to_owned(), accepted))
}

fn size(name: &'static str, text: &str, least: usize, most: usize) -> Result<usize, StoredError> {
    let bytes =
        bytes_of_text(text).ok_or_else(|| refused(name, text, "it is not a number of bytes".to_owned(), SIZES))?;
    if !(least..=most).contains(&bytes) {
        return Err(refused(name, text, "it is out of range".to_owned(), "1MiB to 1TiB"));
    }
    Ok(bytes.next_multiple_of(PAGE_BYTES))
}

pub(crate) fn bytes_of_text(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: usize = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(pairs: &'a [(&'a str, &'a str)]) -> Result<Settings, StoredError> {
        Settings::from_lookup(|name| pairs.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        assert_eq!(with(&[]).expect("nothing is wrong"), Settings::default());
        assert_eq!(with(&[(REGION, "")]).expect("empty is not set").region, None);
    }

    #[test]
    fn variables_are_read() {
        let settings = with(&[
            (STORE, "redis://127.0.0.1:1"),
            (REGION, "job 7"),
            (REGION_BYTES, "1TiB"),
            (CACHE_BYTES_MAX, "8MiB"),
            (DELAY_US, "2750"),
            (LEASE_MS, "500"),
            (WAIT_SECONDS_MAX, "90"),
            (STATISTICS, "1"),
            (HEAP, "first-fit"),
        ])
        .expect("all are right");
        assert_eq!((settings.store.as_str(), settings.region.as_deref()), ("redis://127.0.0.1:1", Some("job 7")));
        assert_eq!((settings.region_bytes, settings.cache_bytes_max), (1 << 40, 8 << 20));
        assert_eq!((settings.delay.as_micros(), settings.lease.as_millis()), (2750, 500));
        assert_eq!(settings.wait_max.as_secs(), 90);
        assert!(settings.statistics);
        assert_eq!(settings.heap, "first-fit");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let long = "x".repeat(256);
        for (name, value) in [
            (REGION, long.as_str()),
            (REGION, "a\nb"),
            (REGION, "#5"),
            (REGION_BYTES, "2TiB"),
            (REGION_BYTES, "many"),
            (CACHE_BYTES_MAX, "1KiB"),
            (CACHE_BYTES_MAX, "99999999999TiB"),
            (DELAY_US, "-1"),
            (LEASE_MS, "0"),
            (WAIT_SECONDS_MAX, "0"),
            (WAIT_SECONDS_MAX, "2592001"),
            (STATISTICS, "yes"),
        ] {
            let said = with(&[(name, value)]).expect_err("it makes no sense").to_string();
            assert!(said.starts_with(&format!("{name}={value} ")) && said.contains("accepted"), "{said}");
        }
    }
}
