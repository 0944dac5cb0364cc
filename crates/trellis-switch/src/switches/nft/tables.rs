//! The content of the kernel's tables, and the state that is kept beside them.
//!
//! Promises: every change is one transaction, so that a packet sees all of it or nothing (except for more entries than
//! a transaction can have, of which a packet may see some). It must never record what the kernel refused.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::NAME;
use super::netlink::{self, Changes, Conversation, FLAG_CREATE, Subscription, kind};
use super::ruleset::{self, DESTINATION_AT, SOURCE_AT, Shape, key};
use crate::address::{self, Classes, Page, PageRange, Prefix};
use crate::clock;
use crate::entries::{Group, Port, Route, Rule};
use crate::error::SwitchError;
use crate::layout;
use crate::observed::{Counters, Event};
use crate::switches::directory::{Directory, Entry};
use crate::switches::{self, Wiring};
use crate::sys;

/// The table is removed with the socket that created it.
const TABLE_OWNED: u32 = 2;
/// The kernel counts terms in its own ticks, of up to this length; shorter terms are rounded up to it.
const TERM_MIN: Duration = Duration::from_millis(10);
/// Longer than any lease; the kernel's maximum.
const TERM_MILLISECONDS_MAX: u64 = 1 << 40;
const PREFIXES_MAX: u32 = layout::PREFIXES_MAX;
/// A counter does not include the hardware header.
const ETHERNET_BYTES: u64 = 14;
/// What precedes a reported packet, as its frame would have it.
const FRAME_BEGIN: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x86, 0xdd];
/// The classes of commands; the rest are addresses of requests.
const CLASSES: u8 = layout::INCARNATION >> 4;

/// The port of a host.
struct Plug {
    interface: u32,
    side: u32,
}

/// The tables.
pub(super) struct Tables {
    kernel: Conversation,
    subscription: Subscription,
    directory: Directory,
    shape: Shape,
    plugs: BTreeMap<u16, Plug>,
    ports: HashMap<u32, u16>,
    routes: BTreeMap<Prefix, Route>,
    groups: HashMap<u16, Group>,
    rules: HashSet<Vec<u8>>,
    /// The ends of redirects, earliest first; some redirects have been replaced since.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

/// A packet that a rule reported.
struct ReportedPacket {
    group: u16,
    port: u16,
    frame: Vec<u8>,
}

impl Drop for Tables {
    /// The kernel deletes the table when its owner closes the socket. A child process that has not called exec yet has
    /// the socket, too, and would keep the table for a moment.
    fn drop(&mut self) {
        let mut changes = Changes::new(ruleset::TABLE);
        changes.message(kind::DELETE_TABLE, 0, |_| ());
        let _ = self.kernel.carry_out(&changes);
    }
}

impl Tables {
    /// Creates all of them.
    pub(super) fn make(wiring: &Wiring) -> Result<Tables, SwitchError> {
        let failed = |error: io::Error| failed("open a conversation with the kernel's packet filter", &error);
        let mut kernel = Conversation::open().map_err(failed)?;
        let groups = [ruleset::REPORT_ANSWERS, ruleset::REPORT_GRANTS, ruleset::REPORT_COMMITS];
        let subscription = Subscription::open(&groups, ruleset::REPORTED_BYTES).map_err(failed)?;
        let mut plugs = BTreeMap::new();
        let mut changes = Changes::new(ruleset::TABLE);
        changes.message(kind::NEW_TABLE, FLAG_CREATE, |message| message.number(2, TABLE_OWNED));
        ruleset::make_tables(&mut changes, wiring.redirects_max);
        for port in &wiring.ports {
            let interface = switches::interface_index(port)?;
            plug_in(&mut changes, port, interface);
            plugs.insert(port.number, Plug { interface, side: 0 });
        }
        put(&mut changes, ruleset::EQUAL_SIDES, &key::join(&[key::number(0), key::number(0)]));
        let devices: Vec<&str> = wiring.ports.iter().map(|port| port.interface.as_str()).collect();
        ruleset::make_chains(&mut changes, &devices, wiring.cluster.scope());
        ruleset::shape(&mut changes, &Shape::default());
        kernel.carry_out(&changes).map_err(|error| self::failed("make the table of the switch", &error))?;
        let ports = plugs.iter().map(|(&number, plug)| (plug.interface, number)).collect();
        let numbers = wiring.ports.iter().map(|port| port.number);
        Ok(Tables {
            kernel,
            subscription,
            directory: Directory::new(wiring.cluster, numbers, wiring.redirects_max),
            shape: Shape::default(),
            plugs,
            ports,
            routes: BTreeMap::new(),
            groups: HashMap::new(),
            rules: HashSet::new(),
            ends: BinaryHeap::new(),
        })
    }

