//! Tests all ranges with servers that are simulated by real state machines, in virtual time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use trellis_fabric_protocol::lease::parts::{self, Keeps, Part, Step};
use trellis_fabric_protocol::lease::server::{Input as ServerInput, RangeServer};
use trellis_fabric_protocol::lease::{Effect, Placement, State};
use trellis_fabric_protocol::wire::address::Cluster;

use super::*;

mod copies;
mod hot;
mod of_moves;
mod of_parts;
mod pulls;

const MILLISECOND: Nanoseconds = 1_000_000;
const PAGES: u64 = 8;

/// A simulated host: its machines, by range.
struct Played {
    /// The random boot id from its start.
    boot_id: u16,
    ranges: BTreeMap<RangeNumber, RangeServer>,
    /// The pages of a range that its machine here does not have.
    parts: BTreeMap<RangeNumber, Vec<Part>>,
    spare_bytes: u64,
    /// The part that it wants merged, by range.
    wants_back: BTreeMap<RangeNumber, RangeNumber>,
}

impl Played {
    /// Whether it answers for a page of a range.
    fn serves(&self, range: RangeNumber, page: u64, now: Nanoseconds) -> bool {
        // Where the range never was, parts of before may not be forgotten yet.
        let parts = self.parts.get(&range).into_iter().flatten().filter(|part| part.run().contains(&page));
        let mut numbers: Vec<RangeNumber> = parts.map(|part| part.number).collect();
        if numbers.is_empty() {
            numbers.push(range);
        }
        numbers.iter().any(|number| self.ranges.get(number).is_some_and(|machine| machine.serves(now)))
    }
}

/// Hosts, a controller, and the written records.
struct World {
    now: Nanoseconds,
    timing: Timing,
    ranges: Ranges,
    servers: BTreeMap<Host, Played>,
    /// Hosts that neither receive nor send anything.
    cut: BTreeSet<Host>,
    /// Hosts that take no range of others, and do not say so.
    refusing: BTreeSet<Host>,
    /// Whether the switch does not say that it has routes.
    is_switch_silent: bool,
    /// Whether what homes send to backups is lost.
    loses_copies: bool,
    /// How many messages hosts with parts did not accept from each other.
    disbelieved: usize,
    /// The next message that informs this host that it is home of this range is lost.
    loses: Option<(Host, RangeNumber)>,
    /// How often a range was written.
    writes: usize,
    /// As the store has them.
    written: BTreeMap<RangeNumber, RangeRecord>,
    drained: BTreeMap<Host, ServerRecord>,
    routes: BTreeMap<RangeNumber, Host>,
    /// Messages between servers: from, to, about which range.
    messages: VecDeque<(Host, Host, RangeNumber, Message)>,
    delivers: bool,
    /// After this many more writes the controller is killed: before it learns of the last one, which takes effect or does
    /// not.
    dies: Option<(usize, bool)>,
    /// How often it was killed.
    deaths: usize,
    settings: Settings,
    said: Vec<String>,
    /// The destinations of requests for hot pages, and until when.
    redirects: BTreeMap<(RangeNumber, u64), (Host, Nanoseconds)>,
    /// Which host was told to follow which page, for how long, in this order.
    follows: Vec<(Host, u64, Nanoseconds)>,
    anywhere: Option<Host>,
    /// The answers to requests.
    answered: Vec<u64>,
    boots: u16,
    /// The requests that each home reports as answered, for a range.
    busy: BTreeMap<RangeNumber, u64>,
}

fn settings(timing: Timing, backups: u16) -> Settings {
    let cluster = Cluster::new(0x12_3456).expect("a cluster");
    let me = HostPrefix { cluster, host: Host(200) };
    Settings { me, timing, backups, rebalances: false, hot_from: 1_000, locality: Locality::default() }
}

impl World {
    fn new(backups: u16) -> World {
        let timing = Timing::new(2_000 * MILLISECOND, 500 * MILLISECOND, 20 * MILLISECOND, 1_000);
        let settings = settings(timing, backups);
        World {
            now: 0,
            timing,
            ranges: Ranges::new(settings.clone(), Records::default(), 0),
            servers: BTreeMap::new(),
            cut: BTreeSet::new(),
            refusing: BTreeSet::new(),
            is_switch_silent: false,
            loses_copies: false,
            disbelieved: 0,
            loses: None,
            writes: 0,
            written: BTreeMap::new(),
            drained: BTreeMap::new(),
            routes: BTreeMap::new(),
            messages: VecDeque::new(),
            delivers: false,
            dies: None,
            deaths: 0,
            settings,
            said: Vec::new(),
            redirects: BTreeMap::new(),
            follows: Vec::new(),
            anywhere: None,
            answered: Vec::new(),
            boots: 0,
            busy: BTreeMap::new(),
        }
    }

