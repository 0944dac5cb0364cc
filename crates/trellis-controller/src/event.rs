//! The events for operators, one sentence each: fact, place, next step.

use std::fmt;
use std::time::Duration;

use trellis_fabric_protocol::wire::address::HostPrefix;
use trellis_fabric_protocol::wire::refusals::Refusal;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// This controller leads from now on.
    Leads {
        /// The number of ranges that have records.
        ranges: usize,
    },
    /// Another controller leads.
    Waits {
        /// Its host.
        leader: HostPrefix,
    },
    /// This controller no longer leads.
    Yields {
        /// The reason.
        why: String,
    },
    /// The store of records failed.
    Store {
        /// Its error.
        sentence: String,
    },
    /// A datagram was refused.
    Refused(Refusal),
    /// A server was heard for the first time, or again.
    Server {
        /// The server.
        server: HostPrefix,
        /// The memory that it provides for ranges of other hosts.
        spare_bytes: u64,
    },
    /// A server is silent.
    ServerSilent {
        /// The server.
        server: HostPrefix,
        /// How long it has been silent.
        silence: Duration,
    },
    /// A server has other times than this controller: it is not answered.
    Times {
        /// The server.
        server: HostPrefix,
        /// The server's lease term and home lease.
        theirs: (Duration, Duration),
        /// This controller's.
        ours: (Duration, Duration),
    },
    /// A new range.
    New {
        /// The range.
        range: HostPrefix,
        /// The number of its pages.
        pages: u64,
    },
    /// A server reports a range that no record names.
    Unknown {
        /// The range.
        range: HostPrefix,
        /// The server.
        server: HostPrefix,
    },
    /// A server has come back, but its memory has another size.
    Size {
        /// The range.
        range: HostPrefix,
        /// Its number of pages.
        pages: u64,
        /// The number of pages that the server has now.
        offered: u64,
    },
    /// The home lease of a range has ended without being renewed.
    Silent {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
        /// How long the home has been silent.
        silence: Duration,
        /// The hosts that can take over.
        complete: Vec<HostPrefix>,
    },
    /// A range has another home, or the same one after a restart.
    Home {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
        /// The home's incarnation.
        incarnation: u16,
        /// The previous home.
        before: HostPrefix,
        /// The time since the previous home lease had ended.
        after: Option<Duration>,
        /// Whether the range began empty.
        begins_empty: bool,
    },
    /// A silent home is heard again, before another host took over.
    Again {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
    },
    /// No host can serve a range.
    Unserved {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
        /// Whether the home came back without its content.
        is_blank: bool,
    },
    /// A server becomes a backup.
    Backs {
        /// The range.
        range: HostPrefix,
        /// The server.
        host: HostPrefix,
    },
    /// All backups are up to date.
    Complete {
        /// The range.
        range: HostPrefix,
        /// The backups.
        backups: Vec<HostPrefix>,
    },
    /// A range has had too few complete copies for long.
    Incomplete {
        /// The range.
        range: HostPrefix,
        /// The number of complete copies.
        complete: usize,
        /// The required number.
        wanted: usize,
        /// How long this has lasted.
        since: Duration,
        /// The hosts that are being updated.
        hosts: Vec<HostPrefix>,
    },
    /// A backup no longer counts.
    Dropped {
        /// The range.
        range: HostPrefix,
        /// The backup.
        host: HostPrefix,
    },
    /// A range begins to move.
    Moves {
        /// The range.
        range: HostPrefix,
        /// Its home.
        from: HostPrefix,
        /// The destination.
        to: HostPrefix,
    },
    /// A server did not take what it was given.
    Declined {
        /// The range.
        range: HostPrefix,
        /// The server.
        host: HostPrefix,
    },
    /// A drained server is empty.
    Drained {
        /// The server.
        server: HostPrefix,
    },
    /// A range should have more backups, and no server can be one.
    Lacks {
        /// The range.
        range: HostPrefix,
        /// The number of its backups.
        backups: usize,
        /// The size of a copy.
        bytes: u64,
        /// The hosts that were named in the directive and are not backups.
        hosts: Vec<HostPrefix>,
    },
    /// No server can take what a drained server has.
    NoPlace {
        /// The range.
        range: HostPrefix,
        /// The server that is drained.
        server: HostPrefix,
    },
    /// A server has a host number that is reserved for parts.
    PartNumber {
        /// The server.
        server: HostPrefix,
    },
    /// Pages of a range were split off: they have a home and a record of their own from now on.
    Split {
        /// The range.
        range: HostPrefix,
        /// The first and the last of them.
        pages: (u64, u64),
        /// The number of the part.
        part: HostPrefix,
    },
    /// A range, or some of its pages, cannot move as requested.
    Stays {
        /// The range or part.
        range: HostPrefix,
        /// For pages that are not a part: the first and the last of them.
        pages: Option<(u64, u64)>,
        /// The reason.
        why: String,
    },
    /// A part was merged into its range again.
    Merged {
        /// The range.
        range: HostPrefix,
        /// The first and the last of them.
        pages: (u64, u64),
        /// The number that was the part's.
        part: HostPrefix,
    },
    /// Most requests for pages come from hosts that are local to a server but not to the pages' home.
    Pulled {
        /// The range.
        range: HostPrefix,
        /// The first and the last of them.
        pages: (u64, u64),
        /// That server.
        host: HostPrefix,
        /// Requests per second for them.
        per_second: u64,
    },
    /// Another server than its home answers READs of a hot page, too.
    Replica {
        /// The range.
        range: HostPrefix,
        /// The page.
        page: u64,
        /// That server.
        host: HostPrefix,
        /// Requests per second for the page.
        per_second: u64,
    },
    /// That server no longer answers READs of the page.
    NoReplica {
        /// The range.
        range: HostPrefix,
        /// The page.
        page: u64,
        /// That server.
        host: HostPrefix,
        /// The number of READs that it answered.
        answered: u64,
        /// The reason.
        why: Because,
    },
    /// The switch was sent all routes, because it or this controller was started.
    Routes {
        /// The kind of the switch.
        switch: String,
        /// The number of ranges that are not at their own hosts.
        elsewhere: usize,
    },
    /// The switch failed to do what it was sent.
    Switch {
        /// Its error.
        sentence: String,
    },
}

