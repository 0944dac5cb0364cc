//! Why a store did not do what it was asked.

/// Why a call failed. Every sentence names the store, the cause and the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is no address of a store.
    #[error("store `{url}`: {reason}; accepted: {accepted}")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
        /// What would be right.
        accepted: String,
    },
    /// Nobody answers there, or no longer.
    #[error("store {store}: {reason}; is it running, and reachable from here?")]
    Unreachable {
        /// Which.
        store: String,
        /// What happened.
        reason: String,
    },
    /// It does not let us in.
    #[error("store {store}: access was denied: {reason}; {hint}")]
    Denied {
        /// Which.
        store: String,
        /// What it said.
        reason: String,
        /// Where credentials come from.
        hint: String,
    },
    /// A table, a database or an instance is missing.
    #[error("store {store}: {what} does not exist; {hint}")]
    Missing {
        /// Which.
        store: String,
        /// What is missing.
        what: String,
        /// How to make it.
        hint: String,
    },
    /// More than the store takes.
    #[error("store {store}: {what} of {bytes} bytes is more than the {limit} it takes; {hint}")]
    TooLarge {
        /// Which.
        store: String,
        /// What is too large.
        what: String,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
        /// What to do.
        hint: String,
    },
    /// It took too long.
    #[error(
        "store {store}: no answer to {what} within {milliseconds} ms; is it overloaded, or cut off from here? (?deadline=SECONDS \
         in its address gives it longer)"
    )]
    Deadline {
        /// Which.
        store: String,
        /// What was asked.
        what: String,
        /// How long was waited.
        milliseconds: u64,
    },
    /// The connection ended after the call was sent, and the store cannot tell whether it was applied.
    #[error(
        "store {store}: the connection ended during {what}, and whether it took effect cannot be told: {reason}; when the \
         store answers again, look whether it did before doing it again"
    )]
    OutcomeUnknown {
        /// Which.
        store: String,
        /// What was asked.
        what: String,
        /// What happened.
        reason: String,
    },
    /// What it keeps is not what was written.
    #[error(
        "store {store}: its file is damaged: {reason}; `trellis store check {path}` says where, `trellis store salvage {path} \
         NEW` reads what can still be read into a new store, and a copy that `trellis store backup` made can be used as it is"
    )]
    Damaged {
        /// Which.
        store: String,
        /// Its file.
        path: String,
        /// What was noticed.
        reason: String,
    },
    /// What this store cannot do.
    #[error("store {store}: {what}")]
    Unsupported {
        /// Which.
        store: String,
        /// What it cannot do, and what can.
        what: String,
    },
    /// It answered something that makes no sense.
    #[error("store {store}: {reason}")]
    Protocol {
        /// Which.
        store: String,
        /// What it answered.
        reason: String,
    },
}
