//! The runtime of one node: carries out what the protocols decide, with the memory and the link.
//!
//! Promises: a fault is served in the thread that faulted, if the catcher allows it. Every wait has a deadline. The
//! first failure is kept, told to the peers and reported once. Effects are carried out in the order in which they were
//! decided, under the lock of their shard. It must never touch the application view. On the fault path it must never
//! allocate, log, or take a lock other than those of its shard, of the stream guesser and of the link.
//!
//! Locks are taken in the order of `ordered`, after a connection's receive side and before a connection's send side. A
//! thread waits for no other while it holds one, except as [`Rank::Program`] says.

mod breakdown;
mod carrier;
mod change;
pub(crate) mod consistency;
mod contention;
mod diffs;
mod elastic;
pub(crate) mod failure;
mod faults;
mod heap;
#[cfg_attr(not(feature = "remote"), path = "no_leases.rs")]
pub(crate) mod leases;
mod members;
mod ordered;
pub(crate) mod pages;
mod progress;
mod range_locks;
mod recorder;
mod sink;
mod synchronisation;
pub(crate) mod waiters;
mod watchdog;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use trellis_cluster_protocol::coherence::{self, Geometry, Protocol};
use trellis_cluster_protocol::membership::Membership;
use trellis_cluster_protocol::node::PublicationLimits;
use trellis_cluster_protocol::prefetch::Streams;
use trellis_cluster_protocol::wire::{self, Limits};
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange};
use trellis_memory::{Detection, PageSet, Region as MappedRegion};
use trellis_transport::{Link, Payload, SendError};

use crate::cluster::WaitError;
use crate::config::{AcquireDrops, Config, Reserve, Security, Start, WriteDetection};
use crate::launch::{Activity, StatusPage, monotonic_ns};
use crate::named::Handles;
use crate::names::Names;
use trellis_record::LiveCounters;

pub(crate) use breakdown::leave_uncounted;
pub(crate) use failure::Failure;
pub(crate) use faults::NodeFaults;
pub(crate) use heap::AllocationRequest;
pub(crate) use ordered::{Ordered, Rank, lock};
pub(crate) use progress::start_service;
pub(crate) use recorder::Recorder;
pub(crate) use synchronisation::{Guarding, RESERVED_FIRST, Timeout, interruptible};
pub(crate) use waiters::{Ticket, tell_of_sleeps};

use elastic::Elastic;
use pages::Shard;
use progress::Progress;
use waiters::Waiters;
use watchdog::LeaveWords;

/// The number of shards: independent parts of the page protocol, each with a lock. Neighbouring chunks are in different
/// shards.
const SHARDS: u32 = 16;
/// The epoch of all frames. A cluster has only this one; frames of any other epoch are refused.
const EPOCH: u32 = 1;
/// The maximum number of bytes that one message brings, unless a single page is larger. A peer that waits for another
/// page waits behind such a message, and a refused body is discarded through a buffer of this size.
const RUN_BYTES_MAX: usize = 4 << 20;
/// How often a leaving node looks whether the others have left. They also tell it.
const LEAVE_LOOK_NS: u64 = 250_000_000;

