//! Clients of a memory server over a network that loses, repeats and delays datagrams in both directions: what is to
//! be done once is done once, nothing is forgotten, and every client gets an answer.

#[allow(dead_code, reason = "every test program uses a part of it")]
mod served;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use served::{
    Answered, Caller, Datagram, SECOND, Seed, Served, answered, any_bytes, at_home, datagram, parts_of, settings,
};
use trellis_base::Random;
use trellis_fabric_protocol::memory_server::{Input, SessionLimits, Settings, StagingLimits, WINDOW};
use trellis_fabric_protocol::wire::address::{Arguments, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Operation, Request, Status};

/// A client that adds to counters, keeps an object of its own, and makes and deletes others.
struct Worker {
    caller: Caller,
    /// Its own object, and the object's content.
    own: Pointer,
    content: Vec<u8>,
    /// Requests that were sent and not answered, by request id.
    open: BTreeMap<u64, Vec<Datagram>>,
    /// The counter and its value before each addition of this client.
    values_before: Vec<(usize, u64)>,
    /// Objects that it has created and not deleted.
    made: Vec<Pointer>,
    adding: BTreeMap<u64, usize>,
    /// The write of its own object that is under way.
    writing: Option<(u64, Vec<u8>)>,
    reading: BTreeSet<u64>,
    creating: BTreeSet<u64>,
    deleting: BTreeSet<u64>,
    done: u64,
}

const COUNTERS: usize = 3;
const OWN_BYTES: usize = 6000;

struct Network {
    served: Served,
    workers: Vec<Worker>,
    counters: Pointer,
    /// Datagrams under way, in both directions.
    to_server: Vec<Datagram>,
    to_clients: Vec<Datagram>,
    /// Duplicates that arrive after their request was forgotten.
    very_late: VecDeque<Datagram>,
    random: Random,
    lost: u64,
    repeated: u64,
    /// Nothing is lost or repeated any more.
    is_calm: bool,
}

impl Network {
    fn new(seed: u64) -> Network {
        let sessions = SessionLimits { sessions_max: 8, sessions_per_host_max: 2, silence_max: 1000 * SECOND };
        let staging = StagingLimits { slots: 16, slots_per_host_max: 8, silence_max: SECOND };
        let mut served = Served::new(Settings { sessions, staging, ..settings(256) });
        let mut first = Caller::with_session(&mut served, 9, 1);
        let counters = first.object(&mut served, 8 * COUNTERS as u64);
        let workers = (1..=4).map(|host| Worker::new(&mut served, host)).collect();
        served.is_slow = true;
        Network {
            served,
            workers,
            counters,
            to_server: Vec::new(),
            to_clients: Vec::new(),
            very_late: VecDeque::new(),
            random: Random::new(seed),
            lost: 0,
            repeated: 0,
            is_calm: false,
        }
    }

    fn act(&mut self) {
        self.served.now += self.random.below(1_000_000);
        match self.random.below(16) {
            0..=2 => self.ask(),
            3 => self.ask_again(),
            4 | 5 if !self.served.waiting.is_empty() => {
                let at = self.random.index(self.served.waiting.len());
                let effect = self.served.waiting.swap_remove(at);
                let answers = self.served.exchange(effect);
                self.send_back(answers);
            }
            6 if self.random.once_in(50) => drop(self.served.step(Input::Tick, &[])),
            choice if choice % 2 == 0 => self.serve(),
            _ => self.take(),
        }
    }

    /// Picks a datagram of the network: its index, whether it is lost, and whether a copy stays.
    fn pick(&mut self, length: usize) -> Option<(usize, bool, bool)> {
        if length == 0 {
            return None;
        }
        let at = self.random.index(length);
        let is_lost = !self.is_calm && self.random.once_in(10);
        let stays = !self.is_calm && length < 400 && self.random.once_in(8);
        self.lost += u64::from(is_lost);
        self.repeated += u64::from(stays);
        Some((at, is_lost, stays))
    }

    fn serve(&mut self) {
        let Some((at, is_lost, stays)) = self.pick(self.to_server.len()) else { return };
        let datagram = if stays { self.to_server[at].clone() } else { self.to_server.swap_remove(at) };
        if !self.is_calm && self.random.once_in(20) {
            self.very_late.push_back(datagram.clone());
            if self.very_late.len() > 300 {
                self.to_server.extend(self.very_late.pop_front());
            }
        }
        if !is_lost {
            let answers = self.served.deliver(&datagram);
            self.send_back(answers);
        }
    }

