//! Parts of ranges at a server (subranges with homes of their own): which of them a request is about, how one is split
//! off and merged, and when its content is dropped.
//!
//! Promises: a request is answered by whichever range or part has the page, or not at all here. When pages are split
//! off, their content goes to the part together with their leases, and comes back with them when it is merged, in one
//! step whose time does not depend on the number of pages. Content that no home needs is dropped, and its memory
//! becomes available to others: when no controller has named this host for it for a while, and one that was asked does
//! not either.
//!
//! It must never have the bytes of one page in two places, nor drop content that a controller may need.

use trellis_fabric_protocol::lease::home::Home;
use trellis_fabric_protocol::lease::parts::{self, Part, Step, Within};
use trellis_fabric_protocol::lease::{Message, Placement, RangeNumber};
use trellis_fabric_protocol::memory_server::table_pages::table_pages;
use trellis_fabric_protocol::wire::address::{Host, PAGE_BYTES};
use trellis_fabric_protocol::wire::command::{Class, Command};
use trellis_fabric_protocol::wire::datagram::control::What;
use trellis_fabric_protocol::wire::datagram::{Operation, Request};
use trellis_memory::Arena;

use super::super::memory::move_pages;
use super::events::Event;
use super::held::{Hand, Held};
use super::placed::Placed;
use super::{SECOND, Server, UNKNOWN_MAX};

/// To which range or part a request belongs.
pub(super) enum Where {
    /// To this range or part.
    At(RangeNumber),
    /// Its bytes belong to several.
    AtSeveral,
}

/// Whether a controller wants this host to hold something.
pub(super) fn names(placement: &Placement, me: Host) -> bool {
    placement.home == me || placement.backups.contains(&me) || placement.hand_to == Some(me)
}

impl Server {
    /// To which range or part a request belongs, as far as it is known here.
    pub(super) fn place_of(&self, request: &Request) -> Where {
        let pointer = request.destination.pointer;
        let range = RangeNumber::of(pointer.home());
        let command = request.command();
        let is_of_pages = matches!(command.class(), Class::Reading | Class::Changing | Class::Leases)
            || matches!(command, Command::Clone | Command::Invalidated);
        if self.parts.is_empty() || !is_of_pages {
            return Where::At(range);
        }
        let bytes = match request.operation {
            Operation::Read { bytes } => u64::from(bytes),
            Operation::Bytes(extent) => u64::from(extent.total),
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => 8,
            _ => 1,
        };
        let (first, last) = (pointer.page(), (pointer.offset() + bytes.max(1) - 1) / PAGE_BYTES);
        let begins_in = self.parts.range(..=(range, first)).next_back();
        let begins_in = begins_in.filter(|((of, start), (pages, _))| *of == range && first - start < *pages);
        let is_left = begins_in.is_some_and(|((_, start), (pages, _))| last - start >= *pages);
        if is_left || last > first && self.parts.range((range, first + 1)..=(range, last)).next().is_some() {
            return Where::AtSeveral;
        }
        Where::At(begins_in.map_or(range, |(_, (_, number))| *number))
    }

    /// Whether a range here has this part.
    pub(super) fn lists(&self, range: RangeNumber, number: RangeNumber) -> bool {
        self.ranges.get(&range).is_some_and(|held| held.parts.iter().any(|part| part.number == number))
    }

    /// A controller's message about a part; returns whether it is accepted. If not, the controller is asked about the
    /// range first.
    pub(super) fn hears_of_part(&mut self, number: RangeNumber, within: Within) -> bool {
        let known = self.ranges.get(&number).and_then(|held| held.within);
        match known {
            Some(known) if known == within => return true,
            Some(known) if known.since > within.since => return false,
            _ => {}
        }
        let now = self.context.now();
        if let Some(range) = self.ranges.get_mut(&within.range).filter(|range| range.has_bytes()) {
            range.leases.ask(now);
            return false;
        }
        // The number now belongs to another part.
        self.remove(number);
        true
    }

    /// Applies the changes of a range's parts that a controller's message contains.
    pub(super) fn split_again(&mut self, range: RangeNumber, what: &What) {
        let What::Placed { request, boot_id, placement, call, .. } = what else { return };
        let (request, boot_id, call) = (*request, *boot_id, *call);
        let message = Message::Placed { request, boot_id, placement: placement.clone(), call };
        loop {
            let Some(held) = self.ranges.get(&range).filter(|held| held.within.is_none()) else { return };
            match parts::next(held.leases.server(), &held.parts, &message) {
                Step::Hear => return self.end_merged(range, placement),
                Step::Split(part) => self.split(range, part),
                Step::Merge(part) => self.merge(range, part, placement.begins_empty),
            }
        }
    }

