//! Where pages should be because of who asks for them: what the switch counts, by the hosts that ask, and which hosts are near each
//! other.
//!
//! The rule, with [`super::Settings::rebalances`]: pages are looked at in *runs*: a part, or the aligned 64 pages around one that
//! was counted, without what is in parts. A run is *pulled* where it has [`PULLED_FROM`] requests a second and three quarters of
//! them come from hosts of one group, which its home is not in. What is pulled to the same group in [`LOOKS`] looks in a row goes
//! to a server of that group that is there and has room: home if the range's home is one, else who has least to do. Neighbours
//! that are no parts go together. A part that nobody has asked for during [`IDLE_FOR`] comes home, if the range's home is not busy.
//!
//! Promises: one at a time, and none while anything of any range is under way; what went is left alone for [`LEFT_ALONE_FOR`],
//! and a group that has it loses it only to one that makes three quarters of the requests, so nothing swings.

use std::collections::BTreeMap;
use std::sync::Arc;

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::Host;
use trellis_fabric_protocol::lease::parts::{PART_PAGES_MAX, is_part, part_with};
use trellis_fabric_protocol::wire::address::{PAGE_BYTES, PARTS_FROM};

use super::policy::BUSY_FROM;
use super::range::Range;
use super::{Order, Ranges};
use crate::event::Event;

/// How many pages a run has that is no part yet.
const RUN_PAGES: u64 = 64;
/// No pages go by themselves from this incarnation of their range on: each such move takes some, and those that are left are for
/// deaths and for what operators want.
const INCARNATIONS_SPARED: u16 = 0x8000;
/// A run with fewer requests a second is pulled nowhere.
const PULLED_FROM: u64 = 100;
/// In how many looks in a row.
const LOOKS: u8 = 5;
/// For how long what was sent somewhere is left alone.
const LEFT_ALONE_FOR: Nanoseconds = 60_000_000_000;
/// A part that nobody asks for comes home after this.
const IDLE_FOR: Nanoseconds = 60_000_000_000;

/// Which hosts are near each other, in groups. One that no group names is near nobody.
#[derive(Clone, Debug, Default)]
pub struct Near(Arc<[Vec<Host>]>);

impl Near {
    /// These groups.
    ///
    /// # Errors
    ///
    /// A sentence, when a host is in two of them, or twice in one.
    pub fn new(groups: Vec<Vec<Host>>) -> Result<Near, String> {
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
        Ok(Near(groups.into()))
    }

    /// Whether no host is near another.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn group_of(&self, host: Host) -> Option<usize> {
        self.0.iter().position(|group| group.contains(&host))
    }
}

/// Requests for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// By range and page.
    pub page: (Host, u64),
    /// How many a second.
    pub per_second: u64,
    /// By the hosts that they came from, where the switch tells that.
    pub by: Vec<(Host, u64)>,
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// Runs that are pulled: to which group, and in how many looks in a row.
    pulled: BTreeMap<Run, (usize, u8)>,
    /// Runs, and requests a second for them, as they were counted last.
    hot: BTreeMap<Run, Asked>,
    /// By range and first page, until when: as a part and as none it is the same.
    left_alone: BTreeMap<(Host, u64), Nanoseconds>,
    /// Since when nobody asks for a part.
    idle: BTreeMap<Host, Nanoseconds>,
}

/// Pages that go together, by range and number of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) range: Host,
    pub(super) first: u64,
    pub(super) pages: u64,
    /// The part that they are, if they are one.
    pub(super) part: Option<Host>,
}

/// How often pages were asked for in a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) per_second: u64,
    /// By hosts of groups.
    by: BTreeMap<usize, u64>,
}

impl Asked {
    /// Most of it comes from this group.
    fn most(&self) -> Option<usize> {
        let is_most = |(_, count): &(&usize, &u64)| **count * 4 >= self.per_second * 3;
        self.by.iter().find(is_most).map(|(group, _)| *group)
    }
}

