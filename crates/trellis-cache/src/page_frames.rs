//! Page frames: which pages of a region are in this process's memory, and in what state.
//!
//! Promises: each page has one state. Page frames and twins are counted together, and no operation is begun that
//! would exceed the allowed number. A page that waits for its bytes, or whose change is being written to the store, is
//! not evicted. It must never use the kernel, a store or a clock: this module only decides, and
//! `trellis_stored::paging` acts.
//!
//! # States
//!
//! | state | the program may | its bytes |
//! |---|---|---|
//! | absent | nothing | in the store, with the layers of [`Table::overlay`] on top; or known to be zero |
//! | fetching | nothing | being fetched |
//! | clean | read, if mapped | here, and equal to the store's with the overlay on top |
//! | dirty | write, if mapped | here; its twin, or zero if it has none, is the clean content |
//!
//! Page frames that are not mapped are candidates for eviction: an access to one is a fault that costs no call of the
//! store, and moves it back to the active page frames. This is the second chance of the clock algorithm, with the
//! kernel detecting the access.
//!
//! A dirty page may be *open*: it stays dirty over releases, and its twin is what was last released. A page that
//! changes before every release thus costs no fault for each one; a page that did not change over several releases is
//! closed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::patch::Patch;

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in memory.
    Absent,
    /// Being fetched.
    Fetching,
    /// In memory, and equal to the store's.
    Clean,
    /// In memory, and changed.
    Dirty,
}

const STATE: u8 = 3;
/// The program can use it without a fault.
const MAPPED: u8 = 4;
/// While fetching: it changed in the store meanwhile. Otherwise: it has a twin.
const STALE_OR_TWIN: u8 = 8;
/// The page in the store differs from the initial content of this region's pages.
const MARKED: u8 = 16;
/// A change of it is being written to the store.
const WRITING: u8 = 32;
/// While fetching: a thread waits to write.
const WANTED: u8 = 64;

/// A layer on top of the store's page until a release is acknowledged.
#[derive(Clone, Debug)]
pub enum Layer {
    /// A change.
    Patch(Arc<Patch>),
    /// The number of a redo record in the store that has changes of this page.
    Staged(u64),
}

/// A layer, and whether a release has collected it.
#[derive(Clone, Debug)]
struct Overlay {
    layer: Layer,
    is_taken: bool,
}

/// The size of the groups of pages that are skipped if none of their pages is marked.
const GROUP_PAGES: usize = 4096;

/// The maximum number of open pages: every release compares all of them.
const OPEN_MAX: usize = 32;
/// How many pages that were changed by the last releases are remembered.
const CLOSED_MAX: usize = 64;
/// An open page is closed after this many comparisons in a row that found no change.
const LOOKS_MAX: u8 = 4;

/// For a given capacity: how much is fetched or evicted at once, and when eviction begins.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// The maximum number of pages in one call.
    pub pages: usize,
    /// Cleaning begins if less than this is free.
    pub low: usize,
    /// Cleaning ends if this much is free.
    pub high: usize,
}

impl Measure {
    /// Several batches must be free before they are needed, but free memory is unused: a small part of the capacity.
    pub fn of(room: usize, pages_max: usize) -> Measure {
        let pages = pages_max.min(room / 32).max(1);
        let low = (room / 8).max(2 * pages).min(room / 3);
        Measure { pages, low, high: (room / 6).max(3 * pages).min(room / 2) }
    }

    /// Whether cleaning should begin: before so little is free that nothing can be mapped or fetched ahead any more.
    pub fn is_short(&self, table: &Table) -> bool {
        table.free() < usize::midpoint(self.low, self.high)
    }
}

/// See the module.
pub struct Table {
    states: Vec<u8>,
    /// Groups that contain or contained a page marked: a region has too many pages to examine one by one.
    marked: Vec<bool>,
    /// Whether a page of which nothing is known may be in the store.
    assume_stored: bool,
    /// The maximum number of page frames and twins.
    room: usize,
    page_frames: usize,
    twins: usize,
    writing: usize,
    active: VecDeque<u64>,
    inactive: VecDeque<u64>,
    dirty: Vec<u64>,
    /// Open pages, and how many comparisons in a row found no change in each.
    open: Vec<(u64, u8)>,
    /// Pages that a release has recently made clean, the oldest first.
    closed: VecDeque<u64>,
    fetches: HashSet<u64>,
    overlays: HashMap<u64, Vec<Overlay>>,
    /// How many queue entries were examined to list the page frames.
    pub listed: std::cell::Cell<usize>,
}

