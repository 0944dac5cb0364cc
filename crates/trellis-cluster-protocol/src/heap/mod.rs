//! The shared heap: blocks of the region. Each node allocates them from its own spans of pages.
//!
//! # Contract
//!
//! One [`Heap`] per node. The node that keeps the directory hands out *spans*, which are ranges of pages; every node cuts
//! its spans into blocks. What it knows about them is private: no data of the allocator lies in the region, so the
//! allocator never makes a page move. A call of the program carries a [`Waiter`], a number that the caller chose.
//! [`Effect::Done`] names it exactly once, unless the call was given up by [`Input::Abandon`].
//!
//! Promises: blocks never overlap, and blocks of two nodes never share a page. A block may be freed at any node. Freeing
//! something that is not a block, or no longer one, is refused and changes nothing. When a free is done, its pages are
//! available to every node. It must never assume that messages keep their order.
//!
//! **Release consistency.** A free is a release and an allocation is an acquire if they happen at different nodes. So
//! before a block of another node is freed, and before a span goes back, the caller makes known what its program wrote. When
//! it gets a block that [`Block::is_foreign`], it first applies the notices that it received. A [`Call`] has these steps in
//! their order. [`Message::releases`] says which messages carry notices.

mod arena;
mod call;
mod directory;
mod span;

pub use call::{Call, Step, StepOutcome};
pub use directory::SPANS_MAX;
pub use trellis_base::size_classes::{self, ALIGN_BYTES_MIN, SMALL_BYTES_MAX};

use crate::page::NodeId;
use crate::sync::Waiter;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use arena::{Arena, Freed};
use directory::Directory;

/// The number of pages for which a node remembers which other node has them.
const REMEMBERED: usize = 1024;

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first page.
    pub first: u32,
    /// The number of pages; never zero.
    pub pages: u32,
}

/// Where the heap is, and which node keeps its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// This node.
    pub me: NodeId,
    /// The node that keeps the directory.
    pub directory: NodeId,
    /// The first page that may be handed out.
    pub first_page: u32,
    /// The first page of the upper zone; `end_page` if there is none.
    pub border_page: u32,
    /// One past the last page that may be handed out.
    pub end_page: u32,
    /// Bytes of a page, a power of two.
    pub page_bytes: u32,
    /// The address of the region's first byte, in pages.
    pub base_pages: u64,
}

impl Geometry {
    /// The pages of a zone.
    fn zone(&self, zone: Zone) -> Range<u32> {
        match zone {
            Zone::Lower => self.first_page..self.border_page,
            Zone::Upper => self.border_page..self.end_page,
        }
    }

    fn zone_of(&self, page: u32) -> Zone {
        if page < self.border_page { Zone::Lower } else { Zone::Upper }
    }

    fn page_of(&self, offset: u64) -> u32 {
        (offset / u64::from(self.page_bytes)) as u32
    }

    fn offset_of(&self, page: u32) -> u64 {
        u64::from(page) * u64::from(self.page_bytes)
    }

    fn bytes_of(&self, run: Run) -> u64 {
        u64::from(run.pages) * u64::from(self.page_bytes)
    }
}

/// A part of the heap. The pages of the two may be under different protocols, so a block is of one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zone {
    /// Up to [`Geometry::border_page`].
    #[default]
    Lower,
    /// From there on.
    Upper,
}

/// What the program wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The number of bytes; a block of zero bytes is one of the smallest.
    pub bytes: u64,
    /// The alignment, a power of two; never less than [`ALIGN_BYTES_MIN`].
    pub align: u64,
    /// The home of the pages. Blocks of different homes never share a page.
    pub home: NodeId,
    /// Whether the block shares its pages with other blocks.
    pub separation: Separation,
    /// The part of the heap.
    pub zone: Zone,
}

/// Whether a block shares its pages with other blocks of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Separation {
    /// A small block does.
    Never,
    /// It does not while its node has few blocks of its size.
    WhileFew,
    /// It does not.
    Always,
}

