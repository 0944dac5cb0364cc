//! The protocol of pages: takes a shard's lock, lets the protocol decide, and carries out what it decided.

use std::ops::Range;

use trellis_base::{Deadline, Limit};
use trellis_cluster_protocol::coherence::hlrc::intervals::Notice;
use trellis_cluster_protocol::coherence::{Choice, Effect, Event, Geometry, Input, Message, Protocol, Ranges};
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::node;
use trellis_cluster_protocol::{Access, CHUNK_PAGES, NodeId, PageIndex, PageRange};

use super::carrier::NodeCarrier;
use super::diffs::Pieces;
use super::ordered::lock;
use super::{Node, SHARDS};
use crate::cluster::WaitError;
use crate::config::{self, Config};
use trellis_record::LiveCounters;

/// How long a granted page stays, once somebody else wants it, for a thread that the kernel must wake first (`handler`): a
/// wake-up on another core.
const WAKE_UP_NS: u64 = 100_000;
/// The same for a thread that sleeps and was not seen to run yet, on a machine with more threads than cores.
pub(crate) const HOLD: Deadline = Deadline {
    who: "a page that has just come",
    waits_for: "the thread that asked for it",
    limit: Limit::milliseconds(5),
    then: "the page may go on to others",
    tested: "crates/trellis-cluster-protocol/src/node/timers.rs a_page_that_is_wanted_stays_no_longer_than_its_bound",
};
/// Places in which a shard remembers whom it asked for a page; a power of two. A newer page takes the place of an
/// older one: this is for the sentences of errors.
const ASKED_PLACES: u32 = 64;

/// The protocol's state for the pages of some chunks, and the threads that wait for them.
pub(super) struct Shard {
    pub(super) node: node::Shard<Ranges>,
    /// Threads that wait for a page: signalled when the page may have changed.
    pub(super) waiting: Vec<Waiting>,
    /// The nodes that this node asked for pages.
    asked: [Asked; ASKED_PLACES as usize],
    /// A protocol here has layers, to which the time matters.
    pub(super) is_timed: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Waiting {
    /// A thread in [`super::waiters`].
    Thread { page: PageIndex, ticket: u32 },
    /// The same, because of a fault: the page stays until each of these looked.
    Fault { page: PageIndex, ticket: u32 },
    /// A thread that the kernel blocks (`handler`), the byte of the page that it touched, since when it waits, and whether
    /// another node was asked for the page, and whether the fault was counted.
    Kernel { page: PageIndex, offset: u32, since: u64, event: Event, asked: bool, is_noted: bool },
}

/// The node that was asked for a page last, and its answer.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    page: PageIndex,
    pub(super) node: NodeId,
    /// The node answered that the page is locked.
    pub(super) is_locked: bool,
}

impl Shard {
    pub(super) fn new(config: &Config, pages: u32, shard: u32, marks: bool) -> Shard {
        let nobody = Asked { page: PageIndex(u32::MAX), node: NodeId(u16::MAX), is_locked: false };
        let geometry = geometry(config, pages, shard, marks);
        let mut ranges = Ranges::new(config.coherence, geometry);
        for range in &config.coherence_ranges {
            let first = (range.first / config.page_bytes) as u32;
            let end = (range.end / config.page_bytes) as u32;
            for run in runs_of(shard, first..end) {
                ranges.begin(run, range.protocol).expect("the region's protocols were counted");
            }
        }
        let mut this = Shard {
            node: node::Shard::new(ranges, geometry, NodeId(config.manager as u16)),
            waiting: Vec::with_capacity(super::waiters::WAITERS_MAX),
            asked: [nobody; ASKED_PLACES as usize],
            is_timed: is_timed(config.coherence),
        };
        config.coherence_ranges.iter().for_each(|range| this.note_protocol(range.protocol));
        this
    }

    /// Some pages have this protocol from now on.
    pub(super) fn note_protocol(&mut self, protocol: Protocol) {
        self.is_timed |= is_timed(protocol);
    }

    /// The node that was asked for `page` last, if that is still known.
    pub(super) fn asked_for(&self, page: PageIndex) -> Option<Asked> {
        Some(self.asked[(page.0 % ASKED_PLACES) as usize]).filter(|asked| asked.page == page)
    }

    pub(super) fn note_asked(&mut self, page: PageIndex, node: NodeId, is_locked: bool) {
        self.asked[(page.0 % ASKED_PLACES) as usize] = Asked { page, node, is_locked };
    }
}

fn is_timed(protocol: Protocol) -> bool {
    protocol.layers().next().is_some()
}

