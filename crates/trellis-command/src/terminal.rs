//! How results are printed, and what a terminal gets in addition: colour and progress.
//!
//! Standard output carries results only. Progress goes to standard error, and only to a terminal.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use trellis_output::lines::{end_unwritten, put, say, whole_line};

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

/// Prints a line of a process that serves others; it continues to serve even if nobody reads the line. If it cannot
/// be written, that is reported once, because somebody may wait for it.
pub fn announce(line: fmt::Arguments<'_>) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let mut output = std::io::stdout();
    let Err(error) = writeln!(output, "{line}").and_then(|()| output.flush()) else { return };
    if error.kind() != ErrorKind::BrokenPipe && !IS_SAID.swap(true, Ordering::Relaxed) {
        trellis_store::complain(format_args!(
            "standard output cannot be written ({error}); events are not reported there; the process continues"
        ));
    }
}
