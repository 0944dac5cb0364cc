//! `cargo xtask soak --load N`: runs the tests on a heavily loaded machine.
//!
//! Promises: N threads of this process compute at normal priority while the tests that wait or name peers run
//! [`ROUNDS`] times, and then the whole suite runs once; everything is built before. The threads end with this process,
//! however it ends. It must never change a time-out for the load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, bail};

use crate::test_programs::Tests;
use crate::workspace::Workspace;
use crate::{compiler, test};

/// How often the tests that wait or name peers run.
const ROUNDS: usize = 10;

/// How many test programs run at a time. They add to the load; one at a time they would get a twentieth of the
/// machine. With eight, ten rounds fit into an hour and a half on two slow cores.
const AT_ONCE: usize = 8;

/// The packages and programs of those tests. Programs that only compare values, and those of cargo features, run only
/// in the whole suite: `release` alone takes longer at this load than all of these.
const WAITING_PACKAGES: &[&str] = &[
    "trellis-dsm",
    "trellis-cli",
    "trellis-c",
    "trellis-remote",
    "trellis-store",
    "trellis-stored",
    "trellis-transport",
];
const WAITING: &[&str] = &[
    "backups",
    "breakdown",
    "cluster",
    "controller",
    "controller_command",
    "crud",
    "datagrams",
    "delivery",
    "elastic",
    "fabric",
    "fault_path",
    "files",
    "guides",
    "engines",
    "hosts",
    "hot_pages",
    "join",
    "killed",
    "leased",
    "leases",
    "lifetime",
    "multicast",
    "operators",
    "outputs",
    "parts",
    "programs",
    "protocols",
    "publication",
    "redis_faults",
    "remote_leases",
    "remote_moving",
    "remote_paging",
    "remote_programs",
    "run",
    "security",
    "serve",
    "shm",
    "store",
    "stored",
    "stored_recovery",
    "stored_synchronisation",
    "synchronisation",
    "udp",
    "waits",
];

/// Threads that compute while this value lives.
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
            // The thread does nothing that could fail.
            let _ = thread.join();
        }
    }
}

/// The name of the whole suite in a choice.
const SUITE: &str = "suite";

/// Builds, and then runs the tests beside this many computing threads: all of them, or only the chosen programs and the
/// suite.
pub(crate) fn run(workspace: &Workspace, count: u32, only: &[String]) -> Result<()> {
    let is_chosen = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    if let Some(wrong) = only.iter().find(|name| *name != SUITE && !WAITING.contains(&name.as_str())) {
        bail!("`{wrong}` is not among the programs of the rounds; there are {}, and {SUITE}", WAITING.join(", "));
    }
    let waiting: Vec<&str> = WAITING.iter().copied().filter(|name| is_chosen(name)).collect();
    let rounds = if waiting.is_empty() { 0 } else { ROUNDS };
    test::build(workspace)?;
    let load = Load::start(count);
    let mut failed = Vec::new();
    let mut attempt = |name: String, work: &dyn Fn(&str) -> Result<()>| {
        if let Err(error) = work(&name) {
            eprintln!("    {error:#}");
            failed.push(name);
        }
    };
    for round in 1..=rounds {
        let packages = WAITING_PACKAGES.iter().flat_map(|package| ["-p", package]);
        let arguments = packages.chain(waiting.iter().flat_map(|program| ["--test", *program]));
        let tests = Tests { arguments: arguments.collect(), only: Vec::new(), filter: None, at_once: AT_ONCE };
        let name = format!("the tests that wait or name peers, round {round} of {ROUNDS} at load {count}");
        attempt(name, &|name| test::run_tests(workspace, name, &tests));
    }
    if is_chosen(SUITE) {
        let whole = format!("the whole suite at load {count}");
        attempt(whole, &|name| test::run_tests(workspace, name, &test::all(AT_ONCE)));
        attempt(format!("the compiler's suite at load {count}"), &|_| compiler::test(workspace));
    }
    drop(load);
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} runs failed:\n{}", failed.len(), failed.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_program_that_is_named_exists() {
        let root = Workspace::find().unwrap().root;
        for name in WAITING {
            let mut packages = WAITING_PACKAGES.iter().map(|package| root.join("crates").join(package));
            assert!(packages.any(|package| package.join(format!("tests/{name}.rs")).is_file()), "{name}");
        }
    }
}
