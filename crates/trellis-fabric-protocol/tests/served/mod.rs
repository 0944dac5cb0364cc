//! A memory server with its memory, which carries out the effects and exchanges datagrams.
//!
//! It checks what must hold for every effect: an extent is inside the memory and inside one object, a new object is
//! zero where its creator wrote nothing, and what was published agrees with the server.

use trellis_base::Random;
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::memory_server::{
    Access, Admission, Client, Decision, Effect, Input, Lease, Leases, MemoryServer, PageEntry, SessionLimits,
    Settings, StagingLimits,
};
use trellis_fabric_protocol::wire::address::{
    Address, Arguments, Cluster, Destination, Host, Incarnation, PAGE_BYTES, Pointer, Source,
};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{
    Body, Checksums, Extent, HEADER_BYTES, Operation, Reply, Request, Rules, Status, TagKind, WRITE_BYTES_MAX, seal,
};

pub(crate) const SECOND: Nanoseconds = 1_000_000_000;
pub(crate) const HOME: Host = Host(7);

pub(crate) fn cluster() -> Cluster {
    Cluster::new(0x12_3456).expect("24 bits")
}

pub(crate) fn settings(pages: u64) -> Settings {
    Settings {
        cluster: cluster(),
        home: HOME,
        memory_bytes: pages * PAGE_BYTES,
        generation: 100,
        incarnation: 1,
        quota_bytes: pages * PAGE_BYTES,
        objects_max: 1 << 20,
        sessions: SessionLimits { sessions_max: 64, sessions_per_host_max: 8, silence_max: 30 * SECOND },
        staging: StagingLimits { slots: 8, slots_per_host_max: 4, silence_max: 5 * SECOND },
    }
}

pub(crate) fn any_bytes(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// Prints the seed if a test panics.
pub(crate) struct Seed {
    pub(crate) number: u64,
    program: &'static str,
}

impl Seed {
    pub(crate) fn of_this_run(program: &'static str) -> Seed {
        let seed = std::env::var("TRELLIS_MEMORY_SERVER_SEED");
        Seed { number: seed.map_or(20_261, |seed| seed.parse().expect("a number")), program }
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Seed { number, program } = self;
            eprintln!(
                "replay: TRELLIS_MEMORY_SERVER_SEED={number} cargo test -p trellis-fabric-protocol --test {program}"
            );
        }
    }
}

/// Refuses what a test chooses, and records what it is told.
#[derive(Default)]
pub(crate) struct ScriptedLeases {
    pub(crate) refuses: Option<Admission>,
    pub(crate) asked: Vec<Access>,
    pub(crate) forgotten: Vec<(u64, u64)>,
}

impl Leases for ScriptedLeases {
    fn admit(&mut self, _: Nanoseconds, access: &Access) -> Admission {
        self.asked.push(*access);
        self.refuses.unwrap_or(Admission::Admitted)
    }

    fn made_with_bytes(&mut self, _: u64, _: u64) {}

    fn forget(&mut self, first_page: u64, pages: u64) {
        self.forgotten.push((first_page, pages));
    }
}

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Served {
    pub(crate) server: MemoryServer,
    pub(crate) memory: Vec<u8>,
    pub(crate) slots: Vec<Vec<u8>>,
    pub(crate) published: Vec<PageEntry>,
    pub(crate) now: Nanoseconds,
    pub(crate) leases: ScriptedLeases,
    /// The requests that were handed to the lease server.
    pub(crate) handed: Vec<Lease>,
    /// Whether additions and exchanges wait until the test carries them out.
    pub(crate) is_slow: bool,
    pub(crate) waiting: Vec<Effect>,
}

pub(crate) fn rules() -> Rules<'static> {
    Rules { cluster: cluster(), least: TagKind::Checksum, tags: &Checksums }
}

