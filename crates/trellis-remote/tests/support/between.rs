//! A memory server with a proxy in front of it, which gives the answers of a script, loses some, and takes its time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_fabric_protocol::wire::address::{Address, Cluster};
use trellis_fabric_protocol::wire::datagram::{Body, Checksums, Reply, Request, Rules, Status, TagKind, seal};
use trellis_remote::{Pointer, Server, ServerOptions, Stop};
use trellis_transport::links::ipv6::{Arrived, Endpoint, Way};

use super::{BETWEEN, OTHER, SERVER, Turn, good, prefix};

type Script = Box<dyn FnMut(&Request) -> Turn + Send>;

/// A memory server with a proxy in front of it.
pub(super) struct Between {
    stop: Stop,
    is_over: Arc<AtomicBool>,
    script: Arc<Mutex<Script>>,
    /// How long each answer of the server is on its way.
    takes: Arc<Mutex<Duration>>,
    threads: Vec<JoinHandle<()>>,
}

impl Between {
    pub(super) fn start(script: impl FnMut(&Request) -> Turn + Send + 'static) -> Between {
        Between::start_with_term(Duration::from_secs(10), script)
    }

    pub(super) fn start_with_term(
        lease_term: Duration,
        script: impl FnMut(&Request) -> Turn + Send + 'static,
    ) -> Between {
        let options = ServerOptions { lease_term, ..ServerOptions::new(prefix(SERVER), 16 << 20) };
        let mut server = good(Server::open(options));
        let (stop, is_over) = (Stop::default(), Arc::new(AtomicBool::new(false)));
        let stops = stop.clone();
        let serves = std::thread::spawn(move || good(server.serve(&stops)));
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let takes = Arc::new(Mutex::new(Duration::ZERO));
        let (over, scripts, slow) = (Arc::clone(&is_over), Arc::clone(&script), Arc::clone(&takes));
        let endpoint = Endpoint::open(BETWEEN).expect("the port is free in a network of one's own");
        let passes = std::thread::spawn(move || pass(&endpoint, &over, &scripts, &slow));
        Between { stop, is_over, script, takes, threads: vec![serves, passes] }
    }

    pub(super) fn answers_take(&self, takes: Duration) {
        *self.takes.lock().expect("nobody panicked") = takes;
    }

    pub(super) fn now(&self, script: impl FnMut(&Request) -> Turn + Send + 'static) {
        *self.script.lock().expect("nobody panicked") = Box::new(script);
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.stop.stop();
        self.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread of the test panicked");
        }
    }
}

fn pass(endpoint: &Endpoint, is_over: &AtomicBool, script: &Mutex<Script>, takes: &Mutex<Duration>) {
    let mut room = vec![0; 64 << 10];
    // By process; and requests whose answers are lost.
    let (mut ports, mut lost) = (BTreeMap::<[u8; 8], u16>::new(), BTreeSet::<[u8; 16]>::new());
    // Answers that are on their way, and when they arrive.
    let mut coming = VecDeque::<(Instant, Way, Vec<u8>)>::new();
    while !is_over.load(Ordering::SeqCst) {
        while let Some((_, way, bytes)) = coming.pop_front_if(|(at, ..)| *at <= Instant::now()) {
            endpoint.send(&way, &[&bytes]).expect("it is this host");
        }
        let Some(arrived) = endpoint.receive(&mut room).expect("the socket is open") else {
            let next = coming.front().map_or(Duration::MAX, |(at, ..)| at.saturating_duration_since(Instant::now()));
            endpoint.wait(next.min(Duration::from_millis(5)));
            continue;
        };
        let payload = &room[..arrived.bytes];
        let Arrived { source, destination, port, .. } = arrived;
        let send = |port: u16, parts: &[&[u8]]| {
            endpoint.send(&Way { from: source, to: destination, port }, parts).expect("it is this host");
        };
        // An answer, or what the server says unasked.
        if port == 5000 {
            if let Some(&port) = ports.get(&process(&destination)).filter(|_| !lost.contains(&destination)) {
                let at = Instant::now() + *takes.lock().expect("nobody panicked");
                coming.push_back((at, Way { from: source, to: destination, port }, payload.to_vec()));
            }
            continue;
        }
        let cluster = Cluster::new(0x01_0203).expect("it is one");
        let rules = Rules { cluster, least: TagKind::None, tags: &Checksums };
        let Ok(request) = Request::decode(Address(source), Address(destination), payload, &rules) else { continue };
        let turn = (script.lock().expect("nobody panicked"))(&request);
        ports.insert(process(&source), port);
        match turn {
            Turn::Pass => {
                lost.remove(&source);
                send(5000, &[payload]);
            }
            Turn::PassAndLose => {
                lost.insert(source);
                send(5000, &[payload]);
            }
            Turn::Lose => {}
            Turn::Say(status, epoch) => say(endpoint, &request, status, epoch, port),
            Turn::Body(body) => send_reply(endpoint, &Reply { body, ..reply(&request, Status::Ok, 1) }, port),
        }
    }
}

pub(super) fn process(address: &[u8; 16]) -> [u8; 8] {
    *address.first_chunk().expect("an address is longer than half of it")
}

pub(super) fn say(endpoint: &Endpoint, request: &Request, status: Status, epoch: u64, port: u16) {
    send_reply(endpoint, &reply(request, status, epoch), port);
}

pub(super) fn reply(request: &Request, status: Status, epoch: u64) -> Reply {
    let there = Pointer::to_host(request.destination.pointer.cluster(), OTHER).encode();
    Reply {
        to: request.source,
        from: request.destination.encode(),
        status,
        tag_kind: TagKind::Checksum,
        is_several: false,
        is_last: false,
        is_release: false,
        epoch,
        body: if status == Status::Moved { Body::Moved(there) } else { Body::Nothing },
    }
}

pub(super) fn send_reply(endpoint: &Endpoint, reply: &Reply, port: u16) {
    let (mut header, small) = reply.encode();
    let (from, to) = (reply.from, reply.to.encode());
    let zeros = vec![0; reply.body.data_bytes() as usize];
    assert!(seal(&mut header, from, to, [small.bytes(), &zeros], &Checksums));
    endpoint.send(&Way { from: from.0, to: to.0, port }, &[&header, small.bytes(), &zeros]).expect("it is this host");
}
