//! Pages that are stored to in one interval after the other. To protect such a page after each publication only buys a
//! mark of the kernel at its next store (0.9 µs on the reference machine) for the news that it was stored to again. So
//! it stays open, and before the next publication it is compared with its twin, which ends at the first difference. A page
//! that was not stored to costs as much as a mark (up to 0.8 µs, out of memory), so it is protected again soon.
//!
//! Promises: a page that stays open is looked at before every publication until it is protected again, or taken away.
//! Must never leave a page open that has no twin.

use trellis_cluster_protocol::coherence::Input;
use trellis_cluster_protocol::{CHUNK_PAGES, PageIndex, PageRange};
use trellis_memory::MapError;

use super::ordered::lock;
use super::pages::Shard;
use super::{Node, SHARDS};

/// So many publications in a row with stores to a page, and it stays open.
const STORED_IN_A_ROW: u8 = 3;
/// What is known of a page: how many publications in a row it was stored to, at most [`STORED_IN_A_ROW`], or, where it
/// stays open, for how many more it may go without a store.
const COUNT: u8 = 3;
/// The page stays open.
const OPEN: u8 = 4;
/// The publication with the last store, as far as there is room for its number.
const PUBLICATION_SHIFT: u32 = 3;

/// The pages of one shard.
#[derive(Default)]
pub(super) struct Compared {
    /// One byte for each page, for chunks with pages that were stored to.
    chunks: Vec<Option<Box<[u8; CHUNK_PAGES as usize]>>>,
    /// Pages that stay open, and some that do not any more.
    open: Vec<PageIndex>,
}

impl Compared {
    fn known(&self, page: PageIndex) -> u8 {
        let chunk = self.chunks.get(chunk_in_shard(page)).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[(page.0 % CHUNK_PAGES) as usize])
    }

    fn know(&mut self, page: PageIndex, known: u8) {
        let chunk = chunk_in_shard(page);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK_PAGES as usize]));
        chunk[(page.0 % CHUNK_PAGES) as usize] = known;
    }

    /// Whether `page` stays open, so that the kernel's marks say nothing about it.
    pub(super) fn is_open(&self, page: PageIndex) -> bool {
        self.known(page) & OPEN != 0
    }

    /// `page`, which has a twin, is published; whether it stays open.
    fn published(&mut self, page: PageIndex, publication: u32) -> bool {
        let known = self.known(page);
        let number = (publication << PUBLICATION_SHIFT) as u8;
        if known & OPEN != 0 {
            self.know(page, number | OPEN | COUNT);
            return true;
        }
        let is_next = known & !(OPEN | COUNT) == (publication.wrapping_sub(1) << PUBLICATION_SHIFT) as u8;
        let count = if is_next { (known & COUNT) + 1 } else { 1 };
        if count < STORED_IN_A_ROW {
            self.know(page, number | count);
            return false;
        }
        self.know(page, number | OPEN | COUNT);
        self.open.push(page);
        true
    }

    /// `page` was not stored to; whether it stays open all the same.
    fn rests(&mut self, page: PageIndex) -> bool {
        let known = self.known(page);
        debug_assert!(known & OPEN != 0);
        let stays = known & COUNT > 1;
        self.know(page, if stays { known - 1 } else { 0 });
        stays
    }

    /// These pages are taken away, or protected.
    pub(super) fn forget(&mut self, range: PageRange) {
        if let Some(Some(chunk)) = self.chunks.get_mut(chunk_in_shard(range.first())) {
            range.pages().for_each(|page| chunk[(page.0 % CHUNK_PAGES) as usize] = 0);
        }
    }
}

fn chunk_in_shard(page: PageIndex) -> usize {
    (page.0 / CHUNK_PAGES / SHARDS) as usize
}

