//! The table of regions that catch faults: fixed, in static memory, read by signal handlers without a lock.
//!
//! Promises: a slot is taken and released under a mutex, never on the path of a fault. A handler that has found its
//! slot increments a counter before it uses the slot's server. A thread that releases the slot frees the server only if
//! the counter is zero, and otherwise never.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use crate::region::{Fault, FaultServer};

/// The maximum number of regions of a process that can catch faults at the same time; each piece of a region counts as
/// one.
pub const REGIONS_MAX: usize = 64;

/// The maximum number of a region's descriptors: its bytes, and what its catcher uses.
pub(crate) const DESCRIPTORS: usize = 5;

/// One slot of the table.
pub(crate) struct Watch {
    base: AtomicUsize,
    /// The size of the region in bytes; 0 while the slot is free.
    bytes: AtomicUsize,
    page_shift: AtomicUsize,
    /// The number of the page at the first address.
    first_page: AtomicUsize,
    /// The server; null if the region's faults do not arrive as signals.
    server: AtomicPtr<Arc<dyn FaultServer>>,
    serving: AtomicUsize,
    /// The descriptors that a forked child closes.
    descriptors: [AtomicI32; DESCRIPTORS],
}

static WATCHES: [Watch; REGIONS_MAX] = [const { Watch::free() }; REGIONS_MAX];
static CHANGES: Mutex<()> = Mutex::new(());
static AT_FORK: Once = Once::new();

/// The table's information about a region.
pub(crate) struct Watched {
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    pub(crate) page_bytes: usize,
    pub(crate) first_page: usize,
    pub(crate) server: Option<Arc<dyn FaultServer>>,
    pub(crate) descriptors: [Option<RawFd>; DESCRIPTORS],
}

/// A taken slot. Dropping it releases it.
pub(crate) struct Slot {
    watch: &'static Watch,
}

/// Takes a slot. `None` if all are taken.
pub(crate) fn take(watched: Watched) -> Option<Slot> {
    AT_FORK.call_once(|| {
        // SAFETY: the function only closes descriptors, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
    });
    let _changing = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = WATCHES.iter().find(|watch| watch.bytes.load(Ordering::Relaxed) == 0)?;
    let server = watched.server.map_or(std::ptr::null_mut(), |server| Box::into_raw(Box::new(server)));
    watch.base.store(watched.base, Ordering::Relaxed);
    watch.page_shift.store(watched.page_bytes.trailing_zeros() as usize, Ordering::Relaxed);
    watch.first_page.store(watched.first_page, Ordering::Relaxed);
    for (place, number) in watch.descriptors.iter().zip(watched.descriptors) {
        place.store(number.unwrap_or(-1), Ordering::Relaxed);
    }
    watch.server.store(server, Ordering::SeqCst);
    // The size is stored last: handlers see the slot from here on.
    watch.bytes.store(watched.bytes, Ordering::Release);
    Some(Slot { watch })
}

/// The slot of the region that contains `address`.
pub(crate) fn find(address: usize) -> Option<&'static Watch> {
    WATCHES.iter().find(|watch| {
        let bytes = watch.bytes.load(Ordering::Acquire);
        address.wrapping_sub(watch.base.load(Ordering::Relaxed)) < bytes
    })
}

impl Watch {
    const fn free() -> Watch {
        Watch {
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            page_shift: AtomicUsize::new(0),
            first_page: AtomicUsize::new(0),
            server: AtomicPtr::new(std::ptr::null_mut()),
            serving: AtomicUsize::new(0),
            descriptors: [const { AtomicI32::new(-1) }; DESCRIPTORS],
        }
    }

    /// The region's first address and its size.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Whether faults of this region arrive as signals at all.
    pub(crate) fn serves(&self) -> bool {
        !self.server.load(Ordering::SeqCst).is_null()
    }

    /// Lets the server serve the fault at `address`. Returns when the access may be retried.
    pub(crate) fn serve(&self, address: usize, write: bool) {
        self.serving.fetch_add(1, Ordering::SeqCst);
        let server = self.server.load(Ordering::SeqCst);
        if !server.is_null() {
            let byte = address - self.base.load(Ordering::Relaxed);
            let shift = self.page_shift.load(Ordering::Relaxed);
            let page = self.first_page.load(Ordering::Relaxed) + (byte >> shift);
            let offset = byte & ((1 << shift) - 1);
            // SAFETY: the counter was incremented, so the server is not freed before it is decremented.
            unsafe { (*server).serve(Fault { page, offset, write }) };
        }
        self.serving.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let server = {
            let _changing = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
            let server = self.watch.server.swap(std::ptr::null_mut(), Ordering::SeqCst);
            self.watch.descriptors.iter().for_each(|number| number.store(-1, Ordering::Relaxed));
            self.watch.bytes.store(0, Ordering::Release);
            server
        };
        if !server.is_null() && self.watch.serving.load(Ordering::SeqCst) == 0 {
            // SAFETY: it came from Box::into_raw in `take`; no handler uses it, and none can find it any more.
            drop(unsafe { Box::from_raw(server) });
        }
    }
}

/// A forked child has no region; it must neither keep the region's memory alive nor read its faults.
extern "C" fn close_in_child() {
    for watch in &WATCHES {
        for number in &watch.descriptors {
            let number = number.swap(-1, Ordering::Relaxed);
            if number >= 0 {
                // SAFETY: the child's copy of a descriptor of the table; a Region never closes its own in a child.
                unsafe { libc::close(number) };
            }
        }
    }
}