    fn send_back(&mut self, answers: Vec<Datagram>) {
        self.to_clients.extend(answers);
    }

    fn take(&mut self) {
        let Some((at, is_lost, stays)) = self.pick(self.to_clients.len()) else { return };
        let datagram = if stays { self.to_clients[at].clone() } else { self.to_clients.swap_remove(at) };
        if is_lost {
            return;
        }
        let reply = served::decoded(&datagram);
        let worker = self.workers.iter_mut().find(|worker| worker.caller.client.host == reply.to.host);
        let worker = worker.expect("only workers ask");
        // An answer to a request that was answered before, or to a part of one.
        if reply.is_several && !reply.is_last || !worker.open.contains_key(&reply.to.request) {
            return;
        }
        worker.answered(reply.to.request, &answered(&datagram));
    }

    fn ask(&mut self) {
        let at = self.random.index(self.workers.len());
        let counter = self.random.index(COUNTERS);
        let place = self.counters.plus(8 * counter as u64).expect("an offset");
        let worker = &mut self.workers[at];
        if !worker.may_ask() {
            return;
        }
        let datagrams = match self.random.below(8) {
            0..=2 => worker.add(place, counter),
            3 | 4 if worker.writing.is_none() && worker.reading.is_empty() => worker.write(&mut self.random),
            5 if worker.writing.is_none() => worker.read(),
            6 if worker.made.len() < 10 => worker.create(),
            7 if !worker.made.is_empty() => worker.delete(),
            _ => return,
        };
        self.to_server.extend(datagrams);
    }

    fn ask_again(&mut self) {
        let at = self.random.index(self.workers.len());
        let worker = &self.workers[at];
        if !worker.open.is_empty() && self.to_server.len() < 400 {
            let index = self.random.index(worker.open.len());
            self.to_server.extend(worker.open.values().nth(index).into_iter().flatten().cloned());
        }
    }

    /// Everything is answered, and what is still under way arrives too late to matter.
    fn settle(&mut self) {
        self.is_calm = true;
        let mut rounds = 0;
        while self.workers.iter().any(|worker| !worker.open.is_empty()) || !self.to_server.is_empty() {
            rounds += 1;
            assert!(rounds < 5_000_000, "somebody waits for ever");
            // No abandoned write keeps its slot.
            self.served.now += 1_000_000;
            match self.random.below(8) {
                0 => self.ask_again(),
                1 | 2 if !self.served.waiting.is_empty() => {
                    let effect = self.served.waiting.remove(0);
                    let answers = self.served.exchange(effect);
                    self.send_back(answers);
                }
                3..=5 => self.serve(),
                _ => self.take(),
            }
        }
    }

    /// The values before the additions of a counter: every number once, and none left out.
    fn additions_happened_once(&mut self) {
        let start = self.counters.offset() as usize;
        for counter in 0..COUNTERS {
            let all = self.workers.iter().flat_map(|worker| &worker.values_before);
            let mut values_before: Vec<u64> = all.filter(|it| it.0 == counter).map(|it| it.1).collect();
            values_before.sort_unstable();
            assert_eq!(values_before, (0..values_before.len() as u64).collect::<Vec<u64>>(), "counter {counter}");
            let bytes = self.served.memory[start + 8 * counter..][..8].try_into().expect("8 bytes");
            assert_eq!(u64::from_le_bytes(bytes), values_before.len() as u64);
            assert!(values_before.len() > 100, "counter {counter} was added to {} times", values_before.len());
        }
    }
}

impl Worker {
    fn new(served: &mut Served, host: u16) -> Worker {
        let mut caller = Caller::with_session(served, host, 1);
        let own = caller.object(served, OWN_BYTES as u64);
        Worker {
            caller,
            own,
            content: vec![0; OWN_BYTES],
            open: BTreeMap::new(),
            values_before: Vec::new(),
            made: Vec::new(),
            adding: BTreeMap::new(),
            writing: None,
            reading: BTreeSet::new(),
            creating: BTreeSet::new(),
            deleting: BTreeSet::new(),
            done: 0,
        }
    }

    /// The rule of the window: every request that is older by its length is answered.
    fn may_ask(&self) -> bool {
        self.open.keys().next().is_none_or(|oldest| self.caller.next - oldest < WINDOW) && self.open.len() < 12
    }

