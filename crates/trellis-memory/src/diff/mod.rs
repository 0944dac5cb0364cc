//! Diffs: the bytes of a page that differ from its twin, and their application to another copy of the page; also the
//! application of a later state of a whole page ([`merge`]).
//!
//! Promises: a diff names exactly the bytes that differ, so that the stores of two nodes to different bytes of a page
//! both survive. The twin keeps exactly what the diff contains. A diff from a peer is checked before it is used, and
//! the check returns for any bytes. It never waits or locks. It must never be used for pages whose bytes are not in
//! this machine's byte order (little-endian).
//!
//! # The format
//!
//! A diff is a list of runs of aligned 8-byte words in ascending order. Two runs of one kind are adjacent only if the
//! second one begins at a multiple of 512 words. A run begins with 32 bits, little-endian: the number of its first word
//! (18 bits), its number of words less one (13 bits), and whether it has masks (the highest bit). In a run without
//! masks, the words follow, eight bytes each: every byte of them changed. In a run with masks, first a byte for each
//! word says which of its bytes changed (bit 0: the one at the lowest address), then those bytes follow. A mask of zero
//! skips a word. The masks come first, so that code that applies or checks a run does not wait for one to find the
//! next. In the dense case, every byte of a page, the diff is the page and a header for each 512 words. In the worst
//! case, with unchanged bytes all over the page, it is an eighth longer than the page ([`bytes_max`]). A diff must not
//! be rounded up to the whole page, because another node may have changed the bytes in between.

mod words;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::region::PAGE_BYTES_MAX;
#[cfg(target_arch = "x86_64")]
use words::Shuffled;
use words::{ALL, BLOCK, Packing, Plain, WORD_BYTES, changed_bytes, count, put, take_changed};

const HEADER_BYTES: usize = 4;
const FIRST_BITS: u32 = 18;
const COUNT_BITS: u32 = 13;
const MASKED: u32 = 1 << 31;
/// The maximum number of unchanged words that cost no more as masks of zero than the header of another run with masks.
const GAP_MAX: usize = 3;
/// The number of words whose masks are known before runs are made of them, so that one word has a bit for each of their
/// blocks. No run is longer.
const GROUP: usize = BLOCK * u64::BITS as usize;
/// Masks that are looked at together: this many completely changed words in a row justify a run without masks, and the
/// header of the next one with masks.
const TOGETHER: usize = BLOCK;

const _: () = assert!(PAGE_BYTES_MAX / WORD_BYTES <= 1 << FIRST_BITS && GROUP <= 1 << COUNT_BITS);
const _: () = assert!(FIRST_BITS + COUNT_BITS + 1 == u32::BITS);

/// The maximum length of the diff of a page, in bytes.
///
/// A word has nine bytes of it. A run with masks has at least one byte that did not change, so it takes at most three
/// more than its words have, for its header; a whole run of n words takes 4 - n more, that is at least four less where
/// it ends a run with masks. Two runs with masks in a group are otherwise apart by words that take nothing. So a diff
/// takes at most nine bytes for each word, and three more in its last group.
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
/// Threads may store to the page meanwhile: each word is read once, and what is appended is what the twin keeps. A
/// store that comes too late for this diff is in the next one.
///
/// # Safety
/// Both pointers refer to `page_bytes` readable bytes, aligned to 64; the twin is writable, and no other thread uses
/// it.
///
/// # Panics
/// When `page_bytes` is not a multiple of 64, or is more than [`PAGE_BYTES_MAX`]; when the pointers are not aligned.
pub unsafe fn encode(page: *const u8, twin: *mut u8, page_bytes: usize, out: &mut Vec<u8>) -> bool {
    assert!(
        page_bytes.is_multiple_of(BLOCK * WORD_BYTES) && page_bytes <= PAGE_BYTES_MAX,
        "{page_bytes} is not a page"
    );
    assert!(page.addr().is_multiple_of(64) && twin.addr().is_multiple_of(64), "a page and its twin are aligned");
    let (page, twin, words) = (page.cast(), twin.cast(), page_bytes / WORD_BYTES);
    #[cfg(target_arch = "x86_64")]
    if Shuffled::is_possible() {
        // SAFETY: the caller's promise; the processor has the instruction.
        return unsafe { encode_shuffled(page, twin, words, out) };
    }
    // SAFETY: the caller's promise.
    unsafe { encode_with::<Plain>(page, twin, words, out) }
}

