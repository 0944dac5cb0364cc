//! `hlrc`: home-based lazy release consistency (Zhou, Iftode and Li 1996; Osendorfer et al. 2004, ViSMI).
//!
//! Any number of nodes may store to a page at the same time. Each page has a *home*, whose copy is the master. Before a
//! node releases anything, it *publishes* the pages that it stored to. It sends to the home of each page a *diff*: the
//! changes against the *twin* that it kept. The home acknowledges the diff, and only then does the release go on. So no
//! other node can know of a change that the home lacks. A node that acquires learns of published changes ([`intervals`]) by
//! *notices* of the form "this page changed at this time of its home". It drops a copy that is older than that, and its
//! next access fetches the page again.
//!
//! Promises, for every page and in whatever order messages arrive:
//!
//! 1. *A load sees every store that was released to it.* Otherwise it sees some store that was made, or the zero at the
//!    start; never a mixture within a word that one node at a time stored to.
//! 2. *No store is lost*, even if two nodes store to neighbouring bytes.
//! 3. *A release ends.* It waits for acknowledgements of homes, and homes do not wait for any program.
//! 4. *The home needs no other node* for a page that no other node has: such a page costs what private memory costs.
//!
//! It must never let a store pass unnoticed that another node may have to see, and must never let a home wait.
//!
//! # Time
//!
//! A home counts the changes to its pages (one counter for each shard). A copy carries the time at which it was sent, its
//! *stamp*; a notice carries the time of the change. So a copy that was fetched after the change stays. If a home moves,
//! the new home's counter is set to at least the old one's: for each page, time only grows.
//!
//! # How stores are noticed
//!
//! Stores are noticed by a fault for the first store to each page in an interval, or by marks of the kernel
//! ([`Geometry::marks`]). With marks, a copy allows stores from the start, the twin is kept when the copy arrives, and
//! before each [`Input::Publish`] the runtime reports which pages have marks ([`Input::Stored`]). With both methods, *read*
//! in this module means "no store is known here since the last publication".
//!
//! # Update
//!
//! `hlrc(update)` also sends a diff on to the nodes whose copies are *fresh* (as new as the master), and answers the writer
//! when those nodes have it. Their copies stay, because the notices find them new enough. `hlrc(adaptive)` does so for
//! pages that were fetched again after each change. From time to time it forgets that, to find out whether it still holds.
//!
//! # With a lock's token
//!
//! A page that moves from holder to holder of a lock travels with the lock (`piggybacked.rs`), unless its copies get updates.

mod home;
pub mod intervals;
mod piggybacked;
mod placement;
mod writer;

pub use piggybacked::Objection;

use super::{Coherence, Content, Effect, Geometry, Input, Message, violation};
use crate::Nanoseconds;
use crate::homes::{HomeOf, Placement};
use crate::page::{Access, NodeId, NodeSets, PageIndex, PageRange, PageSet};
use alloc::vec;
use alloc::vec::Vec;

/// What happens to the copies of a page that was stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Propagation {
    /// They are dropped at the next acquire.
    Invalidate,
    /// They receive the changes.
    Update,
    /// For each page one or the other, depending on its history.
    Adaptive,
}

