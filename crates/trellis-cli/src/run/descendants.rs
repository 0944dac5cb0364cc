//! What the nodes left running: processes the kernel gave to the launcher when their parents ended.
//!
//! Only children of this process are ever signalled: they cannot be reaped, and so not be replaced, behind our back.

use std::fs;

/// Makes this process the one that inherits what its nodes leave behind.
pub(super) fn adopt_orphans() {
    // SAFETY: prctl on plain integers; a kernel without it leaves orphans to init, which is no error for the run.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// The children of this process other than `excepted`.
pub(super) fn children_except(excepted: i32) -> Vec<i32> {
    let mut children = listed_children().unwrap_or_else(scanned_children);
    children.retain(|pid| *pid != excepted);
    children
}

/// Sends a signal to each.
pub(super) fn signal(pids: &[i32], signal: i32) {
    for pid in pids {
        // SAFETY: kill takes plain integers; each pid is our own unreaped child.
        unsafe { libc::kill(*pid, signal) };
    }
}

/// The kernel's own list, where it is compiled in (CONFIG_PROC_CHILDREN).
fn listed_children() -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("children")).ok()?;
        children.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    Some(children)
}

/// The same from every process's own entry.
fn scanned_children() -> Vec<i32> {
    let own = std::process::id();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_in(&stat) == Some(own)))
        .collect()
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which may itself hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent_in("42 (a) b) S 7 42 42 0"), Some(7));
        assert_eq!(parent_in("nonsense"), None);
    }

    #[test]
    fn both_ways_find_a_child() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().expect("sleep");
        let pid = child.id() as i32;
        assert!(scanned_children().contains(&pid));
        assert!(listed_children().is_none_or(|children| children.contains(&pid)));
        assert!(!children_except(pid).contains(&pid));
        signal(&[pid], libc::SIGKILL);
        child.wait().expect("wait");
    }
}
