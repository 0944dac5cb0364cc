//! The guard: a tiny process that ends the nodes' process groups when the launcher is killed by SIGKILL.
//!
//! The parent-death signal reaches only the nodes themselves, not what they started (a shell's children, a pipeline).
//! The guard waits on a pipe that only the launcher holds: end of file without the farewell means that the launcher
//! is gone. It must never outlive the launcher's last message, and never run anything but system calls.

use std::io::PipeWriter;
use std::os::fd::AsRawFd;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::exit::{Failure, SYSTEM};

/// Written instead of a process group when the run ended in order.
const FAREWELL: i32 = 0;
/// The maximum number of groups that the guard remembers: one per node.
const GROUPS_MAX: usize = trellis::config::NODES_MAX;

/// The launcher's end of the guard.
pub(super) struct Guard {
    pipe: Option<PipeWriter>,
    pid: i32,
}

impl Guard {
    /// Starts the guard. Must be called while the process has one thread and before the nodes exist.
    pub(super) fn start() -> Result<Guard, Failure> {
        let (reader, writer) =
            std::io::pipe().map_err(|error| Failure::new(SYSTEM, format!("cannot make a pipe: {error}")))?;
        // SAFETY: the child runs `watch`, which makes system calls only and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(Failure::system("fork")),
            0 => watch(reader.as_raw_fd()),
            pid => Ok(Guard { pipe: Some(writer), pid }),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Puts a process group under the guard.
    pub(super) fn watch_group(&self, group: i32) {
        self.tell(group);
    }

    fn tell(&self, word: i32) {
        if let Some(pipe) = &self.pipe {
            // Four bytes are written to a pipe whole or not at all; if the guard is gone (EPIPE, SIGPIPE is ignored),
            // the run is as safe as without one.
            let _ = rustix::io::write(pipe, &word.to_ne_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tell(FAREWELL);
        self.pipe = None;
        // Our own child ends at the farewell.
        let _ = waitpid(Pid::from_raw(self.pid), WaitOptions::empty());
    }
}

/// The guard's main function.
fn watch(pipe: i32) -> ! {
    // SAFETY: system calls on plain data only, in a process that was forked from a single thread; nothing of the
    // parent's memory is changed or freed, and `_exit` runs no destructor.
    unsafe {
        // A session of its own: no signal of the terminal arrives here.
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"trellis-guard".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        // Closes everything but its pipe: an open copy of an output would keep its reader waiting, and the inherited
        // writing end would prevent the end of file.
        libc::dup2(pipe, 0);
        libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
        let mut groups = [0i32; GROUPS_MAX];
        let mut known = 0;
        loop {
            let mut word = 0i32;
            let got = libc::read(0, (&raw mut word).cast(), size_of::<i32>());
            if got == size_of::<i32>() as isize {
                if word == FAREWELL {
                    libc::_exit(0);
                }
                if known < GROUPS_MAX {
                    groups[known] = word;
                    known += 1;
                }
            } else {
                for group in &groups[..known] {
                    libc::kill(-group, libc::SIGKILL);
                }
                libc::_exit(0);
            }
        }
    }
}
