//! Memory servers with a controller, as processes in the hosts of a lab; and work with a known result.
//!
//! The conditions are checked during the work and at its end: nothing that was acknowledged is lost, nothing is half
//! done, nothing is done twice.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use trellis::remote::leased::{Bytes, Events, LeasedPages};
use trellis::remote::{Client, Pointer, RemoteError};
use trellis_base::Random;
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_switch::lab::Lab;
use trellis_testing::Folder;

use super::inside::{LONG, good, number, prefix, written};

pub(crate) const PAGE: usize = 4096;

/// The host of the controller, if there is one: a client, which has no memory.
pub(crate) const CONTROLLER: &str = "c3";

/// A process and its output.
struct Process {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Process {
    fn hear(said: &Arc<Mutex<Vec<String>>>, name: &'static str, from: impl Read + Send + 'static) {
        let said = Arc::clone(said);
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                println!("{name}: {line}");
                said.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
    }

    fn has_said(&self, part: &str) -> bool {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|line| line.contains(part))
    }

    fn kill(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The durations of rights.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) lease_term: Duration,
    pub(crate) home_lease: Duration,
}

/// Short ones: what must end by itself ends soon.
pub(crate) const SHORT: Times =
    Times { lease_term: Duration::from_millis(1000), home_lease: Duration::from_millis(500) };

