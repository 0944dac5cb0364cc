//! A control group whose memory the kernel limits, including its file cache and its kernel memory.
//!
//! Promises: what is started through [`Limit::join`] is in the group from its first instruction. Swap is used only if
//! that is the measured way. Versions 1 and 2 of control groups are supported. The group is removed with the value.

use std::path::{Path, PathBuf};

use super::place::Place;

/// Where version 1 has its memory groups, and version 2 all groups.
const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";

/// Where groups are made; `None` if the kernel has none for memory.
pub(in crate::bench) fn folder() -> Option<&'static Path> {
    let first = Path::new(VERSION_1);
    if first.join("memory.limit_in_bytes").exists() {
        return Some(first);
    }
    let second = Path::new(VERSION_2);
    let controllers = std::fs::read_to_string(second.join("cgroup.controllers")).ok()?;
    controllers.split_whitespace().any(|name| name == "memory").then_some(second)
}

/// Writes its process number to a file ($1), enters a group ($2, may be empty), and executes the rest.
pub(in crate::bench) const START: &str =
    r#"echo $$ >"$1" || exit 71; [ -z "$2" ] || echo $$ >"$2" || exit 71; shift 2; exec "$@""#;

/// A control group.
#[derive(Debug)]
pub(in crate::bench) struct Limit(PathBuf);

impl Limit {
    /// Makes a group with a memory limit; the error is the reason why there can be none.
    pub(in crate::bench) fn new(place: &Place, bytes: u64, may_swap: bool) -> Result<Limit, String> {
        let base = folder().ok_or("the kernel limits no memory here: it has no control groups for it")?;
        let path = base.join(place.name());
        let refused = |what: &Path, error: std::io::Error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => "limiting memory needs root".to_owned(),
            _ => format!("memory cannot be limited: {}: {error}", what.display()),
        };
        std::fs::create_dir(&path).map_err(|error| refused(&path, error))?;
        let limit = Limit(path);
        let write = |file: PathBuf, text: &str| std::fs::write(&file, text).map_err(|error| refused(&file, error));
        if base == Path::new(VERSION_1) {
            write(limit.0.join("memory.limit_in_bytes"), &bytes.to_string())?;
            let with_swap = limit.0.join("memory.memsw.limit_in_bytes");
            // The file exists where the kernel accounts for swap.
            if !may_swap && with_swap.exists() {
                write(with_swap, &bytes.to_string())?;
            }
        } else {
            // It may already be on.
            write(base.join("cgroup.subtree_control"), "+memory")?;
            write(limit.0.join("memory.max"), &bytes.to_string())?;
            let swap = limit.0.join("memory.swap.max");
            if swap.exists() {
                write(swap, if may_swap { "max" } else { "0" })?;
            }
        }
        Ok(limit)
    }

    /// The file to which a process writes its number to join.
    pub(in crate::bench) fn join(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // A group with a process in it stays; it is removed later together with the folder of the benchmark.
        let _ = std::fs::remove_dir(&self.0);
    }
}
