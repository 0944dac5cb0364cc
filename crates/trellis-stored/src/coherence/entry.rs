//! The encoded forms of changes: patches of pages, entries of the log, redo records, and the pending release.
//!
//! Promises: decoding returns what was encoded. Invalid bytes are refused with a phrase and never trusted, and a length
//! in them causes no allocation beyond the bytes themselves. It must never touch a store.
//!
//! Numbers are LEB128. A patch list is `count, (page, runs, (offset, length, bytes)..)..`.

use std::sync::Arc;

use crate::layout::PAGE_BYTES;

/// The maximum number of changed bytes that an entry includes.
pub const INLINE_BYTES_MAX: usize = 1024;
/// The maximum number of page ranges that an entry names. One with more says that everything may have changed.
pub const NAMED_RUNS_MAX: usize = 1024;
/// The first byte of everything that is encoded here.
const VERSION: u8 = 1;

const FORM_NAMED: u8 = 0;
const FORM_INLINE: u8 = 1;
const FORM_EVERYTHING: u8 = 2;

pub use trellis_cache::patch::Patch;

/// The content of a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// These pages changed: first page and count.
    Named(Vec<(u64, u64)>),
    /// These bytes changed, and nothing else.
    Inline(Vec<Patch>),
    /// Any page may have changed.
    Everything,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The member that released.
    pub member: u64,
    /// The number of the release among its releases.
    pub release: u64,
    /// What changed.
    pub notice: Notice,
}

/// A release that was committed but is not in the pages yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The member that released.
    pub member: u64,
    /// The number of the release among the member's releases; together with the member's number it is unique.
    pub release: u64,
    /// The numbers of the staged redo records, in the order in which they are to be applied.
    pub redo_records: Vec<u64>,
    /// Patches to apply after the redo records.
    pub patches: Vec<Patch>,
}

/// The notice of a release, from its patches and the pages that were staged before.
pub fn notice_of(patches: &[Arc<Patch>], named: &[u64]) -> Notice {
    let bytes: usize = patches.iter().map(|patch| patch.bytes()).sum();
    if named.is_empty() && bytes <= INLINE_BYTES_MAX && patches.len() <= INLINE_BYTES_MAX / 8 {
        return Notice::Inline(patches.iter().map(|patch| (**patch).clone()).collect());
    }
    let mut pages: Vec<u64> = patches.iter().map(|patch| patch.page).chain(named.iter().copied()).collect();
    pages.sort_unstable();
    pages.dedup();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == page => *count += 1,
            _ => runs.push((page, 1)),
        }
    }
    if runs.len() > NAMED_RUNS_MAX { Notice::Everything } else { Notice::Named(runs) }
}

/// The bytes of `page` that differ from `twin`. Ranges at most `join` bytes apart become one; this is correct only if
/// no other process can have changed the bytes in between.
pub fn difference(number: u64, page: &[u8], twin: &[u8], join: usize) -> Option<Patch> {
    debug_assert!(page.len() == PAGE_BYTES && twin.len() == PAGE_BYTES);
    let mut runs: Vec<(u16, Vec<u8>)> = Vec::new();
    // The current range: its start, and the end of its last differing byte.
    let mut open: Option<(usize, usize)> = None;
    for (index, (new, old)) in page.chunks_exact(BLOCK).zip(twin.chunks_exact(BLOCK)).enumerate() {
        if new == old {
            continue;
        }
        let mut changed = changed_bytes(new, old);
        while changed != 0 {
            let first = changed.trailing_zeros();
            let count = (changed >> first).trailing_ones();
            let from = index * BLOCK + first as usize;
            let upto = from + count as usize;
            open = match open {
                Some((start, end)) if from - end <= join => Some((start, upto)),
                Some((start, end)) => {
                    runs.push((start as u16, page[start..end].to_vec()));
                    Some((from, upto))
                }
                None => Some((from, upto)),
            };
            // Shifts by `count - 1` and then by one, because a shift by all 64 bits is not allowed.
            changed &= (u64::MAX << first << (count - 1)) << 1;
        }
    }
    let (start, end) = open?;
    runs.push((start as u16, page[start..end].to_vec()));
    Some(Patch { page: number, runs })
}

/// The number of bytes that are compared at a time.
const BLOCK: usize = 64;

/// A mask of the bytes that differ in two blocks; bit 0 is the first byte. Compares word by word, because whole new
/// pages are compared while other threads wait for pages.
fn changed_bytes(new: &[u8], old: &[u8]) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut changed = 0;
    for (place, (new, old)) in new.chunks_exact(8).zip(old.chunks_exact(8)).enumerate() {
        let differs = word(new) ^ word(old);
        // Sets the highest bit of each non-zero byte, and then gathers these bits into one byte.
        let high = (((differs & LOW) + LOW) | differs) & !LOW;
        changed |= ((high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * place);
    }
    changed
}

