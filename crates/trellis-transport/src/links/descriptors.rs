//! File descriptors that a forked child must not keep, and the epoll and event descriptors made of them.
//!
//! Promises: every descriptor of this crate is closed in a child right after `fork`, before the child runs any code of
//! its own, because an open socket in the child would hide the death of its parent from the peers. In the child
//! [`Descriptor::raw`] then returns -1, on which every system call fails, and [`Descriptor::borrowed`] fails.
//!
//! It must never close a number that it no longer owns.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::io::Errno;

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
    /// Takes over the descriptor that `open` creates.
    pub(crate) fn adopt(open: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> io::Result<Descriptor> {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: the three functions live as long as the process (or this library).
            unsafe { libc::pthread_atfork(Some(lock_fork), Some(unlock_fork), Some(forget_all)) };
        });
        let _guard = ForkGuard::lock();
        enter(open()?)
    }

    /// The number, or -1 in a forked child.
    #[inline]
    pub(crate) fn raw(&self) -> RawFd {
        self.slot.load(Ordering::Relaxed) - 1
    }

    /// The descriptor for a system call; fails with `EBADF` in a forked child.
    #[inline]
    pub(crate) fn borrowed(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        match self.raw() {
            -1 => Err(Errno::BADF),
            // SAFETY: the number is in our slot, so it is open until the descriptor is dropped. A fork closes it only
            // in the child, whose one thread is inside `fork` then and not inside a system call on this descriptor.
            number => Ok(unsafe { BorrowedFd::borrow_raw(number) }),
        }
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
fn enter(file: OwnedFd) -> io::Result<Descriptor> {
    let start = NEXT_SLOT.load(Ordering::Relaxed);
    for step in 0..DESCRIPTORS_MAX {
        let index = (start + step) % DESCRIPTORS_MAX;
        let slot = &SLOTS[index];
        if slot.load(Ordering::Relaxed) == 0 {
            slot.store(file.into_raw_fd() + 1, Ordering::Relaxed);
            NEXT_SLOT.store(index + 1, Ordering::Relaxed);
            return Ok(Descriptor { slot });
        }
    }
    Err(io::Error::other("the links of this process hold 8192 descriptors already; close a link"))
}

/// Room for what [`Epoll::ready`] finds.
pub(crate) const NO_EVENT: epoll::Event = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };

/// An epoll descriptor.
pub(crate) struct Epoll {
    descriptor: Descriptor,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let descriptor = Descriptor::adopt(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        Ok(Epoll { descriptor })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor.raw()
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    pub(crate) fn add(&self, source: &Descriptor, output: bool, token: u64) -> io::Result<()> {
        self.add_borrowed(source.borrowed()?, output, token)
    }

    /// Adds a descriptor that is not of this crate.
    pub(crate) fn add_borrowed(&self, source: BorrowedFd<'_>, output: bool, token: u64) -> io::Result<()> {
        Ok(epoll::add(self.descriptor.borrowed()?, source, EventData::new_u64(token), wanted(output))?)
    }

    pub(crate) fn modify(&self, source: &Descriptor, output: bool, token: u64) -> io::Result<()> {
        let source = source.borrowed()?;
        Ok(epoll::modify(self.descriptor.borrowed()?, source, EventData::new_u64(token), wanted(output))?)
    }

    pub(crate) fn remove(&self, source: &Descriptor) {
        if let (Ok(own), Ok(source)) = (self.descriptor.borrowed(), source.borrowed()) {
            // A descriptor that is gone already is the wanted result.
            let _ = epoll::delete(own, source);
        }
    }

    /// What is ready now; never waits. A failure counts as nothing.
    pub(crate) fn ready(&self, events: &mut [epoll::Event]) -> usize {
        let Ok(own) = self.descriptor.borrowed() else { return 0 };
        epoll::wait(own, events, Some(&Timespec::default())).unwrap_or(0)
    }
}

fn wanted(output: bool) -> EventFlags {
    if output { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}

/// A descriptor that is readable from `signal` to `drain`.
pub(crate) struct Event {
    descriptor: Descriptor,
}

impl Event {
    pub(crate) fn new() -> io::Result<Event> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = Descriptor::adopt(|| rustix::event::eventfd(0, flags))?;
        Ok(Event { descriptor })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor.raw()
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    pub(crate) fn signal(&self) {
        signal(&self.descriptor);
    }

    pub(crate) fn drain(&self) {
        if let Ok(own) = self.descriptor.borrowed() {
            // The only failure is that there is nothing to drain.
            let _ = rustix::io::read(own, &mut [0; 8]);
        }
    }
}

/// Makes an event descriptor readable, one of this process or one that a peer handed over.
pub(crate) fn signal(event: &Descriptor) {
    if let Ok(event) = event.borrowed() {
        // The only failure is a counter at its maximum, which is readable as well.
        let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
    }
}
