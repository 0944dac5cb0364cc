//! Programs outside cargo: the library under a prefix, the C++ examples built against it, and a run of psort.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::{Profile, Workspace};
use crate::{install, step};

/// Installs the library and its headers under a prefix.
pub(crate) fn install_library(workspace: &Workspace, profile: Profile, prefix: &Path) -> Result<()> {
    let source = workspace.root.join("crates/trellis-c");
    let library = workspace.built(profile, "libtrellis_c.so");
    install::install(&source, &library, prefix, env!("CARGO_PKG_VERSION"))
        .with_context(|| format!("cannot install under {}", prefix.display()))?;
    Ok(())
}

/// Moves the debug information of a newly installed file into `.debug/NAME.debug` beside it, where gdb and Rust's
/// backtraces look for it. A running program keeps its file.
pub(crate) fn separate_symbols(file: &Path) -> Result<()> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        bail!("{} is not a file", file.display())
    };
    let name = name.to_string_lossy();
    let kept = folder.join(".debug");
    std::fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    let symbols = kept.join(format!("{name}.debug"));
    let unfinished = folder.join(format!(".{name}.new"));
    step::run(Command::new("objcopy").arg("--only-keep-debug").arg(file).arg(&symbols))?;
    let mut link = OsString::from("--add-gnu-debuglink=");
    link.push(&symbols);
    step::run(Command::new("objcopy").arg("--strip-unneeded").arg(link).arg(file).arg(&unfinished))?;
    std::fs::rename(&unfinished, file).with_context(|| format!("cannot write {}", file.display()))
}

/// Compiles one C++ file into a program, against an installed library or without one.
pub(crate) fn compile(workspace: &Workspace, source: &str, program: &Path, prefix: Option<&Path>) -> Result<()> {
    let mut command = workspace.command("c++");
    command.args(["-std=c++20", "-O2", "-Wall", "-Wextra", source, "-o"]).arg(program);
    if let Some(prefix) = prefix {
        let libraries = prefix.join("lib");
        command.arg("-I").arg(prefix.join("include")).arg("-L").arg(&libraries);
        command.arg(format!("-Wl,-rpath,{}", libraries.display())).args(["-ltrellis", "-pthread"]);
    }
    step::run(&mut command)
}

/// The example psort that [`build_psort`] built.
pub(crate) fn psort(workspace: &Workspace) -> PathBuf {
    workspace.target.join("examples/psort")
}

/// Builds the example psort with the library, which was built; returns psort.
pub(crate) fn build_psort(workspace: &Workspace) -> Result<PathBuf> {
    step::step("build examples/psort", || {
        let prefix = workspace.target.join("examples/prefix");
        install_library(workspace, Profile::Release, &prefix)?;
        let psort = psort(workspace);
        compile(workspace, "examples/psort/psort.cpp", &psort, Some(&prefix))?;
        Ok(psort)
    })
}

/// One run of psort under `trellis run`.
pub(crate) struct Psort<'a> {
    pub(crate) program: &'a Path,
    pub(crate) nodes: usize,
    pub(crate) settings: &'a [String],
    pub(crate) arguments: &'a [String],
    /// The folder of the nodes' records; emptied before the run.
    pub(crate) record: &'a Path,
}

/// The result of a run of psort.
pub(crate) struct Sorted {
    /// The program's own time.
    pub(crate) milliseconds: f64,
    /// From the start of `trellis run` to its end.
    pub(crate) whole: Duration,
    pub(crate) faults: u64,
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl Psort<'_> {
    /// Runs it, and reads the records of the nodes.
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<Sorted> {
        if self.record.exists() {
            std::fs::remove_dir_all(self.record)?;
        }
        let mut command = workspace.command(workspace.trellis());
        command.args(["run", "--output", "raw", "-n"]).arg(self.nodes.to_string());
        for setting in self.settings {
            command.arg("--set").arg(setting);
        }
        command.arg("--").arg(self.program).args(self.arguments).env("TRELLIS_RECORD", self.record);
        let start = Instant::now();
        let said = step::output(&mut command)?;
        let whole = start.elapsed();
        let milliseconds = milliseconds(&said).with_context(|| format!("psort said no time: {said:?}"))?;
        let [faults, pages, bytes] = read_counters(self.record, self.nodes)?;
        Ok(Sorted { milliseconds, whole, faults, pages, bytes })
    }
}

