//! One host: its state machine, the bytes beside it, and the execution of its program.
//!
//! Promises: it carries out effects in their order and does what a runtime would do, no more. It must never inspect
//! another node.

use super::faults;
use super::ghost::Event;
use super::parts::{Place, Unit, resting};
use super::{Operation, Setup, Value};
use std::collections::BTreeMap;
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::client::{self, Client};
use trellis_fabric_protocol::lease::controller::{self, Controller, Record};
use trellis_fabric_protocol::lease::home::{Context, Home};
use trellis_fabric_protocol::lease::queue::{Queue, Right, Waiter};
use trellis_fabric_protocol::lease::reader::{self, Reader};
use trellis_fabric_protocol::lease::server::{self, RangeServer};
use trellis_fabric_protocol::lease::settling::Settling;
use trellis_fabric_protocol::lease::{
    Ask, Belief, Bytes, Effect, Host, Message, Outcome, PageNumber, Party, Placement, RangeNumber, Status,
};

/// The state machine of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant, reason = "most of what a cluster does is done by its servers")]
pub enum Machine {
    /// A memory server.
    Server(RangeServer),
    /// A client.
    Client(Client),
    /// A host with copies.
    Reader(Reader),
    /// The controller.
    Controller(Controller),
}

/// A message under way, with its page's content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Envelope {
    /// The sender.
    pub from: Party,
    /// The destination.
    pub to: Party,
    /// The number of the part that the message concerns, and the incarnation of the range in which that part began;
    /// zeros: the range.
    pub about: (RangeNumber, u16),
    /// In a request for the home and its answer: the page.
    pub of: PageNumber,
    /// The message.
    pub message: Message,
    /// The content that goes with it.
    pub value: Option<Value>,
}

impl Envelope {
    /// A short description without sender and destination.
    pub fn text(&self) -> String {
        let about = match self.about {
            (RangeNumber(0), _) => String::new(),
            (number, since) => format!(" of part {number:x} since {since}"),
        };
        let value = self.value.map_or(String::new(), |value| format!(", bytes {value}"));
        format!("{:#}{about}{value}", self.message)
    }

    /// Whether a switch decides where the message arrives.
    pub fn is_page_request(&self) -> bool {
        matches!(self.message, Message::Request { .. })
    }
}

/// The cause of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A message arrived.
    Envelope(Envelope),
    /// The timer of this one of its machines expired.
    Tick(usize),
    /// Its program continues.
    Go,
    /// As home, it changes the last page.
    Change,
    /// The controller receives an operator's request for the range, or for a part.
    Directive(usize, controller::Input),
    /// The controller is asked to split off this number of pages, from this one on.
    Split(PageNumber, PageNumber),
    /// The controller is asked to merge this one of the parts.
    Merge(usize),
    /// A reader gives up its copy of a page and asks for another.
    Renounce(PageNumber),
    /// The node restarts.
    Restart {
        /// Whether a server kept its memory.
        keeps: bool,
    },
    /// The node is gone.
    Death,
}

/// The result of a step.
#[derive(Clone, Debug, Default)]
pub struct Out {
    /// The messages that it sends.
    pub envelopes: Vec<Envelope>,
    /// The events of its program.
    pub events: Vec<Event>,
    /// A description of the step, if requested.
    pub story: Option<Vec<String>>,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// Its name on the network.
    pub party: Party,
    /// The machine for the range; at clients and readers, for the first page.
    pub machine: Machine,
    /// Its other machines.
    pub units: Vec<Unit>,
    /// Whether it is gone for ever.
    pub is_dead: bool,
    /// The pages: of a server, of a reader's copies, or of a client.
    pub bytes: Vec<Value>,
    /// A server's staged pages; a client's pages as they were before its changes.
    pub aside: Vec<Value>,
    /// The next operation of a client's program.
    pub next: u16,
    /// Whether it waits for the end of that operation.
    pub is_waiting: bool,
    /// The number of changes that it made.
    pub changes: Value,
    /// The persisted record of a controller.
    pub log: Option<Record>,
}

/// The first boot id of servers.
const FIRST_BOOT_ID: u16 = 1;

