//! The pages of one shard at one node: their protocol, and the decisions that surround it.
//!
//! A step ([`super::step`]) lets the protocol decide, and passes each of its effects to [`Shard::order`] in their order.
//! The [`Order`] is what its carrier does: to memory, to threads, to the network.
//!
//! Promises: no [`Order::Send`] is for a departed node. An alarm comes back through [`Shard::pop_due`], once, and so does
//! a page that is held, unless the node leaves first. A carrier carries orders out and decides nothing.

use super::{Departures, Marks, PublicationLimits, RangeLocks, Route, STORED_IN_A_ROW, Timers};
use crate::Nanoseconds;
use crate::coherence::{Coherence, Effect, Geometry, Input, Message, Purpose};
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard<C> {
    /// The protocol of its pages.
    pub protocol: C,
    /// Pages that stay for threads, and the alarms of the protocol.
    pub timers: Timers,
    /// The calls of the program that wait for locked pages, or hold them.
    pub locks: RangeLocks,
    /// The nodes that have departed.
    pub departures: Departures,
    /// Room for the effects of a step; empty between steps.
    effects: Vec<Effect>,
    /// Inputs that follow from the effects of a step, and that the protocol has not taken yet.
    conclusions: Vec<Input>,
    /// The pages whose stores the kernel marks, if it does.
    marks: Option<Box<Marks>>,
    /// Pages whose protocol is about to change.
    pub(super) frozen: Range<u32>,
    geometry: Geometry,
    coordinator: NodeId,
}

/// The work of an embedder for one effect of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Carry out the effect: it concerns memory, threads, or what other nodes must know.
    CarryOut(Effect),
    /// Send the message, with the bytes of its pages if it has any.
    Send {
        /// The receiver, which need not be the one that the protocol named.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Wake the thread of the call ([`RangeLocks::find`]), which has these pages now.
    Granted {
        /// The pages.
        range: PageRange,
        /// The number of the call.
        call: u32,
    },
    /// Call [`Shard::pop_due`] when `due` has come.
    WakeAt {
        /// The time as the clock said it.
        now: Nanoseconds,
        /// The time of the call.
        due: Nanoseconds,
    },
    /// Nothing: the receiver has departed.
    Nothing,
    /// No node is left that could answer the message: the protocol is broken.
    Lost {
        /// The node that has departed.
        to: NodeId,
        /// The message.
        message: Message,
    },
}

impl<C: Coherence> Shard<C> {
    /// The shard at its start: no node has departed. `coordinator` takes over what a departed node leaves behind.
    pub fn new(protocol: C, geometry: Geometry, coordinator: NodeId) -> Shard<C> {
        Shard {
            protocol,
            timers: Timers::default(),
            locks: RangeLocks::default(),
            departures: Departures::new(geometry.nodes, geometry.me.0 >= geometry.founders),
            effects: Vec::new(),
            conclusions: Vec::new(),
            marks: geometry.marks.then(|| Box::new(Marks::new(&geometry, STORED_IN_A_ROW))),
            frozen: 0..0,
            geometry,
            coordinator,
        }
    }

    /// As [`Shard::new`], with pages that stay open after `stored_in_a_row` publications with stores to them: fewer than
    /// [`STORED_IN_A_ROW`], so that a checker sees more open pages.
    pub fn opening_after(mut self, stored_in_a_row: u8) -> Shard<C> {
        self.marks = self.marks.map(|_| Box::new(Marks::new(&self.geometry, stored_in_a_row)));
        self
    }

    /// Its number among the shards of the node.
    pub fn number(&self) -> u32 {
        self.geometry.shard
    }

    /// Whether this node is the home of `page`.
    pub fn is_home_of(&self, page: PageIndex) -> bool {
        self.geometry.home_of(page) == self.geometry.me
    }

    /// Whether the bytes of these pages, which are in this shard, were requested, so that they may be written into the
    /// pages as they arrive.
    pub fn may_place(&self, range: PageRange) -> bool {
        range.pages().all(|page| self.protocol.is_pending(page) && self.protocol.access(page) == Access::None)
    }

    /// Turns an effect of the protocol into an order. The clock is read only for effects that depend on time. A page
    /// stays at most `hold_max` for a thread once another node wants it.
    pub fn order(&mut self, effect: Effect, now: impl FnOnce() -> Nanoseconds, hold_max: Nanoseconds) -> Order {
        match effect {
            Effect::Send { to, message } => self.send(to, message),
            Effect::Hold(page) => {
                let now = now();
                Order::WakeAt { now, due: self.timers.hold(page, now, hold_max) }
            }
            Effect::Alarm { page, purpose, after } => {
                let now = now();
                let due = now.saturating_add(after);
                self.timers.set_alarm(page, purpose, due);
                if purpose == Purpose::Expiry {
                    self.locks.time_begins(page, now);
                }
                Order::WakeAt { now, due }
            }
            Effect::Locked { range, call } => {
                self.locks.granted(call, now());
                Order::Granted { range, call }
            }
            Effect::Install { range, .. } => {
                if let Some(marks) = &mut self.marks {
                    marks.installed(&self.geometry, &self.protocol, range);
                }
                Order::CarryOut(effect)
            }
            Effect::Revoke(range) => {
                if let Some(marks) = &mut self.marks {
                    marks.revoked(&self.geometry, range);
                }
                Order::CarryOut(effect)
            }
            other => Order::CarryOut(other),
        }
    }

