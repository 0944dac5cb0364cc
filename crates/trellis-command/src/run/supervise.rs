//! The launcher's loop: waits for nodes, signals and output at once, and ends everything when one node fails.
//!
//! One thread, one `poll`, no sleep without a deadline. A failed run is over within two seconds: SIGTERM at once,
//! SIGKILL after [`TERMINATE`]. Only a host that does not answer is waited for longer (`hosts::END`). When the loop returns, no process that a node started is left.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_output::files::{self, Unfinished};

use crate::exit::{self, Failure};
use crate::run::JoinedNode;
use crate::run::cause::{self, Ended, Seen};
use crate::run::child::{self, Change, Running};
use crate::run::descendants::{self, Sweep};
use crate::run::guard::Guard;
use crate::run::hosts::{Fleet, Order, Report};
use crate::run::output::{Destination, Outlet, Stream};
use crate::run::requests::{Answer, Request, Requests};
use crate::run::signals::{self, Signals};
use crate::run::status::NodeStatus;
use crate::run::stdin::Relay;

const LAUNCHER: &str = "`trellis run`";
/// The launcher waits for its nodes, and passes on everything that they write.
pub(crate) const NODES: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "its nodes, and who reads their output",
    limit: Limit::Other("as long as they run; a node that waits for long is reported (above)"),
    then: "its exit status is theirs",
    tested: "nothing but their end, or a signal, ends it",
};
/// How long a reported consequence (exit status 70) waits for its cause to appear.
pub(crate) const DECIDE: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "the cause, when a node says that another one failed",
    limit: Limit::milliseconds(300),
    then: "the first node that ended badly is named",
    tested: "crates/trellis-cli/tests/run.rs a_consequence_whose_cause_does_not_come_is_named",
};
/// How long the node that is to blame may take to end after it said that it failed. It ends by itself a second after that.
pub(crate) const FAILING: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "a node that said that it failed, and that another one blames, to end",
    limit: Limit::seconds(3),
    then: "the first node that ended badly is named",
    tested: "crates/trellis-cli/tests/run.rs a_node_that_failed_and_has_not_ended_yet_is_the_cause",
};
/// The time that the caller allows for the whole run.
pub(crate) const TIMEOUT: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "its nodes, if the caller gives a time",
    limit: Limit::Other("`--timeout`"),
    then: "SIGTERM to all nodes, exit status 124, and a sentence about what each of them did",
    tested: "crates/trellis-cli/tests/run.rs a_run_that_takes_too_long_is_ended_and_says_what_its_nodes_did",
};
/// How long nodes have between SIGTERM and SIGKILL.
pub(crate) const TERMINATE: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "nodes that were sent SIGTERM",
    limit: Limit::milliseconds(1_000),
    then: "SIGKILL",
    tested: "crates/trellis-cli/tests/run.rs a_killed_node_ends_the_others_even_if_they_refuse",
};
/// How long nodes have to follow a forwarded SIGINT, SIGTERM or SIGQUIT before the launcher ends them.
pub(crate) const ASKED: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "nodes that were passed on a signal",
    limit: Limit::milliseconds(800),
    then: "the run is ended",
    tested: "crates/trellis-cli/tests/run.rs a_second_ctrl_c_kills_and_one_is_enough_in_the_end",
};
/// How long processes that the nodes left running (such as a `tee`) may take to finish by themselves.
pub(crate) const LEFTOVER: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "processes that nodes left behind",
    limit: Limit::milliseconds(500),
    then: "SIGTERM, and after the same time SIGKILL",
    tested: "crates/trellis-cli/tests/run.rs what_a_node_leaves_running_is_ended_after_a_clean_run",
};
/// The time between SIGTERM and SIGKILL for these processes after a failed run, which must end soon.
pub(crate) const LEFTOVER_FAILED: Deadline = Deadline {
    who: LAUNCHER,
    waits_for: "such processes after a failed run, which were sent SIGTERM",
    limit: Limit::milliseconds(150),
    then: "SIGKILL",
    tested: "crates/trellis-cli/tests/run.rs what_refuses_to_end_after_a_failed_run_is_killed",
};

/// How often nodes on other hosts that may be to blame are looked at.
const SHOW: Duration = Duration::from_millis(100);

