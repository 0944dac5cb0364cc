//! A memory server: one socket, one thread that answers, and the ranges it serves. These are its own range and, if a
//! controller assigns homes, ranges of other hosts and parts of ranges. (A *part* is a subrange with a home of its
//! own.)
//!
//! The thread takes a datagram, lets [`MemoryServer`](trellis_fabric_protocol::memory_server::MemoryServer) decide, and
//! carries out its orders, all of them before the next datagram. Nothing here therefore needs a lock, and an atomic
//! addition is an ordinary one. [`LeaseServer`] decides about leases of pages and about which host is home, in the same
//! thread.
//!
//! It must never answer a client that it cannot identify, nor a datagram that claims to be an answer; nor obey a
//! controller that it was not configured with.

mod context;
mod controllers;
mod events;
mod follows;
mod held;
mod parts;
mod placed;

pub use events::{Event, Place};

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::lease::parts::Within;
use trellis_fabric_protocol::lease::server::RangeServer;
use trellis_fabric_protocol::lease::{Party, Placement, RangeNumber, Timing};
use trellis_fabric_protocol::memory_server::table_pages::{TablePages, table_pages};
use trellis_fabric_protocol::memory_server::{
    LeaseServer, MemoryServer, Range, SessionLimits, Settings, StagingLimits, Statistics, refusal,
};
use trellis_fabric_protocol::wire::address::{
    Address, Destination, Host, HostPrefix, Incarnation, PAGE_BYTES, PARTS_FROM, PORT, Source,
};
use trellis_fabric_protocol::wire::command::{Class, Command};
use trellis_fabric_protocol::wire::datagram::control::What;
use trellis_fabric_protocol::wire::datagram::{
    Body, ControlMessage, HEADER_BYTES, Notice, Reply, Request, Rules, Status, TagKind,
};
use trellis_fabric_protocol::wire::refusals::{Reason, Refusals};
use trellis_memory::Arena;
use trellis_transport::links::ipv6::{Arrived, Endpoint};

use super::memory::ServerMemory;
use super::{CLOCK_ERROR_PPM, Hardware, RemoteError, random_number};
use context::Context;
use controllers::Controllers;
use follows::Follows;
use held::{Hand, Held};
use parts::{Where, names};
use placed::Placed;

/// How long a client may be silent until its session ends.
pub(crate) const SESSION: Deadline = Deadline {
    who: "a memory server",
    waits_for: "a client with a session, to say something",
    limit: Limit::Setting("ServerOptions::session_silence_max", Duration::from_secs(60)),
    then: "the session ends",
    tested: "crates/trellis-remote/tests/remote.rs a_client_that_was_silent_says_hello_before_it_changes_something",
};
/// How long a client may keep a page without renewing its lease or copy.
pub(crate) const LEASE_TERM: Deadline = Deadline {
    who: "a memory server",
    waits_for: "a client that has a page which another one wants",
    limit: Limit::Setting("ServerOptions::lease_term", Duration::from_secs(10)),
    then: "its lease ends, and what it commits later is refused",
    tested: "crates/trellis-remote/tests/remote_leases.rs who_is_silent_loses_the_lease_and_its_late_commit_is_fenced",
};
/// How often an idle server checks whether it must stop, and how often time passes for what it remembers.
const TICK: Duration = Duration::from_millis(250);
/// The maximum length of a datagram.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
const SECOND: u64 = 1_000_000_000;
/// How many datagrams are answered before the socket is read again and due work is checked. Each page that a backup
/// confirms sends the next one, so the answers of one turn can take a thousand times as long as reading the socket.
const BURST: usize = 32;
/// The maximum number of datagrams that wait here while messages about homes that came later are handled. Others wait
/// in the socket. More would be answered when their clients have asked again.
const LATER_MAX: usize = 512;
/// The maximum number of ranges of which a server knows only the numbers.
const UNKNOWN_MAX: usize = 64;

