//! Waiting calls of clients, each on a thread of its own so that other clients are served meanwhile.
//!
//! Promises: a call whose client has disconnected ends soon, so that nothing is acquired for an absent client. A call
//! waits in stretches of [`STRETCH`] and checks after each whether its client is still connected. A client that returns
//! on a new connection takes its call over.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::commands::trellis;
use super::reply::Reply;
use super::server::Shared;
use crate::codec;
use crate::operation::{Applied, Guard, Operation};

/// How long a call waits before it checks whether its client is still connected.
const STRETCH: Duration = Duration::from_millis(100);

/// How a client waits.
pub(super) enum Wait {
    /// With a new call.
    Start { operations: Vec<Operation>, guard: Option<Guard>, deadline: Instant, lane: Vec<u8>, number: Vec<u8> },
    /// By rejoining a call that was waiting when the client's connection ended.
    Join(Arc<Waiter>),
}

/// The client of a waiting call: the number of a loop, and the number of a connection in it.
pub(super) type Client = (usize, u64);

/// A waiting call.
pub(super) struct Waiter {
    client: Mutex<Asker>,
}

enum Asker {
    Here(Client),
    /// Its connection has ended; the client may return.
    Away,
    /// The call has ended.
    Over,
}

impl Waiter {
    /// Records that a client's connection has ended.
    pub(super) fn leave(&self, client: Client) {
        let mut asker = self.asker();
        if matches!(*asker, Asker::Here(here) if here == client) {
            *asker = Asker::Away;
        }
    }

    /// Records that a client has returned. False if the call has ended meanwhile.
    fn join(&self, client: Client) -> bool {
        let mut asker = self.asker();
        let open = !matches!(*asker, Asker::Over);
        if open {
            *asker = Asker::Here(client);
        }
        open
    }

    /// Ends the call if its client is away; returns whether it has ended.
    fn end_if_away(&self) -> bool {
        let mut asker = self.asker();
        let away = matches!(*asker, Asker::Away);
        if away {
            *asker = Asker::Over;
        }
        away
    }

    fn end(&self) -> Option<Client> {
        match std::mem::replace(&mut *self.asker(), Asker::Over) {
            Asker::Here(client) => Some(client),
            Asker::Away | Asker::Over => None,
        }
    }

    fn asker(&self) -> std::sync::MutexGuard<'_, Asker> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a client wait, or returns the message why it cannot.
pub(super) fn start(shared: &Arc<Shared>, client: Client, wait: Wait) -> Result<Arc<Waiter>, &'static str> {
    let (operations, guard, deadline, lane, number) = match wait {
        Wait::Join(waiter) => {
            // The call ended at this moment. Its answer, if there is one, is found when the client asks again.
            return if waiter.join(client) { Ok(waiter) } else { Err("BUSY this call has just ended; ask again") };
        }
        Wait::Start { operations, guard, deadline, lane, number } => (operations, guard, deadline, lane, number),
    };
    let waiter = Arc::new(Waiter { client: Mutex::new(Asker::Here(client)) });
    if shared.waiting.fetch_add(1, Ordering::Relaxed) >= shared.calls_waiting_max {
        return Err(refuse(shared, &lane, &number, "TRELLIS unreachable too many calls wait already"));
    }
    trellis::locked(shared).wait(&lane, &number, &waiter);
    let (of, named) = (lane.clone(), number.clone());
    let call =
        Call { shared: Arc::clone(shared), waiter: Arc::clone(&waiter), operations, guard, deadline, lane, number };
    let thread = std::thread::Builder::new().name("trellis-wait".to_owned()).spawn(move || call.run());
    if thread.is_err() {
        return Err(refuse(shared, &of, &named, "TRELLIS unreachable no thread can be started for a call that waits"));
    }
    Ok(waiter)
}

/// Counts and reports a call that cannot wait; returns the sentence for its client.
fn refuse(shared: &Shared, lane: &[u8], number: &[u8], sentence: &'static str) -> &'static str {
    shared.waiting.fetch_sub(1, Ordering::Relaxed);
    trellis::locked(shared).end(lane, number, None);
    if shared.calls_refused.fetch_add(1, Ordering::Relaxed) == 0 {
        let why = sentence.trim_start_matches("TRELLIS unreachable ");
        trellis_output::lines::report(format_args!(
            "a call that waits for a change is refused: {why}; INFO counts such refusals as trellis_calls_refused"
        ));
    }
    sentence
}

/// A running call.
struct Call {
    shared: Arc<Shared>,
    waiter: Arc<Waiter>,
    operations: Vec<Operation>,
    guard: Option<Guard>,
    deadline: Instant,
    lane: Vec<u8>,
    number: Vec<u8>,
}

impl Call {
    fn run(self) {
        let mut out = Vec::new();
        let mut answer = None;
        loop {
            let until = self.deadline.min(Instant::now() + STRETCH);
            let applied = self.shared.store.apply_when(&self.operations, self.guard.as_ref(), until);
            match applied {
                Ok(Applied::Refused(..)) if Instant::now() < self.deadline => {
                    let mut lanes = trellis::locked(&self.shared);
                    if self.waiter.end_if_away() {
                        lanes.end(&self.lane, &self.number, None);
                        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    continue;
                }
                Ok(applied) => {
                    let bytes = codec::encode_applied(&applied);
                    Reply::new(&mut out, false).bulk(&bytes);
                    answer = Some(bytes);
                }
                Err(error) => Reply::new(&mut out, false).error(&trellis::refusal(&error)),
            }
            break;
        }
        // A client that returns finds either the waiter or the answer.
        let mut lanes = trellis::locked(&self.shared);
        lanes.end(&self.lane, &self.number, answer.as_deref());
        let client = self.waiter.end();
        drop(lanes);
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some((place, connection)) = client {
            self.shared.loops[place].hand(connection, out);
        }
    }
}
