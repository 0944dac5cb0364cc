//! Memory into which extents of the kernel's memory are mapped, and the sharing of its pages with the program in the
//! kernel.
//!
//! One range of addresses as long as the memory. An extent belongs to the process at first, and to the kernel once it
//! is zeroed for its first object; a second mapping then has the state of its pages.
//!
//! Promises: before a side changes or copies a page of the kernel's memory, it makes the page's version odd, which the
//! other side cannot do while it is so. Afterwards it makes the version even again: the same as before if nothing was
//! changed, otherwise the next one. The program never waits, and holds a page no longer than it takes to copy 4 KiB, so
//! that spinning here ends. Pages are held in ascending order. It must never be called by more than one thread of the
//! process.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::checksum;
use super::layout::{EXTENT_BYTES, EXTENT_PAGES, EXTENT_TABLE_AT, EXTENTS_MAX, KNOWN_BYTES, PAGE_BYTES};

const TABLE_BYTES: usize = EXTENT_PAGES as usize * KNOWN_BYTES;
/// How often a page that the program holds is checked before the thread yields: the program holds it for a few
/// microseconds, unless it was interrupted.
const SPINS: u32 = 1000;

/// The state of a page; see `switch/memory_layout.h`.
#[repr(C, align(32))]
struct Known {
    entry: AtomicU64,
    version: AtomicU64,
    digest: AtomicU64,
    unused: AtomicU64,
}

const _: () = {
    assert!(size_of::<Known>() == KNOWN_BYTES);
    assert!(std::mem::offset_of!(Known, version) == super::layout::KNOWN_VERSION_AT);
    assert!(std::mem::offset_of!(Known, digest) == super::layout::KNOWN_DIGEST_AT);
};

/// The owner of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// The process; nothing is there yet.
    Fresh,
    /// The process, permanently.
    Own,
    /// The kernel; the states of its pages.
    Kernel(NonNull<Known>),
}

/// See the top of this file.
pub(super) struct Shared {
    base: NonNull<u8>,
    bytes: u64,
    extents: Vec<Extent>,
}

// SAFETY: the mappings belong to the value alone, and nothing in them depends on the thread.
unsafe impl Send for Shared {}

