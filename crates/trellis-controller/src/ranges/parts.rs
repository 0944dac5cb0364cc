//! Parts of ranges ([`trellis_fabric_protocol::lease::parts`]): subranges that have a home of their own for a while.
//!
//! Promises: pages are split off a range, and merged into it, only when nothing is under way for either and their homes
//! know the previous decisions. A range gains or loses one part at a time. The record of a part is written together with
//! the record of its range that first names it, and counts until one is written that does not: after whichever write a
//! controller ends, the next one finds each page in one place. A number is reused only in a later incarnation. A range is
//! reset only when the home lease of each of its parts has ended, and in an incarnation above theirs; a part is reset
//! only at an operator's request.
//!
//! Must never move a part by itself: parts are ranges, and `policy` moves them. A pending split for a move is forgotten
//! when a controller restarts; a part that was split off and not moved returns by itself.

use std::collections::BTreeMap;

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::controller::{Input, Record};
use trellis_fabric_protocol::lease::parts::{PART_PAGES_MAX, PARTS_MAX, Part, Within, part_with};
use trellis_fabric_protocol::lease::{Host, Placement};
use trellis_fabric_protocol::wire::address::{PAGE_BYTES, PARTS_FROM};

use super::policy::{Next, Purpose};
use super::range::Range;
use super::{Order, Ranges, placed, prefix};
use crate::event::Event;

/// How long pages that have to move wait until they are served and the server can take them.
pub(crate) const PAGES_TO_MOVE: Deadline = Deadline {
    who: "a controller, with pages that shall move",
    waits_for: "a home that serves them, and the other server to be ready for them",
    limit: Limit::seconds(30),
    then: "they stay, and an event says why",
    tested: "crates/trellis-controller/src/ranges/tests/of_parts.rs pages_that_nobody_comes_to_serve_stay",
};
/// How long a part may be at the home of its range before it is merged.
const BESIDE_FOR: Nanoseconds = 10_000_000_000;

/// What is known of parts in addition to the records.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Numbers that were parts and no longer are.
    ended: BTreeMap<Host, Ended>,
    /// Pages to be split off, in this order.
    pub(super) splits: Vec<Split>,
    /// Since when parts have been at the homes of their ranges.
    beside: BTreeMap<Host, Nanoseconds>,
}

/// A number that was a part.
#[derive(Clone, Copy, Debug)]
struct Ended {
    /// The last incarnation in which it was one.
    incarnation: u16,
    /// Where it was split from.
    within: Within,
    pages: u64,
}

/// A page range that has to move to a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub(super) range: Host,
    pub(super) first: u64,
    pub(super) pages: u64,
    pub(super) to: Host,
    /// The part, once it exists.
    pub(super) part: Option<Host>,
    /// The request is dropped at this time, unless something is under way.
    until: Nanoseconds,
}

/// The possible next step of a request.
enum Progress {
    /// None: something is under way.
    Waits,
    /// Drop it.
    Over,
    /// Drop it, and report why.
    Cannot(String),
    /// Split the pages off.
    Split,
    /// Move the part.
    Move(Host),
}

impl Split {
    fn end(&self) -> u64 {
        self.first + self.pages
    }

    fn overlaps(&self, range: Host, first: u64, end: u64) -> bool {
        self.range == range && self.first < end && first < self.end()
    }
}

impl Parts {
    /// Removes the parts that no range names from the loaded records.
    pub(super) fn new(ranges: &mut BTreeMap<Host, Range>) -> Parts {
        let is_named = |range: &Range| {
            let of = range.within.and_then(|within| ranges.get(&within.range));
            range.within.is_none() || of.is_some_and(|of| of.part(range.number).is_some())
        };
        let lost: Vec<Host> = ranges.values().filter(|range| !is_named(range)).map(|range| range.number).collect();
        let mut parts = Parts::default();
        for number in lost {
            parts.end(ranges, number);
        }
        parts
    }

    fn end(&mut self, ranges: &mut BTreeMap<Host, Range>, number: Host) {
        self.beside.remove(&number);
        if let Some((part, within)) = ranges.remove(&number).and_then(|part| part.within.map(|within| (part, within))) {
            let (incarnation, pages) = (part.machine.record.incarnation, part.pages);
            self.ended.insert(number, Ended { incarnation, within, pages });
        }
    }

    /// Whether this number was a part and no longer is.
    pub(super) fn has_ended(&self, number: Host) -> bool {
        self.ended.contains_key(&number)
    }
}

