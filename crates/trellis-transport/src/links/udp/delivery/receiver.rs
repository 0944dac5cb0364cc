//! The receiving side of [`super`]: what has arrived, and which frames are incomplete.
//!
//! Promises: a fragment is new once. A frame is complete when all of its fragments have arrived, and not before. A
//! peer whose fragments are inconsistent is detected before anything out of bounds happens.
//!
//! It must never hold bytes: `R` is where the caller puts them.

use super::{Acknowledgement, Fragment, Inconsistent, WINDOW, WORDS};

/// The kind of an arriving fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was received before: nothing may be done with it.
    Duplicate,
    /// It is further ahead than any sender may send: nothing may be done with it.
    OutOfReach,
    /// It contradicts itself or others of its frame: its sender is faulty.
    Inconsistent,
    /// A whole frame in one fragment.
    Whole,
    /// It is the first fragment of its frame to arrive: [`Receiver::open`] comes next.
    First,
    /// It is one more fragment of an open frame: [`Receiver::place`] comes next, then [`Receiver::finish`].
    Later {
        /// The index of the open frame.
        slot: usize,
    },
}

/// The receiving side; see the module text.
#[derive(Debug)]
pub struct Receiver<R> {
    cumulative: u64,
    beyond: [u64; WORDS],
    /// The number of fragments that were sent at least, as the other side reported.
    reported: u64,
    open: Vec<Open<R>>,
}

/// A frame of which something is missing.
#[derive(Debug)]
struct Open<R> {
    frame: u64,
    body_bytes: u32,
    fragment_bytes: u32,
    rest: u32,
    place: R,
}

impl<R> Default for Receiver<R> {
    fn default() -> Self {
        Receiver { cumulative: 0, beyond: [0; WORDS], reported: 0, open: Vec::new() }
    }
}

impl<R> Receiver<R> {
    /// Decides the kind of a fragment with `bytes` bytes, and notes its arrival.
    #[inline]
    pub fn accept(&mut self, fragment: &Fragment, bytes: usize) -> Arrival {
        let Some(ahead) = fragment.sequence.checked_sub(self.cumulative) else { return Arrival::Duplicate };
        if ahead >= WINDOW {
            return Arrival::OutOfReach;
        }
        let (word, bit) = ((ahead / 64) as usize, 1 << (ahead % 64));
        if self.beyond[word] & bit != 0 {
            return Arrival::Duplicate;
        }
        let arrival = self.classify(fragment, bytes);
        if arrival != Arrival::Inconsistent {
            self.beyond[word] |= bit;
            if ahead == 0 {
                self.advance();
            }
        }
        arrival
    }

    /// Keeps the place of the frame of an [`Arrival::First`].
    pub fn open(&mut self, fragment: &Fragment, place: R) {
        let frame = fragment.frame().expect("checked by `accept`");
        let (body_bytes, fragment_bytes) = (fragment.body_bytes, fragment.fragment_bytes);
        self.open.push(Open { frame, body_bytes, fragment_bytes, rest: fragment.count() - 1, place });
    }

    /// The place of the frame in this slot.
    pub fn place(&mut self, slot: usize) -> &mut R {
        &mut self.open[slot].place
    }

    /// Closes the frame in this slot, if that was its last fragment.
    pub fn finish(&mut self, slot: usize) -> Option<R> {
        if self.open[slot].rest > 0 {
            return None;
        }
        Some(self.open.swap_remove(slot).place)
    }

    /// What has arrived; the caller supplies the room.
    #[inline]
    pub fn acknowledgement(&self, room_bytes: u32) -> Acknowledgement {
        let expected = self.reported.saturating_sub(self.cumulative) as u32;
        Acknowledgement { cumulative: self.cumulative, beyond: self.beyond, room_bytes, expected }
    }

