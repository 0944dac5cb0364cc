//! The state of a request that has no final answer yet.
//!
//! Promises: a request that was sent keeps its number until a server that would have recorded it answers that nothing
//! was done; at the deadline its result includes the last status received. It must never send anything.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::wire::address::Host;
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_transport::links::ipv6::NoAnswer;

use super::CLIENT;
use super::asking::{End, Failure, Wanted};

/// How long a home that has backups is asked for leases at once.
pub(crate) const BACKUPS: Deadline = Deadline {
    who: CLIENT,
    waits_for: "a home that has backups, to take changes without a lease again",
    limit: Limit::seconds(10),
    then: "a change is tried without a lease again",
    tested: "crates/trellis-remote/src/client/waiting.rs a_home_that_had_backups_is_tried_without_a_lease_again",
};
/// How many incarnations of granting homes are remembered for a range: of its home, and of its parts'.
const INCARNATIONS_MAX: usize = 16;

/// How a request is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// By a single request.
    Plain,
    /// Under a lease.
    ByLease,
    /// A READ whose bytes are at several homes: one page at a time.
    ByPage,
}

/// See the top of this file.
pub(super) struct Wait {
    pub(super) end: Option<End>,
    pub(super) way: Way,
    /// The number under which it may have been done.
    pub(super) number: Option<u64>,
    /// How often it was sent under that number.
    pub(super) asks: u32,
    /// The session in which it is sent, if that has changed, and how often it has.
    epoch: Option<u64>,
    pub(super) sessions: u32,
    /// Datagrams without an answer.
    pub(super) sent: u32,
    /// How often the answer was BUSY.
    pub(super) busy: u32,
    /// The last status, and the host that it named.
    pub(super) heard: Option<(Status, Option<Host>)>,
}

impl Wait {
    pub(super) fn new(way: Way) -> Wait {
        Wait { end: None, way, number: None, asks: 0, epoch: None, sessions: 0, sent: 0, busy: 0, heard: None }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.way == Way::Plain
    }

    /// Records that the home cannot do it now, and remembers that under this number.
    pub(super) fn is_busy(&mut self, status: Status) {
        self.heard = Some((status, None));
        (self.number, self.asks) = (None, 0);
        self.busy += 1;
    }

    /// Records that it was not done, and is sent again in this session, unless there is none.
    pub(super) fn send_in_session(&mut self, epoch: u64, failure: Option<Failure>) {
        self.end = failure.map(Err);
        (self.number, self.asks, self.epoch) = (None, 0, Some(epoch));
        self.sessions += 1;
    }

    /// The request, in its current session.
    pub(super) fn again<'a>(&self, wanted: &Wanted<'a>) -> Wanted<'a> {
        Wanted { epoch: self.epoch.unwrap_or(wanted.epoch), ..*wanted }
    }

    /// Uses a lease from now on.
    pub(super) fn take_a_lease(&mut self) {
        (self.way, self.number) = (Way::ByLease, None);
    }

    /// Proceeds page by page from now on.
    pub(super) fn go_by_page(&mut self) {
        (self.way, self.number) = (Way::ByPage, None);
    }

    /// Its result, or the state at the deadline.
    pub(super) fn ended(self, wanted: &Wanted<'_>, waited: Duration) -> End {
        let &Wanted { command, pointer, .. } = wanted;
        match (self.end, self.heard) {
            (Some(end), _) => end,
            (None, Some((status, moved_to))) if status.is_of_no_home() => {
                Err(Failure::Unserved { command, pointer, status, moved_to, sent: self.sent, waited })
            }
            (None, Some((status, _))) if self.number.is_none() => Ok(status),
            // It was sent again after the last status, and that may have been done.
            (None, _) => {
                let to = pointer.request(command, wanted.arguments).encode().0;
                Err(Failure::Silent(NoAnswer { to, sent: self.sent, waited, error: None }))
            }
        }
    }
}

/// The indexes of open requests with this property.
pub(super) fn places(waits: &[Wait], is_so: impl Fn(&Wait) -> bool) -> Vec<usize> {
    let is_one = |place: &usize| waits[*place].end.is_none() && is_so(&waits[*place]);
    (0..waits.len()).filter(is_one).collect()
}

/// What is known of homes.
#[derive(Default)]
pub(super) struct Homes(BTreeMap<Host, Known>);

#[derive(Clone, Default)]
struct Known {
    /// Until then the home is assumed to have backups.
    backups_until: Option<Instant>,
    /// The incarnations of those that granted leases, the latest last.
    incarnations: VecDeque<u16>,
}

impl Homes {
    /// Records that a home refuses changes without a lease.
    pub(super) fn has_backups(&mut self, home: Host, now: Instant) {
        self.0.entry(home).or_default().backups_until = Some(now + BACKUPS.time());
    }

    /// Whether it did so recently.
    pub(super) fn wants_leases(&self, home: Host, now: Instant) -> bool {
        self.0.get(&home).and_then(|known| known.backups_until).is_some_and(|until| now < until)
    }

    /// Records that a home with this incarnation has granted a lease; returns whether the range's home may have
    /// changed. Parts of a range have homes and incarnations of their own, and incarnations that granted before are not
    /// news.
    pub(super) fn granted(&mut self, home: Host, incarnation: u16) -> bool {
        let known = &mut self.0.entry(home).or_default().incarnations;
        let is_first = known.is_empty();
        if let Some(place) = known.iter().position(|it| *it == incarnation) {
            known.remove(place);
            known.push_back(incarnation);
            return false;
        }
        if known.len() == INCARNATIONS_MAX {
            known.pop_front();
        }
        known.push_back(incarnation);
        !is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_beside_its_range_is_no_other_home_each_time() {
        let (mut homes, home) = (Homes::default(), Host(7));
        let granted = [3, 9, 3, 9, 3, 4, 9].map(|incarnation| homes.granted(home, incarnation));
        assert_eq!(granted, [false, true, false, false, false, true, false]);
        assert!(!homes.granted(Host(8), 3), "the first of another");
        for incarnation in 100..100 + INCARNATIONS_MAX as u16 {
            assert!(homes.granted(home, incarnation));
        }
        assert!(homes.granted(home, 3), "so much is remembered, and no more");
    }

    #[test]
    fn a_home_that_had_backups_is_tried_without_a_lease_again() {
        let (mut homes, home, now) = (Homes::default(), Host(7), Instant::now());
        assert!(!homes.wants_leases(home, now));
        homes.has_backups(home, now);
        assert!(homes.wants_leases(home, now + Duration::from_millis(9_999)) && !homes.wants_leases(Host(8), now));
        assert!(!homes.wants_leases(home, now + Duration::from_secs(10)));
    }
}
