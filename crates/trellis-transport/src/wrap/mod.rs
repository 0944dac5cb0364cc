//! Wrappers around the bytes of a link.
//!
//! * [`faulty`]: a network that loses, duplicates, delays and changes datagrams, for tests and experiments.
//! * [`secure`]: the handshake that only holders of the secret complete.
//! * `protection`: each frame is protected against changes and reading, with the keys of the handshake.

pub mod faulty;
pub(crate) mod protection;
pub mod secure;
