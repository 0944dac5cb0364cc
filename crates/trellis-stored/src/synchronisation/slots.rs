//! A member's shared holds: reads, and waits for writing.
//!
//! A count in an object does not show who raised it. With each count that it raises, a member therefore records the
//! object and a nonce, in the same call, in a slot of a record of its own. A process that replaces the member lowers
//! the counts and empties the slots. A living member alone writes its slots, so it knows which are free without asking.
//!
//! Promises: a slot is reused only after it is empty in the store. It must never use more than [`SLOTS_MAX`] slots.

use trellis_store::{Key, Operation, Store, StoreError};

use super::error::SynchronisationError;
use super::{record, rwlock};

/// The maximum number of shared holds of one process at the same time.
pub(super) const SLOTS_MAX: usize = 4096;
const SLOT_BYTES: u32 = 16;

/// The slots in use.
#[derive(Default)]
pub(super) struct Slots {
    used: Vec<bool>,
}

impl Slots {
    /// Reserves a free slot.
    pub(super) fn take(&mut self) -> Result<u32, SynchronisationError> {
        let free = self.used.iter().position(|used| !used).unwrap_or(self.used.len());
        if free == SLOTS_MAX {
            return Err(SynchronisationError::Misuse(format!(
                "this process reads under {SLOTS_MAX} locks at once, which is the most; end some reads first"
            )));
        }
        if free == self.used.len() {
            self.used.push(false);
        }
        self.used[free] = true;
        Ok(free as u32)
    }

    /// Returns an emptied slot.
    pub(super) fn give(&mut self, slot: u32) {
        self.used[slot as usize] = false;
    }
}

/// The kind of hold that a slot stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    /// A reader.
    Read = 0,
    /// A waiting writer.
    WriteRequest = 1,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) object: u64,
    pub(super) nonce: u64,
    pub(super) counts: Counts,
}

impl Note {
    fn words(self) -> [u64; 2] {
        [self.object, self.nonce << 1 | self.counts as u64]
    }

    /// The step that writes the slot.
    pub(super) fn write(self, region: u32, member: u64, slot: u32) -> Operation {
        record::put(&record::holds_key(region, member), slot * SLOT_BYTES, &self.words())
    }

    /// The step that lowers the count for which it stands.
    pub(super) fn lower(self, region: u32) -> Operation {
        let field = match self.counts {
            Counts::Read => rwlock::READERS,
            Counts::WriteRequest => rwlock::WRITE_REQUESTS,
        };
        record::add(&record::key(region, self.object), field, -1)
    }

    /// The step that empties the slot; refused if the note is not there.
    pub(super) fn erase(self, region: u32, member: u64, slot: u32) -> Operation {
        record::swap(&record::holds_key(region, member), slot * SLOT_BYTES, &self.words(), &[0, 0])
    }
}

/// The steps that take back everything that a member recorded; none if it has no record. This takes one call.
pub(super) fn clear_all(store: &dyn Store, region: u32, member: u64) -> Result<Vec<Operation>, StoreError> {
    let key = record::holds_key(region, member);
    let Some(bytes) = store.get_many(std::slice::from_ref(&key))?.pop().flatten() else { return Ok(Vec::new()) };
    // This step at least asserts that the record exists.
    let mut steps = vec![record::put(&key, 0, &[record::word(&bytes, 0)])];
    for (slot, note) in notes(&bytes) {
        steps.push(note.erase(region, member, slot));
        steps.push(note.lower(region));
    }
    Ok(steps)
}

/// The contents of the slots in use.
fn notes(record: &[u8]) -> impl Iterator<Item = (u32, Note)> + '_ {
    (0..(record.len() as u32).div_ceil(SLOT_BYTES)).filter_map(|slot| {
        let object = record::word(record, slot * SLOT_BYTES);
        let nonce = record::word(record, slot * SLOT_BYTES + 8);
        let counts = if nonce & 1 == Counts::Read as u64 { Counts::Read } else { Counts::WriteRequest };
        (object != 0).then_some((slot, Note { object, nonce: nonce >> 1, counts }))
    })
}

/// The notes of one kind about an object, with their members and slots. This takes two calls.
pub(super) fn find(
    store: &dyn Store,
    region: u32,
    object: u64,
    counts: Counts,
) -> Result<Vec<(u64, u32, Note)>, StoreError> {
    let members = record::holders(store, region)?;
    let keys: Vec<Key> = members.iter().map(|member| record::holds_key(region, *member)).collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (member, record) in members.iter().zip(store.get_many(&keys)?) {
        let record = record.unwrap_or_default();
        let about = notes(&record).filter(|(_, note)| note.object == object && note.counts == counts);
        found.extend(about.map(|(slot, note)| (*member, slot, note)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_again_and_end() {
        let mut slots = Slots::default();
        assert_eq!((slots.take().unwrap(), slots.take().unwrap()), (0, 1));
        slots.give(0);
        assert_eq!((slots.take().unwrap(), slots.take().unwrap()), (0, 2));
        for _ in 3..SLOTS_MAX {
            slots.take().unwrap();
        }
        assert!(matches!(slots.take(), Err(SynchronisationError::Misuse(_))));
    }
}
