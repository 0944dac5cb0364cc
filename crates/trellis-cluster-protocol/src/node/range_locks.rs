//! Locks of ranges: the calls of the program that wait for pages, or hold them.
//!
//! One call names pages of one shard, because the layer that locks pages is a part of a shard
//! ([`crate::coherence::lock`]). A range that the program locks may have pages of several shards and of several protocols:
//! [`LockedRange`] takes it piece by piece. A thread carries that out: it waits for what [`LockStep`] names, and goes
//! on.
//!
//! Promises: pieces are taken in ascending order and given back in descending order, so that nodes whose ranges overlap
//! cannot wait for each other for ever; a thread that would wait for itself is refused, and so is a range with a page
//! whose protocol has no locks; a call whose time is over holds nothing. It must never read a clock: its callers say
//! what time it is. It must never hold a shard while its thread waits.

use super::{CannotLock, Carrier, Parts, step, take, take_due};
use crate::Nanoseconds;
use crate::coherence::{Coherence, Input};
use crate::page::{PageIndex, PageRange, runs};
use crate::sync::Waiter;
use alloc::vec::Vec;
use core::ops::Range;

/// Calls for which there is room from the start.
const ROOM: usize = 16;

/// A call for the pages of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeLockCall {
    /// The pages.
    pub range: PageRange,
    /// A number that no other call of this node has while this one waits or holds.
    pub number: u32,
    /// The thread that calls.
    pub thread: u64,
    /// That thread, while it waits.
    pub waiter: Waiter,
    /// How long the pages are held at most; `None`: until they are given back.
    pub stay: Option<Nanoseconds>,
}

/// The calls of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeLocks {
    /// By number, ascending; each with the time from which on it holds its pages, if it does.
    calls: Vec<(RangeLockCall, Option<Nanoseconds>)>,
}

/// What follows when a call gives its pages back, or gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenBack {
    /// What the protocol must hear; nothing where it ended the call itself and the call was forgotten.
    pub input: Option<Input>,
    /// The time of the call was over before: others may have used its pages since.
    pub was_over: bool,
}

impl Default for RangeLocks {
    fn default() -> RangeLocks {
        RangeLocks { calls: Vec::with_capacity(ROOM) }
    }
}

impl RangeLocks {
    /// A thread calls. Returns what the protocol must hear.
    ///
    /// # Errors
    ///
    /// The pages that this thread holds already, without a time at which they are free again: it would wait for itself.
    pub fn call(&mut self, call: RangeLockCall, now: Nanoseconds) -> Result<Input, PageRange> {
        self.calls.retain(|held| !is_over(held, now));
        let is_own =
            |held: &RangeLockCall| held.thread == call.thread && held.stay.is_none() && held.range.overlaps(call.range);
        if let Some((held, _)) = self.calls.iter().find(|(held, _)| is_own(held)) {
            return Err(held.range);
        }
        let place = self.calls.partition_point(|(held, _)| held.number < call.number);
        self.calls.insert(place, (call, None));
        let RangeLockCall { range, number, stay, .. } = call;
        Ok(Input::Lock { range, call: number, stay })
    }

    /// The protocol gave a call its pages ([`crate::coherence::Effect::Locked`]).
    pub fn granted(&mut self, number: u32, now: Nanoseconds) {
        if let Ok(place) = self.place(number) {
            self.calls[place].1 = Some(now);
        }
    }

    /// Whether a call has its pages.
    pub fn is_granted(&self, number: u32) -> bool {
        self.place(number).is_ok_and(|place| self.calls[place].1.is_some())
    }

    /// The call with this number.
    pub fn find(&self, number: u32) -> Option<RangeLockCall> {
        self.place(number).ok().map(|place| self.calls[place].0)
    }

