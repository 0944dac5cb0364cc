//! Key-value stores behind one trait.
//!
//! A [`Store`] keeps bytes under keys and changes several of them at once. What Trellis builds on it (memory, locks,
//! heaps) is in the crate `trellis`; this crate promises only:
//!
//! - **One call, one round trip** wherever the store can do it, so that [`Store::apply`] is the unit in which costs are
//!   counted.
//! - **All or nothing**: of one [`Store::apply`] either everything is stored or nothing, within what
//!   [`Capabilities::atomic`] says.
//! - **Once**: an operation whose answer was lost is not applied twice, whatever it is; when the store cannot tell
//!   whether it was applied, the error is [`StoreError::OutcomeUnknown`].
//! - **Byte-exact**: a write of some bytes of a value changes these and no neighbour, whoever writes beside it.
//! - **Deadlines**: every wait ends, and its error names the store and where it is.
//!
//! It must never cache (what is read was in the store after the call began), never retry without end, and never know
//! what the bytes mean.

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

/// Says one line to people: on standard error, in one write, so that the lines of several processes do not mix. Where standard
/// error cannot be written there is nobody to tell, and the program goes on.
pub fn complain(sentence: std::fmt::Arguments<'_>) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("trellis: {sentence}\n").as_bytes());
}
