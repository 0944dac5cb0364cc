//! Link **ipv6**: the address is the message. A request is one datagram from an address of its own to the address of what it
//! is about; the answer comes back with both exchanged.
//!
//! Promised: an [`Endpoint`] sends from and receives at every address that the routes of its host give to it, without a
//! neighbour entry, a socket or a lookup for each; an [`Exchange`] brings every question one answer or, at its deadline, the
//! name of the host that gave none. A question that gets no answer is sent again as it was, with the same number: whoever
//! answers must be able to do it twice, or remember what was done. A question may be several datagrams: each is sent again
//! until it, or the question, is answered. So many to one host are under way that a small machine is not buried, fewer as soon
//! as some are lost.
//!
//! Never done here: reading an address or a payload. Which bits mean what is the protocol's affair; here an address is 16
//! bytes, of which the first six are a host's and the last eight a question's number.
//!
//! Routes are the host's: all of the fabric through one next hop, and everything that arrives from there is local, whatever
//! its address (`ip -6 rule add iif …`, `ip -6 route add local …`).

mod endpoint;
mod exchange;
mod window;

pub use endpoint::{Arrived, Endpoint, PARTS_MAX, Way};
pub use exchange::{Ask, Exchange, Judge, NoAnswer, Timing, Verdict};

/// 16 bytes in network order.
pub type Address = [u8; 16];

/// The bytes of an address that are its host's.
pub const HOST_BYTES: usize = 6;
