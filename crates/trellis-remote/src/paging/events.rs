//! What home says without being asked: a copy is not to be read any more, a lease is wanted back, a right has ended.
//!
//! Promises: when [`Events::invalidate`] returns, nobody reads the copy here. Must never wait for a server: the thread that
//! calls is the one that hears servers.

use super::Paging;
use trellis_cache::frames::State;

/// What a source of pages tells of.
pub trait Events: Send + Sync {
    /// Somebody will change the page: returns when no copy of it can be read here any more.
    fn invalidate(&self, page: u64);

    /// Somebody else wants the page: it is committed soon.
    fn recalled(&self, page: u64);

    /// The right to a page has ended, whatever it was.
    fn lost(&self, page: u64);

    /// Whether the copy of a page was used since this was asked last.
    fn is_used(&self, page: u64) -> bool;
}

impl Events for Paging {
    fn invalidate(&self, page: u64) {
        let was_here = self.drop_copy(page);
        self.count(|counters| &counters.invalidations, usize::from(was_here));
    }

    fn recalled(&self, page: u64) {
        let mut state = self.state();
        // In any other state it is on its way back, or was never here.
        let is_ours = matches!(state.table.state(page), State::Dirty | State::Fetching);
        if is_ours && !state.recalled.contains(&page) {
            state.recalled.push(page);
            self.recalled.notify_one();
        }
    }

    fn lost(&self, page: u64) {
        let mut state = self.state();
        if state.table.state(page) == State::Dirty && !self.is_over() {
            // Nobody uses it any more; home says later whether what was changed can still be the page.
            self.begin_giving(&mut state.table, &[], &[page]);
            state.lost.push(page);
            self.lost.notify_one();
            return;
        }
        drop(state);
        self.drop_copy(page);
    }

    fn is_used(&self, page: u64) -> bool {
        let mut state = self.state();
        let table = &mut state.table;
        if table.state(page) == State::Absent || table.is_writing(page) {
            return false;
        }
        // Whoever touches it from now on has it mapped again, without a server.
        let was_mapped = table.is_mapped(page);
        if table.state(page) == State::Clean {
            self.unmap(table, &[page]);
        }
        was_mapped || table.state(page) != State::Clean
    }
}

impl Paging {
    /// Whether there was a copy that could be used.
    fn drop_copy(&self, page: u64) -> bool {
        let mut state = self.state();
        let table = &mut state.table;
        match table.state(page) {
            // What is on its way is too old, and the copy that is kept for a lease, too; under a lease nobody else changes
            // a page, and this was meant for a copy before it.
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
