//! What the suites share: meshes of every kind, self-describing frames, and a sink that checks what it gets.

#![allow(dead_code, unreachable_pub)]

#[cfg(feature = "fabric")]
pub mod fabric;

use std::collections::HashMap;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trellis_testing::{datagram_sockets, listeners};
use trellis_transport::{
    Faults, HEADER_BYTES, INLINE_BODY_BYTES_MAX, Link, Lost, Manner, Multicast, Payload, Placement, Refused, Security,
    Shm, ShmOptions, Sink, Tcp, TcpOptions, Udp, UdpOptions, mesh,
};

pub const SECRET: [u8; 32] = [42; 32];
/// A test in which nothing happens for so long hangs and is a failure; nothing is asserted about how long anything takes.
pub const HANG_SECONDS: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    InProcess,
    Tcp(Security),
    /// Shared memory, or nothing.
    Shm(Security),
    /// The best for each pair, between nodes that consider each other to be on different hosts.
    Apart(Security),
    /// The same, but only the odd nodes are apart.
    Mixed,
    Udp(Security),
    /// Over a network that loses 10 %, duplicates 5 %, reorders 5 % and changes 1 %.
    UdpFaulty(Security),
    /// Over this provider of libfabric.
    #[cfg(feature = "fabric")]
    Fabric(&'static str),
}

/// What [`Kind::UdpFaulty`] does to datagrams.
pub const FAULTS: &str = "drop=10%,duplicate=5%,reorder=5%,corrupt=1%,seed=7";

pub const SECURITIES: [Security; 3] = [Security::Plain, Security::Signed, Security::Sealed];

/// Links of all nodes of a mesh, by node number.
pub fn build(kind: Kind, nodes: usize) -> Vec<Arc<dyn Link>> {
    match kind {
        Kind::InProcess => {
            let ends = mesh(nodes).expect("descriptors for a small mesh");
            ends.into_iter().map(|end| Arc::new(end) as Arc<dyn Link>).collect()
        }
        Kind::Udp(security) => build_udp(nodes, security, None),
        Kind::UdpFaulty(security) => build_udp(nodes, security, Some(&FAULTS.parse().expect("as documented"))),
        #[cfg(feature = "fabric")]
        Kind::Fabric(provider) => {
            let ends = build_fabric(provider, nodes);
            ends.into_iter().map(|end| end as Arc<dyn Link>).collect()
        }
        Kind::Shm(security) => build_shm(nodes, security, Manner::Require, |_| 0),
        Kind::Apart(security) => build_shm(nodes, security, Manner::Prefer, |node| node),
        Kind::Mixed => build_shm(nodes, Security::Plain, Manner::Prefer, |node| if node % 2 == 0 { 0 } else { node }),
        Kind::Tcp(security) => {
            let (listeners, addresses) = listeners(nodes);
            listeners
                .into_iter()
                .enumerate()
                .map(|(node, listener)| {
                    let options = options(node, &addresses, Some(listener), security);
                    Arc::new(Tcp::start(options).expect("a node on loopback")) as Arc<dyn Link>
                })
                .collect()
        }
    }
}

/// Links over a provider of libfabric, by node number.
#[cfg(feature = "fabric")]
pub fn build_fabric(provider: &str, nodes: usize) -> Vec<Arc<trellis_transport::Fabric>> {
    let (listeners, addresses) = listeners(nodes);
    listeners
        .into_iter()
        .enumerate()
        .map(|(node, listener)| {
            let tcp = options(node, &addresses, Some(listener), Security::Plain);
            let options = trellis_transport::FabricOptions { tcp, provider: provider.to_owned() };
            Arc::new(trellis_transport::Fabric::start(options).expect("a node on loopback"))
        })
        .collect()
}

/// Links that choose for each pair; `host` returns where each node runs.
pub fn build_shm(
    nodes: usize,
    security: Security,
    manner: Manner,
    host: impl Fn(usize) -> usize,
) -> Vec<Arc<dyn Link>> {
    let (listeners, addresses) = listeners(nodes);
    listeners
        .into_iter()
        .enumerate()
        .map(|(node, listener)| {
            let tcp = options(node, &addresses, Some(listener), security);
            let host = Some((host(node) as u128).to_le_bytes());
            Arc::new(Shm::start(ShmOptions { tcp, manner, host }).expect("a node on loopback")) as Arc<dyn Link>
        })
        .collect()
}