impl Ranges {
    /// Moves pages of a range to a host; if that is the range's home, they are merged into the range again. Returns the
    /// page ranges that move: first page and number of pages.
    ///
    /// # Errors
    ///
    /// A message, if that is not possible.
    pub fn move_pages(
        &mut self,
        now: Nanoseconds,
        number: Host,
        to: Host,
        (first, pages): (u64, u64),
        orders: &mut Vec<Order>,
    ) -> Result<Vec<(u64, u64)>, String> {
        let name = self.prefix(number);
        let range = self.ranges.get(&number).filter(|range| range.within.is_none());
        let range = range.ok_or_else(|| self.no_such_range(number))?;
        let end = first.checked_add(pages).filter(|end| pages > 0 && *end <= range.pages).ok_or_else(|| {
            format!("range {name}: it has {} pages, numbered from 0; name some of these", range.pages)
        })?;
        if !range.is_served() {
            return Err(format!("range {name}: nobody serves it now; wait until somebody is home, then say it again"));
        }
        if range.machine.record.home == to {
            return self.bring_home(now, number, first, end, orders);
        }
        let runs = self.runs(range, first, end)?;
        self.may_go(range, to, &runs)?;
        for &(first, pages) in &runs {
            // An earlier request about these pages is void.
            self.parts.splits.retain(|split| split.range != number || (split.first, split.pages) != (first, pages));
            let part = self.part_at(number, first);
            if let Some(part) = part.and_then(|part| self.ranges.get_mut(&part)) {
                part.goes_home(now, false, &mut self.next_ticket, orders);
            }
            let home = part.and_then(|part| self.ranges.get(&part)).map(|part| part.machine.record.home);
            if home != Some(to) {
                self.parts.splits.push(Split {
                    range: number,
                    first,
                    pages,
                    to,
                    part,
                    until: now + PAGES_TO_MOVE.nanoseconds(),
                });
            }
        }
        self.continue_splits(now, orders);
        Ok(runs)
    }

    /// The part of a range that begins with this page.
    pub fn part_at(&self, range: Host, first: u64) -> Option<Host> {
        let parts = &self.ranges.get(&range)?.machine.record.parts;
        parts.iter().find(|part| part.first == first).map(|part| part.number)
    }

    /// Divides these pages into page ranges that can be parts; each is a part already, or overlaps none.
    fn runs(&self, range: &Range, first: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
        let name = self.prefix(range.number);
        let mut runs = Vec::new();
        let mut from = first;
        while from < end {
            let to = end.min(from + PART_PAGES_MAX);
            let mut touching = range.machine.record.parts.iter().filter(|part| part.first < to && from < part.end());
            if let Some(part) = touching.find(|part| (part.first, part.end()) != (from, to)) {
                let (first, last) = (part.first, part.end() - 1);
                let home = self.ranges.get(&part.number).map_or(range.number, |part| part.machine.record.home);
                return Err(format!(
                    "range {name}: pages {first} to {last} are at {} already; let all of them go with --pages {first}-{last}, or let \
                     them come home first, to {}",
                    self.prefix(home),
                    self.prefix(range.machine.record.home)
                ));
            }
            let is_other =
                |split: &&Split| split.overlaps(range.number, from, to) && (split.first, split.end()) != (from, to);
            if let Some(split) = self.parts.splits.iter().find(is_other) {
                let (first, last) = (split.first, split.end() - 1);
                return Err(format!(
                    "range {name}: pages {first} to {last} are about to go to {}; say it again when they are there",
                    self.prefix(split.to)
                ));
            }
            runs.push((from, to - from));
            from = to;
        }
        Ok(runs)
    }

    /// Whether there are free numbers, and room at a host, for these page ranges of a range.
    fn may_go(&self, range: &Range, to: Host, runs: &[(u64, u64)]) -> Result<(), String> {
        let (name, host) = (self.prefix(range.number), self.prefix(to));
        if !self.is_there(to) {
            return Err(format!("server {host}: nothing is heard of it; start it, and let it report here"));
        }
        if self.is_drained(to) {
            return Err(format!(
                "server {host}: everything moves away from it; say `trellis controller drain {host} --cancel` first"
            ));
        }
        let is_new = |run: &&(u64, u64)| self.part_at(range.number, run.0).is_none();
        let waiting =
            self.parts.splits.iter().filter(|split| split.range == range.number && split.part.is_none()).count();
        let count = range.machine.record.parts.len() + waiting + runs.iter().filter(is_new).count();
        if count > PARTS_MAX {
            return Err(format!(
                "range {name}: it would have {count} parts, and {PARTS_MAX} is the most; let longer runs of pages go, or some come home"
            ));
        }
        let lacks = |run: &&(u64, u64)| {
            let part = self.part_at(range.number, run.0).and_then(|part| self.ranges.get(&part));
            part.map_or_else(|| !range.is_at(to), |part| !part.is_at(to) && !self.has_room(part, to))
        };
        let bytes: u64 = runs.iter().filter(lacks).map(|run| run.1 * PAGE_BYTES).sum();
        let spare = self.spare(to);
        if bytes > spare {
            return Err(format!(
                "server {host}: it has {spare} bytes left and these pages of range {name} take {bytes}; start it with more --backup-memory"
            ));
        }
        Ok(())
    }

