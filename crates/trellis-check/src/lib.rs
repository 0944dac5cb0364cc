//! Proves protocols on small clusters by trying everything.
//!
//! The [`explore`] module visits every state that a small cluster can reach, whatever the order in
//! which messages arrive and threads run; [`pages`] and [`synchronisation`] say what such a
//! cluster is made of and what must hold in it, and [`changes`] how all of it changes a protocol; [`mutants`] breaks the protocol in known ways and
//! expects the explorer to notice each of them.
//!
//! The crate promises: it runs the real `step` of the protocol, the same instance gives the same
//! states and the same trace on every machine, and a violation is told as the shortest story that
//! leads to it. It must never call a state good because it did not look: an instance that is larger
//! than its bound ends with [`explore::Verdict::TooLarge`].

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![forbid(unsafe_code)]

pub mod changes;
pub mod commands;
pub mod explore;
mod fingerprint;
pub mod history;
mod intern;
pub mod leases;
pub mod litmus;
pub mod mutants;
pub mod pages;
pub mod release;
pub mod scale;
pub mod simulate;
pub mod synchronisation;
