//! How results are printed, and what a terminal gets in addition: colour and progress.
//!
//! Standard output carries results only. Progress goes to standard error, and only to a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub use trellis_output::lines::{announce, end_unwritten, notice, put, say, whole_line};

/// Whether colour is wanted on a stream: a terminal, and `NO_COLOR` unset (<https://no-color.org>).
pub fn colour_wanted(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// One line on standard error that shows the current step, rewritten in place; silent without a terminal.
pub struct Progress {
    shown: bool,
    enabled: bool,
    last: Option<Instant>,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress { shown: false, enabled: std::io::stderr().is_terminal(), last: None }
    }
}

impl Progress {
    /// Shows a step; steps that follow within 50 ms are skipped, so that the line can be read.
    pub fn step(&mut self, text: &str) {
        let now = Instant::now();
        if !self.enabled || self.last.is_some_and(|last| now - last < Duration::from_millis(50)) {
            return;
        }
        self.last = Some(now);
        self.shown = true;
        let mut stderr = std::io::stderr().lock();
        // If the terminal has gone away, the work continues.
        let _ = write!(stderr, "\r\x1b[2K{text}");
        let _ = stderr.flush();
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.shown {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[2K");
            let _ = stderr.flush();
            self.shown = false;
        }
    }
}

/// Removes a line of progress that a caller has shown, so that a result does not begin in its middle.
pub fn clear_line() {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[2K");
        let _ = stderr.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
