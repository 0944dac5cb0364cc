//! The private heap of a PARMACS program, which serves its malloc at the same addresses in every process.
//!
//! Promises: the allocator keeps all its state in the arena, so a copy of [`Arena::used`] in another process is a
//! heap that continues from there. Blocks are aligned to 16 bytes. It must never call the C library's allocator or
//! access a pointer outside the arena.
//!
//! Sizes of blocks are rounded up by at most a quarter; a freed block serves the next request of its size class.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The address of a program's arena.
const BASE: usize = 0x2000_0000_0000;
/// The address space that it may grow to.
const BYTES_MAX: usize = 64 << 30;
/// The arena grows by multiples of this.
const STEP_BYTES: usize = 1 << 20;
/// The size of the header before each allocated block.
const HEADER_BYTES: usize = 16;
/// Requests up to this size are rounded to 16 bytes, larger ones to a quarter of a power of two.
const SMALL_BYTES_MAX: usize = 1024;
const CLASSES: usize = 176;
/// The class value of a free block.
const FREED: u32 = u32::MAX;

/// The state of the allocator, at the arena's first byte.
#[repr(C)]
struct Book {
    /// The first byte that was never allocated.
    top: usize,
    /// The first free block of each class; zero ends a list.
    free: [usize; CLASSES],
}

/// The header of each block, 16 bytes before its first byte.
#[repr(C)]
struct Header {
    /// The distance from the start of the memory to the first byte of the block: 16, or more if it was aligned.
    lead: u32,
    class: u32,
    /// The requested size.
    bytes: usize,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// The arena, as far as this process uses it.
pub(super) struct Arena {
    base: usize,
    /// The end of the accessible part.
    open: usize,
}

/// The arena of the program, once [`Arena::begin`] made it.
pub(super) static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Locks the arena for one call.
pub(super) fn arena() -> MutexGuard<'static, Option<Arena>> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Arena {
    /// Reserves the address space at the address that is the same in every process.
    pub(super) fn begin() -> Result<Arena, String> {
        Arena::at(BASE)
    }

