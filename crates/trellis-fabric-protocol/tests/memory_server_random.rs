//! A memory server compared with a model: random requests, one after the other.

#[allow(dead_code, reason = "every test program uses a part of it")]
mod served;

use std::collections::{BTreeMap, VecDeque};

use served::{
    Answered, Caller, HOME, Seed, Served, answered, any_bytes, at_home, cluster, datagram, parts_of, settings,
};
use trellis_base::Random;
use trellis_fabric_protocol::memory_server::{Decision, MemoryServer, Settings};
use trellis_fabric_protocol::wire::address::{Arguments, Host, PAGE_BYTES, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, Operation, Request, Status};

const PAGES: u64 = 96;
const QUOTA_PAGES: u64 = 60;

struct Object {
    pointer: Pointer,
    bytes: Vec<u8>,
    maker: usize,
}

/// The simplest implementation of what a server must do.
struct Model {
    served: Served,
    settings: Settings,
    incarnation: u16,
    callers: Vec<Caller>,
    live: Vec<Object>,
    gone: VecDeque<Pointer>,
    random: Random,
    refused: BTreeMap<Status, u64>,
}

impl Model {
    fn new(seed: u64) -> Model {
        let settings = Settings { quota_bytes: QUOTA_PAGES * PAGE_BYTES, ..settings(PAGES) };
        let mut served = Served::new(settings);
        let callers = (1..=3).map(|host| Caller::with_session(&mut served, host, 1)).collect();
        let (live, gone, refused) = (Vec::new(), VecDeque::new(), BTreeMap::new());
        Model { served, settings, incarnation: 1, callers, live, gone, random: Random::new(seed), refused }
    }

    fn act(&mut self) {
        self.served.now += self.random.below(1000);
        match self.random.below(16) {
            0..=2 => self.create(),
            3 | 4 => self.delete(),
            5..=7 => self.write(),
            8 => self.exchange(),
            9 => self.stale(),
            10 => self.inquire(),
            _ => self.read(),
        }
    }

    fn caller(&mut self) -> usize {
        self.random.index(self.callers.len())
    }

    fn size(&mut self) -> u64 {
        match self.random.below(20) {
            0 => self.random.below(40 * PAGE_BYTES),
            1..=3 => self.random.below(10) * PAGE_BYTES,
            4..=10 => self.random.below(3 * PAGE_BYTES),
            _ => self.random.below(200),
        }
    }

    fn create(&mut self) {
        let (maker, bytes) = (self.caller(), self.size());
        let with_bytes = bytes > 0 && bytes <= 8192 && self.random.once_in(2);
        let data = if with_bytes { any_bytes(&mut self.random, bytes as usize) } else { vec![0; bytes as usize] };
        let caller = &mut self.callers[maker];
        let answer = if with_bytes {
            let destination = at_home().request(Command::CreateWrite, Arguments::NONE);
            caller.call(&mut self.served, destination, Operation::Bytes(Extent::whole(bytes as u32)), &data)
        } else {
            caller.create(&mut self.served, bytes)
        };
        let pages = bytes.div_ceil(PAGE_BYTES);
        let used: u64 = self.live.iter().filter(|it| it.maker == maker).map(pages_of).sum();
        let expected = if bytes == 0 {
            Status::Malformed
        } else if pages > PAGES {
            Status::NoMemory
        } else if used + pages > QUOTA_PAGES {
            Status::Quota
        } else if self.longest_gap() < pages {
            Status::NoMemory
        } else {
            Status::Ok
        };
        assert_eq!(answer.status, expected, "{bytes} bytes");
        if answer.status != Status::Ok {
            *self.refused.entry(answer.status).or_default() += 1;
            return;
        }
        let Body::Object { pointer, bytes: size } = answer.body else { panic!("{answer:?}") };
        assert_eq!((size, pointer.offset() % PAGE_BYTES), (bytes, 0));
        let range = |it: &Object| (it.pointer.page(), it.pointer.page() + pages_of(it));
        let object = Object { pointer, bytes: data, maker };
        let (first, end) = range(&object);
        assert!(end <= PAGES && self.live.iter().map(range).all(|other| other.1 <= first || end <= other.0));
        self.live.push(object);
    }

