//! `trellis agent`: the launcher's hands on another host. It starts the nodes there, passes their output on, and tells
//! what becomes of them.
//!
//! Promises: it decides nothing about the run, and leaves nothing behind. When the launcher is gone (the end of its
//! standard input, or silence) it ends its nodes as the launcher would. It must never wait for a reader of its output
//! while it could read orders.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use trellis::config::{self, Ports, Sources};
use trellis::record::Record;
use trellis_base::{Deadline, Limit};

use super::dialogue::{
    self, Assignment, BODY_BYTES_MAX, Frames, HELLO, Hello, ON_THEIR_WAY_BYTES_MAX, Order, Outgoing, Preparation,
    Report,
};
use super::tree::Relays;
use super::{network, survey};
use crate::exit::{self, Ending, Failure};
use crate::installed;
use crate::run::child::{self, Change, NodeCommand, NodeOutput};
use crate::run::descendants::{self, Sweep};
use crate::run::guard::Guard;
use crate::run::output::set_non_blocking;
use crate::run::signals::{self, Signals};
use crate::run::status::NodeStatus;
use crate::run::stdin::InputPipe;
use crate::run::supervise::TERMINATE;
use crate::scratch::Scratch;

/// How long the launcher may be silent.
pub(crate) const LAUNCHER: Deadline = Deadline {
    who: "`trellis agent`, on each host of `trellis run --hosts`",
    waits_for: "the launcher, to say that it is there",
    limit: Limit::Other("`silence_seconds_max`; while the launcher is stopped by SIGTSTP, without limit"),
    then: "it ends the nodes of its host",
    tested: "crates/trellis-cli/tests/hosts.rs an_agent_ends_its_nodes_when_the_launcher_says_nothing_any_more",
};
/// Where the loader looks for libraries: ld.so(8).
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// The launcher's hands on another host
#[derive(Debug, Args)]
pub struct AgentArguments {}

/// Runs the hidden subcommand.
pub fn agent(_: &AgentArguments) -> Ending {
    let signals = Signals::block()?;
    descendants::adopt_orphans();
    let guard = Guard::start()?;
    for descriptor in [rustix::stdio::stdin(), rustix::stdio::stdout()] {
        set_non_blocking(descriptor);
    }
    let mut agent = Agent::new(&signals, &guard);
    agent.say_hello();
    agent.serve()?;
    Ok(exit::FINE)
}

/// What the agent waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Orders,
    Signals,
    Output,
    Stream { place: usize, stream: usize },
    Input,
    Relays,
}

/// A node that the agent started.
struct Node {
    number: usize,
    pid: i32,
    status: NodeStatus,
    streams: [Option<OwnedFd>; 2],
    is_running: bool,
}

/// What the agent is doing.
enum Stage {
    Serving,
    /// The launcher is gone; the nodes were sent SIGTERM.
    Terminating(Instant),
    /// The nodes have ended, or must; what they left running is ended.
    Finishing(Sweep),
}

struct Agent<'a> {
    signals: &'a Signals,
    guard: &'a Guard,
    orders: Frames,
    outgoing: Outgoing,
    /// How much output is on its way to its reader.
    on_its_way: usize,
    /// Whether the launcher still reads and writes.
    has_launcher: bool,
    preparation: Option<Preparation>,
    assignment: Option<Assignment>,
    sockets: Vec<OwnedFd>,
    /// The processors of each node, if they are bound.
    processors: Option<Vec<CpuSet>>,
    scratch: Option<Scratch>,
    /// Files that are being copied.
    copied: BTreeMap<OsString, File>,
    has_record: bool,
    /// The connections to other hosts that go through this one.
    relays: Relays,
    /// Whether the launcher wants the end of everything here, and whether that is after a failure.
    finishes: Option<bool>,
    /// Records that are handed over.
    records: VecDeque<(usize, File)>,
    nodes: Vec<Node>,
    /// The way from the launcher's standard input to the nodes that get it.
    inputs: Vec<InputPipe>,
    /// How many bytes of it the launcher knows to be taken.
    input_taken: usize,
    stage: Stage,
    /// When the launcher was heard last; `None` while it is stopped.
    heard: Option<Instant>,
    heartbeat_at: Instant,
}