/// # Safety
/// As for [`encode`], and the processor has SSSE3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
unsafe fn encode_shuffled(page: *const u64, twin: *mut u64, words: usize, out: &mut Vec<u8>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { encode_with::<Shuffled>(page, twin, words, out) }
}

/// # Safety
/// As for [`encode`].
#[inline(always)]
unsafe fn encode_with<P: Packing>(page: *const u64, twin: *mut u64, words: usize, out: &mut Vec<u8>) -> bool {
    let mut writer = Writer::new(out, words * WORD_BYTES);
    // SAFETY: the block lies inside both; the caller's promise.
    let changed_at = |word: usize| unsafe { take_changed(page.add(word), twin.add(word)) };
    for first in (0..words).step_by(GROUP) {
        let end = words.min(first + GROUP);
        let mut rest = (first..end).step_by(BLOCK);
        // Most pages have few changes, and nothing has to be kept before the first one.
        let Some((word, changed)) =
            rest.by_ref().map(|word| (word, changed_at(word))).find(|(_, changed)| *changed != 0)
        else {
            continue;
        };
        let mut group = Group { first, masks: [0; GROUP + TOGETHER], blocks: 0 };
        group.note(word, changed);
        for word in rest {
            group.note(word, changed_at(word));
        }
        // SAFETY: the words lie inside the twin, which nobody else uses.
        unsafe { writer.group::<P>(&group, twin) };
    }
    writer.finish()
}

/// Applies a later state of a page to a copy of it that other threads may be using. It writes only the bytes that
/// differ from the twin, so that a store to the copy that is not in the twin survives. The twin then becomes that
/// state. Without a twin, it writes the bytes that differ from the copy, and no thread may store to the copy meanwhile.
/// It changes words as [`apply`] does.
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
                put::<Plain>(page.add(word), Plain::pack(now, mask), mask);
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

/// The changes in at most [`GROUP`] words.
struct Group {
    first: usize,
    /// Those of each word, and a few more, so that the last ones can be looked at together.
    masks: [u8; GROUP + TOGETHER],
    /// A bit for each block that has changes.
    blocks: u64,
}

impl Group {
    #[inline(always)]
    fn note(&mut self, word: usize, changed: u64) {
        if changed != 0 {
            let word = word - self.first;
            self.masks[word..word + BLOCK].copy_from_slice(&changed.to_le_bytes());
            self.blocks |= 1 << (word / BLOCK);
        }
    }
}

/// Appends runs. The space for the longest diff is reserved at the start, so nothing is checked for each word.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    /// The start of the diff in `out`, and the place of its next byte.
    start: usize,
    at: usize,
}

/// The masks of eight words from this one on, the first one in the lowest byte.
#[inline(always)]
fn together(masks: &[u8], word: usize) -> u64 {
    u64::from_le_bytes(*masks[word..].first_chunk().expect("there are a few more"))
}

/// The end of the run that begins with `first`, a changed word, and whether all its words changed completely.
#[inline(always)]
fn run_of(masks: &[u8], first: usize) -> (usize, bool) {
    let mut end = first;
    while together(masks, end) == u64::MAX {
        end += TOGETHER;
    }
    if end > first {
        return (end + (together(masks, end).trailing_ones() / 8) as usize, true);
    }
    let mut word = first;
    loop {
        let next = together(masks, word);
        if next == u64::MAX {
            break;
        }
        let changed = if changed_bytes(next) == ALL {
            // No run without masks begins up to the last word that did not change completely.
            TOGETHER - (next.leading_ones() / 8) as usize
        } else {
            usize::from(next as u8 != 0)
        };
        if changed > 0 {
            word += changed;
            end = word;
            continue;
        }
        let gap = (next.trailing_zeros() / 8) as usize;
        if gap > GAP_MAX {
            break;
        }
        word += gap;
    }
    (end, masks[first..end].iter().all(|mask| *mask == ALL))
}

