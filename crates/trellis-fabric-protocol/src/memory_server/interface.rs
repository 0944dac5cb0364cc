//! The interface of a memory server: facts that go in, orders that come out, and statistics.
//!
//! Orders name places and must never hold bytes. The caller carries them out in their order, all of them before the next
//! step.

#[cfg(doc)]
use super::MemoryServer;
use super::leases::{Decision, Lease};
use super::sessions::{Client, SessionLimits};
use super::staging::StagingLimits;
use crate::wire::address::{Cluster, Host};
#[cfg(doc)]
use crate::wire::datagram::{Body, Status};
use crate::wire::datagram::{Reply, Request, STATUSES};

/// The settings of a server at its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// Its cluster.
    pub cluster: Cluster,
    /// The home that it answers for.
    pub home: Host,
    /// Bytes of its memory; a rest of less than a page is not used.
    pub memory_bytes: u64,
    /// The first generation: a server that lost its memory chooses another one than before, at random.
    pub generation: u16,
    /// Higher than in its previous boot, so that no session of that boot is taken for one of this.
    pub incarnation: u16,
    /// The quota of each host, in whole pages.
    pub quota_bytes: u64,
    /// The largest number of objects at a time.
    pub objects_max: usize,
    /// Of sessions.
    pub sessions: SessionLimits,
    /// Of writes in several datagrams.
    pub staging: StagingLimits,
}

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A datagram that is a request.
    Request(Request),
    /// The previous value, after an [`Effect::FetchAdd`] or [`Effect::CompareSwap`] for this request was carried out.
    Before(Request, u64),
    /// A decision of the lease server.
    Decided(Lease, Decision),
    /// These pages are guarded from now on, or are not any more.
    Guard {
        /// The first.
        first_page: u64,
        /// How many.
        pages: u64,
        /// Whether they are.
        is_guarded: bool,
    },
    /// This client is gone for ever; what was kept for it can go. Its objects stay.
    Gone(Client),
    /// Time has passed. Given about every second.
    Tick,
}

/// An order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send this. The bytes of memory in it ([`Body::data_bytes`]) are those from `offset` on.
    Reply {
        /// What.
        reply: Reply,
        /// In the memory.
        offset: u64,
    },
    /// Write bytes of the datagram.
    Write {
        /// In the memory.
        offset: u64,
        /// The first, in the UDP payload.
        at: u32,
        /// How many.
        bytes: u32,
    },
    /// Keep bytes of the datagram in a slot.
    Stage {
        /// Which slot.
        slot: u32,
        /// Where in it.
        position: u32,
        /// The first, in the UDP payload.
        at: u32,
        /// How many.
        bytes: u32,
    },
    /// Write bytes from the beginning of a slot. The slot is not needed afterwards.
    WriteStaged {
        /// Which slot.
        slot: u32,
        /// In the memory.
        offset: u64,
        /// How many.
        bytes: u32,
    },
    /// Make bytes zero.
    Zero {
        /// In the memory.
        offset: u64,
        /// The number of bytes; may be the whole memory.
        bytes: u64,
    },
    /// Add to 8 bytes, little-endian, atomically, and give the previous value ([`Input::Before`]).
    FetchAdd {
        /// For this request.
        request: Request,
        /// In the memory; a multiple of 8.
        offset: u64,
        /// The number to add; it wraps around.
        addend: u64,
    },
    /// Replace 8 bytes, little-endian, if they are as expected, atomically, and give the previous value.
    CompareSwap {
        /// For this request.
        request: Request,
        /// In the memory; a multiple of 8.
        offset: u64,
        /// What must be there.
        expected: u64,
        /// What is there afterwards.
        new: u64,
    },
    /// Copy entries of the page table ([`MemoryServer::page`]) to where other programs read them.
    Publish {
        /// The first page.
        first_page: u64,
        /// How many.
        pages: u64,
    },
    /// Hand this to the lease server.
    Lease(Lease),
}

/// What operators watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Statistics {
    /// Requests that came.
    pub requests: u64,
    /// Answers, by [`Status`].
    pub answers: [u64; STATUSES],
    /// Repeated requests that got the same answer again, or will get it.
    pub repeated: u64,
    /// Objects.
    pub objects: u64,
    /// Pages of objects.
    pub pages_used: u64,
    /// Free pages.
    pub pages_free: u64,
    /// The longest object that could be made now, in pages.
    pub longest_free_run_pages: u64,
    /// Sessions that are open.
    pub sessions: u64,
    /// Sessions that ended.
    pub sessions_ended: u64,
    /// Answers that are kept.
    pub answers_kept: u64,
    /// Slots in use.
    pub slots_used: u64,
    /// Writes in several datagrams that gave up their slot before they were whole.
    pub writes_dropped: u64,
}

/// A page table that no memory server wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoTable {
    /// The number of pages of the memory.
    pub pages: u64,
    /// The first page whose entry is impossible; the number of entries, if that is wrong.
    pub page: u64,
}

impl core::fmt::Display for NoTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let NoTable { pages, page } = self;
        write!(
            f,
            "the page table is not that of a memory of {pages} pages: entry {page} is wrong; begin without objects"
        )
    }
}

impl core::error::Error for NoTable {}