    fn begin(&mut self, request: Request, datagrams: Vec<Datagram>) -> Vec<Datagram> {
        assert!(self.open.insert(request.source.request, datagrams.clone()).is_none());
        datagrams
    }

    fn add(&mut self, place: Pointer, counter: usize) -> Vec<Datagram> {
        let destination = place.request(Command::FetchAdd, Arguments::NONE);
        let request = self.caller.request(destination, Operation::FetchAdd { addend: 1 });
        self.adding.insert(request.source.request, counter);
        self.begin(request, vec![datagram(&request, &[])])
    }

    fn write(&mut self, random: &mut Random) -> Vec<Datagram> {
        let data = any_bytes(random, OWN_BYTES);
        let destination = self.own.request(Command::Write, Arguments::NONE);
        let request = self.caller.request(destination, Operation::Plain);
        // Executed once; otherwise a late duplicate would restore old bytes.
        let request = Request { is_once: true, ..request };
        let bytes_max = if random.once_in(2) { 1400 } else { OWN_BYTES };
        let datagrams = parts_of(&request, &data, bytes_max);
        self.writing = Some((request.source.request, data));
        self.begin(request, datagrams)
    }

    fn read(&mut self) -> Vec<Datagram> {
        let destination = self.own.request(Command::Read, Arguments::NONE);
        let request = self.caller.request(destination, Operation::Read { bytes: OWN_BYTES as u32 });
        self.reading.insert(request.source.request);
        self.begin(request, vec![datagram(&request, &[])])
    }

    fn create(&mut self) -> Vec<Datagram> {
        let destination = at_home().request(Command::Create, Arguments::NONE);
        let request = self.caller.request(destination, Operation::Create { bytes: 5000 });
        self.creating.insert(request.source.request);
        self.begin(request, vec![datagram(&request, &[])])
    }

    fn delete(&mut self) -> Vec<Datagram> {
        let pointer = self.made.swap_remove(0);
        let request = self.caller.request(pointer.request(Command::Delete, Arguments::NONE), Operation::Plain);
        self.deleting.insert(request.source.request);
        self.begin(request, vec![datagram(&request, &[])])
    }

    fn answered(&mut self, id: u64, answer: &Answered) {
        self.open.remove(&id).expect("it is open");
        self.done += 1;
        if let Some((_, data)) = self.writing.take_if(|writing| writing.0 == id) {
            // No slot was free: the write was not done, and never will be.
            match answer.status {
                Status::Ok => self.content = data,
                status => assert_eq!(status, Status::Busy),
            }
            return;
        }
        assert_eq!(answer.status, Status::Ok, "{answer:?}");
        if let Some(counter) = self.adding.remove(&id) {
            let Body::Value(before) = answer.body else { panic!("{answer:?}") };
            self.values_before.push((counter, before));
        } else if self.reading.remove(&id) {
            assert_eq!(answer.data, self.content, "what was written last");
        } else if self.creating.remove(&id) {
            self.made.push(served::pointer_of(answer));
        } else {
            assert!(self.deleting.remove(&id));
        }
    }
}

#[test]
fn requests_are_done_once_over_a_network_that_loses_repeats_and_delays() {
    let seed = Seed::of_this_run("memory_server_network");
    let mut network = Network::new(seed.number);
    for _ in 0..if cfg!(debug_assertions) { 120_000 } else { 4_000_000 } {
        network.act();
    }
    network.settle();
    network.additions_happened_once();
    let start = |pointer: Pointer| pointer.offset() as usize;
    for worker in &network.workers {
        assert_eq!(network.served.memory[start(worker.own)..][..OWN_BYTES], worker.content);
        assert!(worker.done > 300, "{} requests", worker.done);
    }
    let made: usize = network.workers.iter().map(|worker| worker.made.len()).sum();
    let now = network.served.server.statistics();
    assert!(now.answers[Status::Fenced as usize] > 100, "some came very late: {now:?}");
    assert_eq!(now.objects, (made + network.workers.len() + 1) as u64, "none was made twice or forgotten");
    assert!(now.answers_kept <= 5 * WINDOW && now.repeated > 1000, "{now:?}");
    assert!(network.lost > 1000 && network.repeated > 1000, "{} lost, {} repeated", network.lost, network.repeated);
    network.served.check_published();
}
