//! What lies in a segment, for processes that do not own it: which pages are cut into blocks of which size, and, when its
//! owner has left in order, which of the blocks the program has.
//!
//! Promises: bytes that are no description are refused; a description names no page beyond its segment as a beginning.

use trellis_protocol::heap::classes::CLASSES;

use super::span::BLOCKS_MAX;

/// Words of bits that one span has at most.
const WORDS_MAX: usize = BLOCKS_MAX as usize / 64;
/// The class of one large block.
pub(super) const WHOLE: u8 = 255;
/// The class of pages of which nothing is known.
pub(super) const UNKNOWN: u8 = 254;

/// A span that begins in the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    /// Of the heap, not of the segment.
    pub(super) first_page: u32,
    pub(super) pages: u32,
    /// Of the size of its blocks, or [`WHOLE`].
    pub(super) class: u8,
    /// Bits of the blocks that the program has; empty when that is not known, and every block may be one.
    pub(super) live: Vec<u64>,
}

impl Described {
    pub(super) fn unknown(first_page: u32, pages: u32) -> Described {
        Described { first_page, pages, class: UNKNOWN, live: Vec::new() }
    }

    fn is_possible(&self) -> bool {
        self.pages > 0 && (usize::from(self.class) < CLASSES || self.class == WHOLE)
    }
}

/// What `owner` says of a segment.
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

/// Who said it, and what.
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
