//! Words with atomic operations, kept and executed at their home.
//!
//! A word is not part of the region. It is found by its number, costs one round trip from any node (none at its home) and
//! never moves. For words inside the region, the hardware's own atomic instructions work across nodes under every
//! sequentially consistent protocol.

use super::{Effect, Message, OBJECTS_MAX, Place, Waiter};
use crate::page::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// An operation on a word; each returns the previous value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Changes nothing.
    Load,
    /// Stores a value.
    Exchange(u64),
    /// Adds, wrapping around at 2^64.
    FetchAdd(u64),
    /// Stores the second value if the word has the first.
    CompareExchange(u64, u64),
}

impl Operation {
    fn apply(self, word: &mut u64) -> u64 {
        let before = *word;
        *word = match self {
            Operation::Load => before,
            Operation::Exchange(value) => value,
            Operation::FetchAdd(value) => before.wrapping_add(value),
            Operation::CompareExchange(expected, value) if before == expected => value,
            Operation::CompareExchange(..) => before,
        };
        before
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Words {
    place: Place,
    words: BTreeMap<u64, u64>,
}

impl Words {
    pub(super) fn new(place: Place) -> Words {
        Words { place, words: BTreeMap::new() }
    }

    pub(super) fn operate(&mut self, id: u64, operation: Operation, waiter: Waiter, effects: &mut Vec<Effect>) {
        if !self.place.is_home_of(id) {
            let message = Message::AtomicRequest(id, operation, waiter);
            return effects.push(Effect::Send(self.place.home_of(id), message));
        }
        effects.push(match self.apply(id, operation) {
            Some(before) => Effect::Wake(waiter, before),
            None => Effect::Refused(waiter, "too many atomic words at this node"),
        });
    }

    pub(super) fn requested(
        &mut self,
        from: NodeId,
        id: u64,
        operation: Operation,
        waiter: Waiter,
        effects: &mut Vec<Effect>,
    ) {
        if !self.place.is_home_of(id) {
            return effects.push(Effect::Violation(from, "an atomic operation at a wrong home"));
        }
        effects.push(match self.apply(id, operation) {
            Some(before) => Effect::Send(from, Message::AtomicReply(id, waiter, before)),
            None => Effect::Violation(from, "too many atomic words at their home"),
        });
    }

    fn apply(&mut self, id: u64, operation: Operation) -> Option<u64> {
        if self.words.len() >= OBJECTS_MAX && !self.words.contains_key(&id) {
            return None;
        }
        let word = self.words.entry(id).or_default();
        let before = operation.apply(word);
        // Zero is how a word begins: one that is zero again is not kept.
        if *word == 0 {
            self.words.remove(&id);
        }
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_word_that_is_zero_again_takes_no_room() {
        let (mut words, mut effects) = (Words::new(Place { me: NodeId(0), founders: 1 }), Vec::new());
        for id in 0..2 * OBJECTS_MAX as u64 {
            words.operate(id, Operation::FetchAdd(3), 1, &mut effects);
            words.operate(id, Operation::Exchange(0), 1, &mut effects);
            assert_eq!(core::mem::take(&mut effects), vec![Effect::Wake(1, 0), Effect::Wake(1, 3)]);
        }
        assert!(words.words.is_empty());
    }
}