impl Ranges {
    /// What the switch has counted.
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
                if let Some(group) = self.settings.near.group_of(*host) {
                    *asked.by.entry(group).or_default() += count;
                }
            }
        }
        let pulled = self.pulls.hot.iter().filter_map(|(run, asked)| {
            let group = asked.most().filter(|_| asked.per_second >= PULLED_FROM)?;
            let home = self.home_of((run.range, run.first))?.machine.record.home;
            let looks = self.pulls.pulled.get(run).filter(|(to, _)| *to == group).map_or(0, |(_, looks)| *looks);
            (self.settings.near.group_of(home) != Some(group)).then_some((*run, (group, looks.saturating_add(1))))
        });
        self.pulls.pulled = pulled.collect();
        self.pulls.left_alone.retain(|_, until| now < *until);
        if self.is_calm() {
            self.follow_pull(now, orders);
        }
    }

    /// Lets the run go that is asked for most, of those that are pulled for long enough.
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
        let (range, pages) = (self.prefix(run.range), (run.first, run.first + run.pages - 1));
        orders.push(Order::Say(Event::Pulled { range, pages, host: self.prefix(host), per_second }));
        if let Err(why) = self.move_pages(now, run.range, host, (run.first, run.pages), orders) {
            orders.push(Order::Say(Event::NotCut { range, pages, why }));
        }
    }

    /// Runs that are pulled for long enough, each to which group, and requests a second for it: each by itself and with those
    /// before it that touch it, are none of them parts, and are pulled to the same group.
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

    /// The server of a group that a run should go to.
    fn nearest(&self, run: &Run, group: usize) -> Option<Host> {
        let own = self.ranges.get(&run.range)?.machine.record.home;
        let members = self.settings.near.0.get(group)?.iter().copied();
        let may = members
            .filter(|host| self.may_have(run, *host) || run.part.is_some() && *host == own && self.is_there(own));
        may.min_by_key(|host| (*host != own, self.load_of(*host), *host))
    }

    /// Whether a run may go to a server.
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

    /// The pages that go with one of them.
    fn run_of(&self, (number, page): (Host, u64)) -> Option<Run> {
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

    /// Whether nothing of any range is under way. What nobody has, and perhaps nobody will have, is not waited for.
    pub(super) fn is_calm(&self) -> bool {
        let is_still = |range: &Range| {
            let record = &range.machine.record;
            let goes = record.moving.is_some() || range.introducing.is_some() || range.returns;
            let is_lost = range.machine.is_open && record.complete.is_empty();
            range.is_quiet() && (is_lost || range.is_served() && !goes)
        };
        self.parts.cuts.is_empty() && self.ranges.values().all(is_still)
    }

    /// Requests a second that a server answers as home.
    pub(super) fn load_of(&self, host: Host) -> u64 {
        self.ranges.values().filter(|range| range.machine.record.home == host).map(Range::load).sum()
    }

    /// Whether that is known of all that it is home of.
    fn is_load_known(&self, host: Host) -> bool {
        self.ranges.values().filter(|range| range.machine.record.home == host).all(Range::is_load_known)
    }

    /// Whether a run may be where only the load is looked at: what most of a group asks for stays near that.
    pub(super) fn is_near_enough(&self, run: (Host, u64), host: Host) -> bool {
        let asked = self.pulls.hot.iter().find(|(of, _)| (of.range, of.first) == run).map(|(_, asked)| asked);
        let group = asked.and_then(Asked::most);
        group.is_none_or(|group| self.settings.near.group_of(host) == Some(group))
    }

    /// Runs that are no parts, and requests a second for them.
    pub(super) fn busy_runs(&self) -> impl Iterator<Item = (&Run, u64)> {
        let is_one = |run: &Run| run.part.is_none() && self.run_of((run.range, run.first)).as_ref() == Some(run);
        self.pulls.hot.iter().filter(move |(run, _)| is_one(run)).map(|(run, asked)| (run, asked.per_second))
    }

    /// Parts that nobody asks for come home, one after the other.
    pub(super) fn tick_pulls(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let idle = self.ranges.range(PARTS_FROM..).filter(|(_, part)| part.is_idle() && !part.returns);
        let before = &self.pulls.idle;
        let idle: BTreeMap<Host, Nanoseconds> =
            idle.map(|(number, _)| (*number, before.get(number).copied().unwrap_or(now))).collect();
        self.pulls.idle = idle;
        let is_due = |number: &Host, since: Nanoseconds| {
            let of = self.part_and_range(*number).map(|(_, range)| range.machine.record.home);
            let is_calm = |home| self.is_load_known(home) && self.load_of(home) < BUSY_FROM;
            now >= since + IDLE_FOR && of.is_some_and(is_calm)
        };
        let due = self.pulls.idle.iter().find(|(number, since)| is_due(number, **since)).map(|(number, _)| *number);
        if let Some(part) = due.filter(|_| self.is_calm()) {
            debug_assert!(is_part(part), "ranges have no home to come to");
            self.let_come_home(now, part, orders);
        }
    }
}
