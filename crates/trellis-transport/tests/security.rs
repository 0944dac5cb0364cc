//! Attacks on the tcp link have no effect and are counted: unauthenticated peers, and changes in transit.
//!
//! The numbers of the wire format are repeated here on purpose: a change of the format must change this file.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use support::{Form, HANG_SECONDS, Recorder, SECURITIES, body, options, poll_until, recorders, send_frame, wait_until};
use trellis_base::Random;
use trellis_testing::listeners;
use trellis_transport::links::tcp::question::{self, AskError};
use trellis_transport::{Link, Lost, Security, Tcp};

/// 8 magic, 32 ephemeral, 276 description, 16 tag.
const FIRST_MESSAGE_BYTES: usize = 332;
/// 32 ephemeral, 276 description, 16 tag.
const SECOND_MESSAGE_BYTES: usize = 324;
/// Where frames begin in the dialling node's stream: after the first message and 16 bytes of confirmation.
const FRAMES_FROM_DIALLER: usize = FIRST_MESSAGE_BYTES + 16;
const HEADER_ON_WIRE: usize = 32 + 16;
const PROTECTED: [Security; 2] = [Security::Signed, Security::Sealed];

#[test]
fn unauthenticated_peers_get_silence_are_counted_and_change_nothing() {
    for security in SECURITIES {
        let mut scene = Scene::new(security);
        let random = noise(4096);
        let mut magic_then_noise = b"trellis\x01".to_vec();
        magic_then_noise.extend_from_slice(&noise(1 << 20));
        let unauthenticated: [(&str, &[u8]); 8] = [
            ("nothing at all", b""),
            ("random bytes, short", &random[..40]),
            ("random bytes, as long as a first message", &random[..FIRST_MESSAGE_BYTES]),
            ("random bytes, long", &random),
            ("a request of the web", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            ("the right beginning, truncated", &magic_then_noise[..100]),
            ("the right beginning, random rest", &magic_then_noise[..FIRST_MESSAGE_BYTES]),
            ("the right beginning, oversize", &magic_then_noise),
        ];
        for (name, bytes) in unauthenticated {
            scene.expect_silence(name, bytes);
        }
        scene.expect_others_go_on();
    }
}

/// A process that knows the secret may ask a question before it is a node; no other process learns anything, and
/// nothing is answered twice.
#[test]
fn a_question_is_answered_once_and_only_to_those_who_know_the_secret() {
    let (mut listening, addresses) = listeners(2);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let answer = move |meant_for_this: bool, question: &[u8]| {
        heard.lock().unwrap().push((meant_for_this, question.to_vec()));
        if question == b"no" { Err("it will not".to_owned()) } else { Ok([b"re: ", question].concat()) }
    };
    let node =
        Tcp::start_and_answer(options(0, &addresses, Some(listening.remove(0)), Security::Plain), Box::new(answer))
            .unwrap();
    let proxy = Proxy::start(addresses[0].parse().unwrap(), Tamper::default());
    let door = proxy.address.to_string();
    let timeout = Duration::from_secs(HANG_SECONDS);
    let ask = |node, secret, question: &[u8]| question::ask(&door, node, secret, question, timeout);
    let answered = ask(Some(0), &support::SECRET, b"who?").unwrap();
    assert_eq!((answered.text.as_slice(), answered.local.is_loopback()), (b"re: who?".as_slice(), true));
    assert!(matches!(ask(None, &support::SECRET, b"no"), Err(AskError::Refused { why }) if why == "it will not"));
    assert!(matches!(ask(Some(1), &support::SECRET, b"not yours"), Err(AskError::Silent { .. })));
    assert!(matches!(ask(None, &[43; 32], b"strange"), Err(AskError::Silent { .. })));
    assert!(matches!(ask(None, &support::SECRET, &[0; 300]), Err(AskError::TooLong { bytes: 300 })));
    let expected = [(true, b"who?".to_vec()), (false, b"no".to_vec())];
    assert_eq!(*asked.lock().unwrap(), expected);
    // The first question again, as recorded.
    let recording = proxy.said.lock().unwrap()[..FIRST_MESSAGE_BYTES].to_vec();
    let mut replay = TcpStream::connect(&addresses[0]).unwrap();
    replay.write_all(&recording).unwrap();
    assert_eq!(all_answered(&mut replay), b"");
    assert_eq!(*asked.lock().unwrap(), expected);
    assert_eq!(node.statistics().unauthenticated_refused, 3);
}

/// The connection of a peer that sends something else first and waits for an answer, as browsers and scanners do, is
/// closed without waiting for the deadline.
#[test]
fn a_foreign_protocol_is_hung_up_on_at_once() {
    let scene = Scene::new(Security::Signed);
    let mut stream = TcpStream::connect(scene.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(all_answered(&mut stream), b"");
}

#[test]
fn a_node_with_another_secret_or_none_never_gets_in() {
    for security in SECURITIES {
        for secret in [[43; 32], [0; 32]] {
            let mut scene = Scene::new(security);
            let proxy = Proxy::start(scene.address, Tamper::default());
            let mut options = options(1, &scene.addresses_through(&proxy), None, security);
            options.secret = secret;
            options.listener = Some(TcpListener::bind("127.0.0.1:0").unwrap());
            let intruder: Arc<dyn Link> = Arc::new(Tcp::start(options).unwrap());
            send_frame(&*intruder, 0, Form::Inline, 0, 10);
            wait_until(|| intruder.trouble(0).is_some_and(|why| why.contains("another secret")));
            assert!(scene.links[0].statistics().unauthenticated_refused > 0);
            assert!(!scene.links[0].is_connected(1) && !intruder.is_connected(0));
            assert_eq!(proxy.answered_bytes.load(Ordering::SeqCst), 0, "not one byte");
            intruder.close();
            scene.expect_others_go_on();
            assert!(!scene.sinks[0].connected.contains(&1));
        }
    }
}

#[test]
fn a_recorded_first_message_gets_silence_wherever_it_is_sent() {
    for security in SECURITIES {
        let mut scene = Scene::new(security);
        let proxy = Proxy::start(scene.address, Tamper::default());
        let node = scene.join_through(&proxy);
        scene.poll_with(&node, |scene, _| scene.sinks[0].connected.contains(&1));
        let recorded = proxy.said.lock().unwrap()[..FIRST_MESSAGE_BYTES].to_vec();
        let second = SECOND_MESSAGE_BYTES;
        wait_until(|| proxy.answered_bytes.load(Ordering::SeqCst) >= second);
        scene.expect_silence("replayed to the same node", &recorded);
        let elsewhere = scene.other_address;
        let before = scene.links[1].statistics().unauthenticated_refused;
        assert_eq!(answer_to(elsewhere, &recorded), b"", "replayed to another node");
        assert_eq!(scene.links[1].statistics().unauthenticated_refused, before + 1);
        scene.expect_others_go_on();
        // The node whose messages were replayed is still connected too.
        send_frame(&**node.link(), 0, Form::At, 77, 5000);
        scene.poll_with(&node, |scene, _| scene.sinks[0].count_from(1) == 1);
    }
}

#[test]
fn a_tampered_handshake_comes_to_nothing_and_the_next_one_succeeds() {
    // In the first message: magic, ephemeral, description, tag; then in the confirmation.
    for at in [3, 8, 60, 330, 340] {
        let mut scene = Scene::new(Security::Sealed);
        let proxy = Proxy::start(scene.address, Tamper { flip_said: Some(at), ..Tamper::default() });
        let node = scene.join_through(&proxy);
        if at < FIRST_MESSAGE_BYTES {
            // Only the first connection is tampered with: the node tries again.
            scene.poll_with(&node, |scene, _| scene.sinks[0].connected.contains(&1));
        } else {
            // The dialling node considered the handshake complete: it sees the hang-up as a loss.
            scene.poll_with(&node, |_, node| node.lost.len() == 1);
            assert!(!scene.links[0].is_connected(1));
        }
        assert_eq!(scene.links[0].statistics().unauthenticated_refused, 1, "byte {at}");
        scene.expect_others_go_on();
    }
    // In the answer: ephemeral, description, tag.
    for at in [0, 50, 320] {
        let mut scene = Scene::new(Security::Sealed);
        let tamper = Tamper { flip_answered: Some(at), ..Tamper::default() };
        let proxy = Proxy::start(scene.address, tamper);
        let node = scene.join_through(&proxy);
        scene.poll_with(&node, |scene, _| scene.sinks[0].connected.contains(&1));
        assert_eq!(node.link().statistics().unauthenticated_refused, 1, "byte {at}");
    }
}

#[test]
fn a_flipped_bit_in_any_part_of_a_frame_is_noticed_before_delivery() {
    const BODY: usize = 5000;
    let parts = [
        ("header", 5),
        ("header tag", 32 + 3),
        ("body", HEADER_ON_WIRE + 100),
        ("end of the body", HEADER_ON_WIRE + BODY - 1),
        ("body tag", HEADER_ON_WIRE + BODY + 7),
    ];
    for security in PROTECTED {
        for form in [Form::At, Form::Inline] {
            let bytes = if form == Form::At { BODY } else { 300 };
            for (name, at) in parts {
                let at = if form == Form::At { at } else { at.min(HEADER_ON_WIRE + bytes + 10) };
                let mut scene = Scene::new(security);
                let flip_said = Some(FRAMES_FROM_DIALLER + at);
                let proxy = Proxy::start(scene.address, Tamper { flip_said, ..Tamper::default() });
                let node = scene.join_through(&proxy);
                send_frame(&**node.link(), 0, form, 0, bytes);
                scene.poll_with(&node, |scene, _| scene.sinks[0].lost.len() == 1);
                assert_eq!(scene.sinks[0].lost, [(1, Lost::Forged)], "{security} {name}");
                assert_eq!(scene.sinks[0].count_from(1), 0, "{security} {name}");
                assert_eq!(scene.links[0].statistics().frames_refused, 1);
                scene.expect_others_go_on();
            }
        }
    }
}

#[test]
fn a_frame_that_is_repeated_dropped_or_sent_back_is_noticed() {
    for security in PROTECTED {
        let frame_bytes = HEADER_ON_WIRE + 100 + 16;
        let first_frame = (FRAMES_FROM_DIALLER, FRAMES_FROM_DIALLER + frame_bytes);
        let repeated = Tamper { repeat_said: Some(first_frame), ..Tamper::default() };
        let dropped = Tamper { drop_said: Some(first_frame), ..Tamper::default() };
        for (tamper, delivered) in [(repeated, 1), (dropped, 0)] {
            let mut scene = Scene::new(security);
            let proxy = Proxy::start(scene.address, tamper);
            let node = scene.join_through(&proxy);
            for sequence in 0..3 {
                send_frame(&**node.link(), 0, Form::Inline, sequence, 100);
            }
            scene.poll_with(&node, |scene, _| scene.sinks[0].lost.len() == 1);
            assert_eq!(scene.sinks[0].lost, [(1, Lost::Forged)]);
            assert_eq!(scene.sinks[0].count_from(1), delivered);
            scene.expect_others_go_on();
        }
        let mut scene = Scene::new(security);
        let tamper = Tamper { reflect_from: Some(FRAMES_FROM_DIALLER), ..Tamper::default() };
        let proxy = Proxy::start(scene.address, tamper);
        let node = scene.join_through(&proxy);
        send_frame(&**node.link(), 0, Form::Inline, 0, 100);
        scene.poll_with(&node, |_, node| node.lost.len() == 1);
        assert_eq!(node.sink.lock().unwrap().lost, [(0, Lost::Forged)], "its own frame");
        assert!(node.sink.lock().unwrap().frames.is_empty());
        scene.expect_others_go_on();
    }
}

#[test]
fn a_stream_cut_within_a_frame_is_a_loss_and_no_frame() {
    for security in SECURITIES {
        let tag = if security == Security::Plain { 0 } else { 16 };
        for part in [10, 32 + tag + 1000, 32 + tag + 8999] {
            let mut scene = Scene::new(security);
            let cut_said = Some(FRAMES_FROM_DIALLER + part);
            let proxy = Proxy::start(scene.address, Tamper { cut_said, ..Tamper::default() });
            let node = scene.join_through(&proxy);
            send_frame(&**node.link(), 0, Form::At, 0, 9000);
            scene.poll_with(&node, |scene, _| scene.sinks[0].lost.len() == 1);
            assert_eq!(scene.sinks[0].lost, [(1, Lost::Truncated)], "{security} after {part}");
            assert_eq!(scene.sinks[0].count_from(1), 0);
            scene.expect_others_go_on();
        }
    }
}

#[test]
fn a_sealed_link_shows_nothing_and_a_signed_one_shows_everything() {
    for (security, shown) in [(Security::Signed, true), (Security::Sealed, false)] {
        let mut scene = Scene::new(security);
        let proxy = Proxy::start(scene.address, Tamper::default());
        let node = scene.join_through(&proxy);
        send_frame(&**node.link(), 0, Form::At, 3, 6000);
        scene.poll_with(&node, |scene, _| scene.sinks[0].count_from(1) == 1);
        let said = proxy.said.lock().unwrap();
        let (frame, text) = (&said[FRAMES_FROM_DIALLER..], body(3, 6000));
        assert_eq!(frame.windows(64).any(|window| window == &text[1000..1064]), shown);
        assert_eq!(frame.windows(16).any(|window| window == [0xA5; 16]), shown, "the header");
        // The hello is encrypted whatever the security of frames.
        assert!(!said.windows(16).any(|window| window == b"the same for all"));
    }
}

/// Unauthenticated peers that connect and send nothing take places only from other unauthenticated peers.
#[test]
fn a_crowd_of_silent_peers_keeps_no_node_out() {
    let mut scene = Scene::new(Security::Sealed);
    let crowd: Vec<_> = (0..150).map(|_| TcpStream::connect(scene.address).unwrap()).collect();
    let proxy = Proxy::start(scene.address, Tamper::default());
    let node = scene.join_through(&proxy);
    scene.poll_with(&node, |scene, _| scene.sinks[0].connected.contains(&1));
    send_frame(&**node.link(), 0, Form::At, 0, 5000);
    scene.poll_with(&node, |scene, _| scene.sinks[0].count_from(1) == 1);
    for mut unauthenticated in crowd {
        unauthenticated.shutdown(Shutdown::Write).unwrap();
        assert_eq!(all_answered(&mut unauthenticated), b"");
    }
    scene.expect_others_go_on();
}

/// An address at which nobody listens: its port is never given to a socket that asks for any.
const NOBODY: &str = "127.0.0.1:1";

/// Node 0 under attack, and node 2, which communicates with it all the time. The test plays node 1.
struct Scene {
    security: Security,
    address: SocketAddr,
    other_address: SocketAddr,
    addresses: Vec<String>,
    /// Nodes 0 and 2.
    links: Vec<Arc<dyn Link>>,
    sinks: Vec<Recorder>,
    sequence: u64,
}

/// Node 1, which reaches node 0 through a proxy.
struct Node {
    links: [Arc<dyn Link>; 1],
    sink: Mutex<Recorder>,
}

impl Node {
    fn link(&self) -> &Arc<dyn Link> {
        &self.links[0]
    }
}

impl Scene {
    fn new(security: Security) -> Scene {
        let (mut ports, mut addresses) = listeners(3);
        // Node 2 dials node 1 all the time. A port that is only free may become that of another test.
        addresses[1] = NOBODY.to_owned();
        let other_address = ports[2].local_addr().unwrap();
        let two = Tcp::start(options(2, &addresses, ports.pop(), security)).unwrap();
        ports.pop();
        let address = ports[0].local_addr().unwrap();
        let zero = Tcp::start(options(0, &addresses, ports.pop(), security)).unwrap();
        let links: Vec<Arc<dyn Link>> = vec![Arc::new(zero), Arc::new(two)];
        let sinks = recorders(2);
        let mut scene = Scene { security, address, other_address, addresses, links, sinks, sequence: 0 };
        scene.expect_others_go_on();
        scene
    }

    /// Checks that nodes 0 and 2 exchange a frame each way, and have not lost each other.
    fn expect_others_go_on(&mut self) {
        let sequence = self.sequence;
        self.sequence += 1;
        send_frame(&*self.links[0], 2, Form::At, sequence, 20_000);
        send_frame(&*self.links[1], 0, Form::At, sequence, 20_000);
        poll_until(&self.links, &mut self.sinks, |sinks| {
            sinks[0].sequences(2, 0).contains(&sequence) && sinks[1].sequences(0, 0).contains(&sequence)
        });
        assert!(self.sinks[0].lost.iter().all(|lost| lost.0 == 1));
        assert!(self.sinks[1].lost.is_empty());
    }

    fn expect_silence(&mut self, name: &str, bytes: &[u8]) {
        let before = self.links[0].statistics().unauthenticated_refused;
        assert_eq!(answer_to(self.address, bytes), b"", "{name}");
        assert_eq!(self.links[0].statistics().unauthenticated_refused, before + 1, "{name} is counted");
        self.expect_others_go_on();
    }

    fn addresses_through(&self, proxy: &Proxy) -> Vec<String> {
        let mut addresses = self.addresses.clone();
        addresses[0] = proxy.address.to_string();
        addresses
    }

    fn join_through(&self, proxy: &Proxy) -> Node {
        let port = Some(TcpListener::bind("127.0.0.1:0").unwrap());
        let options = options(1, &self.addresses_through(proxy), port, self.security);
        let link: Arc<dyn Link> = Arc::new(Tcp::start(options).unwrap());
        Node { links: [link], sink: Mutex::new(Recorder::new()) }
    }

    fn poll_with(&mut self, node: &Node, mut done: impl FnMut(&Scene, &Recorder) -> bool) {
        wait_until(|| {
            for (link, sink) in self.links.iter().zip(&mut self.sinks) {
                link.poll(sink);
            }
            let mut sink = node.sink.lock().unwrap();
            node.links[0].poll(&mut *sink);
            done(self, &sink)
        });
    }
}

/// What to do to the first connection through a proxy; later ones pass untouched.
#[derive(Clone, Copy, Default)]
struct Tamper {
    /// Flip a bit of this byte of what the dialling node sends.
    flip_said: Option<usize>,
    /// The same for what is answered.
    flip_answered: Option<usize>,
    /// Send these bytes twice; leave these bytes out.
    repeat_said: Option<(usize, usize)>,
    drop_said: Option<(usize, usize)>,
    /// End the connection after so many bytes.
    cut_said: Option<usize>,
    /// Send everything from here on back to its sender, and nothing onward.
    reflect_from: Option<usize>,
}

/// Stands between a dialling node and node 0.
struct Proxy {
    address: SocketAddr,
    /// What the dialling node sent, over all connections.
    said: Arc<Mutex<Vec<u8>>>,
    answered_bytes: Arc<AtomicUsize>,
}

impl Proxy {
    fn start(target: SocketAddr, tamper: Tamper) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let answered_bytes = Arc::new(AtomicUsize::new(0));
        let (said_there, answered_there) = (Arc::clone(&said), Arc::clone(&answered_bytes));
        // Ends with the test process; a connection ends with either of its ends.
        std::thread::spawn(move || {
            let mut tamper = tamper;
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(target) else { continue };
                let answers = pump_answers(&near, &far, tamper, Arc::clone(&answered_there));
                pump_said(near, far, tamper, &said_there);
                drop(answers);
                tamper = Tamper::default();
            }
        });
        Proxy { address, said, answered_bytes }
    }
}

