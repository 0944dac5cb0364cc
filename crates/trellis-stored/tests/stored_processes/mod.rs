//! Processes of one region for tests: this one, and others that are this program started again, with their role in the
//! environment.
//!
//! A test program that includes this has `memory` and `stored` at its root, and a test `child` that checks [`role`].

#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use trellis_store::Store;
use trellis_store::wrap::Counted;

use crate::memory::Memory;
use trellis_stored::coherence::log::{Coherence, Identity};
use trellis_stored::region::{self, Opened};
use trellis_stored::settings::Settings;
use trellis_stored::synchronisation::{Options, Session, SynchronisationError};

const ROLE: &str = "TRELLIS_TEST_ROLE";
const STORE: &str = "TRELLIS_TEST_STORE";
/// The page in whose first word the processes count.
pub(crate) const PAGE: u64 = 2;

/// The role of this process, and the address of the store; `None` if a person started it.
pub(crate) fn role() -> Option<(String, String)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var(STORE).expect("the test says where the store is")))
}

/// A process of a region.
pub(crate) struct Process {
    pub(crate) counted: Arc<Counted>,
    pub(crate) session: Session,
    pub(crate) memory: Arc<Memory>,
    pub(crate) opened: Opened,
}

impl Process {
    pub(crate) fn open(url: &str, lease: Duration, has_heartbeat_thread: bool) -> Process {
        let counted = Counted::new(trellis_store::open(url).unwrap());
        let store: Arc<dyn Store> = Arc::clone(&counted) as _;
        let settings = Settings { region: Some("test".to_owned()), lease, ..Settings::default() };
        let opened = region::open(Arc::clone(&store), &settings).unwrap();
        let memory = Arc::new(Memory::new(Arc::clone(&store), opened.number));
        let who = Identity {
            name: opened.name.clone(),
            region: opened.number,
            member: opened.member,
            lease: opened.lease,
            is_private: false,
        };
        let shared = Arc::new(Coherence::new(store, who, Arc::clone(&memory) as _, opened.seen));
        let options = Options { wait_max: Duration::from_secs(60), has_heartbeat_thread, ..Options::default() };
        let session = Session::new(shared, options).unwrap();
        Process { counted, session, memory, opened }
    }

    pub(crate) fn calls(&self) -> u64 {
        self.counted.counts().calls()
    }

    pub(crate) fn increment(&self) -> Result<u64, SynchronisationError> {
        let guard = self.session.mutex("word")?.lock()?;
        let value = self.memory.read(PAGE, 0) + 1;
        self.memory.write(PAGE, 0, value);
        guard.unlock()?;
        Ok(value)
    }

    /// The word in the store, regardless of this process's copies.
    pub(crate) fn word(&self) -> u64 {
        Memory::new(Arc::clone(&self.counted) as _, self.opened.number).read(PAGE, 0)
    }
}

/// Prints a line for the test that started this process.
pub(crate) fn say(what: &str) {
    println!("\n> {what}");
    std::io::stdout().flush().unwrap();
}

pub(crate) fn wait_for_parent() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// A process that this one started; killed when dropped.
pub(crate) struct Started {
    pub(crate) child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Started {
    pub(crate) fn start(role: &str, url: &str) -> Started {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .env(STORE, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Started { child, input, output: BufReader::new(output).lines() }
    }

    /// The next line that it prints.
    pub(crate) fn said(&mut self) -> String {
        self.output
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("> ").map(str::to_owned))
            .expect("it says something before it ends")
    }

    pub(crate) fn go_on(&mut self) {
        writeln!(self.input).unwrap();
    }

    pub(crate) fn succeed(mut self) {
        // Output that is not read would block it.
        let left: Vec<String> = self.output.by_ref().map_while(Result::ok).collect();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", left.join("\n"));
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
