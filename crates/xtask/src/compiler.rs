//! The compiler pass: builds it with CMake, and runs its tests.
//!
//! Promises: everything is under `compiler` in the target folder, in the layout of `lib/trellis` of a prefix. What is
//! already built is not built again.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::step;
use crate::workspace::{self, Profile, Workspace};

/// Builds the pass and what compiled programs are linked with, and places it where the command of a profile finds it,
/// with the library under the name that programs use.
pub(crate) fn build(workspace: &Workspace, profile: Profile) -> Result<()> {
    let folder = folder(workspace);
    let mut configure = workspace.command("cmake");
    configure.arg("-S").arg(workspace.root.join("compiler")).arg("-B").arg(&folder);
    let cache = folder.join("CMakeCache.txt");
    if remembers_lost_compiler(&std::fs::read_to_string(&cache).unwrap_or_default()) {
        std::fs::remove_file(&cache).with_context(|| format!("cannot remove {}", cache.display()))?;
    }
    step::step("build the compiler pass", || {
        quietly(&mut configure)?;
        quietly(workspace.command("cmake").arg("--build").arg(&folder).args(["--parallel", "2"]))
    })?;
    place(workspace, workspace, profile)
}

/// Places what was built where the command of another folder finds it: one that was built with features.
pub(crate) fn place(workspace: &Workspace, built: &Workspace, profile: Profile) -> Result<()> {
    workspace::link(&folder(workspace).join("trellis"), &built.target.join("lib/trellis"))?;
    built.name_library(profile)
}

/// Runs the tests of the pass. Their output is shown as a whole at their end, because others run beside them.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.command("ctest");
    command.arg("--test-dir").arg(folder(workspace)).args(["--output-on-failure", "--parallel", "2"]);
    command.env("TRELLIS_COMMAND", workspace.target.join("debug/trellis"));
    step::step("test the compiler pass", || {
        let output = command.output().with_context(|| format!("cannot start `{}`", step::shown(&command)))?;
        let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        println!("{}", printed.join(""));
        match output.status.success() {
            true => Ok(()),
            false => bail!("`{}` ended with {}", step::shown(&command), output.status),
        }
    })
}

/// Installs the pass under a prefix.
pub(crate) fn install(workspace: &Workspace, prefix: &Path) -> Result<()> {
    build(workspace, Profile::Release)?;
    quietly(workspace.command("cmake").arg("--install").arg(folder(workspace)).arg("--prefix").arg(prefix))
}

/// Whether the cache of CMake names a compiler that is not there any more. A document is carried out with the programs of
/// a folder of its own, which is removed at its end.
fn remembers_lost_compiler(cache: &str) -> bool {
    let compilers =
        cache.lines().filter(|line| line.starts_with("CMAKE_C_COMPILER:") || line.starts_with("CMAKE_CXX_COMPILER:"));
    compilers.filter_map(|line| line.split_once('=')).any(|(_, path)| !Path::new(path).exists())
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("compiler")
}

/// Runs a command and shows its output only if it fails.
fn quietly(command: &mut std::process::Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start `{}`", step::shown(command)))?;
    if !output.status.success() {
        let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        bail!("`{}` ended with {}\n{}", step::shown(command), output.status, printed.join(""));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_that_is_gone_is_noticed() {
        let cache = |path: &str| format!("CMAKE_AR:FILEPATH=/nowhere/ar\nCMAKE_C_COMPILER:FILEPATH={path}\n");
        assert!(remembers_lost_compiler(&cache("/nowhere/cc")));
        assert!(!remembers_lost_compiler(&cache("/")) && !remembers_lost_compiler(""));
    }
}
