//! The progress thread: it sees to it that somebody looks, where libfabric has no event that would say so.
//!
//! Promised: it sleeps while nothing is open. With a provider that has no descriptor to wait for (`shm`, `efa`) it wakes
//! the peer, over the tcp connection, for what the peer has not seen [`WAKE_UP_AFTER_NS`] after it was sent; once, and
//! again when more was sent or the peer answered. What the provider wants to be asked again is asked again after
//! [`AGAIN_MIN`] to [`AGAIN_MAX`].
//!
//! Never done here: polling, calling the sink, holding a lock.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use super::peers::{LOST, Shared};
use super::rendezvous::Said;
use crate::links::tcp::acceptor::spawn_without_signals;
use crate::links::{Link, Payload};

/// A peer that polls has seen a packet long before; one that sleeps is woken.
const WAKE_UP_AFTER_NS: u64 = 100_000;
/// The first time that something is tried again.
const AGAIN_MIN: Duration = Duration::from_millis(1);
/// And the longest, while nothing changes.
const AGAIN_MAX: Duration = Duration::from_millis(50);

/// How the other threads reach it.
#[derive(Default)]
pub(super) struct ProgressThread {
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
}

impl ProgressThread {
    /// There is something to see to.
    pub(super) fn wake(&self) {
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::AcqRel) {
            self.unpark();
        }
    }

    pub(super) fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Starts the thread; it ends when the link is closed.
pub(super) fn spawn(shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let run = Arc::clone(shared);
    let handle = spawn_without_signals(shared.node, move || run.tend())?;
    let _ = shared.progress_thread.thread.set(handle.thread().clone());
    // It may have gone to sleep before anybody could wake it.
    shared.progress_thread.unpark();
    Ok(handle)
}

impl Shared {
    fn tend(&self) {
        let mut again = AGAIN_MIN;
        while !self.closed.load(Ordering::Acquire) {
            self.progress_thread.sleeps.store(true, Ordering::SeqCst);
            let due = self.wake_peers();
            let wait = if self.restless.load(Ordering::SeqCst) {
                self.nudge();
                let wait = again;
                again = (again * 2).min(AGAIN_MAX);
                Some(due.map_or(wait, |due| due.min(wait)))
            } else {
                again = AGAIN_MIN;
                due
            };
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            match wait {
                // Woken only by what is new; what is open already has its moment.
                Some(wait) => {
                    self.progress_thread.sleeps.store(false, Ordering::SeqCst);
                    std::thread::park_timeout(wait);
                }
                None => std::thread::park(),
            }
        }
    }

    /// Rings where it is time; how long until the next.
    fn wake_peers(&self) -> Option<Duration> {
        if self.device.wait_descriptor().is_some() {
            return None;
        }
        let now = self.now();
        let mut next: Option<u64> = None;
        for (index, peer) in self.peers.iter().enumerate() {
            let sent = peer.packets_sent.load(Ordering::Acquire);
            let unseen = sent > peer.packets_seen_there.load(Ordering::Acquire);
            let open = peer.reads.load(Ordering::Acquire) + peer.writes.load(Ordering::Acquire);
            if !(unseen || open > 0) || peer.woken_after.load(Ordering::Acquire) == sent + 1 || self.is_in(index, LOST)
            {
                continue;
            }
            let since = match peer.unseen_since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => now,
                Err(since) => since,
            };
            let due = since + WAKE_UP_AFTER_NS;
            if due > now {
                next = Some(next.map_or(due, |next| next.min(due)));
            } else {
                peer.woken_after.store(sent + 1, Ordering::Release);
                // A connection that is gone is noticed by whoever polls.
                let _ = self.tcp.send(index, &Said::WakeUp.write(), Payload::Nothing);
            }
        }
        next.map(|next| Duration::from_nanos(next - now))
    }
}
