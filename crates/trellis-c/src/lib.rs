//! The C interface of Trellis: exactly what `trellis.h` declares.
//!
//! Every function here checks its pointers, calls the crate `trellis`, and converts the outcome to a status and a
//! message. Promises: no panic reaches C, no function ends the process, and no decision about memory or messages is
//! made here. The headers `trellis.hpp` and `ivy.hh` use only these functions. A test that compiles a C program
//! compares layouts and constants with the header.
//!
//! `unsafe` is used only for C's arguments: pointers whose validity the header requires of the caller.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![warn(missing_docs)]

mod addresses;
mod allocator;
pub mod cluster;
pub mod config;
pub mod counters;
mod failure;
pub mod heap;
mod layout;
pub mod named;
pub mod parmacs;
#[cfg(feature = "remote")]
pub mod remote;
pub mod status;
#[cfg(feature = "remote")]
pub mod stored;
pub mod synchronisation;
pub mod threads;

// Its functions replace those of the C library in programs that are linked with this one.
extern crate trellis_calls as _;
