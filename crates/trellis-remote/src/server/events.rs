//! Events of a server's ranges, for its operator: one sentence each.

use std::fmt;
use std::time::Duration;

use trellis_fabric_protocol::lease::RangeNumber;
use trellis_fabric_protocol::wire::address::HostPrefix;
use trellis_fabric_protocol::wire::refusals::Refusal;

/// A range, or a part of one (a subrange with a home of its own).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The range.
    pub range: HostPrefix,
    /// The part's number, for a part.
    pub part: Option<RangeNumber>,
    /// The part's first page, as the range numbers them, and its number of pages.
    pub pages: (u64, u64),
}

impl Place {
    /// All of a range.
    pub(super) fn whole(range: HostPrefix) -> Place {
        Place { range, part: None, pages: (0, 0) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Place { range, part, pages: (first, pages) } = self;
        match part {
            None => write!(f, "range {range}"),
            Some(number) => {
                let last = (first + pages).saturating_sub(1);
                write!(f, "part {} (pages {first}-{last} of range {range})", number.0)
            }
        }
    }
}

/// An event for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// This server is home of a range from now on.
    Began {
        /// The range or part.
        place: Place,
        /// The incarnation of its home.
        incarnation: u16,
        /// The hosts with copies.
        backups: Vec<HostPrefix>,
        /// Whether the range begins empty, so that any earlier content is lost.
        begins_empty: bool,
        /// The number of its objects.
        objects: u64,
    },
    /// This server is no longer home of a range.
    Ended {
        /// The range or part.
        place: Place,
        /// The new home.
        home: HostPrefix,
        /// Whether it was handed over; otherwise it was taken over.
        is_handed: bool,
    },
    /// The backups of a range of which this server is home have changed.
    Backups {
        /// The range or part.
        place: Place,
        /// The new backups.
        backups: Vec<HostPrefix>,
    },
    /// Every backup is up to date.
    Settled {
        /// The range or part.
        place: Place,
    },
    /// No controller answers, so a range is not served.
    Lapsed {
        /// The range or part.
        place: Place,
        /// How long the controller has been silent.
        silence: Duration,
    },
    /// A controller answers again, and a range is served.
    Resumed {
        /// The range or part.
        place: Place,
    },
    /// This server has reserved room for a copy of a range.
    Introduced {
        /// The range or part.
        place: Place,
        /// Its size.
        bytes: u64,
    },
    /// There is no room for a copy of a range.
    NoRoom {
        /// The range or part.
        place: Place,
        /// The required size.
        bytes: u64,
        /// The remaining memory.
        spare_bytes: u64,
    },
    /// A copy that no home needs was dropped.
    Forgotten {
        /// The range or part.
        place: Place,
        /// The memory that became available.
        bytes: u64,
    },
    /// Pages of a range were split off and have a home of their own from now on.
    Split {
        /// The part.
        place: Place,
    },
    /// A part was merged into its range again.
    Merged {
        /// The part.
        place: Place,
    },
    /// Reports go to another controller from now on.
    Controller {
        /// The new controller.
        host: HostPrefix,
        /// The controller that did not answer.
        before: HostPrefix,
    },
    /// A datagram was refused.
    Refused(Refusal),
    /// The range's table cannot be read, so it is not served.
    NoTable {
        /// The range or part.
        place: Place,
        /// The reason.
        why: String,
    },
}

fn hosts(f: &mut fmt::Formatter<'_>, hosts: &[HostPrefix]) -> fmt::Result {
    match hosts {
        [] => f.write_str("nobody has a copy"),
        [one] => write!(f, "{one} gets every commit"),
        many => {
            for (at, host) in many.iter().enumerate() {
                write!(f, "{}{host}", if at == 0 { "" } else { ", " })?;
            }
            f.write_str(" get every commit")
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Began { place, incarnation, backups, begins_empty: true, .. } => {
                write!(f, "{place} begins here without objects, in incarnation {incarnation}; ")?;
                hosts(f, backups)
            }
            Event::Began { place, incarnation, backups, objects, .. } => {
                write!(f, "{place} is served here from now on with {objects} objects, in incarnation {incarnation}; ")?;
                hosts(f, backups)
            }
            Event::Ended { place, home, is_handed: true } => {
                write!(f, "{place} was handed over to {home}")
            }
            Event::Ended { place, home, .. } => {
                write!(f, "{place} was given to {home} and is not served here any more")
            }
            Event::Backups { place, backups } => {
                write!(f, "of {place} ")?;
                hosts(f, backups)
            }
            Event::Settled { place } => write!(f, "every backup of {place} has all of it"),
            Event::Lapsed { place, silence } => write!(
                f,
                "{place} is not served: no controller answered for {silence:?}; look whether `trellis controller` runs"
            ),
            Event::Resumed { place } => write!(f, "{place} is served again"),
            Event::Introduced { place, bytes } => write!(f, "{bytes} bytes are set aside for a copy of {place}"),
            Event::NoRoom { place, bytes, spare_bytes } => write!(
                f,
                "{place} cannot be kept here: it has {bytes} bytes and {spare_bytes} are left; give more with --backup-memory"
            ),
            Event::Forgotten { place, bytes } => {
                write!(
                    f,
                    "{place} is forgotten here, because nobody counts on it; {bytes} bytes can be given to others"
                )
            }
            Event::Split { place } => write!(f, "{place} has a home of its own"),
            Event::Merged { place } => write!(f, "{place} belongs to its range again"),
            Event::Controller { host, before } => {
                write!(f, "controller {before} does not answer; controller {host} is asked from now on")
            }
            Event::Refused(refusal) => refusal.fmt(f),
            Event::NoTable { place, why } => write!(f, "{place} cannot be served: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_sentence() {
        let host = |number: u16| format!("fd00:1:{number:x}::/48").parse::<HostPrefix>().expect("a prefix");
        let place = Place::whole(host(7));
        let of = |backups, begins_empty| {
            Event::Began { place, incarnation: 3, backups, begins_empty, objects: 2 }.to_string()
        };
        let sentence = "range fd00:1:7::/48 is served here from now on with 2 objects, in incarnation 3; ";
        assert_eq!(of(vec![], false), format!("{sentence}nobody has a copy"));
        assert_eq!(
            of(vec![host(8), host(9)], false),
            format!("{sentence}fd00:1:8::/48, fd00:1:9::/48 get every commit")
        );
        let sentence = "range fd00:1:7::/48 begins here without objects, in incarnation 3; nobody has a copy";
        assert_eq!(of(vec![], true), sentence);
        let backups = Event::Backups { place, backups: vec![host(8)] };
        assert_eq!(backups.to_string(), "of range fd00:1:7::/48 fd00:1:8::/48 gets every commit");
        let place = Place { part: Some(RangeNumber(0xf002)), pages: (16, 64), ..place };
        assert_eq!(
            Event::Split { place }.to_string(),
            "part 61442 (pages 16-79 of range fd00:1:7::/48) has a home of its own"
        );
    }
}
