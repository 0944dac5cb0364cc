//! The state of a switch, and its decisions about packets. It must never read a clock or send anything: time is an
//! argument.
//!
//! Promises the steps of the contract (`Switch`), in its order. `switch/switch.bpf.c` takes the same ones. The switch
//! `user` uses it for every packet; a switch whose tables are elsewhere uses it for those packets that change leases.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::address::{self, Classes, Cluster, Page, PageRange, Prefix};
use crate::entries::{Group, PAGE_ROUTES_MAX, Route};
use crate::layout;
use crate::observed::{Counters, Event, EventKind};
use crate::switches::page_routes::PageRoutes;

/// Ethernet and IPv6.
const FRAME_BYTES: usize = 54;
const ETHERNET_IPV6: [u8; 2] = [0x86, 0xdd];
const TYPE_AT: usize = 12;
const NEXT_HEADER_AT: usize = 20;
const SOURCE_AT: usize = 22;
const DESTINATION_AT: usize = 38;
const NEXT_UDP: u8 = 17;
const NEXT_FRAGMENT: u8 = 44;
const UDP_BYTES: usize = 8;
const FRAGMENT_BYTES: usize = 8;
/// The maximum number of events that wait to be fetched.
const EVENTS_MAX: usize = layout::EVENTS_BYTES as usize / layout::EVENT_BYTES;
/// The minimum interval, in ticks, between two searches of a full table on behalf of packets: 17 ms, because the table
/// may be large.
const SWEEP_TICKS: u64 = 256;

/// The destination of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::switches) struct Verdict {
    /// The port that gets it.
    pub(in crate::switches) out: Option<u16>,
    /// The ports that get a copy.
    pub(in crate::switches) copies: Vec<u16>,
}

/// A redirect in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switches) struct Entry {
    pub(in crate::switches) port: u16,
    /// The first tick at which it has ended.
    pub(in crate::switches) until: u64,
    pub(in crate::switches) epoch: u64,
    /// Whether its owner has sent a COMMIT that returns it, which the home has not answered yet.
    pub(in crate::switches) is_ending: bool,
}

/// The state of a host's prefix.
#[derive(Default)]
struct Home {
    route: Option<Route>,
    /// Longer prefixes, longest first.
    longer: Vec<(Prefix, Route)>,
    page_routes: PageRoutes,
    group: Option<(Classes, Vec<u16>)>,
}

/// The state of a port.
#[derive(Default)]
struct Plugged {
    side: u32,
    counters: Counters,
}

/// The current packet.
struct Packet<'a> {
    in_port: u16,
    frame: &'a [u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    now_ns: u64,
    tick: u64,
}

/// All tables.
pub(in crate::switches) struct Directory {
    cluster: Cluster,
    redirects_max: usize,
    ports: HashMap<u16, Plugged>,
    homes: HashMap<u16, Home>,
    redirects: HashMap<u64, Entry>,
    /// The first tick at which the full table may be searched again on behalf of a packet.
    next_sweep: u64,
    /// Whether ended redirects were removed to make room since the last query.
    has_made_room: bool,
    rules: Option<HashMap<u32, u16>>,
    term: Option<u64>,
    /// By page, and by the port at which requests arrived.
    hot: HashMap<(u64, u16), u64>,
    events: VecDeque<Event>,
}

impl Directory {
    /// Empty tables for these ports.
    pub(in crate::switches) fn new(
        cluster: Cluster,
        ports: impl Iterator<Item = u16>,
        redirects_max: u32,
    ) -> Directory {
        Directory {
            cluster,
            redirects_max: redirects_max as usize,
            ports: ports.map(|port| (port, Plugged::default())).collect(),
            homes: HashMap::new(),
            redirects: HashMap::new(),
            next_sweep: 0,
            has_made_room: false,
            rules: None,
            term: None,
            hot: HashMap::new(),
            events: VecDeque::new(),
        }
    }

