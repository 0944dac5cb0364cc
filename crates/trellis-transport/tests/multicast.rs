//! One datagram for several nodes: their number, losses, allowed senders, and nodes that are sent to separately.
//!
//! The numbers of the wire format are repeated here on purpose: a change of the format must change this file.

mod support;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use support::{Form, Recorder, SECURITIES, body, header, poll_until, recorders, send_frame, udp_options};
use trellis_testing::{Need, datagram_sockets, skip};
use trellis_transport::{Link, Multicast, Payload, Security, Udp};

const NODES: usize = 4;
const OTHERS: [usize; 3] = [1, 2, 3];
/// After this time without an acknowledgement a multicast is sent again.
const RESENT_AFTER: Duration = Duration::from_millis(250);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 77, 1);
/// Epoch and number: the part of a datagram that is always readable.
const CLEAR_BYTES: usize = 16;

#[test]
fn a_body_for_three_nodes_is_one_transmission_and_nothing_is_said_about_it() {
    if !multicast_works("a_body_for_three_nodes_is_one_transmission_and_nothing_is_said_about_it") {
        return;
    }
    for security in SECURITIES {
        // The sender rightly repeats a multicast that has no acknowledgement after `RESENT_AFTER`. An attempt that took
        // longer shows nothing.
        let in_time = (0..100).any(|_| is_one_transmission(security));
        assert!(in_time, "{security}: this machine is too busy to show it");
    }
}

/// False if it took so long that something may have been sent again.
fn is_one_transmission(security: Security) -> bool {
    let (links, mut sinks) = cluster(security, |_, _| {});
    let began = Instant::now();
    // At first 10 may be in flight; each is one datagram on loopback.
    for sequence in 0..10 {
        let before = links[0].statistics();
        send_to_all(&*links[0], &OTHERS, sequence, 4096);
        let after = links[0].statistics();
        assert_eq!(after.multicast_out, before.multicast_out + 1, "{security}");
        assert_eq!(after.packets_out, before.packets_out + 1, "{security}");
        assert_eq!(after.frames_out, before.frames_out + 3);
    }
    poll_until(&links, &mut sinks, |sinks| sinks[1..].iter().all(|sink| sink.frames.len() == 10));
    // No receiver answers at once: the sender learns it from an acknowledgement that is sent when it must be.
    poll_until(&links, &mut sinks, |_| links[0].statistics().peers.iter().all(|peer| peer.queued_bytes == 0));
    if began.elapsed() >= RESENT_AFTER {
        return false;
    }
    let all = links[0].statistics();
    assert_eq!((all.packets_resent, all.multicast_repaired), (0, 0), "{security}");
    for (node, link) in links.iter().enumerate().skip(1) {
        assert_eq!(sinks[node].sequences(0, 0).len(), 10);
        let all = link.statistics();
        assert_eq!((all.multicast_negative, all.packets_duplicate), (0, 0), "{security} node {node}: {all:?}");
    }
    true
}

#[test]
fn who_is_not_named_gets_nothing() {
    if !multicast_works("who_is_not_named_gets_nothing") {
        return;
    }
    let (links, mut sinks) = cluster(Security::Sealed, |_, _| {});
    send_to_all(&*links[0], &[1, 3], 0, 5000);
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == 1 && sinks[3].frames.len() == 1);
    // A later datagram for node 2 alone arrives after the multicast did.
    send_frame(&*links[0], 2, Form::At, 1, 10);
    poll_until(&links, &mut sinks, |sinks| sinks[2].frames.len() == 1);
    assert_eq!(sinks[2].sequences(0, 0), [1]);
}

#[test]
fn what_a_bad_network_loses_is_asked_for_and_sent_again() {
    if !multicast_works("what_a_bad_network_loses_is_asked_for_and_sent_again") {
        return;
    }
    const FRAMES: u64 = 150;
    for seed in 1..4 {
        let faults = format!("drop=10%,duplicate=5%,reorder=5%,corrupt=1%,seed={seed}");
        println!("{faults}");
        let (links, mut sinks) = cluster(Security::Signed, |_, options| options.faults = Some(faults.parse().unwrap()));
        for sequence in 0..FRAMES {
            for (from, link) in links.iter().enumerate() {
                let peers: Vec<_> = (0..NODES).filter(|&to| to != from).collect();
                send_to_all(&**link, &peers, sequence, [0, 100, 4096, 150_000][(sequence % 4) as usize]);
            }
            poll_until(&links, &mut sinks, |sinks| {
                sinks.iter().all(|sink| sink.frames.len() as u64 + 60 >= 3 * sequence)
            });
        }
        poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.frames.len() as u64 == 3 * FRAMES));
        for (node, sink) in sinks.iter().enumerate() {
            assert!(sink.lost.is_empty());
            for peer in (0..NODES).filter(|&peer| peer != node) {
                sink.expect_sequences(&*links[node], peer, 0, (0..FRAMES).collect());
            }
        }
        let sum = |count: fn(&trellis_transport::LinkStatistics) -> u64| -> u64 {
            links.iter().map(|link| count(&link.statistics())).sum()
        };
        assert!(sum(|all| all.multicast_out) > 0, "seed {seed}: nothing went by multicast");
        assert!(sum(|all| all.multicast_repaired) > 0, "seed {seed}: nothing of it was lost");
        assert!(sum(|all| all.multicast_negative) > 0);
    }
}

