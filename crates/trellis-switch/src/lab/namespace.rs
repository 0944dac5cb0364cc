//! The namespaces of a host, held by descriptors. They have no names, and end when no descriptor refers to them.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

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
    /// A new one, with these contents of files.
    pub(super) fn new(name: &str, files: &[(&str, String)], has_own_tmp: bool) -> Result<Machine, SwitchError> {
        let made = apart(|| sys::new_machine(name, files, has_own_tmp))?;
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
