//! The switch `openflow`: flows in a switch that supports OpenFlow 1.3, set by this controller over a connection.
//!
//! Promises: everything except leases is decided in the switch. An UPDATE without a redirect waits for the controller,
//! which grants it, sets the redirect, and sends the packet on; a second one therefore finds the redirect, and an owner's
//! packets reach the home. Answers of homes are forwarded at once, and the controller receives a copy of their beginning.
//! The state of the switch is soft: without a controller it continues with its flows (redirects end automatically, in
//! whole seconds, rounded up), and after a new connection everything is sent again. A call returns when the switch has
//! acknowledged the change (for Open vSwitch in a lab, also when no packet can use the previous state any more).
//!
//! The OpenFlow instance that connects must be for Trellis alone: all flows and groups in it belong to this controller.
//! The connection is neither authenticated nor encrypted, so it belongs in an operators' network.
//!
//! `codec` is the wire format, `connection` the exchange of messages, `pipeline` the flows, `state` the controller's
//! state, and `ovs` a software switch for tests.

pub mod codec;
mod connecting;
mod connection;
mod counts;
mod ovs;
mod pipeline;
mod state;

use std::fmt::Arguments;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trellis_output::sockets::SocketFile;

use codec::{Answer, Body, Features, FlowQuestion, PacketIn, PortStats, Question};
use connection::{Connection, Line, Listener, Trouble};
use counts::Counts;
use ovs::Ovs;
use pipeline::{Plug, Plugs};
use state::{State, Unit};

use crate::address::{Cluster, HOME_BITS, Page, PageRange, Prefix};
use crate::capabilities::Capabilities;
use crate::clock;
use crate::entries::{Group, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::faults::Faults;
use crate::layout;
use crate::observed::{Counters, Event, HotPage};
use crate::switch::Switch;
use crate::switches::directory::Entry;
use crate::switches::waits::{CONNECTION, COUNT};
use crate::switches::{self, Wiring};
use crate::sys;

pub use connecting::{ConnectionMethod, PORT};

const NAME: &str = "openflow";
/// The default number of pages that are counted.
pub const COUNTED_PAGES: usize = 1_024;
/// The polling interval meanwhile.
const COUNT_AGAIN: Duration = Duration::from_millis(5);
/// All packets, in parts per million.
const WHOLE_PPM: u32 = 1_000_000;

/// The port of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlowPort {
    /// Trellis' number of it, 1 to 1,023.
    pub number: u16,
    /// The switch's number of it.
    pub at_switch: u32,
    /// The hardware address of the host.
    pub host_mac: [u8; 6],
}

/// The parameters of an external switch.
#[derive(Clone, Debug)]
pub struct OpenFlowWiring {
    /// The cluster.
    pub cluster: Cluster,
    /// How switch and controller connect.
    pub method: ConnectionMethod,
    /// The datapath id of the switch, if other switches may connect, too.
    pub datapath: Option<u64>,
    /// The ports of hosts.
    pub ports: Vec<OpenFlowPort>,
    /// The capacity for redirects; each needs three flows.
    pub redirects_max: u32,
    /// The maximum number of pages that are counted at the same time; each needs a flow, and until all are in use the
    /// first packet of a page is also sent to the controller. 0: pages are not counted.
    pub counted_pages_max: usize,
    /// How long to wait for the switch.
    pub timeout: Duration,
    /// Shows sentences about switches that were hung up; without it, they are only counted.
    pub report: Option<fn(Arguments<'_>)>,
}

/// The state that the connection's thread and the callers share.
struct Shared {
    state: Mutex<State>,
    line: Line,
    /// Whether something was sent to the switch since it was last waited for.
    has_sent: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No holder of the lock leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends something to the switch without waiting.
    fn tell(&self, bodies: Vec<Body>) {
        if !bodies.is_empty() {
            self.has_sent.store(true, Ordering::Release);
            self.line.tell(bodies);
        }
    }
}

impl Listener for Shared {
    fn up(&self, begin: &mut dyn FnMut(), features: &Features) -> Result<(), String> {
        if features.tables < pipeline::TABLES {
            return Err(format!("it has {} tables, and {} are needed", features.tables, pipeline::TABLES));
        }
        let mut state = self.state();
        begin();
        let bodies = state.show_all(clock::ticks_now());
        self.tell(bodies);
        Ok(())
    }

