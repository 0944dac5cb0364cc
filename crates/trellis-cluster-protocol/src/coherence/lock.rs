//! `lock(P)`: pages that do not leave while the program keeps them, around any protocol P (Sane, MacGregor and Campbell
//! 1990, §4.3).
//!
//! A call ([`Input::Lock`]) brings the pages of a range here for stores, one after the other, and keeps each from then on.
//! Once all are here the program is notified ([`Effect::Locked`]). Until it releases them, or until the time is over that
//! it asked for, no other node sees any page of the range or part of an update. No two calls have a page at the same time,
//! neither on two nodes nor on one, so a page range is also a lock between nodes.
//!
//! # The requester's side
//!
//! A message that requests a locked page is *parked*, and its requester is told to [`Message::Retry`]. With
//! [`Waiting::Sleep`] nothing else happens: parked messages go on when the page is released. With [`Waiting::Spin`] no node
//! is woken: the requester sends [`Message::Again`] after its interval, and its message goes on if the page is free then.
//! Otherwise it receives `Retry` again. A requester may wait at several nodes for one page (a late `Retry`), so it asks all
//! nodes that sent it one.
//!
//! # Why a locked page stays
//!
//! To P, everything that could take the page is late while the page is locked: messages that request it, alarms about it,
//! and [`Input::Resumed`]. Whatever was inside P before the lock also stays there. P keeps a page that a fault brought
//! until `Resumed` (its promise 5). A page that is here for stores without being kept for a thread is one for which P has
//! nothing left to do, or it would have done so. A message that orders a read copy back is never late: a locked page is
//! here for stores, so the message refers to the past.
//!
//! # Why no call waits for ever
//!
//! * *No cycle.* A call keeps pages and waits for one behind all of them; so does the call that keeps that one. A cycle of
//!   calls would need a page that is behind itself. This holds only if P serves each page without regard to others, so this
//!   layer requests one page at a time: a request for a range would tie its pages together, and one that waits for a locked
//!   page would keep others busy that the holder of the lock may need next. Instead, several requests are under way at
//!   once, for the pages of a call and for what the program announced.
//! * *No overtaking.* Parked messages go on in the order of arrival, before later requests and before the next call of this
//!   node. Calls of this node take a page in their order. While a call waits for a page nothing is parked, so messages that
//!   the page's own way here depends on are never late.
//!
//! Loads and stores of this node's own threads are not hindered (§4.3: "restricted to processes executing in different
//! domains"), but two calls exclude each other on one node too. A page that is not locked, not waited for and not being
//! retried has no state here.

use super::choices::Waiting;
use super::{Coherence, Effect, Geometry, Input, Message, Purpose, violation};
use crate::Nanoseconds;
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

/// One shard of the layer at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock<P> {
    inner: P,
    geometry: Geometry,
    waiting: Waiting,
    /// In the order of their arrival.
    calls: Vec<Call>,
    /// Sorted by page.
    locked: Vec<Locked>,
    /// In the order of their arrival.
    parked: Vec<Parked>,
    /// Pages that this node requests again, and the nodes that it asks: sorted.
    retries: Vec<(PageIndex, NodeId)>,
}

/// A call of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    range: PageRange,
    number: u32,
    /// The first page that this call does not have yet; past the end once it has all pages.
    next: u32,
    /// The fault on that page was passed to P.
    is_asked: bool,
    stay: Option<Nanoseconds>,
}

impl Call {
    fn has_all(&self) -> bool {
        self.next == self.range.end()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Locked {
    page: PageIndex,
    /// An alarm of an inner layer that went off in the meantime.
    late: Option<Purpose>,
}

/// A message that waits for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Parked {
    page: PageIndex,
    requester: NodeId,
    from: NodeId,
    message: Message,
}

impl<P: Coherence> Lock<P> {
    /// A layer around `inner`, which was started with `geometry`.
    pub fn new(inner: P, geometry: Geometry, waiting: Waiting) -> Lock<P> {
        let (calls, locked, parked, retries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Lock { inner, geometry, waiting, calls, locked, parked, retries }
    }

    /// Whether a call of this node holds `page`.
    pub fn is_locked(&self, page: PageIndex) -> bool {
        !self.locked.is_empty() && self.place(page).is_ok()
    }

    fn place(&self, page: PageIndex) -> Result<usize, usize> {
        self.locked.binary_search_by_key(&page, |locked| locked.page)
    }
}

impl<P: Coherence> Coherence for Lock<P> {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        let start = effects.len();
        match input {
            Input::Lock { range, call, stay } => self.lock(now, range, call, stay, effects),
            Input::Unlock { range, call } => {
                let index = self.calls.iter().position(|known| known.number == call && known.range == range);
                // If it is unknown, it ended by itself.
                index.into_iter().for_each(|index| self.let_go(now, index, effects));
            }
            Input::Message { from, message } => self.message(now, from, message, effects),
            Input::Alarm { page, purpose } => self.alarm(now, page, purpose, effects),
            // The neighbours are guesses, and guesses are not worth a request of their own.
            Input::Fault { page, write, .. } => {
                self.inner.step(now, Input::Fault { page, write, wanted: PageRange::one(page) }, effects);
            }
            Input::Prefetch { wanted, write, announced } => self.prefetch(now, wanted, write, announced, effects),
            Input::Resumed { page } if self.is_locked(page) => {}
            Input::Resumed { .. } => self.inner.step(now, input, effects),
            Input::Gone { node, .. } => {
                debug_assert!(self.parked.iter().all(|parked| parked.requester != node), "{node} left while it waits");
                self.retries.retain(|&(_, holder)| holder != node);
                self.inner.step(now, input, effects);
            }
            release_consistency_only!() => {}
        }
        if !self.calls.is_empty() {
            self.advance(now, effects);
            self.forget_holds(start, effects);
        }
    }