/// One shard of the protocol at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hlrc {
    geometry: Geometry,
    propagation: Propagation,
    flags: Vec<u16>,
    /// The time of the copy, or, while it is under way, the time that it must have. At the home: the time of the last
    /// change, or a later one.
    stamps: Vec<u64>,
    /// The believed home, plus one; zero if nothing is known but the directory.
    homes: Vec<u16>,
    /// At the home: nodes that may have a copy.
    copies: NodeSets,
    /// At the home: nodes whose copy is as new as the master.
    fresh: NodeSets,
    /// At the home: the history of the page ([`home`]).
    past: Vec<home::Past>,
    /// At the home: the number of changes so far.
    clock: u64,
    /// Requests of this node that are under way: the page that was requested and the range.
    asked: Vec<(PageIndex, PageRange)>,
    /// Pages stored to since the last publication, unordered.
    dirty: Vec<PageIndex>,
    /// Pages of the current publication that have not been sent yet, the last one first.
    unsent: Vec<PageIndex>,
    /// The largest number of its pages that may be sent and not yet acknowledged.
    unacknowledged_max: u32,
    /// The largest number of its pages in one message.
    together_max: u32,
    /// A publication is under way.
    is_publishing: bool,
    /// When the publication began, diffs of an earlier one or of dropped pages were under way.
    overlaps: bool,
    /// Pages of the last publication that may travel with the token of a lock.
    migratory: Vec<piggybacked::Migratory>,
    /// Diffs and updates that this node waits for.
    awaited: Vec<writer::Awaited>,
    /// Dropped pages that were stored to after a diff that is still awaited: the next diff must not overtake it.
    late: Vec<PageIndex>,
    /// Requests for pages of which a diff of this node is awaited, with the nodes that sent them here.
    parked: Vec<(NodeId, home::Wanted)>,
    /// At the home: diffs of other nodes that were sent on to copies and are not yet acknowledged to their writers.
    relays: Vec<home::Relay>,
    /// The number of the next diff or update.
    next_number: u32,
}

/// The view allows loads.
const READABLE: u16 = 1;
/// The view allows stores, and they are no longer noticed.
const WRITABLE: u16 = 2;
/// A request of this node for the page is under way.
const PENDING: u16 = 4;
/// The page was stored to since the last publication; it is in `dirty` or in `unsent`.
const DIRTY: u16 = 8;
/// The bytes are kept as they were published last.
const TWIN: u16 = 16;
/// This node is the page's home.
const HOME: u16 = 32;
/// This node is the directory of the page but not its home.
const AWAY: u16 = 64;
/// At the home: the page has bytes.
const WRITTEN: u16 = 128;
/// At the home: another node has had a copy, so stores of this node must be noticed, unless the page stays open after a
/// publication that outdated every copy.
const SHARED: u16 = 256;
/// An update was missed while the copy was under way: later updates must not be put on top of it.
const DEAF: u16 = 512;
/// A thread waits for the acknowledgement of a diff before it can ask for the page.
const WANTED: u16 = 1024;
/// The copy was fetched or piggybacked here, or (at the home) another node changed the page; and the page was not piggybacked on
/// since.
const FETCHED: u16 = 2048;
/// The copy was last brought by [`Message::Piggybacked`], and its home does not know that it is so new.
const PIGGYBACKED: u16 = 4096;
/// The copy lacks changes that other nodes had published when a diff of this node came to the home.
const BEHIND: u16 = 8192;

