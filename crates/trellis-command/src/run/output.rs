//! Forwards the nodes' output: line by line, prefixed, never torn, never blocking the launcher.
//!
//! A line is passed on when it is complete; the unfinished last line of a node is completed when the node ends.
//! Reading stops while [`PENDING_BYTES_MAX`] wait for a slow reader, so that a node feels the same back-pressure as
//! without the launcher.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// The maximum number of bytes that wait for a slow reader of the launcher's output. Beyond that, the nodes are not
/// read.
const PENDING_BYTES_MAX: usize = 256 * 1024;
/// A line longer than this is passed on in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// A pipe that polls writable has room for this much (PIPE_BUF), so such a write never blocks.
const WRITE_BYTES: usize = 4096;

/// Divides a stream of bytes into lines and puts a prefix before each.
pub(super) struct LineCutter {
    prefix: Vec<u8>,
    partial: Vec<u8>,
}

impl LineCutter {
    /// `node` is in the prefix, in colour if `colour`.
    #[cfg(test)]
    fn new(node: usize, colour: bool) -> LineCutter {
        LineCutter::labelled(&node.to_string(), node, colour)
    }

    /// `label` is the prefix, in the colour of `node` if `colour`.
    pub(super) fn labelled(label: &str, node: usize, colour: bool) -> LineCutter {
        const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];
        let prefix = if colour {
            format!("\x1b[{}m[{label}]\x1b[0m ", COLOURS[node % COLOURS.len()])
        } else {
            format!("[{label}] ")
        };
        LineCutter { prefix: prefix.into_bytes(), partial: Vec::new() }
    }

    /// Takes bytes and appends the lines that they complete to `into`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], into: &mut Vec<u8>) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(&bytes[..end]);
            self.finish_line(into);
            bytes = &bytes[end + 1..];
        }
        for piece in bytes.chunks(LINE_BYTES_MAX) {
            self.partial.extend_from_slice(piece);
            if self.partial.len() >= LINE_BYTES_MAX {
                self.finish_line(into);
            }
        }
    }

    /// Completes an unfinished line at the end of the stream.
    pub(super) fn end(&mut self, into: &mut Vec<u8>) {
        if !self.partial.is_empty() {
            self.finish_line(into);
        }
    }

    fn finish_line(&mut self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.prefix);
        into.append(&mut self.partial);
        into.push(b'\n');
    }
}

/// The destination of a stream's bytes.
pub(super) enum Destination {
    /// Lines with a prefix, to the launcher's standard output (0) or standard error (1).
    Lines { cutter: LineCutter, outlet: usize },
    /// As they are, to the launcher's standard output (0) or standard error (1).
    Raw { outlet: usize },
    /// As they are, to a file and to another destination.
    File(File, Box<Destination>),
    /// They are dropped.
    Nowhere,
    /// Captured whole, for the command itself.
    Captured(Vec<u8>),
}

impl Destination {
    /// Whether there is room for more.
    pub(super) fn has_room(&self, outlets: &[Outlet; 2]) -> bool {
        match self {
            Destination::Lines { outlet, .. } | Destination::Raw { outlet } => outlets[*outlet].has_room(),
            Destination::File(_, also) => also.has_room(outlets),
            Destination::Nowhere | Destination::Captured(_) => true,
        }
    }

    /// Takes bytes; none of them means the end of the stream.
    pub(super) fn take(&mut self, bytes: &[u8], outlets: &mut [Outlet; 2]) -> io::Result<()> {
        match self {
            Destination::Lines { cutter, outlet } if bytes.is_empty() => cutter.end(&mut outlets[*outlet].pending),
            Destination::Lines { cutter, outlet } => cutter.feed(bytes, &mut outlets[*outlet].pending),
            Destination::Raw { outlet } => outlets[*outlet].pending.extend_from_slice(bytes),
            Destination::File(file, also) => {
                file.write_all(bytes)?;
                also.take(bytes, outlets)?;
            }
            Destination::Nowhere => {}
            Destination::Captured(kept) => kept.extend_from_slice(bytes),
        }
        outlets.iter_mut().for_each(Outlet::forget_if_closed);
        Ok(())
    }

    /// The bytes that were kept for the command.
    pub(super) fn into_kept(self) -> Vec<u8> {
        match self {
            Destination::Captured(bytes) => bytes,
            _ => Vec::new(),
        }
    }
}

