//! Why memory in a store could not be had. Each sentence says the fact, the place and the next step.

use trellis_memory::{MapError, RegionError};
use trellis_store::StoreError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// The store said no, or nothing.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A variable of the environment makes no sense.
    #[error("{name}={value} is not possible: {reason}; accepted: {accepted}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// What would be right.
        accepted: &'static str,
    },
    /// A region is not what it has to be.
    #[error("region `{region}` in store {store}: {reason}; {next}")]
    Region {
        /// Its name.
        region: String,
        /// Where it is.
        store: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        next: &'static str,
    },
    /// Others thought that this process had ended, and went on without it.
    #[error(
        "region `{region}` in store {store}: the other processes declared this one (member {member}) dead, because its \
         record did not change for a lease; what it stored since its last release is lost, start it again"
    )]
    Fenced {
        /// The region.
        region: String,
        /// Where it is.
        store: String,
        /// This process's number.
        member: u64,
    },
    /// The memory of this process could not be arranged.
    #[error("{0}")]
    Memory(#[from] RegionError),
    /// The access to pages could not be changed.
    #[error("{0}")]
    Map(#[from] MapError),
    /// A call that does not fit.
    #[error("{0}")]
    Argument(String),
}
