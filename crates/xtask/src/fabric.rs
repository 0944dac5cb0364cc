//! Optimised builds with the cargo feature `fabric`, for benchmarks and for the matrix.
//!
//! Promises: everything is built in a separate folder, so that the default build never contains libfabric.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::step;
use crate::workspace::Workspace;

/// Builds the command `trellis` with the feature, optimised.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = cargo(workspace, &["build", "--release", "--quiet"]);
    step::command("build trellis with the feature fabric", build.args(["-p", "trellis-cli", "-p", "trellis-calls"]))?;
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

/// The program that [`build`] built.
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