    /// The protocol set the alarm that ends the call which was granted last from page `first` on: its time begins now.
    pub fn time_begins(&mut self, first: PageIndex, now: Nanoseconds) {
        let timed = self.calls.iter_mut().filter(|(call, _)| call.range.first() == first && call.stay.is_some());
        if let Some((_, since)) = timed.max_by_key(|(_, since)| *since) {
            *since = Some(now);
        }
    }

    /// A call gives its pages back, or gives up waiting for them.
    pub fn give_back(&mut self, number: u32, now: Nanoseconds) -> GivenBack {
        let Ok(place) = self.place(number) else {
            return GivenBack { input: None, was_over: true };
        };
        let held = self.calls.remove(place);
        let input = Input::Unlock { range: held.0.range, call: number };
        GivenBack { input: Some(input), was_over: is_over(&held, now) }
    }

    /// Forgets a call, whatever it waits for or holds; returns what the protocol must hear. Nothing where there is none.
    pub fn pop(&mut self) -> Option<Input> {
        self.calls.pop().map(|(call, _)| Input::Unlock { range: call.range, call: call.number })
    }

    /// Pages that a call waits for or holds, with at least one page of `among`. A call that waits counts: it may get its
    /// pages at any time.
    pub fn in_use(&self, among: PageRange, now: Nanoseconds) -> Option<PageRange> {
        let uses = |held: &&(RangeLockCall, _)| held.0.range.overlaps(among) && !is_over(held, now);
        self.calls.iter().find(uses).map(|(call, _)| call.range)
    }

    /// As [`RangeLocks::in_use`], of any pages.
    fn any_in_use(&self, now: Nanoseconds) -> Option<PageRange> {
        self.calls.iter().find(|held| !is_over(held, now)).map(|(call, _)| call.range)
    }

    /// Where the call with this number is, or belongs.
    fn place(&self, number: u32) -> Result<usize, usize> {
        self.calls.binary_search_by_key(&number, |(call, _)| call.number)
    }
}

/// Whether the pages were given for a time, and it is over.
fn is_over((call, since): &(RangeLockCall, Option<Nanoseconds>), now: Nanoseconds) -> bool {
    call.stay.zip(*since).is_some_and(|(stay, since)| now.saturating_sub(since) >= stay)
}

/// A range that the program locks, piece by piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedRange {
    /// The pages for which it has not called yet.
    rest: Range<u32>,
    /// The pieces that it has called for, each with the number of its call, in ascending order. It has all but the
    /// last, for which it may wait. Only a checker that breaks a node changes them.
    pub pieces: Vec<(PageRange, u32)>,
    thread: u64,
    stay: Option<Nanoseconds>,
    is_local: bool,
}

/// The next step of the thread that locks a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockStep {
    /// It waits until something about this page, which is frozen, has changed ([`Carrier::wait_for`]).
    Page(PageIndex),
    /// It waits until its call has these pages ([`super::Order::Granted`]), which may be so already.
    Piece(PageRange),
    /// It has the range.
    Locked,
    /// It has nothing. The protocol of these pages has no locks.
    NoLocks(PageRange),
    /// It has nothing. It holds these pages already, and would wait for itself.
    Held(PageRange),
}

impl LockedRange {
    /// Nothing of `pages` is taken yet. `thread` will hold them for `stay`, or until it gives them back.
    pub fn new(pages: Range<u32>, thread: u64, stay: Option<Nanoseconds>) -> LockedRange {
        LockedRange { rest: pages, pieces: Vec::with_capacity(1), thread, stay, is_local: true }
    }

