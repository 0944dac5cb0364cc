//! Heartbeats of a process that has a heap in a shared region, whether or not it holds a lock.
//!
//! Promises: one heartbeat every third of the lease, each one call of the store, from a thread of its own. The thread
//! ends with [`Heartbeats::stop`], or when the process was replaced. It must never report why a heartbeat failed: the
//! next release does.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_store::Store;

use super::synchronisation::member;

/// The thread that gives heartbeats; see the module.
pub(crate) struct Heartbeats {
    is_over: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Heartbeats {
    /// Starts the thread. If it cannot be created, there are no heartbeats, and other processes may replace this one
    /// when they need its memory, which is slow but not wrong.
    pub(crate) fn start(store: Arc<dyn Store>, region: u32, member: u64, lease: Duration) -> Heartbeats {
        let is_over = Arc::new((Mutex::new(false), Condvar::new()));
        let for_thread = Arc::clone(&is_over);
        let lease = lease.max(member::LEASE_MIN);
        let body = move || {
            // A store that does not answer now may do so at the next heartbeat.
            while wait(&for_thread, lease / 3) && !matches!(member::heartbeat(&*store, region, member), Ok(false)) {}
        };
        let thread = std::thread::Builder::new().name("trellis-heartbeat".to_owned()).spawn(body).ok();
        Heartbeats { is_over, thread: Mutex::new(thread) }
    }

    /// Stops the heartbeats; none is sent after this returns.
    pub(crate) fn stop(&self) {
        *self.is_over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.is_over.1.notify_all();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of the thread was printed when it happened. The thread ends with its heartbeat, which has the
            // deadline of the store.
            let _ = thread.join();
        }
    }
}

/// Waits for this time; false if the heartbeats were stopped.
fn wait(is_over: &(Mutex<bool>, Condvar), time: Duration) -> bool {
    let until = Instant::now() + time;
    let mut over = is_over.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if *over || left.is_zero() {
            return !*over;
        }
        over = is_over.1.wait_timeout(over, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_beats_until_it_is_stopped_or_replaced() {
        let store = trellis_store::open("embedded:").expect("it needs nothing");
        let [stopped, replaced, other] =
            [0, 1, 2].map(|_| member::join(&*store, 3, Duration::from_millis(30)).expect("joined"));
        let heartbeats =
            [stopped, replaced].map(|of| Heartbeats::start(Arc::clone(&store), 3, of, Duration::from_millis(30)));
        let record = |of| member::records(&*store, 3, &[of]).expect("readable").remove(0);
        while record(stopped).heartbeat < 3 || record(replaced).heartbeat < 3 {
            std::thread::yield_now();
        }
        heartbeats[0].stop();
        let last = record(stopped).heartbeat;
        loop {
            let seen = record(replaced);
            let guard = member::guard(3, other);
            let step = member::replace(3, &seen, other);
            if matches!(store.apply(&[step], Some(&guard)), Ok(trellis_store::Applied::Done(_))) {
                break;
            }
        }
        // The thread ends by itself.
        heartbeats[1].thread.lock().expect("nobody panicked").take().expect("it was started").join().expect("it ends");
        assert_eq!(record(stopped).heartbeat, last);
        assert!(!record(replaced).is_alive);
    }
}
