//! Memory servers whose ranges a controller assigns, in the hosts of a lab, and the controller.
//!
//! All are processes of this program and end with their values. The controller's messages are recorded with their
//! times.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use trellis_output::sockets::clients;
use trellis_switch::lab::{self, Lab};

use super::inside;
use super::served::{self, Served};
use trellis_command::exit::{self, Failure};
use trellis_command::installed;
use trellis_command::scratch::Scratch;

/// The time limit for anything that must happen.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The host of the controller, and of its clients.
const CONTROLLER: &str = "c1";

/// A controller and its servers.
pub(super) struct Placed<'a> {
    lab: &'a Lab,
    /// By their hosts.
    servers: BTreeMap<String, Served>,
    controller: Spoken,
    /// The memory of one range, and what a server provides for the ranges of others.
    memory_bytes: usize,
    folder: Folder,
}

impl<'a> Placed<'a> {
    /// Starts a controller that gives each range this many backups.
    pub(super) fn start(lab: &'a Lab, memory_bytes: usize, backups: u16) -> Result<Placed<'a>, Failure> {
        let folder = Folder(Scratch::for_hosts("bench-switch")?);
        let listener = UnixListener::bind(folder.switch()).map_err(|error| folder.failed("listen in", &error))?;
        let control = Arc::clone(lab.control());
        // A client that is gone, or may not ask, is no reason to stop.
        std::thread::spawn(move || clients(&listener, "switch", None).for_each(|stream| drop(control.serve(stream))));
        let host = served::host(lab, CONTROLLER)?;
        let (records, control, backups) = (folder.records(), folder.control(), backups.to_string());
        let arguments = ["controller", "run", "--records", &records, "--control", &control, "--backups", &backups];
        let controller = Spoken::start(host, &arguments, &folder.switch())?;
        let placed = Placed { lab, servers: BTreeMap::new(), controller, memory_bytes, folder };
        placed.controller.wait_for("controller ")?;
        Ok(placed)
    }

    /// Starts a memory server in a host.
    pub(super) fn serve(&mut self, name: &str) -> Result<(), Failure> {
        let host = served::host(self.lab, name)?;
        let controller = format!("{:#x}", served::host(self.lab, CONTROLLER)?.plan().number);
        let addresses = served::prefix(self.lab.cluster(), host.plan().number);
        let spare = (2 * self.memory_bytes).to_string();
        let more = ["--controller", &controller, "--backup-memory", &spare];
        let server = Served::start_with(host, addresses, self.memory_bytes, served::Answers::Process, &more)?;
        self.servers.insert(name.to_owned(), server);
        Ok(())
    }

    /// Kills a server.
    pub(super) fn kill(&mut self, name: &str) {
        self.servers.remove(name);
    }

    /// Which host is the home of a range.
    pub(super) fn home_of(&self, range: u16) -> Result<String, Failure> {
        let home = self.range(range)?["home"].as_u64();
        let found = self.lab.hosts().iter().find(|host| Some(u64::from(host.plan().number)) == home);
        let name = found.map(|host| host.plan().name.clone());
        name.ok_or_else(|| Failure::new(exit::FAILED, format!("the range of host {range:#x} has no home")))
    }

    /// Returns when a range is at a host, or at any, and this many backups have all of it.
    pub(super) fn wait_for(&self, range: u16, home: Option<u16>, backups: usize) -> Result<(), Failure> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let found = self.range(range)?;
            let is_home = home.is_none_or(|home| found["home"] == home);
            if is_home && found["complete"].as_array().is_some_and(|complete| complete.len() == backups) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let seconds = TIMEOUT.as_secs();
                let sentence = format!("the range of host {range:#x} is not settled after {seconds} s: {found}");
                return Err(Failure::new(exit::FAILED, sentence));
            }
        }
    }

    /// Requests a move of a range to a host; returns at once.
    pub(super) fn send(&self, range: u16, to: u16) -> Result<(), Failure> {
        self.ask(&["move", &format!("{range:#x}"), &format!("{to:#x}")]).map(drop)
    }

    /// Moves pages of a range to a host; returns when it is their home.
    pub(super) fn send_pages(&self, range: u16, to: u16, pages: RangeInclusive<u64>) -> Result<(), Failure> {
        let numbers = format!("{}-{}", pages.start(), pages.end());
        self.ask(&["move", &format!("{range:#x}"), &format!("{to:#x}"), "--pages", &numbers, "--wait"]).map(drop)
    }

    /// When the controller printed a line that contains `part`.
    pub(super) fn heard(&self, part: &str) -> Result<Instant, Failure> {
        self.controller.wait_for(part)
    }

    fn range(&self, range: u16) -> Result<Value, Failure> {
        let answer = self.ask(&["status", "--json"])?;
        let status: Value = serde_json::from_str(&answer).map_err(exit::not_json)?;
        let ranges = status["ranges"].as_array();
        Ok(ranges.and_then(|all| all.iter().find(|one| one["range"] == range)).cloned().unwrap_or_default())
    }

    fn ask(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new(installed::command()?);
        command.arg("controller").args(arguments).args(["--control", &self.folder.control()]).stdin(Stdio::null());
        let failed = |error| Failure::new(exit::SYSTEM, format!("cannot ask the controller: {error}"));
        let output = command.output().map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(Failure::new(exit::FAILED, complaint.trim().trim_start_matches("trellis: ").to_owned()))
    }
}

/// A process whose lines are recorded with their times.
struct Spoken {
    process: Child,
    lines: Receiver<(Instant, String)>,
}

impl Spoken {
    fn start(host: &lab::Host, arguments: &[&str], switch: &Path) -> Result<Spoken, Failure> {
        let mut command = Command::new(installed::command()?);
        command.args(arguments).env("TRELLIS_SWITCH", switch).env("TRELLIS_PREFIX", host.plan().prefix.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let spawned = host.run(|| command.spawn()).map_err(|error| inside::failure(&error))?;
        let failed = |what: String| Failure::new(exit::SYSTEM, format!("cannot start a controller: {what}"));
        let mut process = spawned.map_err(|error| failed(error.to_string()))?;
        let output = process.stdout.take().ok_or_else(|| failed("it has no output".to_owned()))?;
        let (says, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // If nobody receives any more, the process is gone, too.
                let _ = says.send((Instant::now(), line));
            }
        });
        Ok(Spoken { process, lines })
    }

    /// When it printed a line that contains `part`; earlier lines are discarded.
    fn wait_for(&self, part: &str) -> Result<Instant, Failure> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((at, line)) if line.contains(part) => return Ok(at),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = TIMEOUT.as_secs();
                    let sentence = format!("the controller has not said `{part}` within {seconds} s");
                    return Err(Failure::new(exit::FAILED, sentence));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(exit::FAILED, format!("the controller ended before it said `{part}`")));
                }
            }
        }
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder for the controller's records and the switch's socket, removed with its value.
struct Folder(Scratch);

impl Folder {
    fn switch(&self) -> PathBuf {
        self.0.file("switch")
    }

    fn control(&self) -> String {
        self.0.file("controller").display().to_string()
    }

    fn records(&self) -> String {
        format!("embedded-durable:{}", self.0.file("records").display())
    }

    fn failed(&self, attempt: &str, error: &std::io::Error) -> Failure {
        Failure::new(exit::FILE, format!("cannot {attempt} the folder {}: {error}", self.0.path().display()))
    }
}
