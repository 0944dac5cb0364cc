//! The place of a region in the address space of every process.
//!
//! Promises: the numbers equal those of `compiler/include/trellis/layout.h`, which a test checks. Compiled programs
//! contain them, so they must never be changed on one side alone.

/// The first address of a region.
pub const REGION_BASE: usize = 0x2000_0000_0000;
/// The size of the address space reserved for a region, in bytes.
pub const REGION_SPAN: usize = 1 << 40;
/// The unit of the inline check.
pub const LINE_BYTES: usize = 64;
/// log2 of [`LINE_BYTES`].
pub const LINE_SHIFT: u32 = 6;
/// The first address of the table with a state byte for each line.
pub const LINE_STATES: usize = 0x1f00_0000_0000;
/// The size of that table.
pub const LINE_STATES_BYTES: usize = REGION_SPAN / LINE_BYTES;
/// Bit of a state byte: the line may be read in place.
pub const LINE_READABLE: u8 = 1;
/// Bit of a state byte: the line may be written in place.
pub const LINE_WRITABLE: u8 = 2;
/// The size of a page, which is also the size of a value.
pub const PAGE_BYTES: usize = 4096;

const _: () = assert!(LINE_BYTES == 1 << LINE_SHIFT && REGION_BASE.is_multiple_of(PAGE_BYTES));
const _: () = assert!(LINE_STATES + LINE_STATES_BYTES <= REGION_BASE);

/// Whether an address is inside the region.
pub const fn is_inside(address: usize) -> bool {
    address.wrapping_sub(REGION_BASE) < REGION_SPAN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_says_the_same() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../compiler/include/trellis/layout.h");
        let header = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let number = |name: &str| -> usize {
            let line =
                header.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' '));
            let text = line.unwrap_or_else(|| panic!("{path} does not define {name}")).trim();
            let parsed = match text.strip_prefix("0x") {
                Some(digits) => usize::from_str_radix(digits, 16),
                None => text.parse(),
            };
            parsed.unwrap_or_else(|error| panic!("{name} is {text}: {error}"))
        };
        assert_eq!(number("TRELLIS_REGION_BASE"), REGION_BASE);
        assert_eq!(number("TRELLIS_REGION_SPAN"), REGION_SPAN);
        assert_eq!(number("TRELLIS_LINE_BYTES"), LINE_BYTES);
        assert_eq!(number("TRELLIS_LINE_SHIFT"), LINE_SHIFT as usize);
        assert_eq!(number("TRELLIS_LINE_STATES"), LINE_STATES);
        assert_eq!(number("TRELLIS_LINE_STATES_BYTES"), LINE_STATES_BYTES);
        assert_eq!(number("TRELLIS_LINE_READABLE"), usize::from(LINE_READABLE));
        assert_eq!(number("TRELLIS_LINE_WRITABLE"), usize::from(LINE_WRITABLE));
    }
}
