//! The limits of waits that several links share, and those of `fabric`: the documentation lists them in every build.
//!
//! Promises: the end of a link takes a bounded time, whatever the peers do, and ends soon when they take nothing any
//! more.

use std::time::Duration;

use trellis_base::{Deadline, Limit};

/// How long the peers may take nothing. After that, they are stopped, or their machines are gone.
pub(crate) const STALL: Deadline = Deadline {
    who: "the link tcp, shm or udp, when a node ends",
    waits_for: "its peers, to take something of what was sent",
    limit: Limit::seconds(1),
    then: "the node ends",
    tested: "crates/trellis-transport/src/links/waits.rs the_end_of_a_link_is_bounded_whatever_is_taken",
};
/// How long the end of a link may take, even if the peers continue to take frames.
pub(crate) const CLOSE: Deadline =
    Deadline { waits_for: "its peers, to take all of what was sent", limit: Limit::seconds(10), ..STALL };
/// How long a peer that does not poll may delay the end of this node's link.
pub(crate) const FABRIC_WRITES: Deadline = Deadline {
    who: "the link fabric, when a node ends",
    waits_for: "its peers, to confirm what was written to them",
    limit: Limit::seconds(1),
    then: "the node ends",
    tested: "crates/trellis-transport/tests/fabric_writes.rs a_peer_that_does_not_poll_keeps_no_node_from_leaving",
};
/// How long the fabric may not reach a peer whose tcp connection is up. After that, the peer is lost.
pub(crate) const FABRIC_BROKEN: Deadline = Deadline {
    who: "the link fabric",
    waits_for: "a peer that only tcp reaches",
    limit: Limit::seconds(1),
    then: "the peer is lost, by name",
    tested: "no provider on one host breaks while tcp goes on",
};
/// How long the provider may not return the reads from a lost peer. After that, the endpoint is ended.
pub(crate) const FABRIC_READS: Deadline = Deadline {
    who: "the link fabric",
    waits_for: "the provider, to give back reads from a peer that is gone",
    limit: Limit::seconds(5),
    then: "the endpoint is ended",
    tested: "no provider on one host keeps the reads from a process that is gone",
};

/// How long a look-up of a host's name may take. The system does it, here and in other crates.
pub(crate) const NAME: Deadline = Deadline {
    who: "a process that looks up the name of a host",
    waits_for: "the system's answer",
    limit: Limit::Other("as long as resolv.conf(5) says"),
    then: "an error that names the host",
    tested: "the system keeps this limit",
};

/// The progress of the end of a link.
pub(crate) struct Closing {
    progress: u64,
    since: Duration,
}

impl Closing {
    pub(crate) fn new() -> Closing {
        Closing { progress: u64::MAX, since: Duration::ZERO }
    }

    /// Whether the rest is given up. `progress` changes when something is taken; `passed` is the time since the
    /// beginning.
    pub(crate) fn is_over(&mut self, progress: u64, passed: Duration) -> bool {
        if progress != self.progress {
            (self.progress, self.since) = (progress, passed);
        }
        passed - self.since >= STALL.time() || passed >= CLOSE.time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_link_is_bounded_whatever_is_taken() {
        let at = Duration::from_millis;
        let mut closing = Closing::new();
        assert!(!closing.is_over(5, at(100)) && !closing.is_over(5, at(1_099)));
        assert!(!closing.is_over(4, at(1_100)), "something was taken in the last moment");
        assert!(!closing.is_over(4, at(2_099)) && closing.is_over(4, at(2_100)));
        let mut closing = Closing::new();
        assert!((0..100).all(|turn| !closing.is_over(turn, at(100 * turn))));
        assert!(closing.is_over(100, at(10_000)), "more could be taken");
    }
}
