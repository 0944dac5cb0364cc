//! `dynamic`: no manager; every node keeps a guess of the owner of a page (Sane, MacGregor and Campbell 1990, §4.1 and
//! §4.5; the guesses are Li and Hudak's *probable owners*, 1986, §4).
//!
//! The owner of a page is its last writer. It keeps the copyset and serves all requests. A load makes the owner's view
//! read-only and brings a copy. A store makes the owner call back all copies, and brings the page and its ownership. A node
//! that receives a request for a page that it does not own has two choices (§4.5): `forward` passes the request on towards
//! the owner; `redirect` tells the requester which node it believes to be the owner, and the requester asks there.
//!
//! # Why every request arrives
//!
//! A node that requests the right to store becomes a *root* at that moment, and every node that passes its request on (or
//! redirects it) points to it from then on (Naimi and Trehel's path reversal, 1987; this is the path compression of the
//! paper's `forward`). A root that does not have the page yet keeps the readers that come and the first writer, its *next*.
//! Later requests are passed on to that writer. So the writers of a page form a line in which each knows its successor. The
//! pointers of all other nodes lead into the line, and the place where a pointer enters it only moves forward: from a node
//! that was a root to one that became a root later. No path is a cycle, whatever the order in which messages arrive.
//!
//! # Why no request is overtaken for ever
//!
//! The request of a store visits a node at most once before it is in the line: each node that it visits points to its
//! requester afterwards, and that node's own next request queues behind the requester. The request of a load reverses no
//! pointers, so two writers could pass it back and forth. After as many hops as there are nodes, its requester is therefore
//! told to ask as a writer does. Together these rules bound the path by [`HOPS_PER_NODE_MAX`] times the number of nodes. A
//! request that exceeds the bound is reported.
//!
//! # Differences from the paper
//!
//! * The paper's writers acknowledge the page that they get. Here they need not: ownership travels in the message with the
//!   page, and a request that comes too early waits at the new owner. So Read and Write take two packets and the
//!   invalidations of the copies.
//! * A load may bring a range of neighbouring pages that the same node owns, and so may a store that the program announced.
//! * A granted page stays until the thread that waited for it has run on ([`Input::Resumed`]).
//! * Pages that were never written travel as one bit.
//!
//! Per page a node keeps 6 bytes and one copyset, all zero at the start.

use super::{Coherence, Content, Effect, Geometry, Input, Message, violation};
use crate::Nanoseconds;
use crate::page::{Access, NodeId, NodeSets, PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;

/// What a node does with a request for a page that it does not own (§4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variation {
    /// It passes the request on.
    Forward,
    /// It tells the requester which node to ask.
    Redirect,
}

/// No request is passed on more often than this times the number of nodes: one round as a reader, one as a writer.
pub const HOPS_PER_NODE_MAX: u16 = 2;

/// One shard of the protocol at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dynamic {
    geometry: Geometry,
    variation: Variation,
    access: Vec<Access>,
    flags: Vec<u8>,
    /// The probable owner, plus one; zero stands for the home.
    hint_or_home: Vec<u16>,
    /// The writer that gets the page from this node, plus one; zero stands for none.
    next: Vec<u16>,
    /// At the owner: the nodes that have read copies.
    copyset: NodeSets,
    /// Loads that are under way.
    loads: Vec<Load>,
    /// Readers that wait at this root, in the order of their arrival.
    readers: Vec<Reader>,
    /// Pages whose copies are being called back by this owner.
    callbacks: Vec<Callback>,
    /// Invalidations that wait for the copy that they refer to, or for the thread that it was fetched for.
    deferred: Vec<(NodeId, PageIndex, NodeId)>,
    /// Nodes that left, and the nodes that took their pages over. Messages under way may still name the nodes that left.
    gone: Vec<(NodeId, NodeId)>,
}

