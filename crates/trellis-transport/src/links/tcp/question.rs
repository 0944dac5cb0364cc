//! Questions of processes that know the secret and are not nodes yet. One handshake carries one question and one
//! answer.
//!
//! Promises: a process that does not know the secret learns nothing and gets no answer. Question and answer are
//! encrypted whatever the links' security. A replayed question is not answered. Waiting ends after the time that the
//! caller gave.
//!
//! It must never interpret a question. No connection of the link results from it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::HELLO_BYTES_MAX;
use crate::wrap::secure::{Carrier, Dialling, LINK_VERSION, NodeDescription, SECOND_MESSAGE_BYTES, Security};

/// The number in the question of a process that has none.
pub(super) const OUTSIDER: u32 = u32::MAX;

/// The answer, and what the asker learned besides.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The text of the answer.
    pub text: Vec<u8>,
    /// The address of this machine on the path to the node. Nodes can reach this machine there.
    pub local: IpAddr,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// The question is too long.
    #[error("the question has {bytes} bytes and at most {HELLO_BYTES_MAX} are carried; shorten it")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The address cannot be reached.
    #[error("{address} cannot be reached: {source}; check the address, and whether the cluster runs")]
    Unreachable {
        /// The address that was asked.
        address: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The process that listens there does not answer.
    #[error(
        "{address} takes the connection and does not answer: it has another secret, or is not a node of a cluster; give \
         the secret file that the cluster was started with"
    )]
    Silent {
        /// The address that was asked.
        address: String,
    },
    /// The node refused.
    #[error("{why}")]
    Refused {
        /// The reason that it gave.
        why: String,
    },
}

/// Asks the node at `address` (`host:port`). If `node` is given, only the node with that number answers.
pub fn ask(
    address: &str,
    node: Option<usize>,
    secret: &[u8; 32],
    question: &[u8],
    timeout: Duration,
) -> Result<Answered, AskError> {
    if question.len() > HELLO_BYTES_MAX {
        return Err(AskError::TooLong { bytes: question.len() });
    }
    let until = Instant::now() + timeout;
    let mut stream =
        connect(address, until).map_err(|source| AskError::Unreachable { address: address.to_owned(), source })?;
    let silent = || AskError::Silent { address: address.to_owned() };
    let local = stream.local_addr().map_err(|_| silent())?.ip();
    let description = NodeDescription {
        version: LINK_VERSION,
        refused: false,
        security: 0,
        from: OUTSIDER,
        to: node.map_or(OUTSIDER, |node| node as u32),
        nodes: 0,
        text: question.to_vec(),
    };
    let (mut dialling, first) = Dialling::start(Carrier::Stream, secret, &description).map_err(|_| silent())?;
    let mut second = [0; SECOND_MESSAGE_BYTES];
    exchange(&mut stream, &first, &mut second, until).map_err(|_| silent())?;
    let (description, _, _) = dialling.finish(&second, Security::Sealed).map_err(|_| silent())?;
    if description.refused {
        return Err(AskError::Refused { why: String::from_utf8_lossy(&description.text).into_owned() });
    }
    Ok(Answered { text: description.text, local })
}

fn connect(address: &str, until: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn exchange(stream: &mut TcpStream, first: &[u8], second: &mut [u8], until: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(first)?;
    let mut filled = 0;
    while filled < second.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut second[filled..])? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            count => filled += count,
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
}
