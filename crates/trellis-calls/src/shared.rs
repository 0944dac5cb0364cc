//! Which addresses are shared memory.
//!
//! Promises: a look costs a load and a comparison for each region, allocates nothing and takes no lock, so that any
//! call may look, also in a signal handler. The table is changed by the runtime alone, when a region begins and ends.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The maximum number of regions of a process, or of their pieces: a program with threads has one or two for each of
/// its libraries.
const REGIONS_MAX: usize = 2048;

struct Range {
    start: AtomicUsize,
    /// Zero: the slot is free.
    bytes: AtomicUsize,
}

static RANGES: [Range; REGIONS_MAX] =
    [const { Range { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; REGIONS_MAX];
/// One more than the last slot that was ever taken.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);

/// Counts a range of addresses as shared from now on; false if the table is full. Only the runtime calls this, one
/// thread at a time.
pub(crate) fn add(start: usize, bytes: usize) -> bool {
    let Some(slot) = RANGES.iter().position(|range| range.bytes.load(Ordering::Relaxed) == 0) else { return false };
    RANGES[slot].start.store(start, Ordering::Relaxed);
    // Stored last: from here on calls see the range.
    RANGES[slot].bytes.store(bytes, Ordering::Release);
    SLOTS_USED.fetch_max(slot + 1, Ordering::Release);
    true
}

/// The range that begins at `start` is not shared any more.
pub(crate) fn remove(start: usize) {
    for range in &RANGES {
        if range.bytes.load(Ordering::Relaxed) != 0 && range.start.load(Ordering::Relaxed) == start {
            range.bytes.store(0, Ordering::Release);
        }
    }
}

/// Whether any byte of these is shared.
pub(crate) fn overlaps<T: ?Sized>(first: *const T, bytes: usize) -> bool {
    let start = first.cast::<u8>() as usize;
    let used = SLOTS_USED.load(Ordering::Acquire);
    RANGES[..used].iter().any(|range| {
        let length = range.bytes.load(Ordering::Acquire);
        let base = range.start.load(Ordering::Relaxed);
        length != 0 && start < base + length && start.saturating_add(bytes) > base
    })
}

/// The number of bytes from a shared address to the end of its region.
pub(crate) fn rest<T: ?Sized>(first: *const T) -> usize {
    let start = first.cast::<u8>() as usize;
    let used = SLOTS_USED.load(Ordering::Acquire);
    let rest = RANGES[..used].iter().find_map(|range| {
        let length = range.bytes.load(Ordering::Acquire);
        let inside = start.wrapping_sub(range.start.load(Ordering::Relaxed));
        (inside < length).then(|| length - inside)
    });
    rest.unwrap_or(0)
}

/// Whether there is any shared memory at all.
pub(crate) fn is_any() -> bool {
    SLOTS_USED.load(Ordering::Acquire) != 0
}

/// The runtime's function for [`announce`]; null before the runtime sets it.
static ANNOUNCE: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// The size of the smallest page: a fault on one costs no more than announcing it.
const PAGE_BYTES_MIN: usize = 4096;

/// Sets the function that is called for announced accesses.
pub(crate) fn announce_to(announce: extern "C" fn(usize, usize, bool)) {
    ANNOUNCE.store(announce as *mut (), Ordering::Release);
}

/// Announces that the caller is about to read these bytes, or to store to them. Missing pages then come together.
pub(crate) fn announce<T: ?Sized>(first: *const T, bytes: usize, stores: bool) {
    if bytes <= PAGE_BYTES_MIN {
        return;
    }
    let announce = ANNOUNCE.load(Ordering::Acquire);
    if !announce.is_null() {
        // SAFETY: `announce_to` stored a function of this type.
        let announce = unsafe { std::mem::transmute::<*mut (), extern "C" fn(usize, usize, bool)>(announce) };
        announce(first.cast::<u8>() as usize, bytes, stores);
    }
}
