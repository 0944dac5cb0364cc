//! The cost of the link compared with bare system calls, on the same machine in the same minute.
//!
//! Two threads on loopback, both polling. A request of 32 bytes is answered with 4,128 bytes (a header and a page):
//! once with bare `send` and `recv` over tcp, then with `Link::send` and `Link::poll` over tcp and over udp in each
//! security. Then bodies of 1 MiB in one direction. The kinds alternate in short batches, so that other load of the
//! machine affects all of them alike.
//!
//! `cargo run --release -p trellis-transport --example raw_round_trip`

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use trellis_base::statistics::median;

use trellis_testing::{datagram_sockets, listeners};
use trellis_transport::{
    HEADER_BYTES, Link, Lost, Multicast, Payload, Placement, Refused, Security, Sink, Tcp, TcpOptions, Udp, UdpOptions,
};

const PAGE_BYTES: usize = 4096;
const BULK_BYTES: usize = 1 << 20;
const BATCHES: usize = 20;
const ROUNDS: usize = 500;
const BULK_FRAMES: usize = 64;
const BULK_BATCHES: usize = 7;
const SECURITIES: [Security; 3] = [Security::Plain, Security::Signed, Security::Sealed];
const KINDS: usize = 7;
const NAMES: [&str; KINDS] = ["raw", "tcp plain", "tcp signed", "tcp sealed", "udp plain", "udp signed", "udp sealed"];
/// The first kind over udp; the same security over tcp has an index lower by three.
const UDP: usize = 4;
/// What the far thread serves: a kind by its index; this value ends it.
const END: usize = usize::MAX;

fn main() {
    let (mut near_raw, far_raw) = raw_pair();
    // Before the links, so that they outlive them: bodies are sent without a copy.
    let (page, body) = (vec![7; PAGE_BYTES], vec![5; BULK_BYTES]);
    let pairs: Vec<[Box<dyn Link>; 2]> =
        SECURITIES.into_iter().map(tcp_pair).chain(SECURITIES.into_iter().map(udp_pair)).collect();
    let (near, far): (Vec<_>, Vec<_>) = pairs.iter().map(|[near, far]| (&**near, &**far)).unzip();
    let kind = AtomicUsize::new(0);
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(far_raw, &far, &page, &kind, &served));
        let mut sinks = [(); KINDS - 1].map(|()| Client::default());
        for (link, sink) in near.iter().zip(&mut sinks) {
            while !link.is_connected(1) {
                link.poll(sink);
            }
        }
        round_trips(&mut near_raw, &near, &mut sinks, &kind);
        bulk(&mut near_raw, &near, &body, &mut sinks, &kind, &served);
        kind.store(END, Ordering::SeqCst);
    });
    for (name, link) in NAMES[1..].iter().zip(&near) {
        let all = link.statistics();
        println!(
            "  {name:10}  frames {} packets {} resent {} only acknowledging {}",
            all.frames_out, all.packets_out, all.packets_resent, all.packets_acknowledging
        );
    }
}