/// One node of a cluster.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) me: NodeId,
    /// The maximum number of nodes; numbers are below it.
    pub(crate) nodes: u16,
    /// The number of founders, which have the lowest numbers.
    pub(crate) founders: u16,
    /// The link is dropped before the region: until it ends, it may send pages again from where they lie.
    link: Box<dyn Link>,
    pub(crate) region: Arc<MappedRegion>,
    /// The pages, if the region lies at memory servers.
    leases: OnceLock<leases::Leases>,
    pub(crate) recorder: Recorder,
    pub(crate) failure: Failure,
    pub(crate) status: StatusPage,
    limits: Limits,
    shards: Box<[Ordered<Shard>]>,
    /// The geometry of every shard, except the number of the shard.
    geometry: Geometry,
    /// Every protocol that the region has had.
    protocols: Ordered<Vec<Protocol>>,
    changes: change::Changes,
    /// The number of the next call that locks a range.
    lock_calls: AtomicU32,
    /// Ranges that the program holds without a guard.
    unguarded: Ordered<Vec<range_locks::Unguarded>>,
    /// Names an object in messages, for a program that numbers objects by itself.
    pub(crate) object_names: std::sync::OnceLock<fn(u64) -> String>,
    /// Whether long waits for objects are normal and are not reported.
    pub(crate) waits_are_normal: AtomicBool,
    /// The number of the program's threads at this node, if the program is one whose threads are counted.
    pub(crate) threads: OnceLock<&'static AtomicUsize>,
    pub(crate) names: Names,
    pub(crate) handles: Handles,
    streams: Ordered<Streams>,
    /// The maximum number of pages that one message requests.
    window_pages_max: u32,
    synchronisation: Ordered<synchronisation::State>,
    membership: Ordered<Membership>,
    /// How the connections to peers ended.
    losses: Ordered<Vec<(NodeId, String)>>,
    pub(crate) breakdown: breakdown::Breakdown,
    consistency: consistency::Consistency,
    bodies: sink::Bodies,
    heap: heap::SharedHeap,
    /// State of nodes that join and leave.
    elastic: Elastic,
    /// Peers from whom something arrived since the last tick.
    heard: Box<[AtomicBool]>,
    /// One bit per page: set when its memory exists and is mapped in the privileged view, which stays so.
    prepared: PageSet,
    /// What [`Node::now`] returned last.
    recent: AtomicU64,
    /// Peers that the membership knows to be up.
    met: Box<[AtomicBool]>,
    pub(crate) waiters: Waiters,
    progress: Progress,
    started: Instant,
    /// The moment `started` on the clock that the launcher reads.
    started_monotonic_ns: u64,
    left: AtomicBool,
    all_left: AtomicBool,
    /// The ticket of the thread that waits for the others to leave.
    leaver: AtomicU32,
}

/// Header and body of a message with bytes attached.
fn with_attached(message: &wire::Message, attached: &[u8]) -> ([u8; wire::HEADER_BYTES], Vec<u8>) {
    let encoded = wire::encode_with(message, EPOCH, attached.len() as u32);
    let mut body = Vec::with_capacity(encoded.body().len() + attached.len());
    body.extend_from_slice(encoded.body());
    body.extend_from_slice(attached);
    (encoded.header, body)
}

/// With `start = manager`, no node waits for the others at the start, so the manager waits for them at the end.
fn membership_of(config: &Config, silence_max: u64) -> Membership {
    let mut members = Membership::new(NodeId(config.node as u16), config.capacity() as u16, silence_max);
    if config.start == Start::Manager {
        let until = config.start_seconds_max.saturating_mul(1_000_000_000);
        members = members.gathered_by(NodeId(config.manager as u16), until);
    }
    if config.joiners_max == 0 {
        return members;
    }
    members.elastic(config.node_count() as u16, NodeId(config.manager as u16))
}

/// Makes the kernel mark stores, if the configuration wants it and the kernel can. Returns whether stores can be
/// marked.
fn detect_stores(config: &Config, region: &MappedRegion) -> std::io::Result<bool> {
    if config.acquire_drops == AcquireDrops::All
        && (config.write_detection == WriteDetection::Faults || !region.marks_work())
    {
        return Err(std::io::Error::other(
            "acquire_drops = \"all\" needs marks, which do not work here: run `trellis doctor`",
        ));
    }
    match config.write_detection {
        WriteDetection::Faults => return Ok(false),
        WriteDetection::Auto if !region.marks_work() => return Ok(false),
        WriteDetection::Marks if !region.marks_work() => {
            let why = "write_detection = \"marks\" does not work here: run `trellis doctor`; \"auto\" works everywhere";
            return Err(std::io::Error::other(why));
        }
        WriteDetection::Auto | WriteDetection::Marks => {}
    }
    if !config.has_release_consistency() {
        // Pages may get `hlrc` later.
        return Ok(true);
    }
    let detect = |first: usize, end: usize, protocol: Protocol| {
        let detection = if protocol.is_release_consistent() { Detection::Marks } else { Detection::Faults };
        region.detect(first, end - first, detection).map_err(|error| std::io::Error::other(error.to_string()))
    };
    detect(0, region.pages(), config.coherence)?;
    for range in &config.coherence_ranges {
        detect(range.first / config.page_bytes, range.end / config.page_bytes, range.protocol)?;
    }
    Ok(true)
}

