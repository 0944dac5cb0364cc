//! Why a wait ended without what it waited for. Each sentence says the fact, the place and the next step.

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SynchronisationError {
    /// The deadline passed. Nothing was taken.
    #[error("gave up after {} waiting for {what}: {whom}", seconds(*.milliseconds))]
    TooLong {
        /// What was waited for.
        what: String,
        /// For how long.
        milliseconds: u64,
        /// Who has it or is missing, and since when.
        whom: String,
    },
    /// This process gave no sign of life for its lease and was replaced. What it stored since its last release is not
    /// part of the region and never will be; no object of the region can be used by it any more.
    #[error("{0}")]
    LeaseLost(String),
    /// A guard went and its release failed, so nobody could be told; every later call says so.
    #[error("{0}")]
    Failed(String),
    /// The program asked for something that cannot be.
    #[error("{0}")]
    Misuse(String),
    /// The thread that asks has it already, and would wait for itself.
    #[error("{0}")]
    Recursion(String),
    /// The store, or the memory in it, failed.
    #[error("{0}")]
    Memory(String),
}

/// Milliseconds for a sentence.
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
