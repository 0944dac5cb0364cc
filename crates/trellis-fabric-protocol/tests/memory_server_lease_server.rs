//! A memory server that leases its pages, with clients, a reader and a client without leases, over a network that
//! loses, repeats and delays. After every step no page has two owners and no copy differs from its page. At the end
//! the memory has every commit that was acknowledged, and no other.

use std::collections::{BTreeMap, BTreeSet};

use trellis_base::Random;
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::client::{Client as Owner, Input as OwnerInput};
use trellis_fabric_protocol::lease::reader::{Input as ReaderInput, Reader};
use trellis_fabric_protocol::lease::{
    Ask, Effect as LeaseEffect, Message, Outcome, Party, RangeNumber, Status as LeaseStatus, Timing,
};
use trellis_fabric_protocol::lease::{epoch_of, is_of_no_lease};
use trellis_fabric_protocol::memory_server::{
    Client, Effect, Input, LeaseServer, MemoryServer, Order, PageEntry, Range, SessionLimits, Settings, StagingLimits,
};
use trellis_fabric_protocol::wire::address::{Arguments, Cluster, Host, Incarnation, PAGE_BYTES, Pointer, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, HEADER_BYTES, Operation, Reply, Request, Status, TagKind};

const MILLISECOND: Nanoseconds = 1_000_000;
const HOME: Host = Host(7);
const PAGES: u64 = 3;
const TERM: Nanoseconds = 100 * MILLISECOND;
const READER_NUMBERS: u64 = 1 << 62;

fn timing() -> Timing {
    Timing::new(TERM, TERM, 2 * MILLISECOND, 1000)
}

fn cluster() -> Cluster {
    Cluster::new(0x12_3456).expect("24 bits")
}

/// A packet of the network.
#[derive(Clone, Debug)]
enum Packet {
    Request(Request, Vec<u8>),
    Reply(Reply, Vec<u8>),
    Notice { to: Client, command: Command, page: u64, epoch: u64 },
}

/// A server with its memory.
struct Home {
    server: MemoryServer,
    lease_server: LeaseServer,
    memory: Vec<u8>,
    slots: Vec<Vec<u8>>,
    published: Vec<PageEntry>,
    out: Vec<Packet>,
}

impl Home {
    fn new(now: Nanoseconds) -> Home {
        let settings = Settings {
            cluster: cluster(),
            home: HOME,
            memory_bytes: PAGES * PAGE_BYTES,
            generation: 100,
            incarnation: 1,
            quota_bytes: PAGES * PAGE_BYTES,
            objects_max: 16,
            sessions: SessionLimits { sessions_max: 8, sessions_per_host_max: 8, silence_max: u64::MAX },
            staging: StagingLimits { slots: 8, slots_per_host_max: 4, silence_max: u64::MAX },
        };
        let range = Range { cluster: cluster(), of: RangeNumber::of(HOME), me: HOME, pages: PAGES };
        Home {
            server: MemoryServer::new(settings),
            lease_server: LeaseServer::alone(range, timing(), 9, now, None),
            memory: vec![0; (PAGES * PAGE_BYTES) as usize],
            slots: vec![vec![0; 1 << 16]; 8],
            published: vec![PageEntry { generation: 0, valid_bytes: 0, flags: 0, laps: 0 }; PAGES as usize],
            out: Vec::new(),
        }
    }

    fn take(&mut self, now: Nanoseconds, request: Request, data: &[u8]) {
        let payload = [&[0; HEADER_BYTES][..], data].concat();
        if request.command() == Command::Invalidated {
            let page = request.destination.pointer.page();
            self.lease_server.invalidated(now, Client::of(&request.source), page, request.epoch);
        } else {
            self.decide(now, Input::Request(request), &payload);
        }
        self.obey(now, &payload);
    }

    fn tick(&mut self, now: Nanoseconds) {
        if now >= self.lease_server.alarm() {
            self.lease_server.tick(now);
            self.obey(now, &[]);
        }
    }

    fn obey(&mut self, now: Nanoseconds, payload: &[u8]) {
        while let Some(order) = self.lease_server.next_order() {
            match order {
                Order::Server(input) => self.decide(now, input, payload),
                Order::Notice { to, page, command, epoch } => {
                    self.out.push(Packet::Notice { to, command, page, epoch })
                }
                other => panic!("a server that is alone has nothing to say to others: {other:?}"),
            }
        }
    }