/// A lab and the processes in it.
pub(crate) struct Rack {
    /// By their hosts. Declared before the lab, so that they end before it.
    processes: BTreeMap<&'static str, Process>,
    pub(crate) lab: Lab,
    folder: Folder,
    times: Times,
    memory: &'static str,
    /// The hosts of controllers, and the address of the records for each of them.
    controllers: Vec<(&'static str, String)>,
    leader_term: &'static str,
    /// The host of the controller that is asked.
    asked: Cell<&'static str>,
}

impl Rack {
    /// A lab without processes yet, whose switch takes commands.
    pub(crate) fn new(lab: Lab, times: Times, memory: &'static str) -> Rack {
        let folder = Folder::new();
        let listener = UnixListener::bind(folder.file("switch")).expect("a socket");
        let control = Arc::clone(lab.control());
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(control.serve(stream))));
        let records = format!("embedded-durable:{folder}/records");
        let (processes, controllers) = (BTreeMap::new(), vec![(CONTROLLER, records)]);
        Rack { processes, lab, folder, times, memory, controllers, leader_term: "500ms", asked: Cell::new(CONTROLLER) }
    }

    /// Gives these hosts controllers, each with the address of the records; another one leads after this term.
    pub(crate) fn with_controllers(&mut self, controllers: Vec<(&'static str, String)>, leader_term: &'static str) {
        (self.controllers, self.leader_term) = (controllers, leader_term);
    }

    fn socket(&self, host: &str) -> PathBuf {
        self.folder.file(format!("controller-{host}"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(arguments).env("TRELLIS_SWITCH", self.folder.file("switch"));
        command.env("TRELLIS_CONTROLLER", self.socket(self.asked.get())).stdin(Stdio::null());
        command
    }

    /// Starts a process in a host, and returns when it prints that it is ready.
    fn start(&mut self, host: &'static str, arguments: &[&str], ready: &str) {
        let mut command = self.command(arguments);
        command.env("TRELLIS_PREFIX", prefix(&self.lab, host).to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = self.lab.host(host).unwrap().run(|| command.spawn()).unwrap();
        let mut child = spawned.expect("it can be started");
        let said = Arc::default();
        Process::hear(&said, host, child.stdout.take().expect("it is a pipe"));
        Process::hear(&said, host, child.stderr.take().expect("it is a pipe"));
        let mut process = Process { child, said };
        let deadline = Instant::now() + LONG;
        while !process.has_said(ready) {
            let ended = process.child.try_wait().expect("it was started");
            assert!(ended.is_none() && Instant::now() < deadline, "{arguments:?} in {host}: {ended:?}");
            std::thread::yield_now();
        }
        self.processes.insert(host, process);
    }

    /// Starts a memory server.
    pub(crate) fn serve(&mut self, host: &'static str) {
        let numbers = self.controllers.iter().map(|(host, _)| written(number(&self.lab, host).0));
        let controllers = numbers.collect::<Vec<String>>().join(",");
        let (term, home_lease) = self.times();
        let memory = self.memory;
        let arguments = [
            "serve",
            "--memory",
            memory,
            "--backup-memory",
            "256MiB",
            "--controller",
            &controllers,
            "--in-kernel",
            "off",
        ];
        let times = ["--lease-term", &term, "--home-lease", &home_lease];
        self.start(host, &[&arguments[..], &times].concat(), "serving ");
    }

    /// Starts the controller, with this many backups of each range.
    pub(crate) fn control(&mut self, backups: u16) {
        self.control_at(CONTROLLER, backups);
    }

    /// Like [`Rack::control`], with more options.
    pub(crate) fn control_with(&mut self, backups: u16, options: &[&str]) {
        self.control_as(CONTROLLER, backups, options);
    }

    /// Starts the controller of a host.
    pub(crate) fn control_at(&mut self, host: &'static str, backups: u16) {
        self.control_as(host, backups, &[]);
    }

    fn control_as(&mut self, host: &'static str, backups: u16, options: &[&str]) {
        let found = self.controllers.iter().find(|(of, _)| *of == host).expect("it is one of the controllers");
        let (records, leader_term) = (found.1.clone(), self.leader_term);
        let (term, home_lease) = self.times();
        let backups = backups.to_string();
        let arguments = ["controller", "run", "--records", &records, "--backups", &backups];
        let socket = self.socket(host).display().to_string();
        let more =
            ["--leader-term", leader_term, "--lease-term", &term, "--home-lease", &home_lease, "--control", &socket];
        self.start(host, &[&arguments[..], &more, options].concat(), "controller ");
    }

    /// Returns when one of these controllers leads, and asks that one from then on.
    pub(crate) fn led_by(&self, hosts: &[&'static str]) -> &'static str {
        let deadline = Instant::now() + LONG;
        loop {
            let leads = |host: &&&'static str| self.status_at(host).is_some_and(|status| status["leads"] == true);
            if let Some(host) = hosts.iter().find(leads) {
                self.asked.set(host);
                return host;
            }
            assert!(Instant::now() < deadline, "none of {hosts:?} leads");
        }
    }

    /// The status from the controller of a host; `None` if none answers.
    pub(crate) fn status_at(&self, host: &str) -> Option<Value> {
        let mut command = self.command(&["controller", "status", "--json"]);
        let output = command.env("TRELLIS_CONTROLLER", self.socket(host)).output().expect("it can be started");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// The command for an operator's request to the controller of a host, not started yet.
    pub(crate) fn question(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(&[&["controller"], arguments].concat());
        command.env("TRELLIS_CONTROLLER", self.socket(host));
        command
    }

    /// Sends a signal to the process in a host.
    pub(crate) fn signal(&self, host: &str, signal: i32) {
        let numbers = [signal.to_string(), self.processes[host].child.id().to_string()];
        let sent = Command::new("sh").args(["-c", "kill -\"$0\" \"$1\""]).args(numbers).status();
        assert!(sent.is_ok_and(|status| status.success()), "it runs");
    }

    /// Waits until the process in a host ends by itself; returns its status.
    pub(crate) fn ends(&mut self, host: &'static str) -> ExitStatus {
        self.processes.remove(host).expect("it runs").child.wait().expect("it ends")
    }

    /// Whether a host's controller has a socket for operators.
    pub(crate) fn has_socket(&self, host: &str) -> bool {
        self.socket(host).exists()
    }

    fn times(&self) -> (String, String) {
        let milliseconds = |time: Duration| format!("{}ms", time.as_millis());
        (milliseconds(self.times.lease_term), milliseconds(self.times.home_lease))
    }

    /// Kills a process.
    pub(crate) fn kill(&mut self, host: &'static str) {
        self.processes.remove(host).expect("it runs").kill();
    }

    /// Whether the process in a host has printed something.
    pub(crate) fn has_said(&self, host: &'static str, part: &str) -> bool {
        self.processes[host].has_said(part)
    }

    /// Sends a request to the controller.
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        let output = self.try_to_ask(arguments);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {printed}{}", String::from_utf8_lossy(&output.stderr));
        printed
    }

    /// Sends a request that the leading controller refuses while a range is between two homes, until it is accepted.
    pub(crate) fn ask_until_it_can_be(&self, arguments: &[&str]) -> String {
        let deadline = Instant::now() + LONG;
        loop {
            self.status();
            let output = self.try_to_ask(arguments);
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                return printed;
            }
            assert!(Instant::now() < deadline, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    pub(crate) fn try_to_ask(&self, arguments: &[&str]) -> Output {
        self.question(self.asked.get(), arguments).output().expect("it can be started")
    }

    /// The status from the leading controller.
    pub(crate) fn status(&self) -> Value {
        let deadline = Instant::now() + LONG;
        loop {
            let mut hosts = self.controllers.iter().filter_map(|(host, _)| Some((*host, self.status_at(host)?)));
            if let Some((host, status)) = hosts.find(|(_, status)| status["leads"] == true) {
                self.asked.set(host);
                return status;
            }
            assert!(Instant::now() < deadline, "no controller leads");
        }
    }

    /// The status of the range of a host from the leading controller.
    pub(crate) fn range(&self, of: &str) -> Value {
        let (status, of) = (self.status(), number(&self.lab, of).0);
        let ranges = status["ranges"].as_array().expect("a list");
        ranges.iter().find(|range| range["range"] == of).cloned().unwrap_or(Value::Null)
    }

    /// Returns when the range of a host is at another one, and this many backups have all of it.
    pub(crate) fn is_at(&self, of: &str, home: &str, backups: usize) {
        let home = number(&self.lab, home).0;
        self.wait_for(of, |range| range["home"] == home && complete(range) == Some(backups));
    }

    /// Returns when the range of a host is at a running server, and this many backups have all of it.
    pub(crate) fn has(&self, of: &str, backups: usize) {
        let hosts: Vec<u16> = self.processes.keys().map(|host| number(&self.lab, host).0).collect();
        self.wait_for(of, |range| hosts.iter().any(|host| range["home"] == *host) && complete(range) == Some(backups));
    }

    /// Returns when the status of the range of a host satisfies a condition.
    pub(crate) fn wait_for(&self, of: &str, is_so: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + LONG;
        loop {
            let range = self.range(of);
            if is_so(&range) {
                return;
            }
            assert!(Instant::now() < deadline, "the range of {of}: {range}");
        }
    }
}

/// The number of backups that have all of a range.
fn complete(range: &Value) -> Option<usize> {
    range["complete"].as_array().map(Vec::len)
}

impl Drop for Rack {
    fn drop(&mut self) {
        // Before their sockets and files.
        self.processes.clear();
    }
}

/// The reaction of a process to recalls: its calls hold pages only for a moment.
pub(crate) struct Nothing;

impl Events for Nothing {
    fn invalidate(&self, _: u64) {}

    fn recalled(&self, _: u64) {}

    fn lost(&self, _: u64) {}
}

/// A page that consists of one repeated number.
pub(crate) fn page_of(count: u64) -> Vec<u8> {
    count.to_le_bytes().repeat(PAGE / 8)
}

/// The number of which a page consists.
pub(crate) fn count_of(page: &[u8]) -> u64 {
    let count = u64::from_le_bytes(*page.first_chunk().expect("a page has words"));
    assert!(page == page_of(count), "a page is whole");
    count
}

/// What is known of pages, whose numbers only increase.
pub(crate) struct Ledger {
    /// The acknowledged and the attempted number of each page.
    pages: Vec<(AtomicU64, AtomicU64)>,
    /// Whether the work shall end.
    is_over: AtomicBool,
    /// How often something was done.
    done: AtomicU64,
    /// Nanoseconds of the slowest request.
    slowest: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(pages: usize) -> Ledger {
        let pages = (0..pages).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
        Ledger { pages, is_over: AtomicBool::new(false), done: AtomicU64::new(0), slowest: AtomicU64::new(0) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Returns when this much more was done.
    pub(crate) fn wait_for(&self, more: u64) {
        let (before, deadline) = (self.done(), Instant::now() + LONG);
        while self.done() < before + more {
            assert!(!self.is_over() && Instant::now() < deadline, "{} of {more} were done", self.done() - before);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn slowest(&self) -> Duration {
        Duration::from_nanos(self.slowest.load(Ordering::SeqCst))
    }

    /// Does something, counts it, and updates the longest time.
    pub(crate) fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.slowest.fetch_max(began.elapsed().as_nanos() as u64, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
        done
    }

    fn acknowledged(&self, page: usize) -> u64 {
        self.pages[page].0.load(Ordering::SeqCst)
    }

    fn acknowledge(&self, page: usize, count: u64) {
        self.pages[page].0.fetch_max(count, Ordering::SeqCst);
    }

    fn try_one(&self, page: usize, count: u64) {
        self.pages[page].1.fetch_max(count, Ordering::SeqCst);
    }

    /// Checks the number read from a page that had at least `least` before.
    fn check(&self, page: usize, least: u64, read: u64) {
        let most = self.pages[page].1.load(Ordering::SeqCst);
        assert!((least..=most).contains(&read), "page {page} is {read}, not {least} to {most}");
    }

    /// Reads all pages, and compares.
    pub(crate) fn compare(&self, client: &mut Client, object: Pointer) {
        let mut bytes = vec![0; PAGE];
        for page in 0..self.pages.len() {
            let least = self.acknowledged(page);
            good(client.read(at(object, page), &mut bytes));
            self.check(page, least, count_of(&bytes));
        }
    }

    /// Increments random pages under leases, concurrently with other processes; returns how many commits were too
    /// late.
    pub(crate) fn raise_under_leases(&self, leased: &LeasedPages, seed: u64) -> u64 {
        let (mut random, mut late) = (Random::new(seed), 0);
        while !self.is_over() {
            late += u64::from(!self.raise_one(leased, random.index(self.pages.len())));
        }
        late
    }

    /// Increments a page; returns whether that counted.
    pub(crate) fn raise_one(&self, leased: &LeasedPages, page: usize) -> bool {
        let (least, number) = (self.acknowledged(page), page as u64);
        let mut found = None;
        self.time(|| {
            good(leased.update(&[number], false, &mut |_, bytes| match bytes {
                Bytes::New(bytes) => found = Some(count_of(bytes)),
                Bytes::Same => panic!("nothing is kept here"),
            }));
        });
        let found = found.expect("the page came");
        self.check(page, least, found);
        self.try_one(page, found + 1);
        let late = self.time(|| good(leased.commit(&[(number, &page_of(found + 1))], true)));
        if late.is_empty() {
            self.acknowledge(page, found + 1);
        }
        late.is_empty()
    }

    /// Increments a page, once more each time that came too late.
    pub(crate) fn raise(&self, leased: &LeasedPages, page: usize) {
        let deadline = Instant::now() + LONG;
        while !self.raise_one(leased, page) {
            assert!(Instant::now() < deadline, "no change of page {page} counts");
        }
    }

    /// Reads random pages.
    pub(crate) fn read(&self, client: &mut Client, object: Pointer, seed: u64) {
        let (mut random, mut bytes) = (Random::new(seed), vec![0; PAGE]);
        while !self.is_over() {
            let page = random.index(self.pages.len());
            let least = self.acknowledged(page);
            self.time(|| good(client.read(at(object, page), &mut bytes)));
            self.check(page, least, count_of(&bytes));
        }
    }

    /// Writes random pages; there must be no other writer.
    pub(crate) fn write(&self, client: &mut Client, object: Pointer, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_over() {
            let page = random.index(self.pages.len());
            let next = self.acknowledged(page) + 1;
            self.try_one(page, next);
            // A call that may have been done is not repeated by the client where a new home does not know its session.
            // The only writer may repeat it.
            while self.time(|| done(client.write(at(object, page), &page_of(next)))).is_none() {}
            self.acknowledge(page, next);
        }
    }

    /// Adds one repeatedly, as the only client; returns the number of additions.
    pub(crate) fn add(&self, client: &mut Client, counter: Pointer) -> u64 {
        let mut count = 0;
        while !self.is_over() {
            if let Some(before) = self.time(|| done(client.fetch_add(counter, 1))) {
                assert_eq!(before, count, "each addition is done once");
                count += 1;
                continue;
            }
            let after = (0..).find_map(|_| self.time(|| done(client.fetch_add(counter, 0)))).expect("it ends");
            assert!((count..=count + 1).contains(&after), "{count} and a call that may have been done are {after}");
            count = after;
        }
        count
    }
}

/// The answer of a call; none if it may have been done or not, because its session is over ([`Client`]).
fn done<T>(result: Result<T, RemoteError>) -> Option<T> {
    match result {
        Err(RemoteError::Refused { status: Status::Fenced, .. }) => None,
        other => Some(good(other)),
    }
}

/// A page of an object.
pub(crate) fn at(object: Pointer, page: usize) -> Pointer {
    object.plus((page * PAGE) as u64).expect("it is in the object")
}

/// Ends the work when it is dropped, also if a test fails, so that nothing runs for ever.
pub(crate) struct Ends<'a>(pub(crate) &'a Ledger);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
