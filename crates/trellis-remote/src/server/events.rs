//! What happens to the ranges of a server, for its operator: one sentence each.

use std::fmt;
use std::time::Duration;

use trellis_fabric_protocol::wire::address::HostPrefix;
use trellis_fabric_protocol::wire::refusals::Refusal;

/// A range, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The range.
    pub range: HostPrefix,
    /// Of a part: its number.
    pub part: Option<u16>,
    /// Of a part: its first page, as the range numbers them, and how many it has.
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
                write!(f, "part {number} (pages {first}-{last} of range {range})")
            }
        }
    }
}

/// Something that an operator wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// This server is home of a range from now on.
    Began {
        /// What.
        place: Place,
        /// In this incarnation of its home.
        incarnation: u16,
        /// Who has copies.
        backups: Vec<HostPrefix>,
        /// What it held before, if anything, is lost.
        is_anew: bool,
        /// How many objects it has.
        objects: u64,
    },
    /// This server is home of a range no more.
    Ended {
        /// What.
        place: Place,
        /// Who is.
        home: HostPrefix,
        /// It was handed over; otherwise it was taken over.
        is_handed: bool,
    },
    /// The backups of a range that this server is home of are others.
    Backups {
        /// What.
        place: Place,
        /// These.
        backups: Vec<HostPrefix>,
    },
    /// Every backup has everything.
    Settled {
        /// What.
        place: Place,
    },
    /// No controller answers: a range is not served.
    Lapsed {
        /// What.
        place: Place,
        /// For so long.
        silence: Duration,
    },
    /// A controller answers again: a range is served.
    Resumed {
        /// What.
        place: Place,
    },
    /// There is room here for a copy of a range.
    Introduced {
        /// What.
        place: Place,
        /// So much.
        bytes: u64,
    },
    /// There is none.
    NoRoom {
        /// What.
        place: Place,
        /// So much was wanted.
        bytes: u64,
        /// So much is left.
        spare_bytes: u64,
    },
    /// Nobody counts on what was here of a range: it is forgotten.
    Forgotten {
        /// What.
        place: Place,
        /// So much can be given to others again.
        bytes: u64,
    },
    /// Pages of a range have a home of their own from now on.
    Cut {
        /// Which.
        place: Place,
    },
    /// They belong to their range again.
    Joined {
        /// Which.
        place: Place,
    },
    /// Another controller is asked from now on.
    Controller {
        /// It.
        host: HostPrefix,
        /// Who did not answer.
        before: HostPrefix,
    },
    /// What somebody sent is refused.
    Refused(Refusal),
    /// Its table cannot be read, so that it is not served.
    NoTable {
        /// What.
        place: Place,
        /// Why.
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
            Event::Began { place, incarnation, backups, is_anew: true, .. } => {
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
            Event::Cut { place } => write!(f, "{place} has a home of its own"),
            Event::Joined { place } => write!(f, "{place} belongs to its range again"),
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
        let of = |backups, is_anew| Event::Began { place, incarnation: 3, backups, is_anew, objects: 2 }.to_string();
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
        let place = Place { part: Some(0xf002), pages: (16, 64), ..place };
        assert_eq!(
            Event::Cut { place }.to_string(),
            "part 61442 (pages 16-79 of range fd00:1:7::/48) has a home of its own"
        );
    }
}
