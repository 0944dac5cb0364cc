//! The meaning of a server's refusals.

use std::io;
use std::time::Duration;

use super::connection::is_timeout;
use crate::error::StoreError;

/// Whether the server did nothing, and may accept the call soon.
pub(super) fn is_for_now(line: &str) -> bool {
    ["LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN"].contains(&word(line))
}

/// Whether the server is still loading its data.
pub(super) fn is_loading(line: &str) -> bool {
    word(line) == "LOADING"
}

/// The error for a server that did not become ready in time.
pub(super) fn not_in_time(store: &str, line: &str, deadline: Duration) -> StoreError {
    if !is_loading(line) {
        return refusal(store, line);
    }
    let seconds = deadline.as_secs();
    StoreError::Protocol {
        store: store.to_owned(),
        reason: format!(
            "it still loads what it kept, and got no further within {seconds} s ({line}); look into its log, or give it longer \
             with ?deadline=SECONDS in its address"
        ),
    }
}

/// Whether the server does not know a command or a version of the protocol.
pub(super) fn is_unknown(line: &str) -> bool {
    word(line) == "NOPROTO" || line.starts_with("ERR unknown") || line.starts_with("ERR Unknown")
}

/// The error for a refusal.
pub(super) fn refusal(store: &str, line: &str) -> StoreError {
    let store = store.to_owned();
    let protocol = |reason: &str| StoreError::Protocol { store: store.clone(), reason: format!("{reason} ({line})") };
    let unsupported = |what: &str| StoreError::Unsupported { store: store.clone(), what: format!("{what} ({line})") };
    match word(line) {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => denied(store, line),
        _ if line.contains("invalid password") || line.contains("AUTH") && line.contains("password") => {
            denied(store, line)
        }
        "OOM" => protocol("it is full: what it may use (maxmemory) is used; give it more, or remove regions"),
        "MISCONF" => protocol("it takes no changes because it cannot write to its disk; make room there"),
        "READONLY" => unsupported("it is a replica, which takes no changes; name the primary"),
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => {
            unsupported("it is part of a Redis Cluster, which cannot change several keys at once; name a single server")
        }
        "WRONGTYPE" => protocol("a key that begins with `trellis:` was changed by somebody else"),
        "TRELLIS" => ours(store, line),
        _ if line.contains("DB index") => protocol("it has no such database; name another number, or none"),
        _ if is_unknown(line) => unsupported("it cannot run scripts, which changes need; use a Redis that can"),
        _ => protocol("it refused"),
    }
}

/// Refusals of our own front end: `TRELLIS`, the kind, the message.
fn ours(store: String, line: &str) -> StoreError {
    let mut words = line.splitn(3, ' ').skip(1);
    let kind = words.next().unwrap_or_default();
    let sentence = words.next().unwrap_or_default().to_owned();
    match kind {
        "unsupported" => StoreError::Unsupported { store, what: sentence },
        "unreachable" => StoreError::Unreachable { store, reason: sentence },
        "unknown" => StoreError::OutcomeUnknown { store, what: "a call".to_owned(), reason: sentence },
        _ => StoreError::Protocol { store, reason: sentence },
    }
}

fn denied(store: String, line: &str) -> StoreError {
    let hint = "user and password stand in the address: redis://USER:PASSWORD@HOST".to_owned();
    StoreError::Denied { store, reason: line.to_owned(), hint }
}

/// The error for a connection that failed before anything could have been done.
pub(super) fn failure(store: &str, what: &str, milliseconds: u128, error: &io::Error) -> StoreError {
    let store = store.to_owned();
    if is_timeout(error) {
        return StoreError::Deadline { store, what: what.to_owned(), milliseconds: milliseconds as u64 };
    }
    match error.kind() {
        io::ErrorKind::InvalidData => StoreError::Protocol { store, reason: error.to_string() },
        _ => StoreError::Unreachable { store, reason: error.to_string() },
    }
}

fn word(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        for (line, part) in [
            ("NOAUTH Authentication required.", "access was denied"),
            ("WRONGPASS invalid username-password pair or user is disabled.", "redis://USER:PASSWORD@HOST"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "it is full"),
            ("READONLY You can't write against a read only replica.", "name the primary"),
            ("MISCONF Errors writing to the AOF file: No space left on device", "disk"),
            ("MOVED 3999 127.0.0.1:6381", "Cluster"),
            ("ERR unknown command 'EVALSHA', with args beginning with: ", "cannot run scripts"),
            ("ERR DB index is out of range", "name another number"),
        ] {
            let sentence = refusal("redis://h:1", line).to_string();
            assert!(sentence.contains(part) && sentence.starts_with("store redis://h:1: "), "{sentence}");
        }
    }
}
