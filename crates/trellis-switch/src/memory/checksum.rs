//! CRC32C for the program in the kernel, which has no instruction for it: its tables, and the digests of whole pages that
//! the process computes in advance.
//!
//! A *state* is the checksum during its computation, without the inversions at the beginning and the end. It is linear:
//! the state after *A B* is the state after *A* and as many zero bytes as *B* has, xor the state after *B* starting from
//! zero. The digest of a page can therefore be used for every answer that contains the page.

use super::layout;

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

pub(super) type Table = [u32; 256];

/// Table *k*: the state after a byte, starting from zero, and *k* zero bytes that follow it.
pub(super) fn tables() -> Box<[Table; layout::CRC_TABLES]> {
    let mut tables = Box::new([[0; 256]; layout::CRC_TABLES]);
    for byte in 0..256_u32 {
        let mut state = byte;
        for _ in 0..8 {
            state = state >> 1 ^ if state & 1 == 1 { POLYNOMIAL } else { 0 };
        }
        tables[0][byte as usize] = state;
    }
    for number in 1..layout::CRC_TABLES {
        for byte in 0..256 {
            tables[number][byte] = zero_byte(&tables[0], tables[number - 1][byte]);
        }
    }
    tables
}

/// Table *k*: the effect of 4,096 zero bytes on a state that is zero except for its byte *k*.
pub(super) fn page_tables(tables: &[Table; layout::CRC_TABLES]) -> Box<[Table; layout::CRC_PAGE_TABLES]> {
    let mut bits = [0; 32];
    for (place, bit) in bits.iter_mut().enumerate() {
        *bit = (0..layout::PAGE_BYTES).fold(1 << place, |state, _| zero_byte(&tables[0], state));
    }
    let mut pages = Box::new([[0; 256]; layout::CRC_PAGE_TABLES]);
    for (number, table) in pages.iter_mut().enumerate() {
        for (byte, entry) in table.iter_mut().enumerate() {
            let of_bits = (0..8).filter(|bit| byte >> bit & 1 == 1).map(|bit| bits[8 * number + bit]);
            *entry = of_bits.fold(0, |sum, bit| sum ^ bit);
        }
    }
    pages
}

fn zero_byte(table: &Table, state: u32) -> u32 {
    state >> 8 ^ table[(state & 0xff) as usize]
}

/// The digest of a whole page with this version, which is even.
pub(super) fn digest(version: u64, page: &[u8]) -> u64 {
    debug_assert_eq!(page.len() as u64, layout::PAGE_BYTES);
    // Starting from zero, without inversions.
    let state = !crc32c::crc32c_append(u32::MAX, page);
    let mut sum: u64 = page.as_chunks::<4>().0.iter().map(|four| u64::from(u32::from_ne_bytes(*four))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (version | layout::DIGEST_THERE) << layout::DIGEST_VERSION_SHIFT
        | sum << layout::DIGEST_SUM_SHIFT
        | u64::from(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(table: &Table, before: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(before, |state, byte| zero_byte(table, state ^ u32::from(*byte)))
    }

    #[test]
    fn the_tables_are_those_of_crc32c() {
        let tables = tables();
        assert_eq!(!state(&tables[0], u32::MAX, b"123456789"), 0xe306_9283, "RFC 3720's check value");
        let bytes: Vec<u8> = (0..16_u8).map(|at| at.wrapping_mul(37).wrapping_add(11)).collect();
        let by_tables = bytes.iter().enumerate().fold(0, |sum, (at, byte)| sum ^ tables[15 - at][usize::from(*byte)]);
        assert_eq!(by_tables, state(&tables[0], 0, &bytes), "sixteen bytes at once");
    }

    #[test]
    fn a_page_behind_something_is_summed_by_its_digest() {
        let tables = tables();
        let pages = page_tables(&tables);
        let front: Vec<u8> = (0..64).collect();
        let page: Vec<u8> = (0..4096_u32).map(|at| ((at * at) >> 3) as u8).collect();
        let whole = crc32c::crc32c(&[&front[..], &page].concat());
        let before = !crc32c::crc32c(&front);
        let shifted = (0..4).fold(0, |sum, byte| sum ^ pages[byte][(before >> (8 * byte) & 0xff) as usize]);
        let digest = digest(6, &page);
        assert_eq!(!(shifted ^ digest as u32), whole);
        assert_eq!(digest >> 48, 7, "the version, and that it is there");
        let sum: u64 = page.chunks(2).map(|two| u64::from(u16::from_ne_bytes([two[0], two[1]]))).sum();
        assert_eq!((digest >> 32 & 0xffff) % 0xffff, sum % 0xffff, "the internet's sum");
    }
}
