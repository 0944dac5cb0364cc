//! All peers of one node of the link `fabric`, and what its threads share.
//!
//! It must never send (`outward`), receive (`inward`), or wait (`progress`).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use super::device::{Device, Source, Target};
use super::inward::Receive;
use super::outward::Outward;
use super::progress::ProgressThread;
use super::rendezvous::Hello;
use crate::links::descriptors::{Epoll, Event};
use crate::links::roster::{Stage, Traffic, lock};
use crate::links::tcp::Tcp;
use crate::links::{Link, LinkStatistics, PeerStatistics};

/// The maximum number of frames that a peer may send before the first of them is delivered.
pub(super) const WINDOW_MAX: usize = 16;
/// Buffers for a peer besides two for each frame of its window: one for its hello, and one spare.
const SPARE_PACKETS: usize = 2;

/// The state that the threads of a node share; see the module text.
pub(super) struct Shared {
    pub(super) node: usize,
    /// The link by which peers find, authenticate and lose each other.
    pub(super) tcp: Tcp,
    pub(super) device: Device,
    pub(super) window: u64,
    /// Readable when a poll would do something.
    pub(super) epoll: Epoll,
    nudge: Event,
    nudged: AtomicBool,
    pub(super) closed: AtomicBool,
    /// Whether something could not be handed to the provider and must be tried again.
    pub(super) stalled: AtomicBool,
    /// Whether something is in progress that may end without an event.
    pub(super) restless: AtomicBool,
    pub(super) peers: Vec<Peer>,
    /// For each slot, the peer to which its operation belongs; see [`Shared::owned_by`].
    owners: Vec<AtomicU32>,
    pub(super) receive: Mutex<Receive>,
    pub(super) progress_thread: ProgressThread,
    start: Instant,
    pub(super) packets_in: AtomicU64,
    pub(super) packets_out: AtomicU64,
    pub(super) packets_refused: AtomicU64,
    pub(super) one_sided_reads: AtomicU64,
    pub(super) one_sided_writes: AtomicU64,
}

/// Set in a slot's owner if the packet is the hello.
pub(super) const HELLO_BIT: u32 = 1 << 31;

pub(super) struct Peer {
    pub(super) stage: Stage,
    pub(super) traffic: Traffic,
    /// The cookie that this peer puts into its packets to this node.
    pub(super) cookie: u64,
    pub(super) there: OnceLock<There>,
    /// The peer's shared memory, for bodies whose place there is known.
    pub(super) target: OnceLock<Target>,
    pub(super) outward: Mutex<Outward>,
    /// The number of its frames that were delivered here.
    pub(super) delivered: AtomicU64,
    /// The number of its packets that were seen here.
    pub(super) seen: AtomicU64,
    pub(super) packets_sent: AtomicU64,
    /// The number of packets that it is known to have seen.
    pub(super) packets_seen_there: AtomicU64,
    /// When the first packet that it is not known to have seen was sent, in nanoseconds; 0 if there is none.
    pub(super) unseen_since: AtomicU64,
    /// The number of packets that had been sent when the peer was last woken, plus 1; 0 after it has answered.
    pub(super) woken_after: AtomicU64,
    /// The number of one-sided reads from it in flight.
    pub(super) reads: AtomicUsize,
    /// The number of one-sided writes to it in flight.
    pub(super) writes: AtomicUsize,
    /// Whether the provider refused to begin a write: from then on, the peer reads.
    pub(super) reads_only: AtomicBool,
    /// Why the fabric no longer reaches it, and since when, in nanoseconds.
    pub(super) broken: Mutex<Option<(u64, String)>>,
    pub(super) is_broken: AtomicBool,
}

/// How a peer is reached.
pub(super) struct There {
    pub(super) number: u64,
    pub(super) hello: Hello,
}

/// The number of packets that need room, with `peers` peers.
pub(super) fn receives_wanted(peers: usize) -> usize {
    peers * (2 * WINDOW_MAX + SPARE_PACKETS)
}

impl Shared {
    pub(super) fn new(tcp: Tcp, device: Device) -> io::Result<Shared> {
        let (node, nodes) = (tcp.node(), tcp.nodes());
        let (epoll, nudge) = (Epoll::new()?, Event::new()?);
        epoll.add(nudge.descriptor(), false, 0)?;
        epoll.add(tcp.ready_descriptor(), false, 1)?;
        if let Some(completions) = device.wait_descriptor() {
            epoll.add_borrowed(completions, false, 2)?;
        }
        let window = (device.receives() / (nodes - 1).max(1)).saturating_sub(SPARE_PACKETS) / 2;
        let owners = (0..device.slots()).map(|_| AtomicU32::new(0)).collect();
        let peers = (0..nodes).map(|_| Ok(Peer::new(random()?))).collect::<io::Result<_>>()?;
        let receive = Receive::new(nodes, device.receives() as u32);
        let shared = Shared {
            node,
            tcp,
            device,
            window: window.clamp(1, WINDOW_MAX) as u64,
            epoll,
            nudge,
            nudged: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            restless: AtomicBool::new(false),
            peers,
            owners,
            receive: Mutex::new(receive),
            progress_thread: ProgressThread::default(),
            start: Instant::now(),
            packets_in: AtomicU64::new(0),
            packets_out: AtomicU64::new(0),
            packets_refused: AtomicU64::new(0),
            one_sided_reads: AtomicU64::new(0),
            one_sided_writes: AtomicU64::new(0),
        };
        Ok(shared)
    }

