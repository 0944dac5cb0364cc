//! Leases, tried out: servers, clients, readers and a controller, on a network that nobody should trust.
//!
//! The machines of [`trellis_fabric_protocol::lease`] run here as a runtime would run them ([`node`]): each has bytes beside it,
//! and a clock of its own rate. Letters arrive in any order, twice or not at all; a page request arrives wherever the
//! switch likes. Servers stop and start again, with or without their memory, ranges move, homes die; pages get a home of
//! their own and lose it again ([`parts`]). Two checkers share
//! that: the explorer tries every order of events of small clusters within some ticks of time ([`explore`]), the swarm
//! draws clusters, programs, clocks, networks and faults ([`swarm`]). What they may not find is in [`ghost`], what they
//! must find in [`faults`].
//!
//! It must never help the protocol: what a switch did wrong stays wrong, and nothing is known that no letter told.

pub mod explore;
pub mod faults;
pub mod ghost;
pub mod node;
pub mod parts;
pub mod shapes;
pub mod swarm;

pub use faults::Fault;

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::parts::Part;
use trellis_fabric_protocol::lease::{Host, PageNumber, Party, Timing};

/// What a page holds. Zero is what it holds at the start; every change has a value of its own.
pub type Value = u16;

/// What a client does, one after the other. What needs a lease is left out where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads a page, whoever has it.
    Read(PageNumber),
    /// Takes a lease.
    Update(PageNumber),
    /// Looks at a page that it has and did not change.
    Look(PageNumber),
    /// Changes a page that it has.
    Change(PageNumber),
    /// Commits what it changed.
    Commit {
        /// This page.
        page: PageNumber,
        /// And gives the lease back.
        release: bool,
    },
    /// Gives the lease back.
    Release(PageNumber),
}

impl Operation {
    /// Of which page it is.
    pub fn page(&self) -> PageNumber {
        match *self {
            Operation::Read(page)
            | Operation::Update(page)
            | Operation::Look(page)
            | Operation::Change(page)
            | Operation::Commit { page, .. }
            | Operation::Release(page) => page,
        }
    }
}

/// Something that happens from outside, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blow {
    /// A node stops and starts again. A server keeps its memory, the controller its log, a client nothing.
    Restart(usize),
    /// A server stops and starts again without its memory.
    Blank(usize),
    /// A node is gone for ever.
    Death(usize),
    /// The range shall move to this server.
    Move(Host),
    /// This server shall be a backup.
    Back(Host),
    /// This one shall be none any more.
    Drop(Host),
    /// So many pages from this one on get a home of their own, if the controller may let them.
    Cut(PageNumber, PageNumber),
    /// The first part is joined with the range, if the controller may let it.
    Join,
    /// The first part shall move to this server.
    MovePart(Host),
    /// This server shall be a backup of the first part.
    BackPart(Host),
}

/// A cluster and what its clients do. Nodes are numbered: servers, clients, readers, the controller.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// Pages of the range.
    pub pages: PageNumber,
    /// Servers; the first is home at the start.
    pub servers: u16,
    /// Its backups at the start; they have everything.
    pub backups: Vec<Host>,
    /// Parts at the start; they are at the home of the range.
    pub parts: Vec<Part>,
    /// Backups of the parts at the start; they have everything.
    pub part_backups: Vec<Host>,
    /// What each client does.
    pub clients: Vec<Vec<Operation>>,
    /// How often each server, while it is home, changes the last page itself; clients only read that one.
    pub home_changes: u8,
    /// How many pages are on their way to backups that lack them at a time.
    pub window: usize,
    /// Hosts that follow every page.
    pub readers: u16,
    /// How long rights last.
    pub timing: Timing,
    /// What each node's clock counts while real time goes on by one.
    pub rates: Vec<u64>,
    /// Real time ends here; for the explorer.
    pub ticks: u8,
    /// How many letters may arrive twice; for the explorer.
    pub duplicates: u8,
    /// How many page requests may arrive at somebody whom the sender did not mean; for the explorer.
    pub misrouted: u8,
    /// What happens from outside, each at most once, at any time; for the explorer.
    pub blows: Vec<Blow>,
    /// What is broken on purpose.
    pub fault: Fault,
}

/// The first client's host; the others follow.
const CLIENTS: Host = 100;
/// The first reader's host.
const READERS: Host = 200;
/// The controller's host.
const CONTROLLER: Host = 300;

impl Setup {
    /// Pages that somebody may have a lease or a copy of: all but the one that homes change.
    pub fn leased_pages(&self) -> PageNumber {
        self.pages - PageNumber::from(self.home_changes > 0)
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        usize::from(self.servers) + self.clients.len() + usize::from(self.readers) + 1
    }

    /// Which node the controller is.
    pub fn controller(&self) -> usize {
        self.nodes() - 1
    }

    /// Which node a client is.
    pub fn client(&self, number: usize) -> usize {
        usize::from(self.servers) + number
    }

    /// The host of a node.
    pub fn host(&self, node: usize) -> Host {
        let (servers, clients) = (usize::from(self.servers), self.clients.len());
        match node {
            _ if node == self.controller() => CONTROLLER,
            _ if node < servers => node as Host,
            _ if node < servers + clients => CLIENTS + (node - servers) as Host,
            _ => READERS + (node - servers - clients) as Host,
        }
    }

    /// The node that is a host.
    pub fn node(&self, host: Host) -> Option<usize> {
        (0..self.nodes()).find(|&node| self.host(node) == host)
    }

    /// How everybody calls the controller.
    pub fn controller_party(&self) -> Party {
        Party::of(CONTROLLER)
    }

    /// What a node's clock says when real time is `real`.
    pub fn now(&self, node: usize, real: u64) -> Nanoseconds {
        real * self.rates[node]
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        format!(
            "lease {} servers={} backups={} clients={} readers={} pages={} ticks={} duplicates={} misrouted={} blows={}",
            self.name,
            self.servers,
            self.backups.len(),
            self.clients.len(),
            self.readers,
            self.pages,
            self.ticks,
            self.duplicates,
            self.misrouted,
            self.blows.len(),
        )
    }
}
