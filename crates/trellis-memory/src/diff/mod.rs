//! Diffs: the bytes of a page that differ from its twin, and their application to another copy of the page; also the
//! application of a later state of a whole page ([`merge`]).
//!
//! Promises: a diff names exactly the bytes that differ, so that the stores of two nodes to different bytes of a page
//! both survive; the twin keeps exactly what the diff contains; a diff from a peer is checked before it is used, and the
//! check returns for any bytes. Must never be used for pages whose bytes are not in this machine's byte order
//! (little-endian), and never waits or locks.
//!
//! # The format
//!
//! A diff is a list of runs of aligned 8-byte words, ascending and not adjacent. A run begins with 32 bits,
//! little-endian: the number of its first word (18 bits), its number of words less one (13 bits), and whether it has
//! masks (the highest bit). Without masks, the words follow, eight bytes each: every byte of them changed. With masks,
//! for each word a byte says which of its bytes changed (bit 0: the one at the lowest address), and those bytes follow; a
//! mask of zero skips a word. In the dense case, every byte of a page, the diff is the page and a header for each 8,192
//! words. In the worst case, with unchanged bytes all over the page, it is an eighth longer than the page
//! ([`bytes_max`]). It must not be rounded up to the whole page, because the bytes in between may be another node's.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::region::PAGE_BYTES_MAX;

const WORD_BYTES: usize = 8;
/// The number of words that are compared at a time: a cache line.
const BLOCK: usize = 8;
const HEADER_BYTES: usize = 4;
const FIRST_BITS: u32 = 18;
const COUNT_BITS: u32 = 13;
const COUNT_MAX: usize = 1 << COUNT_BITS;
const MASKED: u32 = 1 << 31;
const ALL: u8 = 0xff;
/// Up to this many unchanged words cost no more as masks of zero than the header of another run.
const GAP_MAX: usize = 3;
/// This many completely changed words in a row justify a run without masks, and the header of the next one with masks.
const WHOLE_MIN: usize = 8;

const _: () = assert!(PAGE_BYTES_MAX / WORD_BYTES <= 1 << FIRST_BITS);
const _: () = assert!(FIRST_BITS + COUNT_BITS + 1 == u32::BITS);

/// The maximum length of the diff of a page.
pub const fn bytes_max(page_bytes: usize) -> usize {
    page_bytes + page_bytes / 8 + 16
}

/// What is wrong with a diff that a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadDiff {
    /// It ends in the middle of a run.
    #[error("a diff ends in the middle of the run that starts at its byte {at}; the peer runs another version")]
    Short {
        /// The offset of the run in the diff.
        at: usize,
    },
    /// A run extends beyond the end of the page.
    #[error("a diff changes {count} word(s) from word {first} of a page of {words}; the peer runs another page_bytes")]
    Outside {
        /// The run's first word.
        first: usize,
        /// The number of its words.
        count: usize,
        /// The number of words of a page.
        words: usize,
    },
    /// A run starts before the previous one ends.
    #[error("a diff goes back to word {first} after word {end}; the peer runs another version")]
    Backwards {
        /// The run's first word.
        first: usize,
        /// The end of the previous run.
        end: usize,
    },
}

/// Appends to `out` the bytes of `page` that differ from `twin`, and copies exactly those bytes to the twin. Returns
/// whether any byte differed.
///
/// Threads may store to the page meanwhile: each word is read once, and what is appended is what the twin keeps. A store
/// that comes too late for this diff is in the next one.
///
/// # Safety
/// Both pointers refer to `page_bytes` readable bytes, aligned to eight; the twin is writable, and no other thread uses
/// it.
///
/// # Panics
/// When `page_bytes` is not a multiple of 64, or is more than [`PAGE_BYTES_MAX`].
pub unsafe fn encode(page: *const u8, twin: *mut u8, page_bytes: usize, out: &mut Vec<u8>) -> bool {
    assert!(
        page_bytes.is_multiple_of(BLOCK * WORD_BYTES) && page_bytes <= PAGE_BYTES_MAX,
        "{page_bytes} is not a page"
    );
    let (page, twin) = (page.cast::<u64>(), twin.cast::<u64>());
    debug_assert!(page.is_aligned() && twin.is_aligned());
    let mut writer = Writer::new(out, page_bytes);
    for block in (0..page_bytes / WORD_BYTES).step_by(BLOCK) {
        // SAFETY: the block lies inside both.
        if unsafe { is_equal(page.add(block), twin.add(block)) } {
            continue;
        }
        for word in block..block + BLOCK {
            // SAFETY: the word lies inside both; the caller's promise.
            let (now, before) = unsafe { (page.add(word).read_volatile(), twin.add(word).read()) };
            let mask = changed_bytes(now ^ before);
            if mask != 0 {
                // SAFETY: the same.
                unsafe { twin.add(word).write(now) };
                writer.word(word, now, mask);
            }
        }
    }
    writer.finish()
}