    /// Decides about a frame that arrived at a port. `is_lost` is called once the packet could be delivered.
    pub(in crate::switches) fn decide(
        &mut self,
        in_port: u16,
        frame: &[u8],
        now_ns: u64,
        is_lost: impl FnOnce() -> bool,
    ) -> Verdict {
        let Some(from) = self.ports.get_mut(&in_port) else { return Verdict::default() };
        from.counters.bytes_in += frame.len() as u64;
        let from_side = from.side;
        let Some(packet) = self.read(in_port, frame, now_ns) else {
            return self.refuse(in_port, |counters| &mut counters.not_addressed);
        };
        let Some(speaks_as_home) = self.may_speak(&packet) else {
            return self.refuse(in_port, |counters| &mut counters.forged);
        };
        let Some(route) = self.route_of(packet.destination) else {
            return self.refuse(in_port, |counters| &mut counters.no_route);
        };
        let command = packet.command();
        let mut home_port = route.port;
        let mut out = home_port;
        let mut copies = Vec::new();
        if is_pointer(route, packet.destination) {
            if !self.is_allowed(&packet) {
                return self.refuse(in_port, |counters| &mut counters.denied);
            }
            copies = self.copies_of(&packet);
            if follows_runs(command) {
                home_port = self.run_of(Page::of(packet.destination)).unwrap_or(route.port);
                out = home_port;
            }
            if is_paged(command) {
                out = self.port_of_page(&packet, home_port);
            }
        } else if speaks_as_home {
            self.learn(&packet, route.port);
        }
        let Some(to_side) = self.ports.get(&out).map(|port| port.side) else {
            return self.refuse(in_port, |counters| &mut counters.no_port);
        };
        if is_lost() {
            return self.refuse(in_port, |counters| &mut counters.dropped);
        }
        copies.retain(|&port| port != out && self.ports.get(&port).is_some_and(|to| to.side == from_side));
        for &port in &copies {
            self.count_out(port, frame.len());
        }
        if to_side != from_side {
            self.count(in_port, |counters| &mut counters.partitioned);
            return Verdict { out: None, copies };
        }
        let is_home = out == home_port;
        self.count(in_port, |counters| if is_home { &mut counters.delivered } else { &mut counters.redirected });
        self.count_out(out, frame.len());
        Verdict { out: Some(out), copies }
    }

    /// Counts packets that were lost because too many were queued.
    pub(in crate::switches) fn overflowed(&mut self, in_port: u16, packets: u64) {
        if let Some(plugged) = self.ports.get_mut(&in_port) {
            plugged.counters.overflowed += packets;
        }
    }

