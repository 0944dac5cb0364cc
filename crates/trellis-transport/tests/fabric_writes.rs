//! One-sided writes of bodies into the receiver's memory over the link `fabric`.
//! Which bodies are written, that their frames are delivered after them and in order, and that a node that leaves ends
//! its writes first.

#![cfg(feature = "fabric")]
#![allow(unsafe_code)]

mod support;

use std::sync::Arc;
use std::time::Instant;

use support::fabric::{Memory, PAGE_BYTES, PROVIDERS, page_header, poll_both};
use support::{Form, HANG_SECONDS, build_fabric, header, read_header};
use trellis_transport::{Fabric, HEADER_BYTES, Link, Lost, Payload, Placement, Refused, Sink};

const KIB: usize = 1024;
/// The longest body that is written.
const WRITTEN_MAX: usize = 32 * KIB;

/// Two nodes that have shared their memory and know each other's.
fn pair(provider: &str, pages: usize) -> (Vec<Arc<Fabric>>, [Memory; 2]) {
    let mut memories = [Memory::new(pages * PAGE_BYTES), Memory::new(pages * PAGE_BYTES)];
    let links = build_fabric(provider, 2);
    for (link, memory) in links.iter().zip(&mut memories) {
        link.share(memory.shared()).expect("memory of this process");
    }
    // The address of the peer's memory arrives by another path than frames: until then pages are read.
    let start = Instant::now();
    while links.iter().any(|link| link.one_sided_writes() == 0) {
        for (node, link) in links.iter().enumerate() {
            let body = Payload::Pinned(memories[node].bytes.as_ptr(), PAGE_BYTES);
            link.send_placed(1 - node, &page_header(node as u64, PAGE_BYTES), body, node * PAGE_BYTES).expect("room");
        }
        let wanted = memories[0].pages.len() + 1;
        poll_both(&links, &mut memories, |memories| memories.iter().all(|memory| memory.pages.len() == wanted));
        assert!(start.elapsed().as_secs() < HANG_SECONDS, "nothing is written");
    }
    memories.iter_mut().for_each(|memory| memory.pages.clear());
    (links, memories)
}

/// What both nodes have read and written since the last time.
fn one_sided(links: &[Arc<Fabric>], before: &mut [(u64, u64); 2]) -> [(u64, u64); 2] {
    let now = [0, 1].map(|node| {
        let counted = links[node].statistics();
        (counted.one_sided_reads, counted.one_sided_writes)
    });
    let since = [0, 1].map(|node| (now[node].0 - before[node].0, now[node].1 - before[node].1));
    *before = now;
    since
}

#[test]
fn bodies_whose_place_is_known_are_written_or_read_by_their_size() {
    for provider in PROVIDERS {
        let (links, mut memories) = pair(provider, 64);
        for (at, byte) in memories[0].bytes.iter_mut().enumerate() {
            *byte = (at / PAGE_BYTES * 3 + at) as u8;
        }
        let mut before = [(0, 0); 2];
        one_sided(&links, &mut before);
        for (bytes, expected) in [
            (0, [(0, 0), (0, 0)]),
            (KIB, [(0, 0), (0, 0)]),
            (KIB + 1, [(0, 1), (0, 0)]),
            (PAGE_BYTES, [(0, 1), (0, 0)]),
            (WRITTEN_MAX, [(0, 1), (0, 0)]),
            (WRITTEN_MAX + 1, [(0, 0), (1, 0)]),
            (50 * PAGE_BYTES, [(0, 0), (1, 0)]),
        ] {
            memories[1].bytes.fill(0);
            let body = Payload::Pinned(memories[0].bytes[3 * PAGE_BYTES..].as_ptr(), bytes);
            links[0].send_placed(1, &page_header(3, bytes), body, 3 * PAGE_BYTES).expect("room for one frame");
            poll_both(&links, &mut memories, |memories| !memories[1].pages.is_empty());
            memories[1].pages.clear();
            let (from, to) = (&memories[0].bytes, &memories[1].bytes);
            let end = 3 * PAGE_BYTES + bytes;
            assert!(from[3 * PAGE_BYTES..end] == to[3 * PAGE_BYTES..end], "{provider}, {bytes} bytes");
            assert!(to[..3 * PAGE_BYTES].iter().chain(&to[end..]).all(|&byte| byte == 0), "{provider}, {bytes} bytes");
            assert_eq!(one_sided(&links, &mut before), expected, "{provider}, {bytes} bytes");
        }
        links.iter().for_each(|link| link.close());
    }
}

#[test]
fn a_senders_copy_outside_of_the_shared_memory_is_written_too() {
    for provider in PROVIDERS {
        let (links, mut memories) = pair(provider, 8);
        let mut before = [(0, 0); 2];
        one_sided(&links, &mut before);
        // What fits into a packet is copied nevertheless.
        for (bytes, writes) in [(PAGE_BYTES, 0), (5 * PAGE_BYTES, 1)] {
            let outside = support::body(7, bytes);
            links[0].send_placed(1, &page_header(1, bytes), Payload::Copy(&outside), PAGE_BYTES).expect("room");
            poll_both(&links, &mut memories, |memories| !memories[1].pages.is_empty());
            memories[1].pages.clear();
            assert!(memories[1].bytes[PAGE_BYTES..PAGE_BYTES + bytes] == outside, "{provider}, {bytes} bytes");
            assert_eq!(one_sided(&links, &mut before), [(0, writes), (0, 0)], "{provider}, {bytes} bytes");
        }
        links.iter().for_each(|link| link.close());
    }
}