impl Node {
    /// Stores to these pages must be noticed from now on: they are protected, or they stay open and are compared.
    pub(super) fn notice_stores(&self, shard: &mut Shard, range: PageRange) -> Result<(), MapError> {
        if !shard.protocol.is_watched(range.first()) {
            return self.region.downgrade(range.first().0 as usize, range.count() as usize);
        }
        self.consistency.watch(range.first());
        let publication = self.consistency.publication();
        let protect = |first: u32, end: u32| match end - first {
            0 => Ok(()),
            count => self.region.downgrade(first as usize, count as usize),
        };
        let mut first = range.first().0;
        for page in range.pages() {
            if !shard.protocol.has_twin(page) {
                shard.compared.forget(PageRange::one(page));
            } else if shard.compared.published(page, publication) {
                self.consistency.compare();
                protect(first, page.0)?;
                first = page.0 + 1;
            }
        }
        protect(first, range.end())
    }

    /// Before a publication: tells the protocol which of the pages that stay open were stored to.
    pub(super) fn compare_open_pages(&self) -> Result<(), MapError> {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let mut open = std::mem::take(&mut shard.compared.open);
            let mut done = Ok(());
            open.retain(|&page| done.is_ok() && self.compare_open_page(&mut shard, page, &mut done));
            // Nothing was added meanwhile: pages stay open from a publication on.
            debug_assert!(shard.compared.open.is_empty());
            shard.compared.open = open;
            done?;
        }
        Ok(())
    }

    /// Whether the page is still one that stays open.
    fn compare_open_page(&self, shard: &mut Shard, page: PageIndex, done: &mut Result<(), MapError>) -> bool {
        if !shard.compared.is_open(page) {
            return false;
        }
        if !shard.protocol.is_watched(page) {
            // It is taken away, or its stores are known already.
            shard.compared.forget(PageRange::one(page));
            return false;
        }
        let has_twin = shard.protocol.has_twin(page);
        let mut stays = has_twin;
        if has_twin && !self.differs_from_twin(page) {
            if shard.compared.rests(page) {
                return true;
            }
            stays = false;
        }
        if !stays {
            shard.compared.forget(PageRange::one(page));
            *done = self.region.downgrade(page.0 as usize, 1);
            // From here on the kernel tells. What was stored until here, the twin does, if there is one.
            if has_twin && !self.differs_from_twin(page) {
                return false;
            }
        }
        self.step(shard, Input::Stored { range: PageRange::one(page) });
        stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageIndex = PageIndex(7);

    #[test]
    fn a_page_stays_open_from_the_third_publication_in_a_row_on() {
        let mut compared = Compared::default();
        assert!(!compared.published(PAGE, 10) && !compared.published(PAGE, 11));
        assert!(!compared.is_open(PAGE));
        assert!(compared.published(PAGE, 12) && compared.is_open(PAGE));
        assert!(compared.published(PAGE, 20), "it is compared, whatever came between");
        assert_eq!(compared.open, [PAGE]);
    }

    #[test]
    fn publications_that_do_not_follow_one_another_do_not_count() {
        let mut compared = Compared::default();
        for publication in (0..60).step_by(2) {
            assert!(!compared.published(PAGE, publication), "{publication}");
        }
    }

    #[test]
    fn a_page_that_is_not_stored_to_is_protected_again() {
        let mut compared = Compared::default();
        assert!((1..=3).any(|publication| compared.published(PAGE, publication)));
        assert!(compared.rests(PAGE) && compared.rests(PAGE));
        assert!(compared.published(PAGE, 6), "a store begins a new count");
        assert!(compared.rests(PAGE) && compared.rests(PAGE) && !compared.rests(PAGE));
        assert!(!compared.is_open(PAGE) && !compared.published(PAGE, 7));
    }

    #[test]
    fn what_is_taken_away_is_forgotten() {
        let mut compared = Compared::default();
        assert!((1..=3).any(|publication| compared.published(PAGE, publication)));
        compared.forget(PageRange::new(PageIndex(0), 8).unwrap());
        assert!(!compared.is_open(PAGE) && !compared.is_open(PageIndex(100_000)));
        compared.forget(PageRange::one(PageIndex(100_000)));
    }
}