    fn read<'a>(&self, in_port: u16, frame: &'a [u8], now_ns: u64) -> Option<Packet<'a>> {
        if frame.len() < FRAME_BYTES || frame[TYPE_AT..TYPE_AT + 2] != ETHERNET_IPV6 {
            return None;
        }
        let at = |at: usize| frame[at..at + layout::ADDRESS_BYTES].try_into().map(|bytes: [u8; 16]| bytes).ok();
        let (source, destination) = (at(SOURCE_AT)?, at(DESTINATION_AT)?);
        let scope = self.cluster.scope();
        if source[..4] != scope || destination[..4] != scope {
            return None;
        }
        let (source, destination) = (source.into(), destination.into());
        Some(Packet { in_port, frame, source, destination, now_ns, tick: now_ns >> layout::TICK_SHIFT })
    }

    /// Whether the host may use the source address; if so, whether as the home of a pointer.
    fn may_speak(&self, packet: &Packet<'_>) -> Option<bool> {
        let home = self.homes.get(&address::home(packet.source))?;
        let page = Page::of(packet.source);
        let memory = home.route.filter(|&route| is_pointer(route, packet.source));
        let range = memory.and_then(|_| home.page_routes.port_of(page.number));
        // The previous home of a page may still send, but only the current one's answers count.
        let may_teach = range.is_none_or(|port| port == packet.in_port);
        if let Some(route) = home.route.filter(|route| route.port == packet.in_port) {
            return Some(may_teach && is_pointer(route, packet.source));
        }
        if let Some(route) = home.longer_of(packet.source).filter(|route| route.port == packet.in_port) {
            return Some(may_teach && is_pointer(route, packet.source));
        }
        memory?;
        if range == Some(packet.in_port) {
            return Some(true);
        }
        let redirect = self.redirects.get(&page.key());
        let is_owner = redirect.is_some_and(|entry| entry.port == packet.in_port && entry.until > packet.tick);
        let is_member = home.group.as_ref().is_some_and(|(_, ports)| ports.contains(&packet.in_port));
        (is_owner || is_member).then_some(false)
    }

    fn route_of(&self, destination: Ipv6Addr) -> Option<Route> {
        let home = self.homes.get(&address::home(destination))?;
        home.longer_of(destination).or(home.route)
    }

    fn is_allowed(&self, packet: &Packet<'_>) -> bool {
        let Some(rules) = &self.rules else { return true };
        let client = u32::from(address::home(packet.source)) << 16;
        let home = u32::from(address::home(packet.destination));
        let keys = [client | home, client, home, 0];
        let allowed = keys.iter().filter_map(|key| rules.get(key)).fold(0, |all, classes| all | classes);
        Classes::from_bits(allowed).contain(packet.command())
    }

    fn copies_of(&self, packet: &Packet<'_>) -> Vec<u16> {
        let group = self.homes.get(&address::home(packet.destination)).and_then(|home| home.group.as_ref());
        match group {
            Some((classes, ports)) if classes.contain(packet.command()) => ports.clone(),
            _ => Vec::new(),
        }
    }

    fn port_of_page(&mut self, packet: &Packet<'_>, home_port: u16) -> u16 {
        let key = Page::of(packet.destination).key();
        self.count_hot(key, packet.in_port);
        if packet.destination.octets()[layout::ADDRESS_ARGUMENTS_AT] & layout::ARGUMENT_DIRECT != 0 {
            return home_port;
        }
        let found = self.redirects.get(&key).copied();
        if let Some(entry) = found {
            if entry.until > packet.tick {
                return self.owner_or_home(packet, key, entry, home_port);
            }
            self.redirects.remove(&key);
            self.tell(packet, EventKind::Expired, key, entry.port, entry.epoch);
        }
        if let (layout::COMMAND_UPDATE, Some(term)) = (packet.command(), self.term) {
            if self.has_room_at(packet.tick) {
                self.redirects
                    .insert(key, Entry { port: packet.in_port, until: packet.tick + term, epoch: 0, is_ending: false });
                self.count(packet.in_port, |counters| &mut counters.granted);
                self.tell(packet, EventKind::Granted, key, packet.in_port, 0);
            } else {
                self.count(packet.in_port, |counters| &mut counters.table_full);
            }
        }
        home_port
    }

    /// Other hosts' requests go to the owner; the owner's own go to the home.
    fn owner_or_home(&mut self, packet: &Packet<'_>, key: u64, entry: Entry, home_port: u16) -> u16 {
        if entry.port != packet.in_port {
            return entry.port;
        }
        if let (layout::COMMAND_COMMIT, Some(header)) = (packet.command(), header(packet)) {
            let is_ending = header.flags & layout::FLAG_RELEASE != 0;
            self.redirects.insert(key, Entry { is_ending, ..entry });
        }
        home_port
    }

    /// Evaluates a home's answer about leases.
    fn learn(&mut self, packet: &Packet<'_>, client_port: u16) {
        let command = packet.source.octets()[layout::ADDRESS_COMMAND_AT];
        let gives = matches!(command, layout::COMMAND_UPDATE | layout::COMMAND_RENEW);
        let ends = matches!(command, layout::COMMAND_COMMIT | layout::COMMAND_RELEASE);
        let (Some(term), true) = (self.term, gives || ends) else { return };
        let Some(Header { flags, status, request, epoch }) = header(packet) else { return };
        // The number distinguishes an answer from a home's own request.
        if flags & layout::FLAG_ANSWER == 0 || request != address::low_half(packet.destination) {
            return;
        }
        let key = Page::of(packet.source).key();
        let known = self.redirects.get(&key).copied();
        let is_yes = status == layout::STATUS_OK;
        if gives && is_yes {
            let until = packet.tick + term;
            return self.confirm(packet, key, known, Entry { port: client_port, until, epoch, is_ending: false });
        }
        let Some(entry) = known.filter(|entry| entry.port == client_port) else { return };
        if command == layout::COMMAND_COMMIT && !(is_yes && entry.is_ending) {
            // The lease continues, in a later epoch if the home stored the bytes.
            let epoch = if is_yes { entry.epoch.max(epoch) } else { entry.epoch };
            self.redirects.insert(key, Entry { epoch, is_ending: false, ..entry });
        } else if gives || is_yes {
            self.redirects.remove(&key);
            let kind = if gives { EventKind::Refused } else { EventKind::Returned };
            self.tell(packet, kind, key, client_port, epoch);
        }
    }

    /// The home granted or renewed a lease. The entry of a later lease stays.
    fn confirm(&mut self, packet: &Packet<'_>, key: u64, known: Option<Entry>, fresh: Entry) {
        let may = match known {
            Some(known) => known.epoch <= fresh.epoch || known.until <= packet.tick,
            None => self.has_room_at(packet.tick),
        };
        if may {
            self.redirects.insert(key, fresh);
            let is_new = packet.source.octets()[layout::ADDRESS_COMMAND_AT] == layout::COMMAND_UPDATE;
            let kind = if is_new { EventKind::Confirmed } else { EventKind::Renewed };
            self.tell(packet, kind, key, fresh.port, fresh.epoch);
        }
    }

    /// Whether there is room for a packet's redirect; ended ones occupy none.
    fn has_room_at(&mut self, tick: u64) -> bool {
        if self.redirects.len() < self.redirects_max {
            return true;
        }
        if tick < self.next_sweep {
            return false;
        }
        self.next_sweep = tick.saturating_add(SWEEP_TICKS);
        self.make_room(tick)
    }

    /// Removes ended redirects from a full table; returns whether there were any.
    fn make_room(&mut self, tick: u64) -> bool {
        let has_made_room = self.sweep(tick) > 0;
        self.has_made_room |= has_made_room;
        has_made_room
    }

    fn tell(&mut self, packet: &Packet<'_>, kind: EventKind, key: u64, port: u16, epoch: u64) {
        self.note(packet.in_port, packet.now_ns, kind, key, port, epoch);
    }

    fn note(&mut self, in_port: u16, now_ns: u64, kind: EventKind, key: u64, port: u16, epoch: u64) {
        if self.events.len() == EVENTS_MAX {
            return self.count(in_port, |counters| &mut counters.events_lost);
        }
        let time = Duration::from_nanos(now_ns);
        self.events.push_back(Event { kind, page: Page::from_key(key), port, epoch, time });
    }

    fn count_hot(&mut self, key: u64, port: u16) {
        let is_full = self.hot.len() >= layout::HOT_MAX as usize;
        match self.hot.get_mut(&(key, port)) {
            Some(count) => *count += 1,
            None if is_full => {}
            None => drop(self.hot.insert((key, port), 1)),
        }
    }

    fn count(&mut self, port: u16, which: impl FnOnce(&mut Counters) -> &mut u64) {
        if let Some(plugged) = self.ports.get_mut(&port) {
            *which(&mut plugged.counters) += 1;
        }
    }

    fn count_out(&mut self, port: u16, bytes: usize) {
        if let Some(plugged) = self.ports.get_mut(&port) {
            plugged.counters.packets_out += 1;
            plugged.counters.bytes_out += bytes as u64;
        }
    }

    fn refuse(&mut self, port: u16, which: impl FnOnce(&mut Counters) -> &mut u64) -> Verdict {
        self.count(port, which);
        Verdict::default()
    }
}

