//! What a switch is told: ports, routes, redirects, groups, rules.

use std::time::Instant;

use crate::address::{Classes, Prefix};
use crate::layout;

/// The most ports; numbers go from 1 to one less.
pub const PORTS_MAX: u16 = layout::PORTS_MAX as u16;
/// The most ports that get a copy of the same packet.
pub const CLONES_MAX: usize = layout::CLONES_MAX as usize;

/// The most runs of pages that have a port of their own.
pub const RUNS_MAX: u32 = layout::RUNS_MAX;

/// A port: where one host is plugged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, 1 to 1,023.
    pub number: u16,
    /// The interface of this machine that leads to the host, by name.
    pub interface: String,
    /// The hardware address of the host's own interface.
    pub host_mac: [u8; 6],
    /// Whether the interface is one end of a pair whose other end is the host's, in another namespace.
    pub is_pair: bool,
}

/// Where a prefix leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The port of the host that answers for it.
    pub port: u16,
    /// Whether its addresses are pointers: they have commands and pages. Else they name a client's requests.
    pub is_memory: bool,
}

/// Who gets the requests for a page in its home's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The port of that host.
    pub port: u16,
    /// The epoch of its lease; 0 as long as home has not confirmed it.
    pub epoch: u64,
    /// When it ends; none for one that stays.
    pub until: Option<Instant>,
}

/// Ports that get a copy of what is sent to a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whose requests are copied: the whole of a host's prefix, 48 bits.
    pub prefix: Prefix,
    /// Which of them.
    pub classes: Classes,
    /// Where the copies go, at most [`CLONES_MAX`]; the port of the route gets the packet itself.
    pub ports: Vec<u16>,
}

/// That some requests may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The host that asks; none for any.
    pub client: Option<u16>,
    /// The home that is asked; none for any.
    pub home: Option<u16>,
    /// What it may ask.
    pub classes: Classes,
}

impl Rule {
    /// The key of tables.
    pub(crate) fn key(&self) -> u32 {
        u32::from(self.client.unwrap_or(0)) << 16 | u32::from(self.home.unwrap_or(0))
    }
}
