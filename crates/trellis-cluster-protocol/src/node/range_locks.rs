//! Locks of ranges: the calls of the program that wait for pages, or hold them.
//!
//! One call names pages of one shard, because the layer that locks pages is a part of a shard
//! ([`crate::coherence::lock`]). A range that the program locks may have pages of several shards and of several protocols:
//! [`LockedRange`] takes it piece by piece.
//!
//! Promises: pieces are taken in ascending order and given back in descending order, so that nodes whose ranges overlap
//! cannot wait for each other for ever; a thread that would wait for itself is refused; a call whose time is over holds
//! nothing. It must never read a clock: its callers say what time it is.

use crate::Nanoseconds;
use crate::coherence::Input;
use crate::page::{PageIndex, PageRange};
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
    pub fn any_in_use(&self, now: Nanoseconds) -> Option<PageRange> {
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
    /// The pages that it does not have yet.
    rest: Range<u32>,
    /// What it has, each piece with the number of its call, in ascending order.
    pieces: Vec<(PageRange, u32)>,
}

impl LockedRange {
    /// Nothing of `pages` is taken yet.
    pub fn new(pages: Range<u32>) -> LockedRange {
        LockedRange { rest: pages, pieces: Vec::with_capacity(1) }
    }

    /// The pages of which the first ones are to be taken next, all of one shard; nothing where all are taken.
    pub fn wanted(&self) -> Option<PageRange> {
        (!self.rest.is_empty()).then(|| PageRange::around(PageIndex(self.rest.start), self.rest.start, self.rest.end))
    }

    /// `piece`, the first pages of [`LockedRange::wanted`], was granted to the call of this number.
    ///
    /// # Panics
    ///
    /// If they are not the first of those: two nodes that take pages in different orders may wait for each other for ever.
    pub fn took(&mut self, piece: PageRange, number: u32) {
        assert_eq!(piece.first().0, self.rest.start, "pages of a range are locked in ascending order");
        self.rest.start = piece.end();
        self.pieces.push((piece, number));
    }

    /// The piece to give back next, with the number of its call: the last that is still there.
    pub fn pop(&mut self) -> Option<(PageRange, u32)> {
        self.pieces.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u64 = 7;

    fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count).unwrap()
    }

    fn call(first: u32, count: u32, number: u32, stay: Option<Nanoseconds>) -> RangeLockCall {
        RangeLockCall { range: range(first, count), number, thread: ME, stay }
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

    #[test]
    fn pieces_are_taken_upwards_and_given_back_downwards() {
        let mut locked = LockedRange::new(500..1030);
        let mut number = 0;
        while let Some(wanted) = locked.wanted() {
            number += 1;
            locked.took(wanted, number);
        }
        let mut back = || locked.pop().map(|(piece, number)| (piece.first().0, piece.end(), number));
        assert_eq!(
            [back(), back(), back(), back()],
            [Some((1024, 1030, 3)), Some((512, 1024, 2)), Some((500, 512, 1)), None]
        );
        assert_eq!(LockedRange::new(7..7).wanted(), None);
    }

    #[test]
    #[should_panic(expected = "in ascending order")]
    fn a_piece_out_of_order_is_noticed() {
        LockedRange::new(500..600).took(range(512, 88), 1);
    }
}
