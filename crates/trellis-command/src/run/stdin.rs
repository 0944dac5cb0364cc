//! Forwards terminal input to node 0.
//!
//! A file or a pipe is simply inherited. A terminal cannot be: a node runs in its own process group and would be
//! stopped (SIGTTIN) when it reads. So the launcher reads the terminal, only while it is in the foreground, and
//! passes the bytes on. It never reads more than node 0's pipe can take.

use std::io::IsTerminal;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::Stdio;

use crate::run::output::set_non_blocking;

/// The standard input of node 0.
pub(super) fn for_node_zero() -> Stdio {
    if std::io::stdin().is_terminal() { Stdio::piped() } else { Stdio::inherit() }
}

/// The relay from the terminal to node 0.
pub(super) struct Relay {
    to_node: Option<OwnedFd>,
    pending: Vec<u8>,
    at_end: bool,
}

impl Relay {
    pub(super) fn new(to_node: Option<OwnedFd>) -> Relay {
        if let Some(pipe) = &to_node {
            set_non_blocking(pipe.as_raw_fd());
        }
        Relay { to_node, pending: Vec::new(), at_end: false }
    }

    /// The descriptor to wait for next, and the event.
    pub(super) fn interest(&self) -> Option<(RawFd, i16)> {
        let pipe = self.to_node.as_ref()?;
        if !self.pending.is_empty() {
            return Some((pipe.as_raw_fd(), libc::POLLOUT));
        }
        (!self.at_end && in_foreground()).then_some((libc::STDIN_FILENO, libc::POLLIN))
    }

    /// Moves what can be moved; called when the descriptor of [`Relay::interest`] is ready.
    pub(super) fn pump(&mut self) {
        if self.pending.is_empty() {
            self.read();
        }
        self.write();
        if self.at_end && self.pending.is_empty() {
            self.to_node = None;
        }
    }

    fn read(&mut self) {
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer is valid for its length.
        let got = unsafe { libc::read(libc::STDIN_FILENO, buffer.as_mut_ptr().cast(), buffer.len()) };
        if got > 0 {
            self.pending.extend_from_slice(&buffer[..got as usize]);
        } else if got == 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            self.at_end = true;
        }
    }

    fn write(&mut self) {
        let Some(pipe) = &self.to_node else { return };
        // SAFETY: the slice is valid for its length.
        let put = unsafe { libc::write(pipe.as_raw_fd(), self.pending.as_ptr().cast(), self.pending.len()) };
        if put >= 0 {
            self.pending.drain(..put as usize);
        } else if std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock {
            // Node 0 closed its standard input: nobody wants the rest.
            self.pending.clear();
            self.to_node = None;
        }
    }
}

/// Reading a terminal from the background would stop the launcher.
fn in_foreground() -> bool {
    // SAFETY: both calls take plain integers.
    unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}
