//! A client of memory servers: objects by their pointers, one call after the other or many at once.
//!
//! A [`Client`] is for one thread, and threads have one each: it has a socket and a number (*incarnation*) of its own, and
//! draws another one when a server says that somebody else of its host has it.
//!
//! Promised: what changes something by what was there (CREATE, DELETE, additions, comparisons) is done once, however often
//! its datagrams arrive; long reads and writes are cut into pieces that go at the same time, and their bytes are not one
//! step, but for [`Client::write_whole`]: who needs more uses a lease. A session that a server has forgotten, or that another
//! home never knew, is opened again, but a call that may have been done is never repeated: its error says so (`FENCED`). CREATE is:
//! at worst there is an object that nobody knows. A server that would soon end a session because this client was silent is
//! greeted first. A range that has backups, a page that somebody has, a range that moves, or whose home starts
//! again or is replaced: a call waits for that until its deadline, or takes a lease itself, and its caller sees nothing of it.

mod asking;
mod batch;
mod by_lease;
mod by_page;
mod sessions;
#[cfg(test)]
mod tests;
mod waiting;

use std::time::Duration;

use trellis_base::Random;
use trellis_fabric_protocol::wire::address::{Arguments, Cluster, Host, HostPrefix, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Operation, Reply, Status, WRITE_BYTES_MAX};
use trellis_transport::links::ipv6::{Endpoint, Exchange, Timing};

use super::{RemoteError, drawn};
use asking::{End, Wanted, pieces};
pub use batch::{Call, Outcome};
use sessions::Sessions;
use waiting::Homes;

/// Who a client is, and how it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The addresses of its host.
    pub prefix: HostPrefix,
    /// Where servers listen.
    pub port: u16,
    /// The longest a call may take.
    pub deadline: Duration,
    /// So many bytes of memory go into one datagram; 4,096 where the network takes packets of 9,000 bytes. A packet that is
    /// longer than the network takes is cut by the kernel, and lost when one of its parts is.
    pub piece_bytes: u32,
}

impl ClientOptions {
    /// For a host: port 5000, 10 s, pages in one datagram.
    pub fn new(prefix: HostPrefix) -> ClientOptions {
        ClientOptions {
            prefix,
            port: trellis_fabric_protocol::wire::address::PORT,
            deadline: Duration::from_secs(10),
            piece_bytes: 4096,
        }
    }
}

