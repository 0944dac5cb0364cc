//! The choice of backups and homes.
//!
//! Promises: a new backup is first asked whether it has room, by informing it of the range and waiting until it reports
//! that it is ready. A backup is given up only when as many others as wanted are complete. A range changes in one
//! respect at a time. A backup that is not heard no longer counts. Of several servers, the one with the most spare
//! memory is chosen. It must never put two copies on one host.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::controller::Input;
use trellis_fabric_protocol::lease::{Host, RangeNumber};

use super::range::Range;
use super::{Order, Ranges, prefix};
use crate::event::Event;
use crate::records::Directive;

/// How long a server may take to get ready for a range.
pub(crate) const READY: Deadline = Deadline {
    who: "a controller",
    waits_for: "a server that is to have a range, to take it",
    limit: Limit::seconds(3),
    then: "an event that names the server, which is not asked again for 10 s; another server is asked",
    tested: "crates/trellis-controller/src/ranges/tests/copies.rs a_server_that_does_not_take_a_range_is_said_and_left_alone",
};
/// How long a server that did not get ready is not asked again.
const SHUNNED_FOR: Nanoseconds = 10_000_000_000;
/// How long there may be no room for a copy before that is reported: servers that are started together do not all appear
/// at once.
const LACKS_AFTER: Nanoseconds = 3_000_000_000;
/// How long copies may be incomplete before that is reported: filling a copy of a full range takes time.
const INCOMPLETE_AFTER: Nanoseconds = 10_000_000_000;
/// A server that answers fewer requests per second is not busy.
pub(super) const BUSY_FROM: u64 = 1_000;

/// Why a host is informed of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To have a copy.
    Back,
    /// To be home.
    Move,
}

/// A host that is informed of a range before it receives any content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introducing {
    pub(super) host: Host,
    pub(super) purpose: Purpose,
    since: Nanoseconds,
    /// When it is called again.
    pub(super) again_at: Nanoseconds,
    /// Whether it has reported that it is ready.
    pub(super) is_known: bool,
}

/// A suggested move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The range or part.
    pub range: RangeNumber,
    /// The destination.
    pub to: Host,
    /// If only some pages move: the first one, and their number.
    pub pages: Option<(u64, u64)>,
}

/// The next step for a range.
pub(super) enum Next {
    Nothing,
    Do(Input),
    Introduce(Host, Purpose),
    /// No server can take what this server has.
    NoPlace(Host),
    /// It should have more backups, and no server can be one.
    Lacks,
    /// A part is at the home of its range and can be merged.
    Merge,
}

impl Ranges {
    /// Takes the next step for a range.
    pub(super) fn plan(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
        let Some(range) = self.ranges.get_mut(&number) else { return };
        range.shunned.retain(|_, until| now < *until);
        if !range.is_quiet() || !range.is_served() || range.is_mute {
            return;
        }
        if let Some(introducing) = range.introducing {
            return self.go_on(now, number, introducing, orders);
        }
        let next = match self.ranges.get(&number) {
            Some(range) if range.machine.record.moving.is_none() => self.next(now, range),
            _ => return,
        };
        let Some(range) = self.ranges.get_mut(&number) else { return };
        let had_no_place = std::mem::replace(&mut range.has_no_place, matches!(next, Next::NoPlace(_)));
        if !matches!(next, Next::Lacks) {
            range.lacks = None;
        }
        match next {
            Next::Nothing => {}
            // Its home must first learn that it is home.
            Next::Do(_) if !range.has_begun() => {}
            Next::Merge => self.merge(now, number, orders),
            Next::Lacks => self.lacks(now, number, orders),
            Next::Do(input) => range.step(now, input, &self.settings, &mut self.next_ticket, orders),
            Next::Introduce(host, purpose) => self.introduce(now, number, host, purpose, orders),
            Next::NoPlace(_) if had_no_place => {}
            Next::NoPlace(server) => {
                let server = prefix(&self.settings, server);
                orders.push(Order::Say(Event::NoPlace { range: prefix(&self.settings, number.host()), server }));
            }
        }
    }

