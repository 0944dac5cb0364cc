//! Wrappers around the bytes of a link.
//!
//! * [`faulty`]: a network that loses, duplicates, delays and changes datagrams, for tests and experiments.
//! * [`secure`]: the handshake that only holders of the secret complete, and the protection of each frame against
//!   changes and reading.

pub mod faulty;
pub mod secure;
