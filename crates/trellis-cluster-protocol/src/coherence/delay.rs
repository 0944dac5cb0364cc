//! `delay(P)`: a page that was fetched stays for a *threshold* time before another node gets it, around any protocol P
//! (Sane, MacGregor and Campbell 1990, §4.4).
//!
//! Two nodes that store to one page all the time move it back and forth and hardly use it. Here a message that would take
//! away a page that this node fetched is held back until the page has been here for the threshold. Messages that come in
//! the meantime wait behind it and go on in their order. A read copy is given at once if that costs this node nothing. To
//! P, a message that is held back looks like one that travels slowly. Whatever was already waiting in P when the page came
//! waits there: P keeps a page that a fault brought until [`Input::Resumed`] (its promise 5), and that is late too. Nothing
//! is held back twice at one node: the time of a page is not lengthened while a request waits for it.
//!
//! # The threshold
//!
//! [`Threshold::Fixed`] is the same for all pages. [`Threshold::Adaptive`] is computed from the page's activity and the
//! number of waiting requests, which is what the paper left open; so is [`Threshold::Short`], with a smaller maximum. With
//!
//! * `T`, the time it takes to get a page, measured from fault to grant. A shorter time counts at once; a longer one counts
//!   little, and only if the page is not in dispute. So `T` is near the shortest time, and delays at other nodes do not
//!   lengthen it;
//! * `a`, the page's activity at this node, 0 to [`ACTIVITY_MAX`]: plus two when a thread wants to store to the page again
//!   within a few `T` after it was taken; minus one when it comes back later, or for a load;
//! * `w`, the number of requests that wait for the page here;
//!
//! a page stays for `max(T, min(2^(a-1) T, K T / w))` with `K` = 2^([`ACTIVITY_MAX`] - 1) = 64, and not at all when `a` is
//! zero.
//!
//! *Reasons.* A page is worth keeping if it was still in use when it left. The layer cannot see loads and stores, but it
//! sees what happens next. A thread that was in the middle of its stores faults at once, long before the page could have
//! come back. Having to wait costs it `T`, so a thread that comes a few `T` later was not hurt much. Loads do not count,
//! because a thread that waits for others loads too: a flag that is handed on is loaded until it has changed, and stored to
//! only then. With a factor of 64, a thread that stores all the time computes for at least 98 % of the time, and doubling
//! gets there after four losses. [`Threshold::Short`] has `K` = 2^([`ACTIVITY_MAX_SHORT`] - 1) = 8: 89 % of the time, and a
//! worst case that is eight times less bad.
//!
//! # The bound
//!
//! A message is parked at one node for at most `K T`, whatever the number of requests: the time counts from when the page
//! arrived, which was earlier. If P serves `f` other requests before this one (its promise 4), the delay is at most
//! `(f + 1) K T`. Every one of these grants takes a time `t` without delay, at least the travel time of one message, so
//! nothing is slower by more than the factor `1 + K T / t`. That is about 65 if the page is requested only when it is
//! wanted, and twice that if the next request is already waiting. `T` is at most [`TRANSFER_MAX`].
//!
//! The worst case is a page that threads hand to each other by stores alone, such as a test-and-set lock on which a waiting
//! thread stores all the time: it looks as busy as real work. Such a word costs up to that factor. A load before the
//! exchange, which is good practice anyway, avoids the cost.
//!
//! An alarm that goes off ends the stay, whatever the clock says. A page that is neither in demand again nor delayed has no
//! state here. The state of pages that just left is bounded by [`STAYS_MAX`].

use super::choices::Threshold;
use super::{Choice, Coherence, Effect, Geometry, Input, Message, Purpose};
use crate::Nanoseconds;
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

