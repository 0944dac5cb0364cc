//! The launcher's end of the connection to one agent: what carries it, and what is known about its host.
//!
//! Promises: no call waits. What the carrier or the agent complained about is part of the sentence about its end.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::dialogue::{BODY_BYTES_MAX, Facts, Frames, HELLO, Hello, Order, Outgoing, Pair, Report};
use super::list::Host;
use super::tree::{Relay, RelayOrder, carried};
use crate::exit::{self, Failure};
use crate::run::cause::Ended;
use crate::run::child::{self, Running};

/// The most bytes that a login may print before the hello of the agent.
const PREAMBLE_BYTES_MAX: usize = 64 << 10;
/// The most bytes that are kept of what `ssh` and the agent write to standard error.
const COMPLAINTS_BYTES_MAX: usize = 4 << 10;

/// A file for a host: its name, and its contents, which all hosts share.
pub(super) type Upload = (OsString, Rc<Vec<u8>>);

/// The connection to an agent.
pub(crate) struct Connection {
    pub(super) host: Host,
    /// Whether the agent runs on the machine of the launcher.
    pub(super) is_here: bool,
    /// The numbers of the nodes there.
    pub(super) nodes: Vec<usize>,
    /// The process that carries the connection; `None` where an agent of another host started it.
    pub(super) pid: Option<i32>,
    to_agent: Option<OwnedFd>,
    from_agent: Option<OwnedFd>,
    complaints_from: Option<OwnedFd>,
    /// The way through the agent of another host.
    pub(super) relay: Option<Relay>,
    outgoing: Outgoing,
    /// How much output came that nobody has taken yet.
    pub(super) untaken: usize,
    /// Files that the host still lacks, and how far the first one is sent.
    uploads: VecDeque<Upload>,
    sent: usize,
    /// When something went to the agent or came from it.
    pub(super) moved: Instant,
    /// When the launcher was continued last.
    pub(super) resumed: Instant,
    frames: Frames,
    /// The bytes that came before the hello.
    preamble: Vec<u8>,
    pub(super) hello: Option<Hello>,
    complaints: Vec<u8>,
    /// When the agent was heard last.
    pub(super) heard: Instant,
    /// How the process that carries the connection ended.
    pub(super) ended: Option<Ended>,
    /// Why the agent cannot do what it should.
    pub(super) failure: Option<Failure>,
    /// Where the nodes listen.
    pub(super) addresses: Vec<String>,
    /// The nodes of other hosts that were not reached from here; `None` before that is known.
    pub(super) unreachable: Option<Vec<(usize, String)>>,
    /// What `trellis doctor` asked for.
    pub(super) facts: Option<Facts>,
    pub(super) measured: Option<Result<Pair, String>>,
    /// Whether the agent knows what its nodes run, and has room for them.
    pub(super) is_assigned: bool,
    /// Whether its nodes were started.
    pub(super) has_started: bool,
    pub(super) has_finished: bool,
    /// The command that shows whether the host can be reached; `None` for this machine.
    login: Option<String>,
}

/// What carries the connections to the agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Carrier {
    /// ssh, or the command that the user names, with its options.
    Ssh(Option<String>),
    /// Slurm, in an allocation of the launcher.
    Srun,
}

/// A step of one task, beside what else runs in the allocation. Its processors are those of the allocation.
const SRUN: [&str; 8] = [
    "--overlap",
    "--quiet",
    "--nodes=1",
    "--ntasks=1",
    "--mpi=none",
    "--cpu-bind=none",
    "--unbuffered",
    "--kill-on-bad-exit=1",
];

/// Settings of the user for other steps. Labels and modes would change the bytes of the dialogue; processors and places
/// are those of the allocation.
const OF_USER: [&str; 9] = [
    "SLURM_LABELIO",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_HOSTFILE",
];

impl Carrier {
    /// The command that shows a user whether a host can be reached.
    fn login(&self, target: &str) -> String {
        match self {
            Carrier::Ssh(command) => format!("{} {target} true", command.as_deref().unwrap_or("ssh")),
            Carrier::Srun => format!("srun --overlap --nodelist={target} true"),
        }
    }