    /// Carries out [`Effect::Downgrade`]: calls `protect` with the pages whose views must no longer allow stores. The
    /// other pages stay open to stores, and are examined before the next publication.
    ///
    /// # Errors
    ///
    /// Those of `protect`.
    pub fn downgrade<E>(
        &mut self,
        range: PageRange,
        mut protect: impl FnMut(PageRange) -> Result<(), E>,
    ) -> Result<(), E> {
        match &mut self.marks {
            Some(marks) => marks.downgraded(&self.geometry, &self.protocol, range, protect),
            None => protect(range),
        }
    }

    /// Whether stores must be looked for before a publication.
    pub fn is_watching(&self) -> bool {
        self.marks.as_ref().is_some_and(|marks| marks.is_watching())
    }

    /// A publication begins: appends to `stored` the pages that stay open and were stored to; each is
    /// [`Input::Stored`]. `differs` says whether a page differs from its twin now; `protect` makes a page read-only.
    ///
    /// # Errors
    ///
    /// Those of `protect`.
    pub fn look_for_stores<E>(
        &mut self,
        differs: impl FnMut(PageIndex) -> bool,
        protect: impl FnMut(PageIndex) -> Result<(), E>,
        stored: &mut Vec<PageIndex>,
    ) -> Result<(), E> {
        match &mut self.marks {
            Some(marks) => marks.look_for_stores(&self.geometry, &self.protocol, differs, protect, stored),
            None => Ok(()),
        }
    }

    /// The pages among which the kernel must look for marks now, by chunk, ascending.
    pub fn watched(&self) -> impl Iterator<Item = PageRange> {
        self.marks.iter().flat_map(|marks| marks.chunks(&self.geometry))
    }

    /// The kernel found the pages of `range`, all of one chunk, marked: the first of them in a row that are
    /// [`Input::Stored`]. Call it again with the rest of the range.
    pub fn marked(&mut self, range: PageRange) -> Option<PageRange> {
        self.marks.as_mut().and_then(|marks| marks.marked(&self.geometry, range))
    }

    /// The input with which the shard publishes, and the number of [`Effect::Published`] that it owes from then on, in
    /// addition to those that it owes already. `None` if there is nothing to publish.
    pub fn publish(&self, limits: &PublicationLimits) -> Option<(Input, u32)> {
        let publishers = self.protocol.publishers();
        let PublicationLimits { unacknowledged_pages_max, together_pages_max } = *limits;
        let input = Input::Publish { unacknowledged_max: unacknowledged_pages_max, together_max: together_pages_max };
        (publishers > 0).then(|| (input, publishers - self.protocol.publishing()))
    }

