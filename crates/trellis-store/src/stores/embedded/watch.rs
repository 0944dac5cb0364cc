//! Who sleeps until a key changes.
//!
//! A waiter is registered under the same lock under which its call was refused, and whoever changes the key wakes it under
//! that lock; so no change is missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Instant;

use crate::key::Key;

/// A thread that sleeps.
pub(super) struct Waiter {
    thread: Thread,
    woken: AtomicBool,
}

impl Waiter {
    /// For the calling thread.
    pub(super) fn new() -> Arc<Waiter> {
        Arc::new(Waiter { thread: std::thread::current(), woken: AtomicBool::new(false) })
    }

    /// Sleeps until somebody calls [`Watch::wake`], or the deadline has passed.
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

/// That a waiter wants to know when a key changes.
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
