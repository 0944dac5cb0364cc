//! A connection to a server of the Redis protocol.
//!
//! It promises that every wait on it ends, and that an answer belongs to its request: after any error the connection
//! must be discarded.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_output::sockets::connect_path;

use super::address::Place;
use super::reply::{Replies, Reply};

/// How long one address of a host is tried at most.
pub(crate) const CONNECT: Deadline = Deadline {
    who: "a client of Redis",
    waits_for: "a connection, at each address of the host",
    limit: Limit::seconds(3),
    then: "the next address, within the deadline of the store",
    tested: "crates/trellis-store/src/stores/redis/connection.rs an_address_that_takes_no_connection_is_given_up",
};

/// One or more commands that are sent together.
#[derive(Default)]
pub(super) struct Commands(Vec<u8>);

impl Commands {
    /// Begins a command of `arguments` parts, the first of which is its name.
    pub(super) fn begin(&mut self, arguments: usize) -> &mut Commands {
        self.0.push(b'*');
        self.number(arguments);
        self
    }

    /// Adds a part.
    pub(super) fn part(&mut self, bytes: &[u8]) -> &mut Commands {
        self.0.push(b'$');
        self.number(bytes.len());
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
        self
    }

    /// Adds a whole command.
    pub(super) fn command(&mut self, parts: &[&[u8]]) -> &mut Commands {
        self.begin(parts.len()).parts(parts)
    }

    /// Adds several parts.
    pub(super) fn parts<P: AsRef<[u8]>>(&mut self, parts: impl IntoIterator<Item = P>) -> &mut Commands {
        for part in parts {
            self.part(part.as_ref());
        }
        self
    }

    fn number(&mut self, number: usize) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut left = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.0.extend_from_slice(&digits[at..]);
        self.0.extend_from_slice(b"\r\n");
    }
}

/// A connection.
pub(super) struct Connection {
    stream: Stream,
    replies: Replies,
    /// The time-out that is set on the socket.
    timeout: Duration,
}

impl Connection {
    /// Connects.
    pub(super) fn open(place: &Place, timeout: Duration) -> io::Result<Connection> {
        let stream = match place {
            Place::Unix(path) => Stream::Unix(connect_path(path, timeout.min(CONNECT.time()))?),
            Place::Tcp(host, port) => Stream::Tcp(connect(host, *port, timeout.min(CONNECT.time()))?),
        };
        stream.set_timeout(timeout)?;
        Ok(Connection { stream, replies: Replies::default(), timeout })
    }

    /// Sends commands.
    pub(super) fn send(&mut self, commands: &Commands) -> io::Result<()> {
        self.stream.write_all(&commands.0)
    }

    /// The next answer.
    pub(super) fn answer(&mut self) -> io::Result<Reply> {
        loop {
            match self.replies.read(&mut self.stream)? {
                Reply::Push(_) => {}
                reply => return Ok(reply),
            }
        }
    }

    /// The next answer or message.
    pub(super) fn answer_or_message(&mut self) -> io::Result<Reply> {
        self.replies.read(&mut self.stream)
    }

    /// The next message; `None` if the deadline passes.
    pub(super) fn message(&mut self, deadline: Instant) -> io::Result<Option<Vec<Reply>>> {
        let usual = self.timeout;
        while self.replies.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.stream.set_timeout(usual)?;
                return Ok(None);
            }
            self.stream.set_timeout(left)?;
            match self.replies.fill(&mut self.stream) {
                Err(error) if is_timeout(&error) => {}
                filled => filled?,
            }
        }
        // A message has begun to arrive.
        self.stream.set_timeout(usual)?;
        match self.replies.read(&mut self.stream)? {
            Reply::Push(parts) => Ok(Some(parts)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it answered what was not asked")),
        }
    }

    /// Sets the time-out for answers.
    pub(super) fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        if timeout != self.timeout {
            self.stream.set_timeout(timeout)?;
            self.timeout = timeout;
        }
        Ok(())
    }
}

/// Whether a read ended because nothing arrived in time.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn connect(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name of the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout)),
            Stream::Unix(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_takes_no_connection_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Nobody accepts, and the kernel drops what has no room.
        rustix::net::listen(&listener, 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut waiting = Vec::new();
        let error = loop {
            match connect("127.0.0.1", port, Duration::from_millis(50)) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the kernel takes all of them");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}