    fn longest_gap(&self) -> u64 {
        let mut taken = vec![false; PAGES as usize];
        for object in &self.live {
            let first = object.pointer.page() as usize;
            taken[first..first + pages_of(object) as usize].fill(true);
        }
        taken.split(|is_taken| *is_taken).map(|gap| gap.len() as u64).max().unwrap_or(0)
    }

    fn delete(&mut self) {
        let caller = self.caller();
        let Some(at) = self.some() else { return };
        let object = self.live.swap_remove(at);
        let answer = self.callers[caller].plain(&mut self.served, Command::Delete, object.pointer);
        assert_eq!(answer.status, Status::Ok);
        self.gone.push_back(object.pointer);
        if self.gone.len() > 200 {
            self.gone.pop_front();
        }
    }

    fn some(&mut self) -> Option<usize> {
        (!self.live.is_empty()).then(|| self.random.index(self.live.len()))
    }

    /// A range near an object, which may begin before its end and end behind it.
    fn place(&mut self, bytes_max: u64) -> Option<(usize, u64, u64, Pointer)> {
        let at = self.some()?;
        let size = self.live[at].bytes.len() as u64;
        let start =
            if self.random.once_in(10) { size - self.random.below(size.min(9)) } else { self.random.below(size) };
        let bytes = 1 + self.random.below(bytes_max);
        Some((at, start, bytes, self.live[at].pointer.plus(start)?))
    }

    /// Checks the status of an access; returns whether it is inside the object. The model has no pages.
    fn judge(&mut self, at: usize, start: u64, bytes: u64, answer: &Answered) -> bool {
        let is_inside = start + bytes <= self.live[at].bytes.len() as u64;
        // The page behind an object that ends with its page may belong to another object: then the pointer has that
        // object's generation or is stale, and the access concerns that object.
        let is_behind = start == self.live[at].bytes.len() as u64;
        if is_behind {
            return false;
        }
        let expected = if is_inside { Status::Ok } else { Status::Bounds };
        assert_eq!(answer.status, expected, "{start} and {bytes} of {}", self.live[at].bytes.len());
        *self.refused.entry(answer.status).or_default() += 1;
        is_inside
    }

    fn read(&mut self) {
        let caller = self.caller();
        let Some((at, start, bytes, pointer)) = self.place(9000) else { return };
        let answer = self.callers[caller].read(&mut self.served, pointer, bytes as u32);
        if self.judge(at, start, bytes, &answer) {
            assert_eq!(answer.data, self.live[at].bytes[start as usize..][..bytes as usize]);
        }
    }

    fn write(&mut self) {
        let caller = self.caller();
        let Some((at, start, bytes, pointer)) = self.place(6000) else { return };
        if start >= self.live[at].bytes.len() as u64 {
            return;
        }
        let data = any_bytes(&mut self.random, bytes as usize);
        let answer = if bytes > 1 && self.random.once_in(3) {
            self.write_parts(caller, pointer, &data)
        } else {
            self.callers[caller].write(&mut self.served, pointer, &data)
        };
        if self.judge(at, start, bytes, &answer) {
            self.live[at].bytes[start as usize..][..bytes as usize].copy_from_slice(&data);
        }
    }

    /// Writes in several datagrams, in any order, some of them repeated; returns the last answer.
    fn write_parts(&mut self, caller: usize, pointer: Pointer, data: &[u8]) -> Answered {
        let destination = pointer.request(Command::Write, Arguments::NONE);
        let request = self.callers[caller].request(destination, Operation::Plain);
        let mut parts = parts_of(&request, data, 1 + self.random.index(data.len() - 1));
        for _ in 0..self.random.below(3) {
            parts.push(parts[self.random.index(parts.len())].clone());
        }
        let mut last = None;
        while !parts.is_empty() {
            let part = parts.swap_remove(self.random.index(parts.len()));
            let answer = answered(&self.served.deliver(&part)[0]);
            if answer.status != Status::Ok {
                return answer;
            }
            last = Some(answer);
        }
        last.expect("there were parts")
    }

