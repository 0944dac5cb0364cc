//! Unpredictable random bytes.

use std::io;

use rustix::rand::GetRandomFlags;

/// Returns unpredictable random bytes, at most 256.
pub fn random<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    const { assert!(COUNT <= 256) };
    let mut bytes = [0; COUNT];
    let got = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    assert_eq!(got, COUNT, "a request for up to 256 bytes is never served in part");
    Ok(bytes)
}