    /// Reports once that a range has had too few complete copies for long, because the failure of its home may then lose
    /// data. A lack of room is reported elsewhere.
    pub(super) fn watch_copies(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
        let Some(range) = self.ranges.get(&number) else { return };
        let wanted = match self.directive_of(range) {
            Some(Directive::Hosts(hosts)) => hosts.len(),
            Some(Directive::Count(count)) => usize::from(*count),
            None => usize::from(self.settings.backups),
        };
        let record = &range.machine.record;
        let complete = record.complete.len();
        let is_lacking = |host: &&Host| !record.complete.contains(host);
        let hosts = record.backups.iter().filter(is_lacking).map(|host| prefix(&self.settings, *host)).collect();
        let (is_served, lacks_room) = (range.is_served(), range.lacks.is_some());
        let Some(range) = self.ranges.get_mut(&number) else { return };
        if complete >= wanted || !is_served {
            range.incomplete = None;
            return;
        }
        let (since, is_said) = range.incomplete.get_or_insert((now, false));
        if *is_said || lacks_room || now < *since + INCOMPLETE_AFTER {
            return;
        }
        *is_said = true;
        let (range, since) = (prefix(&self.settings, number.host()), Duration::from_nanos(now - *since));
        orders.push(Order::Say(Event::Incomplete { range, complete, wanted, since, hosts }));
    }

    /// Reports once that no server can have the additional copy of a range.
    fn lacks(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
        let Some(range) = self.ranges.get_mut(&number) else { return };
        let (since, is_said) = range.lacks.get_or_insert((now, false));
        if *is_said || now < *since + LACKS_AFTER {
            return;
        }
        *is_said = true;
        let Some(range) = self.ranges.get(&number) else { return };
        let (settings, bytes) = (&self.settings, range.bytes());
        let lacking: Vec<Host> = match self.directive_of(range) {
            Some(Directive::Hosts(hosts)) => hosts.iter().copied().filter(|host| !range.is_at(*host)).collect(),
            _ => Vec::new(),
        };
        let hosts = lacking.into_iter().map(|host| prefix(settings, host)).collect();
        let backups = range.machine.record.backups.len();
        orders.push(Order::Say(Event::Lacks { range: prefix(settings, number.host()), backups, bytes, hosts }));
    }

    /// Moves a range to a host, which is present and has room.
    pub(super) fn begin_move(&mut self, now: Nanoseconds, number: RangeNumber, to: Host, orders: &mut Vec<Order>) {
        let Some(range) = self.ranges.get_mut(&number) else { return };
        if range.machine.record.backups.contains(&to) {
            let purpose = Purpose::Move;
            range.introducing = Some(Introducing { host: to, purpose, since: now, again_at: now, is_known: true });
            self.plan(now, number, orders);
        } else {
            self.introduce(now, number, to, Purpose::Move, orders);
        }
    }

    fn introduce(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        host: Host,
        purpose: Purpose,
        orders: &mut Vec<Order>,
    ) {
        let Some(range) = self.ranges.get(&number) else { return };
        // Its spare memory is not assigned twice before it is heard again.
        let bytes = range.bytes();
        let has_room = range.room.contains_key(&host) || self.has_all_of(range, host);
        if let Some(server) = self.servers.get_mut(&host).filter(|_| !has_room) {
            server.spare_bytes = server.spare_bytes.saturating_sub(bytes);
        }
        let Some(range) = self.ranges.get_mut(&number) else { return };
        range.introducing = Some(Introducing { host, purpose, since: now, again_at: now, is_known: false });
        range.tick(now, &self.settings, &mut self.next_ticket, orders);
    }

    fn go_on(&mut self, now: Nanoseconds, number: RangeNumber, introducing: Introducing, orders: &mut Vec<Order>) {
        let Introducing { host, purpose, since, is_known, .. } = introducing;
        let is_there = self.is_there(host);
        let Some(range) = self.ranges.get_mut(&number) else { return };
        if is_known && !range.has_begun() {
            // Its home must first learn that it is home.
        } else if is_known {
            range.introducing = None;
            let input = if purpose == Purpose::Move { Input::Move(host) } else { Input::Back(host) };
            range.step(now, input, &self.settings, &mut self.next_ticket, orders);
        } else if !is_there || now > since + READY.nanoseconds() {
            range.introducing = None;
            // Its absence is reported elsewhere, and it is asked when it is present again.
            if is_there {
                range.shunned.insert(host, now + SHUNNED_FOR);
                let (range, host) = (prefix(&self.settings, number.host()), prefix(&self.settings, host));
                orders.push(Order::Say(Event::Declined { range, host }));
            }
        }
    }

