//! The pages of one shard while all nodes change their protocol ([`super::change`]).
//!
//! A node freezes the pages, waits until none of its requests for them is under way ([`Shard::unsettled`]), and closes
//! its copies ([`Input::Close`]). It fetches the pages of which it is the home ([`Shard::away`], [`Shard::pull`]), and
//! changes its own choice ([`Shard::let_go`], [`Shard::change`]). At the end it thaws the pages, and wakes the threads
//! that wait for them.
//!
//! Promises: while pages are frozen, no thread of this node requests or locks them, and no guess requests them. After the
//! change, no page is held for a thread that waited for it before the change.

use super::{RangeLockCall, Shard};
use crate::Nanoseconds;
use crate::coherence::{CannotChange, Coherence, Input, Protocol};
use crate::page::{Access, PageIndex, PageRange};
use alloc::vec::Vec;
use core::ops::Range;

/// How a home gets a page whose protocol is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulling {
    /// The protocol may be changed: the page is untouched, or held only here.
    Here,
    /// The home steps its protocol with this fault. It waits for the page, steps the protocol with [`Input::Resumed`],
    /// and calls [`Shard::pull`] again.
    Fault(Input),
    /// The home does the same without the fault: the page is here, and something about it is still under way.
    Await,
}

/// Why a thread cannot lock pages now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotLock {
    /// This page is frozen: the thread waits until it is thawed, and calls again.
    Frozen(PageIndex),
    /// The thread holds these pages already, and would wait for itself.
    Held(PageRange),
}

/// The input with which a home requests pages whose protocol is to change ([`Shard::away`]). They are frozen, so no
/// thread of the program requests them.
pub fn gathering(wanted: PageRange) -> Input {
    Input::Prefetch { wanted, write: true, announced: true }
}

impl<C: Coherence> Shard<C> {
    /// Freezes `pages`, of which those of this shard count.
    pub fn freeze(&mut self, pages: Range<u32>) {
        self.frozen = pages;
    }

    /// Thaws all pages.
    pub fn thaw(&mut self) {
        self.frozen = 0..0;
    }

    /// Whether `page` is frozen: a thread that needs it waits until it is thawed.
    pub fn is_frozen(&self, page: PageIndex) -> bool {
        self.frozen.contains(&page.0)
    }

    /// The input for a fault on `page` with a request for `wanted`, without the frozen pages. `None` if `page` itself is
    /// frozen.
    pub fn fault(&self, page: PageIndex, write: bool, wanted: PageRange) -> Option<Input> {
        if self.is_frozen(page) {
            return None;
        }
        let wanted = if self.frozen.is_empty() { wanted } else { wanted.grow(page, |other| !self.is_frozen(other)) };
        Some(Input::Fault { page, write, wanted })
    }

    /// The input for a request for pages that no thread needs yet. `None` if some of them are frozen.
    pub fn prefetch(&self, wanted: PageRange, write: bool, announced: bool) -> Option<Input> {
        let is_frozen = self.frozen.start < wanted.end() && wanted.first().0 < self.frozen.end;
        (!is_frozen).then_some(Input::Prefetch { wanted, write, announced })
    }

    /// A thread locks pages, which may be frozen ([`super::RangeLocks::call`]).
    ///
    /// # Errors
    ///
    /// [`CannotLock`]; nothing has changed.
    pub fn lock(&mut self, call: RangeLockCall, now: Nanoseconds) -> Result<Input, CannotLock> {
        if let Some(page) = call.range.pages().find(|&page| self.is_frozen(page)) {
            return Err(CannotLock::Frozen(page));
        }
        self.locks.call(call, now).map_err(CannotLock::Held)
    }

    /// The first page of `run` for which a request of this node is under way.
    pub fn unsettled(&self, run: PageRange) -> Option<PageIndex> {
        run.pages().find(|&page| self.protocol.is_pending(page))
    }

    /// The first pages of `run`, of which this node is the home, that have to come before their protocol can change.
    pub fn away(&self, run: PageRange) -> Option<PageRange> {
        let is_away = |page: PageIndex| !self.protocol.may_hand_over(page);
        let first = run.pages().find(|&page| is_away(page))?;
        let end = (first.0..run.end()).find(|&page| !is_away(PageIndex(page))).unwrap_or(run.end());
        Some(PageRange::around(first, first.0, end))
    }

    /// How this node, the home of `page`, gets it: a request for several pages may be granted in part.
    pub fn pull(&self, page: PageIndex) -> Pulling {
        if self.protocol.may_hand_over(page) {
            return Pulling::Here;
        }
        match self.protocol.access(page) {
            Access::Write => Pulling::Await,
            _ => Pulling::Fault(Input::Fault { page, write: true, wanted: PageRange::one(page) }),
        }
    }

