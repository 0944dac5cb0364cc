//! Output of programs: lines for people, whole files, local sockets, and exit codes. It also finds programs.
//!
//! Promises: standard output that cannot be written ends the command with a status. A file is written whole or stays as
//! it was. The crate is apart from `trellis-command`, because the checkers must be built without the rest of Trellis.

#![forbid(unsafe_code)]

use trellis_base::Deadline;

pub mod exit;
pub mod files;
pub mod lines;
pub mod programs;
pub mod sockets;

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[lines::LAST_SENTENCE, sockets::PROBE];
