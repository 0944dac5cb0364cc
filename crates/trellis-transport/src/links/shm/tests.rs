//! Tests of what a peer may do to the memory that it shares: it affects only the frames that the peer may send.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{Uid, set_thread_res_uid};
use trellis_base::Random;

use super::channel::{Channel, Draft};
use super::memory;
use super::negotiation::NEGOTIATIONS_MAX;
use super::receiving::Receiving;
use super::ring::SLOTS;
use super::sending::{NotTaken, Sending, Taken};
use super::sockets::{self, Arrived, Parcel};
use super::{Manner, Shm, ShmOptions};
use crate::HEADER_BYTES;
use crate::links::descriptors::Event;
use crate::links::{Link, Lost, Payload, Placement, Refused, Sink};
use crate::{Security, TcpOptions};

const SHARED_BYTES: usize = 64 << 10;
const PLACE_BYTES: usize = 8192;
const GUARD_BYTES: usize = 256;

/// Both ends of a channel, the one with the higher number first; each shows the other the same shared memory.
fn channel() -> (Arc<Channel>, Arc<Channel>) {
    let (event, shared) = (Event::new().unwrap(), memory::create(SHARED_BYTES).unwrap());
    let draft = Draft::new().unwrap();
    let parcel = |files: &[i32]| -> Parcel {
        let name = crate::random().unwrap();
        let listener = sockets::listen(&name).unwrap();
        let one = sockets::connect(&name).unwrap();
        let other = sockets::accept(&listener, &AtomicU64::new(0)).unwrap().unwrap();
        sockets::send(one.raw(), b"files", files).unwrap();
        let Arrived::Parcel(parcel) = sockets::receive(other.raw()) else { panic!("it was sent") };
        parcel
    };
    let offer = parcel(&[draft.file.raw(), event.raw(), shared.raw()]);
    let lower = Channel::accept(None, SHARED_BYTES, offer).unwrap();
    let higher = draft.finish(None, SHARED_BYTES, parcel(&[event.raw(), shared.raw()])).unwrap();
    (Arc::new(higher), Arc::new(lower))
}

/// Places bodies as their headers say: kind in the first byte, length in the next two. Panics if a byte beside a place
/// changes.
struct Guarded {
    place: Vec<u8>,
    frames: Vec<(u8, u16)>,
}

impl Guarded {
    fn new() -> Guarded {
        Guarded { place: vec![0xEE; PLACE_BYTES + 2 * GUARD_BYTES], frames: Vec::new() }
    }

    fn check(&self) {
        let (before, after) = (&self.place[..GUARD_BYTES], &self.place[GUARD_BYTES + PLACE_BYTES..]);
        assert!(before.iter().chain(after).all(|&byte| byte == 0xEE), "a byte beside the place was written");
    }
}

impl Sink for Guarded {
    fn place(&mut self, _peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        let bytes = usize::from(u16::from_le_bytes([header[1], header[2]]));
        match header[0] {
            0 => Ok(Placement::Nothing),
            1 => Ok(Placement::Inline(bytes)),
            2 if bytes <= PLACE_BYTES => Ok(Placement::At { pointer: self.place[GUARD_BYTES..].as_mut_ptr(), bytes }),
            _ => Err("no such frame".into()),
        }
    }

    fn deliver(&mut self, _peer: usize, header: &[u8; HEADER_BYTES], body: &[u8]) {
        let bytes = u16::from_le_bytes([header[1], header[2]]);
        assert_eq!(body.len(), if header[0] == 1 { usize::from(bytes) } else { 0 });
        self.frames.push((header[0], bytes));
    }

    fn connected(&mut self, _peer: usize) {}

    fn lost(&mut self, _peer: usize, _why: &Lost) {}
}

#[test]
fn whatever_a_peer_writes_nothing_beside_the_named_places_is_touched() {
    let mut refused = 0;
    let mut delivered = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let (higher, lower) = channel();
        let mut receiving = Receiving::new(0);
        receiving.take_ring(lower);
        let mut sink = Guarded::new();
        for number in 0..8 {
            let lengths = [0, 1, 64, 600, 4096, 4097, 8192, 9000, u64::from(u16::MAX)];
            let length = random.one_of(&lengths);
            let total = if random.once_in(4) { random.draw() & 0xffff_ffff } else { length };
            let here = random.one_of(&[0, 1, length, length / 2, 32 << 10, 256 << 10, (256 << 10) + 1, 0xffff_ffff]);
            let far = [0, 1, SHARED_BYTES as u64 - length.min(60_000), SHARED_BYTES as u64, u64::MAX, u64::MAX - 4096];
            let kind = random.one_of(&[0, 1, 1, 1, 2, 3, 3, 4, 0xffff_ffff]);
            let placement = random.one_of(&[0, 1, 2, 2, 3]);
            let offset = random.one_of(&far);
            let (kind, total, here, offset, placement) = match random.below(4) {
                // A valid frame, so that what follows meets a receiver in any state.
                0 | 1 => (1, length, length, 0, 2),
                2 => (3, length, 0, 0, 2),
                _ => (kind, total, here, offset, placement),
            };
            let header = placement | length << 8;
            let words = [number + 1, kind | total << 32, here, offset, header, random.draw(), random.draw(), 0];
            higher.outgoing.forge_slot(number, words);
            let harvest = receiving.receive(&mut sink);
            sink.check();
            if harvest.violation.is_some() {
                refused += 1;
                break;
            }
        }
        delivered += sink.frames.len();
    }
    assert!(refused > 100 && delivered > 100, "both happen: {refused} refused, {delivered} delivered");
}