    fn decide(&mut self, now: Nanoseconds, input: Input, payload: &[u8]) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut effects = Vec::new();
            self.server.step(now, input, &mut self.lease_server, &mut effects);
            for effect in effects {
                self.carry_out(now, effect, payload, &mut inputs);
            }
        }
    }

    fn carry_out(&mut self, now: Nanoseconds, effect: Effect, payload: &[u8], inputs: &mut Vec<Input>) {
        let range = |offset: u64, bytes: u32| offset as usize..offset as usize + bytes as usize;
        match effect {
            Effect::Reply { reply, offset } => {
                let data = self.memory[range(offset, reply.body.data_bytes())].to_vec();
                let page = (offset / PAGE_BYTES) as usize;
                let gives = matches!(reply.body, Body::Leased { .. }) && command_of(&reply) != Command::Renew;
                let is_guarded = self.published[page].flags & PageEntry::GUARDED != 0;
                assert!(!gives || is_guarded, "page {page} was granted and not guarded before");
                self.out.push(Packet::Reply(reply, data));
            }
            Effect::Write { offset, at, bytes } => {
                self.memory[range(offset, bytes)].copy_from_slice(&payload[range(at.into(), bytes)]);
            }
            Effect::Stage { slot, position, at, bytes } => {
                self.slots[slot as usize][range(position.into(), bytes)]
                    .copy_from_slice(&payload[range(at.into(), bytes)]);
            }
            Effect::WriteStaged { slot, offset, bytes } => {
                let staged = self.slots[slot as usize][..bytes as usize].to_vec();
                self.memory[range(offset, bytes)].copy_from_slice(&staged);
            }
            Effect::Zero { offset, bytes } => self.memory[range(offset, bytes as u32)].fill(0),
            Effect::FetchAdd { request, offset, addend } => {
                let before = word(&self.memory[range(offset, 8)], 0);
                self.memory[range(offset, 8)].copy_from_slice(&(before + addend).to_le_bytes());
                inputs.push(Input::Before(request, before));
            }
            Effect::CompareSwap { .. } => panic!("nobody asks for that"),
            Effect::Publish { first_page, pages } => {
                for page in first_page..first_page + pages {
                    self.published[page as usize] = self.server.page(page).expect("it is inside");
                }
            }
            Effect::Lease(lease) => self.lease_server.asked(now, lease),
        }
    }

    fn page(&self, page: u64) -> &[u8] {
        &self.memory[(page * PAGE_BYTES) as usize..((page + 1) * PAGE_BYTES) as usize]
    }
}

fn command_of(reply: &Reply) -> Command {
    trellis_fabric_protocol::wire::address::Destination::decode(reply.from).expect("it was a request").command
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"))
}

/// A process that takes leases and copies.
struct Process {
    client: Client,
    owner: Owner,
    reader: Reader,
    /// The last bytes of each page, and the epoch as of which they are the page's, if they are.
    bytes: BTreeMap<u64, (Vec<u8>, u64)>,
    copies: BTreeMap<u64, Vec<u8>>,
    owned: BTreeMap<u64, Vec<u8>>,
    committing: BTreeSet<u64>,
    wanted: BTreeSet<u64>,
    recalled: BTreeSet<u64>,
    /// Until then it neither receives nor does anything.
    asleep_until: Nanoseconds,
    counted: u64,
    fenced: u64,
    /// The fenced commits of which the home did not say that they never counted: it forgets two terms after a
    /// client's last commit.
    in_doubt: u64,
    known: u64,
    out: Vec<Packet>,
}

impl Process {
    fn new(number: u16) -> Process {
        let client = Client { host: Host(10 + number), incarnation: Incarnation::new(number) };
        let me = trellis_fabric_protocol::memory_server::lease_server::party_of(client);
        let reader = Reader { requests: READER_NUMBERS, ..Reader::new(me, Party::of(HOME), timing(), HOME) };
        Process {
            client,
            owner: Owner::new(me, Party::of(HOME), timing(), HOME),
            reader,
            bytes: BTreeMap::new(),
            copies: BTreeMap::new(),
            owned: BTreeMap::new(),
            committing: BTreeSet::new(),
            wanted: BTreeSet::new(),
            recalled: BTreeSet::new(),
            asleep_until: 0,
            counted: 0,
            fenced: 0,
            in_doubt: 0,
            known: 0,
            out: Vec::new(),
        }
    }

