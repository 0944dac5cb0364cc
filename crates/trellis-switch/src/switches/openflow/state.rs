//! The controller's state, and the flows that the switch was sent. It must never send anything itself: it returns the
//! messages.
//!
//! Prefixes, rules and similar entries become flows here. The directory handles leases: it decides about those packets
//! that were sent to the controller, and its state of a page afterwards becomes flows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::net::Ipv6Addr;
use std::time::Duration;

use super::codec::{Action, Body, NO_BUFFER, PacketIn, PacketOut};
use super::pipeline::{self, Flow, HomeView, Plugs, Reason, Shown, Wanted};
use crate::address::{Classes, Cluster, Page, PageRange, Prefix};
use crate::entries::Route;
use crate::layout;
use crate::observed::Counters;
use crate::switches::directory::Directory;

/// The place of the addresses in a frame.
const SOURCE_AT: usize = 22;
const DESTINATION_AT: usize = 38;
/// The maximum time after which a flow can end automatically.
const TIMEOUT_SECONDS_MAX: u64 = 65_535;
/// What a directory counts of packets that were only reported: these did not wait for its decision.
const COUNTED_WHEN_HEARD: [usize; 1] = [layout::COUNT_EVENTS_LOST];

/// An entry that has flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    Frame,
    Home(u16),
    Range(PageRange),
    Rules,
    Loss,
    Leases,
    Counting,
}

/// The whole state.
pub(super) struct State {
    cluster: Cluster,
    pub(super) directory: Directory,
    pub(super) plugs: Plugs,
    numbers: HashMap<u32, u16>,
    pub(super) routes: BTreeMap<Prefix, Route>,
    pub(super) groups: HashMap<u16, (Classes, Vec<u16>)>,
    pub(super) rules: Option<HashMap<u32, u16>>,
    pub(super) grants: bool,
    pub(super) is_lost: bool,
    /// Pages for which a flow counts, with what was counted here; and the maximum number of them.
    pub(super) counted: HashMap<u64, u64>,
    counted_max: usize,
    /// The results of packets that were sent to the controller.
    decided: HashMap<u16, [u64; layout::COUNTERS]>,
    shown: BTreeMap<Unit, Wanted>,
    pages: HashMap<u64, Shown>,
    /// The ends of redirects, earliest first; some redirects have been replaced since.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    connection_number: u64,
}

impl State {
    pub(super) fn new(cluster: Cluster, plugs: Plugs, redirects_max: u32, counted_max: usize) -> State {
        State {
            cluster,
            directory: Directory::new(cluster, plugs.keys().copied(), redirects_max),
            numbers: plugs.iter().map(|(&port, plug)| (plug.number, port)).collect(),
            plugs,
            routes: BTreeMap::new(),
            groups: HashMap::new(),
            rules: None,
            grants: false,
            is_lost: false,
            counted: HashMap::new(),
            counted_max,
            decided: HashMap::new(),
            shown: BTreeMap::new(),
            pages: HashMap::new(),
            ends: BinaryHeap::new(),
            connection_number: 0,
        }
    }

    fn wanted(&self, unit: Unit) -> Wanted {
        match unit {
            Unit::Frame => pipeline::frame(self.cluster, &self.plugs),
            Unit::Home(number) => pipeline::of_home(self.cluster, &self.plugs, &self.home(number)),
            Unit::Range(range) => match self.directory.port_of_range(range) {
                Some(port) => pipeline::of_range(self.cluster, &self.plugs, range, port, self.is_memory(range.home())),
                None => Wanted::default(),
            },
            Unit::Rules => pipeline::of_rules(self.cluster, self.rules.as_ref()),
            Unit::Loss => pipeline::of_loss(self.is_lost),
            Unit::Leases => pipeline::of_leases(self.grants),
            Unit::Counting => pipeline::of_counting(self.counted.len() < self.counted_max),
        }
    }

