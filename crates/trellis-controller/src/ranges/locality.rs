//! The placement of pages by the hosts that request them: uses what the switch counts by client, and which hosts are
//! local to each other.
//!
//! The rule, with [`super::Settings::rebalances`]: pages are considered in *page ranges*. A page range is a part (a
//! subrange with a home of its own), or the aligned 64 pages around one that was counted, without those that are in
//! parts. It is *pulled* if it has [`PULLED_FROM`] requests per second and three quarters of them come from hosts of one
//! group that does not contain its home. If it is pulled to the same group in [`LOOKS`] consecutive looks, it moves to a
//! server of that group that is present and has room: the range's home if it is such a server, otherwise the one with the
//! least load. Adjacent page ranges that are not parts move together. A part without requests during [`IDLE_FOR`] returns
//! to its range's home, unless that is busy.
//!
//! Promises: one move at a time, and none while anything is under way for any range. What was moved is not moved again
//! for [`LEFT_ALONE_FOR`], and a group loses it only to one that makes three quarters of the requests, so the placement
//! does not oscillate.

use std::collections::BTreeMap;
use std::sync::Arc;

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::parts::{PART_PAGES_MAX, part_with};
use trellis_fabric_protocol::lease::{Host, RangeNumber};
use trellis_fabric_protocol::wire::address::{PAGE_BYTES, PARTS_FROM};

use super::policy::BUSY_FROM;
use super::range::Range;
use super::{Order, Ranges};
use crate::event::Event;

/// The number of pages in a page range that is not a part.
const RUN_PAGES: u64 = 64;
/// From this incarnation of their range on, pages are no longer moved automatically: each such move uses incarnations,
/// and the rest is kept for failures and for operators.
const INCARNATIONS_SPARED: u16 = 0x8000;
/// A page range with fewer requests per second is not pulled.
const PULLED_FROM: u64 = 100;
/// The required number of consecutive looks.
const LOOKS: u8 = 5;
/// How long a moved page range is not moved again.
const LEFT_ALONE_FOR: Nanoseconds = 60_000_000_000;
/// A part without requests returns after this time.
const IDLE_FOR: Nanoseconds = 60_000_000_000;

/// Which hosts are local to each other, in groups. A host without a group is local to none.
#[derive(Clone, Debug, Default)]
pub struct Locality(Arc<[Vec<Host>]>);

impl Locality {
    /// These groups.
    ///
    /// # Errors
    ///
    /// A message, if a host is in two of them, or twice in one.
    pub fn new(groups: Vec<Vec<Host>>) -> Result<Locality, String> {
        for (number, group) in groups.iter().enumerate() {
            let again = (1..group.len()).find(|place| group[..*place].contains(&group[*place]));
            if let Some(place) = again {
                return Err(format!("host {:#x} is named twice in a group; name it once", group[place]));
            }
            let twice = |host: &&Host| groups.iter().skip(number + 1).any(|other| other.contains(host));
            if let Some(host) = group.iter().find(twice) {
                return Err(format!("host {host:#x} is near the hosts of two groups; name it in one"));
            }
        }
        Ok(Locality(groups.into()))
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn group_of(&self, host: Host) -> Option<usize> {
        self.0.iter().position(|group| group.contains(&host))
    }
}

/// The counted requests for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// By range and page.
    pub page: (RangeNumber, u64),
    /// Requests per second.
    pub per_second: u64,
    /// The requests by client host, if the switch reports them.
    pub by: Vec<(Host, u64)>,
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// Pulled page ranges: to which group, and in how many consecutive looks.
    pulled: BTreeMap<Run, (usize, u8)>,
    /// Page ranges and requests per second for them, as last counted.
    hot: BTreeMap<Run, Asked>,
    /// The end of the time without moves, by range and first page, which is the same whether or not it is a part.
    left_alone: BTreeMap<(RangeNumber, u64), Nanoseconds>,
    /// Since when a part has had no requests.
    idle: BTreeMap<RangeNumber, Nanoseconds>,
}

/// Pages that move together, by range and number of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) range: RangeNumber,
    pub(super) first: u64,
    pub(super) pages: u64,
    /// The part, if they are one.
    pub(super) part: Option<RangeNumber>,
}

/// The requests for pages in a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) per_second: u64,
    /// By groups of hosts.
    by: BTreeMap<usize, u64>,
}