    /// A server starts, with nothing.
    fn serve(&mut self, host: Host, spare_pages: u64) {
        self.serve_with(host, PAGES, spare_pages);
    }

    /// Like `serve`, with this many pages of its own.
    fn serve_with(&mut self, host: Host, pages: u64, spare_pages: u64) {
        self.boots += 1;
        let (boot_id, own) = (self.boots, self.machine((RangeNumber::of(host), pages), host, self.boots));
        let (parts, wants_back) = (BTreeMap::new(), BTreeMap::new());
        let played = Played {
            boot_id,
            ranges: [(RangeNumber::of(host), own)].into(),
            parts,
            spare_bytes: spare_pages * 4096,
            wants_back,
        };
        self.servers.insert(host, played);
    }

    fn machine(&self, (range, pages): (RangeNumber, u64), host: Host, boot_id: u16) -> RangeServer {
        let mut machine = RangeServer::new(host, Party::of(Host(200)), pages, self.timing, boot_id, range.host());
        machine.memory.is_blank = true;
        machine.report_at = Some(self.now);
        machine
    }

    /// The controller is killed and starts again.
    fn restart_controller(&mut self) {
        let ranges = self.written.iter().map(|(number, record)| (*number, record.clone())).collect();
        let servers = self.drained.iter().map(|(host, record)| (*host, *record)).collect();
        self.ranges = Ranges::new(self.settings.clone(), Records { ranges, servers }, self.now);
        self.routes = self.ranges.places().into_iter().map(|place| (place.number, place.home)).collect();
    }

    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += MILLISECOND;
            let mut orders = Vec::new();
            self.ranges.step(self.now, Fact::Tick, &mut orders);
            self.carry_out(orders);
            let hosts: Vec<Host> = self.servers.keys().copied().collect();
            for host in hosts {
                let numbers: Vec<RangeNumber> = self.servers[&host].ranges.keys().copied().collect();
                for number in numbers {
                    self.server(host, number, ServerInput::Tick);
                }
            }
            self.check();
        }
    }

    /// The invariants that hold at every moment.
    fn check(&self) {
        let homes_of = |serves: &dyn Fn(&Played) -> bool| -> Vec<Host> {
            self.servers.iter().filter(|(_, played)| serves(played)).map(|(host, _)| *host).collect()
        };
        for (number, record) in &self.written {
            let serves = |played: &Played| played.ranges.get(number).is_some_and(|machine| machine.serves(self.now));
            let homes = homes_of(&serves);
            assert!(homes.len() <= 1, "{homes:?} serve range {number:?} at {} ms", self.now / MILLISECOND);
            let copies: BTreeSet<&Host> = record.backups.iter().chain([&record.home]).collect();
            assert_eq!(copies.len(), record.backups.len() + 1, "one copy at a host: {record:?}");
            if record.within.is_some() {
                continue;
            }
            let known = self.servers.values().filter_map(|played| played.parts.get(number)).flatten();
            let borders = known.flat_map(|part| [part.first, part.end() - 1]).chain([0]);
            for page in borders.collect::<BTreeSet<u64>>() {
                let homes = homes_of(&|played| played.serves(*number, page, self.now));
                let now = self.now / MILLISECOND;
                assert!(homes.len() <= 1, "{homes:?} serve page {page} of range {number:?} at {now} ms");
            }
        }
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        let deaths = self.deaths;
        for order in orders {
            if self.deaths != deaths {
                return;
            }
            let is_write = matches!(order, Order::Write(..));
            if let Some((left, counts)) = self.dies.filter(|_| is_write) {
                self.dies = left.checked_sub(1).map(|left| (left, counts));
                if left == 0 {
                    if let Order::Write(_, writes) = order {
                        writes.into_iter().filter(|_| counts).for_each(|write| self.write(write));
                    }
                    self.deaths += 1;
                    return self.restart_controller();
                }
            }
            match order {
                Order::Say(event) => self.said.push(event.to_string()),
                Order::Answer(asked) => self.answered.push(asked),
                Order::Write(ticket, writes) => {
                    self.writes += 1;
                    writes.into_iter().for_each(|write| self.write(write));
                    self.fact(Fact::Written(ticket));
                }
                Order::Route { ticket, place } => {
                    self.routes.insert(place.number, place.home);
                    if !self.is_switch_silent {
                        self.fact(Fact::Routed(ticket));
                    }
                }
                Order::Forget(part) => drop(self.routes.remove(&part)),
                Order::Redirect { page, to: Some((host, left)) } => {
                    self.redirects.insert(page, (host, self.now + left));
                }
                Order::Redirect { page, to: None } => drop(self.redirects.remove(&page)),
                Order::Anywhere(host) => self.anywhere = Some(host),
                Order::Send(to, ControlMessage { what: What::Follow { page, lasts }, .. }) => {
                    self.follows.push((to, page, lasts));
                }
                Order::Send(to, message) => self.receive(to, &message),
            }
        }
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Range(number, record) => drop(self.written.insert(number, record)),
            Write::Server(host, record) => drop(self.drained.insert(host, record)),
        }
    }

    fn fact(&mut self, fact: Fact) {
        // No two things happen at one instant: calls are numbered by the clock.
        self.now += 1;
        let mut orders = Vec::new();
        self.ranges.step(self.now, fact, &mut orders);
        self.carry_out(orders);
    }

    fn receive(&mut self, to: Host, control: &ControlMessage) {
        let What::Placed { request, boot_id, placement, call, pages, within } = &control.what else {
            panic!("{control:?}")
        };
        let record = &self.written[&control.range];
        assert!(placement.incarnation <= record.incarnation, "it was written before: {placement:?} {record:?}");
        // Of a part that has ended only that nobody counts on it is said.
        let has_ended = within.is_some_and(|within| {
            let parts = &self.written[&within.range].parts;
            parts.iter().all(|part| (part.number, part.since) != (control.range, within.since))
        });
        assert!(!has_ended || *request > 0 && placement.home != to && placement.backups.is_empty(), "{placement:?}");
        if placement.incarnation == record.incarnation && !has_ended {
            assert_eq!((placement.home, &placement.backups), (record.home, &record.backups), "as it was written");
            assert_eq!(placement.parts, record.of_machine().parts, "as it was written");
        }
        if self.cut.contains(&to) || !self.servers.contains_key(&to) {
            return;
        }
        let is_call = *request == 0 && placement.home == to;
        if is_call && self.loses.take_if(|lost| *lost == (to, control.range)).is_some() {
            return;
        }
        if let Some(within) = within {
            let has_range = self.servers[&to].ranges.get(&within.range).is_some_and(|machine| !machine.memory.is_blank);
            let here = self.servers[&to].parts.get(&within.range).into_iter().flatten();
            let part = here.copied().find(|part| part.number == control.range);
            if part.is_some_and(|part| part.since > within.since) {
                return;
            }
            if has_range && part.is_none_or(|part| part.since != within.since) {
                return self.ask(to, within.range);
            }
        }
        if !self.servers[&to].ranges.contains_key(&control.range) {
            if self.refusing.contains(&to) {
                return;
            }
            let machine = self.machine((control.range, *pages), to, self.servers[&to].boot_id);
            let played = self.servers.get_mut(&to).expect("it is there");
            if played.spare_bytes < pages * 4096 {
                return;
            }
            played.spare_bytes -= pages * 4096;
            played.ranges.insert(control.range, machine);
            if let Some(within) = within {
                let part = Part { number: control.range, first: within.first, pages: *pages, since: within.since };
                played.parts.entry(within.range).or_default().push(part);
            }
        }
        let placement: Placement = placement.clone();
        let message = Message::Placed { request: *request, boot_id: *boot_id, placement, call: *call };
        if within.is_none() {
            self.split_and_merge(to, control.range, &message);
        }
        self.server(to, control.range, ServerInput::Message(Party::of(Host(200)), message));
    }

    /// What a host does before the machine of a range handles a message about its place.
    fn split_and_merge(&mut self, host: Host, range: RangeNumber, message: &Message) {
        let now = self.now;
        let played = self.servers.get_mut(&host).expect("it is there");
        let here = played.parts.entry(range).or_default();
        let Some(mut machine) = played.ranges.remove(&range) else { return };
        loop {
            match parts::next(&machine, here, message) {
                Step::Hear => break,
                Step::Split(part) => {
                    played.ranges.insert(part.number, machine.split(now, &part, 0));
                    here.push(part);
                }
                Step::Merge(part) => {
                    let other = played.ranges.remove(&part.number).expect("it is here");
                    machine.merge(now, &part, other);
                    here.retain(|of| *of != part);
                }
            }
        }
        here.sort_unstable_by_key(|part| part.first);
        played.ranges.insert(range, machine);
    }

    /// A host reports because it received something unexpected.
    fn ask(&mut self, host: Host, range: RangeNumber) {
        let machine = self.servers.get_mut(&host).and_then(|played| played.ranges.get_mut(&range));
        machine.expect("it is there").report_at = Some(self.now);
    }

    /// Delivers the messages between servers, in order.
    fn deliver(&mut self) {
        if std::mem::replace(&mut self.delivers, true) {
            return;
        }
        while let Some((from, host, range, message)) = self.messages.pop_front() {
            self.hear(from, host, range, message);
        }
        self.delivers = false;
    }

    /// Handles a message of another server.
    fn hear(&mut self, from: Host, host: Host, range: RangeNumber, message: Message) {
        let Some(played) = self.servers.get(&host) else { return };
        let here = played.parts.get(&range).map_or(&[][..], |parts| parts);
        if self.loses_copies && matches!(message, Message::Store { .. }) {
            return;
        }
        if let Message::Store { page, pages, incarnation, .. } = message {
            match parts::may_keep(here, &(page..page + pages), incarnation) {
                Keeps::Yes => {}
                Keeps::No => return,
                Keeps::Ask => return self.ask(host, range),
            }
        }
        let is_part = range.is_part();
        if played.ranges.get(&range).is_some_and(|machine| is_part && !parts::is_credible(machine, &message)) {
            self.disbelieved += 1;
            return self.ask(host, range);
        }
        self.server(host, range, ServerInput::Message(Party::of(from), message));
    }

    fn server(&mut self, host: Host, range: RangeNumber, input: ServerInput) {
        let now = self.now;
        let Some(played) = self.servers.get_mut(&host) else { return };
        let spare_bytes = played.spare_bytes;
        let wants_back = played.wants_back.get(&range).copied();
        let Some(machine) = played.ranges.get_mut(&range) else { return };
        let (mut effects, pages) = (Vec::new(), machine.pages);
        machine.step(now, input, &mut effects);
        for effect in effects {
            let Effect::Send { to, message, .. } = effect else { continue };
            if self.cut.contains(&host) || self.cut.contains(&to.host) {
                continue;
            }
            match message {
                Message::Report { request, boot_id, state, call } => {
                    let requests = self.busy.get(&range).map_or(0, |per_second| per_second * now / 1_000_000_000);
                    let about = About {
                        pages,
                        requests,
                        spare_bytes,
                        term: self.timing.term,
                        home_lease: self.timing.home_lease,
                        wants_back,
                    };
                    let what = What::Report { request, boot_id, state, call, about };
                    self.fact(Fact::Control(host, ControlMessage { range, what }));
                }
                message => self.messages.push_back((host, to.host, range, message)),
            }
        }
        self.deliver();
    }

    fn order(&mut self, order: impl FnOnce(&mut Ranges, Nanoseconds, &mut Vec<Order>) -> Result<(), String>) {
        let mut orders = Vec::new();
        order(&mut self.ranges, self.now, &mut orders).expect("it can be");
        self.carry_out(orders);
    }

    fn range(&self, number: RangeNumber) -> RangeStatus {
        let status = self.ranges.status(self.now);
        status.ranges.into_iter().find(|range| range.range == number).expect("there is one")
    }

    fn has_said(&self, part: &str) -> bool {
        self.said.iter().any(|sentence| sentence.contains(part))
    }
}