const FRAMES_PER_ROUND: usize = 96;
const PAGES_PER_FRAME: usize = 12;

/// Checks at the moment of delivery that the body has arrived: one byte value for each frame and round.
struct Rounds {
    memory: Memory,
    frames: u64,
    without_bytes: usize,
}

fn stamp(page: usize, round: usize) -> u8 {
    (page * 31 + round * 7 + 1) as u8
}

impl Sink for Rounds {
    fn place(&mut self, peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        let seen = read_header(header);
        assert_eq!(seen.sequence, self.frames, "in the order in which they were sent");
        match seen.form {
            Form::At => self.memory.place(peer, &page_header(u64::from(seen.sender), seen.bytes)),
            _ => Ok(Placement::Inline(seen.bytes)),
        }
    }

    fn deliver(&mut self, _peer: usize, header: &[u8; HEADER_BYTES], body: &[u8]) {
        let seen = read_header(header);
        let (page, round) = (usize::from(seen.sender), self.frames as usize / FRAMES_PER_ROUND);
        let at = page * PAGE_BYTES;
        let body = if seen.form == Form::At { &self.memory.bytes[at..at + seen.bytes] } else { body };
        self.without_bytes += usize::from(!body.iter().all(|&byte| byte == stamp(page, round)));
        self.frames += 1;
    }

    fn connected(&mut self, peer: usize) {
        self.memory.connected(peer);
    }

    fn lost(&mut self, peer: usize, why: &Lost) {
        self.memory.lost(peer, why);
    }
}

/// Frames that are written, that are read, and that are sent in their packets, in turn.
#[test]
fn a_frame_is_delivered_after_its_bytes_and_in_its_turn() {
    const ROUNDS: usize = 40;
    for provider in PROVIDERS {
        let (links, memories) = pair(provider, FRAMES_PER_ROUND * PAGES_PER_FRAME);
        let [mut sender, memory] = memories;
        let mut receiver = Rounds { memory, frames: 0, without_bytes: 0 };
        let mut frames = 0;
        for round in 0..ROUNDS {
            for frame in 0..FRAMES_PER_ROUND {
                let page = frame * PAGES_PER_FRAME;
                let place = page * PAGE_BYTES;
                sender.bytes[place..place + PAGES_PER_FRAME * PAGE_BYTES].fill(stamp(page, round));
                let (form, bytes) = match frame % 4 {
                    0 => (Form::At, PAGE_BYTES),
                    1 => (Form::Inline, 100),
                    2 => (Form::At, 11 * PAGE_BYTES),
                    _ => (Form::At, 7 * PAGE_BYTES),
                };
                let header = header(form, page as u16, frames, bytes);
                frames += 1;
                let body = Payload::Pinned(sender.bytes[place..].as_ptr(), bytes);
                match form {
                    Form::At => links[0].send_placed(1, &header, body, place),
                    _ => links[0].send(1, &header, body),
                }
                .expect("room for a round");
            }
            let start = Instant::now();
            while receiver.frames < frames {
                links[0].poll(&mut sender);
                links[1].poll(&mut receiver);
                assert!(start.elapsed().as_secs() < HANG_SECONDS, "the test hangs");
            }
        }
        assert_eq!(receiver.without_bytes, 0, "{provider}: frames that were delivered without their bytes");
        let (writes, expected) = (links[0].one_sided_writes(), (ROUNDS * FRAMES_PER_ROUND / 2) as u64);
        assert!(writes >= expected, "{provider}: {writes} writes and not {expected}");
        links.iter().for_each(|link| link.close());
    }
}

#[test]
fn a_body_that_was_written_elsewhere_is_the_end_of_its_sender() {
    for provider in PROVIDERS {
        let (links, mut memories) = pair(provider, 8);
        let body = Payload::Pinned(memories[0].bytes.as_ptr(), PAGE_BYTES);
        links[0].send_placed(1, &page_header(1, PAGE_BYTES), body, 5 * PAGE_BYTES).expect("room for one frame");
        poll_both(&links, &mut memories, |memories| memories[1].lost.is_some());
        assert!(memories[1].pages.is_empty(), "{provider}");
        let sentence = memories[1].lost.take().expect("just now").to_string();
        assert!(sentence.contains("written to another place"), "{sentence}");
        assert_eq!(links[1].statistics().frames_refused, 1, "{provider}");
        links.iter().for_each(|link| link.close());
    }
}

