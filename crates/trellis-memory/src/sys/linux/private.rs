//! Private memory as large as a region, allocated page by page when it is used.
//!
//! Promises: a forked child does not have it, and a core dump leaves it out. It is unmapped when it is dropped.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::memfd::drop_pages;

/// The memory. Nothing is mapped before the first use.
pub(crate) struct Private {
    /// The first address; 0 before the memory is mapped.
    base: AtomicUsize,
    bytes: usize,
}

impl Private {
    pub(crate) fn new(bytes: usize) -> Private {
        Private { base: AtomicUsize::new(0), bytes }
    }

    /// The first address. The first call maps the memory. It takes no lock: if two threads map it, one unmaps its
    /// mapping again.
    pub(crate) fn base(&self) -> io::Result<usize> {
        let base = self.base.load(Ordering::Acquire);
        if base != 0 {
            return Ok(base);
        }
        let mapped = map(self.bytes)?;
        match self.base.compare_exchange(0, mapped, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(mapped),
            Err(first) => {
                // SAFETY: mapped above, and the address was not published.
                unsafe { libc::munmap(mapped as *mut libc::c_void, self.bytes) };
                Ok(first)
            }
        }
    }

    /// Allocates all of the memory now, in huge pages if the kernel has them.
    pub(crate) fn populate(&self) -> io::Result<()> {
        let at = self.base()? as *mut libc::c_void;
        // SAFETY: this mapping; the advice changes no byte, and it does not matter if the kernel does not know it.
        unsafe { libc::madvise(at, self.bytes, libc::MADV_HUGEPAGE) };
        loop {
            // SAFETY: this mapping; MADV_POPULATE_WRITE faults pages in and changes no byte.
            match unsafe { libc::madvise(at, self.bytes, libc::MADV_POPULATE_WRITE) } {
                0 => return Ok(()),
                _ => match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EINTR) => {}
                    // This advice does not exist before Linux 5.14; memory is then allocated when it is used.
                    error if error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
                    error => return Err(error),
                },
            }
        }
    }

    /// Frees memory, which is zero when it is used again.
    pub(crate) fn give_back(&self, offset: usize, bytes: usize) {
        let base = self.base.load(Ordering::Acquire);
        if base != 0 && bytes > 0 {
            debug_assert!(offset + bytes <= self.bytes);
            drop_pages(base + offset, bytes).expect("memory of this process's own can always be given back");
        }
    }

    /// Moves whole pages of another memory here, where they replace what was there. Zeros remain in the other memory.
    /// Returns false if the kernel cannot do that; nothing has happened then.
    ///
    /// No other thread may access either memory meanwhile: the caller must have exclusive access to both.
    pub(crate) fn take_from(&self, offset: usize, other: &Private, from: usize, bytes: usize) -> bool {
        let (Ok(to), Ok(base)) = (self.base(), other.base()) else { return false };
        debug_assert!(offset + bytes <= self.bytes && from + bytes <= other.bytes);
        if bytes == 0 {
            return true;
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let (from, to) = ((base + from) as *mut libc::c_void, (to + offset) as *mut libc::c_void);
        // SAFETY: both are inside mappings of this module, which remain in place: the pages move, zeros take their
        // place, and the same advice applies to both mappings.
        if unsafe { libc::mremap(from, bytes, bytes, flags, to) } == to {
            return true;
        }
        // The destination may have been unmapped by the failed call.
        map_at(Some(to as usize), bytes).expect("a place in this process's own memory can be mapped again");
        false
    }
}

fn map(bytes: usize) -> io::Result<usize> {
    map_at(None, bytes)
}

/// Maps at an address inside a mapping of this module, replacing what is there, or at an address of the kernel's
/// choice.
fn map_at(place: Option<usize>, bytes: usize) -> io::Result<usize> {
    let fixed = place.map_or(0, |_| libc::MAP_FIXED);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let at = place.unwrap_or(0) as *mut libc::c_void;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing; one at an address to which the
    // caller has exclusive access replaces only the caller's pages.
    let at = unsafe { libc::mmap64(at, bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A huge page would use 2 MiB for the twin of one page. The advice only saves memory, so it does not matter if the
    // kernel does not know it.
    for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
        // SAFETY: the mapping made above.
        unsafe { libc::madvise(at, bytes, advice) };
    }
    Ok(at as usize)
}

impl Drop for Private {
    fn drop(&mut self) {
        let base = *self.base.get_mut();
        if base != 0 {
            // SAFETY: mapped by `base`, and the memory can no longer be accessed.
            unsafe { libc::munmap(base as *mut libc::c_void, self.bytes) };
        }
    }
}
