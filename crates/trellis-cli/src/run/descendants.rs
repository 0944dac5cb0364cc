//! What the nodes left running: processes the kernel gave to the launcher when their parents ended.
//!
//! Only children of this process are ever signalled: they cannot be reaped, and so not be replaced, behind our back. `/proc`
//! may be that of the machine while this process is in a process namespace (a host of `trellis lab`): what it lists has other
//! numbers here, and they are never taken for ours.

use std::fs;

/// Makes this process the one that inherits what its nodes leave behind.
pub(super) fn adopt_orphans() {
    // SAFETY: prctl on plain integers; a kernel without it leaves orphans to init, which is no error for the run.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// The children of this process other than `excepted`.
pub(super) fn children_except(excepted: i32) -> Vec<i32> {
    let listed = listed_children().unwrap_or_else(scanned_children);
    listed.into_iter().filter_map(number_here).filter(|pid| *pid != excepted).collect()
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
    let Some(own) = numbers("self").first().copied() else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_in(&stat) == Some(own)))
        .collect()
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which may itself hold anything.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The number that a process has here, by the one that `/proc` lists it under. None when it is gone.
fn number_here(listed: i32) -> Option<i32> {
    let depth = numbers("self").len().checked_sub(1)?;
    numbers(&listed.to_string()).get(depth).copied()
}

/// The numbers of a process that `/proc` lists: in the namespace that `/proc` is of, and then in each one inside of it.
fn numbers(listed: &str) -> Vec<i32> {
    let status = fs::read_to_string(format!("/proc/{listed}/status")).unwrap_or_default();
    numbers_in(&status)
}

/// A kernel without process namespaces has the line of one number alone.
fn numbers_in(status: &str) -> Vec<i32> {
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let words = value("NSpid:").or_else(|| value("Pid:")).unwrap_or_default().split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
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
    fn a_process_has_a_number_in_each_namespace() {
        assert_eq!(numbers_in("Name:\tsh\nPid:\t907\nNSpid:\t907\t12\nThreads:\t1\n"), [907, 12]);
        assert_eq!(numbers_in("Name:\tsh\nPid:\t907\n"), [907]);
        assert_eq!(number_here(numbers("self")[0]), Some(std::process::id() as i32));
    }

    #[test]
    fn both_ways_find_a_child() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().expect("sleep");
        let pid = child.id() as i32;
        let here = |listed: Vec<i32>| listed.into_iter().filter_map(number_here).collect::<Vec<_>>();
        assert!(here(scanned_children()).contains(&pid));
        assert!(listed_children().is_none_or(|children| here(children).contains(&pid)));
        assert!(!children_except(pid).contains(&pid));
        signal(&[pid], libc::SIGKILL);
        child.wait().expect("wait");
    }
}
