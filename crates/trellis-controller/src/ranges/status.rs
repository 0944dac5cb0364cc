//! The state of the cluster, for operators and programs. For ranges, it is what is written, with which another controller
//! would continue.

use serde::{Deserialize, Serialize};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::{Host, RangeNumber};

use super::Ranges;
use super::range::Range;
use super::replicas::{Page, Replica};
use crate::records::{Directive, Goal, SplitRecord, WithinRecord};

/// The whole state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster's number.
    pub cluster: u32,
    /// Whether this controller leads; if not, it has no further information.
    pub leads: bool,
    /// The leader's host.
    pub leader: Option<Host>,
    /// How many backups a range has by default.
    pub backups: u16,
    /// The duration of a lease in nanoseconds.
    pub term: Nanoseconds,
    /// The duration of a home lease in nanoseconds.
    pub home_lease: Nanoseconds,
    /// Ranges, by number.
    pub ranges: Vec<RangeStatus>,
    /// Servers, by number.
    pub servers: Vec<ServerStatus>,
    /// The server that answers requests to any server.
    pub anywhere: Option<Host>,
    /// Hot pages that other servers than their homes answer, too, by range and page.
    pub replicas: Vec<ReplicaStatus>,
}

/// A hot page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// The host number in its pointers.
    pub range: RangeNumber,
    /// Its number in the range.
    pub page: u64,
    /// The server that answers READs of it.
    pub host: Host,
    /// Whether that server has a copy now.
    pub has_copy: bool,
    /// The number of READs that it has answered.
    pub answered: u64,
    /// Requests per second, wherever they went.
    pub requests_per_second: u64,
}

/// A range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeStatus {
    /// The host number in its pointers; for a part, its own number.
    pub range: RangeNumber,
    /// Its home.
    pub home: Host,
    /// The incarnation of its home.
    pub incarnation: u16,
    /// The hosts that store every commit.
    pub backups: Vec<Host>,
    /// Those of them that are complete.
    pub complete: Vec<Host>,
    /// The destination of a move.
    pub moving: Option<Host>,
    /// The host that is being informed of it before it receives any content.
    pub introduced: Option<Host>,
    /// Whether there is a home that was heard.
    pub is_served: bool,
    /// The number of its pages.
    pub pages: u64,
    /// Milliseconds for which its home may answer without being renewed.
    pub home_lease_left_ms: u64,
    /// Requests per second.
    pub requests_per_second: u64,
    /// The operator's directive.
    pub directive: Option<Directive>,
    /// It should have more backups, and no server can be one.
    pub lacks_room: bool,
    /// For a part: the range and the pages from which it was split.
    pub within: Option<WithinRecord>,
    /// The destination that was requested for it, until it is there.
    pub goal: Option<Goal>,
    /// Moves of some of its pages that were requested, until these are split off.
    pub splits: Vec<SplitRecord>,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its number.
    pub host: Host,
    /// Whether it is heard.
    pub is_there: bool,
    /// Milliseconds since it was heard; `None` if this controller has not heard it.
    pub heard_ms: Option<u64>,
    /// The memory that it still provides for ranges of other hosts.
    pub spare_bytes: u64,
    /// The number of ranges of which it is home.
    pub homes: usize,
    /// The number of ranges of which it is a backup.
    pub backups: usize,
    /// Requests per second for the ranges of which it is home.
    pub requests_per_second: u64,
    /// Whether everything moves away from it.
    pub is_drained: bool,
}

impl Ranges {
    /// The current state.
    pub fn status(&self, now: Nanoseconds) -> Status {
        let settings = &self.settings;
        Status {
            cluster: settings.me.cluster.number(),
            leads: true,
            leader: Some(settings.me.host),
            backups: settings.backups,
            term: settings.timing.term,
            home_lease: settings.timing.home_lease,
            ranges: self.written().map(|range| range_status(range, now)).collect(),
            servers: self.servers.keys().map(|host| self.server_status(*host, now)).collect(),
            anywhere: self.anywhere,
            replicas: self.replicas.pages.iter().map(|(page, replica)| replica_status(*page, replica)).collect(),
        }
    }

    /// All ranges, and those of their parts that are written.
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
            is_drained: server.record.is_drained,
        }
    }
}

fn replica_status((range, page): Page, replica: &Replica) -> ReplicaStatus {
    let Replica { host, has_copy, answered, per_second, .. } = *replica;
    ReplicaStatus { range, page, host, has_copy, answered, requests_per_second: per_second }
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
        is_served: range.is_served() && record.boot_id.is_some(),
        pages: range.pages,
        home_lease_left_ms: range.home_lease_left(now).as_millis() as u64,
        requests_per_second: range.load(),
        directive: record.directive,
        lacks_room: range.lacks.is_some() || range.has_no_place,
        within: record.within,
        goal: record.goal,
        splits: record.splits,
    }
}
