//! The hosts of a run: `trellis run --hosts a,b:4 ./program`.
//!
//! The launcher starts an agent on each host, over `ssh`, and talks with it over the agent's standard input and output.
//! The agent starts the nodes and reports what becomes of them. All decisions about a run stay with the launcher.
//!
//! Promises: no program starts before every host has answered, has its sockets, and was reached from the others. A host
//! that cannot take part is named with the reason. The secret and the environment travel in the dialogue, never in
//! arguments. When the launcher ends, however that happens, the agents end what they started.

mod agent;
mod allocation;
mod connection;
mod copied;
mod dialogue;
pub(crate) mod environment;
mod list;
pub(crate) mod network;
mod survey;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use trellis::config::{self, Ports};
use trellis_base::{Deadline, Limit};

use super::binding::BindTo;
use super::cause::Ended;
use super::child::{self, Change};
use super::descendants;
use super::guard::Guard;
use super::signals::{self, Signals};
use crate::exit::{self, Failure};
use allocation::Allocation;
use connection::{Carrier, Connection};
use dialogue::Preparation;
use list::{Host, MapBy};
use tree::Tree;

pub(crate) use agent::LAUNCHER;
pub use agent::{AgentArguments, agent};
pub use dialogue::Pair;
pub(super) use dialogue::{Assignment, ON_THEIR_WAY_BYTES_MAX, Order, Report};
pub(crate) use network::REACH;
pub use survey::{Survey, SurveyedHost, survey};

/// How long the start of the agents may take.
pub(crate) const START: Deadline = Deadline {
    who: "`trellis run --hosts`",
    waits_for: "the agent of each host, to answer",
    limit: Limit::seconds(30),
    then: "exit status 71, with the names of the hosts; a program that is being sent counts as an answer",
    tested: "crates/trellis-command/src/run/hosts/mod.rs a_host_that_does_not_answer_is_named",
};
/// How long an agent that should end its nodes may say nothing.
pub(crate) const END: Deadline = Deadline {
    who: "`trellis run --hosts`",
    waits_for: "an agent that was told to end its nodes, to say anything",
    limit: Limit::seconds(3),
    then: "its nodes count as lost; their host ends them by itself",
    tested: "crates/trellis-cli/tests/hosts.rs a_host_that_vanishes_ends_the_run_with_its_name",
};
/// How long orders may take to leave before the launcher stops itself.
const FLUSH: Duration = Duration::from_secs(2);

/// The options that name hosts, and how they are reached.
#[derive(Debug, Clone, Args)]
pub struct HostsArguments {
    /// Use these hosts, reached by ssh: a,b:4,user@c; `:4` is how many nodes a host takes
    #[arg(long, value_name = "HOST[:N][,HOST…]", help_heading = "Hosts")]
    hosts: Option<String>,
    /// The same from a file, a host in each line, as `host slots=4`; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "hosts", help_heading = "Hosts")]
    hostfile: Option<PathBuf>,
    /// The command that reaches a host, with its options, for example 'ssh -p 2222'; without it this machine needs none
    #[arg(long, value_name = "COMMAND", help_heading = "Hosts")]
    ssh: Option<String>,
    /// The network in which the nodes talk, where hosts have several: a prefix such as 10.1.0.0/16, or an interface
    #[arg(long, value_name = "NETWORK", help_heading = "Hosts")]
    network: Option<String>,
    /// A name or address by which the other hosts reach a host, if it is not one that the host has itself
    #[arg(long, value_name = "HOST=ADDRESS[,…]", value_delimiter = ',', help_heading = "Hosts")]
    advertise: Vec<String>,
}