impl Writer<'_> {
    fn new(out: &mut Vec<u8>, page_bytes: usize) -> Writer<'_> {
        // Bytes are written eight at a time, so some more space is needed.
        out.reserve(bytes_max(page_bytes) + WORD_BYTES);
        let start = out.len();
        Writer { out, start, at: start }
    }

    /// Appends the runs of a group. The words are in the twin.
    ///
    /// # Safety
    /// The twin has these words, and no thread changes it.
    #[inline(always)]
    unsafe fn group<P: Packing>(&mut self, group: &Group, twin: *const u64) {
        let Group { first, masks, blocks } = group;
        let mut left = *blocks;
        let mut word = 0;
        while left != 0 {
            let block = left.trailing_zeros() as usize;
            word = word.max(block * BLOCK);
            let next = together(masks, word);
            let changed = word + (next.trailing_zeros() / 8) as usize;
            if changed >= (block + 1) * BLOCK {
                left &= left - 1;
                continue;
            }
            word = changed;
            let (end, are_whole) = run_of(masks, word);
            self.header(first + word, end - word, !are_whole);
            // SAFETY: the caller's promise.
            let words = unsafe { std::slice::from_raw_parts(twin.add(first + word), end - word) };
            if are_whole {
                self.whole(words);
            } else {
                self.masked::<P>(&masks[word..end], words);
            }
            word = end;
        }
    }

    #[inline(always)]
    fn header(&mut self, first: usize, words: usize, are_masked: bool) {
        let masked = if are_masked { MASKED } else { 0 };
        let header = u64::from(first as u32 | ((words - 1) as u32) << FIRST_BITS | masked);
        // SAFETY: `new` reserved the space.
        unsafe { self.put(self.at, header) };
        self.at += HEADER_BYTES;
    }

    #[inline(always)]
    fn whole(&mut self, words: &[u64]) {
        let bytes = size_of_val(words);
        debug_assert!(self.at + bytes <= self.out.capacity());
        // SAFETY: `new` reserved the space, which is not a part of the words.
        unsafe { words.as_ptr().cast::<u8>().copy_to_nonoverlapping(self.out.as_mut_ptr().add(self.at), bytes) };
        self.at += bytes;
    }

    #[inline(always)]
    fn masked<P: Packing>(&mut self, masks: &[u8], words: &[u64]) {
        debug_assert!(self.at + masks.len() <= self.out.capacity());
        // SAFETY: `new` reserved the space, which is not a part of the masks.
        unsafe { masks.as_ptr().copy_to_nonoverlapping(self.out.as_mut_ptr().add(self.at), masks.len()) };
        self.at += masks.len();
        // A local variable stays in a register. The compiler cannot exclude that the bytes that are written overlap a
        // field.
        let mut at = self.at;
        for (mask, word) in masks.iter().zip(words) {
            // SAFETY: `new` reserved the space.
            unsafe { self.put(at, P::pack(*word, *mask)) };
            at += count(*mask);
        }
        self.at = at;
    }

    /// Writes eight bytes at this place. The bytes that follow the valid ones are overwritten later.
    ///
    /// # Safety
    /// It is in the space that `new` reserved.
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, bytes: u64) {
        debug_assert!(at + WORD_BYTES <= self.out.capacity());
        // SAFETY: the caller's promise.
        unsafe { self.out.as_mut_ptr().add(at).cast::<u64>().write_unaligned(bytes.to_le()) };
    }

    /// Returns whether anything was appended.
    fn finish(self) -> bool {
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
/// What is wrong with the diff.
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
        rest = behind_run(behind, count, masked).ok_or(short)?;
    }
    Ok(())
}

