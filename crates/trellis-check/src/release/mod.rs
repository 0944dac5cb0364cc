//! Small clusters of whole nodes, whose programs load, store, lock, meet at barriers, pass flags, change the protocol of
//! pages, wait for conditions, and call any other object.
//!
//! All parts of a node run here as in a program: the protocol's `step`, its knowledge of intervals, and locks, barriers,
//! words and objects with their real messages. Between them runs the work of a runtime: it publishes before a release,
//! attaches knowledge to messages, and applies notices after an acquire ([`node`]). A wait may take too long, and a node
//! may object to a change ([`Troubles`]). Three checkers use this: the explorer tries every order of events
//! ([`explore`]), litmus tests compare outcomes with an oracle ([`litmus`]), and the swarm generates clusters, programs and
//! networks ([`swarm`]). [`crate::synchronisation`] has programs without pages.
//!
//! What must hold ([`ghost`]): a load sees no store that, by what its thread acquired, was overwritten before. In a
//! program without races it therefore sees the last store, however many nodes passed the release on. In any program it
//! sees a value that was stored to that very word, or the initial zero. A publication ends, with every store at its
//! home. When nothing can happen any more, no thread waits. All nodes change, or none does. What objects promise is
//! in the ledger of [`crate::synchronisation`].
//!
//! It must never help the protocol: it delivers nothing that was not sent, and retries nothing.

mod agreement;
mod changing;
pub mod cluster;
mod conditions;
pub mod effects;
pub mod explore;
pub mod faults;
pub mod ghost;

pub mod litmus;
pub mod node;
mod objects;
mod recovery;
pub mod scripts;

pub mod shapes;
pub mod swarm;

pub use crate::model::twinned::{PAGE_WORDS, Page, Value};
use crate::synchronisation::Objects;
pub use faults::Fault;

use std::fmt::Write;
use std::ops::Range;
use trellis_cluster_protocol::coherence::{Geometry, Protocol};
use trellis_cluster_protocol::homes::Home;
use trellis_cluster_protocol::node::{PublicationLimits, STORED_IN_A_ROW};
use trellis_cluster_protocol::sync::{Demand, OnceDemand, ReadWriteDemand, SemaphoreDemand};
use trellis_cluster_protocol::{CHUNK_PAGES, NodeId, PageIndex};

/// An operation of a thread. A word is an index into the pages; locks, barriers and flags are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Loads a word into a register.
    Load {
        /// The word.
        word: u16,
        /// Receives the value.
        register: u8,
    },
    /// Stores to a word.
    Store {
        /// The word.
        word: u16,
        /// The value.
        source: Source,
    },
    /// Adds to a word: a load and a store.
    Add {
        /// The word.
        word: u16,
        /// What is added.
        by: Value,
    },
    /// Takes one from a word, or waits for a condition until there is one.
    Take {
        /// The word.
        word: u16,
        /// The lock that the thread holds.
        lock: u8,
        /// The condition.
        condition: u8,
    },
    /// Takes a lock.
    Lock(u8),
    /// Takes a lock if it can have it at once.
    TryLock(u8),
    /// Releases a lock.
    Unlock(u8),
    /// Meets all threads; there is one on each node in this case.
    Barrier,
    /// Stores to a flag: a release.
    Set {
        /// The flag.
        flag: u8,
        /// The value.
        source: Source,
    },
    /// Loads a flag: an acquire.
    Get {
        /// The flag.
        flag: u8,
        /// Receives the value.
        register: u8,
    },
    /// Says, or guesses, which pages will be accessed.
    Announce {
        /// The first page.
        page: u8,
        /// Whether the accesses are stores.
        write: bool,
        /// The program says so; otherwise it is a guess of the node.
        announced: bool,
    },
    /// Changes the protocol of pages, together with one thread of every other node. The number is that of the change.
    Change(u8),
    /// Does one of so many branches of the setup, from `first` on.
    Choose {
        /// The first branch.
        first: u8,
        /// The number of branches.
        count: u8,
    },
    /// Meets all threads, and brings a number of this round; receives the sum.
    Sum(u8),
    /// Adds one to a word that is an object.
    Count(u8),
    /// Demands something of an object.
    Demand {
        /// The object.
        object: u8,
        /// What is demanded.
        demand: Demand,
    },
    /// Waits for a condition, without a lock.
    Await(u8),
    /// Notifies one or all that wait for a condition, as long as a thread waits.
    Notify(u8),
}

