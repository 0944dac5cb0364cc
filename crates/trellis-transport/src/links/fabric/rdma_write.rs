//! RDMA writes into the receiver's shared memory: the sender's half, and the end of writes when a node leaves.
//! The text of the link says what makes them safe, and what orders them.
//!
//! Promises: a body is written at most once, and its frame's packet says so. The body stays unchanged until the peer
//! has confirmed the frame.
//!
//! It must never write to a place that the caller of [`crate::links::Link::send_placed`] did not name.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::device::{COMPLETIONS_MAX, Completion, Source, Taken, Use};
use super::outward::{Frame, NOWHERE, Outward};
use super::packet::Kind;
use super::peers::Shared;
use super::rendezvous::Said;
use crate::HEADER_BYTES;
use crate::links::roster::lock;
use crate::links::waits::FABRIC_WRITES;
use crate::links::{Link, Lost, Payload, Placement, Refused, Sink};

/// The longest body that is written. A longer one is read: its receiver makes the memory of long runs exist before,
/// and decides how much of them is in flight.
const WRITTEN_BODY_BYTES_MAX: usize = 32 << 10;
/// The pause between two checks of writes that have not ended.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// The number of checks between two questions to a peer about its deliveries, which also wake it.
const LOOKS_PER_QUESTION: u32 = 20;

/// The result of an attempt to write a frame's body.
pub(super) enum Written {
    /// The body is being written, and the packet is sent.
    Yes,
    /// It must be tried again.
    Again,
    /// The body is sent another way.
    OtherWay,
}

/// The word of a write: the sending node, and the low 16 bits of the frame's number, which suffice because far fewer
/// frames are in flight.
pub(super) fn word_of(node: usize, sequence: u64) -> u32 {
    (node as u32) << 16 | u32::from(sequence as u16)
}

/// The node, and the low 16 bits of the number.
pub(super) fn read_word(word: u64) -> (usize, u16) {
    ((word >> 16) as usize, word as u16)
}

impl Shared {
    /// Tells the peers where they may write; later peers are told when they come.
    pub(super) fn tell_of_memory(&self) {
        let Some(target) = self.device.target().filter(|_| self.device.writes()) else { return };
        for index in (0..self.peers.len()).filter(|&index| index != self.node) {
            // A lost peer writes nothing.
            let _ = self.tcp.send(index, &Said::Shared(target).write(), Payload::Nothing);
        }
    }

    /// Writes the body of a frame whose place is known, and sends its packet. `is_shared` says whether the body lies in
    /// the shared memory.
    pub(super) fn write_body(
        &self,
        index: usize,
        outward: &mut Outward,
        frame: &mut Frame,
        is_shared: bool,
    ) -> Written {
        let bytes = frame.bytes().len();
        let place = frame.place;
        if !frame.is_written {
            if place == NOWHERE || bytes > WRITTEN_BODY_BYTES_MAX {
                return Written::OtherWay;
            }
            let Some(part) = self.peers[index].part(place, bytes) else { return Written::OtherWay };
            match self.write(index, frame, part, is_shared) {
                Written::Yes => frame.is_written = true,
                other => return other,
            }
        }
        let kind = Kind::Written { sequence: frame.sequence, header: frame.header, bytes: bytes as u64, place };
        if !self.put(index, outward, kind, None) {
            return Written::Again;
        }
        // The window bounds the frames that are kept until the peer confirms them.
        outward.held_bytes -= std::mem::take(&mut frame.held_bytes);
        Written::Yes
    }

    fn write(&self, index: usize, frame: &mut Frame, to: Source, is_shared: bool) -> Written {
        let peer = &self.peers[index];
        let Some(there) = peer.there.get() else { return Written::Again };
        let (pointer, bytes) = (frame.bytes().as_ptr(), frame.bytes().len());
        if !is_shared {
            // SAFETY: the registration is dropped with the frame, and its body is readable as long.
            match unsafe { self.device.prepare(pointer, bytes) } {
                Ok(registration) => frame.registration = registration,
                Err(_) => return Written::OtherWay,
            }
        }
        let Some(slot) = self.device.take_write() else {
            self.stall();
            return Written::Again;
        };
        self.own(slot, index as u32);
        peer.writes.fetch_add(1, Ordering::AcqRel);
        let (registration, word) = (frame.registration.as_ref(), word_of(self.node, frame.sequence));
        // SAFETY: the body stays readable until the peer has confirmed the frame, which is after the write, or until
        // the link is closed or the peer lost; by the promise of `Payload::Pinned`, or because the frame owns it.
        let taken = unsafe { self.device.write(slot, (pointer, bytes), registration, there.number, to, word) };
        if taken == Ok(Taken::Yes) {
            self.one_sided_writes.fetch_add(1, Ordering::Relaxed);
            return Written::Yes;
        }
        peer.writes.fetch_sub(1, Ordering::AcqRel);
        self.device.give(slot);
        frame.registration = None;
        if taken.is_ok() {
            self.stall();
            return Written::Again;
        }
        // Either this provider takes no such write, or the peer is not reached, which the frame's packet will report.
        peer.reads_only.store(true, Ordering::Relaxed);
        Written::OtherWay
    }

