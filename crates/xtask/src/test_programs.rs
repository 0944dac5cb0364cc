//! Runs test programs, several at a time: what `cargo test` builds, run as cargo would run them, and then the tests
//! in the documentation.
//!
//! Promises: a program runs in the folder of its package. Its output is shown as a whole after its end, so that the
//! lines of two programs never mix. A program that runs for a minute is named every minute. It must never run fewer
//! programs than `cargo test` with the same arguments.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::step;
use crate::workspace::Workspace;

/// How often the programs that still run are named.
const STILL_RUNNING_EVERY: Duration = Duration::from_secs(60);

/// The programs that take longest. They start first, so that no core waits for one of them at the end.
const LONG: &[&str] = &[
    "foreign",
    "threads",
    "conformance",
    "release",
    "hosts",
    "parmacs_programs",
    "headers",
    "choices",
    "remote_programs",
    "mutants",
    "programs",
    "vismi",
    "graph",
    "explorer",
    "commands",
    "kv",
    "guides",
    "controller",
    "killed",
    "damaged_store",
    "remote_paging",
    "protocols",
    "lab",
    "leases",
    "bench_switch",
    "nft",
    "documents",
    "engines",
    "run",
    "parts",
    "redis_faults",
    "join",
    "libivy",
    "cluster",
    "waits",
];

/// One program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    executable: PathBuf,
    folder: PathBuf,
    /// The package, and the name of the test or the library.
    name: (String, String),
}

/// A choice of tests: the arguments of `cargo test`, and a filter for the names of tests.
pub(crate) struct Tests<'a> {
    /// Packages and targets, for example `-p trellis-dsm --test cluster`.
    pub(crate) arguments: Vec<&'a str>,
    /// Of the resulting programs only these, by package and name; all if this is empty.
    pub(crate) only: Vec<(&'a str, &'a str)>,
    /// Only tests with this in their name.
    pub(crate) filter: Option<&'a str>,
    /// How many programs run at a time.
    pub(crate) at_once: usize,
}

impl Tests<'_> {
    /// Builds and runs them; `show` gets the name and the whole output of each runner. Returns false if a test
    /// failed.
    pub(crate) fn run(&self, workspace: &Workspace, mut show: impl FnMut(&str, &str)) -> Result<bool> {
        let mut passed = true;
        let mut programs = self.build(workspace)?;
        if !self.only.is_empty() {
            let is_wanted = |name: &(String, String)| self.only.contains(&(name.0.as_str(), name.1.as_str()));
            programs.retain(|program| is_wanted(&program.name));
            let is_there = |wanted: &(&str, &str)| {
                programs.iter().any(|program| (program.name.0.as_str(), program.name.1.as_str()) == *wanted)
            };
            if let Some((package, name)) = self.only.iter().find(|wanted| !is_there(wanted)) {
                bail!("{package} has no test program {name} (any more)");
            }
        }
        if programs.is_empty() {
            bail!("`cargo test {}` builds no test program", self.arguments.join(" "));
        }
        programs.sort_by_key(|program| LONG.iter().position(|name| *name == program.name.1).unwrap_or(LONG.len()));
        let (over, finished) = mpsc::channel();
        let mut waiting = programs.into_iter();
        let mut running: BTreeMap<PathBuf, Instant> = BTreeMap::new();
        loop {
            while running.len() < self.at_once.max(1)
                && let Some(program) = waiting.next()
            {
                running.insert(program.executable.clone(), Instant::now());
                let mut command = program.command(self.filter);
                let over = over.clone();
                std::thread::spawn(move || {
                    let output = command.output().with_context(|| format!("cannot start {}", step::shown(&command)));
                    // If this fails, the receiver has given up.
                    let _ = over.send((program, output));
                });
            }
            if running.is_empty() {
                break;
            }
            match finished.recv_timeout(STILL_RUNNING_EVERY) {
                Ok((program, output)) => {
                    let output = output?;
                    let took = running.remove(&program.executable).map_or(Duration::ZERO, |since| since.elapsed());
                    let name = name(&program.executable);
                    let mut printed = format!("     Running {name} ({})\n", step::seconds(took));
                    // The runner's closing lines stay at the end.
                    printed.push_str(&String::from_utf8_lossy(&output.stderr));
                    printed.push_str(&String::from_utf8_lossy(&output.stdout));
                    if !output.status.success() {
                        printed.push_str(&format!("     {name} ended with {}\n", output.status));
                        passed = false;
                    }
                    show(name, &printed);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let still = running
                        .iter()
                        .map(|(program, since)| format!("{} ({})", name(program), step::seconds(since.elapsed())));
                    eprintln!("    still running: {}", still.collect::<Vec<_>>().join(", "));
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("this thread holds a sender"),
            }
        }
        if !self.arguments.iter().any(|argument| ["--test", "--lib"].contains(argument)) {
            passed &= self.document_tests(workspace, &mut show)?;
        }
        Ok(passed)
    }

    fn build(&self, workspace: &Workspace) -> Result<Vec<Program>> {
        let mut build = workspace.cargo();
        build.arg("test").args(&self.arguments).args(["--locked", "--no-run", "--quiet"]);
        build.arg("--message-format=json-render-diagnostics");
        programs(&step::output(&mut build)?)
    }

    /// Rustdoc builds and runs the tests in the documentation, and only cargo can start it.
    fn document_tests(&self, workspace: &Workspace, show: &mut impl FnMut(&str, &str)) -> Result<bool> {
        let mut command = workspace.cargo();
        command.args(["test", "--doc", "--no-fail-fast", "--locked"]).args(&self.arguments);
        command.arg("--").args(self.filter).arg("--show-output").stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("cannot start `{}`", step::shown(&command)))?;
        // Each library has its own runner.
        let stdout = String::from_utf8_lossy(&output.stdout);
        let mut printed = String::new();
        for line in stdout.split_inclusive('\n') {
            printed.push_str(line);
            if line.starts_with("test result: ") {
                show("documentation", &std::mem::take(&mut printed));
            }
        }
        if !printed.trim().is_empty() {
            show("documentation", &printed);
        }
        Ok(output.status.success())
    }
}

