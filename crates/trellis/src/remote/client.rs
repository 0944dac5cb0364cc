//! A client of memory servers: objects by their pointers, one call after the other or many at once.
//!
//! A [`Client`] is for one thread, and threads have one each: it has a socket and a number (*incarnation*) of its own, which
//! no other process of the host should draw; who did is told so by the server.
//!
//! Promised: what changes something by what was there (CREATE, DELETE, additions, comparisons) is done once, however often
//! its datagrams arrive; long reads and writes are cut into pieces that go at the same time, and their bytes are not one
//! step: who needs that uses a lease. A session that a server has forgotten (it was restarted, or this client was silent for
//! a minute) is opened again, but a call that may have been done is never repeated: its error says so.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use trellis_protocol::memory_server::WINDOW;
use trellis_protocol::wire::address::{
    Address, Arguments, Cluster, Destination, Host, HostPrefix, Incarnation, Pointer, Source,
};
use trellis_protocol::wire::command::Command;
use trellis_protocol::wire::datagram::{
    Body, Extent, HEADER_BYTES, Operation, Reply, Request, Rules, Status, TagKind, seal,
};
use trellis_transport::links::ipv6::{Ask, Endpoint, Exchange, Timing, Verdict};

use super::{Hardware, RemoteError, drawn};

/// How long one more try waits when a server says that it has no room now.
const BUSY_FOR: Duration = Duration::from_millis(2);

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
            port: trellis_protocol::wire::address::PORT,
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
    incarnation: Incarnation,
    identity: u64,
    /// The epoch of the session at each server.
    sessions: BTreeMap<Host, u64>,
}

/// A request before it has a number, and the bytes that go with it.
struct Wanted<'a> {
    pointer: Pointer,
    command: Command,
    arguments: Arguments,
    operation: Operation,
    epoch: u64,
    data: &'a [u8],
}

impl<'a> Wanted<'a> {
    fn plain(pointer: Pointer, command: Command, operation: Operation) -> Wanted<'a> {
        Wanted { pointer, command, arguments: Arguments::NONE, operation, epoch: 0, data: &[] }
    }
}

impl Client {
    /// Takes a socket and draws a number.
    ///
    /// # Errors
    ///
    /// When the system gives no socket, or `piece_bytes` is none of 64 to 32,768.
    pub fn open(options: ClientOptions) -> Result<Client, RemoteError> {
        if !(64..=1 << 15).contains(&options.piece_bytes) || !options.piece_bytes.is_power_of_two() {
            let bytes = options.piece_bytes;
            return Err(RemoteError::Setting(format!(
                "{bytes} bytes of memory in a datagram are not possible; give a power of two from 64 to 32768"
            )));
        }
        let endpoint = Endpoint::open(0).map_err(|error| RemoteError::Socket { port: 0, error })?;
        let identity = drawn()?;
        let incarnation = Incarnation::new(identity as u16);
        let HostPrefix { cluster, host } = options.prefix;
        let source = Source { cluster, host, incarnation, request: 0 }.encode();
        let first = source.0.first_chunk().expect("an address is longer than half of it");
        // Numbers begin somewhere: an answer to a process that had the same incarnation before is nobody's.
        let number = drawn()? >> 16;
        let exchange = Exchange::new(endpoint, *first, options.port, number, Timing::default());
        Ok(Client { options, exchange, incarnation, identity, sessions: BTreeMap::new() })
    }

    /// Makes an object of so many zero bytes at a server; [`Host::ANYWHERE`] lets the switch choose one.
    ///
    /// # Errors
    ///
    /// No answer; no memory, or the quota is used up.
    pub fn create(&mut self, home: Host, bytes: u64) -> Result<Pointer, RemoteError> {
        let home = self.choose(home)?;
        self.object(self.host_pointer(home), Command::Create, Operation::Create { bytes }, &[])
            .map(|(pointer, _)| pointer)
    }