    fn exchange(&mut self) {
        let caller = self.caller();
        let Some((at, start, _, _)) = self.place(1) else { return };
        let start = start / 8 * 8;
        let pointer = self.live[at].pointer.plus(start).expect("an offset");
        if start == self.live[at].bytes.len() as u64 {
            return;
        }
        let before = self.live[at].bytes.get(start as usize..start as usize + 8);
        let before = before.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        let new = self.random.below(u64::from(u32::MAX));
        let destination = pointer.request(Command::CompareSwap, Arguments::NONE);
        let (expected, answer) = match self.random.below(3) {
            0 => (None, self.callers[caller].add(&mut self.served, pointer, new)),
            choice => {
                let expected = if choice == 1 { before.unwrap_or(0) } else { 1 };
                let operation = Operation::CompareSwap { expected, new };
                (Some(expected), self.callers[caller].call(&mut self.served, destination, operation, &[]))
            }
        };
        let Some(before) = before else {
            assert_eq!(answer.status, Status::Bounds);
            return;
        };
        let is_swapped = expected.is_none_or(|expected| expected == before);
        let status = if is_swapped { Status::Ok } else { Status::Mismatch };
        assert_eq!((answer.status, answer.body), (status, Body::Value(before)));
        let after = match expected {
            None => before.wrapping_add(new),
            Some(_) if is_swapped => new,
            Some(_) => before,
        };
        self.live[at].bytes[start as usize..][..8].copy_from_slice(&after.to_le_bytes());
    }

    /// Accesses a deleted object through its pointer.
    fn stale(&mut self) {
        let caller = self.caller();
        if self.gone.is_empty() {
            return;
        }
        let pointer = self.gone[self.random.index(self.gone.len())];
        let (served, caller) = (&mut self.served, &mut self.callers[caller]);
        let answer = match self.random.below(5) {
            0 => caller.read(served, pointer, 1),
            1 => caller.write(served, pointer, b"stale"),
            2 => caller.add(served, pointer, 1),
            3 => caller.plain(served, Command::Delete, pointer),
            _ => caller.plain(served, Command::Inquire, pointer),
        };
        assert_eq!((answer.status, answer.body), (Status::Stale, Body::Nothing));
        *self.refused.entry(answer.status).or_default() += 1;
    }

    fn inquire(&mut self) {
        let page = self.random.below(PAGES + 2);
        let pointer = Pointer::new(cluster(), HOME, 0, page * PAGE_BYTES).expect("an offset");
        let caller = self.caller();
        let answer = self.callers[caller].plain(&mut self.served, Command::Inquire, pointer);
        let has = |it: &&Object| (it.pointer.page()..it.pointer.page() + pages_of(it)).contains(&page);
        match self.live.iter().find(has) {
            Some(it) => assert_eq!(answer.body, Body::Object { pointer: it.pointer, bytes: it.bytes.len() as u64 }),
            None => assert_eq!(answer.status, Status::Bounds),
        }
    }

    /// Restarts the server with its memory and its page table.
    fn restart(&mut self) {
        let makers: BTreeMap<u64, Host> =
            self.served.server.objects().map(|object| (object.first_page, object.maker)).collect();
        self.incarnation += 1;
        let settings = Settings { incarnation: self.incarnation, ..self.settings };
        let restored = MemoryServer::restored(settings, &self.served.published, |page| makers[&page]);
        let before = std::mem::replace(&mut self.served.server, restored.expect("a table of a server"));
        assert!(before.objects().eq(self.served.server.objects()));
        for caller in &mut self.callers {
            assert_eq!(self.served.server.quota(caller.client.host), before.quota(caller.client.host));
            assert_eq!(caller.create(&mut self.served, 1).status, Status::Fenced, "of the previous boot");
            let epoch = caller.hello(&mut self.served).epoch;
            assert!(epoch > std::mem::replace(&mut caller.epoch, epoch));
        }
    }

