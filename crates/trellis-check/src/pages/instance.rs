//! The size of a cluster, and what may happen in it.
//!
//! Promises: different instances have different descriptions. It must never allow what a runtime cannot do.

use super::{COORDINATOR, Node, Pages};
use crate::simulate::NodeFault;
use trellis_cluster_protocol::coherence::{Geometry, Protocol, Ranges, Running};
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::{CHUNK_PAGES, NodeId, PageIndex, PageRange};

/// The neighbouring pages for which a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Requests {
    /// The page alone.
    Narrow,
    /// Every page of the instance that is in the same chunk.
    Wide,
    /// Either, as the thread chooses.
    Both,
}

/// How threads use locks of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Locks {
    /// No locks.
    None,
    /// Threads lock, change what they locked, and unlock.
    Kept,
    /// The same, with locks that end by themselves after some time.
    Timed,
    /// Threads do the same, and may stop waiting for their locks.
    GivenUp,
}

/// The size of a cluster, and what may happen in it.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The protocol.
    pub protocol: Protocol,
    /// The assignment of pages to managers.
    pub home: Home,
    /// Number of nodes.
    pub nodes: u16,
    /// The pages that are used, ascending; the region ends with the last.
    pub pages: Vec<u32>,
    /// Threads of each node.
    pub threads: u8,
    /// Loads, stores and locked changes of each thread.
    pub operations: u8,
    /// The pages for which requests ask.
    pub requests: Requests,
    /// Announcements ([`trellis_cluster_protocol::coherence::Input::Prefetch`]) that each node may make, at any time.
    pub prefetches: u8,
    /// A fault reaches the protocol some time after the access that caused it.
    pub late_faults: bool,
    /// The protocol does not learn when a woken thread has run on. This is so where the kernel blocks the thread.
    pub silent: bool,
    /// How often each node may report [`trellis_cluster_protocol::coherence::Input::Resumed`] before the thread has
    /// run on. Bounded, because two nodes that never let each other run could do so for ever.
    pub time_outs: u8,
    /// How often each node may ask again for a locked page while other actions are possible; in addition, it does so
    /// when there are none. Bounded, because a node could ask for ever while the lock's holder never runs.
    pub spins: u8,
    /// A load may ask for the right to store.
    pub eager: bool,
    /// How pages are locked; needs a protocol that supports it.
    pub locks: Locks,
    /// The last node leaves some time after its operations: it is not a founder, and node 0 takes over its pages.
    pub leaver: bool,
    /// When all threads are done, every page gets this protocol and the threads do the same number of operations
    /// again.
    pub change: Option<Protocol>,
    /// The maximum number of times that others may get the right to store to a page for which a thread waits.
    pub overtaken_max: Option<u8>,
    /// Whether to compare the access rights that the protocol assumes with the result of its effects.
    pub paired: bool,
}

impl Instance {
    /// One thread per node and no options; node 0 is the manager.
    pub fn new(protocol: Protocol, nodes: u16, pages: u32, operations: u8) -> Instance {
        Instance {
            protocol,
            home: Home::Manager(Manager(NodeId(0))),
            nodes,
            pages: (0..pages).collect(),
            threads: 1,
            operations,
            requests: Requests::Narrow,
            prefetches: 0,
            late_faults: false,
            silent: false,
            time_outs: 0,
            spins: 0,
            eager: false,
            locks: Locks::None,
            leaver: false,
            change: None,
            overtaken_max: None,
            paired: true,
        }
    }

    /// The model of this instance with the real protocol at every node.
    pub fn model(&self) -> Pages<Running> {
        assert!(self.change.is_none(), "a protocol that is changed is one of `Ranges`");
        let protocol = self.protocol;
        self.model_of(|geometry| protocol.start(geometry))
    }

    /// The model of this instance with a choice of protocol for each page at every node, as in a runtime.
    pub fn model_of_ranges(&self) -> Pages<Ranges> {
        let protocol = self.protocol;
        self.model_of(|geometry| Ranges::new(protocol, geometry))
    }

    /// The model of this instance with `start` in place of the real protocol.
    pub fn model_of<N: Node>(&self, start: impl Fn(Geometry) -> N) -> Pages<N> {
        Pages::new(self.clone(), NodeFault::None, start)
    }

    /// The model of this instance with the real protocol at nodes that have a fault.
    pub fn model_with(&self, fault: NodeFault) -> Pages<Running> {
        let protocol = self.protocol;
        Pages::new(self.clone(), fault, |geometry| protocol.start(geometry))
    }

    /// How often a thread may be overtaken: once by each thread of the cluster while its request travels, and once
    /// more while it waits behind earlier requests.
    pub fn overtaken_bound(&self) -> u8 {
        (2 * self.nodes * u16::from(self.threads)).min(255) as u8
    }

    /// A short description of this instance, with everything that distinguishes it.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "{} {} nodes={} pages={} operations={} threads={} requests={}",
            self.protocol,
            self.home.name(),
            self.nodes,
            self.pages.len(),
            self.operations,
            self.threads,
            match self.requests {
                Requests::Narrow => "narrow",
                Requests::Wide => "wide",
                Requests::Both => "both",
            },
        );
        if let Home::Manager(Manager(manager)) = self.home {
            text += &format!(" manager={}", manager.0);
        }
        let counts = [(" prefetches", self.prefetches), (" time-outs", self.time_outs), (" spins", self.spins)];
        text.extend(counts.into_iter().filter(|(_, count)| *count > 0).map(|(word, count)| format!("{word}={count}")));
        text += match self.locks {
            Locks::None => "",
            Locks::Kept => " locks=kept",
            Locks::Timed => " locks=timed",
            Locks::GivenUp => " locks=given-up",
        };
        if let Some(changed) = self.change {
            text += &format!(" change={changed}");
        }
        if let Some(bound) = self.overtaken_max {
            text += &format!(" overtaken-max={bound}");
        }
        let extras = [
            (self.late_faults, " late-faults"),
            (self.silent, " silent"),
            (self.eager, " eager"),
            (self.leaver, " leaver"),
        ];
        text.extend(extras.into_iter().filter(|(on, _)| *on).map(|(_, word)| word));
        text
    }

    /// Whether there may be alarms.
    pub(super) fn has_layers(&self) -> bool {
        self.protocol.layers().next().is_some() || self.change.is_some_and(|changed| changed.layers().next().is_some())
    }

    /// The nodes that stay to the end.
    pub(super) fn founders(&self) -> u16 {
        self.nodes - u16::from(self.leaver)
    }

    /// The node that leaves.
    pub(super) fn leaver(&self) -> Option<usize> {
        self.leaver.then_some(usize::from(self.founders()))
    }

    /// The threads of `node`; the last one of node 0 takes over what the node that leaves leaves behind.
    pub(super) fn threads_of(&self, node: usize) -> usize {
        usize::from(self.threads) + usize::from(self.leaver && node == usize::from(COORDINATOR.0))
    }

    /// Whether the thread takes pages over.
    pub(super) fn is_taker(&self, node: usize, thread: usize) -> bool {
        thread == usize::from(self.threads) && node == usize::from(COORDINATOR.0)
    }

    /// The pages, in runs of one chunk each.
    pub(super) fn runs(&self) -> impl Iterator<Item = PageRange> {
        let same = |before: &u32, page: &u32| *page == before + 1 && !page.is_multiple_of(CHUNK_PAGES);
        let runs = self.pages.chunk_by(same);
        runs.map(|run| PageRange::around(PageIndex(run[0]), run[0], run[run.len() - 1] + 1))
    }
}