#[test]
fn a_node_that_does_not_listen_is_sent_to_by_itself() {
    if !multicast_works("a_node_that_does_not_listen_is_sent_to_by_itself") {
        return;
    }
    let deaf = |node: usize, options: &mut trellis_transport::UdpOptions| {
        if node == 2 {
            options.multicast = Multicast::Off;
        }
    };
    let links = start(Security::Sealed, deaf);
    let mut sinks = recorders(NODES);
    // Also to the one that does not listen: what is sent to it leaves at once.
    poll_until(&links, &mut sinks, |_| {
        let listen = [0, 1, 3].iter().all(|&node| links[node].statistics().multicast_peers == 2);
        listen && OTHERS.iter().all(|&peer| links[0].is_connected(peer))
    });
    let before = links[0].statistics();
    send_to_all(&*links[0], &OTHERS, 0, 4096);
    let after = links[0].statistics();
    assert_eq!(after.multicast_out, before.multicast_out + 1);
    assert_eq!(after.packets_out, before.packets_out + 2, "one for two of them, one for the third");
    send_to_all(&*links[2], &[0, 1, 3], 0, 4096);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().map(|sink| sink.frames.len()).sum::<usize>() == 6);
    assert_eq!((links[2].statistics().multicast_out, links[2].statistics().multicast_peers), (0, 0));
}

#[test]
fn a_node_that_takes_nothing_keeps_nothing_from_the_others() {
    if !multicast_works("a_node_that_takes_nothing_keeps_nothing_from_the_others") {
        return;
    }
    const FRAMES: usize = 60;
    const BYTES: usize = 32 << 10;
    let (links, mut sinks) = cluster(Security::Sealed, |_, _| {});
    for sequence in 0..FRAMES {
        send_to_all(&*links[0], &OTHERS, sequence as u64, BYTES);
    }
    // Node 2 is not among those that take something.
    let taking: Vec<_> = [0, 1, 3].map(|node| Arc::clone(&links[node])).into();
    let silent = sinks.remove(2);
    poll_until(&taking, &mut sinks, |sinks| sinks[1..].iter().all(|sink| sink.frames.len() == FRAMES));
    let held = links[0].statistics().peers[2].queued_bytes;
    assert!(held > 0, "what node 2 has not taken waits for it");
    // When it takes something again, it gets everything.
    sinks.insert(2, silent);
    poll_until(&links, &mut sinks, |sinks| sinks[2].frames.len() == FRAMES);
}

#[test]
fn forged_replayed_and_misdirected_multicasts_are_refused_and_counted() {
    if !multicast_works("forged_replayed_and_misdirected_multicasts_are_refused_and_counted") {
        return;
    }
    for security in SECURITIES {
        let first = ports();
        let (links, mut sinks) = cluster(security, |_, options| {
            options.multicast = Multicast::Group { address: GROUP, port: Some(first) };
        });
        let spy = spy(first);
        send_to_all(&*links[0], &OTHERS, 7, 3000);
        poll_until(&links, &mut sinks, |sinks| sinks[1..].iter().all(|sink| sink.frames.len() == 1));
        let recorded = recorded(&spy);
        let text = body(7, 3000);
        let shown = recorded.concat().windows(64).any(|window| window == &text[1000..1064]);
        assert_eq!(shown, security != Security::Sealed, "a sealed one shows nothing, and the others all");
        let datagram = recorded.iter().find(|datagram| datagram.len() > 3000).expect("the frame");
        let mut hostile = recorded.clone();
        if security != Security::Plain {
            for at in [0, CLEAR_BYTES - 8, CLEAR_BYTES, CLEAR_BYTES + 3, 500, datagram.len() - 1] {
                let mut changed = datagram.clone();
                changed[at] ^= 4;
                hostile.push(changed);
            }
        }
        let mut other_epoch = datagram.clone();
        other_epoch[2] ^= 1;
        hostile.extend([other_epoch, datagram[..CLEAR_BYTES].to_vec(), vec![1], vec![9; 60_000]]);
        let attacker = sender();
        let refused = |node: usize| links[node].statistics().packets_refused;
        let before: Vec<_> = (0..NODES).map(refused).collect();
        for datagram in &hostile {
            attacker.send_to(datagram, SocketAddrV4::new(GROUP, first)).unwrap();
        }
        // As if they were node 1's, to whose multicasts node 2 listens at the next port.
        for datagram in &recorded {
            attacker.send_to(datagram, SocketAddrV4::new(GROUP, first + 1)).unwrap();
        }
        let (count, misdirected) = (hostile.len() as u64, recorded.len() as u64);
        poll_until(&links, &mut sinks, |_| {
            [2, 3].iter().all(|&node| refused(node) >= before[node] + count + misdirected)
                && refused(1) >= before[1] + count
                && refused(0) >= before[0] + misdirected
        });
        assert!(sinks[1..].iter().all(|sink| sink.frames.len() == 1 && sink.lost.is_empty()), "{security}");
        send_to_all(&*links[0], &OTHERS, 8, 3000);
        poll_until(&links, &mut sinks, |sinks| sinks[1..].iter().all(|sink| sink.frames.len() == 2));
    }
}

