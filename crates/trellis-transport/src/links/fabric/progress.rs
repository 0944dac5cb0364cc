//! The progress thread: it ensures that some thread polls when libfabric has no event for what must be done.
//!
//! Promises: it sleeps while nothing is open. With a provider without a wait descriptor (`shm`, `efa`), it wakes a peer
//! over the tcp connection if the peer has not seen a packet [`WAKE_UP_AFTER_NS`] after it was sent. It does so once,
//! and again when more was sent or the peer answered. An operation that the provider wants to be tried again is tried
//! again after [`AGAIN_MIN`] to [`AGAIN_MAX`].
//!
//! It must never poll, call the sink, or hold a lock.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use super::peers::Shared;
use super::rendezvous::Said;
use crate::links::tcp::acceptor::spawn_without_signals;
use crate::links::{Link, Payload};

/// The time after which a peer that has not seen a packet is woken. A peer that polls sees a packet long before.
const WAKE_UP_AFTER_NS: u64 = 100_000;
/// The first pause before a new attempt.
const AGAIN_MIN: Duration = Duration::from_millis(1);
/// The longest pause, while nothing changes.
const AGAIN_MAX: Duration = Duration::from_millis(50);

/// The handle by which the other threads wake the progress thread.
#[derive(Default)]
pub(super) struct ProgressThread {
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
}

impl ProgressThread {
    /// Wakes the thread, because there is work for it.
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
    // The thread may have gone to sleep before it could be woken.
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
                // The thread is woken only for something new; for what is open already, the time is set.
                Some(wait) => {
                    self.progress_thread.sleeps.store(false, Ordering::SeqCst);
                    std::thread::park_timeout(wait);
                }
                // This ends when something new, or the end of the link, unparks the thread.
                None => std::thread::park(),
            }
        }
    }

    /// Wakes the peers for which it is time; returns the time until the next.
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
            let is_woken = peer.woken_after.load(Ordering::Acquire) == sent + 1;
            if !(unseen || open > 0) || is_woken || peer.stage.is_lost() {
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
                // A lost connection is noticed by the thread that polls.
                let _ = self.tcp.send(index, &Said::WakeUp.write(), Payload::Nothing);
            }
        }
        next.map(|next| Duration::from_nanos(next - now))
    }
}
