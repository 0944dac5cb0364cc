//! What a switch can do.

use serde::{Deserialize, Serialize};

/// What a switch can do beyond what all switches can. Constant while the switch is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whether the first UPDATE of a page makes its sender the owner in the path of that packet. If not,
    /// [`crate::Switch::set_redirect`] must be called for every lease.
    pub grants: bool,
    /// Whether a home's answer about a lease takes effect with that packet. If not, it takes effect a moment later, and
    /// before the next call of [`crate::Switch`] returns.
    pub learns_at_once: bool,
    /// Whether redirects that have ended are removed automatically, so that [`crate::Switch::sweep`] finds none.
    pub forgets_ended: bool,
    /// Whether requests to a home can be copied to other ports ([`crate::Switch::set_group`]).
    pub copies: bool,
    /// Whether it can delay, duplicate and reorder packets on purpose; every switch can drop some or all of them.
    pub delays: bool,
    /// Whether requests for hot pages are also counted by the port at which they arrive ([`crate::HotPage::by_port`]).
    pub counts_by_port: bool,
    /// The maximum number of redirects at the same time.
    pub redirects_max: u32,
}

impl Capabilities {
    /// All capabilities; each kind of switch removes those that it lacks.
    pub(crate) fn all(redirects_max: u32) -> Capabilities {
        Capabilities {
            grants: true,
            learns_at_once: true,
            forgets_ended: false,
            copies: true,
            delays: true,
            counts_by_port: true,
            redirects_max,
        }
    }
}
