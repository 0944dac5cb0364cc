//! Key-value stores behind one trait.
//!
//! A [`Store`] keeps bytes under keys and changes several of them at once. What Trellis builds on it (memory, locks,
//! heaps) is in the crate `trellis-stored`. This crate promises only:
//!
//! - **One call, one round trip** wherever the store can do it, so that [`Store::apply`] is the unit in which costs are
//!   counted.
//! - **All or nothing**: one [`Store::apply`] is stored completely or not at all, within what [`Capabilities::atomic`]
//!   says.
//! - **Once**: an operation whose answer was lost is never applied twice. If the store cannot tell whether it was
//!   applied, the error is [`StoreError::OutcomeUnknown`].
//! - **Byte-exact**: a write to some bytes of a value changes those bytes and no neighbouring byte, even with concurrent
//!   writers.
//! - **Deadlines**: every wait ends, and its error names the store and its address.
//!
//! It must never cache (a read returns what the store held after the call began), never retry without end, and never
//! interpret the bytes.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod capabilities;
mod codec;
mod error;
mod key;
mod operation;
pub mod resp;
mod steps;
mod store;
pub mod stores;
mod transaction;
pub mod wrap;

pub use capabilities::{Atomic, Capabilities};
pub use error::StoreError;
pub use key::{Key, Kind};
pub use operation::{Applied, Change, Entry, Expect, Guard, Operation, Outcome, Refused};
pub use store::Store;
pub use stores::open;

use stores::redis;
use trellis_base::Deadline;

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[
    stores::DEADLINE,
    redis::connection::CONNECT,
    redis::loading::LOADING,
    stores::GRPC_CONNECT,
    resp::commands::trellis::WAIT,
];
