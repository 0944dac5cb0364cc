//! A controller for tests: the pure one for each range, behind a socket in a host of a lab, with records in memory.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use trellis::remote::{PORT, Pointer};
use trellis_fabric_protocol::lease::controller::{Controller, Input, Record};
use trellis_fabric_protocol::lease::{Effect, Message, Party, RangeNumber, State, Timing};
use trellis_fabric_protocol::wire::address::{Address, Arguments, Cluster, Host, Incarnation, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::control::What;
use trellis_fabric_protocol::wire::datagram::{
    Checksums, ControlMessage, Extent, HEADER_BYTES, Operation, Request, Rules, Status, TagKind, seal,
};
use trellis_switch::lab::Lab;
use trellis_switch::{Prefix, Route};
use trellis_transport::links::ipv6::{Endpoint, Way};

use super::inside::LONG;

pub(crate) const TERM: Duration = Duration::from_millis(1200);
pub(crate) const HOME_LEASE: Duration = Duration::from_millis(1000);

/// A test's request about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Directive {
    Back(u16),
    Move(u16),
}

/// See the head of this file.
pub(crate) struct Placing {
    endpoint: Endpoint,
    cluster: Cluster,
    me: u16,
    shared: Mutex<Shared>,
    changed: Condvar,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Shared {
    records: BTreeMap<u16, Record>,
    directives: Vec<(u16, Directive)>,
}

/// Its state while it runs.
struct Placements {
    ranges: BTreeMap<u16, Placed>,
    sent: u64,
    began: Instant,
}

struct Placed {
    machine: Controller,
    pages: u64,
    /// The hosts that reported that they can be a backup, or are one.
    known: BTreeSet<u16>,
    /// When a host that does not know the range was told about it.
    introduced_at: u64,
    /// The host to which the switch sends the range's requests.
    routed: u16,
}

/// Ends the controller when it is dropped, however the test ends.
pub(crate) struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Placing {
    pub(crate) fn new(lab: &Lab, host: &str) -> Placing {
        let prefix = super::inside::prefix(lab, host);
        let endpoint = lab.host(host).unwrap().run(|| Endpoint::open(PORT)).unwrap().unwrap();
        let (cluster, me) = (prefix.cluster, prefix.host.0);
        let (shared, changed, is_over) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Placing { endpoint, cluster, me, shared, changed, is_over }
    }

    pub(crate) fn ends_with(&self) -> Ends<'_> {
        Ends(&self.is_over)
    }

    pub(crate) fn set_directive(&self, range: u16, directive: Directive) {
        self.shared.lock().unwrap().directives.push((range, directive));
    }

    /// Waits until the record of a range satisfies a condition.
    pub(crate) fn until(&self, range: u16, what: &str, mut is_so: impl FnMut(&Record) -> bool) -> Record {
        let deadline = Instant::now() + LONG;
        let mut shared = self.shared.lock().unwrap();
        loop {
            let record = shared.records.get(&range).cloned();
            if let Some(record) = record.as_ref().filter(|record| is_so(record)) {
                return record.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "range {range:x} does not come to be {what}: {record:?}");
            shared = self.changed.wait_timeout(shared, left).unwrap().0;
        }
    }

    /// Answers until the test is over.
    pub(crate) fn run(&self, lab: &Lab) {
        let mut placements = Placements { ranges: BTreeMap::new(), sent: 0, began: Instant::now() };
        let mut room = vec![0; 64 << 10];
        while !self.is_over.load(Ordering::Relaxed) {
            match self.endpoint.receive(&mut room).unwrap() {
                Some(arrived) => {
                    let (source, destination) = (Address(arrived.source), Address(arrived.destination));
                    let rules = Rules { cluster: self.cluster, least: TagKind::Checksum, tags: &Checksums };
                    let payload = &room[..arrived.bytes];
                    let Ok(request) = Request::decode(source, destination, payload, &rules) else { continue };
                    if request.command() == Command::Report {
                        let message =
                            ControlMessage::decode(Command::Report, &payload[HEADER_BYTES..]).expect("it is one");
                        self.reported(&mut placements, lab, request.source.host.0, &message);
                    }
                }
                None => self.endpoint.wait(Duration::from_millis(2)),
            }
            self.tick(&mut placements, lab);
        }
    }

    fn now(&self, placements: &Placements) -> u64 {
        placements.began.elapsed().as_nanos() as u64
    }

