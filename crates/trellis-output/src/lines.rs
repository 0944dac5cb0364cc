//! Lines on standard output and standard error.
//!
//! Promises: a line goes out with one write, so that lines of several processes do not mix. A result waits for its
//! reader, as in every pipe. A thread that serves others uses [`report`] and [`announce`], which never wait: a reader that
//! does not read, such as a pager or a stopped terminal, must not stop a controller. Lines that were not written are
//! counted, and the next one that is written says how many. It must never end the program because of a line for people.

use std::borrow::Cow;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use trellis_base::{Deadline, Limit};

use crate::exit;

/// A program that ends waits for the reader of its last sentence.
pub const LAST_SENTENCE: Deadline = Deadline {
    who: "a program that ends",
    waits_for: "the reader of its last sentence",
    limit: Limit::seconds(5),
    then: "it ends without the sentence",
    tested: "crates/trellis-output/src/lines.rs a_reader_that_does_not_read_stops_nobody_and_learns_how_much_it_missed",
};

/// The most bytes that are written at a time, and the longest line that does not wait for its reader. A pipe that has room
/// has room for this much (`PIPE_BUF`).
const BYTES_MAX: usize = 4096;

/// The lines that were not written.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);

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
    complain(format_args!("cannot write to standard output: {error}; see where it leads"));
    std::process::exit(exit::FILE.into());
}

/// Writes one line for people to standard error. It waits for a slow reader, at most as [`LAST_SENTENCE`] says: for
/// programs that say why they end.
pub fn complain(sentence: fmt::Arguments<'_>) {
    line_for_people(&format!("trellis: {sentence}"), LAST_SENTENCE.time());
}

/// The same without waiting: for threads that serve others, and for reports during the work.
pub fn report(sentence: fmt::Arguments<'_>) {
    line_for_people(&format!("trellis: {sentence}"), Duration::ZERO);
}

/// A line on standard error as it is, without waiting.
pub fn whole_line(line: fmt::Arguments<'_>) {
    line_for_people(&line.to_string(), Duration::ZERO);
}

fn line_for_people(line: &str, wait_max: Duration) {
    // If standard error cannot be written, nobody can be told, and the work continues.
    let _ = offer(std::io::stderr().as_fd(), line, wait_max);
}

/// Prints a line of a process that serves others on standard output, without waiting. If it cannot be written, that is
/// reported once, because somebody may wait for it.
pub fn announce(line: fmt::Arguments<'_>) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let Err(error) = offer(std::io::stdout().as_fd(), &line.to_string(), Duration::ZERO) else { return };
    if error.kind() != ErrorKind::BrokenPipe && !IS_SAID.swap(true, Ordering::Relaxed) {
        report(format_args!(
            "standard output cannot be written ({error}); events are not reported there; the process continues"
        ));
    }
}

/// Writes a line if the reader takes one within that time; otherwise counts it. The streams of the standard library are
/// passed by, because another thread may hold their locks while it waits for the same reader.
fn offer(stream: BorrowedFd<'_>, line: &str, wait_max: Duration) -> std::io::Result<()> {
    let until = Instant::now() + wait_max;
    if !takes_a_line(stream, until) {
        UNWRITTEN.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    let line = if wait_max.is_zero() { cut(line) } else { Cow::Borrowed(line) };
    let text = match UNWRITTEN.swap(0, Ordering::Relaxed) {
        0 => format!("{line}\n"),
        count => format!("{line}\ntrellis: {count} lines before this one were not written: nobody read them\n"),
    };
    let mut rest = text.as_bytes();
    while !rest.is_empty() && takes_a_line(stream, until) {
        match rustix::io::write(stream, &rest[..rest.len().min(BYTES_MAX)]) {
            Ok(count) => rest = &rest[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn takes_a_line(stream: BorrowedFd<'_>, until: Instant) -> bool {
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        match poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            // An error of the stream shows in the write.
            ready => return ready != Ok(0),
        }
    }
}

/// The line, so short that it and the count of unwritten ones fit.
fn cut(line: &str) -> Cow<'_, str> {
    const ROOM: usize = BYTES_MAX - 128;
    if line.len() <= ROOM {
        return Cow::Borrowed(line);
    }
    let end = (0..=ROOM).rev().find(|&end| line.is_char_boundary(end)).unwrap_or(0);
    Cow::Owned(format!("{} …", &line[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_reader_that_does_not_read_stops_nobody_and_learns_how_much_it_missed() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut offered = 0;
        while UNWRITTEN.load(Ordering::Relaxed) < 3 {
            offer(writer.as_fd(), "an event", Duration::ZERO).unwrap();
            offered += 1;
        }
        let long = "ä".repeat(BYTES_MAX);
        offer(writer.as_fd(), &long, Duration::ZERO).unwrap();
        let written = offered - 3;
        let mut lines = vec![0; written * "an event\n".len()];
        reader.read_exact(&mut lines).unwrap();
        assert_eq!(lines, "an event\n".repeat(written).as_bytes());

        offer(writer.as_fd(), &long, Duration::ZERO).unwrap();
        drop(writer);
        let mut last = String::new();
        reader.read_to_string(&mut last).unwrap();
        assert!(last.len() <= BYTES_MAX, "{}", last.len());
        let (line, count) = last.split_once('\n').unwrap();
        assert!(line.starts_with("ää") && line.ends_with("ä …"), "{line}");
        assert_eq!(count, "trellis: 4 lines before this one were not written: nobody read them\n");

        a_reader_that_does_not_read_is_waited_for_only_so_long();
        a_stream_without_a_reader_is_an_error();
    }

    /// Part of the test above: both count what was not written.
    fn a_reader_that_does_not_read_is_waited_for_only_so_long() {
        let (_reader, writer) = std::io::pipe().unwrap();
        while UNWRITTEN.swap(0, Ordering::Relaxed) == 0 {
            offer(writer.as_fd(), "an event", Duration::ZERO).unwrap();
        }
        let (began, wait_max) = (Instant::now(), Duration::from_millis(30));
        offer(writer.as_fd(), "the last sentence", wait_max).unwrap();
        assert_eq!(UNWRITTEN.swap(0, Ordering::Relaxed), 1);
        assert!(began.elapsed() >= wait_max, "it was not waited for at all");
    }

    fn a_stream_without_a_reader_is_an_error() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let error = offer(writer.as_fd(), "an event", Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
