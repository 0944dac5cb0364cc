//! Tests of what is behind cargo features: the link `fabric`, with the providers of libfabric that need no hardware,
//! the stores with heavy clients, each against its server, and the switches `bpf` and `openflow`, in namespaces of this
//! machine.
//!
//! Promises: everything is built once, with all features, in the common target folder, which contains an ordinary
//! build again at the end. It must never rely on a server or on hardware of this machine: tests start what they need.

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::step;
use crate::test;
use crate::test_programs::Tests;
use crate::workspace::Workspace;

/// Test programs that need a feature, by package; the others have run without it. A library has the package's name.
const TESTS: &[(&str, &[&str])] = &[
    ("trellis-transport", &["trellis_transport", "fabric", "fabric_writes"]),
    ("trellis-dsm", &["fabric"]),
    ("trellis-store", &["trellis_store", "bigtable", "datastore", "etcd", "spanner"]),
    ("trellis-stored", &["stored_stores"]),
    ("trellis-switch", &["trellis_switch", "bpf", "memory", "openflow"]),
    ("trellis-cli", &["stores", "controllers", "files", "lab", "lab_openflow", "in_kernel", "bench_switch"]),
];
/// Programs of which only some tests need one: the package, the program, and the common part of their names.
const SOME_TESTS: &[(&str, &str, &str)] = &[
    ("trellis-transport", "conformance", "fabric_"),
    ("trellis-cli", "fabric", "a_program"),
    ("trellis-cli", "fabric", "open_vswitch"),
    ("trellis-cli", "parts", "a_program"),
    ("trellis-cli", "parts", "open_vswitch"),
];

/// The `trellis check` commands over the link with processes.
const COMMANDS: &[&str] = &[
    "history --protocol dynamic --nodes 2 --operations 5000",
    "litmus --protocol ivy --runs 64 --nodes 4 --shape IRIW",
];

const PROVIDERS: &[&str] = &["tcp", "shm"];

/// Runs all these tests.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    setup::ensure(setup::NEEDED)?;
    setup::ensure(&[setup::FABRIC])?;
    let mut clippy = workspace.cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"]);
    step::command("features: lints", &mut clippy)?;
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "--locked", "--all-features", "-p", "trellis-c", "-p", "trellis-cli"]);
    step::command("features: build the command and the library", &mut build)?;
    let outcome = tests(workspace).and_then(|()| processes(workspace));
    // The files of the target folder with ordinary names are those of the ordinary build again.
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "--locked", "-p", "trellis-c", "-p", "trellis-cli"]);
    step::command("features: build without them again", &mut build)?;
    outcome
}

/// One call of cargo with the same arguments builds all of them, so that everything is built once.
fn tests(workspace: &Workspace) -> Result<()> {
    let all: Vec<(&str, &str)> =
        TESTS.iter().flat_map(|(package, names)| names.iter().map(|name| (*package, *name))).collect();
    let mut names: Vec<&str> = all.iter().map(|(_, name)| *name).collect();
    names.extend(SOME_TESTS.iter().map(|(_, name, _)| *name));
    names.retain(|name| !name.starts_with("trellis_"));
    names.sort_unstable();
    names.dedup();
    let arguments: Vec<&str> = ["--workspace", "--all-features", "--lib"]
        .into_iter()
        .chain(names.iter().flat_map(|name| ["--test", name]))
        .collect();
    let run = |name: &str, only, filter| {
        let tests = Tests { arguments: arguments.clone(), only, filter, at_once: test::at_once() };
        test::run_tests(workspace, name, &tests)
    };
    run("features: tests", all, None)?;
    for (package, name, filter) in SOME_TESTS {
        run(&format!("features: {package}: {name}: {filter}…"), vec![(*package, *name)], Some(filter))?;
    }
    Ok(())
}

fn processes(workspace: &Workspace) -> Result<()> {
    let program = workspace.target.join("debug/trellis");
    step::step("features: processes over `fabric`", || {
        for provider in PROVIDERS {
            for words in COMMANDS {
                let mut command = workspace.command(&program);
                command.arg("check").args(words.split(' '));
                command.args(["--set", "link=fabric", "--set", &format!("fabric_provider={provider}")]);
                let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
                if !output.status.success() {
                    let printed = String::from_utf8_lossy(&output.stderr);
                    let found = String::from_utf8_lossy(&output.stdout);
                    bail!("again: {}\n{found}\n{printed}", step::shown(&command));
                }
            }
        }
        Ok(())
    })
}