/// The facts that the protocols of one shard need.
pub(super) fn geometry(config: &Config, pages: u32, shard: u32, marks: bool) -> Geometry {
    Geometry {
        me: NodeId(config.node as u16),
        nodes: config.capacity() as u16,
        founders: config.node_count() as u16,
        pages,
        shard,
        shards: SHARDS,
        home: home(config),
        marks,
    }
}

/// The pure counterpart of the configured home.
fn home(config: &Config) -> Home {
    match config.home {
        // No node is asked for pages that lie at memory servers.
        config::Home::Manager | config::Home::MemoryServer => Home::Manager(Manager(NodeId(config.manager as u16))),
        config::Home::Interleaved => Home::Interleaved(Interleaved),
        config::Home::FirstTouch => Home::FirstTouch(FirstTouch),
        config::Home::Migrating => Home::Migrating(Migrating),
    }
}

/// Which shard looks after `page`.
pub(super) fn shard_number(page: PageIndex) -> u32 {
    page.0 / CHUNK_PAGES % SHARDS
}

/// The runs, of one chunk each, that together are those of `pages` that this shard looks after.
fn runs_of(shard: u32, pages: Range<u32>) -> impl Iterator<Item = PageRange> {
    let end = if pages.is_empty() { 0 } else { pages.end.div_ceil(CHUNK_PAGES) };
    let chunks = pages.start / CHUNK_PAGES..end;
    let first = chunks.start + (shard + SHARDS - chunks.start % SHARDS) % SHARDS;
    (first..chunks.end).step_by(SHARDS as usize).map(move |chunk| {
        let page = pages.start.max(chunk * CHUNK_PAGES);
        PageRange::around(PageIndex(page), page, pages.end)
    })
}

impl Node {
    pub(super) fn page_message(&self, from: NodeId, message: Message, attached: &[u8]) {
        let pieces = match Pieces::of(&message, attached, self.config.page_bytes) {
            Ok(pieces) => pieces,
            Err(error) => return self.refuse_frame(from, &format!("a diff that no node can have made: {error}")),
        };
        if let Some(range) = message.bytes() {
            LiveCounters::add(&self.counters().pages_in, u64::from(range.count()));
        }
        let mut shard = lock(self.shard_of(message.page()));
        match message {
            Message::Retry { page } => {
                LiveCounters::add(&self.counters().retries, 1);
                shard.note_asked(page, from, true);
            }
            Message::Redirect { .. } => LiveCounters::add(&self.counters().redirects, 1),
            _ => {}
        }
        self.release_due(&mut shard);
        self.step_with(&mut shard, Input::Message { from, message }, pieces);
    }

    /// Lets the protocol decide about one fact and carries out what it decided. Returns the number of messages sent.
    pub(super) fn step(&self, shard: &mut Shard, input: Input) -> u32 {
        self.step_with(shard, input, None)
    }

    fn step_with(&self, shard: &mut Shard, input: Input, pieces: Option<Pieces<'_>>) -> u32 {
        let Ok(sent) = node::step(&mut NodeCarrier { node: self, held: shard }, input, pieces);
        sent
    }

    /// Carries out an effect on memory, on threads that wait for pages, and on what other nodes must know.
    pub(super) fn change_pages(&self, shard: &mut Shard, effect: Effect, pieces: Option<Pieces<'_>>) {
        let place = |range: PageRange| (range.first().0 as usize, range.count() as usize);
        let done = match effect {
            Effect::Revoke(range) => {
                LiveCounters::add(&self.counters().invalidations, u64::from(range.count()));
                self.region.revoke(place(range).0, place(range).1)
            }
            Effect::Downgrade(range) => {
                let done = shard.node.downgrade(range, |run| self.region.downgrade(place(run).0, place(run).1));
                self.watch(shard, range);
                done
            }
            Effect::KeepTwin(range) => {
                self.region.keep_twin(place(range).0, place(range).1);
                Ok(())
            }
            Effect::Apply { pages, twins } => self.apply(pages, twins, pieces),
            Effect::Merge { page, has_twin } => self.merge(page, has_twin, pieces),
            Effect::Inspect(page) => {
                if self.differs_from_twin(page) {
                    shard.node.differs(page);
                }
                Ok(())
            }
            Effect::Notice { range, stamp } => {
                lock(&self.consistency.state).knowledge.intervals.note(Notice { range, stamp });
                Ok(())
            }
            Effect::Published => {
                node::published(&mut NodeCarrier { node: self, held: () });
                Ok(())
            }
            Effect::Chose { range, choice } => {
                let counter = match choice {
                    Choice::MovesWithLoad => &self.counters().pages_moved_with_loads,
                    Choice::Stays => &self.counters().requests_delayed,
                };
                LiveCounters::add(counter, u64::from(range.count()));
                self.recorder.chose(range, choice);
                Ok(())
            }
            Effect::Install { range, access, zero } => {
                let access = match access {
                    Access::Write => trellis_memory::Access::Write,
                    _ => trellis_memory::Access::Read,
                };
                self.note_before_opening(shard, range);
                self.watch(shard, range);
                self.region.install(place(range).0, place(range).1, access, zero)
            }
            Effect::Upgrade(range) => {
                self.note_before_opening(shard, range);
                self.region.upgrade(place(range).0, place(range).1)
            }
            Effect::SendTwins { to, message } => {
                self.send_twins(to, message);
                Ok(())
            }
            Effect::Wake(range) => {
                self.wake(shard, range);
                Ok(())
            }
            Effect::Violation { from, what } => {
                self.refuse_frame(from, what);
                Ok(())
            }
            Effect::Send { .. } | Effect::Hold(_) | Effect::Alarm { .. } | Effect::Locked { .. } => {
                unreachable!("the shard orders something else for these")
            }
        };
        if let Err(error) = done {
            self.fail(format!("cannot change the access to pages: {error}"));
        }
    }