impl Node {
    /// Node `number` of a cluster in which the first server is home.
    pub fn new(setup: &Setup, number: usize) -> Node {
        let timing = faults::timing(setup.fault, setup, number);
        let (servers, clients) = (usize::from(setup.servers), setup.clients.len());
        let host = setup.host(number);
        let controller = setup.controller_party();
        let record = Record {
            incarnation: 1,
            home: Host(0),
            boot_id: Some(FIRST_BOOT_ID),
            backups: setup.backups.clone(),
            complete: setup.backups.clone(),
            moving: None,
            begins_empty: false,
            parts: setup.parts.clone(),
        };
        let belief = Belief { home: Host(0), incarnation: 1 };
        let is_client = (servers..servers + clients).contains(&number);
        let party = Party { host, incarnation: u16::from(is_client) };
        let mut log = None;
        let machine = if number < servers {
            Machine::Server(server(setup, host))
        } else if is_client {
            Machine::Client(Client { belief, ..Client::new(party, controller, timing, Host(0)) })
        } else if number < setup.controller() {
            Machine::Reader(Reader { belief, ..Reader::new(party, controller, timing, Host(0)) })
        } else {
            log = Some(record.clone());
            Machine::Controller(resting(timing, record))
        };
        let zeros = vec![0; setup.pages as usize];
        let (bytes, aside, units) = (zeros.clone(), zeros, Vec::new());
        let (is_dead, next, is_waiting, changes) = (false, 0, false, 0);
        let mut node = Node { number, party, machine, units, is_dead, bytes, aside, next, is_waiting, changes, log };
        node.begin_units(setup);
        node
    }

    /// Whether its program can continue.
    pub fn can_go(&self, setup: &Setup) -> bool {
        !self.is_dead && !self.is_waiting && self.operation(setup).is_some()
    }

    /// Whether its program has ended.
    pub fn is_done(&self, setup: &Setup) -> bool {
        self.is_dead || self.operation(setup).is_none()
    }

    /// The next operation of its program.
    pub fn operation(&self, setup: &Setup) -> Option<Operation> {
        let script = setup.clients.get(self.number.checked_sub(usize::from(setup.servers))?)?;
        script.get(usize::from(self.next)).copied()
    }

    /// When its next timer expires, by its clock.
    pub fn alarm(&self) -> Option<Nanoseconds> {
        self.alarms().map(|(_, at)| at).min()
    }