    /// The whole number of a fragment whose low half is known: the one nearest to the expected number.
    #[inline]
    pub fn widen(&self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.cumulative as u32) as i32;
        self.cumulative.wrapping_add_signed(i64::from(ahead))
    }

    /// Notes the report of the other side that it sent `count` fragments in all.
    pub fn note_report(&mut self, count: u64) -> Result<(), Inconsistent> {
        // Fragments that have not arrived were not acknowledged, and a sender sends at most a window of these. (A
        // report older than the last one is smaller, and ignored.)
        if count > self.cumulative + WINDOW {
            return Err(Inconsistent);
        }
        self.reported = self.reported.max(count);
        Ok(())
    }

    /// The number of incomplete frames.
    pub fn open_frames(&self) -> usize {
        self.open.len()
    }

    /// Whether all of the first `count` fragments have arrived.
    pub fn has_all(&self, count: u64) -> bool {
        self.cumulative >= count
    }

    #[inline]
    fn classify(&mut self, fragment: &Fragment, bytes: usize) -> Arrival {
        let count = fragment.count();
        let Some(frame) = fragment.frame() else { return Arrival::Inconsistent };
        let is_endless = fragment.fragment_bytes == 0 && fragment.body_bytes > 0;
        if is_endless || fragment.index >= count || fragment.range().len() != bytes {
            return Arrival::Inconsistent;
        }
        if count == 1 {
            return Arrival::Whole;
        }
        // The latest frames are the most active ones.
        let slot = self.open.iter().rposition(|open| open.frame == frame);
        let Some(slot) = slot else {
            // A correct sender has fewer frames within the window.
            return if self.open.len() as u64 > WINDOW { Arrival::Inconsistent } else { Arrival::First };
        };
        let open = &mut self.open[slot];
        if (open.body_bytes, open.fragment_bytes) != (fragment.body_bytes, fragment.fragment_bytes) || open.rest == 0 {
            return Arrival::Inconsistent;
        }
        open.rest -= 1;
        Arrival::Later { slot }
    }

    /// Moves on to the next missing fragment, because the first missing one arrived.
    #[inline]
    fn advance(&mut self) {
        if self.beyond[0] == 1 && self.beyond[1..] == [0; WORDS - 1] {
            self.beyond[0] = 0;
            self.cumulative += 1;
            return;
        }
        while self.beyond[0] & 1 == 1 {
            let run = self.beyond[0].trailing_ones();
            for word in 0..WORDS {
                let next = self.beyond.get(word + 1).copied().unwrap_or(0);
                let low = self.beyond[word].checked_shr(run).unwrap_or(0);
                self.beyond[word] = low | next.checked_shl(64 - run).unwrap_or(0);
            }
            self.cumulative += u64::from(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(sequence: u64) -> Fragment {
        Fragment { sequence, index: 0, body_bytes: 10, fragment_bytes: 100 }
    }

    #[test]
    fn each_number_is_new_once_and_the_window_moves_over_all_of_them() {
        let mut receiver = Receiver::<()>::default();
        // The window is filled backwards: nothing moves until the first one arrives.
        for sequence in (1..WINDOW).rev() {
            assert_eq!(receiver.accept(&single(sequence), 10), Arrival::Whole);
            assert_eq!(receiver.accept(&single(sequence), 10), Arrival::Duplicate);
            assert_eq!(receiver.acknowledgement(0).cumulative, 0);
        }
        assert_eq!(receiver.accept(&single(WINDOW), 10), Arrival::OutOfReach);
        assert!(receiver.acknowledgement(0).has_gap());
        assert_eq!(receiver.accept(&single(0), 10), Arrival::Whole);
        assert_eq!(receiver.acknowledgement(0), Acknowledgement { cumulative: WINDOW, ..Default::default() });
        assert_eq!(receiver.accept(&single(3), 10), Arrival::Duplicate);
        assert_eq!(receiver.accept(&single(WINDOW + 70), 10), Arrival::Whole);
        assert_eq!(receiver.acknowledgement(0).beyond, [0, 1 << 6, 0, 0]);
    }

    #[test]
    fn a_frame_is_complete_when_its_last_fragment_came_in_whatever_order() {
        let mut receiver = Receiver::default();
        let fragment =
            |index: u32| Fragment { sequence: u64::from(index), index, body_bytes: 250, fragment_bytes: 100 };
        assert_eq!(fragment(2).range(), 200..250);
        assert_eq!(receiver.accept(&fragment(2), 50), Arrival::First);
        receiver.open(&fragment(2), "place");
        assert_eq!(receiver.accept(&fragment(0), 100), Arrival::Later { slot: 0 });
        assert_eq!(receiver.finish(0), None);
        assert_eq!(receiver.accept(&fragment(0), 100), Arrival::Duplicate);
        assert_eq!(receiver.accept(&fragment(1), 100), Arrival::Later { slot: 0 });
        assert_eq!(receiver.finish(0), Some("place"));
        assert!(receiver.has_all(3) && receiver.open_frames() == 0);
    }

    #[test]
    fn what_was_reported_and_is_not_here_is_missing_until_it_comes() {
        let mut receiver = Receiver::<()>::default();
        assert_eq!(receiver.accept(&single(0), 10), Arrival::Whole);
        assert_eq!(receiver.note_report(1), Ok(()));
        assert!(!receiver.acknowledgement(0).is_negative(), "all that there was is here");
        assert_eq!(receiver.note_report(4), Ok(()));
        assert_eq!(receiver.accept(&single(2), 10), Arrival::Whole);
        let here = receiver.acknowledgement(0);
        assert_eq!((here.cumulative, here.beyond[0], here.expected), (1, 0b10, 3));
        assert_eq!(receiver.note_report(2), Ok(()), "older than the last word");
        assert_eq!(receiver.acknowledgement(0), here);
        assert_eq!(receiver.note_report(1 + WINDOW + 1), Err(Inconsistent));
        assert_eq!(receiver.accept(&single(1), 10), Arrival::Whole);
        assert_eq!(receiver.acknowledgement(0).expected, 1);
        assert_eq!(receiver.accept(&single(3), 10), Arrival::Whole);
        assert!(!receiver.acknowledgement(0).is_negative());
        receiver.cumulative = 3 << 32;
        assert_eq!(receiver.widen(7), (3 << 32) + 7);
        assert_eq!(receiver.widen(u32::MAX), (3 << 32) - 1);
    }

    #[test]
    fn fragments_that_contradict_are_noticed_and_what_is_kept_stays_bounded() {
        let mut receiver = Receiver::default();
        let good = Fragment { sequence: 5, index: 1, body_bytes: 250, fragment_bytes: 100 };
        for (wrong, bytes) in [
            (Fragment { index: 6, ..good }, 100),
            (Fragment { index: 3, ..good }, 0),
            (good, 99),
            (Fragment { fragment_bytes: 0, ..good }, 0),
        ] {
            assert_eq!(receiver.accept(&wrong, bytes), Arrival::Inconsistent, "{wrong:?}");
        }
        assert_eq!(receiver.accept(&good, 100), Arrival::First);
        receiver.open(&good, ());
        let other = Fragment { sequence: 6, index: 2, body_bytes: 260, fragment_bytes: 100 };
        assert_eq!(receiver.accept(&other, 60), Arrival::Inconsistent);
        // A faulty sender that begins a frame with every number and ends none.
        let mut receiver = Receiver::default();
        let mut begun = 0;
        for sequence in 0..10 * WINDOW {
            let fragment = Fragment { sequence, index: 0, body_bytes: 200, fragment_bytes: 100 };
            match receiver.accept(&fragment, 100) {
                Arrival::First => receiver.open(&fragment, ()),
                Arrival::Inconsistent => break,
                other => panic!("{other:?}"),
            }
            begun += 1;
        }
        assert_eq!(begun, WINDOW + 1);
        assert_eq!(receiver.open_frames() as u64, WINDOW + 1);
    }
}