impl Asked {
    /// The group of which most requests come.
    fn most(&self) -> Option<usize> {
        let is_most = |(_, count): &(&usize, &u64)| **count * 4 >= self.per_second * 3;
        self.by.iter().find(is_most).map(|(group, _)| *group)
    }
}

impl Ranges {
    /// Handles the counts of the switch.
    pub(super) fn hear_pulls(&mut self, now: Nanoseconds, counted: &[Counted], orders: &mut Vec<Order>) {
        if !self.settings.rebalances {
            return;
        }
        self.pulls.hot.clear();
        for Counted { page, per_second, by } in counted {
            let Some(run) = self.run_of(*page) else { continue };
            let asked = self.pulls.hot.entry(run).or_default();
            asked.per_second += per_second;
            for (host, count) in by {
                if let Some(group) = self.settings.locality.group_of(*host) {
                    *asked.by.entry(group).or_default() += count;
                }
            }
        }
        let pulled = self.pulls.hot.iter().filter_map(|(run, asked)| {
            let group = asked.most().filter(|_| asked.per_second >= PULLED_FROM)?;
            let home = self.home_of((run.range, run.first))?.machine.record.home;
            let looks = self.pulls.pulled.get(run).filter(|(to, _)| *to == group).map_or(0, |(_, looks)| *looks);
            (self.settings.locality.group_of(home) != Some(group)).then_some((*run, (group, looks.saturating_add(1))))
        });
        self.pulls.pulled = pulled.collect();
        self.pulls.left_alone.retain(|_, until| now < *until);
        if self.is_calm() {
            self.follow_pull(now, orders);
        }
    }

    /// Moves the most requested of the page ranges that were pulled for long enough.
    fn follow_pull(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let goes = self.due().into_iter().filter_map(|(run, group, per_second)| {
            let host = self.nearest(&run, group)?;
            Some((per_second, run, host))
        });
        let Some((per_second, run, host)) = goes.max() else { return };
        let end = run.first + run.pages;
        for of in self.pulls.pulled.keys().filter(|of| of.range == run.range && (run.first..end).contains(&of.first)) {
            self.pulls.left_alone.insert((of.range, of.first), now + LEFT_ALONE_FOR);
        }
        let (range, pages) = (self.prefix(run.range.host()), (run.first, run.first + run.pages - 1));
        orders.push(Order::Say(Event::Pulled { range, pages, host: self.prefix(host), per_second }));
        if let Err(why) = self.move_pages(now, run.range, host, (run.first, run.pages), orders) {
            orders.push(Order::Say(Event::Stays { range, pages: Some(pages), why }));
        }
    }

    /// Page ranges that were pulled for long enough, each with its group and requests per second. A page range is
    /// combined with preceding adjacent ones if none of them is a part and all are pulled to the same group.
    fn due(&self) -> Vec<(Run, usize, u64)> {
        let Pulls { pulled, hot, left_alone, .. } = &self.pulls;
        let is_due = |run: &Run, looks: u8| looks >= LOOKS && !left_alone.contains_key(&(run.range, run.first));
        let mut due: Vec<(Run, usize, u64)> = Vec::new();
        let mut together: Option<(Run, usize, u64)> = None;
        for (run, (group, looks)) in pulled {
            if !is_due(run, *looks) {
                continue;
            }
            let per_second = hot.get(run).map_or(0, |asked| asked.per_second);
            due.push((*run, *group, per_second));
            let touches = |(before, to, _): &(Run, usize, u64)| {
                let both = (before.range, before.first + before.pages, *to) == (run.range, run.first, *group);
                both && before.part.is_none() && run.part.is_none() && before.pages + run.pages <= PART_PAGES_MAX
            };
            together = match together.filter(touches) {
                Some((before, _, sum)) => {
                    let all = (Run { pages: before.pages + run.pages, ..before }, *group, sum + per_second);
                    due.push(all);
                    Some(all)
                }
                None => Some((*run, *group, per_second)),
            };
        }
        due
    }

    /// The server of a group to which a page range should move.
    fn nearest(&self, run: &Run, group: usize) -> Option<Host> {
        let own = self.ranges.get(&run.range)?.machine.record.home;
        let members = self.settings.locality.0.get(group)?.iter().copied();
        let may = members
            .filter(|host| self.may_have(run, *host) || run.part.is_some() && *host == own && self.is_there(own));
        may.min_by_key(|host| (*host != own, self.load_of(*host), *host))
    }