fn round_trips(raw: &mut TcpStream, near: &[&dyn Link], sinks: &mut [Client], kind: &AtomicUsize) {
    let mut samples = [(); KINDS].map(|()| Vec::with_capacity(BATCHES * ROUNDS));
    for _ in 0..BATCHES {
        for (index, samples) in samples.iter_mut().enumerate() {
            kind.store(index, Ordering::SeqCst);
            for _ in 0..ROUNDS {
                let start = Instant::now();
                if index == 0 {
                    raw_round_trip(raw);
                } else {
                    link_round_trip(near[index - 1], &mut sinks[index - 1]);
                }
                samples.push(start.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
    }
    println!("32 B out, 4,128 B back, both sides polling, {} round trips each", BATCHES * ROUNDS);
    let raw_us = median(&mut samples[0]);
    let mut medians = Vec::new();
    for (index, (name, samples)) in NAMES.iter().zip(&mut samples).enumerate() {
        let p50 = median(samples);
        let p99 = samples[samples.len() * 99 / 100];
        medians.push(p50);
        print!("  {name:10}  p50 {p50:7.2} us   p99 {p99:8.2} us   p50 / raw {:.2}", p50 / raw_us);
        if index >= UDP {
            print!("   / tcp {:.2}", p50 / medians[index - UDP + 1]);
        }
        println!();
    }
}

fn bulk(
    raw: &mut TcpStream,
    near: &[&dyn Link],
    body: &[u8],
    sinks: &mut [Client],
    kind: &AtomicUsize,
    served: &AtomicUsize,
) {
    let mut rates = [(); KINDS].map(|()| Vec::new());
    for _ in 0..BULK_BATCHES {
        for (index, rates) in rates.iter_mut().enumerate() {
            served.store(0, Ordering::SeqCst);
            kind.store(index, Ordering::SeqCst);
            let start = Instant::now();
            for _ in 0..BULK_FRAMES {
                if index == 0 {
                    write_whole(raw, &header(BULK_BYTES));
                    write_whole(raw, body);
                } else {
                    let pinned = Payload::Pinned(body.as_ptr(), body.len());
                    near[index - 1].send(1, &header(BULK_BYTES), pinned).expect("within the queue");
                }
            }
            while served.load(Ordering::SeqCst) < BULK_FRAMES {
                if index > 0 {
                    near[index - 1].poll(&mut sinks[index - 1]);
                }
            }
            rates.push((BULK_FRAMES * BULK_BYTES) as f64 / start.elapsed().as_nanos() as f64);
        }
    }
    println!("1 MiB bodies one way, median of {BULK_BATCHES} batches of {BULK_FRAMES}");
    let raw_rate = median(&mut rates[0]);
    for (name, rates) in NAMES.iter().zip(&mut rates) {
        let rate = median(rates);
        println!("  {name:10}  {rate:6.2} GB/s   / raw {:.2}", rate / raw_rate);
    }
}

/// The far side: answers short frames with a page, discards long ones.
fn serve(mut raw: TcpStream, far: &[&dyn Link], page: &[u8], kind: &AtomicUsize, served: &AtomicUsize) {
    let mut bulk_place = vec![0; BULK_BYTES];
    loop {
        match kind.load(Ordering::Relaxed) {
            END => return,
            0 => serve_raw(&mut raw, page, kind, served),
            index => {
                let link = far[index - 1];
                let mut server = AnsweringSink { link, page, place: bulk_place.as_mut_ptr(), served };
                link.poll(&mut server);
            }
        }
    }
}

fn serve_raw(raw: &mut TcpStream, page: &[u8], kind: &AtomicUsize, served: &AtomicUsize) {
    let mut header_in = [0; HEADER_BYTES];
    let mut reply = [0; HEADER_BYTES + PAGE_BYTES];
    reply[HEADER_BYTES..].copy_from_slice(page);
    let mut place = vec![0; BULK_BYTES];
    while read_whole(raw, &mut header_in, || kind.load(Ordering::Relaxed) == 0) {
        match length(&header_in) {
            0 => write_whole(raw, &reply),
            bytes => {
                read_whole(raw, &mut place[..bytes], || true);
                served.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

struct AnsweringSink<'a> {
    link: &'a dyn Link,
    page: &'a [u8],
    place: *mut u8,
    served: &'a AtomicUsize,
}

impl Sink for AnsweringSink<'_> {
    fn place(&mut self, _peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        Ok(match length(header) {
            0 => Placement::Nothing,
            bytes => Placement::At { pointer: self.place, bytes },
        })
    }

    fn deliver(&mut self, peer: usize, frame: &[u8; HEADER_BYTES], _body: &[u8]) {
        if length(frame) > 0 {
            self.served.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let page = Payload::Pinned(self.page.as_ptr(), self.page.len());
        self.link.send(peer, &header(PAGE_BYTES), page).expect("a page fits");
    }

    fn connected(&mut self, _peer: usize) {}

    fn lost(&mut self, peer: usize, why: &Lost) {
        panic!("node {peer}: {why}");
    }
}

struct Client {
    page: Box<[u8; PAGE_BYTES]>,
    answers: usize,
}

impl Default for Client {
    fn default() -> Client {
        Client { page: Box::new([0; PAGE_BYTES]), answers: 0 }
    }
}

impl Sink for Client {
    fn place(&mut self, _peer: usize, _header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        Ok(Placement::At { pointer: self.page.as_mut_ptr(), bytes: PAGE_BYTES })
    }

    fn deliver(&mut self, _peer: usize, _header: &[u8; HEADER_BYTES], _body: &[u8]) {
        self.answers += 1;
    }

    fn connected(&mut self, _peer: usize) {}

    fn lost(&mut self, peer: usize, why: &Lost) {
        panic!("node {peer}: {why}");
    }
}

fn link_round_trip(link: &dyn Link, sink: &mut Client) {
    let before = sink.answers;
    link.send(1, &header(0), Payload::Nothing).expect("a header fits");
    while sink.answers == before {
        link.poll(sink);
    }
}

fn raw_round_trip(raw: &mut TcpStream) {
    let mut room = [0; HEADER_BYTES + PAGE_BYTES];
    write_whole(raw, &header(0));
    read_whole(raw, &mut room, || true);
}

/// A header whose first bytes state the length of the body.
fn header(body_bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&(body_bytes as u64).to_le_bytes());
    header
}

fn length(header: &[u8; HEADER_BYTES]) -> usize {
    u64::from_le_bytes(header[..8].try_into().expect("eight bytes")) as usize
}

fn raw_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (far, _) = listener.accept().expect("just connected");
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("a tcp socket");
        stream.set_nonblocking(true).expect("a socket");
    }
    (near, far)
}

fn tcp_pair(security: Security) -> [Box<dyn Link>; 2] {
    let (listeners, addresses) = listeners(2);
    let mut node = 0;
    <[TcpListener; 2]>::try_from(listeners).expect("two").map(|listener| {
        node += 1;
        let link = Tcp::start(TcpOptions {
            node: node - 1,
            addresses: addresses.clone(),
            listener: Some(listener),
            secret: [1; 32],
            security,
            hello: Vec::new(),
            admit: Box::new(|_, _| Ok(())),
            refused: Box::new(|why| eprintln!("{why}")),
        });
        Box::new(link.expect("two nodes on loopback")) as Box<dyn Link>
    })
}

fn udp_pair(security: Security) -> [Box<dyn Link>; 2] {
    let (sockets, addresses) = datagram_sockets(2);
    let mut node = 0;
    <[UdpSocket; 2]>::try_from(sockets).expect("two").map(|socket| {
        node += 1;
        let link = Udp::start(UdpOptions {
            node: node - 1,
            addresses: addresses.clone(),
            socket: Some(socket),
            secret: [1; 32],
            security,
            hello: Vec::new(),
            admit: Box::new(|_, _| Ok(())),
            refused: Box::new(|why| eprintln!("{why}")),
            faults: None,
            multicast: Multicast::Off,
        });
        Box::new(link.expect("two nodes on loopback")) as Box<dyn Link>
    })
}

/// Reads until the room is full; gives up, between two messages only, if `go_on` returns false.
fn read_whole(stream: &mut TcpStream, room: &mut [u8], go_on: impl Fn() -> bool) -> bool {
    let mut filled = 0;
    while filled < room.len() {
        match stream.read(&mut room[filled..]) {
            Ok(0) => panic!("the other thread ended"),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if filled == 0 && !go_on() {
                    return false;
                }
            }
            Err(error) => panic!("recv: {error}"),
        }
    }
    true
}

fn write_whole(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("send: {error}"),
        }
    }
}
