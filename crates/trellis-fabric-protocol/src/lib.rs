//! Memory behind a switch, decided; touches nothing.
//!
//! What a memory server answers, who may change a page, how a page moves from host to host, and how all of that is written on the
//! wire are state machines with one entry, `step(now, input, &mut effects)`. Inputs are facts (a datagram, a timer); effects are
//! orders that somebody else carries out (reply, write, tell). The same code runs in servers, clients, the controller, the explorer
//! and the text scripts under `tests/scripts`.
//!
//! The crate promises: the same inputs give the same effects on every machine. It must never read a clock, start a thread, open a
//! socket, draw a random number or iterate in hash order; it needs no operating system and contains no `unsafe`. Page bytes never
//! enter it: effects name pages, and a server moves the bytes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod lease;
pub mod memory_server;
pub mod wire;

pub use trellis_base::Nanoseconds;
