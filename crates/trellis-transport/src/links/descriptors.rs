//! File descriptors that a forked child must not keep, and the epoll and event descriptors made of them.
//!
//! Promises: every descriptor of this crate is closed in a child right after `fork`, before the child runs any code of
//! its own, because an open socket in the child would hide the death of its parent from the peers. In the child
//! [`Descriptor::raw`] then returns -1, on which every system call fails.
//!
//! It must never close a number that it no longer owns.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Maximum for all links of one process together.
const DESCRIPTORS_MAX: usize = 8192;

/// Number plus one; zero is free. A static table, because the child's handler may neither allocate nor wait.
static SLOTS: [AtomicI32; DESCRIPTORS_MAX] = [const { AtomicI32::new(0) }; DESCRIPTORS_MAX];
static NEXT_SLOT: AtomicUsize = AtomicUsize::new(0);

/// Held while a descriptor is created and entered, and during a fork, so that no child gets one that is open but not
/// yet entered.
static FORK_LOCK: ForkLock = ForkLock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

struct ForkLock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: the mutex is only ever used through pthread_mutex_lock and pthread_mutex_unlock.
unsafe impl Sync for ForkLock {}

extern "C" fn lock_fork() {
    // SAFETY: a statically initialised mutex, valid forever.
    unsafe { libc::pthread_mutex_lock(FORK_LOCK.0.get()) };
}

extern "C" fn unlock_fork() {
    // SAFETY: called only by the thread that locked the lock, or by its copy in the child.
    unsafe { libc::pthread_mutex_unlock(FORK_LOCK.0.get()) };
}

/// Runs in the child: plain stores and `close`, nothing that could wait for another thread.
extern "C" fn forget_all() {
    for slot in &SLOTS {
        let entry = slot.swap(0, Ordering::Relaxed);
        if entry > 0 {
            // SAFETY: this process owns the number, and this thread is its only user.
            unsafe { libc::close(entry - 1) };
        }
    }
    unlock_fork();
}

struct ForkGuard;

impl ForkGuard {
    fn lock() -> ForkGuard {
        lock_fork();
        ForkGuard
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        unlock_fork();
    }
}

/// A descriptor of this crate; closed on drop, and in every forked child.
pub(crate) struct Descriptor {
    slot: &'static AtomicI32,
}

impl Descriptor {
    /// Takes over the descriptor that `open` creates; on failure `open` returns -1 and leaves the reason in `errno`.
    pub(crate) fn adopt(open: impl FnOnce() -> RawFd) -> io::Result<Descriptor> {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: the three functions live as long as the process (or this library).
            unsafe { libc::pthread_atfork(Some(lock_fork), Some(unlock_fork), Some(forget_all)) };
        });
        let _guard = ForkGuard::lock();
        let number = open();
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        enter(number).inspect_err(|_| {
            // SAFETY: just created, and nothing else knows it.
            unsafe { libc::close(number) };
        })
    }

    /// The number, or -1 in a forked child.
    #[inline]
    pub(crate) fn raw(&self) -> RawFd {
        self.slot.load(Ordering::Relaxed) - 1
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let _guard = ForkGuard::lock();
        let entry = self.slot.swap(0, Ordering::Relaxed);
        if entry > 0 {
            // SAFETY: the number was in our slot, so it is open and ours, and nothing else has it now.
            unsafe { libc::close(entry - 1) };
        }
    }
}

/// Runs under the lock, so a free slot stays free until it is taken here.
fn enter(number: RawFd) -> io::Result<Descriptor> {
    let start = NEXT_SLOT.load(Ordering::Relaxed);
    for step in 0..DESCRIPTORS_MAX {
        let index = (start + step) % DESCRIPTORS_MAX;
        let slot = &SLOTS[index];
        if slot.load(Ordering::Relaxed) == 0 {
            slot.store(number + 1, Ordering::Relaxed);
            NEXT_SLOT.store(index + 1, Ordering::Relaxed);
            return Ok(Descriptor { slot });
        }
    }
    Err(io::Error::other("the links of this process hold 8192 descriptors already; close a link"))
}

/// An epoll descriptor.
pub(crate) struct Epoll {
    descriptor: Descriptor,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers are passed.
        let descriptor = Descriptor::adopt(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Epoll { descriptor })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor.raw()
    }

    pub(crate) fn add(&self, number: RawFd, output: bool, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, number, output, token)
    }

    pub(crate) fn modify(&self, number: RawFd, output: bool, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, number, output, token)
    }

    pub(crate) fn remove(&self, number: RawFd) {
        // A descriptor that is gone already is the wanted result.
        let _ = self.control(libc::EPOLL_CTL_DEL, number, false, 0);
    }

    /// What is ready now; never waits.
    pub(crate) fn ready(&self, events: &mut [libc::epoll_event]) -> usize {
        let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: `events` is writable for `room` entries.
        let count = unsafe { libc::epoll_wait(self.raw(), events.as_mut_ptr(), room, 0) };
        usize::try_from(count).unwrap_or(0)
    }

    fn control(&self, action: i32, number: RawFd, output: bool, token: u64) -> io::Result<()> {
        let wanted = if output { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        let mut event = libc::epoll_event { events: wanted as u32, u64: token };
        // SAFETY: `event` outlives the call.
        let result = unsafe { libc::epoll_ctl(self.raw(), action, number, &raw mut event) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A descriptor that is readable from `signal` to `drain`.
pub(crate) struct Event {
    descriptor: Descriptor,
}

impl Event {
    pub(crate) fn new() -> io::Result<Event> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: no pointers are passed.
        let descriptor = Descriptor::adopt(|| unsafe { libc::eventfd(0, flags) })?;
        Ok(Event { descriptor })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor.raw()
    }

    pub(crate) fn signal(&self) {
        let one = 1_u64;
        // SAFETY: eight readable bytes. The only failure is a counter at its maximum, which is readable as well.
        unsafe { libc::write(self.raw(), (&raw const one).cast(), 8) };
    }

    pub(crate) fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: eight writable bytes. The only failure is that there is nothing to drain.
        unsafe { libc::read(self.raw(), (&raw mut count).cast(), 8) };
    }
}