/// The parameters of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Its addresses: `fdCC:CCCC:HHHH::/48`.
    pub prefix: HostPrefix,
    /// The memory that it provides, in whole pages of 4 KiB.
    pub memory_bytes: u64,
    /// The maximum that one host may use of it; `None` for all.
    pub quota_bytes: Option<u64>,
    /// The port on which it listens.
    pub port: u16,
    /// The weakest accepted tag.
    pub least: TagKind,
    /// The session of a client that is silent for this long ends; whole milliseconds.
    pub session_silence_max: Duration,
    /// The duration of a lease or a copy of a page unless it is renewed; at least a millisecond.
    pub lease_term: Duration,
    /// The numbers of the hosts of controllers, which assign homes to ranges; the first that answers is obeyed. If
    /// empty, this server is home of its own range as long as it runs.
    pub controllers: Vec<Host>,
    /// The memory that it provides for ranges of other hosts, in addition to its own.
    pub backup_bytes: u64,
    /// The duration of a home lease: how long the server answers without hearing from a controller. All servers and
    /// controllers must have the same value.
    pub home_lease: Duration,
}

impl ServerOptions {
    /// This much memory without quotas: port 5000, checksums, a silence of a minute, leases of ten seconds, no
    /// controller.
    pub fn new(prefix: HostPrefix, memory_bytes: u64) -> ServerOptions {
        ServerOptions {
            prefix,
            memory_bytes,
            quota_bytes: None,
            port: PORT,
            least: TagKind::Checksum,
            session_silence_max: SESSION.time(),
            lease_term: LEASE_TERM.time(),
            controllers: Vec::new(),
            backup_bytes: 0,
            home_lease: Duration::from_millis(500),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// When the memory is not a whole number of pages or more than the machine has, or when other settings are
    /// inconsistent.
    pub fn check(&self) -> Result<(), RemoteError> {
        let bytes = self.memory_bytes;
        if bytes < PAGE_BYTES || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(RemoteError::Setting(format!(
                "a memory of {bytes} bytes is not a whole number of pages of {PAGE_BYTES} bytes; the next one is {}",
                bytes.max(1).next_multiple_of(PAGE_BYTES)
            )));
        }
        let me = self.prefix.host;
        let last = PARTS_FROM - 1;
        if !(1..PARTS_FROM).contains(&me.0) {
            return Err(RemoteError::Setting(format!(
                "host {me:#x} cannot have a memory server, because numbers above {last:#x} name parts of ranges; give a host from 0x1 to {last:#x}"
            )));
        }
        if let Some(host) = self.controllers.iter().find(|host| !(1..PARTS_FROM).contains(&host.0) || **host == me) {
            return Err(RemoteError::Setting(format!(
                "host {host:#x} cannot be the controller of the server at host {me:#x}; give one from 0x1 to {last:#x} that is another"
            )));
        }
        if self.controllers.is_empty() && self.backup_bytes > 0 {
            return Err(RemoteError::Setting(
                "memory for backups is of no use without a controller that says whose; give a controller, too"
                    .to_owned(),
            ));
        }
        let promised = bytes.saturating_add(self.backup_bytes);
        trellis_memory::can_hold(usize::try_from(promised).unwrap_or(usize::MAX)).map_err(|limit| {
            let copies = if self.backup_bytes > 0 { ", the copies of others' memory included" } else { "" };
            RemoteError::Setting(format!("{promised} bytes of memory{copies} cannot be promised: {limit}; give less"))
        })?;
        timing(self).map(|_| ())
    }
}

/// Stops a [`Server::serve`] from another thread or a signal handler.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops the server within a quarter of a second.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The server.
pub struct Server {
    options: ServerOptions,
    context: Context,
    /// Ranges by the host number in their pointers, and parts by their numbers; always includes its own range.
    ranges: BTreeMap<RangeNumber, Held>,
    /// The parts that are held here, by range and first page: their number of pages, and their part numbers.
    parts: BTreeMap<(RangeNumber, u64), (u64, RangeNumber)>,
    /// Unknown part numbers about which the controller was asked, and when.
    located: BTreeMap<RangeNumber, u64>,
    /// Pages of other homes of which it answers READs.
    follows: Follows,
    /// The timing of its ranges.
    timing: Timing,
    /// The random boot id of this process, by which a controller knows it.
    boot_id: u16,
    on_event: Box<dyn FnMut(&Event) + Send>,
    /// Datagrams that wait until those about homes are handled.
    later: VecDeque<(Arrived, Vec<u8>)>,
    refusals: Refusals,
}

impl Server {
    /// Allocates the memory and opens the socket.
    ///
    /// # Errors
    ///
    /// When a setting is invalid, or the system provides no memory or no socket.
    pub fn open(options: ServerOptions) -> Result<Server, RemoteError> {
        options.check()?;
        let bytes = options.memory_bytes;
        let arena = Arena::new(bytes).map_err(|error| RemoteError::Memory { bytes, error })?;
        Server::opened(options, Box::new(arena))
    }

