//! Axis **coherence**: who may read or write a page now.
//!
//! # Contract
//!
//! A protocol is one value per node and per *shard* (a set of chunks with a lock of its own). [`Coherence::step`] passes it
//! facts, and it answers with [`Effect`]s.
//!
//! It promises, for every page and in whatever order messages arrive:
//!
//! 1. *Single writer or many readers*: at no instant does one node have [`Access::Write`] while another has more than
//!    [`Access::None`].
//! 2. *A load sees the last store.* Bytes travel only from a node that holds them.
//! 3. *Downgrade before read-out before send*, in the order of effects.
//! 4. *Every fault ends, and is overtaken a bounded number of times*: whatever other nodes do, only a bounded number of
//!    other requests for the page are served before one that was sent.
//! 5. *A page that was granted to faulting threads stays until they have run on*, which is notified once for all of them
//!    ([`Input::Resumed`]), or until a bounded time has passed ([`Effect::Hold`]). Otherwise busy pages could travel for
//!    ever without being used.
//! 6. *A page that is only at its home can be handed over*: while the home's view allows stores, no other node has any
//!    knowledge that a different protocol could not start from ([`Coherence::release`], [`Coherence::adopt`]).
//!
//! It must never assume that messages keep their order, and must never leave a fact without effects while a thread waits
//! for one. A message that no correct peer can have sent is reported as [`Effect::Violation`] and changes nothing.
//!
//! # Layers
//!
//! A layer ([`lock`], [`delay`]) is a protocol around a protocol. It may hold back messages that ask this node to give
//! pages up ([`Message::asks`]), shorten the range that they name, and answer messages of its own. To the inner protocol, a
//! message that is held back looks like one that travels slowly, which every protocol tolerates. A layer therefore cannot
//! break promises 1 to 3. It can break only promise 4, and keeps it by bounding how long it holds messages back.
//!
//! # Adding a protocol
//!
//! One file in this folder that implements [`Coherence`], and one line in [`choices`]' list of bases. The conformance
//! tests, the explorer, the simulator, the litmus tests and the mutants of `trellis-check` then run against it.
//! `docs/guides/add-a-protocol.md` builds one.

/// The inputs that are given only to protocols with release consistency.
macro_rules! release_consistency_only {
    () => {
        Input::Stored { .. }
            | Input::Publish { .. }
            | Input::Notice { .. }
            | Input::Changed { .. }
            | Input::Place { .. }
            | Input::Close { .. }
            | Input::Piggyback { .. }
    };
}

pub mod choices;
pub mod delay;
mod dynamic;
pub mod hlrc;
mod ivy;
pub mod lock;
mod migrate;
mod ranges;
mod words;

pub use choices::{Protocol, Running};
pub use dynamic::{Dynamic, HOPS_PER_NODE_MAX, Variation};
pub use hlrc::{Hlrc, Propagation};
pub use ivy::Ivy;
pub use migrate::Migrate;
pub use ranges::{PROTOCOLS_MAX, Ranges};

use crate::Nanoseconds;
use crate::homes::{Home, HomeOf};
use crate::page::{Access, CHUNK_PAGES, NodeId, PageIndex, PageRange, PageSet};
use alloc::vec::Vec;

/// What every node of a cluster agrees on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// This node.
    pub me: NodeId,
    /// The largest number of nodes in the cluster.
    pub nodes: u16,
    /// The number of nodes that are there from the start to the end. They have the lowest numbers, and only they are homes.
    pub founders: u16,
    /// Pages of the region.
    pub pages: u32,
    /// Which of the shards this value is, and of how many: chunk `c` belongs to shard `c % shards`.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// The managers of pages.
    pub home: Home,
    /// The kernel of this node marks pages that are stored to, so that stores are noticed without faults ([`hlrc`]).
    pub marks: bool,
}

impl Geometry {
    /// The home of `page`: its manager, or its first owner.
    pub fn home_of(&self, page: PageIndex) -> NodeId {
        self.home.manager_of(page, self.founders)
    }