    /// The descriptor that becomes readable when a rule has reported something.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, SwitchError> {
        self.subscription.descriptor().map_err(|error| SwitchError::system("duplicate a socket", &error))
    }

    fn carry_out(&mut self, changes: &Changes, attempt: &str) -> Result<(), SwitchError> {
        self.kernel.carry_out(changes).map_err(|error| failed(attempt, &error))
    }

    /// Changes entries, and replaces the rules if the shape has changed.
    fn change(
        &mut self,
        attempt: &str,
        shape: Shape,
        entries: impl FnOnce(&mut Changes, &Tables),
    ) -> Result<(), SwitchError> {
        let mut changes = Changes::new(ruleset::TABLE);
        for &bits in shape.lengths.difference(&self.shape.lengths) {
            ruleset::make_longer(&mut changes, bits);
        }
        for &order in shape.orders.difference(&self.shape.orders) {
            ruleset::make_runs(&mut changes, order);
        }
        entries(&mut changes, self);
        if shape != self.shape {
            ruleset::shape(&mut changes, &shape);
        }
        let longer = self.shape.lengths.difference(&shape.lengths).map(|&bits| ruleset::longer(bits));
        let ranges = self.shape.orders.difference(&shape.orders).map(|&order| ruleset::ranges(order));
        for map in longer.chain(ranges) {
            changes.message(kind::DELETE_SET, 0, |message| message.text(2, &map));
        }
        self.carry_out(&changes, attempt)?;
        self.shape = shape;
        Ok(())
    }

    fn interface_of(&self, port: u16) -> Option<u32> {
        self.plugs.get(&port).map(|plug| plug.interface)
    }
}

/// Adds a port.
fn plug_in(changes: &mut Changes, port: &Port, interface: u32) {
    let (number, index) = (key::number(u32::from(port.number)), key::number(interface));
    for set in ruleset::COUNTING {
        changes.elements(kind::NEW_ELEMENT, set, [ruleset::counting(&index)]);
    }
    let [a, b, c, d, e, f] = port.host_mac;
    let out = key::join(&[[a, b, c, d], [e, f, 0, 0], index]);
    let mut out = ruleset::pair(&number, &out);
    out.nest(7, super::expressions::counter);
    changes.elements(kind::NEW_ELEMENT, ruleset::OUT, [out]);
    map(changes, ruleset::PORT_OF, &index, &number);
    put(changes, ruleset::SAME, &key::join(&[number, index]));
    put(changes, ruleset::EQUAL_PORTS, &key::join(&[number, number]));
    map(changes, ruleset::SIDE_OF_INTERFACE, &index, &key::number(0));
    map(changes, ruleset::SIDE_OF_PORT, &number, &key::number(0));
}

/// Adds an element to a set.
fn put(changes: &mut Changes, set: &str, key: &[u8]) {
    changes.elements(kind::NEW_ELEMENT, set, [ruleset::element(key)]);
}

/// Adds an element to a map.
fn map(changes: &mut Changes, map: &str, key: &[u8], value: &[u8]) {
    changes.elements(kind::NEW_ELEMENT, map, [ruleset::pair(key, value)]);
}

/// Removes an element, if it exists.
fn take(changes: &mut Changes, set: &str, key: &[u8]) {
    changes.elements(kind::DESTROY_ELEMENT, set, [ruleset::element(key)]);
}

/// Replaces every element of a home's number by those of a route.
fn settle_home(changes: &mut Changes, home: u16, before: Option<u32>, now: Option<(u32, Route)>) {
    for names_request in [false, true] {
        for name in [ruleset::MEMORY, ruleset::PLAIN] {
            take(changes, name, &key::kind(home, names_request));
        }
        if let Some((_, route)) = now {
            let name = if route.is_memory && !names_request { ruleset::MEMORY } else { ruleset::PLAIN };
            map(changes, name, &key::kind(home, names_request), &key::number(u32::from(route.port)));
        }
    }
    if let Some(interface) = before {
        take(changes, ruleset::SPEAKERS, &key::join(&[key::home(home), key::number(interface)]));
    }
    if let Some((interface, _)) = now {
        put(changes, ruleset::SPEAKERS, &key::join(&[key::home(home), key::number(interface)]));
    }
}

