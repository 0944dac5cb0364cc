//! All ranges of a cluster: a state machine for each ([`trellis_fabric_protocol::lease::controller`]), their requests
//! to the store and the switch, and the choice of backups.
//!
//! Promises: nothing is sent to a server before the record on which it rests was written. The switch is sent the route
//! of a new home before that home is informed, if the switch answers within a moment. A new server gets a range of its
//! own, and backups as the operator wants them (`policy`). A server with other times than this controller's is not
//! answered.
//!
//! It must never act for a range whose change is not written yet, nor give two copies to one host. It has no clock, no
//! socket and no store: facts come in, [`Order`]s go out. It exists as long as this controller leads.

mod locality;
pub(crate) mod moves;
mod parts;
pub(crate) mod policy;
pub(crate) mod range;
pub(crate) mod replicas;
mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::controller::{Input, Record};
use trellis_fabric_protocol::lease::parts::Within;
use trellis_fabric_protocol::lease::{Host, Message, Party, Placement, RangeNumber, Timing};
use trellis_fabric_protocol::wire::address::HostPrefix;
use trellis_fabric_protocol::wire::datagram::ControlMessage;
use trellis_fabric_protocol::wire::datagram::control::{About, What};

use crate::event::Event;
use crate::records::{Directive, Goal, RangeRecord, Records, ServerRecord, Write};
use locality::Pulls;
pub use locality::{Counted, Locality};
use parts::Parts;
pub use policy::Moved;
use range::{Range, Wait};
use replicas::Replicas;
pub use status::{RangeStatus, ReplicaStatus, ServerStatus, Status};

/// How often backups and the presence of servers are checked.
const LOOK: Nanoseconds = 50_000_000;
/// The maximum number of pages that pointers can name.
const PAGES_MAX: u64 = 1 << 36;
/// The interval over which requests are counted.
const LOAD_OVER: Nanoseconds = 1_000_000_000;

/// The settings that all ranges share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This controller.
    pub me: HostPrefix,
    /// The durations of rights.
    pub timing: Timing,
    /// How many backups a range has by default.
    pub backups: u16,
    /// Whether ranges move from busy servers to others.
    pub rebalances: bool,
    /// The number of requests per second from which a page is also answered by another server; 0 disables this.
    pub hot_from: u64,
    /// Which hosts are local to each other.
    pub locality: Locality,
}

/// The destination of requests for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of a range or part.
    pub number: RangeNumber,
    /// Its home.
    pub home: Host,
    /// For a part: where it was split from, and its number of pages.
    pub part: Option<(Within, u64)>,
}

/// An input.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A message of a host.
    Control(Host, ControlMessage),
    /// The write with this number is done.
    Written(u64),
    /// The switch was sent this route, or could not be.
    Routed(u64),
    /// Requests per second for pages, as the switch counted them; most first.
    Hot(Vec<Counted>),
    /// Time has passed.
    Tick,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Send a message to a host.
    Send(Host, ControlMessage),
    /// Write these records, all or none; [`Fact::Written`] refers to the number.
    Write(u64, Vec<Write>),
    /// Send requests for the pages of a range or part to a host; [`Fact::Routed`] refers to the number.
    Route {
        /// The number.
        ticket: u64,
        /// The range or part, and its home.
        place: Place,
    },
    /// This number is no longer a part.
    Forget(RangeNumber),
    /// Send requests for a page to a host that has a copy, for a time; or to its home again.
    Redirect {
        /// By range and page.
        page: (RangeNumber, u64),
        /// The host, and the duration in nanoseconds.
        to: Option<(Host, Nanoseconds)>,
    },
    /// Send requests to any server to this one.
    Anywhere(Host),
    /// Report an event to the operator.
    Say(Event),
    /// The effects of the request with this number are written.
    Answer(u64),
}

/// The state of a server.
#[derive(Clone, Debug)]
struct ServerState {
    record: ServerRecord,
    /// When it was last heard; `None` if this controller has not heard it.
    heard_at: Option<Nanoseconds>,
    is_there: bool,
    /// The memory that it still provides for ranges of other hosts.
    spare_bytes: u64,
    /// When it was last called because it is silent.
    probed_at: Nanoseconds,
    /// Whether it was reported that its times differ.
    is_refused: bool,
    /// Whether it was reported that it is empty.
    is_empty: bool,
}

