//! Pairs that share memory: what decides it, where bodies come from, wake-ups, and what a killed process leaves.

mod support;

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use support::{Form, Recorder, body, build_shm, header, options, poll_until, recorders, send_frame};
use trellis_base::Random;
use trellis_testing::listeners;
use trellis_transport::{Choice, Link, Lost, Manner, Payload, Security, SharedMemory, Shm, ShmOptions};

/// Memory like that of a region: a sealed file, mapped.
struct Memory {
    pointer: *mut u8,
    bytes: usize,
    file: i32,
}

// SAFETY: an address range; the tests write to it from one thread at a time.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Memory {
        // SAFETY: plain system calls; nothing else uses the new mapping.
        unsafe {
            let file = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(file >= 0 && libc::ftruncate(file, bytes as libc::off_t) == 0);
            assert_eq!(libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let pointer = libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file, 0);
            assert_ne!(pointer, libc::MAP_FAILED);
            Memory { pointer: pointer.cast(), bytes, file }
        }
    }

    fn share_with(&self, link: &dyn Link) {
        link.share(SharedMemory { pointer: self.pointer, bytes: self.bytes, file: self.file }).unwrap();
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Payload<'static> {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: inside the mapping; no peer reads these bytes before they are sent.
        unsafe { self.pointer.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Payload::Pinned(self.pointer.wrapping_add(at), bytes.len())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped and opened in `new`; the links that knew of it are closed.
        unsafe {
            libc::munmap(self.pointer.cast(), self.bytes);
            libc::close(self.file);
        }
    }
}

fn connect(links: &[Arc<dyn Link>], sinks: &mut [Recorder]) {
    let others = links.len() - 1;
    poll_until(links, sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == others));
}

#[test]
fn bodies_in_shared_memory_take_no_room_on_the_way() {
    const BYTES: usize = 64 << 10;
    const FRAMES: u64 = 400;
    let memory = Memory::new(FRAMES as usize * BYTES);
    let links = build_shm(2, Security::Sealed, Manner::Require, |_| 0);
    memory.share_with(&*links[0]);
    let mut sinks = recorders(2);
    connect(&links, &mut sinks);
    assert_eq!((links[0].way(1), links[1].way(0)), (Choice::Shm, Choice::Shm));
    for sequence in 0..FRAMES {
        let payload = memory.write(sequence as usize * BYTES, &body(sequence, BYTES));
        links[0].send(1, &header(Form::At, 0, sequence, BYTES), payload).unwrap();
        // 25 MiB, and nothing is received: what the rings cannot hold would wait.
        assert_eq!(links[0].statistics().peers[1].queued_bytes, 0);
    }
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() as u64 == FRAMES);
    // Bodies at both ends of the memory.
    let last = memory.bytes - 5000;
    for (sequence, at) in [(FRAMES, 0), (FRAMES + 1, last)] {
        let payload = memory.write(at, &body(sequence, 5000));
        links[0].send(1, &header(Form::At, 0, sequence, 5000), payload).unwrap();
    }
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() as u64 == FRAMES + 2);
    sinks[1].expect_sequences(&*links[1], 0, 0, (0..FRAMES + 2).collect());
    // What the peer copies must not change before: closing waits for it.
    for sequence in 0..4 {
        let payload = memory.write(sequence as usize * BYTES, &body(1000 + sequence, BYTES));
        links[0].send(1, &header(Form::At, 1, 1000 + sequence, BYTES), payload).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            links[0].close();
            for at in 0..4 {
                memory.write(at * BYTES, &vec![0; BYTES]);
            }
        });
        poll_until(&links[1..], &mut sinks[1..], |sinks| sinks[0].lost.len() == 1);
    });
    assert_eq!(sinks[1].sequences(0, 1), [1000, 1001, 1002, 1003]);
    assert_eq!(sinks[1].lost, [(0, Lost::Ended)]);
}

