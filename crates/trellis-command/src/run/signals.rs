//! The signals of the launcher, received as data: blocked and read from a descriptor, without a handler.
//!
//! The previous mask is restored when `Signals` is dropped. A signal that nobody has read by then has no effect.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Signal, getpid, kill_process};

use crate::ending::{SignalSet, is_ignored};
use crate::exit::Failure;

/// Signals that are forwarded to every node.
const FORWARDED: [i32; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// Signals that ask the whole run to end; SIGHUP means that the terminal is gone. A run that does not end by itself
/// after one of them is ended.
pub(super) fn asks_to_end(signal: i32) -> bool {
    matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGQUIT | libc::SIGHUP)
}

/// Stops this process until it is continued, so that a shell takes the terminal back.
pub(super) fn stop_this_process() {
    // A process may always stop itself.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// The descriptor from which signals are read, and the mask to restore.
pub(super) struct Signals {
    descriptor: OwnedFd,
    previous: SignalSet,
}

impl Signals {
    /// Blocks the signals of the launcher and opens the descriptor from which they are read.
    pub(super) fn block() -> Result<Signals, Failure> {
        // A shell starts background jobs of a script with SIGINT and SIGQUIT ignored. An ignored signal never reaches
        // the descriptor, and the nodes would ignore it, too. A signal to the launcher must have its effect.
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGCHLD] {
            // SAFETY: installing SIG_DFL runs no code of ours; the signal numbers are valid constants.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // A blocked signal arrives at the descriptor even if it is ignored.
        let forwarded = FORWARDED.into_iter().filter(|&signal| signal != libc::SIGHUP || !is_ignored(signal));
        let wanted = SignalSet::of(forwarded.chain([libc::SIGCHLD]));
        // SAFETY: it gets a valid set.
        let descriptor = unsafe { libc::signalfd(-1, &wanted.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(Failure::system("open a signalfd"));
        }
        // SAFETY: it was just opened, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Signals { descriptor, previous: wanted.block() })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// The next signal that arrived, if any.
    pub(super) fn next(&self) -> Option<i32> {
        // The number of the signal comes first (signalfd(2)).
        let mut information = [0; size_of::<libc::signalfd_siginfo>()];
        let bytes = rustix::io::read(&self.descriptor, &mut information).ok()?;
        let number = information.first_chunk().filter(|_| bytes == information.len())?;
        Some(i32::from_ne_bytes(*number))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // A signal after the end of the run has no effect. The exit status of the run counts.
        while self.next().is_some() {}
        self.previous.set();
    }
}

/// The name of a signal as people write it.
pub(super) fn name(signal: i32) -> String {
    let known = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGCONT => "SIGCONT",
        libc::SIGSTOP => "SIGSTOP",
        libc::SIGTSTP => "SIGTSTP",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_names_people_write() {
        assert_eq!(name(libc::SIGKILL), "SIGKILL");
        assert_eq!(name(libc::SIGSEGV), "SIGSEGV");
        assert_eq!(name(63), "signal 63");
    }

    #[test]
    fn a_signal_after_the_end_of_a_run_has_no_effect() {
        // The signal goes to this thread, and would end this process if it were still pending when it is unblocked.
        let signals = Signals::block().unwrap();
        // SAFETY: the signal is valid, and blocked in this thread.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
        drop(signals);
    }

    #[test]
    fn only_the_asking_signals_end_a_run() {
        assert!(asks_to_end(libc::SIGINT) && asks_to_end(libc::SIGTERM));
        assert!(!asks_to_end(libc::SIGUSR1) && !asks_to_end(libc::SIGCONT));
    }
}