pub fn udp_options(node: usize, addresses: &[String], socket: Option<UdpSocket>, security: Security) -> UdpOptions {
    UdpOptions {
        node,
        addresses: addresses.to_vec(),
        socket,
        secret: SECRET,
        security,
        hello: b"the same for all".to_vec(),
        admit: Box::new(|_, _| Ok(())),
        refused: Box::new(|_| {}),
        faults: None,
        multicast: Multicast::Automatic,
    }
}

fn build_udp(nodes: usize, security: Security, faults: Option<&Faults>) -> Vec<Arc<dyn Link>> {
    let (sockets, addresses) = datagram_sockets(nodes);
    sockets
        .into_iter()
        .enumerate()
        .map(|(node, socket)| {
            let mut options = udp_options(node, &addresses, Some(socket), security);
            options.faults = faults.cloned();
            Arc::new(Udp::start(options).expect("a node on loopback")) as Arc<dyn Link>
        })
        .collect()
}

pub fn options(node: usize, addresses: &[String], listener: Option<TcpListener>, security: Security) -> TcpOptions {
    TcpOptions {
        node,
        addresses: addresses.to_vec(),
        listener,
        secret: SECRET,
        security,
        hello: b"the same for all".to_vec(),
        admit: Box::new(|_, _| Ok(())),
        refused: Box::new(|_| {}),
    }
}

/// How the receiver must place a body; written into the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Nothing,
    Inline,
    At,
    /// The receiver refuses the frame.
    Refuse,
}

/// A header with everything that a receiver needs to check the frame.
pub fn header(form: Form, sender: u16, sequence: u64, bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0xA5; HEADER_BYTES];
    header[0] = form as u8;
    header[2..4].copy_from_slice(&sender.to_le_bytes());
    header[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header
}

pub fn body(sequence: u64, bytes: usize) -> Vec<u8> {
    // Both factors are odd, so bodies differ from frame to frame and from place to place.
    (0..bytes).map(|at| (sequence.wrapping_mul(37) as usize + at * 13 + at / 251) as u8).collect()
}

pub struct Seen {
    pub form: Form,
    pub sender: u16,
    pub sequence: u64,
    pub bytes: usize,
}

pub fn read_header(header: &[u8; HEADER_BYTES]) -> Seen {
    assert_eq!(header[16..], [0xA5; 16], "the rest of a header arrives as it was sent");
    Seen {
        form: [Form::Nothing, Form::Inline, Form::At, Form::Refuse][usize::from(header[0])],
        sender: u16::from_le_bytes(header[2..4].try_into().expect("two bytes")),
        bytes: u32::from_le_bytes(header[4..8].try_into().expect("four bytes")) as usize,
        sequence: u64::from_le_bytes(header[8..16].try_into().expect("eight bytes")),
    }
}

const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xEE;

/// Checks every frame: body, order by sender, and that nothing but the place was written.
#[derive(Default)]
pub struct Recorder {
    pub connected: Vec<usize>,
    pub lost: Vec<(usize, Lost)>,
    /// Peer, sender within the peer, sequence.
    pub frames: Vec<(usize, u16, u64)>,
    /// The places of bodies of [`Form::At`], by peer, sender and sequence. Several frames of a peer may be placed at
    /// once.
    placed: HashMap<(usize, u16, u64), Vec<u8>>,
    pub check_bodies: bool,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { check_bodies: true, ..Recorder::default() }
    }

    pub fn count_from(&self, peer: usize) -> usize {
        self.frames.iter().filter(|frame| frame.0 == peer).count()
    }

    /// Sequences of one sender of one peer, in the order of arrival.
    pub fn sequences(&self, peer: usize, sender: u16) -> Vec<u64> {
        self.frames.iter().filter(|frame| (frame.0, frame.1) == (peer, sender)).map(|frame| frame.2).collect()
    }

    /// Compares what arrived from one sender with what was sent.
    pub fn expect_sequences(&self, link: &dyn Link, peer: usize, sender: u16, mut expected: Vec<u64>) {
        let mut came = self.sequences(peer, sender);
        if !link.is_ordered() {
            came.sort_unstable();
            expected.sort_unstable();
        }
        assert_eq!(came, expected, "sender {sender} of node {peer} to node {}", link.node());
    }
}

