//! Memory of this process, mapped at a fixed range: the memory of a heap that has no store.
//!
//! Promises: the range was free before it was reserved. Its pages are zero until they are written, and again after they
//! were released.

use std::io;
use std::ops::Range;

use super::{Memory, PAGE_BYTES};

/// Private memory at a fixed range. It stays reserved when this is dropped, because blocks may be in use.
#[derive(Debug)]
pub struct Native {
    range: Range<u64>,
}

impl Native {
    /// Reserves a range of addresses; its pages use no memory before they are written.
    ///
    /// # Errors
    ///
    /// The error of the kernel, if it does not provide this range.
    pub fn reserve(range: Range<u64>) -> io::Result<Native> {
        let bytes = (range.end - range.start) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let wanted = std::ptr::with_exposed_provenance_mut(range.start as usize);
        // SAFETY: because of MAP_FIXED_NOREPLACE, the kernel replaces no existing mapping.
        let got = unsafe { libc::mmap(wanted, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        assert_eq!(got, wanted, "the kernel knows MAP_FIXED_NOREPLACE");
        Ok(Native { range })
    }

    fn check(&self, bytes: &Range<u64>) {
        assert!(self.range.start <= bytes.start && bytes.end <= self.range.end, "{bytes:?} is not in the heap's range");
    }
}

impl Memory for Native {
    fn released(&self, pages: Range<u64>) -> bool {
        self.check(&pages);
        debug_assert!(pages.start.is_multiple_of(PAGE_BYTES) && pages.end.is_multiple_of(PAGE_BYTES));
        let first = std::ptr::with_exposed_provenance_mut(pages.start as usize);
        // SAFETY: these pages are in the reserved range, and by the heap's promise they are unused.
        unsafe { libc::madvise(first, (pages.end - pages.start) as usize, libc::MADV_DONTNEED) == 0 }
    }

    fn fresh(&self, _: Range<u64>) {}

    fn zero(&self, bytes: Range<u64>) {
        self.check(&bytes);
        let first: *mut u8 = std::ptr::with_exposed_provenance_mut(bytes.start as usize);
        // SAFETY: the bytes are in the reserved range, in a block that no other thread knows yet.
        unsafe { first.write_bytes(0, (bytes.end - bytes.start) as usize) };
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) {
        self.check(&(from..from + bytes));
        self.check(&(to..to + bytes));
        let from: *const u8 = std::ptr::with_exposed_provenance(from as usize);
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: both blocks are in the reserved range and do not overlap; the old one is the caller's, and no other
        // thread knows the new one yet.
        unsafe { from.copy_to_nonoverlapping(to, bytes as usize) };
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller's promise.
        unsafe { bytes.as_ptr().copy_to(to, bytes.len()) };
    }

    fn survives_fork(&self) -> bool {
        true
    }
}