    /// The number of pages that a shard keeps a slot for.
    pub fn slots(&self) -> usize {
        let chunks = self.pages.div_ceil(CHUNK_PAGES);
        (chunks.div_ceil(self.shards) * CHUNK_PAGES).min(self.pages) as usize
    }

    /// The slot of `page` among those of its shard.
    pub fn slot(&self, page: PageIndex) -> usize {
        let (chunk, offset) = (page.0 / CHUNK_PAGES, page.0 % CHUNK_PAGES);
        debug_assert_eq!(chunk % self.shards, self.shard);
        (chunk / self.shards * CHUNK_PAGES + offset) as usize
    }

    /// The page of the slot `slot`, if there is one.
    pub fn page_at(&self, slot: usize) -> PageIndex {
        let slot = slot as u32;
        PageIndex((slot / CHUNK_PAGES * self.shards + self.shard) * CHUNK_PAGES + slot % CHUNK_PAGES)
    }
}

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A thread of this node touched `page` and cannot go on. The other pages of `wanted` are welcome if they cost nothing.
    Fault {
        /// The page touched.
        page: PageIndex,
        /// Whether it was a store.
        write: bool,
        /// The range to request; contains `page`.
        wanted: PageRange,
    },
    /// The pages in `wanted` will be touched soon; no thread waits for them.
    Prefetch {
        /// The range to request.
        wanted: PageRange,
        /// Whether it will be stored to.
        write: bool,
        /// The program announced it; otherwise it is a guess.
        announced: bool,
    },
    /// A message arrived; the bytes of a grant are already in place.
    Message {
        /// The sender.
        from: NodeId,
        /// Its content.
        message: Message,
    },
    /// Every thread that was woken for `page` has run on, or the time to do so is over.
    Resumed {
        /// The page that was granted.
        page: PageIndex,
    },
    /// The time of an [`Effect::Alarm`] is over.
    Alarm {
        /// As it was set.
        page: PageIndex,
        /// As it was set.
        purpose: Purpose,
    },
    /// The program wants every page of `range` to be here, for stores, and to stay. Answered by [`Effect::Locked`]. Given
    /// only to a protocol with a [`lock`] layer.
    Lock {
        /// The pages.
        range: PageRange,
        /// A number by which the program names this call.
        call: u32,
        /// How long the lock lasts, if it ends by itself.
        stay: Option<Nanoseconds>,
    },
    /// The program releases what the [`Input::Lock`] with this number gave it, or no longer waits for it.
    Unlock {
        /// The pages, as in the call.
        range: PageRange,
        /// The number of that call.
        call: u32,
    },
    /// Pages of `range` were stored to since they were opened or downgraded, as the kernel's marks show ([`hlrc`]).
    Stored {
        /// The pages.
        range: PageRange,
    },
    /// Make every store of this node known to the homes of its pages. Answered by [`Effect::Published`] ([`hlrc`]).
    Publish {
        /// The largest number of pages that may be sent and not yet acknowledged.
        unacknowledged_max: u32,
        /// The largest number of pages in one message.
        together_max: u32,
    },
    /// A node whose releases this node has seen knows that these pages changed at the time `stamp` of their home
    /// ([`hlrc`]).
    Notice {
        /// The pages.
        range: PageRange,
        /// The time.
        stamp: u64,
    },
    /// Close this node's view of these pages, unless it is their directory: their protocol will be changed. Stores to them
    /// go to their homes, as after [`Input::Publish`], which follows ([`hlrc`]).
    Close {
        /// The pages.
        range: PageRange,
    },
    /// The token of a lock is about to go to `to`: send it the pages that it will most likely need, as they were published
    /// last ([`hlrc`]).
    Piggyback {
        /// The next holder of the lock.
        to: NodeId,
        /// The largest number of pages to send.
        pages_max: u32,
    },
    /// The answer to [`Effect::Inspect`] if the page differs from its twin.
    Changed {
        /// The page.
        page: PageIndex,
    },
    /// The program wants `node` to be the home of those pages of `range` that no node has touched. Answered by
    /// [`Effect::Wake`] ([`hlrc`]).
    Place {
        /// The pages.
        range: PageRange,
        /// Their home.
        node: NodeId,
    },
    /// `node` has left for good. It owns nothing and waits for nothing, and every message to or from it has arrived.
    /// `successor` has taken over what it knew.
    Gone {
        /// The node that left.
        node: NodeId,
        /// The node to ask instead, which took over the pages.
        successor: NodeId,
    },
}

