//! All ranges with servers that are played by real machines, in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use trellis_protocol::lease::server::{Input as ServerInput, Server as Machine};
use trellis_protocol::lease::{Effect, Placement, State};
use trellis_protocol::wire::address::Cluster;

use super::*;

const MILLISECOND: Nanoseconds = 1_000_000;
const PAGES: u64 = 8;

/// A host: its machines, by range.
struct Played {
    ranges: BTreeMap<Host, Machine>,
    spare_bytes: u64,
}

/// Hosts, a controller, and what is written.
struct World {
    now: Nanoseconds,
    timing: Timing,
    ranges: Ranges,
    servers: BTreeMap<Host, Played>,
    /// Hosts that hear nothing and say nothing.
    cut: BTreeSet<Host>,
    /// How often a range was written.
    writes: usize,
    /// As the store has them.
    written: BTreeMap<Host, RangeRecord>,
    drained: BTreeMap<Host, ServerRecord>,
    routes: BTreeMap<Host, Host>,
    said: Vec<String>,
    /// Where requests for hot pages go, and until when.
    redirects: BTreeMap<(Host, u64), (Host, Nanoseconds)>,
    /// Who was told to follow which page, for how long, in this order.
    follows: Vec<(Host, u64, Nanoseconds)>,
    anywhere: Option<Host>,
    /// What was answered, of what was asked.
    answered: Vec<u64>,
    backups: u16,
    lives: u16,
    /// Requests that each home says it answered, for a range.
    busy: BTreeMap<Host, u64>,
}

fn settings(timing: Timing, backups: u16) -> Settings {
    let cluster = Cluster::new(0x12_3456).expect("a cluster");
    let me = HostPrefix { cluster, host: address::Host(200) };
    Settings { me, timing, backups, rebalances: false, hot_from: 1_000 }
}

impl World {
    fn new(backups: u16) -> World {
        let timing = Timing::new(2_000 * MILLISECOND, 500 * MILLISECOND, 20 * MILLISECOND, 1_000);
        World {
            now: 0,
            timing,
            ranges: Ranges::new(settings(timing, backups), Kept::default(), 0),
            servers: BTreeMap::new(),
            cut: BTreeSet::new(),
            writes: 0,
            written: BTreeMap::new(),
            drained: BTreeMap::new(),
            routes: BTreeMap::new(),
            said: Vec::new(),
            redirects: BTreeMap::new(),
            follows: Vec::new(),
            anywhere: None,
            answered: Vec::new(),
            backups,
            lives: 0,
            busy: BTreeMap::new(),
        }
    }

    /// A server begins, with nothing.
    fn serve(&mut self, host: Host, spare_pages: u64) {
        self.lives += 1;
        let own = self.machine(host, host, self.lives);
        let played = Played { ranges: [(host, own)].into(), spare_bytes: spare_pages * 4096 };
        self.servers.insert(host, played);
    }

    fn machine(&self, range: Host, host: Host, life: u16) -> Machine {
        let mut machine = Machine::new(host, Party::of(200), PAGES, self.timing, life, range);
        machine.memory.is_blank = true;
        machine.report_at = Some(self.now);
        machine
    }