    /// The command that starts an agent on a host of a name that is not this machine's.
    fn command(&self, target: &str) -> Command {
        match self {
            Carrier::Ssh(command) => {
                let ssh = command.as_deref().unwrap_or("ssh");
                // The shell takes the user's words apart. Options of the user come first, and ssh takes the first.
                let mut command = Command::new("sh");
                command.args(["-c", &format!("exec {ssh} \"$@\""), "trellis", "-T", "-oBatchMode=yes"]);
                // A connection of the user that several logins share is used, but never made, and so never ended.
                command.args(["-oConnectTimeout=10", "-oControlMaster=no", "-oRemoteCommand=none"]);
                let own = own_path().replace('\'', "'\\''");
                command.args(["-oClearAllForwardings=yes", target, &format!("exec sh -c '{START_AGENT}' '{own}'")]);
                command
            }
            Carrier::Srun => {
                let mut command = Command::new("srun");
                command.args(SRUN).arg(format!("--nodelist={target}")).args(["sh", "-c", START_AGENT, &own_path()]);
                // That of a login to this machine says nothing about the way to another.
                command.env_remove("SSH_CONNECTION");
                OF_USER.iter().for_each(|name| {
                    command.env_remove(name);
                });
                command
            }
        }
    }
}

/// Starts an agent: at the path of this command, else where PATH has one.
const START_AGENT: &str = "test -x \"$0\" && exec \"$0\" agent; exec trellis agent";

fn own_path() -> String {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("trellis"));
    own.to_string_lossy().into_owned()
}

/// Whether this name is one of the machine on which the launcher runs.
pub(super) fn is_here(host: &Host) -> bool {
    let system = rustix::system::uname();
    let own = system.nodename().to_string_lossy();
    let short = own.split('.').next().unwrap_or_default();
    ["localhost", "127.0.0.1", "::1", &own, short].contains(&host.target.as_str())
}

impl Connection {
    /// Starts an agent: directly on this machine, else through what carries the connections.
    pub(super) fn open(host: Host, nodes: Vec<usize>, carrier: &Carrier) -> Result<Connection, Failure> {
        // `--ssh` applies to every host, also to this machine.
        let is_here = !matches!(carrier, Carrier::Ssh(Some(_))) && is_here(&host);
        let command = if is_here {
            let mut command = Command::new("/proc/self/exe");
            command.arg("agent").env_remove("SSH_CONNECTION").env_remove("SLURM_LAUNCH_NODE_IPADDR");
            command
        } else {
            carrier.command(&host.target)
        };
        let Running { pid, stdin, stdout, stderr } = carried(command).map_err(|error| {
            Failure::new(exit::SYSTEM, format!("cannot start an agent for host {}: {error}", host.name()))
        })?;
        let login = (!is_here).then(|| carrier.login(&host.target));
        let connection = Connection::unconnected(host, nodes, login);
        Ok(Connection {
            is_here,
            pid: Some(pid),
            to_agent: stdin,
            from_agent: stdout,
            complaints_from: stderr,
            ..connection
        })
    }

    /// A connection that the agent at a place among the connections will make.
    pub(super) fn through(
        parent: usize,
        through: &str,
        host: Host,
        nodes: Vec<usize>,
        carrier: &Carrier,
    ) -> Connection {
        let login = format!("{} on host {through}", carrier.login(&host.target));
        let relay = Relay::new(parent, through, carrier.command(&host.target));
        Connection { relay: Some(relay), ..Connection::unconnected(host, nodes, Some(login)) }
    }

    fn unconnected(host: Host, nodes: Vec<usize>, login: Option<String>) -> Connection {
        Connection {
            host,
            is_here: false,
            nodes,
            pid: None,
            to_agent: None,
            from_agent: None,
            complaints_from: None,
            relay: None,
            outgoing: Outgoing::default(),
            untaken: 0,
            facts: None,
            measured: None,
            is_assigned: false,
            has_started: false,
            uploads: VecDeque::new(),
            sent: 0,
            moved: Instant::now(),
            resumed: Instant::now(),
            frames: Frames::default(),
            preamble: Vec::new(),
            hello: None,
            complaints: Vec::new(),
            heard: Instant::now(),
            ended: None,
            failure: None,
            addresses: Vec::new(),
            unreachable: None,
            has_finished: false,
            login,
        }
    }

    /// Whether something can still be sent.
    fn is_writable(&self) -> bool {
        self.to_agent.is_some() || self.relay.as_ref().is_some_and(|relay| relay.is_writable)
    }

    /// Whether something can still come.
    fn is_readable(&self) -> bool {
        self.from_agent.is_some() || self.relay.as_ref().is_some_and(|relay| relay.is_readable)
    }

    /// Whether hosts that are reached through this one cannot be reached any more.
    pub(super) fn is_lost(&self) -> bool {
        !self.is_readable() || self.failure.is_some() && self.hello.is_none()
    }

    fn stop_reading(&mut self) {
        self.from_agent = None;
        self.relay.iter_mut().for_each(|relay| relay.is_readable = false);
    }

