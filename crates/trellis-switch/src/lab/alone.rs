//! A network for one process and its children: no switch, no other host, and every address of a cluster is local.
//!
//! Promises: nothing outside it changes, and it ends with the last process in it. Must be called before sockets are
//! opened that are to be in it and, by a user other than root, while the process has one thread.

use std::os::fd::AsFd;

use super::namespace::Network;
use super::wiring::configure;
use crate::address::Cluster;
use crate::error::SwitchError;
use crate::sys;

/// Moves this thread, and the processes and threads that it starts from now on, into such a network. A user other than
/// root becomes root over what it creates there, and over nothing else.
///
/// # Errors
///
/// [`SwitchError::System`] if the kernel or its settings do not allow it, or iproute2 is not installed.
pub fn alone(cluster: Cluster) -> Result<(), SwitchError> {
    if !sys::is_root() {
        sys::new_user().map_err(|error| SwitchError::system("make a user namespace", &error))?;
    }
    let network = Network::new()?;
    sys::enter_network(network.as_fd()).map_err(|error| SwitchError::system("enter a network namespace", &error))?;
    let commands = ["link set lo up".to_owned(), format!("route add local {} dev lo", cluster.everything())];
    configure("this process", &commands)
}