impl LogEntry {
    /// Encodes it as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        let form = match &self.notice {
            Notice::Named(_) => FORM_NAMED,
            Notice::Inline(_) => FORM_INLINE,
            Notice::Everything => FORM_EVERYTHING,
        };
        out.push(form);
        put(&mut out, self.member);
        put(&mut out, self.release);
        match &self.notice {
            Notice::Named(runs) => {
                put(&mut out, runs.len() as u64);
                for (first, count) in runs {
                    put(&mut out, *first);
                    put(&mut out, *count);
                }
            }
            Notice::Inline(patches) => put_patches(&mut out, patches.iter()),
            Notice::Everything => {}
        }
        out
    }

    /// Decodes bytes.
    ///
    /// # Errors
    ///
    /// A phrase that says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<LogEntry, &'static str> {
        let mut from = Reader::versioned(bytes)?;
        let form = from.byte()?;
        let (member, release) = (from.number()?, from.number()?);
        let notice = match form {
            FORM_NAMED => {
                let count = from.number()?;
                let mut runs = Vec::new();
                for _ in 0..count {
                    runs.push((from.number()?, from.number()?));
                }
                Notice::Named(runs)
            }
            FORM_INLINE => Notice::Inline(from.patches()?),
            FORM_EVERYTHING => Notice::Everything,
            _ => return Err("an entry of the log has a form that this version does not know"),
        };
        from.end()?;
        Ok(LogEntry { member, release, notice })
    }
}

impl Pending {
    /// Encodes it as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put(&mut out, self.member);
        put(&mut out, self.release);
        put(&mut out, self.redo_records.len() as u64);
        self.redo_records.iter().for_each(|redo_record| put(&mut out, *redo_record));
        put_patches(&mut out, self.patches.iter());
        out
    }

    /// Decodes bytes.
    ///
    /// # Errors
    ///
    /// A phrase that says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Pending, &'static str> {
        let mut from = Reader::versioned(bytes)?;
        let (member, release, count) = (from.number()?, from.number()?, from.number()?);
        let mut redo_records = Vec::new();
        for _ in 0..count {
            redo_records.push(from.number()?);
        }
        let patches = from.patches()?;
        from.end()?;
        Ok(Pending { member, release, redo_records, patches })
    }
}

/// Encodes a redo record: patches in the order in which they are to be applied.
pub fn encode_redo_record<'a>(patches: impl ExactSizeIterator<Item = &'a Patch>) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_patches(&mut out, patches);
    out
}

/// The patches of a redo record.
///
/// # Errors
///
/// A phrase that says what is wrong with the bytes.
pub fn decode_redo_record(bytes: &[u8]) -> Result<Vec<Patch>, &'static str> {
    let mut from = Reader::versioned(bytes)?;
    let patches = from.patches()?;
    from.end()?;
    Ok(patches)
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_patches<'a>(out: &mut Vec<u8>, patches: impl ExactSizeIterator<Item = &'a Patch>) {
    put(out, patches.len() as u64);
    for patch in patches {
        put(out, patch.page);
        put(out, patch.runs.len() as u64);
        for (offset, bytes) in &patch.runs {
            put(out, u64::from(*offset));
            put(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
    }
}

const SHORT: &str = "a record of a release ends in the middle";

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn versioned(bytes: &'a [u8]) -> Result<Reader<'a>, &'static str> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => Ok(Reader(rest)),
            Some(_) => Err("a record of a release was written by another version of Trellis"),
            None => Err(SHORT),
        }
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        let (byte, rest) = self.0.split_first().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*byte)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number in a record of a release is too large")
    }

    fn patches(&mut self) -> Result<Vec<Patch>, &'static str> {
        let count = self.number()?;
        let mut patches = Vec::new();
        for _ in 0..count {
            let (page, run_count) = (self.number()?, self.number()?);
            let mut runs = Vec::new();
            for _ in 0..run_count {
                let (offset, length) = (self.number()?, self.number()?);
                let inside = offset.checked_add(length).is_some_and(|end| end <= PAGE_BYTES as u64);
                if !inside || length == 0 {
                    return Err("a record of a release changes bytes outside a page");
                }
                let (bytes, rest) = self.0.split_at_checked(length as usize).ok_or(SHORT)?;
                self.0 = rest;
                runs.push((offset as u16, bytes.to_vec()));
            }
            patches.push(Patch { page, runs });
        }
        Ok(patches)
    }

    fn end(&self) -> Result<(), &'static str> {
        if self.0.is_empty() { Ok(()) } else { Err("a record of a release has bytes left over") }
    }
}

#[cfg(test)]
mod tests {
    use trellis_base::Random;

