//! Lines on standard output and standard error.

use std::fmt;
use std::io::{ErrorKind, Write};

use crate::exit;

/// Prints a result and ends the line, like `println!`; if the reader has gone away, as in `trellis lab status | head
/// -1`, the command ends like other programs in a pipe.
#[macro_export]
macro_rules! say {
    ($($result:tt)*) => {
        $crate::lines::put(::std::format_args!("{}\n", ::std::format_args!($($result)*)))
    };
}
pub use crate::say;

/// Like [`say!`], for whole lines.
pub fn put(lines: fmt::Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    if let Err(error) = output.write_fmt(lines).and_then(|()| output.flush()) {
        end_unwritten(&error);
    }
}

/// Ends the command because its result cannot be written; without a message if the reader has gone away.
pub fn end_unwritten(error: &std::io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(exit::READER_GONE.into());
    }
    whole_line(format_args!("trellis: cannot write to standard output: {error}; see where it leads"));
    std::process::exit(exit::FILE.into());
}

/// Prints a line on standard error with one write, so that other processes' output cannot split it.
pub fn whole_line(line: fmt::Arguments<'_>) {
    // If the reader has gone away, the work continues.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
