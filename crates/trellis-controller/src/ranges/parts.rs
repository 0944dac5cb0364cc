//! Parts of ranges ([`trellis_fabric_protocol::lease::parts`]): subranges that have a home of their own for a while.
//!
//! Promises: pages are split off a range, and merged into it, only when nothing is under way for either and their homes
//! know the previous decisions. A range gains or loses one part at a time. The record of a part is written together
//! with the record of its range that first names it, and counts until one is written that does not: after whichever
//! write a controller ends, the next one finds each page in one place. A number is reused only in a later incarnation.
//! A range is reset only when the home lease of each of its parts has ended, and in an incarnation above theirs; a part
//! is reset only at an operator's request.
//!
//! It must never move a part by itself: parts are ranges, and `policy` moves them. A part that was split off and is at
//! the home of its range without a request returns by itself.

use std::collections::BTreeMap;

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::controller::Input;
use trellis_fabric_protocol::lease::parts::{Part, Within, part_with};
use trellis_fabric_protocol::lease::{Host, Placement, RangeNumber};
use trellis_fabric_protocol::wire::address::PARTS_FROM;

use super::policy::{Next, Purpose};
use super::range::Range;
use super::{Order, Ranges, placed};
use crate::event::Event;
use crate::records::{Goal, SplitRecord};

/// How long a part may be at the home of its range before it is merged.
const BESIDE_FOR: Nanoseconds = 10_000_000_000;

/// What is known of parts in addition to the records.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Numbers that were parts and no longer are.
    ended: BTreeMap<RangeNumber, Ended>,
    /// Since when parts have been at the homes of their ranges.
    beside: BTreeMap<RangeNumber, Nanoseconds>,
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

impl Parts {
    /// Removes the parts that no range names from the loaded records.
    pub(super) fn new(ranges: &mut BTreeMap<RangeNumber, Range>) -> Parts {
        let is_named = |range: &Range| {
            let of = range.within.and_then(|within| ranges.get(&within.range));
            range.within.is_none() || of.is_some_and(|of| of.part(range.number).is_some())
        };
        let lost: Vec<RangeNumber> =
            ranges.values().filter(|range| !is_named(range)).map(|range| range.number).collect();
        let mut parts = Parts::default();
        for number in lost {
            parts.end(ranges, number);
        }
        parts
    }

    fn end(&mut self, ranges: &mut BTreeMap<RangeNumber, Range>, number: RangeNumber) {
        self.beside.remove(&number);
        if let Some((part, within)) = ranges.remove(&number).and_then(|part| part.within.map(|within| (part, within))) {
            let (incarnation, pages) = (part.machine.record.incarnation, part.pages);
            self.ended.insert(number, Ended { incarnation, within, pages });
        }
    }

    /// Whether this number was a part and no longer is.
    pub(super) fn has_ended(&self, number: RangeNumber) -> bool {
        self.ended.contains_key(&number)
    }
}

impl Ranges {
    /// The part of a range that begins with this page.
    pub fn part_at(&self, range: RangeNumber, first: u64) -> Option<RangeNumber> {
        let parts = &self.ranges.get(&range)?.machine.record.parts;
        parts.iter().find(|part| part.first == first).map(|part| part.number)
    }

    /// Moves a part to the home of its range, to be merged.
    pub(super) fn let_come_home(&mut self, now: Nanoseconds, part: RangeNumber, orders: &mut Vec<Order>) {
        if let Some(range) = self.ranges.get_mut(&part).filter(|range| !range.is_mute) {
            range.request(Some(Goal::Merge));
            range.write_requests(now, &mut self.next_ticket, orders);
            self.plan(now, part, orders);
        }
    }

    /// The home of a range asks for a part back because it needs all pages of an object.
    pub(super) fn wanted_back(
        &mut self,
        now: Nanoseconds,
        range: RangeNumber,
        part: RangeNumber,
        orders: &mut Vec<Order>,
    ) {
        if self.ranges.get(&range).is_none_or(|range| range.part(part).is_none()) {
            return;
        }
        let goes = self.ranges.get(&part).is_some_and(|part| matches!(part.goal, Some(Goal::Host(_))) && !part.is_mute);
        self.let_come_home(now, part, orders);
        if goes {
            let why = "the home of their range needs them for an object; they come home".to_owned();
            self.give_up(now, part, None, why, orders);
        }
    }

    /// A host reports or asks about a part that no longer exists. A host that has the range is sent the range's
    /// placement; any other host, if it had been informed of the part, is told that its content is no longer needed.
    pub(super) fn heard_of_ended(
        &mut self,
        now: Nanoseconds,
        from: Host,
        number: RangeNumber,
        report: Option<(u16, u64)>,
        orders: &mut Vec<Order>,
    ) {
        let Some(Ended { incarnation, within, pages }) = self.parts.ended.get(&number).copied() else { return };
        let Some(range) = self.ranges.get(&within.range).filter(|range| range.is_quiet()) else { return };
        if range.is_at(from) {
            orders.push(Order::Send(from, range.call_up(now)));
        } else if let Some((boot_id, request)) = report {
            let (home, backups, parts) = (range.machine.record.home, Vec::new(), Vec::new());
            let placement =
                Placement { incarnation, home, backups, hand_to: None, begins_empty: false, is_unserved: false, parts };
            orders.push(Order::Send(from, placed((number, Some(within), pages), request, boot_id, placement, 0)));
        }
    }