impl Coherence for Hlrc {
    fn step(&mut self, _now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Fault { page, write, wanted } => self.fault(page, write, wanted, effects),
            Input::Prefetch { wanted, write, announced } => self.prefetch(wanted, write, announced, effects),
            Input::Stored { range } => range.pages().for_each(|page| self.stored(page)),
            Input::Publish { unacknowledged_max, together_max } => {
                self.publish(unacknowledged_max, together_max, effects);
            }
            Input::Notice { range, stamp } => self.noticed(range, stamp, effects),
            Input::Changed { page } => self.changed(page, effects),
            Input::Close { range } => self.close(range, effects),
            Input::Piggyback { to, pages_max } => self.piggyback(to, pages_max, effects),
            Input::Place { range, node } => self.place(range, node, effects),
            Input::Message { from, message } => self.message(from, message, effects),
            // A granted page may go at any time: only this node's own next acquire takes it away.
            Input::Resumed { .. } => {}
            // Nodes do not join or leave where this protocol runs, and there is no layer around it.
            Input::Gone { .. } | Input::Alarm { .. } | Input::Lock { .. } | Input::Unlock { .. } => {}
        }
    }

    fn access(&self, page: PageIndex) -> Access {
        match self.flags[self.geometry.slot(page)] & (READABLE | WRITABLE) {
            0 => Access::None,
            READABLE if !self.geometry.marks => Access::Read,
            _ => Access::Write,
        }
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.has(page, PENDING)
    }

    fn owns(&self, page: PageIndex) -> bool {
        self.is_home(page)
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        self.is_home(page)
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        let slot = self.geometry.slot(page);
        self.is_directory(page) && self.flags[slot] == 0 && self.homes[slot] == 0
    }

    fn release(&mut self, page: PageIndex) {
        let slot = self.geometry.slot(page);
        debug_assert!(!self.has(page, PENDING));
        self.flags[slot] = 0;
        self.homes[slot] = 0;
        self.stamps[slot] = 0;
        self.past[slot] = home::Past::default();
        self.copies.clear(slot);
        self.fresh.clear(slot);
    }

    fn adopt(&mut self, page: PageIndex) {
        self.set(page, READABLE | WRITABLE | WRITTEN | if self.is_home(page) { 0 } else { HOME });
    }

    fn is_watched(&self, page: PageIndex) -> bool {
        self.geometry.marks && self.flags[self.geometry.slot(page)] & (READABLE | WRITABLE) == READABLE
    }

    fn has_twin(&self, page: PageIndex) -> bool {
        self.has(page, TWIN)
    }

    fn publishers(&self) -> u32 {
        u32::from(self.has_news())
    }

    fn publishing(&self) -> u32 {
        u32::from(self.is_publishing)
    }

    fn has_migratory(&self) -> bool {
        !self.migratory.is_empty()
    }
}

impl Hlrc {
    /// One shard for one node. Every page is zero.
    pub fn new(geometry: Geometry, propagation: Propagation) -> Hlrc {
        let slots = geometry.slots();
        Hlrc {
            geometry,
            propagation,
            flags: vec![0; slots],
            stamps: vec![0; slots],
            homes: vec![0; slots],
            copies: NodeSets::new(slots, geometry.nodes),
            fresh: NodeSets::new(slots, geometry.nodes),
            past: vec![0; slots],
            clock: 0,
            asked: Vec::with_capacity(64),
            dirty: Vec::with_capacity(64),
            unsent: Vec::new(),
            unacknowledged_max: 0,
            together_max: 1,
            is_publishing: false,
            overlaps: false,
            migratory: Vec::new(),
            awaited: Vec::with_capacity(64),
            late: Vec::new(),
            parked: Vec::new(),
            relays: Vec::with_capacity(16),
            next_number: 0,
        }
    }

    /// Whether a publication would have anything to do or to wait for.
    fn has_news(&self) -> bool {
        self.is_publishing || !(self.dirty.is_empty() && self.awaited.is_empty() && self.late.is_empty())
    }

