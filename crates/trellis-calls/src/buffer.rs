//! Private memory that stands for shared memory while the kernel works on it.
//!
//! Promises: it uses the stack for few bytes and a mapping for many, so that a signal handler may use it. If there is
//! no memory, the pointer is one that makes the kernel answer EFAULT; the call then fails and loses nothing.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use crate::shared;

/// Up to this many bytes lie on the stack, which may be that of a signal handler.
const SMALL_BYTES: usize = 512;

#[repr(C, align(16))]
struct Small([u8; SMALL_BYTES]);

pub(crate) struct Buffer {
    small: MaybeUninit<Small>,
    /// Null if the bytes are small.
    mapping: *mut u8,
    bytes: usize,
}

impl Buffer {
    /// Room for `bytes` bytes, with undefined contents.
    pub(crate) fn of(bytes: usize) -> Buffer {
        if bytes > SMALL_BYTES {
            return Buffer::mapped(bytes);
        }
        Buffer { small: MaybeUninit::uninit(), mapping: null_mut(), bytes }
    }

    /// Room in whole pages of its own, because devices get their addresses and may use them after the call.
    pub(crate) fn mapped(bytes: usize) -> Buffer {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // The C library's function may be replaced by one that gives shared memory.
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let mapping = unsafe { libc::syscall(libc::SYS_mmap, 0usize, bytes.max(1), access, kind, -1, 0usize) };
        let mapping = mapping as *mut c_void;
        // MAP_FAILED is an address of the kernel. Every use of it is refused with EFAULT.
        Buffer { small: MaybeUninit::uninit(), mapping: mapping.cast(), bytes }
    }

    /// A copy of bytes of the program.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn copied(from: *const c_void, bytes: usize) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { Buffer::of(bytes).with(from) }
    }

    /// The buffer, filled with bytes of the program.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn with(mut self, from: *const c_void) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { self.take(from, self.bytes) };
        self
    }

    /// Copies bytes of the program to its beginning.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn take(&mut self, from: *const c_void, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "no more is taken than fits");
        if self.is_there() {
            shared::announce(from, bytes, false);
            // SAFETY: the caller's promise; the buffer has this many bytes.
            unsafe { self.at::<u8>().copy_from_nonoverlapping(from.cast(), bytes) };
        }
    }

    /// Its first byte.
    pub(crate) fn at<T>(&mut self) -> *mut T {
        if self.mapping.is_null() { self.small.as_mut_ptr().cast() } else { self.mapping.cast() }
    }

    /// The number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there was memory for it.
    pub(crate) fn is_there(&self) -> bool {
        self.mapping.cast() != libc::MAP_FAILED
    }

    /// Copies the first bytes of what it holds to the program.
    ///
    /// # Safety
    /// The kernel filled them, and `to` is writable.
    pub(crate) unsafe fn give(&mut self, to: *mut c_void, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "no more comes back than fits");
        shared::announce(to, bytes, true);
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(self.at(), bytes) };
    }
}

/// A private copy of bytes of which the kernel may write some. The program's other bytes are not changed.
pub(crate) struct Changeable {
    /// The bytes for the kernel, and a copy of them from before the call.
    both: Buffer,
    of: *mut c_void,
    bytes: usize,
}

impl Changeable {
    /// A copy of bytes of the program, followed by zeros if the kernel reads more than there are.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn copied(of: *mut c_void, bytes: usize, room: usize) -> Changeable {
        let mut both = Buffer::of(bytes + room);
        // SAFETY: the caller's promise; there is room for the bytes, and once more behind the room.
        unsafe {
            both.take(of, bytes);
            if both.is_there() {
                let copy = both.at::<u8>();
                copy.add(bytes).write_bytes(0, room - bytes);
                copy.add(room).copy_from_nonoverlapping(copy, bytes);
            }
        }
        Changeable { both, of, bytes }
    }

    /// The bytes for the kernel.
    pub(crate) fn at<T>(&mut self) -> *mut T {
        self.both.at()
    }

    /// Copies to the program what the kernel has written.
    ///
    /// # Safety
    /// The kernel would have written there.
    pub(crate) unsafe fn finish(&mut self) {
        if !self.both.is_there() {
            return;
        }
        let room = self.both.bytes() - self.bytes;
        let (now, before) = (self.both.at::<u8>(), self.both.at::<u8>().wrapping_add(room));
        // SAFETY: both copies have so many bytes, which `copied` has set; the caller's promise.
        unsafe {
            for byte in (0..self.bytes).filter(|byte| *now.add(*byte) != *before.add(*byte)) {
                self.of.cast::<u8>().add(byte).write(*now.add(byte));
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.mapping.is_null() && self.is_there() {
            // SAFETY: mapped by `of`, and used by nobody any more.
            unsafe { libc::syscall(libc::SYS_munmap, self.mapping, self.bytes.max(1)) };
        }
    }
}
