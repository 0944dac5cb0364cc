//! The messages between a launcher and its agent on a host, over the agent's standard input and output.
//!
//! The agent begins with one line of text, so that the launcher can skip what a login prints before it, and can
//! recognise agents of other versions. After that line both sides send frames: the length of a message, the length of
//! the bytes that belong to it, the message as JSON, and these bytes. Lengths are 32 bits, little-endian.
//!
//! Both sides are of the same version (the launcher checks that), so nothing here has to be compatible.
//!
//! Promises: a frame is handed out whole, and a length beyond the limits is an error, not an allocation.

use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::run::binding::BindTo;
use crate::run::cause::Ended;
use crate::run::preload::Preload;

/// The agent's first line begins with this.
pub(super) const HELLO: &str = "trellis-agent ";
/// The longest message: the arguments and the environment of a program are in one (execve(2) limits them to a quarter
/// of the stack, which is 2 MiB by default; JSON writes a byte with up to four characters).
const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// The maximum number of bytes that follow a message.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;
/// The maximum number of bytes of standard input on their way to an agent, and of output on their way from an agent.
pub(crate) const ON_THEIR_WAY_BYTES_MAX: usize = 256 << 10;

/// The agent's first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version of its command.
    pub(super) version: String,
    /// The architecture for which it was built.
    pub(super) architecture: String,
    /// The address at which it was reached, if ssh said that.
    pub(super) own_address: Option<IpAddr>,
    /// The address from which the launcher came, if ssh said that.
    pub(super) launcher_address: Option<IpAddr>,
}

/// The facts that an agent needs before anything is started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Preparation {
    /// The numbers of its nodes.
    pub(super) nodes: Vec<usize>,
    /// The processors to which they are bound.
    pub(super) bind_to: BindTo,
    /// The address at which they listen.
    pub(super) address: IpAddr,
    /// The network in which they listen instead, as a prefix or the name of an interface.
    pub(super) network: Option<String>,
    /// The name or address by which the others reach this host instead.
    pub(super) advertised: Option<String>,
    /// Whether the nodes use datagrams.
    pub(super) has_datagrams: bool,
    /// The first and the last port at which they may listen; 0 for any.
    pub(super) ports: (u16, u16),
    /// The working directory of the program; without it, that of a login.
    pub(super) directory: Option<PathBuf>,
    pub(super) program: OsString,
    /// Whether the program was copied, under the last part of its name.
    pub(super) is_copied: bool,
    /// The search path of the program, if the user gave the nodes another PATH than that of a login.
    pub(super) search_path: Option<OsString>,
    /// The time of silence after which the launcher counts as gone.
    pub(super) silence_seconds: u64,
}

/// The program of the nodes of a host, and its surroundings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// The number of nodes on all hosts.
    pub(crate) nodes: usize,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(String, OsString)>,
    /// The text of the configuration file.
    pub(crate) configuration: Option<Vec<u8>>,
    pub(crate) secret: Option<[u8; 32]>,
    /// The library that is loaded first into the program.
    pub(crate) preload: Preload,
    /// The nodes that get standard input.
    pub(crate) input_nodes: Range<usize>,
    /// Whether the nodes' records are wanted.
    pub(crate) has_record: bool,
}

/// The resources of a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    /// The catcher that its nodes use, or why there is none.
    pub(crate) catcher: Result<String, String>,
}

/// The way from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// A round trip of one byte over TCP, in microseconds; the median.
    pub round_trip_us: f64,
    /// The rate of one stream of TCP, in bytes a second.
    pub bytes_per_second: f64,
}

/// A message of the launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The bytes that follow are the next ones of this file, which the nodes need.
    Copy(OsString),
    /// Make the sockets of the nodes.
    Prepare(Preparation),
    /// Try to connect to these nodes of other hosts.
    Reach(Vec<(usize, String)>),
    /// Report the resources of the host, and answer agents that measure the way to it.
    Survey,
    /// Measure the way to the agent that answers at this address.
    Measure(String),
    /// Keep the description of the program, and check whether the nodes have memory here.
    Assign(Box<Assignment>),
    /// Start the nodes.
    Start,
    /// Send a signal to the nodes that run. After SIGTSTP the launcher is silent until SIGCONT.
    Signal(i32),
    /// Report the status pages of the nodes that run.
    Show,
    /// The bytes that follow are standard input; none of them means its end.
    Input,
    /// The readers of output have taken so many bytes.
    OutputTaken(usize),
    /// Start this command, which starts the agent of another host. `host` is the place of its connection.
    Open { host: usize, command: Vec<OsString> },
    /// The bytes that follow are for that agent; none of them means the end of its standard input.
    Relay { host: usize },
    /// Kill the process that carries the connection to that agent.
    Drop { host: usize },
    /// End what the nodes left running, hand the records over, and end.
    Finish { has_failed: bool },
    /// The launcher is alive.
    Heartbeat,
}