/// What a server says of itself and of this client's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// What the host may have of the server's memory, in bytes.
    pub quota_bytes: u64,
    /// What it has, in bytes of whole pages.
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
    /// Takes a socket and draws a number.
    ///
    /// # Errors
    ///
    /// When the system gives no socket, or `piece_bytes` is none of 64 to 32,768.
    pub fn open(options: ClientOptions) -> Result<Client, RemoteError> {
        Client::open_as(options, drawn()?, Random::new(drawn()?))
    }

    /// As a process that drew this, and will draw those.
    fn open_as(options: ClientOptions, identity: u64, draws: Random) -> Result<Client, RemoteError> {
        if !(64..=1 << 15).contains(&options.piece_bytes) || !options.piece_bytes.is_power_of_two() {
            let bytes = options.piece_bytes;
            return Err(RemoteError::Setting(format!(
                "{bytes} bytes of memory in a datagram are not possible; give a power of two from 64 to 32768"
            )));
        }
        let endpoint = Endpoint::open(0).map_err(|error| RemoteError::Socket { port: 0, error })?;
        let sessions = Sessions::new(identity, draws);
        // Numbers begin somewhere: an answer to a process that had the same incarnation before is nobody's.
        let number = drawn()? >> 16;
        let source = sessions.source(options.prefix);
        let exchange = Exchange::new(endpoint, source, options.port, number, Timing::default());
        Ok(Client { options, exchange, sessions, homes: Homes::default() })
    }

    /// Makes an object of so many zero bytes at a server; [`Host::ANYWHERE`] lets the switch choose one.
    ///
    /// # Errors
    ///
    /// No answer; no memory, or the quota is used up.
    pub fn create(&mut self, home: Host, bytes: u64) -> Result<Pointer, RemoteError> {
        let home = self.choose(home)?;
        let epoch = self.session(home)?;
        let create = Wanted::plain(self.host_pointer(home), Command::Create, Operation::Create { bytes });
        self.object(Wanted { epoch, ..create }).map(|(pointer, _)| pointer)
    }

    /// The same for an object that goes with this client's session at its server: when nothing was heard of it for as long as
    /// the server waits (a minute, unless it was told). Until then [`Self::hello`] now and then keeps it.
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

    /// Makes an object of these bytes, in one step if they are at most 64 KiB. More are written after it was made, and if that
    /// fails there is an object that nobody knows.
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

    /// Ends an object; the pointer means nothing any more.
    ///
    /// # Errors
    ///
    /// No answer; the pointer is not the object's first byte, or the object is gone.
    pub fn delete(&mut self, pointer: Pointer) -> Result<(), RemoteError> {
        let epoch = self.session(pointer.home())?;
        self.ask_one(&Wanted { epoch, ..Wanted::plain(pointer, Command::Delete, Operation::Plain) }).map(drop)
    }

    /// The first byte of the object that a pointer is into, and how many bytes it has.
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
    /// No answer; they are not all of one object, or it is gone. What was read is then in no order.
    pub fn read(&mut self, pointer: Pointer, bytes: &mut [u8]) -> Result<(), RemoteError> {
        self.read_many(&mut [(pointer, bytes)])
    }

    /// Reads several ranges at the same time.
    ///
    /// # Errors
    ///
    /// Of the first that cannot be read.
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
    /// No answer; they are not all of one object, or it is gone. Some of them may have been written then.
    pub fn write(&mut self, pointer: Pointer, bytes: &[u8]) -> Result<(), RemoteError> {
        self.write_many(&[(pointer, bytes)])
    }

    /// Writes several ranges at the same time; where they overlap, in no order.
    ///
    /// # Errors
    ///
    /// Of the first that cannot be written.
    pub fn write_many(&mut self, ranges: &[(Pointer, &[u8])]) -> Result<(), RemoteError> {
        let mut homes: Vec<Host> = ranges.iter().map(|(pointer, _)| pointer.home()).collect();
        homes.dedup();
        if let Some((_, failure)) = self.meet(&homes).pop_first() {
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

    /// Writes at most 64 KiB in one step, in however many datagrams: who reads them in one datagram finds all of them or none.
    ///
    /// Where the range has backups, or some of its pages another home, one step is what lies in one page: a change is a
    /// commit there, and that is of one page, for backups too. A home that died between two commits would leave half.
    ///
    /// # Errors
    ///
    /// No answer; they are too many, in several pages where one step is one page ([`RemoteError::SeveralPages`]; nothing was
    /// written), not all of one object, or it is gone. After no answer they may have been written, all of them.
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

    /// Adds to eight bytes, little-endian, at a multiple of eight; what was there before. What overflows is lost.
    ///
    /// # Errors
    ///
    /// No answer; they are not all of one object, or it is gone.
    pub fn fetch_add(&mut self, pointer: Pointer, addend: u64) -> Result<u64, RemoteError> {
        self.value(pointer, Command::FetchAdd, Operation::FetchAdd { addend })
    }

    /// Puts `new` where `expected` is, and says what was there: `expected` if it was done.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch_add`].
    pub fn compare_swap(&mut self, pointer: Pointer, expected: u64, new: u64) -> Result<u64, RemoteError> {
        self.value(pointer, Command::CompareSwap, Operation::CompareSwap { expected, new })
    }

    /// What a server lets this client's host have.
    ///
    /// # Errors
    ///
    /// No answer; the server has too many clients, or other processes have every number that was drawn.
    pub fn hello(&mut self, home: Host) -> Result<Welcome, RemoteError> {
        self.greet(home).map_err(RemoteError::from)
    }

    /// Which server a switch chooses for a request to anywhere.
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

/// The first that was not done.
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