impl Served {
    pub(crate) fn new(settings: Settings) -> Served {
        let server = MemoryServer::new(settings);
        let pages = settings.memory_bytes / PAGE_BYTES;
        let published = (0..pages).map(|page| server.page(page).expect("inside")).collect();
        Served {
            // The earlier content must not be visible to any client.
            memory: vec![0xee; settings.memory_bytes as usize],
            slots: vec![vec![0xdd; WRITE_BYTES_MAX as usize]; settings.staging.slots],
            published,
            server,
            now: 0,
            leases: ScriptedLeases::default(),
            handed: Vec::new(),
            is_slow: false,
            waiting: Vec::new(),
        }
    }

    /// A datagram arrives; returns what is sent.
    pub(crate) fn deliver(&mut self, datagram: &Datagram) -> Vec<Datagram> {
        match Request::decode(datagram.source, datagram.destination, &datagram.payload, &rules()) {
            Ok(request) => self.step(Input::Request(request), &datagram.payload),
            Err(refused) => {
                let reply = refused.reply(datagram.destination).expect("a client that is known");
                vec![sent(&reply, &[])]
            }
        }
    }

    pub(crate) fn step(&mut self, input: Input, payload: &[u8]) -> Vec<Datagram> {
        let mut effects = Vec::new();
        self.server.step(self.now, input, &mut self.leases, &mut effects);
        let is_create = matches!(input, Input::Request(request) if request.command() == Command::Create);
        let mut out = Vec::new();
        for effect in effects {
            self.carry_out(effect, payload, is_create, &mut out);
        }
        out
    }

    pub(crate) fn decide(&mut self, lease: Lease, decision: Decision) -> Vec<Datagram> {
        self.step(Input::Decided(lease, decision), &[])
    }

    fn carry_out(&mut self, effect: Effect, payload: &[u8], is_create: bool, out: &mut Vec<Datagram>) {
        match effect {
            Effect::Reply { reply, offset } => {
                let data = match reply.body.data_bytes() {
                    0 => Vec::new(),
                    bytes => self.memory[self.inside(offset, bytes.into())].to_vec(),
                };
                out.push(sent(&reply, &data));
            }
            Effect::Write { offset, at, bytes } => {
                let data = payload[at as usize..][..bytes as usize].to_vec();
                let range = self.inside(offset, bytes.into());
                self.memory[range].copy_from_slice(&data);
            }
            Effect::Stage { slot, position, at, bytes } => {
                let data = &payload[at as usize..][..bytes as usize];
                self.slots[slot as usize][position as usize..][..bytes as usize].copy_from_slice(data);
            }
            Effect::WriteStaged { slot, offset, bytes } => {
                let range = self.inside(offset, bytes.into());
                let data = self.slots[slot as usize][..bytes as usize].to_vec();
                self.memory[range].copy_from_slice(&data);
                // The content of the slot is no longer needed.
                self.slots[slot as usize].fill(0xdd);
            }
            // May extend behind the end of an object, in its last page.
            Effect::Zero { offset, bytes } => self.memory[offset as usize..][..bytes as usize].fill(0),
            Effect::FetchAdd { .. } | Effect::CompareSwap { .. } if self.is_slow => self.waiting.push(effect),
            Effect::FetchAdd { .. } | Effect::CompareSwap { .. } => out.extend(self.exchange(effect)),
            Effect::Publish { first_page, pages } => self.publish(first_page, pages, is_create),
            Effect::Lease(lease) => self.handed.push(lease),
        }
    }

    /// Carries out an addition or an exchange.
    pub(crate) fn exchange(&mut self, effect: Effect) -> Vec<Datagram> {
        let (request, offset) = match effect {
            Effect::FetchAdd { request, offset, .. } | Effect::CompareSwap { request, offset, .. } => (request, offset),
            other => panic!("{other:?} is neither"),
        };
        assert_eq!(offset % 8, 0);
        let range = self.inside(offset, 8);
        let before = u64::from_le_bytes(self.memory[range.clone()].try_into().expect("8 bytes"));
        let after = match effect {
            Effect::FetchAdd { addend, .. } => before.wrapping_add(addend),
            Effect::CompareSwap { expected, new, .. } if before == expected => new,
            _ => before,
        };
        self.memory[range].copy_from_slice(&after.to_le_bytes());
        self.step(Input::Before(request, before), &[])
    }

