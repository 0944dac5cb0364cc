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
//! 4. *Every fault ends*: requests for one page are served in the order in which they reach its
//!    manager; nothing is retried after a delay.
//! 5. *A page that was granted to a faulting thread stays until that thread ran on*
//!    ([`Input::Resumed`]) or a bounded time passed ([`Effect::Hold`]); otherwise busy pages could
//!    travel for ever without anybody using them.
//!
//! It must never assume that messages keep their order, nor answer a fact with nothing when a
//! thread waits for it. A message that no correct peer can have sent is reported as
//! [`Effect::Violation`] and changes nothing.
//!
//! # Adding a protocol
//!
//! One file in this folder that implements [`Coherence`], one line in [`Protocol`] and its
//! `match`es, one folder `tests/scripts/<name>`; then the conformance tests, the explorer and the
//! mutants of `trellis-check` run against it.

mod ivy;

pub use ivy::Ivy;

use crate::Nanoseconds;
use crate::homes::Home;
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

/// What every node of a cluster agrees on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// This node.
    pub me: NodeId,
    /// Number of nodes.
    pub nodes: u16,
    /// Pages of the region.
    pub pages: u32,
    /// Which of the shards this value is, and of how many: chunk `c` belongs to shard `c % shards`.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Who manages which page.
    pub home: Home,
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
    /// The thread for which `page` was granted has run on, or its time to do so is over.
    Resumed {
        /// The page that was granted.
        page: PageIndex,
    },
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
    /// Threads that wait for one of these pages look again.
    Wake(PageRange),
    /// Somebody else waits for `page`, which was just granted here: say [`Input::Resumed`] as
    /// soon as the thread ran on, or after the runtime's bound.
    Hold(PageIndex),
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
    /// Requester to manager: give me `demand`, and what you can of `range` around it.
    Request {
        /// The page that a thread waits for.
        demand: PageIndex,
        /// The pages wished for; holds `demand`.
        range: PageRange,
        /// For a store.
        write: bool,
        /// The program announced that it will touch the whole run; otherwise the pages around `demand` are a guess.
        announced: bool,
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
    /// Manager to a reader: give up your copy.
    Invalidate {
        /// The page.
        page: PageIndex,
    },
    /// Reader to manager: I gave it up.
    Invalidated {
        /// The page.
        page: PageIndex,
    },
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
            Message::Grant { range, content: Content::Bytes, .. } => Some(range),
            _ => None,
        }
    }

    /// A page of the message; all its pages are of one chunk.
    pub fn page(&self) -> PageIndex {
        match *self {
            Message::Request { demand, .. }
            | Message::Forward { demand, .. }
            | Message::Grant { demand, .. }
            | Message::Confirm { demand, .. } => demand,
            Message::Invalidate { page } | Message::Invalidated { page } => page,
        }
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
}

/// The choices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// Fixed manager, single writer or many readers (Li and Hudak 1989; libivy).
    Ivy,
}

impl Protocol {
    /// Every choice.
    pub const ALL: [Protocol; 1] = [Protocol::Ivy];

    /// The word used in configuration, command line and reports.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Ivy => "ivy",
        }
    }

    /// One shard of this protocol for one node.
    pub fn start(self, geometry: Geometry) -> Running {
        match self {
            Protocol::Ivy => Running::Ivy(Ivy::new(geometry)),
        }
    }
}

/// A protocol at work: the choice is made once, at start-up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Running {
    /// See [`Protocol::Ivy`].
    Ivy(Ivy),
}

impl Coherence for Running {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match self {
            Running::Ivy(protocol) => protocol.step(now, input, effects),
        }
    }

    fn access(&self, page: PageIndex) -> Access {
        match self {
            Running::Ivy(protocol) => protocol.access(page),
        }
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        match self {
            Running::Ivy(protocol) => protocol.is_pending(page),
        }
    }
}
