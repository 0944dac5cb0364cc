//! What a command leaves behind: lines on standard output, whole files, and its exit code.
//!
//! Promises: standard output that cannot be written ends the command with a status. A file is written whole or stays as
//! it was. The crate is apart from `trellis-command`, because the checkers must be built without the rest of Trellis.

#![forbid(unsafe_code)]

pub mod exit;
pub mod files;
pub mod lines;
