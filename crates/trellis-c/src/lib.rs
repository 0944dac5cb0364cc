//! The C interface of Trellis: what `trellis.h` declares, and nothing else.
//!
//! Every function here checks its pointers, calls the crate `trellis`, and turns the outcome into a status and a
//! sentence. No panic crosses into C; no function ends the process; no decision about memory or messages is made here.
//! The headers `trellis.hpp` and `ivy.hh` stand on these functions alone. Layouts and constants are compared with the
//! header by a test that compiles a C program.
//!
//! `unsafe` is used for what C hands over: pointers whose validity the header demands of the caller.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![warn(missing_docs)]

mod allocator;
pub mod cluster;
pub mod config;
pub mod counters;
mod failure;
pub mod heap;
pub mod parmacs;
pub mod remote;
pub mod signals;
pub mod status;
pub mod stored;
pub mod synchronisation;