    /// Publications look at the shard of these pages from now on, if it has pages whose stores the kernel marks.
    fn watch(&self, shard: &Shard, range: PageRange) {
        if shard.node.is_watching() {
            self.consistency.watch(range.first());
        }
    }

    /// Counts the faults of blocked threads whose pages are about to be opened: the kernel lets them run on with that,
    /// and what they did must be counted before what they do next.
    fn note_before_opening(&self, shard: &mut Shard, range: PageRange) {
        for waiting in &mut shard.waiting {
            if let Waiting::Kernel { page, offset, since, event, asked, is_noted } = waiting
                && range.contains(*page)
                && !*is_noted
            {
                *is_noted = true;
                self.note_fault(*page, *offset, *event, *since, *asked);
            }
        }
    }

    /// Refuses a call that leased pages do not support.
    pub(super) fn refuse_with_leases(&self, what: &str, next: &str) -> Result<(), WaitError> {
        match self.config.is_leased() {
            true => Err(WaitError::Misuse(format!("the region lies at memory servers, where {what}; {next}"))),
            false => Ok(()),
        }
    }

    pub(super) fn wake(&self, shard: &mut Shard, range: PageRange) {
        let mut index = 0;
        while index < shard.waiting.len() {
            match shard.waiting[index] {
                Waiting::Fault { page, ticket } if range.contains(page) => {
                    shard.node.timers.wake(page);
                    self.waiters.signal(ticket, 0);
                }
                Waiting::Thread { page, ticket } if range.contains(page) => {
                    self.waiters.signal(ticket, 0);
                }
                Waiting::Kernel { page, offset, since, event, asked, is_noted } if range.contains(page) => {
                    if !is_noted {
                        self.note_fault(page, offset, event, since, asked);
                    }
                    self.leave_inside();
                    // The kernel lets the thread look again; it faults again if that was not enough.
                    self.region.wake(page.0 as usize, 1);
                    // The runtime does not learn when that thread runs on. Usually nobody asks, either, so no timer is
                    // set.
                    shard.node.timers.hold(page, self.now(), WAKE_UP_NS);
                }
                _ => {
                    index += 1;
                    continue;
                }
            }
            shard.waiting.swap_remove(index);
        }
    }

    /// Serves every shard's pages and alarms whose time has come; returns when the next one's does.
    pub(super) fn release_held(&self) -> Option<u64> {
        let mut next: Option<u64> = None;
        for shard in &self.shards {
            let mut shard = lock(shard);
            self.release_due(&mut shard);
            next = next.into_iter().chain(shard.node.timers.next_due()).min();
        }
        next
    }

    pub(super) fn release_due(&self, shard: &mut Shard) {
        if shard.node.timers.is_empty() {
            return;
        }
        let Ok(()) = node::take_due(&mut NodeCarrier { node: self, held: shard }, self.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_at_one_shard_and_all_pages_are_in_one() {
        for pages in [3..3, 0..1, 500..40_000, 1_023..1_025, 9_000..9_001] {
            let mut all: Vec<PageRange> = (0..SHARDS).flat_map(|shard| runs_of(shard, pages.clone())).collect();
            all.sort_by_key(|run| run.first());
            let expected: Vec<PageRange> = trellis_cluster_protocol::runs(pages.clone()).collect();
            assert_eq!(all, expected, "{pages:?}");
            assert!(
                (0..SHARDS).all(|shard| runs_of(shard, pages.clone()).all(|run| shard_number(run.first()) == shard))
            );
        }
    }
}
