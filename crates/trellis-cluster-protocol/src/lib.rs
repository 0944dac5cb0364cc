//! A cluster with one memory, decided; touches nothing.
//!
//! Every protocol of Trellis is a state machine with one entry, `step(now, input, &mut effects)`.
//! Inputs are facts (a fault, a message, a timer, a call of the program); effects are orders that
//! somebody else carries out (protect, install, send, wake). The same code runs in the runtime, in
//! the explorer and in the text scripts under `tests/scripts`.
//!
//! The crate promises: the same inputs give the same effects on every machine. It must never read
//! a clock, start a thread, open a socket, draw a random number or iterate in hash order; it needs
//! no operating system and contains no `unsafe`. Page bytes never enter it: effects name pages, and
//! the runtime moves the bytes.
//!
//! **Order of effects.** Effects are carried out in the order in which they were pushed. For one
//! page that order is always *downgrade before read-out before send*: the application view loses
//! its right to write before the bytes are read, and only then are they sent.
//!
//! **Bytes stay put.** A page that was granted with its bytes is not written at the supplier until
//! the receiver holds it: a runtime may send straight from the supplier's memory, however long the
//! message queues. The explorer checks this by reading the bytes when a message is *delivered*.
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

pub use page::{Access, CHUNK_PAGES, NodeId, PageIndex, PageRange, PageSet};
pub use trellis_base::Nanoseconds;