/// The time in `sorted N integers on K nodes in X ms`.
fn milliseconds(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("sorted ") && line.ends_with(" ms"))?;
    line.strip_suffix(" ms")?.rsplit(' ').next()?.parse().ok()
}

/// Faults, received pages and received bytes of all nodes.
fn read_counters(folder: &Path, nodes: usize) -> Result<[u64; 3]> {
    const SUMS: [&[&str]; 3] = [
        &["read_faults", "write_faults", "upgrade_faults", "upgrade_owner_faults", "local_faults"],
        &["pages_in"],
        &["bytes_in"],
    ];
    let mut sums = [0; 3];
    for node in 0..nodes {
        let path = folder.join(format!("node-{node}.json"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("no record of node {node} at {}", path.display()))?;
        let record: Value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        for (sum, names) in sums.iter_mut().zip(SUMS) {
            for name in names {
                let counter = record["counters"][name].as_u64();
                *sum += counter.with_context(|| format!("{}: no counter {name}", path.display()))?;
            }
        }
    }
    Ok(sums)
}

/// Compares two files, and reports the first difference.
pub(crate) fn compare(left: &Path, right: &Path) -> Result<()> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()));
    let (left_bytes, right_bytes) = (read(left)?, read(right)?);
    if left_bytes == right_bytes {
        return Ok(());
    }
    let first = left_bytes.iter().zip(&right_bytes).position(|(one, other)| one != other);
    let first = first.unwrap_or(left_bytes.len().min(right_bytes.len()));
    bail!("{} and {} differ from byte {first} on", left.display(), right.display());
}

#[cfg(test)]
mod tests {
    use trellis_testing::Folder;

    use super::*;

    #[test]
    fn symbols_lie_beside_what_they_are_of_and_fit_it() {
        let folder = Folder::new();
        let (source, program) = (folder.write("one.c", "int main(void) { return 0; }\n"), folder.file("one"));
        step::run(Command::new("cc").arg("-g").arg(&source).arg("-o").arg(&program)).unwrap();
        separate_symbols(&program).unwrap();
        let sections = |file: &Path| step::output(Command::new("readelf").args(["-SW"]).arg(file)).unwrap();
        let symbols = folder.file(".debug/one.debug");
        assert!(!sections(&program).contains(".debug_info") && sections(&program).contains(".gnu_debuglink"));
        assert!(sections(&symbols).contains(".debug_info"));
        let id = |file: &Path| step::output(Command::new("readelf").args(["-nW"]).arg(file)).unwrap();
        let build_id =
            |text: String| text.lines().find_map(|line| line.split_once("Build ID: ")).map(|it| it.1.to_owned());
        assert_eq!(build_id(id(&program)), build_id(id(&symbols)));
        assert!(Command::new(&program).status().unwrap().success(), "it runs");
    }

    #[test]
    fn the_time_is_found_among_other_lines() {
        assert_eq!(milliseconds("node 0 ready\nsorted 10 integers on 2 nodes in 12.5 ms\n"), Some(12.5));
        assert_eq!(milliseconds("sorted 10 integers on 2 nodes in some ms\n"), None);
        assert_eq!(milliseconds(""), None);
    }

    #[test]
    fn files_are_compared_to_the_first_difference() {
        let folder = Folder::new();
        let file = |name: &str, text: &str| folder.write(name, text);
        assert!(compare(&file("a", "same"), &file("b", "same")).is_ok());
        assert!(
            compare(&file("a", "some"), &file("b", "same")).unwrap_err().to_string().ends_with("differ from byte 1 on")
        );
        assert!(
            compare(&file("a", "sam"), &file("b", "same")).unwrap_err().to_string().ends_with("differ from byte 3 on")
        );
    }

    #[test]
    fn counters_of_all_nodes_are_added() {
        let folder = Folder::new();
        for node in 0..2 {
            let text = r#"{"counters":{"read_faults":1,"write_faults":2,"upgrade_faults":2,"upgrade_owner_faults":1,"local_faults":4,"pages_in":5,"bytes_in":10}}"#;
            folder.write(format!("node-{node}.json"), text);
        }
        assert_eq!(read_counters(folder.path(), 2).unwrap(), [20, 10, 20]);
        assert!(read_counters(folder.path(), 3).unwrap_err().to_string().starts_with("no record of node 2"));
    }
}
