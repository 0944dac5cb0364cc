//! One range: its state machine, and the effects that wait until something was written.
//!
//! Promises: the machine's effects are carried out in their order. What follows a record waits until that record, or a
//! later one, is written; what follows a route waits until the switch has it or a moment has passed. A part that was
//! split off waits for the same write as its range, and one that was merged must never do anything any more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::controller::{Controller, Input, Record};
use trellis_fabric_protocol::lease::parts::{Part, Within};
use trellis_fabric_protocol::lease::{Effect, Host, Message, Party, Placement, RangeNumber, State};
use trellis_fabric_protocol::wire::address::PAGE_BYTES;
use trellis_fabric_protocol::wire::datagram::ControlMessage;
use trellis_fabric_protocol::wire::datagram::control::About;

use super::policy::{Introducing, Purpose};
use super::{LOAD_OVER, Order, Place, Settings, placed, prefix};
use crate::event::Event;
use crate::records::{Directive, Goal, RangeRecord, SplitRecord, WithinRecord, Write};

/// How long the switch is waited for before the new home is informed.
pub(crate) const ROUTE: Deadline = Deadline {
    who: "a controller",
    waits_for: "the switch, to send requests for a range to its new home",
    limit: Limit::milliseconds(5),
    then: "the new home is told all the same",
    tested: "crates/trellis-controller/src/ranges/tests/copies.rs a_silent_switch_keeps_no_new_home_from_its_range",
};

/// A waiting effect.
#[derive(Clone, Debug)]
enum Pending {
    Write(Box<RangeRecord>),
    Route(Host),
    Send(Host, ControlMessage),
    Say(Event),
}

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    Write(u64),
    Route(u64, Nanoseconds),
}

/// The number of requests that a home answers.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// The home that was counted, when, and its total.
    counted: Option<(Host, Nanoseconds, u64)>,
    /// With the current home and pages; `None` before they were counted for long enough.
    per_second: Option<u64>,
}

/// See the top of this file.
pub(super) struct Range {
    pub(super) number: RangeNumber,
    pub(super) machine: Controller,
    pub(super) pages: u64,
    pub(super) directive: Option<Directive>,
    /// For a part: the range and the pages from which it was split.
    pub(super) within: Option<Within>,
    /// The destination that was requested for it.
    pub(super) goal: Option<Goal>,
    /// Its pages that are to be split off, as requested.
    pub(super) splits: Vec<SplitRecord>,
    /// Since when a request could not go on, and whether because the server did not get ready; by the first of the
    /// pages, or `None` for the range.
    pub(super) hindered: BTreeMap<Option<u64>, (Nanoseconds, bool)>,
    /// Whether they have changed since a record with them was queued.
    has_new_requests: bool,
    /// For a part that was merged, or whose range is being reset: nothing more is sent about it.
    pub(super) is_mute: bool,
    /// Whether its backups still have to learn which pages are its own, after its home has.
    is_new_to_backups: bool,
    /// The incarnation of the home that was last heard.
    home_said: Option<u16>,
    /// The host at which it is to be reset, once its parts have ended.
    pub(super) begins_at: Option<Host>,
    /// The host to which the switch sends its requests, or will.
    pub(super) routed: Host,
    /// The host that is being informed of it.
    pub(super) introducing: Option<Introducing>,
    /// Hosts that are not asked to take it before these times.
    pub(super) shunned: BTreeMap<Host, Nanoseconds>,
    /// Hosts that have memory for it.
    pub(super) room: BTreeMap<Host, ()>,
    /// Whether it was reported that no server can take it from a drained one.
    pub(super) has_no_place: bool,
    /// Since when there has been no server for a required copy, and whether that was reported.
    pub(super) lacks: Option<(Nanoseconds, bool)>,
    /// Since when it has had too few complete copies, and whether that was reported.
    pub(super) incomplete: Option<(Nanoseconds, bool)>,
    /// The written record, which operators are shown; and the record that is being written.
    pub(super) written: RangeRecord,
    writing: Option<RangeRecord>,
    /// A record of another range or part that is written together with its next record, or not at all.
    together: Option<Write>,
    /// When its home lease ended.
    silent_since: Option<Nanoseconds>,
    /// Set if its home came back with empty memory: the number of pages of that.
    blank_pages: Option<u64>,
    /// The last reports of hosts that are not home. When such a host becomes home, its report is passed to the machine
    /// once more, as a network may repeat it. Its boot id is then known, and one record is written instead of two while
    /// clients wait.
    reports: BTreeMap<Host, Message>,
    /// The size of its own server's memory, if that differs.
    other_size: Option<u64>,
    queue: VecDeque<Pending>,
    pub(super) wait: Wait,
    load: Load,
    effects: Vec<Effect>,
}

