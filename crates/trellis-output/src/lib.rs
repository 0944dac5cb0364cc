//! Output of programs: lines for people, whole files, local sockets and the messages on them, and exit codes. It also
//! finds programs.
//!
//! Promises: standard output that cannot be written ends the command with a status. A file is written whole or stays as
//! it was. The crate is apart from `trellis-command`, because the checkers must be built without the rest of Trellis.

use trellis_base::Deadline;

pub mod exit;
pub mod files;
pub mod json_lines;
pub mod lines;
pub mod programs;
pub mod refusals;
pub mod sockets;

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[lines::LAST_SENTENCE, sockets::PROBE];
