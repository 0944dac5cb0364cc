//! The stores, one file each, and the opening of a store from its address.
//!
//! Every store promises what [`crate::Store`] says; the suite in `tests/conformance` is the same for all. A file here
//! must never depend on another kind of store. Stores that are heavy to build are behind cargo features of the same
//! names.

use std::sync::Arc;
use std::time::Duration;

use trellis_base::{Deadline, Limit};

use crate::error::StoreError;
use crate::store::Store;

#[cfg(feature = "bigtable")]
pub mod bigtable;
#[cfg(feature = "datastore")]
pub mod datastore;
pub mod embedded;
pub mod embedded_durable;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "google")]
mod google;
#[cfg(feature = "grpc")]
#[cfg_attr(
    not(all(feature = "bigtable", feature = "spanner", feature = "datastore", feature = "etcd")),
    allow(dead_code, reason = "each store uses its part")
)]
mod grpc;
mod listing;
pub mod redis;
#[cfg(feature = "spanner")]
pub mod spanner;

/// Every form of an address.
const ACCEPTED: &str = "embedded:, embedded:NAME, embedded-durable:/PATH, redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], \
    redis+unix:/SOCKET, bigtable://PROJECT/INSTANCE/TABLE, spanner://PROJECT/INSTANCE/DATABASE, \
    datastore://PROJECT[/NAMESPACE], etcd://HOST:PORT[,HOST:PORT]; those with // and redis+unix take ?deadline=SECONDS";

/// The time within which a store must answer, unless its address says otherwise (`?deadline=SECONDS`).
pub const DEADLINE: Deadline = Deadline {
    who: "a client of a store",
    waits_for: "the store",
    limit: Limit::Setting("?deadline=SECONDS", Duration::from_secs(10)),
    then: "an error that names the store; a program whose memory lies there ends (exit status 70)",
    tested: "crates/trellis-store/tests/redis_faults.rs a_server_that_gets_no_further_with_loading_is_an_error",
};
/// How long connecting to a store with gRPC may take. The documentation lists it in every build.
pub(crate) const GRPC_CONNECT: Deadline = Deadline {
    who: "a client of etcd, Bigtable, Datastore or Spanner",
    waits_for: "a connection",
    limit: Limit::seconds(3),
    then: "the next member, or an error of the store",
    tested: "crates/trellis-store/tests/etcd.rs a_member_that_takes_no_connection_is_left_for_the_next",
};
const DEADLINE_SECONDS_MAX: u64 = 3_600;

/// A kind of store, identified by the scheme of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreKind {
    /// The text before the `:` of its addresses.
    pub scheme: &'static str,
    /// Whether this build can open it. If not, the cargo feature of the same name is missing.
    pub is_built: bool,
}

/// Every kind of store, and whether this build includes it.
pub const KINDS: [StoreKind; 7] = [
    StoreKind { scheme: "embedded", is_built: true },
    StoreKind { scheme: "embedded-durable", is_built: true },
    StoreKind { scheme: "redis", is_built: true },
    StoreKind { scheme: "etcd", is_built: cfg!(feature = "etcd") },
    StoreKind { scheme: "bigtable", is_built: cfg!(feature = "bigtable") },
    StoreKind { scheme: "spanner", is_built: cfg!(feature = "spanner") },
    StoreKind { scheme: "datastore", is_built: cfg!(feature = "datastore") },
];

/// Opens the store at an address:
///
/// | address | store |
/// |---|---|
/// | `embedded:` | a new store in this process, which ends with it; every opener of `embedded:NAME` gets the same store |
/// | `embedded-durable:/PATH` | in a file of this machine, for one process at a time |
/// | `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, `redis+unix:/SOCKET` | any server that speaks the Redis protocol |
/// | `bigtable://PROJECT/INSTANCE/TABLE` | Google Bigtable (feature `bigtable`) |
/// | `spanner://PROJECT/INSTANCE/DATABASE` | Google Spanner (feature `spanner`) |
/// | `datastore://PROJECT[/NAMESPACE]` | Google Datastore (feature `datastore`) |
/// | `etcd://HOST:PORT[,HOST:PORT]` | etcd (feature `etcd`) |
///
/// Stores that are reached over a socket accept `?deadline=SECONDS`, the time within which they must answer.
///
/// # Errors
///
/// [`StoreError::Address`] for anything else, [`StoreError::Unsupported`] for a store that this build does not include,
/// and any error of the store itself when it is opened.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(address(url, "it names no kind of store"));
    };
    let (without, deadline) = match scheme {
        "embedded" | "embedded-durable" => (url.to_owned(), DEADLINE.time()),
        _ => with_deadline(url)?,
    };
    let (url, rest) = (without.as_str(), without.get(scheme.len() + 1..).unwrap_or(rest));
    match scheme {
        "embedded" => Ok(embedded::Embedded::open(rest)),
        "embedded-durable" => embedded_durable::open(url, rest),
        "redis" => redis::open(url, after_slashes(url, rest)?, deadline),
        "redis+unix" => redis::open_unix(url, rest, deadline),
        "rediss" => Err(address(url, "there is no TLS here; let a proxy such as stunnel add it")),
        #[cfg(feature = "bigtable")]
        "bigtable" => bigtable::open(url, after_slashes(url, rest)?, deadline),
        #[cfg(feature = "spanner")]
        "spanner" => spanner::open(url, after_slashes(url, rest)?, deadline),
        #[cfg(feature = "datastore")]
        "datastore" => datastore::open(url, after_slashes(url, rest)?, deadline),
        #[cfg(feature = "etcd")]
        "etcd" => etcd::open(url, after_slashes(url, rest)?, deadline),
        #[allow(unreachable_patterns, reason = "a build may have some of them")]
        "bigtable" | "spanner" | "datastore" | "etcd" => {
            Err(StoreError::Unsupported { store: shown(url), what: not_built(scheme) })
        }
        _ => Err(address(url, "there is no such kind of store")),
    }
}

