//! The pages of one shard while all nodes change their protocol ([`super::change`]).
//!
//! A node freezes the pages, waits until none of its requests for them is under way ([`Shard::unsettled`]), and closes
//! its copies ([`Input::Close`]). It fetches the pages of which it is the home ([`Gathering`]), and changes its own
//! choice ([`Shard::let_go`], [`Shard::change`]). At the end it thaws the pages, and wakes the threads that wait for them.
//!
//! Promises: while pages are frozen, no thread of this node requests or locks them, and no guess requests them. After the
//! change, no page is held for a thread that waited for it before the change.

use super::{RangeLockCall, Shard};
use crate::Nanoseconds;
use crate::coherence::{CannotChange, Coherence, Input, Protocol};
use crate::page::{Access, PageIndex, PageRange};
use alloc::vec::Vec;
use core::ops::Range;

/// How the home of pages in one shard gets them, so that their protocol can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gathering {
    pages: PageRange,
    /// From here on, pages that are away were not requested together yet.
    next_away: u32,
    /// From here on, pages may be elsewhere: a request for several pages may be granted in part.
    next_pulled: u32,
}

/// The next step of a home that gathers pages. After it, the home calls [`Gathering::next`] again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherStep {
    /// Request these pages together ([`gathering`]), and wait until they have come or have been granted to others.
    Request(PageRange),
    /// Step the protocol with this fault, if there is one, and wait until the page may have changed.
    Await(PageIndex, Option<Input>),
    /// The protocol of all pages may be changed: each is untouched, or held only here.
    Done,
}

/// Why a thread cannot lock pages now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotLock {
    /// This page is frozen: the thread waits until it is thawed, and calls again.
    Frozen(PageIndex),
    /// The thread holds these pages already, and would wait for itself.
    Held(PageRange),
}

/// The input with which a home requests pages whose protocol is to change ([`GatherStep::Request`]). They are frozen, so
/// no thread of the program requests them.
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

    /// The pages that are frozen, of which those of this shard count.
    pub fn frozen(&self) -> Range<u32> {
        self.frozen.clone()
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

impl Gathering {
    /// Nothing was requested. This node is the home of `pages`.
    pub fn new(pages: PageRange) -> Gathering {
        Gathering { pages, next_away: pages.first().0, next_pulled: pages.first().0 }
    }

    /// The next step, in the shard of the pages.
    pub fn next(&mut self, shard: &Shard<impl Coherence>) -> GatherStep {
        let is_away = |page: &PageIndex| !shard.protocol.may_hand_over(*page);
        let rest = self.pages.from(self.next_away);
        if let Some(first) = rest.and_then(|rest| rest.pages().find(is_away)) {
            let away = PageRange::around(first, first.0, self.pages.end()).grow(first, |page| is_away(&page));
            self.next_away = away.end();
            return GatherStep::Request(away);
        }
        self.next_away = self.pages.end();
        let rest = self.pages.from(self.next_pulled);
        let Some(page) = rest.and_then(|rest| rest.pages().find(is_away)) else {
            self.next_pulled = self.pages.end();
            return GatherStep::Done;
        };
        self.next_pulled = page.0;
        // A page that is here is no reason for a fault; something about it is still under way.
        let is_here = shard.protocol.access(page) == Access::Write;
        let fault = Input::Fault { page, write: true, wanted: PageRange::one(page) };
        GatherStep::Await(page, (!is_here).then_some(fault))
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
        let first_step = |shard: &Shard<Ranges>, pages| Gathering::new(pages).next(shard);
        assert_eq!(first_step(&shard, range(0, 8)), GatherStep::Done, "nobody touched them");
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
        assert_eq!(first_step(&shard, range(4, 4)), GatherStep::Request(range(4, 1)));
        let mut gathering = Gathering::new(range(0, 8));
        assert_eq!(gathering.next(&shard), GatherStep::Request(range(3, 2)));
        let page = PageIndex(3);
        let fault = Input::Fault { page, write: true, wanted: range(3, 1) };
        assert_eq!(gathering.next(&shard), GatherStep::Await(page, Some(fault)), "none was granted");
        assert_eq!(gathering.next(&shard), GatherStep::Await(page, Some(fault)), "it is still away");
    }

    #[test]
    fn a_frozen_page_is_locked_by_no_thread() {
        let mut shard = shard();
        let call = RangeLockCall { range: range(2, 4), number: 1, thread: 1, waiter: 1, stay: None };
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
