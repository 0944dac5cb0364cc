//! What the pure protocols, the checker, links and tests share.
//!
//! Promises: the same calls give the same results on every machine. It must never read a clock, start a thread, or ask an
//! operating system for anything. Only sets of numbers ([`Runs`], [`FreeRuns`]) allocate.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod deadline;
mod fnv;
mod libraries;
mod proc_fields;
mod random;
mod rarely;
mod runs;
pub mod size_classes;
pub mod statistics;

pub use deadline::{Deadline, Limit};
pub use fnv::{Fnv1a, fnv1a};
pub use libraries::is_c_library;
pub use proc_fields::proc_bytes;
pub use random::{Random, mixed, seed_of_run};
pub use rarely::is_worth_reporting;
pub use runs::{FreeRuns, Number, Runs};

/// Nanoseconds of a monotonic clock that the caller chose; only differences are meaningful.
pub type Nanoseconds = u64;
