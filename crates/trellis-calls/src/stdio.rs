//! Streams of the C library, which pass large blocks to the kernel as they are.
//!
//! Promises: the order of bytes, the position of the stream, and its marks of end and error are those that it would have.

use std::ffi::{c_char, c_int, c_void};

use libc::FILE;

use crate::buffer::Buffer;
use crate::shared;

/// The maximum number of bytes that go through private memory at a time.
const BLOCK_BYTES: usize = 1 << 20;

type Read = unsafe extern "C" fn(*mut c_void, usize, usize, *mut FILE) -> usize;
type Write = unsafe extern "C" fn(*const c_void, usize, usize, *mut FILE) -> usize;

unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE.
const NOT_CANCELLED: c_int = 1;

/// A stream that this thread has for itself. The thread is not cancelled meanwhile: the stream would stay locked.
struct Locked {
    stream: *mut FILE,
    before: c_int,
}

impl Locked {
    /// # Safety
    /// An open stream, as long as this lives.
    unsafe fn of(stream: *mut FILE) -> Locked {
        let mut before = 0;
        // SAFETY: the caller's promise.
        unsafe {
            pthread_setcancelstate(NOT_CANCELLED, &raw mut before);
            flockfile(stream);
        }
        Locked { stream, before }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: locked by `of`, whose caller promised that the stream is open.
        unsafe {
            funlockfile(self.stream);
            pthread_setcancelstate(self.before, std::ptr::null_mut());
        }
    }
}

/// The number of whole items in `bytes` bytes.
fn items(bytes: usize, size: usize) -> usize {
    bytes.checked_div(size).unwrap_or(0)
}

pub(crate) fn fread(real: Read, to: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
    let bytes = size.saturating_mul(count);
    if !shared::overlaps(to, bytes) {
        // SAFETY: as the program calls it.
        return unsafe { real(to, size, count, stream) };
    }
    items(read(real, to, bytes, stream), size)
}

/// Reads `bytes` bytes, block by block. Returns how many came.
#[cold]
#[inline(never)]
fn read(real: Read, to: *mut c_void, bytes: usize, stream: *mut FILE) -> usize {
    let mut private = Buffer::of(BLOCK_BYTES.min(bytes));
    let mut done = 0;
    // SAFETY: the program's stream; the block is private, and what comes from it would have been written to `to`.
    unsafe {
        let _locked = Locked::of(stream);
        while done < bytes {
            let wanted = BLOCK_BYTES.min(bytes - done);
            let got = real(private.at(), 1, wanted, stream);
            private.give(to.byte_add(done), got);
            done += got;
            if got < wanted {
                break;
            }
        }
    }
    done
}

pub(crate) fn fread_checked(
    real: unsafe extern "C" fn(*mut c_void, usize, usize, usize, *mut FILE) -> usize,
    to: *mut c_void,
    room: usize,
    size: usize,
    count: usize,
    stream: *mut FILE,
) -> usize {
    let bytes = size.saturating_mul(count);
    if bytes > room || !shared::overlaps(to, bytes) {
        // SAFETY: as the program calls it; the C library ends a program that asks for more than there is room for.
        return unsafe { real(to, room, size, count, stream) };
    }
    fread(libc::fread, to, size, count, stream)
}

pub(crate) fn fwrite(real: Write, from: *const c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
    let bytes = size.saturating_mul(count);
    if !shared::overlaps(from, bytes) {
        // SAFETY: as the program calls it.
        return unsafe { real(from, size, count, stream) };
    }
    items(written(real, from, bytes, stream), size)
}

/// Writes `bytes` bytes, block by block. Returns how many were written.
#[cold]
#[inline(never)]
fn written(real: Write, from: *const c_void, bytes: usize, stream: *mut FILE) -> usize {
    let mut private = Buffer::of(BLOCK_BYTES.min(bytes));
    let mut done = 0;
    // SAFETY: the program's stream, and bytes that it would have been given.
    unsafe {
        let _locked = Locked::of(stream);
        while done < bytes {
            let wanted = BLOCK_BYTES.min(bytes - done);
            private.take(from.byte_add(done), wanted);
            let got = real(private.at(), 1, wanted, stream);
            done += got;
            if got < wanted {
                break;
            }
        }
    }
    done
}

pub(crate) fn fputs(
    real: unsafe extern "C" fn(*const c_char, *mut FILE) -> c_int,
    text: *const c_char,
    stream: *mut FILE,
) -> c_int {
    if !shared::overlaps(text, 1) {
        // SAFETY: as the program calls it.
        return unsafe { real(text, stream) };
    }
    // SAFETY: a string, as the program calls it.
    let bytes = unsafe { libc::strlen(text) };
    if written(libc::fwrite, text.cast(), bytes, stream) == bytes { 1 } else { libc::EOF }
}

pub(crate) fn puts(real: unsafe extern "C" fn(*const c_char) -> c_int, text: *const c_char) -> c_int {
    if !shared::overlaps(text, 1) {
        // SAFETY: as the program calls it.
        return unsafe { real(text) };
    }
    // SAFETY: a string, as the program calls it; the C library's own stream.
    unsafe {
        let bytes = libc::strlen(text);
        let _locked = Locked::of(stdout);
        let whole = written(libc::fwrite, text.cast(), bytes, stdout) == bytes
            && libc::fputc(c_int::from(b'\n'), stdout) != libc::EOF;
        if whole { 1 } else { libc::EOF }
    }
}

unsafe extern "C" {
    static stdout: *mut FILE;
}

/// A buffer of a stream stays private, because the kernel may get parts of it at any time.
pub(crate) fn setvbuf(
    real: unsafe extern "C" fn(*mut FILE, *mut c_char, c_int, usize) -> c_int,
    stream: *mut FILE,
    buffer: *mut c_char,
    mode: c_int,
    bytes: usize,
) -> c_int {
    let buffer = if shared::overlaps(buffer, bytes) { std::ptr::null_mut() } else { buffer };
    // SAFETY: as the program calls it; without a buffer, the C library makes one.
    unsafe { real(stream, buffer, mode, bytes) }
}

/// `setbuf` and `setbuffer`.
pub(crate) fn setbuffer(stream: *mut FILE, buffer: *mut c_char, bytes: usize, call: impl FnOnce(*mut c_char)) {
    if !shared::overlaps(buffer, bytes) {
        return call(buffer);
    }
    // SAFETY: as the program calls it; without a buffer, the C library makes one.
    unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IOFBF, bytes) };
}
