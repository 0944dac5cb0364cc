//! Release consistency: what this node's program wrote is made known before it releases anything, and what others wrote
//! is respected after it acquired something. Where no page is under `hlrc`, nothing here costs anything.
//!
//! Promises: a release goes on only when every store made before is at its home; what was released travels with the
//! messages that release it, and with those of whoever learnt it; an acquire is over only when no page here is older than
//! that. Publications of a node follow one another. Must never apply a notice later than the acquire that brought it, nor
//! let a message release something before what it rests on has come.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use trellis_base::{Deadline, Limit};
use trellis_cluster_protocol::coherence::hlrc::intervals::{Intervals, Notice};
use trellis_cluster_protocol::coherence::{Input, Ranges};
use trellis_cluster_protocol::node::{self, Found, Knowledge};
use trellis_cluster_protocol::wire;
use trellis_cluster_protocol::{CHUNK_PAGES, NodeId, PageIndex, PageRange};

use trellis_memory::MapError;

use super::Node;
use super::ordered::{Ordered, Rank, lock};
use super::pages::{Shard, Waiting, runs};
use super::progress::Waited;
use crate::cluster::WaitError;
use crate::waits::Wait;
use trellis_record::LiveCounters;

/// One thread of a node publishes at a time.
pub(crate) const TURN: Deadline = Deadline {
    who: "a thread of a node",
    waits_for: "another thread that sends its stores home (`hlrc`)",
    limit: Limit::Other("as long as that sends, above"),
    then: "it waits",
    tested: "the wait of the other thread ends it",
};
/// Bytes of pages that a node has sent to homes and that are not acknowledged: as much as fits a link's queue several
/// times over, and enough to keep it busy.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 << 20;
/// Bytes of pages whose diffs go together in one message.
const TOGETHER_BYTES_MAX: usize = 256 << 10;

/// Pages that go with the token of a lock, and their bytes, at most: what a thread is likely to touch under one lock, and
/// not longer than the token can be kept waiting for.
const CARRIED_PAGES_MAX: usize = 4;
const CARRIED_BYTES_MAX: usize = 16 << 10;

/// Messages of one peer that wait for knowledge which they overtook: links that keep no order deliver at most so many
/// behind one that is missing.
const EARLY_MAX: usize = trellis_transport::links::udp::delivery::WINDOW as usize;

/// What a node keeps for release consistency.
pub(super) struct Consistency {
    /// Some pages of the region are under a protocol with release consistency.
    is_used: AtomicBool,
    knowledge: Ordered<Knowledge>,
    /// Held by the thread that publishes.
    turn: Ordered<()>,
    /// Held by the thread that applies notices: another acquire is not over before that.
    applying: Ordered<()>,
    /// The ticket of that thread, and how many publications of shards are not over; one whose thread gave up still counts.
    publisher: AtomicU32,
    unpublished: AtomicU32,
    /// One bit per chunk in which stores are noticed by marks.
    watched: Box<[AtomicU64]>,
    /// How often this node has published.
    publication: AtomicU32,
    /// Some pages stay open and are compared with their twins.
    is_comparing: AtomicBool,
    /// Whether some of these may be watched no more.
    is_doubtful: AtomicBool,
}