/// The highest activity of a page.
pub const ACTIVITY_MAX: u8 = 7;
/// A page stays at most this many times as long as it took to come: `2^(ACTIVITY_MAX - 1)`.
pub const STAY_PER_TRANSFER_MAX: u64 = 1 << (ACTIVITY_MAX - 1);
/// The highest activity of a page under [`Threshold::Short`].
pub const ACTIVITY_MAX_SHORT: u8 = 4;
/// The longest time that getting a page is assumed to take.
pub const TRANSFER_MAX: Nanoseconds = 1_000_000;
/// The shortest time that getting a page is assumed to take.
pub const TRANSFER_MIN: Nanoseconds = 5_000;
/// The assumption before anything was measured.
const TRANSFER_GUESSED: Nanoseconds = 50_000;
/// The largest number of pages that are remembered although they may not matter. Further pages that leave are not watched.
pub const STAYS_MAX: usize = 1024;
/// A page that was not moved for this many times the longest stay is treated as one that was never in dispute.
const ACTIVITY_LASTS: u64 = 16;
/// The largest number of faults that are timed at once; further ones are not timed.
const TIMED_MAX: usize = 32;
/// Pages that are taken in a longer range are part of a stream: they are not watched.
const RUN_MAX: u32 = 16;
/// A thread that stores to a page within this many `T` of its loss was using it: the request that took the page away may
/// have taken the thread's core for a while as well.
const SOON_TRANSFERS: u64 = 4;
/// The number of pages that are remembered before the first check which of them still matter.
const PRUNED_FIRST: usize = 64;

/// One shard of the layer at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delay<P> {
    inner: P,
    me: NodeId,
    threshold: Threshold,
    /// `T`.
    transfer: Nanoseconds,
    /// Sorted by page.
    stays: Vec<Stay>,
    /// In the order of their arrival, only for pages whose stay is running.
    parked: Vec<(NodeId, Message)>,
    /// Pages that stay for a thread although a request waits for them in P ([`Effect::Hold`]); sorted.
    held: Vec<PageIndex>,
    /// Faults under way and when they began.
    timed: Vec<(PageIndex, Nanoseconds)>,
    /// At this number of stays, those that no longer matter are forgotten.
    prune_at: usize,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stay {
    page: PageIndex,
    state: State,
    /// When the page came, or was taken.
    since: Nanoseconds,
    activity: u8,
    /// P has not yet received that the thread ran on.
    is_resumed: bool,
    /// P wants that input, because a request waits there.
    is_wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// The page came and has to stay for the threshold.
    Staying,
    /// The page was taken, and no thread here has wanted it since.
    Lost,
    /// Anything else.
    Free,
}

impl<P: Coherence> Delay<P> {
    /// A layer around `inner`, which was started with `geometry`.
    pub fn new(inner: P, geometry: Geometry, threshold: Threshold) -> Delay<P> {
        let (stays, parked, held, timed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (me, transfer, prune_at) = (geometry.me, TRANSFER_GUESSED, PRUNED_FIRST);
        Delay { inner, me, threshold, transfer, stays, parked, held, timed, prune_at }
    }

    /// How long a page of this activity stays while `waiting` requests wait for it.
    fn threshold(&self, activity: u8, waiting: usize) -> Nanoseconds {
        match self.threshold {
            Threshold::Fixed(microseconds) => Nanoseconds::from(microseconds) * 1000,
            Threshold::Adaptive | Threshold::Short if activity == 0 => 0,
            Threshold::Adaptive | Threshold::Short => {
                let active = self.transfer << (activity - 1);
                let shared = self.transfer * self.stay_per_transfer_max() / waiting.max(1) as u64;
                active.min(shared).max(self.transfer)
            }
        }
    }

    fn is_fixed(&self) -> bool {
        matches!(self.threshold, Threshold::Fixed(_))
    }

    /// The highest activity of a page here.
    fn activity_max(&self) -> u8 {
        if self.threshold == Threshold::Short { ACTIVITY_MAX_SHORT } else { ACTIVITY_MAX }
    }

    /// `K`.
    fn stay_per_transfer_max(&self) -> u64 {
        1 << (self.activity_max() - 1)
    }
}

impl<P: Coherence> Coherence for Delay<P> {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        let seen = effects.len();
        if let Input::Resumed { page } = input {
            self.forget_held(page);
        }
        match input {
            Input::Message { from, message } => self.message(now, from, message, effects),
            Input::Alarm { page, purpose: Purpose::Threshold } => {
                let place = self.place(page).ok().filter(|&place| self.stays[place].state == State::Staying);
                place.into_iter().for_each(|place| self.end(now, place, effects));
            }
            Input::Fault { page, write, .. } => {
                self.wanted_again(now, page, write);
                self.inner.step(now, input, effects);
            }
            Input::Resumed { page } if self.is_staying(page) && self.access(page) == Access::Write => {
                let place = self.place(page).expect("a page that stays is known");
                self.stays[place].is_resumed = true;
                if self.rest(now, place) == 0 {
                    self.end(now, place, effects);
                }
            }
            _ => self.inner.step(now, input, effects),
        }
        self.settle(now, seen, matches!(input, Input::Message { .. }), effects);
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
        self.inner.leaves_behind(page) || self.waiting(page) > 0
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        self.inner.is_untouched(page)
    }

