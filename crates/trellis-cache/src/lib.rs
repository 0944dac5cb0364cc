//! Pages of far memory that are here: which, why, and who fetches them.
//!
//! | module | what it is |
//! |---|---|
//! | [`frames`] | which pages are here, in which state, and which goes next |
//! | [`readahead`] | what is fetched before it is touched |
//! | [`fault_threads`] | the threads that serve faults |
//! | [`patch`] | what changed in a page |
//! | [`end`] | how a process ends that cannot have its memory |
//!
//! Memory in stores and memory of other machines both decide for themselves what a page is and where it comes from; what they
//! share is here. Must never know a store, a link or a protocol.

pub mod end;
pub mod fault_threads;
pub mod frames;
pub mod patch;
pub mod readahead;
mod thread;

pub use thread::this_thread;
