//! Clients of memory servers for the threads of one process.
//!
//! Promises: whoever calls sends and receives itself, so that no thread is woken for another one's call; a client that is
//! idle is taken before another one is opened, the one that was used last first. Must never repeat what cannot be done twice:
//! callers say what they may do again.

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

    /// Lets a client do something that may be done again, as long as nobody else does it at the same time: in another
    /// session, where the server had forgotten the one before.
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
