//! Lines: the table that programs compiled for mode `line` look at before each access.
//!
//! # Why no state can be wrong in a way that matters
//!
//! The check and the access are two steps, so a frame may go between them, whatever is done here. Hence a state is never
//! what makes an access right. The frames are those of [`super::paging`], at the addresses of the program, and the
//! kernel's page protection stays the truth: an access whose frame went faults, and is served like any other; a store to
//! a frame that was made read-only for a release faults, and is found by the next one. "May be read" and "may be written"
//! only say that the slow path has nothing to do. Three cases:
//!
//! - *The state says no, and the frame would allow it*: the slow path is taken once, and sets the state.
//! - *The state says yes, and the frame went*: the access is a page fault. Eviction and invalidation clear the states of
//!   a frame before they take its access away, so this happens only to a thread that was between check and access, or to
//!   one whose slow path was overtaken and set a state late.
//! - *The state says yes, and so does the frame*: no call at all.
//!
//! So states are set and cleared with plain relaxed stores, by whoever, without a lock.
//!
//! Promises: the table is at the address that programs have in their instructions, takes memory only where lines were
//! used, and gives it back with `Lines::clear` where it can. Must never be the reason why an access is allowed.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::layout::{
    LINE_BYTES, LINE_READABLE, LINE_SHIFT, LINE_STATES, LINE_STATES_BYTES, LINE_WRITABLE, PAGE_BYTES, REGION_BASE,
};

/// How many lines a page has: one cache line of states.
const LINES: usize = PAGE_BYTES / LINE_BYTES;
const WORDS: usize = LINES / 8;

/// The table of this process.
pub struct Lines(());

impl Lines {
    /// Maps the table where programs look for it.
    ///
    /// # Errors
    ///
    /// The kernel's, when something else is there, or another table.
    pub fn map() -> io::Result<Lines> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let wanted: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(LINE_STATES);
        // SAFETY: MAP_FIXED_NOREPLACE maps only where nothing is.
        let at = unsafe { libc::mmap(wanted, LINE_STATES_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if at != wanted {
            // SAFETY: just mapped, and nobody else knows it.
            unsafe { libc::munmap(at, LINE_STATES_BYTES) };
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        // SAFETY: the mapping made above. A huge page would take 2 MiB for the states of one page.
        unsafe { libc::madvise(at, LINE_STATES_BYTES, libc::MADV_NOHUGEPAGE) };
        Ok(Lines(()))
    }

    /// The lines that hold these bytes of the region may be read, or written too.
    pub fn allow(&self, address: usize, bytes: usize, writable: bool) {
        let bits = if writable { LINE_READABLE | LINE_WRITABLE } else { LINE_READABLE };
        let first = (address - REGION_BASE) >> LINE_SHIFT;
        let last = (address + bytes.max(1) - 1 - REGION_BASE) >> LINE_SHIFT;
        for line in first..=last {
            self.state(line).fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Nothing of these pages may be used without asking.
    pub(crate) fn clear(&self, page: usize, count: usize) {
        for word in page * WORDS..(page + count) * WORDS {
            let states = self.word(word);
            // Looked at first: a store would take memory where no line was ever used.
            if states.load(Ordering::Relaxed) != 0 {
                states.store(0, Ordering::Relaxed);
            }
        }
    }

    /// No line of these pages may be written without asking.
    pub(crate) fn protect(&self, page: usize, count: usize) {
        const READABLE: u64 = u64::from_ne_bytes([LINE_READABLE; 8]);
        for word in page * WORDS..(page + count) * WORDS {
            let states = self.word(word);
            if states.load(Ordering::Relaxed) & !READABLE != 0 {
                states.fetch_and(READABLE, Ordering::Relaxed);
            }
        }
    }

    fn state(&self, line: usize) -> &AtomicU8 {
        assert!(line < LINE_STATES_BYTES, "line {line} is outside of every region");
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(LINE_STATES + line);
        // SAFETY: inside the table, which stays mapped as long as this value, and is only used by atomic accesses and by
        // the loads of compiled programs.
        unsafe { AtomicU8::from_ptr(at) }
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < LINE_STATES_BYTES / 8, "word {word} is outside of the table");
        let at: *mut u64 = std::ptr::with_exposed_provenance_mut(LINE_STATES + 8 * word);
        // SAFETY: as in `state`; aligned, because the table is.
        unsafe { AtomicU64::from_ptr(at) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let at: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(LINE_STATES);
        // SAFETY: mapped by `map`, and the value that stands for it goes now.
        unsafe { libc::munmap(at, LINE_STATES_BYTES) };
    }
}
