//! Objects in the memory of other machines, for C: what `trellis/remote.h` declares.
//!
//! Promises: everything that can fail returns a status and a message, nothing here ends the process, and simultaneous
//! use of one client by two threads is refused. It must never decide what the crate `trellis` decides.

pub mod batch;
pub mod client;
pub mod pointer;
