//! Prefixes of addresses: what a route, a redirect of a range or an access list names.
//!
//! A [`Prefix`] is a number of 128 bits and its length; the other bits are zero. Making one never fails. Parsing a text
//! gives a prefix or an error of one sentence, and must never panic.

use super::{Address, Cluster, Host, NotAnAddress, layout};
use core::fmt;
use core::str::FromStr;

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    bits: u128,
    length: u8,
}

/// All addresses of one host, or of a number that stands for hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostPrefix {
    /// Its cluster.
    pub cluster: Cluster,
    /// Its number.
    pub host: Host,
}

impl Prefix {
    /// The first `length` bits of `address`; a length of more than 128 counts as 128.
    pub const fn new(address: Address, length: u8) -> Prefix {
        let length = if length > 128 { 128 } else { length };
        let mask = if length == 0 { 0 } else { u128::MAX << (128 - length) };
        Prefix { bits: address.bits() & mask, length }
    }

    /// All hosts of a cluster.
    pub fn of_cluster(cluster: Cluster) -> Prefix {
        Prefix::new(Address::with(cluster, Host(0)), layout::CLUSTER_PREFIX_BITS)
    }

    /// All addresses of a host.
    pub fn of_host(cluster: Cluster, host: Host) -> Prefix {
        Prefix::new(Address::with(cluster, host), layout::HOST_PREFIX_BITS)
    }

    /// The bits of the prefix, at the top; the others are zero.
    pub const fn bits(self) -> u128 {
        self.bits
    }

    /// The number of bits.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// Its first address.
    pub const fn first(self) -> Address {
        Address(self.bits.to_be_bytes())
    }

    /// Whether `address` begins with it.
    pub const fn contains(self, address: Address) -> bool {
        Prefix::new(address, self.length).bits == self.bits
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.length)
    }
}

impl HostPrefix {
    /// As bits.
    pub fn prefix(self) -> Prefix {
        Prefix::of_host(self.cluster, self.host)
    }
}

impl fmt::Display for HostPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.prefix().fmt(f)
    }
}

/// Of a text like `fd12:3456:7::/48`: cluster 0x123456, host 7.
impl FromStr for HostPrefix {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<HostPrefix, NotAnAddress> {
        let (address, length) = text.split_once('/').ok_or(NotAnAddress::PrefixText)?;
        let address = Address::from_str(address).map_err(|_| NotAnAddress::PrefixText)?;
        if length != "48" {
            return Err(NotAnAddress::PrefixText);
        }
        let (cluster, host) = address.cluster_and_host()?;
        let prefix = HostPrefix { cluster, host };
        if !host.is_one() {
            return Err(NotAnAddress::Host(host.0));
        }
        if prefix.prefix().first() == address { Ok(prefix) } else { Err(NotAnAddress::Rest) }
    }
}