#[test]
fn a_node_that_leaves_has_delivered_what_it_multicast() {
    if !multicast_works("a_node_that_leaves_has_delivered_what_it_multicast") {
        return;
    }
    let (links, mut sinks) = cluster(Security::Sealed, |_, _| {});
    for sequence in 0..40 {
        send_to_all(&*links[0], &OTHERS, sequence, 20_000);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| links[0].close());
        poll_until(&links[1..], &mut sinks[1..], |sinks| sinks.iter().all(|sink| sink.lost.len() == 1));
    });
    for (node, sink) in sinks.iter().enumerate().skip(1) {
        sink.expect_sequences(&*links[node], 0, 0, (0..40).collect());
        assert_eq!(sink.lost, [(0, trellis_transport::Lost::Ended)]);
    }
}

/// Four nodes in four network namespaces, on a bridge in a fifth: as on four hosts and a switch, where packets have
/// 1,500 bytes and a body of 8 KiB several fragments.
#[test]
fn nodes_of_several_hosts_multicast_over_their_network() {
    let Some(hosts) = Hosts::new() else {
        skip(
            "nodes_of_several_hosts_multicast_over_their_network",
            Need::Namespaces,
            "no network namespaces can be made",
        );
        return;
    };
    const BYTES: usize = 8192;
    let addresses: Vec<String> = (0..NODES).map(|node| format!("10.77.0.{}:7100", node + 1)).collect();
    let gate = Barrier::new(NODES);
    std::thread::scope(|scope| {
        for node in 0..NODES {
            let (addresses, gate, hosts) = (&addresses, &gate, &hosts);
            scope.spawn(move || {
                hosts.enter(node);
                let options = udp_options(node, addresses, None, Security::Sealed);
                let links = [Arc::new(Udp::start(options).expect("a node on its host")) as Arc<dyn Link>];
                let mut sinks = recorders(1);
                poll_until(&links, &mut sinks, |_| links[0].statistics().multicast_peers == NODES as u64 - 1);
                let peers: Vec<_> = (0..NODES).filter(|&peer| peer != node).collect();
                let before = links[0].statistics().multicast_out;
                send_to_all(&*links[0], &peers, 0, BYTES);
                let fragments = links[0].statistics().multicast_out - before;
                assert_eq!(fragments, 6, "packets of 1,500 bytes for {BYTES} bytes");
                let held = || links[0].statistics().peers.iter().map(|peer| peer.queued_bytes).sum::<u64>();
                poll_until(&links, &mut sinks, |sinks| sinks[0].frames.len() == NODES - 1 && held() == 0);
                assert!(sinks[0].lost.is_empty());
                gate.wait();
            });
        }
    });
}

/// Network namespaces with an interface each, joined by a bridge; removed on drop.
struct Hosts {
    prefix: String,
}