/// The protocols of the region as it starts.
fn protocols(config: &Config) -> Vec<Protocol> {
    let mut protocols = vec![config.coherence];
    for range in &config.coherence_ranges {
        if !protocols.contains(&range.protocol) {
            protocols.push(range.protocol);
        }
    }
    protocols
}

/// The configured maximum, limited to the length of a run and to [`RUN_BYTES_MAX`].
fn window_pages_max(config: &Config) -> u32 {
    let pages = config.prefetch_pages_max.min(RUN_BYTES_MAX / config.page_bytes).max(1);
    (pages as u32).min(trellis_cluster_protocol::CHUNK_PAGES)
}

impl Node {
    pub(crate) fn new(
        config: Config,
        region: MappedRegion,
        link: Box<dyn Link>,
        status: StatusPage,
    ) -> std::io::Result<Node> {
        let me = NodeId(config.node as u16);
        let (nodes, founders) = (config.capacity() as u16, config.node_count() as u16);
        let pages = region.pages() as u32;
        let silence_max = config.silence_seconds_max.saturating_mul(1_000_000_000);
        let marks = detect_stores(&config, &region)?;
        let prepared = PageSet::new(region.pages());
        if config.reserve == Reserve::Full {
            prepared.set(0, region.pages(), true);
        }
        // Pages that lie at memory servers have their own fault threads.
        let faults = if config.is_leased() { None } else { region.event_fd() };
        let progress = Progress::new(&config, link.readiness(), faults)?;
        Ok(Node {
            me,
            nodes,
            founders,
            elastic: Elastic::new(),
            limits: Limits { pages, page_bytes: config.page_bytes as u32, nodes, epoch: EPOCH },
            shards: (0..SHARDS)
                .map(|shard| Ordered::new(Rank::State, Shard::new(&config, pages, shard, marks)))
                .collect(),
            geometry: pages::geometry(&config, pages, 0, marks),
            protocols: Ordered::new(Rank::Last, protocols(&config)),
            changes: change::Changes::new(),
            lock_calls: AtomicU32::new(0),
            unguarded: Ordered::new(Rank::Last, Vec::new()),
            object_names: std::sync::OnceLock::new(),
            waits_are_normal: AtomicBool::new(false),
            threads: OnceLock::new(),
            names: Names::new(),
            handles: Handles::new(),
            streams: Ordered::new(Rank::Last, Streams::new(pages, window_pages_max(&config))),
            window_pages_max: window_pages_max(&config),
            synchronisation: Ordered::new(Rank::State, synchronisation::State::new(me, founders)),
            membership: Ordered::new(Rank::Membership, membership_of(&config, silence_max)),
            losses: Ordered::new(Rank::Last, Vec::new()),
            consistency: consistency::Consistency::new(
                me,
                nodes,
                PublicationLimits::of(config.page_bytes, SHARDS as usize),
                pages,
                link.is_ordered(),
                config.has_release_consistency(),
                config.acquire_drops == AcquireDrops::All,
            ),
            breakdown: breakdown::Breakdown::default(),
            bodies: sink::Bodies::new(),
            heap: heap::SharedHeap::new(&config),
            heard: (0..nodes).map(|_| AtomicBool::new(false)).collect(),
            prepared,
            recent: AtomicU64::new(0),
            met: (0..nodes).map(|_| AtomicBool::new(false)).collect(),
            waiters: Waiters::new()?,
            progress,
            recorder: Recorder::new(&config),
            failure: Failure::default(),
            status,
            link,
            region: Arc::new(region),
            leases: OnceLock::new(),
            config,
            started: Instant::now(),
            started_monotonic_ns: monotonic_ns(),
            left: AtomicBool::new(false),
            all_left: AtomicBool::new(false),
            leaver: AtomicU32::new(0),
        })
    }

    /// Nanoseconds since this node started.
    pub(crate) fn now(&self) -> u64 {
        let now = self.started.elapsed().as_nanos() as u64;
        self.recent.store(now, Ordering::Relaxed);
        now
    }