/// Removes or adds a group's copies and members.
fn settle_group(changes: &mut Changes, group: &Group, tables: &Tables, is_in: bool) {
    let home = key::home(group.prefix.home());
    let classes = (0..CLASSES).filter(|class| group.classes.contain(class << 4));
    for (class, (index, port)) in classes.flat_map(|class| group.ports.iter().enumerate().map(move |one| (class, one)))
    {
        let key = key::join(&[home, key::class(class)]);
        match is_in {
            true => map(changes, &ruleset::copies(index), &key, &key::number(u32::from(*port))),
            false => take(changes, &ruleset::copies(index), &key),
        }
    }
    let members: BTreeSet<u32> = group.ports.iter().filter_map(|&port| tables.interface_of(port)).collect();
    for interface in members {
        let key = key::join(&[home, key::number(interface)]);
        match is_in {
            true => put(changes, ruleset::MEMBERS, &key),
            false => take(changes, ruleset::MEMBERS, &key),
        }
    }
}

/// Prefixes and groups.
impl Tables {
    pub(super) fn set_prefix(&mut self, prefix: Prefix, route: Route) -> Result<(), SwitchError> {
        let attempt = format!("route {prefix}");
        if prefix.bits() == address::HOME_BITS {
            let interface = |route: &Route| self.interface_of(route.port).unwrap_or_default();
            let before = self.routes.get(&prefix).map(interface);
            let now = Some((interface(&route), route));
            let entries = |changes: &mut Changes, _: &Tables| settle_home(changes, prefix.home(), before, now);
            self.change(&attempt, self.shape.clone(), entries)?;
        } else {
            if !self.routes.contains_key(&prefix) && self.directory.longer_prefixes() >= PREFIXES_MAX as usize {
                return Err(full("prefixes", PREFIXES_MAX, "drop some"));
            }
            let mut shape = self.shape.clone();
            shape.lengths.insert(prefix.bits());
            self.change(&attempt, shape, |changes, _| {
                let value = [key::number(u32::from(route.port)), key::number(u32::from(route.is_memory))];
                let name = ruleset::longer(prefix.bits());
                take(changes, &name, &key::prefix(prefix));
                map(changes, &name, &key::prefix(prefix), &key::join(&value));
                take(changes, ruleset::HAS_LONGER, &key::home(prefix.home()));
                put(changes, ruleset::HAS_LONGER, &key::home(prefix.home()));
            })?;
        }
        self.routes.insert(prefix, route);
        self.directory.set_prefix(prefix, route);
        Ok(())
    }

    pub(super) fn drop_prefix(&mut self, prefix: Prefix) -> Result<bool, SwitchError> {
        let Some(route) = self.routes.get(&prefix).copied() else { return Ok(false) };
        let attempt = format!("forget the route of {prefix}");
        if prefix.bits() == address::HOME_BITS {
            let before = Some(self.interface_of(route.port).unwrap_or_default());
            let shape = self.with_copies(prefix.home(), 0);
            self.change(&attempt, shape, |changes, tables| {
                settle_home(changes, prefix.home(), before, None);
                if let Some(group) = tables.groups.get(&prefix.home()) {
                    settle_group(changes, group, tables, false);
                }
            })?;
            self.groups.remove(&prefix.home());
        } else {
            let others = || self.routes.keys().filter(|one| one.bits() > address::HOME_BITS && **one != prefix);
            let mut shape = self.shape.clone();
            if others().all(|one| one.bits() != prefix.bits()) {
                shape.lengths.remove(&prefix.bits());
            }
            let is_last = others().all(|one| one.home() != prefix.home());
            self.change(&attempt, shape, |changes, _| {
                take(changes, &ruleset::longer(prefix.bits()), &key::prefix(prefix));
                if is_last {
                    take(changes, ruleset::HAS_LONGER, &key::home(prefix.home()));
                }
            })?;
        }
        self.routes.remove(&prefix);
        Ok(self.directory.drop_prefix(prefix))
    }

