//! The threads that serve pages: how they wait for faults and for pages to fetch ahead, and how they end.
//!
//! Stored memory (`trellis_stored::paging`) and leased remote memory (`trellis_remote::paging`) each define the meaning
//! of a fault; both use threads of this kind around the same table of page frames and the same read-ahead.
//!
//! Promises: one thread at a time waits for faults. Every thread that waits here is woken at the end. A thread that
//! panics ends the process, because the program would otherwise wait for its page forever.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use trellis_memory::Region;

use crate::readahead::Window;

/// The maximum number of windows that wait to be fetched: more would be fetched so late that the guess is outdated.
const WINDOWS_MAX: usize = 64;

/// The threads, and what they wait for.
pub struct FaultThreads {
    leader: Mutex<()>,
    stop: AtomicBool,
    wake_up: OwnedFd,
    creator: u32,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The windows to be fetched.
    windows: Mutex<VecDeque<Window>>,
    window_came: Condvar,
}

impl FaultThreads {
    /// Creates it without threads.
    ///
    /// # Errors
    ///
    /// If the system has no descriptor left.
    pub fn new() -> std::io::Result<FaultThreads> {
        // SAFETY: takes a number and flags by value and gives a new descriptor.
        let wake_up = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake_up < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(FaultThreads {
            leader: Mutex::new(()),
            stop: AtomicBool::new(false),
            // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
            wake_up: unsafe { OwnedFd::from_raw_fd(wake_up) },
            creator: std::process::id(),
            threads: Mutex::default(),
            windows: Mutex::default(),
            window_came: Condvar::new(),
        })
    }

    /// Starts one more thread.
    ///
    /// # Errors
    ///
    /// If the system cannot start it.
    pub fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            if ran.is_err() {
                crate::end::end_process(
                    &"a thread that looks after pages panicked; please report it with the message above",
                );
            }
        })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Whether the threads must end.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Tells the threads that wait here to end. False if that was done before, or in a forked child.
    pub fn end(&self) -> bool {
        if std::process::id() != self.creator || self.stop.swap(true, Ordering::SeqCst) {
            return false;
        }
        let one = 1u64;
        // SAFETY: writes the eight bytes of `one`, as eventfd(2) requires.
        unsafe { libc::write(self.wake_up.as_raw_fd(), (&raw const one).cast(), 8) };
        drop(self.windows());
        self.window_came.notify_all();
        true
    }

    /// Waits until all threads have ended.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has reported the reason.
            // Ends when the thread sees that it is over; what it fetches meanwhile has the deadline of the store or
            // home.
            let _ = thread.join();
        }
    }

    /// Waits to become the leader. The holder of the guard takes faults.
    pub fn become_leader(&self) -> MutexGuard<'_, ()> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until faults can be taken from a region; false at the end.
    pub fn wait_for_faults(&self, region: &Region) -> bool {
        let Some(event) = region.event_fd() else { return false };
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut waits = [wait(event), wait(self.wake_up.as_raw_fd())];
        // SAFETY: two valid entries. An interrupted call reports nothing, and the caller repeats it.
        // Ends with a fault, or when `stop` wakes it.
        unsafe { libc::poll(waits.as_mut_ptr(), 2, -1) };
        !self.is_over()
    }

    /// Queues a window for a thread to fetch. If too many wait, the oldest is dropped: it is only a guess, and its
    /// pages are fetched when they are touched.
    pub fn queue(&self, window: Window) {
        let mut windows = self.windows();
        if windows.len() == WINDOWS_MAX {
            windows.pop_front();
        }
        windows.push_back(window);
        drop(windows);
        self.window_came.notify_one();
    }

    /// Waits for a window to be fetched, and returns its number of pages; `None` at the end.
    pub fn wait_for_window(&self) -> Option<usize> {
        let mut windows = self.windows();
        loop {
            if self.is_over() {
                return None;
            }
            if let Some(window) = windows.front() {
                return Some((window.pages.end - window.pages.start) as usize);
            }
            // Ends with a window, or when `stop` wakes it.
            windows = self.window_came.wait(windows).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The oldest window, unless it was taken meanwhile.
    pub fn next_window(&self) -> Option<Window> {
        self.windows().pop_front()
    }

    /// Takes the window with this page, if no thread has begun to fetch it.
    pub fn take_window_with(&self, page: u64) -> Option<Window> {
        let mut windows = self.windows();
        let index = windows.iter().position(|window| window.pages.contains(&page))?;
        windows.remove(index)
    }

    fn windows(&self) -> MutexGuard<'_, VecDeque<Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_nobody_fetches_do_not_pile_up() {
        let fault_threads = FaultThreads::new().expect("a descriptor can be had");
        for first in 0..1000 {
            fault_threads.queue(Window { pages: first..first + 1, trigger: None });
        }
        assert_eq!(fault_threads.windows().len(), WINDOWS_MAX);
        assert!(fault_threads.take_window_with(999).is_some(), "the youngest guesses are kept");
        assert!(fault_threads.take_window_with(0).is_none());
    }
}
