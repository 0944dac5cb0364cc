//! Attacks and losses on the udp link have no effect and are counted; how its peers come up and go.
//!
//! The numbers of the wire format are repeated here on purpose: a change of the format must change this file.

mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use support::{Form, Recorder, SECURITIES, body, header, poll_until, recorders, send_frame, udp_options, wait_until};
use trellis_base::Random;
use trellis_testing::datagram_sockets;
use trellis_transport::{HEADER_BYTES, Link, Lost, Payload, Placement, Refused, Security, Sink, Udp};

/// 8 magic, 32 ephemeral, 276 description, 16 tag; the answer has as many.
const HANDSHAKE_BYTES: usize = 332;
const PROTECTED: [Security; 2] = [Security::Signed, Security::Sealed];

#[test]
fn unauthenticated_peers_get_silence_are_counted_and_change_nothing() {
    for security in SECURITIES {
        let (links, mut sinks, addresses) = pair(security);
        let unauthenticated = UdpSocket::bind("127.0.0.1:0").unwrap();
        let random = noise(60_000);
        let mut magic = b"trellis\x11".to_vec();
        magic.extend_from_slice(&random);
        let datagrams: [&[u8]; 9] = [
            b"",
            &random[..1],
            &random[..HANDSHAKE_BYTES],
            &random,
            b"trellis\x11",
            &magic[..HANDSHAKE_BYTES - 1],
            &magic[..HANDSHAKE_BYTES],
            &magic[..HANDSHAKE_BYTES + 1],
            b"trellis\x13 and sixteen more",
        ];
        let before = links[0].statistics().unauthenticated_refused;
        for datagram in datagrams {
            unauthenticated.send_to(datagram, &addresses[0]).unwrap();
        }
        wait_until(|| links[0].statistics().unauthenticated_refused == before + datagrams.len() as u64);
        exchange(&links, &mut sinks, 0);
        expect_nothing(&unauthenticated);
    }
}

#[test]
fn a_node_with_another_secret_never_gets_in_and_gets_no_byte() {
    for secret in [[43; 32], [0; 32]] {
        let (mut ports, addresses) = datagram_sockets(2);
        let zero = start(0, &addresses, Some(ports.remove(0)), Security::Sealed);
        let proxy = Proxy::start(&addresses[0]);
        let mut options = udp_options(1, &[proxy.address.to_string(), addresses[1].clone()], None, Security::Sealed);
        options.socket = Some(ports.remove(0));
        options.secret = secret;
        let intruder = Udp::start(options).unwrap();
        send_frame(&intruder, 0, Form::Inline, 0, 10);
        wait_until(|| intruder.trouble(0).is_some_and(|why| why.contains("another secret")));
        assert!(zero.statistics().unauthenticated_refused > 0);
        assert!(!zero.is_connected(1) && !intruder.is_connected(0));
        assert_eq!(proxy.counts().answered, 0, "not one datagram");
    }
}

#[test]
fn datagrams_changed_cut_repeated_and_sent_back_change_nothing() {
    const FRAMES: u64 = 60;
    for security in PROTECTED {
        let scene = Scene::new(security);
        let (links, mut sinks) = (&scene.links, recorders(2));
        connect(links, &mut sinks);
        scene.proxy.tamper(Tamper::Everything);
        for sequence in 0..FRAMES {
            send_frame(&*links[0], 1, Form::At, sequence, 3000);
            send_frame(&*links[1], 0, Form::At, sequence, 100_000);
        }
        poll_until(links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.frames.len() as u64 == FRAMES));
        for (node, link) in links.iter().enumerate() {
            sinks[node].expect_sequences(&**link, 1 - node, 0, (0..FRAMES).collect());
            assert!(sinks[node].lost.is_empty());
            let all = link.statistics();
            assert!(all.packets_refused > 0, "{security} node {node}: {all:?}");
            assert_eq!(all.frames_refused, 0);
        }
    }
}

#[test]
fn a_recorded_conversation_said_again_changes_nothing() {
    for security in SECURITIES {
        let scene = Scene::new(security);
        let (links, mut sinks) = (&scene.links, recorders(2));
        for sequence in 0..20 {
            send_frame(&*links[1], 0, Form::At, sequence, 5000);
        }
        poll_until(links, &mut sinks, |sinks| sinks[0].frames.len() == 20);
        let before = links[0].statistics();
        let recorded = scene.proxy.said();
        assert!(recorded.len() > 20 && recorded[0].len() == HANDSHAKE_BYTES);
        // From the address of the original sender, and from another.
        let unauthenticated = UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in &recorded {
            scene.proxy.back.send(datagram).unwrap();
            unauthenticated.send_to(datagram, &scene.addresses[0]).unwrap();
        }
        let data = recorded.iter().filter(|datagram| !datagram.starts_with(b"trellis")).count() as u64;
        poll_until(links, &mut sinks, |_| links[0].statistics().packets_refused >= before.packets_refused + data);
        assert_eq!(sinks[0].frames.len(), 20);
        let wanted = before.unauthenticated_refused + recorded.len() as u64;
        wait_until(|| links[0].statistics().unauthenticated_refused >= wanted);
        expect_nothing(&unauthenticated);
        exchange(links, &mut sinks, 100);
    }
}

