//! Returns pages: because memory is short, because the home recalls them, and at the end.
//!
//! Promises: access is removed first, then changes are committed, and only when the home has them is the page frame
//! freed. A page that is being returned is not used, fetched or returned a second time until it is gone; a thread that
//! touches it meanwhile waits, and then faults again. It must never free the last page frames of recently used pages
//! while others can be freed.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{HOLD, Paging, State as Shared};
use trellis_cache::page_frames::{State, Table, runs};

/// The recalled pages that can be returned.
struct Due {
    now: Vec<u64>,
    /// The time until the next check, if it is known.
    next: Option<Duration>,
}

impl Paging {
    /// The loop of a thread that cleans while memory is short.
    pub(super) fn clean(&self) {
        loop {
            let mut state = self.state();
            while !self.measure.is_short(&state.table) && !self.is_over() {
                // Ends when memory is short, or the region is stopped.
                state = self.short.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if self.is_over() {
                return;
            }
            self.cleaning.fetch_add(1, Ordering::SeqCst);
            drop(state);
            while !self.is_over() && self.clean_once() {}
            self.cleaning.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns one batch. False if there is enough memory.
    fn clean_once(&self) -> bool {
        let mut state = self.state();
        let table = &mut state.table;
        if table.free() >= self.measure.high {
            return false;
        }
        let before = table.queued();
        if table.candidates() < table.room() / 4 {
            let mut mapped = table.deactivate(self.measure.pages);
            mapped.sort_unstable();
            self.revoke(&mapped);
        }
        let (copies, owned) = table.take_candidates(self.measure.pages, true);
        if copies.is_empty() && owned.is_empty() {
            if table.queued() == before && !self.is_over() {
                // Everything is being returned already. Ends when a thread has finished that, which signals it.
                drop(self.short.wait(state).unwrap_or_else(PoisonError::into_inner));
            }
            return true;
        }
        self.begin_giving(table, &copies, &owned);
        drop(state);
        self.count(|counters| &counters.pages_evicted, copies.len() + owned.len());
        self.give(&copies, &owned);
        true
    }

    /// The loop of the thread that returns what the home recalls.
    pub(super) fn answer_recalls(&self) {
        let mut state = self.state();
        while !self.is_over() {
            let due = take_due(&mut state, self.measure.pages);
            if !due.now.is_empty() {
                self.begin_giving(&mut state.table, &[], &due.now);
                drop(state);
                self.count(|counters| &counters.recalls, due.now.len());
                self.give(&[], &due.now);
                state = self.state();
                continue;
            }
            state = match due.next {
                Some(timeout) => self.recalled.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0,
                // Ends with a recall, or when the region is stopped.
                None => self.recalled.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// The loop of the thread that returns changes made under leases that have ended.
    pub(super) fn give_lost(&self) {
        let mut state = self.state();
        while !self.is_over() {
            let mut pages = std::mem::take(&mut state.lost);
            if pages.is_empty() {
                // Ends with a lost lease, or when the region is stopped.
                state = self.lost.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            pages.sort_unstable();
            for some in pages.chunks(self.measure.pages) {
                self.give(&[], some);
            }
            state = self.state();
        }
    }

    /// Returns every page in memory: all changes are at their homes when this returns.
    ///
    /// The pages are listed once and returned piece by piece, and each is checked again when its turn comes. They are
    /// listed again only for pages that arrived meanwhile.
    pub fn flush(&self) {
        let mut state = self.state();
        loop {
            let mut here = state.table.here();
            here.retain(|&page| !state.table.is_writing(page));
            if here.is_empty() {
                if !state.table.is_any_writing() {
                    return;
                }
                // Ends when a page was given back; its call has a deadline.
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            for some in here.chunks(self.measure.pages) {
                state = self.give_those_here(state, some);
            }
        }
    }

    /// Returns those of ascending pages that are still in memory and that no other thread returns.
    fn give_those_here<'a>(&'a self, mut state: MutexGuard<'a, Shared>, pages: &[u64]) -> MutexGuard<'a, Shared> {
        let table = &mut state.table;
        let of = |wanted: State| -> Vec<u64> {
            pages.iter().copied().filter(|&page| table.state(page) == wanted && !table.is_writing(page)).collect()
        };
        let (copies, owned) = (of(State::Clean), of(State::Dirty));
        if copies.is_empty() && owned.is_empty() {
            return state;
        }
        self.begin_giving(table, &copies, &owned);
        drop(state);
        self.give(&copies, &owned);
        self.state()
    }

    /// Marks ascending pages in memory as being returned, so that no thread can use them.
    pub(super) fn begin_giving(&self, table: &mut Table, copies: &[u64], owned: &[u64]) {
        self.unmap(table, copies);
        self.unmap(table, owned);
        for &page in owned {
            table.make_clean(page);
        }
        for &page in copies.iter().chain(owned) {
            table.set_writing(page, true);
        }
    }

    /// Returns pages that are marked as being returned.
    fn give(&self, copies: &[u64], owned: &[u64]) {
        if !copies.is_empty() {
            self.pages().drop_copies(copies);
        }
        if !owned.is_empty() {
            // SAFETY: no thread can use a page that is being returned, and only this thread returns these.
            let with_bytes = |&page: &u64| (page, &*unsafe { self.page_frame(page) });
            let contents: Vec<(u64, &[u8])> = owned.iter().map(with_bytes).collect();
            if let Some(&page) = self.had(self.pages().commit(&contents)).first() {
                self.lose(page);
            }
            self.count(|counters| &counters.pages_written_back, owned.len());
        }
        let mut state = self.state();
        for pages in [copies, owned] {
            for &page in pages {
                state.table.set_writing(page, false);
                state.table.drop_frame(page);
            }
            for (first, count) in runs(pages) {
                self.mapped(self.region.discard(first, count));
                // Threads that touched it meanwhile fault again.
                self.region.wake(first, count);
            }
        }
        drop(state);
        self.arrived();
    }
}

/// Some of the recalled pages that may be returned now, ascending; the others are kept.
fn take_due(state: &mut Shared, at_most: usize) -> Due {
    let Shared { table, granted, recalled, .. } = state;
    let mut due = Due { now: Vec::new(), next: None };
    let now = Instant::now();
    recalled.retain(|&page| match table.state(page) {
        // It is handled when it is granted.
        State::Fetching => true,
        State::Dirty if due.now.len() == at_most => true,
        State::Dirty => {
            let since = granted.iter().rev().find(|(granted, _)| *granted == page).map(|(_, since)| *since);
            let rest = since.map_or(Duration::ZERO, |since| (since + HOLD).saturating_duration_since(now));
            if rest.is_zero() {
                due.now.push(page);
            } else {
                due.next = Some(due.next.map_or(rest, |next| next.min(rest)));
            }
            !rest.is_zero()
        }
        // It is being returned, or gone.
        State::Absent | State::Clean => false,
    });
    due.now.sort_unstable();
    due
}
