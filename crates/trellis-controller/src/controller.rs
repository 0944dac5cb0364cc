//! The controller process: one thread that decides, and others that wait on its behalf.
//!
//! Promises: it answers servers only while it leads by its own clock, which it reads directly before each message. If a
//! record could not be written, it stops sending, and leads again only under another name, from what is written. When
//! it is stopped, it first stops sending and then removes its name, so that another controller can lead at once. It
//! must never send what rests on an unwritten record.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::time::{Duration, Instant};

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::{Host, RangeNumber, Timing};
use trellis_fabric_protocol::wire::address::{Arguments, HostPrefix, Incarnation, PARTS_FROM, Pointer, Source};
use trellis_fabric_protocol::wire::datagram::{ControlMessage, Operation, Request, TagKind, seal};
use trellis_output::sockets::SocketFile;
use trellis_store::Store;
use trellis_switch::control::Remote;
use trellis_transport::links::ipv6::{Endpoint, Way};

use crate::control::{self, Answer};
use crate::event::Event;
use crate::leadership::{self, Action, Leadership, NAME_BYTES, Term};
use crate::ranges::{Fact, Locality, Order, Ranges, Settings, Status};
use crate::records;
use crate::routes::{self, Router};
use crate::workers::{self, Hardware, Received, Room, WorkerEvent};

/// The maximum error of a clock's rate, in parts per million.
pub const CLOCK_ERROR_PPM: u32 = 1000;
/// How many events are kept for operators.
const SENTENCES: usize = 4_096;
/// How many inputs are handled before the time is checked.
const HAPPENINGS: usize = 256;

/// The options of a controller.
pub struct Options {
    /// Its addresses.
    pub prefix: HostPrefix,
    /// The port on which servers and controllers listen.
    pub port: u16,
    /// The store of the records.
    pub records: Arc<dyn Store>,
    /// The switch, and its path if it has one.
    pub switch: Option<(Remote, Option<String>)>,
    /// How many backups a range has by default.
    pub backups: u16,
    /// The duration of a lease of a page, as at all servers.
    pub lease_term: Duration,
    /// The duration of a home lease: how long a home answers without hearing from a controller, as at all servers.
    pub home_lease: Duration,
    /// How long a silent leader is waited for.
    pub leader_term: Duration,
    /// Whether ranges move from busy servers to others.
    pub rebalances: bool,
    /// The number of requests per second from which a page is also answered by another server; 0 disables this.
    pub hot_from: u64,
    /// Which hosts are local to each other.
    pub locality: Locality,
    /// The socket for operators.
    pub control: PathBuf,
}

/// Why a controller could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// An invalid setting.
    #[error("{0}")]
    Setting(String),
    /// The socket could not be opened.
    #[error("cannot listen at UDP port {port}: {error}; is another controller or server in this host?")]
    Socket {
        /// Which.
        port: u16,
        /// The system's error.
        error: io::Error,
    },
    /// The socket for operators could not be opened.
    #[error("cannot listen at {path}: {error}")]
    Control {
        /// Its path.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// The system provides no thread, or no random number.
    #[error("the system refuses: {0}")]
    System(io::Error),
}

/// See the top of this file.
pub struct Controller {
    settings: Settings,
    port: u16,
    leadership: Leadership,
    endpoint: Arc<Endpoint>,
    room: Room,
    worker_events: Receiver<WorkerEvent>,
    heard: Sender<WorkerEvent>,
    actions: Sender<Action>,
    jobs: Sender<workers::Job>,
    /// `None` without a switch.
    routes: Option<Sender<routes::Job>>,
    began: Instant,
    /// Until when it leads, for the thread that configures the switch.
    until: Arc<AtomicU64>,
    leader_term: Duration,
    control: SocketFile,
    /// Set when it is being stopped: the latest time of its end.
    ends: Option<Nanoseconds>,
    /// The name under which it leads, and its ranges once they were read.
    leading: Option<([u8; NAME_BYTES], Option<Ranges>)>,
    orders: Vec<Order>,
    incarnation: Incarnation,
    /// The number of datagrams sent.
    sent: u64,
    sentences: VecDeque<(u64, String)>,
    next_sentence: u64,
    /// The last leader that was reported.
    leader: Option<Host>,
    /// The store's last error.
    complaint: Option<String>,
    /// Answers to operators that wait until something is written.
    waiting: BTreeMap<u64, (SyncSender<Answer>, Answer)>,
    next_asked: u64,
}

