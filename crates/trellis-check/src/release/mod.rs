//! Release consistency, tried out: small clusters whose programs load, store, lock, meet at barriers and pass flags.
//!
//! Here the whole of what makes `hlrc` work runs as it does in a program: the protocol's `step`, what a node knows of
//! intervals, locks, barriers and words with their real messages, and between them what a runtime does: it publishes
//! before a release, attaches knowledge to messages, and respects notices after an acquire ([`node`]). Three checkers
//! share it: the explorer tries every order of events ([`explore`]), litmus tests compare outcomes with an oracle
//! ([`litmus`]), the swarm draws clusters, programs and networks ([`swarm`]).
//!
//! What must hold ([`ghost`]): a load sees no store that, by what its thread acquired, was overwritten before; so in a
//! program without races it sees the last one, through however many hands the release went; and in any program it sees
//! what somebody stored to that very word, or the zero at the start. A publication ends, and ends with every store at
//! its home. When nothing can happen any more, no thread waits.
//!
//! It must never help the protocol: nothing is delivered that was not sent, and nothing is tried twice.

pub mod cluster;
pub mod effects;
pub mod explore;
pub mod faults;
pub mod ghost;

pub mod litmus;
pub mod node;
mod recovery;
pub mod scripts;

pub mod shapes;
pub mod swarm;

pub use faults::Fault;

use trellis_cluster_protocol::coherence::{Geometry, Protocol};
use trellis_cluster_protocol::homes::Home;
use trellis_cluster_protocol::node::STORED_IN_A_ROW;
use trellis_cluster_protocol::{NodeId, PageIndex};

/// Words of a page.
pub const PAGE_WORDS: usize = 4;

/// What a word holds. Zero is what it holds at the start.
pub type Value = u32;

/// The bytes of a page.
pub type Page = [Value; PAGE_WORDS];

/// What a thread does, one after the other. A word is a place of a page; locks, barriers and flags are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Loads a word into a register.
    Load {
        /// Which word.
        word: u16,
        /// Receives the value.
        register: u8,
    },
    /// Stores to a word.
    Store {
        /// Which word.
        word: u16,
        /// What.
        source: Source,
    },
    /// Takes a lock.
    Lock(u8),
    /// Gives it back.
    Unlock(u8),
    /// Meets all threads; there is one on each node then.
    Barrier,
    /// Stores to a flag: a release.
    Set {
        /// Which flag.
        flag: u8,
        /// What.
        source: Source,
    },
    /// Loads a flag: an acquire.
    Get {
        /// Which flag.
        flag: u8,
        /// Receives the value.
        register: u8,
    },
    /// Says that pages will be touched.
    Announce {
        /// The first of them.
        page: u8,
        /// For stores.
        write: bool,
    },
}

/// Where a stored value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// From the program.
    Constant(Value),
    /// From a register.
    Register(u8),
}

/// A thread: where it runs and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its node.
    pub node: u16,
    /// What it does.
    pub operations: Vec<Operation>,
    /// What its registers hold at the start.
    pub registers: Vec<Value>,
}

/// A cluster and what its threads do.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Which protocol with release consistency.
    pub protocol: Protocol,
    /// Number of nodes.
    pub nodes: u16,
    /// Pages that are used, by their number in the region; neighbours in the list that are neighbours there may be asked
    /// for together.
    pub pages: Vec<u32>,
    /// Where their homes are.
    pub home: Home,
    /// Stores are noticed by marks, by node; otherwise by faults.
    pub marks: u16,
    /// After so many publications in a row with stores to it, a page stays open where stores are marked; at most 3.
    pub stored_in_a_row: u8,
    /// Messages between two nodes arrive in the order in which they were sent.
    pub is_ordered: bool,
    /// Requests wish for the pages around.
    pub is_wide: bool,
    /// Time passes between an access and the fault that it causes.
    pub late_faults: bool,
    /// Bytes of pages are read when their message arrives, not when it is sent: a runtime may do either.
    pub late_bytes: bool,
    /// Most pages that a publication sends before one is acknowledged.
    pub unacknowledged_max: u32,
    /// Most pages whose diffs go together.
    pub together_max: u32,
    /// What is broken on purpose.
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

    /// What node `me` is told.
    pub fn geometry(&self, me: u16) -> Geometry {
        Geometry {
            me: NodeId(me),
            nodes: self.nodes,
            founders: self.nodes,
            pages: self.region_pages(),
            shard: 0,
            shards: 1,
            home: self.home,
            marks: self.marks(me),
        }
    }

    /// Whether stores are noticed by marks at node `me`.
    pub fn marks(&self, me: u16) -> bool {
        self.marks >> me & 1 != 0
    }

    /// The place of `page` in the list of pages.
    pub fn place(&self, page: PageIndex) -> Option<usize> {
        self.pages.iter().position(|&other| other == page.0)
    }

    /// The page at a place of the list.
    pub fn page(&self, place: usize) -> PageIndex {
        PageIndex(self.pages[place])
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        let marks = match self.marks & ((1 << self.nodes) - 1) {
            0 => "faults".to_string(),
            all if all.count_ones() == u32::from(self.nodes) => "marks".to_string(),
            some => format!("marks-at={some:b}"),
        };
        let flag = |is_on: bool, name: &str| if is_on { format!(" {name}") } else { String::new() };
        let opens = self.marks != 0 && self.stored_in_a_row < STORED_IN_A_ROW;
        format!(
            "{} {} nodes={} pages={} {marks}{}{}{}{}{}",
            self.protocol,
            self.home.name(),
            self.nodes,
            self.pages.len(),
            flag(opens, &format!("opens-after={}", self.stored_in_a_row)),
            flag(self.is_ordered, "ordered"),
            flag(self.is_wide, "wide"),
            flag(self.late_faults, "late-faults"),
            flag(self.late_bytes, "late-bytes"),
        )
    }
}