impl Range {
    /// A range from its record.
    pub(super) fn new(number: RangeNumber, record: RangeRecord, settings: &Settings, now: Nanoseconds) -> Range {
        let machine = Controller::new(settings.timing, record.of_machine(), now);
        Range {
            number,
            routed: machine.record.home,
            pages: record.pages,
            directive: record.directive.clone(),
            within: record.within.map(|WithinRecord { range, first, since }| Within { range, first, since }),
            goal: record.goal,
            splits: record.splits.clone(),
            hindered: BTreeMap::new(),
            has_new_requests: false,
            is_mute: false,
            is_new_to_backups: !machine.record.parts.is_empty(),
            home_said: None,
            begins_at: None,
            introducing: None,
            shunned: BTreeMap::new(),
            room: BTreeMap::new(),
            has_no_place: false,
            lacks: None,
            incomplete: None,
            written: record,
            machine,
            writing: None,
            together: None,
            silent_since: None,
            blank_pages: None,
            reports: BTreeMap::new(),
            other_size: None,
            queue: VecDeque::new(),
            wait: Wait::Nothing,
            load: Load::default(),
            effects: Vec::new(),
        }
    }

    /// The range of a server that was never heard before.
    pub(super) fn born(
        number: RangeNumber,
        record: RangeRecord,
        settings: &Settings,
        now: Nanoseconds,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) -> Range {
        let mut range = Range::new(number, record.clone(), settings, now);
        range.queue.push_back(Pending::Write(Box::new(record)));
        range.queue.push_back(Pending::Say(Event::New { range: prefix(settings, number.host()), pages: range.pages }));
        range.flush(now, next_ticket, orders);
        range
    }

    /// How much of a server's memory for other hosts' ranges a copy needs.
    pub(super) fn bytes(&self) -> u64 {
        self.pages.saturating_mul(PAGE_BYTES)
    }

    /// Whether there is a home, as far as is known.
    pub(super) fn is_served(&self) -> bool {
        !self.machine.is_open && self.machine.record.boot_id.is_some() && self.blank_pages.is_none()
    }

    /// Whether its home serves in the incarnation of the record. A home that was handed the range knows the leases that
    /// it received with it only in the next incarnation, not in the one after that.
    pub(super) fn has_begun(&self) -> bool {
        self.home_said == Some(self.machine.record.incarnation)
    }

    /// Whether a host is its home or a backup.
    pub(super) fn is_at(&self, host: Host) -> bool {
        let record = &self.machine.record;
        record.home == host || record.backups.contains(&host)
    }

    /// Whether a host that is not home has, or may have, some of its content.
    pub(super) fn has_said_that_it_is_ready(&self, host: Host) -> bool {
        self.reports.contains_key(&host)
    }

    /// Whether nothing is under way, and its home knows everything that was written.
    pub(super) fn is_firm(&self) -> bool {
        self.machine.is_at_rest() && self.introducing.is_none() && self.is_quiet() && self.is_served() && !self.is_mute
    }

    /// Its part with this number.
    pub(super) fn part(&self, number: RangeNumber) -> Option<Part> {
        self.machine.record.parts.iter().find(|part| part.number == number).copied()
    }

    /// The destination of requests for its pages.
    pub(super) fn place(&self) -> Place {
        Place { number: self.number, home: self.routed, part: self.within.map(|within| (within, self.pages)) }
    }

