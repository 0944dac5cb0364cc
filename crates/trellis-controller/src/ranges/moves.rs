//! Requested moves: of ranges, of parts, and of pages that become parts.
//!
//! Promises: a move that was acknowledged is in the record of its range until it is fulfilled or an event says why it
//! is not. A controller that begins to lead continues it. A later request for the same pages replaces an earlier one.
//!
//! It must never begin a move while anything is under way for the range, nor give up one that its machine carries out,
//! or because this controller has not heard the servers yet.

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::parts::{PART_PAGES_MAX, PARTS_MAX, Part};
use trellis_fabric_protocol::lease::{Host, RangeNumber};
use trellis_fabric_protocol::wire::address::PAGE_BYTES;

use super::range::Range;
use super::{Order, Ranges};
use crate::event::Event;
use crate::records::{Goal, SplitRecord};

/// How long a requested move may lack what it needs.
pub(crate) const REQUESTED: Deadline = Deadline {
    who: "a controller, with a range or pages that shall move",
    waits_for: "a home that serves them, and the other server to be ready for them",
    limit: Limit::seconds(30),
    then: "they stay, and an event says why",
    tested: "crates/trellis-controller/src/ranges/tests/of_moves.rs what_nobody_comes_to_serve_stays",
};

/// The possible next step of a request.
enum Progress {
    /// It begins to move, or is split off.
    Begins,
    /// None: something is under way.
    Waits,
    /// None: this is lacking and may come. The flag is set if the server did not get ready.
    Lacks(String, bool),
    /// It is given up, for this reason.
    Cannot(String),
}

impl Ranges {
    /// Moves a range or part to a host. A part whose range has this home is merged into it.
    ///
    /// # Errors
    ///
    /// A message, if that is not possible.
    pub fn move_range(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        to: Host,
        orders: &mut Vec<Order>,
    ) -> Result<(), String> {
        let name = self.prefix(number.host());
        let range = self.ranges.get(&number).ok_or_else(|| self.no_such_range(number))?;
        if range.is_mute {
            return Err(format!("range {name}: it is being merged or reset; say it again in a moment"));
        }
        if !range.is_served() {
            return Err(self.not_served(number));
        }
        if range.machine.record.home != to {
            self.may_come(to)?;
            let (spare, bytes) = (self.spare(to), range.bytes());
            if !range.is_at(to) && !self.has_room(range, to) {
                return Err(format!(
                    "server {}: it has {spare} bytes left and range {name} takes {bytes}; start it with more --backup-memory",
                    self.prefix(to)
                ));
            }
        }
        self.request(number, to);
        self.continue_requests(now, number, orders);
        Ok(())
    }

    /// Moves pages of a range to a host; if that is the range's home, they are merged into the range again. Returns the
    /// page ranges that move: first page and number of pages.
    ///
    /// # Errors
    ///
    /// A message, if that is not possible.
    pub fn move_pages(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        to: Host,
        (first, pages): (u64, u64),
        orders: &mut Vec<Order>,
    ) -> Result<Vec<(u64, u64)>, String> {
        let name = self.prefix(number.host());
        let range = self.ranges.get(&number).filter(|range| range.within.is_none());
        let range = range.ok_or_else(|| self.no_such_range(number))?;
        let end = first.checked_add(pages).filter(|end| pages > 0 && *end <= range.pages).ok_or_else(|| {
            format!("range {name}: it has {} pages, numbered from 0; name some of these", range.pages)
        })?;
        if !range.is_served() {
            return Err(self.not_served(number));
        }
        if range.machine.record.home == to {
            return self.bring_home(now, number, first, end, orders);
        }
        let runs = self.runs(range, first, end)?;
        self.may_come(to)?;
        self.may_go(range, to, &runs)?;
        let mut splits = range.splits.clone();
        for &(first, pages) in &runs {
            // A later request replaces an earlier one.
            splits.retain(|split| (split.first, split.pages) != (first, pages));
            match self.part_at(number, first) {
                Some(part) => self.request(part, to),
                None => splits.push(SplitRecord { first, pages, to }),
            }
        }
        if let Some(range) = self.ranges.get_mut(&number) {
            range.request_splits(splits);
        }
        self.continue_moves(now, orders);
        Ok(runs)
    }

    /// Sets the destination of a range or part.
    fn request(&mut self, number: RangeNumber, to: Host) {
        let comes_home = self.part_and_range(number).is_some_and(|(_, range)| range.machine.record.home == to);
        let Some(range) = self.ranges.get_mut(&number) else { return };
        let record = &range.machine.record;
        let goal = match () {
            () if comes_home => Some(Goal::Merge),
            () if record.home == to && record.moving.is_none() => None,
            () => Some(Goal::Host(to)),
        };
        range.request(goal);
    }

