//! Starts the built command, supervises it, and afterwards checks what is left.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod hosts;
pub(crate) mod lab;
pub(crate) mod node;

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use trellis_testing::{Folder, Need, skip};

/// Far beyond what any test needs: only a hanging test reaches it.
const WATCHDOG_TIME: Duration = Duration::from_secs(60);
/// The least processor time that a command and everything it started use in that time while they make progress,
/// however loaded the machine is: many times what waiting processes use. In hundredths of a second, as in
/// proc_pid_stat(5).
const COMPUTED_MIN: u64 = 100;

/// A run of the command.
pub(crate) struct Run {
    child: Child,
    stdout: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

/// How a run ended; the code is absent when a signal ended it.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command with these arguments.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts `trellis` with these arguments.
pub(crate) fn start_command(arguments: &[&str]) -> Run {
    let mut command = command(arguments);
    command.stdin(Stdio::null());
    Run::start(command)
}

/// The JSON that a successful run printed.
#[track_caller]
pub(crate) fn json_of(run: &Ended) -> Value {
    assert_eq!(run.code, Some(0), "{run:?}");
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {}", run.stdout))
}

#[track_caller]
pub(crate) fn number(found: &Value, field: &str) -> f64 {
    found[field].as_f64().unwrap_or_else(|| panic!("{field} is not a number in {found}"))
}

/// Whether the catcher works here; a test that needs it prints that it was skipped and why.
pub(crate) fn catcher_works(test: &str, catcher: &str) -> bool {
    let found = json_of(&start_command(&["doctor", "--json"]).finish());
    let answer = &found["catchers"][catcher];
    if answer["works"] != true {
        skip(test, Need::Kernel, format_args!("the catcher {catcher} does not work here: {}", answer["why"]));
    }
    answer["works"] == true
}

/// Starts `trellis run` with these arguments.
pub(crate) fn start(arguments: &[&str]) -> Builder {
    let mut command = command(&["run"]);
    command.args(arguments);
    Builder { command, input: None, output_limit: None }
}

/// Starts this executable as the nodes of a cluster, each in the given role.
pub(crate) fn start_nodes(nodes: usize, role: &str, options: &[&str]) -> Run {
    let nodes = nodes.to_string();
    let options: Vec<&str> = ["-n", &nodes].iter().chain(options).copied().collect();
    start_role(role, &options)
}

/// Like [`start_nodes`], with these options only.
pub(crate) fn start_role(role: &str, options: &[&str]) -> Run {
    let mut command = command(&["run"]);
    command.args(options).arg("--").stdin(Stdio::null());
    in_role(&mut command, role);
    Run::start(command)
}

/// Makes a command start this executable in a role.
pub(crate) fn in_role(command: &mut Command, role: &str) {
    command.arg(std::env::current_exe().expect("this executable"));
    command.args(["--ignored", "--exact", "acts_as_a_node_when_started_as_one", "--nocapture", "--test-threads", "1"]);
    command.env("CLI_TEST_ROLE", role).env("RUST_BACKTRACE", "0");
}

/// A run that is about to be started.
pub(crate) struct Builder {
    command: Command,
    input: Option<String>,
    output_limit: Option<usize>,
}

impl Builder {
    /// Sets the standard input; without it, there is none.
    pub(crate) fn with_input(mut self, text: &str) -> Builder {
        self.input = Some(text.to_owned());
        self
    }

    /// Closes the reading end of its standard output after this many bytes.
    pub(crate) fn close_output_after(mut self, bytes: usize) -> Builder {
        self.output_limit = Some(bytes);
        self
    }

    pub(crate) fn finish(self) -> Ended {
        self.begin().finish()
    }

    /// Starts it.
    pub(crate) fn begin(mut self) -> Run {
        self.command.stdin(if self.input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut run = Run::start_limited(self.command, self.output_limit.unwrap_or(usize::MAX));
        if let Some(text) = self.input {
            run.child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("input");
        }
        run
    }
}

impl Run {
    /// Starts a command whose output is piped.
    pub(crate) fn start(command: Command) -> Run {
        Run::start_limited(command, usize::MAX)
    }