    fn access(&self, page: PageIndex) -> Access {
        self.inner.access(page)
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.inner.is_pending(page)
    }

    fn owns(&self, page: PageIndex) -> bool {
        self.inner.owns(page)
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        self.inner.leaves_behind(page) || self.has_parked(page)
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        self.inner.is_untouched(page)
    }

    fn release(&mut self, page: PageIndex) {
        debug_assert!(!self.is_locked(page), "{page} changes its protocol while it is locked");
        // Every node forgets the page now, so no node waits for an answer.
        self.parked.retain(|parked| parked.page != page);
        self.retries.retain(|&(retried, _)| retried != page);
        self.inner.release(page);
    }

    fn adopt(&mut self, page: PageIndex) {
        self.inner.adopt(page);
    }

    fn lockable(&self, wanted: PageRange) -> Result<PageRange, PageRange> {
        Ok(wanted)
    }
}

// The side of the node that locks.
impl<P: Coherence> Lock<P> {
    fn lock(
        &mut self,
        now: Nanoseconds,
        range: PageRange,
        number: u32,
        stay: Option<Nanoseconds>,
        effects: &mut Vec<Effect>,
    ) {
        debug_assert!(self.calls.iter().all(|call| call.number != number || call.range != range));
        self.calls.push(Call { range, number, next: range.first().0, is_asked: false, stay });
        // All pages are on their way at the same time. Whether a page is here matters only when it is its turn.
        for page in range.pages().skip(1) {
            self.ask(now, page, true, true, effects);
        }
    }

    /// Takes every call as far as possible, in the order of arrival.
    fn advance(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        let mut index = 0;
        while let Some(&Call { range, next, is_asked, .. }) = self.calls.get(index) {
            let page = PageIndex(next);
            if next == range.end() || self.is_locked(page) {
                index += 1;
                continue;
            }
            self.let_in(now, page, effects);
            if self.inner.access(page) < Access::Write && !(is_asked && self.inner.is_pending(page)) {
                // Also if a request is under way: from now on a thread waits for it.
                self.calls[index].is_asked = true;
                let wanted = PageRange::one(page);
                self.inner.step(now, Input::Fault { page, write: true, wanted }, effects);
            }
            if self.inner.access(page) == Access::Write {
                self.take(index, page, effects);
            } else {
                index += 1;
            }
        }
    }

    /// The page that call number `index` waits for is here.
    fn take(&mut self, index: usize, page: PageIndex, effects: &mut Vec<Effect>) {
        if let Err(place) = self.place(page) {
            self.locked.insert(place, Locked { page, late: None });
        }
        let call = &mut self.calls[index];
        (call.next, call.is_asked) = (page.0 + 1, false);
        if !call.has_all() {
            return;
        }
        effects.push(Effect::Locked { range: call.range, call: call.number });
        if let Some(after) = call.stay {
            effects.push(Effect::Alarm { page: call.range.first(), purpose: Purpose::Expiry, after });
        }
    }

    /// Ends the call; its pages are free. Requests that wait inside P or are parked come before the next call of this node.
    fn let_go(&mut self, now: Nanoseconds, index: usize, effects: &mut Vec<Effect>) {
        let Call { range, next, .. } = self.calls.remove(index);
        for page in (range.first().0..next).map(PageIndex) {
            let Ok(place) = self.place(page) else { continue };
            let Locked { late, .. } = self.locked.remove(place);
            self.inner.step(now, Input::Resumed { page }, effects);
            if let Some(purpose) = late {
                self.inner.step(now, Input::Alarm { page, purpose }, effects);
            }
            if self.waiting == Waiting::Sleep {
                self.let_in(now, page, effects);
            }
        }
    }