    /// A part that is held here without its range, and that a later placement of the range does not name, was merged
    /// elsewhere.
    fn end_merged(&mut self, range: RangeNumber, placement: &Placement) {
        let is_over = |number: RangeNumber, within: Within| {
            let is_named = placement.parts.iter().any(|part| part.number == number && part.since == within.since);
            within.range == range && placement.incarnation >= within.since && !is_named
        };
        let parts = self.ranges.iter().filter_map(|(number, held)| Some((*number, held, held.within?)));
        let over = parts.filter(|(number, held, within)| {
            is_over(*number, *within) && !self.lists(range, *number) && held.leases.server().home.is_none()
        });
        let over: Vec<RangeNumber> = over.map(|(number, ..)| number).collect();
        for number in over {
            let Some(held) = self.ranges.get(&number) else { continue };
            let (place, bytes) = (held.place(&self.context), held.taken_bytes);
            self.remove(number);
            self.context.events.push(Event::Forgotten { place, bytes });
        }
    }

    /// Splits pages off a range as a part.
    fn split(&mut self, range: RangeNumber, part: Part) {
        let within = part.within(range);
        let is_held = self.ranges.get(&part.number).is_some_and(|held| held.within == Some(within));
        if !is_held {
            self.remove(part.number);
        }
        let Some(mut whole) = self.ranges.remove(&range) else { return };
        whole.look(&mut self.context);
        let (run, own, now) = (part.run(), table_pages(part.pages), self.context.now());
        let since = whole.leases.next_epoch();
        let leases = whole.leases.split(now, &part, own);
        whole.obey(&mut self.context, Hand::default());
        let place = whole.parts.partition_point(|other| other.first < part.first);
        whole.parts.insert(place, part);
        if let Some(logic) = &mut whole.logic {
            logic.lend(part.first, part.pages);
        }
        let settings = self.settings(range.host(), part.pages * PAGE_BYTES);
        // A part that is here already is kept unchanged.
        if let (false, Ok(settings)) = (is_held, settings) {
            let mut split = Held::new(part.number, settings, leases, None);
            (split.within, split.named) = (Some(within), whole.named.clone());
            split.is_counted_on(now);
            self.give_bytes(&mut whole, &mut split, &part);
            if let (Some(of_whole), Some(_)) = (&mut whole.placed, &split.memory) {
                let table = match &whole.logic {
                    Some(logic) => of_whole.table.part_to_be(run.clone(), logic, since),
                    None => of_whole.table.part(run.clone()),
                };
                let mut of_part = Placed::known(table);
                let open = of_whole.touched_in(&run);
                if !open.is_empty() {
                    of_whole.awaits.insert(part.number);
                }
                of_part.is_split_open(
                    open.into_iter().map(|pages| pages.start - run.start..pages.end - run.start).collect(),
                );
                split.placed = Some(of_part);
            }
            self.index(within, part.pages, part.number);
            self.context.events.push(Event::Split { place: split.place(&self.context) });
            split.look(&mut self.context);
            self.ranges.insert(part.number, split);
        }
        self.ranges.insert(range, whole);
    }

    /// Moves the bytes of a part from its range to the part. If the range has none, or they cannot be described, the part
    /// has none.
    fn give_bytes(&mut self, whole: &mut Held, split: &mut Held, part: &Part) {
        let bytes = part.pages * PAGE_BYTES;
        let arena = if whole.has_bytes() { Arena::new(bytes).ok() } else { None };
        match (&mut whole.memory, arena) {
            (Some(memory), Some(mut arena)) => {
                let from = part.first * PAGE_BYTES;
                move_pages(memory.as_mut(), from..from + bytes, &mut arena, 0);
                split.memory = Some(Box::new(arena));
            }
            _ => split.leases.give_up(self.context.now()),
        }
    }

    /// Merges pages into their range; if the range begins empty, without their content.
    fn merge(&mut self, range: RangeNumber, part: Part, begins_empty: bool) {
        let Some(mut whole) = self.ranges.remove(&range) else { return };
        whole.parts.retain(|other| other.number != part.number);
        let split = self.ranges.remove(&part.number).filter(|split| split.within == Some(part.within(range)));
        if let Some(mut split) = split {
            split.leases.dismiss(0..part.pages);
            split.obey(&mut self.context, Hand::default());
            self.forget_index(part.within(range), part.number);
            self.context.spare_bytes += split.taken_bytes;
            let place = split.place(&self.context);
            if !begins_empty {
                if let (Some(from), Some(to)) = (&mut split.memory, &mut whole.memory) {
                    move_pages(from.as_mut(), 0..part.pages * PAGE_BYTES, to.as_mut(), part.first * PAGE_BYTES);
                }
                whole.leases.merge(self.context.now(), &part, split.leases);
            }
            self.context.events.push(Event::Merged { place });
        }
        if let Some(logic) = &mut whole.logic {
            logic.take_back(part.first, part.pages);
        }
        if let Some(placed) = &mut whole.placed {
            placed.awaits.remove(&part.number);
        }
        whole.misses = whole.misses.filter(|missed| *missed != part.number);
        whole.obey(&mut self.context, Hand::default());
        self.ranges.insert(range, whole);
    }

