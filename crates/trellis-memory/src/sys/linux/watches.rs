//! The table of regions that catch faults: fixed, in static memory, read by signal handlers without a lock. Each piece of
//! a region has a slot.
//!
//! Promises: slots are taken and released under a mutex, never on the path of a fault. A handler that has found its
//! slot increments a counter before it uses the slot's server. A thread that releases the slot frees the server only if
//! the counter is zero, and otherwise never.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use crate::region::{Fault, FaultServer};

/// The maximum number of regions of a process that can catch faults at the same time.
pub const REGIONS_MAX: usize = 64;
/// The maximum number of their pieces: a program with threads has one or two for each of its libraries.
const PIECES_MAX: usize = 2048;

/// The maximum number of a region's descriptors: its bytes, and what its catcher uses.
pub(crate) const DESCRIPTORS: usize = 1 + crate::catch::DESCRIPTORS;

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
    /// The descriptors that a forked child closes, as their complements: a table of zeros needs no room in files.
    descriptors: [AtomicI32; DESCRIPTORS],
}

/// No descriptor: the complement of -1.
const NONE: RawFd = !-1;

static WATCHES: [Watch; PIECES_MAX] = [const { Watch::free() }; PIECES_MAX];
/// The number of regions.
static REGIONS: Mutex<usize> = Mutex::new(0);
static AT_FORK: Once = Once::new();

/// The table's information about a piece of a region.
pub(crate) struct Watched {
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    pub(crate) page_bytes: usize,
    pub(crate) first_page: usize,
    pub(crate) server: Option<Arc<dyn FaultServer>>,
    pub(crate) descriptors: [Option<RawFd>; DESCRIPTORS],
}

/// The slots of a region. Dropping this releases them.
pub(crate) struct Slots {
    watches: Vec<&'static Watch>,
}

/// Takes the slots of a region. `None` if too many are taken.
pub(crate) fn take(pieces: Vec<Watched>) -> Option<Slots> {
    AT_FORK.call_once(|| {
        // SAFETY: the function only closes descriptors, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
    });
    let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |watch: &&Watch| watch.bytes.load(Ordering::Relaxed) == 0;
    let watches: Vec<&'static Watch> = WATCHES.iter().filter(is_free).take(pieces.len()).collect();
    if *regions >= REGIONS_MAX || watches.len() < pieces.len() {
        return None;
    }
    *regions += 1;
    watches.iter().zip(pieces).for_each(|(watch, piece)| watch.begin(piece));
    Some(Slots { watches })
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
            descriptors: [const { AtomicI32::new(NONE) }; DESCRIPTORS],
        }
    }

    fn begin(&self, watched: Watched) {
        let server = watched.server.map_or(std::ptr::null_mut(), |server| Box::into_raw(Box::new(server)));
        self.base.store(watched.base, Ordering::Relaxed);
        self.page_shift.store(watched.page_bytes.trailing_zeros() as usize, Ordering::Relaxed);
        self.first_page.store(watched.first_page, Ordering::Relaxed);
        for (place, number) in self.descriptors.iter().zip(watched.descriptors) {
            place.store(number.map_or(NONE, |number| !number), Ordering::Relaxed);
        }
        self.server.store(server, Ordering::SeqCst);
        // The size is stored last: handlers see the slot from here on.
        self.bytes.store(watched.bytes, Ordering::Release);
    }

    /// The slot is free from now on; returns its server.
    fn end(&self) -> *mut Arc<dyn FaultServer> {
        let server = self.server.swap(std::ptr::null_mut(), Ordering::SeqCst);
        self.descriptors.iter().for_each(|number| number.store(NONE, Ordering::Relaxed));
        self.bytes.store(0, Ordering::Release);
        server
    }

    /// The piece's first address and its size.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Whether faults of this region arrive as signals at all.
    pub(crate) fn serves(&self) -> bool {
        !self.server.load(Ordering::SeqCst).is_null()
    }

    /// Lets the server serve the fault at `address`. Returns when the access may be retried.
    pub(crate) fn serve(&self, address: usize, write: bool) {
        self.with_server(|server| {
            let (page, offset) = self.place(address);
            server.serve(Fault { page, offset, write });
        });
    }

    /// Tells the server that the bytes from `first` to `last` are about to be touched, if they are in more than one page.
    pub(crate) fn announce(&self, first: usize, last: usize, write: bool) {
        self.with_server(|server| {
            let pages = self.place(first).0..self.place(last).0 + 1;
            if pages.len() > 1 {
                server.announce(pages, write);
            }
        });
    }

    /// The page of an address, and its place there.
    fn place(&self, address: usize) -> (usize, usize) {
        let byte = address - self.base.load(Ordering::Relaxed);
        let shift = self.page_shift.load(Ordering::Relaxed);
        (self.first_page.load(Ordering::Relaxed) + (byte >> shift), byte & ((1 << shift) - 1))
    }

    fn with_server(&self, call: impl FnOnce(&dyn FaultServer)) {
        self.serving.fetch_add(1, Ordering::SeqCst);
        let server = self.server.load(Ordering::SeqCst);
        if !server.is_null() {
            // SAFETY: the counter was incremented, so the server is not freed before it is decremented.
            call(unsafe { &**server });
        }
        self.serving.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let servers: Vec<*mut Arc<dyn FaultServer>> = {
            let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
            *regions -= 1;
            self.watches.iter().map(|watch| watch.end()).collect()
        };
        for (watch, server) in self.watches.iter().zip(servers) {
            if !server.is_null() && watch.serving.load(Ordering::SeqCst) == 0 {
                // SAFETY: it came from Box::into_raw in `begin`; no handler uses it, and none can find it any more.
                drop(unsafe { Box::from_raw(server) });
            }
        }
    }
}

/// A forked child has no region; it must neither keep the region's memory alive nor read its faults.
extern "C" fn close_in_child() {
    for watch in &WATCHES {
        for number in &watch.descriptors {
            let complement = number.swap(NONE, Ordering::Relaxed);
            if complement != NONE {
                // SAFETY: the child's copy of a descriptor of the table; a Region never closes its own in a child.
                unsafe { libc::close(!complement) };
            }
        }
    }
}
