//! A memory server in the kernel and one in a process give the same answers to everything, and share one memory.
//!
//! A lab has one server of each kind. Every request is sent to both, with the same bytes except for what differs
//! between two servers: home, generation, epochs of sessions and leases. The answers of both are compared, including
//! silence: every request is followed by a PING, which the process answers, and what comes before that answer belongs
//! to the request.

#![cfg(feature = "bpf")]

#[path = "../src/serve/in_kernel.rs"]
#[allow(unreachable_pub, reason = "a part of the command")]
mod in_kernel;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis::remote::{Client, ClientOptions, HostPrefix, PORT, Pointer, Server, ServerOptions, Stop};
use trellis_base::Random;
use trellis_fabric_protocol::wire::address::{Address, Destination};
use trellis_fabric_protocol::wire::command::Command as Asked;
use trellis_fabric_protocol::wire::datagram::{Checksums, HEADER_BYTES, Reply, Rules, Status, TagKind, Tags};
use trellis_switch::lab::{Host, Lab, Plan, space};
use trellis_switch::memory::{Outcomes, Watch};
use trellis_switch::switches::Attach;
use trellis_testing::{Need, skip};
use trellis_transport::links::ipv6::{Endpoint, Way};

const MEMORY_BYTES: u64 = 48 << 20;
/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of the objects in the requests. The fourth is the one whose pages are leased.
const OBJECTS: [u64; 5] = [4096, 3 * 4096, 100, 200_000, 17 << 20];

fn is_possible(test: &str) -> bool {
    let may = space::is_root();
    if !may {
        skip(test, Need::Root, "a program in the kernel takes root");
    }
    may
}

fn lab(name: &str, mtu_bytes: u32) -> Lab {
    let plan = Plan {
        name: format!("{name}-{}", std::process::id()),
        clients: 2,
        servers: 2,
        switch: "bpf".to_owned(),
        mtu_bytes,
        redirects_max: 512,
        attach: Attach::Auto,
    };
    Lab::up(&plan).unwrap_or_else(|error| panic!("{error}"))
}

fn host<'a>(lab: &'a Lab, name: &str) -> &'a Host {
    lab.host(name).unwrap_or_else(|error| panic!("{error}"))
}

fn prefix(host: &Host) -> HostPrefix {
    host.plan().prefix.to_string().parse().expect("a prefix")
}

