//! The plan of a lab: names, numbers, addresses. It must never create anything.

use std::net::Ipv6Addr;

use crate::address::{Cluster, Prefix};
use crate::error::SwitchError;
use crate::switches::{self, Attach};

/// The maximum number of hosts.
pub const HOSTS_MAX: u16 = 1_000;
/// Servers have numbers from this one on, clients lower ones.
const FIRST_SERVER: u16 = 0x1001;
/// The maximum length of a name, which is part of a socket's name.
const NAME_BYTES_MAX: usize = 32;
/// IPv6 requires at least the first; an interface pair supports at most the last.
const MTU_BYTES: std::ops::RangeInclusive<u32> = 1_280..=65_535;

/// The parameters of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name: letters, digits and dashes.
    pub name: String,
    /// The number of clients: `c1`, `c2` and so on.
    pub clients: u16,
    /// The number of servers: `s1`, `s2` and so on.
    pub servers: u16,
    /// The kind of switch.
    pub switch: String,
    /// The maximum length of a packet.
    pub mtu_bytes: u32,
    /// The capacity for redirects in the switch.
    pub redirects_max: u32,
    /// Where the switch `bpf` is attached.
    pub attach: Attach,
}

/// The role of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its addresses name requests.
    Client,
    /// Its addresses are memory.
    Server,
}

impl Role {
    /// The role's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Server => "server",
        }
    }
}

/// The parameters of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// `c1`, `s1` and so on.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its number in the cluster.
    pub number: u16,
    /// Its port.
    pub port: u16,
    /// All of its addresses.
    pub prefix: Prefix,
    /// Its default source address.
    pub address: Ipv6Addr,
}

impl Plan {
    /// Checks the plan.
    ///
    /// # Errors
    ///
    /// A message that says what is impossible, and what is accepted.
    pub fn check(&self) -> Result<(), SwitchError> {
        let refused = |what: String| Err(SwitchError::Lab { lab: self.name.clone(), what });
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(is_name) {
            return refused(format!("this is not a name; give 1 to {NAME_BYTES_MAX} letters, digits and dashes"));
        }
        let hosts = u32::from(self.clients) + u32::from(self.servers);
        if hosts == 0 || hosts > u32::from(HOSTS_MAX) {
            return refused(format!("{hosts} hosts are not possible; give 1 to {HOSTS_MAX} clients and servers"));
        }
        if !MTU_BYTES.contains(&self.mtu_bytes) {
            let (least, most) = (MTU_BYTES.start(), MTU_BYTES.end());
            return refused(format!("an MTU of {} bytes is not possible; give {least} to {most}", self.mtu_bytes));
        }
        switches::kind(&self.switch)?.built().map(drop)
    }

    /// The cluster of its hosts, derived from its name, so that captures of two labs cannot be confused.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        // FNV-1a, folded to 24 bits.
        let hash =
            self.name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Cluster::new(hash ^ hash >> 24)
    }

    /// hosts(5): the names of all hosts.
    pub(super) fn host_names(&self) -> String {
        let hosts = self.hosts().into_iter().map(|host| format!("{} {}\n", host.address, host.name));
        std::iter::once("127.0.0.1 localhost\n::1 localhost\n".to_owned()).chain(hosts).collect()
    }

    /// Its hosts, clients first.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostPlan> {
        let clients = (1..=self.clients).map(|index| (Role::Client, format!("c{index}"), index));
        let servers = (1..=self.servers).map(|index| (Role::Server, format!("s{index}"), FIRST_SERVER - 1 + index));
        let cluster = self.cluster();
        let host = |((role, name, number), port)| HostPlan {
            name,
            role,
            number,
            port,
            prefix: Prefix::host(cluster, number),
            address: cluster.address(number, 0, 0, 1),
        };
        clients.chain(servers).zip(1..).map(host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(name: &str, clients: u16, servers: u16) -> Plan {
        let switch = "user".to_owned();
        Plan {
            name: name.to_owned(),
            clients,
            servers,
            switch,
            mtu_bytes: 9000,
            redirects_max: 16,
            attach: Attach::Auto,
        }
    }

    #[test]
    fn hosts_have_names_numbers_and_ports() {
        let hosts = plan("rack", 2, 2).hosts();
        let planned: Vec<(&str, u16, u16)> =
            hosts.iter().map(|host| (host.name.as_str(), host.number, host.port)).collect();
        assert_eq!(planned, [("c1", 1, 1), ("c2", 2, 2), ("s1", 0x1001, 3), ("s2", 0x1002, 4)]);
        assert!(hosts.iter().all(|host| host.prefix.contains(host.address)));
        assert_ne!(plan("rack", 1, 1).cluster(), plan("shelf", 1, 1).cluster());
    }

    #[test]
    fn what_cannot_be_is_said() {
        assert!(plan("a-1", 500, 500).check().is_ok());
        let sentence = |plan: Plan| plan.check().unwrap_err().to_string();
        assert!(sentence(plan("", 1, 1)).contains("not a name"));
        assert!(sentence(plan("a/b", 1, 1)).contains("not a name"));
        assert!(sentence(plan("a", 0, 0)).contains("1 to 1000"));
        assert!(sentence(plan("a", u16::MAX, 1)).contains("65536 hosts"));
        assert!(sentence(Plan { mtu_bytes: 1000, ..plan("a", 1, 1) }).contains("1280 to 65535"));
        assert!(sentence(Plan { switch: "hub".to_owned(), ..plan("a", 1, 1) }).contains("accepted: "));
        let openflow = Plan { switch: "openflow".to_owned(), ..plan("a", 1, 1) };
        assert_eq!(openflow.check().is_ok(), cfg!(feature = "openflow"));
    }
}
