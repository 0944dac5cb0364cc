//! Operations on single words of a diff: they find the bytes that changed, pack them, and put them into another page.
//!
//! Promises: every word of a page that threads use is read once and written at once. The file uses the vector
//! instructions that each processor of the target has; operations that need others have a plain path, too. The result
//! must never depend on the path.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The number of bytes of a word.
pub(super) const WORD_BYTES: usize = 8;
/// The number of words that are compared at a time: a cache line.
pub(super) const BLOCK: usize = 8;
/// The mask of a word all of whose bytes changed.
pub(super) const ALL: u8 = 0xff;

/// Compares a block of a page with its twin, and makes the twin equal to what was read. Returns the masks of the words:
/// the byte at the lowest address changed if bit 0 is set, and so on.
///
/// # Safety
/// Both are a block long and aligned to 16 bytes; the page is readable, the twin is writable, and no other thread uses
/// it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn take_changed(page: *const u64, twin: *mut u64) -> u64 {
    use std::arch::x86_64::{__m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8};
    const PARTS: usize = BLOCK * WORD_BYTES / size_of::<__m128i>();
    let (page, twin) = (page.cast::<__m128i>(), twin.cast::<__m128i>());
    // No processor divides an aligned access of 16 bytes within a word; one with AVX does not divide it at all (Intel
    // SDM volume 3, section "Guaranteed Atomic Operations"). SAFETY: the caller's promise.
    let now: [__m128i; PARTS] = std::array::from_fn(|part| unsafe { page.add(part).read_volatile() });
    // SAFETY: the caller's promise; the instructions are part of x86-64.
    unsafe {
        let equal: [__m128i; PARTS] = std::array::from_fn(|part| _mm_cmpeq_epi8(now[part], twin.add(part).read()));
        let all = _mm_and_si128(_mm_and_si128(equal[0], equal[1]), _mm_and_si128(equal[2], equal[3]));
        if _mm_movemask_epi8(all) == 0xffff {
            return 0;
        }
        let mut changed = 0;
        for part in 0..PARTS {
            twin.add(part).write(now[part]);
            changed |= u64::from(!_mm_movemask_epi8(equal[part]) as u16) << (16 * part);
        }
        changed
    }
}

/// Compares a block of a page with its twin, and makes the twin equal to what was read. Returns the masks of the words.
///
/// # Safety
/// Both are a block long and aligned to eight bytes; the page is readable, the twin is writable, and no other thread
/// uses it.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn take_changed(page: *const u64, twin: *mut u64) -> u64 {
    let difference = |word: usize| {
        // These are plain loads, so that the compiler compares several words at once. The result only decides whether
        // the words are read again, one by one. SAFETY: the caller's promise.
        unsafe { page.add(word).read() ^ twin.add(word).read() }
    };
    if (0..BLOCK).fold(0, |any, word| any | difference(word)) == 0 {
        return 0;
    }
    let masks = std::array::from_fn(|word| {
        // SAFETY: the caller's promise.
        unsafe {
            let now = page.add(word).read_volatile();
            changed_bytes(now ^ twin.add(word).replace(now))
        }
    });
    u64::from_le_bytes(masks)
}