#[test]
fn new_servers_have_ranges_and_backups() {
    let mut world = World::new(1);
    world.serve(Host(7), 100);
    world.run(100);
    let range = world.range(RangeNumber(7));
    assert_eq!((range.home, range.incarnation, range.is_served), (Host(7), 1, true), "one alone is home at once");
    assert!(range.backups.is_empty(), "nobody else is there");
    world.serve(Host(8), 100);
    world.serve(Host(9), 200);
    world.run(1_000);
    assert_eq!(world.range(RangeNumber(7)).complete, [Host(9)], "where most is spare");
    assert_eq!(world.range(RangeNumber(8)).complete, [Host(9)]);
    assert_eq!(world.range(RangeNumber(9)).complete.len(), 1);
    assert!(
        world.said.iter().any(|sentence| sentence.starts_with("range fd12:3456:7::/48: complete at fd12:3456:9::/48"))
    );
}

#[test]
fn a_copy_takes_as_much_room_as_its_range_has() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), PAGES));
    world.run(1_500);
    assert_eq!(
        (&world.range(RangeNumber(7)).complete[..], &world.range(RangeNumber(8)).complete[..]),
        (&[Host(8)][..], &[Host(7)][..])
    );
}

#[test]
fn a_home_that_is_gone_is_followed_by_its_backup_and_the_count_is_kept() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    let heir = world.range(RangeNumber(7)).complete[0];
    world.servers.remove(&Host(7));
    world.run(540);
    let range = world.range(RangeNumber(7));
    assert_eq!((range.home, range.is_served), (heir, true), "as soon as its right has ended");
    assert_eq!(world.routes[&RangeNumber(7)], heir);
    assert!(world.has_said("range fd12:3456:7::/48: nothing is heard of its home fd12:3456:7::/48 for 500ms"));
    world.run(5_000);
    assert_eq!(world.range(RangeNumber(7)).complete.len(), 1, "another has all of it");
    assert!(!world.range(RangeNumber(7)).backups.contains(&Host(7)));
    // It comes back without memory, and is a backup when one is needed.
    world.serve(Host(7), 100);
    let other = world.range(RangeNumber(7)).complete[0];
    world.run(1_000);
    world.servers.remove(&other);
    world.run(20_000);
    assert_eq!(
        world.range(RangeNumber(7)).complete,
        [if heir == other { Host(0) } else { Host(7) }],
        "{:?}",
        world.said
    );
}