/// Changes of the state, and queries.
impl Directory {
    pub(in crate::switches) fn set_prefix(&mut self, prefix: Prefix, route: Route) {
        let home = self.homes.entry(prefix.home()).or_default();
        if prefix.bits() == address::HOME_BITS {
            home.route = Some(route);
            return;
        }
        home.longer.retain(|(known, _)| *known != prefix);
        let at = home.longer.partition_point(|(known, _)| known.bits() >= prefix.bits());
        home.longer.insert(at, (prefix, route));
    }

    pub(in crate::switches) fn drop_prefix(&mut self, prefix: Prefix) -> bool {
        let Some(home) = self.homes.get_mut(&prefix.home()) else { return false };
        if prefix.bits() == address::HOME_BITS {
            home.group = None;
            return home.route.take().is_some();
        }
        let before = home.longer.len();
        home.longer.retain(|(known, _)| *known != prefix);
        home.longer.len() != before
    }

    /// Whether there is a route for exactly this prefix.
    pub(in crate::switches) fn has_prefix(&self, prefix: Prefix) -> bool {
        let Some(home) = self.homes.get(&prefix.home()) else { return false };
        match prefix.bits() == address::HOME_BITS {
            true => home.route.is_some(),
            false => home.longer.iter().any(|(known, _)| *known == prefix),
        }
    }