/// Stops a controller, from any thread.
#[derive(Clone)]
pub struct Stop(Sender<WorkerEvent>);

impl Stop {
    /// Makes the controller stop sending, so that another one can lead; [`Controller::run`] returns when the store has
    /// confirmed that, or after the leader's term.
    pub fn stop(&self) {
        // A controller that has ended already is the desired result.
        let _ = self.0.send(WorkerEvent::Ends);
    }
}

impl Controller {
    /// Opens the sockets, and begins to find out which controller leads.
    ///
    /// # Errors
    ///
    /// As [`ControllerError`] says.
    pub fn open(options: Options) -> Result<Controller, ControllerError> {
        let timing = timing(options.lease_term, options.home_lease)?;
        let prefix = options.prefix;
        if RangeNumber::of(prefix.host).is_part() {
            let sentence = format!(
                "{prefix}: numbers from {PARTS_FROM:#x} on name parts of ranges, and no host; give another --prefix"
            );
            return Err(ControllerError::Setting(sentence));
        }
        let port = options.port;
        let endpoint = Endpoint::open(port).map_err(|error| ControllerError::Socket { port, error })?;
        let endpoint = Arc::new(endpoint);
        let path = options.control.display().to_string();
        let listener = trellis_output::sockets::listen(&options.control, "controller", "--control")
            .map_err(|error| ControllerError::Control { path, error })?;
        let control = listener.file().clone();
        let random_number = random_number().map_err(ControllerError::System)?;
        let region = records::region(prefix.cluster.number());
        let term = Term::new(nanoseconds(options.leader_term), CLOCK_ERROR_PPM);
        let store = options.records;
        let capabilities = store.capabilities();
        // A store that no other process can open has no other leader.
        let leadership = Leadership::new(term, random_number, prefix.host, !capabilities.shared);
        let (heard, worker_events) = channel();
        let (actions, actions_to_do) = channel();
        let (jobs, jobs_to_do) = channel();
        let sender = heard.clone();
        let (began, until) = (Instant::now(), Arc::<AtomicU64>::default());
        let listening = Arc::clone(&endpoint);
        thread("controller network", move || workers::hear(&listening, prefix, &sender))?;
        let (sender, leading) = (heard.clone(), Arc::clone(&store));
        thread("controller leader", move || workers::lead(&leading, region, &actions_to_do, &sender))?;
        let sender = heard.clone();
        thread("controller records", move || workers::keep(&store, region, &jobs_to_do, &sender))?;
        let routes = match options.switch {
            None => None,
            Some((switch, at)) => {
                let (routes, routes_to_set) = channel();
                let leads = Arc::clone(&until);
                let leads = move || nanoseconds(began.elapsed()) < leads.load(Ordering::SeqCst);
                let counts = (options.hot_from > 0, options.rebalances);
                let (mut router, sender) = (Router::new(switch, at, Box::new(leads), counts), heard.clone());
                thread("controller routes", move || workers::route(&mut router, &routes_to_set, &sender))?;
                Some(routes)
            }
        };
        let sender = heard.clone();
        thread("controller control", move || control::serve(&listener, &sender, WorkerEvent::Asked))?;
        let settings = Settings {
            me: prefix,
            timing,
            backups: options.backups,
            rebalances: options.rebalances,
            hot_from: options.hot_from,
            locality: options.locality,
        };
        Ok(Controller {
            settings,
            port,
            leadership,
            endpoint,
            room: Room::new(),
            worker_events,
            heard,
            actions,
            jobs,
            routes,
            began,
            until,
            leader_term: options.leader_term,
            control,
            ends: None,
            leading: None,
            orders: Vec::new(),
            incarnation: Incarnation::new((random_number >> 16) as u16),
            sent: random_number >> 32,
            sentences: VecDeque::new(),
            next_sentence: 1,
            leader: None,
            complaint: None,
            waiting: BTreeMap::new(),
            next_asked: 0,
        })
    }