/// What the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its first byte, from the start of the region.
    pub offset: u64,
    /// Its size, at least the size requested.
    pub bytes: u64,
    /// It was never handed out before: it is zero.
    pub is_fresh: bool,
    /// Another node may have had it last.
    pub is_foreign: bool,
}

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The program wants a block.
    Allocate(Request, Waiter),
    /// The pages of the span that [`Answer::Span`] named have their home: now allocate the block.
    Adopt(Waiter),
    /// The program frees the block at this offset, unless it belongs to another node.
    Free(u64, Waiter),
    /// The program frees the block at this offset, whichever node has it, and has made known what it wrote.
    FreeElsewhere(u64, Waiter),
    /// The program asks how large the block at this offset is.
    Measure(u64, Waiter),
    /// The surplus span that begins at this page may go: what was written has been made known.
    GiveBack(u32, Waiter),
    /// The program no longer waits (its deadline passed).
    Abandon(Waiter),
    /// A message arrived.
    Message(NodeId, Message),
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send this; never to this node itself.
    Send(NodeId, Message),
    /// The call is done, or has come to a point where the caller must do something.
    Done(Waiter, Answer),
    /// The peer sent a message that no correct peer can send.
    Violation(NodeId, &'static str),
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The program has this block.
    Block(Block),
    /// These pages came and are not used yet: give them their home, then call [`Input::Adopt`].
    Span(Run),
    /// Freed, or given back.
    Freed,
    /// The size of the block in bytes.
    Bytes(u64),
    /// It is no block of this node; nothing has changed.
    Elsewhere,
    /// There is no block at this offset: it was freed before, or never handed out. Nothing has changed.
    NoBlock,
    /// The heap does not have that many consecutive free pages, or none with this alignment.
    NoRoom {
        /// The number of pages requested.
        pages: u32,
        /// The longest free range; [`u32::MAX`] if there are [`SPANS_MAX`] spans.
        longest: u32,
    },
}

/// The operation on a block of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Take it back.
    Free,
    /// Return its size.
    Measure,
}

/// The result of an operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Freed, or given back.
    Freed,
    /// The size in bytes.
    Bytes(u64),
    /// There is no such block.
    NoBlock,
}

/// The messages between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the directory: give me this many consecutive pages, aligned to two to this power of pages.
    Request {
        /// Of the sender's call.
        waiter: Waiter,
        /// The number of pages.
        pages: u32,
        /// The power of two of their alignment, in pages.
        align_shift: u8,
        /// The part of the heap.
        zone: Zone,
    },
    /// From the directory: these are yours.
    Grant {
        /// Of the receiver's call.
        waiter: Waiter,
        /// The pages.
        run: Run,
        /// They were never handed out before.
        is_fresh: bool,
    },
    /// From the directory: there are no such pages.
    NoRoom {
        /// Of the receiver's call.
        waiter: Waiter,
        /// The longest free range, or [`u32::MAX`].
        longest: u32,
    },
    /// To the directory: this span is empty. The answer goes to the node whose call waits for it.
    Return {
        /// The span.
        run: Run,
        /// The node that waits.
        requester: NodeId,
        /// The call that waits.
        waiter: Waiter,
    },
    /// To the node that has a block, or to the directory, which passes it on.
    Ask {
        /// The block's first byte.
        offset: u64,
        /// The operation.
        operation: Operation,
        /// The node that waits.
        requester: NodeId,
        /// The call that waits.
        waiter: Waiter,
        /// The directory says that the receiver has it.
        is_routed: bool,
    },
    /// The answer to [`Message::Return`] or [`Message::Ask`].
    Reply {
        /// Of the receiver's call.
        waiter: Waiter,
        /// The result.
        outcome: Outcome,
        /// The node to ask next about the same page.
        owner: NodeId,
    },
}

impl Message {
    /// Whether the message carries its sender's notices to a program that will use the memory in question: a span on its
    /// way back and out again, and a block that is freed. The directory passes an `Ask` on with the notices that came with
    /// it.
    pub fn releases(&self) -> bool {
        matches!(self, Message::Grant { .. } | Message::Return { .. } | Message::Ask { operation: Operation::Free, .. })
    }
}

/// How much memory a node has handed out. Bytes are those of whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Statistics {
    /// Blocks that this node handed out and that were not freed yet.
    pub blocks: u64,
    /// Their bytes.
    pub block_bytes: u64,
    /// Spans that this node has.
    pub spans: u64,
    /// Their bytes.
    pub span_bytes: u64,
    /// Blocks that this node ever handed out.
    pub allocations: u64,
    /// The number of those that another node freed.
    pub frees_by_others: u64,
}

impl Statistics {
    fn took(&mut self, bytes: u64) {
        self.blocks += 1;
        self.block_bytes += bytes;
        self.allocations += 1;
    }