/// A message of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The addresses at which its nodes listen.
    Prepared(Vec<String>),
    /// The nodes that it could not reach, each with the reason.
    Reached(Vec<(usize, String)>),
    Surveyed(Box<Facts>),
    Measured(Result<Pair, String>),
    /// It can start its nodes.
    Assigned,
    /// The nodes run. These are their process numbers.
    Started(Vec<i32>),
    /// It cannot carry out the order.
    Refused {
        code: u8,
        sentence: String,
    },
    /// A sentence for the user.
    Notice(String),
    /// The bytes that follow are output of a node; none of them means its end. Stream 0 is standard output.
    Output {
        node: usize,
        stream: usize,
    },
    /// The nodes have taken so many bytes of standard input; `None` if they want no more.
    InputTaken(Option<usize>),
    /// A node was stopped, or continued.
    Stopped {
        node: usize,
        is_stopped: bool,
    },
    /// A node ended. Its status page follows.
    Ended {
        node: usize,
        ended: Ended,
    },
    /// The status page of a running node follows.
    Shown {
        node: usize,
    },
    /// The bytes that follow are the next ones of a node's record.
    Record {
        node: usize,
    },
    /// A node's record cannot be read.
    RecordLost {
        node: usize,
    },
    /// The bytes that follow come from the agent of another host, or from what carries its connection; none of them
    /// means their end. Stream 0 is standard output.
    Relayed {
        host: usize,
        stream: usize,
    },
    /// That agent got so many bytes.
    RelayTaken {
        host: usize,
        bytes: usize,
    },
    /// The process that carried the connection to that agent has ended, after everything that came from it.
    RelayEnded {
        host: usize,
        ended: Ended,
    },
    /// Nothing is left of the nodes.
    Finished,
    /// The agent is alive.
    Heartbeat,
}

impl Report {
    /// The place of the host whose connection it is about, if that goes through this one.
    pub(super) fn relayed_host(&self) -> Option<usize> {
        match self {
            Report::Relayed { host, .. } | Report::RelayTaken { host, .. } | Report::RelayEnded { host, .. } => {
                Some(*host)
            }
            _ => None,
        }
    }

    /// The node that it is about, if it is about one.
    pub(crate) fn node(&self) -> Option<usize> {
        match self {
            Report::Output { node, .. }
            | Report::Stopped { node, .. }
            | Report::Ended { node, .. }
            | Report::Shown { node }
            | Report::Record { node }
            | Report::RecordLost { node } => Some(*node),
            _ => None,
        }
    }
}

/// The number of signs of life of each side within the time for which it may be silent.
pub(super) fn heartbeat_interval(silence: Duration) -> Duration {
    Duration::from_secs(1).min(silence / 4)
}

/// Frames on their way to the other side.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// The number of bytes at the front that are written. Moving the rest after every write would cost more.
    written: usize,
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The number of bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(super) fn say<T: Serialize>(&mut self, message: &T, body: &[u8]) {
        encode(message, body, &mut self.bytes);
    }

    /// Adds bytes that are no frame of this dialogue.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes at most `most` bytes that wait.
    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = self.bytes[self.written..][..count.min(self.waiting())].to_vec();
        self.advance(taken.len());
        taken
    }

    fn advance(&mut self, count: usize) {
        self.written += count;
        if self.written == self.bytes.len() {
            self.clear();
        } else if self.written >= ON_THEIR_WAY_BYTES_MAX {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
    }

    /// Writes as much as a non-blocking descriptor accepts. Returns how much that was.
    pub(super) fn write(&mut self, into: impl AsFd) -> Result<usize, Errno> {
        match rustix::io::write(into, &self.bytes[self.written..]) {
            Ok(count) => {
                self.advance(count);
                Ok(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// Appends a frame.
fn encode<T: Serialize>(message: &T, body: &[u8], into: &mut Vec<u8>) {
    let text = serde_json::to_vec(message).expect("messages are plain data with keys that are text");
    debug_assert!(body.len() <= BODY_BYTES_MAX);
    into.extend_from_slice(&(text.len() as u32).to_le_bytes());
    into.extend_from_slice(&(body.len() as u32).to_le_bytes());
    into.extend_from_slice(&text);
    into.extend_from_slice(body);
}

/// Takes bytes as they come, and hands out frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// The number of bytes at the front that were handed out.
    taken: usize,
}

impl Frames {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if it is here. The error says what is wrong with it.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<u8>)>, String> {
        let rest = &self.bytes[self.taken..];
        let length = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?) as usize);
        let (Some(message), Some(body)) = (length(0), length(4)) else { return Ok(None) };
        if message > MESSAGE_BYTES_MAX || body > BODY_BYTES_MAX {
            return Err(format!("a message of {message} bytes with {body} more is too long"));
        }
        let Some(frame) = rest.get(8..8 + message + body) else { return Ok(None) };
        let (text, body) = frame.split_at(message);
        let read = serde_json::from_slice(text).map_err(|error| format!("a message is not understood: {error}"))?;
        let body = body.to_vec();
        self.taken += 8 + text.len() + body.len();
        Ok(Some((read, body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_whole_in_whatever_pieces_they_come() {
        let mut bytes = Vec::new();
        encode(&Report::Output { node: 3, stream: 1 }, b"hello\n", &mut bytes);
        encode(&Report::Heartbeat, b"", &mut bytes);
        let mut frames = Frames::default();
        let mut seen = Vec::new();
        for byte in bytes {
            frames.feed(&[byte]);
            while let Some((report, body)) = frames.next::<Report>().expect("it is well formed") {
                seen.push((format!("{report:?}"), body));
            }
        }
        let expected = [("Output { node: 3, stream: 1 }", &b"hello\n"[..]), ("Heartbeat", b"")];
        assert_eq!(seen, expected.map(|(report, body)| (report.to_owned(), body.to_vec())));
    }

    #[test]
    fn a_frame_that_claims_too_much_is_an_error() {
        let mut frames = Frames::default();
        frames.feed(&[0xff; 8]);
        assert!(frames.next::<Report>().unwrap_err().contains("too long"));
        let mut frames = Frames::default();
        frames.feed(&[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']);
        assert!(frames.next::<Report>().unwrap_err().contains("not understood"));
    }
}