    /// When the timer of each of its machines expires.
    pub fn alarms(&self) -> impl Iterator<Item = (usize, Nanoseconds)> + '_ {
        let machines = self.machines().enumerate().filter(|_| !self.is_dead);
        machines.filter_map(|(unit, machine)| Some((unit, machine.alarm()?)))
    }

    /// Runs one step of the current machine.
    pub(super) fn step_one(&mut self, setup: &Setup, now: Nanoseconds, cause: &Cause, place: Place, out: &mut Out) {
        let value = match cause {
            Cause::Envelope(envelope) => envelope.value,
            Cause::Change => Some(self.next_change()),
            _ => None,
        };
        let mut effects = Vec::new();
        let waiting = self.home().map(|home| home.queues.clone());
        if faults::instead(setup.fault, self, now, cause, &mut effects) {
            return self.carry_out(effects, value, place, out);
        }
        match cause {
            Cause::Envelope(Envelope { from, message, .. }) => {
                let before = faults::before(setup.fault, self, now, *from, message);
                self.hear(now, *from, before.message.clone(), &mut effects);
                faults::after(setup.fault, self, now, &before, message, &mut effects);
                if let Message::Request { page, ask: Ask::Commit { .. }, .. } = *message
                    && effects.contains(&Effect::Stage(page))
                    && let Some(client) = setup.node(from.host)
                {
                    out.events.push(Event::Counts(client as u8, place.page(page) as u8));
                }
            }
            Cause::Tick(_) => {
                match &mut self.machine {
                    Machine::Server(server) => server.step(now, server::Input::Tick, &mut effects),
                    Machine::Client(client) => client.step(now, client::Input::Tick, &mut effects),
                    Machine::Reader(reader) => reader.step(now, reader::Input::Tick, &mut effects),
                    Machine::Controller(controller) => controller.step(now, controller::Input::Tick, &mut effects),
                }
                faults::always(setup.fault, self, &mut effects);
            }
            Cause::Go => self.go(setup, now, &mut effects, out),
            Cause::Change => self.change(setup, now, &mut effects, out),
            Cause::Directive(_, directive) => {
                if let Machine::Controller(controller) = &mut self.machine {
                    controller.step(now, directive.clone(), &mut effects);
                }
                faults::always(setup.fault, self, &mut effects);
            }
            Cause::Renounce(page) => {
                if let Machine::Reader(reader) = &mut self.machine {
                    reader.step(now, reader::Input::Drop(*page), &mut effects);
                    reader.step(now, reader::Input::Follow(*page), &mut effects);
                }
            }
            Cause::Split(first, pages) => self.split(setup, now, *first, *pages, &mut effects),
            Cause::Merge(part) => self.merge(setup, now, *part, &mut effects),
            Cause::Restart { keeps } => self.restart(setup, now, *keeps, out),
            Cause::Death => {
                self.is_dead = true;
                out.events.push(Event::Gone(self.number as u8));
            }
        }
        if let (Some(waiting), Some(home)) = (waiting, self.home()) {
            check_turns(now, &waiting, home, &effects);
        }
        self.carry_out(effects, value, place, out);
    }

    fn home(&self) -> Option<&Home> {
        match &self.machine {
            Machine::Server(server) => server.home.as_ref(),
            _ => None,
        }
    }

    /// Whether a server may change the last page itself.
    pub fn can_change(&self, setup: &Setup, now: Nanoseconds) -> bool {
        let Machine::Server(server) = &self.machine else { return false };
        !self.is_dead && self.changes < Value::from(setup.home_changes) && server.serves(now)
    }

    /// The content of the page after the server's next change.
    fn next_change(&self) -> Value {
        Value::from(self.number as u8) * 1000 + self.changes + 1
    }

    fn change(&mut self, setup: &Setup, now: Nanoseconds, effects: &mut Vec<Effect>, out: &mut Out) {
        let (page, me) = (setup.pages - 1, self.number as u8);
        let Machine::Server(server) = &mut self.machine else { return };
        faults::change(setup.fault, server, |server| server.step(now, server::Input::Change(page), effects));
        if effects.contains(&Effect::Stage(page)) {
            // The outcome of a change made in an earlier home lease is unknown.
            out.events.push(Event::Gone(me));
            let base = self.bytes[page as usize];
            out.events.push(Event::CommitBegins(me, page as u8, base, self.next_change()));
            self.changes += 1;
        }
    }

    fn hear(&mut self, now: Nanoseconds, from: Party, message: Message, effects: &mut Vec<Effect>) {
        match &mut self.machine {
            Machine::Server(server) => server.step(now, server::Input::Message(from, message), effects),
            Machine::Client(client) => client.step(now, client::Input::Message(from, message), effects),
            Machine::Reader(reader) => reader.step(now, reader::Input::Message(from, message), effects),
            Machine::Controller(controller) => {
                controller.step(now, controller::Input::Message(from, message), effects);
            }
        }
    }

    /// The node has stopped.
    pub(super) fn stop(&mut self, out: &mut Out) {
        match self.machine {
            Machine::Client(_) => {
                self.party.incarnation += 1;
                // The operation in progress at the stop is not repeated.
                self.next += u16::from(self.is_waiting);
                self.is_waiting = false;
                out.events.push(Event::Gone(self.number as u8));
            }
            Machine::Reader(_) => self.party.incarnation += 1,
            Machine::Server(_) | Machine::Controller(_) => {}
        }
    }

    /// Restarts the current machine.
    pub(super) fn restart_one(&mut self, setup: &Setup, now: Nanoseconds, keeps: bool) {
        match &mut self.machine {
            Machine::Server(server) => {
                let memory = keeps.then(|| server.memory.clone());
                *server = server.restarted(now, server.boot_id + 1, memory);
                server.memory.is_blank &= setup.fault != super::Fault::BlankAcknowledges;
                if !keeps {
                    self.bytes.fill(0);
                }
                self.aside.fill(0);
            }
            Machine::Client(client) => {
                let belief = Belief { home: Host(0), incarnation: 0 };
                *client = Client { belief, ..Client::new(self.party, client.controller, client.timing, Host(0)) };
            }
            Machine::Reader(reader) => {
                let pages = reader.pages.clone();
                *reader = Reader::new(self.party, reader.controller, reader.timing, Host(0));
                for page in pages.keys() {
                    let followed = reader.pages.entry(*page).or_default();
                    (followed.is_wanted, followed.ask_at) = (true, now);
                }
            }
            Machine::Controller(controller) => {
                let log = self.log.clone().expect("a controller has a log");
                *controller = Controller::new(controller.timing, log, now);
                if setup.fault == super::Fault::RestartForgetsHomeLease {
                    controller.until = now;
                }
            }
        }
    }

    fn go(&mut self, setup: &Setup, now: Nanoseconds, effects: &mut Vec<Effect>, out: &mut Out) {
        let Some(operation) = self.operation(setup) else { return };
        if let Some(story) = &mut out.story {
            story.push(format!("node {} does {operation:?}", self.number));
        }
        let me = self.number as u8;
        let Machine::Client(client) = &mut self.machine else { return };
        let mut waits = false;
        match operation {
            Operation::Read(page) => {
                out.events.push(Event::ReadBegins(me, page as u8));
                client.step(now, client::Input::Read(page), effects);
                waits = true;
            }
            Operation::Update(page) if client.owns(now, page) => {}
            Operation::Update(page) => {
                client.step(now, client::Input::Update(page), effects);
                waits = true;
            }
            Operation::Look(page) => {
                let place = page as usize;
                if client.owns(now, page) && self.bytes[place] == self.aside[place] {
                    out.events.push(Event::ReadBegins(me, page as u8));
                    out.events.push(Event::ReadEnds(me, page as u8, self.bytes[place]));
                }
            }
            Operation::Change(page) => {
                if client.change(now, page) {
                    self.changes += 1;
                    self.bytes[page as usize] = Value::from(me) * 1000 + self.changes;
                }
            }
            Operation::Commit { page, release } => {
                let (base, value) = (self.aside[page as usize], self.bytes[page as usize]);
                if client.may_commit(page) && base != value {
                    out.events.push(Event::CommitBegins(me, page as u8, base, value));
                    client.step(now, client::Input::Commit { page, release }, effects);
                    waits = true;
                }
            }
            Operation::Release(page) => {
                client.step(now, client::Input::Release(page), effects);
                self.bytes[page as usize] = self.aside[page as usize];
            }
        }
        self.is_waiting = waits;
        self.next += u16::from(!waits);
    }

    fn may_commit(&self, page: PageNumber) -> bool {
        matches!(&self.machine, Machine::Client(client) if client.may_commit(page))
    }

    /// Whether it may use a page now: as the owner, or from a copy.
    pub fn has_right(&self, now: Nanoseconds, page: PageNumber) -> bool {
        match self.machine_of(page) {
            Machine::Client(client) => client.owns(now, page),
            Machine::Reader(reader) => reader.has(now, page),
            Machine::Server(_) | Machine::Controller(_) => false,
        }
    }

    pub(super) fn carry_out(&mut self, effects: Vec<Effect>, value: Option<Value>, place: Place, out: &mut Out) {
        for effect in effects {
            if let Some(story) = &mut out.story {
                story.push(format!("  node {}: {}", self.number, text(&effect)));
            }
            match effect {
                Effect::Send { to, message, bytes } => self.send(to, message, bytes, place, out),
                Effect::Put(page) => {
                    self.bytes[page as usize] = value.expect("bytes came with it");
                    if matches!(self.machine, Machine::Client(_)) {
                        self.aside[page as usize] = self.bytes[page as usize];
                    }
                }
                Effect::Stage(page) => self.aside[page as usize] = value.expect("bytes came with it"),
                Effect::Changed(page, true) => {
                    out.events.push(Event::CommitEnds(self.number as u8, page as u8, true));
                }
                Effect::Apply(page) => self.bytes[page as usize] = self.aside[page as usize],
                Effect::Done(page, outcome) => self.done(page as u8, outcome, value, out),
                Effect::Persist(record) => self.log = Some(record),
                // Changes stay that may still be committed.
                Effect::Lost(page) => {
                    if !self.may_commit(page) {
                        self.bytes[page as usize] = self.aside[page as usize];
                    }
                }
                Effect::Changed(_, false) | Effect::Recalled(_) | Effect::Unserved => {}
            }
        }
    }

    fn send(&self, to: Party, message: Message, bytes: Bytes, place: Place, out: &mut Out) {
        let page = match &message {
            Message::Request { page, .. } | Message::Reply { page, .. } | Message::Store { page, .. } => *page as usize,
            _ => 0,
        };
        let value = match bytes {
            Bytes::Nothing => None,
            Bytes::Zero => Some(0),
            Bytes::Page => Some(self.bytes[page]),
            Bytes::Staged => Some(self.aside[page]),
        };
        let (message, about, of) = place.on_the_way(message);
        out.envelopes.push(Envelope { from: self.party, to, about, of, message, value });
    }

    fn done(&mut self, page: u8, outcome: Outcome, value: Option<Value>, out: &mut Out) {
        let (me, place) = (self.number as u8, usize::from(page));
        match outcome {
            Outcome::Read => out.events.push(Event::ReadEnds(me, page, value.expect("bytes came with it"))),
            Outcome::Owned => {}
            Outcome::Committed => {
                out.events.push(Event::CommitEnds(me, page, true));
                self.aside[place] = self.bytes[place];
            }
            Outcome::Fenced => {
                out.events.push(Event::CommitEnds(me, page, false));
                self.bytes[place] = self.aside[place];
            }
        }
        self.is_waiting = false;
        self.next += 1;
    }
}