/// A server in a host of the lab.
struct Running {
    prefix: HostPrefix,
    watch: Option<Watch>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(host: &Host, is_in_kernel: bool) -> Running {
        let prefix = prefix(host);
        let options =
            ServerOptions { lease_term: Duration::from_secs(3600), ..ServerOptions::new(prefix, MEMORY_BYTES) };
        let opened = host.run(|| {
            if !is_in_kernel {
                return (Server::open(options), None);
            }
            let memory = in_kernel::open(prefix, MEMORY_BYTES, PORT, None).unwrap_or_else(|error| panic!("{error}"));
            let watch = memory.0.watch();
            (Server::with_memory(options, Box::new(memory)), Some(watch))
        });
        let (server, watch) = opened.expect("there are threads");
        let mut server = server.unwrap_or_else(|error| panic!("{error}"));
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || server.serve(&stops).unwrap_or_else(|error| panic!("{error}")));
        Running { prefix, watch, stop, thread: Some(thread) }
    }

    /// A server that is run elsewhere.
    fn elsewhere(prefix: HostPrefix) -> Running {
        Running { prefix, watch: None, stop: Stop::default(), thread: None }
    }

    fn outcomes(&self) -> Outcomes {
        let watch = self.watch.as_ref().expect("it is in the kernel");
        watch.outcomes().unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn client(host: &Host) -> Client {
    let options = ClientOptions { deadline: TIMEOUT, ..ClientOptions::new(prefix(host)) };
    host.run(|| Client::open(options)).expect("there are threads").unwrap_or_else(|error| panic!("{error}"))
}

/// A request, without what differs between two servers.
#[derive(Clone, Debug)]
struct Wanted {
    command: u8,
    arguments: u8,
    /// Which object, or none: then generation and offset are used as they are.
    object: Option<usize>,
    offset: u64,
    generation: u16,
    /// The index of a byte of the address, and the bit that is flipped in it.
    spoilt_destination: Option<(usize, u8)>,
    spoilt_source: Option<(usize, u8)>,
    header: Option<Header>,
    body: Vec<u8>,
    /// The number of bytes that are cut off from the end, and of those appended to it.
    cut: usize,
    more: usize,
}

#[derive(Clone, Debug)]
struct Header {
    version: u8,
    status: u8,
    flags: u16,
    length: i64,
    request: u64,
    epoch: u64,
    /// XORed to the right tag.
    tag: u64,
}

fn wanted(random: &mut Random) -> Wanted {
    let command = random.one_of(&[1, 1, 1, 1, 0x10, 0x10, 0x10, 0x11, 0x12, 0x23, 0x30, 0x02, 0x77]);
    // Leases are of one object, so that the kernel may answer for the others.
    let object = match command {
        0x30 => Some(3),
        _ => (!random.once_in(12)).then(|| random.index(OBJECTS.len())),
    };
    let size = object.map_or(MEMORY_BYTES, |object| OBJECTS[object]);
    let offset = match random.below(6) {
        0 | 1 => random.below(size / 4096 + 1) * 4096,
        2 => random.below(size + 5000),
        3 => size.saturating_sub(random.below(5000)),
        // Where one chunk of the kernel's ends and the next one begins.
        4 => (16 << 20) - random.below(9000),
        _ => random.below(size),
    };
    let is_read = command == 1;
    let arguments = if is_read { random.one_of(&[0, 3, 6, 8, 10, 11, 12, 12, 12, 12, 13, 15]) } else { 0 };
    let flags = [0x10, 0x10, 0x20, 0x80, 0x03];
    let arguments = arguments | if random.once_in(8) { random.one_of(&flags) } else { 0 };
    let has_header = !is_read || random.once_in(3);
    let body = match command {
        1 if random.once_in(2) => {
            (random.one_of(&[0_u32, 1, 2, 3, 4, 5, 64, 1000, 4095, 4096, 4097, 8192, 40_000])).to_le_bytes().to_vec()
        }
        0x10 => {
            let bytes = random.one_of(&[0, 1, 3, 8, 64, 100, 1000, 4095, 4096, 4096, 4096, 4097, 6000]);
            (0..bytes).map(|_| random.draw() as u8).collect()
        }
        0x11 => random.draw().to_le_bytes().to_vec(),
        0x12 => vec![0; 16],
        _ => Vec::new(),
    };
    let header = has_header.then(|| Header {
        version: if random.once_in(30) { 2 } else { 1 },
        status: u8::from(random.once_in(40)),
        flags: if random.once_in(6) { random.one_of(&[0, 2, 3, 5, 9, 0xd, 0x11, 0x21, 0x41, 0x81]) } else { 1 },
        length: if random.once_in(25) { random.below(9) as i64 - 4 } else { 0 },
        request: u64::from(random.once_in(25)),
        epoch: random.below(3),
        tag: if random.once_in(20) { 1 << random.below(64) } else { 0 },
    });
    let spoil = |random: &mut Random| Some((random.index(8), 1 << random.below(8)));
    Wanted {
        command,
        arguments,
        object,
        offset,
        generation: if random.once_in(10) { 1 + random.below(3) as u16 } else { 0 },
        spoilt_destination: if random.once_in(25) { spoil(random) } else { None },
        spoilt_source: if random.once_in(25) { spoil(random) } else { None },
        header,
        body,
        cut: if random.once_in(25) { random.index(40) } else { 0 },
        more: if random.once_in(25) { random.index(20) } else { 0 },
    }
}

impl Wanted {
    /// The command that the server sees.
    fn command(&self) -> u8 {
        self.command ^ self.spoilt_destination.filter(|(at, _)| *at == 6).map_or(0, |(_, bit)| bit)
    }

    /// The page for whose lease it asks, if it does.
    fn page_asked_for(&self) -> Option<(Option<usize>, u64)> {
        (self.command() == Asked::Update.byte()).then_some((self.object, self.offset / 4096))
    }
}

/// One of the two servers, as the requests see it.
struct Side {
    running: Running,
    objects: Vec<Pointer>,
}

/// The client that sends the requests.
struct Asker {
    endpoint: Endpoint,
    prefix: HostPrefix,
    number: u64,
    room: Vec<u8>,
}

impl Asker {
    fn source(&self, number: u64) -> Address {
        let mut source = Pointer::to_host(self.prefix.cluster, self.prefix.host).encode();
        source.0[6..8].copy_from_slice(&[0x9a, 0xbc]);
        source.0[8..].copy_from_slice(&number.to_be_bytes());
        source
    }

    /// Sends the request, and returns the answer to it.
    fn ask(&mut self, wanted: &Wanted, side: &Side) -> Option<Vec<u8>> {
        self.number += 2;
        let (number, ping) = (self.number, self.number + 1);
        let mut destination = match wanted.object {
            Some(object) => {
                let first = side.objects[object];
                let generation = first.generation().wrapping_add(wanted.generation);
                let offset = first.offset() + wanted.offset;
                Pointer::new(first.cluster(), first.home(), generation, offset).expect("an address").encode()
            }
            None => {
                let generation = side.objects[0].generation().wrapping_add(wanted.generation);
                let HostPrefix { cluster, host } = side.running.prefix;
                Pointer::new(cluster, host, generation, wanted.offset).expect("an address").encode()
            }
        };
        destination.0[6] = wanted.command;
        destination.0[7] = wanted.arguments;
        let mut source = self.source(number);
        for (address, spoilt) in [(&mut destination, wanted.spoilt_destination), (&mut source, wanted.spoilt_source)] {
            // The bytes of the host are not changed: otherwise the switch would not deliver it.
            if let Some((at, bit)) = spoilt.filter(|(at, _)| *at >= 6) {
                address.0[at] ^= bit;
            }
        }
        let payload = payload(wanted, source, destination, number);
        let to = Pointer::to_host(self.prefix.cluster, side.running.prefix.host).encode();
        self.send(source, destination, &payload);
        let mut pinged = to;
        pinged.0[6] = Asked::Ping.byte();
        let from = self.source(ping);
        let plain = Header { version: 1, status: 0, flags: 1, length: 0, request: 0, epoch: 0, tag: 0 };
        self.send(from, pinged, &sealed(&plain, &[], from, pinged, ping));
        self.receive(source, from)
    }

    fn send(&self, from: Address, to: Address, payload: &[u8]) {
        let way = Way { from: from.0, to: to.0, port: PORT };
        assert!(self.endpoint.send(&way, &[payload]).expect("it can be sent"), "there is room");
    }

    /// The answer for `source` that came before the answer for `ping`.
    fn receive(&mut self, source: Address, ping: Address) -> Option<Vec<u8>> {
        let deadline = Instant::now() + TIMEOUT;
        let mut answer = None;
        loop {
            match self.endpoint.receive(&mut self.room).expect("the socket works") {
                Some(arrived) if arrived.destination == ping.0 => return answer,
                Some(arrived) if arrived.destination == source.0 => {
                    let payload = self.room[..arrived.bytes].to_vec();
                    assert!(answer.replace(checked(payload, arrived.source, source)).is_none(), "one answer");
                }
                Some(_) => {}
                None => self.endpoint.wait(deadline.saturating_duration_since(Instant::now())),
            }
            assert!(Instant::now() < deadline, "the PING was not answered");
        }
    }
}

/// Checks the tag of an answer, and returns the answer without it.
fn checked(mut payload: Vec<u8>, from: [u8; 16], to: Address) -> Vec<u8> {
    let (from, to) = (Address(from), to);
    if let Ok(asked) = Destination::decode(from) {
        let rules = Rules { cluster: asked.pointer.cluster(), least: TagKind::Checksum, tags: &Checksums };
        Reply::decode(from, to, &payload, &rules).unwrap_or_else(|why| panic!("{why:?}: {payload:?}"));
    }
    payload[24..32].fill(0);
    payload
}

fn payload(wanted: &Wanted, from: Address, to: Address, number: u64) -> Vec<u8> {
    let mut payload = match &wanted.header {
        Some(header) => sealed(header, &wanted.body, from, to, number),
        None => Vec::new(),
    };
    payload.truncate(payload.len().saturating_sub(wanted.cut));
    payload.resize(payload.len() + wanted.more, 7);
    payload
}

fn sealed(header: &Header, body: &[u8], from: Address, to: Address, number: u64) -> Vec<u8> {
    let mut bytes = vec![header.version, header.status];
    bytes.extend_from_slice(&header.flags.to_le_bytes());
    bytes.extend_from_slice(&((body.len() as i64 + header.length) as u32).to_le_bytes());
    bytes.extend_from_slice(&(number ^ header.request).to_le_bytes());
    bytes.extend_from_slice(&header.epoch.to_le_bytes());
    let tag = Checksums.checksum(&[&from.0, &to.0, &bytes, &[0; 8], body]);
    let tag = if header.flags & 3 == 0 { 0 } else { u64::from(tag) } ^ header.tag;
    bytes.extend_from_slice(&tag.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Removes what may differ between two servers that were set up the same: addresses, generations, and epochs of
/// leases, which begin with the second of the server's start. Request numbers also differ.
fn without_differences(wanted: &Wanted, answer: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut answer = answer?;
    let is_moved = answer[1] == Status::Moved as u8;
    let command = wanted.command();
    if command >= 0x30 || command == Asked::Commit.byte() || is_moved {
        answer[16..24].fill(0);
    }
    if (is_moved || command == 0x23) && answer.len() >= HEADER_BYTES + 16 {
        answer[HEADER_BYTES..HEADER_BYTES + 16].fill(0);
    }
    answer[8..16].fill(0);
    Some(answer)
}

fn sides(lab: &Lab) -> [Side; 2] {
    ["s1", "s2"].map(|name| {
        let running = Running::start(host(lab, name), name == "s1");
        let mut client = client(host(lab, "c2"));
        let make = |bytes: &u64| {
            let pointer = client.create(running.prefix.host, *bytes).unwrap_or_else(|error| panic!("{error}"));
            let text: Vec<u8> = (0..(*bytes).min(9_000)).map(|at| (at * 7 + bytes) as u8).collect();
            client.write(pointer, &text).unwrap_or_else(|error| panic!("{error}"));
            pointer
        };
        let objects = OBJECTS.iter().map(make).collect();
        Side { running, objects }
    })
}

fn both_answer_the_same(lab: &Lab, rounds: u64) -> Outcomes {
    let given = std::env::var("TRELLIS_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
    });
    println!("replay: TRELLIS_TEST_SEED={seed} cargo test -p trellis-cli --features bpf --test in_kernel");
    let mut random = Random::new(seed);
    let sides = sides(lab);
    let from = host(lab, "c1");
    let endpoint = from.run(|| Endpoint::open(0)).expect("there are threads").expect("a socket");
    let mut asker = Asker { endpoint, prefix: prefix(from), number: 1 << 32, room: vec![0; 1 << 16] };
    let mut asked_for = HashSet::new();
    for round in 0..rounds {
        let wanted = wanted(&mut random);
        // A client that asks again for what it has gives it back, and waits behind the access that was refused
        // meanwhile; but that keeps its turn for 200 ms only, which pass between two requests on a loaded machine.
        if wanted.page_asked_for().is_some_and(|page| !asked_for.insert(page)) {
            continue;
        }
        let [first, second] = [0, 1].map(|side| without_differences(&wanted, asker.ask(&wanted, &sides[side])));
        assert!(first == second, "seed {seed}, round {round}: {wanted:?}\nkernel:  {first:?}\nprocess: {second:?}");
    }
    // The content after all of these is the same, except for the object of the leases, which cannot be read without
    // one.
    let mut reader = client(host(lab, "c2"));
    for (object, bytes) in OBJECTS.iter().enumerate().filter(|(number, bytes)| *number != 3 && **bytes < 1 << 20) {
        let read = |client: &mut Client, side: &Side| {
            let mut room = vec![0; *bytes as usize];
            client.read(side.objects[object], &mut room).ok().map(|()| room)
        };
        assert_eq!(read(&mut reader, &sides[0]), read(&mut reader, &sides[1]), "seed {seed}, object {object}");
    }
    sides[0].running.outcomes()
}

#[test]
fn the_kernel_answers_as_the_process_does() {
    if !is_possible("the_kernel_answers_as_the_process_does") {
        return;
    }
    let outcomes = both_answer_the_same(&lab("same", 9000), 6_000);
    println!("{outcomes:?}");
    let Outcomes { reads, writes, not_asked, unusual, unsound, not_admitted, guarded, too_long, .. } = outcomes;
    for (what, count) in [
        ("reads", reads),
        ("writes", writes),
        ("not asked", not_asked),
        ("unusual", unusual),
        ("unsound", unsound),
        ("not admitted", not_admitted),
        ("guarded", guarded),
    ] {
        assert!(count > 0, "none is {what}: {outcomes:?}");
    }
    assert_eq!(too_long, 0);
}

#[test]
fn what_the_network_takes_only_in_parts_is_left_to_the_process() {
    if !is_possible("what_the_network_takes_only_in_parts_is_left_to_the_process") {
        return;
    }
    let outcomes = both_answer_the_same(&lab("parts", 1500), 3_000);
    println!("{outcomes:?}");
    assert!(outcomes.too_long > 0 && outcomes.reads > 0 && outcomes.writes > 0, "{outcomes:?}");
}

/// Starts the command in a host; returns its first line.
fn serve(host: &Host, more: &[&str]) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["serve", "--memory", "16MiB", "--prefix", &host.plan().prefix.to_string()]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = host.run(|| command.spawn()).expect("there are threads").expect("it can be started");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it is text");
    (child, line)
}

#[test]
fn a_server_that_is_killed_leaves_nothing_in_the_kernel() {
    if !is_possible("a_server_that_is_killed_leaves_nothing_in_the_kernel") {
        return;
    }
    let lab = lab("killed", 9000);
    let server = host(&lab, "s1");
    let mut before: Option<Pointer> = None;
    for round in 1..=3_u8 {
        let (mut child, line) = serve(server, &["--in-kernel", "on"]);
        assert!(line.ends_with("/48 at port 5000, READ and WRITE in the kernel at e0\n"), "{line}");
        let mut client = client(host(&lab, "c1"));
        let mut bytes = [0; 64];
        // A program of a previous server process would answer this from its memory.
        if let Some(pointer) = before {
            let error = client.read(pointer, &mut bytes).expect_err("that memory is gone");
            assert!(error.to_string().contains("refused"), "{error}");
        }
        let pointer = client.create(prefix(server).host, 4096).unwrap_or_else(|error| panic!("{error}"));
        client.write(pointer, &[round; 64]).unwrap_or_else(|error| panic!("{error}"));
        client.read(pointer, &mut bytes).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(bytes, [round; 64]);
        before = Some(pointer);
        child.kill().expect("it runs");
        child.wait().expect("it ended");
    }
}

#[test]
fn who_answers_is_said_and_what_is_missing() {
    if !is_possible("who_answers_is_said_and_what_is_missing") {
        return;
    }
    let lab = lab("said", 9000);
    let server = host(&lab, "s1");
    let end = |mut child: Child| {
        child.kill().expect("it runs");
        child.wait().expect("it ended");
    };
    let (child, line) = serve(server, &["--in-kernel", "off"]);
    assert!(line.ends_with("/48 at port 5000, all by this process (as printed)\n"), "{line}");
    end(child);
    let (child, line) = serve(server, &["--device", "none0"]);
    let why = "all by this process (cannot put the program of the memory server at none0: ";
    assert!(line.contains(why), "{line}");
    end(child);
    let (child, line) = serve(server, &["--device", "none0", "--in-kernel", "on"]);
    let output = child.wait_with_output().expect("it ended");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((line.as_str(), output.status.code()), ("", Some(71)), "{printed}");
    assert!(printed.contains("cannot put the program of the memory server at none0: "), "{printed}");
    assert!(printed.contains("; answering in the kernel takes root, Linux 6.6 and an interface"), "{printed}");
}

#[test]
fn what_the_process_adds_and_the_kernel_writes_is_all_there() {
    if !is_possible("what_the_process_adds_and_the_kernel_writes_is_all_there") {
        return;
    }
    let lab = lab("adds", 9000);
    let server = Running::start(host(&lab, "s1"), true);
    let mut client = client(host(&lab, "c1"));
    let pointer = client.create(server.prefix.host, 4096).unwrap_or_else(|error| panic!("{error}"));
    const ADDITIONS: u64 = 1_000;
    std::thread::scope(|scope| {
        // Whole pages except for the first word: half of one must never be read.
        let writer = scope.spawn(|| {
            let from = host(&lab, "c2");
            let endpoint = from.run(|| Endpoint::open(0)).expect("there are threads").expect("a socket");
            let mut asker = Asker { endpoint, prefix: prefix(from), number: 1 << 32, room: vec![0; 1 << 16] };
            let side = Side { running: Running::elsewhere(server.prefix), objects: vec![pointer] };
            let header = Header { version: 1, status: 0, flags: 1, length: 0, request: 0, epoch: 0, tag: 0 };
            let ask = |command: u8, header: Option<Header>, body: Vec<u8>| Wanted {
                command,
                arguments: if command == 1 { 12 } else { 0 },
                object: Some(0),
                offset: if command == 1 { 0 } else { 8 },
                generation: 0,
                spoilt_destination: None,
                spoilt_source: None,
                header,
                body,
                cut: 0,
                more: 0,
            };
            let mut before = 0;
            for round in 0..1_000_u32 {
                let wanted = ask(0x10, Some(header.clone()), vec![round as u8; 4088]);
                let written = asker.ask(&wanted, &side).expect("it is answered");
                assert_eq!(written[1], Status::Ok as u8);
                let read = asker.ask(&ask(1, None, Vec::new()), &side).expect("it is answered");
                let sum = u64::from_le_bytes(read[32..40].try_into().expect("eight bytes"));
                assert!(read[40..].iter().all(|byte| *byte == round as u8), "round {round}");
                assert!((before..=ADDITIONS).contains(&sum), "{before} {sum}");
                before = sum;
            }
        });
        for count in 0..ADDITIONS {
            let added = client.fetch_add(pointer, 1).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(added, count);
        }
        writer.join().expect("it ended well");
    });
    let outcomes = server.outcomes();
    assert!(outcomes.writes > 0 && outcomes.reads > 0, "{outcomes:?}");
}
