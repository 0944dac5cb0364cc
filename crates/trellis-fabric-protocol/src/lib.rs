//! The protocols of memory behind a switch, as pure state machines.
//!
//! What a memory server answers, which client may change a page, how a page moves from host to host, and the form of all
//! that on the wire are state machines with one entry point, `step(now, input, &mut effects)`. Inputs are facts: a
//! datagram, a timer. Effects are orders that the caller carries out: reply, write, send. The same code runs in servers,
//! clients, the controller, the explorer and the text scripts under `tests/scripts`.
//!
//! Promises: the same inputs give the same effects on every machine. The crate must never read a clock, start a thread,
//! open a socket, generate a random number or iterate in hash order. It needs no operating system and contains no `unsafe`.
//! Page bytes never enter it: effects name pages, and a server moves the bytes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod lease;
pub mod memory_server;
pub mod wire;

pub use trellis_base::Nanoseconds;