/// Checks that a party is not served before another that came first and still waits, and that a party that was served
/// no longer waits.
fn check_turns(now: Nanoseconds, waiting: &BTreeMap<PageNumber, Queue>, home: &Home, effects: &[Effect]) {
    for effect in effects {
        let Effect::Send { to, message: Message::Reply { page, ask, status: Status::Ok, .. }, .. } = effect else {
            continue;
        };
        let right = match ask {
            Ask::Copy => Right::Copy,
            Ask::Update => Right::Lease,
            _ => continue,
        };
        let waits = |who: Party, right: Right| {
            let left = home.queues.get(page).into_iter().flat_map(|queue| &queue.waiters);
            left.into_iter().any(|waiter| (waiter.party, waiter.right) == (who, right))
        };
        assert!(!waits(*to, right), "{} was served page {page} and waits still", name(*to));
        let first = waiting.get(page).into_iter().flat_map(|queue| &queue.waiters);
        let first = first.take_while(|waiter| (waiter.party, waiter.right) != (*to, right));
        for Waiter { party, right, .. } in first.filter(|waiter| now < waiter.until) {
            assert!(!waits(*party, *right), "{} is served page {page} before {}", name(*to), name(*party));
        }
    }
}

/// A server at the start: the first is home, and everything is settled.
fn server(setup: &Setup, host: Host) -> RangeServer {
    let timing = faults::timing(setup.fault, setup, usize::from(host.0));
    let mut server = RangeServer::new(host, setup.controller_party(), setup.pages, timing, FIRST_BOOT_ID, Host(0));
    server.own = setup.pages - setup.leased_pages();
    server.window = setup.window;
    server.memory.incarnation = 1;
    server.knows = (Host(0), 1);
    server.report_at = None;
    if host == Host(0) {
        let (backups, hand_to) = (setup.backups.clone(), None);
        let placement = Placement {
            incarnation: 1,
            home: Host(0),
            backups,
            hand_to,
            begins_empty: false,
            is_unserved: false,
            parts: Vec::new(),
        };
        let mut effects = Vec::new();
        let context = Context { now: 0, timing: &timing, stamps: &mut server.memory.stamps, effects: &mut effects };
        let settling = Settling::new(server.pages, server.own, server.window);
        let mut home = Home::new(&placement, Some(Vec::new()), settling, &context);
        home.settling.begin(Vec::new());
        home.retry_at = 0;
        home.until = timing.home_lease_held;
        server.home = Some(home);
        server.report_at = Some((timing.home_lease_held / 3).max(1));
    }
    server
}

/// A short description of an effect.
fn text(effect: &Effect) -> String {
    match effect {
        Effect::Send { to, message, bytes } => {
            let with = if *bytes == Bytes::Nothing { "" } else { ", with bytes" };
            format!("send {}: {message:#}{with}", name(*to))
        }
        other => format!("{other:?}").to_lowercase(),
    }
}

/// A short name of a party.
pub fn name(party: Party) -> String {
    match party.incarnation {
        0 => format!("h{}", party.host.0),
        incarnation => format!("h{}.{incarnation}", party.host.0),
    }
}
