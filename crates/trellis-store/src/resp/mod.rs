//! Serves any store through the Redis protocol, so that ordinary clients can use it.
//!
//! Promises: strings, hashes, sorted sets and transactions behave as in Redis, as far as [`COMMANDS`] goes. Every other
//! command and every unsupported option (above all, expiry) is refused with a message. No input makes the server panic
//! or use unbounded memory. One thread serves all clients of a store that is in this process; a store elsewhere gets
//! several, because each call waits for it.
//!
//! The `TRELLIS.*` commands (see `commands/trellis.rs`) do not exist in Redis. They give our own client the whole
//! contract of [`crate::Store`] without scripts.
//!
//! It must never answer a client that has not given the password, except that the password is required. It must never
//! listen beyond this machine unless the options allow it.

pub(crate) mod commands;
mod connection;
mod poll;
mod reply;
mod request;
mod server;
mod waiting;

pub use commands::COMMANDS;
pub use server::{Options, RespServer, Running};