    /// The controller is killed and starts again.
    fn restart_controller(&mut self) {
        let ranges = self.written.iter().map(|(number, record)| (*number, record.clone())).collect();
        let servers = self.drained.iter().map(|(host, record)| (*host, *record)).collect();
        self.ranges = Ranges::new(settings(self.timing, self.backups), Kept { ranges, servers }, self.now);
    }

    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += MILLISECOND;
            let mut orders = Vec::new();
            self.ranges.step(self.now, Fact::Tick, &mut orders);
            self.carry_out(orders);
            let hosts: Vec<Host> = self.servers.keys().copied().collect();
            for host in hosts {
                let numbers: Vec<Host> = self.servers[&host].ranges.keys().copied().collect();
                for number in numbers {
                    self.server(host, number, ServerInput::Tick);
                }
            }
            self.check();
        }
    }

    /// What holds at every moment.
    fn check(&self) {
        for number in self.written.keys() {
            let serving = |host: &&Host| {
                let played = &self.servers[*host];
                played.ranges.get(number).is_some_and(|machine| machine.serves(self.now))
            };
            let homes: Vec<&Host> = self.servers.keys().filter(serving).collect();
            assert!(homes.len() <= 1, "{homes:?} serve range {number} at {} ms", self.now / MILLISECOND);
            let record = &self.written[number];
            let copies: BTreeSet<&Host> = record.backups.iter().chain([&record.home]).collect();
            assert_eq!(copies.len(), record.backups.len() + 1, "one copy at a host: {record:?}");
        }
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Say(event) => self.said.push(event.to_string()),
                Order::Answer(asked) => self.answered.push(asked),
                Order::Write(ticket, write) => {
                    self.writes += 1;
                    match write {
                        Write::Range(number, record) => drop(self.written.insert(number, record)),
                        Write::Server(host, record) => drop(self.drained.insert(host, record)),
                    }
                    self.fact(Fact::Written(ticket));
                }
                Order::Route { ticket, range, home } => {
                    self.routes.insert(range, home);
                    self.fact(Fact::Routed(ticket));
                }
                Order::Redirect { page, to: Some((host, left)) } => {
                    self.redirects.insert(page, (host, self.now + left));
                }
                Order::Redirect { page, to: None } => drop(self.redirects.remove(&page)),
                Order::Anywhere(host) => self.anywhere = Some(host),
                Order::Tell(to, Told { what: What::Follow { page, lasts }, .. }) => {
                    self.follows.push((to, page, lasts));
                }
                Order::Tell(to, told) => self.tell(to, &told),
            }
        }
    }

    fn fact(&mut self, fact: Fact) {
        let mut orders = Vec::new();
        self.ranges.step(self.now, fact, &mut orders);
        self.carry_out(orders);
    }

    fn tell(&mut self, to: Host, told: &Told) {
        let What::Placed { request, life, placement, call, .. } = &told.what else { panic!("{told:?}") };
        let record = &self.written[&told.range];
        assert!(placement.incarnation <= record.incarnation, "it was written before: {placement:?} {record:?}");
        if placement.incarnation == record.incarnation {
            assert_eq!((placement.home, &placement.backups), (record.home, &record.backups), "as it was written");
        }
        if self.cut.contains(&to) || !self.servers.contains_key(&to) {
            return;
        }
        if !self.servers[&to].ranges.contains_key(&told.range) {
            self.lives += 1;
            let machine = self.machine(told.range, to, self.lives);
            let played = self.servers.get_mut(&to).expect("it is there");
            if played.spare_bytes < PAGES * 4096 {
                return;
            }
            played.spare_bytes -= PAGES * 4096;
            played.ranges.insert(told.range, machine);
        }
        let placement: Placement = placement.clone();
        let message = Message::Placed { request: *request, life: *life, placement, call: *call };
        self.server(to, told.range, ServerInput::Message(Party::of(200), message));
    }

    fn server(&mut self, host: Host, range: Host, input: ServerInput) {
        let now = self.now;
        let Some(played) = self.servers.get_mut(&host) else { return };
        let spare_bytes = played.spare_bytes;
        let Some(machine) = played.ranges.get_mut(&range) else { return };
        let mut effects = Vec::new();
        machine.step(now, input, &mut effects);
        for effect in effects {
            let Effect::Send { to, message, .. } = effect else { continue };
            if self.cut.contains(&host) || self.cut.contains(&to.host) {
                continue;
            }
            match message {
                Message::Report { request, life, state, call } => {
                    let requests = self.busy.get(&range).map_or(0, |per_second| per_second * now / 1_000_000_000);
                    let about = About {
                        pages: PAGES,
                        requests,
                        spare_bytes,
                        term: self.timing.term,
                        tenure: self.timing.tenure,
                    };
                    let what = What::Report { request, life, state, call, about };
                    self.fact(Fact::Told(host, Told { range, what }));
                }
                message => self.server(to.host, range, ServerInput::Message(Party::of(host), message)),
            }
        }
    }

    fn order(&mut self, order: impl FnOnce(&mut Ranges, Nanoseconds, &mut Vec<Order>) -> Result<(), String>) {
        let mut orders = Vec::new();
        order(&mut self.ranges, self.now, &mut orders).expect("it can be");
        self.carry_out(orders);
    }

    fn range(&self, number: Host) -> RangeStatus {
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
    world.serve(7, 100);
    world.run(100);
    let range = world.range(7);
    assert_eq!((range.home, range.incarnation, range.is_served), (7, 1, true), "one alone is home at once");
    assert!(range.backups.is_empty(), "nobody else is there");
    world.serve(8, 100);
    world.serve(9, 200);
    world.run(1_000);
    assert_eq!(world.range(7).complete, [9], "where most is spare");
    assert_eq!(world.range(8).complete, [9]);
    assert_eq!(world.range(9).complete.len(), 1);
    assert!(
        world.said.iter().any(|sentence| sentence.starts_with("range fd12:3456:7::/48: complete at fd12:3456:9::/48"))
    );
}

