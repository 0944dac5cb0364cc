//! Faults: which are served without the store, and which wait.
//!
//! Promises: a fault is served whatever happens to the state of its page meanwhile. A thread that waits for the store
//! does not prevent others from serving. It must never wait while it leads or holds the table.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use trellis_memory::{Access, FAULT_BATCH, Fault};

use super::Paging;
use crate::error::StoredError;
use crate::page_frames::{State, Table, runs};
use crate::readahead::Window;

/// The number of following pages that a store to a page in memory also makes writable, if the previous page was stored
/// to.
const WRITE_AHEAD: u64 = 16;
/// The maximum number of zero pages that are mapped at once.
const ZERO_AHEAD: u64 = 64;

/// The result of serving a fault.
pub(super) enum Served {
    Done,
    /// The page is now *fetching*, and the caller must fetch it, with a window of pages to fetch besides.
    Fetch(Option<Window>),
    /// There is no memory; nothing was done.
    NoRoom,
}

impl Paging {
    /// The loop of a thread that serves. One thread at a time leads: it waits for faults.
    pub(super) fn serve(&self) {
        let mut faults = Vec::with_capacity(FAULT_BATCH);
        let mut slow = Vec::with_capacity(FAULT_BATCH);
        while !self.is_over() {
            let leading = self.fault_threads.become_leader();
            while slow.is_empty() && self.fault_threads.wait_for_faults(&self.region) {
                faults.clear();
                self.region.take_faults(&mut faults);
                self.counters.faults.fetch_add(faults.len() as u64, Ordering::Relaxed);
                self.serve_batch(&faults, &mut slow);
            }
            drop(leading);
            if self.is_over() {
                return;
            }
            self.serve_slowly(&mut slow);
        }
    }

    /// Serves the faults that need no wait; the others go to `slow`.
    fn serve_batch(&self, faults: &[Fault], slow: &mut Vec<(Fault, Option<Option<Window>>)>) {
        let mut table = self.table();
        for &fault in faults {
            match self.serve_here(&mut table, fault) {
                Ok(Served::Done) => {}
                Ok(Served::Fetch(window)) => slow.push((fault, Some(window))),
                Ok(Served::NoRoom) => slow.push((fault, None)),
                Err(error) => self.fail(&error),
            }
        }
    }

    fn serve_slowly(&self, slow: &mut Vec<(Fault, Option<Option<Window>>)>) {
        let mut begun = Vec::new();
        let mut window = None;
        for (fault, fetch) in slow.drain(..) {
            let mut fetch = fetch;
            while fetch.is_none() {
                // Fetches that were begun must not wait for memory.
                self.fetch(&std::mem::take(&mut begun), window.take());
                let mut table = self.wait_for_room(self.table(), 1);
                if self.is_over() {
                    return;
                }
                match self.serve_here(&mut table, fault) {
                    Ok(Served::Done) => break,
                    Ok(Served::Fetch(more)) => fetch = Some(more),
                    Ok(Served::NoRoom) => {}
                    Err(error) => self.fail(&error),
                }
            }
            if let Some(more) = fetch {
                begun.push(fault.page as u64);
                window = window.or(more);
            }
        }
        self.fetch(&begun, window);
    }

    /// Serves a fault as far as possible without waiting.
    pub(super) fn serve_here(&self, table: &mut Table, fault: Fault) -> Result<Served, StoredError> {
        let page = fault.page as u64;
        match table.state(page) {
            State::Absent => self.serve_absent(table, page, fault.write),
            State::Fetching => {
                if fault.write {
                    table.want(page);
                }
                self.follow(page);
                Ok(Served::Done)
            }
            State::Clean if fault.write => self.serve_store(table, page),
            State::Clean | State::Dirty if table.is_mapped(page) => {
                self.region.wake(fault.page, 1);
                Ok(Served::Done)
            }
            state => {
                let access = if state == State::Dirty { Access::Write } else { Access::Read };
                table.set_mapped(page, true);
                self.region.install(fault.page, 1, access, false)?;
                self.follow(page);
                Ok(Served::Done)
            }
        }
    }