    /// The number of prefixes longer than a home's.
    pub(in crate::switches) fn longer_prefixes(&self) -> usize {
        self.homes.values().map(|home| home.longer.len()).sum()
    }

    /// Whether a page range exists, or there is room for it.
    pub(in crate::switches) fn has_room_for(&self, range: PageRange) -> bool {
        let is_there = self.homes.get(&range.home()).is_some_and(|home| home.page_routes.port(range).is_some());
        is_there || self.homes.values().map(|home| home.page_routes.len()).sum::<usize>() < PAGE_ROUTES_MAX as usize
    }

    pub(in crate::switches) fn set_page_route(&mut self, range: PageRange, port: u16) {
        self.homes.entry(range.home()).or_default().page_routes.set(range, port);
    }

    pub(in crate::switches) fn drop_page_route(&mut self, range: PageRange) -> bool {
        self.homes.get_mut(&range.home()).is_some_and(|home| home.page_routes.drop(range))
    }

    /// The page ranges of a home, in order.
    pub(in crate::switches) fn page_routes(&self, home: u16) -> Vec<(PageRange, u16)> {
        self.homes.get(&home).map(|found| found.page_routes.all(home)).unwrap_or_default()
    }

    /// The page ranges of all homes.
    #[cfg(feature = "openflow")]
    pub(in crate::switches) fn all_runs(&self) -> impl Iterator<Item = PageRange> {
        self.homes.iter().flat_map(|(&home, found)| found.page_routes.all(home)).map(|(range, _)| range)
    }

    /// The port that was set for exactly this page range.
    pub(in crate::switches) fn port_of_range(&self, range: PageRange) -> Option<u16> {
        self.homes.get(&range.home())?.page_routes.port(range)
    }

    /// The number of page ranges of an order, of all homes.
    pub(in crate::switches) fn ranges_of_order(&self, order: u8) -> usize {
        self.homes.values().map(|home| home.page_routes.of_order(order)).sum()
    }

    /// The number of page ranges of a home.
    pub(in crate::switches) fn ranges_of_home(&self, home: u16) -> usize {
        self.homes.get(&home).map_or(0, |home| home.page_routes.len())
    }

    /// The port of the page range that contains a page, if there is one.
    pub(in crate::switches) fn run_of(&self, page: Page) -> Option<u16> {
        self.homes.get(&page.home)?.page_routes.port_of(page.number)
    }

    /// `None` if there is no room, even after ended redirects were removed.
    pub(in crate::switches) fn set_redirect(&mut self, page: Page, entry: Entry, tick: u64) -> Option<bool> {
        let known = self.redirects.get(&page.key());
        if known.is_some_and(|known| known.until > tick && known.epoch > entry.epoch) {
            return Some(false);
        }
        let needs_room = known.is_none() && self.redirects.len() >= self.redirects_max;
        if needs_room && !self.make_room(tick) {
            return None;
        }
        self.redirects.insert(page.key(), entry);
        Some(true)
    }

    pub(in crate::switches) fn drop_redirect(&mut self, page: Page, epoch: u64) -> bool {
        let may = self.redirects.get(&page.key()).is_some_and(|known| known.epoch <= epoch);
        may && self.redirects.remove(&page.key()).is_some()
    }

    pub(in crate::switches) fn redirect(&self, page: Page, tick: u64) -> Option<Entry> {
        self.redirects.get(&page.key()).copied().filter(|entry| entry.until > tick)
    }

    /// The capacity for redirects.
    pub(in crate::switches) fn redirects_max(&self) -> u32 {
        self.redirects_max as u32
    }

    /// The entry of a page, whether it has ended or not.
    pub(in crate::switches) fn noted(&self, key: u64) -> Option<Entry> {
        self.redirects.get(&key).copied()
    }

    /// Removes a redirect that ended without a packet that would have shown it.
    pub(in crate::switches) fn expire(&mut self, key: u64, now_ns: u64) {
        if let Some(entry) = self.redirects.remove(&key) {
            self.note(entry.port, now_ns, EventKind::Expired, key, entry.port, entry.epoch);
        }
    }

