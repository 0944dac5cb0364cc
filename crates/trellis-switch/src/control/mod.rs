//! A switch that is told what to do by other processes: its owner serves it over a socket, anybody else who may open the
//! socket uses it as a [`Switch`](crate::Switch).
//!
//! # Contract
//!
//! - One line of JSON each way (`messages`), any number of requests on a connection, any number of connections. An answer
//!   is sent when what was asked has taken effect.
//! - Counts of pages and events are everybody's own: what one connection has fetched, another one still gets. Of events
//!   the last [`EVENTS_MAX`] are kept for who fetches seldom.
//! - Only processes of the same user, and root's, are answered.
//! - A switch that was started again knows nothing, and who finds that [`Remote::life`] has changed tells it everything anew.
//!   Where the process that serves it goes on, so do connections: the first thing that is asked on each is refused, so that
//!   nobody takes the switch for the one that it told before. A [`Remote`] whose process is gone says so, and connects again
//!   with its next call.
//!
//! It must never let one connection wait for another one's program: what is asked is done within a request.

mod lines;
mod messages;
mod remote;
mod server;
pub(crate) mod socket;

pub use lines::Lines;
pub use messages::{Description, PortDescription};
pub use remote::{At, Remote};
pub use server::{EVENTS_MAX, Server};
pub use socket::listen;