    fn not_served(&self, number: RangeNumber) -> String {
        format!(
            "range {}: nobody serves it now; wait until somebody is home, then say it again",
            self.prefix(number.host())
        )
    }

    /// Whether anything may move to a server.
    fn may_come(&self, to: Host) -> Result<(), String> {
        let host = self.prefix(to);
        if !self.is_there(to) {
            return Err(format!("server {host}: nothing is heard of it; start it, and let it report here"));
        }
        if self.is_drained(to) {
            return Err(format!(
                "server {host}: everything moves away from it; say `trellis controller drain {host} --cancel` first"
            ));
        }
        Ok(())
    }

    /// Divides these pages into page ranges that can be parts; each is a part already, or overlaps none.
    fn runs(&self, range: &Range, first: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
        let name = self.prefix(range.number.host());
        let mut runs = Vec::new();
        let mut from = first;
        while from < end {
            let to = end.min(from + PART_PAGES_MAX);
            let mut touching = range.machine.record.parts.iter().filter(|part| part.first < to && from < part.end());
            if let Some(part) = touching.find(|part| (part.first, part.end()) != (from, to)) {
                let (first, last) = (part.first, part.end() - 1);
                let home = self.ranges.get(&part.number).map_or(range.number.host(), |part| part.machine.record.home);
                return Err(format!(
                    "range {name}: pages {first} to {last} are at {} already; let all of them go with --pages {first}-{last}, or let \
                     them come home first, to {}",
                    self.prefix(home),
                    self.prefix(range.machine.record.home)
                ));
            }
            let is_other = |split: &&SplitRecord| split.overlaps(from, to) && (split.first, split.end()) != (from, to);
            if let Some(split) = range.splits.iter().find(is_other) {
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
        let (name, host) = (self.prefix(range.number.host()), self.prefix(to));
        let is_new = |run: &&(u64, u64)| self.part_at(range.number, run.0).is_none();
        let waiting = range.splits.iter().filter(|split| !runs.contains(&(split.first, split.pages))).count();
        let count = range.machine.record.parts.len() + waiting + runs.iter().filter(is_new).count();
        if count > PARTS_MAX {
            return Err(format!(
                "range {name}: it would have {count} parts, and {PARTS_MAX} is the most; let longer page ranges go, or some come home"
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
        number: RangeNumber,
        first: u64,
        end: u64,
        orders: &mut Vec<Order>,
    ) -> Result<Vec<(u64, u64)>, String> {
        let name = self.prefix(number.host());
        let Some(range) = self.ranges.get_mut(&number) else { return Ok(Vec::new()) };
        let parts = range.machine.record.parts.iter();
        let touching: Vec<Part> = parts.filter(|part| part.first < end && first < part.end()).copied().collect();
        if let Some(part) = touching.iter().find(|part| part.first < first || part.end() > end) {
            let (first, last) = (part.first, part.end() - 1);
            return Err(format!(
                "range {name}: pages {first} to {last} are a part, which comes home as a whole; say --pages {first}-{last}"
            ));
        }
        let (overlapping, others): (Vec<SplitRecord>, Vec<SplitRecord>) =
            range.splits.iter().copied().partition(|split| split.overlaps(first, end));
        if let Some(split) = overlapping.iter().find(|split| split.first < first || split.end() > end) {
            let (first, last) = (split.first, split.end() - 1);
            return Err(format!(
                "range {name}: pages {first} to {last} are about to go to another server together; say --pages {first}-{last}"
            ));
        }
        range.request_splits(others);
        range.write_requests(now, &mut self.next_ticket, orders);
        for part in &touching {
            self.let_come_home(now, part.number, orders);
        }
        Ok(touching.iter().map(|part| (part.first, part.pages)).collect())
    }

    /// Takes the next step of each request that can take one.
    pub(super) fn continue_moves(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let requested = self.ranges.values().filter(|range| range.has_requests());
        let numbers: Vec<RangeNumber> = requested.map(|range| range.number).collect();
        numbers.into_iter().for_each(|number| self.continue_requests(now, number, orders));
    }

    /// The same for the requests about one range or part.
    pub(super) fn continue_requests(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
        if self.ranges.get(&number).is_none_or(|range| !range.has_requests() || range.is_mute) {
            return;
        }
        self.continue_move(now, number, orders);
        self.continue_splits(now, number, orders);
        if let Some(range) = self.ranges.get_mut(&number) {
            range.write_requests(now, &mut self.next_ticket, orders);
        }
    }

    fn continue_move(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
        let Some(range) = self.ranges.get(&number) else { return };
        let Some(Goal::Host(to)) = range.goal else { return };
        if range.machine.record.moving == Some(to) {
            if let Some(range) = self.ranges.get_mut(&number) {
                range.hindered.remove(&None);
            }
            return;
        }
        match self.progress(now, (number, None), to, range.is_at(to) || self.has_room(range, to)) {
            Progress::Waits | Progress::Lacks(..) => {}
            Progress::Begins => self.begin_move(now, number, to, orders),
            Progress::Cannot(why) => {
                if let Some(range) = self.ranges.get_mut(&number) {
                    range.request(None);
                }
                self.give_up(now, number, None, why, orders);
            }
        }
    }

    fn continue_splits(&mut self, now: Nanoseconds, number: RangeNumber, orders: &mut Vec<Order>) {
        let splits = self.ranges.get(&number).map_or_else(Vec::new, |range| range.splits.clone());
        for split in splits {
            let Some(range) = self.ranges.get(&number) else { return };
            let is_there = range.machine.record.home == split.to && range.machine.record.moving.is_none();
            let has_room = range.is_at(split.to) || self.spare(split.to) >= split.pages * PAGE_BYTES;
            let others = range.splits.iter().filter(|of| **of != split).copied().collect();
            let progress = match is_there {
                true => None,
                false => Some(self.progress(now, (number, Some(split.first)), split.to, has_room)),
            };
            if matches!(progress, Some(Progress::Waits | Progress::Lacks(..))) {
                continue;
            }
            if let Some(range) = self.ranges.get_mut(&number) {
                // The record that names the part shows that the request is fulfilled.
                range.request_splits(others);
            }
            let why = match progress {
                Some(Progress::Cannot(why)) => Some(why),
                Some(Progress::Begins) if !self.split(now, number, split, orders) => Some(
                    "no number is left for another part, or no incarnation of the range; let parts come home"
                        .to_owned(),
                ),
                _ => None,
            };
            if let Some(why) = why {
                self.give_up(now, number, Some((split.first, split.end() - 1)), why, orders);
            }
        }
    }

    /// Says that a request was given up, after the record without it.
    pub(super) fn give_up(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        pages: Option<(u64, u64)>,
        why: String,
        orders: &mut Vec<Order>,
    ) {
        let event = Event::Stays { range: self.prefix(number.host()), pages, why };
        if let Some(range) = self.ranges.get_mut(&number) {
            range.give_up(now, event, &mut self.next_ticket, orders);
        }
    }

    /// The next step of a request about a range, or about pages of it. A request that lacks something for
    /// [`REQUESTED`] is given up. The result is never [`Progress::Lacks`].
    fn progress(
        &mut self,
        now: Nanoseconds,
        (number, first): (RangeNumber, Option<u64>),
        to: Host,
        has_room: bool,
    ) -> Progress {
        let Some(range) = self.ranges.get(&number) else { return Progress::Waits };
        let next = self.next_step(now, range, to, has_room);
        let Some(range) = self.ranges.get_mut(&number) else { return next };
        match next {
            Progress::Lacks(why, is_unready) => {
                let (since, was_unready) = range.hindered.entry(first).or_insert((now, false));
                *was_unready |= is_unready;
                if now >= *since + REQUESTED.nanoseconds() { Progress::Cannot(why) } else { Progress::Waits }
            }
            // A server that did not get ready is asked again, and the time of its request goes on.
            Progress::Begins => {
                range.hindered.retain(|of, (_, was_unready)| *of != first || *was_unready);
                next
            }
            next => next,
        }
    }

    fn next_step(&self, now: Nanoseconds, range: &Range, to: Host, has_room: bool) -> Progress {
        let host = self.prefix(to);
        match () {
            () if range.begins_at.is_some() => Progress::Cannot("the range is being reset".to_owned()),
            () if self.is_drained(to) => Progress::Cannot(format!("server {host} is being drained")),
            () if self.is_gone(now, to) => Progress::Cannot(format!("nothing is heard of server {host}")),
            // It is about to be heard, or to count as gone.
            () if !self.is_there(to) => Progress::Waits,
            () if !range.is_served() => Progress::Lacks("there is no home".to_owned(), false),
            () if range.shunned.contains_key(&to) => Progress::Lacks(format!("server {host} did not get ready"), true),
            () if !range.is_firm() => Progress::Waits,
            () if !has_room => {
                Progress::Lacks(format!("server {host} has no room; give it more --backup-memory"), false)
            }
            () => Progress::Begins,
        }
    }
}
