//! What is wrapped round the bytes of a link.
//!
//! * [`faulty`]: a network that loses, doubles, delays and changes datagrams, for tests and experiments.
//! * [`secure`]: who may speak (a handshake that only holders of the secret complete) and what may
//!   not be changed or read on the way (protection of each frame).

pub mod faulty;
pub mod secure;