    fn gave_back(&mut self, bytes: u64, by_other: bool) {
        self.blocks -= 1;
        self.block_bytes -= bytes;
        self.frees_by_others += u64::from(by_other);
    }
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waits {
    /// For a span of this many pages.
    Span { request: Request, pages: u32 },
    /// For the span to have its home.
    Granted { request: Request, run: Run, is_fresh: bool },
    /// For an answer about the block or span at this offset. `asked` is the node that was asked first.
    Reply { offset: u64, asked: NodeId, is_block: bool },
}

/// The nodes that may owe a call its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Debt {
    /// The node that keeps the directory, and no other.
    Directory,
    /// This node was asked about a block. The answer comes from it, from the directory, or from the node that the directory
    /// names.
    Block(NodeId),
}

/// The part of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Heap {
    geometry: Geometry,
    arena: Arena,
    directory: Option<Directory>,
    calls: BTreeMap<Waiter, Waits>,
    /// Empty spans that go back once what was written to them has been made known: the pages at which they begin. No
    /// [`Call`] has them.
    surplus: Vec<u32>,
    /// Page and owner, by the page's number modulo the size.
    owners: Vec<Option<(u32, NodeId)>>,
    /// Room for the effects of a step; empty between steps.
    room: Vec<Effect>,
}

impl Heap {
    /// The heap of a node that has handed out nothing yet.
    pub fn new(geometry: Geometry) -> Heap {
        let Geometry { me, directory, first_page, end_page, .. } = geometry;
        Heap {
            geometry,
            arena: Arena::new(geometry),
            directory: (me == directory).then(|| Directory::new(geometry)),
            calls: BTreeMap::new(),
            surplus: Vec::new(),
            owners: vec![None; REMEMBERED.min(end_page.saturating_sub(first_page) as usize).max(1)],
            room: Vec::new(),
        }
    }