    fn bring_home(
        &mut self,
        now: Nanoseconds,
        number: Host,
        first: u64,
        end: u64,
        orders: &mut Vec<Order>,
    ) -> Result<Vec<(u64, u64)>, String> {
        let parts = self.ranges.get(&number).map_or(&[][..], |range| &range.machine.record.parts);
        let touching: Vec<Part> = parts.iter().filter(|part| part.first < end && first < part.end()).copied().collect();
        if let Some(part) = touching.iter().find(|part| part.first < first || part.end() > end) {
            let (name, first, last) = (self.prefix(number), part.first, part.end() - 1);
            return Err(format!(
                "range {name}: pages {first} to {last} are a part, which comes home as a whole; say --pages {first}-{last}"
            ));
        }
        self.parts.splits.retain(|split| !split.overlaps(number, first, end));
        for part in &touching {
            self.let_come_home(now, part.number, orders);
        }
        Ok(touching.iter().map(|part| (part.first, part.pages)).collect())
    }

    /// Moves a part to the home of its range, to be merged.
    pub(super) fn let_come_home(&mut self, now: Nanoseconds, part: Host, orders: &mut Vec<Order>) {
        if let Some(range) = self.ranges.get_mut(&part).filter(|range| !range.is_mute) {
            range.goes_home(now, true, &mut self.next_ticket, orders);
            self.plan(now, part, orders);
        }
    }

    /// The home of a range asks for a part back because it needs all pages of an object.
    pub(super) fn wanted_back(&mut self, now: Nanoseconds, range: Host, part: Host, orders: &mut Vec<Order>) {
        if self.ranges.get(&range).is_some_and(|range| range.part(part).is_some()) {
            self.parts.splits.retain(|split| split.part != Some(part));
            self.let_come_home(now, part, orders);
        }
    }

    /// A host reports or asks about a part that no longer exists. A host that has the range is sent the range's
    /// placement; any other host, if it had been informed of the part, is told that its content is no longer needed.
    pub(super) fn heard_of_ended(
        &mut self,
        now: Nanoseconds,
        from: Host,
        number: Host,
        report: Option<(u16, u64)>,
        orders: &mut Vec<Order>,
    ) {
        let Some(Ended { incarnation, within, pages }) = self.parts.ended.get(&number).copied() else { return };
        let Some(range) = self.ranges.get(&within.range).filter(|range| range.is_quiet()) else { return };
        if range.is_at(from) {
            orders.push(Order::Tell(from, range.call_up(now)));
        } else if let Some((boot_id, request)) = report {
            let (home, backups, parts) = (range.machine.record.home, Vec::new(), Vec::new());
            let placement =
                Placement { incarnation, home, backups, hand_to: None, begins_empty: false, is_unserved: false, parts };
            orders.push(Order::Tell(from, placed((number, Some(within), pages), request, boot_id, placement, 0)));
        }
    }

    /// Continues pending splits, and returns parts that have no reason to be where they are.
    pub(super) fn tick_parts(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let waiting: Vec<Host> =
            self.ranges.values().filter(|range| range.begins_at.is_some()).map(|range| range.number).collect();
        for number in waiting {
            self.begin_without_parts(now, number, orders);
        }
        self.continue_splits(now, orders);
        let parts: Vec<Host> = self.ranges.range(PARTS_FROM..).map(|(number, _)| *number).collect();
        for number in parts {
            if !self.is_beside(number) {
                self.parts.beside.remove(&number);
            } else if now >= *self.parts.beside.entry(number).or_insert(now) + BESIDE_FOR {
                self.let_come_home(now, number, orders);
            }
        }
    }

