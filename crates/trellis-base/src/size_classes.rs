//! Sizes of small blocks: four for every doubling, so that less than a fifth of a block is wasted.
//!
//! Promises: every size is a multiple of 16, and every power of two from 16 to [`SMALL_BYTES_MAX`] is one of them. So
//! a block whose size is a multiple of an alignment is aligned anywhere in a span.

/// Larger blocks have pages of their own.
pub const SMALL_BYTES_MAX: u64 = 32 << 10;
/// Every block is aligned to this, whatever alignment was requested.
pub const ALIGN_BYTES_MIN: u64 = 16;

/// The number of classes.
pub const CLASSES: usize = 40;

const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let (mut size, mut step, mut class) = (16, 16, 0);
    while class < CLASSES {
        sizes[class] = size;
        // From a power of two on, from 64, the steps up to the next one are a quarter of it.
        if class >= 3 && (class - 3).is_multiple_of(4) {
            step = size / 4;
        }
        size += step;
        class += 1;
    }
    sizes
};
const _: () = assert!(SIZES[CLASSES - 1] as u64 == SMALL_BYTES_MAX);

/// The smallest class whose blocks hold `bytes` and are aligned to `align`, a power of two; `None` if that needs pages
/// of its own.
pub fn class_of(bytes: u64, align: u64) -> Option<u8> {
    let from = SIZES.partition_point(|&size| u64::from(size) < bytes);
    let fits = SIZES[from..].iter().position(|&size| u64::from(size).is_multiple_of(align))?;
    Some((from + fits) as u8)
}

/// Bytes of a block of that class.
pub fn size_of(class: u8) -> u32 {
    SIZES[usize::from(class)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_in_multiples_of_sixteen_and_waste_little() {
        assert_eq!(SIZES[..9], [16, 32, 48, 64, 80, 96, 112, 128, 160]);
        for pair in SIZES.windows(2) {
            assert!(pair[0] < pair[1] && pair[1].is_multiple_of(16));
            assert!(pair[0] < 64 || (pair[1] - pair[0]) * 4 <= pair[0], "{pair:?}");
        }
        for shift in 4..=15 {
            assert!(SIZES.contains(&(1 << shift)));
        }
    }

    #[test]
    fn a_class_holds_the_bytes_and_keeps_the_alignment() {
        for bytes in 1..=SMALL_BYTES_MAX {
            for align in [1, 16, 64, 256, 4096] {
                let size = u64::from(size_of(class_of(bytes, align).unwrap()));
                assert!(size >= bytes && size.is_multiple_of(align), "{bytes} {align} {size}");
            }
        }
        assert_eq!(class_of(SMALL_BYTES_MAX + 1, 16), None);
        assert_eq!(class_of(16, SMALL_BYTES_MAX * 2), None);
    }
}