/// See the top of this file.
pub struct Ranges {
    settings: Settings,
    ranges: BTreeMap<RangeNumber, Range>,
    servers: BTreeMap<Host, ServerState>,
    next_ticket: u64,
    look_at: Nanoseconds,
    rebalance_at: Nanoseconds,
    /// Ranges that no record names, and the servers that reported them.
    unknown: BTreeMap<(RangeNumber, Host), ()>,
    /// The number of the operator's request for the ticket of each write.
    asked: BTreeMap<u64, u64>,
    /// Requests that are answered when everything that was decided for these ranges is written.
    unanswered: Vec<(u64, Vec<RangeNumber>)>,
    replicas: Replicas,
    parts: Parts,
    pulls: Pulls,
    /// The server to which the switch was told to send requests to any server.
    anywhere: Option<Host>,
}

impl Ranges {
    /// The ranges of a controller that begins to lead with these records.
    pub fn new(settings: Settings, records: Records, now: Nanoseconds) -> Ranges {
        let range = |(number, record): (RangeNumber, RangeRecord)| (number, Range::new(number, record, &settings, now));
        let mut ranges: BTreeMap<RangeNumber, Range> = records.ranges.into_iter().map(range).collect();
        let parts = Parts::new(&mut ranges);
        let mut servers = BTreeMap::new();
        // Hosts that are named in records get some time to be heard.
        for range in ranges.values() {
            let record = &range.machine.record;
            let own = Some(range.number.host()).filter(|_| !range.number.is_part());
            let goal = if let Some(Goal::Host(host)) = &range.goal { Some(host) } else { None };
            let wanted = range.splits.iter().map(|split| &split.to).chain(goal);
            for host in own.iter().chain([&record.home]).chain(&record.backups).chain(wanted) {
                servers.entry(*host).or_insert(ServerState::new(ServerRecord::default()));
            }
        }
        for (host, record) in records.servers {
            servers.insert(host, ServerState::new(record));
        }
        let (unknown, asked, unanswered) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let (replicas, pulls, anywhere) = (Replicas::default(), Pulls::default(), None);
        let (next_ticket, look_at, rebalance_at) = (1, now, now);
        Ranges {
            settings,
            ranges,
            servers,
            next_ticket,
            look_at,
            rebalance_at,
            unknown,
            asked,
            unanswered,
            replicas,
            parts,
            pulls,
            anywhere,
        }
    }

    /// All places, to send them again.
    pub fn places(&self) -> Vec<Place> {
        self.ranges.values().map(Range::place).collect()
    }

    /// The next time for [`Fact::Tick`].
    pub fn alarm(&self) -> Nanoseconds {
        let heard = self.ranges.values().filter(|range| !range.is_mute);
        heard.filter_map(Range::alarm).chain([self.look_at]).min().unwrap_or(self.look_at)
    }

    /// Handles a fact, and appends the resulting orders.
    pub fn step(&mut self, now: Nanoseconds, fact: Fact, orders: &mut Vec<Order>) {
        match fact {
            Fact::Control(from, message) => self.control(now, from, message, orders),
            Fact::Written(ticket) => {
                if let Some(asked) = self.asked.remove(&ticket) {
                    orders.push(Order::Answer(asked));
                }
                // A range and the part that was split from it wait for the same write.
                for range in self.ranges.values_mut().filter(|range| range.wait == Wait::Write(ticket)) {
                    range.go_on(now, &mut self.next_ticket, orders);
                }
                self.end_parts(orders);
            }
            // A route of an earlier leader only ends a short wait early: it never replaces a write.
            Fact::Routed(ticket) => {
                if let Some(range) = self.ranges.values_mut().find(|range| range.waits_for_route(ticket)) {
                    range.go_on(now, &mut self.next_ticket, orders);
                }
            }
            Fact::Hot(counted) => {
                self.hear_hot(now, &counted, orders);
                self.hear_pulls(now, &counted, orders);
            }
            Fact::Tick => self.tick(now, orders),
        }
        self.answer_what_is_written(orders);
    }

    /// Answers this request when everything that was decided for these ranges is written: a next leader then continues
    /// with it.
    pub fn answer_when_written(&mut self, asked: u64, ranges: Vec<RangeNumber>, orders: &mut Vec<Order>) {
        self.unanswered.push((asked, ranges));
        self.answer_what_is_written(orders);
    }