/// The options about what happens on hosts.
#[derive(Debug, Args)]
pub(super) struct PlacingArguments {
    /// How many nodes each host takes; with --rendezvous, how many are started here
    #[arg(long, value_name = "N", help_heading = "Hosts")]
    nodes_per_host: Option<usize>,
    /// Send the program and the libraries of Trellis that it needs to each host, and remove them after the run; the program
    /// starts in the directory of a login unless --chdir names one
    #[arg(long, help_heading = "Hosts")]
    copy: bool,
    /// Bind each node to processors of its host; threads that it starts are bound, too
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    bind_to: BindTo,
    /// Which nodes share a host; the default is slot
    #[arg(long, value_enum, value_name = "ORDER", help_heading = "Hosts")]
    map_by: Option<MapBy>,
    /// Log in to only four hosts, from these to the next ones, and so on; ssh must reach all hosts from each other without a
    /// question
    #[arg(long, help_heading = "Hosts")]
    tree: bool,
}

impl PlacingArguments {
    /// How many nodes a run starts here that meets others.
    pub(super) fn nodes_here(&self) -> usize {
        self.nodes_per_host.unwrap_or(1)
    }

    /// What the nodes are bound to.
    pub(super) fn bind_to(&self) -> BindTo {
        self.bind_to
    }
}

/// Which nodes run on which hosts, and how these are reached.
#[derive(Debug, Clone)]
pub struct Hosts {
    placed: Vec<(Host, Vec<usize>)>,
    carrier: Carrier,
    network: Option<String>,
    /// Whether the program is sent to the hosts.
    pub(super) copies: bool,
    /// Whether hosts are reached from other hosts.
    is_tree: bool,
    /// Whether the list of hosts was read from standard input, which is then at its end.
    pub(super) took_stdin: bool,
}

impl Hosts {
    /// The hosts, each with its nodes.
    pub(super) fn placed(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.placed.iter().map(|(host, nodes)| (host.name(), &**nodes))
    }
}

impl HostsArguments {
    /// The hosts of a run: those that are named, else those of the allocation in which this process runs, unless that
    /// is this machine alone. With them comes the number of nodes, if that is known.
    pub(super) fn read(
        self,
        nodes: Option<usize>,
        placing: &PlacingArguments,
        counts_allocation: bool,
    ) -> Result<(Option<Hosts>, Option<usize>), Failure> {
        let listed = self.listed()?;
        let (listed, carrier, from) = match listed {
            Some(listed) => (listed, Carrier::Ssh(self.ssh.clone()), None),
            None => match allocated(counts_allocation)? {
                // `--ssh` reaches the hosts in another way than Slurm does.
                Some(found) if self.ssh.is_some() => {
                    (found.hosts, Carrier::Ssh(self.ssh.clone()), Some(found.variable))
                }
                Some(found) => (found.hosts, found.carrier, Some(found.variable)),
                None => {
                    self.needs_hosts()?;
                    needs_hosts(&[
                        ("--nodes-per-host", placing.nodes_per_host.is_some()),
                        ("--copy", placing.copy),
                        ("--map-by", placing.map_by.is_some()),
                        ("--tree", placing.tree),
                    ])?;
                    return Ok((None, nodes));
                }
            },
        };
        // Then the user's number counts, as it does without a scheduler.
        let is_plain = self.network.is_none() && self.advertise.is_empty() && !placing.copy && self.ssh.is_none();
        let is_local = from.is_some() && is_plain;
        if let Some(nodes) = nodes.filter(|_| is_local && listed.iter().all(connection::is_here)) {
            return Ok((None, Some(nodes)));
        }
        let mut placed = list::placed(listed, nodes, placing.nodes_per_host, placing.map_by.unwrap_or_default())
            .map_err(|why| match from {
                Some(variable) => {
                    usage(format!("{why}, as {variable} counts: ask the scheduler for more tasks, or give --hosts"))
                }
                None => usage(why),
            })?;
        if is_local && placed.iter().all(|(host, _)| connection::is_here(host)) {
            return Ok((None, Some(count_of(&placed))));
        }
        list::advertise(&mut placed, &self.advertise).map_err(usage)?;
        let took_stdin = self.hostfile.is_some_and(|file| file.as_os_str() == "-");
        let nodes = count_of(&placed);
        // Slurm reaches hosts in a tree of its own.
        let is_tree = placing.tree && matches!(carrier, Carrier::Ssh(_));
        let hosts = Hosts { placed, carrier, network: self.network, copies: placing.copy, is_tree, took_stdin };
        Ok((Some(hosts), Some(nodes)))
    }