    fn packets(&self, packets: &[PacketIn]) {
        let mut state = self.state();
        let now_ns = sys::monotonic_ns();
        let mut bodies: Vec<Body> = packets.iter().flat_map(|packet| state.packet(packet, now_ns)).collect();
        if !bodies.is_empty() {
            // The answer wakes the thread that checks what is due.
            bodies.push(Body::BarrierRequest);
        }
        self.tell(bodies);
    }

    fn received(&self, body: Body) {
        let Body::FlowRemoved(removed) = body else { return };
        let page = pipeline::redirect_of(removed.cookie).filter(|_| removed.reason == codec::REASON_HARD_TIMEOUT);
        if let Some(page) = page {
            let mut state = self.state();
            let mut bodies = Vec::new();
            state.redirect_ended(page, &mut bodies, clock::ticks_now());
            self.tell(bodies);
        }
    }

    fn due(&self) -> Option<Duration> {
        let mut state = self.state();
        let mut bodies = Vec::new();
        let next = state.due(clock::ticks_now(), &mut bodies);
        self.tell(bodies);
        next
    }
}

/// The switch; the module's text says what it promises.
pub struct OpenFlow {
    cluster: Cluster,
    redirects_max: u32,
    shared: Arc<Shared>,
    counts: Mutex<Counts>,
    connection: Connection,
    /// Present if it was started here.
    ovs: Option<Ovs>,
}

impl OpenFlow {
    /// Waits for an external switch, or connects to it, and takes control of it.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for impossible ports, [`SwitchError::System`] if no switch connects in time.
    pub fn open(wiring: &OpenFlowWiring) -> Result<OpenFlow, SwitchError> {
        let switch = OpenFlow::listen(wiring)?;
        switch.begin(wiring.timeout)?;
        Ok(switch)
    }

    /// Starts Open vSwitch for the interfaces in the calling thread's network namespace.
    pub(super) fn start(wiring: &Wiring) -> Result<OpenFlow, SwitchError> {
        let ports = wiring.ports.iter();
        let mut switch = OpenFlow::listen(&OpenFlowWiring {
            cluster: wiring.cluster,
            method: ConnectionMethod::Listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            datapath: None,
            ports: ports
                .map(|port| OpenFlowPort {
                    number: port.number,
                    at_switch: port.number.into(),
                    host_mac: port.host_mac,
                })
                .collect(),
            redirects_max: wiring.redirects_max,
            counted_pages_max: COUNTED_PAGES,
            timeout: CONNECTION.time(),
            // Only its own Open vSwitch knows the port.
            report: None,
        })?;
        let controller = switch.connection.address().map_or(0, |address| address.port());
        switch.ovs = Some(Ovs::start(&wiring.ports, controller)?);
        switch.begin(CONNECTION.time())?;
        Ok(switch)
    }

    /// What is missing to start Open vSwitch here.
    #[must_use]
    pub fn lacking() -> Option<String> {
        ovs::lacking()
    }

    /// The file of the socket at which the switch connects, if there is one.
    #[must_use]
    pub fn socket_file(&self) -> Option<&SocketFile> {
        self.connection.file()
    }

