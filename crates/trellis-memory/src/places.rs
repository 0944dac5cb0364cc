//! The places of the pages of a region's application view: they are at its base address, except the first ones, which
//! can be at addresses of their own.
//!
//! Promises: an address belongs to at most one page, and a page is at one address for the life of the region. So both
//! are found without a lock. A span never crosses the border of two pieces, and never has a vacant page.

use std::sync::Arc;

use crate::catch::{PageSet, Span};

/// Pages of a region that are at an address of their own: the variables of a program, for example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The address, a multiple of the page size.
    pub address: usize,
    /// The size, a multiple of the page size, and not zero.
    pub bytes: usize,
    /// Nothing of the region is mapped there, and no change of access has an effect, before `Region::occupy_part`: a part
    /// of the addresses may never become a part of the region.
    pub is_vacant: bool,
}

impl Piece {
    fn end(&self) -> usize {
        self.address + self.bytes
    }
}

/// The places of a region's pages; see the module. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    base: usize,
    bytes: usize,
    page_shift: u32,
    /// The pages from the first one on, in the order of their numbers.
    pieces: Arc<[Piece]>,
    /// The first page that is at its place from the base.
    first_at_base: usize,
    /// The pages of vacant pieces that are not occupied; none if there are no such pieces.
    vacant: Option<Arc<PageSet>>,
}

impl Places {
    /// The places of a region at `base`. The pieces have been checked.
    pub(crate) fn new(base: usize, bytes: usize, page_bytes: usize, pieces: &[Piece]) -> Places {
        let in_pieces: usize = pieces.iter().map(|piece| piece.bytes).sum();
        let mut places = Places {
            base,
            bytes,
            page_shift: page_bytes.trailing_zeros(),
            pieces: pieces.into(),
            first_at_base: in_pieces / page_bytes,
            vacant: None,
        };
        if pieces.iter().any(|piece| piece.is_vacant) {
            let vacant = PageSet::new(places.first_at_base);
            for (first, piece) in places.pieces().filter(|(_, piece)| piece.is_vacant) {
                vacant.set(first, first + piece.bytes / page_bytes, true);
            }
            places.vacant = Some(Arc::new(vacant));
        }
        places
    }

    /// Pages of a vacant piece, first and end, are mapped from now on.
    pub(crate) fn occupied(&self, first: usize, end: usize) {
        if let Some(vacant) = &self.vacant {
            vacant.set(first, end, false);
        }
    }

    /// The range of addresses from the base on. Its beginning belongs to no page if there are pieces.
    pub(crate) fn whole(&self) -> Span {
        Span { start: self.base, bytes: self.bytes }
    }

    /// The pieces, each with its first page.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (usize, Piece)> + '_ {
        let mut first = 0;
        self.pieces.iter().map(move |piece| {
            let at = first;
            first += piece.bytes >> self.page_shift;
            (at, *piece)
        })
    }

    /// Whether a page is one of those from the base on, and not of a piece.
    pub(crate) fn is_in_whole(&self, page: usize) -> bool {
        page >= self.first_at_base
    }

    /// The address of a page.
    pub(crate) fn address_of(&self, page: usize) -> usize {
        if self.is_in_whole(page) {
            return self.base + (page << self.page_shift);
        }
        let (first, piece) = self.piece_of(page);
        piece.address + ((page - first) << self.page_shift)
    }

    /// The offset in the region of the byte at an address of one of its pages.
    pub(crate) fn offset_of(&self, address: usize) -> usize {
        let from_base = address.wrapping_sub(self.base);
        if self.first_at_base == 0 || from_base < self.bytes {
            return from_base;
        }
        self.pieces()
            .find(|(_, piece)| (piece.address..piece.end()).contains(&address))
            .map_or(from_base, |(first, piece)| (first << self.page_shift) + address - piece.address)
    }

    /// The page at an address.
    pub(crate) fn page_of(&self, address: usize) -> usize {
        self.offset_of(address) >> self.page_shift
    }

    /// Calls `step` for the spans of consecutive pages that are not vacant, in the order of their numbers.
    pub(crate) fn spans<E>(
        &self,
        page: usize,
        count: usize,
        mut step: impl FnMut(Span) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut at, end) = (page, page + count);
        while at < self.first_at_base.min(end) {
            let (first, piece) = self.piece_of(at);
            let until = end.min(first + (piece.bytes >> self.page_shift));
            let (is_vacant, until) = self.vacant.as_ref().map_or((false, until), |vacant| vacant.run(at, until));
            if !is_vacant {
                step(Span { start: self.address_of(at), bytes: (until - at) << self.page_shift })?;
            }
            at = until;
        }
        if at < end || count == 0 {
            step(Span { start: self.base + (at << self.page_shift), bytes: (end - at) << self.page_shift })?;
        }
        Ok(())
    }

    fn piece_of(&self, page: usize) -> (usize, Piece) {
        let found = self.pieces().find(|(first, piece)| page < first + (piece.bytes >> self.page_shift));
        found.expect("the page is in a piece")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 0x1000_0000_0000;

    fn places() -> Places {
        let piece = |address, bytes| Piece { address, bytes, is_vacant: false };
        Places::new(BASE, 16 << 12, 4096, &[piece(0x40_4000, 0x2000), piece(0x7fff_0000_0000, 0x1000)])
    }

    fn spans(page: usize, count: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let step = |span: Span| {
            found.push((span.start, span.bytes));
            Ok::<(), ()>(())
        };
        places().spans(page, count, step).unwrap();
        found
    }

    #[test]
    fn pages_and_addresses_are_one_to_one() {
        let places = places();
        for page in 0..16 {
            assert_eq!(places.page_of(places.address_of(page) + 17), page);
        }
        assert_eq!(
            (places.address_of(1), places.address_of(2), places.address_of(3)),
            (0x40_5000, 0x7fff_0000_0000, BASE + 0x3000)
        );
        assert_eq!(places.offset_of(0x40_5008), 0x1008);
    }

    #[test]
    fn a_span_has_no_vacant_page() {
        let pieces = [Piece { address: 0x40_4000, bytes: 0x4000, is_vacant: true }];
        let places = Places::new(BASE, 16 << 12, 4096, &pieces);
        let spans = |places: &Places| {
            let mut found = Vec::new();
            let step = |span: Span| {
                found.push((span.start, span.bytes));
                Ok::<(), ()>(())
            };
            places.spans(0, 5, step).unwrap();
            found
        };
        assert_eq!(spans(&places), [(BASE + 0x4000, 0x1000)]);
        places.clone().occupied(1, 3);
        assert_eq!(spans(&places), [(0x40_5000, 0x2000), (BASE + 0x4000, 0x1000)]);
        assert_eq!(places.page_of(0x40_6001), 2);
    }

    #[test]
    fn a_span_ends_where_a_piece_ends() {
        assert_eq!(spans(1, 4), [(0x40_5000, 0x1000), (0x7fff_0000_0000, 0x1000), (BASE + 0x3000, 0x2000)]);
        assert_eq!(spans(0, 2), [(0x40_4000, 0x2000)]);
        assert_eq!(spans(5, 3), [(BASE + 0x5000, 0x3000)]);
        assert_eq!(spans(7, 0), [(BASE + 0x7000, 0)]);
    }
}