/// One bit for each byte that is not zero.
pub(super) fn changed_bytes(difference: u64) -> u8 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let high = (((difference & LOW) + LOW) | difference) & !LOW;
    // Gathers bits 0, 8, 16 … into the highest byte.
    ((high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// The number of bytes that a mask names. It comes from a table, because not every target processor can count bits.
#[inline]
pub(super) fn count(mask: u8) -> usize {
    static COUNTS: [u8; 256] = {
        let (mut counts, mut mask) = ([0; 256], 0);
        while mask < 256 {
            counts[mask] = mask.count_ones() as u8;
            mask += 1;
        }
        counts
    };
    usize::from(COUNTS[usize::from(mask)])
}

/// All bits of each byte whose bit is set.
fn bytes_of(mask: u8) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let one_each = u64::from(mask).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    (((one_each + LOW) & !LOW) >> 7).wrapping_mul(0xff)
}

/// A way to move bytes within a word together and apart.
pub(super) trait Packing {
    /// The bytes of `word` that `mask` names, at the low end; the others are arbitrary.
    fn pack(word: u64, mask: u8) -> u64;
    /// The inverse; bytes that `mask` does not name are arbitrary.
    fn spread(packed: u64, mask: u8) -> u64;
}

/// The way for any processor.
pub(super) struct Plain;

/// The distance of the mask's bytes from the lowest byte, in bits, if they are adjacent.
fn side_by_side(mask: u8) -> Option<u32> {
    let low = mask.trailing_zeros();
    let shifted = mask.checked_shr(low).unwrap_or(0);
    (shifted & shifted.wrapping_add(1) == 0).then_some(low * 8 % 64)
}

impl Packing for Plain {
    #[inline(always)]
    fn pack(word: u64, mask: u8) -> u64 {
        if let Some(shift) = side_by_side(mask) {
            return word >> shift;
        }
        let (mut packed, mut left, mut at) = (0, mask, 0);
        while left != 0 {
            packed |= (word >> (8 * left.trailing_zeros()) & 0xff) << at;
            left &= left - 1;
            at += 8;
        }
        packed
    }

    #[inline(always)]
    fn spread(packed: u64, mask: u8) -> u64 {
        if let Some(shift) = side_by_side(mask) {
            return packed << shift;
        }
        let (mut word, mut left, mut packed) = (0, mask, packed);
        while left != 0 {
            word |= (packed & 0xff) << (8 * left.trailing_zeros());
            left &= left - 1;
            packed >>= 8;
        }
        word
    }
}

#[cfg(target_arch = "x86_64")]
static TOGETHER: [u64; 256] = Shuffled::table(true);
#[cfg(target_arch = "x86_64")]
static APART: [u64; 256] = Shuffled::table(false);

/// The way with the instruction that moves bytes by a table (SSSE3).
#[cfg(target_arch = "x86_64")]
pub(super) struct Shuffled(());

#[cfg(target_arch = "x86_64")]
impl Shuffled {
    /// Whether this processor has the instruction.
    #[inline]
    pub(super) fn is_possible() -> bool {
        std::is_x86_feature_detected!("ssse3")
    }

    /// For each mask, the number of the byte that comes to each place.
    const fn table(together: bool) -> [u64; 256] {
        let (mut table, mut mask) = ([0; 256], 0);
        while mask < 256 {
            let (mut places, mut byte, mut packed) = (0, 0, 0);
            while byte < 8 {
                if mask >> byte & 1 == 1 {
                    let (from, to) = if together { (byte, packed) } else { (packed, byte) };
                    places |= from << (8 * to);
                    packed += 1;
                }
                byte += 1;
            }
            table[mask] = places;
            mask += 1;
        }
        table
    }

    /// Moves the bytes of a word.
    ///
    /// # Safety
    /// The processor has SSSE3.
    #[inline]
    #[target_feature(enable = "ssse3")]
    unsafe fn moved(word: u64, places: u64) -> u64 {
        use std::arch::x86_64::{_mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_shuffle_epi8};
        let moved = _mm_shuffle_epi8(_mm_cvtsi64_si128(word as i64), _mm_cvtsi64_si128(places as i64));
        _mm_cvtsi128_si64(moved) as u64
    }
}

#[cfg(target_arch = "x86_64")]
impl Packing for Shuffled {
    #[inline(always)]
    fn pack(word: u64, mask: u8) -> u64 {
        // SAFETY: the user of this way has checked that it is possible.
        unsafe { Shuffled::moved(word, TOGETHER[usize::from(mask)]) }
    }

    #[inline(always)]
    fn spread(packed: u64, mask: u8) -> u64 {
        // SAFETY: the user of this way has checked that it is possible.
        unsafe { Shuffled::moved(packed, APART[usize::from(mask)]) }
    }
}

/// Writes the packed bytes that `mask` names into a word, all at once.
///
/// # Safety
/// The word is valid and aligned, and is accessed only atomically or by the hardware's rules.
#[inline(always)]
pub(super) unsafe fn put<P: Packing>(word: *mut u64, packed: u64, mask: u8) {
    let byte = mask.trailing_zeros() as usize;
    // It is one store if the bytes are an aligned unit: an exchange costs ten times as much. SAFETY: each part lies
    // inside the word and is aligned to its size.
    unsafe {
        match mask {
            0 => {}
            ALL => AtomicU64::from_ptr(word).store(packed, Ordering::Relaxed),
            0x0f | 0xf0 => {
                AtomicU32::from_ptr(word.cast::<u8>().add(byte).cast()).store(packed as u32, Ordering::Relaxed);
            }
            0x03 | 0x0c | 0x30 | 0xc0 => {
                AtomicU16::from_ptr(word.cast::<u8>().add(byte).cast()).store(packed as u16, Ordering::Relaxed);
            }
            _ if mask.is_power_of_two() => {
                AtomicU8::from_ptr(word.cast::<u8>().add(byte)).store(packed as u8, Ordering::Relaxed);
            }
            _ => exchange(AtomicU64::from_ptr(word), P::spread(packed, mask), bytes_of(mask)),
        }
    }
}

/// Replaces the bits of `bits`, and leaves the others as they are at that moment.
fn exchange(word: &AtomicU64, value: u64, bits: u64) {
    let mut before = word.load(Ordering::Relaxed);
    loop {
        let after = before & !bits | value & bits;
        match word.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}
