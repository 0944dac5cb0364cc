//! The blocks of `lease`: a few servers, clients, readers and a controller, each with the bytes that a runtime would
//! keep.

use trellis_fabric_protocol::lease::client::{self, Client};
use trellis_fabric_protocol::lease::controller::{self, Controller, Record};
use trellis_fabric_protocol::lease::reader::{self, Reader};
use trellis_fabric_protocol::lease::server::{self, RangeServer};
use trellis_fabric_protocol::lease::{Bytes, Effect, Host, Message, Party, State, Timing};
use trellis_testing::scripts::{Story, Words};

/// The first hosts of clients and of readers, and the host of the controller.
const CLIENTS: u16 = 100;
const READERS: u16 = 200;
const CONTROLLER: Host = Host(300);
const PAGES: u64 = 2;
const FIRST_BOOT_ID: u16 = 1;

#[allow(clippy::large_enum_variant, reason = "there are few")]
enum Machine {
    RangeServer(RangeServer),
    Client(Client),
    Reader(Reader),
    Controller(Controller),
}

struct Node {
    party: Party,
    machine: Machine,
    is_gone: bool,
    bytes: [u64; PAGES as usize],
    staged: [u64; PAGES as usize],
    log: Option<Record>,
}

struct Envelope {
    from: Party,
    to: Party,
    message: Message,
    value: Option<u64>,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Script {
    now: u64,
    changes: u64,
    nodes: Vec<Node>,
    envelopes: Vec<Envelope>,
}

impl Script {
    pub(crate) fn new() -> Script {
        Script::default()
    }

    fn cluster(&mut self, words: &Words<'_>) -> Result<(), String> {
        let count = |key| words.value(key).map_or(Ok(0), |_| words.number(key));
        // The clocks keep time, so a client holds a lease for exactly the term that the home grants.
        let timing = Timing { retry: 1_000, renew: 1_000, ..Timing::new(9, 12, 1_000, 0) };
        let (servers, backups) = (words.number("servers")? as u16, count("backups")? as u16);
        let record = Record {
            incarnation: 1,
            home: Host(0),
            boot_id: None,
            backups: (1..=backups).map(Host).collect(),
            complete: (1..=backups).map(Host).collect(),
            moving: None,
            begins_empty: true,
            parts: Vec::new(),
        };
        let controller = Party::of(CONTROLLER);
        let node = |party, machine| {
            let (bytes, staged) = Default::default();
            Node { party, machine, is_gone: false, bytes, staged, log: None }
        };
        for host in (0..servers).map(Host) {
            let server = RangeServer::new(host, controller, PAGES, timing, FIRST_BOOT_ID, Host(0));
            self.nodes.push(node(Party::of(host), Machine::RangeServer(server)));
        }
        for number in 0..count("clients")? as u16 {
            let party = Party { host: Host(CLIENTS + number), incarnation: 1 };
            self.nodes.push(node(party, Machine::Client(Client::new(party, controller, timing, Host(0)))));
        }
        for number in 0..count("readers")? as u16 {
            let party = Party { host: Host(READERS + number), incarnation: 1 };
            self.nodes.push(node(party, Machine::Reader(Reader::new(party, controller, timing, Host(0)))));
        }
        let machine = Controller { call_at: None, ..Controller::new(timing, record.clone(), 0) };
        self.nodes.push(Node { log: Some(record), ..node(controller, Machine::Controller(machine)) });
        // The servers report, and the first becomes home; no client has leases, so there is no grace period.
        let mut lines = Vec::new();
        (0..usize::from(servers)).for_each(|number| self.tick(number, &mut lines));
        self.deliver_all(&mut lines);
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        let found = self.nodes.iter().position(|node| name_of(node.party) == name);
        found.ok_or_else(|| format!("nobody is called `{name}`"))
    }

    fn tick(&mut self, number: usize, lines: &mut Vec<String>) {
        let now = self.now;
        self.step(number, None, lines, |node, effects| match &mut node.machine {
            Machine::RangeServer(server) => server.step(now, server::Input::Tick, effects),
            Machine::Client(client) => client.step(now, client::Input::Tick, effects),
            Machine::Reader(reader) => reader.step(now, reader::Input::Tick, effects),
            Machine::Controller(controller) => controller.step(now, controller::Input::Tick, effects),
        });
    }