    /// Waits for the switch to connect, or prepares to connect; [`OpenFlow::begin`] ends the wait.
    ///
    /// # Errors
    ///
    /// As [`OpenFlow::open`].
    pub fn listen(wiring: &OpenFlowWiring) -> Result<OpenFlow, SwitchError> {
        let plugs: Plugs = wiring
            .ports
            .iter()
            .map(|port| (port.number, Plug { number: port.at_switch, mac: port.host_mac, side: 0 }))
            .collect();
        plugs.keys().try_for_each(|&port| switches::check_port(NAME, port))?;
        if plugs.len() < wiring.ports.len() {
            return Err(switches::refused(NAME, "two ports have the same number; number them 1, 2, 3 and so on"));
        }
        let state = State::new(wiring.cluster, plugs, wiring.redirects_max, wiring.counted_pages_max);
        let line = Line::new(wiring.method.clone(), wiring.datapath, wiring.report);
        let shared = Arc::new(Shared { state: Mutex::new(state), line: line.clone(), has_sent: AtomicBool::new(true) });
        let connection = Connection::open(line, Arc::clone(&shared) as Arc<dyn Listener>)?;
        let (cluster, redirects_max) = (wiring.cluster, wiring.redirects_max);
        Ok(OpenFlow { cluster, redirects_max, shared, counts: Mutex::default(), connection, ovs: None })
    }

    /// Waits until a switch has connected, and takes control of it.
    ///
    /// # Errors
    ///
    /// As [`OpenFlow::open`].
    pub fn begin(&self, timeout: Duration) -> Result<(), SwitchError> {
        self.shared.line.wait_up(Instant::now(), timeout)?;
        self.settle()?;
        let ports: Vec<(u16, u32)> =
            self.shared.state().plugs.iter().map(|(&port, plug)| (port, plug.number)).collect();
        for (port, number) in ports {
            let stats = self.port_stats(port, number)?;
            self.counts().begin(port, &stats);
        }
        Ok(())
    }

    /// The address to which the switch connects, if it does.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.connection.address()
    }

