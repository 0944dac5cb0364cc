//! Fetches pages from their homes.
//!
//! Promises: a page that is installed for reading is a copy that was not recalled, and one that may be stored to is
//! owned; a copy that was recalled while it was fetched is requested again. A granted page is used at once, whichever
//! others are waited for. It must never hold the table during a call.

use std::ops::Range;
use std::sync::PoisonError;
use std::time::Instant;

use trellis_memory::Access;

use super::faults::Begun;
use super::{HOLD, Paging, State as Shared};
use trellis_cache::page_frames::{State, Table, runs};
use trellis_cache::readahead::Window;

impl Paging {
    /// The loop of a thread that fetches ahead.
    pub(super) fn fetch_ahead(&self) {
        while let Some(wanted) = self.fault_threads.wait_for_window() {
            let mut state = self.wait_for_room(self.state(), wanted);
            // Taken with the table locked: a fault inside the window either takes the window first, or finds its pages
            // being fetched.
            let Some(window) = self.fault_threads.next_window() else { continue };
            let mut begun = Begun::default();
            self.begin_window(&mut state.table, &window, &mut begun);
            self.notice_shortage(&state.table);
            drop(state);
            self.fetch_begun(begun, window.trigger);
        }
    }

    /// What to request besides a page that was touched.
    pub(super) fn guess(&self, page: u64) -> Option<Window> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).fault(page)
    }

    /// Begins to fetch the missing pages of a window, as far as there is room: as owned pages if their neighbours are
    /// owned.
    fn begin_window(&self, table: &mut Table, window: &Window, begun: &mut Begun) {
        let Range { start, end } = window.pages;
        let is_owned = |page: u64| page < table.pages() && (table.state(page) == State::Dirty || table.is_wanted(page));
        let for_stores = start.checked_sub(1).is_some_and(is_owned) || is_owned(end);
        let pages = if for_stores { &mut begun.leases } else { &mut begun.copies };
        let before = pages.len();
        for page in start..end {
            if table.state(page) == State::Absent && table.free() > 0 {
                table.begin_fetch(page, for_stores);
                pages.push(page);
            }
        }
        self.count(|counters| &counters.prefetched_pages, pages.len() - before);
    }

    /// Fetches pages that faults have begun, and a window besides.
    pub(super) fn fetch(&self, mut begun: Begun) {
        let mut trigger = None;
        if let (Some(window), Some(&(page, _))) = (begun.window.take(), begun.waiting.first()) {
            let mut state = self.state();
            // Half of the free memory, so that the next fault finds room too; the rest of the window waits for a
            // limited time.
            let (now, later) = window.share(page, state.table.free() as u64 / 2);
            if let Some(now) = now {
                self.begin_window(&mut state.table, &now, &mut begun);
                trigger = now.trigger;
            }
            drop(state);
            later.into_iter().for_each(|later| self.fault_threads.queue(later));
        }
        let began = Instant::now();
        let waiting = std::mem::take(&mut begun.waiting);
        self.fetch_begun(begun, trigger);
        waiting.into_iter().for_each(|(page, kind)| self.host.served(page, kind, began.elapsed()));
    }

    /// Fetches pages that are *fetching*.
    fn fetch_begun(&self, begun: Begun, trigger: Option<u64>) {
        let Begun { mut copies, mut upgrades, leases, .. } = begun;
        while !copies.is_empty() && !self.is_over() {
            copies.sort_unstable();
            self.prepare(&copies);
            // SAFETY: while the page is fetching and not mapped, only this thread uses the page frame.
            let put = &mut |page: u64, bytes: &[u8]| unsafe { self.page_frame(page) }.copy_from_slice(bytes);
            self.had_unless_over(self.pages().copy(&copies, put));
            self.count(|counters| &counters.pages_in, copies.len());
            copies = self.end_copies(&copies, trigger, &mut upgrades);
        }
        for (mut pages, keeps) in [(upgrades, true), (leases, false)] {
            if pages.is_empty() || self.is_over() {
                continue;
            }
            pages.sort_unstable();
            self.prepare(&pages);
            let granted = &mut |page: u64, bytes: Option<&[u8]>| self.granted(page, bytes, trigger);
            self.had_unless_over(self.pages().update(&pages, keeps, granted));
        }
    }

    /// Ends the process after a failure, except at the end, when a waiting thread gets no page and reports nothing.
    fn had_unless_over(&self, done: Result<(), String>) {
        if !self.is_over() {
            self.had(done);
        }
    }

    fn prepare(&self, pages: &[u64]) {
        for (first, count) in runs(pages) {
            self.mapped(self.region.prepare(first, count));
        }
    }

    /// Makes fetched copies usable. Returns those that were recalled meanwhile; those to which a thread wants to store
    /// are added to `upgrades`.
    fn end_copies(&self, pages: &[u64], trigger: Option<u64>, upgrades: &mut Vec<u64>) -> Vec<u64> {
        let (mut again, mut readable) = (Vec::new(), Vec::new());
        let mut state = self.state();
        let table = &mut state.table;
        for &page in pages {
            if table.is_wanted(page) {
                // The local bytes stay; the home that grants the lease says whether they are current.
                table.take_stale(page);
                upgrades.push(page);
            } else if table.take_stale(page) {
                again.push(page);
            } else {
                table.end_fetch(page);
                if Some(page) == trigger {
                    // A thread may be waiting for the page already; it is mapped when that thread asks again.
                    self.region.wake(page as usize, 1);
                } else {
                    table.set_mapped(page, true);
                    readable.push(page);
                }
            }
        }
        for (first, count) in runs(&readable) {
            self.mapped(self.region.install(first, count, Access::Read, false));
        }
        drop(state);
        self.arrived();
        again
    }

    /// Installs a granted page, with these bytes or with the local ones.
    fn granted(&self, page: u64, bytes: Option<&[u8]>, trigger: Option<u64>) {
        let mut state = self.state();
        let Shared { table, granted, recalled, .. } = &mut *state;
        if let Some(bytes) = bytes {
            self.unmap(table, &[page]);
            // SAFETY: the table is held, and the page is not mapped.
            unsafe { self.page_frame(page) }.copy_from_slice(bytes);
            self.count(|counters| &counters.pages_in, 1);
        }
        table.end_fetch(page);
        table.make_dirty(page, false);
        if table.is_mapped(page) {
            self.mapped(self.region.upgrade(page as usize, 1));
        } else if Some(page) == trigger {
            self.region.wake(page as usize, 1);
        } else {
            table.set_mapped(page, true);
            self.mapped(self.region.install(page as usize, 1, Access::Write, false));
        }
        let now = Instant::now();
        while granted.front().is_some_and(|(_, since)| now.duration_since(*since) > HOLD) {
            granted.pop_front();
        }
        granted.push_back((page, now));
        if recalled.contains(&page) {
            self.recalled.notify_one();
        }
        drop(state);
        self.arrived();
    }

    /// Fetches pages before they are touched, at the request of a thread of the program; returns when they have
    /// arrived.
    pub fn prefetch(&self, pages: Range<u32>, write: bool) {
        let (mut next, end) = (u64::from(pages.start), u64::from(pages.end));
        while next < end && !self.is_over() {
            let upto = end.min(next + self.measure.pages as u64);
            let mut state = self.wait_for_room(self.state(), (upto - next) as usize);
            let mut begun = Begun::default();
            let table = &mut state.table;
            for page in next..upto {
                match table.state(page) {
                    _ if table.is_writing(page) => {}
                    State::Absent if table.free() > 0 => {
                        table.begin_fetch(page, write);
                        if write { &mut begun.leases } else { &mut begun.copies }.push(page);
                    }
                    State::Clean if write => {
                        table.begin_upgrade(page);
                        begun.upgrades.push(page);
                    }
                    _ => {}
                }
            }
            let asked = begun.copies.len() + begun.leases.len() + begun.upgrades.len();
            self.count(|counters| &counters.prefetched_pages, asked);
            self.notice_shortage(table);
            drop(state);
            self.fetch_begun(begun, None);
            next = upto;
        }
    }
}