    fn own(&mut self, now: Nanoseconds, input: OwnerInput, came: Option<(&[u8], u64)>) {
        let mut effects = Vec::new();
        self.owner.step(now, input, &mut effects);
        for effect in effects {
            match effect {
                LeaseEffect::Send { message: Message::Request { page, request, ask }, .. } => {
                    self.ask(page, request, ask)
                }
                LeaseEffect::Done(page, Outcome::Owned) => {
                    let (bytes, _) = came.expect("it comes with an answer");
                    let bytes = if bytes.is_empty() { self.bytes[&page].0.clone() } else { bytes.to_vec() };
                    self.known += u64::from(came.is_some_and(|(bytes, _)| bytes.is_empty()));
                    assert!(self.owner.change(now, page));
                    self.bytes.remove(&page);
                    self.wanted.remove(&page);
                    self.recalled.remove(&page);
                    self.owned.insert(page, bytes);
                }
                LeaseEffect::Done(page, outcome @ (Outcome::Committed | Outcome::Fenced)) => {
                    self.committing.remove(&page);
                    if outcome == Outcome::Committed {
                        self.counted += 1;
                        let epoch = came.expect("it comes with an answer").1;
                        // A copy with later commits of others may have arrived before this answer.
                        if self.bytes.get(&page).is_none_or(|(_, known)| *known < epoch) {
                            self.bytes.insert(page, (self.owned[&page].clone(), epoch));
                        }
                    } else {
                        self.fenced += 1;
                        self.in_doubt += u64::from(came.is_some_and(|(_, epoch)| !is_of_no_lease(epoch)));
                    }
                    if !self.owner.owns(now, page) {
                        self.owned.remove(&page);
                    }
                }
                LeaseEffect::Lost(page) => {
                    // The changes may still count.
                    if !self.owner.may_commit(page) {
                        self.owned.remove(&page);
                    }
                    self.bytes.remove(&page);
                }
                LeaseEffect::Recalled(page) => drop(self.recalled.insert(page)),
                _ => {}
            }
        }
    }

