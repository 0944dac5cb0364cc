//! Checks of leases: servers, clients, readers and a controller on an unreliable network.
//!
//! The state machines of [`trellis_fabric_protocol::lease`] run here as in a runtime ([`node`]): each has bytes beside
//! it, and a clock with its own rate. Messages arrive in any order, twice or not at all; a page request arrives
//! wherever the switch delivers it. Servers restart with or without their memory, ranges move, homes die, and parts
//! are split off and merged back ([`parts`]). Two checkers use this: the explorer tries every order of events of small
//! clusters within a few ticks of time ([`explore`]), and the swarm generates clusters, programs, clocks, networks and
//! faults ([`swarm`]). [`ghost`] contains the rules that must hold, [`faults`] the broken rules that the checkers must
//! notice.
//!
//! It must never help the protocol: the effect of a wrong delivery stays, and no node knows what no message told it.

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

/// The content of a page: zero at the start; every change writes a distinct value.
pub type Value = u16;

/// An operation of a client. One that needs a lease is skipped if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads a page, whichever host has it.
    Read(PageNumber),
    /// Takes a lease.
    Update(PageNumber),
    /// Loads from a page that it owns and has not changed.
    Look(PageNumber),
    /// Changes a page that it owns.
    Change(PageNumber),
    /// Commits its changes.
    Commit {
        /// The page.
        page: PageNumber,
        /// Whether to give the lease back with the commit.
        release: bool,
    },
    /// Gives the lease back.
    Release(PageNumber),
}

impl Operation {
    /// The page that the operation uses.
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

/// A fault or directive that the check injects from outside; each happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Injection {
    /// A node restarts. A server keeps its memory, the controller its log, a client nothing.
    Restart(usize),
    /// A server restarts without its memory.
    Blank(usize),
    /// A node is gone for ever.
    Death(usize),
    /// Directive: move the range to this server.
    Move(Host),
    /// Directive: make this server a backup.
    Back(Host),
    /// Directive: this server is no longer a backup.
    Drop(Host),
    /// Directive: split off this number of pages, from this one on, if the controller permits it.
    Split(PageNumber, PageNumber),
    /// Directive: merge the first part with the range, if the controller permits it.
    Merge,
    /// Directive: move the first part to this server.
    MovePart(Host),
    /// Directive: make this server a backup of the first part.
    BackPart(Host),
}

/// A cluster and the programs of its clients. Nodes are numbered: servers, clients, readers, the controller.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// Pages of the range.
    pub pages: PageNumber,
    /// The number of servers; the first is home at the start.
    pub servers: u16,
    /// The backups at the start; they are complete.
    pub backups: Vec<Host>,
    /// Parts at the start; they are at the home of the range.
    pub parts: Vec<Part>,
    /// The backups of the parts at the start; they are complete.
    pub part_backups: Vec<Host>,
    /// The program of each client.
    pub clients: Vec<Vec<Operation>>,
    /// How often each server, while it is home, changes the last page itself; clients only read that page.
    pub home_changes: u8,
    /// The maximum number of pages under way to backups at a time.
    pub window: usize,
    /// The number of hosts that follow every page.
    pub readers: u16,
    /// The duration of rights.
    pub timing: Timing,
    /// The advance of each node's clock for one unit of real time.
    pub rates: Vec<u64>,
    /// The end of real time; for the explorer.
    pub ticks: u8,
    /// How many messages may arrive twice; for the explorer.
    pub duplicates: u8,
    /// How many page requests may arrive at a host other than their destination; for the explorer.
    pub misrouted: u8,
    /// The faults and directives from outside, each at most once, at any time; for the explorer.
    pub injections: Vec<Injection>,
    /// The rule that is broken on purpose.
    pub fault: Fault,
}

/// The first client's host; the others follow.
const CLIENTS: u16 = 100;
/// The first reader's host.
const READERS: u16 = 200;
/// The controller's host.
const CONTROLLER: Host = Host(300);

impl Setup {
    /// The number of pages that may be leased or copied: all but the one that homes change.
    pub fn leased_pages(&self) -> PageNumber {
        self.pages - PageNumber::from(self.home_changes > 0)
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        usize::from(self.servers) + self.clients.len() + usize::from(self.readers) + 1
    }

    /// The node of the controller.
    pub fn controller(&self) -> usize {
        self.nodes() - 1
    }

    /// The node of a client.
    pub fn client(&self, number: usize) -> usize {
        usize::from(self.servers) + number
    }

    /// The host of a node.
    pub fn host(&self, node: usize) -> Host {
        let (servers, clients) = (usize::from(self.servers), self.clients.len());
        match node {
            _ if node == self.controller() => CONTROLLER,
            _ if node < servers => Host(node as u16),
            _ if node < servers + clients => Host(CLIENTS + (node - servers) as u16),
            _ => Host(READERS + (node - servers - clients) as u16),
        }
    }

    /// The node on a host.
    pub fn node(&self, host: Host) -> Option<usize> {
        (0..self.nodes()).find(|&node| self.host(node) == host)
    }

    /// The controller's name on the network.
    pub fn controller_party(&self) -> Party {
        Party::of(CONTROLLER)
    }

    /// The reading of a node's clock when real time is `real`.
    pub fn now(&self, node: usize, real: u64) -> Nanoseconds {
        real * self.rates[node]
    }

    /// A short description.
    pub fn describe(&self) -> String {
        format!(
            "lease {} servers={} backups={} clients={} readers={} pages={} ticks={} duplicates={} misrouted={} \
             injections={}",
            self.name,
            self.servers,
            self.backups.len(),
            self.clients.len(),
            self.readers,
            self.pages,
            self.ticks,
            self.duplicates,
            self.misrouted,
            self.injections.len(),
        )
    }
}