    fn message(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request { demand, range, write, announced, requester, hops } if requester != self.geometry.me => {
                self.requested(from, home::Wanted { demand, range, write, announced, requester, hops }, effects);
            }
            Message::Copy { demand, range, content, stamp, home } => {
                self.copied(from, demand, range, content, stamp, home, effects);
            }
            Message::Diff { pages, writer, number, hops, piggybacked, stamp } => {
                self.diff_arrived(home::Arrived { pages, writer, number, hops, piggybacked, stamp }, effects);
            }
            Message::Diffed { pages, number, stamp, copied, current, moved } => {
                let answer = writer::Answer { pages, number, stamp, copied, current, moved };
                self.diffed(from, answer, effects);
            }
            Message::Update { pages, origin: _, number, stamp } => {
                self.update_arrived(from, pages, number, stamp, effects)
            }
            Message::Updated { pages, number, kept } => self.updated(from, pages, number, kept, effects),
            Message::Piggybacked { page, stamp } => self.piggybacked_here(page, stamp, effects),
            Message::Place { range, home } => self.placed_by(from, range, home, effects),
            Message::Placed { range } => effects.push(Effect::Wake(range)),
            _ => violation(from, "a message that this protocol does not have", effects),
        }
    }

    /// A thread touched a page.
    fn fault(&mut self, page: PageIndex, write: bool, wanted: PageRange, effects: &mut Vec<Effect>) {
        let one = PageRange::one(page);
        let flags = self.flags[self.geometry.slot(page)];
        if flags & WRITABLE != 0 || flags & READABLE != 0 && (!write || self.geometry.marks) {
            return effects.push(Effect::Wake(one));
        }
        if flags & READABLE != 0 {
            self.first_store(page, effects);
            effects.push(Effect::Upgrade(one));
            return effects.push(Effect::Wake(one));
        }
        if self.is_home(page) {
            self.open_at_home(page, write, effects);
            return effects.push(Effect::Wake(one));
        }
        if flags & PENDING != 0 {
            return;
        }
        if self.is_awaited(page) {
            // This node's stores to the page are on their way: the copy that comes must contain them.
            return self.set(page, WANTED);
        }
        self.ask(page, wanted, write, false, effects);
    }

    fn prefetch(&mut self, wanted: PageRange, write: bool, announced: bool, effects: &mut Vec<Effect>) {
        let mut next = wanted.first().0;
        while next < wanted.end() {
            let page = PageIndex(next);
            let rest = PageRange::around(page, next, wanted.end());
            // Requesting a page that no node has touched makes this node its home. A guess must not do that, unless homes
            // move to where they should be.
            let may_ask = self.is_askable(page) && (announced || self.homes_move() || self.is_home_known(page));
            next = if may_ask { self.ask(page, rest, write, announced, effects).end() } else { next + 1 };
        }
    }

    /// Whether `page` is not here and could be requested.
    fn is_askable(&self, page: PageIndex) -> bool {
        self.flags[self.geometry.slot(page)] & (READABLE | WRITABLE | PENDING) == 0
            && !self.is_home(page)
            && !self.is_awaited(page)
    }

    /// Whether `page` certainly has a home.
    fn is_home_known(&self, page: PageIndex) -> bool {
        self.geometry.home.placement() == Placement::Fixed || self.homes[self.geometry.slot(page)] != 0
    }

    /// Requests `page`, and those pages of `wanted` around it that the same node can send. Returns the range.
    fn ask(
        &mut self,
        page: PageIndex,
        wanted: PageRange,
        write: bool,
        announced: bool,
        effects: &mut Vec<Effect>,
    ) -> PageRange {
        let to = self.believed_home(page);
        let range = wanted.grow(page, |other| self.is_askable(other) && self.believed_home(other) == to);
        if to == self.geometry.me {
            // The directory itself is the first to touch the page, and those around it if a guess may claim pages.
            let range = if announced || self.homes_move() { range } else { PageRange::one(page) };
            self.begin_at_home(range, effects);
            effects.push(Effect::Wake(range));
            return range;
        }
        for other in range.pages() {
            self.set(other, PENDING);
            let slot = self.geometry.slot(other);
            self.stamps[slot] = 0;
        }
        self.asked.push((page, range));
        let requester = self.geometry.me;
        let message = Message::Request { demand: page, range, write, announced, requester, hops: 0 };
        effects.push(Effect::Send { to, message });
        range
    }

    /// A copy has arrived, or the news that this node is the home of the page.
    #[allow(clippy::too_many_arguments)] // The fields of one message.
    fn copied(
        &mut self,
        from: NodeId,
        demand: PageIndex,
        range: PageRange,
        content: Content,
        stamp: u64,
        home: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(index) = self.asked.iter().position(|&(page, _)| page == demand) else {
            return violation(from, "a copy that nobody asked for", effects);
        };
        let (_, asked) = self.asked[index];
        if !asked.covers(range) || content == Content::Kept || home && content != Content::Zero {
            return violation(from, "a copy of pages that were not asked for", effects);
        }
        self.asked.swap_remove(index);
        for page in asked.pages() {
            self.clear(page, PENDING);
        }
        if home {
            // Unless a request that the directory sent on was faster, and the page is at home here already or has moved on.
            let is_new =
                |this: &Hlrc, page: PageIndex| this.homes[this.geometry.slot(page)] == 0 && !this.is_home(page);
            let mut next = range.first().0;
            while next < range.end() {
                let page = PageIndex(next);
                let is_new_here = is_new(self, page);
                let run =
                    PageRange::around(page, next, range.end()).grow(page, |page| is_new(self, page) == is_new_here);
                if is_new_here {
                    self.begin_at_home(run, effects);
                }
                next = run.end();
            }
            // The waiting threads check again and find the page at home here.
            return effects.push(Effect::Wake(asked));
        }
        for page in range.pages() {
            let slot = self.geometry.slot(page);
            self.homes[slot] = from.0 + 1;
        }
        // A notice that came in the meantime may refer to a later change: such a copy is not used.
        let mut next = range.first().0;
        while next < range.end() {
            let is_new = |page: PageIndex| self.stamps[self.geometry.slot(page)] <= stamp;
            let rest = PageRange::around(PageIndex(next), next, range.end());
            if !is_new(PageIndex(next)) {
                self.clear(PageIndex(next), DEAF);
                next += 1;
                continue;
            }
            let run = rest.grow(PageIndex(next), is_new);
            self.open_copies(run, content, stamp, effects);
            next = run.end();
        }
        effects.push(Effect::Wake(asked));
    }

    /// This node is the home of pages that no node has touched, and opens them.
    fn begin_at_home(&mut self, range: PageRange, effects: &mut Vec<Effect>) {
        for page in range.pages() {
            self.claim(page);
            self.set(page, WRITTEN | READABLE | WRITABLE);
        }
        effects.push(Effect::Install { range, access: Access::Write, zero: true });
    }

    fn open_copies(&mut self, run: PageRange, content: Content, stamp: u64, effects: &mut Vec<Effect>) {
        for page in run.pages() {
            let slot = self.geometry.slot(page);
            self.stamps[slot] = stamp;
            // A twin that was kept has earlier bytes.
            self.clear(page, TWIN | PIGGYBACKED | BEHIND);
            self.set(page, READABLE | FETCHED | if self.geometry.marks { TWIN } else { 0 });
        }
        if self.geometry.marks {
            effects.push(Effect::KeepTwin(run));
        }
        effects.push(Effect::Install { range: run, access: Access::Read, zero: content == Content::Zero });
    }

    /// A store to a page that allows loads, noticed by a fault.
    fn first_store(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        if !self.has(page, TWIN) && (!self.is_home(page) || self.keeps_home_twin(page)) {
            self.set(page, TWIN);
            effects.push(Effect::KeepTwin(PageRange::one(page)));
        }
        self.set(page, WRITABLE);
        self.note_dirty(page);
    }

    fn note_dirty(&mut self, page: PageIndex) {
        if !self.has(page, DIRTY) {
            self.set(page, DIRTY);
            self.dirty.push(page);
        }
    }

    fn has(&self, page: PageIndex, flag: u16) -> bool {
        self.flags[self.geometry.slot(page)] & flag != 0
    }

    fn set(&mut self, page: PageIndex, flag: u16) {
        let slot = self.geometry.slot(page);
        self.flags[slot] |= flag;
    }

    fn clear(&mut self, page: PageIndex, flag: u16) {
        let slot = self.geometry.slot(page);
        self.flags[slot] &= !flag;
    }

    /// The pages of `pages` that satisfy `is_one`.
    fn among(&self, pages: PageSet, is_one: impl Fn(&Hlrc, PageIndex) -> bool) -> Option<PageSet> {
        pages.filter(|page| is_one(self, page))
    }
}