    fn step(
        &mut self,
        number: usize,
        value: Option<u64>,
        lines: &mut Vec<String>,
        step: impl FnOnce(&mut Node, &mut Vec<Effect>),
    ) {
        let mut effects = Vec::new();
        let node = &mut self.nodes[number];
        step(node, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send { to, message, bytes } => {
                    let page = match &message {
                        Message::Request { page, .. } | Message::Reply { page, .. } | Message::Store { page, .. } => {
                            *page
                        }
                        _ => 0,
                    };
                    let value = match bytes {
                        Bytes::Nothing => None,
                        Bytes::Zero => Some(0),
                        Bytes::Page => Some(node.bytes[page as usize]),
                        Bytes::Staged => Some(node.staged[page as usize]),
                    };
                    lines.push(format!("  send {}: {}{}", name_of(to), message, with(value)));
                    self.envelopes.push(Envelope { from: node.party, to, message, value });
                    continue;
                }
                Effect::Put(page) => node.bytes[page as usize] = value.expect("bytes came with it"),
                Effect::Stage(page) => node.staged[page as usize] = value.expect("bytes came with it"),
                Effect::Apply(page) => node.bytes[page as usize] = node.staged[page as usize],
                Effect::Persist(ref record) => node.log = Some(record.clone()),
                _ => {}
            }
            lines.push(match effect {
                Effect::Put(page) => format!("  put p{page}"),
                Effect::Stage(page) => format!("  stage p{page}"),
                Effect::Apply(page) => format!("  apply p{page}"),
                Effect::Done(page, outcome) => format!("  p{page}: {}", format!("{outcome:?}").to_lowercase()),
                Effect::Lost(page) => format!("  p{page}: lost"),
                Effect::Recalled(page) => format!("  p{page}: wanted by somebody"),
                Effect::Persist(Record { incarnation, home, .. }) => {
                    format!("  persist: home is s{} in incarnation {incarnation}", home.0)
                }
                _ => "  unserved".to_string(),
            });
        }
    }

    /// Delivers the message at this index to a node.
    fn deliver(&mut self, place: usize, at: Option<usize>, lines: &mut Vec<String>) {
        let Envelope { from, to, message, value } = self.envelopes.remove(place);
        let Some(number) = at.or_else(|| self.nodes.iter().position(|node| node.party == to)) else { return };
        if self.nodes[number].is_gone {
            return;
        }
        let me = name_of(self.nodes[number].party);
        lines.push(format!("{me} hears from {}: {}{}", name_of(from), message, with(value)));
        let now = self.now;
        self.step(number, value, lines, |node, effects| match &mut node.machine {
            Machine::RangeServer(server) => server.step(now, server::Input::Message(from, message), effects),
            Machine::Client(client) => client.step(now, client::Input::Message(from, message), effects),
            Machine::Reader(reader) => reader.step(now, reader::Input::Message(from, message), effects),
            Machine::Controller(controller) => {
                controller.step(now, controller::Input::Message(from, message), effects);
            }
        });
    }

    fn deliver_all(&mut self, lines: &mut Vec<String>) {
        while !self.envelopes.is_empty() {
            self.deliver(0, None, lines);
        }
    }

    /// Time passes; each node acts when it is due.
    fn wait(&mut self, time: u64, lines: &mut Vec<String>) {
        let end = self.now + time;
        loop {
            let alarm = |(number, node): (usize, &Node)| {
                let at = match &node.machine {
                    _ if node.is_gone => None,
                    Machine::RangeServer(server) => server.alarm(),
                    Machine::Client(client) => client.alarm(),
                    Machine::Reader(reader) => reader.alarm(),
                    Machine::Controller(controller) => controller.alarm(),
                };
                at.map(|at| (at.max(self.now), number))
            };
            match self.nodes.iter().enumerate().filter_map(alarm).min() {
                Some((at, number)) if at <= end => {
                    self.now = at;
                    let mut done = Vec::new();
                    self.tick(number, &mut done);
                    self.keep_home_lease(&mut done);
                    if !done.is_empty() {
                        lines.push(format!("{} at {at}", name_of(self.nodes[number].party)));
                        lines.extend(done);
                    }
                }
                _ => break,
            }
        }
        self.now = end;
    }

    /// Grants the requests of a home that only renews its home lease, without a line of output.
    fn keep_home_lease(&mut self, lines: &mut Vec<String>) {
        let is_renewal = |envelope: &Envelope| {
            matches!(
                envelope.message,
                Message::Report { state: State::Home { is_settled: true, silent: None, .. }, .. }
            )
        };
        let Some(place) = self.envelopes.iter().position(is_renewal) else { return };
        let controller = self.nodes.len() - 1;
        if self.nodes[controller].is_gone {
            return;
        }
        lines.retain(|line| !line.contains("report"));
        let mut silent = Vec::new();
        self.deliver(place, Some(controller), &mut silent);
        self.deliver(self.envelopes.len() - 1, None, &mut silent);
    }

