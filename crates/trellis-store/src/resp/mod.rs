//! Any store through the Redis protocol, so that ordinary clients can use it.
//!
//! Promises that what a client may do with strings, hashes, sorted sets and transactions means what it means in Redis, as far
//! as [`COMMANDS`] goes; that every other command, and every option that is not supported (expiry above all), is refused
//! with a sentence; and that no input makes the server panic or take memory without bound. One thread serves all clients of
//! a store of this process; a store that is elsewhere gets several, since each call waits for it.
//!
//! What is here and not in Redis: `TRELLIS.*` (see `commands/trellis.rs`), with which our own client has the whole contract
//! of [`crate::Store`] without scripts.
//!
//! It must never answer somebody who has not said the password, beyond that it is wanted, and listens only on this machine
//! unless it is told that anybody may come.

mod commands;
mod connection;
mod poll;
mod reply;
mod request;
mod server;
mod waiting;

pub use commands::COMMANDS;
pub use server::{Options, Running, Server};