    /// The network in which the nodes talk, if the user named it.
    pub(super) fn network(&self) -> Option<&String> {
        self.network.as_ref()
    }

    /// An error if one of these options is given; they mean nothing without hosts.
    fn needs_hosts(&self) -> Result<(), Failure> {
        needs_hosts(&[
            ("--network", self.network.is_some()),
            ("--ssh", self.ssh.is_some()),
            ("--advertise", !self.advertise.is_empty()),
        ])
    }

    /// The hosts that are named, if some are.
    fn listed(&self) -> Result<Option<Vec<Host>>, Failure> {
        let listed = match (&self.hosts, &self.hostfile) {
            (Some(text), _) => list::in_list(text).map_err(|why| usage(format!("--hosts: {why}")))?,
            (None, Some(file)) => {
                let name = file.display();
                let text = text_of(file)
                    .map_err(|error| Failure::new(exit::FILE, format!("--hostfile {name}: cannot be read: {error}")))?;
                list::in_file(&text).map_err(|why| usage(format!("--hostfile {name}: {why}")))?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(listed))
    }
}

/// What a scheduler gave, where that counts.
fn allocated(counts: bool) -> Result<Option<Allocation>, Failure> {
    let variable = |name: &str| counts.then(|| std::env::var(name).ok()).flatten();
    allocation::allocation(variable, |file| std::fs::read_to_string(file))
        .map_err(|why| Failure::new(exit::USAGE, format!("{why}; --hosts names hosts yourself")))
}

/// An error if one of these options is given, which mean nothing without hosts.
fn needs_hosts(options: &[(&str, bool)]) -> Result<(), Failure> {
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(usage(format!("{option} needs hosts; name them with --hosts"))),
        None => Ok(()),
    }
}

fn usage(sentence: String) -> Failure {
    Failure::new(exit::USAGE, sentence)
}

fn text_of(file: &PathBuf) -> std::io::Result<String> {
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(file)?;
    }
    Ok(text)
}

/// How many nodes there are on all hosts.
fn count_of(placed: &[(Host, Vec<usize>)]) -> usize {
    placed.iter().map(|(_, nodes)| nodes.len()).sum()
}

/// The agents of a run.
#[derive(Default)]
pub(super) struct Fleet {
    connections: Vec<Connection>,
    heartbeat_at: Option<Instant>,
    /// How long an agent may be silent.
    silence: Duration,
}

/// What all hosts are told before the nodes are started.
pub(super) struct Common {
    pub(super) program: OsString,
    pub(super) search_path: Option<OsString>,
    pub(super) directory: Option<PathBuf>,
    pub(super) has_datagrams: bool,
    pub(super) ports: Ports,
    pub(super) bind_to: BindTo,
    pub(super) silence: Duration,
}

impl Fleet {
    /// Starts an agent on each host, has it make the sockets of its nodes, and sees whether these can be reached.
    pub(super) fn connect(hosts: &Hosts, common: &Common, signals: &Signals, guard: &Guard) -> Result<Fleet, Failure> {
        let mut fleet = Fleet { silence: common.silence, ..Fleet::default() };
        let connected = fleet.connect_all(hosts, common, signals, guard);
        if connected.is_err() {
            fleet.give_up();
        }
        connected.map(|()| fleet)
    }

