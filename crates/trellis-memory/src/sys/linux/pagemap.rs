//! PAGEMAP_SCAN (Linux 6.7): finds the pages of a range that have certain properties, in one request.
//!
//! The structures and numbers are the kernel's ABI (include/uapi/linux/fs.h), and are asserted. Promises: a scan
//! allocates nothing, takes no lock of the runtime and changes nothing.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, RawFd};

use super::errno;

/// The page is writable as far as userfaultfd is concerned.
const WRITTEN: u64 = 1 << 1;
/// The page is mapped.
const PRESENT: u64 = 1 << 3;
/// The page table has an entry that is not a page: the page is swapped out, or only its protection is recorded.
const SWAPPED: u64 = 1 << 4;
/// The only category that every page of a range with marks has: results are merged by it.
const ALLOWED: u64 = 1 << 0;
/// The maximum number of ranges in an answer. They are on the stack, which may be a signal handler's.
const RANGES: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct FoundRange {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanRequest {
    bytes: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_len: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: u64 = (3 << 30) | ((size_of::<ScanRequest>() as u64) << 16) | (0x66 << 8) | 16;

const _: () = {
    assert!(size_of::<FoundRange>() == 24);
    assert!(size_of::<ScanRequest>() == 96);
    assert!(PAGEMAP_SCAN == 0xc060_6610);
};

/// What a scan looks for.
#[derive(Clone, Copy)]
pub(crate) enum Sought {
    /// Pages that are mapped and that a store can change, or has changed, without a fault.
    Written,
    /// Also pages that were mapped and no longer are: when the kernel reclaims pages, it does not keep whether they
    /// were stored to. Pages that were never mapped may be found, too. The kernel answers this query fastest.
    WrittenOrGone,
}

/// The page table of this process.
pub(crate) struct Pagemap {
    file: File,
}

impl Pagemap {
    pub(crate) fn open() -> io::Result<Pagemap> {
        Ok(Pagemap { file: File::open("/proc/self/pagemap")? })
    }

    /// The descriptor's number.
    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Calls `found` with the addresses of each range found, ascending: start and end.
    pub(crate) fn scan(
        &self,
        start: usize,
        end: usize,
        sought: Sought,
        found: &mut dyn FnMut(usize, usize),
    ) -> Result<(), i32> {
        let mut ranges = [FoundRange { start: 0, end: 0, categories: 0 }; RANGES];
        let mut at = start as u64;
        while at < end as u64 {
            let mut request = ScanRequest {
                bytes: size_of::<ScanRequest>() as u64,
                start: at,
                end: end as u64,
                vector: ranges.as_mut_ptr() as u64,
                vector_len: RANGES as u64,
                return_mask: ALLOWED,
                ..ScanRequest::default()
            };
            match sought {
                Sought::Written => {
                    request.category_mask = WRITTEN;
                    request.category_any_of_mask = PRESENT | SWAPPED;
                }
                Sought::WrittenOrGone => {
                    request.category_mask = WRITTEN;
                    request.return_mask = WRITTEN;
                }
            }
            // SAFETY: the request matches the number, lives for the call, and its vector is as long as it says.
            let count = unsafe { libc::ioctl(self.number(), PAGEMAP_SCAN as _, &raw mut request) };
            let Ok(count) = usize::try_from(count) else {
                match errno() {
                    libc::EINTR => continue,
                    error => return Err(error),
                }
            };
            for range in &ranges[..count.min(RANGES)] {
                found(range.start as usize, range.end as usize);
            }
            assert!(request.walk_end > at, "PAGEMAP_SCAN goes forward");
            at = request.walk_end;
        }
        Ok(())
    }
}

/// Scans nothing, to test whether the kernel accepts the request.
pub(crate) fn is_known() -> Result<(), String> {
    let map = Pagemap::open().map_err(|error| format!("/proc/self/pagemap cannot be opened ({error})"))?;
    let page = super::kernel_page_bytes();
    map.scan(page, 2 * page, Sought::Written, &mut |_, _| {})
        .map_err(|error| format!("{}; Linux 6.7 or newer has it", io::Error::from_raw_os_error(error)))
}