/// A request of this node for the page is under way.
const PENDING: u8 = 1;
/// That request is for the right to store: this node is a root.
const ROOT: u8 = 2;
/// A thread waits to load from the page: the page is held for it when it arrives.
const LOAD_AWAITED: u8 = 4;
/// A thread of this node was granted the page and has not run on yet.
const HELD: u8 = 8;
/// The page came here with its ownership.
const OWNER: u8 = 16;
/// The page was given away with its ownership, at least once.
const GIVEN: u8 = 32;
/// Set at the owner: the page may have been written.
const WRITTEN: u8 = 64;
/// A thread waits to store to the page: the page is held for it when it arrives with that right.
const STORE_AWAITED: u8 = 128;
/// A thread waits for the page.
const AWAITED: u8 = LOAD_AWAITED | STORE_AWAITED;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Load {
    demand: PageIndex,
    range: PageRange,
    /// How often the load was redirected.
    redirects: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reader {
    from: NodeId,
    demand: PageIndex,
    range: PageRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Callback {
    page: PageIndex,
    /// The next owner of the page: this node, or its next.
    owner: NodeId,
    /// The number of copies that have not been given up yet.
    awaited: u32,
}

/// A request as it arrives at a node.
#[derive(Clone, Copy)]
struct Request {
    from: NodeId,
    demand: PageIndex,
    range: PageRange,
    write: bool,
    announced: bool,
    hops: u16,
}

impl Coherence for Dynamic {
    fn step(&mut self, _now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Fault { page, write, wanted } => self.fault(page, write, wanted, effects),
            Input::Prefetch { wanted, write, announced } => self.prefetch(wanted, write, announced, effects),
            Input::Message { from, message } => self.message(from, message, effects),
            Input::Resumed { page } => self.resumed(page, effects),
            Input::Gone { node, successor } => self.gone(node, successor, effects),
            // These inputs are for layers; there is none here.
            Input::Alarm { .. } | Input::Lock { .. } | Input::Unlock { .. } => {}
            release_consistency_only!() => {}
        }
    }

    fn access(&self, page: PageIndex) -> Access {
        self.access[self.slot(page)]
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.has(page, PENDING)
    }

    fn owns(&self, page: PageIndex) -> bool {
        self.has(page, OWNER) || self.geometry.home_of(page) == self.geometry.me && !self.has(page, GIVEN)
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        self.has(page, OWNER | GIVEN)
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        let slot = self.slot(page);
        self.owns(page)
            && self.access[slot] == Access::None
            && self.flags[slot] == 0
            && self.hint_or_home[slot] == 0
            && self.next[slot] == 0
            && self.copyset.is_empty_but(slot, &[])
            && !self.callbacks.iter().any(|callback| callback.page == page)
    }

    fn release(&mut self, page: PageIndex) {
        let slot = self.slot(page);
        debug_assert!(self.next[slot] == 0 && !self.has(page, PENDING));
        self.access[slot] = Access::None;
        self.flags[slot] = 0;
        self.hint_or_home[slot] = 0;
        self.copyset.clear(slot);
    }

    fn adopt(&mut self, page: PageIndex) {
        debug_assert!(self.is_untouched(page));
        let slot = self.slot(page);
        self.access[slot] = Access::Write;
        self.flags[slot] = WRITTEN;
    }
}

// The side of the requester.
impl Dynamic {
    /// One shard for one node. Every page is owned by its home and zero.
    pub fn new(geometry: Geometry, variation: Variation) -> Dynamic {
        assert!(geometry.me.0 < geometry.nodes && geometry.shard < geometry.shards);
        let slots = geometry.slots();
        Dynamic {
            geometry,
            variation,
            access: vec![Access::None; slots],
            flags: vec![0; slots],
            hint_or_home: vec![0; slots],
            next: vec![0; slots],
            copyset: NodeSets::new(slots, geometry.nodes),
            loads: Vec::with_capacity(64),
            readers: Vec::with_capacity(64),
            callbacks: Vec::with_capacity(64),
            deferred: Vec::with_capacity(64),
            gone: Vec::new(),
        }
    }

    fn fault(&mut self, page: PageIndex, write: bool, wanted: PageRange, effects: &mut Vec<Effect>) {
        if self.access(page) >= needed(write) {
            // The request of another thread was faster.
            return effects.push(Effect::Wake(PageRange::one(page)));
        }
        self.set(page, if write { STORE_AWAITED } else { LOAD_AWAITED });
        if !self.has(page, PENDING) && !self.is_occupied(page) {
            self.ask(page, wanted, write, false, effects);
        }
    }

    fn prefetch(&mut self, wanted: PageRange, write: bool, announced: bool, effects: &mut Vec<Effect>) {
        let mut next = wanted.first().0;
        while let Some(page) = (next..wanted.end()).map(PageIndex).find(|&page| self.is_wanting(page, write)) {
            let rest = PageRange::around(page, page.0, wanted.end());
            // Guessing at stores would strip other writers.
            if !write || announced || self.owns(page) {
                next = self.ask(page, rest, write, announced, effects).end();
            } else {
                next = page.0 + 1;
            }
        }
    }

    /// Whether a request for `page` could be made now and would achieve something.
    fn is_wanting(&self, page: PageIndex, write: bool) -> bool {
        self.access(page) < needed(write) && !self.has(page, PENDING) && !self.is_occupied(page)
    }

    /// Whether this node is the owner and is about to give the page away or is calling copies back. Threads here that want
    /// the page wait for that.
    fn is_occupied(&self, page: PageIndex) -> bool {
        self.owns(page) && (self.next[self.slot(page)] != 0 || self.is_called_back(page))
    }

    /// Requests `demand`, and those neighbours in `wanted` that are in the same state here. Returns the range that was
    /// requested.
    fn ask(
        &mut self,
        demand: PageIndex,
        wanted: PageRange,
        write: bool,
        announced: bool,
        effects: &mut Vec<Effect>,
    ) -> PageRange {
        if self.owns(demand) {
            return self.ask_myself(demand, wanted, write, effects);
        }
        let (access, hint) = (self.access(demand), self.hint(demand));
        let range = match write && !announced {
            true => PageRange::one(demand),
            false => wanted.grow(demand, |page| {
                self.access(page) == access
                    && !self.owns(page)
                    && !self.has(page, PENDING | HELD)
                    && self.hint(page) == hint
            }),
        };
        for page in range.pages() {
            self.set(page, if write { PENDING | ROOT } else { PENDING });
        }
        if !write {
            self.loads.push(Load { demand, range, redirects: 0 });
            self.loads.sort_unstable();
        }
        let requester = self.geometry.me;
        let message = Message::Request { demand, range, write, announced, requester, hops: 0 };
        effects.push(Effect::Send { to: hint, message });
        range
    }

    /// The owner's own access: event `UpgradeO` of the paper, or the first touch of a page at its home.
    fn ask_myself(
        &mut self,
        demand: PageIndex,
        wanted: PageRange,
        write: bool,
        effects: &mut Vec<Effect>,
    ) -> PageRange {
        let is_alone = self.copyset.is_empty_but(self.slot(demand), &[]);
        if write && !is_alone {
            self.call_back(demand, self.geometry.me, effects);
            return PageRange::one(demand);
        }
        let access = self.access(demand);
        let range = wanted.grow(demand, |page| {
            self.owns(page)
                && self.access(page) == access
                && !self.has(page, PENDING | HELD)
                && !self.is_occupied(page)
                && self.has(page, WRITTEN) == self.has(demand, WRITTEN)
                && self.copyset.is_empty_but(self.slot(page), &[]) == is_alone
        });
        // No other node holds the page: the write that often follows a read need not fault again.
        self.put_in_force(range, write || is_alone, access == Access::Read, !self.has(demand, WRITTEN), effects);
        range
    }

    /// Changes the view of pages that this node owns or was given, and wakes the threads that wait for them.
    fn put_in_force(&mut self, range: PageRange, write: bool, is_here: bool, zero: bool, effects: &mut Vec<Effect>) {
        let access = needed(write);
        let (known, satisfied) = if write { (WRITTEN, AWAITED) } else { (0, LOAD_AWAITED) };
        for page in range.pages() {
            let slot = self.slot(page);
            self.access[slot] = access;
            self.flags[slot] |= known;
            if self.flags[slot] & satisfied != 0 {
                self.flags[slot] |= HELD;
            }
            self.flags[slot] &= !(PENDING | ROOT | AWAITED);
        }
        effects.push(match is_here {
            true => Effect::Upgrade(range),
            false => Effect::Install { range, access, zero },
        });
        effects.push(Effect::Wake(range));
    }

    fn granted(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Message::Grant { demand, range, write, content, .. } = message else {
            unreachable!("only called with a grant");
        };
        let is_here = content == Content::Kept;
        let expected = if is_here { Access::Read } else { Access::None };
        let asked = if write { PENDING | ROOT } else { PENDING };
        let fits = |page| self.access(page) == expected && self.flags[self.slot(page)] & (PENDING | ROOT) == asked;
        if is_here && !write || !range.pages().all(fits) {
            return violation(from, "a grant that does not fit the request", effects);
        }
        if write {
            for page in range.pages() {
                self.set(page, OWNER);
            }
        } else {
            let Some(index) = self.loads.iter().position(|load| load.demand == demand && load.range.covers(range))
            else {
                return violation(from, "a grant that nobody asked for", effects);
            };
            let load = self.loads.remove(index);
            self.let_go_of_rest(load.range, range, effects);
            for page in range.pages() {
                self.set_hint(page, from);
            }
        }
        self.put_in_force(range, write, is_here, content == Content::Zero, effects);
        for page in range.pages() {
            self.retry_deferred(page, effects);
            self.serve(page, effects);
        }
    }

    /// The pages of `asked` that are not in `given` did not come. A thread that waits for one of them requests it by
    /// itself.
    fn let_go_of_rest(&mut self, asked: PageRange, given: PageRange, effects: &mut Vec<Effect>) {
        for page in asked.pages().filter(|&page| !given.contains(page)) {
            let awaited = self.has(page, AWAITED);
            self.clear(page, PENDING | AWAITED);
            if awaited {
                effects.push(Effect::Wake(PageRange::one(page)));
            }
        }
    }

    fn redirected(&mut self, from: NodeId, page: PageIndex, owner: NodeId, effects: &mut Vec<Effect>) {
        let is_write = self.has(page, ROOT);
        let load = self.loads.iter().position(|load| load.demand == page);
        // A node that took a page over and no longer owns it knows more than a node that still names the one that left.
        let owner = if self.took_over_from(owner) { self.hint(page) } else { self.in_place_of(owner) };
        if owner == self.geometry.me || !self.has(page, PENDING) || (!is_write && load.is_none()) {
            return violation(from, "a redirection that nobody waits for", effects);
        }
        let requester = self.geometry.me;
        let mut message = Message::Request {
            demand: page,
            range: PageRange::one(page),
            write: true,
            announced: false,
            requester,
            hops: 1,
        };
        if let Some(index) = load.filter(|_| !is_write) {
            self.loads[index].redirects += 1;
            let load = self.loads[index];
            if load.redirects >= self.redirects_max() {
                // The request was passed around for long enough: as a writer it gets a place in the line.
                self.loads.remove(index);
                self.let_go_of_rest(load.range, PageRange::one(page), effects);
                self.set(page, ROOT);
            } else {
                let (range, hops) = (load.range, load.redirects);
                message = Message::Request { demand: page, range, write: false, announced: false, requester, hops };
            }
        }
        effects.push(Effect::Send { to: owner, message });
    }

    /// How often a load may be redirected. With `forward` it was passed around before that, so once is enough.
    fn redirects_max(&self) -> u16 {
        match self.variation {
            Variation::Forward => 1,
            Variation::Redirect => self.geometry.nodes,
        }
    }

    fn resumed(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        if self.has(page, HELD) {
            self.clear(page, HELD);
            self.retry_deferred(page, effects);
            self.serve(page, effects);
        }
    }
}

// The side of a node that receives a request.
impl Dynamic {
    /// Serves a request, keeps it, or passes it on. A range is split where its pages differ.
    fn requested(&mut self, request: Request, effects: &mut Vec<Effect>) {
        if request.from == self.geometry.me || request.hops > self.geometry.nodes * HOPS_PER_NODE_MAX {
            return violation(request.from, "a request that went round in a circle", effects);
        }
        if !request.write {
            return self.load_requested(request, effects);
        }
        let mut next = request.range.first().0;
        while next < request.range.end() {
            let page = PageIndex(next);
            let rest = PageRange::around(page, next, request.range.end());
            let served = if self.is_root(page) && self.next[self.slot(page)] == 0 {
                self.store_requested(request.from, page, rest, effects)
            } else {
                let hint = self.hint(page);
                let alike = |other: &Dynamic, page| {
                    !(other.is_root(page) && other.next[other.slot(page)] == 0) && other.hint(page) == hint
                };
                let run = rest.grow(page, |page| alike(self, page));
                self.pass_on(Request { demand: page, range: run, ..request }, effects);
                run
            };
            next = served.end();
        }
    }

    /// Handles a store that this root serves or keeps: its requester becomes the next. Returns the pages for which this was
    /// done.
    fn store_requested(
        &mut self,
        from: NodeId,
        page: PageIndex,
        rest: PageRange,
        effects: &mut Vec<Effect>,
    ) -> PageRange {
        let is_simple =
            |this: &Dynamic, page: PageIndex| this.is_free(page) && this.copyset.is_empty_but(this.slot(page), &[from]);
        if !is_simple(self, page) {
            self.set_next(page, from);
            self.serve(page, effects);
            return PageRange::one(page);
        }
        let content = self.content_for(page, from);
        let run = rest.grow(page, |other| {
            is_simple(self, other)
                && self.content_for(other, from) == content
                && self.access(other) == self.access(page)
        });
        for page in run.pages() {
            self.set_next(page, from);
        }
        self.give(run, content, effects);
        run
    }

    fn load_requested(&mut self, request: Request, effects: &mut Vec<Effect>) {
        let Request { from, demand, range, .. } = request;
        if !self.is_root(demand) || self.next[self.slot(demand)] != 0 {
            return self.pass_on(request, effects);
        }
        if !self.is_free(demand) {
            if self.has(demand, HELD) {
                effects.push(Effect::Hold(demand));
            }
            return self.readers.push(Reader { from, demand, range });
        }
        self.share(Reader { from, demand, range }, effects);
    }

    /// Gives read copies: event `Read` of the paper.
    fn share(&mut self, reader: Reader, effects: &mut Vec<Effect>) {
        let Reader { from, demand, range } = reader;
        let run = range.grow(demand, |page| {
            self.is_free(page)
                && self.next[self.slot(page)] == 0
                && self.has(page, WRITTEN) == self.has(demand, WRITTEN)
                && !self.copyset.contains(self.slot(page), from)
        });
        let writable = |page: &PageIndex| self.access(*page) == Access::Write;
        if run.pages().any(|page| writable(&page)) {
            // Every page of the range is mapped: a page that was written has a view at its owner.
            effects.push(Effect::Downgrade(run));
        }
        for page in run.pages() {
            let slot = self.slot(page);
            self.access[slot] = self.access[slot].min(Access::Read);
            self.copyset.insert(slot, from);
        }
        let content = if self.has(demand, WRITTEN) { Content::Bytes } else { Content::Zero };
        let message = Message::Grant { demand, range: run, write: false, content, sequence: 0 };
        effects.push(Effect::Send { to: from, message });
    }

    /// Goes on with a page that may have become free: readers first, then the next writer.
    fn serve(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        while self.is_free(page)
            && let Some(index) = self.readers.iter().position(|reader| reader.demand == page)
        {
            let reader = self.readers.remove(index);
            self.share(reader, effects);
        }
        if !self.is_free(page) {
            if self.has(page, HELD) && (self.next[self.slot(page)] != 0 || self.has_reader(page)) {
                effects.push(Effect::Hold(page));
            }
            return;
        }
        if let Some(next) = self.next_of(page) {
            if self.copyset.is_empty_but(self.slot(page), &[next]) {
                let content = self.content_for(page, next);
                self.give(PageRange::one(page), content, effects);
            } else {
                self.call_back(page, next, effects);
            }
        }
    }

    /// Calls every copy back except that of `owner`, which will own the page.
    fn call_back(&mut self, page: PageIndex, owner: NodeId, effects: &mut Vec<Effect>) {
        let mut awaited = 0;
        for reader in self.copyset.members(self.slot(page)).filter(|&reader| reader != owner) {
            awaited += 1;
            effects.push(Effect::Send { to: reader, message: Message::Invalidate { page, owner } });
        }
        debug_assert!(awaited > 0);
        self.callbacks.push(Callback { page, owner, awaited });
        self.callbacks.sort_unstable();
    }

    fn invalidated(&mut self, from: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        let slot = self.slot(page);
        let index = self.callbacks.iter().position(|callback| callback.page == page);
        let Some(index) = index.filter(|_| self.copyset.contains(slot, from)) else {
            return violation(from, "an acknowledgement that nobody waits for", effects);
        };
        self.copyset.remove(slot, from);
        self.callbacks[index].awaited -= 1;
        if self.callbacks[index].awaited > 0 {
            return;
        }
        let owner = self.callbacks.remove(index).owner;
        if owner == self.geometry.me {
            // It was this node's own store. A writer that came in the meantime is served once the thread has run on.
            let is_here = self.access(page) == Access::Read;
            self.put_in_force(PageRange::one(page), true, is_here, !self.has(page, WRITTEN), effects);
        }
        self.serve(page, effects);
    }

    /// Gives pages with their ownership to the next writer: events `Write` and `UpgradeNO` of the paper.
    fn give(&mut self, run: PageRange, content: Content, effects: &mut Vec<Effect>) {
        let first = run.first();
        let next = self.next_of(first).expect("somebody is next");
        if self.access(first) != Access::None {
            effects.push(Effect::Revoke(run));
        }
        for page in run.pages() {
            let slot = self.slot(page);
            self.access[slot] = Access::None;
            self.flags[slot] = self.flags[slot] & !(OWNER | WRITTEN) | GIVEN;
            self.next[slot] = 0;
            self.copyset.clear(slot);
        }
        let message = Message::Grant { demand: first, range: run, write: true, content, sequence: 0 };
        effects.push(Effect::Send { to: next, message });
        for page in run.pages().filter(|&page| self.has(page, AWAITED)) {
            // A thread here that waited for the callbacks to end asks the new owner.
            effects.push(Effect::Wake(PageRange::one(page)));
        }
    }

    fn pass_on(&mut self, request: Request, effects: &mut Vec<Effect>) {
        let Request { from, demand, range, write, announced, hops } = request;
        let hint = self.hint(demand);
        let is_redirected = self.variation == Variation::Redirect || !write && hops >= self.geometry.nodes;
        if hint == from || hint == self.geometry.me {
            return violation(from, "a request that comes back to its requester", effects);
        }
        if write {
            for page in range.pages() {
                self.set_hint(page, from);
            }
        }
        if !is_redirected {
            let (requester, hops) = (from, hops + 1);
            let message = Message::Request { demand, range, write, announced, requester, hops };
            return effects.push(Effect::Send { to: hint, message });
        }
        let pages = if write { range } else { PageRange::one(demand) };
        for page in pages.pages() {
            effects.push(Effect::Send { to: from, message: Message::Redirect { page, owner: hint } });
        }
    }

    /// Handles an order to give up a read copy. If there is no copy, the grant that the order refers to is still on its
    /// way, and the order waits for it.
    fn invalidate(&mut self, from: NodeId, page: PageIndex, owner: NodeId, effects: &mut Vec<Effect>) {
        match self.access(page) {
            Access::Read if self.owns(page) => violation(from, "an invalidation of a page that is owned here", effects),
            Access::Read if self.has(page, HELD) => {
                effects.push(Effect::Hold(page));
                self.deferred.push((from, page, owner));
            }
            Access::Read => {
                let slot = self.slot(page);
                self.access[slot] = Access::None;
                if self.next[slot] == 0 {
                    self.set_hint(page, owner);
                }
                effects.push(Effect::Revoke(PageRange::one(page)));
                effects.push(Effect::Send { to: from, message: Message::Invalidated { page } });
            }
            Access::None if self.has(page, PENDING) && !self.has(page, ROOT) => {
                self.deferred.push((from, page, owner));
            }
            _ => violation(from, "an invalidation of a page that is no read copy", effects),
        }
    }

    fn retry_deferred(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        // An owner calls a page back from all nodes before it passes it on: at most one order waits.
        if let Some(index) = self.deferred.iter().position(|&(_, deferred, _)| deferred == page) {
            let (from, page, owner) = self.deferred.swap_remove(index);
            self.invalidate(from, page, owner, effects);
        }
    }

    /// Handles a node that left. Requests that would have gone to it go to the node that took its pages over and was their
    /// owner after it.
    fn gone(&mut self, node: NodeId, successor: NodeId, effects: &mut Vec<Effect>) {
        self.gone.push((node, successor));
        self.gone.sort_unstable();
        for slot in 0..self.flags.len() {
            self.copyset.remove(slot, node);
            if self.next[slot] == node.0 + 1 {
                return violation(node, "nothing: it left while it waited for a page", effects);
            }
            if self.hint_or_home[slot] == node.0 + 1 {
                // The successor's own pointer is already right unless it never owned the page. In that case no pointer
                // mattered.
                self.hint_or_home[slot] = if successor == self.geometry.me { 0 } else { successor.0 + 1 };
            }
        }
    }
}

// What this node knows.
impl Dynamic {
    /// Whether requests may end here: this node owns the page, or has requested its ownership.
    fn is_root(&self, page: PageIndex) -> bool {
        self.has(page, ROOT) || self.owns(page)
    }

    /// Whether this node owns the page and may give it away or share it now.
    fn is_free(&self, page: PageIndex) -> bool {
        self.owns(page) && !self.has(page, HELD) && !self.is_called_back(page)
    }

    fn is_called_back(&self, page: PageIndex) -> bool {
        self.callbacks.iter().any(|callback| callback.page == page)
    }

    fn has_reader(&self, page: PageIndex) -> bool {
        self.readers.iter().any(|reader| reader.demand == page)
    }

    fn content_for(&self, page: PageIndex, to: NodeId) -> Content {
        if self.copyset.contains(self.slot(page), to) {
            Content::Kept
        } else if self.has(page, WRITTEN) {
            Content::Bytes
        } else {
            Content::Zero
        }
    }

    fn next_of(&self, page: PageIndex) -> Option<NodeId> {
        self.next[self.slot(page)].checked_sub(1).map(NodeId)
    }

    fn set_next(&mut self, page: PageIndex, next: NodeId) {
        let slot = self.slot(page);
        self.next[slot] = next.0 + 1;
        self.set_hint(page, next);
    }

    fn hint(&self, page: PageIndex) -> NodeId {
        match self.hint_or_home[self.slot(page)] {
            0 => self.geometry.home_of(page),
            hint => NodeId(hint - 1),
        }
    }

    fn set_hint(&mut self, page: PageIndex, hint: NodeId) {
        if !self.took_over_from(hint) {
            let slot = self.slot(page);
            self.hint_or_home[slot] = self.in_place_of(hint).0 + 1;
        }
    }

    /// Whether `node` left and this node took its pages over.
    fn took_over_from(&self, node: NodeId) -> bool {
        self.gone.iter().any(|&(gone, successor)| gone == node && successor == self.geometry.me)
    }

    /// `node`, or the node that took its pages over if it left.
    fn in_place_of(&self, node: NodeId) -> NodeId {
        self.gone.iter().find(|(gone, _)| *gone == node).map_or(node, |&(_, successor)| successor)
    }
}

// Slots.
impl Dynamic {
    fn message(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request { demand, range, write, announced, requester, hops } => {
                self.requested(Request { from: requester, demand, range, write, announced, hops }, effects);
            }
            Message::Grant { .. } => self.granted(from, message, effects),
            Message::Redirect { page, owner } => self.redirected(from, page, owner, effects),
            Message::Invalidate { page, owner } => self.invalidate(from, page, owner, effects),
            Message::Invalidated { page } => self.invalidated(from, page, effects),
            _ => violation(from, "a message of another protocol", effects),
        }
    }

    fn slot(&self, page: PageIndex) -> usize {
        self.geometry.slot(page)
    }

    fn has(&self, page: PageIndex, flag: u8) -> bool {
        self.flags[self.slot(page)] & flag != 0
    }

    fn set(&mut self, page: PageIndex, flag: u8) {
        let slot = self.slot(page);
        self.flags[slot] |= flag;
    }

    fn clear(&mut self, page: PageIndex, flag: u8) {
        let slot = self.slot(page);
        self.flags[slot] &= !flag;
    }
}

fn needed(write: bool) -> Access {
    if write { Access::Write } else { Access::Read }
}