#[test]
fn a_range_that_nobody_has_waits_for_the_operator_or_is_reset() {
    for backups in [0, 1] {
        let mut world = World::new(backups);
        world.serve(Host(7), 0);
        world.run(100);
        world.servers.remove(&Host(7));
        world.run(1_000);
        assert!(!world.range(RangeNumber(7)).is_served);
        assert!(world.has_said("range fd12:3456:7::/48: nobody answers for it; start its home"));
        world.serve(Host(7), 0);
        world.run(2_000);
        if backups == 1 {
            assert!(!world.range(RangeNumber(7)).is_served, "what it had may be wanted: {:?}", world.said);
            world.order(|ranges, now, orders| ranges.reset(now, RangeNumber(7), None, false, orders));
            world.run(100);
        }
        let range = world.range(RangeNumber(7));
        assert_eq!((range.is_served, range.home), (true, Host(7)), "{:?}", world.said);
        assert!(range.incarnation > 1, "no epoch of before counts");
        let refused = world.ranges.reset(world.now, RangeNumber(7), None, true, &mut Vec::new()).unwrap_err();
        assert!(refused.contains("serves it; nothing was reset"), "{refused}");
    }
}

#[test]
fn a_range_moves_and_a_server_is_drained() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), Host(8), orders));
    world.run(1_000);
    let range = world.range(RangeNumber(7));
    assert_eq!((range.home, range.complete.len(), world.routes[&RangeNumber(7)]), (Host(8), 1, Host(8)));
    world.order(|ranges, _, orders| ranges.drain(Host(8), true, 1, orders));
    world.run(3_000);
    for number in [7, 8, 9] {
        let range = world.range(RangeNumber(number));
        assert!(range.home != Host(8) && !range.backups.contains(&Host(8)), "{range:?}");
        assert_eq!((range.is_served, range.complete.len()), (true, 1));
    }
    assert!(world.has_said("server fd12:3456:8::/48: nothing is left on it"));
    world.restart_controller();
    world.run(1_000);
    let refused = world.ranges.move_range(world.now, RangeNumber(9), Host(8), &mut Vec::new()).unwrap_err();
    assert!(refused.contains("drain fd12:3456:8::/48 --cancel"), "it is known afterwards, too: {refused}");
    assert_eq!(
        world.ranges.places().iter().find(|place| place.number == RangeNumber(8)).map(|place| place.home),
        Some(world.range(RangeNumber(8)).home)
    );
}

