//! What a switch has observed: counters, hot pages, events.

use std::time::Duration;

use crate::address::Page;
use crate::layout;

/// The counts of the packets of one port. Every packet that arrives is counted in exactly one of the first ten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Forwarded to the port of the longest prefix or of a page range.
    pub delivered: u64,
    /// Forwarded to the port of a redirect.
    pub redirected: u64,
    /// Refused: not IPv6, or an address outside the cluster.
    pub not_addressed: u64,
    /// Refused: the host may not use the source address.
    pub forged: u64,
    /// Refused: no route to the destination.
    pub no_route: u64,
    /// Refused: no rule allows it.
    pub denied: u64,
    /// Refused: no host is connected at that port.
    pub no_port: u64,
    /// Refused: the two ports are on different sides of a partition.
    pub partitioned: u64,
    /// Dropped on purpose.
    pub dropped: u64,
    /// Lost because too many packets were queued.
    pub overflowed: u64,
    /// Leases granted to the host.
    pub granted: u64,
    /// Leases that were not recorded because the table was full.
    pub table_full: u64,
    /// Events that were not fetched in time.
    pub events_lost: u64,
    /// Bytes that arrived.
    pub bytes_in: u64,
    /// Packets that were sent to the host, including copies.
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

    /// Counters from values in the order of [`Counters::NAMES`].
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

    /// The values, in the order of [`Counters::NAMES`].
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

    /// The number of packets that arrived.
    #[must_use]
    pub fn packets_in(&self) -> u64 {
        self.values()[..=layout::COUNT_OVERFLOWED].iter().sum()
    }
}

/// A page with requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPage {
    /// The page.
    pub page: Page,
    /// The number of requests.
    pub requests: u64,
    /// Ports, and how many of these requests arrived there, most first; empty without
    /// [`crate::Capabilities::counts_by_port`].
    pub by_port: Vec<(u16, u64)>,
}

/// A change of a lease, as observed by the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A request made its sender the owner; the home has not answered yet.
    Granted,
    /// The home confirmed it.
    Confirmed,
    /// The home refused it or its renewal.
    Refused,
    /// The home renewed it.
    Renewed,
    /// The owner returned it, and the home accepted.
    Returned,
    /// Its term had ended when the next request arrived.
    Expired,
}

impl EventKind {
    /// Every kind; the first has number 1.
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
    /// The kind of change.
    pub kind: EventKind,
    /// The page.
    pub page: Page,
    /// The port of the present or past owner.
    pub port: u16,
    /// The epoch of the lease; 0 if it is not known.
    pub epoch: u64,
    /// The time on the machine's monotonic clock.
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