    fn connect_all(&mut self, hosts: &Hosts, common: &Common, signals: &Signals, guard: &Guard) -> Result<(), Failure> {
        if common.has_datagrams && hosts.placed.iter().any(|(host, _)| host.advertised.is_some()) {
            let sentence =
                format!("--advertise: {}; set link = auto, or leave the option out", config::DATAGRAMS_COME_FROM);
            return Err(Failure::new(exit::CONFIGURATION, sentence));
        }
        self.open(hosts, guard)?;
        self.until(signals, START.time(), "say hello", |connection| connection.hello.is_some())?;
        self.prepare(hosts, common, signals)?;
        if common.has_datagrams {
            return Ok(());
        }
        self.reach(signals)?;
        self.complain_about_firewalls(&self.addresses())
    }

    fn open(&mut self, hosts: &Hosts, guard: &Guard) -> Result<(), Failure> {
        let mut tree = Tree::default();
        for (place, (host, nodes)) in hosts.placed.iter().cloned().enumerate() {
            let is_of_tree = hosts.is_tree && !connection::is_here(&host);
            let connection = match is_of_tree.then(|| tree.parent_of(place)).flatten() {
                Some(parent) => {
                    let through = self.connections[parent].host.name();
                    Connection::through(parent, through, host, nodes, &hosts.carrier)
                }
                None => Connection::open(host, nodes, &hosts.carrier)?,
            };
            connection.pid.into_iter().for_each(|pid| guard.watch_group(pid));
            self.connections.push(connection);
        }
        Ok(())
    }

    /// Has each agent make the sockets of its nodes.
    fn prepare(&mut self, hosts: &Hosts, common: &Common, signals: &Signals) -> Result<(), Failure> {
        self.heartbeat_at = Some(Instant::now());
        let addresses = self.addresses_of_hosts(hosts.network.is_some())?;
        if hosts.copies {
            let files = copied::files(&common.program)?;
            self.connections.iter_mut().for_each(|connection| connection.upload(files.iter().cloned()));
            self.until(signals, START.time(), "take the program", Connection::has_uploaded)?;
        }
        for (connection, address) in self.connections.iter_mut().zip(addresses) {
            let preparation = Preparation {
                nodes: connection.nodes.clone(),
                bind_to: common.bind_to,
                address,
                network: hosts.network.clone(),
                advertised: connection.host.advertised.clone(),
                has_datagrams: common.has_datagrams,
                ports: (common.ports.first, common.ports.last),
                directory: common.directory.clone(),
                program: common.program.clone(),
                is_copied: hosts.copies,
                search_path: common.search_path.clone(),
                silence_seconds: common.silence.as_secs(),
            };
            connection.order(&Order::Prepare(preparation), b"");
        }
        self.until(signals, START.time(), "make its sockets", |connection| !connection.addresses.is_empty())
    }

    /// Has each agent try whether it reaches the sockets of the others.
    fn reach(&mut self, signals: &Signals) -> Result<(), Failure> {
        let addresses = self.addresses();
        for connection in &mut self.connections {
            let others = addresses.iter().cloned().enumerate().filter(|(node, _)| !connection.nodes.contains(node));
            connection.order(&Order::Reach(others.collect()), b"");
        }
        self.until(signals, START.time(), "reach the others", |connection| connection.unreachable.is_some())
    }

    /// The address of each host, as the others see it.
    fn addresses_of_hosts(&self, has_network: bool) -> Result<Vec<IpAddr>, Failure> {
        let hellos = || self.connections.iter().filter_map(|connection| connection.hello.as_ref());
        let elsewhere = self.connections.iter().filter(|connection| !connection.is_here);
        // This machine, as the first other host sees it.
        let mut seen = elsewhere.filter_map(|connection| connection.hello.as_ref());
        let here = seen.find_map(|hello| hello.launcher_address).unwrap_or(Ipv4Addr::LOCALHOST.into());
        let mut addresses = Vec::new();
        for (connection, hello) in self.connections.iter().zip(hellos()) {
            let there = hello.own_address.unwrap_or(Ipv4Addr::LOCALHOST.into());
            addresses.push(if connection.is_here { here } else { there });
        }
        let is_unreachable = |(place, address): (usize, &IpAddr)| {
            (address.is_loopback() && self.connections[place].host.advertised.is_none()).then_some(place)
        };
        let local = addresses.iter().enumerate().find_map(is_unreachable);
        if let Some(local) = local.filter(|_| !has_network && !addresses.iter().all(IpAddr::is_loopback)) {
            let sentence = format!(
                "host {}: it was reached at {}, where the others cannot reach it; name the network of the hosts with \
                 --network, or its own address with --advertise",
                self.connections[local].host.name(),
                addresses[local]
            );
            return Err(Failure::new(exit::CONFIGURATION, sentence));
        }
        Ok(addresses)
    }