#[test]
fn a_home_that_hands_over_is_followed_after_one_write() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    assert_eq!(world.range(RangeNumber(7)).complete, [Host(8)]);
    let before = world.writes;
    // The host has everything: one record says that it shall be home, one that it is, and with which boot id.
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), Host(8), orders));
    let deadline = world.now + 100 * MILLISECOND;
    while !world.servers[&Host(8)].ranges[&RangeNumber(7)].serves(world.now) {
        world.run(1);
        assert!(world.now < deadline, "{:?}", world.range(RangeNumber(7)));
    }
    assert_eq!((world.range(RangeNumber(7)).home, world.writes - before), (Host(8), 2));
}

#[test]
fn a_new_home_that_did_not_hear_of_it_is_called_again() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_000);
    world.loses = Some((Host(8), RangeNumber(7)));
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), Host(8), orders));
    world.run(3 * world.timing.retry / MILLISECOND);
    assert!(
        world.loses.is_none() && world.servers[&Host(8)].ranges[&RangeNumber(7)].serves(world.now),
        "{:?}",
        world.range(RangeNumber(7))
    );
}

#[test]
fn backups_are_as_the_operator_wants_them() {
    let mut world = World::new(0);
    [7, 8, 9, 10].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(500);
    assert!(world.range(RangeNumber(7)).backups.is_empty());
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), Some(Directive::Count(2)), 1, orders));
    world.run(1_000);
    assert_eq!(world.range(RangeNumber(7)).complete.len(), 2);
    world.order(|ranges, now, orders| {
        ranges.set_directive(now, RangeNumber(7), Some(Directive::Hosts(vec![Host(10)])), 2, orders)
    });
    world.restart_controller();
    world.run(2_000);
    assert_eq!(world.range(RangeNumber(7)).complete, [Host(10)], "the directive lasts");
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), None, 3, orders));
    world.run(1_000);
    assert!(world.range(RangeNumber(7)).backups.is_empty());
}

