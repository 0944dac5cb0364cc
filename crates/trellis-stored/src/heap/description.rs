//! The content of a segment, as described for processes that do not own it: which pages are divided into blocks of
//! which size, and which blocks the program had at the owner's last release.
//!
//! Promises: bytes that are not a description are refused; a description names no span that begins beyond its segment.

use trellis_base::size_classes::{CLASSES, size_of};

use super::PAGE_BYTES;
use super::span::BLOCKS_MAX;

/// The maximum number of words of bits for one span.
const WORDS_MAX: usize = BLOCKS_MAX as usize / 64;
/// The class of one large block.
pub(super) const WHOLE: u8 = 255;
/// The class of pages whose content is not known.
pub(super) const UNKNOWN: u8 = 254;

/// A span that begins in the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    /// The page's number in the heap, not in the segment.
    pub(super) first_page: u32,
    pub(super) pages: u32,
    /// The size class of its blocks, or [`WHOLE`].
    pub(super) class: u8,
    /// The bits of the blocks that the program has; empty if that is not known, and any block may be in use.
    pub(super) live: Vec<u64>,
}

impl Described {
    pub(super) fn unknown(first_page: u32, pages: u32) -> Described {
        Described { first_page, pages, class: UNKNOWN, live: Vec::new() }
    }

    fn is_possible(&self) -> bool {
        self.pages > 0 && (usize::from(self.class) < CLASSES || self.class == WHOLE || self.class == UNKNOWN)
    }

    /// One past its last page.
    pub(super) fn end_page(&self) -> u32 {
        self.first_page.saturating_add(self.pages)
    }

    /// The number of its blocks.
    fn blocks(&self) -> u64 {
        let size = u64::from(size_of(self.class));
        (u64::from(self.pages) * PAGE_BYTES / size).min(BLOCKS_MAX.into())
    }

    /// Whether it is known that the program has none of its blocks.
    pub(super) fn is_empty(&self) -> bool {
        usize::from(self.class) < CLASSES && !self.live.is_empty() && self.live.iter().all(|word| *word == 0)
    }

    /// Records that the small block at this offset in the span was freed; false if none begins there.
    pub(super) fn strike(&mut self, bytes: u64) -> bool {
        if usize::from(self.class) >= CLASSES {
            return false;
        }
        let (size, blocks) = (u64::from(size_of(self.class)), self.blocks());
        let index = bytes / size;
        if !bytes.is_multiple_of(size) || index >= blocks {
            return false;
        }
        if self.live.is_empty() {
            let bits = |word: u64| if blocks - word * 64 >= 64 { u64::MAX } else { (1 << (blocks - word * 64)) - 1 };
            self.live = (0..blocks.div_ceil(64)).map(bits).collect();
        }
        let Some(word) = self.live.get_mut(index as usize / 64) else { return false };
        let before = *word;
        *word &= !(1 << (index % 64));
        *word != before
    }
}

/// Encodes the description that `owner` gives of a segment.
pub(super) fn encode(owner: u64, spans: &[Described]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + spans.len() * 10);
    bytes.extend(owner.to_le_bytes());
    for span in spans {
        bytes.extend(span.first_page.to_le_bytes());
        bytes.extend(span.pages.to_le_bytes());
        bytes.extend([span.class, span.live.len() as u8]);
        span.live.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    bytes
}

/// Decodes the owner and its description.
pub(super) fn decode(bytes: &[u8]) -> Option<(u64, Vec<Described>)> {
    let (owner, mut bytes) = bytes.split_at_checked(8)?;
    let owner = u64::from_le_bytes(owner.try_into().expect("eight bytes"));
    let mut spans = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(10)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let words = usize::from(head[9]);
        let (live, rest) = rest.split_at_checked(words * 8).filter(|_| words <= WORDS_MAX)?;
        let live = live.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
        let span = Described { first_page: number(0), pages: number(4), class: head[8], live };
        spans.push(Some(span).filter(Described::is_possible)?);
        bytes = rest;
    }
    Some((owner, spans))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_struck_out_once() {
        let mut span = Described { first_page: 0, pages: 1, class: 0, live: vec![] };
        let size = u64::from(size_of(0));
        assert!(!span.is_empty(), "nothing is known");
        assert!(span.strike(size * 3) && !span.strike(size * 3), "a second free is refused");
        assert!(!span.strike(size * 3 + 1) && !span.strike(PAGE_BYTES), "no block begins there");
        assert_eq!(span.live.iter().map(|word| word.count_ones()).sum::<u32>() as u64, span.blocks() - 1);
        (0..span.blocks()).for_each(|index| _ = span.strike(size * index));
        assert!(span.is_empty());
        let mut whole = Described { class: WHOLE, ..span };
        assert!(!whole.strike(0) && !whole.is_empty());
    }

    #[test]
    fn descriptions_survive_being_encoded() {
        let spans = [
            Described { first_page: 256, pages: 16, class: 3, live: vec![u64::MAX, 5] },
            Described { first_page: 272, pages: 100_000, class: WHOLE, live: vec![] },
        ];
        let bytes = encode(77, &spans);
        assert_eq!(decode(&bytes), Some((77, spans.to_vec())));
        assert_eq!(decode(&bytes[1..]), None);
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!((decode(&[]), decode(&bytes[..8])), (None, Some((77, vec![]))));
    }
}