#[test]
fn a_sealed_link_shows_nothing_and_a_signed_one_shows_everything() {
    for (security, shown) in [(Security::Signed, true), (Security::Sealed, false)] {
        let scene = Scene::new(security);
        let (links, mut sinks) = (&scene.links, recorders(2));
        send_frame(&*links[1], 0, Form::At, 3, 6000);
        poll_until(links, &mut sinks, |sinks| sinks[0].frames.len() == 1);
        let said = scene.proxy.said().concat();
        let text = body(3, 6000);
        assert_eq!(said.windows(64).any(|window| window == &text[1000..1064]), shown);
        assert_eq!(said.windows(16).any(|window| window == [0xA5; 16]), shown, "the header");
        assert!(!said.windows(16).any(|window| window == b"the same for all"), "the hello");
    }
}

/// The supplier's page changes after the receiver has it, while the supplier, which got no acknowledgement, sends it
/// again and again: the receiver's copy stays unchanged.
#[test]
fn a_page_that_is_sent_again_after_it_changed_changes_nothing_at_the_receiver() {
    struct Buffer(Vec<u8>, usize);
    impl Sink for Buffer {
        fn place(&mut self, _peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
            let bytes = support::read_header(header).bytes;
            assert_eq!(bytes, self.0.len());
            Ok(Placement::At { pointer: self.0.as_mut_ptr(), bytes })
        }
        fn deliver(&mut self, _peer: usize, _header: &[u8; HEADER_BYTES], _body: &[u8]) {
            self.1 += 1;
        }
        fn connected(&mut self, _peer: usize) {}
        fn lost(&mut self, peer: usize, why: &Lost) {
            panic!("node {peer}: {why}");
        }
    }
    for security in SECURITIES {
        for bytes in [4096, 200_000] {
            let old = body(1, bytes);
            let page = Mutex::new(old.clone());
            let pointer = page.lock().unwrap().as_ptr();
            let scene = Scene::new(security);
            let links = &scene.links;
            let mut sinks = recorders(2);
            connect(links, &mut sinks);
            let mut buffer = Buffer(vec![0; bytes], 0);
            scene.proxy.tamper(Tamper::NoAnswers);
            links[1].send(0, &header(Form::At, 0, 1, bytes), Payload::Pinned(pointer, bytes)).unwrap();
            let mut poll = |buffer: &mut Buffer| {
                links[0].poll(buffer);
                links[1].poll(&mut sinks[1]);
            };
            // Only what the first window holds passes while no answer does; then the rest is let through.
            if bytes > 4096 {
                scene.proxy.tamper(Tamper::Nothing);
            }
            wait_until(|| {
                poll(&mut buffer);
                buffer.1 == 1
            });
            scene.proxy.tamper(Tamper::NoAnswers);
            page.lock().unwrap().fill(0xFF);
            let before = links[0].statistics().packets_duplicate;
            if bytes == 4096 {
                wait_until(|| {
                    poll(&mut buffer);
                    links[0].statistics().packets_duplicate >= before + 3
                });
            }
            scene.proxy.tamper(Tamper::Nothing);
            wait_until(|| {
                poll(&mut buffer);
                links[1].statistics().peers[0].queued_bytes == 0
            });
            assert!(buffer.0 == old, "{security}: the receiver keeps what it had");
            assert_eq!(buffer.1, 1);
        }
    }
}

#[test]
fn a_peer_whose_socket_is_gone_is_noticed_and_the_sender_told() {
    let scene = Scene::new(Security::Sealed);
    let mut sinks = recorders(2);
    connect(&scene.links, &mut sinks);
    let Scene { links, proxy, .. } = scene;
    // For node 1 the proxy is its peer, and it disappears silently, like a killed process.
    drop(proxy);
    poll_until(&links[1..], &mut sinks[1..], |sinks| sinks[0].lost.len() == 1);
    assert_eq!(sinks[1].lost, [(0, Lost::Ended)]);
}

