//! The cargo feature `fabric`: lints, tests, and real processes over the link, with the providers of libfabric that need
//! no hardware.
//!
//! Promises: everything is built in a folder of its own, so that the default build never holds libfabric.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::step;
use crate::workspace::Workspace;

/// The crates that have something behind the feature, and their tests of it.
const TESTS: &[&[&str]] = &[
    &["-p", "trellis-transport", "--lib", "--test", "fabric", "--test", "fabric_writes"],
    &["-p", "trellis-transport", "--test", "conformance", "fabric_"],
    &["-p", "trellis", "--test", "fabric"],
];

/// What `trellis check` does over the link with processes.
const COMMANDS: &[&str] = &[
    "history --protocol dynamic --nodes 2 --operations 5000",
    "litmus --protocol ivy --runs 64 --nodes 4 --shape IRIW",
];

const PROVIDERS: &[&str] = &["tcp", "shm"];

/// Runs all of it.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    setup::ensure(&[setup::FABRIC])?;
    let mut clippy = cargo(workspace, &["clippy", "--all-targets"]);
    clippy.args(["-p", "trellis-transport", "-p", "trellis", "-p", "trellis-cli", "--", "-D", "warnings"]);
    step::command("fabric: lints", &mut clippy)?;
    for words in TESTS {
        step::command(&format!("fabric: {}", words.join(" ")), cargo(workspace, &["test", "--quiet"]).args(*words))?;
    }
    // Not optimised: the tests have built most of it.
    let mut build = cargo(workspace, &["build", "--quiet", "-p", "trellis-cli"]);
    step::command("fabric: build the command", &mut build)?;
    let program = folder(workspace).join("debug/trellis");
    step::step("fabric: processes", || {
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

/// The command `trellis` with the feature, optimised.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = cargo(workspace, &["build", "--release", "--quiet"]);
    step::command("build trellis with the feature fabric", build.args(["-p", "trellis-cli"]))?;
    Ok(program(workspace))
}

/// Installs a library with the feature; returns the command with it, and the folder of the library.
pub(crate) fn install(workspace: &Workspace, prefix: &Path) -> Result<(PathBuf, PathBuf)> {
    let mut library = cargo(workspace, &["build", "--release", "--quiet"]);
    step::command("build the library with the feature fabric", library.args(["-p", "trellis-c"]))?;
    let source = workspace.root.join("crates/trellis-c");
    let library = folder(workspace).join("release/libtrellis_c.so");
    crate::install::install(&source, &library, prefix, env!("CARGO_PKG_VERSION"))
        .with_context(|| format!("cannot install under {}", prefix.display()))?;
    Ok((build(workspace)?, prefix.join("lib")))
}

/// What [`build`] built.
pub(crate) fn program(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("release/trellis")
}

fn cargo(workspace: &Workspace, words: &[&str]) -> std::process::Command {
    let mut command = workspace.cargo();
    command.env("CARGO_TARGET_DIR", folder(workspace)).args(words).args(["--locked", "--features", "fabric"]);
    command
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("fabric")
}