    /// Continues resets, and returns parts that have no reason to be where they are.
    pub(super) fn tick_parts(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let waiting: Vec<RangeNumber> =
            self.ranges.values().filter(|range| range.begins_at.is_some()).map(|range| range.number).collect();
        for number in waiting {
            self.begin_without_parts(now, number, orders);
        }
        let parts: Vec<RangeNumber> = self.ranges.range(RangeNumber(PARTS_FROM)..).map(|(number, _)| *number).collect();
        for number in parts {
            if !self.is_beside(number) {
                self.parts.beside.remove(&number);
            } else if now >= *self.parts.beside.entry(number).or_insert(now) + BESIDE_FOR {
                self.let_come_home(now, number, orders);
            }
        }
    }

    /// Whether a part is at the home of its range without a reason.
    fn is_beside(&self, number: RangeNumber) -> bool {
        let Some((part, range)) = self.part_and_range(number) else { return false };
        let record = &part.machine.record;
        record.home == range.machine.record.home && record.moving.is_none() && part.goal.is_none()
    }

    /// A part, and the range from which it was split.
    pub(super) fn part_and_range(&self, number: RangeNumber) -> Option<(&Range, &Range)> {
        let part = self.ranges.get(&number)?;
        Some((part, self.ranges.get(&part.within?.range)?))
    }

    /// Splits pages off a range that is firm. Returns whether that was possible.
    pub(super) fn split(
        &mut self,
        now: Nanoseconds,
        range: RangeNumber,
        SplitRecord { first, pages, to }: SplitRecord,
        orders: &mut Vec<Order>,
    ) -> bool {
        let incarnation = self.ranges.get(&range).map_or(0, |range| range.machine.record.incarnation);
        let number = free_number(&self.ranges, &self.parts.ended, incarnation);
        let (settings, next_ticket) = (&self.settings, &mut self.next_ticket);
        let made = number.and_then(|number| {
            let part = Part { number, first, pages, since: incarnation.saturating_add(1) };
            self.ranges.get_mut(&range)?.split(now, part, to, settings, next_ticket, orders)
        });
        let Some(part) = made else { return false };
        self.parts.ended.remove(&part.number);
        self.ranges.insert(part.number, part);
        true
    }

    /// Merges a part into its range, if both are firm and at the same hosts.
    pub(super) fn merge(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
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
            let is_written = |range: &Range| range.written.parts.iter().any(|of| of.number == part.number);
            part.is_mute && range.is_none_or(|range| !is_written(range) && range.part(part.number).is_none())
        };
        let over: Vec<RangeNumber> = self
            .ranges
            .range(RangeNumber(PARTS_FROM)..)
            .filter(|(_, part)| is_over(part))
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            if self.ranges.get(&number).is_some_and(|part| matches!(part.goal, Some(Goal::Host(_)))) {
                let (range, why) = (self.prefix(number.host()), "its range begins without content".to_owned());
                orders.push(Order::Say(Event::Stays { range, pages: None, why }));
            }
            self.parts.end(&mut self.ranges, number);
            orders.push(Order::Forget(number));
        }
    }

    /// Resets a range when no host can be home of a part of it any more: parts are no longer answered from now on. If a
    /// host becomes home of the range after all, they continue.
    fn begin_without_parts(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
        let Some(range) = self.ranges.get(&number) else { return };
        let parts: Vec<RangeNumber> = range.machine.record.parts.iter().map(|part| part.number).collect();
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
        let range = self.ranges.get(&part.within?.range).filter(|_| part.goal == Some(Goal::Merge))?;
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
    pub(super) fn home_of(&self, (number, page): (RangeNumber, u64)) -> Option<&Range> {
        let range = self.ranges.get(&number)?;
        part_with(&range.machine.record.parts, page).map_or(Some(range), |part| self.ranges.get(&part.number))
    }
}

/// A number for another part of a range in this incarnation. Hosts may still know a number that was a part, so unused
/// numbers come first; then numbers whose last incarnation is lower than the part's will be.
fn free_number(
    ranges: &BTreeMap<RangeNumber, Range>,
    ended: &BTreeMap<RangeNumber, Ended>,
    incarnation: u16,
) -> Option<RangeNumber> {
    let mut numbers = (PARTS_FROM..u16::MAX).map(RangeNumber).filter(|number| !ranges.contains_key(number));
    let old = ended.iter().filter(|(_, ended)| ended.incarnation <= incarnation);
    let oldest = old.min_by_key(|(_, ended)| ended.incarnation).map(|(number, _)| *number);
    numbers.find(|number| !ended.contains_key(number)).or(oldest)
}