/// One stream of a node.
pub(super) struct Stream {
    /// The descriptor from which its bytes are read; `None` if an agent sends them.
    descriptor: Option<OwnedFd>,
    pub(super) destination: Destination,
}

impl Stream {
    pub(super) fn new(descriptor: Option<OwnedFd>, destination: Destination) -> Stream {
        if let Some(descriptor) = &descriptor {
            set_non_blocking(descriptor);
        }
        Stream { descriptor, destination }
    }

    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.descriptor.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Reads once; `false` at the end of the stream.
    pub(super) fn pump(&mut self, outlets: &mut [Outlet; 2]) -> io::Result<bool> {
        let Some(descriptor) = &self.descriptor else { return Ok(true) };
        let mut buffer = [0u8; 16 * 1024];
        let got = match rustix::io::read(descriptor, &mut buffer) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
            Err(_) => 0,
        };
        self.destination.take(&buffer[..got], outlets)?;
        Ok(got > 0)
    }
}

/// The launcher's own standard output or standard error.
pub(super) struct Outlet {
    pub(super) descriptor: BorrowedFd<'static>,
    pending: Vec<u8>,
    /// The number of bytes at the front of `pending` that are written: moving the rest after every write would cost
    /// more.
    written: usize,
    closed: bool,
}

impl Outlet {
    pub(super) fn new(descriptor: BorrowedFd<'static>) -> Outlet {
        Outlet { descriptor, pending: Vec::new(), written: 0, closed: false }
    }

    /// Output that nobody reads is still taken from the nodes, so that they can end.
    pub(super) fn has_room(&self) -> bool {
        self.closed || self.pending.len() - self.written < PENDING_BYTES_MAX
    }

    fn forget_if_closed(&mut self) {
        if self.closed {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.pending.clear();
        self.written = 0;
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.pending.is_empty() && !self.closed
    }

    /// Writes what a writable descriptor accepts without blocking. After an error nothing more is written.
    pub(super) fn write_some(&mut self) -> io::Result<()> {
        let end = self.pending.len().min(self.written + WRITE_BYTES);
        let bytes = &self.pending[self.written..end];
        match rustix::io::write(self.descriptor, bytes) {
            Ok(written) => {
                self.written += written;
                if self.written == self.pending.len() {
                    self.forget();
                } else if self.written >= PENDING_BYTES_MAX {
                    self.pending.drain(..self.written);
                    self.written = 0;
                }
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => {
                self.closed = true;
                self.forget();
                Err(error.into())
            }
        }
    }
}

/// Sets a descriptor of our own to non-blocking.
pub(super) fn set_non_blocking(descriptor: impl AsFd) {
    // Neither call fails on an open descriptor.
    if let Ok(flags) = fcntl_getfl(&descriptor) {
        let _ = fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&str]) -> String {
        let mut cutter = LineCutter::new(3, false);
        let mut out = Vec::new();
        for piece in pieces {
            cutter.feed(piece.as_bytes(), &mut out);
        }
        cutter.end(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn lines_get_a_prefix_and_stay_whole() {
        assert_eq!(cut(&["he", "llo\nwor", "ld\n"]), "[3] hello\n[3] world\n");
    }

    #[test]
    fn an_unfinished_line_is_finished_at_the_end() {
        assert_eq!(cut(&["no newline"]), "[3] no newline\n");
        assert_eq!(cut(&[]), "");
    }

    #[test]
    fn an_empty_line_keeps_its_place() {
        assert_eq!(cut(&["\n\na\n"]), "[3] \n[3] \n[3] a\n");
    }

    #[test]
    fn an_endless_line_is_passed_on_in_pieces() {
        let long = "x".repeat(LINE_BYTES_MAX * 2 + 1);
        let out = cut(&[&long]);
        assert_eq!(out.lines().count(), 3);
        assert_eq!(out.matches('x').count(), long.len());
    }

    #[test]
    fn colour_is_in_the_prefix_only() {
        let mut cutter = LineCutter::new(0, true);
        let mut out = Vec::new();
        cutter.feed(b"plain\n", &mut out);
        assert_eq!(out, b"\x1b[36m[0]\x1b[0m plain\n");
    }
}