/// The stage of ending the nodes.
enum Stage {
    Running,
    /// A consequence was reported; its cause may follow.
    Deciding(Instant),
    /// The node that is to blame has reported its failure, and is about to end.
    Failing(Instant),
    /// A signal asked the run to end; the nodes get time to end by themselves.
    Asked(Instant),
    /// SIGTERM was sent; SIGKILL follows.
    Terminating(Instant),
    /// SIGKILL was sent. Nodes of other hosts that do not report by then count as lost.
    Killed(Instant),
}

/// A node under supervision.
struct Node {
    seen: Seen,
    status: NodeStatus,
    streams: [Option<Stream>; 2],
    kept: [Vec<u8>; 2],
    /// The place of its agent, if it is on a host that was named.
    agent: Option<usize>,
}

/// The state of the launcher while it supervises.
pub(super) struct Supervisor<'a> {
    nodes: Vec<Node>,
    signals: &'a Signals,
    guard: &'a Guard,
    outlets: [Outlet; 2],
    relay: Relay,
    stage: Stage,
    endings: usize,
    asked_by: Option<i32>,
    asked_count: usize,
    /// When the time of the run is over, if it is limited, and whether it is over.
    ends_at: Option<Instant>,
    is_late: bool,
    unwritten: Option<io::Error>,
    /// The socket for `trellis leave`, and the address of the cluster, if the processes join one.
    requests: Option<(Requests, String)>,
    /// The agents of other hosts.
    fleet: Fleet,
    /// Why an agent could not start its nodes.
    refused: Option<Failure>,
    /// The directory for records of nodes on other hosts, and the records that were begun.
    records: Option<PathBuf>,
    begun_records: BTreeMap<usize, Unfinished>,
    /// The reason why output or a record of a node is missing.
    incomplete: Option<Failure>,
    /// When the nodes that may be to blame are looked at again.
    shows_at: Instant,
    /// The sentences of agents for the user.
    noticed: BTreeSet<String>,
    /// Whether the nodes are one process, as the program sees it: node 0 gets the signals, and its end is that of all.
    is_one_process: bool,
}

/// How the run ended.
pub(super) struct Finished {
    pub(super) seen: Vec<Seen>,
    pub(super) statuses: Vec<NodeStatus>,
    /// Standard output of each node, if it was kept.
    pub(super) stdout: Vec<Vec<u8>>,
    /// The signal that asked the run to end.
    pub(super) asked_by: Option<i32>,
    /// Whether it was ended because its time was over.
    pub(super) is_late: bool,
    /// Why the launcher's output could not be written completely: its reader went away, or the disk is full.
    pub(super) unwritten: Option<io::Error>,
    /// Why nodes could not be started on another host.
    pub(super) refused: Option<Failure>,
    /// The reason why output or a record of a node is missing.
    pub(super) incomplete: Option<Failure>,
}

impl Finished {
    /// Whether the launcher completed its work.
    pub(super) fn is_complete(&self) -> bool {
        !self.is_late && self.unwritten.is_none() && self.refused.is_none() && self.incomplete.is_none()
    }
}

