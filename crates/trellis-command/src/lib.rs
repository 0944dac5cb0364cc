//! The parts of the `trellis` command share this: the terminal, temporary folders, drawing, reports from records, and
//! the launcher that starts the nodes of a cluster on this host; and what `trellis-output` offers.
//!
//! Promises: a failure is a [`exit::Failure`], one sentence with an exit code. Only [`terminal`] prints results. Nothing
//! here knows a subcommand other than `run` and `report`.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod chart;
pub mod ending;
pub mod installed;
pub mod report;
pub mod run;
pub mod scratch;
pub mod size;
pub mod svg;
pub mod terminal;
pub mod time;

pub use trellis_output::{exit, files};

use run::{hosts, requests, supervise};
use trellis_base::Deadline;

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[
    supervise::NODES,
    supervise::DECIDE,
    supervise::FAILING,
    supervise::TIMEOUT,
    supervise::TERMINATE,
    supervise::ASKED,
    supervise::LEFTOVER,
    supervise::LEFTOVER_FAILED,
    requests::REQUEST,
    requests::ANSWER,
    hosts::START,
    hosts::REACH,
    hosts::END,
    hosts::LAUNCHER,
];