    /// The inputs after which no page of `run` that is here is held for a thread. The threads run on in any case, because
    /// the view of a home does not change.
    pub fn let_go(&self, run: PageRange) -> Vec<Input> {
        let is_here = |page: &PageIndex| self.protocol.access(*page) != Access::None;
        run.pages().filter(is_here).map(|page| Input::Resumed { page }).collect()
    }

    /// Changes the protocol of `run` at this node. Nothing about these pages is under way anywhere. Where the new
    /// protocol takes a page over as one that allows stores, the view must allow them.
    ///
    /// # Errors
    ///
    /// Those of [`Coherence::change`]; nothing has changed.
    pub fn change(&mut self, run: PageRange, protocol: Protocol) -> Result<(), CannotChange> {
        self.protocol.change(run, protocol)?;
        self.timers.forget_held(run);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::{Geometry, Ranges};
    use crate::homes::{Home, Manager};
    use crate::page::NodeId;

    fn shard() -> Shard<Ranges> {
        let home = Home::Manager(Manager(NodeId(0)));
        let geometry =
            Geometry { me: NodeId(0), nodes: 2, founders: 2, pages: 64, shard: 0, shards: 1, home, marks: false };
        Shard::new(Ranges::new(Protocol::IVY, geometry), geometry, NodeId(0))
    }

    fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count).expect("pages of one chunk")
    }

    #[test]
    fn nothing_asks_for_a_frozen_page() {
        let mut shard = shard();
        shard.freeze(4..6);
        let fault = |shard: &Shard<Ranges>, page| shard.fault(PageIndex(page), true, range(0, 8));
        assert_eq!(fault(&shard, 4), None);
        let wanted = |wanted| Some(Input::Fault { page: PageIndex(2), write: true, wanted });
        assert_eq!(fault(&shard, 2), wanted(range(0, 4)), "a request ends before the frozen pages");
        assert_eq!(shard.prefetch(range(0, 5), false, true), None);
        assert!(
            shard.prefetch(range(0, 4), false, true).is_some() && shard.prefetch(range(6, 2), false, true).is_some()
        );
        shard.thaw();
        assert_eq!(fault(&shard, 2), wanted(range(0, 8)));
    }

    #[test]
    fn a_home_pulls_what_another_node_has() {
        let mut shard = shard();
        assert_eq!((shard.away(range(0, 8)), shard.pull(PageIndex(3))), (None, Pulling::Here), "nobody touched them");
        let request = crate::coherence::Message::Request {
            demand: PageIndex(3),
            range: range(3, 2),
            write: true,
            announced: false,
            requester: NodeId(1),
            hops: 0,
        };
        let mut effects = Vec::new();
        shard.protocol.step(0, Input::Message { from: NodeId(1), message: request }, &mut effects);
        assert_eq!(shard.away(range(0, 8)), Some(range(3, 2)));
        assert_eq!(shard.away(range(4, 4)), Some(range(4, 1)));
        let fault = Input::Fault { page: PageIndex(3), write: true, wanted: range(3, 1) };
        assert_eq!(shard.pull(PageIndex(3)), Pulling::Fault(fault));
    }

    #[test]
    fn a_frozen_page_is_locked_by_no_thread() {
        let mut shard = shard();
        let call = RangeLockCall { range: range(2, 4), number: 1, thread: 1, stay: None };
        shard.freeze(5..9);
        assert_eq!(shard.lock(call, 0), Err(CannotLock::Frozen(PageIndex(5))));
        shard.thaw();
        assert!(shard.lock(call, 0).is_ok());
        let again = RangeLockCall { number: 2, ..call };
        assert_eq!(shard.lock(again, 0), Err(CannotLock::Held(range(2, 4))));
    }

    #[test]
    fn after_a_change_no_page_is_held() {
        let mut shard = shard();
        let mut effects = Vec::new();
        shard.protocol.step(0, Input::Fault { page: PageIndex(3), write: true, wanted: range(3, 1) }, &mut effects);
        assert_eq!(shard.unsettled(range(0, 8)), None, "a home that touches a page first asks no other node");
        assert_eq!(shard.let_go(range(0, 8)), [Input::Resumed { page: PageIndex(3) }]);
        shard.timers.hold(PageIndex(3), 0, 10);
        shard.change(range(0, 8), Protocol::DYNAMIC).expect("two protocols are not too many");
        assert_eq!(shard.pop_due(Nanoseconds::MAX), None);
        assert_eq!(shard.protocol.access(PageIndex(3)), Access::Write);
    }
}
