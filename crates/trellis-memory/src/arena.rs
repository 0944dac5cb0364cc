//! Private memory of one owner, read and written by offset: the memory that a memory server holds for clients.
//!
//! Promises: all of it is zero at first. A page is allocated when it is first written, and returned to the machine when
//! it is zeroed as a whole. A forked child does not have it, and a core dump leaves it out.
//!
//! Whole pages move from one memory to another with [`Arena::take_from`], without copying if the kernel can do that.
//!
//! It must never be accessed at an offset outside it: that panics, because the caller must have checked the bounds.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;

use crate::sys::linux::private::Private;

/// The memory. Dropping it unmaps it.
pub struct Arena {
    memory: Private,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the value alone; nothing in it depends on the thread.
unsafe impl Send for Arena {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Arena {}

/// The kernel's unit of memory.
const KERNEL_PAGE_BYTES: u64 = 4096;

impl Arena {
    /// Maps memory of this many bytes, a whole number of pages of 4 KiB.
    ///
    /// # Errors
    ///
    /// The error of the system, if there is not enough address space.
    ///
    /// # Panics
    ///
    /// When `bytes` is zero or not a multiple of 4,096.
    pub fn new(bytes: u64) -> io::Result<Arena> {
        assert!(bytes > 0 && bytes.is_multiple_of(KERNEL_PAGE_BYTES), "{bytes} bytes are no whole pages");
        let bytes = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let memory = Private::new(bytes);
        let base = memory.base()? as *mut u8;
        Ok(Arena { memory, base, bytes })
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The bytes in a range of offsets.
    ///
    /// # Panics
    ///
    /// When the range is not entirely inside, as in all functions here.
    #[inline]
    pub fn read(&self, range: Range<u64>) -> &[u8] {
        let range = self.inside(range);
        // SAFETY: inside the mapping, which lives as long as `self`; there is no writer while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.base.add(range.start), range.len()) }
    }

    /// The bytes in a range of offsets, for writing.
    #[inline]
    pub fn write(&mut self, range: Range<u64>) -> &mut [u8] {
        let range = self.inside(range);
        // SAFETY: inside the mapping, which lives as long as `self`; it is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }

    /// Zeroes bytes. Whole pages are returned to the machine, so this needs no memory and little time for any number of
    /// pages.
    pub fn zero(&mut self, range: Range<u64>) {
        let first = range.start.next_multiple_of(KERNEL_PAGE_BYTES).min(range.end);
        let last = (range.end / KERNEL_PAGE_BYTES * KERNEL_PAGE_BYTES).max(first);
        self.write(range.start..first).fill(0);
        self.write(last..range.end).fill(0);
        let pages = self.inside(first..last);
        self.memory.give_back(pages.start, pages.len());
    }

    /// Moves the pages `range` of another memory to offset `at` of this one. They are zero there afterwards, and the
    /// previous content here is lost. If the kernel can move pages (Linux 5.7), this needs no memory and about the time
    /// of copying a few pages; otherwise the pages are copied.
    ///
    /// # Panics
    ///
    /// When these are not whole pages, or not entirely inside.
    pub fn take_from(&mut self, at: u64, other: &mut Arena, range: Range<u64>) {
        let is_whole = [at, range.start, range.end].iter().all(|offset| offset.is_multiple_of(KERNEL_PAGE_BYTES));
        assert!(is_whole, "{range:?} to {at} are no whole pages");
        let from = other.inside(range.clone());
        let to = self.inside(at..at + (range.end - range.start));
        if self.memory.take_from(to.start, &other.memory, from.start, from.len()) {
            return;
        }
        self.zero(to.start as u64..to.end as u64);
        for (page, at) in
            range.clone().step_by(KERNEL_PAGE_BYTES as usize).zip((at..).step_by(KERNEL_PAGE_BYTES as usize))
        {
            let bytes = other.read(page..page + KERNEL_PAGE_BYTES);
            // A page of zeros needs no memory.
            if bytes.iter().any(|byte| *byte != 0) {
                self.write(at..at + KERNEL_PAGE_BYTES).copy_from_slice(bytes);
            }
        }
        other.zero(range);
    }

    fn inside(&self, range: Range<u64>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.bytes as u64, "{range:?} is not inside the memory");
        range.start as usize..range.end as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_holds_what_is_written_and_is_zero_again() {
        let mut arena = Arena::new(1 << 20).expect("there is a mebibyte");
        assert!(arena.read(0..1 << 20).iter().all(|byte| *byte == 0));
        arena.write(0..1 << 20).fill(7);
        arena.zero(100..3 * 4096 + 50);
        assert!(arena.read(0..100).iter().all(|byte| *byte == 7));
        assert!(arena.read(100..3 * 4096 + 50).iter().all(|byte| *byte == 0));
        assert!(arena.read(3 * 4096 + 50..1 << 20).iter().all(|byte| *byte == 7));
        arena.zero(4096 * 7 + 1..4096 * 7 + 9);
        assert_eq!(arena.read(4096 * 7..4096 * 7 + 10), [7, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        arena.zero(5..5);
        arena.zero(0..1 << 20);
        assert!(arena.read(0..1 << 20).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn pages_go_from_one_to_another_and_back() {
        let page = |number: u64| number * 4096..(number + 1) * 4096;
        let mut all = Arena::new(64 * 4096).expect("there is that much");
        for number in (0..64).filter(|number| number % 3 != 0) {
            all.write(page(number)).fill(number as u8);
        }
        let is_as_written = |arena: &Arena, at: u64, number: u64| {
            let expected = if number.is_multiple_of(3) { 0 } else { number as u8 };
            arena.read(page(at)).iter().all(|byte| *byte == expected)
        };
        let mut part = Arena::new(20 * 4096).expect("there is that much");
        part.write(page(3)).fill(0xee);
        part.take_from(0, &mut all, 7 * 4096..27 * 4096);
        assert!((0..20).all(|at| is_as_written(&part, at, at + 7)), "what was there is gone");
        assert!((7..27).all(|at| all.read(page(at)).iter().all(|byte| *byte == 0)));
        assert!((0..7).chain(27..64).all(|at| is_as_written(&all, at, at)));
        // Both are memories as before.
        all.write(page(8)).fill(0x55);
        part.write(page(1)).fill(0x66);
        part.zero(page(2));
        assert_eq!((all.read(page(8))[0], part.read(page(1))[0], part.read(page(2))[0]), (0x55, 0x66, 0));
        all.take_from(7 * 4096, &mut part, 0..20 * 4096);
        assert_eq!((all.read(page(8))[9], all.read(page(9))[9]), (0x66, 0));
        assert!((10..64).all(|at| is_as_written(&all, at, at)));
        assert!((0..20).all(|at| part.read(page(at)).iter().all(|byte| *byte == 0)));
        drop(part);
        assert!((10..64).all(|at| is_as_written(&all, at, at)));
        all.zero(0..64 * 4096);
        assert!(all.read(0..64 * 4096).iter().all(|byte| *byte == 0));
    }

    #[test]
    #[should_panic(expected = "is not inside the memory")]
    fn outside_is_outside() {
        let arena = Arena::new(4096).expect("there is a page");
        arena.read(4090..4097);
    }
}
