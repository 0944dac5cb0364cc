//! Connections, one for each thread that is in a call.
//!
//! A *lane* is a connection with a small event loop that runs only during a call, on the calling thread. This needs no
//! threads of our own and no hand-over between threads. With one client and Google's Bigtable emulator on loopback (two
//! cores, optimised), a write of 8 bytes took 102 µs in this way, and 156 µs with tokio's loop on threads of its own.
//! It promises that a thread that waits long (for a watch) does not delay another one: there are as many lanes as there
//! are threads in calls, and only [`IDLE_LANES_MAX`] of them are kept when they are idle.
//!
//! An idle lane is not monitored. One that was idle longer than [`IDLE_SECONDS_MAX`] is therefore closed instead of
//! used: a device on the path may have dropped the connection.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Runtime};

use super::DEADLINE;
use crate::error::StoreError;

/// The maximum number of idle lanes that are kept.
const IDLE_LANES_MAX: usize = 16;
/// How long a lane may be idle and still be used.
const IDLE_SECONDS_MAX: u64 = 30;

/// Opens connections.
pub(in crate::stores) trait Open: Sync {
    /// The connection.
    type Client: Send;

    /// Opens a connection.
    async fn open(&self) -> Result<Self::Client, StoreError>;

    /// The store's name in messages.
    fn name(&self) -> &str;
}

/// The connections to one store.
pub(in crate::stores) struct Lanes<O: Open> {
    opener: O,
    deadline: Duration,
    idle: Mutex<Vec<Lane<O::Client>>>,
}

struct Lane<C> {
    // The connection must be dropped before the loop that it uses.
    client: C,
    runtime: Runtime,
    used: Instant,
}

impl<O: Open> Lanes<O> {
    /// No connections yet; calls may take at most `deadline`.
    pub(in crate::stores) fn new(opener: O, deadline: Duration) -> Lanes<O> {
        Lanes { opener, deadline, idle: Mutex::default() }
    }

    /// Runs work on a connection that no other thread uses meanwhile. Must not be called from an asynchronous task.
    pub(in crate::stores) fn call<R: Send>(
        &self,
        work: impl AsyncFnOnce(&mut O::Client) -> Result<R, StoreError> + Send,
    ) -> Result<R, StoreError> {
        if !has_lost_its_locals() {
            return self.call_here(work);
        }
        // Ends with the call, which has the deadline of the store.
        let worker = std::thread::scope(|scope| scope.spawn(|| self.call_here(work)).join());
        worker.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn call_here<R>(&self, work: impl AsyncFnOnce(&mut O::Client) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let mut lane = match self.idle_lane() {
            Some(lane) => lane,
            None => self.new_lane()?,
        };
        let result = lane.runtime.block_on(DEADLINE.scope(self.deadline, work(&mut lane.client)));
        if result.as_ref().err().is_none_or(leaves_the_lane_whole) {
            lane.used = Instant::now();
            let mut idle = self.lock();
            if idle.len() < IDLE_LANES_MAX {
                idle.push(lane);
            }
        }
        result
    }

    fn idle_lane(&self) -> Option<Lane<O::Client>> {
        let mut idle = self.lock();
        let lane = idle.pop()?;
        if lane.used.elapsed() < Duration::from_secs(IDLE_SECONDS_MAX) {
            return Some(lane);
        }
        // The most recently used one is too old, so all are.
        let old = std::mem::take(&mut *idle);
        drop(idle);
        drop((lane, old));
        None
    }

    fn new_lane(&self) -> Result<Lane<O::Client>, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| StoreError::Unreachable {
            store: self.opener.name().to_owned(),
            reason: format!("no event loop can be made: {error}"),
        })?;
        let client = runtime.block_on(DEADLINE.scope(self.deadline, self.opener.open()))?;
        Ok(Lane { client, runtime, used: Instant::now() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Lane<O::Client>>> {
        // Nothing that can panic happens under this lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this thread is in `exit`, where a region releases its resources: the thread-local variables have been
/// destroyed by then, and an event loop cannot run without its own.
fn has_lost_its_locals() -> bool {
    Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

fn leaves_the_lane_whole(error: &StoreError) -> bool {
    !matches!(error, StoreError::Unreachable { .. } | StoreError::OutcomeUnknown { .. } | StoreError::Deadline { .. })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted(AtomicUsize);

    impl Open for Counted {
        type Client = usize;

        async fn open(&self) -> Result<usize, StoreError> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed))
        }

        fn name(&self) -> &str {
            "counted"
        }
    }

    #[test]
    fn a_lane_is_used_again_unless_its_connection_broke() {
        let lanes = Lanes::new(Counted(AtomicUsize::new(0)), Duration::from_secs(1));
        assert_eq!(lanes.call(async |client| Ok(*client)), Ok(0));
        assert_eq!(lanes.call(async |client| Ok(*client)), Ok(0));
        let broken = StoreError::Unreachable { store: "counted".to_owned(), reason: "it broke".to_owned() };
        assert_eq!(lanes.call(async |_| Err::<(), _>(broken.clone())), Err(broken.clone()));
        assert_eq!(lanes.call(async |client| Ok(*client)), Ok(1));
    }

    /// Makes a call in its destructor, when thread-local variables that were created later have been destroyed.
    struct AtTheEnd(std::sync::mpsc::Sender<(bool, Result<usize, StoreError>)>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let answer =
                Lanes::new(Counted(AtomicUsize::new(7)), Duration::from_secs(1)).call(async |client| Ok(*client));
            self.0.send((has_lost_its_locals(), answer)).expect("the test waits");
        }
    }

    #[test]
    fn a_thread_that_ends_still_makes_calls() {
        std::thread_local! {
            static LAST: std::cell::RefCell<Option<AtTheEnd>> = const { std::cell::RefCell::new(None) };
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Destructors run in the reverse order of creation, so the event loop's variables are created after this one.
            LAST.with(|last| *last.borrow_mut() = Some(AtTheEnd(sender)));
            assert_eq!(
                Lanes::new(Counted(AtomicUsize::new(0)), Duration::from_secs(1)).call(async |client| Ok(*client)),
                Ok(0)
            );
        });
        assert_eq!(receiver.recv().expect("it ended"), (true, Ok(7)));
    }

    #[test]
    fn who_is_in_a_call_keeps_nobody_else_waiting() {
        let lanes = Lanes::new(Counted(AtomicUsize::new(0)), Duration::from_secs(1));
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| lanes.call(async |_| Ok(both.wait())));
            }
        });
        assert_eq!(lanes.opener.0.load(Ordering::Relaxed), 2);
    }
}