    fn home(&self, number: u16) -> HomeView<'_> {
        let first = Prefix::host(self.cluster, number);
        let routes = self.routes.range(first..).take_while(|(prefix, _)| prefix.home() == number);
        let group = self.groups.get(&number).map(|(classes, ports)| (*classes, ports.as_slice()));
        HomeView { number, routes: routes.map(|(prefix, route)| (*prefix, *route)).collect(), group }
    }

    /// The route of a whole home.
    pub(super) fn home_route(&self, number: u16) -> Option<Route> {
        self.routes.get(&Prefix::host(self.cluster, number)).copied()
    }

    /// Whether a whole home is memory, so that other hosts may answer for its pages.
    fn is_memory(&self, number: u16) -> bool {
        self.home_route(number).is_some_and(|route| route.is_memory)
    }

    /// The messages after which the switch has the wanted flows of an entry.
    pub(super) fn show(&mut self, unit: Unit, bodies: &mut Vec<Body>) {
        let wanted = self.wanted(unit);
        let before = self.shown.remove(&unit).unwrap_or_default();
        bodies.extend(pipeline::difference(&before, &wanted, self.connection_number));
        match wanted == Wanted::default() {
            true => None,
            false => self.shown.insert(unit, wanted),
        };
    }

    /// Like [`State::show`], for a home, its page ranges and the redirects of its pages.
    pub(super) fn show_home(&mut self, number: u16, bodies: &mut Vec<Body>, tick: u64) {
        self.show(Unit::Home(number), bodies);
        self.directory.page_routes(number).into_iter().for_each(|(range, _)| self.show(Unit::Range(range), bodies));
        self.show_pages(|page| page.home == number, bodies, tick);
    }

    /// Like [`State::show`], for a page range and the redirects of its pages.
    pub(super) fn show_range(&mut self, range: PageRange, bodies: &mut Vec<Body>, tick: u64) {
        self.show(Unit::Range(range), bodies);
        self.show_pages(|page| range.has(page), bodies, tick);
    }

    /// Like [`State::show`], for the redirects of some pages.
    fn show_pages(&mut self, which: impl Fn(Page) -> bool, bodies: &mut Vec<Body>, tick: u64) {
        let pages: Vec<Page> = self.pages.keys().map(|&key| Page::from_key(key)).filter(|&page| which(page)).collect();
        pages.into_iter().for_each(|page| self.show_page(page, bodies, tick));
    }

    /// Like [`State::show`], after a change that concerns all ports.
    pub(super) fn show_ports(&mut self, bodies: &mut Vec<Body>) {
        self.show(Unit::Frame, bodies);
        let homes: Vec<u16> = self.groups.keys().copied().collect();
        homes.into_iter().for_each(|home| self.show(Unit::Home(home), bodies));
    }

    /// Like [`State::show`], for the redirect of a page.
    pub(super) fn show_page(&mut self, page: Page, bodies: &mut Vec<Body>, tick: u64) {
        let key = page.key();
        let home_port = self.directory.run_of(page).or(self.home_route(page.home).map(|route| route.port));
        // Ended redirects stay until they are met by a request.
        let shown = self.directory.redirect(page, 0).map(|entry| Shown {
            port: entry.port,
            until: entry.until,
            is_ended: entry.until <= tick,
            home_port,
            is_memory: self.is_memory(page.home),
        });
        let before = self.pages.get(&key).copied();
        if shown == before {
            return;
        }
        let flows = |shown: Option<Shown>| match shown {
            Some(shown) => {
                pipeline::of_redirect(self.cluster, &self.plugs, page, shown, seconds_left(shown.until, tick))
            }
            None => Wanted::default(),
        };
        // The present flows end at another time, so that all are sent again.
        let old = flows(before).outdated();
        bodies.extend(pipeline::difference(&old, &flows(shown), self.connection_number));
        match shown {
            Some(shown) => {
                self.pages.insert(key, shown);
                if !shown.is_ended && shown.until != layout::TICKS_FOREVER {
                    self.ends.push(Reverse((shown.until, key)));
                }
            }
            None => drop(self.pages.remove(&key)),
        }
    }

    /// Like [`State::show`], for all redirects that the directory has removed.
    pub(super) fn show_swept(&mut self, bodies: &mut Vec<Body>, tick: u64) {
        let ended: Vec<u64> = self.pages.iter().filter(|(_, shown)| shown.until <= tick).map(|(&key, _)| key).collect();
        ended.into_iter().for_each(|key| self.show_page(Page::from_key(key), bodies, tick));
    }

    /// Like [`State::show`], for the redirect of a page, and for those that were removed to make room for it.
    pub(super) fn show_entered(&mut self, page: Page, bodies: &mut Vec<Body>, tick: u64) {
        if self.directory.take_has_made_room() {
            self.show_swept(bodies, tick);
        }
        self.show_page(page, bodies, tick);
    }

    /// Everything, for a switch whose state is unknown.
    pub(super) fn show_all(&mut self, tick: u64) -> Vec<Body> {
        self.connection_number += 1;
        let mut bodies = Vec::new();
        if self.connection_number == 1 {
            bodies.extend(pipeline::nothing());
            bodies.push(Body::BarrierRequest);
        }
        self.shown.clear();
        let mut units: BTreeSet<Unit> =
            [Unit::Frame, Unit::Rules, Unit::Loss, Unit::Leases, Unit::Counting].into_iter().collect();
        units.extend(self.routes.keys().map(|prefix| Unit::Home(prefix.home())));
        units.extend(self.groups.keys().map(|&home| Unit::Home(home)));
        units.extend(self.directory.all_runs().map(Unit::Range));
        units.into_iter().for_each(|unit| self.show(unit, &mut bodies));
        let counted = self.counted.keys().map(|&key| pipeline::counted(self.cluster, Page::from_key(key)));
        bodies.extend(counted.map(|flow: Flow| flow.add(self.connection_number)));
        let pages: Vec<u64> = self.pages.drain().map(|(key, _)| key).collect();
        pages.into_iter().for_each(|key| self.show_page(Page::from_key(key), &mut bodies, tick));
        bodies.push(Body::BarrierRequest);
        bodies.extend(pipeline::nothing_stale(self.connection_number));
        bodies
    }

    /// The number of the current connection.
    pub(super) fn connection_number(&self) -> u64 {
        self.connection_number
    }

    /// Ends what has ended; returns when the next one does.
    pub(super) fn due(&mut self, tick: u64, bodies: &mut Vec<Body>) -> Option<Duration> {
        while let Some(&Reverse((until, key))) = self.ends.peek() {
            if until > tick {
                return Some(Duration::from_nanos((until - tick) << layout::TICK_SHIFT));
            }
            self.ends.pop();
            self.show_page(Page::from_key(key), bodies, tick);
        }
        None
    }

    /// A flow of a redirect ended by itself: either the redirect has ended, or it lasts longer than flows can.
    pub(super) fn redirect_ended(&mut self, page: Page, bodies: &mut Vec<Body>, tick: u64) {
        if self.pages.get(&page.key()).is_some_and(|shown| !shown.is_ended) {
            self.pages.remove(&page.key());
            self.show_page(page, bodies, tick);
        }
    }

    /// Handles a packet that was sent to the controller.
    pub(super) fn packet(&mut self, packet: &PacketIn, now_ns: u64) -> Vec<Body> {
        let port = packet.in_port().and_then(|number| Some((number, *self.numbers.get(&number)?)));
        let addresses = (address_at(&packet.data, SOURCE_AT), address_at(&packet.data, DESTINATION_AT));
        let (Some((number, port)), (Some(source), Some(destination))) = (port, addresses) else { return Vec::new() };
        let tick = now_ns >> layout::TICK_SHIFT;
        let mut bodies = Vec::new();
        let is_whole = packet.data.len() >= usize::from(packet.bytes);
        match Reason::of(packet.cookie) {
            // The rest of an incomplete packet could not be forwarded.
            Some(Reason::Lease) if !is_whole => {}
            Some(Reason::Lease) => {
                let before = self.directory.counters(port).values();
                let verdict = self.directory.decide(port, &packet.data, now_ns, || self.is_lost);
                self.note(port, &before, None);
                self.show_entered(Page::of(destination), &mut bodies, tick);
                if !bodies.is_empty() {
                    bodies.push(Body::BarrierRequest);
                }
                let leaves = verdict.copies.iter().chain(&verdict.out);
                let plugs = leaves.filter_map(|port| self.plugs.get(port));
                let actions: Vec<Action> = plugs.flat_map(|plug| pipeline::out_actions(plug, number)).collect();
                if !actions.is_empty() {
                    let data = packet.data.clone();
                    bodies.push(Body::PacketOut(PacketOut { buffer: NO_BUFFER, in_port: number, actions, data }));
                }
            }
            Some(Reason::Observed) => {
                let before = self.directory.counters(port).values();
                self.directory.decide(port, &packet.data, now_ns, || false);
                self.note(port, &before, Some(&COUNTED_WHEN_HEARD));
                for page in BTreeSet::from([Page::of(source), Page::of(destination)]) {
                    self.show_entered(page, &mut bodies, tick);
                }
            }
            Some(Reason::HotMiss) => self.count_hot(Page::of(destination), &mut bodies),
            None => {}
        }
        bodies
    }

    fn count_hot(&mut self, page: Page, bodies: &mut Vec<Body>) {
        if let Some(count) = self.counted.get_mut(&page.key()) {
            *count += 1;
        } else if self.counted.len() < self.counted_max {
            self.counted.insert(page.key(), 1);
            bodies.push(pipeline::counted(self.cluster, page).add(self.connection_number));
            if self.counted.len() == self.counted_max {
                self.show(Unit::Counting, bodies);
            }
        }
    }

    /// Adds what the directory has counted since `before`, for all or for these counters.
    fn note(&mut self, port: u16, before: &[u64; layout::COUNTERS], which: Option<&[usize]>) {
        let after = self.directory.counters(port).values();
        let counts = self.decided.entry(port).or_insert([0; layout::COUNTERS]);
        // The port itself counts bytes and outgoing packets.
        for index in (0..layout::COUNT_BYTES_IN).filter(|index| which.is_none_or(|which| which.contains(index))) {
            counts[index] += after[index] - before[index];
        }
    }

    /// The results of packets that were sent to the controller.
    pub(super) fn decided(&self, port: u16) -> Counters {
        Counters::from_values(self.decided.get(&port).unwrap_or(&[0; layout::COUNTERS]))
    }

    /// Restarts the counting of pages.
    pub(super) fn recount(&mut self, bodies: &mut Vec<Body>) {
        self.counted.clear();
        self.directory.take_hot();
        bodies.push(pipeline::none_counted());
        self.show(Unit::Counting, bodies);
    }
}