impl Operation {
    /// Whether the next operation gives back what this one takes. It is left out if this one takes nothing.
    fn is_given_back(self) -> bool {
        match self {
            Operation::Lock(_) | Operation::TryLock(_) => true,
            Operation::Demand { demand, .. } => match demand {
                Demand::ReadWriteLock(demand) => {
                    !matches!(demand, ReadWriteDemand::EndRead | ReadWriteDemand::EndWrite)
                }
                Demand::Semaphore(demand) => matches!(demand, SemaphoreDemand::Acquire | SemaphoreDemand::TryAcquire),
                Demand::Once(demand) => demand == OnceDemand::Begin,
                _ => false,
            },
            _ => false,
        }
    }

    /// The word that it accesses, and whether it stores.
    fn access(self) -> Option<(u16, bool)> {
        match self {
            Operation::Load { word, .. } => Some((word, false)),
            Operation::Store { word, .. } | Operation::Add { word, .. } | Operation::Take { word, .. } => {
                Some((word, true))
            }
            _ => None,
        }
    }
}

/// The source of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A constant of the program.
    Constant(Value),
    /// A register.
    Register(u8),
}

/// A thread: its node and its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its node.
    pub node: u16,
    /// Its operations.
    pub operations: Vec<Operation>,
    /// The initial values of its registers.
    pub registers: Vec<Value>,
}

impl Script {
    /// Whether the thread changes the protocol of pages.
    pub(crate) fn changes(&self) -> bool {
        self.operations.iter().any(|operation| matches!(operation, Operation::Change(_)))
    }
}

/// What goes wrong in a cluster, at most so often in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// A thread gives up waiting for a publication, or for a change of protocols.
    pub give_ups: u8,
    /// A node objects to a change.
    pub objections: u8,
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It goes on.
    Goes,
    /// It waits no longer.
    GivesUp,
    /// Its node objects to the change that it makes.
    Objects,
    /// It does this branch of its choice.
    Chooses(u8),
}

impl Turn {
    /// All but choices.
    pub const PLAIN: [Turn; 3] = [Turn::Goes, Turn::GivesUp, Turn::Objects];

    /// Whether it happens at some time, unless another one prevents it.
    pub fn must_happen(self) -> bool {
        matches!(self, Turn::Goes | Turn::Chooses(_))
    }

    /// What a thread does, in a trace.
    pub fn words(self) -> &'static str {
        match self {
            Turn::Goes => "goes on",
            Turn::GivesUp => "waits no longer",
            Turn::Objects => "says that its node objects",
            Turn::Chooses(_) => "begins",
        }
    }
}

impl Troubles {
    /// Whether there may be such a turn.
    pub fn allow(self, turn: Turn) -> bool {
        match turn {
            Turn::Goes | Turn::Chooses(_) => true,
            Turn::GivesUp => self.give_ups > 0,
            Turn::Objects => self.objections > 0,
        }
    }

    /// What is left after a turn.
    pub fn after(self, turn: Turn) -> Troubles {
        let Troubles { give_ups, objections } = self;
        match turn {
            Turn::Goes | Turn::Chooses(_) => self,
            Turn::GivesUp => Troubles { give_ups: give_ups - 1, objections },
            Turn::Objects => Troubles { give_ups, objections: objections - 1 },
        }
    }
}

