//! Clients of memory servers for the threads of one process.
//!
//! Promises: each thread sends and receives by itself, so that no thread is woken for another one's call. An idle
//! client is used before another one is opened, the most recently used first. It must never repeat what cannot be done
//! twice: callers say what may be repeated.

use std::sync::{Mutex, PoisonError};

use trellis_fabric_protocol::wire::datagram::Status;

use super::super::{Client, ClientOptions, RemoteError};

/// See the module.
pub(super) struct Clients {
    options: ClientOptions,
    idle: Mutex<Vec<Client>>,
}

impl Clients {
    pub(super) fn new(options: ClientOptions) -> Clients {
        Clients { options, idle: Mutex::default() }
    }

    /// Runs an operation with a client. The operation must be repeatable as long as no other thread does it at the same
    /// time: it is run again in another session if the server had forgotten the previous one.
    pub(super) fn with<T>(
        &self,
        mut call: impl FnMut(&mut Client) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let mut client = self.take()?;
        let outcome = match call(&mut client) {
            Err(RemoteError::Refused { status: Status::Fenced, .. }) => call(&mut client),
            outcome => outcome,
        };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        outcome
    }

    fn take(&self) -> Result<Client, RemoteError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Client::open(self.options), Ok)
    }
}