    fn next(&self, now: Nanoseconds, range: &Range) -> Next {
        let record = &range.machine.record;
        // The home notices this only when a page is changed.
        if let Some(gone) = record.backups.iter().find(|host| self.is_gone(now, **host)) {
            return Next::Do(Input::Drop(*gone));
        }
        if let Some(next) = self.next_home(range) {
            return next;
        }
        let is_settled = record.complete.len() == record.backups.len();
        if self.is_drained(record.home) {
            let ready = record.complete.iter().filter(|host| self.is_there(**host) && !self.is_drained(**host));
            let ready = ready.max_by_key(|host| self.spare(**host));
            return match ready {
                Some(host) => Next::Do(Input::Move(*host)),
                // A backup that is being filled will be ready.
                None if !is_settled => Next::Nothing,
                None => {
                    self.best(range).map_or(Next::NoPlace(record.home), |host| Next::Introduce(host, Purpose::Move))
                }
            };
        }
        match self.directive_of(range) {
            Some(Directive::Hosts(hosts)) => self.next_of_hosts(range, hosts, is_settled),
            Some(Directive::Count(count)) => self.next_of_count(range, usize::from(*count), is_settled),
            None => self.next_of_count(range, usize::from(self.settings.backups), is_settled),
        }
    }

    fn next_of_hosts(&self, range: &Range, hosts: &[Host], is_settled: bool) -> Next {
        let record = &range.machine.record;
        if !is_settled {
            return Next::Nothing;
        }
        let lacks = |host: &&Host| **host != record.home && !record.backups.contains(host);
        if let Some(host) = hosts.iter().filter(lacks).find(|host| self.may_take(range, **host)) {
            return Next::Introduce(*host, Purpose::Back);
        }
        let has_all = !hosts.iter().any(|host| lacks(&host));
        if !has_all {
            return Next::Lacks;
        }
        let surplus = record.backups.iter().find(|host| !hosts.contains(host));
        surplus.map_or(Next::Nothing, |host| Next::Do(Input::Drop(*host)))
    }

    fn next_of_count(&self, range: &Range, count: usize, is_settled: bool) -> Next {
        let record = &range.machine.record;
        if !is_settled {
            return Next::Nothing;
        }
        let (drained, stay): (Vec<Host>, Vec<Host>) = record.backups.iter().partition(|host| self.is_drained(**host));
        if stay.len() < count {
            return match (self.best(range), drained.as_slice()) {
                (Some(host), _) => Next::Introduce(host, Purpose::Back),
                (None, [server, ..]) => Next::NoPlace(*server),
                (None, []) => match self.leaving(range) {
                    Some(host) => Next::Introduce(host, Purpose::Back),
                    None => Next::Lacks,
                },
            };
        }
        let surplus = stay.iter().filter(|_| stay.len() > count).min_by_key(|host| self.spare(**host));
        drained.first().or(surplus).map_or(Next::Nothing, |host| Next::Do(Input::Drop(*host)))
    }

    /// The server with the most spare memory of those that may take a range.
    fn best(&self, range: &Range) -> Option<Host> {
        let record = &range.machine.record;
        let others = self.servers.keys().filter(|host| **host != record.home && !record.backups.contains(host));
        others.copied().filter(|host| self.may_take(range, *host)).max_by_key(|host| {
            // A server that had the range has the room; so has the range's own host.
            (range.room.contains_key(host), self.spare(*host), std::cmp::Reverse(*host))
        })
    }

    /// A drained server that had this range until a moment ago: it keeps its copy until another server has room for one.
    /// A range must not lose its last copy because its home is drained.
    fn leaving(&self, range: &Range) -> Option<Host> {
        let may = |host: &Host| {
            let is_asked = self.is_drained(*host) && self.is_there(*host) && !range.shunned.contains_key(host);
            is_asked && !range.is_at(*host) && range.room.contains_key(host)
        };
        self.servers.keys().copied().find(may)
    }

