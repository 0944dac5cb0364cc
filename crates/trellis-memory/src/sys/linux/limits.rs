//! The limits of the memory that this process can have: the machine's, the control groups' and the resource limits.
//!
//! Promises: there is an answer before the region exists, so that a region that is too large is refused with a message
//! instead of a SIGBUS in the middle of the program's work. It reads files, and must never change anything.

use std::fs;
use std::path::{Path, PathBuf};

use trellis_base::proc_bytes;

use crate::error::Bytes;

/// The memory that `/proc/meminfo` reports as available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MachineMemory {
    available_bytes: u64,
    swap_free_bytes: u64,
}

/// A control group's limit, and the file that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupLimit {
    bytes: u64,
    file: PathBuf,
}

/// Whether this process can hold this much more memory.
///
/// # Errors
/// A phrase about what prevents it: the machine (`/proc/meminfo`), or a control group (`memory.max`).
pub fn can_hold(bytes: usize) -> Result<(), String> {
    let wanted = bytes as u64;
    if let Some(machine) = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(machine_memory) {
        let have = machine.available_bytes.saturating_add(machine.swap_free_bytes);
        if wanted > have {
            return Err(format!(
                "this machine has {} available (MemAvailable {} and SwapFree {} in /proc/meminfo)",
                Bytes(have as usize),
                Bytes(machine.available_bytes as usize),
                Bytes(machine.swap_free_bytes as usize)
            ));
        }
    }
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if let Some(limit) = group_limit(&groups, Path::new("/sys/fs/cgroup"))
        && wanted > limit.bytes
    {
        return Err(format!(
            "the control group of this process is limited to {} ({})",
            Bytes(limit.bytes as usize),
            limit.file.display()
        ));
    }
    Ok(())
}

/// The memory that this process can still get: what the machine has available, and no more than its control group may
/// have; 0 if the machine does not say.
pub fn available_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(machine_memory);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = group_limit(&groups, Path::new("/sys/fs/cgroup")).map_or(u64::MAX, |limit| limit.bytes);
    machine.map_or(0, |machine| machine.available_bytes).min(limit)
}

/// Checks whether the resource limits allow a file of `bytes` to be created and mapped twice. The error is a phrase
/// that names the limit.
///
/// A file above RLIMIT_FSIZE is not only refused: the kernel sends SIGXFSZ, which kills the process. The limit is
/// therefore checked first.
pub(crate) fn resource_limits_allow(bytes: usize) -> Result<(), String> {
    if let Some(limit) = resource_limit(libc::RLIMIT_FSIZE)
        && bytes as u64 > limit
    {
        return Err(format!("files of this process are limited to {} (`ulimit -f`)", Bytes(limit as usize)));
    }
    if let Some(limit) = resource_limit(libc::RLIMIT_AS)
        && bytes as u64 * 2 > limit
    {
        return Err(format!(
            "the addresses of this process are limited to {} and a region is mapped twice (`ulimit -v`)",
            Bytes(limit as usize)
        ));
    }
    Ok(())
}

fn resource_limit(which: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    let answered = unsafe { libc::getrlimit(which, &raw mut limit) } == 0;
    (answered && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn machine_memory(meminfo: &str) -> Option<MachineMemory> {
    Some(MachineMemory {
        available_bytes: proc_bytes(meminfo, "MemAvailable")?,
        swap_free_bytes: proc_bytes(meminfo, "SwapFree").unwrap_or(0),
    })
}

/// The smallest memory limit from this process's control group up to the root, versions 2 and 1.
fn group_limit(groups: &str, root: &Path) -> Option<GroupLimit> {
    let mut smallest: Option<GroupLimit> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (top, name) = if controllers.is_empty() {
            (root.to_path_buf(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let inner = Path::new(path.trim_start_matches('/'));
        for group in inner.ancestors() {
            let file = top.join(group).join(name);
            // "max" is not a number and means that there is no limit.
            let Some(bytes) = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok()) else {
                continue;
            };
            if smallest.as_ref().is_none_or(|limit| bytes < limit.bytes) {
                smallest = Some(GroupLimit { bytes, file });
            }
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_read_from_meminfo() {
        let text = "MemTotal:       1000 kB\nMemAvailable:    400 kB\nSwapTotal: 9 kB\nSwapFree:    8 kB\n";
        let machine = machine_memory(text).expect("both fields are there");
        assert_eq!(machine, MachineMemory { available_bytes: 400 * 1024, swap_free_bytes: 8 * 1024 });
        assert_eq!(machine_memory("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts() {
        let folder = trellis_testing::Folder::new();
        let root = folder.file("groups");
        let inner = root.join("job/node");
        fs::create_dir_all(&inner).expect("a folder in the temporary folder");
        fs::write(root.join("job/memory.max"), "1048576\n").expect("a file there");
        fs::write(inner.join("memory.max"), "max\n").expect("a file there");
        fs::create_dir_all(root.join("memory/old")).expect("a folder there");
        fs::write(root.join("memory/old/memory.limit_in_bytes"), "2097152\n").expect("a file there");

        let version_two = group_limit("0::/job/node\n", &root).expect("the parent is limited");
        assert_eq!((version_two.bytes, version_two.file), (1_048_576, root.join("job/memory.max")));
        let version_one = group_limit("4:cpu,memory:/old\n3:pids:/x\n", &root).expect("the group is limited");
        assert_eq!(version_one.bytes, 2_097_152);
        assert_eq!(group_limit("0::/free\n", &root), None);
    }
}