    fn complain_about_firewalls(&self, addresses: &[String]) -> Result<(), Failure> {
        let mut sentence = String::new();
        for connection in &self.connections {
            let Some((node, why)) = connection.unreachable.iter().flatten().next() else { continue };
            let other = self.connections.iter().find(|other| other.nodes.contains(node));
            let other = other.map_or("?", |other| other.host.name());
            let separator = if sentence.is_empty() { "" } else { "; " };
            let (name, address) = (connection.host.name(), &addresses[*node]);
            // Writing to a string does not fail.
            let _ = write!(sentence, "{separator}host {name} does not reach host {other} at {address}: {why}");
        }
        if sentence.is_empty() {
            return Ok(());
        }
        sentence.push_str("; open the firewall between them, name another network with --network, or another address with --advertise");
        Err(Failure::new(exit::SYSTEM, sentence))
    }

    /// Where the nodes of all hosts listen, in the order of their numbers.
    pub(super) fn addresses(&self) -> Vec<String> {
        let of_host = |connection: &Connection| {
            let addresses = connection.addresses.iter().cloned();
            connection.nodes.iter().copied().zip(addresses).collect::<Vec<_>>()
        };
        // By their numbers, which is not the order of the hosts with `--map-by node`.
        let all: BTreeMap<usize, String> = self.connections.iter().flat_map(of_host).collect();
        all.into_values().collect()
    }

    /// Talks with the agents until all have done something, or some cannot.
    fn until(
        &mut self,
        signals: &Signals,
        limit: Duration,
        what: &str,
        is_done: impl Fn(&Connection) -> bool,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let is_decided = |connection: &Connection| is_done(connection) || connection.failure.is_some();
        // A large program on a slow network is no reason to give up, as long as it moves.
        let end_of = |connection: &Connection| {
            let last = if connection.is_uploading() { connection.moved.max(begin) } else { begin };
            last.max(connection.resumed) + limit
        };
        while let Some(end) = self.connections.iter().filter(|one| !is_decided(one)).map(end_of).min() {
            let now = Instant::now();
            for connection in self.connections.iter_mut().filter(|one| !is_decided(one) && now >= end_of(one)) {
                let login = connection.login().map(|login| format!("; see what `{login}` does")).unwrap_or_default();
                connection.fail(exit::SYSTEM, &format!("its agent did not {what} within {limit:?}{login}"));
            }
            self.wait(signals, end)?;
        }
        let failures = || self.connections.iter().filter_map(|connection| connection.failure.as_ref());
        let Some(first) = failures().next() else { return Ok(()) };
        let sentences: Vec<&str> = failures().map(|failure| failure.sentence.as_str()).collect();
        Err(Failure::new(first.code, sentences.join("; ")))
    }

