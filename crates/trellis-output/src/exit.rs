//! What the command promises to the shell: one exit code per kind of ending, and one sentence per failure.
//!
//! A failure is never printed here; `main` prints it once.

use std::fmt;

/// Success.
pub const FINE: u8 = 0;
/// The command did its work and the answer is no (`doctor`: nothing works here).
pub const FAILED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// A node or the cluster failed.
pub const CLUSTER: u8 = 70;
/// The operating system refused something the command needs.
pub const SYSTEM: u8 = 71;
/// A file could not be read or written.
pub const FILE: u8 = 74;
/// The configuration is refused.
pub const CONFIGURATION: u8 = 78;
/// The time that the caller gave is over, as with timeout(1).
pub const TIMED_OUT: u8 = 124;
/// The program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;
/// The reader of standard output has gone away; a shell gives this status for SIGPIPE.
pub const READER_GONE: u8 = 128 + 13;

/// Why a command ends early: the exit code and one sentence that names the fact and the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The fact and the next step.
    pub sentence: String,
}

impl Failure {
    /// From a code and a sentence.
    pub fn new(code: u8, sentence: impl Into<String>) -> Failure {
        Failure { code, sentence: sentence.into() }
    }

    /// A system call failed that must succeed: what was attempted, and the kernel's error.
    pub fn system(attempt: &str) -> Failure {
        Failure::new(SYSTEM, format!("cannot {attempt}: {}", std::io::Error::last_os_error()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.sentence)
    }
}

impl std::error::Error for Failure {}

/// A value of ours that cannot be written as JSON is a mistake of ours.
pub fn not_json(error: impl fmt::Display) -> Failure {
    Failure::new(SYSTEM, format!("cannot write the result as JSON: {error}"))
}

/// What a command returns: its exit code, or why it ended early.
pub type Ending = Result<u8, Failure>;