    /// Whether a page range may move to a server.
    pub(super) fn may_have(&self, run: &Run, host: Host) -> bool {
        let Some(range) = self.ranges.get(&run.range) else { return false };
        let part = run.part.and_then(|part| self.ranges.get(&part));
        if [Some(range), part].into_iter().flatten().any(|of| of.machine.record.incarnation >= INCARNATIONS_SPARED) {
            return false;
        }
        if let Some(part) = part {
            return part.is_at(host) && self.is_there(host) && !self.is_drained(host) || self.may_take(part, host);
        }
        let has_room = range.is_at(host) || self.spare(host) >= run.pages * PAGE_BYTES;
        has_room && self.is_there(host) && !self.is_drained(host)
    }

    /// The page range that contains a page.
    fn run_of(&self, (number, page): (RangeNumber, u64)) -> Option<Run> {
        let range = self.ranges.get(&number).filter(|range| range.within.is_none() && page < range.pages)?;
        let parts = &range.machine.record.parts;
        if let Some(part) = part_with(parts, page) {
            return Some(Run { range: number, first: part.first, pages: part.pages, part: Some(part.number) });
        }
        let aligned = page - page % RUN_PAGES;
        let before = parts.iter().map(|part| part.end()).filter(|end| *end <= page).max();
        let after = parts.iter().map(|part| part.first).filter(|first| *first > page).min();
        let first = aligned.max(before.unwrap_or(0));
        let end = (aligned + RUN_PAGES).min(range.pages).min(after.unwrap_or(u64::MAX));
        Some(Run { range: number, first, pages: end - first, part: None })
    }

    /// Whether nothing is under way for any range. A range without a home, which may never get one, is not waited for.
    pub(super) fn is_calm(&self) -> bool {
        let is_still = |range: &Range| {
            let record = &range.machine.record;
            let goes = record.moving.is_some()
                || range.introducing.is_some()
                || range.goal.is_some()
                || !range.splits.is_empty();
            let is_lost = range.machine.is_open && record.complete.is_empty();
            range.is_quiet() && (is_lost || range.is_served() && !goes)
        };
        self.ranges.values().all(is_still)
    }

    /// Requests per second that a server answers as home.
    pub(super) fn load_of(&self, host: Host) -> u64 {
        self.ranges.values().filter(|range| range.machine.record.home == host).map(Range::load).sum()
    }

    /// Whether that is known for everything of which it is home.
    fn is_load_known(&self, host: Host) -> bool {
        self.ranges.values().filter(|range| range.machine.record.home == host).all(Range::is_load_known)
    }

    /// Whether balancing by load may move a page range to a host: pages that are mostly requested by a group stay local
    /// to it.
    pub(super) fn is_near_enough(&self, run: (RangeNumber, u64), host: Host) -> bool {
        let asked = self.pulls.hot.iter().find(|(of, _)| (of.range, of.first) == run).map(|(_, asked)| asked);
        let group = asked.and_then(Asked::most);
        group.is_none_or(|group| self.settings.locality.group_of(host) == Some(group))
    }

    /// Page ranges that are not parts, and requests per second for them.
    pub(super) fn busy_runs(&self) -> impl Iterator<Item = (&Run, u64)> {
        let is_one = |run: &Run| run.part.is_none() && self.run_of((run.range, run.first)).as_ref() == Some(run);
        self.pulls.hot.iter().filter(move |(run, _)| is_one(run)).map(|(run, asked)| (run, asked.per_second))
    }

    /// Returns parts without requests to their ranges' homes, one after the other.
    pub(super) fn tick_pulls(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let idle =
            self.ranges.range(RangeNumber(PARTS_FROM)..).filter(|(_, part)| part.is_idle() && part.goal.is_none());
        let before = &self.pulls.idle;
        let idle: BTreeMap<RangeNumber, Nanoseconds> =
            idle.map(|(number, _)| (*number, before.get(number).copied().unwrap_or(now))).collect();
        self.pulls.idle = idle;
        let is_due = |number: &RangeNumber, since: Nanoseconds| {
            let of = self.part_and_range(*number).map(|(_, range)| range.machine.record.home);
            let is_calm = |home| self.is_load_known(home) && self.load_of(home) < BUSY_FROM;
            now >= since + IDLE_FOR && of.is_some_and(is_calm)
        };
        let due = self.pulls.idle.iter().find(|(number, since)| is_due(number, **since)).map(|(number, _)| *number);
        if let Some(part) = due.filter(|_| self.is_calm()) {
            debug_assert!(part.is_part(), "ranges have no home to come to");
            self.let_come_home(now, part, orders);
        }
    }
}