    /// Opens the socket, for a memory of as many bytes as the options say.
    ///
    /// # Errors
    ///
    /// When a setting is invalid, or the system provides no socket. A device that shares the memory answers without
    /// checking which host is home, so there must be no controller.
    pub fn with_memory(options: ServerOptions, memory: Box<dyn ServerMemory>) -> Result<Server, RemoteError> {
        options.check()?;
        if !options.controllers.is_empty() {
            return Err(RemoteError::Setting(
                "memory that is answered from in the kernel cannot be placed by a controller, because the kernel does not know when \
                 this server may answer no more; leave one of the two out"
                    .to_owned(),
            ));
        }
        Server::opened(options, memory)
    }

    fn opened(options: ServerOptions, memory: Box<dyn ServerMemory>) -> Result<Server, RemoteError> {
        assert_eq!(memory.bytes(), options.memory_bytes, "the memory is as long as the options say");
        let port = options.port;
        let endpoint = Endpoint::open(port).map_err(|error| RemoteError::Socket { port, error })?;
        let timing = timing(&options)?;
        let timeout = 4 * timing.retry;
        let context = Context {
            endpoint,
            prefix: options.prefix,
            port,
            began: Instant::now(),
            ports: BTreeMap::new(),
            incarnation: Incarnation::new(random_number()? as u16),
            sent: random_number()? >> 16,
            room: Vec::new(),
            events: Vec::new(),
            controllers: Controllers::new(options.controllers.clone(), timeout),
            spare_bytes: options.backup_bytes,
        };
        let follows = Follows::new(timing, &context);
        let mut server = Server {
            options,
            context,
            ranges: BTreeMap::new(),
            parts: BTreeMap::new(),
            located: BTreeMap::new(),
            follows,
            timing,
            boot_id: (random_number()? as u16).max(1),
            on_event: Box::new(|_| {}),
            later: VecDeque::new(),
            refusals: Refusals::default(),
        };
        let own = server.own(memory)?;
        server.ranges.insert(own.range, own);
        Ok(server)
    }

    /// Sets the receiver of events about ranges that a controller places.
    pub fn on_event(&mut self, hears: impl FnMut(&Event) + Send + 'static) {
        self.on_event = Box::new(hears);
    }

    /// Creates its own range.
    fn own(&self, memory: Box<dyn ServerMemory>) -> Result<Held, RemoteError> {
        let me = self.options.prefix.host;
        let settings = self.settings(me, self.options.memory_bytes)?;
        let logic = MemoryServer::new(settings);
        let pages = settings.memory_bytes / PAGE_BYTES;
        let range = RangeNumber::of(me);
        if self.options.controllers.is_empty() {
            let of = Range { cluster: settings.cluster, of: range, me, pages };
            // No lease of an earlier process can exist: no client has a pointer into this memory yet.
            let leases = LeaseServer::alone(of, self.timing, seconds().max(1), self.context.now(), None);
            let mut held = Held::new(range, settings, leases, Some(memory));
            held.logic = Some(logic);
            return Ok(held);
        }
        let mut held = Held::new(range, settings, self.lease_server(range, pages, me), Some(memory));
        held.placed = Some(Placed::new(TablePages::of(&logic)));
        Ok(held)
    }

