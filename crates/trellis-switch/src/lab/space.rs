//! Processes of a lab that outlives the command that made it: an init process, the first of a process namespace, and
//! what is run in the hosts. When the init process ends, the kernel ends all of them.
//!
//! Most functions here move the calling process and require it to have one thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use rustix::thread::LinkNameSpaceType;

use crate::error::SwitchError;
use crate::sys;

/// Whether this process has root's privileges.
#[must_use]
pub fn is_root() -> bool {
    sys::is_root()
}

/// Makes the next child of this process the first of a process namespace; with `rootless`, after moving this process into
/// a user namespace in which it is root.
///
/// # Errors
///
/// [`SwitchError::System`] if the kernel or its settings do not allow it.
pub fn make(rootless: bool) -> Result<(), SwitchError> {
    if rootless {
        sys::new_user().map_err(|error| SwitchError::system("make a user namespace", &error))?;
    }
    sys::new_processes().map_err(|error| SwitchError::system("make a process namespace", &error))
}

/// Lets ended children of this process disappear without being waited for.
pub fn forget_children() {
    sys::forget_children();
}

/// Begins the life of a host's first process: what is started in the host sees its own processes in `/proc`, and who lost
/// his parent there becomes a child of this process and disappears when he ends.
pub fn begin() {
    sys::show_processes();
    sys::forget_children();
}

/// Runs a function that starts programs and waits for them, in a process that otherwise does not wait for its children.
pub fn with_children<T>(work: impl FnOnce() -> T) -> T {
    sys::keep_children();
    let value = work();
    sys::forget_children();
    // Reaps children that ended meanwhile and were not waited for.
    sys::bury_children();
    value
}

/// Moves this process into a host of a lab, given by its descriptors: its network, its name and its mounts at once, its
/// processes for future children.
///
/// # Errors
///
/// [`SwitchError::System`] if the init process is gone or belongs to another user, or the host lacks the folder in which
/// this process is.
pub fn enter(init: i32, host: [RawFd; 4], rootless: bool) -> Result<(), SwitchError> {
    let open = |what: String| {
        let file = format!("/proc/{init}/{what}");
        File::open(&file).map_err(|error| SwitchError::system(format!("open {file}"), &error))
    };
    // All are opened first: once moved, this process may not access the init process any more.
    let user = rootless.then(|| open("ns/user".to_owned())).transpose()?;
    let [network, name, mounts, processes] = host.map(|descriptor| open(format!("fd/{descriptor}")));
    let (network, name, mounts, processes) = (network?, name?, mounts?, processes?);
    let enter = |what: &str, namespace: &File, kind| {
        sys::enter(namespace.as_fd(), kind)
            .map_err(|error| SwitchError::system(format!("enter the {what} namespace of the lab"), &error))
    };
    if let Some(user) = user {
        enter("user", &user, LinkNameSpaceType::User)?;
    }
    enter("process", &processes, LinkNameSpaceType::ProcessID)?;
    enter("network", &network, LinkNameSpaceType::Network)?;
    sys::enter_machine([name.as_fd(), mounts.as_fd()])
        .map_err(|error| SwitchError::system("enter the mounts of the host", &error))
}

/// Makes a command end when this process ends.
pub fn end_with_us(command: &mut Command) {
    sys::end_with_us(command);
}

/// Keeps a connection open in a command that is started; returns the command's name for it.
#[must_use]
pub fn hand_down(command: &mut Command, connection: UnixStream) -> String {
    let connection = OwnedFd::from(connection);
    let name = format!("fd:{}", connection.as_raw_fd());
    sys::hand_down(command, connection);
    name
}

/// Leaves interrupts from the terminal to the running command.
pub fn ignore_interrupts() {
    sys::ignore_interrupts();
}

/// A process that is identified by a descriptor: unlike its number, that cannot become another process's.
pub struct Process {
    pid: i32,
    process: sys::Process,
}

impl Process {
    /// The process with this number.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn open(pid: i32) -> io::Result<Process> {
        sys::Process::open(pid).map(|process| Process { pid, process })
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// When it has ended, or belongs to another user.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.process.signal(signal)
    }

    /// Waits until it has ended; returns whether it has.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.process.wait(timeout)
    }
}