impl Hosts {
    fn new() -> Option<Hosts> {
        let prefix = format!("trellis-test-{}", std::process::id());
        let hosts = Hosts { prefix };
        let switch = hosts.name(NODES);
        hosts.ip(&["netns", "add", &switch])?;
        hosts.ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
        hosts.ip(&["-n", &switch, "link", "set", "bridge", "up"])?;
        for node in 0..NODES {
            let (host, port) = (hosts.name(node), format!("port{node}"));
            let address = format!("10.77.0.{}/24", node + 1);
            hosts.ip(&["netns", "add", &host])?;
            let pair = ["link", "add", &port, "type", "veth", "peer", "name", "net", "netns", &host];
            hosts.ip(&[&["-n", &switch], &pair[..]].concat())?;
            hosts.ip(&["-n", &switch, "link", "set", &port, "master", "bridge", "up"])?;
            hosts.ip(&["-n", &host, "address", "add", &address, "dev", "net"])?;
            hosts.ip(&["-n", &host, "link", "set", "net", "up"])?;
        }
        Some(hosts)
    }

    fn name(&self, number: usize) -> String {
        format!("{}-{number}", self.prefix)
    }

    fn ip(&self, arguments: &[&str]) -> Option<()> {
        let done = std::process::Command::new("ip").args(arguments).output().ok()?;
        done.status.success().then_some(())
    }

    /// Moves this thread to a host, and with it everything it creates and starts.
    fn enter(&self, node: usize) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name(node))).expect("made in `new`");
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for number in 0..=NODES {
            self.ip(&["netns", "delete", &self.name(number)]);
        }
    }
}

fn send_to_all(link: &dyn Link, peers: &[usize], sequence: u64, bytes: usize) {
    let text = body(sequence, bytes);
    let payload = if bytes == 0 { Payload::Nothing } else { Payload::Copy(&text) };
    link.send_to_all(peers, &header(Form::At, 0, sequence, bytes), payload).expect("to all of them");
}

fn start(security: Security, change: impl Fn(usize, &mut trellis_transport::UdpOptions)) -> Vec<Arc<dyn Link>> {
    let (ports, addresses) = datagram_sockets(NODES);
    let links = ports.into_iter().enumerate().map(|(node, port)| {
        let mut options = udp_options(node, &addresses, Some(port), security);
        change(node, &mut options);
        Arc::new(Udp::start(options).expect("a node on loopback")) as Arc<dyn Link>
    });
    links.collect()
}

/// Nodes of which each receives the multicasts of every other.
fn cluster(
    security: Security,
    change: impl Fn(usize, &mut trellis_transport::UdpOptions),
) -> (Vec<Arc<dyn Link>>, Vec<Recorder>) {
    let links = start(security, change);
    let mut sinks = recorders(NODES);
    let others = NODES as u64 - 1;
    poll_until(&links, &mut sinks, |_| links.iter().all(|link| link.statistics().multicast_peers == others));
    (links, sinks)
}

/// Ports for the nodes of one test that no other test of this process uses.
fn ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    30_000 + (std::process::id() % 80) as u16 * 32 + NEXT.fetch_add(NODES as u16, Ordering::Relaxed) % 32
}

/// A socket that sends to groups of this host, as any process of it can.
fn sender() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
    // SAFETY: `loopback` is an in_addr of four bytes.
    let set = unsafe {
        let place = (&raw const loopback).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, place, 4)
    };
    assert_eq!(set, 0);
    socket
}

/// A socket that receives what goes to a port of the group.
fn spy(port: u16) -> UdpSocket {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(GROUP.octets()) },
        sin_zero: [0; 8],
    };
    let yes = 1_i32;
    // SAFETY: the address and the option are readable for the lengths given; the socket is new.
    let socket = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let length = size_of_val(&yes) as libc::socklen_t;
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const yes).cast(), length);
        let length = size_of_val(&address) as libc::socklen_t;
        assert_eq!(libc::bind(socket, (&raw const address).cast(), length), 0, "{}", std::io::Error::last_os_error());
        UdpSocket::from_raw_fd(socket)
    };
    socket.join_multicast_v4(&GROUP, &Ipv4Addr::LOCALHOST).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn recorded(spy: &UdpSocket) -> Vec<Vec<u8>> {
    let mut room = vec![0; 65_536];
    let mut all = Vec::new();
    while let Ok(count) = spy.recv(&mut room) {
        all.push(room[..count].to_vec());
    }
    all
}

/// Whether this host carries multicasts over loopback; if not, prints why a test is skipped.
fn multicast_works(test: &str) -> bool {
    let port = ports();
    let heard = std::panic::catch_unwind(|| {
        let (spy, sender) = (spy(port), sender());
        spy.set_nonblocking(false).unwrap();
        spy.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        sender.send_to(b"is this heard?", SocketAddrV4::new(GROUP, port)).unwrap();
        spy.recv(&mut [0; 64]).is_ok()
    });
    let works = heard.unwrap_or(false);
    if !works {
        skip(test, Need::Kernel, "this host carries no multicasts over loopback");
    }
    works
}
