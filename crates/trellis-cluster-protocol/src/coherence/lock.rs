//! `lock(P)`: pages that do not leave while the program says so, round any protocol P (Sane, MacGregor and Campbell
//! 1990, §4.3).
//!
//! A call ([`Input::Lock`]) brings the pages of a run here for stores, one after the other, and keeps each from then on.
//! Once all are here the program is told ([`Effect::Locked`]): until it lets go, or the time is over that it asked for,
//! nobody else sees any page of the run or a part of an update. Two calls never have a page at once, on no two nodes and
//! not on one, so a run of pages is a lock between nodes as well.
//!
//! # What a requester meets
//!
//! A message that asks for a locked page is *parked*, and its requester is told to [`Message::Retry`]. With
//! [`Waiting::Sleep`] that is all: parked messages go on when the page is let go. With [`Waiting::Spin`] nobody is woken:
//! the requester asks [`Message::Again`] after its interval, and its message goes on if the page is free then; else it
//! hears `Retry` again. A requester may wait at several nodes for one page (a late `Retry`), so it asks all that told it.
//!
//! # Why a locked page stays
//!
//! To P, everything that could take the page is late while the page is locked: messages that ask for it, alarms about it,
//! and [`Input::Resumed`]. What was in P before the lock stays there as well: P keeps a page that a fault brought until
//! `Resumed` (its promise 5), and a page that is here for stores without being kept for a thread is one that P has nothing
//! left to do about, or it would have done so. A message that orders a read copy back is never late: a locked page is
//! here for stores, so it speaks of the past.
//!
//! # Why nobody waits for ever
//!
//! * *No circle.* A call keeps pages and waits for one behind all of them; so does whoever keeps that one. A circle of
//!   calls would need a page that is behind itself. This holds only if P serves each page without regard to others, so
//!   this layer asks for one page at a time: a request for a run would tie its pages together, and one that waits for a
//!   locked page would keep others busy that the lock's owner may need next. Several requests are under way at once
//!   instead, for the pages of a call and for what the program announced.
//! * *No overtaking.* Whoever is parked goes before anybody who asks later, before the next call of this node, and in the
//!   order of arrival. Calls of this node take a page in their order. While a call waits for a page nothing is parked,
//!   so what the page's own way here depends on is never late.
//!
//! Loads and stores of this node's own threads are not hindered (§4.3: "restricted to processes executing in different
//! domains"); two calls exclude each other on one node too. Nothing is kept for a page that is neither locked, nor waited
//! for, nor retried.

use super::choices::Waiting;
use super::{Coherence, Effect, Geometry, Input, Message, Purpose, violation};
use crate::Nanoseconds;
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

/// One shard of the layer at one node. See the module's documentation.
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
    /// Pages that this node asks for again, and whom: sorted.
    retries: Vec<(PageIndex, NodeId)>,
}

/// A call of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    range: PageRange,
    number: u32,
    /// The first page that this call does not have yet; past the end once it has all.
    next: u32,
    /// The fault on that page was stepped.
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
    /// An alarm of a layer inside went off meanwhile.
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
    /// Round `inner`, which was started with `geometry`.
    pub fn new(inner: P, geometry: Geometry, waiting: Waiting) -> Lock<P> {
        let (calls, locked, parked, retries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Lock { inner, geometry, waiting, calls, locked, parked, retries }
    }

    /// Whether a call of this node has `page`.
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
                // An unknown one ended by itself.
                index.into_iter().for_each(|index| self.let_go(now, index, effects));
            }
            Input::Message { from, message } => self.message(now, from, message, effects),
            Input::Alarm { page, purpose } => self.alarm(now, page, purpose, effects),
            // The neighbours are guesses, and guesses are not worth a request of their own.
            Input::Fault { page, write, .. } => {
                self.inner.step(now, Input::Fault { page, write, wish: PageRange::one(page) }, effects);
            }
            Input::Prefetch { wish, write, announced } => self.prefetch(now, wish, write, announced, effects),
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
        // Every node forgets the page now, so nobody waits for an answer.
        self.parked.retain(|parked| parked.page != page);
        self.retries.retain(|&(retried, _)| retried != page);
        self.inner.release(page);
    }

    fn adopt(&mut self, page: PageIndex) {
        self.inner.adopt(page);
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
        // All pages come at the same time; which of them is here counts only when it is its turn.
        for page in range.pages().skip(1) {
            self.ask(now, page, true, true, effects);
        }
    }

    /// Every call goes on as far as it can, in the order of arrival.
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
                // Also where a request is under way: from now on somebody waits for it.
                self.calls[index].is_asked = true;
                let wish = PageRange::one(page);
                self.inner.step(now, Input::Fault { page, write: true, wish }, effects);
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

    /// The call ends; what it had is free. Whoever waits inside P or is parked comes before the next call of this node.
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
                // An alarm that was set for an earlier call, by whose end it was forgotten, finds none that is timed:
                // if there is one, it has set the alarm anew.
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
            Message::Retry { page } => self.told_to_retry(from, page, effects),
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
            // Its message has gone on meanwhile.
        } else if self.is_locked(page) {
            effects.push(Effect::Send { to: from, message: Message::Retry { page } });
        } else {
            self.let_in(now, page, effects);
        }
    }

    /// The messages that are parked for `page`, which is free, go on.
    fn let_in(&mut self, now: Nanoseconds, page: PageIndex, effects: &mut Vec<Effect>) {
        while let Some(index) = self.parked.iter().position(|parked| parked.page == page) {
            let Parked { from, message, .. } = self.parked.remove(index);
            self.inner.step(now, Input::Message { from, message }, effects);
        }
    }

    fn has_parked(&self, page: PageIndex) -> bool {
        self.parked.iter().any(|parked| parked.page == page)
    }

    /// Orders to say `Resumed` are void for pages that are locked: it would be late.
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

// The side of the node that asks.
impl<P: Coherence> Lock<P> {
    fn prefetch(&mut self, now: Nanoseconds, wish: PageRange, write: bool, announced: bool, effects: &mut Vec<Effect>) {
        // A guess at stores, page by page, would strip other writers.
        if announced || !write {
            wish.pages().for_each(|page| self.ask(now, page, write, announced, effects));
        }
    }

    /// Asks for a page that no thread waits for.
    fn ask(&mut self, now: Nanoseconds, page: PageIndex, write: bool, announced: bool, effects: &mut Vec<Effect>) {
        let needed = if write { Access::Write } else { Access::Read };
        if self.inner.access(page) < needed && !self.inner.is_pending(page) {
            let wish = PageRange::one(page);
            self.inner.step(now, Input::Prefetch { wish, write, announced }, effects);
        }
    }

    fn told_to_retry(&mut self, holder: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
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