/// Applies a later state of a page to a copy of it that other threads may be using: only the bytes that differ from the
/// twin are written, so that a store to the copy that is not in the twin survives; the twin then becomes that state.
/// Without a twin, the bytes that differ from the copy are written; no thread may store to the copy then. Words are
/// changed as by [`apply`].
///
/// # Safety
/// `page`, and the twin if there is one, refer to as many writable bytes as `later` has, aligned to eight; no other
/// thread uses the twin.
///
/// # Panics
/// When the number of bytes is not a multiple of 64.
pub unsafe fn merge(later: &[u8], twin: Option<*mut u8>, page: *mut u8) {
    const BLOCK_BYTES: usize = BLOCK * WORD_BYTES;
    assert!(later.len().is_multiple_of(BLOCK_BYTES), "{} bytes are no page", later.len());
    let (before, page) = (twin.unwrap_or(page).cast::<u64>(), page.cast::<u64>());
    debug_assert!(page.is_aligned() && before.is_aligned());
    for (block, bytes) in later.chunks_exact(BLOCK_BYTES).enumerate() {
        // SAFETY: the block lies inside both.
        if unsafe { holds(before.add(block * BLOCK), bytes) } {
            continue;
        }
        for (word, bytes) in bytes.chunks_exact(WORD_BYTES).enumerate() {
            let (word, now) = (block * BLOCK + word, word_of(bytes));
            // SAFETY: the word lies inside both; the caller's promise.
            unsafe {
                let mask = changed_bytes(now ^ before.add(word).read_volatile());
                if mask == 0 {
                    continue;
                }
                put(page.add(word), pack(now, mask), mask);
                if twin.is_some() {
                    before.add(word).write(now);
                }
            }
        }
    }
}

/// Whether a block of words equals these bytes.
///
/// # Safety
/// The block is readable, and no thread stores to it.
unsafe fn holds(block: *const u64, bytes: &[u8]) -> bool {
    let mut difference = 0;
    for (word, bytes) in bytes.chunks_exact(WORD_BYTES).enumerate() {
        // SAFETY: the caller's promise.
        difference |= word_of(bytes) ^ unsafe { block.add(word).read() };
    }
    difference == 0
}

/// Eight bytes as a word of memory.
fn word_of(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(*bytes.first_chunk().expect("eight bytes"))
}

/// Whether two blocks of words are equal. A concurrent store may or may not be seen.
///
/// # Safety
/// Both are readable.
unsafe fn is_equal(page: *const u64, twin: *const u64) -> bool {
    let mut difference = 0;
    for word in 0..BLOCK {
        // Plain loads, so that the compiler compares several words at once: the result only decides whether the words are
        // read again, one by one. SAFETY: the caller's promise.
        difference |= unsafe { page.add(word).read() ^ twin.add(word).read() };
    }
    difference == 0
}