/// A cluster and the programs of its threads.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The protocol of all pages at the start: one with release consistency, unless some change leads to one.
    pub protocol: Protocol,
    /// Number of nodes.
    pub nodes: u16,
    /// The pages that are used, by their number in the region. Neighbours in the list that are also neighbours in the
    /// region may be requested together.
    pub pages: Vec<u32>,
    /// The placement of their homes.
    pub home: Home,
    /// The nodes that notice stores by marks, one bit each; the others use faults.
    pub marks: u16,
    /// Where stores are marked, a page stays open after this number of consecutive publications with stores to it; at
    /// most 3.
    pub stored_in_a_row: u8,
    /// Messages between two nodes arrive in the order in which they were sent.
    pub is_ordered: bool,
    /// Requests also ask for neighbouring pages.
    pub is_wide: bool,
    /// Time passes between an access and the fault that it causes.
    pub late_faults: bool,
    /// Bytes of pages are read when their message arrives, not when it is sent. A runtime may do either.
    pub late_bytes: bool,
    /// The sizes of a publication.
    pub limits: PublicationLimits,
    /// What may go wrong.
    pub troubles: Troubles,
    /// A thread may give up any wait for a change of protocols. If nobody knows then whether all nodes change, the cluster
    /// ends.
    pub may_disagree: bool,
    /// The changes of protocols, each with its pages.
    pub changes: Vec<(Range<u32>, Protocol)>,
    /// The objects that are called, where nothing is published for a call.
    pub objects: Option<Objects>,
    /// The rule that is broken on purpose.
    pub fault: Fault,
    /// The threads.
    pub scripts: Vec<Script>,
}

impl Setup {
    /// Number of words.
    pub fn words(&self) -> usize {
        self.pages.len() * PAGE_WORDS
    }

    /// Pages of the region.
    pub fn region_pages(&self) -> u32 {
        self.pages.iter().max().map_or(1, |last| last + 1)
    }

    /// The number of shards of a node: each chunk with pages of the region has its own.
    pub fn shards(&self) -> u32 {
        self.region_pages().div_ceil(CHUNK_PAGES)
    }

    /// The geometry of a shard of node `me`.
    pub fn geometry(&self, me: u16, shard: u32) -> Geometry {
        Geometry {
            me: NodeId(me),
            nodes: self.nodes,
            founders: self.nodes,
            pages: self.region_pages(),
            shard,
            shards: self.shards(),
            home: self.home,
            marks: self.marks(me),
        }
    }

    /// Whether stores are noticed by marks at node `me`.
    pub fn marks(&self, me: u16) -> bool {
        self.marks >> me & 1 != 0
    }

    /// Whether as much is added to a word as its threads take, and none of them gives up.
    fn has_enough(&self, word: u16) -> bool {
        let of_all = self.scripts.iter().flat_map(|script| &script.operations);
        let balance = of_all.fold(0, |balance, operation| match *operation {
            Operation::Add { word: other, by } if other == word => balance + i64::from(by),
            Operation::Take { word: other, .. } if other == word => balance - 1,
            _ => balance,
        });
        balance >= 0 && self.troubles.give_ups == 0
    }

    /// The index of `page` in the list of pages.
    pub fn place(&self, page: PageIndex) -> Option<usize> {
        self.pages.iter().position(|&other| other == page.0)
    }

    /// The page at an index of the list.
    pub fn page(&self, place: usize) -> PageIndex {
        PageIndex(self.pages[place])
    }

    /// A short description.
    pub fn describe(&self) -> String {
        let marks = match self.marks & ((1 << self.nodes) - 1) {
            0 => "faults".to_string(),
            all if all.count_ones() == u32::from(self.nodes) => "marks".to_string(),
            some => format!("marks-at={some:b}"),
        };
        let flag = |is_on: bool, name: &str| if is_on { format!(" {name}") } else { String::new() };
        let Troubles { give_ups, objections } = self.troubles;
        let opens = self.marks != 0 && self.stored_in_a_row < STORED_IN_A_ROW;
        let mut text = format!(
            "{} {} nodes={} pages={} {marks}{}{}{}{}{}{}{}{}",
            self.protocol,
            self.home.name(),
            self.nodes,
            self.pages.len(),
            flag(opens, &format!("opens-after={}", self.stored_in_a_row)),
            flag(give_ups > 0, &format!("give-ups={give_ups}")),
            flag(objections > 0, &format!("objections={objections}")),
            flag(self.may_disagree, "may-disagree"),
            flag(self.is_ordered, "ordered"),
            flag(self.is_wide, "wide"),
            flag(self.late_faults, "late-faults"),
            flag(self.late_bytes, "late-bytes"),
        );
        for (pages, protocol) in &self.changes {
            // Writing to a string cannot fail.
            let _ = write!(text, " {}-{}:{protocol}", pages.start, pages.end - 1);
        }
        text
    }
}
