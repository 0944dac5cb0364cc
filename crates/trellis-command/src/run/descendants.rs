//! Processes that the nodes left running: the kernel gives them to the launcher when their parents end.
//!
//! Only children of this process are ever signalled: only this process can reap them, so their numbers cannot be
//! reused. `/proc` may be that of the machine while this process is in a process namespace (a host of `trellis lab`).
//! The numbers that it lists are then different from ours, and must never be mistaken for them.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};

use crate::run::supervise::{LEFTOVER, LEFTOVER_FAILED};

/// The time between two looks for processes that are left.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Makes this process the parent of orphans that its nodes leave behind.
pub(super) fn adopt_orphans() {
    // A kernel without it leaves orphans to init, which is no error for the run. Any number means yes.
    let _ = set_child_subreaper(Some(Pid::INIT));
}

/// Ends what the nodes left running. After a failure it is asked to end at once, otherwise after a while.
pub(super) struct Sweep {
    terminate_at: Instant,
    kill_at: Instant,
    is_terminated: bool,
}

impl Sweep {
    pub(super) fn new(has_failed: bool) -> Sweep {
        let (grace, timeout) =
            if has_failed { (Duration::ZERO, LEFTOVER_FAILED.time()) } else { (LEFTOVER.time(), LEFTOVER.time()) };
        let terminate_at = Instant::now() + grace;
        Sweep { terminate_at, kill_at: terminate_at + timeout, is_terminated: false }
    }

    /// Does the next step for which it is time, or kills at once if that is urgent. Returns whether nothing is left but
    /// `excepted`.
    pub(super) fn step(&mut self, excepted: i32, is_urgent: bool) -> bool {
        let left = children_except(excepted);
        let now = Instant::now();
        if now >= self.kill_at || is_urgent {
            signal(&left, Signal::KILL);
        } else if now >= self.terminate_at && !self.is_terminated {
            signal(&left, Signal::TERM);
            signal(&left, Signal::CONT);
            self.is_terminated = true;
        }
        left.is_empty()
    }
}

/// The children of this process other than `excepted`.
fn children_except(excepted: i32) -> Vec<i32> {
    let listed = listed_children().unwrap_or_else(scanned_children);
    listed.into_iter().filter_map(number_here).filter(|pid| *pid != excepted).collect()
}

/// Sends a signal to each process.
fn signal(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // Each is a child of this process that was not reaped. One that has ended needs no signal.
        let _ = kill_process(pid, signal);
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

/// Like [`listed_children`], from the entries of all processes.
fn scanned_children() -> Vec<i32> {
    let Some(own) = numbers("self").first().copied() else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_in(&stat) == Some(own)))
        .collect()
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which may itself contain any character.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The number of a process in this namespace, from its number in `/proc`. `None` if it is gone.
fn number_here(listed: i32) -> Option<i32> {
    let depth = numbers("self").len().checked_sub(1)?;
    numbers(&listed.to_string()).get(depth).copied()
}

/// The numbers of a process that `/proc` lists: in the namespace of `/proc`, and then in each one inside of it.
fn numbers(listed: &str) -> Vec<i32> {
    let status = fs::read_to_string(format!("/proc/{listed}/status")).unwrap_or_default();
    numbers_in(&status)
}

/// On a kernel without process namespaces, only the line with a single number exists.
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
        signal(&[pid], Signal::KILL);
        child.wait().expect("wait");
    }
}
