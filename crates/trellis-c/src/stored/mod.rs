//! Memory in a store, for C: functions that compiled programs call (`trellis/compiled.h`) and functions for
//! programmers (`trellis/stored.h`, `trellis/stored_synchronisation.h`).
//!
//! Promises: a process has one region, opened once, by the first caller; a forked child gets a message that it has
//! none. Functions of compiled programs cannot return an error: a failure ends the process with one message and
//! status 70. It must never let a panic into C.

pub mod heap;
pub mod process;
pub mod region;
pub mod synchronisation;
pub mod words;