    fn answer_what_is_written(&mut self, orders: &mut Vec<Order>) {
        let is_written = |number: &RangeNumber| self.ranges.get(number).is_none_or(Range::is_quiet);
        for (asked, _) in self.unanswered.extract_if(.., |(_, ranges)| ranges.iter().all(is_written)) {
            orders.push(Order::Answer(asked));
        }
    }

    fn prefix(&self, host: Host) -> HostPrefix {
        prefix(&self.settings, host)
    }

    fn control(&mut self, now: Nanoseconds, from: Host, message: ControlMessage, orders: &mut Vec<Order>) {
        let number = message.range;
        if RangeNumber::of(from).is_part() {
            if self.unknown.insert((number, from), ()).is_none() {
                orders.push(Order::Say(Event::PartNumber { server: self.prefix(from) }));
            }
            return;
        }
        if self.ranges.get(&number).is_some_and(|range| range.is_mute) {
            return;
        }
        match message.what {
            What::Report { request, boot_id, state, call, about } if self.is_heard(now, from, &about, orders) => {
                let report = Message::Report { request, boot_id, state, call };
                self.report(now, number, from, report, &about, orders);
            }
            What::Followed { page, left, answered } => {
                self.followed(now, from, (number, page), (left, answered), orders);
            }
            What::Locate => {
                self.heard_of_ended(now, from, number, None, orders);
                if let Some(range) = self.ranges.get_mut(&number) {
                    let locate = Input::Message(Party::of(from), Message::Locate);
                    range.step(now, locate, &self.settings, &mut self.next_ticket, orders);
                }
            }
            _ => {}
        }
    }

    /// Records that a server was heard; returns whether it may be answered.
    fn is_heard(&mut self, now: Nanoseconds, from: Host, about: &About, orders: &mut Vec<Order>) -> bool {
        let (prefix, Timing { term, home_lease, .. }) = (self.prefix(from), self.settings.timing);
        let server = self.servers.entry(from).or_insert(ServerState::new(ServerRecord::default()));
        if (about.term, about.home_lease) != (term, home_lease) {
            if !std::mem::replace(&mut server.is_refused, true) {
                let pair = |(term, home_lease)| (Duration::from_nanos(term), Duration::from_nanos(home_lease));
                let (theirs, ours) = (pair((about.term, about.home_lease)), pair((term, home_lease)));
                orders.push(Order::Say(Event::Times { server: prefix, theirs, ours }));
            }
            return false;
        }
        server.is_refused = false;
        server.spare_bytes = about.spare_bytes;
        server.heard_at = Some(now);
        if !std::mem::replace(&mut server.is_there, true) {
            orders.push(Order::Say(Event::Server { server: prefix, spare_bytes: about.spare_bytes }));
        }
        true
    }

    fn report(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        from: Host,
        report: Message,
        about: &About,
        orders: &mut Vec<Order>,
    ) {
        let settings = &self.settings;
        if !self.ranges.contains_key(&number) {
            if let Message::Report { boot_id, request, .. } = report
                && self.parts.has_ended(number)
            {
                return self.heard_of_ended(now, from, number, Some((boot_id, request)), orders);
            }
            if number != RangeNumber::of(from) || about.pages == 0 || about.pages > PAGES_MAX {
                if self.unknown.insert((number, from), ()).is_none() {
                    let (range, server) = (prefix(settings, number.host()), prefix(settings, from));
                    orders.push(Order::Say(Event::Unknown { range, server }));
                }
                return;
            }
            let record = RangeRecord::new(&Record::first(from), about.pages, None);
            let range = Range::born(number, record, settings, now, &mut self.next_ticket, orders);
            self.ranges.insert(number, range);
        }
        let Some(range) = self.ranges.get_mut(&number) else { return };
        range.hear(now, from, &report, about, settings, orders);
        let Message::Report { state, .. } = report else { return };
        let message = Input::Message(Party::of(from), report);
        range.step(now, message, settings, &mut self.next_ticket, orders);
        range.heard_by_machine(now, from, state, settings, &mut self.next_ticket, orders);
        // Ranges that wait for what this one reported continue now.
        self.plan(now, number, orders);
        let is_home = self.ranges.get(&number).is_some_and(|range| range.machine.record.home == from);
        if let Some(part) = about.wants_back.filter(|_| is_home) {
            self.wanted_back(now, number, part, orders);
        }
        self.continue_requests(now, number, orders);
    }