fn address_at(frame: &[u8], at: usize) -> Option<Ipv6Addr> {
    let bytes: [u8; layout::ADDRESS_BYTES] = frame.get(at..)?.first_chunk().copied()?;
    Some(bytes.into())
}

/// After how many whole seconds a flow ends automatically: not before the redirect does. 0 for a permanent one.
fn seconds_left(until: u64, tick: u64) -> u16 {
    if until == layout::TICKS_FOREVER {
        return 0;
    }
    let left = Duration::from_nanos(until.saturating_sub(tick) << layout::TICK_SHIFT);
    left.as_nanos().div_ceil(1_000_000_000).clamp(1, TIMEOUT_SECONDS_MAX.into()) as u16
}

#[cfg(test)]
mod tests {
    use super::super::pipeline::Plug;
    use super::*;
    use crate::switches::directory::Entry;

    const CLUSTER: Cluster = Cluster::new(1);
    const PAGE: Page = Page { home: 0x1001, number: 5 };

    fn seconds(seconds: u64) -> u64 {
        (seconds * 1_000_000_000).div_ceil(1 << layout::TICK_SHIFT)
    }

    fn timeouts(bodies: &[Body]) -> Vec<u16> {
        let timeout = |body: &Body| match body {
            Body::FlowMod(change) => Some(change.hard_timeout),
            _ => None,
        };
        bodies.iter().filter_map(timeout).collect()
    }

