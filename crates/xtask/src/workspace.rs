//! The paths of the project: the root of the repository and the folder into which cargo builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::step;

/// The kind of a build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As for tests, which builds in a fraction of the time.
    Debug,
    /// For use.
    Release,
    /// For use, with small files.
    Packaged,
}

/// The paths every task needs.
pub(crate) struct Workspace {
    /// The root of the repository.
    pub(crate) root: PathBuf,
    /// The folder into which cargo builds.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Finds the repository from which this program was built.
    pub(crate) fn find() -> Result<Workspace> {
        // Cargo sets the variable when it runs this program; a copied target folder would lead to another repository.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).join("../..");
        let root = root.canonicalize().with_context(|| format!("{} does not exist", root.display()))?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
        Ok(Workspace { root, target })
    }

    /// Another checkout of this repository, with its own folder of builds.
    pub(crate) fn at(root: &Path) -> Result<Workspace> {
        let root = root.canonicalize().with_context(|| format!("{} does not exist", root.display()))?;
        let target = root.join("target");
        let other = Workspace { root, target };
        if !other.trellis().is_file() {
            bail!("{} does not exist; run `cargo xtask bench` there first", other.trellis().display());
        }
        Ok(other)
    }

    /// A cargo command in the root, with the cargo that runs this program.
    pub(crate) fn cargo(&self) -> Command {
        self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    /// A command in the root.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(std::process::Stdio::null());
        command
    }

    /// Builds the command and the shared library for use.
    pub(crate) fn build_release(&self) -> Result<()> {
        self.build(Profile::Release)
    }

    /// Builds the shared library and a command that runs programs and draws their records: who tries Trellis does not
    /// wait for benchmarks and checkers.
    pub(crate) fn build_to_try(&self) -> Result<()> {
        let mut build = self.command_and_library(Profile::Release);
        step::command("build the command and the library", build.arg("--no-default-features"))
    }

    /// Builds the command and the shared library; as for tests, also the checkers.
    pub(crate) fn build(&self, profile: Profile) -> Result<()> {
        step::command("build the command and the library", &mut self.command_and_library(profile))?;
        if profile != Profile::Packaged {
            return Ok(());
        }
        // Cargo optimises a library across its crates only where nothing but the shared library is made of it.
        let mut build = self.cargo();
        build.args([
            "rustc",
            "--locked",
            "-p",
            "trellis-c",
            "--lib",
            "--crate-type",
            "cdylib",
            "--profile",
            "packaged",
        ]);
        step::command("build the library across its crates", &mut build)
    }

    fn command_and_library(&self, profile: Profile) -> Command {
        let mut build = self.cargo();
        // Cargo puts a library beside the command only if it was asked for by name, and `trellis run` looks there.
        build.args(["build", "--locked", "-p", "trellis-cli", "-p", "trellis-calls", "-p", "trellis-threads"]);
        match profile {
            // With these, the features of all crates are those of the build of all tests: nothing is compiled again.
            Profile::Debug => build.args(["-p", "trellis-c", "-p", "trellis-dsm", "-p", "trellis-check"]),
            Profile::Release => build.args(["-p", "trellis-c", "--release"]),
            Profile::Packaged => build.args(["--profile", "packaged"]),
        };
        build
    }

    /// Gives the built library the names that programs use; cargo has another one.
    pub(crate) fn name_library(&self, profile: Profile) -> Result<()> {
        for name in ["libtrellis.so", "libtrellis.so.0"] {
            link(&self.built(profile, "libtrellis_c.so"), &self.built(profile, name))?;
        }
        Ok(())
    }

    /// The `trellis` command that [`Workspace::build_release`] built.
    pub(crate) fn trellis(&self) -> PathBuf {
        self.built(Profile::Release, "trellis")
    }

    /// A file that [`Workspace::build`] built.
    pub(crate) fn built(&self, profile: Profile, name: &str) -> PathBuf {
        let folder = match profile {
            Profile::Debug => "debug",
            Profile::Release => "release",
            Profile::Packaged => "packaged",
        };
        self.target.join(folder).join(name)
    }
}

/// Makes `link` point to `to`.
pub(crate) fn link(to: &Path, link: &Path) -> Result<()> {
    let parent = link.parent().unwrap_or(Path::new("/"));
    let make = || {
        std::fs::create_dir_all(parent)?;
        match std::fs::remove_file(link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(to, link)
    };
    make().with_context(|| format!("cannot link {} to {}", link.display(), to.display()))
}