    pub(super) fn set_page_route(&mut self, range: PageRange, port: u16) -> Result<(), SwitchError> {
        if !self.directory.has_room_for(range) {
            return Err(switches::no_room_for_page_route(NAME));
        }
        let mut shape = self.shape.clone();
        shape.orders.insert(range.order());
        self.change(&format!("route {range}"), shape, |changes, _| {
            let name = ruleset::ranges(range.order());
            take(changes, &name, &key::range(range));
            map(changes, &name, &key::range(range), &key::number(u32::from(port)));
            take(changes, ruleset::HAS_PAGE_ROUTES, &key::home(range.home()));
            put(changes, ruleset::HAS_PAGE_ROUTES, &key::home(range.home()));
        })?;
        self.directory.set_page_route(range, port);
        Ok(())
    }

    pub(super) fn drop_page_route(&mut self, range: PageRange) -> Result<bool, SwitchError> {
        if self.directory.port_of_range(range).is_none() {
            return Ok(false);
        }
        let mut shape = self.shape.clone();
        if self.directory.ranges_of_order(range.order()) == 1 {
            shape.orders.remove(&range.order());
        }
        let is_last = self.directory.ranges_of_home(range.home()) == 1;
        self.change(&format!("forget the route of {range}"), shape, |changes, _| {
            take(changes, &ruleset::ranges(range.order()), &key::range(range));
            if is_last {
                take(changes, ruleset::HAS_PAGE_ROUTES, &key::home(range.home()));
            }
        })?;
        Ok(self.directory.drop_page_route(range))
    }

    pub(super) fn page_routes(&self, home: u16) -> Vec<(PageRange, u16)> {
        self.directory.page_routes(home)
    }

    pub(super) fn set_group(&mut self, group: &Group) -> Result<(), SwitchError> {
        let home = group.prefix.home();
        if !self.routes.contains_key(&group.prefix) {
            return Err(switches::no_route_to_copy(NAME, group));
        }
        let shape = self.with_copies(home, group.ports.len());
        self.change(&format!("copy what goes to {}", group.prefix), shape, |changes, tables| {
            if let Some(before) = tables.groups.get(&home) {
                settle_group(changes, before, tables, false);
            }
            settle_group(changes, group, tables, true);
        })?;
        match group.ports.is_empty() {
            true => self.groups.remove(&home),
            false => self.groups.insert(home, group.clone()),
        };
        self.directory.set_group(group);
        Ok(())
    }

    /// The shape for the present groups, but with this number of ports for one home.
    fn with_copies(&self, home: u16, ports: usize) -> Shape {
        let others = self.groups.iter().filter(|(one, _)| **one != home).map(|(_, group)| group.ports.len());
        Shape { copies: others.chain([ports]).max().unwrap_or_default(), ..self.shape.clone() }
    }
}

/// Rules, sides, loss.
impl Tables {
    pub(super) fn set_rules(&mut self, rules: Option<&[Rule]>) -> Result<(), SwitchError> {
        let table = rules.map(switches::rule_table);
        let keys = table.iter().flatten().flat_map(|(&rule, &classes)| {
            let (client, home) = ((rule >> 16) as u16, rule as u16);
            let classes = (0..CLASSES).filter(move |class| Classes::from_bits(classes).contain(class << 4));
            classes.map(move |class| key::join(&[key::home(client), key::home(home), key::class(class)]))
        });
        let keys: HashSet<Vec<u8>> = keys.collect();
        if keys.len() > layout::RULES_MAX as usize {
            return Err(full("rules, one for each class,", layout::RULES_MAX, "drop some"));
        }
        let has_rules = rules.is_some();
        // If it is more than a transaction, permissions are added before everything else is forbidden.
        let mut changes = Changes::new(ruleset::TABLE);
        let fresh = keys.difference(&self.rules).map(|key| ruleset::element(key));
        changes.elements(kind::NEW_ELEMENT, ruleset::RULES, fresh);
        let shape = Shape { has_rules, ..self.shape.clone() };
        if shape != self.shape {
            ruleset::shape(&mut changes, &shape);
        }
        let stale = self.rules.difference(&keys).map(|key| ruleset::element(key));
        changes.elements(kind::DESTROY_ELEMENT, ruleset::RULES, stale);
        self.carry_out(&changes, "change the rules about who may ask what")?;
        self.rules = keys;
        self.shape = shape;
        self.directory.set_rules(table);
        Ok(())
    }

