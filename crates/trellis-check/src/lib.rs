//! Checks protocols exhaustively on small clusters, and at random on larger ones.
//!
//! The [`explore`] module visits every state that a small cluster can reach, in whatever order messages arrive and
//! threads run. [`pages`] and [`synchronisation`] define such a cluster and what must hold in it; [`changes`] defines
//! how all nodes change a protocol. [`mutants`] breaks the protocol in known ways and expects the explorer to notice
//! each of them.
//!
//! Promises: the crate runs the real `step` of the protocol. The same instance gives the same states and the same
//! trace on every machine. A violation is reported as the shortest trace that leads to it. It must never accept a
//! state that it did not check: an instance that is larger than its bound ends with [`explore::Verdict::TooLarge`].

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
mod views;
