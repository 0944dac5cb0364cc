//! Axis **coherence**: who may read or write a page now.
//!
//! # Contract
//!
//! A protocol is one value per node and per *shard* (a set of chunks with a lock of its own). It
//! is told facts by [`Coherence::step`] and answers with [`Effect`]s.
//!
//! It promises, for every page, whatever the order in which messages arrive:
//!
//! 1. *Single writer or many readers*: at no instant does one node have [`Access::Write`] while
//!    another has more than [`Access::None`].
//! 2. *A load sees the last store.* Bytes travel only from a node that holds them.
//! 3. *Downgrade before read-out before send*, in the order of effects.
//! 4. *Every fault ends, and is overtaken a bounded number of times*: whatever others do, only a
//!    bounded number of other requests for the page are served before one that was sent.
//! 5. *A page that was granted to faulting threads stays until they ran on*, which is said once for all of
//!    them ([`Input::Resumed`]), or a bounded time passed ([`Effect::Hold`]); otherwise busy pages could
//!    travel for ever without anybody using them.
//! 6. *At home and alone, it can be handed over*: where the home's view allows stores, no other
//!    node knows anything that a different protocol could not start from ([`Coherence::release`],
//!    [`Coherence::adopt`]).
//!
//! It must never assume that messages keep their order, nor answer a fact with nothing when a
//! thread waits for it. A message that no correct peer can have sent is reported as
//! [`Effect::Violation`] and changes nothing.
//!
//! # Layers
//!
//! A layer ([`lock`], [`delay`]) is a protocol around a protocol. It may hold messages back that
//! ask this node to give pages up ([`Message::asks`]), shorten the run that they name, and answer
//! messages of its own. To the protocol inside, a message that is held back is one that travels
//! slowly: every protocol allows that, so a layer cannot break promises 1 to 3, only 4, which it
//! keeps by bounding how long it holds back.
//!
//! # Adding a protocol
//!
//! One file in this folder that implements [`Coherence`], one line in [`choices`]' list of bases;
//! then the conformance tests, the explorer, the simulator, the litmus tests and the mutants of
//! `trellis-check` run against it. `docs/guides/add-a-protocol.md` builds one.