    pub(super) fn set_side(&mut self, port: u16, side: u32) -> Result<(), SwitchError> {
        let Some(plug) = self.plugs.get(&port) else { return Err(switches::nothing_plugged_in(NAME, port)) };
        let (number, interface, value) = (key::number(u32::from(port)), key::number(plug.interface), key::number(side));
        let others = |one: &u16| *one != port;
        let has_sides = side != 0 || self.plugs.iter().any(|(one, plug)| others(one) && plug.side != 0);
        self.change(
            &format!("put port {port} on another side"),
            Shape { has_sides, ..self.shape.clone() },
            |changes, _| {
                for (name, key) in [(ruleset::SIDE_OF_INTERFACE, interface), (ruleset::SIDE_OF_PORT, number)] {
                    take(changes, name, &key);
                    map(changes, name, &key, &value);
                }
                take(changes, ruleset::EQUAL_SIDES, &key::join(&[value, value]));
                put(changes, ruleset::EQUAL_SIDES, &key::join(&[value, value]));
            },
        )?;
        if let Some(plug) = self.plugs.get_mut(&port) {
            plug.side = side;
        }
        self.directory.set_side(port, side);
        Ok(())
    }

    pub(super) fn set_loss(&mut self, drop_ppm: u32) -> Result<(), SwitchError> {
        self.change("lose packets on purpose", Shape { drop_ppm, ..self.shape.clone() }, |_, _| ())
    }
}

/// Redirects and leases.
impl Tables {
    pub(super) fn set_leases(&mut self, term: Option<Duration>) -> Result<(), SwitchError> {
        let term = term.map(|term| term.max(TERM_MIN));
        let term_milliseconds =
            term.map(|term| u64::try_from(term.as_millis()).unwrap_or(u64::MAX).min(TERM_MILLISECONDS_MAX));
        self.change("change the term of leases", Shape { term_milliseconds, ..self.shape.clone() }, |_, _| ())?;
        self.directory.set_term(term.map(clock::ticks));
        Ok(())
    }

    /// Returns how many of them were set; stops at the first for which there is no room.
    pub(super) fn set_redirects(&mut self, entries: &[(Page, Entry)]) -> Result<u32, SwitchError> {
        let mut pages = Vec::with_capacity(entries.len());
        let mut outcome = Ok(());
        for (page, entry) in entries {
            match self.directory.set_redirect(*page, *entry, clock::ticks_now()) {
                Some(true) => pages.push(*page),
                Some(false) => {}
                None => {
                    let limit = self.directory.redirects_max();
                    outcome = Err(full("redirects", limit, "wait until some end, or open the switch with more"));
                    break;
                }
            }
        }
        self.write(&pages)?;
        outcome.map(|()| pages.len() as u32)
    }

    pub(super) fn drop_redirect(&mut self, page: Page, epoch: u64) -> Result<bool, SwitchError> {
        let was_there = self.directory.drop_redirect(page, epoch);
        if was_there {
            self.write(&[page])?;
        }
        Ok(was_there)
    }

    pub(super) fn redirect(&self, page: Page) -> Option<Entry> {
        self.directory.redirect(page, clock::ticks_now())
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.directory.take_events()
    }

    /// Writes the recorded redirects of pages into the kernel's table; those that it refuses are removed from the record.
    fn write(&mut self, pages: &[Page]) -> Result<(), SwitchError> {
        let tick = clock::ticks_now();
        let keys = || pages.iter().map(|page| ruleset::element(&key::page(*page)));
        let mut changes = Changes::new(ruleset::TABLE);
        changes.elements(kind::DESTROY_ELEMENT, ruleset::REDIRECTS, keys());
        let noted = pages.iter().filter_map(|page| Some((page, self.directory.redirect(*page, tick)?)));
        let noted: Vec<(&Page, Entry)> = noted.collect();
        let elements = noted.iter().map(|(page, entry)| {
            let left = (entry.until != layout::TICKS_FOREVER).then(|| milliseconds(entry.until - tick));
            ruleset::pair_for(&key::page(**page), &key::number(u32::from(entry.port)), left)
        });
        changes.elements(kind::NEW_ELEMENT, ruleset::REDIRECTS, elements);
        if let Err(error) = self.kernel.carry_out(&changes) {
            for page in pages {
                self.directory.drop_redirect(*page, u64::MAX);
            }
            let limit = self.directory.redirects_max();
            return Err(match error.raw_os_error() {
                Some(libc::ENFILE) => full("redirects", limit, "wait until some end, or open the switch with more"),
                _ => failed("redirect pages", &error),
            });
        }
        let ends = noted.iter().filter(|(_, entry)| entry.until != layout::TICKS_FOREVER);
        self.ends.extend(ends.map(|(page, entry)| Reverse((entry.until, page.key()))));
        Ok(())
    }

