//! `cargo xtask soak --load N`: the tests on a machine that has much else to do.
//!
//! Promises: so many threads of this process compute at the usual priority while the whole suite runs once, and then the tests that
//! wait or name peers run [`ROUNDS`] times; everything is built before. The threads end with this process, however that ends. Must
//! never change a time-out for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, bail};

use crate::test;
use crate::workspace::Workspace;

/// How often the tests run that wait or name peers.
const ROUNDS: usize = 10;

/// Those tests, as `cargo test` is asked for them.
const WAITING: [&[&str]; 4] = [
    &[
        "-p",
        "trellis",
        "--test",
        "cluster",
        "--test",
        "synchronisation",
        "--test",
        "publication",
        "--test",
        "datagrams",
    ],
    &["-p", "trellis", "--test", "elastic", "--test", "protocols", "--test", "fault_path"],
    &[
        "-p",
        "trellis-cli",
        "--test",
        "run",
        "--test",
        "waits",
        "--test",
        "join",
        "--test",
        "fabric",
        "--test",
        "outputs",
    ],
    &["-p", "trellis-c", "--test", "killed"],
];

/// Threads that compute as long as this lives.
struct Load {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(count: u32) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let compute = |_| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || while !is_over.load(Ordering::Relaxed) {})
        };
        let threads = (0..count).map(compute).collect();
        Load { is_over, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could fail.
            let _ = thread.join();
        }
    }
}

/// Builds, and then tests beside so many threads that compute.
pub(crate) fn run(workspace: &Workspace, count: u32) -> Result<()> {
    test::build(workspace)?;
    let load = Load::start(count);
    let mut failed = Vec::new();
    let mut attempt = |name: String, arguments: &[&str]| {
        let mut tests = workspace.cargo();
        tests.args(["test", "--locked"]).args(arguments);
        if let Err(error) = test::run_tests(workspace, &name, tests) {
            eprintln!("    {error:#}");
            failed.push(name);
        }
    };
    attempt(format!("the whole suite at load {count}"), &["--workspace"]);
    for round in 1..=ROUNDS {
        for tests in WAITING {
            attempt(format!("tests that wait or name peers, round {round} of {ROUNDS} at load {count}"), tests);
        }
    }
    drop(load);
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} of {} runs failed:\n{}", failed.len(), 1 + ROUNDS * WAITING.len(), failed.join("\n"))
}
