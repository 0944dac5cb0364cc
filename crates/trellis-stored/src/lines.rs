//! Lines: the table that programs compiled for mode `line` check before each access.
//!
//! # Why a stale state is harmless
//!
//! The check and the access are two steps, and a page frame may be removed between them in any implementation. A state
//! is therefore never what makes an access correct. The page frames are those of [`super::paging`], at the addresses of
//! the program, and the kernel's page protection remains authoritative. An access whose page frame was removed faults,
//! and is served like any other fault. A store to a page frame that was made read-only for a release faults too, and is
//! included in the next release. "May be read" and "may be written" only mean that the slow path has nothing to do.
//! There are three cases:
//!
//! - *The state says no, and the page frame would allow the access*: the slow path is taken once, and sets the state.
//! - *The state says yes, and the page frame was removed*: the access is a page fault. Eviction and invalidation clear
//!   the states of a page frame before they remove access to it, so this happens only to a thread between check and
//!   access, or to one whose slow path was overtaken and set a state late.
//! - *The state says yes, and so does the page frame*: no call at all.
//!
//! Any thread may therefore set and clear states with plain relaxed stores, without a lock.
//!
//! Promises: the table is at the address that programs contain in their instructions, uses memory only where lines were
//! used, and returns it with `Lines::clear` where possible. It must never be the reason why an access is allowed.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::layout::{
    LINE_BYTES, LINE_READABLE, LINE_SHIFT, LINE_STATES, LINE_STATES_BYTES, LINE_WRITABLE, PAGE_BYTES, REGION_BASE,
};

/// The number of lines in a page: their states are one cache line.
const LINES: usize = PAGE_BYTES / LINE_BYTES;
const WORDS: usize = LINES / 8;

/// The table of this process.
pub struct Lines(());

impl Lines {
    /// Maps the table at its fixed address.
    ///
    /// # Errors
    ///
    /// The kernel's, if something else is mapped there, including another table.
    pub fn map() -> io::Result<Lines> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let wanted: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(LINE_STATES);
        // SAFETY: MAP_FIXED_NOREPLACE maps only where nothing is.
        let at = unsafe { libc::mmap(wanted, LINE_STATES_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if at != wanted {
            // SAFETY: just mapped, and no other code knows the address.
            unsafe { libc::munmap(at, LINE_STATES_BYTES) };
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        // SAFETY: the mapping made above. A huge page would use 2 MiB for the states of one page.
        unsafe { libc::madvise(at, LINE_STATES_BYTES, libc::MADV_NOHUGEPAGE) };
        Ok(Lines(()))
    }

    /// Allows reading, or also writing, the lines that hold these bytes of the region.
    pub fn allow(&self, address: usize, bytes: usize, writable: bool) {
        let bits = if writable { LINE_READABLE | LINE_WRITABLE } else { LINE_READABLE };
        let first = (address - REGION_BASE) >> LINE_SHIFT;
        let last = (address + bytes.max(1) - 1 - REGION_BASE) >> LINE_SHIFT;
        for line in first..=last {
            self.state(line).fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Makes every access to these pages take the slow path.
    pub(crate) fn clear(&self, page: usize, count: usize) {
        for word in page * WORDS..(page + count) * WORDS {
            let states = self.word(word);
            // Read first: a store would allocate memory for states that were never set.
            if states.load(Ordering::Relaxed) != 0 {
                states.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Makes every store to these pages take the slow path.
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
        // SAFETY: inside the table, which stays mapped as long as this value, and is only used by atomic accesses and
        // by the loads of compiled programs.
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
        // SAFETY: mapped by `map`, and the value that represents the mapping is being dropped.
        unsafe { libc::munmap(at, LINE_STATES_BYTES) };
    }
}