    fn state() -> State {
        let plugs = (1..=3).map(|port| (port, Plug { number: port.into(), mac: [2; 6], side: 0 }));
        let mut state = State::new(CLUSTER, plugs.collect(), 16, 2);
        state.routes.insert(Prefix::host(CLUSTER, PAGE.home), Route { port: 1, is_memory: true });
        state
    }

    #[test]
    fn flows_end_in_whole_seconds_and_not_before_the_redirect() {
        assert_eq!(seconds_left(layout::TICKS_FOREVER, 7), 0);
        assert_eq!(seconds_left(8, 7), 1);
        assert_eq!(seconds_left(7, 8), 1);
        assert_eq!(
            (seconds_left(seconds(2), 0), seconds_left(seconds(2) - 1, 0)),
            (3, 2),
            "a tick more is a second more"
        );
        assert_eq!(seconds_left(seconds(1_000_000), 0), 65_535);
    }

    #[test]
    fn a_redirect_that_lasts_longer_than_flows_can_is_said_again() {
        let mut state = state();
        let entry = Entry { port: 2, until: seconds(100_000), epoch: 1, is_ending: false };
        assert_eq!(state.directory.set_redirect(PAGE, entry, 0), Some(true));
        let mut bodies = Vec::new();
        state.show_page(PAGE, &mut bodies, 0);
        assert_eq!(timeouts(&bodies), [65_535; 3]);
        bodies.clear();
        state.show_page(PAGE, &mut bodies, 0);
        assert_eq!(bodies, [], "nothing has changed");
        state.redirect_ended(PAGE, &mut bodies, seconds(65_535));
        assert_eq!(timeouts(&bodies), [34_465; 3]);
    }

