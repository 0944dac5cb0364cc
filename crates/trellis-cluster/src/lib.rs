//! The runtime of one node of a cluster, and the Rust API that the crate `trellis-dsm` presents as `trellis`.
//!
//! It carries out what the protocols of [`trellis_cluster_protocol`] decide: it catches faults, moves pages between
//! memory and links, and lets threads wait. Each module states its promises and limits. It must never decide by itself
//! which node may read or write a page.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod cluster;
pub mod config;
pub mod engines;
mod heap;
mod join;
pub mod launch;
pub mod named;
mod names;
mod ranges;
mod runtime;
pub mod secret;
pub mod synchronisation;
pub mod waits;

pub use cluster::{Cluster, JoinError, Region, WaitError};
pub use config::{Config, ConfigError};
pub use heap::{Heap, HeapError, HeapStatistics, Home, Padding};
pub use join::try_region;
pub use named::{FrozenVec, MutexOf, SharedVec};
pub use names::Name;
pub use ranges::{RangeGuard, ToProtocol};
pub use synchronisation::Atomic;
/// A protocol, and how protocols combine.
pub use trellis_cluster_protocol::coherence::Protocol;
pub use trellis_record::Counters;

/// Joins the cluster that the environment describes: the one that `trellis run` started, or a cluster of one node when
/// the program was started by itself.
///
/// # Errors
///
/// As [`Config::from_environment`] and [`Cluster::join`].
pub fn join() -> Result<Cluster, JoinError> {
    Cluster::join(Config::from_environment()?)
}