    fn release(&mut self, page: PageIndex) {
        // Every node forgets the page now, so no node waits for an answer.
        self.parked.retain(|(_, message)| message.page() != page);
        self.timed.retain(|&(timed, _)| timed != page);
        self.forget_held(page);
        let known = self.place(page).map(|place| self.stays.remove(place));
        if known.is_ok_and(|stay| stay.is_resumed) {
            self.resume_unwanted(page);
        }
        self.inner.release(page);
    }

    fn adopt(&mut self, page: PageIndex) {
        self.inner.adopt(page);
    }

    fn lockable(&self, wanted: PageRange) -> Result<PageRange, PageRange> {
        self.inner.lockable(wanted)
    }
}

// Messages that wait.
impl<P: Coherence> Delay<P> {
    fn message(&mut self, now: Nanoseconds, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let asked = message.asks().filter(|asked| asked.requester != self.me && !self.stays.is_empty());
        let Some(asked) = asked else {
            return self.inner.step(now, Input::Message { from, message }, effects);
        };
        let page = asked.demand;
        if !self.takes(&message, page) || !self.is_staying(page) {
            // Neighbours that stay are not given along with a page that is needed. P has to answer for each page of a range
            // for stores that was announced: it is left as it is.
            let message = match message {
                Message::Request { write: false, range, .. }
                | Message::Request { announced: false, range, .. }
                | Message::Forward { write: false, range, .. } => {
                    message.narrowed(range.grow(page, |other| !self.is_staying(other)))
                }
                _ => message,
            };
            return self.inner.step(now, Input::Message { from, message }, effects);
        }
        self.parked.push((from, message));
        effects.push(Effect::Chose { range: PageRange::one(page), choice: Choice::Stays });
        let place = self.place(page).expect("a page that stays is known");
        match self.rest(now, place) {
            0 => self.end(now, place, effects),
            after => effects.push(Effect::Alarm { page, purpose: Purpose::Threshold, after }),
        }
    }

    /// For how long the page at `place` still stays.
    fn rest(&self, now: Nanoseconds, place: usize) -> Nanoseconds {
        let Stay { page, since, activity, .. } = self.stays[place];
        (since + self.threshold(activity, self.waiting(page))).saturating_sub(now)
    }

    /// The page has stayed long enough: P receives what was held back.
    fn end(&mut self, now: Nanoseconds, place: usize, effects: &mut Vec<Effect>) {
        let Stay { page, is_resumed, is_wanted, .. } = self.stays[place];
        self.set(place, State::Free);
        if is_resumed {
            self.inner.step(now, Input::Resumed { page }, effects);
        } else if is_wanted {
            effects.push(Effect::Hold(page));
        }
    }

    /// Whether this node would lose a right that it has.
    fn takes(&self, message: &Message, page: PageIndex) -> bool {
        match *message {
            Message::Request { write, .. } | Message::Forward { write, .. } => {
                let needed = if write { Access::Read } else { Access::Write };
                self.inner.access(page) >= needed
            }
            _ => self.inner.access(page) != Access::None,
        }
    }