#[test]
fn a_copy_takes_as_much_room_as_its_range_has() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(host, PAGES));
    world.run(1_500);
    assert_eq!((&world.range(7).complete[..], &world.range(8).complete[..]), (&[8][..], &[7][..]));
}

#[test]
fn a_home_that_is_gone_is_followed_by_its_backup_and_the_count_is_kept() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_500);
    let heir = world.range(7).complete[0];
    world.servers.remove(&7);
    world.run(540);
    let range = world.range(7);
    assert_eq!((range.home, range.is_served), (heir, true), "as soon as its right has ended");
    assert_eq!(world.routes[&7], heir);
    assert!(world.has_said("range fd12:3456:7::/48: nothing is heard of its home fd12:3456:7::/48 for 500ms"));
    world.run(5_000);
    assert_eq!(world.range(7).complete.len(), 1, "another has all of it");
    assert!(!world.range(7).backups.contains(&7));
    // It comes back without memory, and is a backup when one is needed.
    world.serve(7, 100);
    let other = world.range(7).complete[0];
    world.run(1_000);
    world.servers.remove(&other);
    world.run(20_000);
    assert_eq!(world.range(7).complete, [if heir == other { 0 } else { 7 }], "{:?}", world.said);
}

#[test]
fn a_range_that_nobody_has_waits_for_the_operator_or_begins_anew() {
    for backups in [0, 1] {
        let mut world = World::new(backups);
        world.serve(7, 0);
        world.run(100);
        world.servers.remove(&7);
        world.run(1_000);
        assert!(!world.range(7).is_served);
        assert!(world.has_said("range fd12:3456:7::/48: nobody answers for it; start its home"));
        world.serve(7, 0);
        world.run(2_000);
        if backups == 1 {
            assert!(!world.range(7).is_served, "what it had may be wanted");
            world.order(|ranges, now, orders| ranges.reset(now, 7, None, false, orders));
            world.run(100);
        }
        let range = world.range(7);
        assert_eq!((range.is_served, range.home), (true, 7), "{:?}", world.said);
        assert!(range.incarnation > 1, "no epoch of before counts");
        let refused = world.ranges.reset(world.now, 7, None, true, &mut Vec::new()).unwrap_err();
        assert!(refused.contains("serves it; nothing was reset"), "{refused}");
    }
}

#[test]
fn a_range_moves_and_a_server_is_drained() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_500);
    world.order(|ranges, now, orders| ranges.move_range(now, 7, 8, orders));
    world.run(1_000);
    let range = world.range(7);
    assert_eq!((range.home, range.complete.len(), world.routes[&7]), (8, 1, 8));
    world.order(|ranges, _, orders| ranges.drain(8, true, 1, orders));
    world.run(3_000);
    for number in [7, 8, 9] {
        let range = world.range(number);
        assert!(range.home != 8 && !range.backups.contains(&8), "{range:?}");
        assert_eq!((range.is_served, range.complete.len()), (true, 1));
    }
    assert!(world.has_said("server fd12:3456:8::/48: nothing is left on it"));
    world.restart_controller();
    world.run(1_000);
    let refused = world.ranges.move_range(world.now, 9, 8, &mut Vec::new()).unwrap_err();
    assert!(refused.contains("drain fd12:3456:8::/48 --cancel"), "it is known afterwards, too: {refused}");
    assert_eq!(
        world.ranges.homes().iter().find(|(range, _)| *range == 8).map(|home| home.1),
        Some(world.range(8).home)
    );
}

