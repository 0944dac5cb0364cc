//! A client of memory servers: accesses objects by their pointers, one call at a time or many at once.
//!
//! A [`Client`] is for one thread. It has a socket and a number (*incarnation*) of its own, and picks another random
//! number when a server reports that another process of its host uses it.
//!
//! Promises: what depends on the previous content (CREATE, DELETE, additions, comparisons) is done once, however often
//! its datagrams arrive. Long reads and writes are divided into pieces that are sent concurrently, and are not atomic,
//! except for [`Client::write_whole`]; a caller that needs more uses a lease. If a server has forgotten a session, or a
//! new home never knew it, the session is opened again, but a call that may have been done is never repeated: its error
//! is `FENCED`. CREATE is repeated: at worst there is an object that no client knows. Before a server would end a
//! session because this client was silent, the client sends HELLO. Some conditions pass unseen by the caller, because
//! the call waits until its deadline or takes a lease itself: a range that has backups, a page that another client
//! holds, and a range that moves or whose home restarts or is replaced.

pub(crate) mod asking;
mod batch;
pub(crate) mod by_lease;
mod by_page;
mod sessions;
#[cfg(test)]
mod tests;
pub(crate) mod waiting;

use std::time::Duration;

use trellis_base::{Deadline, Limit, Random};
use trellis_fabric_protocol::wire::address::{Arguments, Cluster, Host, HostPrefix, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Operation, Reply, Status, WRITE_BYTES_MAX};
use trellis_transport::links::ipv6::{Endpoint, Exchange, Timing};

use super::{RemoteError, random_number};
use asking::{End, Wanted, pieces};
pub use batch::{Call, Outcome};
use sessions::Sessions;
use waiting::Homes;

const CLIENT: &str = "a client of memory servers";
/// How long a call takes at most.
pub(crate) const DEADLINE: Deadline = Deadline {
    who: CLIENT,
    waits_for: "the answer to a call",
    limit: Limit::Setting("ClientOptions::deadline", Duration::from_secs(10)),
    then: "`RemoteError`, which names the host or the pointer",
    tested: "crates/trellis-remote/tests/remote.rs a_client_says_which_server_is_silent",
};

/// The identity of a client, and its way of sending requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The addresses of its host.
    pub prefix: HostPrefix,
    /// The port on which servers listen.
    pub port: u16,
    /// The maximum duration of a call.
    pub deadline: Duration,
    /// The number of bytes of memory in one datagram; 4,096 if the network supports packets of 9,000 bytes. The kernel
    /// fragments a packet that is longer than the network supports, and the packet is lost if one fragment is.
    pub piece_bytes: u32,
}

impl ClientOptions {
    /// For a host: port 5000, 10 s, a page in one datagram.
    pub fn new(prefix: HostPrefix) -> ClientOptions {
        ClientOptions {
            prefix,
            port: trellis_fabric_protocol::wire::address::PORT,
            deadline: DEADLINE.time(),
            piece_bytes: 4096,
        }
    }
}

/// A server's answer to HELLO: its limits for this client's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The bytes of the server's memory that the host may use.
    pub quota_bytes: u64,
    /// The bytes that it uses, in whole pages.
    pub used_bytes: u64,
}

/// See the top of this file.
pub struct Client {
    options: ClientOptions,
    exchange: Exchange,
    sessions: Sessions,
    homes: Homes,
}

impl Client {
    /// Opens a socket and picks a number.
    ///
    /// # Errors
    ///
    /// When the system provides no socket, or `piece_bytes` is outside 64 to 32,768.
    pub fn open(options: ClientOptions) -> Result<Client, RemoteError> {
        Client::open_as(options, random_number()?, Random::new(random_number()?))
    }

    /// Opens a client with a given identity and sequence of random numbers.
    fn open_as(options: ClientOptions, identity: u64, draws: Random) -> Result<Client, RemoteError> {
        if !(64..=1 << 15).contains(&options.piece_bytes) || !options.piece_bytes.is_power_of_two() {
            let bytes = options.piece_bytes;
            return Err(RemoteError::Setting(format!(
                "{bytes} bytes of memory in a datagram are not possible; give a power of two from 64 to 32768"
            )));
        }
        let endpoint = Endpoint::open(0).map_err(|error| RemoteError::Socket { port: 0, error })?;
        let sessions = Sessions::new(identity, draws);
        // Request numbers begin at a random value, so that an answer to a process that had the same incarnation before
        // is not taken for an answer to this one.
        let number = random_number()? >> 16;
        let source = sessions.source(options.prefix);
        let exchange = Exchange::new(endpoint, source, options.port, number, Timing::default());
        Ok(Client { options, exchange, sessions, homes: Homes::default() })
    }

