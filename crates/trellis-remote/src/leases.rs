//! Timing and answers of leases, for the two users of the protocol's lease client: [`super::leased`] holds pages for a
//! while, and a [`super::Client`] takes a lease for a single change.
//!
//! Promises: a right ends here before it ends at the server.

use std::ops::RangeInclusive;

use trellis_fabric_protocol::lease::{Status as Said, Timing};
use trellis_fabric_protocol::wire::address::Pointer;
use trellis_fabric_protocol::wire::datagram::{Body, Reply, Status};

use super::CLOCK_ERROR_PPM;

/// The term that a client assumes before it has learnt one, in nanoseconds.
pub(crate) const TERM: u64 = 10_000_000_000;
/// The valid terms of a server, in nanoseconds.
pub(crate) const TERMS: RangeInclusive<u64> = 1_000_000..=u64::MAX >> 8;
/// The divisor of a term that gives the time before its end in which a right is no longer used: an event takes a moment.
const MARGIN_PARTS: u64 = 20;

/// The timing for leases of this term, which end here slightly earlier than required.
pub(crate) fn timing(term: u64, retry: u64) -> Timing {
    let whole = Timing::new(term, term, retry.min(term / 20), CLOCK_ERROR_PPM);
    Timing { held: whole.held - whole.held / MARGIN_PARTS, ..whole }
}

/// The answer of a home in the words of the protocol; `None` for a refusal that only the wire has.
pub(crate) fn status_of(reply: &Reply) -> Option<Said> {
    Some(match (reply.status, reply.body) {
        (Status::Ok, _) => Said::Ok,
        (Status::Moved, Body::Moved(address)) => Said::Moved(Pointer::decode(address).ok()?.home()),
        (Status::Fenced, _) => Said::Fenced,
        (Status::Busy, _) => Said::Busy,
        (Status::Restarting, _) => Said::Restarting,
        (Status::Unserved, _) => Said::Unserved,
        _ => return None,
    })
}
