//! How results are printed; and what is different when a person watches: colour and progress, and only then.
//!
//! Standard output carries results only; progress goes to standard error, and to a terminal only.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::exit;

/// Prints a result and ends the line, as `println!` does; if the reader has gone away, as in `trellis lab status | head -1`,
/// the command ends like other programs in a pipe.
macro_rules! say {
    ($($result:tt)*) => {
        $crate::terminal::put(format_args!("{}\n", format_args!($($result)*)))
    };
}
pub(crate) use say;

/// The same for whole lines.
pub(crate) fn put(lines: fmt::Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    if let Err(error) = output.write_fmt(lines).and_then(|()| output.flush()) {
        end_unwritten(&error);
    }
}

/// Ends the command because its result cannot be written.
pub(crate) fn end_unwritten(error: &std::io::Error) -> ! {
    if error.kind() != ErrorKind::BrokenPipe {
        trellis_store::complain(format_args!("cannot write to standard output: {error}; see where it leads"));
        std::process::exit(exit::FILE.into());
    }
    // As by SIGPIPE, without a word.
    std::process::exit(128 + libc::SIGPIPE);
}

/// Whether colour is wanted on a stream: a terminal, and `NO_COLOR` unset (<https://no-color.org>).
pub(crate) fn colour_wanted(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// One line on standard error that says what is being done, rewritten in place; silent when no terminal is there.
pub(crate) struct Progress {
    shown: bool,
    enabled: bool,
    last: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { shown: false, enabled: std::io::stderr().is_terminal(), last: None }
    }

    /// Shows a step; steps that follow within 50 ms are skipped so that the line can be read.
    pub(crate) fn step(&mut self, text: &str) {
        let now = Instant::now();
        if !self.enabled || self.last.is_some_and(|last| now - last < Duration::from_millis(50)) {
            return;
        }
        self.last = Some(now);
        self.shown = true;
        let mut stderr = std::io::stderr().lock();
        // A terminal that went away is no reason to stop the work.
        let _ = write!(stderr, "\r\x1b[2K{text}");
        let _ = stderr.flush();
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if self.shown {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[2K");
            let _ = stderr.flush();
            self.shown = false;
        }
    }
}

/// Removes a line of progress that a caller further up has shown, so that a result does not begin in its middle.
pub(crate) fn clear_line() {
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

/// Prints a line on standard error in one piece: what other processes write there cannot come into its middle.
pub(crate) fn whole_line(line: fmt::Arguments<'_>) {
    // A reader that went away does not stop the work.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints a line of a process that serves others, who are served also where nobody reads it. Where it cannot be written, that is said
/// once: somebody may wait for it.
pub(crate) fn announce(line: fmt::Arguments<'_>) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let mut output = std::io::stdout();
    let Err(error) = writeln!(output, "{line}").and_then(|()| output.flush()) else { return };
    if error.kind() != ErrorKind::BrokenPipe && !IS_SAID.swap(true, Ordering::Relaxed) {
        trellis_store::complain(format_args!(
            "standard output cannot be written ({error}); what happens is not told there, and the work goes on"
        ));
    }
}