/// The rest of the diff after a run of this many words.
fn behind_run(run: &[u8], words: usize, masked: bool) -> Option<&[u8]> {
    if !masked {
        return run.get(words * WORD_BYTES..);
    }
    let (masks, bytes) = run.split_at_checked(words)?;
    bytes.get(named(masks)..)
}

/// The number of bytes that the masks name.
fn named(masks: &[u8]) -> usize {
    let (several, rest) = masks.as_chunks();
    let several: u32 = several.iter().map(|masks| u64::from_ne_bytes(*masks).count_ones()).sum();
    several as usize + rest.iter().map(|mask| count(*mask)).sum::<usize>()
}

/// Applies a checked diff to a page that other threads may be using: no thread ever sees a partial change of an aligned
/// word, or of the part of it that the diff changes, and it touches no other byte.
///
/// # Safety
/// `check` has accepted the diff for the size of this page; `page` refers to that many writable bytes, aligned to
/// eight.
pub unsafe fn apply(diff: &[u8], page: *mut u8) {
    let page = page.cast::<u64>();
    debug_assert!(page.is_aligned());
    #[cfg(target_arch = "x86_64")]
    if Shuffled::is_possible() {
        // SAFETY: the caller's promise; the processor has the instruction.
        return unsafe { apply_shuffled(diff, page) };
    }
    // SAFETY: the caller's promise.
    unsafe { apply_with::<Plain>(diff, page) }
}

/// # Safety
/// As for [`apply`], and the processor has SSSE3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
unsafe fn apply_shuffled(diff: &[u8], page: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe { apply_with::<Shuffled>(diff, page) }
}

/// # Safety
/// As for [`apply`].
#[inline(always)]
unsafe fn apply_with<P: Packing>(diff: &[u8], page: *mut u64) {
    let mut rest = diff;
    while let Some((header, run)) = rest.split_first_chunk() {
        let Header { first, count: words, masked } = Header::of(*header);
        // SAFETY: the check found these words inside the page.
        let to = unsafe { page.add(first) };
        // SAFETY: the same.
        rest = unsafe { if masked { apply_masked::<P>(run, words, to) } else { apply_whole(run, words, to) } };
    }
}

/// Applies a run without masks; returns what follows it.
///
/// # Safety
/// `to` refers to as many words, as for [`apply`].
#[inline(always)]
unsafe fn apply_whole(run: &[u8], words: usize, to: *mut u64) -> &[u8] {
    let (bytes, rest) = run.split_at(words * WORD_BYTES);
    for (word, bytes) in bytes.as_chunks().0.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(to.add(word)).store(u64::from_le_bytes(*bytes), Ordering::Relaxed) };
    }
    rest
}

/// Applies a run with masks; returns what follows it.
///
/// # Safety
/// `to` refers to as many words, as for [`apply`].
#[inline(always)]
unsafe fn apply_masked<P: Packing>(run: &[u8], words: usize, to: *mut u64) -> &[u8] {
    let (masks, bytes) = run.split_at(words);
    let mut at = 0;
    for (word, mask) in masks.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { put::<P>(to.add(word), eight_of(bytes, at), *mask) };
        at += count(*mask);
    }
    &bytes[at..]
}

/// Eight bytes from this one on. Bytes beyond the end are zero; the mask names none of them.
#[inline(always)]
fn eight_of(bytes: &[u8], at: usize) -> u64 {
    if let Some(eight) = bytes.get(at..).and_then(|bytes| bytes.first_chunk()) {
        return u64::from_le_bytes(*eight);
    }
    let left = bytes.get(at..).unwrap_or_default();
    let mut eight = [0; WORD_BYTES];
    eight[..left.len()].copy_from_slice(left);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests;