impl Table {
    /// The table of a region of `pages`, none in memory; `room` is the capacity for page frames and twins together.
    pub fn new(pages: usize, room: usize, assume_stored: bool) -> Table {
        Table {
            states: vec![0; pages],
            marked: vec![false; pages.div_ceil(GROUP_PAGES)],
            assume_stored,
            room,
            page_frames: 0,
            twins: 0,
            writing: 0,
            active: VecDeque::new(),
            inactive: VecDeque::new(),
            dirty: Vec::new(),
            open: Vec::new(),
            closed: VecDeque::new(),
            fetches: HashSet::new(),
            overlays: HashMap::new(),
            listed: std::cell::Cell::default(),
        }
    }

    /// The number of pages, in memory or not.
    pub fn pages(&self) -> u64 {
        self.states.len() as u64
    }

    /// The state of a page.
    pub fn state(&self, page: u64) -> State {
        match self.states[page as usize] & STATE {
            0 => State::Absent,
            1 => State::Fetching,
            2 => State::Clean,
            _ => State::Dirty,
        }
    }

    fn set_state(&mut self, page: u64, state: State) {
        let now = &mut self.states[page as usize];
        *now = *now & !STATE | state as u8;
    }

    fn has(&self, page: u64, bit: u8) -> bool {
        self.states[page as usize] & bit != 0
    }

    fn set(&mut self, page: u64, bit: u8, on: bool) {
        let now = &mut self.states[page as usize];
        if on { *now |= bit } else { *now &= !bit }
    }

    /// Whether the program can touch it without a fault.
    pub fn is_mapped(&self, page: u64) -> bool {
        self.has(page, MAPPED)
    }

    /// Whether a copy of it from before the program's stores is kept.
    pub fn has_twin(&self, page: u64) -> bool {
        self.state(page) == State::Dirty && self.has(page, STALE_OR_TWIN)
    }

    /// Whether it is being written back.
    pub fn is_writing(&self, page: u64) -> bool {
        self.has(page, WRITING)
    }

    /// Sets whether it is being written back.
    pub fn set_writing(&mut self, page: u64, on: bool) {
        let was = self.is_writing(page);
        self.writing = self.writing + usize::from(on) - usize::from(was);
        self.set(page, WRITING, on);
    }

    /// Whether any page is being written back.
    pub fn is_any_writing(&self) -> bool {
        self.writing > 0
    }

    /// Records that no page is known to be zero any more.
    pub fn forget_zeros(&mut self) {
        if !self.assume_stored {
            return;
        }
        for (states, marked) in self.states.chunks_mut(GROUP_PAGES).zip(&mut self.marked) {
            if std::mem::take(marked) {
                states.iter_mut().for_each(|state| *state &= !MARKED);
            }
        }
    }

    /// The pages that are being fetched.
    pub fn fetching(&self) -> Vec<u64> {
        self.fetches.iter().copied().collect()
    }

    /// Whether the store has nothing of the page, and no change of it was made.
    pub fn is_zero(&self, page: u64) -> bool {
        self.has(page, MARKED) == self.assume_stored && !self.overlays.contains_key(&page)
    }

    /// Sets whether the store has nothing of the page.
    pub fn set_zero(&mut self, page: u64, zero: bool) {
        let is_marked = zero == self.assume_stored;
        self.set(page, MARKED, is_marked);
        self.marked[page as usize / GROUP_PAGES] |= is_marked;
    }