    /// The range of an effect, which must be inside one object.
    fn inside(&self, offset: u64, bytes: u64) -> std::ops::Range<usize> {
        let object = self.server.object(offset / PAGE_BYTES).expect("an object is there");
        let end = offset + bytes;
        assert!(offset >= object.offset() && end <= object.offset() + object.bytes, "{offset}..{end} of {object:?}");
        offset as usize..end as usize
    }

    fn publish(&mut self, first_page: u64, pages: u64, is_create: bool) {
        let end = first_page.saturating_add(pages).min(self.published.len() as u64);
        for page in first_page..end {
            let entry = self.server.page(page).expect("inside");
            let bytes = &self.memory[(page * PAGE_BYTES) as usize..][..PAGE_BYTES as usize];
            if self.published[page as usize].valid_bytes == 0 && entry.valid_bytes > 0 {
                let from = if is_create { 0 } else { usize::from(entry.valid_bytes) };
                assert!(bytes[from..].iter().all(|byte| *byte == 0), "page {page} shows what was there before");
            }
            self.published[page as usize] = entry;
        }
    }

    /// Checks that the published entries agree with the server.
    pub(crate) fn check_published(&self) {
        for (page, entry) in self.published.iter().enumerate() {
            assert_eq!(self.server.page(page as u64), Some(*entry), "page {page}");
        }
    }
}

/// Encodes an answer as a datagram.
fn sent(reply: &Reply, data: &[u8]) -> Datagram {
    let (mut header, small) = reply.encode();
    let (source, destination) = (reply.from, reply.to.encode());
    assert!(seal(&mut header, source, destination, [small.bytes(), data], &Checksums));
    Datagram { source, destination, payload: [&header[..], small.bytes(), data].concat() }
}

/// A client process; each call makes one request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) identity: u64,
    pub(crate) epoch: u64,
    pub(crate) next: u64,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) status: Status,
    pub(crate) epoch: u64,
    pub(crate) body: Body,
    pub(crate) data: Vec<u8>,
}

impl Caller {
    pub(crate) fn new(host: u16, random_number: u16) -> Caller {
        let client = Client { host: Host(host), incarnation: Incarnation::new(random_number) };
        Caller { client, identity: u64::from(host) << 16 | u64::from(random_number), epoch: 0, next: 1 }
    }

    /// Creates a caller with a session.
    pub(crate) fn with_session(served: &mut Served, host: u16, random_number: u16) -> Caller {
        let mut caller = Caller::new(host, random_number);
        let answer = caller.hello(served);
        assert_eq!(answer.status, Status::Ok);
        caller.epoch = answer.epoch;
        caller
    }

    pub(crate) fn hello(&mut self, served: &mut Served) -> Answered {
        let operation = Operation::Hello { identity: self.identity };
        self.call(served, at_home().request(Command::Hello, Arguments::NONE), operation, &[])
    }

    pub(crate) fn request(&mut self, destination: Destination, operation: Operation) -> Request {
        let request = self.next;
        self.next += 1;
        let Client { host, incarnation } = self.client;
        Request {
            source: Source { cluster: cluster(), host, incarnation, request },
            destination,
            tag_kind: TagKind::Checksum,
            is_once: destination.command.is_once(),
            is_release: false,
            epoch: self.epoch,
            operation,
        }
    }

    pub(crate) fn call(
        &mut self,
        served: &mut Served,
        destination: Destination,
        operation: Operation,
        data: &[u8],
    ) -> Answered {
        let request = self.request(destination, operation);
        let mut answers = served.deliver(&datagram(&request, data));
        assert_eq!(answers.len(), 1, "one answer to {request:?}");
        answered(&answers.remove(0))
    }