    /// Whether no piece took a message or a wait up to now.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Takes the next step; the thread, `waiter`, has waited for what the step before named. `number` is for a call: no
    /// other call of this node has it. A thread that waits no longer gives the range back.
    pub fn go_on<P: Parts>(
        &mut self,
        parts: &mut P,
        now: Nanoseconds,
        number: u32,
        waiter: Waiter,
    ) -> Result<LockStep, P::Breach> {
        if self.pieces.is_empty()
            && let Some(refused) = self.without_locks(parts)
        {
            return Ok(LockStep::NoLocks(refused));
        }
        let Some(wanted) = runs(self.rest.clone()).next() else { return Ok(LockStep::Locked) };
        let mut held = parts.hold_of(wanted.first());
        // Locks whose time is over end now. One whose time ends from now on is still held for this call.
        take_due(&mut held, now)?;
        let call = held.shard().protocol.lockable(wanted).map(|range| {
            let call = RangeLockCall { range, number, thread: self.thread, waiter, stay: self.stay };
            (range, held.shard().lock(call, now))
        });
        let refused = match call {
            Ok((range, Ok(input))) => {
                let sent = step(&mut held, input, Default::default())?;
                self.is_local &= sent == 0 && held.shard().locks.is_granted(number);
                self.rest.start = range.end();
                self.pieces.push((range, number));
                return Ok(LockStep::Piece(range));
            }
            Ok((_, Err(CannotLock::Frozen(page)))) => {
                held.wait_for(page, waiter);
                return Ok(LockStep::Page(page));
            }
            Ok((_, Err(CannotLock::Held(pages)))) => LockStep::Held(pages),
            Err(pages) => LockStep::NoLocks(pages),
        };
        drop(held);
        self.give_back(parts, now)?;
        Ok(refused)
    }

    /// Gives back what it has, and waits for nothing any more. A second call does nothing. Returns whether the time of
    /// a piece was over before: others may have used its pages since.
    pub fn give_back<P: Parts>(&mut self, parts: &mut P, now: Nanoseconds) -> Result<bool, P::Breach> {
        let mut was_over = false;
        while let Some((piece, number)) = self.pieces.pop() {
            let mut held = parts.hold_of(piece.first());
            let given_back = held.shard().locks.give_back(number, now);
            was_over |= given_back.was_over;
            given_back.input.map_or(Ok(()), |input| take(&mut held, input))?;
        }
        Ok(was_over)
    }

    /// The first pages of the rest whose protocol has no locks.
    fn without_locks<P: Parts>(&self, parts: &mut P) -> Option<PageRange> {
        runs(self.rest.clone()).find_map(|run| {
            let mut held = parts.hold_of(run.first());
            let mut rest = Some(run);
            while let Some(wanted) = rest {
                match held.shard().protocol.lockable(wanted) {
                    Ok(lockable) => rest = run.from(lockable.end()),
                    Err(refused) => return Some(refused),
                }
            }
            None
        })
    }
}

/// The first pages that a call of the node waits for or holds.
pub fn locked<P: Parts>(parts: &mut P, now: Nanoseconds) -> Option<PageRange> {
    (0..parts.shards()).find_map(|number| parts.hold(number).shard().locks.any_in_use(now))
}

