//! One memory over several processes: the runtime and the Rust API of Trellis.
//!
//! A region is mapped at the same address in every process of a cluster. Loads and stores just work; a coherence
//! protocol decides who may read or write a page now. Start a program with `trellis run -n 4 ./program`, join with
//! [`Cluster::join`], and share what lies in [`Cluster::region`].
//!
//! ```
//! let cluster = trellis::join()?;
//! // SAFETY: only this node uses its own element before the barrier.
//! let mine = unsafe { cluster.region().slice_mut::<u64>(8 * cluster.node(), 1) };
//! mine[0] = (cluster.node() * cluster.node()) as u64;
//! cluster.barrier(0)?;
//! // SAFETY: nobody writes after the barrier.
//! let squares = unsafe { cluster.region().slice::<u64>(0, cluster.nodes()) };
//! println!("sum of squares: {}", squares.iter().sum::<u64>());
//! cluster.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod cluster;
pub mod config;
mod heap;
mod join;
pub mod launch;
mod ranges;
mod runtime;
pub mod secret;
pub mod synchronisation;
pub mod waits;

pub use cluster::{Cluster, JoinError, Region, WaitError};
pub use config::{Config, ConfigError};
pub use heap::{Heap, HeapError, HeapStatistics, Home, Padding};
pub use ranges::{RangeGuard, ToProtocol};
pub use synchronisation::{Atomic, LockGuard};
/// Which protocols there are, and how they combine.
pub use trellis_cluster_protocol::coherence::Protocol;
pub use trellis_output::lines::complain;
pub use trellis_record::Counters;
/// The leaves, for tools that look below the runtime (`trellis doctor`, embedders with a link of their own).
pub use {trellis_memory as memory, trellis_transport as transport};
/// Memory of other machines, memory in stores, and what a run leaves behind: crates of their own.
pub use {trellis_record as record, trellis_remote as remote, trellis_stored as stored};

/// Joins the cluster that the environment describes: the one that `trellis run` started, or a cluster of one node when
/// the program was started by itself.
///
/// # Errors
///
/// As [`Config::from_environment`] and [`Cluster::join`].
pub fn join() -> Result<Cluster, JoinError> {
    Cluster::join(Config::from_environment()?)
}