#[test]
fn a_peer_that_starts_late_gets_what_was_sent_before() {
    for security in SECURITIES {
        let (mut ports, addresses) = datagram_sockets(2);
        // Nothing listens at node 0's address until it starts.
        drop(ports.remove(0));
        let early = start(1, &addresses, ports.pop(), security);
        for sequence in 0..50 {
            send_frame(&*early, 0, Form::At, sequence, 5000);
        }
        let wanted = format!("no process listens at {} yet", addresses[0]);
        wait_until(|| early.trouble(0).as_ref() == Some(&wanted));
        assert!(!early.is_connected(0) && !early.is_lost(0));
        let late = start(0, &addresses, None, security);
        let links = [late, early];
        let mut sinks = recorders(2);
        poll_until(&links, &mut sinks, |sinks| sinks[0].frames.len() == 50);
        sinks[0].expect_sequences(&*links[0], 1, 0, (0..50).collect());
        assert!(links[1].is_connected(0) && links[1].trouble(0).is_none());
        assert_eq!(links[0].statistics().unauthenticated_refused, 0);
    }
}

#[test]
fn a_node_whose_hello_is_not_wanted_is_told_why_and_so_is_its_user() {
    let (mut ports, addresses) = datagram_sockets(2);
    let refusals: [Arc<Mutex<Vec<String>>>; 2] = Default::default();
    let links: Vec<Arc<dyn Link>> = (0..2)
        .map(|node| {
            let mut options = udp_options(node, &addresses, Some(ports.remove(0)), Security::Sealed);
            options.hello = format!("hello from {node}").into_bytes();
            let refusals = Arc::clone(&refusals[node]);
            options.admit = Box::new(move |peer, hello| {
                assert_eq!(hello, format!("hello from {peer}").as_bytes());
                if peer == 1 { Err("node 1 is green".into()) } else { Ok(()) }
            });
            options.refused = Box::new(move |why| refusals.lock().unwrap().push(why));
            Arc::new(Udp::start(options).unwrap()) as Arc<dyn Link>
        })
        .collect();
    let mut sinks = recorders(2);
    poll_until(&links, &mut sinks, |sinks| sinks[1].lost.len() == 1);
    let why = "node 0 refused this node: node 1 is green".to_owned();
    assert_eq!(sinks[1].lost, [(0, Lost::NodeRefused { why: why.clone() })]);
    assert_eq!(*refusals[1].lock().unwrap(), [why]);
    assert_eq!(*refusals[0].lock().unwrap(), ["node 1 was refused: node 1 is green"]);
    assert_eq!(links[0].statistics().nodes_refused, 1);
    assert!(!links[0].is_connected(1) && !links[0].is_lost(1));
}

/// The loopback kernel takes 64 KiB at a time, so a page is one datagram, and so is its request.
#[test]
fn a_page_on_loopback_is_one_datagram() {
    let (links, mut sinks, _) = pair(Security::Sealed);
    connect(&links, &mut sinks);
    let before = links[1].statistics().packets_out;
    send_frame(&*links[1], 0, Form::At, 0, 4096);
    assert_eq!(links[1].statistics().packets_out, before + 1);
}

fn start(node: usize, addresses: &[String], socket: Option<UdpSocket>, security: Security) -> Arc<dyn Link> {
    Arc::new(Udp::start(udp_options(node, addresses, socket, security)).expect("a node on loopback"))
}

fn pair(security: Security) -> (Vec<Arc<dyn Link>>, Vec<Recorder>, Vec<String>) {
    let (ports, addresses) = datagram_sockets(2);
    let links = ports.into_iter().enumerate().map(|(node, port)| start(node, &addresses, Some(port), security));
    (links.collect(), recorders(2), addresses)
}

fn connect(links: &[Arc<dyn Link>], sinks: &mut [Recorder]) {
    poll_until(links, sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == 1));
}

/// Sends a frame in each direction.
fn exchange(links: &[Arc<dyn Link>], sinks: &mut [Recorder], sequence: u64) {
    send_frame(&*links[0], 1, Form::At, sequence, 20_000);
    send_frame(&*links[1], 0, Form::At, sequence, 20_000);
    poll_until(links, sinks, |sinks| (0..2).all(|node| sinks[node].sequences(1 - node, 0).contains(&sequence)));
    assert!(sinks.iter().all(|sink| sink.lost.is_empty()));
}