#[test]
fn a_home_that_hands_over_is_followed_after_one_write() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_500);
    assert_eq!(world.range(7).complete, [8]);
    let before = world.writes;
    // The host has everything: one record says that it shall be home, one that it is, and in which life.
    world.order(|ranges, now, orders| ranges.move_range(now, 7, 8, orders));
    let deadline = world.now + 100 * MILLISECOND;
    while !world.servers[&8].ranges[&7].serves(world.now) {
        world.run(1);
        assert!(world.now < deadline, "{:?}", world.range(7));
    }
    assert_eq!((world.range(7).home, world.writes - before), (8, 2));
}

#[test]
fn backups_are_as_the_operator_wants_them() {
    let mut world = World::new(0);
    [7, 8, 9, 10].into_iter().for_each(|host| world.serve(host, 100));
    world.run(500);
    assert!(world.range(7).backups.is_empty());
    world.order(|ranges, now, orders| ranges.wish(now, 7, Some(Wish::Count(2)), 1, orders));
    world.run(1_000);
    assert_eq!(world.range(7).complete.len(), 2);
    world.order(|ranges, now, orders| ranges.wish(now, 7, Some(Wish::Hosts(vec![10])), 2, orders));
    world.restart_controller();
    world.run(2_000);
    assert_eq!(world.range(7).complete, [10], "the wish lasts");
    world.order(|ranges, now, orders| ranges.wish(now, 7, None, 3, orders));
    world.run(1_000);
    assert!(world.range(7).backups.is_empty());
}

#[test]
fn a_controller_that_starts_again_waits_and_interrupts_nobody() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_000);
    for _ in 0..20 {
        let before = world.written.clone();
        world.restart_controller();
        world.run(37);
        assert_eq!(world.written, before);
        assert!(world.servers[&7].ranges[&7].serves(world.now), "it goes on");
    }
    world.servers.remove(&7);
    world.run(100);
    world.restart_controller();
    world.run(480);
    assert_eq!(world.range(7).home, 7, "its right may not have ended");
    world.run(60);
    assert_eq!(world.range(7).home, 8);
}

#[test]
fn one_that_is_cut_off_is_never_home_beside_another() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_500);
    for round in 0..6 {
        let home = world.range(7).home;
        world.cut.insert(home);
        // `check` looks at every moment.
        world.run(700 + 100 * round);
        assert_ne!(world.range(7).home, home);
        world.cut.clear();
        world.run(3_000);
        let range = world.range(7);
        assert_eq!((range.is_served, range.complete.len()), (true, 1), "{:?}", world.said);
    }
}

#[test]
fn a_server_without_room_or_with_other_times_is_said() {
    let mut world = World::new(1);
    world.serve(7, 0);
    world.serve(8, 0);
    world.run(1_000);
    assert!(world.range(7).backups.is_empty() && world.range(8).backups.is_empty());
    let refused = world.ranges.move_range(world.now, 7, 8, &mut Vec::new()).unwrap_err();
    assert!(refused.contains("it has 0 bytes left"), "{refused}");
    let refused = world.ranges.move_range(world.now, 7, 99, &mut Vec::new()).unwrap_err();
    assert!(refused.contains("nothing is heard of it"), "{refused}");
    let about = About { pages: 1, term: 1, tenure: 2, ..About::default() };
    let what = What::Report { request: 1, life: 3, state: State::Blank, call: 0, about };
    world.fact(Fact::Told(99, Told { range: 99, what }));
    assert!(world.has_said("server fd12:3456:63::/48 has leases of 1ns and a tenure of 2ns"));
    assert!(!world.written.contains_key(&99));
}

#[test]
fn the_busiest_server_gives_something_away() {
    let mut world = World::new(0);
    [7, 8].into_iter().for_each(|host| world.serve(host, 100));
    world.run(500);
    world.order(|ranges, now, orders| ranges.move_range(now, 8, 7, orders));
    world.run(500);
    assert_eq!(world.range(8).home, 7);
    assert_eq!(world.ranges.rebalancing(), None, "nobody is busy");
    world.busy = [(7, 9_000), (8, 6_000)].into();
    world.run(3_000);
    let (range, to) = world.ranges.rebalancing().expect("one is busy and the other is not");
    assert_eq!(to, 8);
    world.order(|ranges, now, orders| ranges.move_range(now, range, to, orders));
    world.run(3_000);
    assert_eq!(world.ranges.rebalancing(), None, "that is as good as it gets");
}

