//! Lines of JSON over a local socket, with which commands talk to launchers, switches, controllers and labs.
//!
//! Promises: a line that is too long or is not a message is an error. So is a line that is not accepted, or not ended
//! after its first byte, within a time, however the bytes are spread; and, if requested, a line that does not begin.
//! The error gives the time. It must never wait without a limit for a line that has begun, in either direction.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The maximum length of a line: 60,000 ranges, or 100,000 redirects or events, are shorter.
const LINE_BYTES_MAX: usize = 32 << 20;
/// The most bytes that are sent at a time: less than a socket has room for, so that the limit is looked at again.
const PART_BYTES: usize = 32 << 10;
/// The least time that a call may take; 0 would mean no limit.
const CALL_MIN: Duration = Duration::from_millis(1);

/// A connection with lines in both directions.
pub struct Lines {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    timeout: Duration,
    silence_max: Option<Duration>,
}

impl Lines {
    /// A connection over `stream`, whose peer has `timeout` to accept each line, and to end each line that it has begun.
    ///
    /// # Errors
    ///
    /// Those of the socket, here and below.
    pub fn new(stream: UnixStream, timeout: Duration) -> io::Result<Lines> {
        let writer = stream.try_clone()?;
        Ok(Lines { reader: BufReader::new(stream), writer, timeout, silence_max: None })
    }

    /// The same, but a peer also has only this time to begin a line.
    #[must_use]
    pub fn limiting_silence(self, silence_max: Duration) -> Lines {
        Lines { silence_max: Some(silence_max), ..self }
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// See the module.
    pub fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let limit = Limit::from_now(self.timeout);
        for part in line.chunks(PART_BYTES) {
            self.writer.set_write_timeout(Some(limit.left().max(CALL_MIN)))?;
            self.writer.write_all(part).map_err(|error| late(error, "it has not taken the line", self.timeout))?;
        }
        Ok(())
    }

    /// The next message; `None` if the peer has closed the connection.
    ///
    /// # Errors
    ///
    /// See the module.
    pub fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Option<T>> {
        let line = self.line()?;
        if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&line)?)) }
    }

    /// The next line; empty if the peer has closed the connection.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut limit = self.silence_max.map(Limit::from_now);
        let mut line = Vec::new();
        loop {
            let what = if line.is_empty() { "it has said nothing" } else { "it has not ended its line" };
            let time = limit.as_ref().map_or(self.timeout, |limit| limit.time);
            if self.reader.buffer().is_empty() {
                let left = limit.as_ref().map(Limit::left);
                if left == Some(Duration::ZERO) {
                    return Err(late(ErrorKind::TimedOut.into(), what, time));
                }
                self.writer.set_read_timeout(left.map(|left| left.max(CALL_MIN)))?;
            }
            let bytes = match self.reader.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(late(error, what, time)),
            };
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let count = end.map_or(bytes.len(), |end| end + 1);
            let (is_over, is_first) = (end.is_some() || count == 0, line.is_empty());
            line.extend_from_slice(&bytes[..count]);
            self.reader.consume(count);
            if line.len() > LINE_BYTES_MAX {
                let what = format!("a line is longer than {LINE_BYTES_MAX} bytes");
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
            if is_over {
                return Ok(line);
            }
            if is_first {
                limit = Some(Limit::from_now(self.timeout));
            }
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
}

/// A time from a moment on.
struct Limit {
    began: Instant,
    time: Duration,
}

impl Limit {
    fn from_now(time: Duration) -> Limit {
        Limit { began: Instant::now(), time }
    }

    fn left(&self) -> Duration {
        self.time.saturating_sub(self.began.elapsed())
    }
}

fn late(error: io::Error, what: &str, time: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            io::Error::new(ErrorKind::TimedOut, format!("{what} for {} s", time.as_secs_f64()))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_or_takes_nothing_is_not_waited_for() {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let mut lines =
            Lines::new(one, Duration::from_millis(10)).expect("a socket").limiting_silence(Duration::from_millis(10));
        let silent = lines.receive::<u32>().expect_err("nobody answers");
        assert_eq!(silent.to_string(), "it has said nothing for 0.01 s");
        let full = loop {
            if let Err(error) = lines.send(&"a message that nobody reads") {
                break error;
            }
        };
        assert_eq!(
            (full.kind(), full.to_string()),
            (ErrorKind::TimedOut, "it has not taken the line for 0.01 s".to_owned())
        );
        drop(other);
    }

    #[test]
    fn a_line_that_comes_byte_by_byte_is_waited_for_only_so_long() {
        let (one, mut other) = UnixStream::pair().expect("a pair of sockets");
        let timeout = Duration::from_millis(50);
        let writes = std::thread::spawn(move || {
            while other.write_all(b"1").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // The first byte may come at any time; from then on the line has its time.
        let late = Lines::new(one, timeout).expect("a socket").receive::<u64>().expect_err("it never ends");
        assert_eq!(late.to_string(), "it has not ended its line for 0.05 s");
        writes.join().expect("the peer has hung up");
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