    pub(in crate::switches) fn sweep(&mut self, tick: u64) -> usize {
        let before = self.redirects.len();
        self.redirects.retain(|_, entry| entry.until > tick);
        before - self.redirects.len()
    }

    /// Whether redirects were removed to make room since the last query.
    #[cfg(any(test, feature = "openflow"))]
    pub(in crate::switches) fn take_has_made_room(&mut self) -> bool {
        std::mem::take(&mut self.has_made_room)
    }

    /// Returns whether the home has a route.
    pub(in crate::switches) fn set_group(&mut self, group: &Group) -> bool {
        let Some(home) = self.homes.get_mut(&group.prefix.home()).filter(|home| home.route.is_some()) else {
            return false;
        };
        home.group = (!group.ports.is_empty()).then(|| (group.classes, group.ports.clone()));
        true
    }

    pub(in crate::switches) fn set_rules(&mut self, rules: Option<HashMap<u32, u16>>) {
        self.rules = rules;
    }

    pub(in crate::switches) fn set_term(&mut self, ticks: Option<u64>) {
        self.term = ticks;
    }

    pub(in crate::switches) fn set_side(&mut self, port: u16, side: u32) -> bool {
        self.ports.get_mut(&port).map(|plugged| plugged.side = side).is_some()
    }

    pub(in crate::switches) fn counters(&self, port: u16) -> Counters {
        self.ports.get(&port).map(|plugged| plugged.counters).unwrap_or_default()
    }

    /// Pages, ports, and how many requests for the page arrived at the port.
    pub(in crate::switches) fn take_hot(&mut self) -> Vec<(Page, u16, u64)> {
        self.hot.drain().map(|((key, port), count)| (Page::from_key(key), port, count)).collect()
    }

    pub(in crate::switches) fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }
}

impl Home {
    fn longer_of(&self, address: Ipv6Addr) -> Option<Route> {
        self.longer.iter().find(|(prefix, _)| prefix.contains(address)).map(|(_, route)| *route)
    }
}

impl Packet<'_> {
    fn command(&self) -> u8 {
        self.destination.octets()[layout::ADDRESS_COMMAND_AT]
    }
}

fn is_paged(command: u8) -> bool {
    matches!(command >> 4, layout::CLASS_READING | layout::CLASS_CHANGING | layout::CLASS_LEASES)
}

/// Whether a command is about a page that may have another port than its home.
fn follows_runs(command: u8) -> bool {
    is_paged(command) || matches!(command, layout::COMMAND_CLONE | layout::COMMAND_INVALIDATED)
}

/// Whether an address is a pointer, with a command and a page. Otherwise it names a request, and packets to it are
/// answers.
fn is_pointer(route: Route, address: Ipv6Addr) -> bool {
    route.is_memory && address.octets()[layout::ADDRESS_COMMAND_AT] & layout::INCARNATION == 0
}

/// The fields of a datagram's header that a switch reads.
struct Header {
    flags: u16,
    status: u8,
    request: u64,
    epoch: u64,
}

/// The header of a datagram; `None` if it has none.
fn header(packet: &Packet<'_>) -> Option<Header> {
    let frame = packet.frame;
    let mut next = frame[NEXT_HEADER_AT];
    let mut at = FRAME_BYTES;
    if next == NEXT_FRAGMENT {
        let fragment = frame.get(at..at + FRAGMENT_BYTES)?;
        // Only the first fragment has the header.
        if fragment[2] != 0 || fragment[3] & 0xf8 != 0 {
            return None;
        }
        next = fragment[0];
        at += FRAGMENT_BYTES;
    }
    let header = frame.get(at + UDP_BYTES..at + UDP_BYTES + layout::HEADER_BYTES)?;
    if next != NEXT_UDP || header[0] != layout::HEADER_VERSION {
        return None;
    }
    let number = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    Some(Header {
        flags: u16::from_le_bytes([header[layout::HEADER_FLAGS_AT], header[layout::HEADER_FLAGS_AT + 1]]),
        status: header[layout::HEADER_STATUS_AT],
        request: number(layout::HEADER_REQUEST_AT)?,
        epoch: number(layout::HEADER_EPOCH_AT)?,
    })
}

#[cfg(test)]
mod tests;