    /// The pages that may be in the store.
    pub fn stored_pages(&self) -> impl Iterator<Item = u64> + '_ {
        let groups = (0..self.marked.len()).filter(|&group| self.assume_stored || self.marked[group]);
        let pages = groups.flat_map(|group| group * GROUP_PAGES..((group + 1) * GROUP_PAGES).min(self.states.len()));
        pages.map(|page| page as u64).filter(|&page| self.has(page, MARKED) != self.assume_stored)
    }

    /// How many more page frames and twins there may be.
    pub fn free(&self) -> usize {
        self.room.saturating_sub(self.page_frames + self.twins)
    }

    /// Sets the maximum number of page frames and twins.
    pub fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// The maximum number of page frames and twins.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The number of pages in memory.
    pub fn page_frames(&self) -> usize {
        self.page_frames
    }

    /// The number of twins.
    pub fn twins(&self) -> usize {
        self.twins
    }

    /// Marks a page as being fetched. The caller has checked that there is room.
    pub fn begin_fetch(&mut self, page: u64, wanted_for_writing: bool) {
        debug_assert_eq!(self.state(page), State::Absent);
        self.page_frames += 1;
        self.fetches.insert(page);
        self.set_state(page, State::Fetching);
        self.set(page, STALE_OR_TWIN | MAPPED, false);
        self.set(page, WANTED, wanted_for_writing);
    }

    /// Marks a page that is in memory, and stays readable, as waiting for the right to store to it.
    pub fn begin_upgrade(&mut self, page: u64) {
        debug_assert_eq!(self.state(page), State::Clean);
        self.fetches.insert(page);
        self.set_state(page, State::Fetching);
        self.set(page, STALE_OR_TWIN, false);
        self.set(page, WANTED, true);
    }

    /// Whether a thread waits to write to a page that is being fetched.
    pub fn is_wanted(&self, page: u64) -> bool {
        self.state(page) == State::Fetching && self.has(page, WANTED)
    }

    /// Records that a thread waits to write to a page that is being fetched.
    pub fn want(&mut self, page: u64) {
        self.set(page, WANTED, true);
    }

    /// Records that the content being fetched is outdated.
    pub fn make_stale(&mut self, page: u64) {
        debug_assert_eq!(self.state(page), State::Fetching);
        self.set(page, STALE_OR_TWIN, true);
    }

    /// Whether the fetched content is outdated and must be fetched again.
    pub fn take_stale(&mut self, page: u64) -> bool {
        let was = self.has(page, STALE_OR_TWIN);
        self.set(page, STALE_OR_TWIN, false);
        was
    }

    /// Records that the page's bytes were fetched; returns whether a thread wants to write.
    pub fn end_fetch(&mut self, page: u64) -> bool {
        debug_assert_eq!(self.state(page), State::Fetching);
        self.fetches.remove(&page);
        let wanted = self.has(page, WANTED);
        self.set(page, WANTED | STALE_OR_TWIN, false);
        self.set_state(page, State::Clean);
        self.active.push_back(page);
        wanted
    }

    /// Adds a zero page that is in memory, and may be writable.
    pub fn add_zero(&mut self, page: u64, dirty: bool) {
        debug_assert_eq!(self.state(page), State::Absent);
        self.page_frames += 1;
        self.set(page, STALE_OR_TWIN, false);
        self.set_state(page, State::Clean);
        self.active.push_back(page);
        if dirty {
            self.make_dirty(page, false);
        }
    }

    /// Records that the page may be written from now on.
    pub fn make_dirty(&mut self, page: u64, twin: bool) {
        debug_assert_eq!(self.state(page), State::Clean);
        self.set_state(page, State::Dirty);
        self.set(page, STALE_OR_TWIN, twin);
        self.twins += usize::from(twin);
        self.dirty.push(page);
        if self.dirty.len() > self.room.saturating_mul(2).saturating_add(1024) {
            // The list contains pages more than once that were evicted and fetched again.
            self.dirty = self.take_dirty();
        }
    }

    /// Records that a dirty page that had no twin has one.
    pub fn add_twin(&mut self, page: u64) {
        debug_assert!(self.state(page) == State::Dirty && !self.has_twin(page));
        self.set(page, STALE_OR_TWIN, true);
        self.twins += 1;
    }

    /// Records that the page's changes are known; returns whether it had a twin, which is no longer needed.
    pub fn make_clean(&mut self, page: u64) -> bool {
        debug_assert_eq!(self.state(page), State::Dirty);
        let twin = self.has_twin(page);
        self.twins -= usize::from(twin);
        self.set(page, STALE_OR_TWIN, false);
        self.set_state(page, State::Clean);
        self.open.retain(|(open, _)| *open != page);
        twin
    }

    /// Whether a release should leave a dirty page open: it is open, or a recent release changed it too.
    pub fn should_stay_open(&self, page: u64) -> bool {
        debug_assert_eq!(self.state(page), State::Dirty);
        match self.open.iter().find(|(open, _)| *open == page) {
            Some((_, looks)) => *looks < LOOKS_MAX && self.is_mapped(page),
            // It may need a twin.
            None => {
                self.open.len() < OPEN_MAX && self.free() > 0 && self.is_mapped(page) && self.closed.contains(&page)
            }
        }
    }

    /// Keeps a page dirty over a release, which found a change or not. Its twin is what was released.
    pub fn keep_open(&mut self, page: u64, changed: bool) {
        debug_assert!(self.has_twin(page));
        match self.open.iter_mut().find(|(open, _)| *open == page) {
            Some((_, looks)) => *looks = if changed { 0 } else { *looks + 1 },
            None => {
                self.closed.retain(|closed| *closed != page);
                self.open.push((page, 0));
            }
        }
        self.dirty.push(page);
    }

    /// Whether it stays dirty over releases.
    pub fn is_open(&self, page: u64) -> bool {
        self.open.iter().any(|(open, _)| *open == page)
    }

    /// Records that a release found a change in the page and made it clean.
    pub fn note_closed(&mut self, page: u64) {
        if self.closed.contains(&page) {
            return;
        }
        if self.closed.len() == CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(page);
    }

    /// Sets whether the program can touch it without a fault.
    pub fn set_mapped(&mut self, page: u64, mapped: bool) {
        self.set(page, MAPPED, mapped);
    }

    /// Removes a page from memory; returns whether it had a twin.
    pub fn drop_frame(&mut self, page: u64) -> bool {
        let twin = self.state(page) == State::Dirty && self.make_clean(page);
        debug_assert_eq!(self.state(page), State::Clean);
        self.page_frames -= 1;
        debug_assert!(!self.is_writing(page));
        self.set(page, MAPPED, false);
        self.set_state(page, State::Absent);
        self.bound_queues();
        twin
    }

    /// The pages that were dirty at some time since the last call, ascending, each once.
    pub fn take_dirty(&mut self) -> Vec<u64> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        dirty.retain(|&page| self.state(page) == State::Dirty);
        dirty
    }

    /// Returns pages that were not compared.
    pub fn give_dirty_back(&mut self, pages: &[u64]) {
        self.dirty.extend_from_slice(pages);
    }

    /// The page frames in memory, ascending. Examines all of them: not for each step of a long operation.
    pub fn here(&self) -> Vec<u64> {
        self.listed.set(self.listed.get() + self.active.len() + self.inactive.len());
        let mut pages: Vec<u64> = self.active.iter().chain(&self.inactive).copied().collect();
        pages.sort_unstable();
        pages.dedup();
        pages.retain(|&page| matches!(self.state(page), State::Clean | State::Dirty));
        pages
    }

    /// A lower bound of the number of candidates for eviction.
    pub fn candidates(&self) -> usize {
        self.inactive.len()
    }

    /// The lengths of the active and the inactive queue, which show whether anything moved.
    pub fn queued(&self) -> (usize, usize) {
        (self.active.len(), self.inactive.len())
    }

    /// Turns the oldest active page frames into candidates. Returns those that are mapped, to be unmapped.
    pub fn deactivate(&mut self, count: usize) -> Vec<u64> {
        let mut mapped = Vec::new();
        for _ in 0..count.min(self.active.len()) {
            let Some(page) = self.active.pop_front() else { break };
            match self.state(page) {
                State::Absent => continue,
                State::Fetching => {
                    self.active.push_back(page);
                    continue;
                }
                State::Clean | State::Dirty => {}
            }
            if self.is_mapped(page) {
                self.set_mapped(page, false);
                mapped.push(page);
            }
            self.inactive.push_back(page);
        }
        mapped
    }

    /// Takes at most `count` candidates: those that can be evicted at once, and those that must be written first.
    pub fn take_candidates(&mut self, count: usize, writes_kept: bool) -> (Vec<u64>, Vec<u64>) {
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        for _ in 0..self.inactive.len() {
            if clean.len() + dirty.len() == count {
                break;
            }
            let Some(page) = self.inactive.pop_front() else { break };
            match self.state(page) {
                State::Absent => {}
                _ if self.is_mapped(page) || self.state(page) == State::Fetching => self.active.push_back(page),
                _ if self.is_writing(page) => self.inactive.push_back(page),
                // A release is writing it, and a later change must not overtake that.
                State::Dirty if !writes_kept && self.overlays.contains_key(&page) => self.inactive.push_back(page),
                State::Dirty => dirty.push(page),
                _ => clean.push(page),
            }
        }
        clean.sort_unstable();
        clean.dedup();
        dirty.sort_unstable();
        dirty.dedup();
        (clean, dirty)
    }

    /// Makes a page a candidate again.
    pub fn give_candidate_back(&mut self, page: u64) {
        self.inactive.push_front(page);
    }

    /// Removes entries of page frames that were evicted and fetched again, so that the queues stay bounded.
    fn bound_queues(&mut self) {
        if self.active.len() + self.inactive.len() <= self.room.saturating_mul(4).saturating_add(1024) {
            return;
        }
        let mut seen = HashSet::new();
        let states = &self.states;
        let mut keep = |page: &u64| states[*page as usize] & STATE != 0 && seen.insert(*page);
        self.inactive.retain(&mut keep);
        self.active.retain(&mut keep);
    }

    /// Adds a change that is not in the store's page.
    pub fn lay_over(&mut self, page: u64, layer: Layer, is_taken: bool) {
        self.overlays.entry(page).or_default().push(Overlay { layer, is_taken });
    }

    /// The layers on top of a page.
    pub fn overlay(&self, page: u64) -> Vec<Layer> {
        self.overlays
            .get(&page)
            .map(|layers| layers.iter().map(|over| over.layer.clone()).collect())
            .unwrap_or_default()
    }

    /// The redo records that no release has collected yet, with their pages; they count as collected now.
    pub fn take_redo_records(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut redo_records, mut pages) = (Vec::new(), Vec::new());
        for (page, layers) in &mut self.overlays {
            for over in layers.iter_mut().filter(|over| !over.is_taken) {
                over.is_taken = true;
                pages.push(*page);
                if let Layer::Staged(redo_record) = over.layer {
                    redo_records.push(redo_record);
                }
            }
        }
        // The numbers of redo records increase with time.
        redo_records.sort_unstable();
        redo_records.dedup();
        pages.sort_unstable();
        pages.dedup();
        (redo_records, pages)
    }

    /// Records that these changes are now in a redo record.
    pub fn stage(&mut self, redo_record: u64, patches: &[Arc<Patch>]) {
        for patch in patches {
            for over in self.overlays.get_mut(&patch.page).into_iter().flatten() {
                if matches!(&over.layer, Layer::Patch(kept) if Arc::ptr_eq(kept, patch)) {
                    over.layer = Layer::Staged(redo_record);
                }
            }
        }
    }

    /// Records that what releases have collected is in the store's pages.
    pub fn settle(&mut self) {
        self.overlays.retain(|_, layers| {
            layers.retain(|over| !over.is_taken);
            !layers.is_empty()
        });
    }
}

