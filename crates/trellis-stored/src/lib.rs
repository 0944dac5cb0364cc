//! Memory that lives in a key-value store.
//!
//! A *region* is a name in a store and the pages under it. Processes that open the same region share its bytes. A
//! region without a name belongs to one process and is removed with it. Pages are values of 4 KiB in every mode:
//!
//! | module | how the bytes are used |
//! |---|---|
//! | [`words`] | each load and store is a call of the store; no copy is kept |
//! | [`paging`] | pages are cached here, faults are caught by the kernel, and only differences are written back |
//! | [`lines`] | the same page frames behind a check in the program's own instructions |
//! | [`coherence`] | what a release writes and an acquire reads, so that copies agree |
//!
//! [`region`] opens, lists and removes regions; [`settings`] reads the environment; [`memory`] is a process's whole
//! view of a region, in any of these modes.
//!
//! Promises: a release is seen completely or not at all. Acknowledged changes survive the process. Two regions never
//! share a key. If a page cannot be read, the process ends with one message, because a load has no way to return an
//! error. It must never read the time of another machine, write a byte that the program did not change, or use more
//! memory than `cache_bytes_max`.

pub use trellis_cache::end;
pub(crate) use trellis_cache::{fault_threads, page_frames, readahead};

pub(crate) mod closable;
pub mod coherence;
pub mod error;
pub(crate) mod fenced;
pub mod heap;
pub(crate) mod heartbeats;
pub mod launched;
pub mod layout;
pub mod lines;
pub(crate) mod liveness;
pub mod memory;
pub mod paging;
pub mod record;
pub mod region;
pub mod remote_heap;
pub mod remote_memory;
pub mod settings;
pub mod stores;
pub mod synchronisation;
pub mod words;

pub use allocator_api2;
pub use error::StoredError;
pub use remote_heap::RemoteHeap;
pub use remote_memory::RemoteMemory;
/// The result of a change.
pub use trellis_store::Applied;

use synchronisation::{member, session};
use trellis_base::Deadline;

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[paging::PAGE, coherence::log::RELEASE, member::LEASE, session::WAIT];
