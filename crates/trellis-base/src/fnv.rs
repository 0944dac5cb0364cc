//! FNV-1a with 64 bits: the hash of short texts where several processes must get the same number.
//!
//! Source: G. Fowler, L. C. Noll and K.-P. Vo, as described in the Internet-Draft draft-eastlake-fnv.
//!
//! Promises: the same bytes give the same number on every machine and in every build. It must never be used against
//! somebody who chooses the bytes.

use core::hash::Hasher;

/// The hash of bytes that arrive in pieces; their borders do not matter.
#[derive(Clone, Copy, Debug)]
pub struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Fnv1a {
        Fnv1a(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv1a {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The hash of `bytes`.
pub fn fnv1a(bytes: impl AsRef<[u8]>) -> u64 {
    let mut hash = Fnv1a::default();
    hash.write(bytes.as_ref());
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_literature() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn pieces_do_not_matter() {
        let mut hash = Fnv1a::default();
        hash.write(b"foo");
        hash.write(b"");
        hash.write(b"bar");
        assert_eq!(hash.finish(), fnv1a("foobar"));
    }
}