fn room(bytes: usize) -> Vec<u8> {
    vec![GUARD; bytes + 2 * GUARD_BYTES]
}

impl Sink for Recorder {
    fn place(&mut self, peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        assert!(self.connected.contains(&peer), "connected comes before the first frame");
        let seen = read_header(header);
        let bytes = if seen.form == Form::At { seen.bytes } else { 0 };
        let mut place = room(bytes);
        let pointer = place[GUARD_BYTES..].as_mut_ptr();
        let before = self.placed.insert((peer, seen.sender, seen.sequence), place);
        assert!(before.is_none(), "a frame is placed once");
        Ok(match seen.form {
            Form::Nothing => Placement::Nothing,
            Form::Inline => Placement::Inline(seen.bytes),
            Form::At => Placement::At { pointer, bytes: seen.bytes },
            Form::Refuse => return Err("the test does not want this frame".into()),
        })
    }

    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], shown: &[u8]) {
        let seen = read_header(header);
        let place = self.placed.remove(&(peer, seen.sender, seen.sequence)).expect("placed once, then delivered");
        assert!(!self.lost.iter().any(|lost| lost.0 == peer), "nothing after the loss");
        match seen.form {
            Form::Inline => {
                assert!(shown.len() == seen.bytes && seen.bytes <= INLINE_BODY_BYTES_MAX);
                assert!(shown == body(seen.sequence, seen.bytes), "body of {}", seen.sequence);
            }
            Form::At => {
                assert!(shown.is_empty());
                let (before, rest) = place.split_at(GUARD_BYTES);
                let (middle, after) = rest.split_at(seen.bytes);
                assert!(before.iter().chain(after).all(|&byte| byte == GUARD), "only the place");
                if self.check_bodies {
                    assert!(middle == body(seen.sequence, seen.bytes), "body of {}", seen.sequence);
                }
            }
            _ => assert!(shown.is_empty()),
        }
        self.frames.push((peer, seen.sender, seen.sequence));
    }

    fn connected(&mut self, peer: usize) {
        assert!(!self.connected.contains(&peer), "connected comes once");
        self.connected.push(peer);
    }

    fn lost(&mut self, peer: usize, why: &Lost) {
        assert!(!self.lost.iter().any(|lost| lost.0 == peer), "lost comes once");
        self.lost.push((peer, why.clone()));
    }
}

pub fn send_frame(link: &dyn Link, peer: usize, form: Form, sequence: u64, bytes: usize) {
    let bytes_of_body = body(sequence, bytes);
    let payload = if bytes == 0 { Payload::Nothing } else { Payload::Copy(&bytes_of_body) };
    link.send(peer, &header(form, 0, sequence, bytes), payload)
        .unwrap_or_else(|error| panic!("frame {sequence} to node {peer}: {error}"));
}

/// Polls all the links, each into its own recorder, until `done` returns true.
pub fn poll_until(links: &[Arc<dyn Link>], sinks: &mut [Recorder], mut done: impl FnMut(&[Recorder]) -> bool) {
    let mut watch = Watch::new();
    while !done(sinks) {
        for (link, sink) in links.iter().zip(sinks.iter_mut()) {
            link.poll(sink);
        }
        watch.look(sinks.iter().map(|sink| sink.frames.len() + sink.connected.len() + sink.lost.len()).sum());
        std::thread::yield_now();
    }
}

/// Calls this until it returns `wanted`; what it returns grows as long as the test goes on.
pub fn count_up_to(wanted: usize, mut count: impl FnMut() -> usize) {
    let mut watch = Watch::new();
    loop {
        let counted = count();
        if counted == wanted {
            return;
        }
        watch.look(counted);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Fails when nothing has happened for [`HANG_SECONDS`].
struct Watch {
    events: usize,
    since: Instant,
}

impl Watch {
    fn new() -> Watch {
        Watch { events: 0, since: Instant::now() }
    }

    fn look(&mut self, events: usize) {
        if events != self.events {
            *self = Watch { events, since: Instant::now() };
        }
        assert!(self.since.elapsed() < Duration::from_secs(HANG_SECONDS), "the test hangs");
    }
}

pub fn recorders(count: usize) -> Vec<Recorder> {
    (0..count).map(|_| Recorder::new()).collect()
}

/// Waits for something that no poll of this thread causes.
pub fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(HANG_SECONDS), "the test hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}
