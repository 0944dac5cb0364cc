//! Reads a server's answers from a connection.
//!
//! Both versions of the protocol are supported. Promises: everything that a server could announce (lengths, nesting) is
//! bounded, so a peer that is not a Redis server causes an error message and uses no memory.

use std::io::{self, Read};

/// The maximum length of a string.
const BULK_BYTES_MAX: usize = 1 << 29;
/// The maximum length of a line.
const LINE_BYTES_MAX: usize = 1 << 16;
/// The maximum nesting of answers.
const DEPTH_MAX: u32 = 8;
/// How much is read at once.
const READ_BYTES: usize = 16 << 10;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    /// A word, such as `OK`.
    Status(Vec<u8>),
    /// A refusal.
    Error(String),
    Integer(i64),
    /// A string, or null.
    Bulk(Option<Vec<u8>>),
    /// An array; the pairs of a map are flattened.
    Array(Vec<Reply>),
    /// Not an answer, but a message of a channel.
    Push(Vec<Reply>),
}

impl Reply {
    /// The bytes of a string or a status; `None` for any other answer.
    pub(super) fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Reply::Status(bytes) | Reply::Bulk(Some(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Reads answers from a stream.
#[derive(Default)]
pub(super) struct Replies {
    buffer: Vec<u8>,
    /// The start of the unread bytes.
    at: usize,
}

impl Replies {
    /// Reads one answer.
    pub(super) fn read(&mut self, stream: &mut impl Read) -> io::Result<Reply> {
        self.nested(stream, 0)
    }

    fn nested(&mut self, stream: &mut impl Read, depth: u32) -> io::Result<Reply> {
        if depth > DEPTH_MAX {
            return Err(strange("answers within answers without end"));
        }
        let line = self.line(stream)?;
        let Some((kind, text)) = line.split_first() else { return Err(strange("an empty line")) };
        Ok(match kind {
            b'+' => Reply::Status(text.to_vec()),
            b'-' => Reply::Error(String::from_utf8_lossy(text).into_owned()),
            b':' => Reply::Integer(number(text)?),
            b'_' => Reply::Bulk(None),
            b'#' => Reply::Integer(i64::from(text == b"t")),
            b',' | b'(' => Reply::Bulk(Some(text.to_vec())),
            b'$' | b'=' => match number(text)? {
                -1 => Reply::Bulk(None),
                length => Reply::Bulk(Some(self.bulk(stream, length)?)),
            },
            b'!' => {
                let length = number(text)?;
                Reply::Error(String::from_utf8_lossy(&self.bulk(stream, length)?).into_owned())
            }
            b'*' if text == b"-1" => Reply::Bulk(None),
            b'*' | b'~' => Reply::Array(self.several(stream, number(text)?, depth)?),
            b'%' => Reply::Array(self.several(stream, number(text)?.saturating_mul(2), depth)?),
            b'>' => Reply::Push(self.several(stream, number(text)?, depth)?),
            _ => {
                let begin = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
                return Err(strange(&format!("`{}`", begin.escape_debug())));
            }
        })
    }

    fn several(&mut self, stream: &mut impl Read, count: i64, depth: u32) -> io::Result<Vec<Reply>> {
        let mut replies = Vec::new();
        for _ in 0..count {
            replies.push(self.nested(stream, depth + 1)?);
        }
        Ok(replies)
    }

    fn line(&mut self, stream: &mut impl Read) -> io::Result<Vec<u8>> {
        let mut searched = self.at;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let end = searched + end;
                let line = self.buffer[self.at..end].strip_suffix(b"\r").map(<[u8]>::to_vec);
                self.at = end + 1;
                return line.ok_or_else(|| strange("a line that does not end as lines do"));
            }
            if self.buffer.len() - self.at > LINE_BYTES_MAX {
                return Err(strange("a line without end"));
            }
            let waiting = self.buffer.len() - self.at;
            self.fill(stream)?;
            searched = self.at + waiting;
        }
    }

    fn bulk(&mut self, stream: &mut impl Read, length: i64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(length).ok().filter(|length| *length <= BULK_BYTES_MAX);
        let Some(length) = length else { return Err(strange("a string of an impossible length")) };
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let here = &self.buffer[self.at..];
            if here.is_empty() {
                self.fill(stream)?;
                continue;
            }
            let take = here.len().min(length - bytes.len());
            if bytes.is_empty() {
                bytes.reserve_exact(length.min(1 << 20));
            }
            bytes.extend_from_slice(&here[..take]);
            self.at += take;
        }
        while self.buffer.len() - self.at < 2 {
            self.fill(stream)?;
        }
        if &self.buffer[self.at..self.at + 2] != b"\r\n" {
            return Err(strange("a string that is longer than it said"));
        }
        self.at += 2;
        Ok(bytes)
    }

    /// Whether all received bytes have been read.
    pub(super) fn is_empty(&self) -> bool {
        self.at == self.buffer.len()
    }

    /// Waits until bytes arrive.
    pub(super) fn fill(&mut self, stream: &mut impl Read) -> io::Result<()> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let kept = self.buffer.len();
        self.buffer.resize(kept + READ_BYTES, 0);
        let read = loop {
            match stream.read(&mut self.buffer[kept..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(kept + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
            _ => Ok(()),
        }
    }
}

fn number(text: &[u8]) -> io::Result<i64> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| strange("a number that is none"))
}

/// The error for bytes that no server of this protocol sends.
fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it answered {what}, which is not the Redis protocol"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a few bytes at a time.
    struct Drops<'a>(&'a [u8], usize);

    impl Read for Drops<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let take = self.1.min(self.0.len()).min(into.len());
            into[..take].copy_from_slice(&self.0[..take]);
            self.0 = &self.0[take..];
            Ok(take)
        }
    }

    const ALL: &[u8] = b"+OK\r\n-ERR no\r\n:-12\r\n$3\r\na\nb\r\n$-1\r\n_\r\n*2\r\n$0\r\n\r\n*0\r\n%1\r\n+a\r\n:1\r\n>1\r\n#t\r\n*-1\r\n";

    fn all(step: usize) -> Vec<Reply> {
        let (mut replies, mut stream) = (Replies::default(), Drops(ALL, step));
        (0..10).map(|_| replies.read(&mut stream).unwrap()).collect()
    }

    #[test]
    fn answers_are_read_however_they_arrive() {
        let expected = vec![
            Reply::Status(b"OK".to_vec()),
            Reply::Error("ERR no".to_owned()),
            Reply::Integer(-12),
            Reply::Bulk(Some(b"a\nb".to_vec())),
            Reply::Bulk(None),
            Reply::Bulk(None),
            Reply::Array(vec![Reply::Bulk(Some(Vec::new())), Reply::Array(Vec::new())]),
            Reply::Array(vec![Reply::Status(b"a".to_vec()), Reply::Integer(1)]),
            Reply::Push(vec![Reply::Integer(1)]),
            Reply::Bulk(None),
        ];
        for step in [1, 2, 3, 7, 1000] {
            assert_eq!(all(step), expected, "{step} bytes at a time");
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for bytes in
            [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"$5x\r\n", b"$99999999999\r\n", b"\r\n", b"+a\n", b"$1\r\nabc\r\n"]
        {
            let error = Replies::default().read(&mut Drops(bytes, 100)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{}: {error}", String::from_utf8_lossy(bytes));
        }
        let deep = b"*1\r\n".repeat(100);
        assert_eq!(Replies::default().read(&mut Drops(&deep, 100)).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let cut = Replies::default().read(&mut Drops(b"$5\r\nab", 100)).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
