//! Why a wait ended without its object. Each message names the fact, the place and the next step.

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SynchronisationError {
    /// The deadline passed, and nothing was taken.
    #[error("gave up after {} waiting for {what}: {whom}", seconds(*.milliseconds))]
    TooLong {
        /// The object of the wait.
        what: String,
        /// The length of the wait in milliseconds.
        milliseconds: u64,
        /// Who holds it or is missing, and since when.
        whom: String,
    },
    /// This process gave no heartbeat for its lease and was replaced. What it stored since its last release is not part
    /// of the region and never will be, and this process can no longer use any object of the region.
    #[error("{0}")]
    LeaseLost(String),
    /// A guard was dropped and its release failed, which could not be reported at that point; every later call reports
    /// it.
    #[error("{0}")]
    Failed(String),
    /// The request is invalid.
    #[error("{0}")]
    Misuse(String),
    /// The calling thread holds the object already and would wait for itself.
    #[error("{0}")]
    Recursion(String),
    /// The store, or the memory in it, failed.
    #[error("{0}")]
    Memory(String),
}

/// Milliseconds in seconds, for a message.
pub(super) fn seconds(milliseconds: u64) -> String {
    format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_told_in_seconds() {
        let error = SynchronisationError::TooLong {
            what: "lock `jobs`".to_owned(),
            milliseconds: 2_345,
            whom: "process 7 on host (member 3) has it".to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "gave up after 2.3 s waiting for lock `jobs`: process 7 on host (member 3) has it"
        );
    }
}
