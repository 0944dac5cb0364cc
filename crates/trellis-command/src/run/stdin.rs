//! Forwards standard input to node 0.
//!
//! A file or a pipe is simply inherited, if node 0 is on this host. A terminal cannot be: a node runs in its own process
//! group and would be stopped (SIGTTIN) when it reads. So the launcher reads the terminal, only while it is in the
//! foreground, and passes the bytes on. It never reads more than node 0's pipe, or its agent, can take.

use std::io::IsTerminal;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::Stdio;

use rustix::io::Errno;

use crate::run::hosts::ON_THEIR_WAY_BYTES_MAX;
use crate::run::output::set_non_blocking;

/// The standard input of a node 0 on this host.
pub(super) fn for_node_zero() -> Stdio {
    if std::io::stdin().is_terminal() { Stdio::piped() } else { Stdio::inherit() }
}

/// Where node 0 is.
enum Reader {
    /// It needs nothing from the launcher, or wants no more.
    Nobody,
    Here(OwnedFd),
    /// On another host; its agent takes so many bytes more.
    There {
        room: usize,
    },
}

/// The relay of standard input to node 0.
pub(super) struct Relay {
    reader: Reader,
    pending: Vec<u8>,
    at_end: bool,
}

impl Relay {
    pub(super) fn new(to_node: Option<OwnedFd>) -> Relay {
        if let Some(pipe) = &to_node {
            set_non_blocking(pipe.as_raw_fd());
        }
        Relay { reader: to_node.map_or(Reader::Nobody, Reader::Here), pending: Vec::new(), at_end: false }
    }

    /// To a node on another host.
    pub(super) fn to_agent() -> Relay {
        Relay { reader: Reader::There { room: ON_THEIR_WAY_BYTES_MAX }, pending: Vec::new(), at_end: false }
    }

    /// The descriptor to wait for next, and the event.
    pub(super) fn interest(&self) -> Option<(RawFd, i16)> {
        let reads = !self.at_end && (!std::io::stdin().is_terminal() || in_foreground());
        match &self.reader {
            Reader::Nobody => None,
            Reader::Here(pipe) if !self.pending.is_empty() => Some((pipe.as_raw_fd(), libc::POLLOUT)),
            Reader::There { room: 0 } => None,
            Reader::Here(_) | Reader::There { .. } => reads.then_some((libc::STDIN_FILENO, libc::POLLIN)),
        }
    }

    /// Moves what can be moved; called when the descriptor of [`Relay::interest`] is ready.
    pub(super) fn pump(&mut self) {
        if self.pending.is_empty() {
            self.read();
        }
        self.write();
        if self.at_end && self.pending.is_empty() && matches!(self.reader, Reader::Here(_)) {
            self.reader = Reader::Nobody;
        }
    }

    /// The next bytes for the agent; none of them means the end.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        let Reader::There { room } = &mut self.reader else { return None };
        if self.pending.is_empty() && self.at_end {
            self.reader = Reader::Nobody;
            return Some(Vec::new());
        }
        *room -= self.pending.len();
        Some(std::mem::take(&mut self.pending)).filter(|bytes| !bytes.is_empty())
    }

    /// The agent has room for so many bytes more, or wants none.
    pub(super) fn taken(&mut self, bytes: Option<usize>) {
        match (&mut self.reader, bytes) {
            (Reader::There { room }, Some(bytes)) => *room += bytes,
            _ => self.reader = Reader::Nobody,
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 16 << 10];
        let room = match self.reader {
            Reader::There { room } => room.min(buffer.len()),
            _ => 4096,
        };
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer[..room]) {
            Ok(count) if count > 0 => self.pending.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.at_end = true,
        }
    }

    fn write(&mut self) {
        let Reader::Here(pipe) = &self.reader else { return };
        match rustix::io::write(pipe, &self.pending) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(Errno::AGAIN) => {}
            // Node 0 closed its standard input: nobody wants the rest.
            Err(_) => {
                self.pending.clear();
                self.reader = Reader::Nobody;
            }
        }
    }
}

/// Reading a terminal from the background would stop the launcher.
fn in_foreground() -> bool {
    // SAFETY: both calls take plain integers.
    unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}
