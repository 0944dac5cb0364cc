//! One memory over several processes: the Rust API of Trellis.
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

#[doc(inline)]
pub use trellis_cluster::*;
pub use trellis_output::lines::complain;
/// The leaves, for tools that look below the runtime (`trellis doctor`, embedders with a link of their own).
pub use {trellis_memory as memory, trellis_transport as transport};
/// Memory of other machines, memory in stores, and what a run leaves behind: crates of their own.
pub use {trellis_record as record, trellis_remote as remote, trellis_stored as stored};