    /// Handles the end of a write.
    pub(super) fn written(&self, slot: u32, why: Option<String>) {
        let (index, _) = self.owned_by(slot);
        self.device.give(slot);
        self.peers[index].writes.fetch_sub(1, Ordering::AcqRel);
        if let Some(why) = why {
            self.note_broken(index, why);
        }
    }

    /// Waits, before this node leaves, until the peers that poll have delivered what is written to them. The caller
    /// holds the receiving side. Frames that arrive meanwhile are not received any more. They go to memory that is
    /// returned, to which the tcp link may refer until it is closed.
    pub(super) fn finish_writes(&self) -> Vec<Vec<u8>> {
        let start = self.now();
        let mut completions = [Completion::default(); COMPLETIONS_MAX];
        let mut looks = 0_u32;
        let mut answers = Answers { shared: self, passed_over: vec![Vec::new(); self.peers.len()] };
        loop {
            let awaited: Vec<usize> = (0..self.peers.len()).filter(|&index| self.awaits(index)).collect();
            if awaited.is_empty() || self.now() - start >= FABRIC_WRITES.nanoseconds() {
                return answers.passed_over;
            }
            if looks.is_multiple_of(LOOKS_PER_QUESTION) {
                for &index in &awaited {
                    // A lost connection ends the wait.
                    let _ = self.tcp.send(index, &Said::WakeUp.write(), Payload::Nothing);
                }
            }
            looks = looks.wrapping_add(1);
            let count = self.device.poll(&mut completions).unwrap_or(0);
            for completion in &completions[..count] {
                match self.device.use_of(completion.slot) {
                    Some(Use::Write) => self.written(completion.slot, failure(completion)),
                    Some(Use::Receive) => {
                        // A slot that cannot be posted is no longer needed.
                        let _ = self.device.post(completion.slot);
                    }
                    Some(Use::Send | Use::Read) => self.device.give(completion.slot),
                    Some(Use::Landed) | None => {}
                }
            }
            let came = self.tcp.poll(&mut answers);
            if count == 0 && !came {
                std::thread::park_timeout(LOOK_AGAIN);
            }
        }
    }

    /// Whether a reachable peer has not confirmed what was written to it.
    fn awaits(&self, index: usize) -> bool {
        let peer = &self.peers[index];
        !peer.is_broken.load(Ordering::Acquire) && self.tcp.is_connected(index) && lock(&peer.outward).is_writing()
    }
}

/// A sink that takes only the peers' reports of deliveries.
struct Answers<'a> {
    shared: &'a Shared,
    /// By peer number: the body of which the rest arrives, or arrived last.
    passed_over: Vec<Vec<u8>>,
}

impl Sink for Answers<'_> {
    fn place(&mut self, index: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        let bytes = match Said::read(header) {
            Some(Said::Hello(bytes) | Said::DetourBody(bytes)) => bytes,
            Some(Said::Detour { .. }) => HEADER_BYTES,
            Some(Said::WakeUp | Said::Seen { .. } | Said::Dropped | Said::Shared(_)) => return Ok(Placement::Nothing),
            None => return Err("its version of the link `fabric` says something that this one does not know".into()),
        };
        let room = &mut self.passed_over[index];
        room.resize(bytes, 0);
        Ok(Placement::At { pointer: room.as_mut_ptr(), bytes })
    }

    fn deliver(&mut self, index: usize, header: &[u8; HEADER_BYTES], _body: &[u8]) {
        if let Some(Said::Seen { delivered, .. }) = Said::read(header) {
            lock(&self.shared.peers[index].outward).acknowledged(delivered);
        }
    }

    fn connected(&mut self, _index: usize) {}

    fn lost(&mut self, _index: usize, _why: &Lost) {}
}

