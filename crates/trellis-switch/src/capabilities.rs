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
    /// Whether what home says about a lease counts from the very packet on; if not, a moment later, and before any call of
    /// [`crate::Switch`] that follows returns.
    pub learns_at_once: bool,
    /// Whether redirects that have ended go by themselves, so that [`crate::Switch::sweep`] finds none.
    pub forgets_ended: bool,
    /// Whether what goes to a home can be copied to others ([`crate::Switch::set_group`]).
    pub copies: bool,
    /// Whether packets can be delayed, repeated and overtaken on purpose; all can lose some, or all of them.
    pub delays: bool,
    /// Whether what happens to packets on purpose is the same again for the same seed and the same packets.
    pub seeded: bool,
    /// Whether requests for hot pages are also counted by the port that they come in at ([`crate::HotPage::by_port`]).
    pub counts_by_port: bool,
    /// The longest prefix it routes by, in bits.
    pub prefix_bits_max: u8,
    /// The most redirects at once.
    pub redirects_max: u32,
}

impl Capabilities {
    /// All that a switch can do, from which a choice takes away what it cannot.
    pub(crate) fn all(redirects_max: u32) -> Capabilities {
        Capabilities {
            rootless: true,
            grants: true,
            learns_at_once: true,
            forgets_ended: false,
            copies: true,
            delays: true,
            seeded: true,
            counts_by_port: true,
            prefix_bits_max: 128,
            redirects_max,
        }
    }

    /// Whether it routes by prefixes of this length.
    #[must_use]
    pub fn routes_by(&self, prefix: Prefix) -> bool {
        prefix.bits() <= self.prefix_bits_max
    }
}
