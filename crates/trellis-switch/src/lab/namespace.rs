//! A network namespace, held by a descriptor. It has no name, and ends when no descriptor refers to it.

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