    fn reported(&self, placements: &mut Placements, lab: &Lab, from: u16, message: &ControlMessage) {
        let What::Report { request, boot_id, state, call, about } = message.what else { return };
        assert_eq!((about.term, about.home_lease), (TERM.as_nanos() as u64, HOME_LEASE.as_nanos() as u64));
        let now = self.now(placements);
        let range = message.range;
        let placed = match placements.ranges.entry(range.0) {
            Entry::Occupied(known) => known.into_mut(),
            // A range begins with the first report of its own host.
            Entry::Vacant(_) if range != RangeNumber(from) => return,
            Entry::Vacant(new) => {
                let (backups, complete) = (Vec::new(), Vec::new());
                let record = Record {
                    incarnation: 1,
                    home: Host(from),
                    boot_id: None,
                    backups,
                    complete,
                    moving: None,
                    begins_empty: true,
                    parts: Vec::new(),
                };
                let machine = Controller::new(timing(), record, now);
                let known = BTreeSet::new();
                new.insert(Placed { machine, pages: about.pages, known, introduced_at: 0, routed: range.0 })
            }
        };
        let Record { home, complete, .. } = &placed.machine.record;
        let is_lost = state == State::Blank && from == home.0 && complete.is_empty();
        if is_lost && placed.machine.record.boot_id.is_some_and(|known| known != boot_id) {
            self.step(placements, lab, range.0, Input::Reset(Host(from)));
        }
        let placed = placements.ranges.get_mut(&range.0).expect("it is there");
        if state == State::Blank {
            placed.known.remove(&from)
        } else {
            placed.known.insert(from)
        };
        let message = Message::Report { request, boot_id, state, call };
        self.step(placements, lab, range.0, Input::Message(Party::of(Host(from)), message));
    }

    fn tick(&self, placements: &mut Placements, lab: &Lab) {
        let now = self.now(placements);
        let due = |placed: &Placed| placed.machine.alarm().is_some_and(|at| now >= at);
        let ranges: Vec<u16> =
            placements.ranges.iter().filter(|(_, placed)| due(placed)).map(|(range, _)| *range).collect();
        ranges.into_iter().for_each(|range| self.step(placements, lab, range, Input::Tick));
        let directives = std::mem::take(&mut self.shared.lock().unwrap().directives);
        for (range, directive) in directives {
            let (Directive::Back(host) | Directive::Move(host)) = directive;
            let placed = &placements.ranges[&range];
            if placed.known.contains(&host) {
                let input =
                    if directive == Directive::Back(host) { Input::Back(Host(host)) } else { Input::Move(Host(host)) };
                self.step(placements, lab, range, input);
                continue;
            }
            self.shared.lock().unwrap().directives.push((range, directive));
            if now < placed.introduced_at + 50_000_000 {
                continue;
            }
            // It must first know the range.
            let placement = trellis_fabric_protocol::lease::Placement {
                incarnation: placed.machine.record.incarnation,
                home: placed.machine.record.home,
                backups: placed.machine.record.backups.clone(),
                hand_to: None,
                begins_empty: false,
                is_unserved: false,
                parts: Vec::new(),
            };
            let what = What::Placed { request: 0, boot_id: 0, placement, call: now, pages: placed.pages, within: None };
            self.send_control(placements, host, &ControlMessage { range: RangeNumber(range), what });
            if let Some(placed) = placements.ranges.get_mut(&range) {
                placed.introduced_at = now;
            }
        }
    }

    fn step(&self, placements: &mut Placements, lab: &Lab, range: u16, input: Input) {
        let now = self.now(placements);
        let placed = placements.ranges.get_mut(&range).expect("it is there");
        let mut effects = Vec::new();
        placed.machine.step(now, input, &mut effects);
        let pages = placed.pages;
        let (home, mut messages) = (placed.machine.record.home, Vec::new());
        for effect in effects {
            match effect {
                Effect::Send { to, message: Message::Placed { request, boot_id, placement, call }, .. } => {
                    messages.push((to.host, What::Placed { request, boot_id, placement, call, pages, within: None }));
                }
                Effect::Persist(_) | Effect::Unserved => {}
                other => panic!("{other:?} is nothing that a controller does"),
            }
        }
        if placed.routed != home.0 {
            placed.routed = home.0;
            self.route(lab, range, home.0);
        }
        {
            let mut shared = self.shared.lock().unwrap();
            let record = &placements.ranges[&range].machine.record;
            if shared.records.get(&range) != Some(record) {
                println!("range {range:x}: {record:?}");
                shared.records.insert(range, record.clone());
                self.changed.notify_all();
            }
        }
        messages.into_iter().for_each(|(to, what)| {
            self.send_control(placements, to.0, &ControlMessage { range: RangeNumber(range), what })
        });
    }