    /// The settings of a new memory: no pointer and no session of an earlier process may be valid in it. Two boots
    /// within 18 hours differ by their seconds, and their pointers by 16 random bits.
    fn settings(&self, home: Host, memory_bytes: u64) -> Result<Settings, RemoteError> {
        let slots = 1024;
        let silence_max = u64::try_from(self.options.session_silence_max.as_nanos()).unwrap_or(u64::MAX);
        Ok(Settings {
            cluster: self.options.prefix.cluster,
            home,
            memory_bytes,
            generation: random_number()? as u16,
            incarnation: seconds(),
            quota_bytes: self.options.quota_bytes.unwrap_or(memory_bytes),
            objects_max: 1 << 20,
            sessions: SessionLimits { sessions_max: 16 << 10, sessions_per_host_max: 1 << 10, silence_max },
            staging: StagingLimits { slots, slots_per_host_max: slots / 4, silence_max: 5 * SECOND },
        })
    }

    /// The lease state of a range of this many pages that a controller places and of which nothing is here. `home` is
    /// the host that is assumed to be its home.
    fn lease_server(&self, range: RangeNumber, pages: u64, home: Host) -> LeaseServer {
        let (me, now) = (self.options.prefix.host, self.context.now());
        let controller = Party::of(self.options.controllers[0]);
        let own = table_pages(pages);
        let server = RangeServer::new(me, controller, pages + own, self.timing, self.boot_id, home);
        let server = server.restarted(now, self.boot_id, None);
        let of = Range { cluster: self.options.prefix.cluster, of: range, me, pages: pages + own };
        let mut lease_server = LeaseServer::of(of, server, now);
        lease_server.set_pages(pages + own, own);
        lease_server
    }

    /// Answers until it is stopped.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn serve(&mut self, stop: &Stop) -> Result<(), RemoteError> {
        let mut room = vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice();
        let mut ticked = Instant::now();
        while !stop.0.load(Ordering::Relaxed) {
            let is_busy = self.receive(&mut room)?;
            let is_second = ticked.elapsed() >= TICK;
            if is_second {
                ticked = Instant::now();
            }
            self.go_on(is_second);
            if !is_busy {
                let now = self.context.now();
                let alarms = self.ranges.values().map(|held| held.leases.alarm());
                let alarm = alarms.chain([self.follows.alarm()]).min().unwrap_or(u64::MAX);
                self.context.endpoint.wait(TICK.min(Duration::from_nanos(alarm.saturating_sub(now))));
            }
        }
        Ok(())
    }

    /// Handles some of the datagrams that have arrived; returns whether there were any.
    ///
    /// With controllers, messages about homes overtake up to [`LATER_MAX`] other datagrams that arrived before them: a
    /// home lease would expire if its renewal waited behind the pages that a backup receives.
    fn receive(&mut self, room: &mut [u8]) -> Result<bool, RemoteError> {
        let is_placed = !self.options.controllers.is_empty();
        let mut came = 0;
        while came < BURST && self.later.len() < LATER_MAX {
            let Some(arrived) = self.context.endpoint.receive(room).map_err(RemoteError::Failed)? else { break };
            match room.get(..arrived.bytes) {
                Some(payload) if is_placed && !is_about_placement(&arrived) => {
                    self.later.push_back((arrived, payload.to_vec()));
                    continue;
                }
                Some(payload) => self.answer(&arrived, payload),
                None => self.refuse(&arrived, Reason::TooLong(arrived.bytes)),
            }
            came += 1;
        }
        for _ in 0..BURST {
            let Some((arrived, payload)) = self.later.pop_front() else { break };
            self.answer(&arrived, &payload);
            came += 1;
        }
        Ok(came > 0)
    }

    /// The counts of its own range so far, and its current use.
    pub fn statistics(&self) -> Statistics {
        let own = self.ranges.get(&RangeNumber::of(self.options.prefix.host)).and_then(|held| held.logic.as_ref());
        own.map(MemoryServer::statistics).unwrap_or_default()
    }

    /// The number of refused datagrams.
    pub fn refused(&self) -> u64 {
        self.refusals.total()
    }

