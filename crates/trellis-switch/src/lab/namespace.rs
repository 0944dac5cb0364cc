//! The namespaces of a host, held by descriptors. They have no names, and end when no descriptor refers to them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};

use rustix::thread::LinkNameSpaceType;

use crate::error::SwitchError;
use crate::sys;

/// A network namespace.
pub(super) struct Network(File);

impl Network {
    /// A new one, empty except for a loopback interface.
    pub(super) fn new() -> Result<Network, SwitchError> {
        let made = apart(sys::new_network)?;
        made.map(Network).map_err(|error| SwitchError::system("make a network namespace", &error))
    }

    /// Runs a function in the namespace, on a thread of its own.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, SwitchError> {
        let inside = || sys::enter_network(self.as_fd()).map(|()| work());
        apart(inside)?.map_err(|error| SwitchError::system("enter a network namespace", &error))
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The name and the mounts of a host, which has them for itself as it has its network.
pub(super) struct Machine([File; 2]);

impl Machine {
    /// A new one, with these contents of files in `/etc`.
    pub(super) fn new(name: &str, files: &[(&str, String)]) -> Result<Machine, SwitchError> {
        let made = apart(|| sys::new_machine(name, files))?;
        made.map(Machine).map_err(|error| SwitchError::system(format!("make the mounts of host {name}"), &error))
    }

    /// Moves the calling thread, which must be one of [`Network::run`], into it.
    pub(super) fn enter(&self) -> Result<(), SwitchError> {
        sys::enter_machine(self.descriptors())
            .map_err(|error| SwitchError::system("enter the mounts of a host", &error))
    }

    /// Those of its name and its mounts.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        self.0.each_ref().map(AsFd::as_fd)
    }
}

/// The process namespace of a host, whose first process lives as long as the host.
pub(super) struct Processes {
    namespace: File,
    /// It is never waited for: it ends with the process that made the lab.
    _first: Child,
}

impl Processes {
    /// A new one with this first process. The calling thread must be one of [`Network::run`] that has entered the host.
    pub(super) fn begin(mut first: Command) -> Result<Processes, SwitchError> {
        let refused = |error: io::Error| SwitchError::system("start the first process of a host", &error);
        first.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (mut first, namespace) = sys::begin_processes(&mut first).map_err(refused)?;
        let said = first.stdout.take().map(BufReader::new).expect("it was asked for").lines().next();
        match said {
            Some(said) => said.map(|_| Processes { namespace, _first: first }).map_err(refused),
            None => Err(refused(io::Error::other("it has ended at once"))),
        }
    }

    /// Moves what the calling thread, which must be one of [`Network::run`], starts from now on into it.
    pub(super) fn enter(&self) -> Result<(), SwitchError> {
        sys::enter(self.as_fd(), LinkNameSpaceType::ProcessID)
            .map_err(|error| SwitchError::system("enter the processes of a host", &error))
    }
}

impl AsFd for Processes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Runs a function on a thread that ends with it, so that no other thread is moved.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, SwitchError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .spawn_scoped(scope, work)
            .map_err(|error| SwitchError::system("start a thread", &error))?;
        // Ends with the work in the namespace, as if it were called here.
        thread.join().or_else(|panic| std::panic::resume_unwind(panic))
    })
}
