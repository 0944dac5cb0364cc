//! The wire format of remote memory. A pointer is an IPv6 address ([`address`]) that includes the command ([`command`]),
//! and a request or an answer is a UDP datagram to such an address ([`datagram`]).

pub mod address;
pub mod command;
pub mod datagram;
pub mod refusals;