    /// Whether everything that was decided was written.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.wait == Wait::Nothing
    }

    /// Requests per second.
    pub(super) fn load(&self) -> u64 {
        self.load.per_second.unwrap_or(0)
    }

    /// Whether that is known for the current home and pages, or no host answers for them.
    pub(super) fn is_load_known(&self) -> bool {
        self.load.per_second.is_some() || !self.is_served()
    }

    /// Whether it is known that there are no requests for it.
    pub(super) fn is_idle(&self) -> bool {
        self.load.per_second == Some(0)
    }

    /// How long its home may still answer without being renewed.
    pub(super) fn home_lease_left(&self, now: Nanoseconds) -> Duration {
        if self.machine.is_open { Duration::ZERO } else { Duration::from_nanos(self.machine.until.saturating_sub(now)) }
    }

    pub(super) fn alarm(&self) -> Option<Nanoseconds> {
        let route = if let Wait::Route(_, until) = self.wait { Some(until) } else { None };
        let again = self.introducing.as_ref().map(|introducing| introducing.again_at);
        self.machine.alarm().into_iter().chain(route).chain(again).min()
    }

    pub(super) fn waits_for_route(&self, ticket: u64) -> bool {
        matches!(self.wait, Wait::Route(of, _) if of == ticket)
    }

    /// Continues after what it waited for.
    pub(super) fn go_on(&mut self, now: Nanoseconds, next_ticket: &mut u64, orders: &mut Vec<Order>) {
        if let Some(written) = self.writing.take_if(|_| matches!(self.wait, Wait::Write(_))) {
            self.written = written;
        }
        self.wait = Wait::Nothing;
        self.flush(now, next_ticket, orders);
    }

    fn flush(&mut self, now: Nanoseconds, next_ticket: &mut u64, orders: &mut Vec<Order>) {
        match self.wait {
            Wait::Write(_) => return,
            Wait::Route(_, until) if now < until => return,
            _ => self.wait = Wait::Nothing,
        }
        while let Some(pending) = self.queue.pop_front() {
            let ticket = *next_ticket;
            match pending {
                Pending::Send(to, message) => orders.push(Order::Send(to, message)),
                Pending::Say(event) => orders.push(Order::Say(event)),
                Pending::Write(record) => {
                    *next_ticket += 1;
                    self.wait = Wait::Write(ticket);
                    self.writing = Some((*record).clone());
                    let own = Write::Range(self.number, *record);
                    return orders.push(Order::Write(ticket, [own].into_iter().chain(self.together.take()).collect()));
                }
                Pending::Route(home) => {
                    *next_ticket += 1;
                    self.wait = Wait::Route(ticket, now + ROUTE.nanoseconds());
                    return orders.push(Order::Route { ticket, place: Place { home, ..self.place() } });
                }
            }
        }
    }

    /// Passes a fact to the machine, and carries out what follows when permitted.
    pub(super) fn step(
        &mut self,
        now: Nanoseconds,
        input: Input,
        settings: &Settings,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) {
        let before = self.machine.record.home;
        self.decide(now, input, settings, orders);
        let home = self.machine.record.home;
        let is_unknown = home != before && self.machine.record.boot_id.is_none();
        if let Some(report) = self.reports.remove(&home).filter(|_| is_unknown) {
            self.decide(now, Input::Message(Party::of(home), report), settings, orders);
            // Its report is outdated: it still has to learn that it is home.
            self.machine.call_at = Some(now + settings.timing.retry);
        }
        self.flush(now, next_ticket, orders);
    }

    /// Passes a fact to the machine; the effects wait.
    fn decide(&mut self, now: Nanoseconds, input: Input, settings: &Settings, orders: &mut Vec<Order>) {
        let before = self.before();
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.step(now, input, &mut effects);
        self.follow(now, effects, before, settings, orders);
    }

    /// The state that is compared afterwards.
    fn before(&self) -> (bool, Record) {
        (self.machine.is_open, self.machine.record.clone())
    }

    /// Queues the effects of the machine's decision.
    fn follow(
        &mut self,
        now: Nanoseconds,
        mut effects: Vec<Effect>,
        (was_open, before): (bool, Record),
        settings: &Settings,
        orders: &mut Vec<Order>,
    ) {
        let record = self.machine.record.clone();
        // The record that names the new home shows that the request is fulfilled.
        if self.goal == Some(Goal::Host(record.home)) && record.moving.is_none() {
            self.request(None);
        }
        let begins_empty = record.begins_empty && !before.begins_empty;
        // Requests were about what the range had before.
        let given_up = if begins_empty { self.take_requests() } else { Vec::new() };
        let name = prefix(settings, self.number.host());
        let home = prefix(settings, before.home);
        let hosts = |hosts: &[Host]| hosts.iter().map(|host| prefix(settings, *host)).collect();
        if self.machine.is_open && !was_open {
            self.silent_since = Some(self.machine.until);
            let complete = hosts(&record.complete);
            let silence = Duration::from_nanos(settings.timing.home_lease);
            orders.push(Order::Say(Event::Silent { range: name, home, silence, complete }));
        }
        if begins_empty {
            self.pages = self.blank_pages.filter(|_| self.within.is_none()).unwrap_or(self.pages);
        }
        for effect in effects.drain(..) {
            match effect {
                Effect::Persist(record) => {
                    self.write();
                    // A host that has a copy of a part accepts the home only from a controller, and loses what its home
                    // sends before.
                    let are_new = self.within.is_some() && record.incarnation != before.incarnation;
                    for host in record.backups.iter().copied().filter(|_| are_new) {
                        let call = self.call_up(now);
                        self.send(host, call);
                    }
                    if self.routed != record.home {
                        self.routed = record.home;
                        self.queue.push_back(Pending::Route(record.home));
                    }
                }
                Effect::Send { to, message: Message::Placed { request, boot_id, placement, call }, .. } => {
                    let message = self.placed(request, boot_id, placement, call);
                    self.send(to.host, message);
                }
                Effect::Unserved => {
                    let is_blank = self.blank_pages.is_some();
                    self.queue.push_back(Pending::Say(Event::Unserved { range: name, home, is_blank }));
                }
                _ => {}
            }
        }
        self.effects = effects;
        self.tell_changes(now, was_open, &before, settings);
        for pages in given_up {
            let why = "the range begins without content".to_owned();
            self.queue.push_back(Pending::Say(Event::Stays { range: name, pages, why }));
        }
    }

    /// The record to be written.
    fn as_record(&self) -> RangeRecord {
        let record = RangeRecord::new(&self.machine.record, self.pages, self.directive.clone());
        let record = RangeRecord { goal: self.goal, splits: self.splits.clone(), ..record };
        match self.within {
            Some(within) => record.part_of(within),
            None => record,
        }
    }

    fn placed(&self, request: u64, boot_id: u16, placement: Placement, call: u64) -> ControlMessage {
        placed((self.number, self.within, self.pages), request, boot_id, placement, call)
    }

    /// Queues a record, replacing a waiting one.
    fn write(&mut self) {
        self.has_new_requests = false;
        let record = Box::new(self.as_record());
        let older = self.queue.iter_mut().find_map(|pending| match pending {
            Pending::Write(older) => Some(older),
            _ => None,
        });
        match older {
            Some(older) => *older = record,
            None => self.queue.push_back(Pending::Write(record)),
        }
    }

    /// Queues the events about what has changed, after the write.
    fn tell_changes(&mut self, now: Nanoseconds, was_open: bool, before: &Record, settings: &Settings) {
        let record = self.machine.record.clone();
        let range = prefix(settings, self.number.host());
        let mut say = |event| self.queue.push_back(Pending::Say(event));
        for host in record.backups.iter().filter(|host| !before.backups.contains(host)) {
            say(Event::Backs { range, host: prefix(settings, *host) });
        }
        for host in before.backups.iter().filter(|host| **host != record.home && !record.backups.contains(host)) {
            // The host may not know yet that it is no longer a backup, or be unwell.
            self.shunned.insert(*host, now + 2 * settings.timing.home_lease);
            say(Event::Dropped { range, host: prefix(settings, *host) });
        }
        let is_complete = |record: &Record| !record.backups.is_empty() && record.complete.len() == record.backups.len();
        if is_complete(&record) && (!is_complete(before) || record.complete.len() > before.complete.len()) {
            let backups = record.complete.iter().map(|host| prefix(settings, *host)).collect();
            say(Event::Complete { range, backups });
        }
        if let Some(to) = record.moving.filter(|to| before.moving != Some(*to)) {
            say(Event::Moves { range, from: prefix(settings, record.home), to: prefix(settings, to) });
        }
        let home = prefix(settings, record.home);
        // A home is reported when it was heard since its start, and at once if another host becomes home.
        let is_new = record.home != before.home || record.boot_id != before.boot_id && record.boot_id.is_some();
        if is_new
            && !(record.boot_id.is_some()
                && before.boot_id.is_none()
                && record.home == before.home
                && record.incarnation > 1
                && !record.begins_empty)
        {
            let after = self.silent_since.take().map(|since| Duration::from_nanos(now.saturating_sub(since)));
            let (incarnation, before) = (record.incarnation, prefix(settings, before.home));
            say(Event::Home { range, home, incarnation, before, after, begins_empty: record.begins_empty });
        } else if was_open && !self.machine.is_open {
            say(Event::Again { range, home });
            self.silent_since = None;
        }
        if record.home != before.home {
            self.blank_pages = None;
        }
        // After a change of home or pages, or while there is no home, counting starts again.
        if self.machine.is_open || record.home != before.home || record.parts != before.parts {
            self.load = Load::default();
        }
    }

    /// Queues a message to a host; of messages to the same host since the last record, only the newest is kept.
    fn send(&mut self, to: Host, message: ControlMessage) {
        let is_call = |message: &ControlMessage| {
            matches!(message.what, trellis_fabric_protocol::wire::datagram::control::What::Placed { request: 0, .. })
        };
        let since = self.queue.iter().rposition(|pending| !matches!(pending, Pending::Send(..))).map_or(0, |at| at + 1);
        let mut place = 0;
        self.queue.retain(|pending| {
            place += 1;
            let is_older = matches!(pending, Pending::Send(of, old) if *of == to && is_call(old) == is_call(&message));
            place <= since || !is_older
        });
        self.queue.push_back(Pending::Send(to, message));
    }

    /// Handles a server's report before the machine does.
    pub(super) fn hear(
        &mut self,
        now: Nanoseconds,
        from: Host,
        report: &Message,
        about: &About,
        settings: &Settings,
        orders: &mut Vec<Order>,
    ) {
        let Message::Report { boot_id, state, .. } = *report else { return };
        if about.pages == self.pages {
            self.room.insert(from, ());
        } else {
            self.room.remove(&from);
        }
        let record = &self.machine.record;
        let has_other_size = about.pages != 0 && about.pages != self.pages && state != State::Blank;
        if from == self.number.host() && has_other_size && self.other_size != Some(about.pages) {
            self.other_size = Some(about.pages);
            let (range, pages) = (prefix(settings, self.number.host()), self.pages);
            orders.push(Order::Say(Event::Size { range, pages, offered: about.pages }));
        }
        if from != record.home {
            if state == State::Idle {
                self.reports.insert(from, report.clone());
            } else {
                self.reports.remove(&from);
            }
            return;
        }
        let may_be_blank = record.begins_empty && record.boot_id.is_none_or(|known| known == boot_id);
        let is_lost = state == State::Blank && !may_be_blank;
        // The lack of a home was reported before it came back.
        if is_lost && self.blank_pages.is_none() && self.machine.is_open && record.complete.is_empty() {
            let (range, home) = (prefix(settings, self.number.host()), prefix(settings, from));
            orders.push(Order::Say(Event::Unserved { range, home, is_blank: true }));
        }
        self.blank_pages = is_lost.then_some(if about.pages == 0 { self.pages } else { about.pages });
        match self.load.counted {
            Some((host, at, requests)) if host == from && about.requests >= requests => {
                let passed = now.saturating_sub(at);
                if passed >= LOAD_OVER {
                    let more = u128::from(about.requests - requests) * 1_000_000_000 / u128::from(passed);
                    self.load.per_second = Some(more as u64);
                    self.load.counted = Some((from, now, about.requests));
                }
            }
            _ => self.load.counted = Some((from, now, about.requests)),
        }
    }

    /// Continues after the machine has handled a report: a range that was lost and has no other copy is reset, and a host
    /// that was being informed makes progress.
    pub(super) fn heard_by_machine(
        &mut self,
        now: Nanoseconds,
        from: Host,
        state: State,
        settings: &Settings,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) {
        let wants_none = match &self.directive {
            Some(Directive::Count(count)) => *count == 0,
            Some(Directive::Hosts(hosts)) => hosts.is_empty(),
            None => settings.backups == 0,
        };
        // A part is not reset by itself: its range continues, and would show zeros in place of the lost pages.
        let may_begin = self.blank_pages.is_some() && wants_none && self.within.is_none();
        if may_begin && from == self.machine.record.home {
            self.reset(now, from, settings, next_ticket, orders);
        }
        let record = &self.machine.record;
        let is_known = matches!(state, State::Home { incarnation, .. } if incarnation == record.incarnation);
        if from == record.home && is_known {
            self.home_said = Some(record.incarnation);
        }
        if from == record.home && is_known && std::mem::take(&mut self.is_new_to_backups) {
            for host in record.backups.clone() {
                let call = self.call_up(now);
                self.send(host, call);
            }
            self.flush(now, next_ticket, orders);
        }
        if let Some(introducing) = self.introducing.as_mut().filter(|introducing| introducing.host == from) {
            match state {
                State::Idle => introducing.is_known = true,
                // It is told that its content is not needed, and then reports ready the next time.
                _ => introducing.again_at = now,
            }
        }
    }

    /// Resets it at this host: at once, or when its parts have ended.
    pub(super) fn reset(
        &mut self,
        now: Nanoseconds,
        host: Host,
        settings: &Settings,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) {
        if !self.machine.record.parts.is_empty() {
            self.begins_at = Some(host);
        } else if self.machine.begins_at != Some(host) {
            self.step(now, Input::Reset(host), settings, next_ticket, orders);
        }
    }

    /// Splits a part off that moves to a host, if this range is firm; both wait until both records are written. `None`
    /// if that is not possible.
    pub(super) fn split(
        &mut self,
        now: Nanoseconds,
        part: Part,
        to: Host,
        settings: &Settings,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) -> Option<Range> {
        debug_assert!(self.is_firm(), "what was decided of it is written, and its home knows it");
        let before = self.before();
        let mut effects = std::mem::take(&mut self.effects);
        let machine = self.machine.split(now, part, &mut effects)?;
        let part = self.part(part.number)?;
        self.home_hears_first(&mut effects);
        let record = RangeRecord::new(&machine.record, part.pages, None).part_of(part.within(self.number));
        let record = RangeRecord { goal: Some(Goal::Host(to)), ..record };
        self.together = Some(Write::Range(part.number, record.clone()));
        self.follow(now, effects, before, settings, orders);
        let (range, number) = (prefix(settings, self.number.host()), prefix(settings, part.number.host()));
        self.queue.push_back(Pending::Say(Event::Split { range, pages: (part.first, part.end() - 1), part: number }));
        self.flush(now, next_ticket, orders);
        let mut split = Range::new(part.number, record, settings, now);
        // The switch knows the part from now on: the range may move while the part stays.
        split.queue.push_back(Pending::Route(machine.record.home));
        (split.machine, split.wait) = (machine, self.wait);
        Some(split)
    }

    /// Resets the range where intended, without parts, in an incarnation above `last`, which is the last of theirs: no
    /// host can be home of it or of one of them any more.
    pub(super) fn begin_after(
        &mut self,
        now: Nanoseconds,
        last: u16,
        settings: &Settings,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) {
        let Some(host) = self.begins_at.take() else { return };
        let before = self.before();
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.begin_without_parts(now, host, last, &mut effects);
        self.follow(now, effects, before, settings, orders);
        self.flush(now, next_ticket, orders);
    }

    /// Merges a part, if both are firm and at the same hosts. Returns whether that was possible.
    pub(super) fn merge(
        &mut self,
        now: Nanoseconds,
        part: &Range,
        settings: &Settings,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) -> bool {
        debug_assert!(self.is_firm() && part.is_firm(), "what was decided of them is written, and their homes know it");
        let before = self.before();
        let Some(found) = self.part(part.number) else { return false };
        let mut effects = std::mem::take(&mut self.effects);
        if !self.machine.merge(now, part.number, &part.machine, &mut effects) {
            return false;
        }
        self.home_hears_first(&mut effects);
        self.follow(now, effects, before, settings, orders);
        let (range, number) = (prefix(settings, self.number.host()), prefix(settings, part.number.host()));
        self.queue.push_back(Pending::Say(Event::Merged {
            range,
            pages: (found.first, found.end() - 1),
            part: number,
        }));
        self.flush(now, next_ticket, orders);
        true
    }

    /// Backups learn which pages are their own after the home: until then, they store what the home sends as before.
    fn home_hears_first(&mut self, effects: &mut Vec<Effect>) {
        let home = self.machine.record.home;
        effects.retain(|effect| !matches!(effect, Effect::Send { to, .. } if to.host != home));
        self.is_new_to_backups = true;
    }

    /// Sets the requested destination. It is written with the next decision, or by [`Range::write_requests`].
    pub(super) fn request(&mut self, goal: Option<Goal>) {
        if self.goal != goal {
            self.goal = goal;
            self.has_new_requests = true;
            self.hindered.remove(&None);
            self.introducing.take_if(|introducing| introducing.purpose == Purpose::Move);
        }
    }

    /// Sets the pages that are to be split off. It is written like [`Range::request`].
    pub(super) fn request_splits(&mut self, splits: Vec<SplitRecord>) {
        if self.splits != splits {
            self.hindered.retain(|first, _| {
                let is_same = |split: &&SplitRecord| Some(split.first) == *first && splits.contains(split);
                first.is_none() || self.splits.iter().any(|split| is_same(&split))
            });
            self.splits = splits;
            self.has_new_requests = true;
        }
    }

    /// Takes all requests away; returns what they were about: pages, or the range.
    fn take_requests(&mut self) -> Vec<Option<(u64, u64)>> {
        let is_whole = matches!(self.goal, Some(Goal::Host(_)));
        let of_splits = self.splits.iter().map(|split| Some((split.first, split.end() - 1)));
        let all = of_splits.chain(is_whole.then_some(None)).collect();
        self.request(None);
        self.request_splits(Vec::new());
        all
    }

    /// Writes the requests, of which one was given up, and says that afterwards.
    pub(super) fn give_up(&mut self, now: Nanoseconds, event: Event, next_ticket: &mut u64, orders: &mut Vec<Order>) {
        self.write();
        self.queue.push_back(Pending::Say(event));
        self.flush(now, next_ticket, orders);
    }

    /// Whether a move was requested that is neither fulfilled nor given up, or that is not written.
    pub(super) fn has_requests(&self) -> bool {
        self.has_new_requests || !self.splits.is_empty() || matches!(self.goal, Some(Goal::Host(_)))
    }

    /// Writes the requests, unless they are written already.
    pub(super) fn write_requests(&mut self, now: Nanoseconds, next_ticket: &mut u64, orders: &mut Vec<Order>) {
        if self.has_new_requests {
            self.write();
            self.flush(now, next_ticket, orders);
        }
    }

    pub(super) fn set_directive(
        &mut self,
        now: Nanoseconds,
        directive: Option<Directive>,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) {
        if self.directive != directive {
            self.directive = directive;
            self.write();
            self.flush(now, next_ticket, orders);
        }
    }

    /// A message that a server has to answer with a report, whichever host is home.
    pub(super) fn call_up(&self, now: Nanoseconds) -> ControlMessage {
        let record = &self.machine.record;
        let (incarnation, home, backups) = (record.incarnation, record.home, record.backups.clone());
        let (begins_empty, is_unserved, parts) =
            (record.begins_empty, self.machine.is_unserved(), record.parts.clone());
        let placement = Placement { incarnation, home, backups, hand_to: None, begins_empty, is_unserved, parts };
        self.placed(0, 0, placement, now)
    }

    pub(super) fn tick(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        next_ticket: &mut u64,
        orders: &mut Vec<Order>,
    ) {
        if self.machine.alarm().is_some_and(|at| now >= at) {
            self.step(now, Input::Tick, settings, next_ticket, orders);
        }
        self.flush(now, next_ticket, orders);
        let quiet = self.is_quiet() && !self.machine.is_open;
        let call = self.call_up(now);
        if let Some(introducing) = self.introducing.as_mut().filter(|introducing| now >= introducing.again_at) {
            introducing.again_at = now + settings.timing.retry;
            if quiet {
                orders.push(Order::Send(introducing.host, call));
            }
        }
    }
}
