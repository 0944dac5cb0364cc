//! Checks the spelling of the whole repository with `typos`, which is installed from the Python package index.
//!
//! Promises: the version is fixed, so that no new word list fails a check that passed. It is installed once, into the
//! target folder. It must never change a file of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Needed};
use crate::step;
use crate::workspace::Workspace;

const VERSION: &str = "1.52.0";

/// Creates the folder into which it is installed.
pub(crate) const PYTHON: Needed = Needed::new("python:ensurepip", "python3-venv");

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join(format!("typos-{VERSION}"))
}

/// Ensures that the program is installed.
pub(crate) fn install(workspace: &Workspace) -> Result<PathBuf> {
    let folder = folder(workspace);
    let program = folder.join("bin/typos");
    if program.is_file() {
        return Ok(program);
    }
    install_python(&folder, &format!("typos=={VERSION}"))?;
    Ok(program)
}

/// Installs a package of the Python package index into a folder of its own.
pub(crate) fn install_python(folder: &Path, package: &str) -> Result<()> {
    setup::ensure(&[PYTHON])?;
    step::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]);
    step::run(pip.stdout(std::io::stderr()))
}

/// Checks every file that git tracks or could track.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let program = install(workspace)?;
    step::run(Command::new(program).args(["--format", "brief"]).current_dir(&workspace.root))
}