/// Why only its home answers a page again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// Few requests for it.
    Cold,
    /// It was changed.
    Changed,
    /// The other server did not get a copy of it.
    NoCopy,
    /// The other server answered little of what was requested: writes, or more than one page at a time.
    Useless,
    /// The other server is not available.
    Gone,
}

fn list(f: &mut fmt::Formatter<'_>, hosts: &[HostPrefix]) -> fmt::Result {
    for (place, host) in hosts.iter().enumerate() {
        write!(f, "{}{host}", if place == 0 { "" } else { ", " })?;
    }
    Ok(())
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Leads { ranges } => {
                write!(f, "this controller leads from now on; there are records of {ranges} ranges")
            }
            Event::Waits { leader } => write!(f, "controller {leader} leads; this one waits until it is gone"),
            Event::Yields { why } => write!(f, "this controller says nothing any more: {why}"),
            Event::Store { sentence } => f.write_str(sentence),
            Event::Refused(refusal) => refusal.fmt(f),
            Event::Server { server, spare_bytes } => {
                write!(f, "server {server} is there, with {spare_bytes} bytes for copies of what others have")
            }
            Event::ServerSilent { server, silence } => {
                write!(f, "server {server}: nothing is heard of it for {silence:?}")
            }
            Event::Times { server, theirs, ours } => write!(
                f,
                "server {server} has leases of {:?} and a home lease of {:?}, and this controller {:?} and {:?}; it is not answered: start \
                 it with the same --lease-term and --home-lease",
                theirs.0, theirs.1, ours.0, ours.1
            ),
            Event::New { range, pages } => write!(f, "range {range}: it is new, with {pages} pages at its own host"),
            Event::Unknown { range, server } => write!(
                f,
                "range {range}: server {server} tells of it and no record names it; look whether --records is the right store"
            ),
            Event::Size { range, pages, offered } => write!(
                f,
                "range {range}: it has {pages} pages and its server has {offered} now; start that one with the --memory that it had"
            ),
            Event::Silent { range, home, silence, complete } => {
                write!(f, "range {range}: nothing is heard of its home {home} for {silence:?}; ")?;
                match complete.as_slice() {
                    [] => f.write_str("nobody else has all of it"),
                    hosts => {
                        f.write_str("called up: ")?;
                        list(f, hosts)
                    }
                }
            }
            Event::Home { range, home, incarnation, before, after, begins_empty } => {
                write!(f, "range {range}: home is {home}, incarnation {incarnation}")?;
                if before == home {
                    f.write_str(if *begins_empty { ", begins empty" } else { ", started again" })?;
                } else {
                    write!(f, ", after {before}")?;
                }
                after.map_or(Ok(()), |after| write!(f, "; {after:.1?} after the right of the home before had ended"))
            }
            Event::Again { range, home } => write!(f, "range {range}: its home {home} is heard again and goes on"),
            Event::Unserved { range, home, is_blank: true } => write!(
                f,
                "range {range}: nobody has what it held, its home {home} came back without it; `trellis controller reset {range}` \
                 makes it begin empty"
            ),
            Event::Unserved { range, home, .. } => write!(
                f,
                "range {range}: nobody answers for it; start its home {home} again, or, if what it held is lost, let \
                 `trellis controller reset {range}` make it begin empty"
            ),
            Event::Backs { range, host } => write!(f, "range {range}: {host} becomes a backup"),
            Event::Complete { range, backups } => {
                write!(f, "range {range}: complete at ")?;
                list(f, backups)
            }
            Event::Incomplete { range, complete, wanted, since, hosts } => {
                write!(
                    f,
                    "range {range}: {complete} of its {wanted} copies are complete for {} s now",
                    since.as_secs()
                )?;
                if let [_, ..] = hosts.as_slice() {
                    f.write_str(", and pages are on their way to ")?;
                    list(f, hosts)?;
                }
                let risk = if *complete == 0 { "; what it holds is lost if its home dies" } else { "" };
                write!(f, "{risk}; look for lost packets (`trellis switch status`) and for load at these servers")
            }
            Event::Dropped { range, host } => write!(f, "range {range}: {host} is a backup no more"),
            Event::Moves { range, from, to } => write!(f, "range {range}: moves from {from} to {to}"),
            Event::Declined { range, host } => write!(
                f,
                "range {range}: server {host} did not take it within its time; look whether it has enough --backup-memory"
            ),
            Event::Drained { server } => write!(f, "server {server}: nothing is left on it; it may be ended"),
            Event::Lacks { range, backups, bytes, hosts } if hosts.is_empty() => write!(
                f,
                "range {range}: it shall have more than {backups} backups, and no other server has the {bytes} bytes of a copy left; \
                 start one with more --backup-memory"
            ),
            Event::Lacks { range, bytes, hosts, .. } => {
                write!(f, "range {range}: no backup is made at ")?;
                list(f, hosts)?;
                write!(
                    f,
                    ", which have not the {bytes} bytes of a copy left, are drained, or are not there; give them more --backup-memory, "
                )?;
                write!(f, "or say `trellis controller backups {range}` with others")
            }
            Event::NoPlace { range, server } => write!(
                f,
                "range {range}: no server has room for what {server} has to give away; start one with more --backup-memory"
            ),
            Event::PartNumber { server } => write!(
                f,
                "server {server}: numbers from f000 on name parts of ranges, and no host; it is not answered: start it with another \
                 --prefix"
            ),
            Event::Split { range, pages: (first, last), part } => {
                write!(f, "range {range}: pages {first} to {last} are part {part} from now on")
            }
            Event::Stays { range, pages: Some((first, last)), why } => {
                write!(f, "range {range}: pages {first} to {last} stay where they are, because {why}")
            }
            Event::Stays { range, pages: None, why } => {
                write!(f, "range {range}: it stays where it is, because {why}")
            }
            Event::Merged { range, pages: (first, last), part } => {
                write!(f, "range {range}: pages {first} to {last} are home again, and part {part} is none any more")
            }
            Event::Pulled { range, pages: (first, last), host, per_second } => write!(
                f,
                "range {range}: most of the {per_second} requests a second for pages {first} to {last} come from hosts near \
                 {host}; they go there"
            ),
            Event::Replica { range, page, host, per_second } => write!(
                f,
                "range {range}: page {page} is asked for {per_second} times a second; {host} answers READs of it from a copy"
            ),
            Event::NoReplica { range, page, host, answered, why } => {
                let why = match why {
                    Because::Cold => "it is asked for less",
                    Because::Changed => "it is being changed",
                    Because::NoCopy => "that server did not get a copy of it within its time",
                    Because::Useless => "what is asked for is not what a copy answers",
                    Because::Gone => "that server is not heard, drained or home itself",
                };
                write!(
                    f,
                    "range {range}: page {page} is answered at home again, because {why}; {host} answered {answered} READs"
                )
            }
            Event::Routes { switch, elsewhere } => {
                write!(f, "switch {switch}: told all routes; {elsewhere} ranges are elsewhere than at their own host")
            }
            Event::Switch { sentence } => f.write_str(sentence),
        }
    }
}
