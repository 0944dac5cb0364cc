//! How remote memory is written on the wire: a pointer is an IPv6 address ([`address`]) that says what is asked ([`command`]), and
//! a request or an answer is a UDP datagram to such an address ([`datagram`]).

pub mod address;
pub mod command;
pub mod datagram;
pub mod refusals;
