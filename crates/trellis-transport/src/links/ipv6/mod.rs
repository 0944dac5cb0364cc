//! Link **ipv6**: the address carries the request. A request is one datagram from its own address to the address of
//! its object; the answer comes back with both exchanged.
//!
//! Promises: an [`Endpoint`] sends from and receives at every address that the routes of its host give to it, without a
//! neighbour entry, a socket or a lookup for each. An [`Exchange`] brings every question one answer or, at its
//! deadline, the name of the host that gave none. A question without an answer is sent again unchanged, with the same
//! number, so the server must be able to execute it twice, or remember what was done. A question may be several
//! datagrams; each is sent again until it, or the question, is answered. The number in flight to one host is bounded,
//! so that a small machine is not overloaded, and is reduced when some are lost.
//!
//! It must never interpret an address or a payload: the protocol defines the bits. Here an address is 16 bytes, of
//! which the first six are the host's and the last eight a question's number.
//!
//! The host configures the routes: the whole fabric is reached through one next hop, and everything that arrives from
//! there is local, whatever its address (`ip -6 rule add iif …`, `ip -6 route add local …`).

mod answer_time;
mod endpoint;
mod exchange;
mod window;

pub use answer_time::AnswerTime;
pub use endpoint::{Arrived, Endpoint, PARTS_MAX, Way};
pub use exchange::{Ask, Exchange, Judge, NoAnswer, Timing, Verdict};

/// 16 bytes in network order.
pub type Address = [u8; 16];

/// The leading bytes of an address that identify its host.
pub const HOST_BYTES: usize = 6;
