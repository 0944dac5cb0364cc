//! The contract of `trellis_transport::links`, checked for every link and every security.

mod support;

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use support::{
    Form, Kind, Recorder, body, build, count_up_to, header, poll_until, read_header, recorders, send_frame, wait_until,
};
use trellis_testing::{Need, skip};
use trellis_transport::{
    BODY_BYTES_MAX, HEADER_BYTES, Link, Lost, Payload, Placement, QUEUE_BYTES_MAX, QUEUED_FRAME_BYTES, Refused,
    Security, SendError, Sink,
};

macro_rules! for_every_link {
    ($($test:ident)*) => {
        mod in_process { use super::*; $(#[test] fn $test() { super::$test(Kind::InProcess) })* }
        mod tcp_plain { use super::*; $(#[test] fn $test() { super::$test(Kind::Tcp(Security::Plain)) })* }
        mod tcp_signed { use super::*; $(#[test] fn $test() { super::$test(Kind::Tcp(Security::Signed)) })* }
        mod tcp_sealed { use super::*; $(#[test] fn $test() { super::$test(Kind::Tcp(Security::Sealed)) })* }
        mod shm_plain { use super::*; $(#[test] fn $test() { super::$test(Kind::Shm(Security::Plain)) })* }
        mod shm_sealed { use super::*; $(#[test] fn $test() { super::$test(Kind::Shm(Security::Sealed)) })* }
        mod automatic_apart { use super::*; $(#[test] fn $test() { super::$test(Kind::Apart(Security::Plain)) })* }
        mod automatic_mixed { use super::*; $(#[test] fn $test() { super::$test(Kind::Mixed) })* }
        mod udp_plain { use super::*; $(#[test] fn $test() { super::$test(Kind::Udp(Security::Plain)) })* }
        mod udp_signed { use super::*; $(#[test] fn $test() { super::$test(Kind::Udp(Security::Signed)) })* }
        mod udp_sealed { use super::*; $(#[test] fn $test() { super::$test(Kind::Udp(Security::Sealed)) })* }
        mod udp_signed_faulty { use super::*; $(#[test] fn $test() { super::$test(Kind::UdpFaulty(Security::Signed)) })* }
        mod udp_sealed_faulty { use super::*; $(#[test] fn $test() { super::$test(Kind::UdpFaulty(Security::Sealed)) })* }
        #[cfg(feature = "fabric")]
        mod fabric_tcp { use super::*; $(#[test] fn $test() { super::$test(Kind::Fabric("tcp")) })* }
        #[cfg(feature = "fabric")]
        mod fabric_shm { use super::*; $(#[test] fn $test() { super::$test(Kind::Fabric("shm")) })* }
    };
}

for_every_link! {
    bodies_of_every_size_and_form_arrive_in_order
    frames_of_many_threads_keep_the_order_of_each_thread
    several_pollers_never_receive_from_one_peer_at_once
    callbacks_may_send_to_anybody
    a_full_queue_gives_the_frame_back_and_recovers
    pinned_bodies_wait_by_reference_and_arrive_whole
    readiness_is_level_triggered_and_nests
    readiness_tells_when_what_waits_can_leave
    closing_flushes_and_the_peer_is_lost_after_the_last_frame
    a_refused_frame_costs_its_sender_the_connection_and_nobody_else
    impossible_frames_are_refused_where_they_are_sent
    statistics_count_frames_and_bytes
    a_mesh_of_many_nodes_exchanges_all_pairs
    a_frame_for_several_nodes_reaches_each_of_them_once
    a_frame_for_several_nodes_says_who_does_not_get_it_and_the_others_do
}

const SIZES: [usize; 13] = [1, 31, 32, 33, 4095, 4096, 4097, 16 << 10, 65_535, 65_537, 300_000, 1 << 20, 2 << 20];

fn bodies_of_every_size_and_form_arrive_in_order(kind: Kind) {
    let mut plan = vec![(Form::Nothing, 0), (Form::Inline, 0), (Form::At, 0)];
    for bytes in SIZES {
        plan.push((Form::At, bytes));
        if bytes <= 4096 {
            plan.push((Form::Inline, bytes));
        }
        plan.push((Form::Nothing, 0));
    }
    // Created before the links and kept until they are closed: the promise of a pinned body.
    let bodies: Vec<_> = plan.iter().zip(0..).map(|(&(_, bytes), sequence)| body(sequence, bytes)).collect();
    let links = build(kind, 3);
    let mut sinks = recorders(3);
    for (at, &(form, bytes)) in plan.iter().enumerate() {
        for from in 0..3 {
            for to in (0..3).filter(|&to| to != from) {
                let payload = match (bytes, at % 2) {
                    (0, _) => Payload::Nothing,
                    (_, 0) => Payload::Copy(&bodies[at]),
                    _ => Payload::Pinned(bodies[at].as_ptr(), bytes),
                };
                links[from].send(to, &header(form, 0, at as u64, bytes), payload).unwrap();
            }
            links[from].poll(&mut sinks[from]);
        }
    }
    poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.frames.len() == 2 * plan.len()));
    let expected: Vec<u64> = (0..plan.len() as u64).collect();
    for (node, sink) in sinks.iter().enumerate() {
        for peer in (0..3).filter(|&peer| peer != node) {
            sink.expect_sequences(&*links[node], peer, 0, expected.clone());
        }
        assert!(sink.lost.is_empty());
    }
}

fn frames_of_many_threads_keep_the_order_of_each_thread(kind: Kind) {
    const THREADS: u16 = 6;
    const FRAMES: u64 = 400;
    let links = build(kind, 2);
    let mut sinks = recorders(2);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let link = &links[0];
            scope.spawn(move || {
                for sequence in 0..FRAMES {
                    let bytes = [0, 8, 4096, 9000][(sequence % 4) as usize];
                    let form = if bytes == 0 { Form::Nothing } else { Form::At };
                    let bytes_of_body = body(sequence, bytes);
                    let frame = header(form, thread, sequence, bytes);
                    link.send(1, &frame, Payload::Copy(&bytes_of_body)).unwrap();
                }
            });
        }
        let wanted = usize::from(THREADS) * FRAMES as usize;
        poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == wanted);
    });
    for thread in 0..THREADS {
        sinks[1].expect_sequences(&*links[1], 0, thread, (0..FRAMES).collect());
    }
}

/// A sink that several threads share: it detects two threads inside one peer, and frames out of order.
struct Shared<'a> {
    inside: &'a [AtomicBool],
    next: &'a [AtomicU64],
    body: Vec<u8>,
    ordered: bool,
}

impl Sink for Shared<'_> {
    fn place(&mut self, peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        assert!(!self.inside[peer].swap(true, Ordering::SeqCst), "two threads receive from {peer}");
        let seen = read_header(header);
        self.body.resize(seen.bytes, 0);
        // Whole bodies arrive only together with their header here, so this thread also delivers it.
        self.inside[peer].store(false, Ordering::SeqCst);
        Ok(Placement::Inline(seen.bytes))
    }

    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], shown: &[u8]) {
        assert!(!self.inside[peer].swap(true, Ordering::SeqCst), "two threads receive from {peer}");
        let seen = read_header(header);
        assert!(shown == body(seen.sequence, seen.bytes));
        let next = self.next[peer].load(Ordering::SeqCst);
        assert!(!self.ordered || next == seen.sequence, "frame {} from {peer} instead of {next}", seen.sequence);
        std::thread::yield_now();
        self.next[peer].store(next + 1, Ordering::SeqCst);
        self.inside[peer].store(false, Ordering::SeqCst);
    }

    fn connected(&mut self, _peer: usize) {}

    fn lost(&mut self, peer: usize, why: &Lost) {
        panic!("node {peer}: {why}");
    }
}

fn several_pollers_never_receive_from_one_peer_at_once(kind: Kind) {
    const FRAMES: u64 = 1500;
    let links = build(kind, 5);
    let inside: [AtomicBool; 5] = Default::default();
    let next: [AtomicU64; 5] = Default::default();
    std::thread::scope(|scope| {
        for sender in 1..5 {
            let (link, next) = (&links[sender], &next);
            scope.spawn(move || {
                let mut sink = Recorder::new();
                for sequence in 0..FRAMES {
                    send_frame(&**link, 0, Form::Inline, sequence, (sequence % 700) as usize);
                }
                count_up_to(FRAMES as usize, || {
                    link.poll(&mut sink);
                    next[sender].load(Ordering::SeqCst) as usize
                });
            });
        }
        for _ in 0..4 {
            scope.spawn(|| {
                let mut sink =
                    Shared { inside: &inside, next: &next, body: Vec::new(), ordered: links[0].is_ordered() };
                count_up_to(4 * FRAMES as usize, || {
                    for _ in 0..50 {
                        links[0].poll(&mut sink);
                    }
                    next[1..].iter().map(|next| next.load(Ordering::SeqCst) as usize).sum()
                });
            });
        }
    });
}

/// Answers every frame to its sender and informs the third node.
struct Echo<'a> {
    link: &'a dyn Link,
    third: usize,
}

impl Sink for Echo<'_> {
    fn place(&mut self, _peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        Ok(Placement::Inline(read_header(header).bytes))
    }

    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], shown: &[u8]) {
        self.link.send(peer, header, Payload::Copy(shown)).expect("back to the sender");
        self.link.send(self.third, header, Payload::Copy(shown)).expect("to the third");
    }

    fn connected(&mut self, _peer: usize) {}

    fn lost(&mut self, peer: usize, why: &Lost) {
        panic!("node {peer}: {why}");
    }
}

fn callbacks_may_send_to_anybody(kind: Kind) {
    const FRAMES: u64 = 300;
    let links = build(kind, 3);
    let mut sinks = recorders(3);
    for sequence in 0..FRAMES {
        send_frame(&*links[0], 1, Form::Inline, sequence, 100);
    }
    let mut echo = Echo { link: &*links[1], third: 2 };
    poll_until(&links[..1], &mut sinks[..1], |sinks| {
        links[1].poll(&mut echo);
        sinks[0].frames.len() == FRAMES as usize
    });
    poll_until(&links[2..], &mut sinks[2..], |sinks| {
        links[1].poll(&mut echo);
        sinks[0].frames.len() == FRAMES as usize
    });
    sinks[2].expect_sequences(&*links[2], 1, 0, (0..FRAMES).collect());
}

fn a_full_queue_gives_the_frame_back_and_recovers(kind: Kind) {
    const BYTES: usize = 256 << 10;
    let links = build(kind, 2);
    let mut sinks = recorders(2);
    sinks[1].check_bodies = false;
    connect(&links, &mut sinks);
    let bytes_of_body = vec![7; BYTES];
    let mut taken = 0_u64;
    let error = loop {
        let frame = header(Form::At, 0, taken, BYTES);
        match links[0].send(1, &frame, Payload::Copy(&bytes_of_body)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 10_000, "the queue has a bound");
    };
    let SendError::QueueFull { peer: 1, queued_bytes } = error else { panic!("{error}") };
    assert!(queued_bytes <= QUEUE_BYTES_MAX);
    assert!(queued_bytes + BYTES + QUEUED_FRAME_BYTES > QUEUE_BYTES_MAX, "not before it is full");
    assert_eq!(links[0].statistics().peers[1].queued_bytes, queued_bytes as u64);
    // Ciphers are slow in a build without optimisation, so with them not everything has to arrive.
    let all = matches!(
        kind,
        Kind::InProcess
            | Kind::Tcp(Security::Plain)
            | Kind::Udp(Security::Plain)
            | Kind::Shm(_)
            | Kind::Apart(Security::Plain)
            | Kind::Mixed
    );
    let enough = if all { taken } else { 60 };
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() as u64 >= enough);
    if all {
        // Over datagrams a frame is held until its acknowledgement has arrived.
        poll_until(&links, &mut sinks, |_| links[0].statistics().peers[1].queued_bytes == 0);
    }
    links[0].send(1, &header(Form::At, 0, taken, BYTES), Payload::Copy(&bytes_of_body)).expect("room again");
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() as u64 > enough);
    let came = sinks[1].sequences(0, 0);
    if links[1].is_ordered() {
        assert_eq!(came, (0..came.len() as u64).collect::<Vec<_>>());
    }
}

fn pinned_bodies_wait_by_reference_and_arrive_whole(kind: Kind) {
    const BYTES: usize = 2 << 20;
    let slow = matches!(kind, Kind::Tcp(Security::Sealed) | Kind::Udp(Security::Sealed) | Kind::UdpFaulty(_));
    let frames = if slow { 8 } else { 20 };
    let bodies: Vec<_> = (0..frames).map(|sequence| body(sequence, BYTES)).collect();
    let links = build(kind, 2);
    let mut sinks = recorders(2);
    connect(&links, &mut sinks);
    // Far more than the socket buffers hold, interleaved with frames that are copied.
    for (sequence, bytes_of_body) in bodies.iter().enumerate() {
        let frame = header(Form::At, 0, sequence as u64, BYTES);
        links[0].send(1, &frame, Payload::Pinned(bytes_of_body.as_ptr(), BYTES)).unwrap();
        let frame = header(Form::Inline, 1, sequence as u64, 50);
        links[0].send(1, &frame, Payload::Copy(&body(sequence as u64, 50))).unwrap();
    }
    if matches!(kind, Kind::Tcp(Security::Plain | Security::Signed) | Kind::Shm(_)) {
        let queued = links[0].statistics().peers[1].queued_bytes as usize;
        assert!(queued > 0, "the sockets cannot hold all of it");
        assert!(queued < 40 * (QUEUED_FRAME_BYTES + 64), "no copies: {queued} bytes are held");
    }
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == 2 * bodies.len());
    sinks[1].expect_sequences(&*links[1], 0, 0, (0..frames).collect());
    sinks[1].expect_sequences(&*links[1], 0, 1, (0..frames).collect());
}

/// An epoll descriptor of the test's own, with the readiness of one link nested in it.
struct Outer {
    epoll: OwnedFd,
    link: Arc<dyn Link>,
}

impl Outer {
    fn around(link: &Arc<dyn Link>) -> Outer {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let outer = Outer { epoll, link: Arc::clone(link) };
        epoll::add(&outer.epoll, outer.nested(), EventData::new_u64(9), EventFlags::IN).unwrap();
        outer
    }

    fn nested(&self) -> BorrowedFd<'_> {
        // SAFETY: the link keeps it open as long as it exists.
        unsafe { BorrowedFd::borrow_raw(self.link.readiness()) }
    }

    fn ask_for(&self, events: EventFlags) {
        epoll::modify(&self.epoll, self.nested(), EventData::new_u64(9), events).unwrap();
    }

    fn is_ready(&self, timeout_ms: u64) -> bool {
        let mut event = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        let timeout = Timespec::try_from(Duration::from_millis(timeout_ms)).unwrap();
        epoll::wait(&self.epoll, &mut event, Some(&timeout)) == Ok(1)
    }
}

const HANG_MS: u64 = 60_000;

fn readiness_is_level_triggered_and_nests(kind: Kind) {
    let links = build(kind, 2);
    let mut sinks = recorders(2);
    let outer = Outer::around(&links[1]);
    assert!(outer.is_ready(HANG_MS), "a new peer is news");
    connect(&links, &mut sinks);
    settle(&links[1], &mut sinks[1], &outer);
    send_frame(&*links[0], 1, Form::Inline, 0, 10);
    // A sender that polls sends again what a bad network has lost.
    wait_until(|| {
        links[0].poll(&mut sinks[0]);
        outer.is_ready(10)
    });
    assert!(outer.is_ready(0), "and is still there");
    outer.ask_for(EventFlags::empty());
    assert!(!outer.is_ready(0), "disarmed");
    outer.ask_for(EventFlags::IN);
    assert!(outer.is_ready(0), "armed again, and it is still there");
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == 1);
    settle(&links[1], &mut sinks[1], &outer);
    links[0].close();
    assert!(outer.is_ready(HANG_MS), "a loss is news");
    poll_until(&links[1..], &mut sinks[1..], |sinks| sinks[0].lost.len() == 1);
    // A lost peer makes no more news.
    settle(&links[1], &mut sinks[1], &outer);
}

fn readiness_tells_when_what_waits_can_leave(kind: Kind) {
    if kind == Kind::InProcess {
        skip("readiness_tells_when_what_waits_can_leave", Need::Machine, "nothing waits at the sender");
        return;
    }
    let links = build(kind, 2);
    let mut sinks = recorders(2);
    sinks[1].check_bodies = false;
    connect(&links, &mut sinks);
    let outer = Outer::around(&links[0]);
    settle(&links[0], &mut sinks[0], &outer);
    let bytes_of_body = vec![1; 1 << 20];
    for sequence in 0..40 {
        let frame = header(Form::At, 0, sequence, bytes_of_body.len());
        links[0].send(1, &frame, Payload::Copy(&bytes_of_body)).unwrap();
    }
    // Flushes until the socket is really full: then only the receiver can make it ready.
    wait_until(|| {
        links[0].poll(&mut sinks[0]);
        !outer.is_ready(20)
    });
    assert!(links[0].statistics().peers[1].queued_bytes > 0);
    while sinks[1].frames.len() < 40 {
        links[1].poll(&mut sinks[1]);
        if outer.is_ready(0) {
            links[0].poll(&mut sinks[0]);
        }
    }
    // Nothing waits, so a writable socket must not make the link ready.
    settle(&links[0], &mut sinks[0], &outer);
}

fn closing_flushes_and_the_peer_is_lost_after_the_last_frame(kind: Kind) {
    const FRAMES: u64 = 80;
    let links = build(kind, 2);
    let mut sinks = recorders(2);
    connect(&links, &mut sinks);
    // Unread data on the leaving side must not turn its farewell into a reset.
    send_frame(&*links[1], 0, Form::At, 0, 100_000);
    for sequence in 0..FRAMES {
        send_frame(&*links[0], 1, Form::At, sequence, 200_000);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| links[0].close());
        poll_until(&links[1..], &mut sinks[1..], |sinks| sinks[0].lost.len() == 1);
    });
    sinks[1].expect_sequences(&*links[1], 0, 0, (0..FRAMES).collect());
    assert_eq!(sinks[1].lost, [(0, Lost::Ended)]);
    assert!(links[1].is_lost(0) && !links[1].is_connected(0));
    let late = header(Form::Nothing, 0, 0, 0);
    assert!(matches!(links[1].send(0, &late, Payload::Nothing), Err(SendError::Lost { peer: 0, .. })));
    assert_eq!(links[0].send(1, &late, Payload::Nothing), Err(SendError::Closed));
    assert!(!links[0].poll(&mut sinks[0]));
    links[0].close();
}

/// Nobody polls the peer, and sockets and rings cannot hold all of what it was sent.
#[test]
fn a_peer_that_takes_nothing_keeps_no_node_from_leaving() {
    const BYTES: usize = 2 << 20;
    let bytes_of_body = body(0, BYTES);
    for kind in [Kind::Tcp(Security::Plain), Kind::Shm(Security::Plain), Kind::Udp(Security::Plain)] {
        let links = build(kind, 2);
        let mut sinks = recorders(2);
        connect(&links, &mut sinks);
        for sequence in 0..40 {
            let frame = header(Form::At, 0, sequence, BYTES);
            links[0].send(1, &frame, Payload::Pinned(bytes_of_body.as_ptr(), BYTES)).unwrap();
        }
        assert!(links[0].statistics().peers[1].queued_bytes > 0, "{kind:?}: all of it was taken");
        let link = Arc::clone(&links[0]);
        let closing = std::thread::spawn(move || link.close());
        wait_until(|| closing.is_finished());
        let late = header(Form::Nothing, 0, 40, 0);
        assert_eq!(links[0].send(1, &late, Payload::Nothing), Err(SendError::Closed), "{kind:?}");
    }
}

fn a_refused_frame_costs_its_sender_the_connection_and_nobody_else(kind: Kind) {
    let links = build(kind, 3);
    let mut sinks = recorders(3);
    connect(&links, &mut sinks);
    send_frame(&*links[0], 1, Form::Inline, 0, 5);
    if !links[1].is_ordered() {
        // The refusal may arrive first.
        poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == 1);
    }
    send_frame(&*links[0], 1, Form::Refuse, 1, 5);
    poll_until(&links, &mut sinks, |sinks| sinks[1].lost.len() == 1 && sinks[0].lost.len() == 1);
    let why = "the test does not want this frame".to_owned();
    assert_eq!(sinks[1].lost, [(0, Lost::FrameRefused { why })]);
    assert_eq!(sinks[0].lost[0].0, 1);
    assert_eq!(sinks[1].sequences(0, 0), [0]);
    assert_eq!(links[1].statistics().frames_refused, 1);
    for (from, to) in [(1, 2), (2, 1), (0, 2), (2, 0)] {
        send_frame(&*links[from], to, Form::At, 5, 5000);
    }
    poll_until(&links, &mut sinks, |sinks| {
        sinks[2].frames.len() == 2 && sinks[1].count_from(2) == 1 && sinks[0].count_from(2) == 1
    });
}

fn impossible_frames_are_refused_where_they_are_sent(kind: Kind) {
    let links = build(kind, 2);
    let frame = header(Form::Nothing, 0, 0, 0);
    let send = |peer, payload| links[0].send(peer, &frame, payload);
    assert_eq!(send(2, Payload::Nothing), Err(SendError::NoSuchNode { peer: 2, nodes: 2 }));
    assert_eq!(send(0, Payload::Nothing), Err(SendError::ToSelf { node: 0 }));
    let bytes = BODY_BYTES_MAX + 1;
    assert_eq!(send(1, Payload::Pinned(std::ptr::dangling(), bytes)), Err(SendError::TooLong { bytes }));
    assert!(!links[0].is_connected(0) && !links[0].is_connected(2) && !links[0].is_lost(2));
    assert_eq!((links[0].node(), links[0].nodes()), (0, 2));
}

fn statistics_count_frames_and_bytes(kind: Kind) {
    let links = build(kind, 2);
    let mut sinks = recorders(2);
    for (sequence, bytes) in [0, 100, 4096].into_iter().enumerate() {
        send_frame(&*links[0], 1, Form::Inline, sequence as u64, bytes);
    }
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == 3);
    let bytes = (3 * HEADER_BYTES + 100 + 4096) as u64;
    let (out, inward) = (links[0].statistics(), links[1].statistics());
    assert_eq!((out.frames_out, out.bytes_out, out.frames_in), (3, bytes, 0));
    assert_eq!((inward.frames_in, inward.bytes_in, inward.frames_out), (3, bytes, 0));
    assert_eq!(out.peers[1].bytes_out, bytes);
    assert_eq!(inward.peers[0].frames_in, 3);
    assert_eq!((inward.unauthenticated_refused, inward.frames_refused), (0, 0));
}

fn a_mesh_of_many_nodes_exchanges_all_pairs(kind: Kind) {
    const NODES: usize = 12;
    let links = build(kind, NODES);
    let mut sinks = recorders(NODES);
    let sent = AtomicUsize::new(0);
    for round in 0..5 {
        for (from, link) in links.iter().enumerate() {
            for to in (0..NODES).filter(|&to| to != from) {
                send_frame(&**link, to, Form::At, round, 4096);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    poll_until(&links, &mut sinks, |sinks| {
        sinks.iter().map(|sink| sink.frames.len()).sum::<usize>() == sent.load(Ordering::Relaxed)
    });
    for sink in &sinks {
        let mut counts = HashMap::new();
        for frame in &sink.frames {
            *counts.entry(frame.0).or_insert(0) += 1;
        }
        assert!(counts.len() == NODES - 1 && counts.values().all(|&count| count == 5));
    }
}

/// Every node sends to sets of others, sometimes of one and sometimes of none, interleaved with frames for one of
/// them.
fn a_frame_for_several_nodes_reaches_each_of_them_once(kind: Kind) {
    const NODES: usize = 4;
    let sizes = [0, 1, 100, 4096, 4096, 30_000, 70_000, 300_000];
    let bodies: Vec<_> = sizes.iter().zip(0..).map(|(&bytes, sequence)| body(sequence, bytes)).collect();
    let links = build(kind, NODES);
    let mut sinks = recorders(NODES);
    connect(&links, &mut sinks);
    let mut expected = vec![Vec::new(); NODES * NODES];
    for round in 0..15 {
        for from in 0..NODES {
            let peers: Vec<_> = (0..NODES).filter(|&to| to != from && (round >> to) & 1 == 0).collect();
            for (at, &bytes) in sizes.iter().enumerate() {
                let sequence = round * 100 + at as u64;
                // Bodies identify themselves.
                let own = body(sequence, bytes);
                let pinned = round == 0 && bytes > 0;
                let payload = match (bytes, pinned) {
                    (0, _) => Payload::Nothing,
                    (_, true) => Payload::Pinned(bodies[at].as_ptr(), bytes),
                    _ => Payload::Copy(&own),
                };
                let form = if bytes == 0 { Form::Nothing } else { Form::At };
                links[from].send_to_all(&peers, &header(form, 0, sequence, bytes), payload).unwrap();
                peers.iter().for_each(|&to| expected[to * NODES + from].push(sequence));
                if let Some(&one) = peers.first() {
                    send_frame(&*links[from], one, Form::Inline, sequence + 50, 10);
                    expected[one * NODES + from].push(sequence + 50);
                }
            }
            for (link, sink) in links.iter().zip(&mut sinks) {
                link.poll(sink);
            }
        }
    }
    poll_until(&links, &mut sinks, |sinks| {
        sinks.iter().map(|sink| sink.frames.len()).sum::<usize>() == expected.iter().map(Vec::len).sum::<usize>()
    });
    for (node, sink) in sinks.iter().enumerate() {
        assert!(sink.lost.is_empty());
        for peer in (0..NODES).filter(|&peer| peer != node) {
            sink.expect_sequences(&*links[node], peer, 0, expected[node * NODES + peer].clone());
        }
    }
}

fn a_frame_for_several_nodes_says_who_does_not_get_it_and_the_others_do(kind: Kind) {
    let links = build(kind, 4);
    let mut sinks = recorders(4);
    connect(&links, &mut sinks);
    links[2].close();
    poll_until(&links, &mut sinks, |sinks| sinks[0].lost.len() == 1);
    let frame = header(Form::Nothing, 0, 1, 0);
    let error = links[0].send_to_all(&[1, 2, 0, 3], &frame, Payload::Nothing).unwrap_err();
    assert!(matches!(error, (2, SendError::Lost { peer: 2, .. })), "the first one that failed: {error:?}");
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == 1 && sinks[3].frames.len() == 1);
    links[0].close();
    assert_eq!(links[0].send_to_all(&[1, 3], &frame, Payload::Nothing), Err((1, SendError::Closed)));
}

/// Polls until all nodes are connected to all others.
fn connect(links: &[Arc<dyn Link>], sinks: &mut [Recorder]) {
    let others = links.len() - 1;
    poll_until(links, sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == others));
}

/// Polls until there is nothing to do: a link that stays ready without a reason hangs here. (A poll may announce a
/// peer just before the thread that connected it reports the news.)
fn settle(link: &Arc<dyn Link>, sink: &mut Recorder, outer: &Outer) {
    wait_until(|| {
        link.poll(sink);
        !outer.is_ready(10)
    });
}