#[test]
fn nodes_of_different_hosts_stay_on_tcp_and_say_why() {
    let links = build_shm(3, Security::Plain, Manner::Prefer, |node| usize::from(node == 2));
    let mut sinks = recorders(3);
    for (from, to) in [(0, 1), (0, 2), (1, 2), (2, 0)] {
        send_frame(&*links[from], to, Form::At, 1, 9000);
    }
    connect(&links, &mut sinks);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().map(|sink| sink.frames.len()).sum::<usize>() == 4);
    let ways = |node: usize| (0..3).filter(|&to| to != node).map(|to| links[node].way(to)).collect::<Vec<_>>();
    assert_eq!(ways(0), [Choice::Shm, Choice::Tcp]);
    assert_eq!(ways(1), [Choice::Shm, Choice::Tcp]);
    assert_eq!(ways(2), [Choice::Tcp, Choice::Tcp]);
    assert_eq!(links[0].trouble(1), None);
    for (node, peer) in [(0, 2), (2, 0), (1, 2), (2, 1)] {
        assert_eq!(links[node].trouble(peer).as_deref(), Some("the two run on different hosts"));
    }
}

#[test]
fn nodes_of_different_hosts_that_must_share_memory_refuse_each_other() {
    let links = build_shm(2, Security::Signed, Manner::Require, |node| node);
    let mut sinks = recorders(2);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.lost.len() == 1));
    for (node, sink) in sinks.iter().enumerate() {
        let Lost::NodeRefused { why } = &sink.lost[0].1 else { panic!("{:?}", sink.lost) };
        assert!(why.contains("cannot share memory: the two run on different hosts; start all"), "{why}");
        assert!(sink.connected.is_empty() && links[node].is_lost(1 - node));
    }
}

