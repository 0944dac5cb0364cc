//! What the parts of the `trellis` command share: exit codes, the terminal, files and folders, drawing, reports from
//! records, and the launcher that starts the nodes of a cluster on this host.
//!
//! Promises: a failure is a [`exit::Failure`], one sentence with an exit code. Only [`terminal`] prints results. Nothing
//! here knows a subcommand other than `run` and `report`.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod chart;
pub mod ending;
pub mod exit;
pub mod files;
pub mod installed;
pub mod report;
pub mod run;
pub mod scratch;
pub mod size;
pub mod svg;
pub mod terminal;