#[test]
fn a_controller_that_starts_again_waits_and_interrupts_nobody() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_000);
    for _ in 0..20 {
        let before = world.written.clone();
        world.restart_controller();
        world.run(37);
        assert_eq!(world.written, before);
        assert!(world.servers[&Host(7)].ranges[&RangeNumber(7)].serves(world.now), "it goes on");
    }
    world.servers.remove(&Host(7));
    world.run(100);
    world.restart_controller();
    world.run(480);
    assert_eq!(world.range(RangeNumber(7)).home, Host(7), "its right may not have ended");
    world.run(60);
    assert_eq!(world.range(RangeNumber(7)).home, Host(8));
}

#[test]
fn one_that_is_cut_off_is_never_home_beside_another() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    for round in 0..6 {
        let home = world.range(RangeNumber(7)).home;
        world.cut.insert(home);
        // `check` looks at every moment.
        world.run(700 + 100 * round);
        assert_ne!(world.range(RangeNumber(7)).home, home);
        world.cut.clear();
        world.run(3_000);
        let range = world.range(RangeNumber(7));
        assert_eq!((range.is_served, range.complete.len()), (true, 1), "{:?}", world.said);
    }
}

#[test]
fn a_server_that_is_drained_keeps_the_last_copy_until_another_can_have_it() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_000);
    world.order(|ranges, _, orders| ranges.drain(Host(8), true, 1, orders));
    world.run(5_000);
    for range in [7, 8] {
        let status = world.range(RangeNumber(range));
        assert_eq!(
            (status.home, &status.complete[..], status.lacks_room),
            (Host(7), &[Host(8)][..], true),
            "{status:?}"
        );
        let sentence =
            format!("range fd12:3456:{range}::/48: no server has room for what fd12:3456:8::/48 has to give away");
        assert_eq!(world.said.iter().filter(|said| said.starts_with(&sentence)).count(), 1, "{:?}", world.said);
    }
    world.serve(Host(9), 100);
    world.run(5_000);
    for range in [7, 8] {
        let status = world.range(RangeNumber(range));
        assert_eq!(
            (status.home, &status.complete[..], status.lacks_room),
            (Host(7), &[Host(9)][..], false),
            "{status:?}"
        );
    }
}