    /// Creates an object of this many zero bytes at a server; with [`Host::ANYWHERE`] the switch chooses one.
    ///
    /// # Errors
    ///
    /// No answer; no memory, or the quota is exhausted.
    pub fn create(&mut self, home: Host, bytes: u64) -> Result<Pointer, RemoteError> {
        let home = self.choose(home)?;
        let epoch = self.session(home)?;
        let create = Wanted::plain(self.host_pointer(home), Command::Create, Operation::Create { bytes });
        self.object(Wanted { epoch, ..create }).map(|(pointer, _)| pointer)
    }

    /// Like [`Self::create`], for an object that is deleted with this client's session at its server: when the server
    /// has heard nothing of it for its limit (a minute by default). Until then, an occasional [`Self::hello`] keeps it.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub fn create_for_session(&mut self, home: Host, bytes: u64) -> Result<Pointer, RemoteError> {
        let home = self.choose(home)?;
        let epoch = self.session(home)?;
        let create = Wanted::plain(self.host_pointer(home), Command::Create, Operation::Create { bytes });
        self.object(Wanted { epoch, arguments: Arguments::OF_SESSION, ..create }).map(|(pointer, _)| pointer)
    }

    /// Creates an object of these bytes, atomically if they are at most 64 KiB. More bytes are written after its
    /// creation; if that fails, there is an object that no client knows.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub fn create_with(&mut self, home: Host, bytes: &[u8]) -> Result<Pointer, RemoteError> {
        let home = self.choose(home)?;
        let epoch = self.session(home)?;
        let (pointer, _) = self.object(self.create_question(home, epoch, bytes))?;
        if bytes.len() > WRITE_BYTES_MAX as usize {
            self.write(pointer, bytes)?;
        }
        Ok(pointer)
    }

    /// Deletes an object; its pointers become invalid.
    ///
    /// # Errors
    ///
    /// No answer; the pointer is not the object's first byte, or the object no longer exists.
    pub fn delete(&mut self, pointer: Pointer) -> Result<(), RemoteError> {
        let epoch = self.session(pointer.home())?;
        self.ask_one(&Wanted { epoch, ..Wanted::plain(pointer, Command::Delete, Operation::Plain) }).map(drop)
    }

    /// The first byte of the object that contains a pointer, and its length.
    ///
    /// # Errors
    ///
    /// No answer; there is no such object.
    pub fn inquire(&mut self, pointer: Pointer) -> Result<(Pointer, u64), RemoteError> {
        self.object(Wanted::plain(pointer, Command::Inquire, Operation::Plain))
    }

    /// Reads the bytes from a pointer on.
    ///
    /// # Errors
    ///
    /// No answer; they are not all in one object, or it no longer exists. The content of `bytes` is undefined then.
    pub fn read(&mut self, pointer: Pointer, bytes: &mut [u8]) -> Result<(), RemoteError> {
        self.read_many(&mut [(pointer, bytes)])
    }

    /// Reads several ranges at the same time.
    ///
    /// # Errors
    ///
    /// Of the first range that cannot be read.
    pub fn read_many(&mut self, ranges: &mut [(Pointer, &mut [u8])]) -> Result<(), RemoteError> {
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        for (number, (pointer, bytes)) in ranges.iter().enumerate() {
            for piece in pieces(*pointer, bytes.len(), self.options.piece_bytes as usize) {
                let (pointer, place) = piece?;
                wanted.push(Wanted::read(pointer, place.len()));
                places.push((number, place));
            }
        }
        let ends = self.ask_all(&wanted, &mut |place, reply, data| {
            let (number, place) = &places[place];
            reply.status != Status::Ok || batch::put_bytes(data, &mut ranges[*number].1[place.clone()])
        });
        first_failure(&wanted, ends)
    }

    /// Writes bytes from a pointer on.
    ///
    /// # Errors
    ///
    /// No answer; they are not all in one object, or it no longer exists. Some of them may have been written then.
    pub fn write(&mut self, pointer: Pointer, bytes: &[u8]) -> Result<(), RemoteError> {
        self.write_many(&[(pointer, bytes)])
    }

    /// Writes several ranges at the same time; where they overlap, in no order.
    ///
    /// # Errors
    ///
    /// Of the first range that cannot be written.
    pub fn write_many(&mut self, ranges: &[(Pointer, &[u8])]) -> Result<(), RemoteError> {
        let mut homes: Vec<Host> = ranges.iter().map(|(pointer, _)| pointer.home()).collect();
        homes.dedup();
        if let Some((_, failure)) = self.open_sessions(&homes).pop_first() {
            return Err(failure.into());
        }
        let mut wanted = Vec::new();
        for (pointer, bytes) in ranges {
            let epoch = self.sessions.epoch(pointer.home());
            for piece in pieces(*pointer, bytes.len(), self.options.piece_bytes as usize) {
                let (pointer, place) = piece?;
                wanted.push(Wanted::write(pointer, epoch, &bytes[place]));
            }
        }
        let ends = self.ask_all(&wanted, &mut |_, _, _| true);
        first_failure(&wanted, ends)
    }

    /// Writes at most 64 KiB atomically, in any number of datagrams: a read in one datagram returns all of the bytes or
    /// none.
    ///
    /// If the range has backups, or some of its pages have another home, only bytes in one page are atomic: a change is
    /// a commit there, and a commit is of one page, for backups too. A home that failed between two commits would leave
    /// half of the change.
    ///
    /// # Errors
    ///
    /// No answer; there are too many bytes; they are in several pages where only one page is atomic
    /// ([`RemoteError::SeveralPages`]; nothing was written); they are not all in one object, or it no longer exists.
    /// After no answer they may have been written, then all of them.
    pub fn write_whole(&mut self, pointer: Pointer, bytes: &[u8]) -> Result<(), RemoteError> {
        if bytes.len() > WRITE_BYTES_MAX as usize {
            return Err(RemoteError::TooLong { bytes: bytes.len() as u64 });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let epoch = self.session(pointer.home())?;
        self.ask_one(&Wanted::write_whole(pointer, epoch, bytes)).map(drop)
    }

    /// Adds to eight bytes, little-endian, at a multiple of eight, wrapping; returns the previous value.
    ///
    /// # Errors
    ///
    /// No answer; they are not all in one object, or it no longer exists.
    pub fn fetch_add(&mut self, pointer: Pointer, addend: u64) -> Result<u64, RemoteError> {
        self.value(pointer, Command::FetchAdd, Operation::FetchAdd { addend })
    }

    /// Replaces `expected` by `new`, and returns the previous value: `expected` if it was replaced.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch_add`].
    pub fn compare_swap(&mut self, pointer: Pointer, expected: u64, new: u64) -> Result<u64, RemoteError> {
        self.value(pointer, Command::CompareSwap, Operation::CompareSwap { expected, new })
    }

    /// A server's limits for this client's host.
    ///
    /// # Errors
    ///
    /// No answer; the server has too many clients, or other processes use every number that was tried.
    pub fn hello(&mut self, home: Host) -> Result<Welcome, RemoteError> {
        self.renew_session(home).map_err(RemoteError::from)
    }

    /// The server that a switch chooses for a request to any server.
    pub(super) fn choose(&mut self, home: Host) -> Result<Host, RemoteError> {
        if home != Host::ANYWHERE {
            return Ok(home);
        }
        Ok(self.choose_many(1).pop().expect("one was asked for")?)
    }

    fn value(&mut self, pointer: Pointer, command: Command, operation: Operation) -> Result<u64, RemoteError> {
        let epoch = self.session(pointer.home())?;
        let wanted = Wanted { epoch, ..Wanted::plain(pointer, command, operation) };
        let reply = self.ask_one(&wanted)?;
        match reply.body {
            Body::Value(value) => Ok(value),
            _ => Err(wanted.refused(reply.status).into()),
        }
    }

    fn object(&mut self, wanted: Wanted<'_>) -> Result<(Pointer, u64), RemoteError> {
        let reply = self.ask_one(&wanted)?;
        match reply.body {
            Body::Object { pointer, bytes } => Ok((pointer, bytes)),
            _ => Err(wanted.refused(reply.status).into()),
        }
    }

    fn ask_one(&mut self, wanted: &Wanted<'_>) -> Result<Reply, RemoteError> {
        let mut only = None;
        let end = self.ask(&[wanted], &mut |_, reply, _| {
            only = Some(*reply);
            true
        });
        match (end.into_iter().next().expect("one was asked"), only) {
            (Ok(Status::Ok | Status::Mismatch), Some(reply)) => Ok(reply),
            (Ok(status), _) => Err(wanted.refused(status).into()),
            (Err(why), _) => Err(why.into()),
        }
    }

    fn host_pointer(&self, home: Host) -> Pointer {
        Pointer::to_host(self.cluster(), home)
    }

    fn cluster(&self) -> Cluster {
        self.options.prefix.cluster
    }
}

/// The first request that failed.
fn first_failure(wanted: &[Wanted<'_>], ends: Vec<End>) -> Result<(), RemoteError> {
    for (wanted, end) in wanted.iter().zip(ends) {
        match end {
            Ok(Status::Ok) => {}
            Ok(status) => return Err(wanted.refused(status).into()),
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}
