//! One memory over several processes: the Rust API of Trellis.
//!
//! A region is mapped at the same address in every process of a cluster. Loads and stores just work; a coherence
//! protocol decides who may read or write a page now. Start a program with `trellis run -n 4 ./program`, join with
//! [`join`], and share arrays and values that have names: [`Cluster::array`], [`Cluster::mutex_of`]. They need no
//! `unsafe`. [`Cluster::region`] is all of the memory, and [`Cluster::heap`] allocates from it.
//!
//! ```
//! let cluster = trellis::join()?;
//! let mut squares = cluster.array::<u64>("squares", cluster.nodes())?;
//! squares.mine_mut()[0] = (cluster.node() * cluster.node()) as u64;
//! let squares = squares.freeze()?; // every node has stored its element
//! println!("sum of squares: {}", squares.iter().sum::<u64>());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// Types that can be elements of named memory implement [`bytemuck::Pod`], which can be derived.
#[doc(no_inline)]
pub use bytemuck;
#[doc(inline)]
pub use trellis_cluster::*;
pub use trellis_output::lines::complain;
/// What a run leaves behind: a crate of its own.
pub use trellis_record as record;
/// The leaves, for tools that look below the runtime (`trellis doctor`, embedders with a link of their own).
pub use {trellis_memory as memory, trellis_transport as transport};
/// Memory of other machines, and memory in stores: crates of their own.
#[cfg(feature = "remote")]
pub use {trellis_remote as remote, trellis_stored as stored};
