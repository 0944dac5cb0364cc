//! The protocols of a cluster with one shared memory, as pure state machines.
//!
//! Every protocol of Trellis has one entry point, `step(now, input, &mut effects)`. Inputs are facts: a fault, a message, a
//! timer, a call of the program. Effects are orders that the caller carries out: protect, install, send, wake. The same
//! code runs in the runtime, in the explorer and in the text scripts under `tests/scripts`.
//!
//! Promises: the same inputs give the same effects on every machine. The crate must never read a clock, start a thread,
//! open a socket, generate a random number or iterate in hash order. It needs no operating system and contains no `unsafe`.
//! Page bytes never enter it: effects name pages, and the runtime moves the bytes.
//!
//! **Order of effects.** The caller carries out effects in the order in which they were pushed. For one page that order is
//! always *downgrade before read-out before send*: the application view loses its right to write before the bytes are read,
//! and the bytes are sent only after that.
//!
//! **Bytes stay put.** After a node has granted a page with its bytes, it does not write that page until the receiver holds
//! it. A runtime may therefore send straight from the supplier's memory, however long the message is queued. The explorer
//! checks this by reading the bytes when a message is *delivered*.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod coherence;
pub mod heap;
pub mod homes;
pub mod membership;
pub mod node;
pub mod page;
pub mod prefetch;
pub mod sync;
pub mod wire;

pub use page::{Access, CHUNK_PAGES, NodeId, PageIndex, PageRange, PageSet, runs};
pub use trellis_base::Nanoseconds;
