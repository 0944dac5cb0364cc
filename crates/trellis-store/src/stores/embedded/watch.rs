//! Threads that sleep until a key changes.
//!
//! It promises that no change is missed: a waiter is registered under the lock under which its call was refused, and a
//! thread that changes the key wakes it under that lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Instant;

use crate::key::Key;

/// A sleeping thread.
pub(super) struct Waiter {
    thread: Thread,
    woken: AtomicBool,
}

impl Waiter {
    /// A waiter for the calling thread.
    pub(super) fn new() -> Arc<Waiter> {
        Arc::new(Waiter { thread: std::thread::current(), woken: AtomicBool::new(false) })
    }

    /// Sleeps until [`Watch::wake`] is called or the deadline has passed.
    pub(super) fn sleep(&self, deadline: Instant) {
        while !self.woken.swap(false, Ordering::Acquire) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// A waiter's registration for a key.
pub(super) struct Watch {
    key: Key,
    waiter: Arc<Waiter>,
}

impl Watch {
    pub(super) fn new(key: &Key, waiter: &Arc<Waiter>) -> Watch {
        Watch { key: key.clone(), waiter: Arc::clone(waiter) }
    }

    pub(super) fn is_for(&self, key: &Key) -> bool {
        self.key == *key
    }

    pub(super) fn is_of(&self, waiter: &Arc<Waiter>) -> bool {
        Arc::ptr_eq(&self.waiter, waiter)
    }

    pub(super) fn wake(&self) {
        self.waiter.woken.store(true, Ordering::Release);
        self.waiter.thread.unpark();
    }
}