    fn ends_with_every_page_free(mut self) {
        for object in &self.live {
            let start = object.pointer.offset() as usize;
            assert_eq!(self.served.memory[start..start + object.bytes.len()], object.bytes, "at the end");
        }
        while !self.live.is_empty() {
            self.delete();
        }
        self.served.check_published();
        let now = self.served.server.statistics();
        assert_eq!((now.objects, now.pages_used, now.pages_free, now.longest_free_run_pages), (0, 0, PAGES, PAGES));
        for caller in &self.callers {
            assert_eq!(self.served.server.quota(caller.client.host).1, 0);
        }
        for status in [Status::Ok, Status::Bounds, Status::Stale, Status::Quota, Status::NoMemory, Status::Malformed] {
            assert!(self.refused.get(&status).is_some_and(|count| *count > 20), "{status:?} of {:?}", self.refused);
        }
    }
}

fn pages_of(object: &Object) -> u64 {
    (object.bytes.len() as u64).div_ceil(PAGE_BYTES)
}

#[test]
fn random_requests_agree_with_a_model() {
    let seed = Seed::of_this_run("memory_server_random");
    let mut model = Model::new(seed.number);
    for step in 0..if cfg!(debug_assertions) { 60_000 } else { 2_000_000 } {
        model.act();
        if step % 5000 == 0 {
            model.served.check_published();
            model.restart();
        }
    }
    model.ends_with_every_page_free();
}

#[test]
fn any_datagram_leaves_the_server_in_order() {
    let seed = Seed::of_this_run("memory_server_random");
    let mut model = Model::new(seed.number);
    let mut random = Random::for_purpose(seed.number, 1);
    let mut answers = 0;
    for round in 0..if cfg!(debug_assertions) { 30_000 } else { 1_000_000 } {
        let caller = model.caller();
        let place = Pointer::new(cluster(), HOME, random.below(200) as u16, random.below(PAGES * PAGE_BYTES + 9000));
        let command = random.one_of(&Command::ALL);
        let data = any_bytes(&mut random, 1 + (round % 50) as usize);
        let operation = match command {
            Command::Read => Operation::Read { bytes: 1 + random.below(32_768) as u32 },
            Command::Write | Command::Commit | Command::CreateWrite if random.once_in(2) => {
                let total = 1 + data.len() as u32 + random.below(5000) as u32;
                let position = random.below(u64::from(total) - data.len() as u64 + 1) as u32;
                Operation::Bytes(Extent::part(position, data.len() as u32, total))
            }
            Command::Write | Command::Commit | Command::CreateWrite => {
                Operation::Bytes(Extent::whole(data.len() as u32))
            }
            Command::FetchAdd => Operation::FetchAdd { addend: random.below(1 << 30) },
            Command::CompareSwap => Operation::CompareSwap { expected: random.below(2), new: random.below(1 << 30) },
            Command::Create => Operation::Create { bytes: random.below(200_000) },
            Command::Hello => Operation::Hello { identity: random.below(3) },
            _ => Operation::Plain,
        };
        let place = place.expect("an offset");
        let is_at_zero = matches!(command, Command::Create | Command::CreateWrite | Command::Hello | Command::Ping);
        let place = if is_at_zero { at_home() } else { place };
        let request = model.callers[caller].request(place.request(command, Arguments::NONE), operation);
        let is_once = request.is_once || command == Command::Write && random.once_in(4);
        let data = if matches!(operation, Operation::Bytes(_)) { data } else { Vec::new() };
        let sent = datagram(&Request { is_once, ..request }, &data);
        for _ in 0..1 + random.below(2) {
            answers += model.served.deliver(&sent).len();
        }
        // The test refuses every lease request.
        for lease in std::mem::take(&mut model.served.handed) {
            let status = Status::Busy;
            let decision = Decision::Refused { status, epoch: 0 };
            answers += model.served.decide(lease, decision).len();
        }
        if round % 1000 == 0 {
            model.served.check_published();
        }
    }
    assert!(answers > 10_000);
    let now = model.served.server.statistics();
    assert_eq!(now.pages_used + now.pages_free, PAGES);
    let used = model.callers.iter().map(|caller| model.served.server.quota(caller.client.host).1).sum::<u64>();
    assert_eq!(used, now.pages_used * PAGE_BYTES);
}