/// One bit for each byte that is not zero.
fn changed_bytes(difference: u64) -> u8 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let high = (((difference & LOW) + LOW) | difference) & !LOW;
    // Gathers bits 0, 8, 16 … into the highest byte.
    ((high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// The number of bytes that a mask names; from a table, because not every target processor can count bits.
#[inline]
fn count(mask: u8) -> usize {
    const COUNTS: [u8; 256] = {
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

/// The distance of the mask's bytes from the lowest byte, in bits, if they are adjacent.
fn side_by_side(mask: u8) -> Option<u32> {
    let low = mask.trailing_zeros();
    let shifted = mask >> low;
    (shifted & shifted.wrapping_add(1) == 0).then_some(low * 8)
}

/// The bytes of `word` that `mask` names, packed to the low end.
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

/// The inverse of `pack`; bytes that `mask` does not name are arbitrary.
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

/// Appends runs. The space for the longest diff is reserved at the start, so nothing is checked for each word.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    /// The start of the diff in `out`, and the place of its next byte.
    start: usize,
    at: usize,
    /// The place of the run's header.
    header: usize,
    kind: Kind,
    first: usize,
    /// The end of the run's last word.
    end: usize,
    /// How many of its last words changed completely, in a row.
    whole: usize,
}

/// The kind of the current run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// There is none.
    Closed,
    Whole,
    Masked,
}

impl Writer<'_> {
    fn new(out: &mut Vec<u8>, page_bytes: usize) -> Writer<'_> {
        // Bytes are written eight at a time, whatever their number.
        out.reserve(bytes_max(page_bytes) + WORD_BYTES);
        let start = out.len();
        Writer { out, start, at: start, header: start, kind: Kind::Closed, first: 0, end: 0, whole: 0 }
    }

    #[inline]
    fn word(&mut self, word: usize, now: u64, mask: u8) {
        let goes_on = word == self.end && word - self.first < COUNT_MAX;
        match self.kind {
            Kind::Masked if goes_on && mask != ALL => self.masked(now, mask),
            Kind::Whole if goes_on && mask == ALL => self.append(now, WORD_BYTES),
            _ => self.word_elsewhere(word, now, mask),
        }
        self.end = word + 1;
    }

    /// Handles a word that does not simply continue the run.
    #[inline(never)]
    fn word_elsewhere(&mut self, word: usize, now: u64, mask: u8) {
        let is_near = self.kind == Kind::Masked && word - self.end <= GAP_MAX && word - self.first < COUNT_MAX;
        if is_near {
            for _ in self.end..word {
                self.append(0, 1);
                self.whole = 0;
            }
        } else {
            self.open(word, if mask == ALL { Kind::Whole } else { Kind::Masked });
        }
        if self.kind == Kind::Whole {
            return self.append(now, WORD_BYTES);
        }
        let whole = if mask == ALL { self.whole + 1 } else { 0 };
        self.masked(now, mask);
        self.whole = whole;
        if whole == WHOLE_MIN {
            self.end = word + 1;
            self.leave_masks_out();
        }
    }

    #[inline]
    fn masked(&mut self, now: u64, mask: u8) {
        self.append(u64::from(mask), 1);
        self.append(pack(now, mask), count(mask));
        self.whole = 0;
    }

    fn open(&mut self, word: usize, kind: Kind) {
        self.close();
        self.header = self.at;
        self.append(0, HEADER_BYTES);
        (self.kind, self.first, self.end, self.whole) = (kind, word, word, 0);
    }

    /// Turns the last words of a run with masks, all of which changed completely, into a run without masks.
    fn leave_masks_out(&mut self) {
        const EACH: usize = 1 + WORD_BYTES;
        let mut bytes = [0; WHOLE_MIN * EACH];
        self.at -= bytes.len();
        // SAFETY: this many bytes were written there, one word after another.
        unsafe { self.out.as_ptr().add(self.at).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        let (first, end) = (self.end - WHOLE_MIN, self.end);
        self.end = first;
        if first == self.first {
            self.at = self.header;
            self.kind = Kind::Closed;
        }
        self.open(first, Kind::Whole);
        for word in bytes.chunks_exact(EACH) {
            let word = word[1..].first_chunk().expect("a mask and eight bytes");
            self.append(u64::from_le_bytes(*word), WORD_BYTES);
        }
        self.end = end;
    }

    /// Appends the low `count` bytes.
    #[inline]
    fn append(&mut self, bytes: u64, count: usize) {
        debug_assert!(self.at + WORD_BYTES <= self.out.capacity());
        // SAFETY: `new` reserved the space.
        unsafe { self.out.as_mut_ptr().add(self.at).cast::<u64>().write_unaligned(bytes.to_le()) };
        self.at += count;
    }

    /// Writes the header of the run, whose length is known now.
    fn close(&mut self) {
        if self.kind != Kind::Closed {
            let masked = if self.kind == Kind::Masked { MASKED } else { 0 };
            let header = self.first as u32 | ((self.end - self.first - 1) as u32) << FIRST_BITS | masked;
            // SAFETY: `open` left the space.
            unsafe { self.out.as_mut_ptr().add(self.header).cast::<u32>().write_unaligned(header.to_le()) };
        }
    }

    /// Returns whether anything was appended.
    fn finish(mut self) -> bool {
        self.close();
        // SAFETY: everything before `at` was written.
        unsafe { self.out.set_len(self.at) };
        self.at > self.start
    }
}

/// The decoded header of a run.
struct Header {
    first: usize,
    count: usize,
    masked: bool,
}

impl Header {
    fn of(bytes: [u8; HEADER_BYTES]) -> Header {
        let header = u32::from_le_bytes(bytes);
        Header {
            first: (header & ((1 << FIRST_BITS) - 1)) as usize,
            count: (header >> FIRST_BITS & ((1 << COUNT_BITS) - 1)) as usize + 1,
            masked: header & MASKED != 0,
        }
    }
}

/// Checks a diff that came from a peer: its runs lie inside the page, ascend, and nothing is left over.
///
/// # Errors
/// What is wrong with it.
pub fn check(diff: &[u8], page_bytes: usize) -> Result<(), BadDiff> {
    let words = page_bytes / WORD_BYTES;
    let (mut rest, mut end) = (diff, 0);
    while !rest.is_empty() {
        let short = BadDiff::Short { at: diff.len() - rest.len() };
        let (header, behind) = rest.split_first_chunk().ok_or(short)?;
        let Header { first, count, masked } = Header::of(*header);
        if first < end {
            return Err(BadDiff::Backwards { first, end });
        }
        if first + count > words {
            return Err(BadDiff::Outside { first, count, words });
        }
        end = first + count;
        rest = if masked { behind_masks(behind, count) } else { behind.get(count * WORD_BYTES..) }.ok_or(short)?;
    }
    Ok(())
}

/// What follows this many words with masks.
fn behind_masks(mut rest: &[u8], words: usize) -> Option<&[u8]> {
    for _ in 0..words {
        let (mask, behind) = rest.split_first()?;
        rest = behind.get(count(*mask)..)?;
    }
    Some(rest)
}

/// Applies a checked diff to a page that other threads may be using: no thread ever sees a partial change of an aligned
/// word, or of the part of it that the diff changes, and no other byte is touched.
///
/// # Safety
/// `check` has accepted the diff for the size of this page; `page` refers to that many writable bytes, aligned to eight.
pub unsafe fn apply(diff: &[u8], page: *mut u8) {
    let page = page.cast::<u64>();
    debug_assert!(page.is_aligned());
    let mut rest = diff;
    while let Some((header, mut behind)) = rest.split_first_chunk() {
        let Header { first, count, masked } = Header::of(*header);
        // SAFETY: the check found these words inside the page.
        let words = (first..first + count).map(|word| unsafe { page.add(word) });
        for word in words {
            let (mask, packed) = if masked { take_masked(&mut behind) } else { (ALL, take(&mut behind, WORD_BYTES)) };
            // SAFETY: the same.
            unsafe { put(word, packed, mask) };
        }
        rest = behind;
    }
}

/// Takes a mask and the bytes that it names.
#[inline]
fn take_masked(from: &mut &[u8]) -> (u8, u64) {
    const TOGETHER: usize = 1 + WORD_BYTES;
    // If enough bytes remain, the maximum is read at once; surplus bytes are never used.
    if let Some([mask, bytes @ ..]) = from.first_chunk::<TOGETHER>() {
        *from = &from[1 + count(*mask)..];
        return (*mask, u64::from_le_bytes(*bytes));
    }
    let mask = take(from, 1) as u8;
    (mask, take(from, count(mask)))
}

/// Takes the first `count` bytes, at most eight.
#[inline]
fn take(from: &mut &[u8], count: usize) -> u64 {
    let (taken, rest) = from.split_at(count);
    *from = rest;
    if let Some(bytes) = taken.first_chunk() {
        return u64::from_le_bytes(*bytes);
    }
    let mut bytes = [0; WORD_BYTES];
    bytes[..count].copy_from_slice(taken);
    u64::from_le_bytes(bytes)
}

/// Writes the packed bytes that `mask` names into a word, all at once.
///
/// # Safety
/// The word is valid and aligned, and is accessed only atomically or by the hardware's rules.
#[inline]
unsafe fn put(word: *mut u64, packed: u64, mask: u8) {
    let byte = mask.trailing_zeros() as usize;
    // One store if the bytes are an aligned unit of their own: an exchange costs ten times as much. SAFETY: each part
    // lies inside the word and is aligned to its size.
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
            _ => exchange(AtomicU64::from_ptr(word), spread(packed, mask), bytes_of(mask)),
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

#[cfg(test)]
mod tests;