impl<'a> Agent<'a> {
    fn new(signals: &'a Signals, guard: &'a Guard) -> Agent<'a> {
        Agent {
            signals,
            guard,
            orders: Frames::default(),
            outgoing: Outgoing::default(),
            on_its_way: 0,
            has_launcher: true,
            preparation: None,
            assignment: None,
            sockets: Vec::new(),
            processors: None,
            scratch: None,
            copied: BTreeMap::new(),
            has_record: false,
            relays: Relays::default(),
            finishes: None,
            records: VecDeque::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            input_taken: 0,
            stage: Stage::Serving,
            heard: Some(Instant::now()),
            heartbeat_at: Instant::now(),
        }
    }

    fn say_hello(&mut self) {
        let (own_address, launcher_address) = addresses();
        let hello = Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            own_address,
            launcher_address,
        };
        let text = serde_json::to_string(&hello).expect("plain data");
        // The last line that the login printed may be unfinished.
        self.outgoing.add(format!("\n{HELLO}{text}\n").as_bytes());
    }

    fn say(&mut self, report: &Report, body: &[u8]) {
        if self.has_launcher {
            self.outgoing.say(report, body);
        }
    }

    /// Works until nothing is left to do.
    fn serve(&mut self) -> Result<(), Failure> {
        while !self.is_done() {
            for source in self.wait(self.deadline())? {
                match source {
                    Source::Orders => self.read_orders(),
                    Source::Signals => self.take_signals(),
                    Source::Output => self.write(),
                    Source::Stream { place, stream } => self.pass_on(place, stream),
                    Source::Input => self.feed(),
                    // Below, because the end of a process is no such source.
                    Source::Relays => {}
                }
            }
            self.pass_relays();
            self.advance();
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let is_written = self.outgoing.is_empty() || !self.has_launcher;
        matches!(self.stage, Stage::Finishing(_)) && is_written && self.is_finished()
    }

    /// Whether nothing of the nodes is left, and the launcher was told.
    fn is_finished(&self) -> bool {
        self.scratch.is_none() && self.nodes.is_empty() && self.records.is_empty()
    }

    /// When something is to be done without anybody asking for it.
    fn deadline(&self) -> Instant {
        let silence = self.silence();
        let heartbeat_at = silence.map(|_| self.heartbeat_at);
        let silent_at = self.heard.zip(silence).filter(|_| self.has_launcher).map(|(heard, silence)| heard + silence);
        let stage = match &self.stage {
            Stage::Serving => None,
            Stage::Terminating(at) => Some(*at),
            Stage::Finishing(_) => Some(Instant::now() + descendants::LOOK),
        };
        let first = [heartbeat_at, silent_at, stage].into_iter().flatten().min();
        // Before it is prepared, the end of standard input is all that it waits for.
        first.unwrap_or_else(|| Instant::now() + Duration::from_secs(60))
    }

    fn silence(&self) -> Option<Duration> {
        self.preparation.as_ref().map(|preparation| Duration::from_secs(preparation.silence_seconds))
    }

    /// Waits until something is ready, or this time has come.
    fn wait(&self, until: Instant) -> Result<Vec<Source>, Failure> {
        let mut watched = vec![(Source::Signals, self.signals.as_fd(), PollFlags::IN)];
        if self.has_launcher {
            watched.push((Source::Orders, rustix::stdio::stdin(), PollFlags::IN));
        }
        if self.has_launcher && !self.outgoing.is_empty() {
            watched.push((Source::Output, rustix::stdio::stdout(), PollFlags::OUT));
        }
        let inputs = self.inputs.iter().filter(|input| input.is_waiting());
        watched.extend(inputs.map(|input| (Source::Input, input.descriptor(), PollFlags::OUT)));
        let relayed = self.relays.watched(self.may_relay());
        watched.extend(relayed.map(|(pipe, flags)| (Source::Relays, pipe, flags)));
        if self.on_its_way < ON_THEIR_WAY_BYTES_MAX || !self.has_launcher {
            for (place, node) in self.nodes.iter().enumerate() {
                for (stream, pipe) in node.streams.iter().enumerate() {
                    let source = Source::Stream { place, stream };
                    watched.extend(pipe.as_ref().map(|pipe| (source, pipe.as_fd(), PollFlags::IN)));
                }
            }
        }
        let mut polled: Vec<PollFd<'_>> =
            watched.iter().map(|(_, pipe, flags)| PollFd::from_borrowed_fd(*pipe, *flags)).collect();
        match poll(&mut polled, network::timespec_until(Some(until)).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::new(exit::SYSTEM, format!("cannot wait for the nodes: {error}"))),
        }
        let ready = polled.iter().zip(&watched).filter(|(polled, _)| !polled.revents().is_empty());
        Ok(ready.map(|(_, (source, ..))| *source).collect())
    }

    fn write(&mut self) {
        if self.outgoing.write(rustix::stdio::stdout()).is_err() {
            self.lose_launcher();
        }
    }

    /// Whether more from other hosts may be added to what goes to the launcher.
    fn may_relay(&self) -> bool {
        self.outgoing.waiting() < ON_THEIR_WAY_BYTES_MAX
    }

    fn pass_relays(&mut self) {
        for (report, body) in self.relays.pump(self.may_relay()) {
            self.say(&report, &body);
        }
    }

    fn read_orders(&mut self) {
        let mut buffer = [0; 64 << 10];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(0) => return self.lose_launcher(),
            Ok(count) => self.orders.feed(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.lose_launcher(),
        }
        loop {
            match self.orders.next() {
                Ok(Some((order, body))) => {
                    if let Err(Failure { code, sentence }) = self.carry_out(order, body) {
                        self.say(&Report::Refused { code, sentence }, b"");
                    }
                }
                Ok(None) => break,
                Err(_) => return self.lose_launcher(),
            }
        }
        // Some orders take long, and the launcher may have spoken meanwhile.
        self.heard = self.heard.map(|_| Instant::now());
    }

    fn carry_out(&mut self, order: Order, body: Vec<u8>) -> Result<(), Failure> {
        match order {
            Order::Copy(name) => self.copy(name, &body)?,
            Order::Prepare(preparation) => self.prepare(preparation)?,
            Order::Reach(nodes) => self.say(&Report::Reached(network::unreachable(&nodes)), b""),
            Order::Survey => {
                self.say(&Report::Surveyed(Box::new(survey::facts())), b"");
                // No process is forked any more after this.
                std::mem::take(&mut self.sockets).into_iter().for_each(|socket| {
                    std::thread::spawn(|| survey::answer(socket));
                });
            }
            Order::Measure(address) => self.say(&Report::Measured(survey::measure(&address)), b""),
            Order::Assign(assignment) => self.assign(*assignment)?,
            Order::Start => self.start()?,
            Order::Signal(signal) => {
                self.signal_all(signal);
                match signal {
                    libc::SIGTSTP => self.heard = None,
                    libc::SIGCONT => self.heard = Some(Instant::now()),
                    _ => {}
                }
            }
            Order::Show => {
                let pages: Vec<_> = self.running().map(|node| (node.number, node.status.bytes())).collect();
                for (node, page) in pages {
                    self.say(&Report::Shown { node }, &page);
                }
            }
            Order::Input => {
                self.inputs.iter_mut().for_each(|input| input.give(&body));
                self.feed();
            }
            Order::Open { host, command } => match self.relays.open(host, &command) {
                Ok(pid) => self.guard.watch_group(pid),
                Err(reports) => reports.iter().for_each(|(report, body)| self.say(report, body)),
            },
            Order::Relay { host } => self.relays.give(host, &body),
            Order::Drop { host } => self.relays.kill(host),
            Order::Finish { has_failed } => self.finishes = Some(has_failed),
            Order::OutputTaken(bytes) => self.on_its_way = self.on_its_way.saturating_sub(bytes),
            Order::Heartbeat => {}
        }
        Ok(())
    }

    fn copy(&mut self, name: OsString, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.scratch()?.file(&name);
        let unwritten =
            |error| Failure::new(exit::FILE, format!("the program cannot be copied to {}: {error}", path.display()));
        let file = match self.copied.entry(name) {
            Entry::Occupied(begun) => begun.into_mut(),
            Entry::Vacant(place) => {
                let mut options = OpenOptions::new();
                place.insert(options.write(true).create_new(true).mode(0o700).open(&path).map_err(unwritten)?)
            }
        };
        file.write_all(bytes).map_err(unwritten)
    }

    fn prepare(&mut self, mut preparation: Preparation) -> Result<(), Failure> {
        // A file that is open for writing cannot be executed.
        self.copied.clear();
        if preparation.is_copied {
            let name = Path::new(&preparation.program).file_name().unwrap_or_default().to_owned();
            preparation.program = self.scratch()?.file(name).into_os_string();
        }
        if let Some(directory) = &preparation.directory {
            std::env::set_current_dir(directory).map_err(|error| {
                let directory = directory.display();
                Failure::new(
                    exit::FILE,
                    format!("cannot go to the directory {directory}: {error}; --chdir names another"),
                )
            })?;
        }
        child::executable(&preparation.program, preparation.search_path.as_deref()).map_err(|mut failure| {
            if failure.code == exit::NOT_FOUND {
                failure.sentence.push_str("; --copy sends it");
            }
            failure
        })?;
        self.processors = preparation.bind_to.processors(preparation.nodes.len())?;
        let address = match (&preparation.network, &preparation.advertised) {
            (Some(network), _) => network::address_in(network)?,
            (None, Some(_)) => trellis::engines::everywhere(),
            (None, None) => preparation.address,
        };
        let (first, last) = preparation.ports;
        let (nodes, ports) = (preparation.nodes.len(), Ports { first, last });
        let listening = network::listen(nodes, address, preparation.has_datagrams, ports);
        let (sockets, addresses) = listening.map_err(|mut failure| {
            if ports == Ports::default() {
                failure.sentence.push_str("; --network names another network");
            }
            failure
        })?;
        self.sockets = sockets;
        let addresses = match &preparation.advertised {
            Some(name) => addresses.iter().map(|bound| network::advertised(name, bound)).collect(),
            None => addresses,
        };
        self.preparation = Some(preparation);
        self.say(&Report::Prepared(addresses), b"");
        Ok(())
    }

    /// Completes the environment of the nodes, and tries whether their region can be had.
    fn assign(&mut self, mut assignment: Assignment) -> Result<(), Failure> {
        let Some(preparation) = self.preparation.clone() else { return Err(out_of_order()) };
        let environment = &mut assignment.environment;
        if let Some(configuration) = &assignment.configuration {
            let file = self.scratch()?.file("configuration");
            std::fs::write(&file, configuration)
                .map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", file.display())))?;
            environment.push((config::FILE_VARIABLE.to_owned(), file.into_os_string()));
        }
        if preparation.is_copied {
            // Libraries of ours lie beside the program.
            let others = environment.iter().rfind(|(name, _)| name == LIBRARIES).map(|(_, value)| value.clone());
            let others = others.or_else(|| std::env::var_os(LIBRARIES));
            let value = installed::preloaded(&[self.scratch()?.path().to_owned()], others);
            environment.push((LIBRARIES.to_owned(), value));
        }
        if assignment.has_record {
            self.has_record = true;
            let folder = self.scratch()?.path().to_owned();
            environment.push((format!("{}RECORD", config::VARIABLE_PREFIX), folder.into_os_string()));
        }
        let mut sources = Sources::new().process_environment();
        for (name, value) in environment.iter().filter(|(name, _)| name.starts_with(config::VARIABLE_PREFIX)) {
            sources = sources.variable(name, value.to_string_lossy());
        }
        let read = sources.load_for_all().map_err(|error| Failure::new(exit::CONFIGURATION, error.to_string()))?;
        trellis::try_region(&read, preparation.nodes.len())
            .map_err(|why| Failure::new(exit::SYSTEM, format!("its nodes cannot have the region: {why}")))?;
        self.assignment = Some(assignment);
        self.say(&Report::Assigned, b"");
        Ok(())
    }

    fn start(&mut self) -> Result<(), Failure> {
        let (Some(preparation), Some(assignment)) = (self.preparation.clone(), self.assignment.take()) else {
            return Err(out_of_order());
        };
        let mut environment = assignment.environment;
        if let Some(notice) = assignment.preload.add(&preparation.program, &mut environment)? {
            self.say(&Report::Notice(notice), b"");
        }
        let mut sockets = std::mem::take(&mut self.sockets);
        if !preparation.has_datagrams {
            sockets = network::forget_visitors(sockets)
                .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot prepare the nodes' sockets: {error}")))?;
        }
        for (place, (&number, socket)) in preparation.nodes.iter().zip(&sockets).enumerate() {
            let has_stdin = assignment.input_nodes.contains(&number);
            let command = NodeCommand {
                node: number,
                nodes: assignment.nodes,
                program: &preparation.program,
                arguments: &assignment.arguments,
                environment: environment.clone(),
                socket: Some(socket),
                secret: assignment.secret.as_ref(),
                inherited: Vec::new(),
                has_fixed_addresses: assignment.preload.fixes_addresses(),
                processors: self.processors.as_ref().map(|of_nodes| of_nodes[place]),
                stdin: if has_stdin { Stdio::piped() } else { Stdio::null() },
                output: NodeOutput::Pipes,
            };
            let (running, status) = command.start()?;
            self.guard.watch_group(running.pid);
            let streams = [running.stdout, running.stderr];
            streams.iter().flatten().for_each(set_non_blocking);
            self.inputs.extend(running.stdin.map(InputPipe::new));
            self.nodes.push(Node { number, pid: running.pid, status, streams, is_running: true });
        }
        let pids = self.nodes.iter().map(|node| node.pid).collect();
        self.say(&Report::Started(pids), b"");
        Ok(())
    }

    fn scratch(&mut self) -> Result<&Scratch, Failure> {
        if self.scratch.is_none() {
            self.scratch = Some(Scratch::new("agent")?);
        }
        Ok(self.scratch.as_ref().expect("it was made above"))
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_running)
    }

    fn signal_all(&self, signal: i32) {
        self.running().for_each(|node| child::signal_group(node.pid, signal));
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signals::asks_to_end(signal) {
                let sentence = format!("the agent got {}, and ends its nodes", signals::name(signal));
                self.say(&Report::Notice(sentence), b"");
                self.terminate();
            }
        }
        while let Some((pid, change)) = child::next_change() {
            let Some(node) = self.nodes.iter_mut().find(|node| node.pid == pid && node.is_running) else {
                if let Change::Ended(ended) = change {
                    self.relays.note(pid, ended);
                }
                continue; // a relay, the guard, or a process that a node left behind and the kernel gave to us
            };
            let number = node.number;
            match change {
                Change::Stopped(is_stopped) => self.say(&Report::Stopped { node: number, is_stopped }, b""),
                Change::Ended(ended) => {
                    node.is_running = false;
                    let page = node.status.bytes();
                    self.say(&Report::Ended { node: number, ended }, &page);
                }
            }
        }
    }

    /// Passes on what a node wrote.
    fn pass_on(&mut self, place: usize, stream: usize) {
        let Some(node) = self.nodes.get_mut(place) else { return };
        let Some(pipe) = &node.streams[stream] else { return };
        let mut buffer = [0; 16 << 10];
        let count = match rustix::io::read(pipe, &mut buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        if count == 0 {
            node.streams[stream] = None;
        }
        let number = node.number;
        self.on_its_way += count;
        self.say(&Report::Output { node: number, stream }, &buffer[..count]);
    }

    /// Passes standard input on to the nodes that get it. The slowest of them decides how much is taken.
    fn feed(&mut self) {
        if self.inputs.is_empty() {
            return;
        }
        self.inputs.retain_mut(InputPipe::pump);
        let taken = self.inputs.iter().map(|input| input.taken).min();
        let more = taken.map(|taken| taken - self.input_taken);
        self.input_taken = taken.unwrap_or(self.input_taken);
        if more != Some(0) {
            self.say(&Report::InputTaken(more), b"");
        }
    }

    fn lose_launcher(&mut self) {
        self.has_launcher = false;
        self.outgoing.clear();
        self.records.clear();
        self.relays.close();
        self.terminate();
    }

    /// Asks the nodes to end, because nobody decides about them any more.
    fn terminate(&mut self) {
        if matches!(self.stage, Stage::Serving) {
            self.signal_all(libc::SIGTERM);
            self.signal_all(libc::SIGCONT);
            self.stage = Stage::Terminating(Instant::now() + TERMINATE.time());
        }
    }

    /// Does what the time calls for.
    fn advance(&mut self) {
        let now = Instant::now();
        if let Some(silence) = self.silence() {
            if now >= self.heartbeat_at {
                self.heartbeat_at = now + dialogue::heartbeat_interval(silence);
                // A launcher that is stopped reads nothing.
                if self.heard.is_some() {
                    self.say(&Report::Heartbeat, b"");
                }
            }
            if self.has_launcher && self.heard.is_some_and(|heard| now >= heard + silence) {
                trellis_output::lines::report(format_args!("the launcher has said nothing for {silence:?}"));
                self.lose_launcher();
            }
        }
        let is_over = self.running().next().is_none();
        // Other hosts end before this one, through which they are told to.
        if let Some(has_failed) = self.finishes.take_if(|_| self.relays.is_empty()) {
            self.stage = Stage::Finishing(Sweep::new(has_failed));
        }
        match &mut self.stage {
            Stage::Terminating(at) if now >= *at || is_over => {
                self.signal_all(libc::SIGKILL);
                self.stage = Stage::Finishing(Sweep::new(true));
            }
            Stage::Finishing(sweep) => {
                if sweep.step(self.guard.pid(), false) {
                    self.finish();
                }
            }
            Stage::Serving | Stage::Terminating(_) => {}
        }
    }

    /// When all processes have ended: hands over what the nodes left in pipes and files.
    fn finish(&mut self) {
        if self.is_finished() || self.hand_over() {
            return;
        }
        if self.has_launcher && self.nodes.iter().any(|node| node.streams.iter().any(Option::is_some)) {
            return; // the pipes still have bytes, or their end
        }
        let folder = self.scratch.take();
        let nodes = std::mem::take(&mut self.nodes);
        if let Some(folder) = folder.filter(|_| self.has_record && self.has_launcher) {
            let record = |node: &Node| Some((node.number, File::open(Record::path(folder.path(), node.number)).ok()?));
            // The files stay as long as they are open.
            self.records.extend(nodes.iter().filter_map(record));
        }
        if self.records.is_empty() {
            self.say(&Report::Finished, b"");
        }
    }

    /// Sends the next pieces of records; returns whether there are any.
    fn hand_over(&mut self) -> bool {
        if self.records.is_empty() {
            return false;
        }
        let mut buffer = vec![0; BODY_BYTES_MAX];
        while self.outgoing.waiting() < ON_THEIR_WAY_BYTES_MAX
            && let Some((node, file)) = self.records.front_mut()
        {
            let node = *node;
            match file.read(&mut buffer) {
                Ok(count) if count > 0 => self.say(&Report::Record { node }, &buffer[..count]),
                read => {
                    self.records.pop_front();
                    if let Err(error) = read {
                        let sentence = format!("the record of node {node} cannot be read: {error}");
                        self.say(&Report::Notice(sentence), b"");
                        self.say(&Report::RecordLost { node }, b"");
                    }
                }
            }
        }
        if self.records.is_empty() {
            self.say(&Report::Finished, b"");
        }
        true
    }
}

fn out_of_order() -> Failure {
    Failure::new(exit::SYSTEM, "the launcher gives orders in another order than this version knows")
}

/// The address of this host, and that of the launcher, on the way between them.
fn addresses() -> (Option<IpAddr>, Option<IpAddr>) {
    // sshd(8): the client's address and port, then the server's.
    if let Ok(connection) = std::env::var("SSH_CONNECTION") {
        let address = |place: usize| connection.split(' ').nth(place).and_then(|address| address.parse().ok());
        return (address(2), address(0));
    }
    // srun(1): the host on which it was called.
    let launcher = std::env::var("SLURM_LAUNCH_NODE_IPADDR").ok().and_then(|address| address.parse::<IpAddr>().ok());
    let towards = |launcher: IpAddr| {
        let any: IpAddr = if launcher.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Nothing is sent: the kernel looks up the way alone.
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((launcher, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    (launcher.and_then(towards), launcher)
}