    /// Whether the page's stay is running. Whether its time is over is checked when a request comes.
    fn is_staying(&self, page: PageIndex) -> bool {
        self.place(page).is_ok_and(|place| self.stays[place].state == State::Staying)
    }

    fn waiting(&self, page: PageIndex) -> usize {
        self.parked.iter().filter(|(_, message)| message.page() == page).count()
    }

    /// Notes the effects of P, and lets messages go on whose pages may leave, until nothing changes.
    fn settle(&mut self, now: Nanoseconds, mut seen: usize, is_message: bool, effects: &mut Vec<Effect>) {
        loop {
            while let Some(&effect) = effects.get(seen) {
                if let Effect::Hold(page) = effect {
                    effects[seen] = self.held(now, page);
                    if matches!(effects[seen], Effect::Alarm { .. }) {
                        effects.push(Effect::Chose { range: PageRange::one(page), choice: Choice::Stays });
                    }
                } else {
                    self.note(now, effect, is_message);
                }
                seen += 1;
            }
            let free = self.parked.iter().position(|(_, message)| !self.is_staying(message.page()));
            let Some(index) = free else { return };
            let (from, message) = self.parked.remove(index);
            self.inner.step(now, Input::Message { from, message }, effects);
        }
    }
}

// What is known of pages.
impl<P: Coherence> Delay<P> {
    fn note(&mut self, now: Nanoseconds, effect: Effect, is_message: bool) {
        match effect {
            Effect::Install { range, .. } | Effect::Upgrade(range) => {
                if is_message {
                    self.measure(now, range);
                }
                range.pages().for_each(|page| self.came(now, page));
            }
            Effect::Revoke(range) | Effect::Downgrade(range) => {
                range.pages().for_each(|page| self.left(now, page, range.count() <= RUN_MAX));
            }
            Effect::Wake(range) => self.timed.retain(|&(page, _)| !range.contains(page)),
            _ => {}
        }
    }

    /// A request waits in P for a page: P does not receive that the thread ran on until the page has stayed long enough.
    fn held(&mut self, now: Nanoseconds, page: PageIndex) -> Effect {
        match self.place(page) {
            Ok(place) if self.stays[place].state == State::Staying && self.access(page) == Access::Write => {
                self.stays[place].is_wanted = true;
                let after = self.rest(now, place);
                Effect::Alarm { page, purpose: Purpose::Threshold, after }
            }
            _ => {
                if let Err(place) = self.held.binary_search(&page) {
                    self.held.insert(place, page);
                }
                Effect::Hold(page)
            }
        }
    }

    fn forget_held(&mut self, page: PageIndex) {
        if let Ok(place) = self.held.binary_search(&page) {
            self.held.remove(place);
        }
    }

    fn came(&mut self, now: Nanoseconds, page: PageIndex) {
        let is_fixed = self.is_fixed();
        let is_held = self.held.binary_search(&page).is_ok();
        match self.place(page) {
            // Its time is not lengthened while a request waits, here or in P.
            Ok(_) if self.waiting(page) > 0 => {}
            Ok(place) if is_held => self.set(place, State::Free),
            Err(_) if is_held => {}
            Ok(place) if is_fixed || self.stays[place].activity > 0 => {
                self.stays[place].since = now;
                self.set(place, State::Staying);
            }
            Ok(place) => self.set(place, State::Free),
            Err(_) if is_fixed => self.watch(now, page, State::Staying, usize::MAX),
            Err(_) => {}
        }
    }

    fn left(&mut self, now: Nanoseconds, page: PageIndex, is_watched: bool) {
        let is_fixed = self.is_fixed();
        self.forget_held(page);
        match self.place(page) {
            Ok(place) => {
                self.stays[place].since = now;
                self.set(place, if is_fixed { State::Free } else { State::Lost });
            }
            Err(_) if is_watched && !is_fixed => self.watch(now, page, State::Lost, STAYS_MAX),
            Err(_) => {}
        }
    }

