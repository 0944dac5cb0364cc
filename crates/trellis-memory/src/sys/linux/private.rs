//! Private memory as large as a region, taken page by page where it is used.
//!
//! A forked child does not have it, and a core dump leaves it out. It unmaps itself when dropped.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::memfd::drop_pages;

/// The memory; nothing is mapped before it is first asked for.
pub(crate) struct Private {
    /// Zero: not mapped yet.
    base: AtomicUsize,
    bytes: usize,
}

impl Private {
    pub(crate) fn new(bytes: usize) -> Private {
        Private { base: AtomicUsize::new(0), bytes }
    }

    /// The first address; maps the memory when nobody did. Takes no lock: of two threads that map it, one gives its
    /// mapping back.
    pub(crate) fn base(&self) -> io::Result<usize> {
        let base = self.base.load(Ordering::Acquire);
        if base != 0 {
            return Ok(base);
        }
        let mapped = map(self.bytes)?;
        match self.base.compare_exchange(0, mapped, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(mapped),
            Err(first) => {
                // SAFETY: mapped above, and nobody else was told.
                unsafe { libc::munmap(mapped as *mut libc::c_void, self.bytes) };
                Ok(first)
            }
        }
    }

    /// Takes all of the memory now, in huge pages where the kernel has them. The error is the system's.
    pub(crate) fn populate(&self) -> io::Result<()> {
        let at = self.base()? as *mut libc::c_void;
        // SAFETY: this mapping; the advice changes no byte, and a kernel that does not know it is no matter.
        unsafe { libc::madvise(at, self.bytes, libc::MADV_HUGEPAGE) };
        loop {
            // SAFETY: this mapping; MADV_POPULATE_WRITE faults pages in and changes no byte.
            match unsafe { libc::madvise(at, self.bytes, libc::MADV_POPULATE_WRITE) } {
                0 => return Ok(()),
                _ => match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EINTR) => {}
                    // Before Linux 5.14 there is no such advice: then memory is taken when it is used.
                    error if error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
                    error => return Err(error),
                },
            }
        }
    }

    /// Gives memory back; it is zero when it is used again.
    pub(crate) fn give_back(&self, offset: usize, bytes: usize) {
        let base = self.base.load(Ordering::Acquire);
        if base != 0 && bytes > 0 {
            debug_assert!(offset + bytes <= self.bytes);
            drop_pages(base + offset, bytes).expect("memory of this process's own can always be given back");
        }
    }
}

fn map(bytes: usize) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe { libc::mmap64(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A huge page would take 2 MiB for the twin of one page. The advices save memory only, so a kernel that does not
    // know one is no matter.
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
            // SAFETY: mapped by `base`, and nobody can ask for it any more.
            unsafe { libc::munmap(base as *mut libc::c_void, self.bytes) };
        }
    }
}