    fn alarm(&mut self, now: Nanoseconds, page: PageIndex, purpose: Purpose, effects: &mut Vec<Effect>) {
        match (purpose, self.place(page)) {
            (Purpose::Retry, _) => self.ask_again(page, effects),
            (Purpose::Expiry, _) => {
                // An alarm that was set for an earlier call, and forgotten when that call ended, finds no timed call here.
                // If there is a timed call, it has set the alarm again.
                let is_timed = |call: &Call| call.range.first() == page && call.has_all() && call.stay.is_some();
                let index = self.calls.iter().position(is_timed);
                index.into_iter().for_each(|index| self.let_go(now, index, effects));
            }
            (_, Ok(place)) => self.locked[place].late = Some(purpose),
            (_, Err(_)) => self.inner.step(now, Input::Alarm { page, purpose }, effects),
        }
    }

    fn message(&mut self, now: Nanoseconds, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Retry { page } => self.on_retry(from, page, effects),
            Message::Again { page } => self.asked_again(now, from, page, effects),
            Message::Request { range, .. } | Message::Forward { range, .. } if range.count() > 1 => {
                violation(from, "a request for a run of pages that are asked for one at a time", effects);
            }
            Message::Request { demand: page, requester, .. } | Message::Forward { demand: page, requester, .. }
                if requester != self.geometry.me =>
            {
                if self.is_locked(page) {
                    self.parked.push(Parked { page, requester, from, message });
                    return effects.push(Effect::Send { to: requester, message: Message::Retry { page } });
                }
                self.let_in(now, page, effects);
                self.inner.step(now, Input::Message { from, message }, effects);
            }
            _ => self.inner.step(now, Input::Message { from, message }, effects),
        }
    }

    fn asked_again(&mut self, now: Nanoseconds, from: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        let waits = |parked: &Parked| parked.page == page && parked.requester == from;
        if !self.parked.iter().any(waits) {
            // Its message has gone on in the meantime.
        } else if self.is_locked(page) {
            effects.push(Effect::Send { to: from, message: Message::Retry { page } });
        } else {
            self.let_in(now, page, effects);
        }
    }

    /// Lets the messages go on that are parked for `page`, which is free.
    fn let_in(&mut self, now: Nanoseconds, page: PageIndex, effects: &mut Vec<Effect>) {
        while let Some(index) = self.parked.iter().position(|parked| parked.page == page) {
            let Parked { from, message, .. } = self.parked.remove(index);
            self.inner.step(now, Input::Message { from, message }, effects);
        }
    }

    fn has_parked(&self, page: PageIndex) -> bool {
        self.parked.iter().any(|parked| parked.page == page)
    }

    /// Removes orders to give `Resumed` for pages that are locked: the input would be late.
    fn forget_holds(&self, start: usize, effects: &mut Vec<Effect>) {
        let mut index = start;
        while let Some(&effect) = effects.get(index) {
            match effect {
                Effect::Hold(page) if self.is_locked(page) => drop(effects.remove(index)),
                _ => index += 1,
            }
        }
        debug_assert!(
            self.locked.iter().all(|locked| self.inner.access(locked.page) == Access::Write),
            "a locked page left"
        );
    }
}

// The side of the node that requests.
impl<P: Coherence> Lock<P> {
    fn prefetch(
        &mut self,
        now: Nanoseconds,
        wanted: PageRange,
        write: bool,
        announced: bool,
        effects: &mut Vec<Effect>,
    ) {
        // A guess at stores, page by page, would strip other writers.
        if announced || !write {
            wanted.pages().for_each(|page| self.ask(now, page, write, announced, effects));
        }
    }

    /// Requests a page that no thread waits for.
    fn ask(&mut self, now: Nanoseconds, page: PageIndex, write: bool, announced: bool, effects: &mut Vec<Effect>) {
        let needed = if write { Access::Write } else { Access::Read };
        if self.inner.access(page) < needed && !self.inner.is_pending(page) {
            let wanted = PageRange::one(page);
            self.inner.step(now, Input::Prefetch { wanted, write, announced }, effects);
        }
    }

    fn on_retry(&mut self, holder: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        let Waiting::Spin(microseconds) = self.waiting else { return };
        if !self.inner.is_pending(page) {
            return;
        }
        if let Err(place) = self.retries.binary_search(&(page, holder)) {
            self.retries.insert(place, (page, holder));
        }
        let after = Nanoseconds::from(microseconds) * 1000;
        effects.push(Effect::Alarm { page, purpose: Purpose::Retry, after });
    }

    fn ask_again(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        let is_pending = self.inner.is_pending(page);
        self.retries.retain(|&(retried, to)| {
            if retried == page && is_pending {
                effects.push(Effect::Send { to, message: Message::Again { page } });
            }
            retried != page
        });
    }
}