    /// Records everything that the rules have reported since, and what has ended, in the order in which it happened.
    pub(super) fn hear(&mut self) {
        let mut all = Vec::new();
        let ports = &self.ports;
        self.subscription.hear(|heard| {
            if let Some(&port) = ports.get(&heard.interface) {
                all.push(ReportedPacket { group: heard.group, port, frame: [&FRAME_BEGIN, heard.packet].concat() });
            }
        });
        let mut pages = Vec::new();
        for reported in all {
            self.expire();
            pages.extend(self.note(&reported));
        }
        self.expire();
        if !pages.is_empty() {
            // A redirect that cannot be written does not exist: requests go to the home.
            let _ = self.write(&pages);
        }
    }

    /// How long the kernel will keep a redirect; `None` if it no longer has it.
    fn left_of(&mut self, page: Page) -> Option<Duration> {
        const EXPIRATION: u16 = 5;
        let only = ruleset::element(&key::page(page));
        let found = self.kernel.elements_of(ruleset::TABLE, ruleset::REDIRECTS, Some(only)).ok()?;
        let left = netlink::attribute(found.first()?, EXPIRATION)?.try_into().ok()?;
        Some(Duration::from_millis(u64::from_be_bytes(left)))
    }

    /// Removes what has ended; the kernel has removed it by itself.
    fn expire(&mut self) {
        let now_ns = sys::monotonic_ns();
        let tick = now_ns >> layout::TICK_SHIFT;
        while let Some(&Reverse((until, key))) = self.ends.peek().filter(|Reverse((until, _))| *until <= tick) {
            self.ends.pop();
            if self.directory.noted(key).is_some_and(|entry| entry.until == until) {
                self.directory.expire(key, now_ns);
            }
        }
    }

    /// Records what a packet says about a lease; returns the page whose redirect must be written because of it.
    fn note(&mut self, reported: &ReportedPacket) -> Option<Page> {
        let is_answer = reported.group == ruleset::REPORT_ANSWERS;
        let at = FRAME_BEGIN.len() + if is_answer { SOURCE_AT } else { DESTINATION_AT };
        let address: [u8; layout::ADDRESS_BYTES] =
            reported.frame.get(at..at + layout::ADDRESS_BYTES)?.try_into().ok()?;
        let page = Page::of(address.into());
        let now_ns = sys::monotonic_ns();
        let before = self.directory.noted(page.key());
        let is_grant = reported.group == ruleset::REPORT_GRANTS;
        if is_grant && before.is_some_and(|before| before.port != reported.port) {
            // The kernel has granted it, so the recorded one had ended.
            self.directory.expire(page.key(), now_ns);
        }
        self.directory.decide(reported.port, &reported.frame, now_ns, || false);
        let after = self.directory.noted(page.key());
        let known = |entry: Option<Entry>| entry.map(|entry| (entry.port, entry.until));
        if known(before) == known(after) {
            return None;
        }
        if let (true, Some(granted)) = (is_grant, after) {
            // The kernel has it already, and has counted its time since then.
            let tick = now_ns >> layout::TICK_SHIFT;
            let until = self.left_of(page).map_or(tick, |left| tick + clock::ticks(left));
            self.directory.set_redirect(page, Entry { until, ..granted }, tick);
            self.ends.push(Reverse((until, page.key())));
            return None;
        }
        Some(page)
    }
}