impl Consistency {
    pub(super) fn new(me: NodeId, nodes: u16, pages: u32, is_ordered: bool, is_used: bool) -> Consistency {
        let chunks = pages.div_ceil(CHUNK_PAGES);
        Consistency {
            is_used: AtomicBool::new(is_used),
            knowledge: Ordered::new(
                Rank::Knowledge,
                Knowledge::new(Intervals::new(me, nodes, pages, is_ordered), EARLY_MAX),
            ),
            turn: Ordered::new(Rank::Program, ()),
            applying: Ordered::new(Rank::Program, ()),
            publisher: AtomicU32::new(0),
            unpublished: AtomicU32::new(0),
            watched: (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            publication: AtomicU32::new(0),
            is_comparing: AtomicBool::new(false),
            is_doubtful: AtomicBool::new(false),
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Some pages are under such a protocol from now on.
    pub(super) fn use_it(&self) {
        self.is_used.store(true, Ordering::Release);
    }

    /// Whoever acquires what this node releases from now on must know that these pages changed.
    pub(super) fn note(&self, range: PageRange, stamp: u64) {
        lock(&self.knowledge).intervals.note(Notice { range, stamp });
    }

    /// Pages of the chunk of `page` are watched from now on.
    pub(super) fn watch(&self, page: PageIndex) {
        let chunk = page.0 / CHUNK_PAGES;
        let (word, bit) = (&self.watched[chunk as usize / 64], 1 << (chunk % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Some page is watched no more.
    pub(super) fn doubt(&self) {
        if !self.is_doubtful.load(Ordering::Relaxed) {
            self.is_doubtful.store(true, Ordering::Release);
        }
    }

    /// Some page stays open from now on.
    pub(super) fn compare(&self) {
        if !self.is_comparing.load(Ordering::Relaxed) {
            self.is_comparing.store(true, Ordering::Release);
        }
    }

    fn is_watched(&self, chunk: u32) -> bool {
        self.watched[chunk as usize / 64].load(Ordering::Acquire) >> (chunk % 64) & 1 != 0
    }

    fn forget(&self, chunk: u32) {
        self.watched[chunk as usize / 64].fetch_and(!(1 << (chunk % 64)), Ordering::AcqRel);
    }
}

/// Whether stores to `page` must be noticed by marks, and whether it has a twin.
fn found(protocol: &Ranges, page: PageIndex) -> Found {
    Found { is_watched: protocol.is_watched(page), has_twin: protocol.has_twin(page) }
}

impl Node {
    /// To be called before every release: before a lock is given back, a barrier entered, a semaphore raised, a word
    /// stored to. When it returns without an error, every store that this node's program made before is at its home; with
    /// one nothing may be released. The next call goes on with what one whose time was over has left.
    pub(super) fn publish(&self) -> Result<(), WaitError> {
        self.note_thread();
        if !self.consistency.is_used() {
            return Ok(());
        }
        let started = self.now();
        let _inside = self.inside(started);
        let _turn = lock(&self.consistency.turn);
        self.look_for_stores();
        let ticket = self.waiters.take();
        // One more than shards owe, until all have been told: what a call that gave up left behind may end meanwhile.
        self.consistency.unpublished.fetch_add(1, Ordering::AcqRel);
        self.consistency.publisher.store(ticket.name(), Ordering::Release);
        let unacknowledged_max = (UNACKNOWLEDGED_BYTES_MAX / self.config.page_bytes / self.shards.len()).max(1) as u32;
        let together_max = (TOGETHER_BYTES_MAX / self.config.page_bytes).max(1) as u32;
        let early = self.poll_early();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let publishers = shard.node.protocol.publishers();
            if publishers > 0 {
                let owed_already = shard.node.protocol.publishing();
                self.consistency.unpublished.fetch_add(publishers - owed_already, Ordering::AcqRel);
                self.step(&mut shard, Input::Publish { unacknowledged_max, together_max });
            }
        }
        self.published();
        let deadline = self.now().saturating_add(Wait::Publication.limit_ns(&self.config));
        let waited = self.wait_polling(early, &ticket, Wait::Publication, deadline);
        lock(&self.consistency.knowledge).intervals.close();
        LiveCounters::add(&self.counters().overhead_ns, self.now() - started);
        match waited {
            Waited::Done => Ok(()),
            Waited::Failed => Err(WaitError::Failed(self.failure.sentence())),
            Waited::TooLong => Err(self.too_long(Wait::Publication, self.whom(Wait::Publication))),
        }
    }

    /// Sends pages that this node published last to `to`, which gets the token of a lock next.
    pub(super) fn carry(&self, to: NodeId) {
        if self.has_changed_protocols() {
            return;
        }
        let mut pages_max = CARRIED_PAGES_MAX.min(CARRIED_BYTES_MAX / self.config.page_bytes) as u32;
        for shard in &self.shards {
            let mut shard = lock(shard);
            if pages_max > 0 && shard.node.protocol.has_carryable() {
                self.step(&mut shard, Input::Carry { to, pages_max });
                pages_max = pages_max.saturating_sub(shard.sent);
            }
        }
    }

    pub(super) fn homes_that_owe_an_answer(&self) -> String {
        let mut homes: Vec<NodeId> = Vec::new();
        for shard in &self.shards {
            homes.extend(lock(shard).node.protocol.awaited_from());
        }
        homes.sort_unstable();
        homes.dedup();
        format!("waiting for {}", self.names(&homes))
    }

    /// A shard has published, or all have been told to.
    pub(super) fn published(&self) {
        if self.consistency.unpublished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiters.signal(self.consistency.publisher.load(Ordering::Acquire), 0);
        }
    }

    /// Finds out which pages were stored to: the kernel marked them, or they stay open and are compared.
    fn look_for_stores(&self) {
        self.consistency.publication.fetch_add(1, Ordering::Relaxed);
        if self.consistency.is_comparing.load(Ordering::Acquire)
            && let Err(error) = self.examine_open_pages()
        {
            self.fail(format!("cannot protect a page again: {error}"));
        }
        if self.consistency.is_doubtful.swap(false, Ordering::AcqRel) {
            self.forget_unwatched();
        }
        let pages = self.limits.pages;
        let chunks = pages.div_ceil(CHUNK_PAGES);
        let mut next = 0;
        while next < chunks {
            let word = self.consistency.watched[next as usize / 64].load(Ordering::Acquire) >> (next % 64);
            if word == 0 {
                next = (next / 64 + 1) * 64;
                continue;
            }
            let first = next + word.trailing_zeros();
            let mut end = first + 1;
            while end < chunks && self.consistency.is_watched(end) {
                end += 1;
            }
            next = end;
            let (first, end) = (first * CHUNK_PAGES, (end * CHUNK_PAGES).min(pages));
            let found = &mut |page: usize, count: usize| {
                for run in runs(page as u32..(page + count) as u32) {
                    let mut shard = lock(self.shard_of(run.first()));
                    let is_marked = |shard: &Shard, page: u32| !shard.open_pages.is_open(PageIndex(page));
                    let mut first = run.first().0;
                    while first < run.end() {
                        let marked = is_marked(&shard, first);
                        let end = (first + 1..run.end()).find(|&page| is_marked(&shard, page) != marked);
                        let end = end.unwrap_or(run.end());
                        if marked {
                            let range = PageRange::around(PageIndex(first), first, end);
                            self.step(&mut shard, Input::Stored { range });
                        }
                        first = end;
                    }
                }
            };
            if let Err(error) = self.region.stored_to(first as usize, (end - first) as usize, found) {
                self.fail(format!("cannot find out which pages were stored to: {error}"));
            }
        }
    }

    /// Before a publication: tells the protocol which of the pages that stay open were stored to.
    fn examine_open_pages(&self) -> Result<(), MapError> {
        let mut stored = Vec::new();
        for shard in &self.shards {
            let mut guard = lock(shard);
            let Shard { open_pages, node, .. } = &mut *guard;
            let found = |page| found(&node.protocol, page);
            let protect = |page: PageIndex| self.region.downgrade(page.0 as usize, 1);
            open_pages.examine(found, |page| self.differs_from_twin(page), protect, &mut stored)?;
            for page in stored.drain(..) {
                self.step(&mut guard, Input::Stored { range: PageRange::one(page) });
            }
        }
        Ok(())
    }

    /// Stores to these pages must be noticed from now on: they are protected, or they stay open and are compared.
    pub(super) fn notice_stores(&self, shard: &mut Shard, range: PageRange) -> Result<(), MapError> {
        let protect = |run: PageRange| self.region.downgrade(run.first().0 as usize, run.count() as usize);
        let Shard { open_pages, node: node::Shard { protocol, .. }, .. } = shard;
        if protocol.is_watched(range.first()) {
            self.consistency.watch(range.first());
        }
        let publication = self.consistency.publication.load(Ordering::Relaxed);
        if open_pages.published(range, publication, |page| found(protocol, page), protect)? {
            self.consistency.compare();
        }
        Ok(())
    }

    fn forget_unwatched(&self) {
        let pages = self.limits.pages;
        for chunk in (0..pages.div_ceil(CHUNK_PAGES)).filter(|&chunk| self.consistency.is_watched(chunk)) {
            let first = PageIndex(chunk * CHUNK_PAGES);
            let shard = lock(self.shard_of(first));
            let mut there = PageRange::around(first, first.0, pages).pages();
            if !there.any(|page| shard.node.protocol.is_watched(page)) {
                self.consistency.forget(chunk);
            }
        }
    }

    /// To be called after every acquire: when a lock was got, a barrier left, a semaphore lowered, a word loaded. When it
    /// returns, no page here is older than what was released to this node.
    pub(super) fn refresh(&self) -> Result<(), WaitError> {
        self.note_thread();
        if !self.consistency.is_used() {
            return Ok(());
        }
        let _inside = self.inside(self.recent());
        let _applying = lock(&self.consistency.applying);
        let mut notices = Vec::new();
        let any = {
            let mut knowledge = lock(&self.consistency.knowledge);
            if !knowledge.intervals.has_unapplied() {
                return Ok(());
            }
            knowledge.intervals.take_unapplied(&mut notices)
        };
        let started = self.now();
        if any {
            for run in runs(0..self.limits.pages) {
                self.step(&mut lock(self.shard_of(run.first())), Input::Notice { range: run, stamp: u64::MAX });
            }
        }
        for Notice { range, stamp } in notices {
            self.step(&mut lock(self.shard_of(range.first())), Input::Notice { range, stamp });
        }
        LiveCounters::add(&self.counters().overhead_ns, self.now() - started);
        Ok(())
    }

    /// Whether a message may release something to its receiver, so that it carries what this node knows.
    pub(super) fn releases(&self, message: &wire::Message) -> bool {
        self.consistency.is_used() && message.releases()
    }

    /// Sends a message that releases something, with what its receiver may not know.
    pub(super) fn send_with_knowledge(&self, to: NodeId, message: &wire::Message) {
        // Notices rest on earlier ones: messages go in the order in which their notices were appended.
        let mut knowledge = lock(&self.consistency.knowledge);
        let mut notices = Vec::new();
        knowledge.intervals.append_notices(to, &mut notices);
        self.send_attached(to, message, &notices);
    }

    /// Takes what came with a message about synchronisation or the heap; the message itself is used when everything that
    /// it rests on is known.
    pub(super) fn hear(&self, from: NodeId, message: wire::Message, attached: &[u8]) {
        if !self.releases(&message) {
            return self.use_message(from, message);
        }
        let heard = lock(&self.consistency.knowledge).hear(from, message, attached);
        match heard {
            Ok(None) => return,
            Ok(Some(message)) => self.use_message(from, message),
            Err(why) => return self.refuse_frame(from, why),
        }
        // What was learnt may be what earlier messages waited for.
        loop {
            let next = lock(&self.consistency.knowledge).next_usable();
            match next {
                None => return,
                Some((from, Ok(message))) => self.use_message(from, message),
                Some((from, Err(why))) => self.refuse_frame(from, why),
            }
        }
    }

    fn use_message(&self, from: NodeId, message: wire::Message) {
        match message {
            wire::Message::Sync(message) => self.sync_message(from, message),
            wire::Message::Heap(message) => self.heap_message(from, message),
            wire::Message::Coherence(_) | wire::Message::Membership(_) => unreachable!("they carry no knowledge"),
        }
    }

    /// This node comes to a barrier of all nodes; what it has published until now everybody will know.
    pub(super) fn comes_to_barrier(&self, id: u64) {
        if !self.consistency.is_used() {
            return;
        }
        lock(&self.consistency.knowledge).comes_to_barrier(id);
    }

    /// All nodes have come to this barrier, so all have left it the time before, and know what this node knew then.
    /// Unless they have not come, and this node waits no longer.
    pub(super) fn leaves_barrier(&self, id: u64, all_came: bool) {
        if !self.consistency.is_used() {
            return;
        }
        lock(&self.consistency.knowledge).leaves_barrier(id, all_came);
    }

    /// Makes `node` the home of pages that nobody has touched yet, where their protocol lets a home be chosen; does
    /// nothing where it does not.
    pub(crate) fn place(&self, pages: std::ops::Range<u32>, node: usize) -> Result<(), WaitError> {
        if !self.consistency.is_used() {
            return Ok(());
        }
        let node = NodeId(node as u16);
        let deadline = self.now().saturating_add(Wait::Placement(0).limit_ns(&self.config));
        for run in runs(pages) {
            let started = self.now();
            let ticket = self.waiters.take();
            let mut shard = lock(self.shard_of(run.first()));
            if !shard.node.protocol.protocol(run.first()).is_release_consistent() {
                continue;
            }
            shard.waiting.push(Waiting::Thread { page: run.first(), ticket: ticket.name() });
            self.step(&mut shard, Input::Place { range: run, node });
            drop(shard);
            let wait = Wait::Placement(u64::from(run.first().0));
            let waited = self.wait_polling(None, &ticket, wait, deadline);
            LiveCounters::add(&self.counters().overhead_ns, self.now() - started);
            match waited {
                Waited::Done => {}
                Waited::Failed => return Err(WaitError::Failed(self.failure.sentence())),
                Waited::TooLong => {
                    return Err(self.too_long(wait, self.whom(wait)));
                }
            }
        }
        Ok(())
    }
}