    /// How often the switch has connected and was sent everything.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.line.connections()
    }

    /// How many connections were hung up, or lost.
    #[must_use]
    pub fn hung_up(&self) -> u64 {
        self.shared.line.hung_up()
    }

    /// Ends the connection; the next one is waited for or made, and everything is sent again.
    pub fn hang_up(&self) {
        self.shared.line.hang_up();
    }

    /// Refusals of the switch for which no call waited: kind and code of its errors.
    #[must_use]
    pub fn refusals(&self) -> Vec<(u16, u16)> {
        self.shared.line.refusals()
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranges an attempt over the connection, and again over the next one if it ends; all of them together have the time of
    /// [`CONNECTION`].
    fn over_line<T>(&self, mut attempt: impl FnMut(&Line) -> Result<T, Trouble>) -> Result<T, SwitchError> {
        let began = Instant::now();
        loop {
            let trouble = match attempt(&self.shared.line) {
                Ok(value) => return Ok(value),
                Err(trouble) => trouble,
            };
            match trouble {
                Trouble::Down => self.shared.line.wait_up(began, CONNECTION.time())?,
                Trouble::Silent => return Err(failed("it does not answer", "see what it is busy with")),
                Trouble::Refused(kind, code) if (kind, code) == codec::TABLE_FULL => {
                    return Err(SwitchError::Full {
                        switch: NAME,
                        table: "flows",
                        limit: self.redirects_max,
                        hint: "drop some entries, or take a switch with larger tables",
                    });
                }
                Trouble::Refused(kind, code) => {
                    let cause = format!("it answers with error {kind}, {code}");
                    return Err(failed(cause, "it may not have all of OpenFlow 1.3; see what its error means there"));
                }
            }
        }
    }

    /// Waits until everything that the switch has sent so far was handled, everything that it was sent is done, and all
    /// packets that have passed are counted.
    fn settle(&self) -> Result<(), SwitchError> {
        self.over_line(Line::fence)?;
        self.finish()
    }

    /// Waits until everything that the switch was sent is in effect for every packet.
    fn finish(&self) -> Result<(), SwitchError> {
        self.shared.has_sent.store(false, Ordering::Release);
        self.over_line(|line| line.wait(&line.ask(Vec::new(), Body::BarrierRequest)?))?;
        let Some(ovs) = &self.ovs else { return Ok(()) };
        // The switch searches its flow cache once more after each change, which takes a moment. A first search may have
        // begun before this change; the second has not.
        for _ in 0..2 {
            let connection_number = self.shared.state().connection_number();
            self.over_line(|line| {
                line.wait(&line.ask(vec![pipeline::nudge(connection_number)], Body::BarrierRequest)?)
            })?;
            ovs.wait_for_look()?;
        }
        Ok(())
    }

    /// Reads the state, after everything that the switch has sent and the resulting changes.
    fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> Result<T, SwitchError> {
        self.over_line(Line::fence)?;
        self.shared.due();
        if self.shared.has_sent.load(Ordering::Acquire) {
            self.finish()?;
        }
        Ok(look(&mut self.shared.state()))
    }

    /// Changes the state, and sends the changes to the switch. `work` is run once.
    fn change<T>(
        &self,
        work: impl FnOnce(&mut State, &mut Vec<Body>) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        // Flows that change report their counts first.
        self.settle()?;
        let (value, sent) = {
            let mut state = self.shared.state();
            let mut bodies = Vec::new();
            state.due(clock::ticks_now(), &mut bodies);
            let value = work(&mut state, &mut bodies)?;
            if bodies.is_empty() {
                return Ok(value);
            }
            (value, self.shared.line.ask(bodies, Body::BarrierRequest))
        };
        // A new connection is sent all of it.
        let mut sent = Some(sent);
        self.over_line(|line| match sent.take() {
            Some(sent) => line.wait(&sent?).map(drop),
            None => Ok(()),
        })?;
        self.finish()?;
        Ok(value)
    }

    fn ask(&self, question: &Question) -> Result<Vec<Answer>, SwitchError> {
        self.over_line(|line| line.wait(&line.ask(Vec::new(), Body::MultipartRequest(question.clone()))?))
    }

    fn port_stats(&self, port: u16, number: u32) -> Result<PortStats, SwitchError> {
        let answers = self.ask(&Question::PortStats(number))?;
        let stats = answers.into_iter().find_map(|answer| match answer {
            Answer::PortStats(ports) => ports.into_iter().find(|stats| stats.port == number),
            _ => None,
        });
        stats.ok_or_else(|| {
            let cause = format!("it has no port {number}, which shall be port {port}");
            failed(cause, "give the numbers that the switch itself has for its ports")
        })
    }

    fn flow_stats(&self, mark: u64) -> Result<Vec<codec::FlowStats>, SwitchError> {
        let answers = self.ask(&Question::Flows(FlowQuestion::marked(mark, pipeline::MARK_MASK)))?;
        let flows = answers.into_iter().filter_map(|answer| match answer {
            Answer::Flows(flows) => Some(flows),
            _ => None,
        });
        Ok(flows.flatten().collect())
    }

    fn count(&self, port: u16, number: u32) -> Result<Counters, SwitchError> {
        let deadline = Instant::now() + COUNT.time();
        let mut wanted = None;
        loop {
            let stats = self.port_stats(port, number)?;
            let flows = self.flow_stats(pipeline::MARK_COUNTER)?;
            let decided = self.shared.state().decided(port);
            let mut counts = self.counts();
            let reading = counts.read(port, &flows, &stats, &decided);
            // Software switches report the counts of flows periodically.
            if let Some(counters) = reading.counters_of(*wanted.get_or_insert(reading.packets_in())) {
                return Ok(counters);
            }
            if Instant::now() > deadline {
                return Ok(counts.give_up(port, &reading));
            }
            drop(counts);
            std::thread::sleep(COUNT_AGAIN);
        }
    }

    fn enter(
        &self,
        state: &mut State,
        bodies: &mut Vec<Body>,
        page: Page,
        redirect: Redirect,
    ) -> Result<bool, SwitchError> {
        switches::check_port(NAME, redirect.port)?;
        // An ended redirect also stays until it is met by a request, so its end must be set.
        let noted = switches::noted(&redirect);
        let entry = Entry { until: noted.until.max(1), ..noted };
        let tick = clock::ticks_now();
        let done = state.directory.set_redirect(page, entry, tick);
        state.show_entered(page, bodies, tick);
        done.ok_or_else(|| self.full("redirects", self.redirects_max))
    }

    fn full(&self, table: &'static str, limit: u32) -> SwitchError {
        let hint = if table == "redirects" { "wait until some end, or open the switch with more" } else { "drop some" };
        SwitchError::Full { switch: NAME, table, limit, hint }
    }
}

