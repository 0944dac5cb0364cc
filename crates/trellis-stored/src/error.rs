//! Why memory in a store could not be used. Each message names the fact, the place and the next step.

use trellis_memory::{MapError, RegionError};
use trellis_store::StoreError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// The store refused or failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// An environment variable has an invalid value.
    #[error("{name}={value} is not possible: {reason}; accepted: {accepted}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// The accepted form.
        accepted: &'static str,
    },
    /// A region does not have the required properties.
    #[error("region `{region}` in store {store}: {reason}; {next}")]
    Region {
        /// Its name.
        region: String,
        /// The store.
        store: String,
        /// What is wrong.
        reason: String,
        /// The next step.
        next: &'static str,
    },
    /// Other processes declared this process dead and replaced it.
    #[error(
        "region `{region}` in store {store}: the other processes declared this one (member {member}) dead, because its \
         record did not change for a lease; what it stored since its last release is lost, start it again"
    )]
    Fenced {
        /// The region.
        region: String,
        /// The store.
        store: String,
        /// This process's member number.
        member: u64,
    },
    /// The memory of this process could not be mapped.
    #[error("{0}")]
    Memory(#[from] RegionError),
    /// The access rights of pages could not be changed.
    #[error("{0}")]
    Map(#[from] MapError),
    /// An invalid argument.
    #[error("{0}")]
    Argument(String),
}