/// The kernel's counts.
impl Tables {
    pub(super) fn counters(&mut self, port: u16) -> Result<Counters, SwitchError> {
        let noted = self.directory.counters(port);
        let Some(interface) = self.interface_of(port) else { return Ok(Counters::default()) };
        let interface = key::number(interface);
        let mut bytes_in = 0;
        let mut packets = |set| {
            let counted = self.counted(set, &interface)?;
            bytes_in += counted.frame_bytes();
            Ok(counted.packets)
        };
        let counters = Counters {
            delivered: packets(ruleset::DELIVERED)?,
            redirected: packets(ruleset::REDIRECTED)?,
            not_addressed: packets(ruleset::NOT_ADDRESSED)?,
            forged: packets(ruleset::FORGED)?,
            no_route: packets(ruleset::NO_ROUTE)?,
            denied: packets(ruleset::DENIED)?,
            no_port: packets(ruleset::NO_PORT)?,
            partitioned: packets(ruleset::PARTITIONED)?,
            dropped: packets(ruleset::DROPPED)?,
            ..Counters::default()
        };
        let went_out = self.counted(ruleset::OUT, &key::number(u32::from(port)))?;
        Ok(Counters {
            granted: noted.granted,
            table_full: self.counted(ruleset::TABLE_FULL, &interface)?.packets,
            events_lost: noted.events_lost,
            bytes_in,
            packets_out: went_out.packets,
            bytes_out: went_out.frame_bytes(),
            ..counters
        })
    }

    fn counted(&mut self, set: &'static str, key: &[u8]) -> Result<Counted, SwitchError> {
        let found = self.kernel.elements_of(ruleset::TABLE, set, Some(ruleset::element(key)));
        let found = found.map_err(|error| failed(&format!("read the counters {set}"), &error))?;
        Ok(found.first().and_then(|element| Counted::of(element)).unwrap_or_default())
    }

    /// Pages, ports, and how many requests for the page arrived at the port; counting then restarts.
    pub(super) fn take_hot(&mut self) -> Result<Vec<(Page, u16, u64)>, SwitchError> {
        const INTERFACE_AT: usize = 12;
        let found = self.kernel.elements_of(ruleset::TABLE, ruleset::HOT, None);
        let found = found.map_err(|error| failed("read the hot pages", &error))?;
        let mut changes = Changes::new(ruleset::TABLE);
        changes.clear(ruleset::HOT);
        self.carry_out(&changes, "forget the hot pages")?;
        let counted = |element: &Vec<u8>| {
            let key = netlink::attribute(netlink::attribute(element, 1)?, 1)?;
            let interface = u32::from_ne_bytes(key.get(INTERFACE_AT..)?.try_into().ok()?);
            Some((key::page_of(key)?, *self.ports.get(&interface)?, Counted::of(element)?.packets))
        };
        Ok(found.iter().filter_map(counted).collect())
    }
}

/// The counter of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    bytes: u64,
    packets: u64,
}

impl Counted {
    /// The counter of an element, if it has one.
    fn of(element: &[u8]) -> Option<Counted> {
        let data = netlink::attribute(netlink::attribute(element, 7)?, 2)?;
        let number = |kind| netlink::attribute(data, kind)?.try_into().map(u64::from_be_bytes).ok();
        Some(Counted { bytes: number(1)?, packets: number(2)? })
    }

    /// Including the hardware header of each packet.
    fn frame_bytes(self) -> u64 {
        self.bytes + self.packets * ETHERNET_BYTES
    }
}

/// The rest of a time, in the kernel's form.
fn milliseconds(ticks: u64) -> u64 {
    let left = Duration::from_nanos(ticks << layout::TICK_SHIFT).max(TERM_MIN);
    u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(TERM_MILLISECONDS_MAX)
}

fn full(table: &'static str, limit: u32, hint: &'static str) -> SwitchError {
    SwitchError::Full { switch: NAME, table, limit, hint }
}

fn failed(attempt: &str, error: &io::Error) -> SwitchError {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it takes root, or a user namespace with a network of its own, where no other switch `nft` is"
        }
        Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::ENOENT | libc::EINVAL) => {
            "it takes Linux 6.3 or newer with nf_tables, its family netdev and nfnetlink_log; the switch `user` needs none"
        }
        _ => "see the kernel's log for more",
    };
    SwitchError::System { attempt: attempt.to_owned(), cause: error.to_string(), hint: hint.to_owned() }
}
