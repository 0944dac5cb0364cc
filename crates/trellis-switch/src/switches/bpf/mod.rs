//! The switch `bpf`: a program in the kernel at each interface, `switch/switch.bpf.c`. This file fills its tables, and
//! `attachment` attaches it, with tc or as XDP.
//!
//! Promises: program and tables end with this value, or with the process. When an entry changes, a packet sees either
//! the old one or the new one. It must never touch an interface that it was not given.

mod attachment;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap as Table, LpmTrie, Map, MapData, MapError, PerCpuArray, PerCpuHashMap, RingBuf};

use attachment::Form;

use crate::address::{self, Cluster, Page, PageRange, Prefix};
use crate::capabilities::Capabilities;
use crate::clock;
use crate::entries::{Group, PAGE_ROUTES_MAX, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::faults::Faults;
use crate::layout;
use crate::observed::{Counters, Event, EventKind, HotPage};
use crate::switch::Switch;
use crate::switches::page_routes::PageRoutes;
use crate::switches::worker::Worker;
use crate::switches::{self, Wiring};
use crate::sys;

const NAME: &str = "bpf";
/// Insert or replace.
const ANY: u64 = 0;
/// How often it is checked whether the kernel found no room for a redirect.
const LOOK: Duration = Duration::from_millis(100);

type PortBytes = [u8; layout::PORT_BYTES];
type RouteBytes = [u8; layout::ROUTE_BYTES];
type RedirectBytes = [u8; layout::REDIRECT_BYTES];

/// State that cannot be read quickly from the kernel's tables.
#[derive(Default)]
struct Known {
    routes: HashMap<u16, Route>,
    longer: BTreeMap<Prefix, Route>,
    /// By home, for homes that have page ranges.
    page_routes: HashMap<u16, PageRoutes>,
    /// By home: the number of its group, and the copied classes.
    groups: HashMap<u16, (u16, u16)>,
    ports: HashMap<u16, PortBytes>,
    rules: HashMap<u32, u16>,
    settings: [u8; layout::SETTINGS_BYTES],
}

struct Tables {
    known: Known,
    settings: Array<MapData, [u8; layout::SETTINGS_BYTES]>,
    ports: Array<MapData, PortBytes>,
    homes: Array<MapData, RouteBytes>,
    prefixes: LpmTrie<MapData, [u8; layout::ADDRESS_BYTES], RouteBytes>,
    page_routes: LpmTrie<MapData, [u8; layout::PAGE_RANGE_BYTES], u32>,
    redirects: Table<MapData, u64, RedirectBytes>,
    groups: Array<MapData, [u8; layout::GROUP_BYTES]>,
    rules: Table<MapData, u32, u32>,
    hot: PerCpuHashMap<MapData, u64, u64>,
    counters: PerCpuArray<MapData, [u64; layout::COUNTERS]>,
    events: RingBuf<MapData>,
}

/// The switch; the module's text says what it promises.
pub struct Bpf {
    cluster: Cluster,
    redirects_max: u32,
    form: Form,
    tables: Arc<Mutex<Tables>>,
    /// Makes room when the kernel finds none: a packet cannot wait while a table is searched.
    _sweeper: Worker,
    /// Dropping it detaches the program from the interfaces.
    _program: Ebpf,
}

impl Bpf {
    /// Attaches the program to the interfaces in the calling thread's network namespace.
    pub(super) fn open(wiring: &Wiring) -> Result<Bpf, SwitchError> {
        let forms = attachment::forms(wiring);
        let mut outcome = Bpf::open_as(forms[0], wiring);
        for form in &forms[1..] {
            outcome = outcome.or_else(|_| Bpf::open_as(*form, wiring));
        }
        outcome
    }

    fn open_as(form: Form, wiring: &Wiring) -> Result<Bpf, SwitchError> {
        let mut program = attachment::load(form, wiring.redirects_max)?;
        let mut tables = Tables::of(&mut program, wiring)?;
        tables.plug_in(&mut program, wiring)?;
        attachment::attach(&mut program, &wiring.ports)?;
        let (cluster, redirects_max) = (wiring.cluster, wiring.redirects_max);
        let tables = Arc::new(Mutex::new(tables));
        let swept = Arc::clone(&tables);
        let sweeper = Worker::start(move |ringing| sweep_when_full(&swept, &ringing))?;
        Ok(Bpf { cluster, redirects_max, form, tables, _sweeper: sweeper, _program: program })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        locked(&self.tables)
    }
}

fn locked(tables: &Mutex<Tables>) -> MutexGuard<'_, Tables> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ranges until the alarm is dropped.
fn sweep_when_full(tables: &Mutex<Tables>, ringing: &sys::Ringing) {
    let mut known = 0;
    while sys::wait_readable(&[ringing.as_fd()], Some(LOOK)).is_empty() {
        let mut tables = locked(tables);
        // What cannot be read or swept now is tried again next time.
        let Ok(found) = tables.found_full() else { continue };
        if found != known && tables.sweep().is_ok() {
            known = found;
        }
    }
}

impl Tables {
    fn of(program: &mut Ebpf, wiring: &Wiring) -> Result<Tables, SwitchError> {
        let mut settings = [0; layout::SETTINGS_BYTES];
        settings[..4].copy_from_slice(&wiring.cluster.scope());
        Ok(Tables {
            known: Known { settings, ..Known::default() },
            settings: table(program, "settings")?,
            ports: table(program, "ports")?,
            homes: table(program, "homes")?,
            prefixes: table(program, "prefixes")?,
            page_routes: table(program, "page_routes")?,
            redirects: table(program, "redirects")?,
            groups: table(program, "groups")?,
            rules: table(program, "rules")?,
            hot: table(program, "hot")?,
            counters: table(program, "counters")?,
            events: table(program, "events")?,
        })
    }

    fn plug_in(&mut self, program: &mut Ebpf, wiring: &Wiring) -> Result<(), SwitchError> {
        let mut interfaces: Table<MapData, u32, u32> = table(program, "interfaces")?;
        for port in &wiring.ports {
            let index = switches::interface_index(port)?;
            interfaces.insert(index, u32::from(port.number), ANY).map_err(|error| map_error("ports", &error))?;
            let mut bytes = [0; layout::PORT_BYTES];
            bytes[..4].copy_from_slice(&index.to_ne_bytes());
            bytes[layout::PORT_MAC_AT..][..6].copy_from_slice(&port.host_mac);
            let flags = if port.is_pair { layout::PORT_PEER } else { 0 };
            bytes[layout::PORT_FLAGS_AT..][..2].copy_from_slice(&flags.to_ne_bytes());
            self.set_port(port.number, bytes)?;
        }
        self.set_settings()
    }

    fn set_port(&mut self, number: u16, bytes: PortBytes) -> Result<(), SwitchError> {
        self.known.ports.insert(number, bytes);
        self.ports.set(u32::from(number), bytes, ANY).map_err(|error| map_error("ports", &error))
    }

    fn set_settings(&mut self) -> Result<(), SwitchError> {
        self.settings.set(0, self.known.settings, ANY).map_err(|error| map_error("settings", &error))
    }

    fn change_settings(&mut self, at: usize, bytes: &[u8]) -> Result<(), SwitchError> {
        self.known.settings[at..at + bytes.len()].copy_from_slice(bytes);
        self.set_settings()
    }

    /// Writes the entries of a home.
    fn write_home(&mut self, home: u16) -> Result<(), SwitchError> {
        let route = self.known.routes.get(&home);
        let mut flags = route.map_or(0, |route| layout::ROUTE_VALID | memory_flag(route));
        if self.known.longer.keys().any(|prefix| prefix.home() == home) {
            flags |= layout::ROUTE_HAS_LONGER;
        }
        flags |= self.runs_flag(home);
        let group = self.known.groups.get(&home).copied().unwrap_or_default();
        let bytes = route_bytes(route.map_or(0, |route| route.port), flags, group);
        self.homes.set(u32::from(home), bytes, ANY).map_err(|error| map_error("homes", &error))
    }

    /// The flag in a home's routes that it has page ranges.
    fn runs_flag(&self, home: u16) -> u16 {
        if self.known.page_routes.contains_key(&home) { layout::ROUTE_HAS_PAGES } else { 0 }
    }

    /// Writes the longer prefixes of a home, which belong to its group and contain the flag for page ranges.
    fn write_longer(&mut self, home: u16) -> Result<(), SwitchError> {
        let group = self.known.groups.get(&home).copied().unwrap_or_default();
        let runs_flag = self.runs_flag(home);
        for (prefix, route) in self.known.longer.iter().filter(|(prefix, _)| prefix.home() == home) {
            let bytes = route_bytes(route.port, layout::ROUTE_VALID | memory_flag(route) | runs_flag, group);
            self.prefixes.insert(&trie_key(*prefix), bytes, ANY).map_err(|error| map_error("prefixes", &error))?;
        }
        Ok(())
    }

    fn entry(&self, page: Page) -> Result<Option<Entry>, SwitchError> {
        match self.redirects.get(&page.key(), 0) {
            Ok(bytes) => Ok(Some(Entry::read(&bytes))),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(map_error("redirects", &error)),
        }
    }

    fn forget(&mut self, page: Page) -> Result<bool, SwitchError> {
        removed(self.redirects.remove(&page.key())).map_err(|error| map_error("redirects", &error))
    }

    /// Removes redirects that have ended; returns how many.
    fn sweep(&mut self) -> Result<u32, SwitchError> {
        let ended = |(key, bytes): (u64, RedirectBytes)| Entry::read(&bytes).has_ended().then_some(key);
        // An entry that is removed while the table is read ends the walk early or appears twice; both are harmless.
        let keys: Vec<u64> = self.redirects.iter().filter_map(Result::ok).filter_map(ended).collect();
        let mut swept = 0;
        for key in keys {
            swept += u32::from(self.forget(Page::from_key(key))?);
        }
        Ok(swept)
    }

    /// The counts of a port.
    fn counts(&self, port: u16) -> Result<Counters, SwitchError> {
        let values = self.counters.get(&u32::from(port), 0).map_err(|error| map_error("counters", &error))?;
        let mut sums = [0; layout::COUNTERS];
        for (sum, index) in sums.iter_mut().zip(0..) {
            *sum = values.iter().map(|one: &[u64; layout::COUNTERS]| one[index]).sum();
        }
        Ok(Counters::from_values(&sums))
    }

    /// How often the kernel found no room for a redirect.
    fn found_full(&self) -> Result<u64, SwitchError> {
        self.known.ports.keys().map(|&port| Ok(self.counts(port)?.table_full)).sum()
    }

    fn write_rules(&mut self, rules: HashMap<u32, u16>) -> Result<(), SwitchError> {
        for (key, classes) in &rules {
            self.rules.insert(key, u32::from(*classes), ANY).map_err(|error| map_error("rules", &error))?;
        }
        let stale: Vec<u32> = self.known.rules.keys().filter(|key| !rules.contains_key(key)).copied().collect();
        for key in stale {
            removed(self.rules.remove(&key)).map_err(|error| map_error("rules", &error))?;
        }
        self.known.rules = rules;
        Ok(())
    }
}

/// A redirect in the kernel's form.
struct Entry {
    port: u16,
    until: u64,
    epoch: u64,
}

impl Entry {
    fn read(bytes: &RedirectBytes) -> Entry {
        let word = number(bytes, 0);
        let until = word & layout::TICKS_FOREVER;
        Entry { port: (word >> layout::OFFSET_BITS) as u16, until, epoch: number(bytes, layout::REDIRECT_EPOCH_AT) }
    }

    fn bytes(&self) -> RedirectBytes {
        let word = u64::from(self.port) << layout::OFFSET_BITS | self.until;
        let mut bytes = [0; layout::REDIRECT_BYTES];
        bytes[..8].copy_from_slice(&word.to_ne_bytes());
        bytes[layout::REDIRECT_EPOCH_AT..layout::REDIRECT_ENDING_AT].copy_from_slice(&self.epoch.to_ne_bytes());
        bytes
    }

    fn has_ended(&self) -> bool {
        self.until <= clock::ticks_now()
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(eight)
}

fn memory_flag(route: &Route) -> u16 {
    if route.is_memory { layout::ROUTE_MEMORY } else { 0 }
}

fn route_bytes(port: u16, flags: u16, (group, classes): (u16, u16)) -> RouteBytes {
    let mut bytes = [0; layout::ROUTE_BYTES];
    bytes[..2].copy_from_slice(&port.to_ne_bytes());
    bytes[layout::ROUTE_FLAGS_AT..][..2].copy_from_slice(&flags.to_ne_bytes());
    bytes[layout::ROUTE_GROUP_AT..][..2].copy_from_slice(&group.to_ne_bytes());
    bytes[layout::ROUTE_CLASSES_AT..][..2].copy_from_slice(&classes.to_ne_bytes());
    bytes
}

fn trie_key(prefix: Prefix) -> Key<[u8; layout::ADDRESS_BYTES]> {
    Key::new(u32::from(prefix.bits()), prefix.address().octets())
}

fn page_range_key(range: PageRange) -> Key<[u8; layout::PAGE_RANGE_BYTES]> {
    let page = Page { home: range.home(), number: range.first() << layout::PAGE_SHIFT };
    Key::new(layout::PAGE_RANGE_BITS - u32::from(range.order()), page.key().to_be_bytes())
}

/// The page and the port of a key.
fn hot_of(key: u64) -> (Page, u16) {
    let port = key >> layout::HOT_PORT_SHIFT & u64::from(layout::PORTS_MAX - 1);
    (Page::from_key(key & !(port << layout::HOT_PORT_SHIFT)), port as u16)
}

/// One of the program's tables, with its type.
fn table<T>(program: &mut Ebpf, name: &'static str) -> Result<T, SwitchError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = program.take_map(name).ok_or_else(|| failed(format!("find the table {name}"), &"it is missing"))?;
    T::try_from(map).map_err(|error| map_error(name, &error))
}

/// Whether there was an entry to remove.
fn removed(outcome: Result<(), MapError>) -> Result<bool, MapError> {
    match outcome {
        Ok(()) => Ok(true),
        Err(MapError::KeyNotFound) => Ok(false),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The error for an entry that a table did not accept.
fn map_error(table: &'static str, error: &MapError) -> SwitchError {
    let full = |limit, hint| SwitchError::Full { switch: NAME, table, limit, hint };
    match error {
        MapError::SyscallError(call) if matches!(call.io_error.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)) => {
            match table {
                "rules" => full(layout::RULES_MAX, "drop some"),
                "page_routes" => switches::no_room_for_page_route(NAME),
                _ => full(layout::PREFIXES_MAX, "drop some"),
            }
        }
        error => failed(format!("change the table of {table}"), error),
    }
}

fn failed(attempt: impl Into<String>, error: &dyn std::fmt::Display) -> SwitchError {
    let hint = "it takes root and Linux 6.6 or newer; the switch `user` needs neither".to_owned();
    SwitchError::System { attempt: attempt.into(), cause: error.to_string(), hint }
}

impl Switch for Bpf {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let copies = self.form == Form::Tc;
        Capabilities { copies, delays: false, ..Capabilities::all(self.redirects_max) }
    }

    fn cluster(&self) -> Cluster {
        self.cluster
    }

    fn set_prefix(&self, prefix: Prefix, route: Route) -> Result<(), SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        switches::check_port(NAME, route.port)?;
        let mut tables = self.tables();
        if prefix.bits() == address::HOME_BITS {
            tables.known.routes.insert(prefix.home(), route);
        } else {
            let before = tables.known.longer.insert(prefix, route);
            if let Err(error) = tables.write_longer(prefix.home()) {
                match before {
                    Some(before) => tables.known.longer.insert(prefix, before),
                    None => tables.known.longer.remove(&prefix),
                };
                return Err(error);
            }
        }
        tables.write_home(prefix.home())
    }

    fn drop_prefix(&self, prefix: Prefix) -> Result<bool, SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        let mut tables = self.tables();
        let home = prefix.home();
        let was_there = if prefix.bits() == address::HOME_BITS {
            tables.known.groups.remove(&home);
            tables.write_longer(home)?;
            tables.known.routes.remove(&home).is_some()
        } else {
            removed(tables.prefixes.remove(&trie_key(prefix))).map_err(|error| map_error("prefixes", &error))?;
            tables.known.longer.remove(&prefix).is_some()
        };
        tables.write_home(home)?;
        Ok(was_there)
    }

    fn set_page_route(&self, range: PageRange, port: u16) -> Result<(), SwitchError> {
        switches::check_port(NAME, port)?;
        let mut tables = self.tables();
        let home = range.home();
        let is_there = tables.known.page_routes.get(&home).is_some_and(|ranges| ranges.port(range).is_some());
        if !is_there
            && tables.known.page_routes.values().map(PageRoutes::len).sum::<usize>() >= PAGE_ROUTES_MAX as usize
        {
            return Err(switches::no_room_for_page_route(NAME));
        }
        tables
            .page_routes
            .insert(&page_range_key(range), u32::from(port), ANY)
            .map_err(|error| map_error("page_routes", &error))?;
        let is_first = !tables.known.page_routes.contains_key(&home);
        tables.known.page_routes.entry(home).or_default().set(range, port);
        if !is_first {
            return Ok(());
        }
        let said = tables.write_longer(home).and_then(|()| tables.write_home(home));
        if said.is_err() {
            // Its routes do not have the flag, so it has no page range.
            tables.known.page_routes.remove(&home);
        }
        said
    }

    fn drop_page_route(&self, range: PageRange) -> Result<bool, SwitchError> {
        let mut tables = self.tables();
        let home = range.home();
        removed(tables.page_routes.remove(&page_range_key(range))).map_err(|error| map_error("page_routes", &error))?;
        let Some(ranges) = tables.known.page_routes.get_mut(&home) else { return Ok(false) };
        let was_there = ranges.drop(range);
        if ranges.len() == 0 {
            tables.known.page_routes.remove(&home);
            tables.write_home(home)?;
            tables.write_longer(home)?;
        }
        Ok(was_there)
    }

    fn page_routes(&self, home: u16) -> Result<Vec<(PageRange, u16)>, SwitchError> {
        Ok(self.tables().known.page_routes.get(&home).map(|ranges| ranges.all(home)).unwrap_or_default())
    }

    fn set_redirect(&self, page: Page, redirect: Redirect) -> Result<bool, SwitchError> {
        switches::check_port(NAME, redirect.port)?;
        let mut tables = self.tables();
        let known = tables.entry(page)?;
        if known.is_some_and(|known| !known.has_ended() && known.epoch > redirect.epoch) {
            return Ok(false);
        }
        let until = clock::ticks_until(redirect.until);
        let entry = Entry { port: redirect.port, until, epoch: redirect.epoch };
        let insert = |tables: &mut Tables| {
            let inserted = tables.redirects.insert(page.key(), entry.bytes(), ANY);
            inserted.map_err(|error| map_error("redirects", &error))
        };
        let mut done = insert(&mut tables);
        if done.as_ref().is_err_and(SwitchError::is_full) && tables.sweep()? > 0 {
            done = insert(&mut tables);
        }
        done.map(|()| true).map_err(|error| match error {
            SwitchError::Full { .. } => SwitchError::Full {
                switch: NAME,
                table: "redirects",
                limit: self.redirects_max,
                hint: "wait until some end, or open the switch with more",
            },
            error => error,
        })
    }

    fn drop_redirect(&self, page: Page, epoch: u64) -> Result<bool, SwitchError> {
        let mut tables = self.tables();
        match tables.entry(page)? {
            Some(known) if known.epoch <= epoch => tables.forget(page),
            _ => Ok(false),
        }
    }

    fn redirect(&self, page: Page) -> Result<Option<Redirect>, SwitchError> {
        let entry = self.tables().entry(page)?.filter(|entry| !entry.has_ended());
        Ok(entry.map(|entry| Redirect { port: entry.port, epoch: entry.epoch, until: clock::instant_of(entry.until) }))
    }

    fn sweep(&self) -> Result<u32, SwitchError> {
        self.tables().sweep()
    }

    fn set_group(&self, group: &Group) -> Result<(), SwitchError> {
        switches::check_group(NAME, self.cluster, group)?;
        if self.form == Form::Xdp {
            let what = "XDP cannot copy what goes to a home; `--attach tc` can".to_owned();
            return Err(SwitchError::Unsupported { switch: NAME, what });
        }
        let home = group.prefix.home();
        let mut tables = self.tables();
        if !tables.known.routes.contains_key(&home) {
            return Err(switches::no_route_to_copy(NAME, group));
        }
        if group.ports.is_empty() {
            tables.known.groups.remove(&home);
        } else {
            let used: Vec<u16> = tables.known.groups.values().map(|(number, _)| *number).collect();
            let known = tables.known.groups.get(&home).map(|(number, _)| *number);
            let free = known.or_else(|| (1..layout::GROUPS_MAX as u16).find(|number| !used.contains(number)));
            let full = SwitchError::Full {
                switch: NAME,
                table: "groups",
                limit: layout::GROUPS_MAX - 1,
                hint: "take away the ports of one",
            };
            let number = free.ok_or(full)?;
            let mut bytes = [0; layout::GROUP_BYTES];
            for (place, port) in bytes.chunks_exact_mut(2).zip(&group.ports) {
                place.copy_from_slice(&port.to_ne_bytes());
            }
            tables.groups.set(u32::from(number), bytes, ANY).map_err(|error| map_error("groups", &error))?;
            tables.known.groups.insert(home, (number, group.classes.bits()));
        }
        tables.write_longer(home)?;
        tables.write_home(home)
    }

    fn set_rules(&self, rules: Option<&[Rule]>) -> Result<(), SwitchError> {
        let mut tables = self.tables();
        match rules {
            Some(rules) => {
                tables.write_rules(switches::rule_table(rules))?;
                tables.change_settings(layout::SETTINGS_FLAGS_AT, &layout::SETTINGS_RULES.to_ne_bytes())
            }
            None => {
                tables.change_settings(layout::SETTINGS_FLAGS_AT, &0_u32.to_ne_bytes())?;
                tables.write_rules(HashMap::new())
            }
        }
    }

    fn set_leases(&self, term: Option<Duration>) -> Result<(), SwitchError> {
        let ticks = term.map_or(0, clock::ticks);
        self.tables().change_settings(layout::SETTINGS_TERM_AT, &ticks.to_ne_bytes())
    }

    fn set_side(&self, port: u16, side: u32) -> Result<(), SwitchError> {
        let mut tables = self.tables();
        let Some(mut bytes) = tables.known.ports.get(&port).copied() else {
            return Err(switches::nothing_plugged_in(NAME, port));
        };
        bytes[layout::PORT_SIDE_AT..][..4].copy_from_slice(&side.to_ne_bytes());
        tables.set_port(port, bytes)
    }

    fn set_faults(&self, faults: &Faults) -> Result<(), SwitchError> {
        if !faults.only_drop() {
            return Err(switches::only_loses(NAME));
        }
        self.tables().change_settings(layout::SETTINGS_DROP_AT, &faults.drop_ppm.to_ne_bytes())
    }

    fn counters(&self, port: u16) -> Result<Counters, SwitchError> {
        switches::check_port(NAME, port)?;
        self.tables().counts(port)
    }

    fn hot_pages(&self, count: usize) -> Result<Vec<HotPage>, SwitchError> {
        let mut tables = self.tables();
        let counted: Vec<(u64, u64)> =
            tables.hot.iter().filter_map(Result::ok).map(|(key, values)| (key, values.iter().sum())).collect();
        for (key, _) in &counted {
            removed(tables.hot.remove(key)).map_err(|error| map_error("hot pages", &error))?;
        }
        let counted = counted.into_iter().map(|(key, requests)| {
            let (page, port) = hot_of(key);
            (page, port, requests)
        });
        Ok(switches::hottest(counted, count))
    }

    fn events(&self) -> Result<Vec<Event>, SwitchError> {
        let mut tables = self.tables();
        let mut events = Vec::new();
        while let Some(bytes) = tables.events.next() {
            events.extend(event(&bytes));
        }
        Ok(events)
    }
}

