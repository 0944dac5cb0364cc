//! Lines of JSON over a local socket, with which commands talk to switches, controllers and labs.
//!
//! Promises: a line that is too long or is not a message is an error. So is a line that is not accepted within a time
//! and, if requested, one that does not arrive; the error gives the time. Must never wait without a limit for a line to
//! be accepted.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The maximum length of a line: 60,000 ranges, or 100,000 redirects or events, are shorter.
const LINE_BYTES_MAX: u64 = 32 << 20;

/// A connection with lines in both directions.
pub struct Lines {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    timeout: Duration,
}

impl Lines {
    /// A connection over `stream`, whose peer has `timeout` to accept each line.
    ///
    /// # Errors
    ///
    /// Those of the socket, here and below.
    pub fn new(stream: UnixStream, timeout: Duration) -> io::Result<Lines> {
        stream.set_write_timeout(Some(timeout))?;
        let writer = stream.try_clone()?;
        Ok(Lines { reader: BufReader::new(stream), writer, timeout })
    }

    /// From now on, a line that does not arrive within that time is an error, too.
    ///
    /// # Errors
    ///
    /// See [`Lines::new`].
    pub fn is_impatient(&self) -> io::Result<()> {
        self.writer.set_read_timeout(Some(self.timeout))
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// See the module.
    pub fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.writer.write_all(&line).map_err(|error| self.late(error, "it has taken nothing"))
    }

    /// The next message; `None` if the peer has closed the connection.
    ///
    /// # Errors
    ///
    /// See the module.
    pub fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        match read.map_err(|error| self.late(error, "it has said nothing"))? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_slice(&line)?)),
        }
    }

    /// Sends a request, and returns the answer. A peer that refuses a connection answers before it has the request, so an
    /// answer counts even if the request could not be sent.
    ///
    /// # Errors
    ///
    /// See the module.
    pub fn ask<A: for<'a> Deserialize<'a>>(&mut self, request: &impl Serialize) -> io::Result<A> {
        let sent = self.send(request);
        match self.receive() {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => sent.and(Err(ErrorKind::UnexpectedEof.into())),
            Err(error) => sent.and(Err(error)),
        }
    }

    fn late(&self, error: io::Error, what: &str) -> io::Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                io::Error::new(ErrorKind::TimedOut, format!("{what} for {} s", self.timeout.as_secs_f64()))
            }
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_or_takes_nothing_is_not_waited_for() {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let mut lines = Lines::new(one, Duration::from_millis(10)).expect("a socket");
        lines.is_impatient().expect("a socket");
        let silent = lines.receive::<u32>().expect_err("nobody answers");
        assert_eq!(silent.to_string(), "it has said nothing for 0.01 s");
        let full = loop {
            if let Err(error) = lines.send(&"a message that nobody reads") {
                break error;
            }
        };
        assert_eq!(
            (full.kind(), full.to_string()),
            (ErrorKind::TimedOut, "it has taken nothing for 0.01 s".to_owned())
        );
        drop(other);
    }

    #[test]
    fn messages_arrive_and_what_is_none_is_refused() {
        let (one, mut other) = UnixStream::pair().expect("a pair of sockets");
        let mut lines = Lines::new(one, Duration::from_secs(60)).expect("a socket");
        other.write_all(b"17\nno number\n").expect("it is read");
        assert_eq!(lines.receive().expect("a message"), Some(17_u32));
        assert!(lines.receive::<u32>().is_err());
        drop(other);
        assert_eq!(lines.receive::<u32>().expect("the end"), None);
    }
}