fn expect_nothing(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let error = socket.recv_from(&mut [0; 2000]).expect_err("not one byte of an answer");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

/// Node 0, and node 1, which reaches it through a proxy.
struct Scene {
    links: Vec<Arc<dyn Link>>,
    addresses: Vec<String>,
    proxy: Proxy,
}

impl Scene {
    fn new(security: Security) -> Scene {
        let (mut ports, addresses) = datagram_sockets(2);
        let zero = start(0, &addresses, Some(ports.remove(0)), security);
        let proxy = Proxy::start(&addresses[0]);
        let seen_by_one = [proxy.address.to_string(), addresses[1].clone()];
        let one = start(1, &seen_by_one, ports.pop(), security);
        Scene { links: vec![zero, one], addresses, proxy }
    }
}

/// What a proxy does to datagrams.
#[derive(Clone, Copy, PartialEq)]
enum Tamper {
    Nothing,
    /// Each datagram is accompanied by a copy with a flipped bit, a truncated one, an old one and a forged one; some
    /// are sent only changed.
    Everything,
    /// Answers of the listening node are dropped.
    NoAnswers,
}

#[derive(Clone, Copy)]
struct Counts {
    answered: usize,
}

/// Stands between a dialling node and node 0, and forwards the datagrams of each to the other.
struct Proxy {
    address: SocketAddr,
    back: UdpSocket,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    tamper: Mutex<Tamper>,
    said: Mutex<Vec<Vec<u8>>>,
    answered: AtomicUsize,
    dialler: Mutex<Option<SocketAddr>>,
}

impl Proxy {
    fn start(target: &str) -> Proxy {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let back = UdpSocket::bind("127.0.0.1:0").unwrap();
        back.connect(target).unwrap();
        for socket in [&front, &back] {
            // Only so that the threads notice that they must end.
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        }
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            tamper: Mutex::new(Tamper::Nothing),
            said: Mutex::default(),
            answered: AtomicUsize::new(0),
            dialler: Mutex::new(None),
        });
        let address = front.local_addr().unwrap();
        let ends = |front: &UdpSocket, back: &UdpSocket| {
            (front.try_clone().unwrap(), back.try_clone().unwrap(), Arc::clone(&shared))
        };
        let (near, far, state) = ends(&front, &back);
        let said = std::thread::spawn(move || carry_said(&near, &far, &state));
        let (near, far, state) = ends(&front, &back);
        let answers = std::thread::spawn(move || carry_answers(&near, &far, &state));
        Proxy { address, back, shared, threads: vec![said, answers] }
    }

    fn tamper(&self, tamper: Tamper) {
        *self.shared.tamper.lock().unwrap() = tamper;
    }

    fn said(&self) -> Vec<Vec<u8>> {
        self.shared.said.lock().unwrap().clone()
    }

    fn counts(&self) -> Counts {
        Counts { answered: self.shared.answered.load(Ordering::SeqCst) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn carry_said(front: &UdpSocket, back: &UdpSocket, shared: &Shared) {
    let mut room = vec![0; 65_536];
    let (mut count, mut old) = (0, Vec::new());
    while !shared.stop.load(Ordering::SeqCst) {
        let Ok((bytes, dialler)) = front.recv_from(&mut room) else { continue };
        *shared.dialler.lock().unwrap() = Some(dialler);
        shared.said.lock().unwrap().push(room[..bytes].to_vec());
        count += 1;
        let tamper = *shared.tamper.lock().unwrap();
        if tamper == Tamper::Everything {
            spoil(count, &room[..bytes], &mut old, |bytes| drop(back.send(bytes)));
            let _ = front.send_to(&room[..bytes], dialler);
        }
        if tamper != Tamper::Everything || !count.is_multiple_of(7) {
            let _ = back.send(&room[..bytes]);
        }
    }
}

fn carry_answers(front: &UdpSocket, back: &UdpSocket, shared: &Shared) {
    let mut room = vec![0; 65_536];
    let (mut count, mut old) = (0, Vec::new());
    while !shared.stop.load(Ordering::SeqCst) {
        let Ok(bytes) = back.recv(&mut room) else { continue };
        let Some(dialler) = *shared.dialler.lock().unwrap() else { continue };
        shared.answered.fetch_add(1, Ordering::SeqCst);
        count += 1;
        let tamper = *shared.tamper.lock().unwrap();
        if tamper == Tamper::NoAnswers {
            continue;
        }
        if tamper == Tamper::Everything {
            spoil(count, &room[..bytes], &mut old, |bytes| drop(front.send_to(bytes, dialler)));
        }
        if tamper != Tamper::Everything || !count.is_multiple_of(7) {
            let _ = front.send_to(&room[..bytes], dialler);
        }
    }
}

/// Sends a copy with a flipped bit, a truncated one, and an earlier one.
fn spoil(count: usize, datagram: &[u8], old: &mut Vec<u8>, send: impl Fn(&[u8])) {
    let mut changed = datagram.to_vec();
    let at = count * 131 % changed.len();
    changed[at] ^= 1 << (count % 8);
    send(&changed);
    send(&datagram[..datagram.len() - 1 - count % 20]);
    send(old);
    if count.is_multiple_of(5) {
        *old = datagram.to_vec();
    }
}

/// Bytes without a pattern, the same in every run.
fn noise(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    (0..bytes).map(|_| random.draw() as u8).collect()
}