    fn wait(&mut self, signals: &Signals, until: Instant) -> Result<(), Failure> {
        let until = self.heartbeat_at.map_or(until, |heartbeat_at| until.min(heartbeat_at));
        let mut polled: Vec<PollFd<'_>> = vec![PollFd::new(signals, PollFlags::IN)];
        polled.extend(self.watched().map(|(pipe, flags)| PollFd::from_borrowed_fd(pipe, flags)));
        match poll(&mut polled, network::timespec_until(Some(until)).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::new(exit::SYSTEM, format!("cannot wait for the hosts: {error}"))),
        }
        self.send_heartbeats(Instant::now());
        while let Some(signal) = signals.next() {
            if signal == libc::SIGTSTP {
                self.stop();
            }
            if signals::asks_to_end(signal) {
                let sentence = format!("interrupted by {} before the nodes were started", signals::name(signal));
                return Err(Failure::new(128 + signal as u8, sentence));
            }
        }
        for (place, report, _) in self.pump() {
            let connection = &mut self.connections[place];
            match report {
                Report::Prepared(addresses) => connection.addresses = addresses,
                Report::Surveyed(facts) => connection.facts = Some(*facts),
                Report::Measured(measured) => connection.measured = Some(measured),
                Report::Assigned => {
                    connection.is_assigned = true;
                    connection.forget_complaints();
                }
                Report::Reached(unreachable) => connection.unreachable = Some(unreachable),
                Report::Refused { code, sentence } => connection.fail(code, &sentence),
                _ => {}
            }
        }
        while let Some((pid, change)) = child::next_change() {
            self.note(pid, &change);
        }
        for connection in self.connections.iter_mut().filter(|connection| connection.is_over()) {
            let why = connection.why_over();
            connection.fail(exit::SYSTEM, &why);
        }
        Ok(())
    }

    /// Says to all hosts what their nodes run, and sees whether these have memory there.
    pub(super) fn assign(&mut self, assignment: &Assignment, signals: &Signals) -> Result<(), Failure> {
        self.order_all(&Order::Assign(Box::new(assignment.clone())));
        let assigned =
            self.until(signals, START.time(), "make room for the region", |connection| connection.is_assigned);
        if assigned.is_err() {
            self.give_up();
        }
        assigned
    }

    /// Ends agents that have started no node. They end with their standard input; that of this machine would be killed
    /// with this process, so it is waited for.
    fn give_up(&mut self) {
        let end = Instant::now() + FLUSH;
        self.connections.iter_mut().for_each(Connection::drop_it);
        while Instant::now() < end && self.connections.iter().any(|one| one.is_here && one.ended.is_none()) {
            std::thread::sleep(descendants::LOOK);
            while let Some((pid, change)) = child::next_change() {
                self.note(pid, &change);
            }
        }
    }

    /// Starts the nodes on all hosts.
    pub(super) fn start(&mut self) {
        self.order_all(&Order::Start);
        self.resume();
    }

    /// The place of the connection and the name of the host of each node, in the order of the numbers.
    pub(super) fn places(&self) -> Vec<(usize, String)> {
        let of_host = |(place, connection): (usize, &Connection)| {
            let name = connection.host.name().to_owned();
            connection.nodes.iter().map(|node| (*node, (place, name.clone()))).collect::<Vec<_>>()
        };
        let all: BTreeMap<usize, (usize, String)> = self.connections.iter().enumerate().flat_map(of_host).collect();
        all.into_values().collect()
    }

    /// The descriptors to wait for, after what is for hosts behind others was handed to those.
    pub(super) fn watched(&mut self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.pass_down();
        self.connections.iter().flat_map(Connection::watched)
    }

    /// What the agents said, each with the place of its connection.
    pub(super) fn pump(&mut self) -> Vec<(usize, Report, Vec<u8>)> {
        let mut all = Vec::new();
        // What comes through a host comes before what is relayed: the place of a host is behind that of its parent.
        for place in 0..self.connections.len() {
            for (report, body) in self.connections[place].pump() {
                match report.relayed_host() {
                    Some(host) => self.connections[host].relayed(&report, &body),
                    None => all.push((place, report, body)),
                }
            }
        }
        self.lose_relays();
        all
    }

    /// Hosts that were reached through a host which is lost are lost, too.
    fn lose_relays(&mut self) {
        for place in 0..self.connections.len() {
            let Some(parent) = self.connections[place].relay.as_ref().map(|relay| relay.parent) else { continue };
            if self.connections[parent].is_lost() {
                self.connections[place].relay_ended(Ended::Lost);
            }
        }
    }

    /// Hands what is for a host to the host through which it is reached.
    fn pass_down(&mut self) {
        // The last hosts first: their parents then pass it on in the same turn.
        for place in (0..self.connections.len()).rev() {
            let Some(parent) = self.connections[place].relay.as_ref().map(|relay| relay.parent) else { continue };
            if self.connections[parent].hello.is_some() {
                for (order, body) in self.connections[place].orders_of_relay() {
                    self.connections[parent].order(&order.about(place), &body);
                }
            }
        }
    }

    /// Notes what became of a child, if it carries a connection.
    pub(super) fn note(&mut self, pid: i32, change: &Change) {
        let connection = self.connections.iter_mut().find(|one| one.pid == Some(pid) && one.ended.is_none());
        if let (Some(connection), Change::Ended(ended)) = (connection, change) {
            connection.ended = Some(*ended);
        }
    }

    /// Sends an order to one agent.
    pub(super) fn order(&mut self, place: usize, order: &Order, body: &[u8]) {
        self.connections[place].order(order, body);
    }

    /// Sends an order to all agents.
    pub(super) fn order_all(&mut self, order: &Order) {
        self.connections.iter_mut().for_each(|connection| connection.order(order, b""));
    }

    /// Says that the launcher is there, if it is time for that.
    pub(super) fn send_heartbeats(&mut self, now: Instant) {
        if self.heartbeat_at.is_some_and(|at| now >= at) {
            self.order_all(&Order::Heartbeat);
            self.heartbeat_at = Some(now + dialogue::heartbeat_interval(self.silence));
        }
    }

    /// When the launcher must say again that it is there.
    pub(super) fn heartbeat_at(&self) -> Option<Instant> {
        self.heartbeat_at
    }

    /// The places of agents that are lost, each with the reason: their connection is over, or they were silent for
    /// long. `is_ending` is whether they were told to end their nodes.
    pub(super) fn lost(&mut self, now: Instant, is_ending: bool) -> Vec<(usize, String)> {
        let mut lost = Vec::new();
        let unheard: Vec<bool> = (0..self.connections.len()).map(|place| self.is_unheard(place, now)).collect();
        for (place, connection) in self.connections.iter_mut().enumerate() {
            // Whoever is reached through a silent host may be well: that one is lost first.
            let is_behind = connection.relay.as_ref().is_some_and(|relay| unheard[relay.parent]);
            if connection.has_finished || is_behind && !connection.is_over() {
                continue;
            }
            let silence = limit_of_silence(connection, self.silence, is_ending);
            if connection.is_over() {
                lost.push((place, connection.why_over()));
            } else if now >= connection.heard + silence {
                lost.push((place, format!("it has said nothing for {} s", silence.as_secs())));
                connection.drop_it();
            } else {
                continue;
            }
            connection.has_finished = true;
        }
        lost
    }

    /// Notes that nothing is left of the nodes of a host.
    pub(super) fn finished(&mut self, place: usize) {
        self.connections[place].has_finished = true;
        self.connections[place].close();
    }

    /// Whether nothing is left of any node.
    pub(super) fn is_finished(&self) -> bool {
        self.connections.iter().all(|connection| connection.has_finished)
    }

    /// Gives up the agents that have not finished; they count as lost when what carries the connection has ended.
    pub(super) fn abandon(&mut self) {
        let unfinished = self.connections.iter_mut().filter(|connection| !connection.has_finished);
        unfinished.for_each(Connection::drop_it);
    }

    /// The name of a host.
    pub(super) fn host(&self, place: usize) -> &str {
        self.connections[place].host.name()
    }

    /// Says to the agents that output was taken, of which nothing waits any more.
    pub(super) fn say_taken(&mut self) {
        for connection in self.connections.iter_mut().filter(|connection| connection.untaken > 0) {
            let taken = std::mem::take(&mut connection.untaken);
            connection.order(&Order::OutputTaken(taken), b"");
        }
    }

    /// Notes that output came from an agent.
    pub(super) fn came(&mut self, place: usize, bytes: usize) {
        self.connections[place].untaken += bytes;
    }

    /// Notes that an agent has started its nodes.
    pub(super) fn started(&mut self, place: usize) {
        self.connections[place].has_started = true;
    }

    /// Whether an agent was not heard when it should have been.
    pub(super) fn is_unheard(&self, place: usize, now: Instant) -> bool {
        now >= self.connections[place].heard + 2 * dialogue::heartbeat_interval(self.silence)
    }

    /// When the next agent counts as lost if it goes on to say nothing.
    pub(super) fn silent_at(&self, is_ending: bool) -> Option<Instant> {
        let open = self.connections.iter().filter(|connection| !connection.has_finished);
        open.map(|connection| connection.heard + limit_of_silence(connection, self.silence, is_ending)).min()
    }

    /// Stops this process, as the terminal asked for, after everything else was stopped.
    pub(super) fn stop(&mut self) {
        self.order_all(&Order::Signal(libc::SIGTSTP));
        self.flush();
        signals::stop_this_process();
        self.order_all(&Order::Signal(libc::SIGCONT));
        self.resume();
    }

    /// Sends what is to be sent, before the launcher stops itself.
    fn flush(&mut self) {
        let end = Instant::now() + FLUSH;
        loop {
            self.pass_down();
            self.connections.iter_mut().for_each(Connection::write);
            if Instant::now() >= end || self.connections.iter().all(Connection::is_flushed) {
                return;
            }
            let to_agents = self.watched().filter(|(_, flags)| *flags == PollFlags::OUT);
            let mut polled: Vec<PollFd<'_>> =
                to_agents.map(|(pipe, flags)| PollFd::from_borrowed_fd(pipe, flags)).collect();
            // Whatever it says, the next turn tries again until the time is over.
            let _ = poll(&mut polled, network::timespec_until(Some(end)).as_ref());
        }
    }

    /// After a time in which the launcher did not listen: nobody was silent meanwhile.
    fn resume(&mut self) {
        let now = Instant::now();
        for connection in &mut self.connections {
            (connection.heard, connection.resumed) = (now, now);
        }
    }
}