    fn tick(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        for range in self.ranges.values_mut().filter(|range| !range.is_mute) {
            range.tick(now, &self.settings, &mut self.next_ticket, orders);
        }
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        self.look_at_servers(now, orders);
        let numbers: Vec<RangeNumber> = self.ranges.keys().copied().collect();
        for number in numbers {
            self.plan(now, number, orders);
            self.watch_copies(now, number, orders);
        }
        self.continue_moves(now, orders);
        self.tick_parts(now, orders);
        self.tick_replicas(now, orders);
        self.choose_anywhere(orders);
        if self.settings.rebalances {
            self.tick_pulls(now, orders);
            if now >= self.rebalance_at {
                // No load changes earlier.
                self.rebalance_at = now + LOAD_OVER;
                if let Some(moved) = self.rebalancing() {
                    self.rebalance_at = now + 10 * LOAD_OVER;
                    let _ = self.let_go(now, moved, orders);
                }
            }
        }
    }

    /// Chooses the server for requests to any server: one that is present and home of its own range; unchanged as long as
    /// that is so.
    fn choose_anywhere(&mut self, orders: &mut Vec<Order>) {
        let may = |host: Host| {
            let own = self.ranges.get(&RangeNumber::of(host));
            let is_home = own.is_some_and(|range| range.machine.record.home == host && range.is_served());
            is_home && self.is_there(host) && !self.is_drained(host)
        };
        if self.anywhere.is_some_and(may) {
            return;
        }
        if let Some(host) = self.servers.keys().copied().find(|host| may(*host)) {
            self.anywhere = Some(host);
            orders.push(Order::Anywhere(host));
        }
    }

    /// Calls servers that are silent because they are home of nothing; a server that does not answer counts as absent.
    fn look_at_servers(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let home_lease = self.settings.timing.home_lease;
        for (&host, server) in &mut self.servers {
            let Some(heard_at) = server.heard_at else {
                server.heard_at = Some(now);
                continue;
            };
            let silence = now.saturating_sub(heard_at);
            if server.is_there && silence > 2 * home_lease {
                server.is_there = false;
                let (server, silence) = (prefix(&self.settings, host), Duration::from_nanos(silence));
                orders.push(Order::Say(Event::ServerSilent { server, silence }));
            }
            let every = if server.is_there { home_lease / 4 } else { 2 * home_lease };
            if silence > home_lease / 2 && now >= server.probed_at + every {
                server.probed_at = now;
                // The state machine calls hosts that are sought as homes; and nothing is sent that is not written yet.
                let is_called = |range: &Range| {
                    let record = &range.machine.record;
                    range.machine.is_open && (record.home == host || record.complete.contains(&host))
                };
                if let Some(range) =
                    self.ranges.get(&RangeNumber::of(host)).filter(|range| !is_called(range) && range.is_quiet())
                {
                    orders.push(Order::Send(host, range.call_up(now)));
                }
            }
            let is_empty = !self.ranges.values().any(|range| range.is_at(host));
            if server.record.is_drained && is_empty && !server.is_empty {
                orders.push(Order::Say(Event::Drained { server: prefix(&self.settings, host) }));
            }
            server.is_empty = server.record.is_drained && is_empty;
        }
    }

    /// Sets the wanted backups of a range; `None` for the default. [`Order::Answer`] has the number `asked` when that is
    /// written.
    ///
    /// # Errors
    ///
    /// A message, if there is no such range or no such server.
    pub fn set_directive(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        directive: Option<Directive>,
        asked: u64,
        orders: &mut Vec<Order>,
    ) -> Result<(), String> {
        let sentence = self.no_such_range(number);
        if let Some((_, of)) = self.part_and_range(number) {
            let (part, of) = (self.prefix(number.host()), self.prefix(of.number.host()));
            return Err(format!("range {part}: it is a part of range {of}, and has its backups; say that one"));
        }
        let hosts = if let Some(Directive::Hosts(hosts)) = &directive { hosts.as_slice() } else { &[] };
        if let Some(host) = hosts.iter().find(|host| !self.servers.contains_key(host)) {
            return Err(self.no_such_server(*host));
        }
        let range = self.ranges.get_mut(&number).ok_or(sentence)?;
        range.set_directive(now, directive, &mut self.next_ticket, orders);
        // Even if the directive is unchanged: the same may have been requested a moment ago and not be written yet.
        self.answer_when_written(asked, vec![number], orders);
        self.plan(now, number, orders);
        Ok(())
    }