    /// Counts and reports a refused datagram.
    fn refuse(&mut self, arrived: &Arrived, why: Reason) {
        self.context.events.extend(self.refusals.count(Address(arrived.source), why).map(Event::Refused));
    }

    /// Does what is due after some datagrams.
    fn go_on(&mut self, is_second: bool) {
        let now = self.context.now();
        self.look_at_open_splits();
        for held in self.ranges.values_mut() {
            if now >= held.leases.alarm() {
                held.leases.tick(now);
                held.obey(&mut self.context, Hand::default());
            }
            if is_second {
                held.tick(&mut self.context);
            }
            held.look(&mut self.context);
            held.go_on(&mut self.context);
            held.tell_back(now);
        }
        if now >= self.follows.alarm() {
            self.follows.tick(&mut self.context);
        }
        if is_second {
            let silent = now.saturating_sub(4 * self.timing.term);
            self.context.ports.retain(|_, (_, heard)| *heard >= silent);
            self.ask_whether_counted();
        }
        for event in self.context.events.drain(..) {
            (self.on_event)(&event);
        }
    }

    fn answer(&mut self, arrived: &Arrived, payload: &[u8]) {
        let (source, destination) = (Address(arrived.source), Address(arrived.destination));
        let rules = Rules { cluster: self.options.prefix.cluster, least: self.options.least, tags: &Hardware };
        match Request::decode(source, destination, payload, &rules) {
            Ok(request) if request.command().is_control() => self.control(arrived, &request, payload),
            Ok(request) => {
                let pointer = request.destination.pointer;
                if let Some(bytes) = self.follows.read(self.context.now(), &request) {
                    let body = Body::Bytes(bytes.len() as u32);
                    if let Some(reply) = refusal(&request, Status::Ok, 0, body) {
                        self.context.reply_with(&reply, bytes, arrived.port);
                    }
                    return;
                }
                let range = match self.place_of(&request) {
                    Where::At(number) => number,
                    Where::AtSeveral => {
                        let is_read = request.command().class() == Class::Reading;
                        let status = if is_read { Status::Parts } else { Status::Lease };
                        if let Some(reply) = refusal(&request, status, 0, Body::Nothing) {
                            self.context.reply(&reply, None, 0, arrived.port);
                        }
                        return;
                    }
                };
                let is_known = self.ranges.contains_key(&range);
                if !is_known && pointer.home().is_one() && !self.options.controllers.is_empty() {
                    // For a range that this server has never heard of.
                    let elsewhere = Body::Moved(pointer.encode());
                    if let Some(reply) = refusal(&request, Status::Moved, 0, elsewhere) {
                        self.context.reply(&reply, None, 0, arrived.port);
                    }
                    return;
                }
                // A request to any server, or to all, is answered for this server's own range.
                let range = if is_known { range } else { RangeNumber::of(self.options.prefix.host) };
                if let Some(held) = self.ranges.get_mut(&range) {
                    held.asked(&mut self.context, &request, payload, arrived.port);
                }
            }
            Err(_) if self.is_mine(destination) => self.heard_of_copies(arrived, payload, &rules),
            Err(refused) => {
                self.refuse(arrived, Reason::NoRequest(refused.why));
                if let Some(reply) = refused.reply(destination) {
                    self.context.reply(&reply, None, 0, arrived.port);
                }
            }
        }
    }

    /// Whether an answer is for this process as a client.
    fn is_mine(&self, destination: Address) -> bool {
        let Context { prefix: HostPrefix { cluster, host }, incarnation, .. } = self.context;
        Source::decode(destination)
            .is_ok_and(|to| (to.cluster, to.host, to.incarnation) == (cluster, host, incarnation))
    }

    /// Handles a home's message about a page that is followed here.
    fn heard_of_copies(&mut self, arrived: &Arrived, payload: &[u8], rules: &Rules<'_>) {
        let (source, destination) = (Address(arrived.source), Address(arrived.destination));
        match Reply::decode(source, destination, payload, rules) {
            Ok(reply) => self.follows.answered(&mut self.context, &reply, payload),
            Err(_) => match Notice::decode(source, destination, payload, rules) {
                Ok(notice) => self.follows.noticed(&mut self.context, &notice),
                Err(why) => self.refuse(arrived, Reason::NoRequest(why)),
            },
        }
    }

