//! Stands for the addresses of hosts with memory servers in a build without the cargo feature `remote`: every text is
//! refused.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// The size of a page under leases.
pub(super) const PAGE_BYTES: u64 = 4096;

/// The addresses of one host; this build has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPrefix {
    pub(super) cluster: Infallible,
}

impl fmt::Display for HostPrefix {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cluster {}
    }
}

impl FromStr for HostPrefix {
    type Err = NotAnAddress;

    fn from_str(_: &str) -> Result<HostPrefix, NotAnAddress> {
        Err(NotAnAddress)
    }
}

/// Why a text is no prefix.
#[derive(Debug)]
pub struct NotAnAddress;

impl fmt::Display for NotAnAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("this build has no memory servers (cargo feature `remote`)")
    }
}