/// Forwards what the dialling node sends, tampered with, until it or the connection ends.
fn pump_said(mut near: TcpStream, mut far: TcpStream, tamper: Tamper, said: &Mutex<Vec<u8>>) {
    let mut offset = 0;
    let mut room = vec![0; 64 << 10];
    'stream: while let Ok(count @ 1..) = near.read(&mut room) {
        said.lock().unwrap().extend_from_slice(&room[..count]);
        let mut out = Vec::new();
        for (at, &byte) in (offset..).zip(&room[..count]) {
            if tamper.cut_said == Some(at) {
                let _ = far.write_all(&out);
                break 'stream;
            }
            if tamper.reflect_from.is_some_and(|from| at >= from) {
                let _ = near.write_all(&[byte]);
                continue;
            }
            if !tamper.drop_said.is_some_and(|(from, to)| (from..to).contains(&at)) {
                out.push(if tamper.flip_said == Some(at) { byte ^ 4 } else { byte });
            }
            if tamper.repeat_said.is_some_and(|(_, to)| at + 1 == to) {
                let (from, to) = tamper.repeat_said.unwrap_or_default();
                out.extend_from_slice(&said.lock().unwrap()[from..to]);
            }
        }
        offset += count;
        if far.write_all(&out).is_err() {
            break;
        }
    }
    // Ends only this direction first: the other still carries the answers.
    let _ = far.shutdown(Shutdown::Write);
    if tamper.cut_said.is_some() {
        let _ = near.shutdown(Shutdown::Both);
    }
}

fn pump_answers(near: &TcpStream, far: &TcpStream, tamper: Tamper, answered: Arc<AtomicUsize>) -> JoinHandle<()> {
    let (mut near, mut far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut offset = 0;
        let mut room = vec![0; 64 << 10];
        while let Ok(count @ 1..) = far.read(&mut room) {
            if let Some(at) = tamper.flip_answered
                && (offset..offset + count).contains(&at)
            {
                room[at - offset] ^= 4;
            }
            offset += count;
            answered.fetch_add(count, Ordering::SeqCst);
            if near.write_all(&room[..count]).is_err() {
                break;
            }
        }
        let _ = near.shutdown(Shutdown::Both);
    })
}

/// Sends `bytes`, ends that direction, and returns everything that is received until the connection ends.
fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    // If the connection is closed during this, there is nothing more to send.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    all_answered(&mut stream)
}

fn all_answered(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(HANG_SECONDS))).unwrap();
    let mut answered = Vec::new();
    // A reset ends it as well as an orderly end; a time-out would be a hang.
    if let Err(error) = stream.read_to_end(&mut answered) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the test hangs");
    }
    answered
}

/// Bytes without a pattern, the same in every run.
fn noise(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    (0..bytes).map(|_| random.draw() as u8).collect()
}
