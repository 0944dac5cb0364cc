//! Lines on standard output and standard error.
//!
//! Promises: a line of up to 4,096 bytes goes out with one write, so that lines of several processes do not mix. A result
//! waits for its reader, as in every pipe. A thread that serves others uses [`report`], [`notice`] and [`announce`], which
//! never wait: a reader that does not read, such as a pager or a stopped terminal, must not stop a controller. Lines that
//! were not written are counted, and the next one that is written says how many. It must never end the program because
//! of a line for people.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use trellis_base::{Deadline, Limit};

use crate::exit;

/// A program that ends waits for the reader of its last sentence.
pub const LAST_SENTENCE: Deadline = Deadline {
    who: "a program that ends",
    waits_for: "the reader of its last sentence",
    limit: Limit::seconds(5),
    then: "it ends without the sentence",
    tested: "crates/trellis-output/src/lines.rs a_reader_that_does_not_read_is_waited_for_only_so_long",
};

/// The most bytes that are written at a time, and the longest line that does not wait for its reader. A pipe that has room
/// has room for this much (`PIPE_BUF`).
const BYTES_MAX: usize = 4096;

/// The pause before a reader is tried again whose room went meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

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
    // If standard error cannot be written, nobody can be told, and the work continues.
    let _ = STDERR.offer(std::io::stderr().as_fd(), &format!("trellis: {sentence}"), LAST_SENTENCE.time());
}

/// The same without waiting: for threads that serve others, and for reports during the work.
pub fn report(sentence: fmt::Arguments<'_>) {
    notice(format_args!("trellis: {sentence}"));
}

/// A line on standard error as it is, without waiting.
pub fn notice(line: fmt::Arguments<'_>) {
    // As above.
    let _ = STDERR.offer(std::io::stderr().as_fd(), &line.to_string(), Duration::ZERO);
}