    /// A handle that stops the controller.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(self.heard.clone())
    }

    /// Runs until it is stopped or its socket fails; `say` receives the events for operators.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub fn run(&mut self, say: &mut dyn FnMut(&Event)) -> io::Result<()> {
        self.lead(leadership::Fact::Tick, say);
        loop {
            let now = self.now();
            if self.ends.is_some_and(|at| self.leadership.has_left() || now >= at) {
                self.control.remove();
                return Ok(());
            }
            let ranges = self.leading.as_ref().and_then(|(_, ranges)| ranges.as_ref());
            let alarm = ranges.map_or(Nanoseconds::MAX, Ranges::alarm).min(self.leadership.alarm());
            let alarm = alarm.min(self.ends.unwrap_or(Nanoseconds::MAX));
            let wait = Duration::from_nanos(alarm.saturating_sub(now)).min(Duration::from_secs(1));
            match self.worker_events.recv_timeout(wait) {
                Ok(worker_event) => {
                    self.happen(worker_event, say)?;
                    for _ in 0..HAPPENINGS {
                        let Ok(worker_event) = self.worker_events.try_recv() else { break };
                        self.happen(worker_event, say)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
            if self.now() >= self.leadership.alarm() {
                self.lead(leadership::Fact::Tick, say);
            }
            let now = self.now();
            if self.ranges().is_some_and(|ranges| now >= ranges.alarm()) {
                self.hear_what_is_there(say)?;
                self.step(Fact::Tick, say);
            }
        }
    }

    /// Handles waiting input, so that no right ends while its renewal is queued here, for example after this process was
    /// suspended.
    fn hear_what_is_there(&mut self, say: &mut dyn FnMut(&Event)) -> io::Result<()> {
        for _ in 0..HAPPENINGS {
            let Ok(worker_event) = self.worker_events.try_recv() else { break };
            self.happen(worker_event, say)?;
        }
        for _ in 0..HAPPENINGS {
            match self.room.take(&self.endpoint, self.settings.me)? {
                Some(Received::Control(from, message)) => self.step(Fact::Control(from, message), say),
                Some(Received::Refused(refusal)) => say(&Event::Refused(refusal)),
                None => break,
            }
        }
        Ok(())
    }

    fn now(&self) -> Nanoseconds {
        nanoseconds(self.began.elapsed())
    }

    fn ranges(&mut self) -> Option<&mut Ranges> {
        self.leading.as_mut().and_then(|(_, ranges)| ranges.as_mut())
    }

    fn prefix(&self, host: Host) -> HostPrefix {
        HostPrefix { cluster: self.settings.me.cluster, host }
    }

    fn happen(&mut self, worker_event: WorkerEvent, say: &mut dyn FnMut(&Event)) -> io::Result<()> {
        let name = self.leading.as_ref().map(|(name, _)| *name);
        match worker_event {
            WorkerEvent::Control(from, message, place) => {
                drop(place);
                self.step(Fact::Control(from, message), say);
            }
            WorkerEvent::Refused(refusal) => say(&Event::Refused(refusal)),
            WorkerEvent::Leadership(fact, complaint) => {
                let complaint = complaint.map(|complaint| complaint.to_string());
                if complaint != self.complaint {
                    self.complaint.clone_from(&complaint);
                    if let Some(sentence) = complaint {
                        self.say(&Event::Store { sentence }, say);
                    }
                }
                self.lead(fact, say);
            }
            WorkerEvent::Loaded(of, loaded) if Some(of) == name => match loaded {
                Ok(records) => self.begin(of, records, say),
                Err(error) => self.yield_to_nobody(&error.to_string(), say),
            },
            WorkerEvent::Written(of, tickets) if Some(of) == name => {
                for ticket in tickets {
                    self.step(Fact::Written(ticket), say);
                }
            }
            WorkerEvent::NotWritten(of, error) if Some(of) == name => self.yield_to_nobody(&error.to_string(), say),
            // These belong to an earlier name.
            WorkerEvent::Loaded(..) | WorkerEvent::Written(..) | WorkerEvent::NotWritten(..) => {}
            WorkerEvent::Routes(routes::Report::Done(ticket)) => self.step(Fact::Routed(ticket), say),
            WorkerEvent::Routes(routes::Report::Hot(counted)) => self.step(Fact::Hot(counted), say),
            WorkerEvent::Routes(routes::Report::Say(event)) => self.say(&event, say),
            WorkerEvent::Asked((request, answer)) => {
                self.next_asked += 1;
                let asked = self.next_asked;
                self.waiting.insert(asked, (answer, Answer::Done));
                if let Some(said) = self.answer(asked, request, say) {
                    self.say_to(asked, said);
                }
            }
            WorkerEvent::Ends => {
                let now = self.now();
                self.ends.get_or_insert(now + nanoseconds(self.leader_term));
                self.leadership.leave(now);
                self.lead(leadership::Fact::Tick, say);
            }
            WorkerEvent::Failed(error) => return Err(error),
        }
        Ok(())
    }

    /// Handles a fact about the leadership.
    fn lead(&mut self, fact: leadership::Fact, say: &mut dyn FnMut(&Event)) {
        let now = self.now();
        if let Some(action) = self.leadership.step(now, fact) {
            // If that thread has ended, nothing is confirmed and nothing is sent.
            let _ = self.actions.send(action);
        }
        self.until.store(self.leadership.until(), Ordering::SeqCst);
        let name = self.leadership.name().filter(|_| self.leadership.leads(now));
        let led = self.leading.as_ref().map(|(name, _)| *name);
        if led.is_some() && name != led {
            let why = match self.ends {
                Some(_) => "it was told to end; another one leads as soon as it looks",
                None => "its term has ended, and the store did not renew it",
            };
            self.rest(why, say);
        }
        if let Some(name) = name.filter(|_| self.leading.is_none()) {
            self.leading = Some((name, None));
            let _ = self.jobs.send(workers::Job::Load(name));
        }
        let leader = self.leadership.leader().filter(|_| name.is_none());
        if leader != self.leader {
            self.leader = leader;
            if let Some(host) = leader.filter(|host| *host != self.settings.me.host) {
                let leader = self.prefix(host);
                self.say(&Event::Waits { leader }, say);
            }
        }
    }

    fn begin(&mut self, name: [u8; NAME_BYTES], records: records::Records, say: &mut dyn FnMut(&Event)) {
        let count = records.ranges.len();
        let ranges = Ranges::new(self.settings.clone(), records, self.now());
        if let Some(routes) = &self.routes {
            let _ = routes.send(routes::Job::All(ranges.places()));
        }
        self.leading = Some((name, Some(ranges)));
        self.say(&Event::Leads { ranges: count }, say);
    }

    /// Stops leading although no other controller leads yet.
    fn yield_to_nobody(&mut self, why: &str, say: &mut dyn FnMut(&Event)) {
        self.leadership.step_down(self.now());
        self.until.store(0, Ordering::SeqCst);
        self.rest(why, say);
    }

    fn rest(&mut self, why: &str, say: &mut dyn FnMut(&Event)) {
        self.leading = None;
        if let Some(routes) = &self.routes {
            let _ = routes.send(routes::Job::Rest);
        }
        for asked in self.waiting.keys().copied().collect::<Vec<u64>>() {
            let sentence =
                "this controller stopped leading before it was known whether that was written; ask the one that leads";
            self.say_to(asked, Answer::Refused(sentence.to_owned()));
        }
        self.say(&Event::Yields { why: why.to_owned() }, say);
    }

    fn step(&mut self, fact: Fact, say: &mut dyn FnMut(&Event)) {
        let now = self.now();
        if !self.leadership.leads(now) {
            return;
        }
        let mut orders = std::mem::take(&mut self.orders);
        if let Some(ranges) = self.ranges() {
            ranges.step(now, fact, &mut orders);
        }
        self.carry_out(orders, say);
    }

    fn carry_out(&mut self, mut orders: Vec<Order>, say: &mut dyn FnMut(&Event)) {
        let mut routed = Vec::new();
        for order in orders.drain(..) {
            match order {
                Order::Send(to, message) => self.send(to, &message),
                Order::Write(ticket, writes) => {
                    if let Some((name, _)) = &self.leading {
                        let _ = self.jobs.send(workers::Job::Write(*name, ticket, writes));
                    }
                }
                Order::Route { ticket, place } => match &self.routes {
                    Some(routes) => drop(routes.send(routes::Job::Set { ticket, place })),
                    // Without a switch, the range does not wait for its route.
                    None => routed.push(ticket),
                },
                Order::Forget(part) => self.tell_switch(routes::Job::Forget(part)),
                Order::Redirect { page, to } => self.tell_switch(routes::Job::Redirect { page, to }),
                Order::Anywhere(host) => self.tell_switch(routes::Job::Anywhere(host)),
                Order::Say(event) => self.say(&event, say),
                Order::Answer(asked) => {
                    let answer = self.waiting.get(&asked).map_or(Answer::Done, |(_, answer)| answer.clone());
                    self.say_to(asked, answer);
                }
            }
        }
        self.orders = orders;
        for ticket in routed {
            self.step(Fact::Routed(ticket), say);
        }
    }

    /// Sends a job that only concerns a switch.
    fn tell_switch(&self, job: routes::Job) {
        if let Some(routes) = &self.routes {
            let _ = routes.send(job);
        }
    }

    fn send(&mut self, to: Host, message: &ControlMessage) {
        if !self.leadership.leads(self.now()) {
            return;
        }
        let body = message.encode();
        let HostPrefix { cluster, host } = self.settings.me;
        self.sent += 1;
        let source = Source { cluster, host, incarnation: self.incarnation, request: self.sent };
        let pointer = Pointer::to_host(cluster, to);
        let destination = pointer.request(message.command(), Arguments::NO_REPLY);
        let operation = Operation::Control { bytes: body.len() as u32 };
        let tag_kind = TagKind::Checksum;
        let request = Request { source, destination, tag_kind, is_once: false, is_release: false, epoch: 0, operation };
        let (mut header, _) = request.encode();
        let (from, to) = (source.encode(), destination.encode());
        if seal(&mut header, from, to, [&body, &[]], &Hardware) {
            // A datagram that cannot be sent counts as lost: it is sent again.
            let _ = self.endpoint.send(&Way { from: from.0, to: to.0, port: self.port }, &[&header, &body]);
        }
    }

    fn say(&mut self, event: &Event, say: &mut dyn FnMut(&Event)) {
        say(event);
        self.sentences.push_back((self.next_sentence, event.to_string()));
        self.next_sentence += 1;
        if self.sentences.len() > SENTENCES {
            self.sentences.pop_front();
        }
    }

    fn say_to(&mut self, asked: u64, answer: Answer) {
        if let Some((waits, _)) = self.waiting.remove(&asked) {
            // A client that no longer waits does not need the answer.
            let _ = waits.send(answer);
        }
    }

    /// The answer to the request with this number; `None` if the answer waits until something is written.
    fn answer(&mut self, asked: u64, request: control::Request, say: &mut dyn FnMut(&Event)) -> Option<Answer> {
        let now = self.now();
        if let control::Request::Events(after) = request {
            let new = self.sentences.iter().filter(|(number, _)| *number > after);
            return Some(Answer::Events(new.cloned().collect()));
        }
        let mut orders = std::mem::take(&mut self.orders);
        let (backups, timing) = (self.settings.backups, self.settings.timing);
        // The last known leader may be this controller, if it has just lost its right: operators are not referred to it
        // then.
        let leader = self.leadership.leader().filter(|leader| *leader != self.settings.me.host);
        let Some(ranges) = self.leading.as_mut().and_then(|(_, ranges)| ranges.as_mut()) else {
            if request == control::Request::Status {
                let (cluster, term, home_lease) = (self.settings.me.cluster.number(), timing.term, timing.home_lease);
                return Some(Answer::Status(Status {
                    cluster,
                    leader,
                    backups,
                    term,
                    home_lease,
                    ..Status::default()
                }));
            }
            return Some(Answer::Refused(not_leading(leader.map(|host| self.prefix(host)))));
        };
        let decided = match request {
            control::Request::Status => return Some(Answer::Status(ranges.status(now))),
            control::Request::Rebalance { only_says } => {
                let found = ranges.rebalancing();
                match found.filter(|_| !only_says) {
                    None => Ok(Some(Answer::Moves(found))),
                    Some(moved) => ranges.let_go(now, moved, &mut orders).map(|()| {
                        let part = moved.pages.and_then(|(first, _)| ranges.part_at(moved.range, first));
                        ranges.answer_when_written(asked, [moved.range].into_iter().chain(part).collect(), &mut orders);
                        if let Some((_, answer)) = self.waiting.get_mut(&asked) {
                            *answer = Answer::Moves(found);
                        }
                        None
                    }),
                }
            }
            control::Request::Move { range, to } => {
                let moved = ranges.move_range(now, range, to, &mut orders);
                moved.map(|()| ranges.answer_when_written(asked, vec![range], &mut orders)).map(|()| None)
            }
            control::Request::MovePages { range, to, first, pages } => {
                let moved = ranges.move_pages(now, range, to, (first, pages), &mut orders);
                moved.map(|runs| {
                    let parts = runs.iter().filter_map(|(first, _)| ranges.part_at(range, *first));
                    let written: Vec<RangeNumber> = parts.chain([range]).collect();
                    ranges.answer_when_written(asked, written, &mut orders);
                    if let Some((_, answer)) = self.waiting.get_mut(&asked) {
                        *answer = Answer::Pages(runs);
                    }
                    None
                })
            }
            control::Request::Backups { range, directive } => {
                ranges.set_directive(now, range, directive, asked, &mut orders).map(|()| None)
            }
            control::Request::Drain { host, is_drained } => {
                ranges.drain(host, is_drained, asked, &mut orders).map(|()| None)
            }
            control::Request::Reset { range, at, may_lose_copies } => {
                ranges.reset(now, range, at, may_lose_copies, &mut orders).map(|()| Some(Answer::Done))
            }
            control::Request::Events(_) => Ok(Some(Answer::Done)),
        };
        self.carry_out(orders, say);
        decided.unwrap_or_else(|sentence| Some(Answer::Refused(sentence)))
    }
}

fn not_leading(leader: Option<HostPrefix>) -> String {
    match leader {
        Some(leader) => format!("this controller does not lead; ask the one of {leader}"),
        None => {
            "this controller does not lead at this moment, and knows none that does; ask again in a moment".to_owned()
        }
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ControllerError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map(drop).map_err(ControllerError::System)
}

fn nanoseconds(time: Duration) -> Nanoseconds {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The times that servers have with the same options.
fn timing(lease_term: Duration, home_lease: Duration) -> Result<Timing, ControllerError> {
    let (term, whole) = (nanoseconds(lease_term), nanoseconds(home_lease));
    if !(1_000_000..=u64::MAX >> 8).contains(&term) {
        let sentence = format!("a lease of {lease_term:?} is not possible; give 1 ms or more");
        return Err(ControllerError::Setting(sentence));
    }
    if !(10_000_000..=u64::MAX >> 8).contains(&whole) {
        let sentence = format!("a home lease of {home_lease:?} is not possible; give 10 ms or more");
        return Err(ControllerError::Setting(sentence));
    }
    let retry = (term / 50).min(whole / 15).clamp(1_000_000, 50_000_000);
    Ok(Timing::new(term, whole, retry, CLOCK_ERROR_PPM))
}

/// Unpredictable random bits.
fn random_number() -> io::Result<u64> {
    use std::io::Read as _;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