/// Gives back everything that the node's program holds or waits for, because it is done.
pub fn give_back_all<P: Parts>(parts: &mut P) -> Result<(), P::Breach> {
    for number in 0..parts.shards() {
        let mut held = parts.hold(number);
        while let Some(input) = held.shard().locks.pop() {
            take(&mut held, input)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::{Effect, Geometry, Message, Protocol, Ranges};
    use crate::homes::{Home, Manager};
    use crate::node::{Order, Shard};
    use crate::page::{CHUNK_PAGES, NodeId};
    use core::convert::Infallible;

    const ME: u64 = 7;

    fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count).unwrap()
    }

    fn call(first: u32, count: u32, number: u32, stay: Option<Nanoseconds>) -> RangeLockCall {
        RangeLockCall { range: range(first, count), number, thread: ME, waiter: number, stay }
    }

    #[test]
    fn a_thread_that_would_wait_for_itself_is_refused() {
        let mut locks = RangeLocks::default();
        let lock = Input::Lock { range: range(4, 4), call: 1, stay: None };
        assert_eq!(locks.call(call(4, 4, 1, None), 0), Ok(lock));
        assert_eq!(locks.call(call(7, 2, 2, None), 0), Err(range(4, 4)));
        assert!(locks.call(call(8, 2, 3, None), 0).is_ok(), "other pages");
        let other = RangeLockCall { thread: ME + 1, ..call(4, 4, 4, None) };
        assert!(locks.call(other, 0).is_ok(), "another thread waits its turn");
        assert_eq!(locks.give_back(1, 0).input, Some(Input::Unlock { range: range(4, 4), call: 1 }));
        assert!(locks.call(call(7, 1, 5, None), 0).is_ok());
    }

    #[test]
    fn a_call_whose_time_is_over_holds_nothing() {
        let mut locks = RangeLocks::default();
        locks.call(call(0, 2, 1, Some(100)), 0).unwrap();
        assert_eq!(locks.in_use(range(1, 1), 1_000), Some(range(0, 2)), "its time has not begun");
        locks.granted(1, 1_000);
        assert_eq!((locks.in_use(range(1, 1), 1_099), locks.in_use(range(2, 1), 1_099)), (Some(range(0, 2)), None));
        assert_eq!((locks.any_in_use(1_099), locks.any_in_use(1_100)), (Some(range(0, 2)), None));
        locks.time_begins(PageIndex(0), 1_050);
        assert_eq!(locks.any_in_use(1_149), Some(range(0, 2)), "it begins again with the alarm");
        let given_back = locks.give_back(1, 1_150);
        assert_eq!(
            given_back,
            GivenBack { input: Some(Input::Unlock { range: range(0, 2), call: 1 }), was_over: true }
        );

        locks.call(call(0, 2, 2, Some(100)), 2_000).unwrap();
        locks.granted(2, 2_000);
        // The thread gets the range again without giving back what has ended; the call before is forgotten.
        locks.call(call(0, 2, 3, None), 2_100).unwrap();
        assert_eq!(locks.give_back(2, 2_100), GivenBack { input: None, was_over: true });
        assert_eq!(locks.pop(), Some(Input::Unlock { range: range(0, 2), call: 3 }));
        assert_eq!(locks.pop(), None);
    }

    /// The only node of a cluster, with two shards. A chunk is between two others; no page of it has locks.
    struct Alone {
        shards: Vec<Shard<Ranges>>,
        granted: Vec<u32>,
        unlocked: Vec<u32>,
    }

    const CHUNK: u32 = CHUNK_PAGES;

    impl Alone {
        fn new() -> Alone {
            let start = |shard| {
                let home = Home::Manager(Manager(NodeId(0)));
                let pages = 4 * CHUNK;
                let geometry =
                    Geometry { me: NodeId(0), nodes: 1, founders: 1, pages, shard, shards: 2, home, marks: false };
                let [lock, other] = ["lock(migrate)", "lock(ivy)"].map(|name| name.parse().expect("a protocol"));
                let mut shard = Shard::new(Ranges::new(lock, geometry), geometry, NodeId(0));
                let changes = [(CHUNK + 4, 4, other), (2 * CHUNK, CHUNK, Protocol::IVY)];
                for (first, count, protocol) in
                    changes.into_iter().filter(|(first, ..)| first / CHUNK % 2 == geometry.shard)
                {
                    shard.change(range(first, count), protocol).expect("three protocols are not too many");
                }
                shard
            };
            Alone { shards: (0..2).map(start).collect(), granted: Vec::new(), unlocked: Vec::new() }
        }

        /// Locks pages without a wait; returns the last step.
        fn lock(&mut self, locked: &mut LockedRange) -> LockStep {
            for number in 1.. {
                let Ok(step) = locked.go_on(self, 0, number, number);
                if !matches!(step, LockStep::Piece(_)) {
                    return step;
                }
            }
            unreachable!("the range ends")
        }
    }

    struct Part<'a> {
        of: &'a mut Alone,
        number: usize,
    }

    impl Parts for Alone {
        type Held<'a> = Part<'a>;
        type Breach = Infallible;

        fn shards(&self) -> u32 {
            2
        }

        fn hold(&mut self, shard: u32) -> Part<'_> {
            Part { of: self, number: shard as usize }
        }
    }

    impl Carrier for Part<'_> {
        type Protocol = Ranges;
        type Attached = ();
        type Breach = Infallible;

        fn shard(&mut self) -> &mut Shard<Ranges> {
            &mut self.of.shards[self.number]
        }

        fn decide(&mut self, input: Input, effects: &mut Vec<Effect>) {
            if let Input::Unlock { range, .. } = input {
                self.of.unlocked.push(range.first().0);
            }
            self.shard().protocol.step(0, input, effects);
        }

        fn order(&mut self, effect: Effect) -> Order {
            self.shard().order(effect, || 0, 0)
        }

        fn carry_out(&mut self, order: Order, (): ()) -> Result<(), Infallible> {
            if let Order::Granted { range, .. } = order {
                self.of.granted.push(range.first().0);
            }
            Ok(())
        }

        fn send_diffs(&mut self, _: Message, _: impl Iterator<Item = NodeId>, (): ()) -> Result<(), Infallible> {
            unreachable!("no page is under release consistency")
        }
    }

    #[test]
    fn pieces_have_one_protocol_and_are_taken_upwards_and_given_back_downwards() {
        let (mut node, mut locked) = (Alone::new(), LockedRange::new(CHUNK - 2..CHUNK + 10, ME, None));
        assert_eq!((node.lock(&mut locked), locked.is_local()), (LockStep::Locked, true));
        let firsts = [CHUNK - 2, CHUNK, CHUNK + 4, CHUNK + 8];
        assert_eq!(node.granted, firsts);
        assert_eq!(super::locked(&mut node, 0), Some(range(CHUNK - 2, 2)));
        assert_eq!(locked.give_back(&mut node, 0), Ok(false));
        assert!(node.unlocked.iter().rev().eq(&firsts));
        assert_eq!(locked.give_back(&mut node, 0), Ok(false), "a second call does nothing");
        assert_eq!((node.unlocked.len(), super::locked(&mut node, 0)), (4, None));
        assert_eq!(node.lock(&mut LockedRange::new(7..7, ME, None)), LockStep::Locked);
    }

    #[test]
    fn a_range_that_is_refused_holds_nothing() {
        let mut node = Alone::new();
        let mut without_locks = LockedRange::new(CHUNK + 2..2 * CHUNK + 3, ME, None);
        assert_eq!(node.lock(&mut without_locks), LockStep::NoLocks(range(2 * CHUNK, 3)));
        assert_eq!(node.granted, [], "it is refused before a piece is taken");
        let mut upper = LockedRange::new(CHUNK + 9..CHUNK + 10, ME, None);
        assert_eq!(node.lock(&mut upper), LockStep::Locked);
        let mut own = LockedRange::new(CHUNK - 1..CHUNK + 10, ME, None);
        assert_eq!(node.lock(&mut own), LockStep::Held(range(CHUNK + 9, 1)));
        assert_eq!(node.unlocked, [CHUNK + 4, CHUNK, CHUNK - 1]);
        give_back_all(&mut node).unwrap();
        assert_eq!(super::locked(&mut node, 0), None);
        assert_eq!(upper.give_back(&mut node, 0), Ok(true), "the call is forgotten");
    }

    #[test]
    fn a_thread_waits_until_a_page_is_thawed() {
        let (mut node, mut locked) = (Alone::new(), LockedRange::new(CHUNK - 1..CHUNK + 2, ME, Some(9)));
        node.shards[1].freeze(CHUNK + 1..CHUNK + 2);
        assert_eq!(node.lock(&mut locked), LockStep::Page(PageIndex(CHUNK + 1)));
        assert_eq!(node.granted, [CHUNK - 1]);
        node.shards[1].thaw();
        assert_eq!(node.lock(&mut locked), LockStep::Locked);
        assert_eq!(locked.give_back(&mut node, 9), Ok(true), "its time is over");
    }
}