    /// Routes the requests for a range's pages and objects to its home, and control messages and answers to the host
    /// itself.
    fn route(&self, lab: &Lab, range: u16, home: u16) {
        for (command, bits) in [(0x00, 50), (0x40, 54), (0x44, 55)] {
            let prefix = Prefix::new(lab.cluster().address(range, command, 0, 0), bits).unwrap();
            if home == range {
                lab.switch().drop_prefix(prefix).unwrap();
            } else {
                let number = |host: &&trellis_switch::lab::Host| host.plan().prefix.home() == home;
                let port = lab.hosts().iter().find(number).expect("a host of the lab").plan().port;
                lab.switch().set_prefix(prefix, Route { port, is_memory: true }).unwrap();
            }
        }
    }

    fn send_control(&self, placements: &mut Placements, to: u16, message: &ControlMessage) {
        placements.sent += 1;
        let incarnation = Incarnation::new(1);
        let source = Source { cluster: self.cluster, host: Host(self.me), incarnation, request: placements.sent };
        send(&self.endpoint, source, to, message, &[]);
    }
}

/// Sends a control message to a server, with bytes of a page.
fn send(endpoint: &Endpoint, source: Source, to: u16, message: &ControlMessage, page: &[u8]) {
    let mut body = message.encode();
    body.extend_from_slice(page);
    let destination = Pointer::to_host(source.cluster, Host(to)).request(message.command(), Arguments::NO_REPLY);
    let operation = Operation::Control { bytes: body.len() as u32 };
    let (mut header, _) = asked(source, destination, operation).encode();
    let (from, to) = (source.encode(), destination.encode());
    assert!(seal(&mut header, from, to, [&body, &[]], &Checksums));
    let _ = endpoint.send(&Way { from: from.0, to: to.0, port: PORT }, &[&header, &body]);
}

/// A host without a server claims to a server that it is home of a range, with the highest possible incarnation.
pub(crate) fn pretend(lab: &Lab, host: &str, to: u16, range: u16) {
    let prefix = super::inside::prefix(lab, host);
    let endpoint = lab.host(host).unwrap().run(|| Endpoint::open(0)).unwrap().unwrap();
    let (cluster, incarnation) = (prefix.cluster, u16::MAX);
    let epoch = trellis_fabric_protocol::lease::epoch_of(incarnation);
    let leases = What::Leases { incarnation, batch: u64::MAX, total: 0, first: 0, entries: Vec::new() };
    for (request, what) in (1..).zip([What::Store { incarnation, pages: 1, page: 0, epoch }, leases]) {
        let source = Source { cluster, host: prefix.host, incarnation: Incarnation::new(7), request };
        let page: &[u8] = if request == 1 { &[0xee; 4096] } else { &[] };
        send(&endpoint, source, to, &ControlMessage { range: RangeNumber(range), what }, page);
    }
}

fn timing() -> Timing {
    Timing::new(TERM.as_nanos() as u64, HOME_LEASE.as_nanos() as u64, 20_000_000, 1000)
}

fn asked(
    source: Source,
    destination: trellis_fabric_protocol::wire::address::Destination,
    operation: Operation,
) -> Request {
    let tag_kind = TagKind::Checksum;
    Request { source, destination, tag_kind, is_once: false, is_release: false, epoch: 0, operation }
}

/// The status of the answer to a WRITE without a lease.
pub(crate) fn write(lab: &Lab, host: &str, pointer: Pointer, bytes: &[u8]) -> Status {
    let (cluster, number) = (pointer.cluster(), super::inside::number(lab, host));
    let source = Source { cluster, host: number, incarnation: Incarnation::new(9), request: 1 };
    let destination = pointer.request(Command::Write, Arguments::NONE);
    let (mut header, _) = asked(source, destination, Operation::Bytes(Extent::whole(bytes.len() as u32))).encode();
    let (from, to) = (source.encode(), destination.encode());
    assert!(seal(&mut header, from, to, [bytes, &[]], &Checksums));
    let socket = lab.host(host).unwrap().socket(Ipv6Addr::from(from.0), 0).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.send_to(&[&header[..], bytes].concat(), (Ipv6Addr::from(to.0), PORT)).unwrap();
    let mut answer = vec![0; 1 << 10];
    socket.recv(&mut answer).expect("it is answered");
    Status::from_byte(answer[1]).expect("a status")
}