    pub(crate) fn read(&mut self, served: &mut Served, pointer: Pointer, bytes: u32) -> Answered {
        self.call(served, pointer.request(Command::Read, Arguments::NONE), Operation::Read { bytes }, &[])
    }

    pub(crate) fn write(&mut self, served: &mut Served, pointer: Pointer, data: &[u8]) -> Answered {
        let operation = Operation::Bytes(Extent::whole(data.len() as u32));
        self.call(served, pointer.request(Command::Write, Arguments::NONE), operation, data)
    }

    pub(crate) fn create(&mut self, served: &mut Served, bytes: u64) -> Answered {
        self.call(served, at_home().request(Command::Create, Arguments::NONE), Operation::Create { bytes }, &[])
    }

    pub(crate) fn object(&mut self, served: &mut Served, bytes: u64) -> Pointer {
        pointer_of(&self.create(served, bytes))
    }

    pub(crate) fn plain(&mut self, served: &mut Served, command: Command, pointer: Pointer) -> Answered {
        self.call(served, pointer.request(command, Arguments::NONE), Operation::Plain, &[])
    }

    pub(crate) fn add(&mut self, served: &mut Served, pointer: Pointer, addend: u64) -> Answered {
        self.call(served, pointer.request(Command::FetchAdd, Arguments::NONE), Operation::FetchAdd { addend }, &[])
    }
}

/// A server of 64 pages, and a client that it knows.
pub(crate) fn started() -> (Served, Caller) {
    let mut served = Served::new(settings(64));
    let caller = Caller::with_session(&mut served, 3, 1);
    (served, caller)
}

/// Whether an answer is this refusal.
pub(crate) fn refused(status: Status) -> impl Fn(&Answered) -> bool {
    move |answer| answer.status == status && answer.body == Body::Nothing
}

pub(crate) fn at_home() -> Pointer {
    Pointer::to_host(cluster(), HOME)
}

pub(crate) fn pointer_of(answer: &Answered) -> Pointer {
    match answer.body {
        Body::Object { pointer, .. } if answer.status == Status::Ok => pointer,
        _ => panic!("no object: {answer:?}"),
    }
}

/// Encodes a request as a datagram.
pub(crate) fn datagram(request: &Request, data: &[u8]) -> Datagram {
    let (mut header, small) = request.encode();
    let (source, destination) = (request.source.encode(), request.destination.encode());
    assert!(seal(&mut header, source, destination, [small.bytes(), data], &Checksums));
    Datagram { source, destination, payload: [&header[..], small.bytes(), data].concat() }
}

/// Decodes an answer.
pub(crate) fn answered(datagram: &Datagram) -> Answered {
    let reply = decoded(datagram);
    let data = match reply.body.data_bytes() {
        0 => Vec::new(),
        _ => datagram.payload[reply.body.data_at()..].to_vec(),
    };
    assert!(datagram.payload.len() >= HEADER_BYTES);
    Answered { status: reply.status, epoch: reply.epoch, body: reply.body, data }
}

pub(crate) fn decoded(datagram: &Datagram) -> Reply {
    Reply::decode(datagram.source, datagram.destination, &datagram.payload, &rules()).expect("an answer")
}

/// Encodes a write request in datagrams of at most `bytes_max` bytes.
pub(crate) fn parts_of(request: &Request, data: &[u8], bytes_max: usize) -> Vec<Datagram> {
    let parts = data.chunks(bytes_max).enumerate().map(|(index, chunk)| {
        let position = (index * bytes_max) as u32;
        let extent = match data.len() == chunk.len() {
            true => Extent::whole(chunk.len() as u32),
            false => Extent::part(position, chunk.len() as u32, data.len() as u32),
        };
        datagram(&Request { operation: Operation::Bytes(extent), ..*request }, chunk)
    });
    let mut parts: Vec<Datagram> = parts.collect();
    // The number of holes in a write is limited.
    parts.truncate(if parts.len() > 100 { 0 } else { parts.len() });
    if parts.is_empty() { parts_of(request, data, data.len().div_ceil(100)) } else { parts }
}
