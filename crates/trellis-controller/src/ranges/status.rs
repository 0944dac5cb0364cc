//! How things are, for operators and programs: of ranges what is written, which another controller would go on with.

use serde::{Deserialize, Serialize};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::Host;
use trellis_fabric_protocol::lease::parts::Within;

use super::Ranges;
use super::parts::Cut;
use super::range::Range;
use super::replicas::{Page, Replica};
use crate::records::{Wish, WithinRecord};

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster's number.
    pub cluster: u32,
    /// Whether this controller leads; if not, it knows nothing.
    pub leads: bool,
    /// The host of the one that does.
    pub leader: Option<Host>,
    /// How many backups a range has unless it is told otherwise.
    pub backups: u16,
    /// Nanoseconds of a lease.
    pub term: Nanoseconds,
    /// Nanoseconds of a home's right to its range.
    pub tenure: Nanoseconds,
    /// Ranges, by number.
    pub ranges: Vec<RangeStatus>,
    /// Pages that are to be cut out, or were and are about to go.
    pub cuts: Vec<CutStatus>,
    /// Servers, by number.
    pub servers: Vec<ServerStatus>,
    /// The server that answers who asks any of them.
    pub anywhere: Option<Host>,
    /// Hot pages that other servers than their homes answer, too, by range and page.
    pub replicas: Vec<ReplicaStatus>,
}

/// A hot page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// The host number in its pointers.
    pub range: Host,
    /// Its number in the range.
    pub page: u64,
    /// Who answers READs of it.
    pub host: Host,
    /// Whether that one has a copy now.
    pub has_copy: bool,
    /// READs that it has answered.
    pub answered: u64,
    /// Requests a second, wherever they went.
    pub requests_per_second: u64,
}

/// A range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeStatus {
    /// The host number in its pointers; of a part, its own.
    pub range: Host,
    /// Who is home.
    pub home: Host,
    /// In which incarnation.
    pub incarnation: u16,
    /// Who has every commit.
    pub backups: Vec<Host>,
    /// Which of them have everything.
    pub complete: Vec<Host>,
    /// Where it goes.
    pub moving: Option<Host>,
    /// Who is told of it before it gets anything.
    pub introduced: Option<Host>,
    /// Whether somebody is home and was heard.
    pub is_served: bool,
    /// How many pages it has.
    pub pages: u64,
    /// Milliseconds for which its home may answer without another word.
    pub tenure_left_ms: u64,
    /// Requests a second.
    pub requests_per_second: u64,
    /// What was wished for it.
    pub wish: Option<Wish>,
    /// It shall have more backups, and no server can be one.
    pub lacks_room: bool,
    /// Of a part: where it was cut from.
    pub within: Option<WithinRecord>,
    /// Of a part: it goes to the home of its range, to be joined with it.
    pub returns: bool,
}

/// Pages that shall go to a host, and do not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutStatus {
    /// The range.
    pub range: Host,
    /// The first of them.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// That host.
    pub to: Host,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its number.
    pub host: Host,
    /// Whether it is heard.
    pub is_there: bool,
    /// Milliseconds since it was heard; nothing for one that this controller never heard.
    pub heard_ms: Option<u64>,
    /// What it still gives to ranges of others.
    pub spare_bytes: u64,
    /// Of how many ranges it is home.
    pub homes: usize,
    /// Of how many it is a backup.
    pub backups: usize,
    /// Requests a second, of the ranges that it is home of.
    pub requests_per_second: u64,
    /// Everything moves away from it.
    pub is_drained: bool,
}

impl Ranges {
    /// How things are.
    pub fn status(&self, now: Nanoseconds) -> Status {
        let settings = &self.settings;
        Status {
            cluster: settings.me.cluster.number(),
            leads: true,
            leader: Some(settings.me.host.0),
            backups: settings.backups,
            term: settings.timing.term,
            tenure: settings.timing.tenure,
            ranges: self.written().map(|range| range_status(range, now)).collect(),
            cuts: self.parts.cuts.iter().map(cut_status).collect(),
            servers: self.servers.keys().map(|host| self.server_status(*host, now)).collect(),
            anywhere: self.anywhere,
            replicas: self.replicas.pages.iter().map(|(page, replica)| replica_status(*page, replica)).collect(),
        }
    }

    /// All ranges, and those parts of them that are written.
    fn written(&self) -> impl Iterator<Item = &Range> {
        self.ranges.values().filter(|range| {
            let of = range.within.and_then(|within| self.ranges.get(&within.range));
            of.is_none_or(|of| of.written.parts.iter().any(|part| part.number == range.number))
        })
    }

    fn server_status(&self, host: Host, now: Nanoseconds) -> ServerStatus {
        let server = &self.servers[&host];
        let of_it = |range: &&Range| range.written.home == host;
        let heard_at = server.heard_at.filter(|_| server.is_there || server.spare_bytes > 0);
        ServerStatus {
            host,
            is_there: server.is_there,
            heard_ms: heard_at.map(|at| now.saturating_sub(at) / 1_000_000),
            spare_bytes: server.spare_bytes,
            homes: self.written().filter(of_it).count(),
            backups: self.written().filter(|range| range.written.backups.contains(&host)).count(),
            requests_per_second: self.ranges.values().filter(of_it).map(Range::load).sum(),
            is_drained: server.kept.is_drained,
        }
    }
}

fn replica_status((range, page): Page, replica: &Replica) -> ReplicaStatus {
    let Replica { host, has_copy, answered, per_second, .. } = *replica;
    ReplicaStatus { range, page, host, has_copy, answered, requests_per_second: per_second }
}

fn cut_status(cut: &Cut) -> CutStatus {
    let Cut { range, first, pages, to, .. } = *cut;
    CutStatus { range, first, pages, to }
}

fn range_status(range: &Range, now: Nanoseconds) -> RangeStatus {
    let record = range.written.clone();
    RangeStatus {
        range: range.number,
        home: record.home,
        incarnation: record.incarnation,
        backups: record.backups,
        complete: record.complete,
        moving: record.moving,
        introduced: range.introducing.map(|introducing| introducing.host),
        is_served: range.is_served() && record.life.is_some(),
        pages: range.pages,
        tenure_left_ms: range.tenure_left(now).as_millis() as u64,
        requests_per_second: range.load(),
        wish: range.wish.clone(),
        lacks_room: range.lacks.is_some() || range.has_no_place,
        within: range.within.map(|Within { range, first, since }| WithinRecord { range, first, since }),
        returns: range.returns,
    }
}