    fn serve_absent(&self, table: &mut Table, page: u64, write: bool) -> Result<Served, StoredError> {
        if table.free() == 0 {
            self.short.notify_all();
            return Ok(Served::NoRoom);
        }
        let window = match self.fault_threads.take_window_with(page) {
            // The program was faster than the thread that was to fetch this page. The page is fetched now, and that
            // thread continues with the next one.
            Some(queued) => {
                // Without a trigger, this is the rest of a window, and the next window was requested already.
                if queued.trigger.is_some() {
                    self.follow(page);
                }
                Some(Window { trigger: None, ..queued })
            }
            None => self.ahead.lock().unwrap_or_else(PoisonError::into_inner).fault(page),
        };
        if table.is_zero(page) {
            let upto = window.map_or(page + 1, |window| {
                if window.pages.start <= page + 1 && page < window.pages.end { window.pages.end } else { page + 1 }
            });
            self.give_zeros(table, page, upto, write)?;
        } else {
            table.begin_fetch(page, write);
            self.notice_shortage(table);
            return Ok(Served::Fetch(window));
        }
        self.notice_shortage(table);
        Ok(Served::Done)
    }

    /// Maps zero pages, from `page` on, as far as they are alike.
    fn give_zeros(&self, table: &mut Table, page: u64, upto: u64, write: bool) -> Result<(), StoredError> {
        // Scarce memory is not spent on a guess: the next fault needs some too.
        let guess = ZERO_AHEAD.min(table.free() as u64 / 4).max(1);
        let upto = upto.min(page + guess);
        let alike = |table: &Table, page: u64| table.state(page) == State::Absent && table.is_zero(page);
        let end = (page + 1..upto).find(|&next| !alike(table, next)).unwrap_or(upto);
        for page in page..end {
            table.add_zero(page, write);
            table.set_mapped(page, true);
        }
        let access = if write { Access::Write } else { Access::Read };
        Ok(self.region.install(page as usize, (end - page) as usize, access, true)?)
    }

    /// Serves a store to a clean page in memory: creates its twin, and those of following pages if stores are
    /// sequential.
    fn serve_store(&self, table: &mut Table, page: u64) -> Result<Served, StoredError> {
        if table.free() == 0 {
            self.short.notify_all();
            return Ok(Served::NoRoom);
        }
        let follows = page > 0 && table.state(page - 1) == State::Dirty;
        let ahead = if follows && table.free() > self.batch.measure.low { WRITE_AHEAD } else { 1 };
        let upto = (page + ahead).min(table.pages());
        let alike = |table: &Table, page: u64| table.state(page) == State::Clean && table.is_mapped(page);
        if !table.is_mapped(page) {
            self.region.keep_twin(page as usize, 1);
            table.make_dirty(page, true);
            table.set_mapped(page, true);
            self.region.install(page as usize, 1, Access::Write, false)?;
            self.follow(page);
        } else {
            let end = (page + 1..upto).find(|&next| !alike(table, next)).unwrap_or(upto);
            let count = (end - page) as usize;
            self.region.keep_twin(page as usize, count);
            (page..end).for_each(|page| table.make_dirty(page, true));
            self.region.upgrade(page as usize, count)?;
        }
        self.notice_shortage(table);
        Ok(Served::Done)
    }

    /// Records the first access to a page that was fetched ahead.
    fn follow(&self, page: u64) {
        let window = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).fault(page);
        if let Some(window) = window {
            self.fault_threads.queue(window);
        }
    }

    /// Prepares pages for stores (or loads), for a thread of the program that asks before it touches them. If there is
    /// no room, a fault does the rest.
    pub(super) fn make_ready(&self, pages: &[u64], write: bool) -> Result<(), StoredError> {
        let mut table = self.table();
        for (first, count) in runs(pages) {
            for page in first..first + count {
                let state = table.state(page as u64);
                let is_ready =
                    table.is_mapped(page as u64) && (state == State::Dirty || state == State::Clean && !write);
                if is_ready || state == State::Fetching {
                    continue;
                }
                match self.serve_here(&mut table, Fault { page, offset: 0, write })? {
                    Served::Done | Served::NoRoom => {}
                    Served::Fetch(window) => {
                        drop(table);
                        self.fetch(&[page as u64], window);
                        table = self.table();
                    }
                }
            }
        }
        Ok(())
    }
}