    /// The time of the last reading of the clock, for callers to whom microseconds do not matter and a reading would
    /// cost.
    fn recent(&self) -> u64 {
        self.recent.load(Ordering::Relaxed)
    }

    /// Makes the memory of pages before bytes are received into it, unless it exists already.
    fn prepare(&self, range: PageRange) -> Result<(), trellis_memory::MapError> {
        let (first, end) = (range.first().0 as usize, range.end() as usize);
        if self.prepared.run(first, end) == (true, end) {
            return Ok(());
        }
        self.region.prepare(first, end - first)?;
        self.prepared.set(first, end, true);
        Ok(())
    }

    /// This node's counters, as the launcher and the report see them.
    pub(crate) fn counters(&self) -> &LiveCounters {
        self.status.counters()
    }

    /// Shows the launcher what this node does now.
    pub(crate) fn doing(&self, activity: Activity) {
        self.status.enter(activity, self.started_monotonic_ns + self.recent());
    }

    /// Whether the membership knows that the peer is up.
    pub(crate) fn has_met(&self, peer: usize) -> bool {
        self.met[peer].load(Ordering::Acquire)
    }

    /// Why a peer has not connected yet, if the link knows.
    pub(crate) fn trouble_with(&self, peer: usize) -> Option<String> {
        self.link.trouble(peer)
    }

    /// The number of attempts to connect by peers that do not know the secret.
    pub(crate) fn unauthenticated_refused(&self) -> u64 {
        self.link.statistics().unauthenticated_refused
    }

    /// How an error names a peer.
    pub(crate) fn name_of(&self, node: NodeId) -> String {
        match self.config.nodes().get(usize::from(node.0)) {
            Some(address) => format!("node {} ({address})", node.0),
            None if node.0 >= self.founders => format!("node {} (which joined later)", node.0),
            None => format!("node {}", node.0),
        }
    }

    /// Sends a message with the bytes that are attached to it.
    fn send_attached(&self, to: NodeId, message: &wire::Message, attached: &[u8]) {
        if attached.is_empty() {
            return self.send_bare(to, message);
        }
        let (header, body) = with_attached(message, attached);
        self.count_out(1, body.len());
        let sent = self.link.send(usize::from(to.0), &header, Payload::Copy(&body));
        self.unless_sent(to, sent);
    }

    fn count_out(&self, messages: u64, body_bytes: usize) {
        LiveCounters::add(&self.counters().messages_out, messages);
        LiveCounters::add(&self.counters().bytes_out, messages * (wire::HEADER_BYTES + body_bytes) as u64);
    }

    fn unless_sent(&self, to: NodeId, sent: Result<(), SendError>) {
        match sent {
            // `lost` reports a peer that is gone. It may come later, and knows whether the peer had left.
            Ok(()) | Err(SendError::Lost { .. }) => {}
            // If a frame cannot be queued, this node has failed.
            Err(error) => self.fail(format!("cannot send to {}: {error}", self.name_of(to))),
        }
    }

    /// Sends a message, with the bytes of its pages from the privileged view. If it releases something, the notices
    /// that its receiver lacks go with it.
    fn send(&self, to: NodeId, message: &wire::Message) {
        if self.releases(message) {
            return self.send_with_knowledge(to, message);
        }
        self.send_bare(to, message);
    }

    fn send_bare(&self, to: NodeId, message: &wire::Message) {
        debug_assert_ne!(to, self.me);
        let encoded = wire::encode(message, EPOCH);
        let pages = match message {
            wire::Message::Coherence(message) => message.bytes(),
            _ => None,
        };
        let counters = self.counters();
        let snapshot;
        let payload = match pages {
            Some(range) => {
                LiveCounters::add(&counters.pages_out, u64::from(range.count()));
                if self.may_change_under_way(message) {
                    snapshot = self.snapshot(range);
                    Payload::Copy(&snapshot)
                } else {
                    Payload::Pinned(self.privileged(range), self.bytes_of(range))
                }
            }
            None if encoded.body().is_empty() => Payload::Nothing,
            None => Payload::Copy(encoded.body()),
        };
        let body_bytes = pages.map_or(encoded.body().len(), |range| self.bytes_of(range));
        self.count_out(1, body_bytes);
        let (peer, header) = (usize::from(to.0), &encoded.header);
        let sent = match pages {
            Some(range) => self.link.send_placed(peer, header, payload, self.place_of(range)),
            None => self.link.send(peer, header, payload),
        };
        self.unless_sent(to, sent);
    }

