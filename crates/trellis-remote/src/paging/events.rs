//! What the home reports unasked: a copy must not be read any more, a lease is recalled, a right has ended.
//!
//! Promises: when [`Events::invalidate`] returns, no thread here reads the copy. It must never wait for a server: the
//! calling thread is the one that receives the servers' messages.

use std::sync::Weak;

use super::Paging;
use crate::leased::Events;
use trellis_cache::page_frames::State;

/// The source of pages outlives the region: an event for a region that is gone is dropped.
impl Events for Weak<Paging> {
    fn invalidate(&self, page: u64) {
        self.upgrade().iter().for_each(|paging| paging.invalidate(page));
    }

    fn recalled(&self, page: u64) {
        self.upgrade().iter().for_each(|paging| paging.was_recalled(page));
    }

    fn lost(&self, page: u64) {
        self.upgrade().iter().for_each(|paging| paging.was_lost(page));
    }

    fn is_used(&self, page: u64) -> bool {
        self.upgrade().is_some_and(|paging| paging.is_used(page))
    }
}

impl Paging {
    fn invalidate(&self, page: u64) {
        let was_here = self.drop_copy(page);
        self.count(|counters| &counters.invalidations, usize::from(was_here));
    }

    fn was_recalled(&self, page: u64) {
        let mut state = self.state();
        // In any other state the page is being returned, or was never here.
        let is_ours = matches!(state.table.state(page), State::Dirty | State::Fetching);
        if is_ours && !state.recalled.contains(&page) {
            state.recalled.push(page);
            self.recalled.notify_one();
        }
    }

    pub(super) fn was_lost(&self, page: u64) {
        let mut state = self.state();
        if state.table.state(page) == State::Dirty && !self.is_over() {
            // No thread uses it any more; the home decides later whether its changes can still be committed.
            self.begin_giving(&mut state.table, &[], &[page]);
            state.lost.push(page);
            self.lost.notify_one();
            return;
        }
        drop(state);
        self.drop_copy(page);
    }

    pub(super) fn is_used(&self, page: u64) -> bool {
        let mut state = self.state();
        let table = &mut state.table;
        if table.state(page) == State::Absent || table.is_writing(page) {
            return false;
        }
        // The next access maps it again, without a server.
        let was_mapped = table.is_mapped(page);
        if table.state(page) == State::Clean {
            self.unmap(table, &[page]);
        }
        was_mapped || table.state(page) != State::Clean
    }

    /// Drops the copy; returns whether it could be used.
    fn drop_copy(&self, page: u64) -> bool {
        let mut state = self.state();
        let table = &mut state.table;
        match table.state(page) {
            // The bytes being fetched are outdated, and so is a copy that is kept for a lease. If the fetch is for a
            // lease, no other process changes the page under it, and this was meant for an earlier copy.
            State::Fetching => {
                table.make_stale(page);
                self.unmap(table, &[page]);
                false
            }
            State::Clean if !table.is_writing(page) => {
                table.drop_frame(page);
                self.mapped(self.region.discard(page as usize, 1));
                drop(state);
                self.arrived();
                true
            }
            State::Absent | State::Clean | State::Dirty => false,
        }
    }
}