    pub(crate) fn take_room(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.room)
    }

    pub(crate) fn give_room(&mut self, empty: Vec<Effect>) {
        self.room = empty;
    }

    /// Takes one fact and pushes the effects that follow from it.
    pub fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Allocate(request, waiter) => self.allocate(request, waiter, effects),
            Input::Adopt(waiter) => self.adopt(waiter, effects),
            Input::Free(offset, waiter) if self.arena.owns(offset) => {
                self.await_reply(waiter, offset, self.geometry.directory, false);
                self.serve(self.geometry.me, waiter, offset, Operation::Free, effects);
            }
            Input::Free(_, waiter) => effects.push(Effect::Done(waiter, Answer::Elsewhere)),
            Input::FreeElsewhere(offset, waiter) => self.ask(offset, Operation::Free, waiter, effects),
            Input::Measure(offset, waiter) => self.ask(offset, Operation::Measure, waiter, effects),
            Input::GiveBack(first, waiter) => match self.arena.let_go(first) {
                Some(run) => {
                    self.await_reply(waiter, self.geometry.offset_of(first), self.geometry.directory, false);
                    self.give_back(run, self.geometry.me, waiter, effects);
                }
                None => effects.push(Effect::Done(waiter, Answer::NoBlock)),
            },
            Input::Abandon(waiter) => {
                if let Some(Waits::Granted { run, .. }) = self.calls.remove(&waiter) {
                    self.give_back(run, self.geometry.me, waiter, effects);
                }
            }
            Input::Message(from, message) => self.receive(from, message, effects),
        }
    }

    /// Makes every empty span surplus.
    fn trim(&mut self) {
        self.surplus.extend(self.arena.trim());
    }

    /// The amount that this node has handed out now.
    pub fn statistics(&self) -> Statistics {
        self.arena.statistics
    }

    /// The nodes from which the call's answer is to come, as far as this node knows; `None` if it waits for no other node.
    pub fn debt(&self, waiter: Waiter) -> Option<Debt> {
        match *self.calls.get(&waiter)? {
            Waits::Span { .. } | Waits::Reply { is_block: false, .. } => Some(Debt::Directory),
            Waits::Reply { asked, .. } => Some(Debt::Block(asked)),
            Waits::Granted { .. } => None,
        }
    }

    /// At the directory: the number of free pages.
    pub fn pages_free(&self) -> Option<u64> {
        self.directory.as_ref().map(Directory::pages_free)
    }

    fn allocate(&mut self, request: Request, waiter: Waiter, effects: &mut Vec<Effect>) {
        debug_assert!(request.align.is_power_of_two());
        let request = self.arena.settled(request);
        if let Some(block) = self.arena.take(&request) {
            return effects.push(Effect::Done(waiter, Answer::Block(block)));
        }
        let (_, pages) = self.arena.pages_for(&request);
        self.ask_for_span(request, pages, waiter, effects);
    }

    fn ask_for_span(&mut self, request: Request, pages: u32, waiter: Waiter, effects: &mut Vec<Effect>) {
        let align_pages = (request.align / u64::from(self.geometry.page_bytes)).max(1);
        let zone_pages = self.geometry.zone(request.zone).len() as u32;
        if pages > zone_pages || align_pages > u64::from(u32::MAX) {
            return self.no_room(request, pages, zone_pages.min(pages - 1), waiter, effects);
        }
        self.calls.insert(waiter, Waits::Span { request, pages });
        let (align_shift, zone) = (align_pages.trailing_zeros() as u8, request.zone);
        let message = Message::Request { waiter, pages, align_shift, zone };
        self.post(self.geometry.directory, message, effects);
    }

    /// If the pool asked for more than it needs, it asks for less; otherwise the call is over.
    fn no_room(&mut self, request: Request, pages: u32, longest: u32, waiter: Waiter, effects: &mut Vec<Effect>) {
        let (least, _) = self.arena.pages_for(&request);
        if least < pages {
            return self.ask_for_span(request, least, waiter, effects);
        }
        if request.separation == Separation::WhileFew {
            return self.allocate(Request { separation: Separation::Never, ..request }, waiter, effects);
        }
        effects.push(Effect::Done(waiter, Answer::NoRoom { pages, longest }));
    }

    fn adopt(&mut self, waiter: Waiter, effects: &mut Vec<Effect>) {
        let Some(Waits::Granted { request, run, is_fresh }) = self.calls.remove(&waiter) else {
            unreachable!("only a call whose span came adopts it");
        };
        let block = self.arena.adopt(run, is_fresh, &request);
        effects.push(Effect::Done(waiter, Answer::Block(block)));
    }

    fn await_reply(&mut self, waiter: Waiter, offset: u64, asked: NodeId, is_block: bool) {
        self.calls.insert(waiter, Waits::Reply { offset, asked, is_block });
    }

    /// Asks the node that is believed to have the block.
    fn ask(&mut self, offset: u64, operation: Operation, waiter: Waiter, effects: &mut Vec<Effect>) {
        let page = self.geometry.page_of(offset);
        let known = self.owners[self.owner_slot(page)].filter(|known| known.0 == page);
        let is_here = self.arena.owns(offset);
        let to = if is_here { self.geometry.me } else { known.map_or(self.geometry.directory, |it| it.1) };
        self.await_reply(waiter, offset, if is_here { self.geometry.directory } else { to }, !is_here);
        let requester = self.geometry.me;
        self.post(to, Message::Ask { offset, operation, requester, waiter, is_routed: false }, effects);
    }

    fn receive(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request { waiter, pages, align_shift, zone } => {
                let Some(directory) = &mut self.directory else {
                    return effects
                        .push(Effect::Violation(from, "a request for pages to a node without the directory"));
                };
                let message = match directory.grant(from, zone, pages, 1 << align_shift) {
                    Ok((run, is_fresh)) => Message::Grant { waiter, run, is_fresh },
                    Err(longest) => Message::NoRoom { waiter, longest },
                };
                self.post(from, message, effects);
            }
            Message::Grant { waiter, run, is_fresh } => self.granted(from, waiter, run, is_fresh, effects),
            Message::NoRoom { waiter, longest } => {
                if let Some(Waits::Span { request, pages }) = self.calls.remove(&waiter) {
                    self.no_room(request, pages, longest, waiter, effects);
                }
            }
            Message::Return { run, requester, waiter } => {
                if !self.directory.as_mut().is_some_and(|directory| directory.take_back(from, run)) {
                    return effects.push(Effect::Violation(from, "pages back that are not theirs"));
                }
                let owner = self.geometry.me;
                self.post(requester, Message::Reply { waiter, outcome: Outcome::Freed, owner }, effects);
            }
            Message::Ask { offset, operation, requester, waiter, is_routed } => {
                if self.arena.owns(offset) {
                    return self.serve(requester, waiter, offset, operation, effects);
                }
                self.pass_on(offset, operation, requester, waiter, is_routed, effects);
            }
            Message::Reply { waiter, outcome, owner } => self.replied(waiter, outcome, owner, effects),
        }
    }

    fn granted(&mut self, from: NodeId, waiter: Waiter, run: Run, is_fresh: bool, effects: &mut Vec<Effect>) {
        if from != self.geometry.directory {
            return effects.push(Effect::Violation(from, "pages of the heap, whose directory it does not keep"));
        }
        match self.calls.get(&waiter) {
            Some(&Waits::Span { request, pages }) if pages == run.pages => {
                self.calls.insert(waiter, Waits::Granted { request, run, is_fresh });
                effects.push(Effect::Done(waiter, Answer::Span(run)));
            }
            // The call has been given up.
            _ => self.give_back(run, self.geometry.me, waiter, effects),
        }
    }

    /// Serves an operation on a block that this node has, or had.
    fn serve(&mut self, to: NodeId, waiter: Waiter, offset: u64, operation: Operation, effects: &mut Vec<Effect>) {
        let me = self.geometry.me;
        let outcome = match operation {
            Operation::Measure => self.arena.measure(offset).map_or(Outcome::NoBlock, Outcome::Bytes),
            Operation::Free => match self.arena.free(offset, to != me) {
                None => Outcome::NoBlock,
                Some(Freed::Kept) => Outcome::Freed,
                // What this node's program wrote there is known: the node that frees the block has received it.
                Some(Freed::Whole(run)) => return self.give_back(run, to, waiter, effects),
                Some(Freed::Emptied(first)) => {
                    self.surplus.push(first);
                    Outcome::Freed
                }
            },
        };
        self.post(to, Message::Reply { waiter, outcome, owner: me }, effects);
    }

    /// Passes on an operation on a block that this node does not have. The directory knows the owner; if the owner does not
    /// have the block, there is none.
    fn pass_on(
        &mut self,
        offset: u64,
        operation: Operation,
        requester: NodeId,
        waiter: Waiter,
        is_routed: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Geometry { me, directory, .. } = self.geometry;
        let next = match &self.directory {
            Some(directory) => directory.owner_of(self.geometry.page_of(offset)).filter(|&owner| owner != me),
            None => Some(directory),
        };
        match next {
            Some(to) if !is_routed => {
                let is_routed = self.directory.is_some();
                // For its own program, the directory knows better which node it waits for.
                if requester == me
                    && let Some(Waits::Reply { asked, .. }) = self.calls.get_mut(&waiter)
                {
                    *asked = to;
                }
                self.post(to, Message::Ask { offset, operation, requester, waiter, is_routed }, effects);
            }
            _ => self.post(requester, Message::Reply { waiter, outcome: Outcome::NoBlock, owner: directory }, effects),
        }
    }

    fn replied(&mut self, waiter: Waiter, outcome: Outcome, owner: NodeId, effects: &mut Vec<Effect>) {
        // No call waits for the answer about a span that came too late, or for an answer to a call that was given up.
        let Some(Waits::Reply { offset, .. }) = self.calls.get(&waiter).copied() else { return };
        self.calls.remove(&waiter);
        let page = self.geometry.page_of(offset);
        let slot = self.owner_slot(page);
        self.owners[slot] = (outcome != Outcome::NoBlock && owner != self.geometry.me).then_some((page, owner));
        let answer = match outcome {
            Outcome::Freed => Answer::Freed,
            Outcome::Bytes(bytes) => Answer::Bytes(bytes),
            Outcome::NoBlock => Answer::NoBlock,
        };
        effects.push(Effect::Done(waiter, answer));
    }

    fn give_back(&mut self, run: Run, requester: NodeId, waiter: Waiter, effects: &mut Vec<Effect>) {
        self.post(self.geometry.directory, Message::Return { run, requester, waiter }, effects);
    }

    fn owner_slot(&self, page: u32) -> usize {
        page as usize % self.owners.len()
    }

    /// Sends to a node, which may be this one.
    fn post(&mut self, to: NodeId, message: Message, effects: &mut Vec<Effect>) {
        if to == self.geometry.me {
            self.receive(to, message, effects);
        } else {
            effects.push(Effect::Send(to, message));
        }
    }
}
