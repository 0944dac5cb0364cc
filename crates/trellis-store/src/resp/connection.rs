//! A client connection: its socket, its received input, and its pending output.
//!
//! Promises bounded buffers: nothing more is read while a client does not read its answers.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::commands::Session;
use super::poll::Interest;
use super::request::{self, Found, Limits, Place};

/// The initial size of a buffer, to which it returns when it is empty.
const BUFFER_BYTES: usize = 16 << 10;
/// No further request of a client is carried out while more than this is pending for it.
const OUTPUT_BYTES_MAX: usize = 32 << 20;
/// What an unauthenticated client may send.
const UNAUTHENTICATED: Limits = Limits { parts_max: 10, bytes_max: 16 << 10 };

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

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }
}

/// A client connection.
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) session: Session,
    input: Vec<u8>,
    /// Input that was received and not yet consumed: `input[from..to]`.
    from: usize,
    to: usize,
    pub(super) output: Vec<u8>,
    sent: usize,
    /// No further request is carried out; pending output is still sent.
    pub(super) closing: bool,
    /// The events that the poll watches for.
    pub(super) interest: Interest,
}

/// How to continue with a client.
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

    /// Receives as much input as there is room for.
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

    /// Finds the next request, or reports why there is none.
    pub(super) fn request(&mut self, limits: Limits, parts: &mut Vec<Place>) -> Found {
        let limits = if self.session.is_known() { limits } else { UNAUTHENTICATED };
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

    /// Drops a finished request from the input.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Whether more requests may be carried out now.
    pub(super) fn may_go_on(&self) -> bool {
        !self.closing && !self.session.is_waiting() && self.output.len() - self.sent < OUTPUT_BYTES_MAX
    }

    /// Sends pending output.
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

    /// The events to watch for.
    pub(super) fn wanted(&self) -> Interest {
        // Nothing may be waited for on behalf of a client that is gone.
        let end = self.session.is_waiting();
        Interest { read: self.may_go_on(), write: self.sent < self.output.len(), end }
    }

    /// Makes room for a request, but for no more than twice what has been received, so that an announced length alone
    /// uses no memory.
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
