//! What an operator wants to know, one sentence each: fact, place, next step.

use std::fmt;
use std::time::Duration;

use trellis_fabric_protocol::wire::address::HostPrefix;
use trellis_fabric_protocol::wire::refusals::Refusal;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// This controller speaks from now on.
    Leads {
        /// How many ranges there are records of.
        ranges: usize,
    },
    /// Another one speaks.
    Waits {
        /// Where that one is.
        leader: HostPrefix,
    },
    /// It speaks no more.
    Yields {
        /// Why.
        why: String,
    },
    /// The store of records fails.
    Store {
        /// What it says.
        sentence: String,
    },
    /// What somebody sent is refused.
    Refused(Refusal),
    /// A server is heard for the first time, or again.
    Server {
        /// It.
        server: HostPrefix,
        /// What it gives to ranges of others.
        spare_bytes: u64,
    },
    /// A server says nothing.
    ServerSilent {
        /// It.
        server: HostPrefix,
        /// For so long.
        silence: Duration,
    },
    /// A server counts time otherwise than this controller: it is not answered.
    Times {
        /// It.
        server: HostPrefix,
        /// Its lease term and its tenure.
        theirs: (Duration, Duration),
        /// Those of this controller.
        ours: (Duration, Duration),
    },
    /// A range that there never was.
    New {
        /// It.
        range: HostPrefix,
        /// So many pages.
        pages: u64,
    },
    /// A server tells of a range that no record names.
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
        /// So many pages it has.
        pages: u64,
        /// So many the server has now.
        offered: u64,
    },
    /// The right of a home has ended, and nobody renewed it.
    Silent {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
        /// For so long.
        silence: Duration,
        /// Who may take over.
        complete: Vec<HostPrefix>,
    },
    /// Somebody else is home now, or the same one in another life.
    Home {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
        /// In this incarnation.
        incarnation: u16,
        /// Who was before.
        before: HostPrefix,
        /// Since the right of the one before had ended.
        after: Option<Duration>,
        /// It began empty.
        is_anew: bool,
    },
    /// A home that was silent is heard again, and nobody took over.
    Again {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
    },
    /// Nobody can serve a range.
    Unserved {
        /// The range.
        range: HostPrefix,
        /// Its home.
        home: HostPrefix,
        /// That one came back, without what it had.
        is_blank: bool,
    },
    /// A server becomes a backup.
    Backs {
        /// The range.
        range: HostPrefix,
        /// It.
        host: HostPrefix,
    },
    /// Every backup has everything.
    Complete {
        /// The range.
        range: HostPrefix,
        /// They.
        backups: Vec<HostPrefix>,
    },
    /// A range has fewer complete copies than it shall have, for long.
    Incomplete {
        /// The range.
        range: HostPrefix,
        /// So many are complete.
        complete: usize,
        /// So many shall be.
        wanted: usize,
        /// For so long.
        since: Duration,
        /// Who is being given what it lacks.
        hosts: Vec<HostPrefix>,
    },
    /// A backup counts no more.
    Dropped {
        /// The range.
        range: HostPrefix,
        /// It.
        host: HostPrefix,
    },
    /// A range begins to move.
    Moves {
        /// The range.
        range: HostPrefix,
        /// From here.
        from: HostPrefix,
        /// To there.
        to: HostPrefix,
    },
    /// A server did not take what it was given.
    Declined {
        /// The range.
        range: HostPrefix,
        /// The server.
        host: HostPrefix,
    },
    /// A server is left by everything.
    Drained {
        /// It.
        server: HostPrefix,
    },
    /// A range shall have more backups, and nobody can be one.
    Lacks {
        /// The range.
        range: HostPrefix,
        /// So many it has.
        backups: usize,
        /// So much a copy takes.
        bytes: u64,
        /// Those that were wished for by name, and are none.
        hosts: Vec<HostPrefix>,
    },
    /// There is nobody to take what a server has to give away.
    NoPlace {
        /// The range.
        range: HostPrefix,
        /// The server that is drained.
        server: HostPrefix,
    },
    /// A server has a number that is none of a host.
    PartNumber {
        /// It.
        server: HostPrefix,
    },
    /// Pages of a range have a home and a record of their own from now on.
    Cut {
        /// The range.
        range: HostPrefix,
        /// The first and the last of them.
        pages: (u64, u64),
        /// By this number.
        part: HostPrefix,
    },
    /// They should, and do not.
    NotCut {
        /// The range.
        range: HostPrefix,
        /// The first and the last of them.
        pages: (u64, u64),
        /// Why.
        why: String,
    },
    /// They are the range's again.
    Joined {
        /// The range.
        range: HostPrefix,
        /// The first and the last of them.
        pages: (u64, u64),
        /// The part that is none any more.
        part: HostPrefix,
    },
    /// Most of what is asked of pages comes from hosts that are near a server, which their home is not.
    Pulled {
        /// The range.
        range: HostPrefix,
        /// The first and the last of them.
        pages: (u64, u64),
        /// That server.
        host: HostPrefix,
        /// Requests for them.
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
        /// Requests for the page.
        per_second: u64,
    },
    /// It does so no more.
    NoReplica {
        /// The range.
        range: HostPrefix,
        /// The page.
        page: u64,
        /// That server.
        host: HostPrefix,
        /// READs that it answered.
        answered: u64,
        /// Why.
        why: Because,
    },
    /// The switch was told all routes, because it or this controller began.
    Routes {
        /// Its kind.
        switch: String,
        /// How many ranges are elsewhere than at their own host.
        elsewhere: usize,
    },
    /// The switch does not do what it is told.
    Switch {
        /// What it says.
        sentence: String,
    },
}

/// Why a page is answered at home alone again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// Few ask for it.
    Cold,
    /// It was changed, or nobody could have a copy.
    Changed,
    /// The other server answered little of what was asked: writes, or more than one page at a time.
    Useless,
    /// The other server is not to be had.
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
                "server {server} has leases of {:?} and a tenure of {:?}, and this controller {:?} and {:?}; it is not answered: start \
                 it with the same --lease-term and --tenure",
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
            Event::Home { range, home, incarnation, before, after, is_anew } => {
                write!(f, "range {range}: home is {home}, incarnation {incarnation}")?;
                if before == home {
                    f.write_str(if *is_anew { ", begun anew and empty" } else { ", started again" })?;
                } else {
                    write!(f, ", after {before}")?;
                }
                after.map_or(Ok(()), |after| write!(f, "; {after:.1?} after the right of the home before had ended"))
            }
            Event::Again { range, home } => write!(f, "range {range}: its home {home} is heard again and goes on"),
            Event::Unserved { range, home, is_blank: true } => write!(
                f,
                "range {range}: nobody has what it held, its home {home} came back without it; `trellis controller reset {range}` \
                 begins it anew, empty"
            ),
            Event::Unserved { range, home, .. } => write!(
                f,
                "range {range}: nobody answers for it; start its home {home} again, or, if what it held is lost, let \
                 `trellis controller reset {range}` begin it anew, empty"
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
            Event::Cut { range, pages: (first, last), part } => {
                write!(f, "range {range}: pages {first} to {last} are part {part} from now on")
            }
            Event::NotCut { range, pages: (first, last), why } => {
                write!(f, "range {range}: pages {first} to {last} stay where they are, because {why}")
            }
            Event::Joined { range, pages: (first, last), part } => {
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
