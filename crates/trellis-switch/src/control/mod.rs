//! A switch that other processes use over a socket: its owner serves it, and any process that may open the socket uses
//! it as a [`Switch`](crate::Switch).
//!
//! # Contract
//!
//! - One line of JSON in each direction (`messages`), any number of requests on a connection, any number of connections.
//!   An answer is sent when the request has taken effect.
//! - Each connection has its own counts of pages and events: what one connection has fetched, another one still gets. The
//!   last [`EVENTS_MAX`] events are kept for connections that fetch rarely.
//! - Only processes of the same user and of root are served. Another process is told why it is refused, and counted.
//! - A switch that was restarted has no state. A client that finds that [`Remote::boot_id`] (the switch's boot id) has
//!   changed must send everything again. If the serving process continues, so do its connections: the first request on
//!   each is refused, so that no client takes the new switch for the old one. A [`Remote`] whose process is gone reports
//!   this, and reconnects with its next call.
//!
//! It must never let one connection wait for the program of another: each request is completed by itself.

pub(crate) mod messages;
mod remote;
mod server;

pub use messages::{Description, PortDescription};
pub use remote::{At, Remote};
pub use server::{ControlServer, EVENTS_MAX};