    /// Sends an order, with bytes that belong to it.
    pub(super) fn order(&mut self, order: &Order, body: &[u8]) {
        if self.is_writable() {
            self.outgoing.say(order, body);
        }
    }

    /// Sends files, when there is nothing else to send.
    pub(super) fn upload(&mut self, files: impl Iterator<Item = Upload>) {
        self.uploads.extend(files);
    }

    /// Whether all files are on their way.
    pub(super) fn has_uploaded(&self) -> bool {
        self.uploads.is_empty() && self.is_flushed()
    }

    pub(super) fn is_uploading(&self) -> bool {
        !self.has_uploaded()
    }

    /// The command that shows whether the host can be reached; `None` for this machine.
    pub(super) fn login(&self) -> Option<String> {
        self.login.clone()
    }

    /// Forgets what was complained about: it was not the reason for anything.
    pub(super) fn forget_complaints(&mut self) {
        self.complaints.clear();
    }

    fn send_next_piece(&mut self) {
        let Some((name, contents)) = self.uploads.front() else { return };
        let rest = &contents[self.sent..];
        let piece = &rest[..rest.len().min(BODY_BYTES_MAX)];
        self.outgoing.say(&Order::Copy(name.clone()), piece);
        self.sent += piece.len();
        if piece.len() == rest.len() {
            self.sent = 0;
            self.uploads.pop_front();
        }
    }