    /// Whether a part is at the home of its range without a reason.
    fn is_beside(&self, number: Host) -> bool {
        let Some((part, range)) = self.part_and_range(number) else { return false };
        let is_asked_for = self.parts.splits.iter().any(|split| split.part == Some(number));
        let record = &part.machine.record;
        record.home == range.machine.record.home && record.moving.is_none() && !part.returns && !is_asked_for
    }

    /// A part, and the range from which it was split.
    pub(super) fn part_and_range(&self, number: Host) -> Option<(&Range, &Range)> {
        let part = self.ranges.get(&number)?;
        Some((part, self.ranges.get(&part.within?.range)?))
    }

    pub(super) fn continue_splits(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let mut place = 0;
        while let Some(split) = self.parts.splits.get(place).copied() {
            let progress = self.progress(now, &split);
            if let Progress::Cannot(why) = &progress {
                let (range, pages) = (self.prefix(split.range), (split.first, split.end() - 1));
                orders.push(Order::Say(Event::NotSplit { range, pages, why: why.clone() }));
            }
            match progress {
                Progress::Over | Progress::Cannot(_) => {
                    self.parts.splits.remove(place);
                    continue;
                }
                Progress::Waits => {}
                Progress::Split => self.split(now, place, split, orders),
                Progress::Move(part) => self.begin_move(now, part, split.to, orders),
            }
            place += 1;
        }
    }

    fn progress(&self, now: Nanoseconds, split: &Split) -> Progress {
        let Some(range) = self.ranges.get(&split.range).filter(|range| range.begins_at.is_none()) else {
            return Progress::Cannot("their range is being reset".to_owned());
        };
        let part = split.part.and_then(|part| self.ranges.get(&part)).filter(|part| !part.is_mute);
        if split.part.is_some() && part.is_none_or(|part| part.machine.record.home == split.to) {
            return Progress::Over;
        }
        let (host, of) = (self.prefix(split.to), part.unwrap_or(range));
        let has_room = match part {
            Some(part) => part.is_at(split.to) || self.has_room(part, split.to),
            None => range.is_at(split.to) || self.spare(split.to) >= split.pages * PAGE_BYTES,
        };
        // A host that did not get ready is asked again later.
        let is_shunned = of.shunned.contains_key(&split.to);
        match () {
            () if !self.is_there(split.to) || self.is_drained(split.to) => {
                Progress::Cannot(format!("server {host} is not to be had"))
            }
            () if of.is_firm() && !has_room => {
                Progress::Cannot(format!("server {host} has no room for them; give it more --backup-memory"))
            }
            () if of.is_firm() && !is_shunned => part.map_or(Progress::Split, |part| Progress::Move(part.number)),
            () if now >= split.until && !of.is_served() => Progress::Cannot("nobody serves them".to_owned()),
            () if now >= split.until && is_shunned => {
                Progress::Cannot(format!("server {host} did not get ready for them"))
            }
            () => Progress::Waits,
        }
    }

    fn split(&mut self, now: Nanoseconds, place: usize, split: Split, orders: &mut Vec<Order>) {
        let incarnation = self.ranges.get(&split.range).map_or(0, |range| range.machine.record.incarnation);
        let number = free_number(&self.ranges, &self.parts.ended, incarnation);
        let (settings, next_ticket) = (&self.settings, &mut self.next_ticket);
        let Some(range) = self.ranges.get_mut(&split.range) else { return };
        let made = number.and_then(|number| {
            let part = Part { number, first: split.first, pages: split.pages, since: incarnation.saturating_add(1) };
            range.split(now, part, settings, next_ticket, orders)
        });
        match made {
            Some(part) => {
                self.parts.splits[place].part = Some(part.number);
                self.parts.ended.remove(&part.number);
                self.ranges.insert(part.number, part);
            }
            None => {
                self.parts.splits.remove(place);
                let (range, pages) = (prefix(settings, split.range), (split.first, split.end() - 1));
                let why = "no number is left for another part, or no incarnation of the range; let parts come home"
                    .to_owned();
                orders.push(Order::Say(Event::NotSplit { range, pages, why }));
            }
        }
    }

    /// Merges a part into its range, if both are firm and at the same hosts.
    pub(super) fn merge(&mut self, now: Nanoseconds, number: Host, orders: &mut Vec<Order>) {
        let is_due = self.part_and_range(number).is_some_and(|(part, range)| part.is_firm() && range.is_firm());
        let Some(mut part) = is_due.then(|| self.ranges.remove(&number)).flatten() else { return };
        if let Some(range) = part.within.and_then(|within| self.ranges.get_mut(&within.range)) {
            // The part exists until that is written, but nothing more is sent about it.
            part.is_mute = range.merge(now, &part, &self.settings, &mut self.next_ticket, orders);
        }
        self.ranges.insert(number, part);
    }