impl Program {
    fn command(&self, filter: Option<&str>) -> Command {
        let mut command = Command::new(&self.executable);
        command.args(filter).arg("--show-output").current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        if is_in_the_sessions_group() {
            command.process_group(0);
        }
        command
    }
}

/// Whether no shell with job control has given this process a group of its own, as in CI. The first group of a session is
/// orphaned (credentials(7)): if a test stops a process in it and another process of the session ends, the kernel may end
/// the whole group with SIGHUP (_exit(2)). A group of a test program alone is not orphaned, because this process is its
/// parent.
fn is_in_the_sessions_group() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or(Vec::new(), |(_, rest)| rest.split(' ').collect());
    // The state, the parent, the group, and the session: proc_pid_stat(5).
    fields.get(2).zip(fields.get(3)).is_some_and(|(group, session)| group == session)
}

/// The name of a program, without the hash that cargo adds.
fn name(executable: &Path) -> &str {
    let stem = executable.file_name().and_then(OsStr::to_str).unwrap_or("a program");
    stem.rsplit_once('-').map_or(stem, |(name, _)| name)
}

/// The test programs in cargo's build messages.
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).with_context(|| format!("cargo said `{line}`"))?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let (Some(executable), true) = (message["executable"].as_str(), is_test) else { continue };
        let manifest = message["manifest_path"].as_str().context("cargo names no manifest of a test program")?;
        let folder = Path::new(manifest).parent().context("a manifest lies in no folder")?;
        let package = folder.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        programs.push(Program { executable: executable.into(), folder: folder.into(), name: (package, name) });
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_what_cargo_built_for_tests() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"it"},"profile":{"test":true},"executable":"/t/a-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":false},"executable":"/t/a"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/b/Cargo.toml","profile":{"test":true},"executable":null}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let found = programs(messages).unwrap();
        assert_eq!(
            found,
            [Program { executable: "/t/a-1".into(), folder: "/w/a".into(), name: ("a".into(), "it".into()) }]
        );
        assert_eq!(name(&found[0].executable), "a");
    }

    #[test]
    fn every_program_that_takes_long_exists() {
        let root = Workspace::find().unwrap().root;
        for name in LONG {
            let packages = std::fs::read_dir(root.join("crates")).unwrap();
            let mut tests = packages.map(|package| package.unwrap().path().join("tests"));
            assert!(
                tests.any(|tests| tests.join(format!("{name}.rs")).is_file() || tests.join(name).is_dir()),
                "{name}"
            );
        }
    }

    #[test]
    fn what_cargo_says_must_be_understood() {
        let error = format!("{:#}", programs("{\"reason\":").unwrap_err());
        assert!(error.starts_with("cargo said `{\"reason\":`"), "{error}");
    }
}