/// How long an agent may be silent: less when its nodes are being ended after a failure, more while it starts them.
fn limit_of_silence(connection: &Connection, silence: Duration, is_ending: bool) -> Duration {
    match (is_ending, connection.has_started) {
        (true, _) => END.time().min(silence),
        (false, true) => silence,
        (false, false) => START.time().max(silence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_answer_is_named() {
        let signals = Signals::block().expect("signals");
        let mut fleet = Fleet::default();
        for (name, ssh) in [("silent", "sleep 600; #"), ("talking", "echo 'trellis-agent {}'; sleep 600; #")] {
            let host = list::in_list(name).expect("a name").remove(0);
            // `exec` runs the first command alone.
            let ssh = format!("sh -c \"{}\"", ssh.trim_end_matches("; #"));
            fleet.connections.push(Connection::open(host, vec![0], &Carrier::Ssh(Some(ssh))).expect("it starts"));
        }
        let limit = Duration::from_millis(300);
        let late = fleet.until(&signals, limit, "say hello", |connection| connection.hello.is_some());
        let sentence = late.expect_err("nobody answers").sentence;
        let expected = "host silent: its agent did not say hello within 300ms; see what `sh -c \"sleep 600\" silent \
                        true` does; host talking: it has another version of trellis; install the same one";
        assert_eq!(sentence, expected);
        fleet.connections.iter_mut().for_each(Connection::drop_it);
    }
}