/// One end of a conversation in which each side sleeps until the other has sent something.
fn talk(link: &dyn Link, peer: usize, rounds: u64, begins: bool, seed: u64) {
    let mut sink = Recorder::new();
    let mut random = Random::new(seed);
    let mut sent = 0;
    let may_speak = |sink: &Recorder, sent: u64| {
        let came = sink.frames.len() as u64;
        let is_turn = if begins { came == sent } else { came > sent };
        sent < rounds && is_turn && sink.connected.contains(&peer)
    };
    while (sink.frames.len() as u64) < rounds || sent < rounds {
        let came = sink.frames.len() as u64;
        if may_speak(&sink, sent) {
            send_frame(link, peer, Form::Inline, sent, (sent % 90) as usize);
            sent += 1;
        }
        let (polls, is_polling) = (random.below(40), random.once_in(2));
        if is_polling {
            link.set_polling(true);
        }
        for _ in 0..polls {
            link.poll(&mut sink);
        }
        // So that the answer often arrives between the last check and the sleep.
        for _ in 0..random.below(2000) {
            std::hint::spin_loop();
        }
        if is_polling {
            link.set_polling(false);
        }
        // Nothing new has arrived: whatever arrives from now on must end this sleep, and so must what arrived just
        // before it.
        if !may_speak(&sink, sent) && (sink.frames.len() as u64) < rounds && polls.is_multiple_of(2) {
            let mut ready = libc::pollfd { fd: link.readiness(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid structure.
            let count = unsafe { libc::poll(&raw mut ready, 1, 60_000) };
            assert_eq!(count, 1, "seed {seed}: nobody was woken in round {came}; run `talk` with it");
            link.poll(&mut sink);
        }
    }
    assert_eq!(sink.sequences(peer, 0), (0..rounds).collect::<Vec<_>>());
}

#[test]
fn whoever_sleeps_is_woken_however_the_sleep_and_the_frame_meet() {
    const ROUNDS: u64 = 4000;
    for seed in 1..=4 {
        let links = build_shm(2, Security::Plain, Manner::Require, |_| 0);
        std::thread::scope(|scope| {
            scope.spawn(|| talk(&*links[0], 1, ROUNDS, true, seed));
            scope.spawn(|| talk(&*links[1], 0, ROUNDS, false, seed + 100));
        });
    }
}

#[test]
fn polling_keeps_readiness_silent_and_its_end_reports_what_came() {
    let links = build_shm(2, Security::Plain, Manner::Require, |_| 0);
    let mut sinks = recorders(2);
    connect(&links, &mut sinks);
    let is_ready = |link: &dyn Link, milliseconds| {
        let mut ready = libc::pollfd { fd: link.readiness(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure.
        unsafe { libc::poll(&raw mut ready, 1, milliseconds) == 1 }
    };
    support::wait_until(|| {
        links[1].poll(&mut sinks[1]);
        !is_ready(&*links[1], 10)
    });
    assert!(links[1].set_polling(true), "nothing comes over tcp, so readiness keeps silent");
    send_frame(&*links[0], 1, Form::Inline, 0, 10);
    assert!(!is_ready(&*links[1], 50));
    links[1].set_polling(false);
    assert!(is_ready(&*links[1], 60_000));
    poll_until(&links[1..], &mut sinks[1..], |sinks| sinks[0].frames.len() == 1);
}

const CHILD: &str = "TRELLIS_TEST_SHM_CHILD";

/// Not a test of its own: the process that is killed. It sends forever, from shared memory and not.
#[test]
#[ignore = "a role that tests start"]
fn the_process_that_is_killed() {
    let Ok(addresses) = std::env::var(CHILD) else { return };
    let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
    let tcp = options(1, &addresses, None, Security::Sealed);
    let link = Shm::start(ShmOptions { tcp, manner: Manner::Require, host: None }).unwrap();
    const PLACES: u64 = 600;
    let memory = Memory::new(PLACES as usize * 20_000);
    memory.share_with(&link);
    let mut sink = Recorder::new();
    for sequence in 0.. {
        let bytes = [0, 50, 20_000, 300_000][(sequence % 4) as usize];
        let form = if bytes == 0 { Form::Nothing } else { Form::At };
        let body = body(sequence, bytes);
        let payload = match bytes {
            0 => Payload::Nothing,
            20_000 => memory.write((sequence / 4 % PLACES) as usize * 20_000, &body),
            _ => Payload::Copy(&body),
        };
        while link.send(0, &header(form, 0, sequence, bytes), payload).is_err() {
            link.poll(&mut sink);
            assert!(sink.lost.is_empty(), "{:?}", sink.lost);
        }
        link.poll(&mut sink);
        // A place is reused only after its frame was taken.
        while link.statistics().peers[0].queued_bytes > 1 << 20 {
            link.poll(&mut sink);
            assert!(sink.lost.is_empty(), "{:?}", sink.lost);
        }
    }
}

#[test]
fn a_killed_process_is_lost_after_what_it_wrote_and_holds_up_nobody() {
    for kills_after in [1, 40, 333] {
        let (mut listening, mut addresses) = listeners(2);
        drop(listening.pop());
        let tcp = options(0, &addresses, listening.pop(), Security::Sealed);
        let link: Arc<dyn Link> =
            Arc::new(Shm::start(ShmOptions { tcp, manner: Manner::Require, host: None }).unwrap());
        addresses[1] = "127.0.0.1:0".to_owned();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "the_process_that_is_killed", "--nocapture"])
            .env(CHILD, addresses.join(","))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let links = [link];
        let mut sinks = recorders(1);
        let start = std::time::Instant::now();
        while sinks[0].frames.len() < kills_after && start.elapsed() < Duration::from_secs(support::HANG_SECONDS) {
            links[0].poll(&mut sinks[0]);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        poll_until(&links, &mut sinks, |sinks| sinks[0].lost.len() == 1);
        let came = sinks[0].sequences(1, 0);
        assert!(came.len() >= kills_after, "{} frames came; the process said: {said}", came.len());
        assert_eq!(came, (0..came.len() as u64).collect::<Vec<_>>());
        let why = &sinks[0].lost[0].1;
        assert!(matches!(why, Lost::Ended | Lost::Truncated | Lost::Broken { .. }), "{why}");
        assert!(links[0].is_lost(1) && !links[0].poll(&mut sinks[0]));
    }
}