/// The purpose of an alarm. A page has at most one alarm of each purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Ask once more for a locked page ([`lock`]).
    Retry,
    /// End a lock that was given for a time ([`lock`]).
    Expiry,
    /// Let a page go that has stayed long enough ([`delay`]).
    Threshold,
}

/// An order to the caller. Effects are carried out in the order in which they were pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The application view of these pages allows no access any more; their bytes stay.
    Revoke(PageRange),
    /// The application view of these pages no longer allows stores.
    Downgrade(PageRange),
    /// The application view of these pages, which allowed no access, now allows `access`.
    Install {
        /// The pages.
        range: PageRange,
        /// [`Access::Read`] or [`Access::Write`].
        access: Access,
        /// No node has ever written these pages: they are zero and have no bytes yet.
        zero: bool,
    },
    /// The application view of these pages, which allowed loads, now allows stores too.
    Upgrade(PageRange),
    /// Send `message`; [`Message::bytes`] says which pages' bytes go with it.
    Send {
        /// The receiver; never this node.
        to: NodeId,
        /// Its content.
        message: Message,
    },
    /// Send `message`, whose bytes are those of the twins of its pages ([`hlrc`]).
    SendTwins {
        /// The receiver; never this node.
        to: NodeId,
        /// Its content.
        message: Message,
    },
    /// Threads that wait for one of these pages check again.
    Wake(PageRange),
    /// Another node waits for `page`, which was just granted here: give [`Input::Resumed`] as soon as the thread has run
    /// on, or after the runtime's bound.
    Hold(PageIndex),
    /// Give [`Input::Alarm`] once `after` has passed, no earlier. Setting an alarm again replaces it.
    Alarm {
        /// The page that the input will name.
        page: PageIndex,
        /// The purpose that the input will name.
        purpose: Purpose,
        /// From now on.
        after: Nanoseconds,
    },
    /// Every page of `range` is here, for stores, and stays until [`Input::Unlock`] or the end of its time.
    Locked {
        /// The pages.
        range: PageRange,
        /// The number of the call.
        call: u32,
    },
    /// Keep the bytes of these pages as their twins ([`hlrc`]).
    KeepTwin(PageRange),
    /// Put the diffs of these pages, which came with the message that is being handled, into the privileged view.
    Apply {
        /// The pages.
        pages: PageSet,
        /// The pages whose twins receive the diffs too.
        twins: Option<PageSet>,
    },
    /// Merge into the privileged view the page that is attached to the message that is being handled
    /// ([`Message::piggybacked`]). Copy those of its bytes that differ from the twin into the page and into the twin.
    /// Without a twin, copy those that differ from the page.
    Merge {
        /// The page.
        page: PageIndex,
        /// Whether its twin is kept.
        has_twin: bool,
    },
    /// If this page, which was just revoked, differs from its twin, give [`Input::Changed`].
    Inspect(PageIndex),
    /// A node that acquires what this node releases from now on must know that these pages changed at that time of their
    /// home.
    Notice {
        /// The pages.
        range: PageRange,
        /// The time.
        stamp: u64,
    },
    /// Every store that was made before [`Input::Publish`] has reached its home.
    Published,
    /// The protocol treated these pages in a way that it chose for them; only for people who want to know.
    Chose {
        /// The pages.
        range: PageRange,
        /// The choice.
        choice: Choice,
    },
    /// `from` sent a message that no correct peer can have sent.
    Violation {
        /// The peer.
        from: NodeId,
        /// What was wrong with it.
        what: &'static str,
    },
}

/// A way to treat pages that a protocol chooses by how they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// A load asks for the right to store: the node loaded from the page before, and then stored to it.
    MovesWithLoad,
    /// A request of another node waits until the page has been here for a while ([`delay`]).
    Stays,
}

