//! What a switch can do.

use crate::address::Prefix;

/// What a switch can do beyond what all can. Never changes while the switch is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it works in a user namespace, without rights over the machine.
    pub rootless: bool,
    /// Whether the first UPDATE of a page makes its sender the owner in the very packet's way; if not, somebody must call
    /// [`crate::Switch::set_redirect`] for every lease.
    pub grants: bool,
    /// Whether packets can be delayed, repeated and overtaken on purpose; all can lose some.
    pub delays: bool,
    /// Whether what happens to packets on purpose is the same again for the same seed and the same packets.
    pub seeded: bool,
    /// The longest prefix it routes by, in bits.
    pub prefix_bits_max: u8,
    /// The most redirects at once.
    pub redirects_max: u32,
}

impl Capabilities {
    /// Whether it routes by prefixes of this length.
    #[must_use]
    pub fn routes_by(&self, prefix: Prefix) -> bool {
        prefix.bits() <= self.prefix_bits_max
    }
}