/// The inputs that only protocols with release consistency are given.
macro_rules! release_consistency_only {
    () => {
        Input::Stored { .. }
            | Input::Publish { .. }
            | Input::Notice { .. }
            | Input::Changed { .. }
            | Input::Place { .. }
            | Input::Close { .. }
            | Input::Carry { .. }
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
pub use ranges::{PROTOCOLS_MAX, Ranges, TooMany};

use crate::Nanoseconds;
use crate::homes::{Home, HomeOf};
use crate::page::{Access, CHUNK_PAGES, NodeId, PageIndex, PageRange, PageSet};
use alloc::vec::Vec;

/// What every node of a cluster agrees on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// This node.
    pub me: NodeId,
    /// Number of nodes that there can be.
    pub nodes: u16,
    /// Number of nodes that are there from the start and stay to the end, the first ones: only they are homes.
    pub founders: u16,
    /// Pages of the region.
    pub pages: u32,
    /// Which of the shards this value is, and of how many: chunk `c` belongs to shard `c % shards`.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Who manages which page.
    pub home: Home,
    /// This node's kernel marks pages that are stored to, so that stores need no fault to be noticed ([`hlrc`]).
    pub marks: bool,
}

impl Geometry {
    /// The home of `page`: its manager, or who owned it first.
    pub fn home_of(&self, page: PageIndex) -> NodeId {
        self.home.manager_of(page, self.founders)
    }

    /// How many pages a shard keeps a place for.
    pub fn slots(&self) -> usize {
        let chunks = self.pages.div_ceil(CHUNK_PAGES);
        (chunks.div_ceil(self.shards) * CHUNK_PAGES).min(self.pages) as usize
    }

    /// The place of `page` among those of its shard.
    pub fn slot(&self, page: PageIndex) -> usize {
        let (chunk, offset) = (page.0 / CHUNK_PAGES, page.0 % CHUNK_PAGES);
        debug_assert_eq!(chunk % self.shards, self.shard);
        (chunk / self.shards * CHUNK_PAGES + offset) as usize
    }

    /// The page at the place `slot`, where there is one.
    pub fn page_at(&self, slot: usize) -> PageIndex {
        let slot = slot as u32;
        PageIndex((slot / CHUNK_PAGES * self.shards + self.shard) * CHUNK_PAGES + slot % CHUNK_PAGES)
    }
}

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A thread of this node touched `page` and cannot go on. The pages of `wish` around it would
    /// be welcome if they cost nothing.
    Fault {
        /// The page touched.
        page: PageIndex,
        /// Whether it was a store.
        write: bool,
        /// The run to ask for; holds `page`.
        wish: PageRange,
    },
    /// `wish` will be touched soon; no thread waits for it.
    Prefetch {
        /// The run to ask for.
        wish: PageRange,
        /// Whether it will be stored to.
        write: bool,
        /// The program said so; otherwise it is a guess.
        announced: bool,
    },
    /// A message arrived; the bytes of a grant are already in place.
    Message {
        /// Who sent it.
        from: NodeId,
        /// What it says.
        message: Message,
    },
    /// Every thread that was woken for `page` has run on, or their time to do so is over.
    Resumed {
        /// The page that was granted.
        page: PageIndex,
    },
    /// The time of [`Effect::Alarm`] is over.
    Alarm {
        /// As it was set.
        page: PageIndex,
        /// As it was set.
        purpose: Purpose,
    },
    /// The program wants every page of `range` to be here, for stores, and to stay. Answered by
    /// [`Effect::Locked`]. Only where a [`lock`] layer is.
    Lock {
        /// The pages.
        range: PageRange,
        /// A number by which the program names this call.
        call: u32,
        /// The lock ends by itself after so long.
        stay: Option<Nanoseconds>,
    },
    /// The program lets go what [`Input::Lock`] with this number gave it, or waits for it no longer.
    Unlock {
        /// The pages, as in the call.
        range: PageRange,
        /// The number of that call.
        call: u32,
    },
    /// Pages of `range` were stored to since they were opened or downgraded: the kernel's marks say so ([`hlrc`]).
    Stored {
        /// The pages.
        range: PageRange,
    },
    /// Make every store of this node known to the homes of its pages; answered by [`Effect::Published`] ([`hlrc`]).
    Publish {
        /// Most pages that may be sent and not acknowledged.
        unacknowledged_max: u32,
        /// Most pages in one message.
        together_max: u32,
    },
    /// Somebody whose releases this node has seen knows that these pages changed at the time `stamp` of their home
    /// ([`hlrc`]).
    Notice {
        /// The pages.
        range: PageRange,
        /// The time.
        stamp: u64,
    },
    /// Close this node's view of these pages, unless it is their directory: their protocol will be changed. What was
    /// stored goes to their homes, as after [`Input::Publish`], which follows ([`hlrc`]).
    Close {
        /// The pages.
        range: PageRange,
    },
    /// The token of a lock is about to go to `to`: send it the pages that it will most likely want, as they were
    /// published last ([`hlrc`]).
    Carry {
        /// Who will have the lock.
        to: NodeId,
        /// At most so many.
        pages_max: u32,
    },
    /// The answer to [`Effect::Inspect`], if the page differs from its twin.
    Changed {
        /// The page.
        page: PageIndex,
    },
    /// The program wants `node` to be the home of the pages of `range` that nobody has touched; answered by
    /// [`Effect::Wake`] ([`hlrc`]).
    Place {
        /// The pages.
        range: PageRange,
        /// Their home.
        node: NodeId,
    },
    /// `node` has left for good. It owns nothing, waits for nothing, and whatever was sent to it or
    /// by it has arrived. What it knew, `successor` knows.
    Gone {
        /// Who left.
        node: NodeId,
        /// Whom to ask instead; the node that took over the pages.
        successor: NodeId,
    },
}

/// What an alarm is for. A page has at most one alarm of each purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// To ask once more for a locked page ([`lock`]).
    Retry,
    /// The end of a lock that was given for a time ([`lock`]).
    Expiry,
    /// The page has stayed long enough ([`delay`]).
    Threshold,
}

