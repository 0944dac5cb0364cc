//! The entries of a switch: ports, routes, redirects, groups, rules.

use std::time::Instant;

use crate::address::{Classes, Prefix};
use crate::layout;

/// The maximum number of ports; numbers are from 1 to one less.
pub const PORTS_MAX: u16 = layout::PORTS_MAX as u16;
/// The maximum number of ports that get a copy of the same packet.
pub const CLONES_MAX: usize = layout::CLONES_MAX as usize;

/// The maximum number of page ranges that have a port of their own.
pub const PAGE_ROUTES_MAX: u32 = layout::PAGE_ROUTES_MAX;

/// A port, to which one host is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, 1 to 1,023.
    pub number: u16,
    /// The name of this machine's interface that leads to the host.
    pub interface: String,
    /// The hardware address of the host's own interface.
    pub host_mac: [u8; 6],
    /// Whether the interface is one end of a pair whose other end belongs to the host, in another namespace.
    pub is_pair: bool,
}

/// The destination of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The port of the host that answers for it.
    pub port: u16,
    /// Whether its addresses are pointers, with commands and pages. Otherwise they name a client's requests.
    pub is_memory: bool,
}

/// A host that gets the requests for a page instead of the page's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The port of that host.
    pub port: u16,
    /// The epoch of its lease; 0 until the home has confirmed it.
    pub epoch: u64,
    /// When it ends; `None` if it is permanent.
    pub until: Option<Instant>,
}

/// Ports that get a copy of requests to a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The home's whole prefix, 48 bits.
    pub prefix: Prefix,
    /// The classes of commands that are copied.
    pub classes: Classes,
    /// The ports of the copies, at most [`CLONES_MAX`]; the packet itself goes to the port of the route.
    pub ports: Vec<u16>,
}

/// Permission for some requests to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The client's host; `None` for any.
    pub client: Option<u16>,
    /// The home; `None` for any.
    pub home: Option<u16>,
    /// The permitted classes of commands.
    pub classes: Classes,
}

impl Rule {
    /// The key in tables.
    pub(crate) fn key(&self) -> u32 {
        u32::from(self.client.unwrap_or(0)) << 16 | u32::from(self.home.unwrap_or(0))
    }
}