/// The messages of a protocol. They name pages, never addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the manager, or to the believed owner of the page: give `requester` the page `demand`, and as much as possible of
    /// `range` around it.
    Request {
        /// The page that a thread waits for.
        demand: PageIndex,
        /// The pages that are wanted; contains `demand`.
        range: PageRange,
        /// For a store.
        write: bool,
        /// Each page of the range is wanted, and has to be answered; otherwise those around `demand` are a guess.
        announced: bool,
        /// The node that receives them.
        requester: NodeId,
        /// How many nodes have forwarded the request.
        hops: u16,
    },
    /// To the requester: ask that node instead (`dynamic`).
    Redirect {
        /// The page that was asked for.
        page: PageIndex,
        /// The node that is believed to own it.
        owner: NodeId,
    },
    /// Manager to owner: give `demand`, and as much as possible of `range`, to `requester`.
    Forward {
        /// The page that must be given.
        demand: PageIndex,
        /// The pages that may be given; contains `demand`.
        range: PageRange,
        /// For a store.
        write: bool,
        /// The node that receives them.
        requester: NodeId,
        /// The number of the write grant that made the receiver the owner of `demand`; if it has not arrived yet, this
        /// message waits for it.
        after: u32,
        /// The number of the grant to send.
        sequence: u32,
    },
    /// To the requester: you now have `range`, which contains `demand`.
    Grant {
        /// The page that was asked for.
        demand: PageIndex,
        /// The pages given; contains `demand`.
        range: PageRange,
        /// For stores too.
        write: bool,
        /// Where their bytes are.
        content: Content,
        /// The number of this grant among its manager's write grants.
        sequence: u32,
    },
    /// Requester to manager: the owner gave me `range`.
    Confirm {
        /// The page that was asked for.
        demand: PageIndex,
        /// The pages that arrived.
        range: PageRange,
    },
    /// Manager or owner to a reader: give up your copy.
    Invalidate {
        /// The page.
        page: PageIndex,
        /// The next owner of the page.
        owner: NodeId,
    },
    /// Reader to the sender of the invalidation: I gave the copy up.
    Invalidated {
        /// The page.
        page: PageIndex,
    },
    /// To a requester: the page is locked here; you get it when it no longer is ([`lock`]).
    Retry {
        /// The page.
        page: PageIndex,
    },
    /// The answer to a retry, after the interval: is it still locked? ([`lock`])
    Again {
        /// The page.
        page: PageIndex,
    },
    /// To the requester: copies of these pages, or the news that the requester is their home ([`hlrc`]).
    Copy {
        /// The page that was asked for.
        demand: PageIndex,
        /// The pages; contains `demand`.
        range: PageRange,
        /// Where their bytes are.
        content: Content,
        /// The time of their home.
        stamp: u64,
        /// The receiver is their home.
        home: bool,
    },
    /// To the home: what `writer` stored to these pages; the diffs follow ([`hlrc`]).
    Diff {
        /// The pages.
        pages: PageSet,
        /// The node that stored.
        writer: NodeId,
        /// The writer's number for this message.
        number: u32,
        /// How many nodes have forwarded it.
        hops: u16,
        /// The pages (by [`PageSet::bit`]) whose copy at the writer was last brought by [`Message::Piggybacked`].
        piggybacked: u64,
        /// The earliest time of those copies.
        stamp: u64,
    },
    /// To the writer: the home has put its diff into the master copies of these pages ([`hlrc`]).
    Diffed {
        /// The pages; all those of the diff, or some.
        pages: PageSet,
        /// The number of the diff.
        number: u32,
        /// The time of the home since then.
        stamp: u64,
        /// The pages (by [`PageSet::bit`]) that other nodes may have copies of.
        copied: u64,
        /// The pages of which the writer's copy is as new as the master copy.
        current: u64,
        /// The pages whose home is the writer from now on.
        moved: u64,
    },
    /// From the home to a holder of copies: what `origin` stored to these pages; the diffs follow ([`hlrc`]).
    Update {
        /// The pages.
        pages: PageSet,
        /// The node that stored.
        origin: NodeId,
        /// The home's number for this message.
        number: u32,
        /// The time of the home since then.
        stamp: u64,
    },
    /// To the home: the update was applied ([`hlrc`]).
    Updated {
        /// The pages of the update.
        pages: PageSet,
        /// Its number.
        number: u32,
        /// The pages (by [`PageSet::bit`]) of which this node has a copy, which is as new as the update.
        kept: u64,
    },
    /// To the next holder of a lock: this page as its home had it at the time `stamp`, with its bytes attached. It was not
    /// requested, no thread waits for it, and it is not answered ([`hlrc`]).
    Piggybacked {
        /// The page.
        page: PageIndex,
        /// The time of its home.
        stamp: u64,
    },
    /// To the directory of pages: `home` is to be the home of those pages that no node has touched ([`hlrc`]).
    Place {
        /// The pages.
        range: PageRange,
        /// Their home.
        home: NodeId,
    },
    /// The answer to [`Message::Place`].
    Placed {
        /// The pages.
        range: PageRange,
    },
}

