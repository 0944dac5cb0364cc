//! The tag of a datagram, computed over its source, its destination, its header with zeros in place of the tag, and what
//! follows.
//!
//! A tag of kind *checksum* is the CRC32C (RFC 3385; the reflected polynomial 0x82f63b78) of these bytes in this order, as
//! a number of 64 bits. It includes both addresses, so a datagram that was delivered to the wrong host, or for another
//! request, does not pass. It detects errors, not attackers. A *keyed* tag is whatever the transport's [`Tags::keyed`]
//! computes over the same bytes: this crate has no keys.
//!
//! The bytes are given in pieces, so that no page is copied to compute its tag. Computing a tag never fails and must never
//! allocate. Without `unsafe` the processor's own instruction is not available here, and a page takes about 1.5 us. A
//! transport that has the instruction provides its own [`Tags::checksum`], which must give the same result as [`Crc32c`].

use super::{HEADER_BYTES, Malformed, TAG_AT, TagKind};
use crate::wire::address::Address;

/// Computes tags. The default computes checksums in software and has no keys.
pub trait Tags {
    /// CRC32C of these pieces, one after the other.
    fn checksum(&self, pieces: &[&[u8]]) -> u32 {
        let mut crc = Crc32c::new();
        pieces.iter().for_each(|piece| crc.update(piece));
        crc.value()
    }

    /// The tag of these pieces, one after the other, under the key of the process that sends from `source` to
    /// `destination`; `None` if there is no such key.
    fn keyed(&self, source: Address, destination: Address, pieces: &[&[u8]]) -> Option<u64> {
        let _ = (source, destination, pieces);
        None
    }
}

/// Checksums in software; no keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksums;

impl Tags for Checksums {}

/// Writes the tag into a header whose other fields are final. Returns false, and writes nothing, if the tag should be keyed
/// and there is no key. The bytes after the header are given in two pieces: the small body and the rest.
pub fn seal(
    header: &mut [u8; HEADER_BYTES],
    source: Address,
    destination: Address,
    follows: [&[u8]; 2],
    tags: &dyn Tags,
) -> bool {
    let kind = TagKind::of_header(header);
    header[TAG_AT..].fill(0);
    let Some(tag) = kind.and_then(|kind| compute(kind, header, source, destination, follows, tags)) else {
        return false;
    };
    header[TAG_AT..].copy_from_slice(&tag.to_le_bytes());
    true
}

/// Whether the tag of a header is of at least this kind, and what it should be.
pub(super) fn check(
    header: &[u8; HEADER_BYTES],
    source: Address,
    destination: Address,
    follows: &[u8],
    least: TagKind,
    tags: &dyn Tags,
) -> Result<(), Malformed> {
    let kind = TagKind::of_header(header).ok_or(Malformed::Flags)?;
    if kind < least {
        return Err(Malformed::TagKind(least));
    }
    let mut plain = *header;
    plain[TAG_AT..].fill(0);
    let expected = compute(kind, &plain, source, destination, [follows, &[]], tags).ok_or(Malformed::NoKey)?;
    // Every bit is compared before the decision, so the time reveals nothing about a keyed tag.
    let found = u64::from_le_bytes(core::array::from_fn(|at| header[TAG_AT + at]));
    if found ^ expected == 0 { Ok(()) } else { Err(Malformed::Tag) }
}

fn compute(
    kind: TagKind,
    header: &[u8; HEADER_BYTES],
    source: Address,
    destination: Address,
    follows: [&[u8]; 2],
    tags: &dyn Tags,
) -> Option<u64> {
    let pieces = [&source.0[..], &destination.0[..], &header[..], follows[0], follows[1]];
    match kind {
        TagKind::None => Some(0),
        TagKind::Checksum => Some(u64::from(tags.checksum(&pieces))),
        TagKind::Keyed => tags.keyed(source, destination, &pieces),
    }
}

/// CRC32C of bytes that come in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(u32);

impl Crc32c {
    /// The checksum of no bytes.
    pub const fn new() -> Crc32c {
        Crc32c(u32::MAX)
    }

    /// Processes sixteen bytes at a time with sixteen tables (slicing-by-16).
    pub fn update(&mut self, bytes: &[u8]) {
        let (sixteens, rest) = bytes.as_chunks::<16>();
        let mut crc = self.0;
        for sixteen in sixteens {
            let word = u128::from_le_bytes(*sixteen) ^ u128::from(crc);
            crc = 0;
            for (at, byte) in word.to_le_bytes().into_iter().enumerate() {
                crc ^= TABLES[15 - at][usize::from(byte)];
            }
        }
        for byte in rest {
            crc = crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)];
        }
        self.0 = crc;
    }

    /// The checksum of all bytes so far.
    pub const fn value(self) -> u32 {
        !self.0
    }
}

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c::new()
    }
}

/// Table `n` gives the effect of a byte on the remainder `n` bytes later.
static TABLES: [[u32; 256]; 16] = tables();

const fn tables() -> [[u32; 256]; 16] {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = remainder >> 1 ^ if remainder & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = remainder;
        byte += 1;
    }
    let mut later = 1;
    while later < 16 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[later - 1][byte];
            tables[later][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        later += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use trellis_base::Random;

    fn crc(bytes: &[u8]) -> u32 {
        Checksums.checksum(&[bytes])
    }

    #[test]
    fn it_is_the_checksum_of_the_standard() {
        // RFC 3720, appendix B.4, and the usual check value.
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc(&ascending), 0x46dd_794e);
        assert_eq!(crc(&descending), 0x113f_db5c);
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc(b""), 0);
    }

    /// The definition: bit by bit.
    fn bit_by_bit(bytes: &[u8]) -> u32 {
        let step = |crc: u32, byte: &u8| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
        };
        !bytes.iter().fold(u32::MAX, step)
    }

    #[test]
    fn pieces_and_lengths_make_no_difference() {
        let mut random = Random::new(1);
        for length in (0..70).chain([4095, 4096, 4097]) {
            let bytes: Vec<u8> = (0..length).map(|_| random.draw() as u8).collect();
            let expected = bit_by_bit(&bytes);
            assert_eq!(crc(&bytes), expected, "{length} bytes");
            let (first, second) = bytes.split_at(random.index(length + 1));
            assert_eq!(Checksums.checksum(&[first, &[], second]), expected, "{} and {}", first.len(), second.len());
        }
    }
}
