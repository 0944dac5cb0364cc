//! The thread that makes the connections of a link, and its end.
//!
//! Promises: a link is closed once, and its thread has ended before its connections end.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread::{JoinHandle, current};

use super::roster::{Roster, lock};

/// The thread of a link; none if the node is alone.
pub(super) struct AcceptorThread(Mutex<Option<JoinHandle<()>>>);

impl AcceptorThread {
    pub(super) fn new(thread: Option<JoinHandle<()>>) -> AcceptorThread {
        AcceptorThread(Mutex::new(thread))
    }

    /// Closes the link: ends the thread, and then the connections by calling `end`.
    pub(super) fn close<T>(&self, roster: &Roster<T>, end: impl FnOnce()) {
        // A forked child shares neither thread nor sockets with the process that started the link.
        if roster.is_forked() || roster.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        roster.wake.signal();
        let thread = lock(&self.0).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current().id()) {
            // A panic of the thread was printed when it happened, and is not propagated. The thread was woken, and ends
            // when it sees that the link is closed.
            let _ = thread.join();
        }
        end();
    }

    /// For a link that is dropped. In a forked child, the thread exists only in the parent.
    pub(super) fn forget_if_forked<T>(&self, roster: &Roster<T>) {
        if roster.is_forked() {
            std::mem::forget(lock(&self.0).take());
        }
    }
}