/// What a message asks its receiver to give up or to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The page that the requester waits for.
    pub demand: PageIndex,
    /// The pages that may be given with it.
    pub range: PageRange,
    /// The node that waits.
    pub requester: NodeId,
}

/// Where the bytes of a grant are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// The receiver holds a current copy.
    Kept,
    /// No node has ever written these pages: they are zero.
    Zero,
    /// They follow the message.
    Bytes,
}

impl Message {
    /// The pages whose bytes travel with this message.
    pub fn bytes(&self) -> Option<PageRange> {
        match *self {
            Message::Grant { range, content: Content::Bytes, .. }
            | Message::Copy { range, content: Content::Bytes, .. } => Some(range),
            _ => None,
        }
    }

    /// The page whose bytes are attached to this message, to be merged into a copy that is open.
    pub fn piggybacked(&self) -> Option<PageIndex> {
        match *self {
            Message::Piggybacked { page, .. } => Some(page),
            _ => None,
        }
    }

    /// A page of the message; all its pages are of one chunk.
    pub fn page(&self) -> PageIndex {
        match *self {
            Message::Request { demand, .. }
            | Message::Forward { demand, .. }
            | Message::Grant { demand, .. }
            | Message::Copy { demand, .. }
            | Message::Confirm { demand, .. } => demand,
            Message::Invalidate { page, .. }
            | Message::Invalidated { page }
            | Message::Redirect { page, .. }
            | Message::Piggybacked { page, .. }
            | Message::Retry { page }
            | Message::Again { page } => page,
            Message::Diff { pages, .. }
            | Message::Diffed { pages, .. }
            | Message::Update { pages, .. }
            | Message::Updated { pages, .. } => pages.first(),
            Message::Place { range, .. } | Message::Placed { range } => range.first(),
        }
    }

    /// The pages whose diffs travel with this message.
    pub fn diffs(&self) -> Option<PageSet> {
        match *self {
            Message::Diff { pages, .. } | Message::Update { pages, .. } => Some(pages),
            _ => None,
        }
    }

    /// What the receiver has to give up or share, if it holds it.
    pub fn asks(&self) -> Option<Asked> {
        match *self {
            Message::Request { demand, range, requester, .. } | Message::Forward { demand, range, requester, .. } => {
                Some(Asked { demand, range, requester })
            }
            Message::Invalidate { page, owner } => {
                Some(Asked { demand: page, range: PageRange::one(page), requester: owner })
            }
            _ => None,
        }
    }

    /// The same message, reduced to the pages of `range`, which must contain the demanded page. Not for an announced request
    /// for stores: each of its pages is requested by itself and has to be answered.
    #[must_use]
    pub fn narrowed(mut self, narrow: PageRange) -> Message {
        if let Message::Request { range, demand, .. } | Message::Forward { range, demand, .. } = &mut self {
            debug_assert!(narrow.contains(*demand) && range.covers(narrow));
            *range = narrow;
        }
        self
    }
}