/// An order. Effects are carried out in the order in which they were pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The application view of these pages allows nothing any more; their bytes stay.
    Revoke(PageRange),
    /// The application view of these pages no longer allows stores.
    Downgrade(PageRange),
    /// The application view of these pages, which allowed nothing, allows `access` now.
    Install {
        /// The pages.
        range: PageRange,
        /// [`Access::Read`] or [`Access::Write`].
        access: Access,
        /// Nobody ever wrote these pages: they are zero and have no bytes yet.
        zero: bool,
    },
    /// The application view of these pages, which allowed loads, allows stores now.
    Upgrade(PageRange),
    /// Send `message`; [`Message::bytes`] says which pages' bytes go with it.
    Send {
        /// The receiver; never this node.
        to: NodeId,
        /// What to say.
        message: Message,
    },
    /// Send `message`, whose bytes are those of the twins of its pages ([`hlrc`]).
    SendTwins {
        /// The receiver; never this node.
        to: NodeId,
        /// What to say.
        message: Message,
    },
    /// Threads that wait for one of these pages look again.
    Wake(PageRange),
    /// Somebody else waits for `page`, which was just granted here: say [`Input::Resumed`] as
    /// soon as the thread ran on, or after the runtime's bound.
    Hold(PageIndex),
    /// Say [`Input::Alarm`] once `after` has passed, not earlier. Setting an alarm again replaces it.
    Alarm {
        /// To be named by the input.
        page: PageIndex,
        /// To be named by the input.
        purpose: Purpose,
        /// From now on.
        after: Nanoseconds,
    },
    /// Every page of `range` is here, for stores, and stays until [`Input::Unlock`] or the end of
    /// its time.
    Locked {
        /// The pages.
        range: PageRange,
        /// The number of the call.
        call: u32,
    },
    /// Keep the bytes of these pages as their twins ([`hlrc`]).
    KeepTwin(PageRange),
    /// Put the diffs of these pages, which came with the message that is being answered, into the engine view.
    Apply {
        /// The pages.
        pages: PageSet,
        /// Those of them whose twins get them too.
        twins: Option<PageSet>,
    },
    /// Put the page that came attached to the message that is being answered ([`Message::carried`]) into the engine view:
    /// those of its bytes that differ from the twin, into the page and into the twin. Without a twin, those that differ
    /// from the page.
    Merge {
        /// The page.
        page: PageIndex,
        /// Whether its twin is kept.
        has_twin: bool,
    },
    /// If this page, which was just revoked, differs from its twin, say [`Input::Changed`].
    Inspect(PageIndex),
    /// Whoever acquires what this node releases from now on must know that these pages changed at that time of their
    /// home.
    Notice {
        /// The pages.
        range: PageRange,
        /// The time.
        stamp: u64,
    },
    /// Every store that was made before [`Input::Publish`] is at its home.
    Published,
    /// `from` sent what no correct peer can send.
    Violation {
        /// The peer.
        from: NodeId,
        /// What was wrong with it.
        what: &'static str,
    },
}

/// A protocol's messages. They name pages, never addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the manager, or to who is believed to own the page: give `requester` the page `demand`,
    /// and what you can of `range` around it.
    Request {
        /// The page that a thread waits for.
        demand: PageIndex,
        /// The pages wished for; holds `demand`.
        range: PageRange,
        /// For a store.
        write: bool,
        /// The program announced that it will touch the whole run; otherwise the pages around `demand` are a guess.
        announced: bool,
        /// Who gets them.
        requester: NodeId,
        /// How many nodes passed the request on.
        hops: u16,
    },
    /// To the requester: ask that node instead (`dynamic`).
    Redirect {
        /// The page that was asked for.
        page: PageIndex,
        /// Who is believed to own it.
        owner: NodeId,
    },
    /// Manager to owner: give `demand`, and what you can of `range`, to `requester`.
    Forward {
        /// The page that must be given.
        demand: PageIndex,
        /// The pages that may be given; holds `demand`.
        range: PageRange,
        /// For a store.
        write: bool,
        /// Who gets them.
        requester: NodeId,
        /// The number of the write grant that made the receiver the owner of `demand`; if it has
        /// not arrived yet, this message waits for it.
        after: u32,
        /// The number of the grant to send.
        sequence: u32,
    },
    /// To the requester: `range`, which holds `demand`, is yours now.
    Grant {
        /// The page that was asked for.
        demand: PageIndex,
        /// The pages given; holds `demand`.
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
        /// Who will own it then.
        owner: NodeId,
    },
    /// Reader to who sent the invalidation: I gave it up.
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
    /// To the requester: copies of these pages, or the news that it is their home ([`hlrc`]).
    Copy {
        /// The page that was asked for.
        demand: PageIndex,
        /// The pages; holds `demand`.
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
        /// Who stored.
        writer: NodeId,
        /// The writer's number for this message.
        number: u32,
        /// How many nodes passed it on.
        hops: u16,
        /// Of which of them (by [`PageSet::bit`]) the writer's copy was last brought by [`Message::Carried`].
        carried: u64,
        /// The least of the times of those copies.
        stamp: u64,
    },
    /// To the writer: its diff is in the master copies of these pages ([`hlrc`]).
    Diffed {
        /// The pages; all those of the diff, or some.
        pages: PageSet,
        /// The number of the diff.
        number: u32,
        /// The time of the home since then.
        stamp: u64,
        /// Of which of them (by [`PageSet::bit`]) others may have copies.
        told: u64,
        /// Of which of them the writer's copy is as new as the master.
        current: u64,
        /// Of which of them the writer is the home from now on.
        moved: u64,
    },
    /// From the home to a holder of copies: what `origin` stored to these pages; the diffs follow ([`hlrc`]).
    Update {
        /// The pages.
        pages: PageSet,
        /// Who stored.
        origin: NodeId,
        /// The home's number for this message.
        number: u32,
        /// The time of the home since then.
        stamp: u64,
    },
    /// To the home: the update was taken ([`hlrc`]).
    Updated {
        /// The pages of the update.
        pages: PageSet,
        /// Its number.
        number: u32,
        /// Of which of them (by [`PageSet::bit`]) this node has a copy, which is as new as the update.
        kept: u64,
    },
    /// To who gets a lock next: this page as its home had it at the time `stamp`; its bytes are attached. Nobody asked for
    /// it, nobody waits for it, and it is not answered ([`hlrc`]).
    Carried {
        /// The page.
        page: PageIndex,
        /// The time of its home.
        stamp: u64,
    },
    /// To the directory of pages: whoever they belong to, `home` shall be the home of those that nobody has touched
    /// ([`hlrc`]).
    Place {
        /// The pages.
        range: PageRange,
        /// Their home.
        home: NodeId,
    },
    /// The answer to that.
    Placed {
        /// The pages.
        range: PageRange,
    },
}

