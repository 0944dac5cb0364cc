//! Why a store did not carry out a call.

/// Why a call failed. Every message names the store, the cause and the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is not the address of a store.
    #[error("store `{url}`: {reason}; accepted: {accepted}")]
    Address {
        /// The address as given.
        url: String,
        /// What is wrong with it.
        reason: String,
        /// The accepted forms.
        accepted: String,
    },
    /// The store does not answer, or its connection was lost.
    #[error("store {store}: {reason}; is it running, and reachable from here?")]
    Unreachable {
        /// The store.
        store: String,
        /// What happened.
        reason: String,
    },
    /// The store refused the credentials or the access.
    #[error("store {store}: access was denied: {reason}; {hint}")]
    Denied {
        /// The store.
        store: String,
        /// The store's answer.
        reason: String,
        /// Where credentials come from.
        hint: String,
    },
    /// A table, a database or an instance is missing.
    #[error("store {store}: {what} does not exist; {hint}")]
    Missing {
        /// The store.
        store: String,
        /// What is missing.
        what: String,
        /// How to create it.
        hint: String,
    },
    /// The call or value exceeds a limit of the store.
    #[error("store {store}: {what} of {bytes} bytes is more than the {limit} it takes; {hint}")]
    TooLarge {
        /// The store.
        store: String,
        /// What is too large.
        what: String,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
        /// How to stay within the limit.
        hint: String,
    },
    /// The store did not answer within the deadline.
    #[error(
        "store {store}: no answer to {what} within {milliseconds} ms; is it overloaded, or cut off from here? (?deadline=SECONDS \
         in its address gives it longer)"
    )]
    Deadline {
        /// The store.
        store: String,
        /// The request.
        what: String,
        /// The deadline in milliseconds.
        milliseconds: u64,
    },
    /// The connection ended after the call was sent, and the store cannot tell whether it was applied.
    #[error(
        "store {store}: the connection ended during {what}, and whether it took effect cannot be told: {reason}; when the \
         store answers again, look whether it did before doing it again"
    )]
    OutcomeUnknown {
        /// The store.
        store: String,
        /// The request.
        what: String,
        /// What happened.
        reason: String,
    },
    /// The content of the store's file is not what was written.
    #[error(
        "store {store}: its file is damaged: {reason}; `trellis store check {path}` says where, `trellis store salvage {path} \
         NEW` reads what can still be read into a new store, and a copy that `trellis store backup` made can be used as it is"
    )]
    Damaged {
        /// The store.
        store: String,
        /// Its file.
        path: String,
        /// What was found.
        reason: String,
    },
    /// The store does not support the request.
    #[error("store {store}: {what}")]
    Unsupported {
        /// The store.
        store: String,
        /// What it does not support, and which store does.
        what: String,
    },
    /// The store's answer violates its protocol.
    #[error("store {store}: {reason}")]
    Protocol {
        /// The store.
        store: String,
        /// What it answered.
        reason: String,
    },
}
