//! Memory in a store, for C: what compiled programs call (`trellis/compiled.h`) and what people write
//! (`trellis/stored.h`, `trellis/stored_synchronisation.h`).
//!
//! Promises: one region for each process, opened once, by whoever comes first; a forked child is told with a sentence that
//! it has none. Functions of compiled programs have nowhere to put an error: what cannot be done ends the process with
//! one sentence and status 70. Must never let a panic into C.

pub mod heap;
pub mod process;
pub mod region;
pub mod synchronisation;
pub mod words;
