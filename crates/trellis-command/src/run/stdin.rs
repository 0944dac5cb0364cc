//! Forwards standard input to node 0, or to all nodes.
//!
//! A file or a pipe is simply inherited, if only a node 0 on this host gets it. A terminal cannot be: a node runs in its
//! own process group and would be stopped (SIGTTIN) when it reads. So the launcher reads the terminal, only while it is in
//! the foreground, and passes the bytes on. It never reads more than the slowest node's pipe, or agent, can take.

use std::io::IsTerminal;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Stdio;

use clap::ValueEnum;
use rustix::io::Errno;

use crate::run::hosts::ON_THEIR_WAY_BYTES_MAX;
use crate::run::output::set_non_blocking;

/// Who gets the launcher's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InputMode {
    /// Node 0; the others read from /dev/null
    First,
    /// Every node, each all of it
    All,
    /// Nobody
    None,
}

impl InputMode {
    /// The nodes that get it.
    pub(super) fn nodes(self, count: usize) -> Range<usize> {
        match self {
            InputMode::First => 0..1,
            InputMode::All => 0..count,
            InputMode::None => 0..0,
        }
    }

    /// The standard input of a node on this host.
    pub(super) fn of_node(self, node: usize) -> Stdio {
        match self {
            InputMode::First if node == 0 && !std::io::stdin().is_terminal() => Stdio::inherit(),
            _ if self.nodes(node + 1).contains(&node) => Stdio::piped(),
            _ => Stdio::null(),
        }
    }
}

/// The writing end of a node's standard input, and the bytes that wait for it.
pub(super) struct InputPipe {
    pipe: OwnedFd,
    pending: Vec<u8>,
    is_at_end: bool,
    /// The number of bytes that the node's pipe has taken.
    pub(super) taken: usize,
}

impl InputPipe {
    pub(super) fn new(pipe: OwnedFd) -> InputPipe {
        set_non_blocking(&pipe);
        InputPipe { pipe, pending: Vec::new(), is_at_end: false, taken: 0 }
    }

    /// Takes bytes; none of them means the end.
    pub(super) fn give(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        self.is_at_end |= bytes.is_empty();
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Writes what the pipe accepts; returns whether the node may want more.
    pub(super) fn pump(&mut self) -> bool {
        if self.is_waiting() {
            match rustix::io::write(&self.pipe, &self.pending) {
                Ok(count) => {
                    self.taken += count;
                    self.pending.drain(..count);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // The node closed its standard input: it does not want the rest.
                Err(_) => return false,
            }
        }
        self.is_waiting() || !self.is_at_end
    }
}

/// The relay of standard input to the nodes that get it.
#[derive(Default)]
pub(super) struct Relay {
    here: Vec<InputPipe>,
    /// The places of agents with such nodes, and how many bytes each of them takes at the moment.
    agents: Vec<(usize, usize)>,
    /// The bytes that were read and not given to the agents yet.
    fresh: Vec<u8>,
    at_end: bool,
}

impl Relay {
    /// Adds a node on this host.
    pub(super) fn add(&mut self, pipe: OwnedFd) {
        self.here.push(InputPipe::new(pipe));
    }

    /// Adds the nodes of an agent.
    pub(super) fn add_agent(&mut self, place: usize) {
        self.agents.push((place, ON_THEIR_WAY_BYTES_MAX));
    }

    /// The number of bytes that every receiver can take.
    fn room(&self) -> usize {
        if self.here.iter().any(InputPipe::is_waiting) || self.here.is_empty() && self.agents.is_empty() {
            return 0;
        }
        // A pipe that is empty has room for this much (PIPE_BUF).
        let of_pipes = if self.here.is_empty() { usize::MAX } else { 4096 };
        self.agents.iter().map(|(_, room)| *room).fold(of_pipes, usize::min)
    }

    /// The descriptors to wait for next, each with its event.
    pub(super) fn interests(&self) -> Vec<(RawFd, i16)> {
        let waiting = self.here.iter().filter(|pipe| pipe.is_waiting());
        let mut all: Vec<_> = waiting.map(|pipe| (pipe.descriptor().as_raw_fd(), libc::POLLOUT)).collect();
        if !self.at_end && self.room() > 0 && (!std::io::stdin().is_terminal() || in_foreground()) {
            all.push((libc::STDIN_FILENO, libc::POLLIN));
        }
        all
    }

    /// Moves what can be moved; called when one of [`Relay::interests`] is ready.
    pub(super) fn pump(&mut self) {
        if !self.at_end && self.room() > 0 {
            self.read();
        }
        self.here.retain_mut(InputPipe::pump);
    }

    /// The next bytes for the agents at these places; none of them means the end.
    pub(super) fn take(&mut self) -> Option<(Vec<usize>, Vec<u8>)> {
        let places = self.agents.iter().map(|(place, _)| *place).collect();
        if !self.fresh.is_empty() {
            return Some((places, std::mem::take(&mut self.fresh)));
        }
        if self.at_end && !self.agents.is_empty() {
            self.agents.clear();
            return Some((places, Vec::new()));
        }
        None
    }

    /// Notes that an agent has room for more bytes, or wants none.
    pub(super) fn taken(&mut self, place: usize, bytes: Option<usize>) {
        match bytes {
            Some(bytes) => {
                self.agents.iter_mut().filter(|agent| agent.0 == place).for_each(|agent| agent.1 += bytes);
            }
            None => self.agents.retain(|agent| agent.0 != place),
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 16 << 10];
        let room = self.room().min(buffer.len());
        let bytes = match rustix::io::read(rustix::stdio::stdin(), &mut buffer[..room]) {
            Ok(count) => &buffer[..count],
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => &[],
        };
        self.at_end = bytes.is_empty();
        self.here.iter_mut().for_each(|pipe| pipe.give(bytes));
        self.agents.iter_mut().for_each(|(_, room)| *room -= bytes.len());
        if !self.agents.is_empty() {
            self.fresh.extend_from_slice(bytes);
        }
    }
}

/// Reading a terminal from the background would stop the launcher.
fn in_foreground() -> bool {
    // SAFETY: both calls take plain integers.
    unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}
