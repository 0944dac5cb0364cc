//! What a switch saw: counters, hot pages, events.

use std::time::Duration;

use crate::address::Page;
use crate::layout;

/// What became of the packets of one port. Every packet that came in is in exactly one of the first ten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent on to whom the longest prefix or a run of pages names.
    pub delivered: u64,
    /// Sent on to whom a redirect names.
    pub redirected: u64,
    /// Refused: no IPv6, or an address outside the cluster.
    pub not_addressed: u64,
    /// Refused: the host may not speak for the source address.
    pub forged: u64,
    /// Refused: nobody answers for the destination.
    pub no_route: u64,
    /// Refused: no rule allows it.
    pub denied: u64,
    /// Refused: nothing is plugged in there.
    pub no_port: u64,
    /// Refused: the two ports are on different sides of a partition.
    pub partitioned: u64,
    /// Lost on purpose.
    pub dropped: u64,
    /// Lost because more packets waited than may.
    pub overflowed: u64,
    /// Leases granted to the host.
    pub granted: u64,
    /// Leases not noted because the table was full.
    pub table_full: u64,
    /// Events that nobody fetched in time.
    pub events_lost: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Packets that went out to the host, copies included.
    pub packets_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
}

impl Counters {
    /// The names, in the order of [`Counters::values`].
    pub const NAMES: [&'static str; layout::COUNTERS] = [
        "delivered",
        "redirected",
        "not_addressed",
        "forged",
        "no_route",
        "denied",
        "no_port",
        "partitioned",
        "dropped",
        "overflowed",
        "granted",
        "table_full",
        "events_lost",
        "bytes_in",
        "packets_out",
        "bytes_out",
    ];

    /// From numbers in the order of [`Counters::NAMES`].
    #[must_use]
    pub fn from_values(values: &[u64; layout::COUNTERS]) -> Counters {
        let at = |index: usize| values[index];
        Counters {
            delivered: at(layout::COUNT_DELIVERED),
            redirected: at(layout::COUNT_REDIRECTED),
            not_addressed: at(layout::COUNT_NOT_ADDRESSED),
            forged: at(layout::COUNT_FORGED),
            no_route: at(layout::COUNT_NO_ROUTE),
            denied: at(layout::COUNT_DENIED),
            no_port: at(layout::COUNT_NO_PORT),
            partitioned: at(layout::COUNT_PARTITIONED),
            dropped: at(layout::COUNT_DROPPED),
            overflowed: at(layout::COUNT_OVERFLOWED),
            granted: at(layout::COUNT_GRANTED),
            table_full: at(layout::COUNT_TABLE_FULL),
            events_lost: at(layout::COUNT_EVENTS_LOST),
            bytes_in: at(layout::COUNT_BYTES_IN),
            packets_out: at(layout::COUNT_PACKETS_OUT),
            bytes_out: at(layout::COUNT_BYTES_OUT),
        }
    }

    /// The numbers, as [`Counters::NAMES`] calls them.
    #[must_use]
    pub fn values(&self) -> [u64; layout::COUNTERS] {
        [
            self.delivered,
            self.redirected,
            self.not_addressed,
            self.forged,
            self.no_route,
            self.denied,
            self.no_port,
            self.partitioned,
            self.dropped,
            self.overflowed,
            self.granted,
            self.table_full,
            self.events_lost,
            self.bytes_in,
            self.packets_out,
            self.bytes_out,
        ]
    }

    /// Packets that came in.
    #[must_use]
    pub fn packets_in(&self) -> u64 {
        self.values()[..=layout::COUNT_OVERFLOWED].iter().sum()
    }
}

/// A page that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPage {
    /// Which.
    pub page: Page,
    /// How often.
    pub requests: u64,
    /// Ports and how many of these requests came in there, most first; none where
    /// [`crate::Capabilities::counts_by_port`] is not.
    pub by_port: Vec<(u16, u64)>,
}

/// What happened to a lease, as the switch saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A request made its sender the owner; home has not said anything yet.
    Granted,
    /// Home confirmed it.
    Confirmed,
    /// Home refused it, or its renewal.
    Refused,
    /// Home renewed it.
    Renewed,
    /// The owner gave it back, and home took it.
    Returned,
    /// Its term was over when the next request came.
    Expired,
}

impl EventKind {
    /// Every kind, the first of which has the number 1.
    const ALL: [EventKind; 6] = [
        EventKind::Granted,
        EventKind::Confirmed,
        EventKind::Refused,
        EventKind::Renewed,
        EventKind::Returned,
        EventKind::Expired,
    ];

    /// Its number, as in the kernel's events.
    pub(crate) fn number(self) -> u32 {
        self as u32 + 1
    }

    /// The kind with this number.
    pub(crate) fn from_number(number: u32) -> Option<EventKind> {
        EventKind::ALL.get(usize::try_from(number.checked_sub(1)?).ok()?).copied()
    }
}

/// An event of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which page.
    pub page: Page,
    /// The port of the owner, present or past.
    pub port: u16,
    /// The epoch of the lease, 0 where it is not known.
    pub epoch: u64,
    /// When, on the monotonic clock of the machine.
    pub time: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_place_and_its_name() {
        let values: [u64; layout::COUNTERS] = std::array::from_fn(|index| 1 << index);
        let counters = Counters::from_values(&values);
        assert_eq!(counters.values(), values);
        assert_eq!(counters.packets_in(), (1 << (layout::COUNT_OVERFLOWED + 1)) - 1);
        let text = format!("{counters:?}");
        for (name, value) in Counters::NAMES.iter().zip(values) {
            assert!(text.contains(&format!("{name}: {value}")), "{name}: {text}");
        }
    }

    #[test]
    fn kinds_have_the_numbers_of_the_layout() {
        assert_eq!(EventKind::from_number(layout::EVENT_GRANTED), Some(EventKind::Granted));
        assert_eq!(EventKind::from_number(layout::EVENT_CONFIRMED), Some(EventKind::Confirmed));
        assert_eq!(EventKind::from_number(layout::EVENT_REFUSED), Some(EventKind::Refused));
        assert_eq!(EventKind::from_number(layout::EVENT_RENEWED), Some(EventKind::Renewed));
        assert_eq!(EventKind::from_number(layout::EVENT_RETURNED), Some(EventKind::Returned));
        assert_eq!(EventKind::from_number(layout::EVENT_EXPIRED), Some(EventKind::Expired));
        assert_eq!(EventKind::from_number(0), None);
        assert_eq!(EventKind::from_number(7), None);
    }
}