/// The error message of libfabric for a failed operation.
pub(super) fn failure(completion: &Completion) -> Option<String> {
    (completion.error != 0).then(|| super::device::sentence(i64::from(completion.error)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::super::{Fabric, FabricOptions};
    use super::*;
    use crate::links::SharedMemory;
    use crate::links::tcp::TcpOptions;
    use crate::wrap::secure::Security;

    const BYTES: usize = 4096;

    #[test]
    fn a_word_names_the_node_and_the_end_of_the_number() {
        for (node, sequence) in [(0, 0), (63, 0xFFFF), (1023, 0x1_0000), (5, u64::MAX)] {
            assert_eq!(read_word(u64::from(word_of(node, sequence))), (node, sequence as u16));
        }
    }

    /// A node that places all frames at the start of its memory.
    struct Node {
        link: Fabric,
        memory: Box<[u8]>,
        delivered: usize,
    }

    struct Into<'a>(&'a mut [u8], &'a mut usize);

    impl Sink for Into<'_> {
        fn place(&mut self, _peer: usize, _header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
            Ok(Placement::At { pointer: self.0.as_mut_ptr(), bytes: BYTES })
        }

        fn deliver(&mut self, _peer: usize, _header: &[u8; HEADER_BYTES], _body: &[u8]) {
            *self.1 += 1;
        }

        fn connected(&mut self, _peer: usize) {}

        fn lost(&mut self, _peer: usize, why: &Lost) {
            panic!("{why}");
        }
    }

    impl Node {
        fn poll(&mut self) {
            self.link.poll(&mut Into(&mut self.memory, &mut self.delivered));
        }

        fn packets_in(&self) -> u64 {
            self.link.shared.packets_in.load(Ordering::Acquire)
        }

        /// Sends the packet of a frame whose body is written; returns whether the provider took it.
        fn announce(&self, sequence: u64) -> bool {
            let kind = Kind::Written { sequence, header: [0; HEADER_BYTES], bytes: BYTES as u64, place: 0 };
            let mut outward = lock(&self.link.shared.peers[1].outward);
            self.link.shared.put(1, &mut outward, kind, None)
        }

        /// Writes that body, or one that claims to be that body.
        fn write(&self, sequence: u64) {
            let (shared, peer) = (&self.link.shared, &self.link.shared.peers[1]);
            let slot = shared.device.take_write().expect("none is under way");
            shared.own(slot, 1);
            peer.writes.fetch_add(1, Ordering::AcqRel);
            let (to, number) = (peer.part(0, BYTES).expect("told"), peer.there.get().expect("met").number);
            let word = word_of(0, sequence);
            // SAFETY: the memory of this test outlives its links.
            let taken = unsafe { shared.device.write(slot, (self.memory.as_ptr(), BYTES), None, number, to, word) };
            assert_eq!(taken, Ok(Taken::Yes));
        }
    }

    fn pair(provider: &str) -> [Node; 2] {
        let (sockets, addresses) = trellis_testing::listeners(2);
        let mut nodes = <[TcpListener; 2]>::try_from(sockets).expect("two").map(|socket| {
            let tcp = TcpOptions {
                node: addresses
                    .iter()
                    .position(|at| *at == socket.local_addr().expect("bound").to_string())
                    .expect("one"),
                addresses: addresses.clone(),
                listener: Some(socket),
                secret: [3; 32],
                security: Security::Plain,
                hello: Vec::new(),
                admit: Box::new(|_, _| Ok(())),
                refused: Box::new(|_| {}),
            };
            let link = Fabric::start(FabricOptions { tcp, provider: provider.to_owned() }).expect("on loopback");
            Node { link, memory: vec![0; BYTES].into(), delivered: 0 }
        });
        for node in &mut nodes {
            let memory = SharedMemory { pointer: node.memory.as_mut_ptr(), bytes: BYTES, file: -1 };
            node.link.share(memory).expect("memory of this process");
        }
        poll_until(&mut nodes, |nodes| {
            nodes[0].link.shared.peers[1].target.get().is_some() && nodes[0].link.is_connected(1)
        });
        nodes
    }

    fn poll_until(nodes: &mut [Node; 2], done: impl Fn(&[Node; 2]) -> bool) {
        let start = Instant::now();
        while !done(nodes) {
            nodes.iter_mut().for_each(Node::poll);
            assert!(start.elapsed().as_secs() < 60, "the test hangs");
        }
    }

    /// Waits until the bytes are there, and both sides have polled after that.
    fn poll_until_landed(nodes: &mut [Node; 2], value: u8) {
        poll_until(nodes, |nodes| {
            nodes[0].link.shared.peers[1].writes.load(Ordering::Acquire) == 0 && nodes[1].memory[BYTES - 1] == value
        });
        nodes.iter_mut().for_each(Node::poll);
    }

    #[test]
    fn a_frame_waits_for_its_packet_and_for_its_own_bytes_in_either_order() {
        for provider in ["tcp", "shm"] {
            let mut nodes = pair(provider);
            nodes[0].memory.fill(1);
            let packets = nodes[1].packets_in();
            poll_until(&mut nodes, |nodes| nodes[0].announce(0));
            poll_until(&mut nodes, |nodes| nodes[1].packets_in() > packets);
            assert_eq!(nodes[1].delivered, 0, "{provider}: the packet came first");
            // These are bytes of a frame that is not in flight, and of one whose turn comes later.
            for (value, sequence) in [(2, 500), (3, 1)] {
                nodes[0].memory.fill(value);
                nodes[0].write(sequence);
                poll_until_landed(&mut nodes, value);
                assert_eq!(nodes[1].delivered, 0, "{provider}: another frame's bytes came");
            }
            nodes[0].memory.fill(4);
            nodes[0].write(0);
            poll_until(&mut nodes, |nodes| nodes[1].delivered > 0);
            assert_eq!((nodes[1].delivered, nodes[1].memory[BYTES - 1]), (1, 4), "{provider}");
            // The bytes of the next frame have arrived already.
            poll_until(&mut nodes, |nodes| nodes[0].announce(1));
            poll_until(&mut nodes, |nodes| nodes[1].delivered > 1);
            assert_eq!(nodes[1].delivered, 2, "{provider}");
            nodes.iter().for_each(|node| node.link.close());
        }
    }
}
