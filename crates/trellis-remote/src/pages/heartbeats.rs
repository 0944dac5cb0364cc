//! Objects that end with this process: they are created in sessions that are kept open while it runs.
//!
//! Promises: an object exists as long as this process runs and its servers hear from it. When the process was killed,
//! or is not heard for a server's limit, the server deletes the object. Only these objects are created in these
//! sessions, and each server has a client of its own here, so that trouble of another client does not end its session.
//!
//! It must never delay a thread that touches a page: a separate thread keeps the sessions open and does nothing else.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::super::{Client, ClientOptions, Host, Pointer, RemoteError};

/// The interval of heartbeats to servers: several within the shortest limit that a server can have.
const INTERVAL: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Heartbeats {
    options: ClientOptions,
    shared: Arc<Shared>,
}

struct Shared {
    clients: Mutex<BTreeMap<Host, Arc<Mutex<Client>>>>,
    /// Where the thread waits between two heartbeats.
    changed: Condvar,
    over: Mutex<bool>,
}

impl Heartbeats {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the system provides no thread.
    pub(super) fn start(options: ClientOptions) -> Result<Heartbeats, RemoteError> {
        let shared = Arc::new(Shared { clients: Mutex::default(), changed: Condvar::new(), over: Mutex::new(false) });
        let weak = Arc::downgrade(&shared);
        let spawned = std::thread::Builder::new().name("trellis-heartbeat".to_owned()).spawn(move || keep(&weak));
        spawned.map_err(|error| {
            RemoteError::Setting(format!("a thread cannot be started: {error}; look at `ulimit -u`"))
        })?;
        Ok(Heartbeats { options, shared })
    }

    /// Creates an object.
    ///
    /// # Errors
    ///
    /// As [`Client::create_for_session`].
    pub(super) fn create(&self, home: Host, bytes: u64) -> Result<Pointer, RemoteError> {
        let home = if home.is_one() { home } else { locked(&*self.client(home)?).choose(home)? };
        let client = self.client(home)?;
        locked(&client).create_for_session(home, bytes)
    }

    /// The client of a server; for no particular server, the switch is asked for one.
    fn client(&self, home: Host) -> Result<Arc<Mutex<Client>>, RemoteError> {
        let mut clients = locked(&self.shared.clients);
        if let Some(client) = clients.get(&home) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(Mutex::new(Client::open(self.options)?));
        clients.insert(home, Arc::clone(&client));
        Ok(client)
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        *locked(&self.shared.over) = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// False at the end.
    fn wait(&self) -> bool {
        let over = locked(&self.over);
        let waited = self.changed.wait_timeout_while(over, INTERVAL, |over| !*over);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The thread.
fn keep(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        if !shared.wait() {
            return;
        }
        let clients: Vec<_> =
            locked(&shared.clients).iter().map(|(home, client)| (*home, Arc::clone(client))).collect();
        for (home, client) in clients.into_iter().filter(|(home, _)| home.is_one()) {
            // A silent server is noticed by the thread that needs a page of it.
            let _ = locked(&client).hello(home);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked left nothing half done that another call would not repeat.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