    fn client(&mut self, command: &str, words: &Words<'_>, lines: &mut Vec<String>) -> Result<(), String> {
        let (who, page) = (words.at(0)?, u64::from(words.name(1, 'p')?));
        let (number, now) = (self.find(who)?, self.now);
        let release = words.has("release");
        if command == "change" {
            let node = &mut self.nodes[number];
            let Machine::Client(client) = &mut node.machine else { return Err(format!("{who} is no client")) };
            let may = client.change(now, page);
            if may {
                self.changes += 1;
                node.bytes[page as usize] = self.changes;
            }
            lines.push(format!(
                "{who} {} p{page}{}",
                if may { "changes" } else { "may not change" },
                with(Some(node.bytes[page as usize]))
            ));
            return Ok(());
        }
        let input = match command {
            "read" => client::Input::Read(page),
            "update" => client::Input::Update(page),
            "commit" => client::Input::Commit { page, release },
            _ => client::Input::Release(page),
        };
        lines.push(format!("{who}: {command} p{page}{}", if release { " and release" } else { "" }));
        self.step(number, None, lines, |node, effects| {
            if let Machine::Client(client) = &mut node.machine {
                client.step(now, input, effects);
            }
        });
        Ok(())
    }

    fn restart(&mut self, words: &Words<'_>, lines: &mut Vec<String>) -> Result<(), String> {
        let (number, now) = (self.find(words.at(0)?)?, self.now);
        let node = &mut self.nodes[number];
        node.is_gone = false;
        match &mut node.machine {
            Machine::RangeServer(server) => {
                let memory = (!words.has("blank")).then(|| server.memory.clone());
                *server = server.restarted(now, server.boot_id + 1, memory);
                if words.has("blank") {
                    node.bytes = Default::default();
                }
            }
            Machine::Controller(controller) => {
                *controller = Controller::new(controller.timing, node.log.clone().expect("a log"), now);
            }
            _ => return Err("only servers and the controller start again".to_string()),
        }
        self.tick(number, lines);
        Ok(())
    }
}

impl Story for Script {
    fn command(&mut self, line: &str) -> Result<Vec<String>, String> {
        let (command, words) = Words::of(line);
        let mut lines = Vec::new();
        match command {
            "cluster" => self.cluster(&words)?,
            "read" | "update" | "change" | "commit" | "release" => self.client(command, &words, &mut lines)?,
            "follow" => {
                let (number, page, now) = (self.find(words.at(0)?)?, u64::from(words.name(1, 'p')?), self.now);
                self.step(number, None, &mut lines, |node, effects| {
                    if let Machine::Reader(reader) = &mut node.machine {
                        reader.step(now, reader::Input::Follow(page), effects);
                    }
                });
            }
            "move" => {
                let (to, now) = (self.nodes[self.find(words.at(0)?)?].party.host, self.now);
                let number = self.nodes.len() - 1;
                self.step(number, None, &mut lines, |node, effects| {
                    if let Machine::Controller(controller) = &mut node.machine {
                        controller.step(now, controller::Input::Move(to), effects);
                    }
                });
            }
            "deliver" if words.is_empty() => self.deliver_all(&mut lines),
            "deliver" | "lose" | "repeat" => {
                let (from, to) = words.at(0)?.split_once("->").ok_or("a link looks like c0->s0")?;
                let is_it = |envelope: &Envelope| name_of(envelope.from) == from && name_of(envelope.to) == to;
                let place = self.envelopes.iter().position(is_it).ok_or("nothing is under way there")?;
                let at = words.value("at").map(|name| self.find(name)).transpose()?;
                if command == "lose" {
                    self.envelopes.remove(place);
                    return Ok(lines);
                }
                if command == "repeat" {
                    let Envelope { from, to, message, value } = &self.envelopes[place];
                    let copy = Envelope { from: *from, to: *to, message: message.clone(), value: *value };
                    self.envelopes.push(copy);
                }
                self.deliver(place, at, &mut lines);
            }
            "wait" => self.wait(words.at(0)?.parse().map_err(|_| "a time is a number")?, &mut lines),
            "stop" => {
                let number = self.find(words.at(0)?)?;
                self.nodes[number].is_gone = true;
            }
            "restart" => self.restart(&words, &mut lines)?,
            other => return Err(format!("`{other}` is no command")),
        }
        Ok(lines)
    }

    fn left_over(&self) -> Vec<String> {
        let under_way = self
            .envelopes
            .iter()
            .map(|envelope| format!("{} is under way to {}", envelope.message, name_of(envelope.to)));
        let waits = self.nodes.iter().filter(|node| match &node.machine {
            Machine::Client(client) => client.pages.values().any(|hold| hold.wait.is_some()),
            _ => false,
        });
        under_way.chain(waits.map(|node| format!("{} waits", name_of(node.party)))).collect()
    }
}

fn name_of(party: Party) -> String {
    match party.host {
        CONTROLLER => "controller".to_string(),
        Host(host) if host >= READERS => format!("r{}", host - READERS),
        Host(host) if host >= CLIENTS => format!("c{}", host - CLIENTS),
        Host(host) => format!("s{host}"),
    }
}

fn with(value: Option<u64>) -> String {
    value.map_or(String::new(), |value| format!(", bytes {value}"))
}
