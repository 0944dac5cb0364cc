//! Why a request failed, and the error for it.
//!
//! It promises that a request is *not sent* only if no byte of it left. A request that has neither failed in this way
//! nor been answered is *lost*: it may have taken effect, or may still take effect later.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tonic::{Code, ConnectError, Status};

use super::{call_max, request_max};
use crate::error::StoreError;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Failure {
    /// There was no connection to send it on.
    NotSent(String),
    /// It was sent, and its result is not known.
    Lost(String),
    /// It was sent, and no answer came in time.
    Late,
    /// The store answered that it did not carry it out.
    Answered(Code, String),
}

impl Failure {
    /// Whether the request certainly had no effect.
    pub(in crate::stores) fn is_without_effect(&self) -> bool {
        matches!(self, Failure::NotSent(_) | Failure::Answered(..))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        let mut innermost = None;
        let mut source = status.source();
        let local = source.is_some();
        let mut connecting = false;
        while let Some(error) = source {
            connecting |= error.is::<ConnectError>();
            innermost = Some(error.to_string());
            source = error.source();
        }
        let reason = innermost.unwrap_or_else(|| status.message().to_owned());
        let uncertain = matches!(
            status.code(),
            Code::Unavailable
                | Code::Unknown
                | Code::Internal
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::DataLoss
        );
        match (connecting, local || uncertain) {
            (true, _) => Failure::NotSent(reason),
            (false, true) => Failure::Lost(reason),
            (false, false) => Failure::Answered(status.code(), reason),
        }
    }
}

/// Waits for the answer to a request, with a deadline.
pub(in crate::stores) async fn answer<T, F: Into<Failure>>(
    request: impl Future<Output = Result<T, F>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(request_max(), request).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Failure::Late),
    }
}

/// The store that an error is about, and the hints for it.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Site {
    /// The store's name in messages.
    pub(in crate::stores) store: String,
    /// The source of credentials.
    pub(in crate::stores) denied_hint: String,
    /// What is missing when the store answers "not found".
    pub(in crate::stores) missing: String,
    /// How to create it.
    pub(in crate::stores) missing_hint: String,
}

impl Site {
    /// The error for a failure that changed nothing.
    pub(in crate::stores) fn unchanged(&self, what: &str, failure: Failure) -> StoreError {
        let store = self.store.clone();
        match failure {
            Failure::NotSent(reason) => StoreError::Unreachable { store, reason },
            Failure::Lost(reason) => {
                StoreError::Unreachable { store, reason: format!("the connection ended during {what}: {reason}") }
            }
            Failure::Late => {
                StoreError::Deadline { store, what: what.to_owned(), milliseconds: milliseconds(request_max()) }
            }
            Failure::Answered(Code::Unauthenticated | Code::PermissionDenied, reason) => {
                StoreError::Denied { store, reason, hint: self.denied_hint.clone() }
            }
            Failure::Answered(Code::NotFound, reason) => StoreError::Missing {
                store,
                what: format!("{} ({reason})", self.missing),
                hint: self.missing_hint.clone(),
            },
            Failure::Answered(code, reason) => {
                StoreError::Protocol { store, reason: format!("it answered {what} with {code:?}: {reason}") }
            }
        }
    }

    /// The error for a change that failed.
    pub(in crate::stores) fn changing(&self, what: &str, failure: Failure) -> StoreError {
        let reason = match failure {
            Failure::Lost(reason) => reason,
            Failure::Late => format!("no answer within {} ms", milliseconds(request_max())),
            failure => return self.unchanged(what, failure),
        };
        StoreError::OutcomeUnknown { store: self.store.clone(), what: what.to_owned(), reason }
    }

    /// The error for a call that met conflicts until its time was over.
    pub(in crate::stores) fn contended(&self) -> StoreError {
        StoreError::Deadline {
            store: self.store.clone(),
            what: "a change that other clients kept getting in front of".to_owned(),
            milliseconds: milliseconds(call_max()),
        }
    }

    /// The error for an answer that makes no sense.
    pub(in crate::stores) fn nonsense(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Protocol { store: self.store.clone(), reason: reason.into() }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site {
            store: "x://y".to_owned(),
            denied_hint: "set CREDENTIALS".to_owned(),
            missing: "table `t`".to_owned(),
            missing_hint: "make it".to_owned(),
        }
    }

    #[test]
    fn what_the_store_may_have_done_is_not_called_undone() {
        assert!(!Failure::from(Status::unavailable("restarting")).is_without_effect());
        assert!(!Failure::Late.is_without_effect());
        let answered = Failure::from(Status::aborted("others were first"));
        assert_eq!(answered, Failure::Answered(Code::Aborted, "others were first".to_owned()));
        assert!(answered.is_without_effect());
        assert!(matches!(site().changing("a change", Failure::Late), StoreError::OutcomeUnknown { .. }));
        assert!(matches!(site().unchanged("a read", Failure::Late), StoreError::Deadline { .. }));
    }

    #[test]
    fn a_connection_that_was_never_made_sent_nothing() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = Failure::from(Status::from_error(Box::new(ConnectError(Box::new(refused)))));
        assert_eq!(failure, Failure::NotSent("connection refused".to_owned()));
    }

    #[test]
    fn sentences_name_the_next_step() {
        let denied = site().unchanged("a read", Failure::Answered(Code::PermissionDenied, "no".to_owned()));
        assert_eq!(denied.to_string(), "store x://y: access was denied: no; set CREDENTIALS");
        let missing = site().unchanged("a read", Failure::Answered(Code::NotFound, "gone".to_owned()));
        assert_eq!(missing.to_string(), "store x://y: table `t` (gone) does not exist; make it");
    }
}
