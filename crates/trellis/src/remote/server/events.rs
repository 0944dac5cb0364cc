//! What happens to the ranges of a server, for its operator: one sentence each.

use std::fmt;
use std::time::Duration;

use trellis_protocol::wire::address::HostPrefix;

/// Something that an operator wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// This server is home of a range from now on.
    Began {
        /// The range.
        range: HostPrefix,
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
        /// The range.
        range: HostPrefix,
        /// Who is.
        home: HostPrefix,
        /// It was handed over; otherwise it was taken over.
        is_handed: bool,
    },
    /// The backups of a range that this server is home of are others.
    Backups {
        /// The range.
        range: HostPrefix,
        /// These.
        backups: Vec<HostPrefix>,
    },
    /// Every backup has everything.
    Settled {
        /// The range.
        range: HostPrefix,
    },
    /// No controller answers: a range is not served.
    Lapsed {
        /// The range.
        range: HostPrefix,
        /// For so long.
        silence: Duration,
    },
    /// A controller answers again: a range is served.
    Resumed {
        /// The range.
        range: HostPrefix,
    },
    /// There is room here for a copy of a range.
    Introduced {
        /// The range.
        range: HostPrefix,
        /// So much.
        bytes: u64,
    },
    /// There is none.
    NoRoom {
        /// The range.
        range: HostPrefix,
        /// So much was wanted.
        bytes: u64,
        /// So much is left.
        spare_bytes: u64,
    },
    /// Another controller is asked from now on.
    Controller {
        /// It.
        host: HostPrefix,
        /// Who did not answer.
        before: HostPrefix,
    },
    /// Its table cannot be read, so that it is not served.
    NoTable {
        /// The range.
        range: HostPrefix,
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
            Event::Began { range, incarnation, backups, is_anew: true, .. } => {
                write!(f, "range {range} begins here without objects, in incarnation {incarnation}; ")?;
                hosts(f, backups)
            }
            Event::Began { range, incarnation, backups, objects, .. } => {
                write!(
                    f,
                    "range {range} is served here from now on with {objects} objects, in incarnation {incarnation}; "
                )?;
                hosts(f, backups)
            }
            Event::Ended { range, home, is_handed: true } => {
                write!(f, "range {range} was handed over to {home}")
            }
            Event::Ended { range, home, .. } => {
                write!(f, "range {range} was given to {home} and is not served here any more")
            }
            Event::Backups { range, backups } => {
                write!(f, "of range {range} ")?;
                hosts(f, backups)
            }
            Event::Settled { range } => write!(f, "every backup of range {range} has all of it"),
            Event::Lapsed { range, silence } => write!(
                f,
                "range {range} is not served: no controller answered for {silence:?}; look whether `trellis controller` runs"
            ),
            Event::Resumed { range } => write!(f, "range {range} is served again"),
            Event::Introduced { range, bytes } => write!(f, "{bytes} bytes are set aside for a copy of range {range}"),
            Event::NoRoom { range, bytes, spare_bytes } => write!(
                f,
                "range {range} cannot be kept here: it has {bytes} bytes and {spare_bytes} are left; give more with --backup-memory"
            ),
            Event::Controller { host, before } => {
                write!(f, "controller {before} does not answer; controller {host} is asked from now on")
            }
            Event::NoTable { range, why } => write!(f, "range {range} cannot be served: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_sentence() {
        let host = |number: u16| format!("fd00:1:{number:x}::/48").parse::<HostPrefix>().expect("a prefix");
        let range = host(7);
        let of = |backups, is_anew| Event::Began { range, incarnation: 3, backups, is_anew, objects: 2 }.to_string();
        let sentence = "range fd00:1:7::/48 is served here from now on with 2 objects, in incarnation 3; ";
        assert_eq!(of(vec![], false), format!("{sentence}nobody has a copy"));
        assert_eq!(
            of(vec![host(8), host(9)], false),
            format!("{sentence}fd00:1:8::/48, fd00:1:9::/48 get every commit")
        );
        let sentence = "range fd00:1:7::/48 begins here without objects, in incarnation 3; nobody has a copy";
        assert_eq!(of(vec![], true), sentence);
        let backups = Event::Backups { range, backups: vec![host(8)] };
        assert_eq!(backups.to_string(), "of range fd00:1:7::/48 fd00:1:8::/48 gets every commit");
    }
}
