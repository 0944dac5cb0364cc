//! A question to a node by somebody who knows the secret and is no node yet: one handshake that carries one question
//! and one answer.
//!
//! Promised: whoever does not know the secret learns nothing and gets silence; question and answer are encrypted
//! whatever the links' security; a recorded question that is played again is not answered. Waiting ends after the time
//! that the caller gave.
//!
//! Never done here: understanding a question. No connection of the link comes of it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::HELLO_BYTES_MAX;
use crate::wrap::secure::{Card, Carrier, Dialling, LINK_VERSION, SECOND_MESSAGE_BYTES, Security};

/// What stands for the number of somebody who has none.
pub(super) const OUTSIDER: u32 = u32::MAX;

/// The answer, and what the asker learned on the way.
#[derive(Clone, Debug)]
pub struct Answered {
    /// What was answered.
    pub text: Vec<u8>,
    /// The address by which this machine reaches the node: where nodes can reach this machine.
    pub local: IpAddr,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// The question is too long.
    #[error("the question has {bytes} bytes and at most {HELLO_BYTES_MAX} are carried; shorten it")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Nobody can be reached there.
    #[error("{address} cannot be reached: {source}; check the address, and whether the cluster runs")]
    Unreachable {
        /// Who was asked.
        address: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Whoever listens there keeps silent.
    #[error(
        "{address} takes the connection and does not answer: it has another secret, or is no node of a cluster; give \
         the secret file that the cluster was started with"
    )]
    Silent {
        /// Who was asked.
        address: String,
    },
    /// The node answered that it will not.
    #[error("{why}")]
    Refused {
        /// Its sentence.
        why: String,
    },
}

/// Asks the node at `address` (`host:port`); `node` is its number where that matters: then no other node answers.
pub fn ask(
    address: &str,
    node: Option<usize>,
    secret: &[u8; 32],
    question: &[u8],
    patience: Duration,
) -> Result<Answered, AskError> {
    if question.len() > HELLO_BYTES_MAX {
        return Err(AskError::TooLong { bytes: question.len() });
    }
    let until = Instant::now() + patience;
    let mut stream =
        connect(address, until).map_err(|source| AskError::Unreachable { address: address.to_owned(), source })?;
    let silent = || AskError::Silent { address: address.to_owned() };
    let local = stream.local_addr().map_err(|_| silent())?.ip();
    let card = Card {
        version: LINK_VERSION,
        refused: false,
        security: 0,
        from: OUTSIDER,
        to: node.map_or(OUTSIDER, |node| node as u32),
        nodes: 0,
        text: question.to_vec(),
    };
    let (mut dialling, first) = Dialling::start(Carrier::Stream, secret, &card).map_err(|_| silent())?;
    let mut second = [0; SECOND_MESSAGE_BYTES];
    exchange(&mut stream, &first, &mut second, until).map_err(|_| silent())?;
    let (card, _, _) = dialling.finish(&second, Security::Sealed).map_err(|_| silent())?;
    if card.refused {
        return Err(AskError::Refused { why: String::from_utf8_lossy(&card.text).into_owned() });
    }
    Ok(Answered { text: card.text, local })
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
