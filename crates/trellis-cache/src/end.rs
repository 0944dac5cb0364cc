//! Ends a process whose memory is not available, with one message and status 70; and tells whether another process has
//! ended.
//!
//! Promises: after the message nothing of the process runs any more, no destructor and no handler of the program,
//! because any of them could touch the missing memory. A process is reported as ended only if it can no longer run. It
//! must never be used while there is a caller to which an error can be returned, and must never report a process as
//! ended because it is slow or on another machine.

/// The exit status of a process whose memory or cluster failed.
pub const EXIT_CLUSTER: i32 = 70;

/// Writes the reason to standard error, and ends the process.
pub fn end_process(why: &dyn std::fmt::Display) -> ! {
    trellis_output::lines::complain(format_args!("{why}"));
    // SAFETY: ends the process without running any more of its code.
    unsafe { libc::_exit(EXIT_CLUSTER) }
}

/// Distinguishes this process from every other one, for [`has_ended`]: the start time of its machine, its PID namespace
/// and, after the last blank, its own start time. Empty if the system does not provide them.
pub fn identity() -> String {
    let machine = machine();
    match started(std::process::id()) {
        Some(Found::Runs { since }) if !machine.is_empty() => format!("{machine} {since}"),
        _ => String::new(),
    }
}

/// Whether the process with this number and [`identity`] is known to have ended. False if that is not known: on another
/// machine, or in another PID namespace.
pub fn has_ended(process: u32, identity: &str) -> bool {
    let Some((_, since)) = identity.rsplit_once(' ').filter(|(of, _)| !of.is_empty() && *of == machine()) else {
        return false;
    };
    match started(process) {
        Some(Found::Runs { since: now }) => now != since,
        Some(Found::Ended) => true,
        None => is_missing(process),
    }
}

enum Found {
    Runs {
        since: String,
    },
    /// The process exists until its parent has waited for it (a zombie).
    Ended,
}

fn machine() -> String {
    let read = || {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
        Some(format!("{} {}", boot.trim(), space.display()))
    };
    read().unwrap_or_default()
}

/// What the system shows of a process; `None` if it shows nothing.
fn started(process: u32) -> Option<Found> {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses, which may itself contain blanks and parentheses.
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let since = fields.nth(18)?.to_owned();
    Some(if matches!(state, "Z" | "X") { Found::Ended } else { Found::Runs { since } })
}

/// Whether there is no such process; a process may exist and not be shown.
fn is_missing(process: u32) -> bool {
    let Some(process) = libc::pid_t::try_from(process).ok().filter(|process| *process > 0) else { return false };
    // SAFETY: signal 0 sends nothing; the call only checks whether a signal could be sent.
    let answer = unsafe { libc::kill(process, 0) };
    answer != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_when_it_has() {
        let (own, mine) = (std::process::id(), identity());
        assert!(!mine.is_empty() && !has_ended(own, &mine));
        assert!(!has_ended(own, "") && !has_ended(u32::MAX, &mine), "what is not known is not said");
        let (machine, since) = mine.rsplit_once(' ').expect("it has parts");
        assert!(has_ended(own, &format!("{machine} {since}0")), "another one has its number now");
        assert!(!has_ended(own, &format!("elsewhere {machine} {since}0")), "of another machine nothing is known");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep is there");
        let number = child.id();
        assert!(!has_ended(number, &format!("{machine} {}", since_of(number))));
        let identity = format!("{machine} {}", since_of(number));
        child.kill().expect("it runs");
        while !has_ended(number, &identity) {
            std::thread::yield_now();
        }
        child.wait().expect("it was killed");
        assert!(has_ended(number, &identity), "and when nothing is left of it");
    }

    fn since_of(process: u32) -> String {
        match started(process) {
            Some(Found::Runs { since }) => since,
            _ => panic!("it runs"),
        }
    }
}