impl Node {
    /// The description in the list of `trellis leave`.
    fn described(&self, cluster: &str) -> JoinedNode {
        let mut seen = self.seen.clone();
        self.status.describe(&mut seen);
        JoinedNode {
            number: seen.number.map(|number| number as u16),
            pid: seen.pid,
            launcher: std::process::id() as i32,
            cluster: cluster.to_owned(),
            doing: seen.doing.unwrap_or_else(|| "starting".to_owned()),
        }
    }
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(signals: &'a Signals, guard: &'a Guard, is_one_process: bool) -> Supervisor<'a> {
        Supervisor {
            nodes: Vec::new(),
            signals,
            guard,
            outlets: [Outlet::new(rustix::stdio::stdout()), Outlet::new(rustix::stdio::stderr())],
            relay: Relay::default(),
            stage: Stage::Running,
            endings: 0,
            asked_by: None,
            asked_count: 0,
            ends_at: None,
            is_late: false,
            unwritten: None,
            requests: None,
            fleet: Fleet::default(),
            refused: None,
            records: None,
            begun_records: BTreeMap::new(),
            incomplete: None,
            shows_at: Instant::now(),
            noticed: BTreeSet::new(),
            is_one_process,
        }
    }

    /// Marks the nodes as joining the cluster at this address: they get the prefix for that, and may be asked to
    /// leave.
    pub(super) fn serve(&mut self, requests: Requests, cluster: &str) {
        self.requests = Some((requests, cluster.to_owned()));
    }

    /// Takes charge of a node that was just started.
    pub(super) fn adopt(&mut self, running: Running, status: NodeStatus, destinations: [Destination; 2]) {
        self.guard.watch_group(running.pid);
        let [stdout, stderr] = destinations;
        let stream = |pipe: Option<_>, to| pipe.map(|pipe| Stream::new(Some(pipe), to));
        let streams = [stream(running.stdout, stdout), stream(running.stderr, stderr)];
        if let Some(pipe) = running.stdin {
            self.relay.add(pipe);
        }
        let seen = Seen { pid: running.pid, joins: self.requests.is_some(), ..Seen::default() };
        self.nodes.push(Node { seen, status, streams, kept: [Vec::new(), Vec::new()], agent: None });
    }

    /// Takes charge of agents that start their nodes. `destinations` says where the streams of a node on a host go, and
    /// `records` where their records are written.
    pub(super) fn adopt_fleet(
        &mut self,
        fleet: Fleet,
        input_nodes: &Range<usize>,
        records: Option<PathBuf>,
        destinations: impl Fn(&str, usize) -> Result<[Destination; 2], Failure>,
    ) -> Result<(), Failure> {
        let places = fleet.places();
        let with_input: BTreeSet<usize> = places[input_nodes.clone()].iter().map(|(place, _)| *place).collect();
        with_input.into_iter().for_each(|place| self.relay.add_agent(place));
        for (node, (place, host)) in places.into_iter().enumerate() {
            self.nodes.push(Node {
                streams: destinations(&host, node)?.map(|to| Some(Stream::new(None, to))),
                seen: Seen { host: Some(host), ..Seen::default() },
                status: NodeStatus::create()?,
                kept: [Vec::new(), Vec::new()],
                agent: Some(place),
            });
        }
        if let Some(folder) = &records {
            super::existing_directory(folder)?;
        }
        (self.fleet, self.records) = (fleet, records);
        Ok(())
    }

    /// Ends the nodes that were started, after one could not be.
    pub(super) fn abandon(mut self) -> Result<(), Failure> {
        self.kill();
        self.supervise(None).map(|_| ())
    }

    /// Runs until all nodes, and all processes that they started, have ended; ends them after this time.
    pub(super) fn supervise(mut self, time_max: Option<Duration>) -> Result<Finished, Failure> {
        self.ends_at = time_max.and_then(|time| Instant::now().checked_add(time));
        while self.nodes.iter().any(|node| node.seen.ended.is_none()) {
            self.wait(self.deadline())?;
            self.advance();
        }
        self.sweep()?;
        Ok(self.finish())
    }

    fn deadline(&self) -> Option<Instant> {
        let of_stage = match self.stage {
            Stage::Running => self.ends_at,
            Stage::Deciding(at) | Stage::Failing(at) | Stage::Asked(at) | Stage::Terminating(at) => Some(at),
            Stage::Killed(at) => Some(at).filter(|at| *at > Instant::now() && self.fleet.heartbeat_at().is_some()),
        };
        let is_deciding = matches!(self.stage, Stage::Deciding(_) | Stage::Failing(_));
        let shows_at = self.fleet.heartbeat_at().filter(|_| is_deciding).map(|_| self.shows_at);
        let of_fleet = [self.fleet.heartbeat_at(), self.fleet.silent_at(self.is_ending()), shows_at];
        of_fleet.into_iter().chain([of_stage]).flatten().min()
    }

    /// Sleeps until something happens or the deadline passes, and processes what happened.
    fn wait(&mut self, deadline: Option<Instant>) -> Result<(), Failure> {
        let mut descriptors = vec![interest(self.signals.descriptor(), libc::POLLIN)];
        for outlet in self.outlets.iter().filter(|outlet| outlet.wants_to_write()) {
            descriptors.push(interest(outlet.descriptor.as_raw_fd(), libc::POLLOUT));
        }
        for stream in self.nodes.iter().flat_map(|node| node.streams.iter().flatten()) {
            if let Some(descriptor) = stream.descriptor()
                && stream.destination.has_room(&self.outlets)
            {
                descriptors.push(interest(descriptor, libc::POLLIN));
            }
        }
        let of_fleet = self.fleet.watched();
        descriptors.extend(of_fleet.map(|(pipe, flags)| interest(pipe.as_raw_fd(), flags.bits() as i16)));
        if let Some((requests, _)) = &self.requests {
            descriptors.push(interest(requests.descriptor(), libc::POLLIN));
        }
        let of_relay = self.relay.interests();
        descriptors.extend(of_relay.iter().map(|(descriptor, event)| interest(*descriptor, *event)));
        let timeout_ms = deadline.map_or(-1, |deadline| {
            // Rounded up, so that one sleep reaches a deadline, and not a series of empty ones.
            deadline.saturating_duration_since(Instant::now()).as_millis().min(60_000) as i32 + 1
        });
        // SAFETY: the vector holds as many structures as its length says.
        let ready = unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t, timeout_ms) };
        if ready < 0 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err(Failure::system("wait for the nodes"));
        }
        let is_ready = |descriptor: i32, event: i16| {
            descriptors.iter().any(|entry| entry.fd == descriptor && entry.events == event && entry.revents != 0)
        };
        if of_relay.iter().any(|(descriptor, event)| is_ready(*descriptor, *event)) {
            self.relay.pump();
        }
        while let Some((places, bytes)) = self.relay.take() {
            places.into_iter().for_each(|place| self.fleet.order(place, &Order::Input, &bytes));
        }
        for outlet in &mut self.outlets {
            if outlet.wants_to_write() && is_ready(outlet.descriptor.as_raw_fd(), libc::POLLOUT) {
                let written = outlet.write_some();
                self.unwritten = self.unwritten.take().or(written.err());
            }
        }
        self.pump_streams(|descriptor| is_ready(descriptor, libc::POLLIN));
        let is_asked =
            self.requests.as_ref().is_some_and(|(requests, _)| is_ready(requests.descriptor(), libc::POLLIN));
        for (place, report, body) in self.fleet.pump() {
            self.take_report(place, report, &body);
        }
        if self.outlets.iter().all(Outlet::has_room) {
            self.fleet.say_taken();
        }
        // Nodes that have ended are reaped before the answer, which must not name them.
        self.take_signals();
        self.look_after_fleet(Instant::now());
        if is_asked {
            self.answer_requests();
        }
        Ok(())
    }

    fn pump_streams(&mut self, is_ready: impl Fn(i32) -> bool) {
        for node in &mut self.nodes {
            for (slot, kept) in node.streams.iter_mut().zip(&mut node.kept) {
                let Some(stream) = slot.as_mut().filter(|stream| stream.descriptor().is_some_and(&is_ready)) else {
                    continue;
                };
                let goes_on = stream.pump(&mut self.outlets).unwrap_or_else(|error| {
                    self.unwritten.get_or_insert(error);
                    false
                });
                if let Some(ended) = slot.take_if(|_| !goes_on) {
                    *kept = ended.destination.into_kept();
                }
            }
        }
    }

    fn take_report(&mut self, place: usize, report: Report, body: &[u8]) {
        // An agent speaks of its own nodes only.
        if report.node().is_some_and(|node| self.nodes.get(node).is_none_or(|node| node.agent != Some(place))) {
            return;
        }
        match report {
            Report::Started(pids) => {
                let own = self.nodes.iter_mut().filter(|node| node.agent == Some(place));
                own.zip(pids).for_each(|(node, pid)| node.seen.pid = pid);
                self.fleet.started(place);
            }
            Report::Output { node, stream } => {
                self.fleet.came(place, body.len());
                self.take_output(node, stream, body);
            }
            Report::InputTaken(bytes) => self.relay.taken(place, bytes),
            Report::Stopped { node, is_stopped } => self.note(node, Change::Stopped(is_stopped)),
            Report::Ended { node, ended } => {
                self.nodes[node].status.replace(body);
                self.note(node, Change::Ended(ended));
            }
            Report::Shown { node } => self.nodes[node].status.replace(body),
            Report::Record { node } => self.write_record(node, body),
            Report::RecordLost { node } => {
                self.begun_records.remove(&node);
                self.nodes[node].status.set_lost_record();
            }
            Report::Refused { code, sentence } => {
                let host = self.fleet.host(place);
                self.refused.get_or_insert(Failure::new(code, format!("host {host}: {sentence}")));
                // Nodes that were not started will not be started any more.
                self.lose_nodes(place, "it could not be started", |node| node.seen.pid == 0);
            }
            Report::Notice(sentence) => {
                // Most hosts report the same.
                if self.noticed.insert(sentence.clone()) {
                    let host = self.fleet.host(place);
                    trellis_output::lines::report(format_args!("host {host}: {sentence}"));
                }
            }
            Report::Finished => {
                self.relay.taken(place, None);
                self.fleet.finished(place);
                self.lose_nodes(place, "its agent has ended it", |_| true);
                self.close_streams(place);
                self.finish_records(place);
            }
            Report::Prepared(_)
            | Report::Reached(_)
            | Report::Surveyed(_)
            | Report::Measured(_)
            | Report::Assigned
            | Report::Relayed { .. }
            | Report::RelayTaken { .. }
            | Report::RelayEnded { .. }
            | Report::Heartbeat => {}
        }
    }

    /// Whether nodes are being ended because the run has failed, or should end.
    fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Terminating(_) | Stage::Killed(_))
    }

    fn take_output(&mut self, number: usize, stream: usize, body: &[u8]) {
        let node = &mut self.nodes[number];
        let Some(slot) = node.streams.get_mut(stream) else { return };
        if let Some(open) = slot
            && let Err(error) = open.destination.take(body, &mut self.outlets)
        {
            self.unwritten.get_or_insert(error);
        }
        if let Some(ended) = slot.take_if(|_| body.is_empty()) {
            node.kept[stream] = ended.destination.into_kept();
        }
    }

    fn write_record(&mut self, number: usize, body: &[u8]) {
        let Some(folder) = self.records.as_ref().filter(|_| !self.nodes[number].status.has_lost_its_record()) else {
            return;
        };
        let path = trellis::record::Record::path(folder, number);
        let begun = match self.begun_records.entry(number) {
            Entry::Occupied(begun) => Ok(begun.into_mut()),
            Entry::Vacant(place) => Unfinished::begin(&path, files::MODE).map(|file| place.insert(file)),
        };
        if let Err(error) = begun.and_then(|begun| begun.file().write_all(body)) {
            self.lose_record(number, &error);
        }
    }

    fn lose_record(&mut self, number: usize, error: &io::Error) {
        self.begun_records.remove(&number);
        self.nodes[number].status.set_lost_record();
        trellis_output::lines::report(format_args!("the record of node {number} cannot be written: {error}"));
    }

    /// Gives the records of a host's nodes their names.
    fn finish_records(&mut self, place: usize) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].agent == Some(place)
                && let Some(Err(error)) = self.begun_records.remove(&number).map(Unfinished::finish)
            {
                self.lose_record(number, &error);
            }
        }
    }

    /// Notes that nodes of a host are lost.
    fn lose_nodes(&mut self, place: usize, why: &str, which: impl Fn(&Node) -> bool) {
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            if node.agent == Some(place) && node.seen.ended.is_none() && which(node) {
                self.note(number, Change::Ended(Ended::Lost));
                self.nodes[number].seen.last_words = Some(why.to_owned());
            }
        }
    }

    /// Sends signs of life, and notes which hosts send none.
    fn look_after_fleet(&mut self, now: Instant) {
        self.fleet.send_heartbeats(now);
        for (place, why) in self.fleet.lost(now, self.is_ending()) {
            self.relay.taken(place, None);
            self.lose_nodes(place, &why, |_| true);
            if self.close_streams(place) || self.records.is_some() {
                let host = self.fleet.host(place);
                let sentence = format!("host {host}: output of its nodes, or a record, is missing: {why}");
                self.incomplete.get_or_insert(Failure::new(exit::CLUSTER, sentence));
            }
        }
    }

    /// Closes the streams of the nodes of a host; returns whether any was open.
    fn close_streams(&mut self, place: usize) -> bool {
        let mut was_open = false;
        for number in 0..self.nodes.len() {
            if self.nodes[number].agent == Some(place) {
                was_open |= self.nodes[number].streams.iter().any(Option::is_some);
                (0..2).for_each(|stream| self.take_output(number, stream, b""));
            }
        }
        was_open
    }

    /// Answers requests to list the joined nodes, or to ask one to leave.
    fn answer_requests(&self) {
        let Some((requests, cluster)) = &self.requests else { return };
        let running = || self.nodes.iter().filter(|node| node.seen.ended.is_none());
        requests.serve(|request| match request {
            Request::List => Answer::Nodes(running().map(|node| node.described(cluster)).collect()),
            Request::Leave(pid) => {
                let node = running().find(|node| node.seen.pid == pid);
                if let Some(node) = node {
                    node.status.request_leave();
                }
                Answer::IsAsked(node.is_some())
            }
        });
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal {
                libc::SIGCHLD => {}
                libc::SIGTSTP => {
                    self.signal_here(libc::SIGTSTP);
                    // The launcher stops, too; SIGCONT is forwarded afterwards.
                    self.fleet.stop();
                }
                signal if signals::asks_to_end(signal) => self.asked(signal),
                signal => self.signal_program(signal),
            }
        }
        self.reap();
    }

    fn asked(&mut self, signal: i32) {
        self.asked_count += 1;
        self.asked_by.get_or_insert(signal);
        if self.is_one_process {
            // The program decides what follows from a signal, and from the next one.
            return self.signal_program(signal);
        }
        if self.asked_count > 1 {
            self.kill();
            return;
        }
        for node in &mut self.nodes {
            // An end after this is an answer to the signal, not a failure.
            node.seen.was_asked_to_end |= node.seen.ended.is_none();
        }
        self.signal_all(signal);
        if matches!(self.stage, Stage::Running | Stage::Deciding(_) | Stage::Failing(_)) {
            self.stage = Stage::Asked(Instant::now() + ASKED.time());
        }
    }

    /// Records every child that ended or stopped.
    fn reap(&mut self) {
        while let Some((pid, change)) = child::next_change() {
            let is_it = |node: &Node| node.agent.is_none() && node.seen.pid == pid && node.seen.ended.is_none();
            match self.nodes.iter().position(is_it) {
                Some(number) => self.note(number, change),
                // This is the process that carries a connection, or the guard, or a process that a node left behind and
                // the kernel gave to us.
                None => self.fleet.note(pid, &change),
            }
        }
    }

    /// Records the end or the change of a node.
    fn note(&mut self, number: usize, change: Change) {
        let node = &mut self.nodes[number];
        match change {
            // Changes by the launcher's own later SIGCONT are not recorded.
            Change::Stopped(is_stopped) if !node.seen.was_asked_to_end => node.seen.stopped = is_stopped,
            Change::Stopped(_) => {}
            Change::Ended(ended) => {
                node.seen.ended = Some(ended);
                node.status.describe(&mut node.seen);
                node.seen.order = self.endings;
                self.endings += 1;
            }
        }
    }

    /// Decides the next steps from the observations.
    fn advance(&mut self) {
        let now = Instant::now();
        match self.stage {
            Stage::Running if self.ends_at.is_some_and(|at| now >= at) => {
                self.is_late = true;
                self.terminate(now);
            }
            Stage::Running if self.is_one_process && self.nodes[0].seen.ended.is_some() => {
                // The others only have to write their records.
                self.stage = Stage::Asked(now + ASKED.time());
            }
            Stage::Running | Stage::Deciding(_) | Stage::Failing(_) => {
                if !matches!(self.stage, Stage::Running) && now >= self.shows_at {
                    self.fleet.order_all(&Order::Show);
                    self.shows_at = now + SHOW;
                }
                self.look_for_cause(now);
            }
            Stage::Asked(at) if now >= at || self.unwritten.is_some() => self.terminate(now),
            Stage::Terminating(at) if now >= at => self.kill(),
            Stage::Killed(at) if now >= at => self.fleet.abandon(),
            Stage::Asked(_) | Stage::Terminating(_) | Stage::Killed(_) => {}
        }
    }

    fn look_for_cause(&mut self, now: Instant) {
        if self.unwritten.is_some() || self.refused.is_some() {
            return self.terminate(now);
        }
        let seen: Vec<Seen> = self.nodes.iter().map(|node| node.seen.clone()).collect();
        let Some(cause) = cause::first_cause(&seen) else { return };
        let is_consequence = seen[cause].may_have_a_cause(cause);
        match self.stage {
            Stage::Deciding(at) | Stage::Failing(at) if is_consequence && now < at => {}
            Stage::Deciding(_) if is_consequence && self.is_failing(&seen, cause) => {
                self.stage = Stage::Failing(now + FAILING.time());
            }
            Stage::Running if is_consequence && seen.len() > 1 => {
                self.shows_at = now;
                self.stage = Stage::Deciding(now + DECIDE.time());
            }
            _ => self.terminate(now),
        }
    }

    /// Whether the node that this one blames still runs, and has said that it failed, or its host says nothing any more.
    fn is_failing(&self, seen: &[Seen], consequence: usize) -> bool {
        let Some(node) = cause::blamed(seen, consequence).filter(|&node| seen[node].ended.is_none()) else {
            return false;
        };
        if self.nodes[node].agent.is_some_and(|agent| self.fleet.is_unheard(agent, Instant::now())) {
            // Its host has vanished, or is about to report again.
            return true;
        }
        let mut now = seen[node].clone();
        self.nodes[node].status.describe(&mut now);
        now.last_words.is_some() && !now.is_consequence(node)
    }

    /// Asks all nodes to end.
    fn terminate(&mut self, now: Instant) {
        self.mark_reported();
        self.signal_all(libc::SIGTERM);
        // A stopped node cannot follow SIGTERM.
        self.signal_all(libc::SIGCONT);
        self.stage = Stage::Terminating(now + TERMINATE.time());
    }

    fn kill(&mut self) {
        self.mark_reported();
        self.signal_all(libc::SIGKILL);
        if !matches!(self.stage, Stage::Killed(_)) {
            self.stage = Stage::Killed(Instant::now() + TERMINATE.time());
        }
    }

    fn mark_reported(&mut self) {
        for node in &mut self.nodes {
            if node.seen.ended.is_none() && !node.seen.was_asked_to_end {
                node.seen.was_asked_to_end = true;
                node.status.describe(&mut node.seen);
            }
        }
    }

    /// Passes on a signal that was sent to the program.
    fn signal_program(&mut self, signal: i32) {
        let is_first_here = self.nodes.first().is_some_and(|node| node.agent.is_none());
        match self.is_one_process && is_first_here && signal != libc::SIGCONT {
            true if self.nodes[0].seen.ended.is_none() => child::signal_group(self.nodes[0].seen.pid, signal),
            true => {}
            false => self.signal_all(signal),
        }
    }

    /// Signals the process group of every running node.
    fn signal_all(&mut self, signal: i32) {
        self.signal_here(signal);
        self.fleet.order_all(&Order::Signal(signal));
    }

    fn signal_here(&self, signal: i32) {
        for node in self.nodes.iter().filter(|node| node.agent.is_none() && node.seen.ended.is_none()) {
            child::signal_group(node.seen.pid, signal);
        }
    }

    /// Ends what the nodes left running, and forwards the last of the output.
    fn sweep(&mut self) -> Result<(), Failure> {
        let has_failed = !matches!(self.stage, Stage::Running);
        self.fleet.order_all(&Order::Finish { has_failed });
        let asked_before = self.asked_count;
        while !self.fleet.is_finished() {
            if self.asked_count > asked_before || asked_before > 1 {
                self.fleet.abandon();
            }
            let until = [self.fleet.heartbeat_at(), self.fleet.silent_at(self.is_ending())];
            self.wait(until.into_iter().flatten().min())?;
        }
        let mut sweep = Sweep::new(has_failed);
        while !sweep.step(self.guard.pid(), self.asked_count > 1) {
            self.wait(Some(Instant::now() + descendants::LOOK))?;
        }
        self.flush()
    }

    /// Reads the nodes' pipes, which no process holds any more, to the end and writes everything.
    fn flush(&mut self) -> Result<(), Failure> {
        let asked_before = self.asked_count;
        loop {
            let open = self.nodes.iter().any(|node| node.streams.iter().any(Option::is_some));
            let waiting = self.outlets.iter().any(Outlet::wants_to_write);
            if !open && !waiting || self.asked_count > asked_before {
                return Ok(());
            }
            self.wait(None)?;
        }
    }

    fn finish(self) -> Finished {
        let mut finished = Finished {
            seen: Vec::new(),
            statuses: Vec::new(),
            stdout: Vec::new(),
            asked_by: self.asked_by,
            is_late: self.is_late,
            unwritten: self.unwritten,
            refused: self.refused,
            incomplete: self.incomplete,
        };
        for mut node in self.nodes {
            if !node.seen.was_asked_to_end && node.seen.ended != Some(Ended::Lost) {
                node.status.describe(&mut node.seen);
            }
            let [stdout, _] = node.kept;
            finished.seen.push(node.seen);
            finished.statuses.push(node.status);
            finished.stdout.push(stdout);
        }
        finished
    }
}

fn interest(descriptor: i32, events: i16) -> libc::pollfd {
    libc::pollfd { fd: descriptor, events, revents: 0 }
}