    /// The operator's directive for a range, and for its parts.
    fn directive_of<'a>(&'a self, range: &'a Range) -> Option<&'a Directive> {
        let of = range.within.and_then(|within| self.ranges.get(&within.range));
        of.unwrap_or(range).directive.as_ref()
    }

    pub(super) fn may_take(&self, range: &Range, host: Host) -> bool {
        self.is_there(host)
            && !self.is_drained(host)
            && !range.shunned.contains_key(&host)
            && self.has_room(range, host)
    }

    pub(super) fn has_room(&self, range: &Range, host: Host) -> bool {
        host == range.number.host()
            || range.room.contains_key(&host)
            || self.has_all_of(range, host)
            || self.spare(host) >= range.bytes()
    }

    /// Whether a host has the range from which a part was split: it has freed the memory that the part needs.
    fn has_all_of(&self, part: &Range, host: Host) -> bool {
        let range = part.within.and_then(|within| self.ranges.get(&within.range));
        range.is_some_and(|range| range.is_at(host))
    }

    pub(super) fn spare(&self, host: Host) -> u64 {
        self.servers.get(&host).map_or(0, |server| server.spare_bytes)
    }

    /// The move that would reduce the load of the busiest server, with its destination; `None` while anything moves or is
    /// not served. If a page range has half of a range's requests, moving it is better than moving the whole range.
    pub fn rebalancing(&self) -> Option<Moved> {
        // After a move, requests have not been counted at the new place yet: another server may be the busiest.
        if !self.is_calm() || !self.ranges.values().all(Range::is_load_known) {
            return None;
        }
        let there = self.servers.keys().copied().filter(|host| self.is_there(*host));
        let loads: Vec<(u64, Host)> = there.map(|host| (self.load_of(host), host)).collect();
        let (most, busiest) = loads.iter().max().copied()?;
        if most < BUSY_FROM {
            return None;
        }
        // The load of the busier of the two afterwards; the move is worthwhile only if that is much less.
        let after =
            |load: u64, to: u64| Some(most.saturating_sub(load).max(to + load)).filter(|after| after * 4 <= most * 3);
        let others = || loads.iter().filter(|(_, host)| *host != busiest);
        let mut runs: Vec<(u64, Moved)> = Vec::new();
        for (run, load) in self.busy_runs() {
            let is_much =
                |range: &&Range| range.machine.record.home == busiest && load * 2 >= range.load() && range.load() > 0;
            if self.ranges.get(&run.range).filter(is_much).is_none() {
                continue;
            }
            let may = |host: Host| self.may_have(run, host) && self.is_near_enough((run.range, run.first), host);
            let goes =
                others().filter(|(_, host)| may(*host)).filter_map(|(to, host)| Some((after(load, *to)?, *host)));
            let pages = Some((run.first, run.pages));
            runs.extend(goes.map(|(after, to)| (after, Moved { range: run.range, to, pages })));
        }
        let at_busiest = self.ranges.values().filter(|range| range.machine.record.home == busiest && range.load() > 0);
        let mut ranges: Vec<(u64, Moved)> = Vec::new();
        for range in at_busiest {
            let is_near =
                |host: Host| range.within.is_none_or(|within| self.is_near_enough((within.range, within.first), host));
            let may = |host: Host| {
                let is_backup = range.machine.record.backups.contains(&host);
                !self.is_drained(host) && (is_backup || self.may_take(range, host)) && is_near(host)
            };
            let goes = others().filter(|(_, host)| may(*host));
            let goes = goes.filter_map(|(to, host)| Some((after(range.load(), *to)?, *host)));
            ranges.extend(goes.map(|(after, to)| (after, Moved { range: range.number, to, pages: None })));
        }
        let least = |goes: Vec<(u64, Moved)>| goes.into_iter().min_by_key(|(after, _)| *after).map(|(_, moved)| moved);
        least(runs).or_else(|| least(ranges))
    }

    /// Makes a suggested move.
    ///
    /// # Errors
    ///
    /// A message, if that is not possible.
    pub fn let_go(&mut self, now: Nanoseconds, moved: Moved, orders: &mut Vec<Order>) -> Result<(), String> {
        let Moved { range, to, pages } = moved;
        match pages {
            Some(run) => self.move_pages(now, range, to, run, orders).map(drop),
            None => self.move_range(now, range, to, orders),
        }
    }
}
