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
        Some(operation.apply(self.words.entry(id).or_default()))
    }
}