fn failed(cause: impl Into<String>, hint: impl Into<String>) -> SwitchError {
    SwitchError::System {
        attempt: "tell the switch what it shall do".to_owned(),
        cause: cause.into(),
        hint: hint.into(),
    }
}

impl Switch for OpenFlow {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            learns_at_once: false,
            delays: false,
            // A flow counts for a page, wherever its requests come from.
            counts_by_port: false,
            ..Capabilities::all(self.redirects_max)
        }
    }

    fn cluster(&self) -> Cluster {
        self.cluster
    }

    fn set_prefix(&self, prefix: Prefix, route: Route) -> Result<(), SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        switches::check_port(NAME, route.port)?;
        self.change(|state, bodies| {
            if state.directory.longer_prefixes() >= layout::PREFIXES_MAX as usize {
                return Err(self.full("prefixes", layout::PREFIXES_MAX));
            }
            state.directory.set_prefix(prefix, route);
            state.routes.insert(prefix, route);
            state.show_home(prefix.home(), bodies, clock::ticks_now());
            Ok(())
        })
    }

    fn drop_prefix(&self, prefix: Prefix) -> Result<bool, SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        self.change(|state, bodies| {
            let was_there = state.directory.drop_prefix(prefix);
            state.routes.remove(&prefix);
            if prefix.bits() == HOME_BITS {
                state.groups.remove(&prefix.home());
            }
            state.show_home(prefix.home(), bodies, clock::ticks_now());
            Ok(was_there)
        })
    }

    fn set_page_route(&self, range: PageRange, port: u16) -> Result<(), SwitchError> {
        switches::check_port(NAME, port)?;
        let done = self.change(|state, bodies| {
            if !state.directory.has_room_for(range) {
                return Err(switches::no_room_for_page_route(NAME));
            }
            state.directory.set_page_route(range, port);
            state.show_range(range, bodies, clock::ticks_now());
            Ok(())
        });
        if done.as_ref().is_err_and(SwitchError::is_full) {
            // The switch may have accepted some of its flows.
            self.drop_page_route(range)?;
        }
        done
    }

    fn drop_page_route(&self, range: PageRange) -> Result<bool, SwitchError> {
        self.change(|state, bodies| {
            let was_there = state.directory.drop_page_route(range);
            state.show_range(range, bodies, clock::ticks_now());
            Ok(was_there)
        })
    }

    fn page_routes(&self, home: u16) -> Result<Vec<(PageRange, u16)>, SwitchError> {
        Ok(self.shared.state().directory.page_routes(home))
    }

    fn set_redirect(&self, page: Page, redirect: Redirect) -> Result<bool, SwitchError> {
        let done = self.change(|state, bodies| self.enter(state, bodies, page, redirect));
        if done.as_ref().is_err_and(SwitchError::is_full) {
            // The switch may have accepted some of its flows.
            self.change(|state, bodies| {
                state.directory.drop_redirect(page, redirect.epoch);
                state.show_page(page, bodies, clock::ticks_now());
                Ok(())
            })?;
        }
        done
    }

    fn set_redirects(&self, redirects: &[(Page, Redirect)]) -> Result<u32, SwitchError> {
        let (done, refused) = self.change(|state, bodies| {
            let mut done = 0;
            for &(page, redirect) in redirects {
                match self.enter(state, bodies, page, redirect) {
                    Ok(is_set) => done += u32::from(is_set),
                    Err(error) => return Ok((done, Some(error))),
                }
            }
            Ok((done, None))
        })?;
        refused.map_or(Ok(done), Err)
    }

    fn drop_redirect(&self, page: Page, epoch: u64) -> Result<bool, SwitchError> {
        self.change(|state, bodies| {
            let was_there = state.directory.drop_redirect(page, epoch);
            state.show_page(page, bodies, clock::ticks_now());
            Ok(was_there)
        })
    }

    fn redirect(&self, page: Page) -> Result<Option<Redirect>, SwitchError> {
        let entry = self.look(|state| state.directory.redirect(page, clock::ticks_now()))?;
        Ok(entry.map(switches::redirect_of))
    }

    fn sweep(&self) -> Result<u32, SwitchError> {
        self.change(|state, bodies| {
            let tick = clock::ticks_now();
            let swept = state.directory.sweep(tick);
            state.show_swept(bodies, tick);
            Ok(swept as u32)
        })
    }

    fn set_group(&self, group: &Group) -> Result<(), SwitchError> {
        switches::check_group(NAME, self.cluster, group)?;
        self.change(|state, bodies| {
            if !state.directory.set_group(group) {
                return Err(switches::no_route_to_copy(NAME, group));
            }
            let home = group.prefix.home();
            match group.ports.is_empty() {
                true => drop(state.groups.remove(&home)),
                false => drop(state.groups.insert(home, (group.classes, group.ports.clone()))),
            }
            state.show_home(home, bodies, clock::ticks_now());
            Ok(())
        })
    }

    fn set_rules(&self, rules: Option<&[Rule]>) -> Result<(), SwitchError> {
        let rules = rules.map(switches::rule_table);
        if rules.as_ref().is_some_and(|rules| rules.len() > layout::RULES_MAX as usize) {
            return Err(self.full("rules", layout::RULES_MAX));
        }
        self.change(|state, bodies| {
            state.directory.set_rules(rules.clone());
            state.rules = rules;
            state.show(Unit::Rules, bodies);
            Ok(())
        })
    }

    fn set_leases(&self, term: Option<Duration>) -> Result<(), SwitchError> {
        self.change(|state, bodies| {
            state.directory.set_term(term.map(clock::ticks));
            state.grants = term.is_some();
            state.show(Unit::Leases, bodies);
            Ok(())
        })
    }

    fn set_side(&self, port: u16, side: u32) -> Result<(), SwitchError> {
        self.change(|state, bodies| {
            if !state.directory.set_side(port, side) {
                return Err(switches::nothing_plugged_in(NAME, port));
            }
            if let Some(plug) = state.plugs.get_mut(&port) {
                plug.side = side;
            }
            state.show_ports(bodies);
            Ok(())
        })
    }

    fn set_faults(&self, faults: &Faults) -> Result<(), SwitchError> {
        if !faults.only_drop() || !(faults.drop_ppm == 0 || faults.drop_ppm == WHOLE_PPM) {
            let what = "OpenFlow knows no chance, so it loses nothing or everything (drop=0%, drop=100%); the switch `user` \
                        does the rest";
            return Err(SwitchError::Unsupported { switch: NAME, what: what.to_owned() });
        }
        self.change(|state, bodies| {
            state.is_lost = faults.drop_ppm != 0;
            state.show(Unit::Loss, bodies);
            Ok(())
        })
    }

    fn counters(&self, port: u16) -> Result<Counters, SwitchError> {
        switches::check_port(NAME, port)?;
        let Some(number) = self.shared.state().plugs.get(&port).map(|plug| plug.number) else {
            return Ok(Counters::default());
        };
        self.settle()?;
        self.count(port, number)
    }

    fn hot_pages(&self, count: usize) -> Result<Vec<HotPage>, SwitchError> {
        self.settle()?;
        let flows = self.flow_stats(pipeline::MARK_HOT)?;
        self.change(|state, bodies| {
            let mut pages = std::mem::take(&mut state.counted);
            for flow in flows {
                *pages.entry(pipeline::page_of(flow.cookie).key()).or_insert(0) += flow.packets;
            }
            state.recount(bodies);
            Ok(switches::hottest(pages.into_iter().map(|(key, count)| (Page::from_key(key), 0, count)), count))
        })
    }

    fn events(&self) -> Result<Vec<Event>, SwitchError> {
        self.look(|state| state.directory.take_events())
    }
}