#[test]
fn what_shall_last_is_answered_when_it_is_written() {
    let mut world = World::new(0);
    [7, 8].into_iter().for_each(|host| world.serve(host, 100));
    world.run(500);
    let mut orders = Vec::new();
    world.ranges.wish(world.now, 7, Some(Wish::Count(0)), 41, &mut orders).expect("it can be");
    // The same once more, while the first is not written.
    world.ranges.wish(world.now, 7, Some(Wish::Count(0)), 42, &mut orders).expect("it can be");
    world.ranges.drain(8, true, 43, &mut orders).expect("it can be");
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
    world.serve(7, 100);
    world.serve(8, 0);
    world.run(2_000);
    let lacking = |world: &World, range: &str| {
        let said = world.said.iter().filter(|sentence| {
            sentence.starts_with(&format!("range fd12:3456:{range}::/48: it shall have more than 0 backups"))
        });
        said.count()
    };
    assert!(world.range(7).lacks_room && lacking(&world, "7") == 0, "servers that start together are waited for");
    assert!(!world.range(8).lacks_room, "7 has room for it");
    world.run(10_000);
    assert_eq!((lacking(&world, "7"), lacking(&world, "8")), (1, 0), "{:?}", world.said);
    world.order(|ranges, now, orders| ranges.wish(now, 7, Some(Wish::Hosts(vec![8])), 1, orders));
    world.serve(9, 100);
    world.run(5_000);
    assert!(world.range(7).lacks_room, "9 was not wished for");
    world.order(|ranges, now, orders| ranges.wish(now, 7, None, 2, orders));
    world.run(1_000);
    let range = world.range(7);
    assert_eq!((range.lacks_room, &range.complete[..]), (false, &[9][..]));
    world.order(|ranges, now, orders| ranges.wish(now, 7, Some(Wish::Hosts(vec![8])), 3, orders));
    world.run(4_000);
    assert!(world.has_said("range fd12:3456:7::/48: no backup is made at fd12:3456:8::/48, which have not the"));
}

#[test]
fn who_asks_any_server_is_sent_to_one_that_is_there() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_000);
    assert_eq!(world.anywhere, Some(7));
    world.cut.insert(7);
    world.run(3_000);
    assert_eq!(world.anywhere, Some(8), "7 is gone, and its range is elsewhere");
    world.cut.remove(&7);
    world.run(3_000);
    assert_eq!(world.anywhere, Some(8), "it stays as long as that one is there");
    world.order(|ranges, _, orders| ranges.drain(8, true, 1, orders));
    world.run(3_000);
    assert_eq!(world.anywhere, Some(9), "7 is home of nothing yet, and everything leaves 8");
    world.anywhere = None;
    world.restart_controller();
    world.run(1_000);
    assert_eq!(world.anywhere, Some(9), "a controller that begins says it again");
}

impl World {
    /// A server says what it has of a page of range 7.
    fn followed(&mut self, from: Host, page: u64, left: Nanoseconds, answered: u64) {
        let told = Told { range: 7, what: What::Followed { page, left, answered } };
        self.fact(Fact::Told(from, told));
    }

    /// Three servers, and page 3 of range 7 is hot: who was told to follow it.
    fn with_a_hot_page() -> (World, Host) {
        let mut world = World::new(0);
        [7, 8, 9].into_iter().for_each(|host| world.serve(host, 100));
        world.run(1_000);
        world.fact(Fact::Hot(vec![((7, 3), 1_000), ((7, 4), 999), ((77, 1), 5_000)]));
        let term = world.timing.term;
        assert_eq!(world.follows, [(8, 3, term)], "page 4 is not hot enough, and nobody knows range 77");
        (world, 8)
    }
}

