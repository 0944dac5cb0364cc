//! Several state machines on one host: for a range and its parts; for a client, one for each page.
//!
//! Promises: a host handles messages as [`trellis_fabric_protocol::lease::parts`] specifies, in that order, and moves
//! bytes as a runtime would. A client names a page by its number in the range and knows nothing of parts: for each
//! page it believes the last placement that it received, by the incarnation. It must never let two machines of a host
//! have the same page.

use super::faults;
use super::node::{Cause, Envelope, Machine, Node, Out};
use super::{Fault, Setup, Value};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::controller::{Controller, Record};
use trellis_fabric_protocol::lease::parts::{Keeps, Part, Step, is_credible, may_keep, next};
use trellis_fabric_protocol::lease::reader::Reader;
use trellis_fabric_protocol::lease::server::RangeServer;
use trellis_fabric_protocol::lease::{Effect, Message, PageNumber, RangeNumber, Timing};
use trellis_fabric_protocol::wire::address::PARTS_FROM;

/// A machine of a node other than its first, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Its part; at a client or reader, its page.
    pub part: Part,
    /// The machine.
    pub machine: Machine,
    /// A server's pages.
    pub bytes: Vec<Value>,
    /// A server's staged pages.
    pub aside: Vec<Value>,
    /// The persisted record of a controller.
    pub log: Option<Record>,
}

/// Says that a message is about the range, and no part of it.
pub(super) const THE_RANGE: (RangeNumber, u16) = (RangeNumber(0), 0);

/// What the current machine is responsible for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The part's number, and the incarnation of the range in which it began; zeros for the range.
    about: (RangeNumber, u16),
    /// Its first page, in the numbering of the range.
    first: PageNumber,
    /// The page of a request for the home, or of its answer.
    of: PageNumber,
}

impl Default for Place {
    fn default() -> Place {
        Place { about: THE_RANGE, first: 0, of: 0 }
    }
}

impl Place {
    fn of_part(part: &Part) -> Place {
        Place { about: (part.number, part.since), first: part.first, of: 0 }
    }

    /// A page of the machine, in the numbering of the range.
    pub(super) fn page(self, page: PageNumber) -> PageNumber {
        page + self.first
    }

    /// A message of the machine in the form in which it is sent: with its part and its page.
    pub(super) fn on_the_way(self, message: Message) -> (Message, (RangeNumber, u16), PageNumber) {
        let is_told = !matches!(
            message,
            Message::Request { .. } | Message::Reply { .. } | Message::Recall { .. } | Message::Invalidate { .. }
        );
        let of = if matches!(message, Message::Locate | Message::Placed { .. }) { self.of } else { 0 };
        match is_told {
            true => (message, self.about, of),
            false => (shifted(message, |page| page + self.first), THE_RANGE, 0),
        }
    }
}

/// A message between a page's home and a client or reader, with the page renumbered.
fn shifted(message: Message, number: impl Fn(PageNumber) -> PageNumber) -> Message {
    let mut message = message;
    if let Message::Request { page, .. }
    | Message::Reply { page, .. }
    | Message::Recall { page, .. }
    | Message::Invalidate { page, .. }
    | Message::Invalidated { page, .. } = &mut message
    {
        *page = number(*page);
    }
    message
}

impl Node {
    /// Creates the additional machines of a new node.
    pub(super) fn begin_units(&mut self, setup: &Setup) {
        match &mut self.machine {
            Machine::Server(range) => {
                for part in &setup.parts {
                    let mut server = RangeServer { report_at: None, ..range.split(0, part, 0) };
                    server.home.iter_mut().for_each(|home| home.backups.clone_from(&setup.part_backups));
                    let machine = Machine::Server(server);
                    let zeros = vec![0; part.pages as usize];
                    self.units.push(Unit { part: *part, machine, bytes: zeros.clone(), aside: zeros, log: None });
                }
                if let Some(home) = &mut range.home {
                    home.settling.elsewhere = setup.parts.iter().map(Part::run).collect();
                }
            }
            Machine::Controller(range) => {
                for part in &setup.parts {
                    let (backups, complete) = (setup.part_backups.clone(), setup.part_backups.clone());
                    let record = Record { backups, complete, parts: Vec::new(), ..range.record.clone() };
                    let machine = Machine::Controller(Controller { record: record.clone(), ..range.clone() });
                    self.units.push(unit(*part, machine, Some(record)));
                }
            }
            Machine::Client(first) => {
                let of_page = |page| unit(of_page(page), Machine::Client(first.clone()), None);
                self.units.extend((1..setup.pages).map(of_page));
            }
            Machine::Reader(first) => {
                let follows = |mut reader: Reader, page: PageNumber| {
                    reader.pages.entry(page).or_default().is_wanted = true;
                    reader
                };
                let of_page = |page| unit(of_page(page), Machine::Reader(follows(first.clone(), page)), None);
                self.units.extend((1..setup.leased_pages()).map(of_page));
                *first = follows(first.clone(), 0);
            }
        }
    }