/// The message that this build lacks a store, and how to get a build that has it.
fn not_built(scheme: &str) -> String {
    format!(
        "this build was made without {scheme}; `cargo xtask install --prefix PREFIX --features {scheme}` installs one that \
         has it (in a Rust program of your own: the cargo feature `{scheme}`)"
    )
}

/// The deadline that an address gives.
///
/// # Errors
///
/// A description of the accepted form.
pub fn deadline(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=DEADLINE_SECONDS_MAX).contains(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("deadline={text} is not possible; give 1 to {DEADLINE_SECONDS_MAX} seconds"))
}

/// An address without its deadline, and the deadline.
fn with_deadline(url: &str) -> Result<(String, Duration), StoreError> {
    let Some((before, question)) = url.split_once('?') else { return Ok((url.to_owned(), DEADLINE.time())) };
    let (said, others): (Vec<&str>, Vec<&str>) =
        question.split('&').partition(|option| option.split('=').next() == Some("deadline"));
    let without = if others.is_empty() { before.to_owned() } else { format!("{before}?{}", others.join("&")) };
    match said[..] {
        [] => Ok((without, DEADLINE.time())),
        [option] => {
            let text = option.split_once('=').map_or("", |(_, text)| text);
            Ok((without, deadline(text).map_err(|reason| address(url, &reason))?))
        }
        _ => Err(address(url, "deadline is given twice")),
    }
}

/// The text after `//`, or an error if that is missing.
fn after_slashes<'a>(url: &str, rest: &'a str) -> Result<&'a str, StoreError> {
    rest.strip_prefix("//").ok_or_else(|| address(url, "`//` is missing after the kind of store"))
}

/// The error for an invalid address.
pub(crate) fn address(url: &str, reason: &str) -> StoreError {
    StoreError::Address { url: shown(url), reason: reason.to_owned(), accepted: ACCEPTED.to_owned() }
}

/// An address as messages may show it: without a password.
pub(crate) fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.find('/').unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(url: &str) -> String {
        match open(url) {
            Ok(store) => panic!("{url} opened {}", store.name()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_no_address_is_answered_with_what_is() {
        for url in ["", "nothing", "nosql://here"] {
            let sentence = sentence(url);
            assert!(sentence.contains("accepted: embedded:"), "{sentence}");
        }
    }

    #[cfg(not(feature = "bigtable"))]
    #[test]
    fn a_store_that_is_not_compiled_in_names_the_next_step() {
        assert_eq!(
            sentence("bigtable://p/i/t"),
            "store bigtable://p/i/t: this build was made without bigtable; `cargo xtask install --prefix PREFIX --features \
             bigtable` installs one that has it (in a Rust program of your own: the cargo feature `bigtable`)"
        );
    }

    #[test]
    fn every_kind_is_opened_or_says_that_it_is_not_built() {
        for StoreKind { scheme, is_built } in KINDS {
            // No store has this address, so the call creates none.
            let url = if scheme == "embedded-durable" { format!("{scheme}:") } else { format!("{scheme}:wrong") };
            match open(&url) {
                Ok(_) => assert_eq!(scheme, "embedded"),
                Err(StoreError::Unsupported { .. }) => assert!(!is_built, "{scheme}"),
                Err(StoreError::Address { .. }) => assert!(is_built, "{scheme}"),
                Err(error) => panic!("{scheme}: {error}"),
            }
        }
    }

    #[test]
    fn a_deadline_is_taken_from_the_address_and_the_rest_stays() {
        let of = |url| with_deadline(url).expect("it is one");
        assert_eq!(of("redis://h:1/2"), ("redis://h:1/2".to_owned(), DEADLINE.time()));
        assert_eq!(of("redis://h:1/2?deadline=90"), ("redis://h:1/2".to_owned(), Duration::from_secs(90)));
        assert_eq!(of("etcd://h:1?tls&deadline=3"), ("etcd://h:1?tls".to_owned(), Duration::from_secs(3)));
        for wrong in ["deadline=0", "deadline", "deadline=3601", "deadline=1s", "deadline=1&deadline=2"] {
            for store in ["redis://h:1", "redis+unix:/s"] {
                let sentence = sentence(&format!("{store}?{wrong}"));
                assert!(sentence.contains("deadline"), "{sentence}");
            }
        }
        assert!(sentence("redis://h:1?time=3").contains("only `deadline=SECONDS`"));
    }

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(shown("redis://me:secr@et@host:1/2"), "redis://host:1/2");
        assert_eq!(shown("redis+unix:/tmp/a@b"), "redis+unix:/tmp/a@b");
    }
}