    use super::*;

    fn patches() -> Vec<Patch> {
        vec![
            Patch { page: 0, runs: vec![(0, vec![1]), (4095, vec![2])] },
            Patch { page: u64::MAX >> 12, runs: vec![(7, vec![3; 300])] },
        ]
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let notices = [
            Notice::Named(vec![(0, 1), (1 << 40, 7)]),
            Notice::Inline(patches()),
            Notice::Inline(Vec::new()),
            Notice::Everything,
        ];
        for notice in notices {
            let entry = LogEntry { member: 3, release: u64::MAX, notice };
            assert_eq!(LogEntry::decode(&entry.encode()), Ok(entry));
        }
        let pending = Pending { member: 1, release: 2, redo_records: vec![9, 1 << 50], patches: patches() };
        assert_eq!(Pending::decode(&pending.encode()), Ok(pending));
        assert_eq!(decode_redo_record(&encode_redo_record(patches().iter())), Ok(patches()));
    }

    #[test]
    fn every_shortened_record_is_refused() {
        let whole = LogEntry { member: 3, release: 5, notice: Notice::Inline(patches()) }.encode();
        for length in 0..whole.len() {
            assert!(LogEntry::decode(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(LogEntry::decode(&longer).is_err());
        let mut newer = whole;
        newer[0] = 2;
        assert_eq!(LogEntry::decode(&newer), Err("a record of a release was written by another version of Trellis"));
        let outside = [VERSION, 1, 0, 1, 0xff, 0x1f, 2, 1, 1];
        assert_eq!(decode_redo_record(&outside), Err("a record of a release changes bytes outside a page"));
        let endless = [VERSION, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(decode_redo_record(&endless).is_err());
    }

    #[test]
    fn a_difference_names_the_bytes_that_differ_and_no_other() {
        let twin = vec![0u8; PAGE_BYTES];
        let mut page = twin.clone();
        assert_eq!(difference(1, &page, &twin, 0), None);
        for at in [0, 1, 63, 64, 100, 4095] {
            page[at] = 5;
        }
        let patch = difference(1, &page, &twin, 0).expect("bytes differ");
        let found: Vec<(u16, usize)> = patch.runs.iter().map(|(offset, bytes)| (*offset, bytes.len())).collect();
        assert_eq!(found, [(0, 2), (63, 2), (100, 1), (4095, 1)]);
        let mut copy = twin.clone();
        patch.apply(&mut copy);
        assert_eq!(copy, page);
        let joined = difference(1, &page, &twin, 64).expect("bytes differ");
        assert_eq!(joined.runs.len(), 2, "64 bytes between are taken along");
        copy.clone_from(&twin);
        joined.apply(&mut copy);
        assert_eq!(copy, page);
    }

    #[test]
    fn differences_at_random_are_those_of_a_plain_comparison() {
        let mut random = Random::new(1);
        for round in 0..2_000 {
            let twin: Vec<u8> = (0..PAGE_BYTES).map(|_| random.below(3) as u8).collect();
            let mut page = twin.clone();
            for _ in 0..random.below(12) {
                let from = random.index(PAGE_BYTES);
                let upto = (from + 1 + random.index(200)).min(PAGE_BYTES);
                page[from..upto].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1 + random.below(2) as u8 * 127));
            }
            let join = [0, 1, 7, 64][round % 4];
            let mut runs: Vec<(u16, Vec<u8>)> = Vec::new();
            for at in (0..PAGE_BYTES).filter(|&at| page[at] != twin[at]) {
                match runs.last_mut() {
                    Some((from, bytes)) if at - (usize::from(*from) + bytes.len()) <= join => {
                        bytes.extend_from_slice(&page[usize::from(*from) + bytes.len()..=at]);
                    }
                    _ => runs.push((at as u16, vec![page[at]])),
                }
            }
            let found = difference(7, &page, &twin, join).map_or(Vec::new(), |patch| patch.runs);
            assert_eq!(found, runs, "round {round}, join {join}");
        }
    }

    #[test]
    fn a_notice_carries_little_and_names_much() {
        let small = Arc::new(Patch { page: 4, runs: vec![(0, vec![1; 100])] });
        assert_eq!(notice_of(&[Arc::clone(&small)], &[]), Notice::Inline(vec![(*small).clone()]));
        let large = Arc::new(Patch { page: 5, runs: vec![(0, vec![1; 1000])] });
        assert_eq!(notice_of(&[small, large], &[9, 6]), Notice::Named(vec![(4, 3), (9, 1)]));
        let scattered: Vec<u64> = (0..2 * NAMED_RUNS_MAX as u64 + 2).step_by(2).collect();
        assert_eq!(notice_of(&[], &scattered), Notice::Everything);
    }
}