    /// Moves everything away from a server, or stops doing so. [`Order::Answer`] has the number `asked` when that is
    /// written.
    ///
    /// # Errors
    ///
    /// A message, if there is no such server.
    pub fn drain(&mut self, host: Host, is_drained: bool, asked: u64, orders: &mut Vec<Order>) -> Result<(), String> {
        let sentence = self.no_such_server(host);
        let server = self.servers.get_mut(&host).ok_or(sentence)?;
        server.record = ServerRecord { is_drained };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.asked.insert(ticket, asked);
        orders.push(Order::Write(ticket, vec![Write::Server(host, server.record)]));
        Ok(())
    }

    /// Resets a range of which no host has the content.
    ///
    /// # Errors
    ///
    /// A message, if a host has it, or copies of it (unless they may be lost).
    pub fn reset(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        at: Option<Host>,
        may_lose_copies: bool,
        orders: &mut Vec<Order>,
    ) -> Result<(), String> {
        let (name, sentence) = (self.prefix(number.host()), self.no_such_range(number));
        let at = at.map(|host| (host, self.prefix(host), self.is_there(host)));
        if let Some((_, host, false)) = at {
            return Err(format!("server {host}: nothing is heard of it; start it, and let it report here"));
        }
        let range = self.ranges.get_mut(&number).ok_or(sentence)?;
        if range.is_served() {
            let home = prefix(&self.settings, range.machine.record.home);
            return Err(format!("range {name}: {home} serves it; nothing was reset"));
        }
        if let Some((_, host, _)) = at.filter(|(host, ..)| range.has_said_that_it_is_ready(*host)) {
            return Err(format!(
                "server {host}: it may have an old copy of range {name}, which would not be empty; start it again first, or \
                 name another one"
            ));
        }
        let complete = range.machine.record.complete.clone();
        if !complete.is_empty() && !may_lose_copies {
            return Err(format!(
                "range {name}: {} servers have all of it and are called up; start one of them, or say --lose-copies",
                complete.len()
            ));
        }
        for host in complete {
            range.step(now, Input::Drop(host), &self.settings, &mut self.next_ticket, orders);
        }
        let host = at.map_or(range.machine.record.home, |(host, ..)| host);
        range.reset(now, host, &self.settings, &mut self.next_ticket, orders);
        Ok(())
    }

    fn no_such_range(&self, number: RangeNumber) -> String {
        format!("range {}: there is none; `trellis controller status` lists all", self.prefix(number.host()))
    }

    fn no_such_server(&self, host: Host) -> String {
        format!("server {}: it never was here; `trellis controller status` lists those", self.prefix(host))
    }

    fn is_there(&self, host: Host) -> bool {
        self.servers.get(&host).is_some_and(|server| server.is_there)
    }

    /// Whether it was not heard for so long that it no longer counts.
    fn is_gone(&self, now: Nanoseconds, host: Host) -> bool {
        let timeout = 4 * self.settings.timing.home_lease;
        let is_silent = |server: &ServerState| !server.is_there && server.heard_at.is_some_and(|at| now > at + timeout);
        self.servers.get(&host).is_some_and(is_silent)
    }

    fn is_drained(&self, host: Host) -> bool {
        self.servers.get(&host).is_some_and(|server| server.record.is_drained)
    }
}

impl ServerState {
    fn new(record: ServerRecord) -> ServerState {
        ServerState {
            record,
            heard_at: None,
            is_there: false,
            spare_bytes: 0,
            probed_at: 0,
            is_refused: false,
            is_empty: false,
        }
    }
}

fn prefix(settings: &Settings, host: Host) -> HostPrefix {
    HostPrefix { cluster: settings.me.cluster, host }
}

/// A message to a host about a range: its number, where it was split from, its number of pages.
fn placed(
    (range, within, pages): (RangeNumber, Option<Within>, u64),
    request: u64,
    boot_id: u16,
    placement: Placement,
    call: u64,
) -> ControlMessage {
    ControlMessage { range, what: What::Placed { request, boot_id, placement, call, pages, within } }
}

#[cfg(test)]
mod tests;