    fn at(base: usize) -> Result<Arena, String> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping; the kernel refuses if the range is in use.
        let got = unsafe { libc::mmap(base as *mut _, BYTES_MAX, libc::PROT_NONE, flags, -1, 0) };
        if got as usize != base {
            let why = std::io::Error::last_os_error();
            return Err(format!(
                "the private heap cannot be mapped at {base:#x} ({why}); keep base_address away from there"
            ));
        }
        let mut arena = Arena { base, open: base };
        arena.open_to(base + size_of::<Book>())?;
        arena.book().top = (base + size_of::<Book>()).next_multiple_of(64);
        Ok(arena)
    }

    /// The range that another process must copy to have this heap.
    pub(super) fn used(&mut self) -> Range<usize> {
        self.base..self.book().top
    }

    /// Makes the memory up to `end` accessible.
    pub(super) fn open_to(&mut self, end: usize) -> Result<(), String> {
        if end <= self.open {
            return Ok(());
        }
        let whole = (end - self.base).next_multiple_of(STEP_BYTES);
        let refused = |why: String| format!("the private heap cannot grow to {whole} bytes ({why})");
        if whole > BYTES_MAX {
            return Err(refused(format!("it is at most {BYTES_MAX} bytes; put large data into G_MALLOC")));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range lies inside the mapping that `at` made.
        let opened = unsafe { libc::mprotect(self.open as *mut _, self.base + whole - self.open, protection) };
        if opened != 0 {
            return Err(refused(std::io::Error::last_os_error().to_string()));
        }
        self.open = self.base + whole;
        Ok(())
    }

    /// Whether a pointer is inside the arena.
    pub(super) fn has(&self, pointer: usize) -> bool {
        (self.base..self.base + BYTES_MAX).contains(&pointer)
    }

    /// Allocates `bytes` bytes at a multiple of `alignment`, a power of two. The contents are undefined.
    pub(super) fn allocate(&mut self, bytes: usize, alignment: usize) -> Result<NonNull<u8>, String> {
        let slack = if alignment > 16 { alignment } else { 0 };
        let wanted = bytes.checked_add(HEADER_BYTES + slack).filter(|wanted| *wanted <= BYTES_MAX);
        let wanted = wanted.ok_or_else(|| format!("nobody has {bytes} bytes of private heap"))?;
        let (class, class_bytes) = class_of(wanted);
        let start = match self.book().free[class] {
            0 => self.take_new(class_bytes)?,
            freed => {
                // SAFETY: a block of the list is accessible memory, and its link is the next one.
                self.book().free[class] = unsafe { *link_of(freed) };
                freed
            }
        };
        let block = if slack == 0 { start + HEADER_BYTES } else { (start + HEADER_BYTES).next_multiple_of(alignment) };
        // SAFETY: the header lies in the memory that was just taken, and is aligned to 16 bytes as the start is.
        unsafe { *self.header(block) = Header { lead: (block - start) as u32, class: class as u32, bytes } };
        NonNull::new(block as *mut u8).ok_or_else(|| "the arena does not begin at zero".to_owned())
    }

    /// Frees a block.
    pub(super) fn free(&mut self, block: usize) -> Result<(), String> {
        // SAFETY: `check` found a header there.
        let header = unsafe { &mut *self.check(block)? };
        let (class, start) = (header.class as usize, block - header.lead as usize);
        header.class = FREED;
        let next = std::mem::replace(&mut self.book().free[class], start);
        // SAFETY: a block has at least 32 bytes, and nothing else uses a free one.
        unsafe { *link_of(start) = next };
        Ok(())
    }

    /// The requested and the usable size of a block.
    pub(super) fn sizes(&mut self, block: usize) -> Result<(usize, usize), String> {
        // SAFETY: `check` found a header there.
        let header = unsafe { &*self.check(block)? };
        Ok((header.bytes, bytes_of(header.class as usize) - header.lead as usize))
    }

    /// Records a new size for the block, which fits into its usable size.
    pub(super) fn resize(&mut self, block: usize, bytes: usize) -> Result<(), String> {
        // SAFETY: `check` found a header there.
        unsafe { (*self.check(block)?).bytes = bytes };
        Ok(())
    }

    fn take_new(&mut self, bytes: usize) -> Result<usize, String> {
        let start = self.book().top;
        self.open_to(start + bytes)?;
        self.book().top = start + bytes;
        Ok(start)
    }

    fn check(&mut self, block: usize) -> Result<*mut Header, String> {
        let used = self.used();
        let wrong = |what| Err(format!("{block:#x} is no block of the private heap ({what})"));
        if !block.is_multiple_of(16) || block < used.start + size_of::<Book>() + HEADER_BYTES || block >= used.end {
            return wrong("malloc never gave this address");
        }
        let header = self.header(block);
        // SAFETY: inside the used part, which is open.
        match unsafe { (*header).class } {
            FREED => wrong("it is free already"),
            class if class as usize >= CLASSES => wrong("something wrote over what stands before it"),
            _ => Ok(header),
        }
    }

    fn header(&self, block: usize) -> *mut Header {
        (block - HEADER_BYTES) as *mut Header
    }

    fn book(&mut self) -> &mut Book {
        // SAFETY: `at` opened the first bytes, which are zero or written by this module; `self` is borrowed.
        unsafe { &mut *(self.base as *mut Book) }
    }
}

/// The link of a free block to the next one of its list: behind the class, which marks it as free.
fn link_of(start: usize) -> *mut usize {
    (start + 8) as *mut usize
}

/// The number and the size of the smallest class that fits.
fn class_of(bytes: usize) -> (usize, usize) {
    if bytes <= SMALL_BYTES_MAX {
        let class = bytes.div_ceil(16).max(2);
        return (class, class * 16);
    }
    let shift = (bytes - 1).ilog2() as usize - 2;
    let quarters = bytes.div_ceil(1 << shift);
    (64 + (shift - 8) * 4 + quarters - 4, quarters << shift)
}