    /// Whether everything that was sent is on its way.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() || !self.is_writable()
    }

    /// Whether nothing more is to be learned from it.
    pub(super) fn is_over(&self) -> bool {
        !self.is_readable() && self.ended.is_some()
    }

    /// The descriptors to wait for.
    pub(super) fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let has_more = !self.outgoing.is_empty() || !self.uploads.is_empty();
        let output = self.to_agent.as_ref().filter(|_| has_more);
        let output = output.map(|pipe| (pipe.as_fd(), PollFlags::OUT));
        let inputs = [&self.from_agent, &self.complaints_from].into_iter().flatten();
        inputs.map(|pipe| (pipe.as_fd(), PollFlags::IN)).chain(output)
    }

    /// Writes and reads what can be, and returns what the agent said.
    pub(super) fn pump(&mut self) -> Vec<(Report, Vec<u8>)> {
        self.write();
        self.read_complaints();
        self.read()
    }

    pub(super) fn write(&mut self) {
        if self.outgoing.is_empty() {
            self.send_next_piece();
        }
        while let Some(pipe) = self.to_agent.as_ref().filter(|_| !self.outgoing.is_empty()) {
            match self.outgoing.write(pipe) {
                Ok(0) => return,
                Ok(_) => self.moved = Instant::now(),
                // Its end is seen where it is read.
                Err(_) => self.to_agent = None,
            }
        }
    }

    fn read_complaints(&mut self) {
        let Some(pipe) = &self.complaints_from else { return };
        let mut buffer = [0; 4096];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => self.complaints_from = None,
            Ok(count) => self.complained(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.complaints_from = None,
        }
    }

    fn complained(&mut self, bytes: &[u8]) {
        self.complaints.extend_from_slice(bytes);
        let excess = self.complaints.len().saturating_sub(COMPLAINTS_BYTES_MAX);
        self.complaints.drain(..excess);
    }

    fn read(&mut self) -> Vec<(Report, Vec<u8>)> {
        if let Some(pipe) = &self.from_agent {
            let mut buffer = [0; 64 << 10];
            match rustix::io::read(pipe, &mut buffer) {
                Ok(count) => self.came(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.stop_reading(),
            }
        }
        self.reports()
    }

    /// Bytes of the agent arrived; none of them means their end.
    fn came(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return self.stop_reading();
        }
        self.heard = Instant::now();
        self.moved = self.heard;
        self.take(bytes);
    }

    /// A relay's messages about this connection.
    pub(super) fn relayed(&mut self, report: &Report, body: &[u8]) {
        match report {
            Report::Relayed { stream: 0, .. } => self.came(body),
            Report::Relayed { .. } => self.complained(body),
            Report::RelayTaken { bytes, .. } => {
                self.moved = Instant::now();
                self.relay.iter_mut().for_each(|relay| relay.taken(*bytes));
            }
            Report::RelayEnded { ended, .. } => self.relay_ended(*ended),
            _ => {}
        }
    }

    /// The process that carried the connection from another host has ended, or nothing is known about it any more.
    pub(super) fn relay_ended(&mut self, ended: Ended) {
        self.stop_reading();
        self.relay.iter_mut().for_each(|relay| relay.is_writable = false);
        self.ended.get_or_insert(ended);
    }

    /// The messages for the agent of the host before this one.
    pub(super) fn orders_of_relay(&mut self) -> Vec<(RelayOrder, Vec<u8>)> {
        let Some(relay) = &mut self.relay else { return Vec::new() };
        relay.orders(&mut self.outgoing)
    }

    fn reports(&mut self) -> Vec<(Report, Vec<u8>)> {
        let mut reports = Vec::new();
        loop {
            match self.frames.next() {
                Ok(Some(report)) => reports.push(report),
                Ok(None) => return reports,
                Err(sentence) => {
                    self.stop_reading();
                    self.fail(exit::SYSTEM, &sentence);
                    return reports;
                }
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.hello.is_some() {
            return self.frames.feed(bytes);
        }
        self.preamble.extend_from_slice(bytes);
        let starts = |line: &[u8]| line.starts_with(HELLO.as_bytes());
        let mut from = 0;
        while let Some(length) = self.preamble[from..].iter().position(|byte| *byte == b'\n') {
            let line = &self.preamble[from..from + length];
            if starts(line) {
                let text = String::from_utf8_lossy(&line[HELLO.len()..]).into_owned();
                let rest = self.preamble.split_off(from + length + 1);
                self.frames.feed(&rest);
                return self.said_hello(&text);
            }
            from += length + 1;
        }
        if self.preamble.len() > PREAMBLE_BYTES_MAX {
            self.stop_reading();
            self.fail(
                exit::SYSTEM,
                "its login prints too much before its first command; see what its shell prints at the start",
            );
        }
    }

    fn said_hello(&mut self, text: &str) {
        let (own, here) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
        match serde_json::from_str::<Hello>(text) {
            Ok(hello) if hello.version != own => {
                let sentence = format!(
                    "it has version {} of trellis, and this is {own}; install the same version on both",
                    hello.version
                );
                self.fail(exit::SYSTEM, &sentence);
            }
            Ok(hello) if hello.architecture != here => {
                let sentence = format!(
                    "it is of architecture {}, and this machine is of {here}; the nodes of a cluster share one",
                    hello.architecture
                );
                self.fail(exit::SYSTEM, &sentence);
            }
            Ok(hello) => self.hello = Some(hello),
            Err(_) => self.fail(exit::SYSTEM, "it has another version of trellis; install the same one"),
        }
    }

    /// Notes why this host cannot take part; the first reason stays.
    pub(super) fn fail(&mut self, code: u8, sentence: &str) {
        let sentence = format!("host {}: {sentence}", self.host.name());
        self.failure.get_or_insert(Failure::new(code, sentence));
    }

    /// Why the connection is over, without the name of the host.
    pub(super) fn why_over(&self) -> String {
        let complaints = String::from_utf8_lossy(&self.complaints);
        // ssh ends its lines as terminals want them.
        let last = complaints.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let or = |why: String| if last.is_empty() { why } else { format!("{why}: {last}") };
        let login = format!("`{}` must succeed without a question", self.login().unwrap_or_default());
        let own = || std::env::current_exe().unwrap_or_default();
        match self.ended {
            Some(Ended::Exited(127)) if self.hello.is_none() => or(format!(
                "no trellis can be run there, neither at {} nor from PATH; install the same version",
                own().display()
            )),
            Some(Ended::Exited(126)) if self.hello.is_none() => {
                or("its trellis cannot be run; it may be of another architecture".to_owned())
            }
            Some(Ended::Exited(2)) if complaints.contains("unrecognized subcommand") => {
                "it has an older version of trellis; install the same one".to_owned()
            }
            Some(Ended::Exited(255)) if self.hello.is_none() && last.is_empty() => login,
            Some(Ended::Exited(255)) if self.hello.is_none() => format!("{last}; {login}"),
            Some(Ended::Exited(status)) if status != 255 => or(format!("its agent ended with status {status}")),
            Some(Ended::Lost) => {
                let through = self.relay.as_ref().map_or("?", |relay| &relay.through);
                format!("it is reached through host {through}, which is lost")
            }
            _ => or("its connection ended".to_owned()),
        }
    }

    /// Gives the connection up.
    pub(super) fn drop_it(&mut self) {
        (self.to_agent, self.from_agent, self.complaints_from) = (None, None, None);
        self.relay.iter_mut().for_each(Relay::give_up);
        // An agent ends with its standard input, and takes what it made along.
        if let Some(pid) = self.pid.filter(|_| self.ended.is_none() && !self.is_here) {
            child::signal_group(pid, libc::SIGKILL);
        }
    }

    /// Ends the dialogue; what carried it ends by itself.
    pub(super) fn close(&mut self) {
        self.to_agent = None;
        self.relay.iter_mut().for_each(|relay| relay.is_writable = false);
    }
}
