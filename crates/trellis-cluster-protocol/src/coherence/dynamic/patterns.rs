//! A node's knowledge of how its threads use pages, for `dynamic(migratory)`.
//!
//! A page is *migratory* if nodes take turns with it: each loads from it and then stores to it (Cox and Fowler 1993;
//! Stenström, Brorsson and Sandberg 1993). Its first load should bring the right to store.
//!
//! A node learns from its own faults alone. A page that came with a load and was then stored to is *likely* migratory. The
//! next load asks for the right to store, but the page is opened for loads only, so that the first store is still noticed:
//! it costs a fault here and no message. With that store the page is *certain*: the next [`CERTAIN_TIMES`] loads open it
//! for stores, and then it is likely again. A page that leaves before it was stored to is not migratory.
//!
//! Promises: nothing here is needed for coherence. A wrong guess is noticed at the latest with the load after
//! [`CERTAIN_TIMES`] others; until then each of these loads takes the page from all other nodes. One byte for each page, none
//! if nothing is learned.

use alloc::vec;
use alloc::vec::Vec;

/// How often a load opens a page for stores before the node checks again that it is stored to.
pub(super) const CERTAIN_TIMES: u8 = 7;

/// See the module. Pages are named by their slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Patterns {
    /// Empty if nothing is learned.
    pages: Vec<u8>,
}

/// How many loads will still open the page for stores without a check.
const TIMES: u8 = 7;
/// The page is migratory, likely or certain.
const MIGRATORY: u8 = 8;
/// The page came, or is coming, with a load that asks for no right to store, and was not stored to.
const LOADED: u8 = 16;
/// The page came, or is coming, with a load that asks for the right to store, and its first store will be noticed.
const CHECKED: u8 = 32;

impl Patterns {
    /// Nothing is known yet of any page; without slots, nothing is learned.
    pub(super) fn new(slots: usize) -> Patterns {
        Patterns { pages: vec![0; slots] }
    }

    /// Whether a load should ask for the right to store.
    pub(super) fn is_migratory(&self, slot: usize) -> bool {
        self.has(slot, MIGRATORY)
    }

    /// A load, or a guess at one, asks for the page, with the right to store if it is migratory.
    pub(super) fn asked_for_loads(&mut self, slot: usize) {
        let Some(page) = self.pages.get_mut(slot) else { return };
        *page = match *page {
            known if known & MIGRATORY == 0 => LOADED,
            known if known & TIMES == 0 => MIGRATORY | CHECKED,
            known => known - 1,
        };
    }

    /// Whether the page is opened for loads only, although it came with the right to store: its first store must be noticed.
    pub(super) fn is_checked(&self, slot: usize) -> bool {
        self.has(slot, CHECKED)
    }

    /// A thread stores to the page, of which a copy is here or is coming.
    pub(super) fn stored(&mut self, slot: usize) {
        let Some(page) = self.pages.get_mut(slot) else { return };
        match *page {
            known if known & LOADED != 0 => *page = MIGRATORY,
            known if known & CHECKED != 0 => *page = MIGRATORY | CERTAIN_TIMES,
            _ => {}
        }
    }

    /// The page is open for stores now. They are not noticed any more, so its leaving shows nothing.
    pub(super) fn opened_for_stores(&mut self, slot: usize) {
        if let Some(page) = self.pages.get_mut(slot) {
            *page &= !(LOADED | CHECKED);
        }
    }

    /// The page leaves, or another node loads from it. If it came with a load and was not stored to, it is not migratory.
    pub(super) fn left(&mut self, slot: usize) {
        if self.has(slot, LOADED | CHECKED) {
            self.forget(slot);
        }
    }

    /// Nothing is known of the page.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(page) = self.pages.get_mut(slot) {
            *page = 0;
        }
    }

    fn has(&self, slot: usize, flags: u8) -> bool {
        self.pages.get(slot).is_some_and(|known| known & flags != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load brings the page, and a store follows before it leaves, or not. Returns whether the load asks for the right to
    /// store, and whether the page is checked.
    fn turn(patterns: &mut Patterns, is_stored_to: bool) -> (bool, bool) {
        let asks_to_store = patterns.is_migratory(0);
        patterns.asked_for_loads(0);
        let is_checked = patterns.is_checked(0);
        if is_stored_to && (!asks_to_store || is_checked) {
            patterns.stored(0);
        }
        patterns.left(0);
        (asks_to_store, is_checked)
    }

    #[test]
    fn a_page_that_is_loaded_and_then_stored_to_comes_with_the_right_to_store() {
        let mut patterns = Patterns::new(1);
        assert!(!turn(&mut patterns, true).0, "nothing is known");
        for _ in 0..3 {
            assert_eq!(turn(&mut patterns, true), (true, true), "likely");
            for _ in 0..CERTAIN_TIMES {
                assert_eq!(turn(&mut patterns, true), (true, false));
            }
        }
    }

    #[test]
    fn a_page_that_is_no_longer_stored_to_is_shared_again() {
        let mut patterns = Patterns::new(1);
        turn(&mut patterns, true);
        turn(&mut patterns, true);
        let turns = (0..20).map(|_| turn(&mut patterns, false).0).collect::<Vec<_>>();
        let wrong = turns.iter().filter(|asks| **asks).count();
        assert_eq!(wrong, usize::from(CERTAIN_TIMES) + 1, "as many as are not checked, and the check: {turns:?}");
        assert!(!turns[19]);
    }

    #[test]
    fn a_page_that_is_only_loaded_is_never_migratory() {
        let mut patterns = Patterns::new(1);
        assert!((0..5).all(|_| !turn(&mut patterns, false).0));
    }

    #[test]
    fn where_nothing_is_learned_nothing_changes() {
        let mut patterns = Patterns::new(0);
        assert!((0..5).all(|_| turn(&mut patterns, true) == (false, false)));
    }
}