#[test]
fn what_shall_last_is_answered_when_it_is_written() {
    let mut world = World::new(0);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(500);
    let mut orders = Vec::new();
    world
        .ranges
        .set_directive(world.now, RangeNumber(7), Some(Directive::Count(0)), 41, &mut orders)
        .expect("it can be");
    // The same once more, while the first is not written.
    world
        .ranges
        .set_directive(world.now, RangeNumber(7), Some(Directive::Count(0)), 42, &mut orders)
        .expect("it can be");
    world.ranges.drain(Host(8), true, 43, &mut orders).expect("it can be");
    let tickets: Vec<u64> = orders
        .iter()
        .filter_map(|order| if let Order::Write(ticket, _) = order { Some(*ticket) } else { None })
        .collect();
    assert_eq!(tickets.len(), 2, "{orders:?}");
    assert!(!orders.iter().any(|order| matches!(order, Order::Answer(_))), "{orders:?}");
    for (ticket, expected) in tickets.into_iter().zip([vec![41, 42], vec![43]]) {
        let mut orders = Vec::new();
        world.ranges.step(world.now, Fact::Written(ticket), &mut orders);
        let answered: Vec<u64> = orders
            .iter()
            .filter_map(|order| if let Order::Answer(asked) = order { Some(*asked) } else { None })
            .collect();
        assert_eq!(answered, expected);
    }
}

#[test]
fn a_backup_that_nobody_has_room_for_is_said_once_and_shown() {
    let mut world = World::new(1);
    world.serve(Host(7), 100);
    world.serve(Host(8), 0);
    world.run(2_000);
    let lacking = |world: &World, range: &str| {
        let said = world.said.iter().filter(|sentence| {
            sentence.starts_with(&format!("range fd12:3456:{range}::/48: it shall have more than 0 backups"))
        });
        said.count()
    };
    assert!(
        world.range(RangeNumber(7)).lacks_room && lacking(&world, "7") == 0,
        "servers that start together are waited for"
    );
    assert!(!world.range(RangeNumber(8)).lacks_room, "7 has room for it");
    world.run(10_000);
    assert_eq!((lacking(&world, "7"), lacking(&world, "8")), (1, 0), "{:?}", world.said);
    world.order(|ranges, now, orders| {
        ranges.set_directive(now, RangeNumber(7), Some(Directive::Hosts(vec![Host(8)])), 1, orders)
    });
    world.serve(Host(9), 100);
    world.run(5_000);
    assert!(world.range(RangeNumber(7)).lacks_room, "9 was not in the directive");
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), None, 2, orders));
    world.run(1_000);
    let range = world.range(RangeNumber(7));
    assert_eq!((range.lacks_room, &range.complete[..]), (false, &[Host(9)][..]));
    world.order(|ranges, now, orders| {
        ranges.set_directive(now, RangeNumber(7), Some(Directive::Hosts(vec![Host(8)])), 3, orders)
    });
    world.run(4_000);
    assert!(world.has_said("range fd12:3456:7::/48: no backup is made at fd12:3456:8::/48, which have not the"));
}

#[test]
fn who_asks_any_server_is_sent_to_one_that_is_there() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_000);
    assert_eq!(world.anywhere, Some(Host(7)));
    world.cut.insert(Host(7));
    world.run(3_000);
    assert_eq!(world.anywhere, Some(Host(8)), "7 is gone, and its range is elsewhere");
    world.cut.remove(&Host(7));
    world.run(3_000);
    assert_eq!(world.anywhere, Some(Host(8)), "it stays as long as that one is there");
    world.order(|ranges, _, orders| ranges.drain(Host(8), true, 1, orders));
    world.run(3_000);
    assert_eq!(world.anywhere, Some(Host(9)), "7 is home of nothing yet, and everything leaves 8");
    world.anywhere = None;
    world.restart_controller();
    world.run(1_000);
    assert_eq!(world.anywhere, Some(Host(9)), "a controller that begins says it again");
}

#[test]
fn a_home_that_waits_for_an_answer_of_a_leader_that_is_gone_is_not_interrupted() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_000);
    for _ in 0..5 {
        // From when its right was renewed nobody leads for most of the term of a home lease: what it reports meanwhile
        // has no answer.
        let renewed =
            |world: &World| world.servers[&Host(7)].ranges[&RangeNumber(7)].serves(world.now + 495 * MILLISECOND);
        while !renewed(&world) {
            world.run(1);
        }
        world.cut = [Host(7), Host(8)].into();
        world.run(400);
        world.cut.clear();
        world.restart_controller();
        for _ in 0..200 {
            world.run(1);
            assert!(
                world.servers[&Host(7)].ranges[&RangeNumber(7)].serves(world.now),
                "at {} ms",
                world.now / MILLISECOND
            );
        }
    }
    assert_eq!(world.range(RangeNumber(7)).complete, [Host(8)]);
}