#[test]
fn a_place_past_the_end_and_a_peer_without_shared_memory_are_not_written_to() {
    for provider in PROVIDERS {
        let (links, mut memories) = pair(provider, 4);
        let mut before = [(0, 0); 2];
        one_sided(&links, &mut before);
        let body = Payload::Pinned(memories[0].bytes.as_ptr(), PAGE_BYTES);
        for place in [3 * PAGE_BYTES + 1, usize::MAX] {
            links[0].send_placed(1, &page_header(2, PAGE_BYTES), body, place).expect("room for one frame");
        }
        poll_both(&links, &mut memories, |memories| memories[1].pages.len() == 2);
        assert_eq!(one_sided(&links, &mut before), [(0, 0), (2, 0)], "{provider}");
        links.iter().for_each(|link| link.close());

        let mut memories = [Memory::new(PAGE_BYTES), Memory::new(PAGE_BYTES)];
        let links = build_fabric(provider, 2);
        links[0].share(memories[0].shared()).expect("memory of this process");
        let body = Payload::Pinned(memories[0].bytes.as_ptr(), PAGE_BYTES);
        for sent in 1..=20 {
            links[0].send_placed(1, &page_header(0, PAGE_BYTES), body, 0).expect("room for one frame");
            poll_both(&links, &mut memories, |memories| memories[1].pages.len() == sent);
        }
        assert_eq!(one_sided(&links, &mut [(0, 0); 2]), [(0, 0), (20, 0)], "{provider}");
        links.iter().for_each(|link| link.close());
    }
}

/// Everything that was sent arrives although the sender leaves at once, and nothing arrives after that.
#[test]
fn a_node_that_leaves_ends_its_writes_first() {
    const PAGES: usize = 256;
    for provider in PROVIDERS {
        for sent in [1, 10, PAGES] {
            let (links, mut memories) = pair(provider, PAGES);
            memories[0].bytes.fill(0xC3);
            for page in 0..sent {
                let place = page * PAGE_BYTES;
                let body = Payload::Pinned(memories[0].bytes[place..].as_ptr(), PAGE_BYTES);
                links[0].send_placed(1, &page_header(page as u64, PAGE_BYTES), body, place).expect("room for a page");
            }
            let [_leaver, mut stayer] = memories;
            std::thread::scope(|scope| {
                scope.spawn(|| links[0].close());
                let start = Instant::now();
                while stayer.lost.is_none() {
                    links[1].poll(&mut stayer);
                    assert!(start.elapsed().as_secs() < HANG_SECONDS, "the test hangs");
                }
            });
            assert_eq!(stayer.pages, (0..sent as u64).collect::<Vec<_>>(), "{provider}");
            assert!(stayer.bytes[..sent * PAGE_BYTES].iter().all(|&byte| byte == 0xC3), "{provider}");
            stayer.bytes.fill(0x5A);
            for _ in 0..1000 {
                links[1].poll(&mut stayer);
            }
            links[1].close();
            assert!(stayer.bytes.iter().all(|&byte| byte == 0x5A), "{provider}: a write landed late");
        }
    }
}

#[test]
fn a_peer_that_does_not_poll_keeps_no_node_from_leaving() {
    for provider in PROVIDERS {
        let (links, memories) = pair(provider, 4);
        let body = Payload::Pinned(memories[0].bytes.as_ptr(), PAGE_BYTES);
        links[0].send_placed(1, &page_header(0, PAGE_BYTES), body, 0).expect("room for a page");
        let link = Arc::clone(&links[0]);
        let closing = std::thread::spawn(move || link.close());
        let start = Instant::now();
        while !closing.is_finished() {
            assert!(start.elapsed().as_secs() < HANG_SECONDS, "{provider}: the test hangs");
            std::thread::yield_now();
        }
        links[1].close();
    }
}

/// A receiver that does not poll is woken by its readiness when something was written to it.
#[test]
fn whoever_sleeps_is_woken_by_a_write() {
    const ROUNDS: usize = 200;
    for provider in PROVIDERS {
        let (links, memories) = pair(provider, 8);
        let [mut sender, mut receiver] = memories;
        std::thread::scope(|scope| {
            let (go_on, wait) = std::sync::mpsc::channel();
            let link = &links[1];
            scope.spawn(move || {
                for page in 0..ROUNDS {
                    while receiver.pages.len() == page {
                        let mut ready = libc::pollfd { fd: link.readiness(), events: libc::POLLIN, revents: 0 };
                        // SAFETY: one descriptor that the link keeps open; the time-out ends only a broken test.
                        let count = unsafe { libc::poll(&raw mut ready, 1, HANG_SECONDS as i32 * 1000) };
                        assert!(count == 1, "{provider}: nobody woke the receiver");
                        while link.poll(&mut receiver) {}
                    }
                    go_on.send(()).expect("the sender waits");
                }
            });
            for page in 0..ROUNDS {
                let place = page % 8 * PAGE_BYTES;
                let body = Payload::Pinned(sender.bytes[place..].as_ptr(), PAGE_BYTES);
                links[0].send_placed(1, &page_header(page as u64 % 8, PAGE_BYTES), body, place).expect("room");
                let start = Instant::now();
                while wait.try_recv().is_err() {
                    links[0].poll(&mut sender);
                    assert!(start.elapsed().as_secs() < 2 * HANG_SECONDS, "the test hangs");
                }
            }
        });
        links.iter().for_each(|link| link.close());
    }
}