    fn read(&mut self, now: Nanoseconds, input: ReaderInput, came: Option<(&[u8], u64)>) {
        let mut effects = Vec::new();
        self.reader.step(now, input, &mut effects);
        for effect in effects {
            match effect {
                LeaseEffect::Send { message: Message::Request { page, request, ask }, .. } => {
                    self.ask(page, request, ask)
                }
                LeaseEffect::Send { message: Message::Invalidated { page, epoch }, .. } => {
                    self.send(page, 0, Command::Invalidated, epoch, false, &[]);
                }
                LeaseEffect::Put(page) => {
                    let (bytes, epoch) = came.expect("it comes with an answer");
                    let bytes = if bytes.is_empty() { self.bytes[&page].0.clone() } else { bytes.to_vec() };
                    self.bytes.insert(page, (bytes.clone(), epoch));
                    self.copies.insert(page, bytes);
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, page: u64, request: u64, ask: Ask) {
        let known = self.bytes.get(&page).map_or(0, |(_, epoch)| *epoch);
        let (command, epoch, release) = match ask {
            Ask::Update => (Command::Update, known, false),
            Ask::Copy => (Command::Clone, known, false),
            Ask::Renew(epoch) => (Command::Renew, epoch, false),
            Ask::Release(epoch) => (Command::Release, epoch, false),
            Ask::Commit { epoch, release } => (Command::Commit, epoch, release),
            Ask::Read => return,
        };
        let data = if command == Command::Commit { self.owned[&page].clone() } else { Vec::new() };
        self.send(page, request, command, epoch, release, &data);
    }

    fn send(&mut self, page: u64, request: u64, command: Command, epoch: u64, is_release: bool, data: &[u8]) {
        let request = request_of(self.client, request, page * PAGE_BYTES, command, epoch, data);
        self.out.push(Packet::Request(Request { is_release, ..request }, data.to_vec()));
    }

    fn hear(&mut self, now: Nanoseconds, packet: &Packet) {
        let from = Party::of(HOME);
        match packet {
            Packet::Request(..) => panic!("it is for the server"),
            &Packet::Notice { command: Command::Recall, page, epoch, .. } => {
                self.own(now, OwnerInput::Message(from, Message::Recall { page, epoch }), None);
            }
            &Packet::Notice { page, epoch, .. } => {
                self.read(now, ReaderInput::Message(from, Message::Invalidate { page, epoch }), None);
            }
            Packet::Reply(reply, data) => {
                let destination =
                    trellis_fabric_protocol::wire::address::Destination::decode(reply.from).expect("a request");
                let (page, epoch) = (destination.pointer.page(), reply.epoch);
                let status = match reply.status {
                    Status::Ok => LeaseStatus::Ok,
                    Status::Fenced => LeaseStatus::Fenced,
                    Status::Busy => LeaseStatus::Busy,
                    other => panic!("{other:?} to {destination:?}"),
                };
                // The client had the bytes when it asked, and has changed them since: they count as lost.
                let is_known = matches!(reply.body, Body::Leased { bytes: 0, .. });
                if is_known && destination.command != Command::Renew && !self.bytes.contains_key(&page) {
                    return;
                }
                let message = |ask| Message::Reply { page, request: reply.to.request, ask, status, epoch };
                let came = Some((&data[..], epoch));
                match destination.command {
                    Command::Clone => self.read(now, ReaderInput::Message(from, message(Ask::Copy)), came),
                    Command::Update => self.own(now, OwnerInput::Message(from, message(Ask::Update)), came),
                    Command::Renew => self.own(now, OwnerInput::Message(from, message(Ask::Renew(0))), came),
                    Command::Commit => {
                        let ask = Ask::Commit { epoch: 0, release: false };
                        self.own(now, OwnerInput::Message(from, message(ask)), came);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Takes a step of its own accord.
    fn act(&mut self, now: Nanoseconds, random: &mut Random) {
        self.own(now, OwnerInput::Tick, None);
        self.read(now, ReaderInput::Tick, None);
        let page = random.below(PAGES);
        let is_late = !self.owner.owns(now, page) && self.owned.contains_key(&page) && self.owner.may_commit(page);
        let is_free = !self.committing.contains(&page) && (self.owner.owns(now, page) || is_late);
        match random.below(8) {
            0 | 1 if !self.owner.pages.contains_key(&page) && self.wanted.insert(page) => {
                self.own(now, OwnerInput::Update(page), None);
            }
            2..=4 if is_free => {
                let release = is_late || self.recalled.contains(&page) || random.once_in(3);
                let bytes = self.owned.get_mut(&page).expect("it is owned");
                let next = word(bytes, 0) + 1;
                bytes[..8].copy_from_slice(&next.to_le_bytes());
                self.committing.insert(page);
                self.own(now, OwnerInput::Commit { page, release }, None);
            }
            5 if is_free && random.once_in(4) => {
                self.owned.remove(&page);
                self.own(now, OwnerInput::Release(page), None);
            }
            6 if random.once_in(4) => self.read(now, ReaderInput::Follow(page), None),
            7 if random.once_in(4) => self.read(now, ReaderInput::Leave(page), None),
            _ => {}
        }
    }
}

fn request_of(client: Client, request: u64, offset: u64, command: Command, epoch: u64, data: &[u8]) -> Request {
    let Client { host, incarnation } = client;
    let pointer = Pointer::new(cluster(), HOME, 100, offset).expect("an address");
    Request {
        source: Source { cluster: cluster(), host, incarnation, request },
        destination: pointer.request(command, Arguments::NONE),
        tag_kind: TagKind::Checksum,
        is_once: command.is_once(),
        is_release: false,
        epoch,
        operation: match command {
            Command::Commit | Command::Write => Operation::Bytes(Extent::whole(data.len() as u32)),
            _ => Operation::Plain,
        },
    }
}

/// A client without leases: it adds to the second word of pages, one addition after the other.
struct Plain {
    client: Client,
    session: u64,
    number: u64,
    page: u64,
    asked_at: Option<Nanoseconds>,
    added: u64,
    refused: u64,
}

impl Plain {
    fn addition(&self) -> Packet {
        let offset = self.page * PAGE_BYTES + 8;
        let request = request_of(self.client, self.number, offset, Command::FetchAdd, self.session, &[]);
        Packet::Request(Request { operation: Operation::FetchAdd { addend: 1 }, ..request }, Vec::new())
    }

    fn hear(&mut self, reply: &Reply) {
        if reply.to.request == self.number && self.asked_at.is_some() {
            match reply.status {
                Status::Ok => self.added += 1,
                Status::Busy => self.refused += 1,
                other => panic!("{other:?}"),
            }
            self.asked_at = None;
        }
    }
}

struct World {
    now: Nanoseconds,
    random: Random,
    home: Home,
    processes: Vec<Process>,
    plain: Plain,
    /// The packets under way, and when they arrive.
    network: Vec<(Nanoseconds, Packet)>,
    is_bad: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let plain = Client { host: Host(3), incarnation: Incarnation::new(3) };
        let mut world = World {
            now: 0,
            random: Random::new(seed),
            home: Home::new(0),
            processes: (0..3).map(Process::new).collect(),
            plain: Plain { client: plain, session: 0, number: 10, page: 0, asked_at: None, added: 0, refused: 0 },
            network: Vec::new(),
            is_bad: true,
        };
        let hello = request_of(plain, 1, 0, Command::Hello, 0, &[]);
        let at_zero = Pointer::to_host(cluster(), HOME).request(Command::Hello, Arguments::NONE);
        let hello = Request { destination: at_zero, operation: Operation::Hello { identity: 1 }, ..hello };
        world.home.take(0, hello, &[]);
        match &world.home.out[..] {
            [Packet::Reply(reply, _)] => world.plain.session = reply.epoch,
            other => panic!("{other:?}"),
        }
        let at_zero = Pointer::to_host(cluster(), HOME).request(Command::Create, Arguments::NONE);
        let create = request_of(plain, 2, 0, Command::Create, world.plain.session, &[]);
        let operation = Operation::Create { bytes: PAGES * PAGE_BYTES };
        world.home.take(0, Request { destination: at_zero, operation, ..create }, &[]);
        world.home.out.clear();
        world
    }

    /// Puts outgoing packets into the network.
    fn post(&mut self) {
        let mut out = std::mem::take(&mut self.home.out);
        self.processes.iter_mut().for_each(|process| out.append(&mut process.out));
        for packet in out {
            if self.is_bad && self.random.once_in(10) {
                continue;
            }
            for _ in 0..if self.is_bad && self.random.once_in(10) { 2 } else { 1 } {
                let slow = if self.is_bad && self.random.once_in(20) { 20 * MILLISECOND } else { MILLISECOND };
                let at = self.now + 1000 + self.random.below(slow);
                self.network.push((at, packet.clone()));
            }
        }
    }

    fn step(&mut self) {
        self.now += self.random.below(MILLISECOND / 4);
        let now = self.now;
        let (arrived, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.network).into_iter().partition(|it| it.0 <= now);
        self.network = later;
        for (_, packet) in arrived {
            self.deliver(&packet);
            self.check();
        }
        self.home.tick(now);
        for number in 0..self.processes.len() {
            let process = &mut self.processes[number];
            if process.asleep_until > now {
                continue;
            }
            if self.is_bad && self.random.once_in(500) {
                process.asleep_until = now + self.random.below(2 * TERM);
                continue;
            }
            if self.is_bad {
                process.act(now, &mut self.random);
            } else {
                // The process ends.
                process.own(now, OwnerInput::Tick, None);
                let is_over = |page: &u64| !process.committing.contains(page);
                let owned: Vec<u64> = process.owned.keys().copied().filter(is_over).collect();
                for page in owned {
                    process.owned.remove(&page);
                    process.own(now, OwnerInput::Release(page), None);
                }
            }
        }
        if self.plain.asked_at.is_none_or(|at| now > at + 3 * MILLISECOND)
            && (self.is_bad || self.plain.asked_at.is_some())
        {
            if self.plain.asked_at.is_none() {
                (self.plain.number, self.plain.page) = (self.plain.number + 1, self.random.below(PAGES));
            }
            self.plain.asked_at = Some(now);
            self.home.out.push(self.plain.addition());
        }
        self.post();
        self.check();
    }

    fn deliver(&mut self, packet: &Packet) {
        let to = match packet {
            Packet::Request(request, data) => return self.home.take(self.now, *request, data),
            Packet::Reply(reply, _) => Client::of(&reply.to),
            Packet::Notice { to, .. } => *to,
        };
        if let (Packet::Reply(reply, _), true) = (packet, to == self.plain.client) {
            return self.plain.hear(reply);
        }
        let now = self.now;
        if let Some(process) = self.processes.iter_mut().find(|it| it.client == to && it.asleep_until <= now) {
            process.hear(now, packet);
        }
    }

    /// Checks what must hold at every instant.
    fn check(&self) {
        for page in 0..PAGES {
            let owners = self.processes.iter().filter(|it| it.owner.owns(self.now, page)).count();
            let readers: Vec<&Process> = self.processes.iter().filter(|it| it.reader.has(self.now, page)).collect();
            assert!(owners <= 1, "page {page} has {owners} owners");
            assert!(owners == 0 || readers.is_empty(), "page {page} has an owner and copies");
            for reader in readers {
                let (copy, is) = (&reader.copies[&page], self.home.page(page));
                let home = self.home.lease_server.server().home.as_ref().and_then(|home| home.leased.get(&page));
                assert!(
                    copy == is,
                    "a copy of page {page} at {:?} has words {} and {}, the page {} and {}; {:?}; home: {home:?}",
                    reader.client,
                    word(copy, 0),
                    word(copy, 1),
                    word(is, 0),
                    word(is, 1),
                    reader.reader.pages[&page],
                );
            }
        }
    }
}

#[test]
fn nothing_that_counted_is_lost_and_nothing_else_is_there() {
    let first = std::env::var("TRELLIS_LEASE_SERVER_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let seeds = if std::env::var("TRELLIS_LEASE_SERVER_SEED").is_ok() { 1 } else { 40 };
    let (mut counted, mut fenced, mut known, mut added, mut refused) = (0, 0, 0, 0, 0);
    for seed in first..first + seeds {
        println!(
            "replay: TRELLIS_LEASE_SERVER_SEED={seed} cargo test -p trellis-fabric-protocol --test memory_server_lease_server"
        );
        let mut world = World::new(seed);
        (0..12_000).for_each(|_| world.step());
        world.is_bad = false;
        (0..8_000).for_each(|_| world.step());
        let sum = |at| (0..PAGES).map(|page| word(world.home.page(page), at)).sum::<u64>();
        assert!(world.processes.iter().all(|it| it.owner.pages.is_empty()), "everybody came to an end");
        let of_all = |what: fn(&Process) -> u64| world.processes.iter().map(what).sum::<u64>();
        let (said, in_doubt) = (of_all(|it| it.counted), of_all(|it| it.in_doubt));
        let may_be = said..=said + in_doubt;
        assert!(may_be.contains(&sum(0)), "seed {seed}: {} commits in the memory, {said} said to count", sum(0));
        assert_eq!(sum(1), world.plain.added, "seed {seed}: additions");
        (counted, fenced, known) = (counted + sum(0), fenced + of_all(|it| it.fenced), known + of_all(|it| it.known));
        (added, refused) = (added + world.plain.added, refused + world.plain.refused);
    }
    println!("{counted} commits, {fenced} fenced, {known} grants without bytes, {added} additions, {refused} refused");
    assert!(seeds == 1 || [counted, fenced, known, added, refused].into_iter().all(|count| count > 3));
}

fn scripted() -> (Home, Vec<Client>) {
    let world = World::new(1);
    (world.home, (0..3).map(|number| Client { host: Host(20 + number), incarnation: Incarnation::new(1) }).collect())
}

/// The server's answers to one request: statuses with epochs, in order.
fn say(home: &mut Home, now: Nanoseconds, request: Request, data: &[u8]) -> Vec<(Client, Status, u64)> {
    home.take(now, request, data);
    let said = |packet: Packet| match packet {
        Packet::Reply(reply, _) => Some((Client::of(&reply.to), reply.status, reply.epoch)),
        _ => None,
    };
    std::mem::take(&mut home.out).into_iter().filter_map(said).collect()
}

#[test]
fn who_was_busy_is_granted_when_the_page_is_free_and_hears_it_to_its_request() {
    let (mut home, clients) = scripted();
    let ask = |client: usize, number, command, epoch| request_of(clients[client], number, 0, command, epoch, b"");
    let granted = say(&mut home, 1, ask(0, 1, Command::Update, 0), &[])[0];
    assert_eq!(granted.1, Status::Ok);
    let busy = say(&mut home, 2, ask(1, 1, Command::Update, 0), &[]);
    assert_eq!(busy, [(clients[1], Status::Busy, epoch_of(9))], "it has a place in the queue");
    let commit = Request { is_release: true, ..request_of(clients[0], 2, 0, Command::Commit, granted.2, b"after") };
    let said = say(&mut home, 3, commit, b"after");
    assert_eq!(
        said.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(),
        [(clients[0], Status::Ok), (clients[1], Status::Ok)]
    );
    assert!(said[1].2 > said[0].2 && said[0].2 > granted.2, "epochs rise");
    assert_eq!(&home.page(0)[..5], b"after");
    // The commit is repeated after the next owner's: it counted, and is not written again.
    let theirs = Request { is_release: true, ..request_of(clients[1], 2, 0, Command::Commit, said[1].2, b"later") };
    assert_eq!(say(&mut home, 4, theirs, b"later")[0].1, Status::Ok);
    let again = Request { source: Source { request: 3, ..commit.source }, ..commit };
    assert_eq!(say(&mut home, 5, again, b"after"), [(clients[0], Status::Ok, granted.2)]);
    assert_eq!(&home.page(0)[..5], b"later");
    // A commit that never counted is fenced.
    let wrong = request_of(clients[2], 1, 0, Command::Commit, granted.2, b"wrong");
    assert_eq!(say(&mut home, 6, wrong, b"wrong")[0].1, Status::Fenced);
    assert_eq!(&home.page(0)[..5], b"later");
}

#[test]
fn a_page_is_guarded_while_it_is_used_and_for_a_term_after() {
    let (mut home, clients) = scripted();
    let is_guarded = |home: &Home| home.published[1].flags & PageEntry::GUARDED != 0;
    assert!(!is_guarded(&home));
    let update = request_of(clients[0], 1, PAGE_BYTES, Command::Update, 0, b"");
    let epoch = say(&mut home, 1, update, &[])[0].2;
    assert!(is_guarded(&home));
    let release = request_of(clients[0], 2, PAGE_BYTES, Command::Release, epoch, b"");
    assert_eq!(say(&mut home, 2, release, &[])[0].1, Status::Ok, "a switch learns of it");
    assert!(is_guarded(&home));
    home.tick(2 * TERM);
    assert!(!is_guarded(&home));
    // Changes without a lease are noticed if an answer might leave out bytes.
    let mut clone = request_of(clients[0], 3, PAGE_BYTES, Command::Clone, 0, b"");
    let epoch = say(&mut home, 3 * TERM, clone, &[])[0].2;
    let left_out = |home: &mut Home, now, clone| {
        home.take(now, clone, &[]);
        match home.out.pop() {
            Some(Packet::Reply(reply, data)) if reply.status == Status::Ok => data.is_empty(),
            other => panic!("{other:?}"),
        }
    };
    (clone.source.request, clone.epoch) = (4, epoch);
    assert!(left_out(&mut home, 3 * TERM + 1, clone));
    let write = request_of(clients[1], 1, PAGE_BYTES, Command::Write, 0, b"x");
    let write = Request { is_once: false, ..write };
    assert_eq!(say(&mut home, 3 * TERM + 2, write, b"x")[0].1, Status::Busy, "a copy is out");
    assert_eq!(say(&mut home, 5 * TERM, write, b"x")[0].1, Status::Ok, "its term is over");
    clone.source.request = 5;
    assert!(!left_out(&mut home, 5 * TERM + 1, clone), "it was written since");
}