/// What a protocol must provide; see the contract of this module.
pub trait Coherence {
    /// Takes one fact and pushes the effects that follow from it.
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>);

    /// What this node's application view of `page` allows.
    fn access(&self, page: PageIndex) -> Access;

    /// Whether a request of this node for `page` is under way.
    fn is_pending(&self, page: PageIndex) -> bool;

    /// Whether this node answers for `page` now. It does if it is the last writer, or the home of a page that no node has
    /// requested.
    fn owns(&self, page: PageIndex) -> bool;

    /// Whether another node may still send requests for `page` to this one, because this one owns it or once did. When a
    /// node leaves, its successor ([`Input::Gone`]) takes over such pages, for stores.
    fn leaves_behind(&self, page: PageIndex) -> bool;

    /// At the home of `page`: whether it is as at the start, untouched by every node.
    fn is_untouched(&self, page: PageIndex) -> bool;

    /// At the home of `page`: whether another protocol could take the page over now. It could if the page is untouched, or
    /// if its bytes are here and no other node can change them.
    fn may_hand_over(&self, page: PageIndex) -> bool {
        self.is_untouched(page) || self.access(page) == Access::Write && !self.is_pending(page)
    }

    /// Forgets everything about `page`, so that it is as at the start. Call it only while the page is untouched, or while
    /// the view of its home allows stores and nothing about the page is under way.
    fn release(&mut self, page: PageIndex);

    /// At the home of `page`, which is as at the start: this node's view already allows stores, and the bytes are here.
    fn adopt(&mut self, page: PageIndex);

    /// Has every page of `range` handled by `protocol` from now on. Call it at the same barrier on every node, and only
    /// while [`Coherence::may_hand_over`] is true at the home of each of these pages.
    ///
    /// # Errors
    ///
    /// This value is a single protocol; or it already has [`PROTOCOLS_MAX`] others. Nothing has changed.
    fn change(&mut self, _range: PageRange, _protocol: Protocol) -> Result<(), CannotChange> {
        Err(CannotChange)
    }

    /// The first pages of `wanted` that one [`Input::Lock`] can name: they have one protocol.
    ///
    /// # Errors
    ///
    /// The first pages of `wanted` whose protocol has no locks.
    fn lockable(&self, wanted: PageRange) -> Result<PageRange, PageRange> {
        Err(wanted)
    }

    /// Whether stores to `page` are noticed by marks now, so that the page must be examined before a publication. The
    /// page is here, and the protocol does not know of a store to it. This is only so under release consistency
    /// ([`hlrc`]).
    fn is_watched(&self, _page: PageIndex) -> bool {
        false
    }

    /// Whether the bytes of `page` are kept as they were published last ([`hlrc`]).
    fn has_twin(&self, _page: PageIndex) -> bool {
        false
    }

    /// The number of protocols that have something to publish. Those answer [`Input::Publish`]; the others need not be
    /// asked.
    fn publishers(&self) -> u32 {
        0
    }

    /// The number of protocols that owe an [`Effect::Published`]: a publication is under way.
    fn publishing(&self) -> u32 {
        0
    }

    /// Whether [`Input::Piggyback`] may send anything.
    fn has_migratory(&self) -> bool {
        false
    }
}

/// The protocol of pages cannot be changed ([`Coherence::change`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotChange;

/// The kinds of fault, as Sane, MacGregor and Campbell name them (1990, §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A load from a page that is not here.
    Read,
    /// A store to a page that is not here.
    Write,
    /// A store to a read copy that this node owns.
    UpgradeOwner,
    /// A store to a read copy that another node owns.
    UpgradeNotOwner,
}

impl Event {
    /// The kind of a fault on `page` at `node`, before it is served.
    pub fn of(node: &impl Coherence, page: PageIndex, write: bool) -> Event {
        match (write, node.access(page), node.owns(page)) {
            (false, ..) => Event::Read,
            (true, Access::None, _) => Event::Write,
            (true, _, true) => Event::UpgradeOwner,
            (true, _, false) => Event::UpgradeNotOwner,
        }
    }
}

/// Reports a message that no correct peer can have sent.
fn violation(from: NodeId, what: &'static str, effects: &mut Vec<Effect>) {
    effects.push(Effect::Violation { from, what });
}
