//! Unpredictable random bytes.

#![allow(unsafe_code)]

use std::io;

/// Returns unpredictable random bytes, at most 256.
pub fn random<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    const { assert!(COUNT <= 256) };
    let mut bytes = [0; COUNT];
    // SAFETY: the buffer is valid for its length, and a request for up to 256 bytes is never served in part.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), COUNT, 0) };
    if got == COUNT as isize { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}