#[test]
fn a_slot_of_another_round_is_no_slot() {
    let (higher, lower) = channel();
    let mut receiving = Receiving::new(0);
    receiving.take_ring(lower);
    for stamp in [0, 2, SLOTS, SLOTS + 1, u64::MAX] {
        higher.outgoing.forge_slot(0, [stamp, 1, 0, 0, 0, 0, 0, 0]);
        let harvest = receiving.receive(&mut Guarded::new());
        assert!(!harvest.came && harvest.violation.is_none(), "stamp {stamp}");
    }
}

#[test]
fn counts_that_cannot_be_true_end_the_pair() {
    for (slots, bytes) in [(u64::MAX, 0), (SLOTS * 2, 0), (0, u64::MAX), (0, 1 << 20)] {
        let (higher, lower) = channel();
        let mut sending = Sending::new(0);
        sending.take_ring(higher);
        lower.incoming.forge_taken(slots, bytes);
        let body = [7; 100_000];
        // The third does not fit into the known room, so the counts are read.
        for _ in 0..2 {
            assert!(matches!(sending.send(&[0; HEADER_BYTES], Payload::Copy(&body)), Ok(Taken::Left)));
        }
        let outcome = sending.send(&[0; HEADER_BYTES], Payload::Copy(&body));
        assert!(matches!(outcome, Err(NotTaken::Implausible)), "{slots} slots and {bytes} bytes");
    }
}

#[test]
fn frames_of_every_size_pass_through_many_rounds_of_the_ring() {
    let (higher, lower) = channel();
    let (mut sending, mut receiving) = (Sending::new(0), Receiving::new(1));
    sending.take_ring(higher);
    receiving.take_ring(lower);
    let mut sink = Guarded::new();
    let mut random = Random::new(5);
    let mut sent = Vec::new();
    for _ in 0..20_000 {
        let (kind, most) = random.one_of(&[(0, 1), (1, 4097), (2, PLACE_BYTES as u64 + 1)]);
        let bytes = random.below(most) as u16;
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[1..3].copy_from_slice(&bytes.to_le_bytes());
        let body = vec![sent.len() as u8; usize::from(bytes)];
        assert!(sending.send(&header, Payload::Copy(&body)).is_ok());
        sent.push((kind, bytes));
        if random.once_in(40) {
            while receiving.receive(&mut sink).came {
                assert!(sending.flush().is_ok());
            }
            assert_eq!(sink.frames, sent);
            assert_eq!(sending.held_bytes(), 0);
        }
    }
    sink.check();
}

/// The link of node 0 of two, whose peer does not come.
fn lonely_link() -> Shm {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = TcpOptions {
        node: 0,
        addresses: vec![listener.local_addr().unwrap().to_string(), "127.0.0.1:1".to_owned()],
        listener: Some(listener),
        secret: [7; 32],
        security: Security::Plain,
        hello: Vec::new(),
        admit: Box::new(|_, _| Ok(())),
        refused: Box::new(|_| {}),
    };
    Shm::start(ShmOptions { tcp, manner: Manner::Prefer, host: None }).unwrap()
}

/// Polls until a process was refused.
fn poll_until_refused(link: &Shm) {
    let mut sink = Guarded::new();
    while link.statistics().unauthenticated_refused == 0 {
        link.poll(&mut sink);
    }
}

#[test]
fn a_process_without_the_token_is_counted_and_gets_no_answer() {
    let link = lonely_link();
    let one = sockets::connect(&link.listening.as_ref().unwrap().name).unwrap();
    sockets::send(one.raw(), b"offer  1 and no token", &[]).unwrap();
    poll_until_refused(&link);
    assert!(matches!(sockets::receive(one.raw()), Arrived::Over));
    link.close();
}

#[test]
fn processes_beyond_the_maximum_of_negotiations_are_counted_and_turned_away() {
    // Both ends of every connection are in this process.
    let wanted = 2 * NEGOTIATIONS_MAX as u64 + 256;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.current.map(|current| current.max(wanted.min(limit.maximum.unwrap_or(wanted))));
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(
        limit.current.is_none_or(|current| current >= wanted),
        "this test needs {wanted} descriptors; see `ulimit -Hn`"
    );
    let link = lonely_link();
    let name = link.listening.as_ref().unwrap().name;
    let mut sink = Guarded::new();
    let mut silent = Vec::new();
    for _ in 0..NEGOTIATIONS_MAX {
        silent.push(sockets::connect(&name).unwrap());
        link.poll(&mut sink);
    }
    assert_eq!(link.statistics().unauthenticated_refused, 0);
    let one_more = sockets::connect(&name).unwrap();
    poll_until_refused(&link);
    assert!(matches!(sockets::receive(one_more.raw()), Arrived::Over));
    assert!(matches!(sockets::receive(silent[0].raw()), Arrived::Nothing));
    link.close();
}

#[test]
fn a_process_of_another_user_takes_nothing_and_is_counted() {
    let test = "a_process_of_another_user_takes_nothing_and_is_counted";
    let link = lonely_link();
    let name = link.listening.as_ref().unwrap().name;
    let connected = std::thread::spawn(move || {
        // This changes the calling thread only, in contrast to the function of the C library.
        let nobody = Uid::from_raw(65_534);
        set_thread_res_uid(nobody, nobody, nobody).ok()?;
        Some(sockets::connect(&name).map(drop).expect_err("the node belongs to another user"))
    });
    let Some(error) = connected.join().unwrap() else {
        return trellis_testing::skip(test, trellis_testing::Need::Root, "only root can act as another user");
    };
    assert_eq!(error.to_string(), "it runs as another user");
    poll_until_refused(&link);
    link.close();
}