    /// Handles a message of a controller or another server.
    fn control(&mut self, arrived: &Arrived, request: &Request, payload: &[u8]) {
        let from = request.source.host;
        let command = request.command();
        // Without a controller, this server is home of its own range as long as it runs.
        let is_controllers = matches!(command, Command::Placed | Command::Follow);
        if self.options.controllers.is_empty() || is_controllers && !self.context.controllers.has(from) {
            return self.refuse(arrived, Reason::NoController(command));
        }
        let Some(ControlMessage { range, what }) = ControlMessage::decode(command, &payload[HEADER_BYTES..]) else {
            return self.refuse(arrived, Reason::NotUnderstood(command));
        };
        if let What::Follow { page, lasts } = what {
            return self.follows.follow(&mut self.context, from, (range, page), lasts);
        }
        let now = self.context.now();
        if let What::Placed { request, pages, placement, within, .. } = &what {
            self.context.controllers.heard(from);
            let is_new_part = within.is_some_and(|within| !self.hears_of_part(range, within));
            if is_new_part || !self.introduce(range, *pages, placement, *within, *request == 0) {
                return;
            }
            let me = self.options.prefix.host;
            if let Some(held) = self.ranges.get_mut(&range) {
                held.named.extend(placement.backups.iter().copied().chain([placement.home]));
                if *request == 0 || names(placement, me) {
                    held.is_counted_on(now);
                }
            }
            self.split_again(range, &what);
        }
        let store = match what {
            What::Store { page, pages, incarnation, .. } => {
                if !self.ranges.contains_key(&range) && !self.begin_unheard(range) {
                    return;
                }
                let bytes = payload.get(ControlMessage::data_at()..).unwrap_or_default();
                Some((page..page.saturating_add(u64::from(pages)), incarnation, bytes))
            }
            _ => None,
        };
        let Some(held) = self.ranges.get_mut(&range) else { return };
        // A host that claims to be home without having been named by a controller was either named since or is not
        // home: the controller is asked.
        if matches!(what, What::Store { .. } | What::Leases { .. }) && !held.named.contains(&from) {
            held.leases.ask(now);
            return;
        }
        if !held.believes(now, &what) {
            return;
        }
        if let Some((pages, _, bytes)) = &store {
            if !held.may_keep(pages, bytes) {
                return;
            }
            held.is_counted_on(now);
        }
        let placed = match &what {
            What::Placed { request, placement, .. } => Some((*request, placement.clone())),
            _ => None,
        };
        held.leases.control(now, from, what);
        let store = store.map(|(_, incarnation, bytes)| (incarnation, bytes));
        held.obey(&mut self.context, Hand { payload, client: None, store });
        if let Some((request, placement)) = placed {
            self.may_forget(range, request, &placement);
        }
    }