    /// Ends parts that no written range names any more.
    pub(super) fn end_parts(&mut self, orders: &mut Vec<Order>) {
        let is_over = |part: &Range| {
            let range = part.within.and_then(|within| self.ranges.get(&within.range));
            let names = |record: &Record| record.parts.iter().any(|of| of.number == part.number);
            part.is_mute && range.is_none_or(|range| !names(&range.written) && !names(&range.machine.record))
        };
        let over: Vec<Host> =
            self.ranges.range(PARTS_FROM..).filter(|(_, part)| is_over(part)).map(|(number, _)| *number).collect();
        for number in over {
            self.parts.end(&mut self.ranges, number);
            orders.push(Order::Forget(number));
        }
    }

    /// Resets a range when no host can be home of a part of it any more: parts are no longer answered from now on. If a
    /// host becomes home of the range after all, they continue.
    fn begin_without_parts(&mut self, now: Nanoseconds, number: Host, orders: &mut Vec<Order>) {
        let Some(range) = self.ranges.get(&number) else { return };
        let parts: Vec<Host> = range.machine.record.parts.iter().map(|part| part.number).collect();
        let is_served = range.is_served();
        let (mut are_over, mut last) = (true, 0);
        for part in parts {
            let Some(part) = self.ranges.get_mut(&part) else { continue };
            part.is_mute = !is_served;
            are_over &= part.is_quiet() && now >= part.machine.until;
            last = last.max(part.machine.record.incarnation);
        }
        let Some(range) = self.ranges.get_mut(&number) else { return };
        let is_nobody_left = range.machine.is_open && range.machine.record.complete.is_empty();
        if is_served {
            range.begins_at = None;
        } else if is_nobody_left && are_over && range.is_quiet() {
            let (settings, next_ticket) = (&self.settings, &mut self.next_ticket);
            range.begin_after(now, last, settings, next_ticket, orders);
        }
    }

    /// The next step for a part that returns; `None` if its range cannot take it now, and it stays like any other part.
    pub(super) fn next_home(&self, part: &Range) -> Option<Next> {
        let range = self.ranges.get(&part.within?.range).filter(|_| part.returns)?;
        let (own, of) = (&part.machine.record, &range.machine.record);
        if !range.is_served() || of.moving.is_some() || self.is_drained(of.home) || !self.is_there(of.home) {
            return None;
        }
        let is_settled = own.complete.len() == own.backups.len();
        let introduces = |host: Host, purpose| {
            if self.may_take(part, host) { Next::Introduce(host, purpose) } else { Next::Nothing }
        };
        if own.home != of.home {
            return Some(match () {
                () if own.complete.contains(&of.home) => Next::Do(Input::Move(of.home)),
                () if !is_settled || own.backups.contains(&of.home) => Next::Nothing,
                () => introduces(of.home, Purpose::Move),
            });
        }
        let lacking = of.backups.iter().find(|host| !own.backups.contains(host));
        let surplus = own.backups.iter().find(|host| !of.backups.contains(host));
        Some(match (lacking, surplus) {
            _ if !is_settled => Next::Nothing,
            (Some(host), _) => introduces(*host, Purpose::Back),
            (None, Some(host)) => Next::Do(Input::Drop(*host)),
            (None, None) => Next::Merge,
        })
    }

    /// The range or part that has a page.
    pub(super) fn home_of(&self, (number, page): (Host, u64)) -> Option<&Range> {
        let range = self.ranges.get(&number)?;
        part_with(&range.machine.record.parts, page).map_or(Some(range), |part| self.ranges.get(&part.number))
    }
}

/// A number for another part of a range in this incarnation. Hosts may still know a number that was a part, so unused
/// numbers come first; then numbers whose last incarnation is lower than the part's will be.
fn free_number(ranges: &BTreeMap<Host, Range>, ended: &BTreeMap<Host, Ended>, incarnation: u16) -> Option<Host> {
    let mut numbers = (PARTS_FROM..Host::MAX).filter(|number| !ranges.contains_key(number));
    let old = ended.iter().filter(|(_, ended)| ended.incarnation <= incarnation);
    let oldest = old.min_by_key(|(_, ended)| ended.incarnation).map(|(number, _)| *number);
    numbers.find(|number| !ended.contains_key(number)).or(oldest)
}