    /// All its machines.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        [&self.machine].into_iter().chain(self.units.iter().map(|unit| &unit.machine))
    }

    /// A client's or reader's machine for a page.
    pub fn machine_of(&self, page: PageNumber) -> &Machine {
        let unit = (page as usize).checked_sub(1).and_then(|place| self.units.get(place));
        unit.map_or(&self.machine, |unit| &unit.machine)
    }

    /// A server's machine for a page, its part, the page's number there, and its pages.
    fn of_page(&self, page: PageNumber) -> Option<(&RangeServer, Option<Part>, PageNumber, &[Value])> {
        let unit = self.units.iter().find(|unit| unit.part.run().contains(&page));
        match (&self.machine, unit) {
            (Machine::Server(_), Some(Unit { part, machine: Machine::Server(server), bytes, .. })) => {
                Some((server, Some(*part), page - part.first, bytes))
            }
            (Machine::Server(server), None) => Some((server, None, page, &self.bytes)),
            _ => None,
        }
    }

    /// Whether a server answers for a page as its home.
    pub fn serves(&self, now: Nanoseconds, page: PageNumber) -> bool {
        self.of_page(page).is_some_and(|(server, ..)| server.serves(now))
    }

    /// Whether this settled home names a backup that has a different content of a page.
    pub fn differs_from_backup(&self, backup: &Node, page: PageNumber) -> bool {
        let (Some((server, part, place, bytes)), Some((kept, of, _, copy))) =
            (self.of_page(page), backup.of_page(page))
        else {
            return false;
        };
        // A server that has heard of another incarnation may no longer be a backup, and one that lost its memory
        // reports it.
        let is_backup = !kept.memory.is_blank && part == of;
        server.home.as_ref().is_some_and(|home| {
            let is_named = home.backups.contains(&kept.me) && kept.memory.incarnation <= home.incarnation;
            let is_still = home.is_settled() && !home.staged.contains_key(&place);
            is_backup && is_named && is_still && bytes[place as usize] != copy[place as usize]
        })
    }

    /// Whether this home shows content of a page that a server lacks although the controller takes it for complete.
    /// The controller's record says nothing about other incarnations than that of the home.
    pub fn shows_more(&self, other: &Node, controller: &Node, page: PageNumber) -> bool {
        let (Some((server, _, place, bytes)), Some((kept, _, at, copy))) = (self.of_page(page), other.of_page(page))
        else {
            return false;
        };
        let of_part = controller.units.iter().find(|unit| unit.part.run().contains(&page));
        let log = of_part.map_or(&controller.log, |unit| &unit.log);
        let (Some(home), Some(record)) = (&server.home, log) else { return false };
        let is_named = home.incarnation == record.incarnation && record.complete.contains(&kept.me);
        let shows = !home.is_hidden(place) && !home.staged.contains_key(&place);
        is_named && shows && !kept.memory.is_blank && bytes[place as usize] != copy[at as usize]
    }

    /// Runs one step with all its effects.
    pub fn step(&mut self, setup: &Setup, now: Nanoseconds, cause: &Cause, out: &mut Out) {
        let unit = match cause {
            Cause::Envelope(envelope) => {
                return match self.machine {
                    Machine::Server(_) => self.told(setup, now, envelope, out),
                    Machine::Controller(_) => self.reported(setup, now, envelope, out),
                    Machine::Client(_) | Machine::Reader(_) => {
                        let page = match &envelope.message {
                            Message::Request { page, .. }
                            | Message::Reply { page, .. }
                            | Message::Recall { page, .. }
                            | Message::Invalidate { page, .. } => *page,
                            _ => envelope.of,
                        };
                        self.step_at(page as usize, setup, now, cause, page, out);
                    }
                };
            }
            Cause::Tick(unit) | Cause::Directive(unit, _) => *unit,
            Cause::Renounce(page) => *page as usize,
            Cause::Go => self.operation(setup).map_or(0, |operation| operation.page() as usize),
            _ => 0,
        };
        self.step_at(unit, setup, now, cause, unit as PageNumber, out);
    }

    /// Runs a step of the machine with this number, with its own state.
    fn step_at(&mut self, unit: usize, setup: &Setup, now: Nanoseconds, cause: &Cause, of: PageNumber, out: &mut Out) {
        if unit > self.units.len() {
            return;
        }
        let part = unit.checked_sub(1).map(|place| self.units[place].part).filter(|part| part.number != THE_RANGE.0);
        let place = part.map_or(Place::default(), |part| Place::of_part(&part));
        self.on(unit, |node| node.step_one(setup, now, cause, Place { of, ..place }, out));
    }

    /// Runs `action` with the machine of this number in the place of the first.
    pub(super) fn on<R>(&mut self, unit: usize, action: impl FnOnce(&mut Node) -> R) -> R {
        self.exchange(unit);
        let result = action(self);
        self.exchange(unit);
        result
    }

    fn exchange(&mut self, unit: usize) {
        let Some(other) = unit.checked_sub(1).and_then(|place| self.units.get_mut(place)) else { return };
        std::mem::swap(&mut self.machine, &mut other.machine);
        std::mem::swap(&mut self.log, &mut other.log);
        if matches!(self.machine, Machine::Server(_)) {
            std::mem::swap(&mut self.bytes, &mut other.bytes);
            std::mem::swap(&mut self.aside, &mut other.aside);
        }
    }

    /// The parts that this host has machines for.
    pub fn here(&self) -> Vec<Part> {
        self.units.iter().map(|unit| unit.part).collect()
    }

    /// A server receives a message.
    fn told(&mut self, setup: &Setup, now: Nanoseconds, envelope: &Envelope, out: &mut Out) {
        let here = self.here();
        let with = |page: PageNumber| here.iter().position(|part| part.run().contains(&page));
        let of_unit = |unit: usize, message: Message| (unit, Cause::Envelope(Envelope { message, ..envelope.clone() }));
        let (unit, cause) = match (envelope.about, &envelope.message) {
            ((RangeNumber(0), _), Message::Request { page, .. } | Message::Invalidated { page, .. }) => {
                match with(*page).filter(|_| !faults::forgets_parts(setup.fault)) {
                    Some(place) => {
                        of_unit(place + 1, shifted(envelope.message.clone(), |page| page - here[place].first))
                    }
                    None => of_unit(0, envelope.message.clone()),
                }
            }
            ((RangeNumber(0), _), Message::Store { page, pages, incarnation, .. }) => {
                match may_keep(&here, &(*page..page + pages), *incarnation) {
                    Keeps::Yes => of_unit(0, envelope.message.clone()),
                    Keeps::Ask if setup.fault == Fault::KeepsMerged => of_unit(0, envelope.message.clone()),
                    Keeps::Ask => return self.ask(0, now),
                    Keeps::No => return,
                }
            }
            ((RangeNumber(0), _), message) => {
                self.split_and_merge(setup, now, message);
                of_unit(0, message.clone())
            }
            ((number, since), message) => {
                let Some(place) = here.iter().position(|part| part.number == number) else { return self.ask(0, now) };
                let is_placed = matches!(message, Message::Placed { .. });
                let Machine::Server(server) = &self.units[place].machine else { return };
                if is_placed && since != here[place].since {
                    return if since > here[place].since {
                        self.ask(0, now)
                    };
                }
                if !is_credible(server, message) && setup.fault != Fault::BelievesNewer {
                    return self.ask(place + 1, now);
                }
                if matches!(message, Message::Store { page, pages, .. } if page + pages > server.pages) {
                    return;
                }
                of_unit(place + 1, message.clone())
            }
        };
        self.step_at(unit, setup, now, &cause, 0, out);
    }

    /// Schedules a report to the controller.
    fn ask(&mut self, unit: usize, now: Nanoseconds) {
        self.on(unit, |node| {
            if let Machine::Server(server) = &mut node.machine {
                server.report_at.get_or_insert(now);
            }
        });
    }

    /// Creates and removes the machines of parts according to this message.
    fn split_and_merge(&mut self, setup: &Setup, now: Nanoseconds, message: &Message) {
        loop {
            let here = self.here();
            let Machine::Server(range) = &mut self.machine else { return };
            match faults::next(setup.fault, range, &here, message).unwrap_or_else(|| next(range, &here, message)) {
                Step::Hear => return,
                Step::Split(part) => {
                    let mut machine = range.split(now, &part, 0);
                    faults::split(setup.fault, &mut machine);
                    let run = part.first as usize..part.end() as usize;
                    let bytes = self.bytes[run.clone()].to_vec();
                    self.bytes[run.clone()].fill(0);
                    self.aside[run].fill(0);
                    let aside = vec![0; part.pages as usize];
                    let machine = Machine::Server(machine);
                    self.units.push(Unit { part, machine, bytes, aside, log: None });
                    self.units.sort_unstable_by_key(|unit| unit.part.first);
                }
                Step::Merge(part) => {
                    let Some(place) = here.iter().position(|other| *other == part) else { return };
                    let unit = self.units.remove(place);
                    let Machine::Server(mut server) = unit.machine else { return };
                    let run = part.first as usize..part.end() as usize;
                    self.bytes[run].copy_from_slice(&unit.bytes);
                    faults::merge(setup.fault, &mut server);
                    range.merge(now, &part, server);
                }
            }
        }
    }

    /// The controller receives a message.
    fn reported(&mut self, setup: &Setup, now: Nanoseconds, envelope: &Envelope, out: &mut Out) {
        let place = match (envelope.about, &envelope.message) {
            ((RangeNumber(0), _), Message::Locate) => {
                self.units.iter().position(|unit| unit.part.run().contains(&envelope.of))
            }
            ((RangeNumber(0), _), _) => None,
            // A part that was merged needs no answer.
            ((number, _), _) => match self.units.iter().position(|unit| unit.part.number == number) {
                None => return,
                place => place,
            },
        };
        let unit = place.map_or(0, |place| place + 1);
        self.step_at(unit, setup, now, &Cause::Envelope(envelope.clone()), envelope.of, out);
    }

    /// The controller splits pages off, if it may.
    pub(super) fn split(
        &mut self,
        setup: &Setup,
        now: Nanoseconds,
        first: PageNumber,
        pages: PageNumber,
        effects: &mut Vec<Effect>,
    ) {
        let here = self.here();
        let Machine::Controller(range) = &mut self.machine else { return };
        // A number is used again as soon as it is free.
        let number =
            (PARTS_FROM..u16::MAX).map(RangeNumber).find(|number| here.iter().all(|part| part.number != *number));
        let Some(number) = number else { return };
        let part = Part { number, first, pages, since: range.record.incarnation + 1 };
        let Some(mut machine) = range.split(now, part, effects) else { return };
        if setup.fault == Fault::SplitForgetsHomeLease {
            machine.until = now;
        }
        // Together with what the range's machine persists.
        let log = Some(machine.record.clone());
        self.units.push(unit(part, Machine::Controller(machine), log));
        self.units.sort_unstable_by_key(|unit| unit.part.first);
    }

    /// The controller merges a part, if it may.
    pub(super) fn merge(&mut self, setup: &Setup, now: Nanoseconds, place: usize, effects: &mut Vec<Effect>) {
        let Machine::Controller(range) = &mut self.machine else { return };
        let Some(Unit { part, machine: Machine::Controller(other), .. }) = self.units.get_mut(place) else { return };
        let (until, incarnation) = (range.until, range.record.incarnation);
        if setup.fault == Fault::MergesAnyTime {
            range.settled = Some(incarnation);
            other.settled = Some(other.record.incarnation);
        }
        if !range.merge(now, part.number, other, effects) {
            return;
        }
        match setup.fault {
            Fault::MergeForgetsHomeLease => range.until = until,
            Fault::MergeForgetsIncarnation => {
                range.record.incarnation = incarnation + 1;
                for effect in effects {
                    match effect {
                        Effect::Persist(record) => record.incarnation = incarnation + 1,
                        Effect::Send { message: Message::Placed { placement, .. }, .. } => {
                            placement.incarnation = incarnation + 1;
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        if setup.fault != Fault::MergeKeepsRecord {
            self.units.remove(place);
        }
    }

    /// Restarts every machine after a stop.
    pub(super) fn restart(&mut self, setup: &Setup, now: Nanoseconds, keeps: bool, out: &mut Out) {
        if matches!(self.machine, Machine::Server(_)) && !keeps {
            self.units.clear();
        }
        self.stop(out);
        for unit in 0..=self.units.len() {
            self.on(unit, |node| node.restart_one(setup, now, keeps));
        }
    }
}

fn unit(part: Part, machine: Machine, log: Option<Record>) -> Unit {
    Unit { part, machine, bytes: Vec::new(), aside: Vec::new(), log }
}

/// The pseudo part of one page, for a client or reader.
fn of_page(first: PageNumber) -> Part {
    Part { number: THE_RANGE.0, first, pages: 1, since: 0 }
}

/// A controller at the start: everything agrees with its record.
pub(super) fn resting(timing: Timing, record: Record) -> Controller {
    let settled = Some(record.incarnation);
    Controller { call_at: None, settled, ..Controller::new(timing, record, 0) }
}

impl Machine {
    /// When its timer expires.
    pub fn alarm(&self) -> Option<Nanoseconds> {
        match self {
            Machine::Server(server) => server.alarm(),
            Machine::Client(client) => client.alarm(),
            Machine::Reader(reader) => reader.alarm(),
            Machine::Controller(controller) => controller.alarm(),
        }
    }
}
