//! What is behind cargo features: the link `fabric`, with the providers of libfabric that need no hardware, the stores with
//! heavy clients, each against its server, and the switch `bpf`, in namespaces of this machine.
//!
//! Promises: everything is built once, with all features, in the common target folder, and an ordinary build lies there
//! again at the end. Never counts on a server or on hardware of this machine: tests start what they need.

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::step;
use crate::test;
use crate::test_programs::Tests;
use crate::workspace::Workspace;

/// In place of a test program: the tests inside the library.
const LIBRARY: &str = "the library";

/// Packages, test programs, and a filter: the tests that need a feature. The others ran with everything else.
const TESTS: &[(&[&str], &[&str], Option<&str>)] = &[
    (&["trellis-transport"], &[LIBRARY, "fabric", "fabric_writes"], None),
    (&["trellis-transport"], &["conformance"], Some("fabric_")),
    (&["trellis"], &["fabric"], None),
    (&["trellis-store"], &[LIBRARY, "bigtable", "datastore", "etcd", "spanner"], None),
    (&["trellis-stored"], &["stored_stores"], None),
    (&["trellis-cli"], &["stores", "controllers"], None),
    (&["trellis-switch"], &[LIBRARY, "bpf", "memory"], None),
    (&["trellis-cli"], &["lab", "in_kernel", "bench_switch"], None),
    (&["trellis-cli"], &["fabric", "parts"], Some("a_program")),
];

/// What `trellis check` does over the link with processes.
const COMMANDS: &[&str] = &[
    "history --protocol dynamic --nodes 2 --operations 5000",
    "litmus --protocol ivy --runs 64 --nodes 4 --shape IRIW",
];

const PROVIDERS: &[&str] = &["tcp", "shm"];

/// Runs all of it.
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
    // What lies in the target folder under its ordinary name is the ordinary build again.
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "--locked", "-p", "trellis-c", "-p", "trellis-cli"]);
    step::command("features: build without them again", &mut build)?;
    outcome
}

fn tests(workspace: &Workspace) -> Result<()> {
    for (packages, programs, filter) in TESTS {
        let mut arguments = vec!["--all-features"];
        arguments.extend(packages.iter().flat_map(|package| ["-p", package]));
        for program in *programs {
            match *program {
                LIBRARY => arguments.push("--lib"),
                name => arguments.extend(["--test", name]),
            }
        }
        let name = format!("features: {}: {}", packages.join(", "), programs.join(", "));
        test::run_tests(workspace, &name, &Tests { arguments, filter: *filter, at_once: test::at_once() })?;
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
                    let told = String::from_utf8_lossy(&output.stderr);
                    let found = String::from_utf8_lossy(&output.stdout);
                    bail!("again: {}\n{found}\n{told}", step::shown(&command));
                }
            }
        }
        Ok(())
    })
}