    /// A thread faults: the page is in use, or the thread waits for what other nodes do.
    fn wanted_again(&mut self, now: Nanoseconds, page: PageIndex, write: bool) {
        let needed = if write { Access::Write } else { Access::Read };
        if self.is_fixed() || self.inner.access(page) >= needed || self.inner.is_pending(page) {
            return;
        }
        if self.timed.len() < TIMED_MAX && !self.timed.iter().any(|&(timed, _)| timed == page) {
            self.timed.push((page, now));
        }
        let Ok(place) = self.place(page) else { return };
        let (activity_max, soon) = (self.activity_max(), self.transfer * SOON_TRANSFERS);
        let stay = &mut self.stays[place];
        if stay.state == State::Lost {
            let is_soon = now.saturating_sub(stay.since) <= soon;
            stay.activity = match write && is_soon {
                true => (stay.activity + 2).min(activity_max),
                false => stay.activity.saturating_sub(1),
            };
            self.set(place, State::Free);
        }
    }

    /// Takes the time of a grant. A longer time counts only if other nodes are unlikely to have delayed the grant.
    fn measure(&mut self, now: Nanoseconds, range: PageRange) {
        for &(page, began) in self.timed.iter().filter(|(page, _)| range.contains(*page)) {
            let is_busy = self.place(page).is_ok_and(|place| self.stays[place].activity > 0);
            let took = now.saturating_sub(began).clamp(TRANSFER_MIN, TRANSFER_MAX);
            if took < self.transfer || !is_busy {
                let more = (took.saturating_sub(self.transfer) / 16).min(self.transfer / 16);
                self.transfer = took.min(self.transfer + more);
            }
        }
    }

    fn place(&self, page: PageIndex) -> Result<usize, usize> {
        self.stays.binary_search_by_key(&page, |stay| stay.page)
    }

    /// Notes `state`, and forgets a page about which nothing remains to be known.
    fn set(&mut self, place: usize, state: State) {
        let stay = &mut self.stays[place];
        (stay.state, stay.is_resumed, stay.is_wanted) = (state, false, false);
        if state == State::Free && self.stays[place].activity == 0 {
            self.stays.remove(place);
        }
    }

    /// Remembers a page that is not known, unless there are already `most` pages.
    fn watch(&mut self, now: Nanoseconds, page: PageIndex, state: State, most: usize) {
        if self.stays.len() >= self.prune_at.min(most) {
            self.prune(now);
        }
        if let (Err(place), true) = (self.place(page), self.stays.len() < most) {
            self.stays
                .insert(place, Stay { page, state, since: now, activity: 0, is_resumed: false, is_wanted: false });
        }
    }

    /// Forgets what no longer matters: stays that are over, losses that disturbed no thread, activity of long ago.
    fn prune(&mut self, now: Nanoseconds) {
        let mut kept = Vec::with_capacity(self.stays.len());
        for stay in core::mem::take(&mut self.stays) {
            let lasts = match (self.threshold, stay.activity) {
                (Threshold::Fixed(microseconds), _) => Nanoseconds::from(microseconds) * 1000,
                (Threshold::Adaptive | Threshold::Short, 0) => self.transfer * SOON_TRANSFERS,
                (Threshold::Adaptive | Threshold::Short, _) => {
                    self.transfer * self.stay_per_transfer_max() * ACTIVITY_LASTS
                }
            };
            if now.saturating_sub(stay.since) <= lasts || stay.is_wanted || self.waiting(stay.page) > 0 {
                kept.push(stay);
            } else if stay.is_resumed {
                self.resume_unwanted(stay.page);
            }
        }
        self.stays = kept;
        self.prune_at = (self.stays.len() * 2).max(PRUNED_FIRST);
    }

    /// Passes to P that a thread ran on, for a page that no request waits for: nothing follows from it.
    fn resume_unwanted(&mut self, page: PageIndex) {
        let mut effects = Vec::new();
        self.inner.step(0, Input::Resumed { page }, &mut effects);
        debug_assert!(effects.is_empty(), "somebody waits for {page}, and nobody was told");
    }
}