/// What a message asks its receiver to give up or to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The page that somebody waits for.
    pub demand: PageIndex,
    /// The pages that may be given with it.
    pub range: PageRange,
    /// Who waits.
    pub requester: NodeId,
}

/// Where the bytes of a grant are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// The receiver holds a current copy.
    Kept,
    /// Nobody ever wrote these pages: they are zero.
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
    pub fn carried(&self) -> Option<PageIndex> {
        match *self {
            Message::Carried { page, .. } => Some(page),
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
            | Message::Carried { page, .. }
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

    /// What the receiver would give up or share if it holds it.
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

    /// The same message, about no other pages than `range`, which holds the page that it demands. Not for a request for
    /// stores of a whole run: each of its pages is asked for by itself, and has to be answered.
    #[must_use]
    pub fn narrowed(mut self, narrow: PageRange) -> Message {
        if let Message::Request { range, demand, .. } | Message::Forward { range, demand, .. } = &mut self {
            debug_assert!(narrow.contains(*demand) && range.covers(narrow));
            *range = narrow;
        }
        self
    }
}

/// What a protocol must offer; see the module's contract.
pub trait Coherence {
    /// Takes one fact, pushes the orders that follow from it.
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>);

    /// What this node's application view of `page` allows.
    fn access(&self, page: PageIndex) -> Access;

    /// Whether a request of this node for `page` is under way.
    fn is_pending(&self, page: PageIndex) -> bool;

    /// Whether this node answers for `page` now: the last writer, or the home of a page that nobody
    /// asked for.
    fn owns(&self, page: PageIndex) -> bool;

    /// Whether another node may still come to this one for `page`, because this one owns it or did
    /// once. A node that leaves has such pages taken over, for stores, by the node that its
    /// [`Input::Gone`] names as successor.
    fn leaves_behind(&self, page: PageIndex) -> bool;

    /// At the home of `page`: whether it is as at the start, untouched by anybody.
    fn is_untouched(&self, page: PageIndex) -> bool;

    /// At the home of `page`: whether another protocol could take the page over now, because it is untouched, or its
    /// bytes are here and nobody else can change them.
    fn may_hand_over(&self, page: PageIndex) -> bool {
        self.is_untouched(page) || self.access(page) == Access::Write && !self.is_pending(page)
    }

    /// Forgets everything about `page`: it is as at the start. Only while the page is untouched, or
    /// while the view of its home allows stores and nothing about the page is under way.
    fn release(&mut self, page: PageIndex);

    /// At the home of `page`, which is as at the start: this node's view allows stores already, and
    /// its bytes are here.
    fn adopt(&mut self, page: PageIndex);
}

/// What a fault is, in the words of Sane, MacGregor and Campbell (1990, §4.2).
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
    /// What a fault on `page` at `node` is, before it is served.
    pub fn of(node: &impl Coherence, page: PageIndex, write: bool) -> Event {
        match (write, node.access(page), node.owns(page)) {
            (false, ..) => Event::Read,
            (true, Access::None, _) => Event::Write,
            (true, _, true) => Event::UpgradeOwner,
            (true, _, false) => Event::UpgradeNotOwner,
        }
    }
}

/// Reports what no correct peer can have sent.
fn violation(from: NodeId, what: &'static str, effects: &mut Vec<Effect>) {
    effects.push(Effect::Violation { from, what });
}