/// Decodes an event of the kernel; `None` for one that this crate does not know.
fn event(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; layout::EVENT_BYTES] = bytes.try_into().ok()?;
    let kind = u32::from_ne_bytes(bytes[layout::EVENT_KIND_AT..][..4].try_into().ok()?);
    Some(Event {
        kind: EventKind::from_number(kind)?,
        page: Page::from_key(number(bytes, layout::EVENT_PAGE_AT)),
        port: u16::from_ne_bytes(bytes[layout::EVENT_PORT_AT..][..2].try_into().ok()?),
        epoch: number(bytes, layout::EVENT_EPOCH_AT),
        time: Duration::from_nanos(number(bytes, 0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PAGE_BITS;

    #[test]
    fn keys_of_runs_and_hot_pages_are_what_the_program_makes_of_an_address() {
        let range = PageRange::new(0x1001, 0x1_2345_6780, 4).unwrap();
        let key = page_range_key(range);
        let address = Cluster::new(1).address(0x1001, 0, 0, range.first() << layout::PAGE_SHIFT).octets();
        let bytes = [&address[layout::ADDRESS_HOME_AT..][..2], &address[layout::ADDRESS_OFFSET_AT..]].concat();
        assert_eq!((key.prefix_len(), key.data().as_slice()), (48, bytes.as_slice()));
        assert_eq!(page_range_key(PageRange::new(7, 0, PAGE_BITS).unwrap()).prefix_len(), 16);
        let page = Page { home: 0xffff, number: (1 << PAGE_BITS) - 1 };
        for port in [1, 0x3ff] {
            assert_eq!(hot_of(page.key() | u64::from(port) << layout::HOT_PORT_SHIFT), (page, port));
        }
    }

    #[test]
    fn redirects_and_events_are_read_as_they_are_written() {
        let entry = Entry { port: 0x3ff, until: layout::TICKS_FOREVER, epoch: 0x0102_0304_0506_0708 };
        let read = Entry::read(&entry.bytes());
        assert_eq!((read.port, read.until, read.epoch), (entry.port, entry.until, entry.epoch));
        let mut bytes = [0; layout::EVENT_BYTES];
        bytes[..8].copy_from_slice(&5_u64.to_ne_bytes());
        bytes[layout::EVENT_PAGE_AT..][..8].copy_from_slice(&Page { home: 7, number: 9 }.key().to_ne_bytes());
        bytes[layout::EVENT_EPOCH_AT..][..8].copy_from_slice(&3_u64.to_ne_bytes());
        bytes[layout::EVENT_KIND_AT..][..4].copy_from_slice(&layout::EVENT_RENEWED.to_ne_bytes());
        bytes[layout::EVENT_PORT_AT..][..2].copy_from_slice(&2_u16.to_ne_bytes());
        let renewed = Event {
            kind: EventKind::Renewed,
            page: Page { home: 7, number: 9 },
            port: 2,
            epoch: 3,
            time: Duration::from_nanos(5),
        };
        assert_eq!(event(&bytes), Some(renewed));
        assert_eq!(event(&bytes[..31]), None);
        bytes[layout::EVENT_KIND_AT] = 0;
        assert_eq!(event(&bytes), None);
    }
}