/// The size of a class.
fn bytes_of(class: usize) -> usize {
    if class <= 64 {
        return class * 16;
    }
    let (shift, quarter) = ((class - 65) / 4 + 8, (class - 65) % 4 + 5);
    quarter << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unused address ranges, one for each test, because the tests run at the same time.
    fn arena(number: usize) -> Arena {
        Arena::at(0x2800_0000_0000 + number * BYTES_MAX).unwrap()
    }

    #[test]
    fn classes_hold_what_they_say_and_waste_at_most_a_quarter() {
        let mut last = 0;
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, (1 << 36) - 1, 1 << 36]) {
            let (class, class_bytes) = class_of(bytes);
            assert!(class < CLASSES && class >= last, "{bytes}");
            assert!(class_bytes >= bytes, "{bytes}");
            assert!(bytes <= 32 || class_bytes <= bytes + 15 + bytes / 4, "{bytes}: {class_bytes}");
            assert_eq!(bytes_of(class), class_bytes, "{bytes}");
            last = class;
        }
    }

    #[test]
    fn blocks_do_not_overlap_and_freed_ones_come_back() {
        let mut arena = arena(0);
        let mut blocks = Vec::new();
        for bytes in [1usize, 16, 100, 5000, 1 << 20, 33, 0] {
            let block = arena.allocate(bytes, 16).unwrap();
            assert!((block.as_ptr() as usize).is_multiple_of(16));
            // SAFETY: the arena allocated this many bytes.
            unsafe { block.as_ptr().write_bytes(blocks.len() as u8, bytes) };
            blocks.push((block, bytes));
        }
        for (number, (block, bytes)) in blocks.iter().enumerate() {
            // SAFETY: as above.
            let contents = unsafe { std::slice::from_raw_parts(block.as_ptr(), *bytes) };
            assert!(contents.iter().all(|byte| *byte == number as u8), "block {number}");
            let (asked, has) = arena.sizes(block.as_ptr() as usize).unwrap();
            assert!(asked == *bytes && has >= *bytes);
        }
        let (third, _) = blocks[3];
        arena.free(third.as_ptr() as usize).unwrap();
        assert_eq!(arena.allocate(4900, 16).unwrap(), third);
    }

    #[test]
    fn alignment_is_kept_through_free_and_use() {
        let mut arena = arena(1);
        for alignment in [32usize, 64, 4096, 1 << 16] {
            for _ in 0..3 {
                let block = arena.allocate(100, alignment).unwrap().as_ptr() as usize;
                assert!(block.is_multiple_of(alignment));
                assert!(arena.sizes(block).unwrap().1 >= 100);
                arena.free(block).unwrap();
            }
        }
    }

    #[test]
    fn what_is_no_block_is_refused() {
        let mut arena = arena(2);
        let block = arena.allocate(40, 16).unwrap().as_ptr() as usize;
        assert!(arena.free(block + 8).unwrap_err().contains("never gave"));
        assert!(arena.free(arena.base).unwrap_err().contains("never gave"));
        arena.free(block).unwrap();
        assert!(arena.free(block).unwrap_err().contains("free already"));
        assert!(arena.allocate(BYTES_MAX, 16).is_err());
        assert!(arena.allocate(usize::MAX, 16).is_err());
    }

    #[test]
    fn a_copy_of_the_used_part_is_the_same_heap() {
        let (mut one, mut other) = (arena(3), arena(4));
        let first = one.allocate(1000, 16).unwrap().as_ptr() as usize;
        let used = one.used();
        other.open_to(other.base + used.len()).unwrap();
        // SAFETY: both ranges are open and of this length.
        unsafe { std::ptr::copy_nonoverlapping(used.start as *const u8, other.base as *mut u8, used.len()) };
        // Relocated for the test: free lists hold addresses, and there are none yet.
        let shift = other.base - one.base;
        other.book().top += shift;
        let (next, copied) = (one.allocate(50, 16).unwrap(), other.allocate(50, 16).unwrap());
        assert_eq!(next.as_ptr() as usize + shift, copied.as_ptr() as usize);
        assert_eq!(other.sizes(first + shift).unwrap(), one.sizes(first).unwrap());
    }
}