    /// A controller names this server for a range: if the range is not known here yet, there has to be room for it.
    /// Returns whether there is.
    fn introduce(
        &mut self,
        range: RangeNumber,
        pages: u64,
        placement: &Placement,
        within: Option<Within>,
        is_called: bool,
    ) -> bool {
        if self.ranges.get(&range).is_some_and(|held| held.memory.is_some()) {
            return true;
        }
        let me = self.options.prefix.host;
        let bytes = pages.saturating_mul(PAGE_BYTES);
        let is_new = !self.ranges.contains_key(&range);
        let is_listed = within.is_some_and(|within| self.lists(within.range, range));
        if is_listed && !is_called && !names(placement, me) {
            // It is known here because its range is.
            if let Some(held) = self.ranges.get_mut(&range) {
                held.leases.give_up(self.context.now());
            }
            return false;
        }
        // The bytes of a part use the memory that its range no longer needs for them.
        let is_inside = within.and_then(|within| self.ranges.get(&within.range)).is_some_and(Held::has_bytes);
        let takes = if is_inside { 0 } else { bytes };
        let spare_bytes = self.context.spare_bytes;
        let place = match within {
            Some(within) => self.context.place_of(range, within, pages),
            None => Place::whole(self.context.prefix_of(range.host())),
        };
        if pages == 0 || takes > spare_bytes {
            if pages > 0 && is_new {
                self.context.events.push(Event::NoRoom { place, bytes, spare_bytes });
            }
            // It was asked for because a home used this host as a backup; no home does any more.
            if !is_new && !is_listed && !placement.backups.contains(&me) {
                self.remove(range);
            }
            return false;
        }
        let home = within.map_or(range, |within| within.range).host();
        let (Ok(arena), Ok(settings)) = (Arena::new(bytes), self.settings(home, bytes)) else {
            self.context.events.push(Event::NoRoom { place, bytes, spare_bytes: 0 });
            return false;
        };
        if is_new && !self.begin_unknown(range, within) {
            return false;
        }
        let now = self.context.now();
        let Some(held) = self.ranges.get_mut(&range) else { return false };
        let own = table_pages(pages);
        held.leases.set_pages(pages + own, own);
        held.settings = settings;
        held.taken_bytes = takes;
        held.memory = Some(Box::new(arena));
        self.context.spare_bytes -= takes;
        held.placed = Some(Placed::new(TablePages::unknown(pages)));
        held.is_counted_on(now);
        if let Some(within) = within {
            self.index(within, pages, range);
        }
        self.context.events.push(Event::Introduced { place, bytes });
        true
    }

    /// Accepts a home's message about a range of which nothing is known here.
    fn begin_unheard(&mut self, range: RangeNumber) -> bool {
        if range.is_part() {
            self.locate(range);
            return false;
        }
        self.begin_unknown(range, None)
    }

    /// Begins a range that is unknown here: any earlier content is lost, and the controller is informed.
    fn begin_unknown(&mut self, range: RangeNumber, within: Option<Within>) -> bool {
        let is_unknown = |held: &&Held| held.memory.is_none() && held.within.is_none();
        let unknown = self.ranges.values().filter(is_unknown).count();
        let home = within.map_or(range, |within| within.range).host();
        let Ok(settings) = self.settings(home, 0) else { return false };
        if unknown >= UNKNOWN_MAX {
            return false;
        }
        let mut held = Held::new(range, settings, self.lease_server(range, 0, home), None);
        held.within = within;
        self.ranges.insert(range, held);
        true
    }
}

/// Whether a datagram is of a controller, or of a home that hands over.
fn is_about_placement(arrived: &Arrived) -> bool {
    let destination = Destination::decode(Address(arrived.destination));
    destination.is_ok_and(|to| matches!(to.command, Command::Placed | Command::Leases | Command::Taken))
}

/// The time that distinguishes two boots.
fn seconds() -> u16 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()) as u16
}

/// The duration of leases and of home leases, and the retry interval.
fn timing(options: &ServerOptions) -> Result<Timing, RemoteError> {
    let whole = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (term, home_lease) = (whole(options.lease_term), whole(options.home_lease));
    if !(1_000_000..=u64::MAX >> 8).contains(&term) {
        let given = options.lease_term;
        return Err(RemoteError::Setting(format!("a lease of {given:?} is not possible; give 1 ms or more")));
    }
    if options.controllers.is_empty() {
        return Ok(Timing::new(term, term, (term / 50).clamp(1_000_000, 50_000_000), CLOCK_ERROR_PPM));
    }
    if !(10_000_000..=u64::MAX >> 8).contains(&home_lease) {
        let given = options.home_lease;
        return Err(RemoteError::Setting(format!("a home lease of {given:?} is not possible; give 10 ms or more")));
    }
    // Several attempts fit into a term, and into a third of a home lease, when a server asks for the next one.
    let retry = (term / 50).min(home_lease / 15).clamp(1_000_000, 50_000_000);
    Ok(Timing::new(term, home_lease, retry, CLOCK_ERROR_PPM))
}