    /// Nanoseconds since the link was started; never zero.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Whether this is a forked child, where every descriptor is closed.
    pub(super) fn is_forked(&self) -> bool {
        self.epoll.raw() < 0
    }

    /// Makes some thread poll.
    pub(super) fn nudge(&self) {
        if !self.nudged.swap(true, Ordering::AcqRel) {
            self.nudge.signal();
        }
    }

    /// Clears the nudge, at the beginning of a poll.
    pub(super) fn hear_nudge(&self) {
        if self.nudged.load(Ordering::Relaxed) {
            self.nudge.drain();
            self.nudged.store(false, Ordering::Release);
        }
    }

    /// Notes that something must be tried again although no event reports it.
    pub(super) fn stall(&self) {
        self.stalled.store(true, Ordering::Release);
        self.disquiet();
    }

    /// Makes the progress thread ensure that some thread polls again.
    pub(super) fn disquiet(&self) {
        self.restless.store(true, Ordering::Release);
        self.progress_thread.wake();
    }

    /// Notes that the fabric no longer reaches a peer. The tcp connection decides what that means, because a peer that
    /// leaves ends its endpoint first.
    pub(super) fn note_broken(&self, index: usize, why: String) {
        let peer = &self.peers[index];
        let mut broken = lock(&peer.broken);
        if broken.is_none() {
            *broken = Some((self.now(), why));
            peer.is_broken.store(true, Ordering::Release);
            self.disquiet();
        }
    }

    /// Whether writes to peers are in flight.
    pub(super) fn is_writing(&self) -> bool {
        self.peers.iter().any(|peer| peer.writes.load(Ordering::Acquire) > 0)
    }

    pub(super) fn own(&self, slot: u32, owner: u32) {
        self.owners[slot as usize].store(owner, Ordering::Relaxed);
    }

    /// The peer to which the operation of a slot belongs, and whether it is the hello.
    pub(super) fn owned_by(&self, slot: u32) -> (usize, bool) {
        let owner = self.owners[slot as usize].load(Ordering::Relaxed);
        ((owner & !HELLO_BIT) as usize, owner & HELLO_BIT != 0)
    }

    pub(super) fn statistics(&self) -> LinkStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let below = self.tcp.statistics();
        let mut all = LinkStatistics {
            unauthenticated_refused: below.unauthenticated_refused,
            nodes_refused: below.nodes_refused,
            packets_in: read(&self.packets_in),
            packets_out: read(&self.packets_out),
            packets_refused: read(&self.packets_refused),
            one_sided_reads: read(&self.one_sided_reads),
            one_sided_writes: read(&self.one_sided_writes),
            ..LinkStatistics::default()
        };
        for peer in &self.peers {
            let queued_bytes = lock(&peer.outward).held_bytes() as u64;
            let one = PeerStatistics { queued_bytes, ..peer.traffic.read() };
            all.add_peer(one, peer.traffic.frames_refused());
        }
        all
    }
}

impl Peer {
    fn new(cookie: u64) -> Peer {
        Peer {
            stage: Stage::default(),
            traffic: Traffic::default(),
            cookie,
            there: OnceLock::new(),
            outward: Mutex::default(),
            delivered: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            packets_sent: AtomicU64::new(0),
            packets_seen_there: AtomicU64::new(0),
            unseen_since: AtomicU64::new(0),
            woken_after: AtomicU64::new(0),
            target: OnceLock::new(),
            reads: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            reads_only: AtomicBool::new(false),
            broken: Mutex::new(None),
            is_broken: AtomicBool::new(false),
        }
    }

    /// The address of `bytes` bytes at `place` in its shared memory, to be written; `None` if that is not allowed.
    pub(super) fn part(&self, place: u64, bytes: usize) -> Option<Source> {
        let target = self.target.get().filter(|_| !self.reads_only.load(Ordering::Relaxed))?;
        target.part(place, bytes)
    }

    /// Notes that the peer has seen `packets` of this node's packets.
    pub(super) fn has_seen(&self, packets: u64) {
        let before = self.packets_seen_there.fetch_max(packets, Ordering::AcqRel);
        if packets > before && packets >= self.packets_sent.load(Ordering::Acquire) {
            self.unseen_since.store(0, Ordering::Release);
        }
    }
}

/// Eight unpredictable random bytes.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