#[test]
fn a_hot_page_is_answered_elsewhere_only_while_there_is_a_copy() {
    let (mut world, host) = World::with_a_hot_page();
    world.followed(host, 3, 0, 0);
    assert!(world.redirects.is_empty(), "it has none yet");
    world.followed(9, 3, 1_000 * MILLISECOND, 0);
    assert!(world.redirects.is_empty() && world.follows.last() == Some(&(9, 3, 0)), "9 was not asked");
    world.followed(host, 3, 1_500 * MILLISECOND, 0);
    assert_eq!(world.redirects[&(7, 3)], (host, world.now + 1_500 * MILLISECOND));
    assert!(
        world.has_said("range fd12:3456:7::/48: page 3 is asked for 1000 times a second; fd12:3456:8::/48 answers")
    );
    let before = world.follows.len();
    world.run(1_000);
    let told = world.follows.len() - before;
    assert!((3..=5).contains(&told), "it is told again before it forgets: {told}");
    world.fact(Fact::Hot(vec![((7, 3), 500)]));
    assert!(world.redirects.contains_key(&(7, 3)), "it is warm");
    world.followed(host, 3, 1_500 * MILLISECOND, 42);
    world.fact(Fact::Hot(vec![((7, 3), 499)]));
    assert!(world.redirects.is_empty() && world.follows.last() == Some(&(host, 3, 0)), "it is cold");
    assert!(world.has_said("fd12:3456:8::/48 answered 42 READs"));
    world.fact(Fact::Hot(vec![((7, 3), 1_000)]));
    assert_ne!(world.follows.last(), Some(&(host, 3, 0)), "it may be hot again at once");
}

#[test]
fn a_hot_page_that_changes_is_left_alone() {
    let (mut world, host) = World::with_a_hot_page();
    world.followed(host, 3, 1_500 * MILLISECOND, 0);
    world.followed(host, 3, 0, 7);
    assert!(world.redirects.is_empty() && world.follows.last() == Some(&(host, 3, 0)));
    let before = world.follows.len();
    world.run(9_000);
    world.fact(Fact::Hot(vec![((7, 3), 9_000)]));
    assert_eq!(world.follows.len(), before, "each change would wait for the copy");
    world.run(1_500);
    world.fact(Fact::Hot(vec![((7, 3), 9_000)]));
    assert_eq!(world.follows.len(), before + 1);
}

#[test]
fn a_replica_that_is_gone_is_asked_no_more() {
    let (mut world, host) = World::with_a_hot_page();
    world.followed(host, 3, 1_500 * MILLISECOND, 0);
    world.cut.insert(host);
    world.run(1_500);
    assert!(world.redirects.is_empty(), "{:?}", world.redirects);
    world.fact(Fact::Hot(vec![((7, 3), 1_000)]));
    assert_eq!(world.follows.last(), Some(&(9, 3, world.timing.term)), "another one does it");
    // Who becomes home of the range answers for all of it.
    world.followed(9, 3, 1_500 * MILLISECOND, 0);
    world.order(|ranges, now, orders| ranges.move_range(now, 7, 9, orders));
    world.run(2_000);
    assert_eq!((world.range(7).home, world.redirects.len()), (9, 0));
}

#[test]
fn a_home_that_waits_for_an_answer_of_a_leader_that_is_gone_is_not_interrupted() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_000);
    for _ in 0..5 {
        // From when its right was renewed nobody leads for most of a tenure: what it reports meanwhile has no answer.
        let renewed = |world: &World| world.servers[&7].ranges[&7].serves(world.now + 495 * MILLISECOND);
        while !renewed(&world) {
            world.run(1);
        }
        world.cut = [7, 8].into();
        world.run(400);
        world.cut.clear();
        world.restart_controller();
        for _ in 0..200 {
            world.run(1);
            assert!(world.servers[&7].ranges[&7].serves(world.now), "at {} ms", world.now / MILLISECOND);
        }
    }
    assert_eq!(world.range(7).complete, [8]);
}

#[test]
fn a_replica_that_answers_little_is_given_up() {
    let (mut world, host) = World::with_a_hot_page();
    let term = world.timing.term;
    world.followed(host, 3, term, 0);
    for second in 1..=3 {
        world.fact(Fact::Hot(vec![((7, 3), 4_000)]));
        world.followed(host, 3, term, second * 1_000);
        assert!(world.redirects.contains_key(&(7, 3)), "a quarter is enough, and the first count saw none");
    }
    for _ in 0..4 {
        assert!(world.redirects.contains_key(&(7, 3)), "little is not enough three times in turn");
        world.followed(host, 3, term, 3_500);
        world.fact(Fact::Hot(vec![((7, 3), 4_000)]));
    }
    assert!(world.redirects.is_empty() && world.has_said("because what is asked for is not what a copy answers"));
    let before = world.follows.len();
    world.fact(Fact::Hot(vec![((7, 3), 4_000)]));
    assert_eq!(world.follows.len(), before, "it is left alone");
}