    fn start_limited(mut command: Command, limit: usize) -> Run {
        let mut child = command.spawn().expect("the command starts");
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers = vec![
            collect(child.stdout.take().expect("piped"), Arc::clone(&stdout), limit),
            collect(child.stderr.take().expect("piped"), Arc::clone(&stderr), usize::MAX),
        ];
        Run { child, stdout, stderr, readers }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until standard output contains the text this many times.
    pub(crate) fn wait_for_output(&mut self, text: &str, times: usize) {
        let stdout = Arc::clone(&self.stdout);
        wait_until(&format!("{times} x `{text}` in the output"), || shown(&stdout).matches(text).count() >= times);
    }

    pub(crate) fn standard_output(&self) -> String {
        shown(&self.stdout)
    }

    pub(crate) fn standard_error(&self) -> String {
        shown(&self.stderr)
    }

    /// The process number of a node that printed `up NODE PID`.
    pub(crate) fn node_pid(&self, node: usize) -> i32 {
        let text = shown(&self.stdout);
        let line =
            text.lines().find_map(|line| line.split_once(&format!("up {node} "))).expect("the node said its pid");
        line.1.trim().parse().expect("a pid")
    }

    /// Waits for the end of the command and of everything that it started. A command that no longer uses the
    /// processor counts as hanging.
    pub(crate) fn finish(mut self) -> Ended {
        let mut deadline = Instant::now() + WATCHDOG_TIME;
        let mut computed = 0;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            if Instant::now() > deadline {
                let now = computed_by(self.child.id());
                if now >= computed + COMPUTED_MIN {
                    (computed, deadline) = (now, Instant::now() + WATCHDOG_TIME);
                    continue;
                }
                let _ = self.child.kill();
                panic!("the command hangs; stdout: {} stderr: {}", shown(&self.stdout), shown(&self.stderr));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        for reader in std::mem::take(&mut self.readers) {
            reader.join().expect("reader");
        }
        Ended { code: status.code(), stdout: shown(&self.stdout), stderr: shown(&self.stderr) }
    }
}

impl Drop for Run {
    /// A failing test leaves nothing behind: the nodes end with their launcher.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The processor time of a process and of everything that it started: of running processes, and of those that ended
/// and were waited for. The time of others is missing, which at worst looks like a hang.
fn computed_by(root: u32) -> u64 {
    let stat = |process: &str| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let fields: Vec<u64> =
            stat.rsplit_once(") ")?.1.split(' ').skip(1).map(|field| field.parse().unwrap_or(0)).collect();
        // The parent, and the user and system times of the process and of its children.
        Some((process.parse::<u64>().ok()?, *fields.first()?, fields.get(10..14)?.iter().sum::<u64>()))
    };
    let names = fs::read_dir("/proc").expect("Linux has it").flatten().map(|entry| entry.file_name());
    let all: Vec<(u64, u64, u64)> = names.filter_map(|name| stat(name.to_str()?)).collect();
    let mut family = vec![u64::from(root)];
    while let Some(process) = all.iter().find(|of| family.contains(&of.1) && !family.contains(&of.0)) {
        family.push(process.0);
    }
    all.iter().filter(|process| family.contains(&process.0)).map(|process| process.2).sum()
}

fn collect(mut from: impl Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>, limit: usize) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        let mut total = 0;
        while let Ok(got) = from.read(&mut buffer)
            && got > 0
        {
            into.lock().expect("lock").extend_from_slice(&buffer[..got]);
            total += got;
            if total >= limit {
                return;
            }
        }
    })
}

fn shown(bytes: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&bytes.lock().expect("lock")).into_owned()
}

/// Sends a signal to a process that these tests started.
pub(crate) fn signal(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: kill takes plain integers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to {pid}");
}

/// Whether the process runs; a process that only waits to be reaped does not.
pub(crate) fn alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// The state of a process as the kernel writes it: `T` is stopped, `Z` waits to be reaped.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Waits for something that must happen; fails when the watchdog's time is over.
pub(crate) fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG_TIME;
    while !happened() {
        assert!(Instant::now() < deadline, "this never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process number that a script wrote into a file.
pub(crate) fn pid_in(folder: &Folder, name: &str) -> i32 {
    fs::read_to_string(folder.file(name)).expect("pid file").trim().parse().expect("a pid")
}