    #[test]
    fn a_redirect_ends_at_its_moment_and_waits_for_whom_it_concerns() {
        let mut state = state();
        let entry = Entry { port: 2, until: 50, epoch: 1, is_ending: false };
        state.directory.set_redirect(PAGE, entry, 0);
        let mut bodies = Vec::new();
        state.show_page(PAGE, &mut bodies, 0);
        assert_eq!(state.due(20, &mut bodies), Some(Duration::from_nanos(30 << layout::TICK_SHIFT)));
        assert_eq!(bodies.len(), 3);
        bodies.clear();
        assert_eq!(state.due(50, &mut bodies), None);
        // One flow that reports the next request, in place of three.
        assert_eq!((bodies.len(), timeouts(&bodies)[0]), (4, 0));
        bodies.clear();
        assert_eq!(state.directory.sweep(50), 1);
        state.show_swept(&mut bodies, 50);
        assert_eq!(bodies.len(), 1);
    }

    #[test]
    fn a_run_is_five_flows_and_concerns_the_redirects_of_its_pages() {
        let mut state = state();
        let entry = Entry { port: 2, until: layout::TICKS_FOREVER, epoch: 1, is_ending: false };
        state.directory.set_redirect(PAGE, entry, 0);
        state.show_page(PAGE, &mut Vec::new(), 0);
        let sent = |state: &mut State, first| {
            let range = PageRange::new(PAGE.home, first, 2).unwrap();
            state.directory.set_page_route(range, 2);
            let mut bodies = Vec::new();
            state.show_range(range, &mut bodies, 0);
            bodies.len()
        };
        assert_eq!(sent(&mut state, 8), 5, "none of its pages is redirected");
        // The redirect now leads to the home, so all of its flows are sent.
        assert_eq!((sent(&mut state, 4), sent(&mut state, 4)), (5 + 3, 0));
        let range = PageRange::new(PAGE.home, 4, 2).unwrap();
        assert!(state.directory.drop_page_route(range));
        let mut bodies = Vec::new();
        state.show_range(range, &mut bodies, 0);
        assert_eq!(bodies.len(), 5 + 3);
    }

    #[test]
    fn pages_are_counted_until_there_is_no_room() {
        let mut state = state();
        let mut bodies = Vec::new();
        state.show(Unit::Counting, &mut bodies);
        assert_eq!(bodies.len(), 1);
        let mut count = |number| {
            let mut bodies = Vec::new();
            state.count_hot(Page { home: 1, number }, &mut bodies);
            bodies.len()
        };
        assert_eq!(
            [count(1), count(1), count(2), count(3)],
            [1, 0, 2, 0],
            "the last one takes the flow away that tells"
        );
    }
}
