//! Faults: which are served without a server, and which wait.
//!
//! Promises: a fault is served whatever happens to the state of its page meanwhile. A thread that waits for a server
//! does not prevent others from serving. It must never wait while it leads or holds the table.

use std::time::Instant;

use trellis_memory::{Access, FAULT_BATCH, Fault};

use super::{Paging, State as Shared};
use trellis_cache::page_frames::{State, Table};
use trellis_cache::readahead::Window;
use trellis_record::FaultKind;

/// A store to a copy also takes the leases of this many following copies, if the previous page is owned.
const WRITE_AHEAD: u64 = 16;

/// What faults have begun, and what could not be begun.
#[derive(Default)]
pub(super) struct Begun {
    /// Pages of which copies are to be taken.
    pub(super) copies: Vec<u64>,
    /// Pages of which leases are to be taken.
    pub(super) leases: Vec<u64>,
    /// Pages of which leases are to be taken and whose bytes are here.
    pub(super) upgrades: Vec<u64>,
    /// What to fetch besides.
    pub(super) window: Option<Window>,
    /// The faults that wait for these pages.
    pub(super) waiting: Vec<(u64, FaultKind)>,
    /// Faults for which there was no memory.
    later: Vec<Fault>,
}

impl Begun {
    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.leases.is_empty() && self.upgrades.is_empty()
    }
}

impl Paging {
    /// The loop of a thread that serves. One thread at a time leads: it waits for faults.
    pub(super) fn serve(&self) {
        let mut faults = Vec::with_capacity(FAULT_BATCH);
        while !self.is_over() {
            let mut begun = Begun::default();
            let leading = self.fault_threads.become_leader();
            while begun.is_empty() && begun.later.is_empty() && self.fault_threads.wait_for_faults(&self.region) {
                faults.clear();
                self.region.take_faults(&mut faults);
                let mut state = self.state();
                faults.iter().for_each(|&fault| self.serve_here(&mut state, fault, &mut begun));
            }
            drop(leading);
            self.serve_slowly(begun);
        }
    }

    fn serve_slowly(&self, mut begun: Begun) {
        loop {
            let later = std::mem::take(&mut begun.later);
            // Fetches that were begun must not wait for memory.
            self.fetch(begun);
            if later.is_empty() || self.is_over() {
                return;
            }
            begun = Begun::default();
            let mut state = self.wait_for_room(self.state(), 1);
            later.into_iter().for_each(|fault| self.serve_here(&mut state, fault, &mut begun));
        }
    }

    /// Serves a fault as far as possible without waiting.
    fn serve_here(&self, state: &mut Shared, fault: Fault, begun: &mut Begun) {
        let began = Instant::now();
        let (table, page) = (&mut state.table, fault.page as u64);
        if table.is_writing(page) {
            // It is being returned: the waiting threads are woken when it is gone, and fault again.
            return;
        }
        match table.state(page) {
            State::Absent => self.serve_absent(table, fault, begun),
            State::Fetching => {
                if fault.write {
                    table.want(page);
                } else if table.is_mapped(page) {
                    self.region.wake(fault.page, 1);
                }
                self.follow(page);
            }
            State::Clean if fault.write => self.serve_store(table, page, begun),
            State::Clean | State::Dirty if table.is_mapped(page) => self.region.wake(fault.page, 1),
            here => {
                let access = if here == State::Dirty { Access::Write } else { Access::Read };
                table.set_mapped(page, true);
                self.mapped(self.region.install(fault.page, 1, access, false));
                self.follow(page);
                self.host.served(page, FaultKind::Local, began.elapsed());
            }
        }
    }

    fn serve_absent(&self, table: &mut Table, fault: Fault, begun: &mut Begun) {
        let page = fault.page as u64;
        if table.free() == 0 {
            self.short.notify_all();
            begun.later.push(fault);
            return;
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
            None => self.guess(page),
        };
        table.begin_fetch(page, fault.write);
        let (pages, kind) = match fault.write {
            true => (&mut begun.leases, FaultKind::Write),
            false => (&mut begun.copies, FaultKind::Read),
        };
        pages.push(page);
        begun.waiting.push((page, kind));
        match (window, &begun.window) {
            (Some(window), None) => begun.window = Some(window),
            (Some(window), Some(_)) => self.fault_threads.queue(window),
            (None, _) => {}
        }
        self.notice_shortage(table);
    }

    /// Serves a store to a copy: takes its lease, and those of following copies if stores are sequential.
    fn serve_store(&self, table: &mut Table, page: u64, begun: &mut Begun) {
        let follows = page > 0 && table.state(page - 1) == State::Dirty;
        let upto = (page + if follows { WRITE_AHEAD } else { 1 }).min(table.pages());
        let alike = |table: &Table, page: u64| {
            table.state(page) == State::Clean && table.is_mapped(page) && !table.is_writing(page)
        };
        let end = (page + 1..upto).find(|&next| !alike(table, next)).unwrap_or(upto);
        (page..end).for_each(|page| table.begin_upgrade(page));
        begun.upgrades.extend(page..end);
        begun.waiting.push((page, FaultKind::Upgrade));
    }

    /// Records the first access to a page that was fetched ahead.
    fn follow(&self, page: u64) {
        if let Some(window) = self.guess(page) {
            self.fault_threads.queue(window);
        }
    }
}
