//! The local copies of far memory's pages: which are here, which go next, and which threads fetch them.
//!
//! | module | content |
//! |---|---|
//! | [`page_frames`] | which pages are in memory, in which state, and which is evicted next |
//! | [`readahead`] | which pages are fetched before they are touched |
//! | [`fault_threads`] | the threads that serve faults |
//! | [`patch`] | the changes of a page |
//! | [`end`] | how a process ends whose memory is not available |
//!
//! Memory in stores and memory of other machines each define what a page is and where it comes from; this crate is what
//! they share. It must never depend on a store, a link or a protocol.

pub mod end;
pub mod fault_threads;
pub mod page_frames;
pub mod patch;
pub mod readahead;
mod thread;

pub use thread::this_thread;