    pub(super) fn take_room(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.effects)
    }

    pub(super) fn give_room(&mut self, mut effects: Vec<Effect>) {
        effects.clear();
        self.effects = effects;
    }

    /// A page that was inspected ([`Effect::Inspect`]) differs from its twin.
    pub fn differs(&mut self, page: PageIndex) {
        self.conclusions.push(Input::Changed { page });
    }

    /// The next input that follows from the effects of a step: a page differs from its twin, or the answer of a
    /// departed node.
    pub fn next_conclusion(&mut self) -> Option<Input> {
        self.conclusions.pop()
    }

    /// Forgets the answers of departed nodes; only a checker that breaks a node does so.
    pub fn forget_answers(&mut self) {
        self.conclusions.clear();
    }

    /// The next page that is held no longer, or the next alarm that goes off, by `now`.
    pub fn pop_due(&mut self, now: Nanoseconds) -> Option<Input> {
        self.timers.pop_due(now)
    }

    fn send(&mut self, to: NodeId, message: Message) -> Order {
        self.departures.note_sent(to, message);
        let geometry = self.geometry;
        match self.departures.route(geometry.me, self.coordinator, to, message, |page| geometry.home_of(page)) {
            Route::To(to) => Order::Send { to, message },
            Route::Answered(answer) => {
                self.conclusions.push(Input::Message { from: to, message: answer });
                Order::Nothing
            }
            Route::Dropped => Order::Nothing,
            Route::Lost => Order::Lost { to, message },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;
    use crate::coherence::{Content, Protocol, Ranges, Running};
    use crate::homes::{Home, Manager};
    use crate::node::RangeLockCall;

    const PAGE: PageIndex = PageIndex(7);
    const OTHER: NodeId = NodeId(2);
    const HOLD_MAX: Nanoseconds = 1_000;

    fn shard() -> Shard<Running> {
        let home = Home::Manager(Manager(NodeId(0)));
        let geometry =
            Geometry { me: NodeId(1), nodes: 3, founders: 2, pages: 64, shard: 0, shards: 1, home, marks: false };
        Shard::new(Protocol::IVY.start(geometry), geometry, NodeId(0))
    }

    fn no_clock() -> Nanoseconds {
        panic!("the clock is read")
    }

    #[test]
    fn every_protocol_of_a_shard_owes_an_answer_to_a_publication_once() {
        let geometry = Geometry { me: NodeId(1), ..shard().geometry };
        let [invalidate, update] = ["hlrc(invalidate)", "hlrc(update)"].map(|name| name.parse().expect("a protocol"));
        let mut shard = Shard::new(Ranges::new(invalidate, geometry), geometry, NodeId(0));
        shard.change(PageRange::one(PAGE), update).expect("two protocols are not too many");
        let limits = PublicationLimits::of(4096, 1);
        assert_eq!(shard.publish(&limits), None, "nothing was stored");
        let mut effects = Vec::new();
        for page in [PAGE, PageIndex(3)] {
            let range = PageRange::one(page);
            let store = Input::Fault { page, write: true, wanted: range };
            shard.protocol.step(0, store, &mut effects);
            let content = Content::Zero;
            let copy = Message::Copy { demand: page, range, content, stamp: 0, home: false };
            shard.protocol.step(0, Input::Message { from: NodeId(0), message: copy }, &mut effects);
            shard.protocol.step(0, store, &mut effects);
        }
        let (input, owed) = shard.publish(&limits).expect("both have something to publish");
        assert_eq!(owed, 2);
        shard.protocol.step(0, input, &mut effects);
        assert_eq!(shard.publish(&limits), Some((input, 0)), "both owe their answers already");
    }

    #[test]
    fn what_concerns_memory_is_carried_out_as_it_is() {
        let install = Effect::Install { range: PageRange::one(PAGE), access: Access::Read, zero: true };
        assert_eq!(shard().order(install, no_clock, HOLD_MAX), Order::CarryOut(install));
    }

    #[test]
    fn a_departed_node_gets_no_message_and_its_answer_is_handled() {
        let mut shard = shard();
        let invalidate = Message::Invalidate { page: PAGE, owner: NodeId(0) };
        let send = Effect::Send { to: OTHER, message: invalidate };
        let sent = Order::Send { to: OTHER, message: invalidate };
        assert_eq!(shard.order(send, no_clock, HOLD_MAX), sent);
        assert_eq!(shard.next_conclusion(), None);
        shard.departures.depart(OTHER);
        assert_eq!(shard.order(send, no_clock, HOLD_MAX), Order::Nothing);
        let answer = Input::Message { from: OTHER, message: Message::Invalidated { page: PAGE } };
        assert_eq!(shard.next_conclusion(), Some(answer));
        assert_eq!(shard.next_conclusion(), None);
    }

    #[test]
    fn a_page_is_held_and_an_alarm_goes_off_once_each() {
        let mut shard = shard();
        assert_eq!(shard.order(Effect::Hold(PAGE), || 5, HOLD_MAX), Order::WakeAt { now: 5, due: 5 + HOLD_MAX });
        let alarm = Effect::Alarm { page: PAGE, purpose: Purpose::Retry, after: 10 };
        assert_eq!(shard.order(alarm, || 5, HOLD_MAX), Order::WakeAt { now: 5, due: 15 });
        assert_eq!(shard.pop_due(14), None);
        assert_eq!(shard.pop_due(15), Some(Input::Alarm { page: PAGE, purpose: Purpose::Retry }));
        assert_eq!(shard.pop_due(5 + HOLD_MAX), Some(Input::Resumed { page: PAGE }));
        assert_eq!(shard.pop_due(Nanoseconds::MAX), None);
    }

    #[test]
    fn the_time_of_a_locked_range_begins_with_its_alarm() {
        let mut shard = shard();
        let range = PageRange::one(PAGE);
        let call = RangeLockCall { range, number: 3, thread: 1, waiter: 1, stay: Some(100) };
        shard.locks.call(call, 0).expect("nobody holds it");
        let granted = shard.order(Effect::Locked { range, call: 3 }, || 20, HOLD_MAX);
        assert_eq!(granted, Order::Granted { range, call: 3 });
        let expiry = Effect::Alarm { page: PAGE, purpose: Purpose::Expiry, after: 100 };
        assert_eq!(shard.order(expiry, || 50, HOLD_MAX), Order::WakeAt { now: 50, due: 150 });
        assert_eq!(shard.locks.in_use(range, 149), Some(range));
        assert_eq!(shard.locks.in_use(range, 151), None);
    }
}
