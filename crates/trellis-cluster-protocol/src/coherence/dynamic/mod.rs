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
//! A node that asks for neighbours with a store is a root of them, too, until the answer comes. If they do not come with it,
//! the node that was asked has not made it the next one of any line. This root then passes the requests that it received in
//! the meantime on to that node, as if they had been under way for longer.
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
//!   Any store may bring neighbours that no node has touched, that never left their home, or of which the writer has a copy.
//!   The node that is asked decides about them; it does not pass requests for them on.
//! * A granted page stays until the thread that waited for it has run on ([`Input::Resumed`]).
//! * Pages that were never written travel as one bit.
//!
//! Per page a node keeps 6 bytes and one copyset, all zero at the start; one byte more where it learns ([`patterns`]).

mod owner;
mod patterns;
mod requester;

use super::{Coherence, Content, Effect, Geometry, Input, Message, violation};
use crate::Nanoseconds;
use crate::page::{Access, Accesses, NodeId, NodeSets, PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;
use patterns::Patterns;

/// The treatment of a request for a page that the node does not own (§4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variation {
    /// It passes the request on.
    Forward,
    /// It tells the requester which node to ask.
    Redirect,
    /// It passes the request on. If a node loaded from a page before and then stored to it, its next load asks for the right
    /// to store.
    Migratory,
}

/// No request is passed on more often than this times the number of nodes: one round as a reader, one as a writer.
pub const HOPS_PER_NODE_MAX: u16 = 2;

/// One shard of the protocol at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dynamic {
    geometry: Geometry,
    variation: Variation,
    access: Accesses,
    flags: Vec<u8>,
    /// The probable owner, plus one; zero stands for the home.
    hint_or_home: Vec<u16>,
    /// The writer that gets the page from this node, plus one; zero stands for none.
    next: Vec<u16>,
    /// At the owner: the nodes that have read copies.
    copyset: NodeSets,
    /// Loads that are under way.
    loads: Vec<Load>,
    /// Stores that are under way and for which neighbours were requested.
    guesses: Vec<Guess>,
    /// Readers that wait at this root, in the order of their arrival.
    readers: Vec<Reader>,
    /// Pages whose copies are being called back by this owner.
    callbacks: Vec<Callback>,
    /// Invalidations that wait for the copy that they refer to, or for the thread that it was fetched for.
    deferred: Vec<(NodeId, PageIndex, NodeId)>,
    /// Nodes that left, and the nodes that took their pages over. Messages under way may still name the nodes that left.
    gone: Vec<(NodeId, NodeId)>,
    /// Which pages a load should bring with the right to store.
    patterns: Patterns,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Guess {
    demand: PageIndex,
    range: PageRange,
    /// The node that decides about the neighbours.
    asked: NodeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reader {
    from: NodeId,
    demand: PageIndex,
    range: PageRange,
    /// How many nodes have passed the request on.
    hops: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Callback {
    page: PageIndex,
    /// The next owner of the page: this node, or its next.
    owner: NodeId,
    /// The number of copies that have not been given up yet.
    awaited: u32,
}

/// The purpose of a request that this node makes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    /// To load from them.
    Load,
    /// To store to one of them.
    Store,
    /// To store to all of them: the program announced it.
    AnnouncedStore,
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
        self.access.set(slot, Access::None);
        self.flags[slot] = 0;
        self.hint_or_home[slot] = 0;
        self.copyset.clear(slot);
        self.patterns.forget(slot);
    }

    fn adopt(&mut self, page: PageIndex) {
        debug_assert!(self.is_untouched(page));
        let slot = self.slot(page);
        self.access.set(slot, Access::Write);
        self.flags[slot] = WRITTEN;
    }
}

impl Dynamic {
    /// One shard for one node. Every page is owned by its home and zero.
    pub fn new(geometry: Geometry, variation: Variation) -> Dynamic {
        assert!(geometry.me.0 < geometry.nodes && geometry.shard < geometry.shards);
        let slots = geometry.slots();
        Dynamic {
            geometry,
            variation,
            access: Accesses::none(slots),
            flags: vec![0; slots],
            hint_or_home: vec![0; slots],
            next: vec![0; slots],
            copyset: NodeSets::new(slots, geometry.nodes),
            loads: Vec::with_capacity(64),
            guesses: Vec::with_capacity(64),
            readers: Vec::with_capacity(64),
            callbacks: Vec::with_capacity(64),
            deferred: Vec::with_capacity(64),
            gone: Vec::new(),
            patterns: Patterns::new(if variation == Variation::Migratory { slots } else { 0 }),
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

    /// Whether this node knows nothing of the page, as at the start, and another node is its home. No node can send
    /// requests for it to this one.
    fn is_unknown(&self, page: PageIndex) -> bool {
        let slot = self.slot(page);
        self.flags[slot] & !AWAITED == 0
            && self.access[slot] == Access::None
            && self.hint_or_home[slot] == 0
            && self.geometry.home_of(page) != self.geometry.me
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