    /// The place of pages in the privileged view, the same at every node. The bytes may be put there before the message
    /// that brings them is handled: from the moment at which it is sent, its receiver awaits each of these pages and
    /// its program can touch none of them, in whatever order messages arrive (`Receiver::place` refuses pages in any
    /// other state). A page that a lost node should have brought stays in this state, because a failed cluster requests
    /// it from no other node.
    fn place_of(&self, range: PageRange) -> usize {
        range.first().0 as usize * self.config.page_bytes
    }

    /// Whether this node may store to the pages of `message` while they are sent. A copy under `hlrc` may hold the
    /// later bytes or the earlier ones, but bytes that the link authenticates must not change between its two looks.
    fn may_change_under_way(&self, message: &wire::Message) -> bool {
        let is_copy = matches!(message, wire::Message::Coherence(coherence::Message::Copy { .. }));
        is_copy && self.config.security_in_use() != Security::InsecurePlain
    }

    fn snapshot(&self, range: PageRange) -> Vec<u8> {
        let bytes = self.bytes_of(range);
        let mut snapshot = Vec::with_capacity(bytes);
        // SAFETY: the privileged view holds `bytes` readable bytes there as long as the node lives; what a thread of
        // the program stores meanwhile is copied or not, and any bytes are bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.privileged(range), snapshot.as_mut_ptr(), bytes);
            snapshot.set_len(bytes);
        }
        snapshot
    }

    fn privileged(&self, range: PageRange) -> *mut u8 {
        self.region.privileged(range.first().0 as usize, range.count() as usize)
    }

    fn bytes_of(&self, range: PageRange) -> usize {
        range.count() as usize * self.config.page_bytes
    }

    /// The home of `page`: its manager, or its first owner.
    fn home_of(&self, page: PageIndex) -> NodeId {
        self.geometry.home_of(page)
    }

    /// Waits until every node's program is done, or the cluster has failed.
    pub(crate) fn wait_until_all_left(&self) {
        let ticket = self.waiters.take();
        self.leaver.store(ticket.name(), Ordering::SeqCst);
        let mut words = LeaveWords::new(self.now());
        while !self.is_over() {
            self.wait_unseen(None, &ticket, self.now() + LEAVE_LOOK_NS);
            words.say(self, || format!("done, and serving until {} leave too", self.members_missing().join(", ")));
        }
    }

    /// Ends the service thread and closes the link: nothing is served after this.
    pub(crate) fn close(&self, service: std::thread::JoinHandle<()>) -> std::thread::Result<()> {
        self.left.store(true, Ordering::Release);
        self.progress.stop();
        // After a failure, the thread waits for [`failure::GRACE`] before it ends.
        let ended = service.join();
        self.link.close();
        ended
    }

    fn is_over(&self) -> bool {
        self.failure.is_set() || self.all_left.load(Ordering::SeqCst)
    }

    /// Refuses bytes `[offset, offset + bytes)` that leave the region.
    pub(crate) fn check_range(&self, offset: usize, bytes: usize) -> Result<(), WaitError> {
        let size = self.region.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(()),
            _ => Err(WaitError::Misuse(format!(
                "bytes {offset} to {offset}+{bytes} are not inside the region of {size} bytes"
            ))),
        }
    }

    /// The pages that hold bytes `[offset, offset + bytes)`.
    pub(crate) fn pages_of(&self, offset: usize, bytes: usize) -> std::ops::Range<u32> {
        let end = (offset + bytes).min(self.region.bytes());
        let page_bytes = self.config.page_bytes;
        (offset / page_bytes) as u32..end.div_ceil(page_bytes) as u32
    }

    fn shard_of(&self, page: PageIndex) -> &Ordered<Shard> {
        &self.shards[pages::shard_number(page) as usize]
    }
}
