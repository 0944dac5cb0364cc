//! A client: its socket, what has arrived from it, what is on its way to it.
//!
//! Promises bounded buffers: no more is read while a client does not take its answers.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::commands::Session;
use super::poll::Interest;
use super::request::{self, Found, Limits, Place};

/// How large a buffer is at first, and again when it has been emptied.
const BUFFER_BYTES: usize = 16 << 10;
/// Beyond this much on its way to a client, nothing more is done for it.
const OUTPUT_BYTES_MAX: usize = 32 << 20;
/// What somebody who has not said the password may send.
const STRANGER: Limits = Limits { parts_max: 10, bytes_max: 16 << 10 };

/// A socket.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            Socket::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }
}

/// A client.
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) session: Session,
    input: Vec<u8>,
    /// What has arrived and was not yet done: `input[from..to]`.
    from: usize,
    to: usize,
    pub(super) output: Vec<u8>,
    sent: usize,
    /// Nothing more is done for it; what it was told is still sent.
    pub(super) closing: bool,
    /// What the poll was told.
    pub(super) interest: Interest,
}

/// How it goes on with a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Open,
    Ended,
}

impl Connection {
    pub(super) fn new(socket: Socket, session: Session) -> Connection {
        Connection {
            socket,
            session,
            input: vec![0; BUFFER_BYTES],
            from: 0,
            to: 0,
            output: Vec::new(),
            sent: 0,
            closing: false,
            interest: Interest { read: true, write: false, end: false },
        }
    }

    /// Takes what has arrived, as much as there is room for.
    pub(super) fn receive(&mut self) -> Progress {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.to == self.input.len() {
            if self.from > 0 {
                self.input.copy_within(self.from..self.to, 0);
                (self.from, self.to) = (0, self.to - self.from);
            } else {
                self.input.resize(self.input.len() * 2, 0);
            }
        }
        match self.socket.read(&mut self.input[self.to..]) {
            Ok(0) => Progress::Ended,
            Ok(count) => {
                self.to += count;
                Progress::Open
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Progress::Open
            }
            Err(_) => Progress::Ended,
        }
    }

    /// Finds the next request; says why there is none.
    pub(super) fn request(&mut self, limits: Limits, parts: &mut Vec<Place>) -> Found {
        let limits = if self.session.is_known() { limits } else { STRANGER };
        let found = request::find(&self.input[self.from..self.to], limits, parts);
        if let Found::Incomplete(needed) = found {
            self.make_room(needed.min(limits.bytes_max + 2));
        }
        found
    }

    /// Session, input and output at once.
    pub(super) fn parts(&mut self) -> (&mut Session, &[u8], &mut Vec<u8>) {
        (&mut self.session, &self.input[self.from..self.to], &mut self.output)
    }

    /// A request is done.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Whether more may be done for it now.
    pub(super) fn may_go_on(&self) -> bool {
        !self.closing && !self.session.is_waiting() && self.output.len() - self.sent < OUTPUT_BYTES_MAX
    }

    /// Sends what is on its way.
    pub(super) fn send(&mut self) -> Progress {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Progress::Ended,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Open,
                Err(_) => return Progress::Ended,
            }
        }
        self.sent = 0;
        self.output.clear();
        self.output.shrink_to(BUFFER_BYTES);
        if self.from == self.to && self.input.len() > BUFFER_BYTES {
            self.input = vec![0; BUFFER_BYTES];
            (self.from, self.to) = (0, 0);
        }
        if self.closing { Progress::Ended } else { Progress::Open }
    }

    /// What it should be watched for.
    pub(super) fn wanted(&self) -> Interest {
        // For whom nobody is there any more, nothing may be waited for.
        let end = self.session.is_waiting();
        Interest { read: self.may_go_on(), write: self.sent < self.output.len(), end }
    }

    /// Makes room for a request, but no more than twice what has arrived, so that a promise alone takes no memory.
    fn make_room(&mut self, needed: usize) {
        if self.from > 0 {
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let room = needed.min((self.to * 2).max(BUFFER_BYTES));
        if room > self.input.len() {
            self.input.resize(room, 0);
        }
    }
}