/// A line on standard error as it is, with one write. It waits for its reader as a result does.
pub fn whole_line(line: fmt::Arguments<'_>) {
    // If the reader has gone away, the work continues.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints a line of a process that serves others on standard output, without waiting. If it cannot be written, that is
/// reported once, because somebody may wait for it.
pub fn announce(line: fmt::Arguments<'_>) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let Err(error) = STDOUT.offer(std::io::stdout().as_fd(), &line.to_string(), Duration::ZERO) else { return };
    if error.kind() != ErrorKind::BrokenPipe && !IS_SAID.swap(true, Ordering::Relaxed) {
        report(format_args!(
            "standard output cannot be written ({error}); events are not reported there; the process continues"
        ));
    }
}

static STDOUT: Outlet = Outlet::new();
static STDERR: Outlet = Outlet::new();

/// The state of one output stream.
struct Outlet {
    unwritten: AtomicU64,
    /// Whether the end of the last line is missing.
    is_cut: AtomicBool,
}

impl Outlet {
    const fn new() -> Outlet {
        Outlet { unwritten: AtomicU64::new(0), is_cut: AtomicBool::new(false) }
    }

    /// Writes a line if the reader takes it within that time; otherwise counts it. The streams of the standard library
    /// are bypassed, because another thread may hold their locks while it waits for the same reader.
    fn offer(&self, stream: BorrowedFd<'_>, line: &str, wait_max: Duration) -> io::Result<()> {
        let until = Instant::now() + wait_max;
        let line = if wait_max.is_zero() { cut(line) } else { Cow::Borrowed(line) };
        let before = if self.is_cut.load(Ordering::Relaxed) { "\n" } else { "" };
        let unwritten = self.unwritten.load(Ordering::Relaxed);
        let text = match unwritten {
            0 => format!("{before}{line}\n"),
            count => {
                format!("{before}{line}\ntrellis: lines before this one that nobody read, and that are lost: {count}\n")
            }
        };
        let written = write_until(stream, text.as_bytes(), until);
        let count = *written.as_ref().unwrap_or(&0);
        if count == text.len() {
            self.unwritten.fetch_sub(unwritten, Ordering::Relaxed);
        } else {
            self.unwritten.fetch_add(1, Ordering::Relaxed);
        }
        if count > 0 {
            self.is_cut.store(count < text.len(), Ordering::Relaxed);
        }
        written.map(drop)
    }
}

/// Writes as much as the reader takes until then; returns how much that was.
fn write_until(stream: BorrowedFd<'_>, text: &[u8], until: Instant) -> io::Result<usize> {
    let own = without_waiting(stream);
    let to = own.as_ref().map_or(stream, AsFd::as_fd);
    let mut written = 0;
    while written < text.len() && takes_some(to, until) {
        let end = text.len().min(written + BYTES_MAX);
        match rustix::io::write(to, &text[written..end]) {
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            // The room went meanwhile.
            Err(Errno::AGAIN) if Instant::now() >= until => break,
            Err(Errno::AGAIN) => std::thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(written)
}

/// The same pipe or terminal with an open file of its own that does not wait: a terminal that says that it has room may
/// have less than a line. `None` for other streams, and where the system does not give one.
fn without_waiting(stream: BorrowedFd<'_>) -> Option<OwnedFd> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(stream).ok()?.st_mode);
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let name = format!("/proc/thread-self/fd/{}", stream.as_raw_fd());
    let may_wait = matches!(kind, FileType::Fifo | FileType::CharacterDevice);
    may_wait.then(|| rustix::fs::open(name, flags, Mode::empty()).ok()).flatten()
}

fn takes_some(stream: BorrowedFd<'_>, until: Instant) -> bool {
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        match poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(&left)) {
            Err(Errno::INTR) => {}
            // An error of the stream shows in the write.
            ready => return ready != Ok(0),
        }
    }
}

/// The line, so short that it and the count of lost ones fit.
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

    /// Offers lines until nothing more is taken; returns how many were.
    fn fill(outlet: &Outlet, writer: &io::PipeWriter) -> usize {
        let mut taken = 0;
        while outlet.unwritten.load(Ordering::Relaxed) == 0 {
            outlet.offer(writer.as_fd(), "an event", Duration::ZERO).unwrap();
            taken += 1;
        }
        taken - 1
    }

    #[test]
    fn a_reader_that_does_not_read_stops_nobody_and_learns_how_much_it_missed() {
        let (mut reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::new();
        let taken = fill(&outlet, &writer);
        let long = "ä".repeat(BYTES_MAX);
        outlet.offer(writer.as_fd(), &long, Duration::ZERO).unwrap();
        let mut lines = vec![0; taken * "an event\n".len()];
        reader.read_exact(&mut lines).unwrap();
        assert_eq!(lines, "an event\n".repeat(taken).as_bytes());
        // The pipe may have taken the beginning of a line. The next one begins again.
        outlet.offer(writer.as_fd(), &long, Duration::ZERO).unwrap();
        outlet.offer(writer.as_fd(), "the last", Duration::ZERO).unwrap();
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let lines: Vec<&str> = rest.lines().filter(|line| !"an event".starts_with(line)).collect();
        let [line, count, last] = &lines[..] else { panic!("{rest:?}") };
        assert!(line.starts_with("ää") && line.ends_with("ä …") && line.len() < BYTES_MAX, "{line}");
        assert_eq!(*count, "trellis: lines before this one that nobody read, and that are lost: 2");
        assert_eq!(*last, "the last");
        assert_eq!(outlet.unwritten.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reader_that_does_not_read_is_waited_for_only_so_long() {
        let (_reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::new();
        fill(&outlet, &writer);
        let (began, wait_max) = (Instant::now(), Duration::from_millis(30));
        outlet.offer(writer.as_fd(), &"the last sentence".repeat(1000), wait_max).unwrap();
        assert_eq!(outlet.unwritten.load(Ordering::Relaxed), 2);
        assert!(began.elapsed() >= wait_max, "it was not waited for at all");
    }

    #[test]
    fn a_sentence_that_is_longer_than_a_pipe_arrives_whole() {
        let (mut reader, writer) = io::pipe().unwrap();
        let sentence = "a sentence ".repeat(20_000);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                let mut read = String::new();
                reader.read_to_string(&mut read).map(|_| read)
            });
            Outlet::new().offer(writer.as_fd(), &sentence, Duration::from_secs(60)).unwrap();
            drop(writer);
            assert!(read.join().unwrap().unwrap() == sentence + "\n");
        });
    }

    #[test]
    fn a_stream_without_a_reader_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let error = Outlet::new().offer(writer.as_fd(), "an event", Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
