//! The coordinator takes over the pages that a leaving node leaves behind.
//!
//! Promises: every page that was named is taken for stores before the membership is told that all were
//! ([`crate::membership::Input::TookOver`]), and it is told once for each node that leaves. A page that was taken may
//! go to other nodes at once. It must never wait: a thread carries out the steps, each after the one before.

use super::{Carrier, Parts, runs_on, take};
use crate::Nanoseconds;
use crate::coherence::{Coherence, Input};
use crate::page::{Access, PageIndex, PageRange};
use crate::sync::Waiter;
use alloc::collections::VecDeque;

/// The next step of the thread that takes pages over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// Announce to the protocol that these pages will be stored to. They may come together.
    Announce(PageRange),
    /// Have this page here for stores, once: other nodes may have taken it since it came. The thread waits until
    /// something about it has changed ([`Carrier::wait_for`]).
    Page(PageIndex),
    /// All pages were taken: tell the membership.
    Done,
}

/// The pages of a leaving node that are still to be taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TakeOver {
    named: VecDeque<PageRange>,
    /// The rest of the range whose pages are taken now.
    current: Option<PageRange>,
    /// All pages were named.
    is_complete: bool,
    /// The page for which the thread waits.
    awaited: Option<PageIndex>,
}

impl TakeOver {
    /// A leaving node names these pages ([`crate::membership::Effect::TakeOver`]).
    pub fn name(&mut self, range: PageRange) {
        self.named.push_back(range);
    }

    /// The node has named all its pages ([`crate::membership::Effect::TakeOverEnds`]).
    pub fn end(&mut self) {
        self.is_complete = true;
    }

    /// Takes pages until the thread has to wait for one, or something else is its next step. `waiter` is the thread.
    /// `None` while nothing is left to do and the node has not named its last page.
    pub fn go_on<P: Parts>(
        &mut self,
        parts: &mut P,
        now: Nanoseconds,
        waiter: Waiter,
    ) -> Result<Option<Taking>, P::Breach> {
        loop {
            let page = match self.awaited.take().map(Taking::Page).or_else(|| self.next_step()) {
                Some(Taking::Page(page)) => page,
                other => return Ok(other),
            };
            let mut held = parts.hold_of(page);
            if held.shard().protocol.access(page) < Access::Write {
                self.awaited = Some(page);
                held.wait_for(page, waiter);
                take(&mut held, Input::Fault { page, write: true, wanted: PageRange::one(page) })?;
                return Ok(Some(Taking::Page(page)));
            }
            runs_on(&mut held, page, || now)?;
        }
    }

    /// The page for which the thread waits counts as taken; only a checker that breaks a node says so.
    pub fn skip_page(&mut self) {
        self.awaited = None;
    }

    /// The next step, after the one before is over. `None` while nothing is left to do and the node has not named its last
    /// page.
    pub fn next_step(&mut self) -> Option<Taking> {
        if let Some(rest) = self.current.take() {
            self.current = PageRange::new(PageIndex(rest.first().0 + 1), rest.count() - 1);
            return Some(Taking::Page(rest.first()));
        }
        if let Some(range) = self.named.pop_front() {
            self.current = Some(range);
            return Some(Taking::Announce(range));
        }
        core::mem::take(&mut self.is_complete).then_some(Taking::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count).expect("a range of one chunk")
    }

    #[test]
    fn every_page_is_taken_before_the_membership_is_told() {
        let mut take_over = TakeOver::default();
        assert_eq!(take_over.next_step(), None);
        take_over.name(range(3, 2));
        take_over.name(range(9, 1));
        assert_eq!(take_over.next_step(), Some(Taking::Announce(range(3, 2))));
        take_over.end();
        let rest: [Option<Taking>; 6] = core::array::from_fn(|_| take_over.next_step());
        let [page, other, third] = [3, 4, 9].map(|page| Some(Taking::Page(PageIndex(page))));
        assert_eq!(rest, [page, other, Some(Taking::Announce(range(9, 1))), third, Some(Taking::Done), None]);
    }

    #[test]
    fn a_node_that_leaves_nothing_is_done_at_once_and_so_is_the_next_one() {
        let mut take_over = TakeOver::default();
        for _ in 0..2 {
            take_over.end();
            assert_eq!(take_over.next_step(), Some(Taking::Done));
            assert_eq!(take_over.next_step(), None);
        }
    }
}