    /// Makes an object of these bytes. More than fit one datagram are written after it was made.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub fn create_with(&mut self, home: Host, bytes: &[u8]) -> Result<Pointer, RemoteError> {
        let home = self.choose(home)?;
        if bytes.is_empty() || bytes.len() > self.options.piece_bytes as usize {
            let pointer = self.create(home, bytes.len() as u64)?;
            return self.write(pointer, bytes).map(|()| pointer);
        }
        let extent = Extent::whole(bytes.len() as u32);
        self.object(self.host_pointer(home), Command::CreateWrite, Operation::Bytes(extent), bytes)
            .map(|(pointer, _)| pointer)
    }

    /// Ends an object; the pointer means nothing any more.
    ///
    /// # Errors
    ///
    /// No answer; the pointer is not the object's first byte, or the object is gone.
    pub fn delete(&mut self, pointer: Pointer) -> Result<(), RemoteError> {
        self.once(pointer, Command::Delete, Operation::Plain, &[]).map(drop)
    }

    /// The first byte of the object that a pointer is into, and how many bytes it has.
    ///
    /// # Errors
    ///
    /// No answer; there is no such object.
    pub fn inquire(&mut self, pointer: Pointer) -> Result<(Pointer, u64), RemoteError> {
        self.object(pointer, Command::Inquire, Operation::Plain, &[])
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
        let piece = self.options.piece_bytes as usize;
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        for (number, (pointer, bytes)) in ranges.iter().enumerate() {
            for at in (0..bytes.len()).step_by(piece) {
                let length = piece.min(bytes.len() - at);
                let pointer = plus(*pointer, at as u64, bytes.len() as u64)?;
                let mut read = Wanted::plain(pointer, Command::Read, Operation::Read { bytes: length as u32 });
                if length.is_power_of_two() {
                    read.arguments =
                        Arguments::of_length(length.trailing_zeros() as u8).expect("a piece is not so long");
                }
                wanted.push(read);
                places.push((number, at..at + length));
            }
        }
        let mut put = |place: usize, reply: &Reply, data: &[u8]| {
            let (number, at) = &places[place];
            if reply.status != Status::Ok {
                return true;
            }
            let is_right = data.len() == at.len();
            if is_right {
                ranges[*number].1[at.clone()].copy_from_slice(data);
            }
            is_right
        };
        let statuses = self.ask(&wanted, &mut put)?;
        refused_first(&wanted, &statuses)
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
        let mut wanted = Vec::new();
        for (pointer, bytes) in ranges {
            for (number, data) in bytes.chunks(self.options.piece_bytes as usize).enumerate() {
                let at = number as u64 * u64::from(self.options.piece_bytes);
                let pointer = plus(*pointer, at, bytes.len() as u64)?;
                let operation = Operation::Bytes(Extent::whole(data.len() as u32));
                // Once: a datagram that is late must not undo what was written after it.
                let epoch = self.session(pointer.home())?;
                wanted.push(Wanted { data, epoch, ..Wanted::plain(pointer, Command::Write, operation) });
            }
        }
        // A server remembers so many at a time; see its sessions.
        for some in wanted.chunks(WINDOW as usize) {
            let statuses = self.ask(some, &mut |_, _, _| true)?;
            self.forget_fenced(some, &statuses);
            refused_first(some, &statuses)?;
        }
        Ok(())
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
    /// No answer; the server has too many clients, or another process drew the same number.
    pub fn hello(&mut self, home: Host) -> Result<Welcome, RemoteError> {
        let wanted =
            [Wanted::plain(self.host_pointer(home), Command::Hello, Operation::Hello { identity: self.identity })];
        let reply = self.ask_one(&wanted)?;
        match reply.body {
            Body::Welcome { quota_bytes, used_bytes, .. } => {
                self.sessions.insert(home, reply.epoch);
                Ok(Welcome { quota_bytes, used_bytes })
            }
            _ => Err(refused(&wanted[0], reply.status)),
        }
    }

    /// Which server a switch chooses for a request to anywhere.
    fn choose(&mut self, home: Host) -> Result<Host, RemoteError> {
        if home != Host::ANYWHERE {
            return Ok(home);
        }
        let wanted = [Wanted::plain(self.host_pointer(home), Command::Ping, Operation::Plain)];
        let reply = self.ask_one(&wanted)?;
        let chosen = match reply.body {
            Body::Moved(address) => Destination::decode(address)
                .map(|there| there.pointer)
                .or_else(|_| Pointer::decode(address))
                .map_or(Host::ANYWHERE, Pointer::home),
            Body::Present { host, .. } => host.home(),
            _ => Host::ANYWHERE,
        };
        if chosen.is_one() { Ok(chosen) } else { Err(refused(&wanted[0], reply.status)) }
    }

    fn value(&mut self, pointer: Pointer, command: Command, operation: Operation) -> Result<u64, RemoteError> {
        let reply = self.once(pointer, command, operation, &[])?;
        match reply.body {
            Body::Value(value) => Ok(value),
            _ => Err(RemoteError::Refused { command, pointer, status: reply.status }),
        }
    }

    fn object(
        &mut self,
        pointer: Pointer,
        command: Command,
        operation: Operation,
        data: &[u8],
    ) -> Result<(Pointer, u64), RemoteError> {
        let reply = self.once(pointer, command, operation, data)?;
        match reply.body {
            Body::Object { pointer, bytes } => Ok((pointer, bytes)),
            _ => Err(RemoteError::Refused { command, pointer, status: reply.status }),
        }
    }

    /// One request that is done once, in the session at its server.
    fn once(
        &mut self,
        pointer: Pointer,
        command: Command,
        operation: Operation,
        data: &[u8],
    ) -> Result<Reply, RemoteError> {
        let epoch = if command.is_once() { self.session(pointer.home())? } else { 0 };
        let wanted = [Wanted { data, epoch, ..Wanted::plain(pointer, command, operation) }];
        let reply = self.ask_one(&wanted)?;
        self.forget_fenced(&wanted, &[reply.status]);
        match reply.status {
            Status::Ok | Status::Mismatch => Ok(reply),
            status => Err(RemoteError::Refused { command, pointer, status }),
        }
    }

    /// The epoch of the session at a server; opens one where there is none.
    fn session(&mut self, home: Host) -> Result<u64, RemoteError> {
        if !self.sessions.contains_key(&home) {
            self.hello(home)?;
        }
        Ok(self.sessions[&home])
    }

    /// A server that knows this client no more gets to know it again with the next call.
    fn forget_fenced(&mut self, wanted: &[Wanted<'_>], statuses: &[Status]) {
        for (wanted, status) in wanted.iter().zip(statuses) {
            if *status == Status::Fenced {
                self.sessions.remove(&wanted.pointer.home());
            }
        }
    }

    fn ask_one(&mut self, wanted: &[Wanted<'_>; 1]) -> Result<Reply, RemoteError> {
        let mut only = None;
        self.ask(wanted, &mut |_, reply, _| {
            only = Some(*reply);
            true
        })?;
        Ok(only.expect("every question has an answer"))
    }

    /// Asks, again where a server has no room now. `take` looks at each other answer and its bytes of memory, and says
    /// whether it is one; the statuses are those of the answers.
    fn ask(
        &mut self,
        wanted: &[Wanted<'_>],
        take: &mut dyn FnMut(usize, &Reply, &[u8]) -> bool,
    ) -> Result<Vec<Status>, RemoteError> {
        let deadline = Instant::now() + self.options.deadline;
        let mut statuses = vec![Status::Busy; wanted.len()];
        loop {
            let open: Vec<usize> = (0..wanted.len()).filter(|&place| statuses[place] == Status::Busy).collect();
            let some: Vec<&Wanted<'_>> = open.iter().map(|&place| &wanted[place]).collect();
            self.ask_now(&some, deadline, &mut |number, reply, data| {
                let is_right = reply.status == Status::Busy || take(open[number], reply, data);
                if is_right {
                    statuses[open[number]] = reply.status;
                }
                is_right
            })?;
            if !statuses.contains(&Status::Busy) || Instant::now() + BUSY_FOR >= deadline {
                return Ok(statuses);
            }
            std::thread::sleep(BUSY_FOR);
        }
    }

    fn ask_now(
        &mut self,
        wanted: &[&Wanted<'_>],
        deadline: Instant,
        take: &mut dyn FnMut(usize, &Reply, &[u8]) -> bool,
    ) -> Result<(), RemoteError> {
        let HostPrefix { cluster, host } = self.options.prefix;
        let rules = Rules { cluster, least: TagKind::Checksum, tags: &Hardware };
        let first = self.exchange.numbers(wanted.len());
        let mut datagrams = Vec::with_capacity(wanted.len());
        for (number, wanted) in wanted.iter().enumerate() {
            let request = first.wrapping_add(number as u64);
            let source = Source { cluster, host, incarnation: self.incarnation, request };
            datagrams.push(Datagram::of(wanted, source));
        }
        let parts: Vec<[&[u8]; 3]> = datagrams.iter().zip(wanted).map(|(it, wanted)| it.parts(wanted.data)).collect();
        let asks: Vec<Ask<'_>> =
            datagrams.iter().zip(&parts).map(|(it, parts)| Ask { to: it.to.0, parts: &parts[..] }).collect();
        self.exchange.ask(first, &asks, deadline, &mut |number, arrived, payload| {
            let (source, destination) = (Address(arrived.source), Address(arrived.destination));
            let is_right = match Reply::decode(source, destination, payload, &rules) {
                Ok(reply) => {
                    let data = &payload[reply.body.data_at().min(payload.len())..];
                    let command = Destination::decode(reply.from).map(|from| from.command);
                    command == Ok(wanted[number].command) && take(number, &reply, data)
                }
                // Damaged, or not for this: as good as lost.
                Err(_) => false,
            };
            if is_right { Verdict::Accepted } else { Verdict::Ignored }
        })?;
        Ok(())
    }

    fn host_pointer(&self, home: Host) -> Pointer {
        Pointer::to_host(self.cluster(), home)
    }

    fn cluster(&self) -> Cluster {
        self.options.prefix.cluster
    }
}

/// A request as it is sent, all but its bytes of memory.
struct Datagram {
    to: Address,
    header: [u8; HEADER_BYTES],
    small: trellis_protocol::wire::datagram::request::Small,
    /// It is all in the address.
    is_bare: bool,
}

impl Datagram {
    fn of(wanted: &Wanted<'_>, source: Source) -> Datagram {
        let destination = wanted.pointer.request(wanted.command, wanted.arguments);
        let request = Request {
            source,
            destination,
            tag_kind: TagKind::Checksum,
            is_once: wanted.command.is_once() || wanted.command == Command::Write,
            is_release: false,
            epoch: wanted.epoch,
            operation: wanted.operation,
        };
        let (mut header, small) = request.encode();
        let to = destination.encode();
        seal(&mut header, source.encode(), to, [small.bytes(), wanted.data], &Hardware);
        let is_bare = wanted.operation == Operation::Read { bytes: wanted.arguments.bytes() };
        Datagram { to, header, small, is_bare }
    }

    fn parts<'a>(&'a self, data: &'a [u8]) -> [&'a [u8]; 3] {
        if self.is_bare { [&[], &[], &[]] } else { [&self.header, self.small.bytes(), data] }
    }
}

/// So many bytes on, of a range of so many in all.
fn plus(pointer: Pointer, at: u64, bytes: u64) -> Result<Pointer, RemoteError> {
    pointer.plus(at).ok_or(RemoteError::Range { pointer, bytes })
}

fn refused(wanted: &Wanted<'_>, status: Status) -> RemoteError {
    RemoteError::Refused { command: wanted.command, pointer: wanted.pointer, status }
}

/// The first that was not done.
fn refused_first(wanted: &[Wanted<'_>], statuses: &[Status]) -> Result<(), RemoteError> {
    match wanted.iter().zip(statuses).find(|(_, status)| **status != Status::Ok) {
        Some((wanted, status)) => Err(refused(wanted, *status)),
        None => Ok(()),
    }
}