/// Ranges of adjacent pages in an ascending list: first page and count.
pub fn runs(pages: &[u64]) -> impl Iterator<Item = (usize, usize)> + '_ {
    pages.chunk_by(|one, next| one + 1 == *next).map(|run| (run[0] as usize, run.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_twins_are_counted() {
        let mut table = Table::new(100, 10, true);
        table.begin_fetch(3, false);
        assert!(!table.end_fetch(3));
        table.make_dirty(3, true);
        table.set_zero(4, true);
        assert!(table.is_zero(4) && !table.is_zero(3));
        table.add_zero(4, true);
        assert_eq!((table.page_frames(), table.twins(), table.free()), (2, 1, 7));
        assert_eq!(table.take_dirty(), [3, 4]);
        assert!(table.make_clean(3) && !table.make_clean(4));
        assert!(!table.drop_frame(3));
        assert_eq!((table.page_frames(), table.twins(), table.free()), (1, 0, 9));
        assert_eq!(table.here(), [4]);
        assert!(table.take_dirty().is_empty());
    }

    #[test]
    fn what_may_be_stored_is_found_in_every_group() {
        let pages = 3 * GROUP_PAGES + 1;
        let mut table = Table::new(pages, 10, false);
        let changed = [0, GROUP_PAGES as u64 - 1, GROUP_PAGES as u64, pages as u64 - 1];
        changed.iter().for_each(|&page| table.set_zero(page, false));
        assert_eq!(table.stored_pages().collect::<Vec<_>>(), changed);
        table.set_zero(0, true);
        assert_eq!(table.stored_pages().collect::<Vec<_>>(), changed[1..]);
        let mut table = Table::new(pages, 10, true);
        changed.iter().for_each(|&page| table.set_zero(page, true));
        assert_eq!(table.stored_pages().count(), pages - changed.len());
        table.forget_zeros();
        assert_eq!(table.stored_pages().count(), pages);
        assert!(!table.is_zero(changed[1]));
    }

    #[test]
    fn a_page_that_releases_keep_finding_changed_stays_open() {
        let mut table = Table::new(1000, 1000, true);
        let store = |table: &mut Table, page| {
            table.begin_fetch(page, true);
            table.end_fetch(page);
            table.make_dirty(page, true);
            table.set_mapped(page, true);
        };
        store(&mut table, 3);
        assert!(!table.should_stay_open(3), "nothing is known of it");
        table.make_clean(3);
        table.note_closed(3);
        table.make_dirty(3, true);
        assert!(table.should_stay_open(3));
        assert_eq!(table.take_dirty(), [3]);
        for looks in 0..LOOKS_MAX {
            assert!(table.should_stay_open(3), "after {looks} looks");
            table.keep_open(3, looks == 0);
            assert_eq!(table.take_dirty(), [3], "the next release looks again");
        }
        table.keep_open(3, false);
        assert!(!table.should_stay_open(3) && table.is_open(3));
        table.make_clean(3);
        assert!(!table.is_open(3));
        for page in 10..10 + 2 * OPEN_MAX as u64 {
            store(&mut table, page);
            table.note_closed(page);
            if table.should_stay_open(page) {
                table.keep_open(page, true);
            }
        }
        assert_eq!(table.open.len(), OPEN_MAX);
        (100..100 + 2 * CLOSED_MAX as u64).for_each(|page| table.note_closed(page));
        assert_eq!(table.closed.len(), CLOSED_MAX);
    }

    #[test]
    fn what_was_used_again_is_not_given_up() {
        let mut table = Table::new(100, 10, false);
        for page in 0..6 {
            table.add_zero(page, page == 2);
            table.set_mapped(page, true);
        }
        assert_eq!(table.deactivate(5), [0, 1, 2, 3, 4]);
        table.set_mapped(1, true);
        table.set_writing(3, true);
        assert_eq!(table.take_candidates(10, true), (vec![0, 4], vec![2]));
        assert_eq!(table.candidates(), 1, "the one whose change is on its way");
        table.set_writing(3, false);
        assert_eq!(table.take_candidates(10, true), (vec![3], vec![]));
        assert_eq!(table.deactivate(9), [5, 1], "the one that was used again is the youngest");
    }

    #[test]
    fn a_layer_stays_until_its_release_is_acknowledged() {
        let mut table = Table::new(100, 10, false);
        let patch = Arc::new(Patch { page: 7, runs: vec![(0, vec![1])] });
        table.lay_over(7, Layer::Patch(Arc::clone(&patch)), true);
        table.lay_over(7, Layer::Staged(5), false);
        assert!(!table.is_zero(7));
        table.stage(4, &[patch]);
        assert!(matches!(table.overlay(7)[..], [Layer::Staged(4), Layer::Staged(5)]));
        table.settle();
        assert!(matches!(table.overlay(7)[..], [Layer::Staged(5)]), "the redo record came after the release");
        assert_eq!(table.take_redo_records(), (vec![5], vec![7]));
        assert_eq!(table.take_redo_records(), (vec![], vec![]));
        table.settle();
        assert!(table.overlay(7).is_empty() && table.is_zero(7));
    }

    #[test]
    fn queues_do_not_grow_with_time() {
        let mut table = Table::new(100, 10, true);
        for round in 0..10_000u64 {
            table.begin_fetch(round % 100, false);
            table.end_fetch(round % 100);
            table.drop_frame(round % 100);
        }
        assert!(table.active.len() <= 4 * 10 + 1025, "{}", table.active.len());
    }

    #[test]
    fn runs_are_of_neighbours() {
        assert_eq!(runs(&[1, 2, 3, 7, 9, 10]).collect::<Vec<_>>(), [(1, 3), (7, 1), (9, 2)]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
