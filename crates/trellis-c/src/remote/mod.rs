//! Objects in the memory of other machines, for C: what `trellis/remote.h` declares.
//!
//! Promises: a status for everything that can fail, and a sentence; nothing here ends the process; two threads in one client
//! are told so. Must never decide what the crate `trellis` decides.

pub mod batch;
pub mod client;
pub mod pointer;