    /// Lets ranges continue that wait for what the backups of parts know, once they know it. If a part's home is
    /// elsewhere, this server cannot learn that, and the part has to be merged back.
    pub(super) fn look_at_open_splits(&mut self) {
        let awaits = |held: &Held| held.placed.as_ref().and_then(|placed| placed.awaits.first().copied());
        let open: Vec<(RangeNumber, RangeNumber)> =
            self.ranges.iter().filter_map(|(range, held)| Some((*range, awaits(held)?))).collect();
        for (range, number) in open {
            let home = self.ranges.get(&number).and_then(|part| part.leases.server().home.as_ref());
            let is_settled = home.map(Home::is_settled);
            let Some(whole) = self.ranges.get_mut(&range) else { continue };
            match (is_settled, &mut whole.placed) {
                (Some(true), Some(placed)) => {
                    placed.awaits.remove(&number);
                    whole.misses = None;
                }
                (None, _) => whole.misses = Some(number),
                _ => {}
            }
        }
    }

    /// Asks the controller about content that no home seems to need.
    pub(super) fn ask_whether_counted(&mut self) {
        let (own, now) = (self.options.prefix.host, self.context.now());
        for held in self.ranges.values_mut() {
            let is_others =
                held.range != RangeNumber::of(own) && held.memory.is_some() && held.leases.server().home.is_none();
            if is_others && !held.asks_for_counting && now >= held.ask_at {
                held.asks_for_counting = true;
                held.leases.ask(now);
            }
        }
        self.located.retain(|_, at| now < *at + SECOND);
    }

    /// Handles a controller's answer about a range: content that is not needed is dropped.
    pub(super) fn may_forget(&mut self, range: RangeNumber, request: u64, placement: &Placement) {
        let me = self.options.prefix.host;
        let is_asked = self.ranges.get(&range).is_some_and(|held| held.asks_for_counting);
        if request == 0 || names(placement, me) || !is_asked {
            return;
        }
        let Some(held) = self.ranges.get_mut(&range) else { return };
        let (place, bytes, within) = (held.place(&self.context), held.taken_bytes, held.within);
        if within.is_some_and(|within| self.lists(within.range, range)) {
            // Its range is here and lists it: the part stays known.
            let now = self.context.now();
            let Some(held) = self.ranges.get_mut(&range) else { return };
            (held.memory, held.placed, held.logic) = (None, None, None);
            (held.taken_bytes, held.asks_for_counting) = (0, false);
            held.leases.give_up(now);
            held.obey(&mut self.context, Hand::default());
            self.context.spare_bytes += bytes;
        } else {
            self.remove(range);
        }
        self.context.events.push(Event::Forgotten { place, bytes });
    }

    /// Removes a range or part entirely.
    pub(super) fn remove(&mut self, range: RangeNumber) {
        let Some(held) = self.ranges.remove(&range) else { return };
        self.context.spare_bytes += held.taken_bytes;
        if let Some(within) = held.within {
            self.forget_index(within, range);
        }
        // Parts that are here without their range have memory of their own.
        for part in held.parts {
            if let Some(split) =
                self.ranges.get_mut(&part.number).filter(|split| split.memory.is_some() && split.taken_bytes == 0)
            {
                split.taken_bytes = self.context.spare_bytes.min(part.pages * PAGE_BYTES);
                self.context.spare_bytes -= split.taken_bytes;
            }
        }
    }

    /// Assigns requests about these pages to this part. Overlapping parts whose end was not received lose them.
    pub(super) fn index(&mut self, within: Within, pages: u64, number: RangeNumber) {
        let Within { range, first, since } = within;
        let is_over = |start: u64, length: u64| start < first + pages && first < start + length;
        let over: Vec<(u64, RangeNumber)> = self
            .parts
            .range((range, 0)..(range, first + pages))
            .filter(|((_, start), (length, _))| is_over(*start, *length))
            .map(|((_, start), (_, other))| (*start, *other))
            .collect();
        let since_of =
            |other: RangeNumber| self.ranges.get(&other).and_then(|held| held.within).map_or(0, |within| within.since);
        if over.iter().any(|(_, other)| *other != number && since_of(*other) > since) {
            return;
        }
        for (start, _) in over {
            self.parts.remove(&(range, start));
        }
        self.parts.insert((range, first), (pages, number));
    }

    fn forget_index(&mut self, Within { range, first, .. }: Within, number: RangeNumber) {
        if self.parts.get(&(range, first)).is_some_and(|(_, of)| *of == number) {
            self.parts.remove(&(range, first));
        }
    }

    /// Asks the controller about the part with this number.
    pub(super) fn locate(&mut self, number: RangeNumber) {
        let now = self.context.now();
        let is_asked = self.located.get(&number).is_some_and(|at| now < at + self.timing.retry);
        if !is_asked && self.located.len() < UNKNOWN_MAX {
            self.located.insert(number, now);
            self.context.report(number, What::Locate);
        }
    }
}