impl Shared {
    /// Address space for this many bytes, a whole number of pages.
    pub(super) fn new(bytes: u64) -> io::Result<Shared> {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES), "{bytes} bytes are no whole pages");
        let length = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { map(std::ptr::null_mut(), length, flags, -1, 0)? };
        let extents = vec![Extent::Fresh; bytes.div_ceil(EXTENT_BYTES) as usize];
        Ok(Shared { base, bytes, extents })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn bytes_in_kernel(&self) -> u64 {
        let of = |(number, extent): (usize, &Extent)| {
            let range = self.extent_range(number);
            if matches!(extent, Extent::Kernel(_)) { range.end - range.start } else { 0 }
        };
        self.extents.iter().enumerate().map(of).sum()
    }

    pub(super) fn read<'a>(&self, range: Range<u64>, room: &'a mut Vec<u8>) -> &'a [u8] {
        let at = self.inside(&range);
        room.clear();
        self.hold(&range);
        // SAFETY: inside the mapping. There is no writer: this thread does not write, and the program holds none of these
        // pages.
        room.extend_from_slice(unsafe { std::slice::from_raw_parts(at.as_ptr(), (range.end - range.start) as usize) });
        self.release(&range, false);
        room
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        let at = self.inside(&range);
        self.hold(&range);
        // SAFETY: inside the mapping, and `bytes` are elsewhere. The program neither writes to these pages now, nor
        // trusts what it reads there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        self.release(&range, true);
    }

    /// Zeroes bytes that no entry admits. `make` returns an extent of the kernel's memory, or `None` if there is none.
    pub(super) fn zero(&mut self, range: Range<u64>, make: &mut dyn FnMut(u64) -> Option<OwnedFd>) {
        self.inside(&range);
        let mut from = range.start;
        while from < range.end {
            let number = (from / EXTENT_BYTES) as usize;
            let until = range.end.min((number as u64 + 1) * EXTENT_BYTES);
            if self.extents[number] == Extent::Fresh {
                let made = if (number as u64) < EXTENTS_MAX { make(number as u64) } else { None };
                // Both kinds of memory are zero at first.
                self.extents[number] = made.and_then(|map| self.adopt(number, &map)).unwrap_or(Extent::Own);
            } else {
                self.clear(from..until);
            }
            from = until;
        }
    }

    pub(super) fn replace(&mut self, offset: u64, with: &dyn Fn(u64) -> Option<u64>) -> u64 {
        let range = offset..offset + 8;
        let at = self.inside(&range).cast::<[u8; 8]>();
        self.hold(&range);
        // SAFETY: inside the mapping, at any alignment; the program does not write there now.
        let before = u64::from_le_bytes(unsafe { at.as_ptr().read_unaligned() });
        let after = with(before);
        if let Some(after) = after {
            // SAFETY: as above, and the program does not trust what it reads there.
            unsafe { at.as_ptr().write_unaligned(after.to_le_bytes()) };
        }
        self.release(&range, after.is_some());
        before
    }

    pub(super) fn publish(&mut self, first_page: u64, entries: &mut dyn Iterator<Item = u64>) {
        for (page, entry) in (first_page..self.bytes / PAGE_BYTES).zip(entries) {
            let Some(known) = self.known(page) else { continue };
            hold(known);
            known.entry.store(entry, Ordering::Relaxed);
            // The bytes are unchanged, but a reader that copies them under the old entry must not trust them.
            known.digest.store(0, Ordering::Relaxed);
            known.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Maps an extent of the kernel's memory in place of one of the process, in which nothing was stored.
    fn adopt(&mut self, number: usize, extent: &OwnedFd) -> Option<Extent> {
        let range = self.extent_range(number);
        let (flags, file) = (libc::MAP_SHARED, extent.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let table = unsafe { map(std::ptr::null_mut(), TABLE_BYTES, flags, file, EXTENT_TABLE_AT).ok()? };
        // SAFETY: these addresses are in this value's mapping, in an unused part: the extent is fresh.
        let pages = unsafe {
            let at = self.base.as_ptr().add(range.start as usize).cast();
            map(at, (range.end - range.start) as usize, flags | libc::MAP_FIXED, file, 0)
        };
        match pages {
            Ok(_) => Some(Extent::Kernel(table.cast())),
            Err(_) => {
                // SAFETY: mapped above, and the address was not published.
                unsafe { libc::munmap(table.as_ptr().cast(), TABLE_BYTES) };
                None
            }
        }
    }

    fn clear(&mut self, range: Range<u64>) {
        let at = self.inside(&range);
        if let Extent::Kernel(_) = self.extents[(range.start / EXTENT_BYTES) as usize] {
            self.hold(&range);
            // SAFETY: inside the mapping; the program neither writes there now nor trusts what it reads.
            unsafe { std::ptr::write_bytes(at.as_ptr(), 0, (range.end - range.start) as usize) };
            return self.release(&range, true);
        }
        let first = range.start.next_multiple_of(PAGE_BYTES).min(range.end);
        let last = (range.end / PAGE_BYTES * PAGE_BYTES).max(first);
        // SAFETY: inside the mapping, and used by the process alone. The ends are written, and whole pages between them
        // are freed, after which they are zero. If the kernel should refuse that, they are written, too.
        unsafe {
            let place = |offset: u64| self.base.as_ptr().add(offset as usize);
            std::ptr::write_bytes(place(range.start), 0, (first - range.start) as usize);
            std::ptr::write_bytes(place(last), 0, (range.end - last) as usize);
            let middle = (last - first) as usize;
            if middle > 0 && libc::madvise(place(first).cast(), middle, libc::MADV_DONTNEED) != 0 {
                std::ptr::write_bytes(place(first), 0, middle);
            }
        }
    }

    fn known(&self, page: u64) -> Option<&Known> {
        match self.extents[(page / EXTENT_PAGES) as usize] {
            // SAFETY: the table has as many entries as an extent has pages, and is mapped as long as `self` exists.
            Extent::Kernel(table) => Some(unsafe { table.add((page % EXTENT_PAGES) as usize).as_ref() }),
            _ => None,
        }
    }

    /// Prevents the program from using these pages.
    fn hold(&self, range: &Range<u64>) {
        pages(range).filter_map(|page| self.known(page)).for_each(hold);
    }

    fn release(&self, range: &Range<u64>, is_changed: bool) {
        for page in pages(range) {
            let Some(known) = self.known(page) else { continue };
            let version = known.version.load(Ordering::Relaxed);
            if !is_changed {
                known.version.store(version - 1, Ordering::Release);
                continue;
            }
            let begin = page * PAGE_BYTES;
            let is_whole = range.start <= begin && begin + PAGE_BYTES <= range.end;
            // SAFETY: a page inside the mapping without a writer: it is still held.
            let bytes =
                || unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(begin as usize), PAGE_BYTES as usize) };
            let digest = if is_whole { checksum::digest(version + 1, bytes()) } else { 0 };
            known.digest.store(digest, Ordering::Relaxed);
            known.version.store(version + 1, Ordering::Release);
        }
    }

    fn inside(&self, range: &Range<u64>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is not inside the memory");
        // SAFETY: inside the mapping, or its end.
        unsafe { self.base.add(range.start as usize) }
    }

    fn extent_range(&self, number: usize) -> Range<u64> {
        let start = number as u64 * EXTENT_BYTES;
        start..self.bytes.min(start + EXTENT_BYTES)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for extent in &self.extents {
            if let Extent::Kernel(table) = extent {
                // SAFETY: mapped by `adopt`, and no longer used.
                unsafe { libc::munmap(table.as_ptr().cast(), TABLE_BYTES) };
            }
        }
        // SAFETY: mapped by `new`, with the extents over it, and no longer used.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

/// The pages that a range touches.
fn pages(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) }
}

fn hold(known: &Known) {
    let mut spins = 0;
    loop {
        let version = known.version.load(Ordering::Relaxed);
        let is_free = version & 1 == 0;
        if is_free && known.version.compare_exchange(version, version + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            // Later writes become visible after the odd version.
            fence(Ordering::SeqCst);
            return;
        }
        spins += 1;
        if spins % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// # Safety
///
/// With `MAP_FIXED`, the mapping that exists at `at` must not be in use.
unsafe fn map(
    at: *mut libc::c_void,
    bytes: usize,
    flags: libc::c_int,
    file: libc::c_int,
    from: u64,
) -> io::Result<NonNull<u8>> {
    // SAFETY: as the caller promises.
    let at = unsafe { libc::mmap64(at, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file, from as libc::off64_t) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A core dump leaves it out, and a forked child does not have it. The advice only saves memory.
    for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
        // SAFETY: the mapping made above.
        unsafe { libc::madvise(at, bytes, advice) };
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(test)]
mod tests;
